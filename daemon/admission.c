/*
 * admission.c: who may ask, who may wait, and what those who wait are told.
 *
 * A request is refused before anything is kept of it, with a code of its own for each limit and, where figures allow, with how long to wait before trying
 * again. The queue is shared, but a tenant always gets its even part of it, so that no other can fill it: in the worst case twice limits.queue wait.
 * Forecasts come from how long requests had their slots so far; while too few ended, nothing is refused by them.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/daemon.h"

enum { TELL_US = 500000, TOLD_MOST = 4096, RETRY_MIN_MS = 100, RETRY_MAX_MS = 600000, RETRY_UNKNOWN_MS = 1000, RETRY_WORKER_MS = 30000 };

/* ---- whose session ------------------------------------------------------------------------------------------------------------------- */

void td_session_be(struct td_session *s, struct td_tenant *t)
{
	td_tenant_drop(&s->d->tenants, s->tenant);
	s->tenant = t;
	s->tenant_generation = s->d->tenants.generation;
}

const char *td_session_who(const struct td_session *s)
{
	return s->tenant ? s->tenant->cfg.name : "nobody";
}

struct td_tenant *td_session_tenant(struct td_session *s, const char *asked, struct td_error *err)
{
	struct td_tenants *t = &s->d->tenants;
	struct td_tenant *x;
	uv_os_fd_t fd;

	if (s->tenant && s->tenant_generation == t->generation)
		return s->tenant;
	if (s->io.handle.type != UV_NAMED_PIPE || uv_fileno(&s->io.handle, &fd)) {
		if (s->tenant && s->tenant->configured)
			return s->tenant;
		td_error_set(err, TD_E_UNAUTHORIZED, "the tenant of this connection is not served any more");
		return NULL;
	}
	x = td_tenant_by_peer(t, fd, asked ? asked : s->tenant ? s->tenant->cfg.name : NULL, err);
	if (x)
		td_session_be(s, x);
	return x;
}

/* ---- limits -------------------------------------------------------------------------------------------------------------------------- */

static int refuse(struct td_refusal *no, int code, uint64_t retry_us, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static int refuse(struct td_refusal *no, int code, uint64_t retry_us, const char *fmt, ...)
{
	uint64_t ms = retry_us / 1000;
	va_list ap;

	no->error.code = code;
	va_start(ap, fmt);
	vsnprintf(no->error.text, sizeof(no->error.text), fmt, ap);
	va_end(ap);
	no->retry_after_ms = !retry_us ? 0 : ms < RETRY_MIN_MS ? RETRY_MIN_MS : ms > RETRY_MAX_MS ? RETRY_MAX_MS : (uint32_t)ms;
	return code;
}

static int slots_free(const struct td_daemon *d)
{
	return td_supervisor_serving(d) ? d->queue.slots - d->queue.used : 0;
}

/* How many more of a tenant's requests could start now. */
static int starts(const struct td_daemon *d, const struct td_flow *f)
{
	int n = slots_free(d);

	if (f->max_running && n > f->max_running - f->running)
		n = f->max_running - f->running;
	return n > 0 ? n : 0;
}

/* When the next of `stays` that run at once will probably end. */
static uint64_t next_end_us(const struct td_daemon *d, int stays)
{
	double mean = d->queue.mean_stay_us;

	return mean > 0 ? (uint64_t)(mean / (stays > 0 ? stays : 1)) + 1 : RETRY_UNKNOWN_MS * 1000;
}

static int check_queues(const struct td_daemon *d, const struct td_tenant *t, struct td_refusal *no)
{
	const struct td_flow *f = &t->flow;
	int start = starts(d, f), most = d->cfg.queue, even = most / (d->queue.n_waiting + !f->at);

	if (t->cfg.queue && f->queued >= t->cfg.queue + start)
		return refuse(no, TD_E_TENANT_QUEUE, next_end_us(d, f->running), "%d requests of tenant %s are waiting, as many as its setting queue allows",
			      f->queued, t->cfg.name);
	if (d->queue.n >= most + slots_free(d) && (f->queued == d->queue.n || f->queued >= even))
		return refuse(no, TD_E_QUEUE_FULL, next_end_us(d, d->queue.slots), "%d requests are waiting, as many as limits.queue allows", d->queue.n);
	return 0;
}

static int check_all(const struct td_daemon *d, struct td_tenant *t, struct td_refusal *no)
{
	const struct td_child *w = td_supervisor_failed(d);
	uint32_t ms;

	if (d->draining)
		return refuse(no, TD_E_DRAINING, 0, "tandemd is ending and takes no new requests");
	if (w)
		return refuse(no, w->why == TD_E_MISMATCH ? TD_E_MISMATCH : TD_E_WORKER, RETRY_WORKER_MS * 1000,
			      "the %s worker cannot be had: %s; it is tried again every 30 s", w->name, w->why_text);
	ms = td_tenant_rate_wait(t, td_now_us());
	if (ms)
		return refuse(no, TD_E_TENANT_RATE, ms * UINT64_C(1000), "tenant %s has used up its %lld tokens per minute", t->cfg.name,
			      (long long)t->cfg.tokens_per_minute);
	return check_queues(d, t, no);
}

int td_admission_open(struct td_session *s, struct td_refusal *no)
{
	struct td_tenant *t;

	*no = (struct td_refusal){0};
	t = td_session_tenant(s, NULL, &no->error);
	return t ? check_all(s->d, t, no) : no->error.code;
}

/* ---- one request --------------------------------------------------------------------------------------------------------------------- */

static int check_context(const struct td_daemon *d, const struct td_tenant *t, struct td_request *r, struct td_refusal *no)
{
	int most = t->cfg.context;

	if (!most || most >= d->model.shm.context)
		return 0;
	if (r->log.n_prompt >= most)
		return refuse(no, TD_E_CONTEXT, 0, "the prompt has %d tokens; tenant %s may use %d, one of them for the answer", r->log.n_prompt, t->cfg.name, most);
	if (r->max_total > most)
		r->max_total = most;
	return 0;
}

static int check_deadline(const struct td_daemon *d, const struct td_request *r, struct td_refusal *no)
{
	uint64_t now = td_now_us(), wait, left;

	if (!r->deadline_us || !td_supervisor_serving(d))
		return 0;
	left = r->deadline_us > now ? r->deadline_us - now : 0;
	wait = td_queue_wait_us(&d->queue, td_queue_ahead(&d->queue, &r->entry, r->tenant->flow.fifo[r->entry.band].n));
	if (wait <= left)
		return 0;
	return refuse(no, TD_E_DEADLINE_EARLY, wait - left, "the deadline is in %llu ms, and the request would get a slot in about %llu ms",
		      (unsigned long long)(left / 1000), (unsigned long long)(wait / 1000));
}

int td_admission_take(struct td_session *s, struct td_request *r, struct td_refusal *no)
{
	struct td_daemon *d = s->d;
	struct td_tenant *t;

	*no = (struct td_refusal){0};
	t = td_session_tenant(s, NULL, &no->error);
	if (!t || check_all(d, t, no) || check_context(d, t, r, no))
		return no->error.code;
	r->tenant = t;
	r->told_place = -1;
	r->entry = (struct td_entry){.flow = &t->flow, .number = r->number, .band = r->band < 0 ? (enum td_band)t->cfg.band : (enum td_band)r->band,
				     .pages = (r->max_total + TD_PAGE - 1) / TD_PAGE};
	if (check_deadline(d, r, no)) {
		r->tenant = NULL;
		return no->error.code;
	}
	td_tenant_hold(t);
	td_tenant_spend(t, r->log.n_prompt, td_now_us());
	return 0;
}

void td_admission_enqueue(struct td_daemon *d, struct td_request *r)
{
	r->state = TD_REQ_QUEUED;
	r->queued_us = td_now_us();
	td_queue_add(&d->queue, &r->entry, r->queued_us);
}

/* ---- places -------------------------------------------------------------------------------------------------------------------------- */

static uint32_t position(const struct td_daemon *d, const struct td_request *r, int rank)
{
	int place;

	if (r->state != TD_REQ_QUEUED)
		return 0;
	place = td_queue_ahead(&d->queue, &r->entry, rank) - starts(d, &r->tenant->flow) + 1;
	return place > 0 ? (uint32_t)place : 0;
}

uint32_t td_admission_position(const struct td_daemon *d, const struct td_request *r)
{
	return position(d, r, -1);
}

static void tell(const struct td_daemon *d, struct td_request *r, int rank)
{
	int place = (int)position(d, r, rank);

	if (!r->session || r->session->blocked || place == r->told_place)
		return;
	r->told_place = place;
	if (place > 0)
		r->session->protocol->queued(r->session, r, (uint32_t)place - 1);
}

/* Those far behind in a very long queue are told later, when they have come nearer. */
void td_admission_tell(struct td_daemon *d, uint64_t now_us)
{
	int left = TOLD_MOST;

	if (now_us < d->told_us + TELL_US)
		return;
	d->told_us = now_us;
	for (int i = 0; i < d->queue.n_waiting; i++)
		for (int band = 0; band < TD_BANDS; band++) {
			struct td_entry *e = d->queue.waiting[i]->fifo[band].head;

			for (int rank = 0; e && left > 0; e = e->next, rank++, left--)
				tell(d, td_request_of(e), rank);
		}
}

/* ---- settings ------------------------------------------------------------------------------------------------------------------------ */

int td_admission_configure(struct td_daemon *d, struct td_daemon_config *c, struct td_error *err)
{
	struct td_queue *q = &d->queue;
	int rc = td_tenants_apply(&d->tenants, &c->tenants, err);

	if (rc)
		return rc;
	q->slots = d->model.shm.slots;
	q->pages = d->model.kv_pages;
	q->batch_age_us = (uint64_t)c->batch_age_s * 1000000;
	q->quantum_us = (uint64_t)c->quantum_ms * 1000;
	q->in_order = !strcmp(c->tenants.order, "arrival");
	d->cfg.queue = c->queue;
	d->cfg.batch_age_s = c->batch_age_s;
	d->cfg.quantum_ms = c->quantum_ms;
	td_metrics_know(d);
	return 0;
}
