/*
 * drafter.c: the drafter's memory, and following the target's steps.
 *
 * The steps are taken strictly in order, and every entry is followed, also of a request that ended meanwhile: the prefix cache lends its pages to
 * others, who count on both workers' part of them. Only drafts for such a request are left out. A record that does not continue the context it names
 * means that the two workers disagree on what is committed: the worker ends (and both start afresh) rather than draft from a wrong context.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drafter_worker/internal.h"
#include "engine/clock.h"
#include "engine/fault.h"

/* ---- memory ------------------------------------------------------------------------------------------------------------------------- */

size_t td_drafter_cache_bytes(const struct td_drafter_options *o)
{
	return td_drafter_kv_bytes(&o->weights->cfg, o->kv_pages, o->ops->act);
}

/* Every buffer comes from the table of engine/memplan.h: what is not there is not planned for. */
static int take_buffers(struct td_drafter *d, struct td_error *err)
{
	struct td_tensor *b = d->buffer;
	int rc;

	d->head = d->o.head;
	if (d->o.n_draft_ids)
		d->head.out = d->o.n_draft_ids;
	td_drafter_buffers(&d->w->cfg, &d->shm->cfg, d->ops->act, d->o.n_draft_ids ? &d->head : NULL, b);
	if ((rc = td_buffers_take("drafter", d->ops, d->dev, d->n_slots, b, TD_DRAFTER_BUFFERS, err)))
		return rc;
	d->fused = b[TD_DB_FUSED];
	d->context_row = b[TD_DB_CONTEXT_ROW];
	d->kv_row = b[TD_DB_KV_ROW];
	d->x = b[TD_DB_X];
	d->norm = b[TD_DB_NORM];
	d->wide = b[TD_DB_WIDE];
	d->mixed = b[TD_DB_MIXED];
	d->gate_up = b[TD_DB_GATE_UP];
	d->inner = b[TD_DB_INNER];
	d->tail = b[TD_DB_TAIL];
	d->tail_norm = b[TD_DB_TAIL_NORM];
	d->logits = b[TD_DB_LOGITS];
	d->table = b[TD_DB_TABLE].data;
	d->ids = b[TD_DB_IDS].data;
	d->sampling = b[TD_DB_SAMPLING].data;
	return 0;
}

/* A head over some rows only, copied out of the target's: it lies with the buffers and not with the weights, so that an arena that is kept knows nothing of
 * the list and serves any. */
static int take_head(struct td_drafter *d, struct td_error *err)
{
	const int32_t *id = d->o.draft_id;
	int n = d->o.n_draft_ids;

	for (int i = 0; i < n; i++)
		if (id[i] <= (i ? id[i - 1] : -1) || id[i] >= d->o.vocab_real || id[i] >= d->o.head.out)
			return td_error_set(err, TD_E_PROTOCOL, "drafter: place %d of the draft vocabulary is token %d: ids must ascend to at most %d", i, id[i],
					    d->o.vocab_real - 1);
	if (!n)
		return 0;
	d->columns = (struct td_columns){.id = d->buffer[TD_DB_COLUMNS].data, .n = n, .vocab = d->w->cfg.vocab};
	d->head.data = d->buffer[TD_DB_HEAD].data;
	d->ops->upload(d->dev, d->buffer[TD_DB_COLUMNS].data, id, sizeof(*id) * (size_t)n);
	d->ops->pack_rows(d->dev, &d->o.head, d->columns.id, &d->head);
	return d->ops->sync(d->dev, err);
}

static int take_cache(struct td_drafter *d, struct td_error *err)
{
	int layers = d->w->cfg.layers;
	size_t layer = td_drafter_cache_bytes(&d->o) / (size_t)layers;

	d->kv = calloc((size_t)layers, sizeof(*d->kv));
	d->cache = d->ops->alloc(d->dev, layer * (size_t)layers, err);
	if (!d->kv || !d->cache)
		return td_error_set(err, TD_E_NOMEM, "drafter: no memory for the cache of %d pages (%zu bytes): lower engine.slots, engine.context or engine.kv_tokens",
				    d->o.kv_pages, layer * (size_t)layers);
	for (int i = 0; i < layers; i++) {
		char *base = (char *)d->cache + (size_t)i * layer;

		d->kv[i] = (struct td_kv){.k = base, .v = base + layer / 2, .table = d->table, .max_pages = d->max_pages};
	}
	return 0;
}

/* A step on nothing, so that the device's libraries load their code before the first request. What it leaves in slot 0 goes when a request starts. */
static int warm(struct td_drafter *d, struct td_error *err)
{
	struct td_seq seq = {.rows = d->rows_max < d->shm->cfg.context ? d->rows_max : d->shm->cfg.context, .commit = 1};
	struct td_batch b = {.n_seq = 1, .n_rows = seq.rows, .max_rows = seq.rows, .max_ctx = seq.rows, .seq = &seq};
	struct td_tensor features = {d->o.exchange.features[0], d->ops->act, seq.rows, d->shm->cfg.features, d->shm->cfg.features, 0};
	const struct td_sampling greedy = {.top_p = 1, .repetition = 1, .logprobs = -1};

	d->ops->upload(d->dev, d->sampling, &greedy, sizeof(greedy));
	d->ops->batch_set(d->dev, &b);
	td__drafter_append(d, &b, features);
	seq = (struct td_seq){.rows = d->w->cfg.block};
	b = (struct td_batch){.n_seq = 1, .n_rows = seq.rows, .max_rows = seq.rows, .max_ctx = seq.rows, .seq = &seq};
	d->ops->batch_set(d->dev, &b);
	td__drafter_block(d, &b);
	return d->ops->sync(d->dev, err);
}

int td_drafter_create(const struct td_drafter_options *opt, struct td_drafter **out, struct td_error *err)
{
	struct td_drafter *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return td_error_set(err, TD_E_NOMEM, "drafter: out of host memory");
	d->o = *opt;
	d->ops = opt->ops;
	d->dev = opt->dev;
	d->w = opt->weights;
	d->shm = opt->shm;
	d->n_slots = opt->shm->cfg.slots;
	d->max_pages = opt->shm->cfg.context / TD_PAGE;
	d->rows_max = opt->shm->cfg.feature_rows;
	d->block_rows = d->n_slots * TD_BLOCK_MAX;
	d->epoch = atomic_load(&opt->shm->epoch);
	d->row = calloc((size_t)d->max_pages, sizeof(*d->row));
	if (!d->row) {
		td_drafter_destroy(d);
		return td_error_set(err, TD_E_NOMEM, "drafter: out of host memory");
	}
	if ((rc = take_buffers(d, err)) || (rc = take_head(d, err)) || (rc = take_cache(d, err)) || (d->ops->lend && (rc = warm(d, err)))) {
		td_drafter_destroy(d);
		return rc;
	}
	*out = d;
	return 0;
}

void td_drafter_destroy(struct td_drafter *d)
{
	if (!d)
		return;
	td_buffers_free(d->ops, d->dev, d->buffer, TD_DRAFTER_BUFFERS);
	d->ops->free(d->dev, d->cache);
	free(d->row);
	free(d->kv);
	free(d);
}

/* ---- steps -------------------------------------------------------------------------------------------------------------------------- */

/* An entry is alive when the slot still holds the request it names: otherwise the target ended it after the record was written, and tandemd may be
 * writing the next one's settings there. */
static int alive(struct td_drafter *d, const struct td_step_entry *e)
{
	const struct td_slot_area *a = td_shm_slot(d->shm, e->slot);

	return a->request == e->request && a->epoch == d->epoch;
}

static int entry_check(const struct td_drafter *d, const struct td_step *s, const struct td_step_entry *e, struct td_error *err)
{
	const struct td__context *c = &d->context[e->slot];
	int expected = e->begins ? e->pos0 : c->request == e->request ? c->fed : -1;

	if (e->pos0 < 0 || e->pos0 > d->shm->cfg.context || e->row0 < 0 || e->rows < 1 || e->row0 + e->rows > s->n_rows || e->draft < 0 || e->draft >= d->w->cfg.block ||
	    e->pos0 + e->rows > d->shm->cfg.context)
		return td_error_set(err, TD_E_INTERNAL, "drafter: step %u names rows %d+%d of %d, position %d, %d drafts: out of range", s->number, e->row0,
				    e->rows, s->n_rows, e->pos0, e->draft);
	if (e->pos0 != expected)
		return td_error_set(err, TD_E_INTERNAL, "drafter: step %u continues request %llu at position %d, its context ends at %d", s->number,
				    (unsigned long long)e->request, e->pos0, expected);
	return 0;
}

/* A request begins: the pages of its slot, from beside the step record, and how it samples. What the target wrote is checked: pages are indices. */
static int begin(struct td_drafter *d, const struct td_step *s, const struct td_step_entry *e, struct td_error *err)
{
	const int32_t *table = td_shm_table(d->shm, s->number, e->slot);

	for (int i = 0; i < d->max_pages; i++) {
		d->row[i] = table[i];
		if (d->row[i] < 0 || d->row[i] >= d->o.kv_pages)
			return td_error_set(err, TD_E_INTERNAL, "drafter: step %u gives slot %d page %d of %d", s->number, e->slot, d->row[i], d->o.kv_pages);
	}
	d->context[e->slot] = (struct td__context){.request = e->request, .fed = e->pos0};
	d->ops->upload(d->dev, d->table + (size_t)e->slot * (size_t)d->max_pages, d->row, sizeof(*d->row) * (size_t)d->max_pages);
	d->ops->upload(d->dev, d->sampling + e->slot, &td_shm_slot(d->shm, e->slot)->sampling, sizeof(*d->sampling));
	return 0;
}

static void batch_add(struct td_batch *b, struct td_seq *seq, int slot, int row0, int rows, int pos0)
{
	seq[b->n_seq++] = (struct td_seq){.slot = slot, .row0 = row0, .rows = rows, .pos0 = pos0, .commit = rows > TD_BLOCK_MAX /* of a prompt */};
	if (row0 + rows > b->n_rows)
		b->n_rows = row0 + rows;
	if (rows > b->max_rows)
		b->max_rows = rows;
	if (pos0 + rows > b->max_ctx)
		b->max_ctx = pos0 + rows;
}

/* What the step appends and who gets drafts; both batches are empty before. */
static int plan(struct td_drafter *d, const struct td_step *s, struct td_batch *append, struct td_seq *append_seq, struct td_batch *block,
		struct td_seq *block_seq, struct td_error *err)
{
	int rc;

	for (int i = 0; i < s->n_entries; i++) {
		const struct td_step_entry *e = &s->entry[i];
		struct td__context *c;

		if (e->slot < 0 || e->slot >= d->n_slots)
			return td_error_set(err, TD_E_INTERNAL, "drafter: step %u names slot %d", s->number, e->slot);
		c = &d->context[e->slot];
		if ((rc = entry_check(d, s, e, err)) || (e->begins && (rc = begin(d, s, e, err))))
			return rc;
		batch_add(append, append_seq, e->slot, e->row0, e->rows, e->pos0);
		c->fed += e->rows;
		if (e->draft && alive(d, e))
			batch_add(block, block_seq, e->slot, block->n_rows, e->draft + 1, c->fed);
	}
	return 0;
}

/* Rows of a prompt are appended by themselves; those of a verify together with the drafts that follow, as one step that is kept for the next time.
 * *drafted: somebody got drafts. *us: the step's time, that of the device where it was one. */
static int follow(struct td_drafter *d, const struct td_step *s, int *drafted, uint64_t *us, struct td_error *err)
{
	uint64_t began = td_now_us();
	struct td_seq append_seq[TD_SLOTS_MAX], block_seq[TD_SLOTS_MAX];
	struct td_batch append = {.seq = append_seq}, block = {.seq = block_seq};
	uint32_t buffer = s->number % TD_FEATURE_BUFS;
	struct td_tensor features = {d->o.exchange.features[buffer], d->ops->act, d->rows_max, d->shm->cfg.features, d->shm->cfg.features, 0};
	struct td_replay step = {.who = d, .ctx_max = d->shm->cfg.context};
	int together, rc;

	if ((rc = plan(d, s, &append, append_seq, &block, block_seq, err)))
		return rc;
	td_fault_spot("drafter.step");
	td_fault_gpu("drafter.gpu.fault", d->ops, d->dev);
	*drafted = block.n_seq > 0;
	together = *drafted && append.max_rows <= TD_BLOCK_MAX && append.n_rows <= d->block_rows;
	if (!together && append.n_seq) {
		d->ops->batch_set(d->dev, &append);
		td__drafter_append(d, &append, td_rows(features, 0, append.n_rows));
	}
	if (!*drafted) {
		rc = d->ops->sync(d->dev, err);
		*us = td_now_us() - began;
		return rc;
	}
	if (together)
		step.batch[step.n++] = &append;
	step.batch[step.n++] = &block;
	step.what = d->o.probe ? 0 : together ? 2 + buffer : 1;
	if (!d->ops->replay(d->dev, &step)) {
		if (together)
			td__drafter_append(d, &append, td_rows(features, 0, append.n_rows));
		td__drafter_block(d, &block);
		d->ops->replay_end(d->dev);
	}
	rc = d->ops->replay_wait(d->dev, err);
	*us = together ? (uint64_t)d->ops->elapsed_us(d->dev, TD_MARK_BEGIN, TD_MARK_END) : td_now_us() - began;
	return rc;
}

static void reset(struct td_drafter *d)
{
	struct td_record rec = {.kind = TD_REC_RESET_DONE};
	uint64_t one = 1;

	memset(d->context, 0, sizeof(d->context));
	d->epoch = rec.epoch = atomic_load(&d->shm->epoch);
	d->step = 0;
	td_ring_push(&d->shm->from_drafter, &rec); /* never full: one record per epoch */
	if (d->o.event_fd >= 0 && write(d->o.event_fd, &one, sizeof(one)) < 0) {
		/* EAGAIN: tandemd has wake-ups enough. */
	}
}

int td_drafter_work(struct td_drafter *d, struct td_error *err)
{
	uint64_t target = atomic_load(&d->shm->target.value), next = td_step_value(d->epoch, d->step + 1), us;
	const struct td_step *s = &d->shm->step[(d->step + 1) % TD_STEPS];
	int rc, drafted;

	if (atomic_load(&d->shm->epoch) != d->epoch) {
		reset(d);
		return 1;
	}
	if (target < next || target == TD_FLAG_POISON(d->epoch))
		return 0;
	if (s->epoch != d->epoch || s->number != d->step + 1 || s->n_entries < 0 || s->n_entries > d->n_slots || s->n_rows > d->rows_max)
		return td_error_set(err, TD_E_INTERNAL, "drafter: expected the record of step %u, found that of step %u", d->step + 1, s->number);
	if ((rc = follow(d, s, &drafted, &us, err)))
		return rc;
	d->step++;
	atomic_fetch_add(&d->shm->stats_drafter.progress, 1);
	atomic_fetch_add(&d->shm->stats_drafter.steps, 1);
	atomic_fetch_add(&d->shm->stats_drafter.step_us, us);
	atomic_fetch_add(&d->shm->stats_drafter.draft_us, drafted ? us : 0);
	td_flag_set(&d->shm->drafter, next, &d->shm->bell_target); /* last: the target may take this processor at once */
	return 1;
}
