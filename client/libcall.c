/*
 * libcall.c: the open calls of a connection: made by submit, fed by the daemon's answers, ended once.
 *
 * An answer whose tag was issued but is no longer open is dropped: it crossed with our giving up. An answer to a tag never issued, or of a kind that
 * does not belong to the call, is a broken protocol and ends the connection. Positions must join exactly: the promise of no gap and no repetition
 * is checked here, not believed.
 * What must never happen: a callback on a call that has ended; two ends of one call.
 */
#include "client/libtandem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define X(name, number, wire, http) _Static_assert((int)TANDEM_E_##name == (int)TD_E_##name, #name);
TD_ERRORS(X)
#undef X

struct td__call *td__call_find(const struct tandem *t, uint64_t tag)
{
	struct td__call *call = t->call;

	while (call && call->tag != tag)
		call = call->next;
	return call;
}

static void unlink_call(struct tandem *t, struct td__call *call)
{
	struct td__call **at = &t->call;

	while (*at && *at != call)
		at = &(*at)->next;
	if (*at)
		*at = call->next;
}

static void free_call(struct td__call *call)
{
	free(call->frame);
	free(call->key);
	free(call);
}

void td__call_end(struct tandem *t, struct td__call *call)
{
	unlink_call(t, call);
	free_call(call);
}

void td__call_fail(struct tandem *t, struct td__call *call, const struct tandem_error *e)
{
	unlink_call(t, call);
	if (call->handler.error)
		call->handler.error(call->handler.ctx, e);
	free_call(call);
}

static void fail(struct tandem *t, struct td__call *call, int code, const char *text)
{
	struct td_error e = {0};
	struct tandem_error out;

	td_error_set(&e, code, "%s", text);
	td__error_out(&e, &out);
	td__call_fail(t, call, &out);
}

/* ---- submit ------------------------------------------------------------------------------------------------------------------------ */

/* Takes the frame over. */
static uint64_t submit(struct tandem *t, enum td__call_kind kind, uint8_t *frame, size_t n, const struct tandem_handler *handler, struct td_error *err)
{
	struct td__call *call = NULL, **end = &t->call;

	if (!frame)
		return 0;
	if (t->info.max_frame && n - TD_FRAME_HEAD > t->info.max_frame) {
		td_error_set(err, TD_E_TOO_LARGE, "the request has %zu bytes, the daemon takes %u", n - TD_FRAME_HEAD, t->info.max_frame);
		goto failed;
	}
	call = calloc(1, sizeof(*call));
	if (!call) {
		td_error_set(err, TD_E_NOMEM, "no memory for a request");
		goto failed;
	}
	/* While the connection is lost the call only waits: it is sent by the reconnection like all the others. */
	if (t->fd >= 0 && td__queue_out(t, frame, n, err))
		goto failed;
	call->kind = kind;
	call->tag = t->next_tag++;
	if (handler)
		call->handler = *handler;
	call->frame = frame;
	call->n_frame = n;
	call->heard_us = td__now_us();
	call->limit_us = kind == TD__GENERATE ? 0 : (uint64_t)t->timeout_ms * 1000;
	while (*end)
		end = &(*end)->next;
	*end = call;
	return call->tag;
failed:
	free(call);
	free(frame);
	return 0;
}

uint64_t tandem_submit(struct tandem *t, const struct tandem_request *request, const struct tandem_handler *handler, struct tandem_error *err)
{
	struct td_error e = {0};
	size_t n = 0;
	uint8_t *frame = td__pack_generate(t->next_tag, request, &n, &e);
	uint64_t tag = submit(t, TD__GENERATE, frame, n, handler, &e);

	if (tag)
		td__call_find(t, tag)->limit_us = (uint64_t)request->silence_ms * 1000;
	td__error_out(&e, err);
	return tag;
}

static uint64_t submit_message(struct tandem *t, enum td__call_kind kind, Tandem__ClientMessage *msg, const struct tandem_handler *handler,
			       struct tandem_error *err)
{
	struct td_error e = {0};
	size_t n = 0;
	uint8_t *frame;
	uint64_t tag;

	msg->tag = t->next_tag;
	frame = td_client_message_pack(msg, &n);
	if (!frame)
		td_error_set(&e, TD_E_NOMEM, "no memory for a message");
	tag = submit(t, kind, frame, n, handler, &e);
	td__error_out(&e, err);
	return tag;
}

uint64_t tandem_submit_status(struct tandem *t, const struct tandem_handler *handler, struct tandem_error *err)
{
	Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__StatusQuery query = TANDEM__STATUS_QUERY__INIT;

	msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_STATUS;
	msg.status = &query;
	return submit_message(t, TD__STATUS, &msg, handler, err);
}

uint64_t tandem_submit_metrics(struct tandem *t, const struct tandem_handler *handler, struct tandem_error *err)
{
	Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__StatusQuery query = TANDEM__STATUS_QUERY__INIT;

	query.has_metrics = query.metrics = 1;
	msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_STATUS;
	msg.status = &query;
	return submit_message(t, TD__TEXT, &msg, handler, err);
}

uint64_t tandem_submit_tokenize(struct tandem *t, const struct tandem_prompt *prompt, const struct tandem_handler *handler, struct tandem_error *err)
{
	struct td_error e = {0};
	size_t n = 0;
	uint8_t *frame = td__pack_tokenize(t->next_tag, prompt, &n, &e);
	uint64_t tag = submit(t, TD__TOKENIZE, frame, n, handler, &e);

	td__error_out(&e, err);
	return tag;
}

uint64_t tandem_submit_detokenize(struct tandem *t, const int32_t *id, size_t n, const struct tandem_handler *handler, struct tandem_error *err)
{
	Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Detokenize ask = TANDEM__DETOKENIZE__INIT;

	ask.id = (int32_t *)id;
	ask.n_id = n;
	msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_DETOKENIZE;
	msg.detokenize = &ask;
	return submit_message(t, TD__TEXT, &msg, handler, err);
}

static int send_cancel(struct tandem *t, uint64_t tag, struct td_error *err)
{
	Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Cancel cancel = TANDEM__CANCEL__INIT;

	cancel.target_tag = tag;
	msg.tag = t->next_tag++;
	msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_CANCEL;
	msg.cancel = &cancel;
	return td__queue_message(t, &msg, err);
}

int tandem_cancel(struct tandem *t, uint64_t tag, struct tandem_error *err)
{
	struct td__call *call = td__call_find(t, tag);
	struct td_error e = {0};
	int rc = 0;

	if (!call || call->kind != TD__GENERATE)
		rc = td_error_set(&e, TD_E_NOT_FOUND, "no generation with number %llu is open", (unsigned long long)tag);
	else if (!call->cancelling && t->fd >= 0)
		rc = send_cancel(t, tag, &e);
	if (!rc)
		call->cancelling = 1;
	td__error_out(&e, err);
	return rc;
}

/* ---- loss, time -------------------------------------------------------------------------------------------------------------------- */

int td__calls_take_up(struct tandem *t, struct td_error *err)
{
	struct td__call *call;

	for (call = t->call; call; call = call->next) {
		Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
		Tandem__Resume resume = TANDEM__RESUME__INIT;
		int rc;

		call->heard_us = td__now_us();
		if (call->accepted) {
			resume.request = call->request;
			resume.key.data = call->key;
			resume.key.len = call->n_key;
			resume.position = call->position;
			msg.tag = call->tag;
			msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_RESUME;
			msg.resume = &resume;
			call->resumes++;
			rc = td__queue_message(t, &msg, err);
		} else {
			rc = td__queue_out(t, call->frame, call->n_frame, err);
		}
		if (rc)
			return rc;
	}
	return 0;
}

/* Calls that were being cancelled when the connection was lost: there is nothing to wait for, the daemon cancels what nobody resumes. */
void td__calls_drop_cancelled(struct tandem *t)
{
	struct td__call *call = t->call;

	while (call && !t->closing) {
		if (call->cancelling) {
			fail(t, call, TD_E_CANCELLED, "cancelled; the connection was lost before the daemon confirmed it");
			call = t->call; /* the callback may have changed the list */
		} else {
			call = call->next;
		}
	}
}

void td__calls_expire(struct tandem *t)
{
	uint64_t now = td__now_us();
	struct td__call *call = t->call;

	while (call && !t->closing) {
		if (call->limit_us && now - call->heard_us >= call->limit_us) {
			if (call->kind == TD__GENERATE)
				send_cancel(t, call->tag, NULL);
			fail(t, call, TD_E_DEADLINE, "no answer from the daemon within the time limit");
			call = t->call;
		} else {
			call = call->next;
		}
	}
}

int tandem_timeout_ms(const struct tandem *t)
{
	const struct td__call *call;
	uint64_t now = td__now_us(), least = UINT64_MAX, left;

	for (call = t->call; call; call = call->next) {
		if (!call->limit_us)
			continue;
		left = now - call->heard_us >= call->limit_us ? 0 : call->limit_us - (now - call->heard_us);
		least = left < least ? left : least;
	}
	if (least == UINT64_MAX)
		return -1;
	least = (least + 999) / 1000;
	return least > INT_MAX ? INT_MAX : (int)least;
}

/* ---- answers ----------------------------------------------------------------------------------------------------------------------- */

static int on_accepted(struct td__call *call, const Tandem__Accepted *m, struct td_error *err)
{
	struct tandem_accepted a = {m->request, m->prompt_tokens, m->queue_position};
	uint8_t *key = malloc(m->key.len + 1);
	int first = !call->accepted;

	if (!key)
		return td_error_set(err, TD_E_NOMEM, "no memory for a request's key");
	if (m->key.len)
		memcpy(key, m->key.data, m->key.len);
	free(call->key);
	call->key = key;
	call->n_key = m->key.len;
	call->request = m->request;
	call->accepted = 1;
	free(call->frame);
	call->frame = NULL;
	if (first && call->handler.accepted)
		call->handler.accepted(call->handler.ctx, &a);
	return 0;
}

/* The log-probabilities of a delta in one block; *out NULL when there are none. */
static int logprobs(const Tandem__Delta *m, struct tandem_logprob **out, struct td_error *err)
{
	size_t n_top = 0, i, k;
	struct tandem_logprob *lp;
	struct tandem_top *top;

	*out = NULL;
	if (!m->n_logprob)
		return 0;
	if (m->n_logprob != m->n_id)
		return td_error_set(err, TD_E_PROTOCOL, "the daemon sent %zu log-probabilities for %zu tokens", m->n_logprob, m->n_id);
	for (i = 0; i < m->n_logprob; i++)
		n_top += m->logprob[i]->n_top;
	lp = malloc(m->n_logprob * sizeof(*lp) + n_top * sizeof(*top));
	if (!lp)
		return td_error_set(err, TD_E_NOMEM, "no memory for log-probabilities");
	top = (struct tandem_top *)(lp + m->n_logprob);
	for (i = 0; i < m->n_logprob; i++) {
		const Tandem__TokenLogprob *one = m->logprob[i];

		lp[i] = (struct tandem_logprob){one->logprob, top, one->n_top};
		for (k = 0; k < one->n_top; k++)
			*top++ = (struct tandem_top){one->top[k]->id, one->top[k]->logprob,
						     one->top[k]->has_token ? (const char *)one->top[k]->token.data : NULL, one->top[k]->token.len};
	}
	*out = lp;
	return 0;
}

static int on_delta(struct tandem *t, struct td__call *call, const Tandem__Delta *m, struct td_error *err)
{
	struct tandem_delta d = {.position = m->position, .id = m->id, .n_ids = m->n_id, .text = m->text ? m->text : ""};
	struct tandem_logprob *lp;
	int rc;

	if (!call->accepted)
		return td_error_set(err, TD_E_PROTOCOL, "the daemon sent tokens of a request that it hadn't accepted");
	if (m->position != call->position)
		return td_error_set(err, TD_E_PROTOCOL, "the daemon sent tokens from place %u on where %u was due", m->position, call->position);
	rc = logprobs(m, &lp, err);
	if (rc)
		return rc;
	d.logprob = lp;
	call->position += (uint32_t)m->n_id;
	if (call->handler.delta && call->handler.delta(call->handler.ctx, &d) && !call->cancelling) {
		call->cancelling = 1;
		rc = send_cancel(t, call->tag, err);
	}
	free(lp);
	return rc;
}

static void on_finish(struct tandem *t, struct td__call *call, const Tandem__Finish *m)
{
	const Tandem__Usage *u = m->usage;
	struct tandem_finish f = {
		.reason = (enum tandem_reason)m->reason,
		.stop = m->stop,
		.prompt_tokens = u->prompt_tokens,
		.output_tokens = u->output_tokens,
		.cached_tokens = u->cached_tokens,
		.cycles = u->cycles,
		.drafted = u->drafted,
		.accepted = u->accepted,
		.queue_us = u->queue_us,
		.prefill_us = u->prefill_us,
		.decode_us = u->decode_us,
		.gpu_us = u->gpu_us,
		.wasted_us = u->wasted_us,
		.seed = u->seed,
		.restarts = u->restarts,
		.resumes = call->resumes,
	};

	unlink_call(t, call);
	if (call->handler.finish)
		call->handler.finish(call->handler.ctx, &f);
	free_call(call);
}

static void on_error(struct tandem *t, struct td__call *call, const Tandem__Error *m)
{
	struct tandem_error e = {.code = td_error_code(m->code, TD_E_INTERNAL), .retry_after_ms = m->retry_after_ms};

	snprintf(e.name, sizeof(e.name), "%s", m->code);
	snprintf(e.text, sizeof(e.text), "%s", m->text);
	td__call_fail(t, call, &e);
}

static int on_status(struct tandem *t, struct td__call *call, Tandem__ServerMessage **msg, struct td_error *err)
{
	struct tandem_status *s = td__status_make(msg);

	if (!s)
		return td_error_set(err, TD_E_NOMEM, "no memory for the status");
	unlink_call(t, call);
	if (call->keep)
		*call->keep = s;
	if (call->handler.status)
		call->handler.status(call->handler.ctx, s);
	if (!call->keep)
		tandem_status_free(s);
	free_call(call);
	return 0;
}

/* Which kind of call an answer belongs to: -1 for one that no call gets. */
static int kind_of(const Tandem__ServerMessage *m)
{
	switch (m->body_case) {
	case TANDEM__SERVER_MESSAGE__BODY_ACCEPTED:
	case TANDEM__SERVER_MESSAGE__BODY_DELTA:
	case TANDEM__SERVER_MESSAGE__BODY_FINISH:
	case TANDEM__SERVER_MESSAGE__BODY_QUEUE:
		return TD__GENERATE;
	case TANDEM__SERVER_MESSAGE__BODY_STATUS:
		return TD__STATUS;
	case TANDEM__SERVER_MESSAGE__BODY_TOKENS:
		return TD__TOKENIZE;
	case TANDEM__SERVER_MESSAGE__BODY_TEXT:
		return TD__TEXT;
	default:
		return -1;
	}
}

static int answer(struct tandem *t, struct td__call *call, Tandem__ServerMessage **msg, struct td_error *err)
{
	const Tandem__ServerMessage *m = *msg;

	switch (m->body_case) {
	case TANDEM__SERVER_MESSAGE__BODY_ACCEPTED:
		return on_accepted(call, m->accepted, err);
	case TANDEM__SERVER_MESSAGE__BODY_QUEUE:
		if (call->handler.queue)
			call->handler.queue(call->handler.ctx, m->queue->position);
		return 0;
	case TANDEM__SERVER_MESSAGE__BODY_DELTA:
		return on_delta(t, call, m->delta, err);
	case TANDEM__SERVER_MESSAGE__BODY_FINISH:
		on_finish(t, call, m->finish);
		return 0;
	case TANDEM__SERVER_MESSAGE__BODY_STATUS:
		return on_status(t, call, msg, err);
	case TANDEM__SERVER_MESSAGE__BODY_TOKENS:
		unlink_call(t, call);
		if (call->handler.tokens)
			call->handler.tokens(call->handler.ctx, m->tokens->id, m->tokens->n_id);
		break;
	default: /* text: kind_of() let nothing else through */
		unlink_call(t, call);
		if (call->handler.text)
			call->handler.text(call->handler.ctx, m->text->text);
		break;
	}
	free_call(call);
	return 0;
}

int td__dispatch(struct tandem *t, Tandem__ServerMessage **msg, struct td_error *err)
{
	const Tandem__ServerMessage *m = *msg;
	struct td__call *call = td__call_find(t, m->tag);

	/* A message of a kind that a later daemon invented has no body here. It can't be an answer that we asked for. */
	if (m->body_case == TANDEM__SERVER_MESSAGE__BODY__NOT_SET)
		return 0;
	if (m->body_case == TANDEM__SERVER_MESSAGE__BODY_ERROR && !call && (m->tag == 0 || !t->greeted)) {
		/* About the connection: the reason for the close that follows. */
		td_error_set(&t->lost, td_error_code(m->error->code, TD_E_INTERNAL), "%s", m->error->text);
		return 0;
	}
	if (!call && m->tag > 0 && m->tag < t->next_tag)
		return 0;
	if (!call)
		return td_error_set(err, TD_E_PROTOCOL, "the daemon answered number %llu, which was never asked", (unsigned long long)m->tag);
	call->heard_us = td__now_us();
	if (m->body_case == TANDEM__SERVER_MESSAGE__BODY_ERROR) {
		on_error(t, call, m->error);
		return 0;
	}
	if (kind_of(m) != (int)call->kind)
		return td_error_set(err, TD_E_PROTOCOL, "the daemon's answer to number %llu is of another kind than the question",
				    (unsigned long long)m->tag);
	return answer(t, call, msg, err);
}
