/*
 * json.c: what the commands print under --json. Names follow the protocol's; times are whole microseconds.
 */
#include <stdlib.h>
#include <string.h>

#include "client/command.h"
#include "engine/utf8.h"

const char *td_reason_name(enum tandem_reason reason)
{
	switch (reason) {
	case TANDEM_STOP:
		return "stop";
	case TANDEM_LENGTH:
		return "length";
	case TANDEM_CANCELLED:
		return "cancelled";
	default:
		return "error";
	}
}

double td_acceptance(uint64_t accepted, uint64_t cycles)
{
	return cycles ? (double)(accepted + cycles) / (double)cycles : 0;
}

json_t *td_json_finish(const struct tandem_finish *f)
{
	json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:I, s:I, s:I, s:i, s:i}", "finish_reason", td_reason_name(f->reason),
			      "prompt_tokens", (int)f->prompt_tokens, "output_tokens", (int)f->output_tokens, "cycles", (int)f->cycles, "drafted",
			      (int)f->drafted, "accepted", (int)f->accepted, "acceptance_length", td_acceptance(f->accepted, f->cycles), "queue_us",
			      (json_int_t)f->queue_us, "prefill_us", (json_int_t)f->prefill_us, "decode_us", (json_int_t)f->decode_us, "restarts",
			      (int)f->restarts, "resumes", (int)f->resumes);

	json_object_set_new(j, "cached_tokens", json_integer(f->cached_tokens));
	json_object_set_new(j, "gpu_us", json_integer((json_int_t)f->gpu_us));
	json_object_set_new(j, "wasted_us", json_integer((json_int_t)f->wasted_us));
	/* A seed may need all 64 bits, which a JSON number doesn't carry everywhere. */
	char seed[24];

	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)f->seed);
	json_object_set_new(j, "seed", json_string(seed));
	if (f->stop)
		json_object_set_new(j, "stop", json_string(f->stop));
	return j;
}

json_t *td_json_error(const struct tandem_error *e)
{
	json_t *j = json_pack("{s:s, s:s}", "code", e->name, "text", e->text);

	if (e->retry_after_ms)
		json_object_set_new(j, "retry_after_ms", json_integer(e->retry_after_ms));
	return j;
}

json_t *td_json_ids(const int32_t *id, size_t n)
{
	json_t *j = json_array();
	size_t i;

	for (i = 0; i < n; i++)
		json_array_append_new(j, json_integer(id[i]));
	return j;
}

/* A token's bytes: as "token" when they are whole UTF-8, always as "bytes". */
static json_t *top(const struct tandem_top *t)
{
	json_t *j = json_pack("{s:i, s:f}", "id", (int)t->id, "logprob", (double)t->logprob), *bytes;
	size_t i;

	if (!t->token)
		return j;
	if (td_utf8_span((const uint8_t *)t->token, t->n_token) == t->n_token)
		json_object_set_new(j, "token", json_stringn(t->token, t->n_token));
	bytes = json_array();
	for (i = 0; i < t->n_token; i++)
		json_array_append_new(bytes, json_integer((unsigned char)t->token[i]));
	json_object_set_new(j, "bytes", bytes);
	return j;
}

json_t *td_json_logprobs(const struct tandem_delta *d)
{
	json_t *j = json_array();
	size_t i, k;

	for (i = 0; d->logprob && i < d->n_ids; i++) {
		json_t *one = json_pack("{s:i, s:f}", "id", (int)d->id[i], "logprob", (double)d->logprob[i].logprob), *tops = json_array();

		for (k = 0; k < d->logprob[i].n_top; k++)
			json_array_append_new(tops, top(d->logprob[i].top + k));
		json_object_set_new(one, "top", tops);
		json_array_append_new(j, one);
	}
	return j;
}

static void set_u64(json_t *j, const char *name, uint64_t v)
{
	json_object_set_new(j, name, json_integer((json_int_t)v));
}

static json_t *worker(const struct tandem_worker_status *w)
{
	json_t *j = json_pack("{s:s, s:s, s:b}", "role", w->role, "state", w->state, "imported", w->imported);

	if (w->device)
		json_object_set_new(j, "device", json_string(w->device));
	if (w->stage)
		json_object_set_new(j, "stage", json_string(w->stage));
	set_u64(j, "pid", w->pid);
	set_u64(j, "restarts", w->restarts);
	set_u64(j, "weights_bytes", w->weights_bytes);
	set_u64(j, "cache_bytes", w->cache_bytes);
	set_u64(j, "load_us", w->load_us);
	set_u64(j, "done", w->done);
	set_u64(j, "total", w->total);
	set_u64(j, "steps", w->steps);
	set_u64(j, "step_us", w->step_us);
	set_u64(j, "wait_us", w->wait_us);
	set_u64(j, "commit_us", w->commit_us);
	set_u64(j, "prefill_tokens", w->prefill_tokens);
	set_u64(j, "prefill_us", w->prefill_us);
	return j;
}

static json_t *tenant(const struct tandem_tenant_status *t)
{
	json_t *j = json_pack("{s:s, s:f}", "name", t->name, "weight", t->weight);

	set_u64(j, "running", t->running);
	set_u64(j, "queued", t->queued);
	set_u64(j, "requests", t->requests);
	set_u64(j, "finished", t->finished);
	set_u64(j, "cancelled", t->cancelled);
	set_u64(j, "failed", t->failed);
	set_u64(j, "refused", t->refused);
	set_u64(j, "prompt_tokens", t->prompt_tokens);
	set_u64(j, "cached_tokens", t->cached_tokens);
	set_u64(j, "output_tokens", t->output_tokens);
	set_u64(j, "cycles", t->cycles);
	set_u64(j, "drafted", t->drafted);
	set_u64(j, "accepted", t->accepted);
	set_u64(j, "gpu_us", t->gpu_us);
	set_u64(j, "wasted_us", t->wasted_us);
	set_u64(j, "queue_us", t->queue_us);
	return j;
}

static json_t *prefix(const struct tandem_prefix_status *p)
{
	json_t *j = json_object();

	set_u64(j, "lookups", p->lookups);
	set_u64(j, "hits", p->hits);
	set_u64(j, "hit_tokens", p->hit_tokens);
	set_u64(j, "pages", p->pages);
	set_u64(j, "states", p->states);
	set_u64(j, "states_max", p->states_max);
	set_u64(j, "evicted", p->evicted);
	return j;
}

json_t *td_json_status(const struct tandem_status *s)
{
	json_t *j = json_pack("{s:s, s:s, s:s}", "server", s->server, "model", s->model, "state", s->state), *list;
	size_t i;

	if (s->last_error)
		json_object_set_new(j, "last_error", json_string(s->last_error));
	if (s->sharing)
		json_object_set_new(j, "sharing", json_string(s->sharing));
	set_u64(j, "uptime_us", s->uptime_us);
	set_u64(j, "daemon_cpu_us", s->daemon_cpu_us);
	set_u64(j, "slots", s->slots);
	set_u64(j, "slots_used", s->slots_used);
	set_u64(j, "queued", s->queued);
	set_u64(j, "connections", s->connections);
	set_u64(j, "context", s->context);
	set_u64(j, "requests", s->requests);
	set_u64(j, "finished", s->finished);
	set_u64(j, "cancelled", s->cancelled);
	set_u64(j, "failed", s->failed);
	set_u64(j, "prompt_tokens", s->prompt_tokens);
	set_u64(j, "output_tokens", s->output_tokens);
	set_u64(j, "cycles", s->cycles);
	set_u64(j, "drafted", s->drafted);
	set_u64(j, "accepted", s->accepted);
	json_object_set_new(j, "acceptance_length", json_real(td_acceptance(s->accepted, s->cycles)));
	list = json_array();
	for (i = 0; i < s->n_accepted_at; i++)
		json_array_append_new(list, json_integer((json_int_t)s->accepted_at[i]));
	json_object_set_new(j, "accepted_at", list);
	list = json_array();
	for (i = 0; i < s->n_drafted_at; i++)
		json_array_append_new(list, json_integer((json_int_t)s->drafted_at[i]));
	json_object_set_new(j, "drafted_at", list);
	list = json_array();
	for (i = 0; i < s->n_workers; i++)
		json_array_append_new(list, worker(s->worker + i));
	json_object_set_new(j, "workers", list);
	list = json_array();
	for (i = 0; i < s->n_tenants; i++)
		json_array_append_new(list, tenant(s->tenant + i));
	json_object_set_new(j, "tenants", list);
	if (s->prefix)
		json_object_set_new(j, "prefix", prefix(s->prefix));
	set_u64(j, "kv_pages", s->kv_pages);
	set_u64(j, "kv_pages_used", s->kv_pages_used);
	return j;
}

void td_json_print(json_t *j, size_t flags)
{
	char *text = j ? json_dumps(j, flags | JSON_REAL_PRECISION(9)) : NULL;

	if (text)
		puts(text);
	free(text);
	json_decref(j);
}
