/*
 * constrain.c: requests whose output must fit a grammar (engine/grammar.h): which drafts are worth verifying, which tokens each row may give, and
 * where the grammar stands after what was committed.
 *
 * Per slot: a checked copy of the grammar and the state after the committed tokens. A row's mask is that of the state after the drafts before it; it is
 * put on the logits before accept, so a draft that the grammar forbids has probability 0 there and is rejected exactly as rejection sampling has it:
 * speculation stays on and stays exact. Rows behind a forbidden draft, or behind an ending id, can never count and are left out of the step; under
 * sampling the forbidden draft itself stays, since what is drawn in its place depends on what the drafter thought of it.
 * Masks are computed while the device works on the forward.
 *
 * The masked distribution can still be empty (all that is allowed has no finite logit): accept then gives a token that does not fit, the commit is
 * refused, and the request ends with an error of its own. So does one whose grammar has so many ways that a mask takes too much work. Host memory is taken when the target is created, never later.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/token_mask.h"
#include "target_worker/internal.h"

struct td__constrained {
	struct td_grammar grammar;
	struct td_gstate state;
	int masked; /* rows of this step that have their mask: a token behind them is not known to fit */
	int32_t draft[TD_DRAFT_MAX];
};

struct td__constrain {
	struct td_token_mask *mask;
	struct td__constrained *slot; /* (slots) */
	uint32_t *line; /* (block_rows, words + 1): see td_ops.mask */
	int words, n_lines;
};

int td__constrain_create(struct td_target *t, int vocab_fd, struct td_error *err)
{
	struct td__constrain *c = calloc(1, sizeof(*c));
	int rc;

	t->constrain = c;
	if (!c)
		return td_error_set(err, TD_E_NOMEM, "target: out of host memory");
	c->words = TD_MASK_WORDS(t->shm->cfg.vocab);
	c->slot = calloc((size_t)t->n_slots, sizeof(*c->slot));
	c->line = calloc((size_t)t->block_rows * (size_t)(c->words + 1), sizeof(*c->line));
	if (!c->slot || !c->line)
		return td_error_set(err, TD_E_NOMEM, "target: out of host memory");
	if ((rc = td_token_mask_create(vocab_fd, c->words, &c->mask, err)))
		return td_error_prefix(err, "target");
	return 0;
}

void td__constrain_destroy(struct td_target *t)
{
	struct td__constrain *c = t->constrain;

	if (!c)
		return;
	td_token_mask_destroy(c->mask);
	free(c->line);
	free(c->slot);
	free(c);
}

static int advance(struct td__constrain *c, struct td__constrained *s, int32_t token)
{
	size_t n;
	const uint8_t *bytes = td_token_mask_bytes(c->mask, token, &n);

	return bytes ? td_gstate_advance(td_token_mask_walk(c->mask), &s->grammar, &s->state, bytes, n) : -1;
}

static int is_stop(const struct td_slot_area *a, int32_t token)
{
	for (int i = 0; i < a->n_stop && i < TD_STOP_IDS_MAX; i++)
		if (a->stop[i] == token)
			return 1;
	return 0;
}

const char *td__constrain_start(struct td_target *t, int slot)
{
	const struct td_slot_area *a = td_shm_slot(t->shm, slot);
	const int32_t *ids = td_shm_ids(t->shm, slot);
	int n = a->grammar_bytes;
	struct td__constrained *s;

	t->slot[slot].constrained = n != 0;
	if (!n)
		return NULL;
	if (n < 0 || n > TD_GRAMMAR_MAX)
		return "the grammar's size is out of range";
	if (!t->constrain)
		return "a grammar came, but not the vocabulary's bytes";
	s = &t->constrain->slot[slot];
	if (td_grammar_open(&s->grammar, td_shm_grammar(t->shm, slot), (size_t)n, NULL) ||
	    td_gstate_start(td_token_mask_walk(t->constrain->mask), &s->grammar, &s->state))
		return "the grammar is broken";
	for (int i = a->n_prompt; i < a->n_tokens; i++)
		if (advance(t->constrain, s, ids[i]))
			return "what was committed before does not fit the grammar";
	return NULL;
}

/* The state after a draft: 1; 0 when it is forbidden, -1 when it ends the answer. */
static int follow(struct td__constrain *c, const struct td_slot_area *a, struct td_gset *set, int32_t token)
{
	struct td_gwalk *w = td_token_mask_walk(c->mask);
	size_t n;
	const uint8_t *bytes = td_token_mask_bytes(c->mask, token, &n);

	if (is_stop(a, token))
		return td_gwalk_may_end(w, *set) ? -1 : 0;
	for (size_t i = 0; i < n && set->n; i++)
		*set = td_gwalk_step(w, *set, bytes[i]);
	return bytes && set->n;
}

int td__constrain_rows(struct td_target *t, int slot, int rows)
{
	struct td_slot_area *a = td_shm_slot(t->shm, slot);
	struct td__constrain *c = t->constrain;
	struct td__constrained *s;
	struct td_gset set;

	if (!t->slot[slot].constrained || rows < 2)
		return rows;
	s = &c->slot[slot];
	/* A failure is the device's, and sticks: the step's own sync tells it. */
	if (t->ops->download(t->dev, s->draft, t->o.exchange.draft[slot].token, sizeof(int32_t) * (size_t)(rows - 1), NULL))
		return rows;
	set = td_gwalk_load(td_token_mask_walk(c->mask), &s->grammar, &s->state);
	for (int i = 0; i + 1 < rows; i++) {
		int fits = follow(c, a, &set, s->draft[i]);

		if (fits < 0 || (fits == 0 && a->sampling.temperature > 0))
			return i + 2;
		if (fits == 0)
			return i + 1;
	}
	return rows;
}

/* 0, or -1: there is no mask for it. */
static int add_line(struct td__constrain *c, const struct td_slot_area *a, struct td_gset set, int row)
{
	const uint32_t *mask = td_token_mask_of(c->mask, set);
	uint32_t *line = c->line + (size_t)c->n_lines * (size_t)(c->words + 1);

	if (!mask)
		return -1;
	c->n_lines++;
	memcpy(line, mask, sizeof(*line) * (size_t)c->words);
	for (int i = 0; i < a->n_stop && i < TD_STOP_IDS_MAX; i++) {
		uint32_t id = (uint32_t)a->stop[i];

		if (id / 32 < (uint32_t)c->words && td_gwalk_may_end(td_token_mask_walk(c->mask), set))
			line[id / 32] |= 1u << id % 32;
	}
	line[c->words] = (uint32_t)row;
	return 0;
}

void td__constrain_masks(struct td_target *t, const struct td_batch *b)
{
	struct td__constrain *c = t->constrain;

	if (!c)
		return;
	c->n_lines = 0;
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *seq = &b->seq[i];
		const struct td_slot_area *a = td_shm_slot(t->shm, seq->slot);
		struct td__constrained *s = &c->slot[seq->slot];
		struct td_gset set;

		if (!t->slot[seq->slot].constrained || t->slot[seq->slot].phase != TD__DECODE)
			continue;
		set = td_gwalk_load(td_token_mask_walk(c->mask), &s->grammar, &s->state);
		s->masked = 0;
		for (int r = 0; r < seq->rows && (r == 0 || follow(c, a, &set, s->draft[r - 1]) > 0); r++) {
			if (add_line(c, a, set, seq->row0 + r))
				break;
			s->masked = r + 1;
			atomic_fetch_add(&t->shm->stats_target.progress, 1); /* masks may take longer than the watchdog waits, but each is bounded */
		}
	}
	if (c->n_lines)
		t->ops->upload(t->dev, t->lines, c->line, sizeof(*c->line) * (size_t)c->n_lines * (size_t)(c->words + 1));
}

void td__constrain_apply(struct td_target *t, struct td_tensor logits)
{
	if (t->constrain && t->constrain->n_lines)
		t->ops->mask(t->dev, logits, t->lines, t->constrain->n_lines);
}

int td__constrain_commit(struct td_target *t, int slot, const int32_t *token, int n)
{
	struct td_slot_area *a = td_shm_slot(t->shm, slot);

	if (!t->slot[slot].constrained)
		return 0;
	for (int i = 0; i < n; i++) {
		struct td__constrained *s = &t->constrain->slot[slot];

		if (i >= s->masked)
			return -1;
		if (is_stop(a, token[i]) && td_gstate_may_end(&s->state))
			return 0;
		if (advance(t->constrain, s, token[i]))
			return -1;
	}
	return 0;
}
