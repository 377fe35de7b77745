/*
 * session.c: one client connection: bytes in, bytes out, and what bounds it.
 *
 * Input goes to the session's protocol. Output is one buffer that grows up to tandem's limit and a little more; when
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

enum { ENDING_US = 5000000, HOLD_MOST = 65536 /* read ahead of an answer */ };

static void flush(struct td_session *s);
static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

/* ---- life -------------------------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
	struct td_session *s = h->data;

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
		if (s->protocol->resumes)
			td_request_lose(d, r);
		else
			td_request_end(d, r, TANDEM__FINISH_REASON__CANCELLED);
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
	s->protocol->closing(s);
	td_session_be(s, NULL);
	uv_close(&s->io.handle, on_closed);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	static char shared[65536]; /* one thread reads, and each read is used up before the next */

	(void)h;
	(void)suggested;
	*buf = uv_buf_init(shared, sizeof(shared));
}

static int open_stream(struct td_session *s, int fd, int tcp)
{
	int rc;

	if (tcp) {
		uv_tcp_init(&s->d->loop, &s->io.tcp);
		rc = uv_tcp_open(&s->io.tcp, fd);
		if (rc == 0)
			uv_tcp_nodelay(&s->io.tcp, 1);
	} else {
		uv_pipe_init(&s->d->loop, &s->io.pipe, 0);
		rc = uv_pipe_open(&s->io.pipe, fd);
	}
	s->io.handle.data = s;
	if (rc)
		close(fd);
	return rc ? rc : uv_read_start(&s->io.stream, on_alloc, on_read);
}

int td_session_open(struct td_daemon *d, int fd, const struct td_session_protocol *protocol, int tcp, struct td_error *err)
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
	s->tcp = tcp;
	s->protocol = protocol;
	s->number = ++d->next_session;
	s->opened_us = td_now_us();
	if (!tcp && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) == 0) {
		s->uid = cred.uid;
		s->pid = cred.pid;
	}
	rc = open_stream(s, fd, tcp);
	if (rc < 0) {
		s->state = TD_SES_CLOSED;
		uv_close(&s->io.handle, on_closed);
		return td_error_set(err, TD_E_IO, "%s", uv_strerror(rc));
	}
	s->reading = 1;
	s->next = d->sessions;
	if (s->next)
		s->next->prev = s;
	d->sessions = s;
	d->n_sessions++;
	td_metrics_connect(d, protocol->metric);
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

/* What all clients together have sent of messages that are not whole yet is bounded; past the bound the one with most goes. */
void td_sessions_bound_input(struct td_daemon *d)
{
	for (;;) {
		struct td_session *largest = NULL;
		size_t sum = 0, most = 0;

		for (struct td_session *s = d->sessions; s; s = s->next) {
			size_t held = s->state == TD_SES_OPEN ? s->protocol->held(s) : 0;

			sum += held;
			if (!largest || held > most) {
				largest = s;
				most = held;
			}
		}
		if (sum <= (size_t)d->cfg.input_memory)
			return;
		td_session_refuse(largest, TD_E_LIMIT, "the messages that all clients have half sent take more than limits.input_memory = %lld bytes; this one is the largest",
				  (long long)d->cfg.input_memory);
	}
}

static int waits(const struct td_session *s)
{
	return s->blocked || s->hold;
}

/* Bytes that were read but have no place for now: little, since reading stops. */
static void keep_rest(struct td_session *s, const uint8_t *data, size_t n)
{
	uint8_t *bigger = realloc(s->rest, s->rest_n + n);

	if (!bigger) {
		td_session_refuse(s, TD_E_NOMEM, "no memory for this message");
		return;
	}
	memcpy(bigger + s->rest_n, data, n);
	s->rest = bigger;
	s->rest_n += n;
}

static void feed(struct td_session *s, const uint8_t *data, size_t n)
{
	while (n && s->state == TD_SES_OPEN && !waits(s)) {
		size_t used = s->protocol->feed(s, data, n);

		data += used;
		n -= used;
	}
	if (n && s->state == TD_SES_OPEN)
		keep_rest(s, data, n);
}

/* Not while answers wait for their reader. On hold it goes on a little, since an end that is not read is not seen. */
static void set_reading(struct td_session *s)
{
	int wanted = s->state == TD_SES_OPEN && !s->blocked && (!s->hold || s->rest_n < HOLD_MOST);

	if (wanted == s->reading)
		return;
	if (wanted)
		uv_read_start(&s->io.stream, on_alloc, on_read);
	else
		uv_read_stop(&s->io.stream);
	s->reading = wanted;
}

void td_session_go_on(struct td_session *s)
{
	if (s->state == TD_SES_OPEN && !waits(s))
		s->protocol->go_on(s);
	if (s->rest && s->state == TD_SES_OPEN && !waits(s)) {
		uint8_t *rest = s->rest;
		size_t n = s->rest_n;

		s->rest = NULL;
		s->rest_n = 0;
		feed(s, rest, n);
		free(rest);
	}
	if (s->state == TD_SES_OPEN)
		set_reading(s);
}

static void on_eof(struct td_session *s)
{
	if (s->protocol->half(s) && s->state == TD_SES_OPEN)
		td_log(TD_LOG_DEBUG, "connection %llu ended in the middle of a message", (unsigned long long)s->number);
	s->eof = 1;
	if (!s->protocol->answers_eof || s->requests || s->jobs || !td_session_pending(s)) {
		td_session_close(s);
		return;
	}
	uv_read_stop(&s->io.stream);
	s->reading = 0;
	if (s->state == TD_SES_OPEN)
		td_session_end(s);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct td_session *s = stream->data;

	if (s->state == TD_SES_CLOSED || n == 0)
		return;
	if (n == UV_EOF) {
		on_eof(s);
		return;
	}
	if (n < 0) {
		td_session_close(s);
		return;
	}
	if (s->state != TD_SES_OPEN)
		return;
	if (s->rest)
		keep_rest(s, (const uint8_t *)buf->base, (size_t)n);
	else
		feed(s, (const uint8_t *)buf->base, (size_t)n);
	if (s->state == TD_SES_OPEN)
		set_reading(s);
}

/* ---- output ------------------------------------------------------------------------------------------------------------------------ */

size_t td_session_pending(const struct td_session *s)
{
	return s->out_n + (s->writing ? uv_stream_get_write_queue_size(&s->io.stream) : 0);
}

static void set_blocked(struct td_session *s)
{
	if (s->blocked || td_session_pending(s) <= (size_t)s->d->cfg.output_buffer)
		return;
	s->blocked = 1;
	s->blocked_us = td_now_us();
	if (s->state == TD_SES_OPEN)
		set_reading(s);
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
	td_session_go_on(s);
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

static void on_shutdown(uv_shutdown_t *req, int status)
{
	(void)req; /* the client's end, or the time limit of ENDING, closes it */
	(void)status;
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
		n = uv_try_write(&s->io.stream, &buf, 1);
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
			rc = uv_write(&s->write, &s->io.stream, &buf, 1, on_written);
			if (rc < 0) {
				td_session_close(s);
				return;
			}
			s->writing = 1;
		}
	}
	if (s->state == TD_SES_ENDING && !s->writing && !s->out_n) {
		if (s->linger != 1 || s->eof || uv_shutdown(&s->shutdown, &s->io.stream, on_shutdown) < 0)
			s->linger = s->linger == 2 && !s->eof ? 2 : 0;
		else
			s->linger = 2;
		if (!s->linger)
			td_session_close(s);
		return;
	}
	set_unblocked(s);
}

uint8_t *td_session_reserve(struct td_session *s, size_t n)
{
	size_t need = s->out_n + n;

	if (s->state != TD_SES_OPEN)
		return NULL;
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
			return NULL;
		}
		s->out = bigger;
		s->out_size = size;
	}
	s->out_n = need;
	if (!s->dirty) {
		s->dirty = 1;
		s->dirty_next = s->d->dirty;
		s->d->dirty = s;
	}
	set_blocked(s);
	return s->out + need - n;
}

/* When it is worth asking again. */
static uint32_t retry_ms(int code)
{
	switch (code) {
	case TD_E_QUEUE_FULL:
	case TD_E_LIMIT:
		return 1000;
	case TD_E_WORKER:
	case TD_E_LOADING:
		return 30000;
	}
	return 0;
}

void td_session_error_retry(struct td_session *s, uint64_t tag, const struct td_error *e, uint32_t retry)
{
	td_metrics_error(s->d, e->code);
	s->protocol->error(s, tag, e, retry ? retry : retry_ms(e->code));
}

void td_session_error(struct td_session *s, uint64_t tag, const struct td_error *e)
{
	td_session_error_retry(s, tag, e, 0);
}

void td_session_end(struct td_session *s)
{
	s->protocol->closing(s); /* nothing more is read from it */
	s->state = TD_SES_ENDING;
	s->ending_us = td_now_us();
}

void td_session_linger(struct td_session *s)
{
	td_session_end(s);
	s->linger = 1;
	if (!s->reading && !s->eof)
		s->reading = uv_read_start(&s->io.stream, on_alloc, on_read) == 0;
}

void td_session_refuse(struct td_session *s, int code, const char *fmt, ...)
{
	struct td_error err = {.code = code};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err.text, sizeof(err.text), fmt, ap);
	va_end(ap);
	td_log(TD_LOG_INFO, "connection %llu of %s (process %d) is ended: %s", (unsigned long long)s->number, td_session_who(s), (int)s->pid, err.text);
	td_session_error(s, 0, &err);
	td_session_end(s);
}

/* ---- once per turn, once per tick -------------------------------------------------------------------------------------------------- */

void td_sessions_flush(struct td_daemon *d)
{
	while (d->dirty) {
		struct td_session *s = d->dirty;

		d->dirty = s->dirty_next;
		s->dirty = 0;
		flush(s);
		if (s->woken && s->state == TD_SES_OPEN) {
			s->woken = 0;
			td_session_go_on(s);
		}
	}
}

static void drop_slow(struct td_session *s)
{
	td_log(TD_LOG_WARN, "connection %llu of %s (process %d) has not read for %d s: its requests are dropped", (unsigned long long)s->number, td_session_who(s),
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
		else
			s->protocol->check(s, now_us);
	}
}
