/*
 * stream.c: from a request's commit log to what its client gets.
 *
 * Deltas are cut from the log when the client's buffer has room, not when tokens come: a client that falls behind gets fewer and larger ones, and
 * what waits is bounded by the log. The text of a delta ends where `shown` of its last token ends, which depends on the tokens alone; so a client
 * that resumes after any token gets just the text that it lacks. How a delta looks is the session's protocol's matter.
 */
#include "daemon/daemon.h"

enum { WHOLE_IDS = 1 << 20 }; /* of a delta without log-probabilities */

size_t td_stream_text_from(const struct td_request *r)
{
	return r->sent ? r->log.shown[r->sent - 1] : 0;
}

void td_stream_usage(const struct td_request *r, Tandem__Usage *u)
{
	u->prompt_tokens = (uint32_t)r->log.n_prompt;
	u->output_tokens = (uint32_t)td_commitlog_outputs(&r->log);
	u->cycles = r->cycles;
	u->drafted = r->drafted;
	u->accepted = r->accepted;
	u->queue_us = r->queue_sum_us;
	u->prefill_us = r->first_us > r->started_us ? r->first_us - r->started_us : 0;
	u->decode_us = r->last_us - r->first_us;
	u->seed = r->sampling.seed;
	u->has_cached_tokens = u->has_gpu_us = u->has_wasted_us = 1;
	u->cached_tokens = r->cached_tokens;
	u->gpu_us = r->gpu_us;
	u->wasted_us = r->wasted_us;
	u->has_restarts = r->restarts > 0;
	u->restarts = r->restarts;
	u->has_cached_tokens = r->cached_tokens > 0;
	u->cached_tokens = r->cached_tokens;
	u->has_gpu_us = r->gpu_us > 0;
	u->gpu_us = r->gpu_us;
	u->has_wasted_us = r->wasted_us > 0;
	u->wasted_us = r->wasted_us;
}

void td_stream_pump(struct td_daemon *d, struct td_request *r)
{
	int over = r->state == TD_REQ_ENDED, out = td_commitlog_outputs(&r->log), most = r->log.n_top >= 0 ? TD_DELTA_IDS : WHOLE_IDS;
	struct td_session *s = r->session;

	(void)d;
	if (!s || (!r->stream && !over))
		return;
	while (r->sent < out && !s->blocked) {
		int n = out - r->sent < most ? out - r->sent : most;

		s->protocol->delta(s, r, n, r->log.shown[r->sent + n - 1]);
		r->sent += n;
	}
	if (!over || r->sent < out || s->blocked)
		return;
	/* Cancelled in the middle: text that was held back as a possible stop string. */
	if (r->text.shown > (out ? r->log.shown[out - 1] : 0))
		s->protocol->delta(s, r, 0, r->text.shown);
	if (r->error.code)
		td_session_error(s, r->tag, &r->error);
	else
		s->protocol->finish(s, r);
	td_session_detach(r);
}
