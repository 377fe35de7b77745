/*
 * main.c: the process tandem-target. Loads the target's weights (or takes them over from a dead predecessor), then works until told to stop.
 */
#include <stdlib.h>

#include "engine/fault.h"
#include "engine/log.h"
#include "engine/worker.h"
#include "target_worker/target.h"

static struct td_target_weights *load(struct td_worker *w, int *imported, char fingerprint[256])
{
	struct td_target_weights *weights = NULL;
	struct td_load how = td_worker_how(w);
	struct td_memplan_worker plan;
	struct td_arena kept;
	struct td_error err;

	*imported = td_worker_kept(w, &kept);
	if (*imported && td_target_weights_take(w->ops, w->dev, &kept, how.expand, &weights, fingerprint, &err)) {
		td_worker_not_kept(w, &kept, &err);
		*imported = 0;
	}
	if (*imported)
		td_memplan_target_rest(&weights->cfg, w->ops->act, &w->shm->cfg, (int)w->cfg->kv_pages, &plan);
	else if (td_memplan_target(w->ops, w->cfg->model_dir, how.expand, &w->shm->cfg, (int)w->cfg->kv_pages, &plan, &err))
		td_worker_fail(w, &err);
	td_worker_fits(w, &plan);
	td_fault_spot("target.load");
	if (!*imported && td_target_weights_load(w->ops, w->dev, w->cfg->model_dir, &how, &weights, fingerprint, &err))
		td_worker_fail(w, &err);
	return weights;
}

static int step(void *t, struct td_error *err)
{
	return td_target_work(t, err);
}

static int active(const void *t)
{
	return td_target_active(t);
}

int main(int argc, char **argv)
{
	struct td_worker w;
	struct td_target_options opt = {0};
	struct td_target_weights *weights;
	struct td_target *t;
	struct td_error err;
	char fingerprint[256];
	int imported, tap[TD_TAPS_MAX];

	td_worker_start(&w, TANDEM__WORKER__ROLE__TARGET, argc, argv);
	if (td_fault("target.exit"))
		exit(0);
	td_fault_spot("target.start");
	weights = load(&w, &imported, fingerprint);
	opt = (struct td_target_options){.ops = w.ops, .dev = w.dev, .shm = w.shm, .exchange = w.exchange, .event_fd = w.event_fd, .weights = weights,
					 .n_taps = td_worker_taps(&w, &weights->cfg, tap), .tap = tap, .kv_pages = (int)w.cfg->kv_pages,
					 .vocab_real = (int)w.cfg->vocab_real};
	if (td_target_create(&opt, &t, &err))
		td_worker_fail(&w, &err);
	td_worker_keep(&w, &weights->arena, fingerprint, &weights->embed, &weights->head);
	td_worker_ready(&w, weights->arena.size, td_target_cache_bytes(&opt), imported);
	td_worker_run(&w, t, step, active);
}
