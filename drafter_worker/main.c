/*
 * main.c: the process tandem-drafter. Loads the drafter's weights (or takes them over from a dead predecessor), maps the target's table and head
 * read-only, then follows the target's steps until told to stop.
 */
#include <stdlib.h>
#include <string.h>

#include "drafter_worker/drafter.h"
#include "engine/fault.h"
#include "engine/log.h"
#include "engine/worker.h"

/* What is planned for a head over some rows of the target's; NULL: all are used. */
static const struct td_linear *some_rows(const struct td_worker *w, struct td_linear *head)
{
	const Tandem__Worker__SharedLinear *all = w->cfg->target ? w->cfg->target->head : NULL;

	if (!w->cfg->n_draft_id || !all)
		return NULL;
	*head = (struct td_linear){.kind = (enum td_weight_kind)all->kind, .in = (int)all->in, .out = (int)w->cfg->n_draft_id, .group = (int)all->group};
	return head;
}

static struct td_drafter_weights *load(struct td_worker *w, int *imported, char fingerprint[256])
{
	struct td_drafter_weights *weights = NULL;
	struct td_load how = td_worker_how(w);
	const struct td_pool pool = {.kv_pages = (int)w->cfg->kv_pages};
	struct td_memplan_worker plan;
	struct td_linear head;
	struct td_arena kept;
	struct td_error err;

	*imported = td_worker_kept(w, &kept);
	if (*imported && td_drafter_weights_take(w->ops, w->dev, &kept, how.form, &weights, fingerprint, &err)) {
		td_worker_not_kept(w, &kept, &err);
		*imported = 0;
	}
	if (*imported)
		td_memplan_drafter_rest(&weights->cfg, w->ops->act, &w->shm->cfg, &pool, some_rows(w, &head), &plan);
	else if (td_memplan_drafter(w->ops, w->cfg->model_dir, how.form, &w->shm->cfg, &pool, some_rows(w, &head), &plan, &err))
		td_worker_fail(w, &err);
	td_worker_fits(w, &plan);
	td_fault_spot("drafter.load");
	if (!*imported && td_drafter_weights_load(w->ops, w->dev, w->cfg->model_dir, &how, &weights, fingerprint, &err))
		td_worker_fail(w, &err);
	return weights;
}

/* The map `s` inside the target's arena; the range is checked, the arena itself came from tandemd. */
static void *shared(struct td_worker *w, const struct td_arena *arena, const Tandem__Worker__SharedLinear *s, const char *what)
{
	size_t bytes = s ? w->ops->pack_bytes((enum td_weight_kind)s->kind, (int)s->out, (int)s->in, (int)s->group) : 0;
	struct td_error err;

	if (!s || s->offset > arena->size || bytes > arena->size - s->offset) {
		td_error_set(&err, TD_E_PROTOCOL, "drafter: the target's %s does not lie inside its arena of %zu bytes", what, arena->size);
		td_worker_fail(w, &err);
	}
	return (char *)arena->base + s->offset;
}

static struct td_tensor table(struct td_worker *w, const struct td_arena *arena, const Tandem__Worker__SharedLinear *s, const char *what)
{
	void *data = shared(w, arena, s, what);

	return (struct td_tensor){data, TD_BF16, (int)s->out, (int)s->in, (int)s->in, 0};
}

static void map_target(struct td_worker *w, struct td_drafter_options *opt, struct td_arena *arena)
{
	const Tandem__Worker__Arena *a = w->cfg->target;
	struct td_error err;

	if (!a || w->peer_fd < 0) {
		td_error_set(&err, TD_E_PROTOCOL, "drafter: Configure came without the target's arena");
		td_worker_fail(w, &err);
	}
	if (w->ops->arena_import(w->dev, w->peer_fd, a->size, 1, arena, &err))
		td_worker_fail(w, &err);
	w->peer_fd = -1;
	opt->embed = table(w, arena, a->embed, "embedding");
	if (a->exact)
		opt->exact = table(w, arena, a->exact, "table of its head");
	opt->head = (struct td_linear){.kind = (enum td_weight_kind)a->head->kind, .in = (int)a->head->in, .out = (int)a->head->out,
				       .group = (int)a->head->group, .act8 = a->head->act8, .data = shared(w, arena, a->head, "head")};
}

/* With the target as it was loaded, and with the taps that the features are made of: a folder may have changed since tandemd read it. */
static void check_pair(struct td_worker *w, const struct td_arena *arena, const struct td_drafter_config *c)
{
	struct td_target_config target;
	int tap[TD_TAPS_MAX], n;
	struct td_error err;

	if (td_target_weights_config(w->ops, w->dev, arena, (int)w->cfg->form, &target, &err) || td_pair_check(&target, c, &err))
		td_worker_fail(w, &err);
	n = td_worker_taps(w, &target, tap);
	if (n != c->n_taps || memcmp(tap, c->tap, sizeof(*tap) * (size_t)n)) {
		td_error_set(&err, TD_E_MISMATCH, "drafter: %s taps other layers than it did when tandemd started; restart tandemd", w->cfg->model_dir);
		td_worker_fail(w, &err);
	}
}

static int step(void *d, struct td_error *err)
{
	return td_drafter_work(d, err);
}

/* A drafter has nothing of its own to end: what it follows is the target's. */
static int active(const void *d)
{
	(void)d;
	return 0;
}

int main(int argc, char **argv)
{
	struct td_worker w;
	struct td_drafter_options opt = {0};
	struct td_drafter_weights *weights;
	struct td_arena arena;
	struct td_drafter *d;
	struct td_error err;
	char fingerprint[256];
	int imported;

	td_worker_start(&w, TANDEM__WORKER__ROLE__DRAFTER, argc, argv);
	td_fault_spot("drafter.start");
	weights = load(&w, &imported, fingerprint);
	opt = (struct td_drafter_options){.ops = w.ops, .dev = w.dev, .shm = w.shm, .exchange = w.exchange, .event_fd = w.event_fd, .weights = weights,
					  .kv_pages = (int)w.cfg->kv_pages, .vocab_real = (int)w.cfg->vocab_real,
					  .draft_id = w.cfg->draft_id, .n_draft_ids = (int)w.cfg->n_draft_id};
	map_target(&w, &opt, &arena);
	check_pair(&w, &arena, &weights->cfg);
	if (td_drafter_create(&opt, &d, &err))
		td_worker_fail(&w, &err);
	td_worker_keep(&w, &weights->arena, fingerprint, NULL);
	td_worker_ready(&w, weights->arena.size, td_drafter_cache_bytes(&opt), imported);
	td_worker_run(&w, d, step, active);
}
