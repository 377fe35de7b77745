/*
 * target.c: the target's memory, its slots, and what to do next.
 *
 * td_target_work: epoch -> commands -> one step. Prefill and decoding alternate when both wait, so that neither starves the other; while the drafter
 * works on the running requests, prefill goes on. All ready requests share one decode step.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/log.h"
#include "target_worker/internal.h"

/* ---- memory ------------------------------------------------------------------------------------------------------------------------- */

size_t td_target_cache_bytes(const struct td_target_options *o)
{
	struct td_cache_bytes b = td_target_cache_layout(&o->weights->cfg, &o->shm->cfg, &o->pool, o->ops->act, NULL, NULL, NULL);

	return b.kv + b.state;
}

/* Every buffer comes from the table of engine/memplan.h: what is not there is not planned for. */
static int take_buffers(struct td_target *t, struct td_error *err)
{
	struct td_tensor *b = t->buffer;
	int rc;

	td_target_buffers(&t->w->cfg, &t->shm->cfg, t->ops->act, b);
	if ((rc = td_buffers_take("target", t->ops, t->dev, t->n_slots, b, TD_TARGET_BUFFERS, err)))
		return rc;
	t->x = b[TD_TB_X];
	t->norm = b[TD_TB_NORM];
	t->wide = b[TD_TB_WIDE];
	t->ba = b[TD_TB_BA];
	t->mixed = b[TD_TB_MIXED];
	t->gate_up = td_cols(b[TD_TB_WIDE], 0, 2 * t->w->cfg.intermediate);
	t->inner = td_cols(b[TD_TB_MIXED], 0, t->w->cfg.intermediate);
	t->picked = b[TD_TB_PICKED];
	t->picked_norm = b[TD_TB_PICKED_NORM];
	t->logits = b[TD_TB_LOGITS];
	t->table = b[TD_TB_TABLE].data;
	t->ids = b[TD_TB_IDS].data;
	t->sampling = b[TD_TB_SAMPLING].data;
	t->lines = b[TD_TB_MASKS].data;
	return 0;
}

static int take_cache(struct td_target *t, struct td_error *err)
{
	int layers = t->w->cfg.layers;

	t->kv = calloc((size_t)layers, sizeof(*t->kv));
	t->gdn = calloc((size_t)layers, sizeof(*t->gdn));
	t->pages = td__pages_create(t->o.pool.kv_pages, t->n_slots, t->max_pages);
	t->ids_host = calloc((size_t)t->rows_max, sizeof(*t->ids_host));
	if (!t->kv || !t->gdn || !t->pages || !t->ids_host)
		return td_error_set(err, TD_E_NOMEM, "target: out of host memory");
	t->verdict = t->ops->host_alloc(t->dev, sizeof(*t->verdict) * (size_t)t->n_slots, err);
	if (!t->verdict)
		return td_error_prefix(err, "target: verdicts of %d slots", t->n_slots);
	t->cache = t->ops->alloc(t->dev, td_target_cache_bytes(&t->o), err);
	if (!t->cache)
		return td_error_prefix(err, "target: KV cache of %d pages, state of %d slots and %d checkpoints (lower engine.slots or engine.context)",
				       t->o.pool.kv_pages, t->n_slots, t->o.pool.prefix_states);
	td_target_cache_layout(&t->w->cfg, &t->shm->cfg, &t->o.pool, t->ops->act, t->cache, t->kv, t->gdn);
	for (int i = 0; i < layers; i++) {
		t->kv[i].table = t->table;
		t->kv[i].max_pages = t->max_pages;
	}
	return td__cache_create(t, err);
}

int td_target_create(const struct td_target_options *opt, struct td_target **out, struct td_error *err)
{
	struct td_target *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return td_error_set(err, TD_E_NOMEM, "target: out of host memory");
	t->o = *opt;
	t->ops = opt->ops;
	t->dev = opt->dev;
	t->w = opt->weights;
	t->shm = opt->shm;
	t->n_slots = opt->shm->cfg.slots;
	t->max_pages = opt->shm->cfg.context / TD_PAGE;
	t->block_rows = t->n_slots * TD_BLOCK_MAX;
	t->rows_max = opt->shm->cfg.chunk > t->block_rows ? opt->shm->cfg.chunk : t->block_rows;
	t->epoch = atomic_load(&opt->shm->epoch);
	t->draft_us = atomic_load(&opt->shm->stats_drafter.draft_us);
	if ((rc = take_buffers(t, err)) || (rc = take_cache(t, err)) || (opt->vocab_fd > 0 && (rc = td__constrain_create(t, opt->vocab_fd, err))) ||
	    (t->ops->lend && (rc = td__target_warm(t, err)))) {
		td_target_destroy(t);
		return rc;
	}
	*out = t;
	return 0;
}

void td_target_destroy(struct td_target *t)
{
	if (!t)
		return;
	td_buffers_free(t->ops, t->dev, t->buffer, TD_TARGET_BUFFERS);
	t->ops->free(t->dev, t->cache);
	td__constrain_destroy(t);
	free(t->ids_host);
	t->ops->host_free(t->dev, t->verdict);
	td__prefix_destroy(t->prefix);
	td__pages_destroy(t->pages);
	free(t->gdn);
	free(t->kv);
	free(t);
}

/* ---- commands ----------------------------------------------------------------------------------------------------------------------- */

static void zero_state(struct td_target *t, int slot)
{
	const struct td_target_config *c = &t->w->cfg;
	size_t act = td_dtype_size(t->ops->act), state = (size_t)c->v_heads * (size_t)c->k_dim * (size_t)c->v_dim * sizeof(float);
	size_t tail = TD_CONV_TAIL * (2 * (size_t)c->k_heads * (size_t)c->k_dim + (size_t)c->v_heads * (size_t)c->v_dim) * act;

	for (int i = 0; i < c->layers; i++) {
		if (c->full_attention[i])
			continue;
		t->ops->zero(t->dev, (char *)t->gdn[i].s + (size_t)slot * state, state);
		t->ops->zero(t->dev, (char *)t->gdn[i].tail + (size_t)slot * tail, tail);
	}
}

/* Penalties look at the prompt, and at output tokens of an earlier life. Uses the ids buffer, free between steps. */
static void count_tokens(struct td_target *t, int slot, const int32_t *ids, int n_prompt, int n_tokens)
{
	uint16_t *counts = t->o.exchange.counts + (size_t)slot * (size_t)t->shm->cfg.vocab;

	t->ops->upload(t->dev, t->ids, ids, sizeof(int32_t) * (size_t)n_tokens);
	t->ops->counts_reset(t->dev, counts, t->shm->cfg.vocab, t->ids, n_prompt);
	if (n_tokens > n_prompt)
		t->ops->counts_add(t->dev, counts, t->ids + n_prompt, n_tokens - n_prompt);
}

/* What tandemd wrote is checked again here: a worker must not index by a value that it did not check. */
static const char *start_refusal(const struct td_target *t, const struct td_slot_area *a, const int32_t *ids)
{
	if (a->n_prompt < 1 || a->n_tokens < a->n_prompt || a->max_total <= a->n_tokens || a->max_total > t->shm->cfg.context)
		return "token counts out of range";
	if (a->k < 0 || a->k > TD_DRAFT_MAX || a->n_stop < 0 || a->n_stop > TD_STOP_IDS_MAX || a->sampling.n_bias < 0 || a->sampling.n_bias > TD_BIAS_MAX)
		return "settings out of range";
	for (int i = 0; i < a->n_tokens; i++)
		if (ids[i] < 0 || ids[i] >= t->shm->cfg.vocab)
			return "token id out of range";
	return NULL;
}

void td__target_table(struct td_target *t, int slot)
{
	t->ops->upload(t->dev, t->table + (size_t)slot * (size_t)t->max_pages, td__pages_row(t->pages, slot), sizeof(int32_t) * (size_t)t->max_pages);
}

/* What a prefix in the cache does not give: pages for all tokens that the request may come to have, a state that is zero. */
static const char *start_memory(struct td_target *t, int slot)
{
	struct td__slot *s = &t->slot[slot];
	int more;

	td__cache_start(t, slot);
	more = (s->max_total + TD_PAGE - 1) / TD_PAGE - td__pages_held(t->pages, slot);
	if (td__cache_room(t, more) || td__pages_take(t->pages, slot, more))
		return "not enough free KV pages";
	td__target_table(t, slot);
	if (!s->fed)
		zero_state(t, slot);
	return NULL;
}

static void start(struct td_target *t, const struct td_record *rec)
{
	int slot = rec->slot;
	struct td__slot *s = &t->slot[slot];
	struct td_slot_area *a = td_shm_slot(t->shm, slot);
	const int32_t *ids = td_shm_ids(t->shm, slot);
	const char *refusal;

	if (s->phase != TD__FREE || a->request != rec->request || a->epoch != t->epoch) {
		td_log(TD_LOG_ERROR, "request %llu: slot %d is not free or was overwritten; dropped", (unsigned long long)rec->request, slot);
		return;
	}
	*s = (struct td__slot){.phase = TD__PREFILL, .request = rec->request, .order = ++t->arrivals};
	refusal = start_refusal(t, a, ids);
	if (!refusal)
		refusal = td__constrain_start(t, slot);
	if (!refusal) {
		s->n_tokens = s->total = a->n_tokens;
		s->n_prompt = a->n_prompt;
		s->max_total = a->max_total;
		s->k = atomic_load(&t->shm->drafter_present) ? a->k : 0;
		s->k_may_fall = a->k_may_fall;
		refusal = start_memory(t, slot);
	}
	if (refusal) {
		td_log(TD_LOG_ERROR, "request %llu: %s; refused", (unsigned long long)rec->request, refusal);
		td__target_end(t, slot, TD_FIN_ERROR);
		return;
	}
	t->ops->upload(t->dev, t->sampling + slot, &a->sampling, sizeof(a->sampling));
	t->ops->upload(t->dev, t->o.exchange.anchor + slot, ids + a->n_tokens - 1, sizeof(int32_t)); /* of a refeed; a prefill's sample replaces it */
	count_tokens(t, slot, ids, a->n_prompt, a->n_tokens);
}

static void command(struct td_target *t, const struct td_record *rec)
{
	struct td__slot *s = &t->slot[rec->slot];

	if (rec->epoch != t->epoch || rec->slot >= t->n_slots)
		return;
	if (rec->kind == TD_REC_START) {
		start(t, rec);
		return;
	}
	if (s->phase == TD__FREE || s->request != rec->request)
		return;
	switch (rec->kind) {
	case TD_REC_CANCEL:
		td__target_end(t, rec->slot, TD_FIN_CANCELLED);
		break;
	case TD_REC_PAUSE:
		s->paused = 1;
		break;
	case TD_REC_RESUME:
		s->paused = 0;
		break;
	}
}

/* A worker died somewhere: requests are dropped, tandemd submits them again. */
static void reset(struct td_target *t)
{
	struct td_record rec = {.kind = TD_REC_RESET_DONE};

	for (int i = 0; i < t->n_slots; i++)
		td__pages_release(t->pages, i);
	memset(t->slot, 0, sizeof(t->slot));
	td__cache_clear(t);
	t->epoch = atomic_load(&t->shm->epoch);
	t->step = 0;
	t->after_prefill = 0;
	t->draft_us = atomic_load(&t->shm->stats_drafter.draft_us);
	td__target_push(t, &rec);
	td__target_notify(t);
}

int td_target_active(const struct td_target *t)
{
	int n = 0;

	for (int i = 0; i < t->n_slots; i++)
		n += t->slot[i].phase != TD__FREE;
	return n;
}

int td_target_work(struct td_target *t, struct td_error *err)
{
	struct td_record rec;
	int did = 0, ready, rc = 0;

	if (atomic_load(&t->shm->epoch) != t->epoch) {
		reset(t);
		return 1;
	}
	while (td_ring_pop(&t->shm->to_target, &rec)) {
		command(t, &rec);
		did = 1;
	}
	if (did)
		td__target_notify(t);
	ready = td__target_decode_ready(t);
	if (ready != 1 || !t->after_prefill)
		rc = td__target_prefill(t, err);
	if (rc == 1) {
		t->after_prefill = 1;
	} else if (rc == 0 && ready == 1) {
		t->after_prefill = 0;
		rc = td__target_decode(t, err);
	}
	if (rc == TD_E_STALE) /* poisoned while waiting for the drafter: the next call sees the new epoch */
		return 1;
	return rc < 0 ? rc : rc || did;
}
