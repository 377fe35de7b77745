/*
 * stream.c: from a request's commit log to the frames that its client gets.
 *
 * Deltas are cut from the log when the client's buffer has room, not when tokens come: a client that falls behind gets fewer and larger ones, and
 * what waits is bounded by the log. The text of a delta ends where `shown` of its last token ends, which depends on the tokens alone; so a client
 * that resumes after any token gets just the text that it lacks.
 */
#include <string.h>

#include "daemon/daemon.h"

enum { WHOLE_IDS = 1 << 20 }; /* of a delta without log-probabilities */

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

/* Tokens [sent, sent + n) and the text between; n may be 0 when only text is left. */
static void send_delta(struct td_daemon *d, struct td_request *r, int n, size_t text_end)
{
	Tandem__Delta delta = TANDEM__DELTA__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	size_t text_from = r->sent ? r->log.shown[r->sent - 1] : 0;
	char held = 0;

	delta.position = (uint32_t)r->sent;
	delta.n_id = (size_t)n;
	delta.id = r->log.ids + r->log.n_prompt + r->sent;
	if (text_end > text_from) {
		held = r->text.text[text_end];
		r->text.text[text_end] = 0;
		delta.text = r->text.text + text_from;
	}
	if (r->log.n_top >= 0 && n)
		pack_logprobs(d, &r->log, r->sent, n, &delta);
	m.tag = r->tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_DELTA;
	m.delta = &delta;
	td_session_send(r->session, &m);
	if (delta.text)
		r->text.text[text_end] = held;
	r->sent += n;
}

static void send_finish(struct td_request *r)
{
	Tandem__Usage u = TANDEM__USAGE__INIT;
	Tandem__Finish f = TANDEM__FINISH__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;

	u.prompt_tokens = (uint32_t)r->log.n_prompt;
	u.output_tokens = (uint32_t)td_commitlog_outputs(&r->log);
	u.cycles = r->cycles;
	u.drafted = r->drafted;
	u.accepted = r->accepted;
	u.queue_us = r->queue_sum_us;
	u.prefill_us = r->first_us > r->started_us ? r->first_us - r->started_us : 0;
	u.decode_us = r->last_us - r->first_us;
	u.seed = r->sampling.seed;
	u.has_restarts = r->restarts > 0;
	u.restarts = r->restarts;
	f.reason = r->finish;
	f.stop = (char *)td_textstream_stop(&r->text);
	f.usage = &u;
	m.tag = r->tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_FINISH;
	m.finish = &f;
	td_session_send(r->session, &m);
}

void td_stream_pump(struct td_daemon *d, struct td_request *r)
{
	int over = r->state == TD_REQ_ENDED, out = td_commitlog_outputs(&r->log), most = r->log.n_top >= 0 ? TD_DELTA_IDS : WHOLE_IDS;
	struct td_session *s = r->session;

	if (!s || (!r->stream && !over))
		return;
	while (r->sent < out && !s->blocked) {
		int n = out - r->sent < most ? out - r->sent : most;

		send_delta(d, r, n, r->log.shown[r->sent + n - 1]);
	}
	if (!over || r->sent < out || s->blocked)
		return;
	/* Cancelled in the middle: text that was held back as a possible stop string. */
	if (r->text.shown > (out ? r->log.shown[out - 1] : 0))
		send_delta(d, r, 0, r->text.shown);
	if (r->error.code)
		td_session_error(s, r->tag, &r->error);
	else
		send_finish(r);
	td_session_detach(r);
}
