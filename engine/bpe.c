/*
 * bpe.c: byte-pair merging by lowest rank, leftmost first among equals.
 *
 * Three ways to the same ids. Most pieces are a token whose bytes encode to that very token: one look-up (td__bpe_index proves at load which
 * tokens are so). Short pieces are merged in arrays on the stack. Long ones (a megabyte of one letter is legal input) go through a linked list
 * and a heap of candidate pairs, n log n; a candidate whose symbols have changed since is dropped when it comes up.
 * The tables are read-only after load; the caller owns the working memory and the ids.
 */
#include "engine/bpe.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { SHORT = 48, NO_RANK = -1 };

void td_ids_finish(struct td_ids *ids)
{
	free(ids->id);
	memset(ids, 0, sizeof(*ids));
}

int td__ids_push(struct td_ids *ids, int32_t id, struct td_error *err)
{
	if (ids->n == ids->size) {
		size_t size = ids->size ? 2 * ids->size : 64;
		int32_t *p = realloc(ids->id, size * sizeof(*p));

		if (!p)
			return td_error_set(err, TD_E_NOMEM, "out of memory for %zu token ids", size);
		ids->id = p;
		ids->size = size;
	}
	ids->id[ids->n++] = id;
	return 0;
}

/* ---- tables ------------------------------------------------------------------------------------------------------------------------ */

static uint32_t pair_hash(int32_t left, int32_t right)
{
	uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(h >> 32);
}

static const struct td__merge *merge_find(const struct td__bpe *b, int32_t left, int32_t right)
{
	uint32_t i = pair_hash(left, right) & b->merge_mask;

	for (; b->merge[i].left >= 0; i = (i + 1) & b->merge_mask)
		if (b->merge[i].left == left && b->merge[i].right == right)
			return &b->merge[i];
	return NULL;
}

/* A power of two that leaves at least half of the slots free. */
static uint32_t slots(size_t n)
{
	uint32_t size = 16;

	while (size < 2 * n)
		size *= 2;
	return size;
}

int td__bpe_reserve(struct td__bpe *b, size_t n_merges, struct td_error *err)
{
	uint32_t size = slots(n_merges), i;

	b->merge = malloc(size * sizeof(*b->merge));
	if (!b->merge)
		return td_error_set(err, TD_E_NOMEM, "out of memory for %zu merges", n_merges);
	for (i = 0; i < size; i++)
		b->merge[i].left = -1;
	b->merge_mask = size - 1;
	return 0;
}

void td__bpe_merge_set(struct td__bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t made)
{
	uint32_t i = pair_hash(left, right) & b->merge_mask;

	while (b->merge[i].left >= 0 && (b->merge[i].left != left || b->merge[i].right != right))
		i = (i + 1) & b->merge_mask;
	b->merge[i] = (struct td__merge){left, right, rank, made};
}

static int32_t whole_find(const struct td__bpe *b, const char *piece, size_t n)
{
	uint32_t i;

	if (!b->whole)
		return -1;
	for (i = (uint32_t)XXH3_64bits(piece, n) & b->whole_mask; b->whole[i] >= 0; i = (i + 1) & b->whole_mask) {
		const struct td__token *t = &b->token[b->whole[i]];

		if (t->n == n && !memcmp(t->bytes, piece, n))
			return b->whole[i];
	}
	return -1;
}

int td__bpe_index(struct td__bpe *b, int ignore_merges, struct td_error *err)
{
	struct td__bpe_work work = {0};
	struct td_ids ids = {0};
	uint32_t size = slots((size_t)b->n_tokens), i;
	int32_t *whole = malloc(size * sizeof(*whole));
	int id, code = 0;

	if (!whole)
		return td_error_set(err, TD_E_NOMEM, "out of memory for an index of %d tokens", b->n_tokens);
	memset(whole, 0xff, size * sizeof(*whole));
	for (id = 0; id < b->n_tokens && !code; id++) {
		const struct td__token *t = &b->token[id];

		if (!t->n || (t->flags & (TD__TOKEN_ADDED | TD__TOKEN_UNMAPPED)))
			continue;
		if (!ignore_merges) {
			ids.n = 0;
			code = td__bpe_piece(b, &work, t->bytes, t->n, &ids, err);
			if (code || ids.n != 1 || ids.id[0] != id)
				continue;
		}
		for (i = (uint32_t)XXH3_64bits(t->bytes, t->n) & (size - 1); whole[i] >= 0; i = (i + 1) & (size - 1))
			;
		whole[i] = id;
	}
	td__bpe_work_finish(&work);
	td_ids_finish(&ids);
	if (code) {
		free(whole);
		return code;
	}
	b->whole = whole;
	b->whole_mask = size - 1;
	return 0;
}

void td__bpe_finish(struct td__bpe *b)
{
	int id;

	for (id = 0; id < b->n_tokens; id++)
		free(b->token[id].bytes);
	free(b->token);
	free(b->merge);
	free(b->whole);
	memset(b, 0, sizeof(*b));
}

/* ---- short pieces ------------------------------------------------------------------------------------------------------------------ */

static int merge_short(const struct td__bpe *b, const char *piece, int n, struct td_ids *out, struct td_error *err)
{
	const struct td__merge *pair[SHORT]; /* pair[i]: of symbols i and i + 1, NULL when they don't merge */
	int32_t id[SHORT];
	int i, best;

	for (i = 0; i < n; i++)
		id[i] = b->byte_id[(unsigned char)piece[i]];
	for (i = 0; i + 1 < n; i++)
		pair[i] = merge_find(b, id[i], id[i + 1]);
	for (;;) {
		for (best = NO_RANK, i = 0; i + 1 < n; i++)
			if (pair[i] && (best == NO_RANK || pair[i]->rank < pair[best]->rank))
				best = i;
		if (best == NO_RANK)
			break;
		id[best] = pair[best]->made;
		n--;
		for (i = best + 1; i < n; i++) {
			id[i] = id[i + 1];
			pair[i - 1] = pair[i];
		}
		if (best + 1 < n)
			pair[best] = merge_find(b, id[best], id[best + 1]);
		if (best)
			pair[best - 1] = merge_find(b, id[best - 1], id[best]);
	}
	for (i = 0; i < n; i++)
		if (td__ids_push(out, id[i], err))
			return TD_E_NOMEM;
	return 0;
}

/* ---- long pieces ------------------------------------------------------------------------------------------------------------------- */

void td__bpe_work_finish(struct td__bpe_work *w)
{
	free(w->symbol);
	free(w->heap);
	memset(w, 0, sizeof(*w));
}

static int before(const struct td__bpe_pair *x, const struct td__bpe_pair *y)
{
	return x->rank < y->rank || (x->rank == y->rank && x->at < y->at);
}

static void heap_push(struct td__bpe_work *w, struct td__bpe_pair pair)
{
	size_t i = w->n_heap++;

	for (; i && before(&pair, &w->heap[(i - 1) / 2]); i = (i - 1) / 2, w->steps++)
		w->heap[i] = w->heap[(i - 1) / 2];
	w->heap[i] = pair;
	w->steps++;
}

static struct td__bpe_pair heap_pop(struct td__bpe_work *w)
{
	struct td__bpe_pair top = w->heap[0], last = w->heap[--w->n_heap];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < w->n_heap) {
		if (child + 1 < w->n_heap && before(&w->heap[child + 1], &w->heap[child]))
			child++;
		if (!before(&w->heap[child], &last))
			break;
		w->heap[i] = w->heap[child];
		i = child;
		w->steps++;
	}
	w->heap[i] = last;
	w->steps++;
	return top;
}

static void propose(const struct td__bpe *b, struct td__bpe_work *w, int32_t at)
{
	const struct td__bpe_symbol *s = &w->symbol[at];
	const struct td__merge *m;

	if (s->next < 0)
		return;
	m = merge_find(b, s->id, w->symbol[s->next].id);
	if (m)
		heap_push(w, (struct td__bpe_pair){m->rank, at, m->left, m->right});
}

/* Each of at most n - 1 merges proposes two pairs, after n - 1 to begin with: 3n is room enough. */
static int work_reserve(struct td__bpe_work *w, size_t n, struct td_error *err)
{
	if (n > w->symbol_size) {
		struct td__bpe_symbol *p = realloc(w->symbol, n * sizeof(*p));

		if (!p)
			return td_error_set(err, TD_E_NOMEM, "out of memory while encoding a piece of %zu bytes", n);
		w->symbol = p;
		w->symbol_size = n;
	}
	if (3 * n > w->heap_size) {
		struct td__bpe_pair *p = realloc(w->heap, 3 * n * sizeof(*p));

		if (!p)
			return td_error_set(err, TD_E_NOMEM, "out of memory while encoding a piece of %zu bytes", n);
		w->heap = p;
		w->heap_size = 3 * n;
	}
	w->n_heap = 0;
	return 0;
}

static int merge_long(const struct td__bpe *b, struct td__bpe_work *w, const char *piece, size_t n, struct td_ids *out, struct td_error *err)
{
	struct td__bpe_symbol *s;
	int32_t i, count = (int32_t)n;

	if (work_reserve(w, n, err))
		return TD_E_NOMEM;
	s = w->symbol;
	for (i = 0; i < count; i++)
		s[i] = (struct td__bpe_symbol){b->byte_id[(unsigned char)piece[i]], i - 1, i + 1 < count ? i + 1 : -1};
	for (i = 0; i < count; i++)
		propose(b, w, i);
	while (w->n_heap) {
		struct td__bpe_pair p = heap_pop(w);
		int32_t right = s[p.at].next;

		if (s[p.at].id != p.left || right < 0 || s[right].id != p.right)
			continue;
		s[p.at].id = merge_find(b, p.left, p.right)->made;
		s[p.at].next = s[right].next;
		if (s[right].next >= 0)
			s[s[right].next].prev = p.at;
		s[right].id = -1;
		propose(b, w, p.at);
		if (s[p.at].prev >= 0)
			propose(b, w, s[p.at].prev);
	}
	for (i = 0; i >= 0; i = s[i].next)
		if (td__ids_push(out, s[i].id, err))
			return TD_E_NOMEM;
	return 0;
}

int td__bpe_piece(const struct td__bpe *b, struct td__bpe_work *w, const char *piece, size_t n, struct td_ids *out, struct td_error *err)
{
	int32_t id = whole_find(b, piece, n);

	if (id >= 0)
		return td__ids_push(out, id, err);
	if (n <= SHORT)
		return merge_short(b, piece, (int)n, out, err);
	return merge_long(b, w, piece, n, out, err);
}
