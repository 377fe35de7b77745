/*
 * libsync.c: the blocking form: submit, then drive the connection until that call has ended; reconnect on the way when it is allowed to.
 *
 * Other calls that are open on the connection go on meanwhile, with their callbacks. When the connection is lost for good only the blocking call
 * is ended; the others wait for the caller's tandem_reconnect() or tandem_close().
 * What must never happen: a return while the handler on this stack is still known to the connection.
 */
#include "client/libtandem.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the call in hand came to. The user's handler is called through it. */
struct sync {
	const struct tandem_handler *user;
	int done;
	struct tandem_error error; /* code 0: it ended well */
	struct tandem_ids *ids;
	char *text;
};

static void sync_accepted(void *ctx, const struct tandem_accepted *a)
{
	struct sync *s = ctx;

	if (s->user && s->user->accepted)
		s->user->accepted(s->user->ctx, a);
}

static int sync_delta(void *ctx, const struct tandem_delta *d)
{
	struct sync *s = ctx;

	return s->user && s->user->delta ? s->user->delta(s->user->ctx, d) : 0;
}

static void sync_finish(void *ctx, const struct tandem_finish *f)
{
	struct sync *s = ctx;

	s->done = 1;
	if (s->user && s->user->finish)
		s->user->finish(s->user->ctx, f);
}

static void sync_status(void *ctx, const struct tandem_status *status)
{
	(void)status; /* kept by the call */
	((struct sync *)ctx)->done = 1;
}

static void out_of_memory(struct sync *s)
{
	struct td_error e = {0};

	td_error_set(&e, TD_E_NOMEM, "no memory for an answer");
	td__error_out(&e, &s->error);
}

static void sync_tokens(void *ctx, const int32_t *id, size_t n)
{
	struct sync *s = ctx;

	s->done = 1;
	s->ids->id = malloc((n ? n : 1) * sizeof(*id));
	if (!s->ids->id) {
		out_of_memory(s);
		return;
	}
	if (n)
		memcpy(s->ids->id, id, n * sizeof(*id));
	s->ids->n = n;
}

static void sync_text(void *ctx, const char *text)
{
	struct sync *s = ctx;

	s->done = 1;
	s->text = strdup(text);
	if (!s->text)
		out_of_memory(s);
}

static void sync_error(void *ctx, const struct tandem_error *e)
{
	struct sync *s = ctx;

	s->done = 1;
	s->error = *e;
	if (s->user && s->user->error)
		s->user->error(s->user->ctx, e);
}

static void sync_queue(void *ctx, uint32_t before)
{
	struct sync *s = ctx;

	if (s->user && s->user->queue)
		s->user->queue(s->user->ctx, before);
}

static struct tandem_handler handler_of(struct sync *s)
{
	return (struct tandem_handler){s, sync_accepted, sync_delta, sync_finish, sync_status, sync_tokens, sync_text, sync_error, sync_queue};
}

/* After a loss: 0 when connected again, else the reason is in *err. */
static int try_again(struct tandem *t, struct td_error *err)
{
	uint64_t until_us = td__now_us() + (uint64_t)t->retry_ms * 1000;
	int pause_ms = 20, rc;

	for (;;) {
		rc = td__reconnect(t, err);
		if (!rc || td__now_us() + (uint64_t)pause_ms * 1000 >= until_us)
			return rc;
		poll(NULL, 0, pause_ms);
		pause_ms = pause_ms < 250 ? pause_ms * 2 : 500;
	}
}

/* Ends the call in hand when nobody else will. */
static void give_up(struct tandem *t, uint64_t tag, const struct td_error *err)
{
	struct td__call *call = td__call_find(t, tag);
	struct tandem_error e;

	td__error_out(err, &e);
	if (call) {
		t->busy = 1;
		td__call_fail(t, call, &e);
		t->busy = 0;
	}
}

static void drive(struct tandem *t, uint64_t tag, struct sync *s)
{
	struct td_error err = {0};
	struct pollfd p;
	int rc, want;

	while (!s->done) {
		rc = td__process(t, &err);
		if (t->closing && !s->done)
			rc = td_error_set(&err, TD_E_CANCELLED, "the connection was closed by a callback");
		if (s->done)
			break;
		if (rc == TD_E_CLOSED && t->retry_ms && !t->closing)
			rc = try_again(t, &err);
		if (rc) {
			give_up(t, tag, &err);
			break;
		}
		want = tandem_want(t);
		p = (struct pollfd){.fd = tandem_fd(t), .events = (short)((want & TANDEM_READ ? POLLIN : 0) | (want & TANDEM_WRITE ? POLLOUT : 0))};
		if (poll(&p, 1, tandem_timeout_ms(t)) < 0 && errno != EINTR) {
			td_error_set(&err, TD_E_IO, "can't wait for the daemon: %s", strerror(errno));
			give_up(t, tag, &err);
			break;
		}
	}
	if (t->closing)
		td__free(t);
}

/* Not from inside a callback: what it would wait for is what called it. */
static int may_block(const struct tandem *t, struct tandem_error *err)
{
	struct td_error e = {0};

	if (t->busy)
		td_error_set(&e, TD_E_BUSY, "a blocking call is not possible from inside a callback");
	td__error_out(&e, err);
	return !t->busy;
}

static int result(const struct sync *s, struct tandem_error *err)
{
	if (err)
		*err = s->error;
	return s->error.code;
}

int tandem_generate(struct tandem *t, const struct tandem_request *request, const struct tandem_handler *handler, struct tandem_error *err)
{
	struct sync s = {.user = handler};
	struct tandem_handler h = handler_of(&s);
	uint64_t tag;

	if (!may_block(t, err))
		return TANDEM_E_BUSY;
	tag = tandem_submit(t, request, &h, &s.error);
	if (tag)
		drive(t, tag, &s);
	else if (handler && handler->error)
		handler->error(handler->ctx, &s.error);
	return result(&s, err);
}

struct tandem_status *tandem_status(struct tandem *t, struct tandem_error *err)
{
	struct tandem_status *status = NULL;
	struct sync s = {0};
	struct tandem_handler h = handler_of(&s);
	uint64_t tag;

	if (!may_block(t, err))
		return NULL;
	tag = tandem_submit_status(t, &h, &s.error);
	if (tag) {
		td__call_find(t, tag)->keep = &status;
		drive(t, tag, &s);
	}
	result(&s, err);
	return status;
}

char *tandem_metrics(struct tandem *t, struct tandem_error *err)
{
	struct sync s = {0};
	struct tandem_handler h = handler_of(&s);
	uint64_t tag;

	if (!may_block(t, err))
		return NULL;
	tag = tandem_submit_metrics(t, &h, &s.error);
	if (tag)
		drive(t, tag, &s);
	result(&s, err);
	return s.text;
}

int tandem_tokenize(struct tandem *t, const struct tandem_prompt *prompt, struct tandem_ids *ids, struct tandem_error *err)
{
	struct sync s = {.ids = ids};
	struct tandem_handler h = handler_of(&s);
	uint64_t tag;

	*ids = (struct tandem_ids){0};
	if (!may_block(t, err))
		return TANDEM_E_BUSY;
	tag = tandem_submit_tokenize(t, prompt, &h, &s.error);
	if (tag)
		drive(t, tag, &s);
	return result(&s, err);
}

void tandem_ids_free(struct tandem_ids *ids)
{
	free(ids->id);
	*ids = (struct tandem_ids){0};
}

char *tandem_detokenize(struct tandem *t, const int32_t *id, size_t n, struct tandem_error *err)
{
	struct sync s = {0};
	struct tandem_handler h = handler_of(&s);
	uint64_t tag;

	if (!may_block(t, err))
		return NULL;
	tag = tandem_submit_detokenize(t, id, n, &h, &s.error);
	if (tag)
		drive(t, tag, &s);
	result(&s, err);
	return s.text;
}
