/*
 * dispatch.c: what each message of a client asks for.
 *
 * Errors come in two kinds. What is wrong with one request is answered under its tag, and the connection goes on. What breaks the protocol (no Hello,
 * a tag used twice, a frame that cannot be read) is answered under tag 0 and ends the connection, since after it nobody knows who speaks of what.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "engine/log.h"

enum { PROTOCOL_VERSION = 1 };

static void answer_error(struct td_session *s, uint64_t tag, int code, const char *text)
{
	struct td_error err;

	td_error_set(&err, code, "%s", text);
	td_session_error(s, tag, &err);
}

/* ---- hello ------------------------------------------------------------------------------------------------------------------------- */

static void hello(struct td_session *s, uint64_t tag, const Tandem__Hello *h)
{
	const struct td_model *m = &s->d->model;
	Tandem__Welcome w = TANDEM__WELCOME__INIT;
	Tandem__ServerMessage out = TANDEM__SERVER_MESSAGE__INIT;
	struct td_error err;

	if (s->frames.greeted) {
		td_session_refuse(s, TD_E_PROTOCOL, "Hello came twice");
		return;
	}
	if (h->version != PROTOCOL_VERSION) {
		td_session_refuse(s, TD_E_UNSUPPORTED, "the client speaks version %u of the protocol, this daemon version %d", h->version, PROTOCOL_VERSION);
		return;
	}
	if (!td_session_tenant(s, h->tenant, &err)) {
		td_session_refuse(s, err.code, "%s", err.text);
		return;
	}
	s->frames.greeted = 1;
	td_log(TD_LOG_DEBUG, "connection %llu: %s, process %d, %.64s", (unsigned long long)s->number, td_session_who(s), (int)s->pid, h->client ? h->client : "unnamed");
	w.version = PROTOCOL_VERSION;
	w.server = (char *)"tandemd " TD_VERSION;
	w.model = (char *)m->name;
	w.context = (uint32_t)m->shm.context;
	w.slots = (uint32_t)m->shm.slots;
	w.tenant = (char *)td_session_who(s);
	w.max_frame = (uint32_t)s->d->cfg.max_frame;
	w.ready = td_supervisor_serving(s->d);
	out.tag = tag;
	out.body_case = TANDEM__SERVER_MESSAGE__BODY_WELCOME;
	out.welcome = &w;
	td_session_send(s, &out);
}

/* ---- generate ---------------------------------------------------------------------------------------------------------------------- */

static void send_accepted(struct td_session *s, struct td_request *r)
{
	uint32_t position = td_admission_position(s->d, r);

	r->told_place = (int)position;
	s->protocol->accepted(s, r, position);
}

int td_dispatch_admit(struct td_session *s, struct td_request *r, const Tandem__Generate *g, uint64_t number, uint64_t tag)
{
	struct td_daemon *d = s->d;
	struct td_refusal no;

	r->number = number;
	r->forget = !s->protocol->resumes;
	r->arrived_us = td_now_us();
	if (g->has_deadline_ms && g->deadline_ms)
		r->deadline_us = r->arrived_us + (uint64_t)g->deadline_ms * 1000;
	if (td_admission_take(s, r, &no)) {
		td_metrics_refuse(d, td_session_who(s), no.error.code);
		td_request_free(r);
		td_session_error_retry(s, tag, &no.error, no.retry_after_ms);
		return no.error.code;
	}
	HASH_ADD(hh, d->requests, number, sizeof(r->number), r);
	td_session_attach(s, r, tag);
	td_admission_enqueue(d, r);
	td_metrics_accept(d, r, r->tenant->cfg.name);
	d->count.requests++;
	d->count.prompt_tokens += (uint64_t)r->log.n_prompt;
	send_accepted(s, r);
	return 0;
}

static void generate(struct td_session *s, Tandem__ClientMessage *msg)
{
	struct td_refusal no;

	if (td_admission_open(s, &no)) {
		td_metrics_refuse(s->d, td_session_who(s), no.error.code);
		td_session_error_retry(s, msg->tag, &no.error, no.retry_after_ms);
		td_client_message_free(msg);
		return;
	}
	td_job_start(s, msg, ++s->d->next_request);
}

/* ---- cancel, resume ---------------------------------------------------------------------------------------------------------------- */

static void cancel(struct td_session *s, uint64_t tag, const Tandem__Cancel *c)
{
	struct td_request *r = td_session_request(s, c->target_tag);
	struct td_job *j = td_job_find(s, c->target_tag);

	if (r)
		td_request_end(s->d, r, TANDEM__FINISH_REASON__CANCELLED);
	else if (j)
		j->cancelled = 1;
	else if (tag != 0 && tag != c->target_tag) /* those who do not expect an answer are spared one: it may just have ended */
		answer_error(s, tag, TD_E_NOT_FOUND, "no open request has this tag; it may have ended");
}

static int key_differs(const struct td_request *r, const ProtobufCBinaryData *key)
{
	unsigned diff = key->len != sizeof(r->key);

	for (size_t i = 0; i < sizeof(r->key) && i < key->len; i++) /* in constant time */
		diff |= r->key[i] ^ key->data[i];
	return diff != 0;
}

static void resume(struct td_session *s, uint64_t tag, const Tandem__Resume *in)
{
	struct td_daemon *d = s->d;
	struct td_request *r;
	struct td_refusal no;
	struct td_error err;
	int again;

	HASH_FIND(hh, d->requests, &in->request, sizeof(in->request), r);
	if (!r || key_differs(r, &in->key)) {
		answer_error(s, tag, TD_E_NOT_FOUND, "there is no such request to resume: it was forgotten, or number and key do not belong together");
		return;
	}
	if (in->position > (uint32_t)td_commitlog_outputs(&r->log)) {
		td_error_set(&err, TD_E_INVALID, "the position is %u; the request has only %d output tokens", in->position, td_commitlog_outputs(&r->log));
		td_session_error(s, tag, &err);
		return;
	}
	again = r->state == TD_REQ_LOST || (r->state == TD_REQ_ENDED && (r->error.code == TD_E_WORKER || r->error.code == TD_E_SLOW_READER));
	if (again && td_admission_open(s, &no)) {
		td_session_error_retry(s, tag, &no.error, no.retry_after_ms);
		return;
	}
	if (r->session) {
		struct td_session *old = r->session;
		uint64_t old_tag = r->tag;

		td_session_detach(r);
		answer_error(old, old_tag, TD_E_CLOSED, "the request was resumed from elsewhere");
	}
	td_session_attach(s, r, tag);
	r->sent = (int)in->position;
	if (again) {
		td_request_unretire(d, r);
		r->error.code = 0;
		r->barren = r->lone = r->entry.suspect = r->entry.lone = 0;
		td_admission_enqueue(d, r);
	}
	send_accepted(s, r);
	td_stream_pump(d, r);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------------ */

static void detokenize(struct td_session *s, uint64_t tag, const Tandem__Detokenize *in)
{
	const struct td_model *model = &s->d->model;
	Tandem__Text t = TANDEM__TEXT__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	struct td_error err;
	size_t n = 0, bytes = 0;

	for (size_t i = 0; i < in->n_id; i++) {
		size_t one = 0;

		if (in->id[i] < 0 || in->id[i] >= model->vocab_real) {
			td_error_set(&err, TD_E_INVALID, "token %zu is %d; ids go from 0 to %d", i + 1, in->id[i], model->vocab_real - 1);
			td_session_error(s, tag, &err);
			return;
		}
		td_token_bytes(model->tokenizer, in->id[i], &one);
		bytes += one;
	}
	if (bytes > (size_t)s->d->cfg.max_frame / 4) { /* invalid bytes grow to three each */
		answer_error(s, tag, TD_E_TOO_LARGE, "the text of these tokens does not fit in a frame; ask for fewer at a time");
		return;
	}
	t.text = td_decode(model->tokenizer, in->id, in->n_id, 0, &n);
	if (!t.text) {
		answer_error(s, tag, TD_E_NOMEM, "out of memory");
		return;
	}
	for (size_t i = 0; i < n; i++) /* a NUL would end the string on the wire */
		if (!t.text[i])
			t.text[i] = '?';
	m.tag = tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_TEXT;
	m.text = &t;
	td_session_send(s, &m);
	free(t.text);
}

/* ---- ways -------------------------------------------------------------------------------------------------------------------------- */

void td_dispatch_job(struct td_job *j)
{
	if (!j->session) {
		td_request_free(j->request);
		return;
	}
	if (j->error.code && j->msg->body_case == TANDEM__CLIENT_MESSAGE__BODY_GENERATE)
		td_metrics_refuse(j->d, td_session_who(j->session), j->error.code);
	if (j->error.code)
		td_session_error(j->session, j->msg->tag, &j->error);
	else if (j->request && !td_dispatch_admit(j->session, j->request, j->msg->generate, j->number, j->msg->tag) && j->cancelled)
		td_request_end(j->d, j->request, TANDEM__FINISH_REASON__CANCELLED);
	else if (!j->request)
		td_frames_tokens(j->session, j->msg->tag, &j->ids);
}

static int tag_in_use(struct td_session *s, uint64_t tag)
{
	return td_session_request(s, tag) || td_job_find(s, tag);
}

void td_dispatch(struct td_session *s, Tandem__ClientMessage *msg)
{
	int opens = msg->body_case == TANDEM__CLIENT_MESSAGE__BODY_GENERATE || msg->body_case == TANDEM__CLIENT_MESSAGE__BODY_RESUME ||
		    msg->body_case == TANDEM__CLIENT_MESSAGE__BODY_TOKENIZE;

	s->d->asked_us = td_now_us();
	if (!s->frames.greeted && msg->body_case != TANDEM__CLIENT_MESSAGE__BODY_HELLO) {
		td_session_refuse(s, TD_E_PROTOCOL, "the first message must be Hello");
	} else if (opens && msg->tag == 0) {
		td_session_refuse(s, TD_E_PROTOCOL, "tag 0 belongs to the connection; requests need another one");
	} else if (opens && tag_in_use(s, msg->tag)) {
		td_session_refuse(s, TD_E_PROTOCOL, "tag %llu belongs to a request that is still open", (unsigned long long)msg->tag);
	} else {
		switch (msg->body_case) {
		case TANDEM__CLIENT_MESSAGE__BODY_HELLO:
			hello(s, msg->tag, msg->hello);
			break;
		case TANDEM__CLIENT_MESSAGE__BODY_GENERATE:
			generate(s, msg);
			return; /* keeps msg */
		case TANDEM__CLIENT_MESSAGE__BODY_TOKENIZE:
			td_job_start(s, msg, 0);
			return; /* keeps msg */
		case TANDEM__CLIENT_MESSAGE__BODY_CANCEL:
			cancel(s, msg->tag, msg->cancel);
			break;
		case TANDEM__CLIENT_MESSAGE__BODY_RESUME:
			resume(s, msg->tag, msg->resume);
			break;
		case TANDEM__CLIENT_MESSAGE__BODY_STATUS:
			if (msg->status->metrics)
				td_status_send_metrics(s, msg->tag);
			else
				td_status_send(s, msg->tag);
			break;
		case TANDEM__CLIENT_MESSAGE__BODY_DETOKENIZE:
			detokenize(s, msg->tag, msg->detokenize);
			break;
		default:
			answer_error(s, msg->tag, TD_E_PROTOCOL, "the message asks for nothing that this daemon knows");
		}
	}
	td_client_message_free(msg);
}
