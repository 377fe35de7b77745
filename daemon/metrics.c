/*
 * metrics.c: events become additions to counters and histograms (metrics.h). The text is made in metrics_text.c.
 */
#include "daemon/metrics.h"

#include <stdio.h>
#include <string.h>

#include "daemon/daemon.h"

#define MS 1000ull
#define S 1000000ull

const uint64_t td_bounds_wait[TD_METRICS_BOUNDS] = {
	1 * MS, 5 * MS, 10 * MS, 25 * MS, 50 * MS, 100 * MS, 250 * MS, 500 * MS, 1 * S, 2500 * MS, 5 * S, 10 * S, 30 * S, 60 * S, 120 * S, 300 * S,
};
const uint64_t td_bounds_token[TD_METRICS_BOUNDS] = {
	500, 1 * MS, 2 * MS, 3 * MS, 5 * MS, 7500, 10 * MS, 15 * MS, 20 * MS, 30 * MS, 50 * MS, 100 * MS, 250 * MS, 500 * MS, 1 * S, 5 * S,
};
const uint64_t td_bounds_request[TD_METRICS_BOUNDS] = {
	50 * MS, 100 * MS, 250 * MS, 500 * MS, 1 * S, 2500 * MS, 5 * S, 10 * S, 20 * S, 30 * S, 60 * S, 120 * S, 300 * S, 600 * S, 1800 * S, 3600 * S,
};

void td_histogram_add(struct td_histogram *h, const uint64_t bounds[TD_METRICS_BOUNDS], uint64_t us, uint64_t times)
{
	int i = 0;

	while (i < TD_METRICS_BOUNDS && us > bounds[i])
		i++;
	h->bucket[i] += times;
	h->count += times;
	h->sum_us += us * times;
}

struct td_meter *td_metrics_meter(struct td_metrics *m, const char *tenant)
{
	for (int i = 0; i < m->n_meters; i++)
		if (!strncmp(m->meter[i].name, tenant, TD_METRICS_NAME - 1))
			return &m->meter[i];
	if (m->n_meters == TD_METRICS_TENANTS)
		return &m->meter[TD_METRICS_TENANTS];
	if (m->n_meters == TD_METRICS_TENANTS - 1)
		snprintf(m->meter[TD_METRICS_TENANTS].name, TD_METRICS_NAME, "other");
	snprintf(m->meter[m->n_meters].name, TD_METRICS_NAME, "%s", tenant);
	return &m->meter[m->n_meters++];
}

static int code_place(int code)
{
	int known = code < 0 && code > -TD_METRICS_CODES && td_error_code(td_error_name(code), 0) == code;

	return known ? -code : -TD_E_INTERNAL;
}

void td_metrics_error(struct td_daemon *d, int code)
{
	d->metrics.errors[code_place(code)]++;
}

void td_metrics_connect(struct td_daemon *d, enum td_protocol protocol)
{
	d->metrics.opened[protocol]++;
}

void td_metrics_refuse(struct td_daemon *d, const char *tenant, int code)
{
	td_metrics_meter(&d->metrics, tenant)->refused[code_place(code)]++;
}

void td_metrics_accept(struct td_daemon *d, struct td_request *r, const char *tenant)
{
	r->meter = td_metrics_meter(&d->metrics, tenant);
	r->meter->requests++;
	r->meter->prompt_tokens += (uint64_t)r->log.n_prompt;
}

/* A request that a worker's death sent back to the queue waits again; only the first wait is what its client thinks of as the queue. */
void td_metrics_start(struct td_request *r, uint64_t waited_us)
{
	if (r->meter && !r->started_us)
		td_histogram_add(&r->meter->queue_wait, td_bounds_wait, waited_us, 1);
}

void td_metrics_charge(struct td_meter *m, uint64_t us, uint64_t wasted_us)
{
	m->device_us += us;
	m->wasted_us += wasted_us;
}

/* Who is configured has a name before strangers take them all. */
void td_metrics_know(struct td_daemon *d)
{
	for (int i = 0; i < d->tenants.n; i++)
		if (d->tenants.tenant[i]->configured)
			td_metrics_meter(&d->metrics, d->tenants.tenant[i]->cfg.name);
}

/* A prompt is counted as cached once, however often a worker's death makes it start again. */
void td_metrics_cached(struct td_request *r, uint32_t tokens)
{
	if (r->meter && !r->cached_tokens)
		r->meter->cached_tokens += tokens;
}

void td_metrics_now(const struct td_daemon *d, struct td_metrics_now *now)
{
	memset(now, 0, sizeof(*now));
	for (const struct td_request *r = d->requests; r; r = r->hh.next) {
		long i = r->meter ? r->meter - d->metrics.meter : TD_METRICS_TENANTS;

		now->waiting[i][r->entry.band] += r->state == TD_REQ_QUEUED;
		now->running[i][r->entry.band] += r->state == TD_REQ_RUNNING;
	}
}

int td_metrics_meters(const struct td_metrics *m, const struct td_meter *list[TD_METRICS_TENANTS + 1])
{
	int n = 0;

	while (n < m->n_meters) {
		list[n] = &m->meter[n];
		n++;
	}
	if (n == TD_METRICS_TENANTS)
		list[n++] = &m->meter[TD_METRICS_TENANTS];
	return n;
}

void td_metrics_commit(struct td_daemon *d, const struct td_request *r, const struct td_record *rec, int tokens, int accepted, uint64_t now_us)
{
	struct td_meter *m = r->meter;

	if (!m || tokens < 1)
		return;
	m->output_tokens += (uint64_t)tokens;
	if (!r->first_us) {
		td_histogram_add(&m->first_token, td_bounds_wait, now_us - r->arrived_us, 1);
	} else {
		uint64_t gap = now_us - r->last_us;

		td_histogram_add(&m->inter_token, td_bounds_token, gap / (uint64_t)tokens, (uint64_t)tokens);
		td_histogram_add(&d->metrics.gap, td_bounds_token, gap, 1);
	}
	if (!rec->reason)
		return;
	td_histogram_add(&d->metrics.step, td_bounds_token, rec->us_step, 1);
	m->cycles++;
	m->drafted += rec->drafted;
	m->accepted += (uint64_t)accepted;
	for (int i = 0; i < rec->drafted; i++)
		d->metrics.drafted_at[i]++;
}

void td_metrics_end(struct td_daemon *d, const struct td_request *r)
{
	static const enum td_outcome of_finish[] = {
		[TANDEM__FINISH_REASON__STOP] = TD_OUT_STOP,
		[TANDEM__FINISH_REASON__LENGTH] = TD_OUT_LENGTH,
		[TANDEM__FINISH_REASON__CANCELLED] = TD_OUT_CANCELLED,
		[TANDEM__FINISH_REASON__ERROR] = TD_OUT_ERROR,
	};

	if (!r->meter)
		return;
	if (r->state == TD_REQ_LOST)
		r->meter->ended[TD_OUT_LOST]++;
	else if (r->error.code == TD_E_CANCELLED)
		r->meter->ended[TD_OUT_CANCELLED]++;
	else if (r->error.code)
		r->meter->ended[TD_OUT_ERROR + code_place(r->error.code)]++;
	else
		r->meter->ended[of_finish[r->finish]]++;
	td_histogram_add(&d->metrics.duration, td_bounds_request, td_now_us() - r->arrived_us, 1);
}
