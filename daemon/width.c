/*
 * width.c: how many drafts a step has while n requests share it (engine/widths.h): the table is looked for when the target is ready, since it is one
 * of its device; the choice is made anew as counts of right drafts come in, and told the target in the shared memory.
 *
 * Only greedy requests that don't say how many drafts they want take part: their answers are the same with any number.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/daemon.h"
#include "engine/log.h"

enum { EVERY = 256 /* cycles */, TENTHS = 50 /* tokens in a block of 16 rows, as long as little is known */ };

static void publish(struct td_daemon *d)
{
	double rate[TD_DRAFT_MAX];

	td_widths_rates(d->count.accepted_at, d->metrics.drafted_at, d->model.k_max, TENTHS, rate);
	for (int n = 1; n <= TD_SLOTS_MAX; n++)
		atomic_store_explicit(&d->shm->width[n], td_widths_choose(&d->width.table, n, d->model.k_max, rate) + 1, memory_order_relaxed);
}

void td_width_load(struct td_daemon *d)
{
	char form[96], key[512], path[TD_WIDTH_PATH], text[96] = "";
	struct td_error err;
	size_t used = 0;
	int rc;

	d->width.known = 0;
	for (int n = 0; n <= TD_SLOTS_MAX; n++)
		atomic_store_explicit(&d->shm->width[n], 0, memory_order_relaxed);
	if (!d->model.has_drafter || !strcmp(d->cfg.widths, "off"))
		return;
	snprintf(form, sizeof(form), "%.30s, %.30s, %.30s", d->cfg.weights, d->cfg.head, d->cfg.activations);
	td_widths_key(d->target.device, &d->model.target, &d->model.drafter, form, key);
	if (td_widths_path(d->cfg.widths, key, path))
		return;
	rc = td_widths_read(path, key, &d->width.table, &err);
	if (rc && rc != TD_E_NOT_FOUND)
		td_log(TD_LOG_WARN, "drafts per step don't follow the number of requests: %s", err.text);
	if (rc)
		return;
	d->width.known = 1;
	publish(d);
	for (int i = 0; i < TD_WIDTH_COUNTS && used < sizeof(text) - 24; i++)
		if (d->shm->width[td_width_requests[i]])
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d: %d", used ? ", " : "", td_width_requests[i],
						 d->shm->width[td_width_requests[i]] - 1);
	td_log(TD_LOG_INFO, "drafts per step by requests in it: %s, by %s", text, path);
}

void td_width_count(struct td_daemon *d)
{
	if (d->width.known && d->count.cycles % EVERY == 0)
		publish(d);
}
