/*
 * session.c: one client connection: bytes in, frames out, and what bounds it.
 *
 * Input goes through a frame reader whose cap is small until Hello came. Output is one buffer that grows up to tandem's limit and a little more; when
 * the limit is passed the session is `blocked`: its requests get no more deltas (the scheduler pauses them), and no further message is read from it,
 * until half of it has gone. A session that stays blocked too long loses its requests and is told so, if it ever reads again.
 * What must never happen: memory that a silent or greedy client can grow; a session freed while libuv or a job still knows it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/log.h"

enum { HELLO_FRAME_MAX = 65536, ENDING_US = 5000000, OUT_SLACK = 16384, BOUNDED_FROM = 65536 /* smaller ones are max_connections' matter */ };

static void flush(struct td_session *s);
static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

/* ---- life -------------------------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
	struct td_session *s = h->data;

	td_frame_reader_finish(&s->in);
	free(s->out);
	free(s->flying);
	free(s->rest);
	free(s);
}

void td_session_close(struct td_session *s)
{
	struct td_daemon *d = s->d;

	if (s->state == TD_SES_CLOSED)
		return;
	s->state = TD_SES_CLOSED;
	while (s->requests) {
		struct td_request *r = s->requests;

		td_session_detach(r);
		td_request_lose(d, r);
	}
	for (struct td_job *j = s->jobs; j; j = j->next) {
		j->session = NULL;
		j->cancelled = 1;
	}
	s->jobs = NULL;
	if (s->dirty) {
		struct td_session **p = &d->dirty;

		while (*p != s)
			p = &(*p)->dirty_next;
		*p = s->dirty_next;
		s->dirty = 0;
	}
	*(s->prev ? &s->prev->next : &d->sessions) = s->next;
	if (s->next)
		s->next->prev = s->prev;
	d->n_sessions--;
	uv_close((uv_handle_t *)&s->pipe, on_closed);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	static char shared[65536]; /* one thread reads, and each read is used up before the next */

	(void)h;
	(void)suggested;
	*buf = uv_buf_init(shared, sizeof(shared));
}

int td_session_open(struct td_daemon *d, int fd, struct td_error *err)
{
	struct td_session *s = calloc(1, sizeof(*s));
	struct ucred cred;
	socklen_t size = sizeof(cred);
	int rc;

	if (!s) {
		close(fd);
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	}
	s->d = d;
	s->number = ++d->next_session;
	s->opened_us = td_now_us();
	td_frame_reader_init(&s->in, HELLO_FRAME_MAX);
	uv_pipe_init(&d->loop, &s->pipe, 0);
	s->pipe.data = s;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) == 0) {
		s->uid = cred.uid;
		s->pid = cred.pid;
	}
	snprintf(s->tenant, sizeof(s->tenant), "uid-%u", (unsigned)s->uid);
	rc = uv_pipe_open(&s->pipe, fd);
	if (rc == 0)
		rc = uv_read_start((uv_stream_t *)&s->pipe, on_alloc, on_read);
	else
		close(fd);
	if (rc < 0) {
		s->state = TD_SES_CLOSED;
		uv_close((uv_handle_t *)&s->pipe, on_closed);
		return td_error_set(err, TD_E_IO, "%s", uv_strerror(rc));
	}
	s->reading = 1;
	s->next = d->sessions;
	if (s->next)
		s->next->prev = s;
	d->sessions = s;
	d->n_sessions++;
	td_metrics_connect(d, TD_PROTOCOL_SOCKET);
	return 0;
}

void td_session_attach(struct td_session *s, struct td_request *r, uint64_t tag)
{
	r->session = s;
	r->tag = tag;
	r->session_next = s->requests;
	s->requests = r;
}

void td_session_detach(struct td_request *r)
{
	struct td_request **p;

	if (!r->session)
		return;
	for (p = &r->session->requests; *p != r; p = &(*p)->session_next)
		;
	*p = r->session_next;
	r->session_next = NULL;
	r->session = NULL;
}

struct td_request *td_session_request(struct td_session *s, uint64_t tag)
{
	struct td_request *r = s->requests;

	while (r && r->tag != tag)
		r = r->session_next;
	return r;
}

/* ---- input ------------------------------------------------------------------------------------------------------------------------- */

/* A message that cannot be had. Who is meant is known when the bytes are protobuf, and then only that one is told: an open request of this tag means that
 * the tag was used twice. */
static void refuse_message(struct td_session *s, uint64_t tag, const struct td_error *err)
{
	if (err->code == TD_E_PROTOCOL || !s->greeted || !tag || td_session_request(s, tag) || td_job_find(s, tag))
		td_session_refuse(s, err->code, "%s", err->text);
	else
		td_session_error(s, tag, err);
}

/* Handles the whole frames that are there, as long as there is room for answers. */
static void take_frames(struct td_session *s)
{
	const uint8_t *payload;
	size_t n;

	while (s->state == TD_SES_OPEN && !s->blocked && td_frame_peek(&s->in, &payload, &n) == 1) {
		struct td_error err = {0};
		Tandem__ClientMessage *msg = td_client_message_unpack(payload, n, &err);
		uint64_t tag = msg ? msg->tag : td_client_message_tag(payload, n);

		td_frame_drop(&s->in);
		s->frame_us = 0;
		if (!msg)
			refuse_message(s, tag, &err);
		else
			td_dispatch(s, msg);
		s->in.cap = s->greeted ? (size_t)s->d->cfg.max_frame : HELLO_FRAME_MAX;
	}
}

static size_t held(const struct td_session *s)
{
	return s->in.used ? s->in.size : 0;
}

/* What all clients together have sent of messages that are not whole yet is bounded; past the bound the one with most goes. */
static void bound_input(struct td_daemon *d)
{
	for (;;) {
		struct td_session *largest = NULL;
		size_t sum = 0;

		for (struct td_session *s = d->sessions; s; s = s->next) {
			sum += held(s);
			if (!largest || held(s) > held(largest))
				largest = s;
		}
		if (sum <= (size_t)d->cfg.input_memory)
			return;
		td_session_refuse(largest, TD_E_LIMIT, "the messages that all clients have half sent take more than limits.input_memory = %lld bytes; this one is the largest",
				  (long long)d->cfg.input_memory);
	}
}

/* Bytes that were read but have no place while the session is blocked: at most one read's worth, since reading stops. */
static void keep_rest(struct td_session *s, const uint8_t *data, size_t n)
{
	s->rest = malloc(n);
	if (!s->rest) {
		td_session_refuse(s, TD_E_NOMEM, "no memory for this message");
		return;
	}
	memcpy(s->rest, data, n);
	s->rest_n = n;
}

static void feed(struct td_session *s, const uint8_t *data, size_t n)
{
	while (n && s->state == TD_SES_OPEN) {
		long taken = td_frame_feed(&s->in, data, n);

		if (taken == TD_E_TOO_LARGE)
			td_session_refuse(s, TD_E_TOO_LARGE, "the frame is larger than the %zu bytes that are taken%s", s->in.cap,
					  s->greeted ? "" : " before Hello");
		else if (taken < 0)
			td_session_refuse(s, (int)taken, "no memory for this frame");
		if (taken < 0)
			return;
		data += taken;
		n -= (size_t)taken;
		take_frames(s);
		if (s->blocked && n) {
			keep_rest(s, data, n);
			return;
		}
	}
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct td_session *s = stream->data;
	size_t size;

	if (s->state == TD_SES_CLOSED || n == 0)
		return;
	if (n < 0) {
		if (s->in.used && s->state == TD_SES_OPEN)
			td_log(TD_LOG_DEBUG, "connection %llu ended in the middle of a frame", (unsigned long long)s->number);
		td_session_close(s);
		return;
	}
	if (s->state != TD_SES_OPEN)
		return;
	size = s->in.size;
	feed(s, (const uint8_t *)buf->base, (size_t)n);
	if (s->state == TD_SES_OPEN && s->in.used && !s->frame_us)
		s->frame_us = td_now_us();
	if (s->in.size > BOUNDED_FROM && s->in.size != size)
		bound_input(s->d);
}

/* ---- output ------------------------------------------------------------------------------------------------------------------------ */

size_t td_session_pending(const struct td_session *s)
{
	return s->out_n + (s->writing ? uv_stream_get_write_queue_size((const uv_stream_t *)&s->pipe) : 0);
}

static void set_blocked(struct td_session *s)
{
	if (s->blocked || td_session_pending(s) <= (size_t)s->d->cfg.output_buffer)
		return;
	s->blocked = 1;
	s->blocked_us = td_now_us();
	if (s->reading && s->state == TD_SES_OPEN) {
		uv_read_stop((uv_stream_t *)&s->pipe);
		s->reading = 0;
	}
	if (!s->was_blocked++)
		td_log(TD_LOG_DEBUG, "connection %llu reads slowly: its requests pause", (unsigned long long)s->number);
}

/* Enough was read: go on with messages that wait, then with deltas. */
static void set_unblocked(struct td_session *s)
{
	struct td_request *r, *next;

	if (!s->blocked || s->state != TD_SES_OPEN || td_session_pending(s) > (size_t)s->d->cfg.output_buffer / 2)
		return;
	s->blocked = 0;
	for (r = s->requests; r; r = next) {
		next = r->session_next;
		td_stream_pump(s->d, r);
	}
	take_frames(s);
	if (!s->blocked && s->rest) {
		uint8_t *rest = s->rest;

		s->rest = NULL;
		feed(s, rest, s->rest_n);
		free(rest);
	}
	if (!s->blocked && s->state == TD_SES_OPEN && !s->reading) {
		uv_read_start((uv_stream_t *)&s->pipe, on_alloc, on_read);
		s->reading = 1;
	}
}

static void on_written(uv_write_t *w, int status)
{
	struct td_session *s = w->data;

	s->writing = 0;
	if (s->state == TD_SES_CLOSED)
		return;
	if (status < 0) {
		td_session_close(s);
		return;
	}
	flush(s);
}

static void swap_buffers(struct td_session *s)
{
	uint8_t *buf = s->flying;
	size_t size = s->flying_size;

	s->flying = s->out;
	s->flying_size = s->out_size;
	s->out = buf;
	s->out_size = size;
	s->out_n = 0;
}

static void trim(struct td_session *s)
{
	if (s->out_size > 1 << 20 && s->out_n == 0) {
		free(s->out);
		s->out = NULL;
		s->out_size = 0;
	}
}

/* Writes what the socket takes at once; hands the rest to libuv. */
static void flush(struct td_session *s)
{
	uv_buf_t buf;
	int n, rc;

	if (s->writing || s->state == TD_SES_CLOSED)
		return;
	if (s->out_n) {
		buf = uv_buf_init((char *)s->out, (unsigned)s->out_n);
		n = uv_try_write((uv_stream_t *)&s->pipe, &buf, 1);
		if (n < 0 && n != UV_EAGAIN) {
			td_session_close(s);
			return;
		}
		if (n < 0)
			n = 0;
		if ((size_t)n == s->out_n) {
			s->out_n = 0;
			trim(s);
		} else {
			buf = uv_buf_init((char *)s->out + n, (unsigned)(s->out_n - (size_t)n));
			swap_buffers(s);
			s->write.data = s;
			rc = uv_write(&s->write, (uv_stream_t *)&s->pipe, &buf, 1, on_written);
			if (rc < 0) {
				td_session_close(s);
				return;
			}
			s->writing = 1;
		}
	}
	if (s->state == TD_SES_ENDING && !s->writing && !s->out_n) {
		td_session_close(s);
		return;
	}
	set_unblocked(s);
}

void td_session_send(struct td_session *s, const Tandem__ServerMessage *msg)
{
	size_t n = tandem__server_message__get_packed_size(msg), need = s->out_n + n + TD_FRAME_HEAD;

	if (s->state != TD_SES_OPEN)
		return;
	if (need > s->out_size) {
		size_t size = s->out_size ? s->out_size : 4096;
		uint8_t *bigger;

		while (size < need)
			size *= 2;
		bigger = realloc(s->out, size);
		if (!bigger) {
			td_log(TD_LOG_ERROR, "connection %llu: no memory for its answers; closed", (unsigned long long)s->number);
			s->state = TD_SES_ENDING; /* closed at the next flush, not under the feet of the caller */
			s->ending_us = 1;
			return;
		}
		s->out = bigger;
		s->out_size = size;
	}
	for (int i = 0; i < TD_FRAME_HEAD; i++)
		s->out[s->out_n + (size_t)i] = (uint8_t)(n >> (8 * i));
	tandem__server_message__pack(msg, s->out + s->out_n + TD_FRAME_HEAD);
	s->out_n = need;
	if (!s->dirty) {
		s->dirty = 1;
		s->dirty_next = s->d->dirty;
		s->d->dirty = s;
	}
	set_blocked(s);
}

void td_session_error(struct td_session *s, uint64_t tag, const struct td_error *e)
{
	Tandem__Error out = TANDEM__ERROR__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;

	td_metrics_error(s->d, e->code);
	out.code = (char *)td_error_name(e->code);
	out.text = (char *)e->text;
	switch (e->code) {
	case TD_E_QUEUE_FULL:
	case TD_E_LIMIT:
		out.has_retry_after_ms = 1;
		out.retry_after_ms = 1000;
		break;
	case TD_E_WORKER:
	case TD_E_LOADING:
		out.has_retry_after_ms = 1;
		out.retry_after_ms = 30000;
		break;
	}
	m.tag = tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_ERROR;
	m.error = &out;
	td_session_send(s, &m);
}

void td_session_refuse(struct td_session *s, int code, const char *fmt, ...)
{
	struct td_error err = {.code = code};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err.text, sizeof(err.text), fmt, ap);
	va_end(ap);
	td_log(TD_LOG_INFO, "connection %llu of %s (process %d) is ended: %s", (unsigned long long)s->number, s->tenant, (int)s->pid, err.text);
	td_session_error(s, 0, &err);
	td_frame_reader_finish(&s->in); /* nothing more is read from it */
	s->state = TD_SES_ENDING;
	s->ending_us = td_now_us();
}

/* ---- once per turn, once per tick -------------------------------------------------------------------------------------------------- */

void td_sessions_flush(struct td_daemon *d)
{
	while (d->dirty) {
		struct td_session *s = d->dirty;

		d->dirty = s->dirty_next;
		s->dirty = 0;
		flush(s);
	}
}

static void drop_slow(struct td_session *s)
{
	td_log(TD_LOG_WARN, "connection %llu of %s (process %d) has not read for %d s: its requests are dropped", (unsigned long long)s->number, s->tenant,
	       (int)s->pid, s->d->cfg.slow_reader_s);
	while (s->requests) {
		struct td_request *r = s->requests;

		td_session_detach(r);
		td_request_fail(s->d, r, TD_E_SLOW_READER, "the client has not read its answers for %d s", s->d->cfg.slow_reader_s);
		td_session_error(s, r->tag, &r->error);
	}
	td_session_refuse(s, TD_E_SLOW_READER, "the client has not read its answers for %d s", s->d->cfg.slow_reader_s);
}

void td_sessions_check(struct td_daemon *d, uint64_t now_us)
{
	struct td_session *s, *next;
	uint64_t slow = (uint64_t)d->cfg.slow_reader_s * 1000000;

	for (s = d->sessions; s; s = next) {
		next = s->next;
		if (s->state == TD_SES_ENDING) {
			/* A slow reader gets as long again to read its last words. */
			if (now_us > s->ending_us + (s->blocked ? slow : ENDING_US))
				td_session_close(s);
			continue;
		}
		set_unblocked(s);
		if (s->state != TD_SES_OPEN)
			continue;
		if (s->blocked && now_us > s->blocked_us + slow)
			drop_slow(s);
		else if (!s->greeted && now_us > s->opened_us + (uint64_t)d->cfg.handshake_s * 1000000)
			td_session_refuse(s, TD_E_DEADLINE, "no Hello within %d s", d->cfg.handshake_s);
		else if (s->frame_us && !s->blocked && now_us > s->frame_us + slow)
			td_session_refuse(s, TD_E_DEADLINE, "a frame was begun and not ended within %d s", d->cfg.slow_reader_s);
	}
}
