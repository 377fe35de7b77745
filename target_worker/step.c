/*
 * step.c: the two kinds of step: a prefill chunk, and a decode block (verify, plain decoding, or refeeding after a crash).
 *
 * Every step has a number. What the drafter needs of it (which feature rows to append where, who wants drafts) goes into its step record, and
 * setting the flag publishes features and record together. Without a drafter, or for requests without speculation, entries are left out.
 *
 * Recurrent state is committed lazily: a decode block leaves its rows in the ring of td_ops.gdn and the slot's `replay` says how many of them became
 * final; the next block replays those. Prefill rows are final at once. So the state after any sequence of blocks is that of plain decoding, bit for bit.
 */
#include <string.h>

#include "engine/clock.h"
#include "engine/fault.h"
#include "target_worker/internal.h"

enum {
	CHUNK_BESIDE = 512, /* prompt rows of a step between two steps of those who decode */
	EVEN_US = 1000,
};

static int drafter_present(const struct td_target *t)
{
	return atomic_load(&t->shm->drafter_present) != 0;
}

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* One step in the making. */
struct plan {
	struct td_seq seq[TD_SLOTS_MAX];
	struct td_batch batch;
	int rows; /* of its sequences; batch.n_rows may become larger (td_ops.replay) */
	struct td_step *record; /* NULL: nothing for the drafter */
	struct td_tensor features;
	int refeed[TD_SLOTS_MAX]; /* per sequence: its rows are tokens of an earlier life, nothing is accepted */
	uint64_t began; /* us, after the wait for a free feature buffer */
};

/* Numbers the step and waits until the drafter is done with the step whose buffers this one takes over. */
static int step_begin(struct td_target *t, struct plan *p, struct td_error *err)
{
	uint32_t n = t->step + 1;
	int rc = 0;

	memset(p, 0, sizeof(*p));
	p->batch.seq = p->seq;
	if (drafter_present(t)) {
		if (n > TD_FEATURE_BUFS) {
			atomic_store(&t->shm->stats_target.busy, 0); /* the watchdog shall look at the drafter meanwhile */
			rc = td_flag_wait(&t->shm->drafter, td_step_value(t->epoch, n - TD_FEATURE_BUFS), &t->shm->bell_target, -1, err);
			atomic_store(&t->shm->stats_target.busy, 1);
			if (rc)
				return rc;
		}
		p->record = &t->shm->step[n % TD_STEPS];
		p->record->epoch = t->epoch;
		p->record->number = n;
		p->record->n_entries = 0;
		p->record->n_rows = 0;
		p->features = (struct td_tensor){t->o.exchange.features[n % TD_FEATURE_BUFS], t->ops->act, t->shm->cfg.feature_rows, t->shm->cfg.features,
						 t->shm->cfg.features, 0};
	}
	t->step = n;
	p->began = td_now_us();
	return 0;
}

static void plan_add(struct plan *p, int slot, int rows, int pos0, int replay, int commit)
{
	struct td_seq *seq = &p->seq[p->batch.n_seq++];

	*seq = (struct td_seq){.slot = slot, .row0 = p->batch.n_rows, .rows = rows, .pos0 = pos0, .replay = replay, .commit = commit};
	p->batch.n_rows = p->rows += rows;
	if (rows > p->batch.max_rows)
		p->batch.max_rows = rows;
	if (pos0 + rows > p->batch.max_ctx)
		p->batch.max_ctx = pos0 + rows;
}

/* Tells the drafter of `rows` rows of sequence i that became final; with the first of a request, also the slot's pages. NULL: nobody wants to know. */
static struct td_step_entry *record_add(struct td_target *t, struct plan *p, int i, int rows)
{
	const struct td_seq *seq = &p->seq[i];
	struct td__slot *s = &t->slot[seq->slot];
	struct td_step_entry *e;

	if (!p->record || s->k <= 0)
		return NULL;
	e = &p->record->entry[p->record->n_entries++];
	*e = (struct td_step_entry){.request = s->request, .slot = seq->slot, .row0 = seq->row0, .rows = rows, .pos0 = seq->pos0, .begins = !s->begun};
	if (e->begins)
		memcpy(td_shm_table(t->shm, t->step, seq->slot), td__pages_row(t->pages, seq->slot), sizeof(int32_t) * (size_t)t->max_pages);
	s->begun = 1;
	if (seq->row0 + rows > p->record->n_rows)
		p->record->n_rows = seq->row0 + rows;
	return e;
}

/* Of k drafts, those that pay while so many requests are decoded together. What tandemd wrote is compared before it is used. */
static int narrowed(const struct td_target *t, int k)
{
	int n = 0, width;

	for (int i = 0; i < t->n_slots; i++)
		n += t->slot[i].phase == TD__DECODE && !t->slot[i].paused;
	width = atomic_load_explicit(&t->shm->width[n], memory_order_relaxed) - 1;
	return width >= 0 && width < k ? width : k;
}

/* After these rows the drafter shall draft: fewer at the context's end, where a whole block has no positions left. */
static void record_draft(struct td_target *t, struct td_step_entry *e)
{
	struct td__slot *s;
	int left;

	if (!e)
		return;
	s = &t->slot[e->slot];
	left = t->shm->cfg.context - (e->pos0 + e->rows) - 1;
	e->draft = s->k_may_fall ? narrowed(t, s->k) : s->k;
	e->draft = e->draft < left ? e->draft : left;
	s->drafts = e->draft;
	s->draft_step = e->draft ? t->step : 0;
}

/* Sequence i's share of us, by rows; the shares of all add up to us. */
static uint64_t share(const struct plan *p, int i, uint64_t us)
{
	const struct td_seq *s = &p->seq[i];
	uint64_t rows = (uint64_t)p->rows;

	return us * (uint64_t)(s->row0 + s->rows) / rows - us * (uint64_t)s->row0 / rows;
}

/* What a step is charged as. */
static uint64_t cost_us(const struct td_target *t, const struct plan *p)
{
	return t->o.even ? EVEN_US : td_now_us() - p->began;
}

static void step_end(struct td_target *t, struct plan *p)
{
	uint64_t ended = td_now_us(); /* before the drafter is woken: on a busy machine it may run at once, in this one's place */

	if (p->record)
		td_flag_set(&t->shm->target, td_step_value(t->epoch, t->step), &t->shm->bell_drafter);
	td__target_notify(t);
	add(&t->shm->stats_target.progress, 1);
	t->ended_us = ended;
}

/* ---- prefill ------------------------------------------------------------------------------------------------------------------------ */

/* Slots with prompt rows: those with the least turn first, then by arrival. Returns how many. */
static int prefill_order(struct td_target *t, int slot[TD_SLOTS_MAX])
{
	uint64_t turn[TD_SLOTS_MAX];
	int n = 0;

	for (int i = 0; i < t->n_slots; i++) {
		const struct td__slot *s = &t->slot[i];
		uint64_t mine = atomic_load_explicit(&td_shm_slot(t->shm, i)->turn, memory_order_relaxed);
		int at = n;

		if (s->phase != TD__PREFILL || s->paused)
			continue;
		for (; at > 0 && (mine < turn[at - 1] || (mine == turn[at - 1] && s->order < t->slot[slot[at - 1]].order)); at--) {
			turn[at] = turn[at - 1];
			slot[at] = slot[at - 1];
		}
		turn[at] = mine;
		slot[at] = i;
		n++;
	}
	return n;
}

/* Up to a chunk of prompt rows in all, fewer while somebody waits for the next token; a slot's part ends at a multiple of the unit or at its prompt's
 * end. How a prompt is cut changes none of its bits. */
static void prefill_plan(struct td_target *t, struct plan *p)
{
	int room = t->shm->cfg.chunk, unit = td__prefill_unit(t), order[TD_SLOTS_MAX], n = prefill_order(t, order);

	if (room > CHUNK_BESIDE && td__target_decode_ready(t))
		room = CHUNK_BESIDE;
	for (int i = 0; i < n && room > 0; i++) {
		int slot = order[i], rows;
		struct td__slot *best = &t->slot[slot];

		if (room < unit && best->n_prompt - best->fed > room) /* no room for a unit of it, but perhaps for the end of another's prompt */
			continue;
		td__cache_begin(t, slot);
		rows = best->n_prompt - best->fed;
		if (rows > room)
			rows = (best->fed + room) / unit * unit - best->fed;
		memcpy(t->ids_host + p->batch.n_rows, td_shm_ids(t->shm, slot) + best->fed, sizeof(int32_t) * (size_t)rows);
		plan_add(p, slot, rows, best->fed, 0, unit == TD__UNIT && best->fed + rows == best->n_prompt ? TD_COMMIT_END : TD_COMMIT_ROWS);
		room -= rows;
	}
}

/* Samples the first token of each sequence of the plan that ended its prompt and has none yet. */
static int prefill_sample(struct td_target *t, struct plan *p, const int *ended, int n_ended, struct td_error *err)
{
	struct td_seq last[TD_SLOTS_MAX], pick[TD_SLOTS_MAX];
	struct td_batch b = {.n_seq = n_ended, .n_rows = n_ended, .max_rows = 1, .max_ctx = p->batch.max_ctx, .seq = last};

	for (int i = 0; i < n_ended; i++) {
		const struct td_seq *s = &p->seq[ended[i]];

		last[i] = (struct td_seq){.slot = s->slot, .row0 = s->row0 + s->rows - 1, .rows = 1, .pos0 = s->pos0 + s->rows - 1};
		pick[i] = last[i];
		pick[i].row0 = i;
	}
	t->ops->batch_set(t->dev, &b);
	t->ops->rows_last(t->dev, &b, t->x, td_rows(t->picked, 0, n_ended));
	struct td_tensor logits = td__target_head(t, td_rows(t->picked, 0, n_ended));

	b.seq = pick;
	td__constrain_masks(t, &b);
	td__constrain_apply(t, logits);
	t->ops->batch_set(t->dev, &b);
	t->ops->accept(t->dev, &b, logits, t->o.vocab_real, t->sampling, t->o.exchange.draft, t->o.exchange.counts, t->o.exchange.anchor, t->verdict);
	return t->ops->sync(t->dev, err);
}

/* Sequence i's part in the stages. A checkpoint that was given away again within this step is its last owner's alone. */
static void stages_add(struct plan *p, struct td__stages *st, int i, const struct td__keep *keep, int n_keep)
{
	const struct td_seq *whole = &p->seq[i];
	int at = 0;

	for (int k = 0; k < n_keep; k++) {
		for (int other = st->n_kept - 1; other >= 0; other--)
			if (st->kept[other].state == keep[k].state)
				st->kept[other] = st->kept[--st->n_kept];
		st->kept[st->n_kept++] = (struct td__kept){k, whole->slot, keep[k].state};
	}
	for (int k = 0; at < whole->rows; k++) {
		struct td_batch *b = &st->batch[k];
		struct td_seq *s = &st->seq[k][b->n_seq++];
		int end = k < n_keep ? keep[k].tokens - whole->pos0 : whole->rows;

		*s = *whole;
		s->row0 += at;
		s->pos0 += at;
		s->rows = end - at;
		if (end < whole->rows)
			s->commit = TD_COMMIT_ROWS;
		if (s->rows > b->max_rows)
			b->max_rows = s->rows;
		if (s->pos0 + s->rows > b->max_ctx)
			b->max_ctx = s->pos0 + s->rows;
		st->n = st->n > k + 1 ? st->n : k + 1;
		at = end;
	}
}

/* What follows from the plan: a slot that has all its prompt rows in the model will sample next, or feed what an earlier life committed; states to be
 * kept. The rows will be computed before anything that is asked for from here on. Only after the whole plan, which looks at what the cache has. */
static void prefill_progress(struct td_target *t, struct plan *p, struct td__stages *st, int *ended, int *n_ended)
{
	*st = (struct td__stages){0};
	for (int i = 0; i < p->batch.n_seq; i++) {
		const struct td_seq *seq = &p->seq[i];
		struct td__slot *s = &t->slot[seq->slot];
		struct td__keep keep[TD__KEEPS];

		s->fed += seq->rows;
		s->replay = 0;
		stages_add(p, st, i, keep, td__cache_grow(t, seq->slot, seq->pos0, keep));
		if (s->fed < s->n_prompt)
			continue;
		if (s->n_tokens == s->n_prompt) {
			s->phase = TD__DECODE;
			ended[(*n_ended)++] = i;
		} else {
			s->phase = s->fed == s->n_tokens - 1 ? TD__DECODE : TD__REFEED;
		}
	}
	for (int i = 0; i < st->n; i++) {
		st->batch[i].seq = st->seq[i];
		st->batch[i].n_rows = p->batch.n_rows;
		if (st->n > 1)
			t->ops->batch_set(t->dev, &st->batch[i]);
	}
	t->ops->batch_set(t->dev, &p->batch); /* last: the products are those of its rows */
}

/* Records, and first tokens. The drafter is told of the rows of a request that ends with its first token, too: others may use its pages. */
static void prefill_tell(struct td_target *t, struct plan *p, const int *ended, int n_ended, uint64_t us)
{
	struct td_step_entry *entry[TD_SLOTS_MAX];
	const struct td__cost cost = {.step_us = us}; /* the rows' share is in their own record */

	for (int i = 0; i < p->batch.n_seq; i++) {
		const struct td_seq *seq = &p->seq[i];
		const struct td__slot *s = &t->slot[seq->slot];
		struct td_record rec = {.kind = TD_REC_PREFILL, .slot = (uint16_t)seq->slot, .request = s->request, .n = 1, .a = (uint32_t)s->fed,
					.b = (uint32_t)s->n_prompt, .us_charge = (uint32_t)share(p, i, us)};

		td__target_push(t, &rec);
		entry[i] = record_add(t, p, i, seq->rows);
	}
	for (int i = 0; i < n_ended; i++)
		td__target_commit(t, p->seq[ended[i]].slot, &t->verdict[i], -1, &cost);
	for (int i = 0; i < p->batch.n_seq; i++)
		if (t->slot[p->seq[i].slot].phase == TD__DECODE)
			record_draft(t, entry[i]);
}

int td__target_prefill(struct td_target *t, struct td_error *err)
{
	struct td__stages stages;
	struct plan p;
	int ended[TD_SLOTS_MAX], n_ended = 0, n_rows, rc;
	int pending = 0;

	for (int i = 0; i < t->n_slots; i++)
		pending |= t->slot[i].phase == TD__PREFILL && !t->slot[i].paused;
	if (!pending)
		return 0;
	if ((rc = step_begin(t, &p, err)))
		return rc;
	prefill_plan(t, &p);
	n_rows = p.batch.n_rows;
	t->ops->upload(t->dev, t->ids, t->ids_host, sizeof(int32_t) * (size_t)n_rows);
	prefill_progress(t, &p, &stages, ended, &n_ended);
	td_fault_spot("target.step");
	td_fault_gpu("target.gpu.fault", t->ops, t->dev);
	td__target_forward(t, &p.batch, &stages, p.features);
	if (n_ended && (rc = prefill_sample(t, &p, ended, n_ended, err)))
		return rc;
	if ((rc = t->ops->sync(t->dev, err)))
		return rc;
	uint64_t us = cost_us(t, &p);

	prefill_tell(t, &p, ended, n_ended, us);
	add(&t->shm->stats_target.prefill_tokens, (uint64_t)n_rows);
	add(&t->shm->stats_target.prefill_us, us);
	step_end(t, &p);
	return 1;
}

/* ---- decode ------------------------------------------------------------------------------------------------------------------------- */

int td__target_decode_ready(const struct td_target *t)
{
	uint64_t drafter = atomic_load(&t->shm->drafter.value);
	int any = 0;

	for (int i = 0; i < t->n_slots; i++) {
		const struct td__slot *s = &t->slot[i];

		if (s->paused || (s->phase != TD__DECODE && s->phase != TD__REFEED))
			continue;
		any = 1;
		if (s->draft_step && drafter < td_step_value(t->epoch, s->draft_step))
			return -1;
	}
	return any;
}

/* Rows of a slot's block: anchor + drafts, not past what may be committed; or the next committed tokens to feed. */
static void decode_plan(struct td_target *t, struct plan *p)
{
	for (int i = 0; i < t->n_slots; i++) {
		const struct td__slot *s = &t->slot[i];
		int rows;

		if (s->paused || (s->phase != TD__DECODE && s->phase != TD__REFEED))
			continue;
		if (s->phase == TD__REFEED) {
			rows = s->n_tokens - 1 - s->fed;
			if (rows > TD_BLOCK_MAX)
				rows = TD_BLOCK_MAX;
		} else {
			int room = s->max_total - s->total; /* tokens that may still be committed */

			rows = td__constrain_rows(t, i, 1 + (s->drafts < room ? s->drafts : room));
		}
		p->refeed[p->batch.n_seq] = s->phase == TD__REFEED;
		plan_add(p, i, rows, s->fed, s->replay, 0);
	}
}

static void refeed_progress(struct td_target *t, struct plan *p, int i, uint64_t us)
{
	const struct td_seq *seq = &p->seq[i];
	struct td__slot *s = &t->slot[seq->slot];
	struct td_step_entry *e = record_add(t, p, i, seq->rows);

	s->owed_us += us;
	s->fed += seq->rows;
	s->replay = seq->rows;
	if (s->fed == s->n_tokens - 1)
		s->phase = TD__DECODE;
	if (s->phase == TD__DECODE)
		record_draft(t, e);
}

static void decode_progress(struct td_target *t, struct plan *p, int i, const struct td_verdict *v, const struct td__cost *cost)
{
	const struct td_seq *seq = &p->seq[i];
	struct td__slot *s = &t->slot[seq->slot];
	int n;

	s->draft_step = 0;
	s->drafts = 0;
	n = td__target_commit(t, seq->slot, v, seq->rows - 1, cost);
	if (s->phase == TD__FREE)
		return;
	s->fed += n;
	s->replay = n;
	record_draft(t, record_add(t, p, i, n));
}

/* What became of the step, which took us; and what the drafter worked since the last one, for those who had drafts, by their number. */
static void decode_tell(struct td_target *t, struct plan *p, uint64_t us)
{
	uint64_t worked = atomic_load(&t->shm->stats_drafter.draft_us), drafts = 0, before = 0;
	uint64_t draft_us = t->o.even ? 0 : worked - t->draft_us;
	int v = 0;

	for (int i = 0; i < p->batch.n_seq; i++)
		drafts += p->refeed[i] ? 0 : (uint64_t)p->seq[i].rows - 1;
	for (int i = 0; i < p->batch.n_seq; i++) {
		struct td__cost cost = {.step_us = us, .rows_us = share(p, i, us)};

		if (p->refeed[i]) {
			refeed_progress(t, p, i, cost.rows_us);
			continue;
		}
		if (drafts) {
			uint64_t after = before + (uint64_t)p->seq[i].rows - 1;

			cost.draft_us = draft_us * after / drafts - draft_us * before / drafts;
			before = after;
		}
		decode_progress(t, p, i, &t->verdict[v++], &cost);
	}
	if (drafts)
		t->draft_us = worked;
}

/* Of the device, in a step. */
struct times {
	uint64_t forward, accept;
};

static void accept_batch(struct td_target *t, const struct td_batch *b, struct td_tensor logits)
{
	if (t->o.assume)
		t->ops->assume(t->dev, b, logits, t->o.exchange.draft, t->sampling);
	t->ops->accept(t->dev, b, logits, t->o.vocab_real, t->sampling, t->o.exchange.draft, t->o.exchange.counts, t->o.exchange.anchor, t->verdict);
}

/* From the ids of the blocks, whose drafts lie in the exchange region, to the features. */
static void decode_forward(struct td_target *t, struct plan *p)
{
	t->ops->verify_ids(t->dev, &p->batch, t->o.exchange.anchor, t->o.exchange.draft, t->ids);
	for (int i = 0; i < p->batch.n_seq; i++)
		if (p->refeed[i])
			t->ops->upload(t->dev, t->ids + p->seq[i].row0, td_shm_ids(t->shm, p->seq[i].slot) + p->seq[i].pos0,
				       sizeof(int32_t) * (size_t)p->seq[i].rows);
	td__target_forward(t, &p->batch, NULL, p->features);
}

/* Verdicts of the sequences that are not being refed, packed one after the other in the order of the batch. */
static int decode_accept(struct td_target *t, struct plan *p, struct td_error *err)
{
	struct td_seq seq[TD_SLOTS_MAX];
	struct td_batch b = p->batch;
	struct td_tensor logits;

	b.seq = seq;
	b.n_seq = 0;
	for (int i = 0; i < p->batch.n_seq; i++)
		if (!p->refeed[i])
			seq[b.n_seq++] = p->seq[i];
	if (b.n_seq) {
		logits = td__target_head(t, td_rows(t->x, 0, p->batch.n_rows));
		td__constrain_apply(t, logits);
		t->ops->batch_set(t->dev, &b);
		accept_batch(t, &b, logits);
	}
	return t->ops->sync(t->dev, err);
}

/*
 * The whole step in one go, as it is kept for the next time. Refed ids come from the host, and masks are made there while the device works on the
 * forward: such steps are cut in two behind it.
 */
static int decode_run(struct td_target *t, struct plan *p, struct times *us, struct td_error *err)
{
	int cut = 0, refed = 0, rc;
	struct td_replay step = {.who = t, .ctx_max = t->shm->cfg.context, .n = 1, .batch = {&p->batch}};

	for (int i = 0; i < p->batch.n_seq; i++) {
		refed |= p->refeed[i];
		cut |= p->refeed[i] || t->slot[p->seq[i].slot].constrained;
	}
	if (!refed && !t->o.probe)
		step.what = 1 + (unsigned)cut + 2 * (p->features.data ? 1 + t->step % TD_FEATURE_BUFS : 0);
	if (!t->ops->replay(t->dev, &step)) {
		decode_forward(t, p);
		t->ops->mark(t->dev, TD_MARK_HEAD);
		if (!cut)
			accept_batch(t, &p->batch, td__target_head(t, td_rows(t->x, 0, p->batch.n_rows)));
		t->ops->replay_end(t->dev);
	}
	if (cut)
		td__constrain_masks(t, &p->batch);
	if ((rc = t->ops->replay_wait(t->dev, err)))
		return rc;
	if (!cut) {
		us->forward = (uint64_t)t->ops->elapsed_us(t->dev, TD_MARK_BEGIN, TD_MARK_HEAD);
		us->accept = (uint64_t)t->ops->elapsed_us(t->dev, TD_MARK_HEAD, TD_MARK_END);
		return 0;
	}
	us->forward = (uint64_t)t->ops->elapsed_us(t->dev, TD_MARK_BEGIN, TD_MARK_END);
	us->accept = td_now_us();
	rc = decode_accept(t, p, err);
	us->accept = td_now_us() - us->accept;
	return rc;
}

int td__target_decode(struct td_target *t, struct td_error *err)
{
	struct plan p;
	struct times us = {0};
	uint64_t ended = t->ended_us, whole;
	int rc;

	if ((rc = step_begin(t, &p, err)))
		return rc;
	decode_plan(t, &p);
	td_fault_spot("target.step");
	td_fault_gpu("target.gpu.fault", t->ops, t->dev);
	if ((rc = decode_run(t, &p, &us, err)))
		return rc;
	decode_tell(t, &p, cost_us(t, &p));
	step_end(t, &p);
	add(&t->shm->stats_target.steps, 1);
	add(&t->shm->stats_target.step_us, us.forward);
	add(&t->shm->stats_target.commit_us, us.accept);
	whole = t->ended_us - ended;
	if (p.batch.max_rows > 1 && ended && whole > us.forward + us.accept) /* the hand-over to the drafter, its work, the hand-over back */
		add(&t->shm->stats_target.wait_us, whole - us.forward - us.accept);
	return 1;
}

int td__target_warm(struct td_target *t, struct td_error *err)
{
	int room = t->rows_max < t->shm->cfg.context ? t->rows_max : t->shm->cfg.context, unit = td__prefill_unit(t), rows = room < unit ? room : unit;
	const struct td_sampling greedy = {.top_p = 1, .repetition = 1, .logprobs = -1};
	struct td_tensor none = {0};
	struct plan p = {0};

	t->ops->upload(t->dev, t->sampling, &greedy, sizeof(greedy));
	p.batch.seq = p.seq;
	plan_add(&p, 0, rows, 0, 0, 1);
	t->ops->batch_set(t->dev, &p.batch);
	td__target_forward(t, &p.batch, NULL, none);
	p = (struct plan){0};
	p.batch.seq = p.seq;
	plan_add(&p, 0, TD_BLOCK_MAX, 0, 0, 0);
	t->ops->batch_set(t->dev, &p.batch);
	td__target_forward(t, &p.batch, NULL, none);
	t->ops->accept(t->dev, &p.batch, td__target_head(t, td_rows(t->x, 0, TD_BLOCK_MAX)), t->o.vocab_real, t->sampling, t->o.exchange.draft,
		       t->o.exchange.counts, t->o.exchange.anchor, t->verdict);
	t->ops->mask(t->dev, td_rows(t->logits, 0, 1), t->lines, 1);
	return t->ops->sync(t->dev, err);
}
