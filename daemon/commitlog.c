/*
 * commitlog.c: what a request is made of and what came of it, append-only.
 *
 * Ids are one array, prompt first: this is what a successor is fed after a crash. Everything else is per output token. Arrays grow by doubling and
 * are bounded by the context, so a request's memory is too. Nothing is ever taken back: a token that is in here may have been shown.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"

void td_commitlog_init(struct td_commitlog *log, int32_t *prompt, int n_prompt, int n_top)
{
	*log = (struct td_commitlog){.ids = prompt, .n_prompt = n_prompt, .n = n_prompt, .size = n_prompt, .n_top = n_top};
}

void td_commitlog_finish(struct td_commitlog *log)
{
	free(log->ids);
	free(log->shown);
	free(log->logprob);
	free(log->top_id);
	free(log->top_logprob);
	memset(log, 0, sizeof(*log));
}

static int grow_array(void *field, size_t n, size_t one)
{
	void **p = field, *bigger = realloc(*p, n * one);

	if (!bigger)
		return TD_E_NOMEM;
	*p = bigger;
	return 0;
}

static int grow(struct td_commitlog *log)
{
	if (log->n == log->size) {
		size_t size = (size_t)log->size + (size_t)(log->size < 1024 ? 1024 : log->size);

		if (grow_array(&log->ids, size, sizeof(*log->ids)))
			return TD_E_NOMEM;
		log->size = (int)size;
	}
	if (log->n - log->n_prompt == log->size_out) {
		size_t size = log->size_out ? 2 * (size_t)log->size_out : 256;

		if (grow_array(&log->shown, size, sizeof(*log->shown)))
			return TD_E_NOMEM;
		if (log->n_top >= 0 && grow_array(&log->logprob, size, sizeof(*log->logprob)))
			return TD_E_NOMEM;
		if (log->n_top > 0 && (grow_array(&log->top_id, size * (size_t)log->n_top, sizeof(*log->top_id)) ||
				       grow_array(&log->top_logprob, size * (size_t)log->n_top, sizeof(*log->top_logprob))))
			return TD_E_NOMEM;
		log->size_out = (int)size;
	}
	return 0;
}

int td_commitlog_append(struct td_commitlog *log, int32_t token, const struct td_verdict *v, int i)
{
	int out = td_commitlog_outputs(log);

	if (grow(log))
		return TD_E_NOMEM;
	if (log->n_top >= 0)
		log->logprob[out] = v ? v->logprob[i] : 0;
	for (int j = 0; j < log->n_top; j++) {
		size_t at = (size_t)out * (size_t)log->n_top + (size_t)j;
		int there = v && j < v->n_top;

		log->top_id[at] = there ? v->top_id[i][j] : -1; /* -1: fewer than asked for */
		log->top_logprob[at] = there ? v->top_logprob[i][j] : 0;
	}
	log->shown[out] = out ? log->shown[out - 1] : 0;
	log->ids[log->n++] = token;
	return 0;
}

size_t td_commitlog_bytes(const struct td_commitlog *log)
{
	size_t per_token = sizeof(*log->shown) + (log->n_top >= 0 ? sizeof(float) : 0) +
			   (log->n_top > 0 ? (size_t)log->n_top * (sizeof(int32_t) + sizeof(float)) : 0);

	return (size_t)log->size * sizeof(*log->ids) + (size_t)log->size_out * per_token;
}
