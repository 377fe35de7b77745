/*
 * frames.c: the protocol of libtandem: frames of protobuf (proto/tandem.proto), in and out.
 *
 * Input goes through a frame reader whose cap is small until Hello came; whole messages go to dispatch.c. What a request has to say is packed straight into
 * the session's output. Nothing is owned here but the reader's buffer.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "engine/log.h"

enum { HELLO_FRAME_MAX = 65536, BOUNDED_FROM = 65536 /* smaller ones are max_connections' matter */ };

/* ---- input ------------------------------------------------------------------------------------------------------------------------- */

/* A message that cannot be had. Who is meant is known when the bytes are protobuf, and then only that one is told: an open request of this tag means that
 * the tag was used twice. */
static void refuse_message(struct td_session *s, uint64_t tag, const struct td_error *err)
{
	if (err->code == TD_E_PROTOCOL || !s->frames.greeted || !tag || td_session_request(s, tag) || td_job_find(s, tag))
		td_session_refuse(s, err->code, "%s", err->text);
	else
		td_session_error(s, tag, err);
}

/* Handles the whole frames that are there, as long as there is room for answers. */
static void take_frames(struct td_session *s)
{
	struct td_frames_state *f = &s->frames;
	const uint8_t *payload;
	size_t n;

	while (s->state == TD_SES_OPEN && !s->blocked && td_frame_peek(&f->in, &payload, &n) == 1) {
		struct td_error err = {0};
		Tandem__ClientMessage *msg = td_client_message_unpack(payload, n, &err);
		uint64_t tag = msg ? msg->tag : td_client_message_tag(payload, n);

		td_frame_drop(&f->in);
		f->since_us = 0;
		if (!msg)
			refuse_message(s, tag, &err);
		else
			td_dispatch(s, msg);
		f->in.cap = f->greeted ? (size_t)s->d->cfg.max_frame : HELLO_FRAME_MAX;
	}
}

static size_t held(const struct td_session *s)
{
	return s->frames.in.used ? s->frames.in.size : 0;
}

static int half(const struct td_session *s)
{
	return s->frames.in.used > 0;
}

static size_t feed(struct td_session *s, const uint8_t *data, size_t n)
{
	struct td_frames_state *f = &s->frames;
	size_t before, done = 0;

	if (!f->in.cap)
		td_frame_reader_init(&f->in, HELLO_FRAME_MAX);
	before = f->in.size;
	while (done < n && s->state == TD_SES_OPEN && !s->blocked) {
		long taken = td_frame_feed(&f->in, data + done, n - done);

		if (taken == TD_E_TOO_LARGE)
			td_session_refuse(s, TD_E_TOO_LARGE, "the frame is larger than the %zu bytes that are taken%s", f->in.cap,
					  f->greeted ? "" : " before Hello");
		else if (taken < 0)
			td_session_refuse(s, (int)taken, "no memory for this frame");
		if (taken < 0)
			return n;
		done += (size_t)taken;
		take_frames(s);
	}
	if (s->state == TD_SES_OPEN && f->in.used && !f->since_us)
		f->since_us = td_now_us();
	if (f->in.size > BOUNDED_FROM && f->in.size != before)
		td_sessions_bound_input(s->d);
	return done;
}

static void check(struct td_session *s, uint64_t now_us)
{
	const struct td_daemon_config *c = &s->d->cfg;

	if (!s->frames.greeted && now_us > s->opened_us + (uint64_t)c->handshake_s * 1000000)
		td_session_refuse(s, TD_E_DEADLINE, "no Hello within %d s", c->handshake_s);
	else if (s->frames.since_us && !s->blocked && now_us > s->frames.since_us + (uint64_t)c->slow_reader_s * 1000000)
		td_session_refuse(s, TD_E_DEADLINE, "a frame was begun and not ended within %d s", c->slow_reader_s);
}

static void closing(struct td_session *s)
{
	td_frame_reader_finish(&s->frames.in);
}

static size_t last_words(uint8_t *out, size_t size, int code, const char *text)
{
	Tandem__Error e = TANDEM__ERROR__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	uint8_t *frame;
	size_t n = 0;

	e.code = (char *)td_error_name(code);
	e.text = (char *)text;
	e.has_retry_after_ms = 1;
	e.retry_after_ms = 1000;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_ERROR;
	m.error = &e;
	frame = td_server_message_pack(&m, &n);
	if (!frame || n > size)
		n = 0;
	memcpy(out, frame ? frame : out, n);
	free(frame);
	return n;
}

/* ---- output ------------------------------------------------------------------------------------------------------------------------ */

void td_session_send(struct td_session *s, const Tandem__ServerMessage *msg)
{
	size_t n = tandem__server_message__get_packed_size(msg);
	uint8_t *out = td_session_reserve(s, n + TD_FRAME_HEAD);

	if (!out)
		return;
	for (int i = 0; i < TD_FRAME_HEAD; i++)
		out[i] = (uint8_t)(n >> (8 * i));
	tandem__server_message__pack(msg, out + TD_FRAME_HEAD);
}

static void send_error(struct td_session *s, uint64_t tag, const struct td_error *e, uint32_t retry_ms)
{
	Tandem__Error out = TANDEM__ERROR__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;

	out.code = (char *)td_error_name(e->code);
	out.text = (char *)e->text;
	out.has_retry_after_ms = retry_ms > 0;
	out.retry_after_ms = retry_ms;
	m.tag = tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_ERROR;
	m.error = &out;
	td_session_send(s, &m);
}

static void send_accepted(struct td_session *s, const struct td_request *r, uint32_t position)
{
	Tandem__Accepted a = TANDEM__ACCEPTED__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;

	a.request = r->number;
	a.key = (ProtobufCBinaryData){sizeof(r->key), (uint8_t *)r->key};
	a.prompt_tokens = (uint32_t)r->log.n_prompt;
	a.queue_position = position;
	m.tag = r->tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_ACCEPTED;
	m.accepted = &a;
	td_session_send(s, &m);
}

static void send_queue(struct td_session *s, const struct td_request *r, uint32_t position)
{
	Tandem__Queue q = TANDEM__QUEUE__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;

	q.position = position;
	m.tag = r->tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_QUEUE;
	m.queue = &q;
	td_session_send(s, &m);
}

static void pack_logprobs(struct td_daemon *d, const struct td_commitlog *log, int from, int n, Tandem__Delta *delta)
{
	struct td_delta_scratch *x = d->scratch;
	int used = 0;

	for (int i = 0; i < n; i++) {
		Tandem__TokenLogprob *t = &x->token[i];

		tandem__token_logprob__init(t);
		t->logprob = log->logprob[from + i];
		t->top = &x->top_ptr[used];
		for (int j = 0; j < log->n_top; j++) {
			size_t at = (size_t)(from + i) * (size_t)log->n_top + (size_t)j, len = 0;
			Tandem__TopLogprob *top = &x->top[used];
			const char *bytes;

			if (log->top_id[at] < 0)
				break;
			tandem__top_logprob__init(top);
			top->id = log->top_id[at];
			top->logprob = log->top_logprob[at];
			bytes = td_token_bytes(d->model.tokenizer, top->id, &len);
			top->has_token = bytes != NULL;
			top->token = (ProtobufCBinaryData){len, (uint8_t *)bytes};
			x->top_ptr[used++] = top;
			t->n_top++;
		}
		x->token_ptr[i] = t;
	}
	delta->logprob = x->token_ptr;
	delta->n_logprob = (size_t)n;
}

static void send_delta(struct td_session *s, struct td_request *r, int n, size_t text_end)
{
	Tandem__Delta delta = TANDEM__DELTA__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	size_t text_from = td_stream_text_from(r);
	char held_back = 0;

	delta.position = (uint32_t)r->sent;
	delta.n_id = (size_t)n;
	delta.id = r->log.ids + r->log.n_prompt + r->sent;
	if (text_end > text_from) {
		held_back = r->text.text[text_end];
		r->text.text[text_end] = 0;
		delta.text = r->text.text + text_from;
	}
	if (r->log.n_top >= 0 && n)
		pack_logprobs(s->d, &r->log, r->sent, n, &delta);
	m.tag = r->tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_DELTA;
	m.delta = &delta;
	td_session_send(s, &m);
	if (delta.text)
		r->text.text[text_end] = held_back;
}

static void send_finish(struct td_session *s, const struct td_request *r)
{
	Tandem__Usage u = TANDEM__USAGE__INIT;
	Tandem__Finish f = TANDEM__FINISH__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;

	td_stream_usage(r, &u);
	f.reason = r->finish;
	f.stop = (char *)td_textstream_stop(&r->text);
	f.usage = &u;
	m.tag = r->tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_FINISH;
	m.finish = &f;
	td_session_send(s, &m);
}

void td_frames_tokens(struct td_session *s, uint64_t tag, const struct td_ids *ids)
{
	Tandem__Tokens t = TANDEM__TOKENS__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;

	t.n_id = ids->n;
	t.id = ids->id;
	m.tag = tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_TOKENS;
	m.tokens = &t;
	td_session_send(s, &m);
}

const struct td_session_protocol td_frames = {
	.name = "frames",
	.metric = TD_PROTOCOL_SOCKET,
	.feed = feed,
	.go_on = take_frames,
	.half = half,
	.held = held,
	.accepted = send_accepted,
	.queued = send_queue,
	.delta = send_delta,
	.finish = send_finish,
	.error = send_error,
	.last_words = last_words,
	.check = check,
	.closing = closing,
	.resumes = 1,
};
