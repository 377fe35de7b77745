/*
 * cache.c: the prefix cache at work: what a request takes from it when it starts, and what its prefill leaves there.
 *
 * Only prompt rows are kept, in whole units (td__prefill_unit), for these have the same bits in every prompt that begins alike: decoded rows go another
 * numeric way, and so does the rest of a prompt after its last unit. Recurrent state can't be cut to a length as pages can, so it is copied
 * aside at two edges of a prompt: the last one, where the next turn of a conversation will begin, and the one up to which the tree knew the pages
 * without a state, which is where prompts with a common beginning part. A step that goes beyond such an edge takes its recurrent layers in stages.
 * Checkpoints are further rows of the state tensors, after the slots' (engine/memplan.h). Copies run in the order of the device's operations, so a
 * checkpoint may be written over as soon as its copy was asked for.
 *
 * A request looks twice: when it starts, so that the pages it will use are not evicted for its own sake, and when its first rows are planned, since a
 * neighbour with the same beginning may have come further meanwhile.
 */
#include <sys/random.h>

#include "engine/clock.h"
#include "target_worker/internal.h"

int td__prefill_unit(const struct td_target *t)
{
	return t->shm->cfg.chunk < TD__UNIT ? TD__UNIT_SMALL : TD__UNIT;
}

static void tell(struct td_target *t)
{
	struct td_worker_stats *st = &t->shm->stats_target;

	atomic_store_explicit(&st->prefix_pages, (uint64_t)td__pages_idle(t->pages), memory_order_relaxed);
	atomic_store_explicit(&st->prefix_states, (uint64_t)td__prefix_states(t->prefix), memory_order_relaxed);
	atomic_store_explicit(&st->prefix_evicted, t->evicted_before + td__prefix_evicted(t->prefix), memory_order_relaxed);
}

int td__cache_create(struct td_target *t, struct td_error *err)
{
	uint64_t key = td_now_us();

	if (!t->o.pool.prefix_states)
		return 0;
	if (getrandom(&key, sizeof(key), GRND_NONBLOCK) < 0)
		key *= 0x9e3779b97f4a7c15u; /* early at boot: the time has to do */
	t->prefix = td__prefix_create(t->pages, t->o.pool.kv_pages, td__prefill_unit(t), t->o.pool.prefix_states, key);
	if (!t->prefix)
		return td_error_set(err, TD_E_NOMEM, "target: out of host memory for the prefix cache (lower engine.kv_tokens, or set engine.prefix_cache = off)");
	t->evicted_before = atomic_load(&t->shm->stats_target.prefix_evicted); /* a predecessor's */
	atomic_store(&t->shm->stats_target.prefix_states_max, (uint64_t)t->o.pool.prefix_states);
	tell(t);
	return 0;
}

void td__cache_clear(struct td_target *t)
{
	if (!t->prefix)
		return;
	td__prefix_clear(t->prefix);
	tell(t);
}

void td__cache_copy(struct td_target *t, int layer, int from, int to)
{
	const struct td_target_config *c = &t->w->cfg;
	int rows = c->v_heads, cols = c->k_dim * c->v_dim, channels = 2 * c->k_heads * c->k_dim + c->v_heads * c->v_dim;
	struct td_tensor s = {t->gdn[layer].s, TD_F32, rows, cols, cols, 0};
	struct td_tensor tail = {t->gdn[layer].tail, t->ops->act, TD_CONV_TAIL, channels, channels, 0};

	t->ops->copy(t->dev, td_rows(s, from * rows, rows), td_rows(s, to * rows, rows));
	t->ops->copy(t->dev, td_rows(tail, from * TD_CONV_TAIL, TD_CONV_TAIL), td_rows(tail, to * TD_CONV_TAIL, TD_CONV_TAIL));
}

/* Finds what is known of the slot's prompt; the last prompt row is always computed, for its logits. */
static void look(struct td_target *t, int slot)
{
	struct td__slot *s = &t->slot[slot];
	int unit = td__prefill_unit(t), most = (s->n_prompt - 1) / unit;
	struct td__match m;

	td__prefix_find(t->prefix, s->tenant, td_shm_ids(t->shm, slot), most, s->k > 0, &m);
	s->last_edge = most * unit;
	s->branch_edge = m.known < most ? m.known * unit : 0;
	if (m.units * unit <= s->fed)
		return;
	td__pages_share(t->pages, slot, m.page, m.units * unit / TD_PAGE);
	for (int i = 0; i < t->w->cfg.layers; i++)
		if (!t->w->cfg.full_attention[i])
			td__cache_copy(t, i, t->n_slots + m.state, slot);
	s->fed = m.units * unit;
	s->place = s->began_at = m.at;
}

void td__cache_start(struct td_target *t, int slot)
{
	struct td__slot *s = &t->slot[slot];
	const struct td_slot_area *a = td_shm_slot(t->shm, slot);

	s->place = s->began_at = TD__ROOT;
	s->tenant = a->tenant;
	s->cache = t->prefix && a->cache == 1 && s->n_prompt > td__prefill_unit(t);
	if (s->cache)
		look(t, slot);
}

void td__cache_begin(struct td_target *t, int slot)
{
	struct td__slot *s = &t->slot[slot];
	struct td_record rec = {.kind = TD_REC_PREFILL, .slot = (uint16_t)slot, .request = s->request, .b = (uint32_t)s->n_prompt};
	struct td_worker_stats *st = &t->shm->stats_target;
	int before = s->fed;

	if (s->looked || !s->cache)
		return;
	s->looked = 1;
	look(t, slot);
	if (s->fed > before)
		td__target_table(t, slot);
	atomic_fetch_add_explicit(&st->prefix_lookups, 1, memory_order_relaxed);
	if (!s->fed)
		return;
	atomic_fetch_add_explicit(&st->prefix_hits, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&st->prefix_hit_tokens, (uint64_t)s->fed, memory_order_relaxed);
	rec.a = (uint32_t)s->fed;
	td__target_push(t, &rec);
	tell(t);
}

int td__cache_room(struct td_target *t, int n)
{
	int rc = t->prefix ? td__prefix_room(t->prefix, n) : td__pages_free(t->pages) < n ? -1 : 0;

	if (t->prefix)
		tell(t);
	return rc;
}

/* At an edge: 1 when a state is to be kept there. */
static int checkpoint(struct td_target *t, struct td__slot *s, int tokens, struct td__keep *keep)
{
	*keep = (struct td__keep){tokens, td__prefix_checkpoint(t->prefix, s->place)};
	if (tokens == s->last_edge)
		td__prefix_passed(t->prefix, s->began_at);
	return keep->state >= 0;
}

int td__cache_grow(struct td_target *t, int slot, int from, struct td__keep keep[TD__KEEPS])
{
	struct td__slot *s = &t->slot[slot];
	const int32_t *ids = td_shm_ids(t->shm, slot), *row = td__pages_row(t->pages, slot);
	int unit = td__prefill_unit(t), n = 0;

	if (!s->cache)
		return 0;
	for (int at = from; at + unit <= s->fed && s->cache; at += unit) {
		s->cache = td__prefix_add(t->prefix, &s->place, s->tenant, ids + at, row + at / TD_PAGE, s->k > 0);
		if (s->cache && (at + unit == s->branch_edge || at + unit == s->last_edge))
			n += checkpoint(t, s, at + unit, &keep[n]);
	}
	tell(t);
	return n;
}
