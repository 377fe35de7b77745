/*
 * status.c: the figures that a client may ask for. Everything is read where it lives; nothing is kept for the sake of this message.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "daemon/daemon.h"

uint64_t td_status_cpu_us(void)
{
	struct rusage ru;

	if (getrusage(RUSAGE_SELF, &ru))
		return 0;
	return (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000 + (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec);
}

const char *td_status_state(const struct td_daemon *d)
{
	if (d->draining)
		return "draining";
	if (td_supervisor_failed(d))
		return "failed";
	if (td_supervisor_serving(d))
		return "ready";
	return d->target.restarts || d->drafter.restarts ? "degraded" : "loading";
}

const char *td_status_worker_state(const struct td_child *w)
{
	if (w->failed && w->state != TD_CHILD_READY)
		return "failed";
	switch (w->state) {
	case TD_CHILD_STARTING:
		return "starting";
	case TD_CHILD_LOADING:
		return "loading";
	case TD_CHILD_READY:
		return "ready";
	default:
		return w->lives ? "restarting" : "starting";
	}
}

static void worker_fill(const struct td_daemon *d, const struct td_child *w, Tandem__WorkerStatus *o)
{
	struct td_worker_stats *st = w == &d->target ? &d->shm->stats_target : &d->shm->stats_drafter;

	tandem__worker_status__init(o);
	o->role = (char *)w->name;
	o->state = (char *)td_status_worker_state(w);
	o->has_pid = w->pid > 0;
	o->pid = (uint32_t)w->pid;
	o->device = w->device[0] ? (char *)w->device : NULL;
	o->restarts = (uint32_t)w->restarts;
	if (w->state == TD_CHILD_LOADING) {
		o->stage = (char *)w->stage;
		o->has_done = o->has_total = 1;
		o->done = w->stage_done;
		o->total = w->stage_total;
	}
	if (w->was_ready) {
		o->has_weights_bytes = o->has_cache_bytes = o->has_load_us = o->has_imported = 1;
		o->weights_bytes = w->weights_bytes;
		o->cache_bytes = w->cache_bytes;
		o->load_us = w->load_us;
		o->imported = w->imported;
	}
#define READ(field) (o->has_##field = 1, o->field = atomic_load_explicit(&st->field, memory_order_relaxed))
	READ(steps);
	READ(step_us);
	READ(wait_us);
	READ(commit_us);
	READ(prefill_tokens);
	READ(prefill_us);
#undef READ
}

/* 1 for those whose section is gone, and for those who share "other". */
static double weight_of(const struct td_daemon *d, const char *name)
{
	for (int i = 0; i < d->tenants.n; i++)
		if (!strcmp(d->tenants.tenant[i]->cfg.name, name))
			return d->tenants.tenant[i]->cfg.weight;
	return 1;
}

static void prefix_fill(const struct td_daemon *d, Tandem__PrefixStatus *o)
{
	const struct td_worker_stats *st = &d->shm->stats_target;

	tandem__prefix_status__init(o);
#define READ(field) atomic_load_explicit(&st->prefix_##field, memory_order_relaxed)
	o->lookups = READ(lookups);
	o->hits = READ(hits);
	o->hit_tokens = READ(hit_tokens);
	o->evicted = READ(evicted);
	o->pages = (uint32_t)READ(pages);
	o->states = (uint32_t)READ(states);
	o->states_max = (uint32_t)READ(states_max);
#undef READ
}

static void tenants_fill(const struct td_daemon *d, Tandem__TenantStatus *o, Tandem__TenantStatus **list, size_t *n)
{
	const struct td_meter *meter[TD_METRICS_TENANTS + 1];
	struct td_metrics_now now;

	td_metrics_now(d, &now);
	*n = (size_t)td_metrics_meters(&d->metrics, meter);
	for (size_t i = 0; i < *n; i++, o++) {
		const struct td_meter *m = meter[i];

		tandem__tenant_status__init(o);
		list[i] = o;
		o->name = (char *)m->name;
		o->weight = weight_of(d, m->name);
		o->running = now.running[i][0] + now.running[i][1];
		o->queued = now.waiting[i][0] + now.waiting[i][1];
		o->requests = m->requests;
		o->finished = m->ended[TD_OUT_STOP] + m->ended[TD_OUT_LENGTH];
		o->cancelled = m->ended[TD_OUT_CANCELLED] + m->ended[TD_OUT_LOST];
		for (int k = TD_OUT_ERROR; k < TD_OUTCOMES; k++)
			o->failed += m->ended[k];
		for (int k = 0; k < TD_METRICS_CODES; k++)
			o->refused += m->refused[k];
		o->prompt_tokens = m->prompt_tokens;
		o->cached_tokens = m->cached_tokens;
		o->output_tokens = m->output_tokens;
		o->cycles = m->cycles;
		o->drafted = m->drafted;
		o->accepted = m->accepted;
		o->gpu_us = m->device_us;
		o->wasted_us = m->wasted_us;
		o->queue_us = m->queue_wait.sum_us;
	}
}

void td_status_send(struct td_session *s, uint64_t tag)
{
	const struct td_daemon *d = s->d;
	Tandem__Status st = TANDEM__STATUS__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__WorkerStatus worker[2], *list[2] = {&worker[0], &worker[1]};
	Tandem__TenantStatus tenant[TD_METRICS_TENANTS + 1], *tenants[TD_METRICS_TENANTS + 1];
	Tandem__PrefixStatus prefix;
	char sharing[512];

	st.server = (char *)"tandemd " TD_VERSION;
	st.model = (char *)d->model.name;
	st.state = (char *)td_status_state(d);
	st.uptime_us = td_now_us() - d->started_us;
	st.slots = (uint32_t)d->model.shm.slots;
	st.slots_used = (uint32_t)td_scheduler_used(d);
	st.queued = (uint32_t)d->queue.n;
	st.connections = (uint32_t)d->n_sessions;
	st.requests = d->count.requests;
	st.finished = d->count.finished;
	st.cancelled = d->count.cancelled;
	st.failed = d->count.failed;
	st.prompt_tokens = d->count.prompt_tokens;
	st.output_tokens = d->count.output_tokens;
	st.cycles = d->count.cycles;
	st.drafted = d->count.drafted;
	st.accepted = d->count.accepted;
	st.accepted_at = (uint64_t *)d->count.accepted_at;
	st.n_accepted_at = (size_t)d->model.k_max;
	st.drafted_at = (uint64_t *)d->metrics.drafted_at;
	st.n_drafted_at = (size_t)d->model.k_max;
	worker_fill(d, &d->target, &worker[0]);
	st.n_worker = 1;
	if (d->model.has_drafter) {
		worker_fill(d, &d->drafter, &worker[1]);
		st.n_worker = 2;
	}
	st.worker = list;
	tenants_fill(d, tenant, tenants, &st.n_tenant);
	st.tenant = tenants;
	prefix_fill(d, &prefix);
	st.prefix = &prefix;
	st.has_kv_pages = st.has_kv_pages_used = 1;
	st.kv_pages = (uint32_t)d->model.kv_pages;
	st.kv_pages_used = (uint32_t)d->queue.pages_used;
	st.daemon_cpu_us = td_status_cpu_us() - d->start_cpu_us;
	st.last_error = d->last_error[0] ? (char *)d->last_error : NULL;
	td_mps_sharing(d, sharing, sizeof(sharing));
	st.sharing = sharing;
	st.context = (uint32_t)d->model.shm.context;
	m.tag = tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_STATUS;
	m.status = &st;
	td_session_send(s, &m);
}

void td_status_send_metrics(struct td_session *s, uint64_t tag)
{
	Tandem__Text t = TANDEM__TEXT__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	struct td_error err;
	size_t n;

	t.text = (char *)td_metrics_text(s->d, td_now_us(), &n); /* only read */
	if (!t.text) {
		td_error_set(&err, TD_E_NOMEM, "out of memory");
		td_session_error(s, tag, &err);
		return;
	}
	m.tag = tag;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_TEXT;
	m.text = &t;
	td_session_send(s, &m);
}
