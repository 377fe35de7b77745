/*
 * libstatus.c: the daemon's Status as a public structure. The result owns the unpacked message, whose strings and arrays it points into.
 */
#include "client/libtandem.h"

#include <stdlib.h>

struct holder {
	struct tandem_status status; /* first: the pointer that the user has */
	Tandem__ServerMessage *msg;
	struct tandem_prefix_status prefix;
	struct tandem_worker_status *worker; /* in the same block, behind the tenants */
	struct tandem_tenant_status tenant[];
};

static struct tandem_worker_status worker_status(const Tandem__WorkerStatus *w)
{
	return (struct tandem_worker_status){
		.role = w->role,
		.state = w->state,
		.device = w->device,
		.stage = w->stage,
		.pid = w->pid,
		.restarts = w->restarts,
		.imported = w->imported,
		.weights_bytes = w->weights_bytes,
		.cache_bytes = w->cache_bytes,
		.load_us = w->load_us,
		.done = w->done,
		.total = w->total,
		.steps = w->steps,
		.step_us = w->step_us,
		.wait_us = w->wait_us,
		.commit_us = w->commit_us,
		.prefill_tokens = w->prefill_tokens,
		.prefill_us = w->prefill_us,
	};
}

static struct tandem_tenant_status tenant_status(const Tandem__TenantStatus *t)
{
	return (struct tandem_tenant_status){
		.name = t->name,
		.weight = t->weight,
		.running = t->running,
		.queued = t->queued,
		.requests = t->requests,
		.finished = t->finished,
		.cancelled = t->cancelled,
		.failed = t->failed,
		.refused = t->refused,
		.prompt_tokens = t->prompt_tokens,
		.cached_tokens = t->cached_tokens,
		.output_tokens = t->output_tokens,
		.cycles = t->cycles,
		.drafted = t->drafted,
		.accepted = t->accepted,
		.gpu_us = t->gpu_us,
		.wasted_us = t->wasted_us,
		.queue_us = t->queue_us,
	};
}

static struct tandem_prefix_status prefix_status(const Tandem__PrefixStatus *p)
{
	return (struct tandem_prefix_status){
		.lookups = p->lookups,
		.hits = p->hits,
		.hit_tokens = p->hit_tokens,
		.pages = p->pages,
		.states = p->states,
		.states_max = p->states_max,
		.evicted = p->evicted,
	};
}

struct tandem_status *td__status_make(Tandem__ServerMessage **msg)
{
	const Tandem__Status *s = (*msg)->status;
	struct holder *h = malloc(sizeof(*h) + s->n_tenant * sizeof(h->tenant[0]) + s->n_worker * sizeof(h->worker[0]));
	size_t i;

	if (!h)
		return NULL;
	h->worker = (struct tandem_worker_status *)(h->tenant + s->n_tenant);
	for (i = 0; i < s->n_tenant; i++)
		h->tenant[i] = tenant_status(s->tenant[i]);
	if (s->prefix)
		h->prefix = prefix_status(s->prefix);
	for (i = 0; i < s->n_worker; i++)
		h->worker[i] = worker_status(s->worker[i]);
	h->status = (struct tandem_status){
		.server = s->server,
		.model = s->model,
		.state = s->state,
		.last_error = s->last_error,
		.sharing = s->sharing,
		.uptime_us = s->uptime_us,
		.daemon_cpu_us = s->daemon_cpu_us,
		.slots = s->slots,
		.slots_used = s->slots_used,
		.queued = s->queued,
		.connections = s->connections,
		.context = s->context,
		.requests = s->requests,
		.finished = s->finished,
		.cancelled = s->cancelled,
		.failed = s->failed,
		.prompt_tokens = s->prompt_tokens,
		.output_tokens = s->output_tokens,
		.cycles = s->cycles,
		.drafted = s->drafted,
		.accepted = s->accepted,
		.accepted_at = s->accepted_at,
		.n_accepted_at = s->n_accepted_at,
		.drafted_at = s->drafted_at,
		.n_drafted_at = s->n_drafted_at,
		.worker = h->worker,
		.n_workers = s->n_worker,
		.tenant = h->tenant,
		.n_tenants = s->n_tenant,
		.prefix = s->prefix ? &h->prefix : NULL,
		.kv_pages = s->kv_pages,
		.kv_pages_used = s->kv_pages_used,
	};
	h->msg = *msg;
	*msg = NULL;
	return &h->status;
}

void tandem_status_free(struct tandem_status *s)
{
	struct holder *h = (struct holder *)s;

	if (!h)
		return;
	td_server_message_free(h->msg);
	free(h);
}
