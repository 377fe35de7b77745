/*
 * main.c: the process tandem-target. Loads the target's weights (or takes them over from a dead predecessor), then works until told to stop.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/fault.h"
#include "engine/log.h"
#include "engine/model.h"
#include "engine/worker.h"
#include "target_worker/bench.h"
#include "target_worker/target.h"

/* The prefix cache takes what is free, up to what was planned, where the setting leaves that open: a service with fewer checkpoints is better than none. */
static void fit_states(struct td_worker *w, struct td_memplan_worker *plan, struct td_pool *pool)
{
	uint64_t free_bytes, total_bytes, per_state;
	struct td_error err;
	int fit;

	if (!w->cfg->prefix_auto || !pool->prefix_states || w->ops->memory(w->dev, &free_bytes, &total_bytes, &err))
		return;
	fit = td_memplan_states(plan, pool->prefix_states, free_bytes, w->cfg->reserve);
	if (fit == pool->prefix_states)
		return;
	per_state = plan->prefix / (uint64_t)pool->prefix_states;
	td_log(TD_LOG_WARN, "memory is short: the prefix cache gets %d checkpoints instead of %d (%.1f MiB each)", fit, pool->prefix_states,
	       (double)per_state / (1 << 20));
	plan->prefix = per_state * (uint64_t)fit;
	pool->prefix_states = fit;
}

static struct td_target_weights *load(struct td_worker *w, struct td_pool *pool, int *imported, char fingerprint[256])
{
	struct td_target_weights *weights = NULL;
	struct td_load how = td_worker_how(w);
	struct td_memplan_worker plan;
	struct td_arena kept;
	struct td_error err;

	*imported = td_worker_kept(w, &kept);
	if (*imported && td_target_weights_take(w->ops, w->dev, &kept, how.form, &weights, fingerprint, &err)) {
		td_worker_not_kept(w, &kept, &err);
		*imported = 0;
	}
	if (*imported)
		td_memplan_target_rest(&weights->cfg, w->ops->act, &w->shm->cfg, pool, &plan);
	else if (td_memplan_target(w->ops, w->cfg->model_dir, how.form, &w->shm->cfg, pool, &plan, &err))
		td_worker_fail(w, &err);
	fit_states(w, &plan, pool);
	td_worker_fits(w, &plan);
	td_fault_spot("target.load");
	if (!*imported && td_target_weights_load(w->ops, w->dev, w->cfg->model_dir, &how, &weights, fingerprint, &err))
		td_worker_fail(w, &err);
	return weights;
}

/* Never with a model whose answers somebody may want. */
static void take_assume(struct td_worker *w, struct td_target_options *opt)
{
	struct td_error err;

	opt->assume = td_fault_set("target.assume");
	if (!opt->assume)
		return;
	if (!td_synthetic(w->cfg->model_dir)) {
		td_error_set(&err, TD_E_INVALID, "the lever target.assume is for synthetic models");
		td_worker_fail(w, &err);
	}
	td_log(TD_LOG_WARN, "acceptance is assumed, as seeds say: ANSWERS ARE MEANINGLESS");
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
	struct td_pool pool;
	struct td_error err;
	char fingerprint[256];
	int imported, tap[TD_TAPS_MAX];

	if (argc > 1 && !strcmp(argv[1], "bench-ops"))
		return td_target_bench(argc - 1, argv + 1);
	td_worker_start(&w, TANDEM__WORKER__ROLE__TARGET, argc, argv);
	if (td_fault("target.exit"))
		exit(0);
	td_fault_spot("target.start");
	pool = (struct td_pool){.kv_pages = (int)w.cfg->kv_pages, .prefix_states = (int)w.cfg->prefix_states};
	weights = load(&w, &pool, &imported, fingerprint);
	opt = (struct td_target_options){.ops = w.ops, .dev = w.dev, .shm = w.shm, .exchange = w.exchange, .event_fd = w.event_fd, .weights = weights,
					 .n_taps = td_worker_taps(&w, &weights->cfg, tap), .tap = tap, .pool = pool,
					 .vocab_real = (int)w.cfg->vocab_real, .vocab_fd = w.vocab_fd,
					 .even = td_fault_set("target.even")};
	take_assume(&w, &opt);
	if (td_target_create(&opt, &t, &err))
		td_worker_fail(&w, &err);
	td_worker_keep(&w, &weights->arena, fingerprint, weights);
	td_worker_ready(&w, weights->arena.size, td_target_cache_bytes(&opt), imported);
	td_worker_run(&w, t, step, active);
}
