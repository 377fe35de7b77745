/*
 * libstatus.c: the daemon's Status as a public structure. The result owns the unpacked message, whose strings and arrays it points into.
 */
#include "client/libtandem.h"

#include <stdlib.h>

struct holder {
	struct tandem_status status; /* first: the pointer that the user has */
	Tandem__ServerMessage *msg;
	struct tandem_worker_status worker[];
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

struct tandem_status *td__status_make(Tandem__ServerMessage **msg)
{
	const Tandem__Status *s = (*msg)->status;
	struct holder *h = malloc(sizeof(*h) + s->n_worker * sizeof(h->worker[0]));
	size_t i;

	if (!h)
		return NULL;
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
		.worker = h->worker,
		.n_workers = s->n_worker,
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
