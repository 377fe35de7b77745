/*
 * grammar_walk.c: the machine of grammar.h: from a set of items and a byte to the next set.
 *
 * A walk holds two stacks that grow together: items (the sets, one behind the other) and cells (the shared tails of the stacks; cell 0 is the empty
 * stack). Equal cells are found by a hash table whose buckets are chained newest first, so going back to an earlier set takes cells out in the
 * reverse of the order in which they came, and nothing else has to be done.
 * What has no room (a set of too many items, too many cells, a closure of too many steps) is left out: the answer is then "does not fit", which is
 * wrong only to the safe side.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/grammar.h"

enum {
	ITEMS = 1 << 16,
	CELLS = 1 << 16,
	BUCKETS = 1 << 12,
	STEPS = 1 << 13, /* of a closure */
	REPEATS = 256, /* entries of repeats in a closure */
	UTF8_SUB = 256, /* sub of an UNTIL inside a character: this + state */
};
#define CALLED UINT32_MAX /* count of a cell that a CALL made: what it returns to may be a REPEAT that was not entered yet */

struct visit {
	uint32_t cell, count;
	uint16_t pc;
};

struct td_gwalk {
	const struct td_grammar *g;
	int reach;
	uint64_t work;
	uint32_t n_items, n_cells;
	struct td_gitem item[ITEMS];
	struct td_gcell cell[CELLS];
	uint32_t bucket[BUCKETS];
	/* of a closure */
	uint32_t from; /* first item of the set in the making */
	int steps, n_todo, n_visits;
	struct td_gitem todo[STEPS];
	struct visit visit[REPEATS];
};

struct td_gwalk *td_gwalk_create(void)
{
	struct td_gwalk *w = calloc(1, sizeof(*w));

	if (w) {
		w->n_cells = 1;
		w->reach = 256;
	}
	return w;
}

void td_gwalk_destroy(struct td_gwalk *w)
{
	free(w);
}

void td_gwalk_reach(struct td_gwalk *w, int reach)
{
	w->reach = reach;
}

uint64_t td_gwalk_work(const struct td_gwalk *w)
{
	return w->work;
}

/* ---- cells ----------------------------------------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;

	x ^= x >> 32;
	x *= 0xc4ceb9fe1a85ec53u;
	return x ^ x >> 29;
}

static struct td_gcount count_of(const struct td_grammar *g, int pc)
{
	struct td_gcount c;

	memcpy(&c, &g->node[pc + 1], sizeof(c));
	c.least >>= 8;
	return c;
}

/* A count as one token can tell it from others: how much is missing, and how much may still come, both up to the reach. */
static uint64_t count_class(const struct td_gwalk *w, int pc, uint32_t count)
{
	struct td_gcount c = count_of(w->g, pc);
	uint32_t far = (uint32_t)w->reach + 1, missing = c.least > count ? c.least - count : 0, left = c.most - count;

	if (missing > far)
		missing = far;
	if (c.most == TD_G_FOREVER || left > far)
		left = far;
	return (uint64_t)missing << 32 | left;
}

static uint32_t *bucket_of(struct td_gwalk *w, uint32_t parent, uint32_t count, uint16_t pc)
{
	return &w->bucket[mix((uint64_t)parent << 32 | count, pc) % BUCKETS];
}

static void cell_add(struct td_gwalk *w, uint32_t parent, uint32_t count, uint16_t pc)
{
	uint32_t *head = bucket_of(w, parent, count, pc), i = w->n_cells++;
	struct td_gcell *c = &w->cell[i];
	uint64_t class = count == CALLED ? CALLED : count_class(w, pc, count);

	*c = (struct td_gcell){.parent = parent, .count = count, .next = *head, .pc = pc, .depth = (uint16_t)(w->cell[parent].depth + 1),
			       .hash = mix(w->cell[parent].hash, mix(class, pc))};
	*head = i;
}

/* The cell on top of `parent`; 0 when there is no room. */
static uint32_t cell_of(struct td_gwalk *w, uint32_t parent, uint32_t count, uint16_t pc)
{
	for (uint32_t i = *bucket_of(w, parent, count, pc); i; i = w->cell[i].next, w->work++)
		if (w->cell[i].parent == parent && w->cell[i].count == count && w->cell[i].pc == pc)
			return i;
	if (w->n_cells == CELLS || w->cell[parent].depth >= TD_G_DEPTH)
		return 0;
	cell_add(w, parent, count, pc);
	return w->n_cells - 1;
}

static void cells_cut(struct td_gwalk *w, uint32_t n)
{
	while (w->n_cells > n) {
		const struct td_gcell *c = &w->cell[--w->n_cells];

		*bucket_of(w, c->parent, c->count, c->pc) = c->next;
	}
}

/* ---- closure --------------------------------------------------------------------------------------------------------------------------------------- */

static void item_add(struct td_gwalk *w, uint16_t pc, uint16_t sub, uint32_t cell)
{
	w->work += w->n_items - w->from;
	for (uint32_t i = w->from; i < w->n_items; i++)
		if (w->item[i].pc == pc && w->item[i].sub == sub && w->item[i].cell == cell)
			return;
	if (w->n_items < ITEMS && w->n_items - w->from < TD_G_ITEMS)
		w->item[w->n_items++] = (struct td_gitem){pc, sub, cell};
}

static void later(struct td_gwalk *w, int pc, uint32_t cell)
{
	if (w->n_todo < STEPS)
		w->todo[w->n_todo++] = (struct td_gitem){(uint16_t)pc, 0, cell};
}

/* At a repeat that was done `count` times: once more, or on. A body that takes no byte would come here for ever: each entry counts once. */
static void repeat(struct td_gwalk *w, int pc, uint32_t count, uint32_t parent)
{
	struct td_gcount c = count_of(w->g, pc);
	uint32_t cell;

	if (c.most == TD_G_FOREVER && count > c.least)
		count = c.least;
	w->work += (uint64_t)w->n_visits;
	for (int i = 0; i < w->n_visits; i++)
		if (w->visit[i].pc == pc && w->visit[i].cell == parent && w->visit[i].count == count)
			return;
	if (w->n_visits == REPEATS)
		return;
	w->visit[w->n_visits++] = (struct visit){parent, count, (uint16_t)pc};
	if (count >= c.least)
		later(w, pc + 2, parent);
	/* What comes after the repeat must have room, too, before it is begun. */
	if (count < c.most && w->g->need[pc + 2] + w->cell[parent].depth <= TD_G_DEPTH && (cell = cell_of(w, parent, count, (uint16_t)pc)))
		later(w, w->g->node[pc].a, cell);
}

static void returned(struct td_gwalk *w, uint32_t cell)
{
	const struct td_gcell *c = &w->cell[cell];

	if (cell == 0)
		item_add(w, TD_G_END, 0, 0);
	else if (c->count != CALLED)
		repeat(w, c->pc, c->count + 1, c->parent);
	else
		later(w, c->pc, c->parent);
}

/* Everything that can be reached from this instruction without a byte. */
static void closure(struct td_gwalk *w, int at, uint32_t stack)
{
	w->n_todo = 0;
	later(w, at, stack);
	while (w->n_todo > 0 && w->steps++ < STEPS) {
		const struct td_gitem t = w->todo[--w->n_todo];
		const struct td_gnode *n = &w->g->node[t.pc];
		uint32_t cell;

		w->work++;
		if (w->g->need[t.pc] + w->cell[t.cell].depth > TD_G_DEPTH)
			continue;
		switch (n->op) {
		case TD_G_RET:
			returned(w, t.cell);
			break;
		case TD_G_SPLIT:
			later(w, n->b, t.cell);
			later(w, n->a, t.cell);
			break;
		case TD_G_JUMP:
			later(w, n->a, t.cell);
			break;
		case TD_G_CALL:
			/* A call that is its rule's last act leaves nothing to come back for. */
			if (w->g->node[t.pc + 1].op == TD_G_RET)
				later(w, n->a, t.cell);
			else if ((cell = cell_of(w, t.cell, CALLED, (uint16_t)(t.pc + 1))))
				later(w, n->a, cell);
			break;
		case TD_G_REPEAT:
			repeat(w, t.pc, 0, t.cell);
			break;
		default:
			item_add(w, t.pc, 0, t.cell);
		}
	}
}

static void set_begin(struct td_gwalk *w)
{
	w->from = w->n_items;
	w->steps = w->n_visits = 0;
}

static struct td_gset set_end(const struct td_gwalk *w)
{
	return (struct td_gset){w->from, w->n_items - w->from, w->n_cells};
}

/* ---- bytes ----------------------------------------------------------------------------------------------------------------------------------------- */

/* How much of the text is matched after `byte`, when `done` bytes of it were. */
static int matched(const uint8_t *text, int done, uint8_t byte)
{
	while (text[done] != byte) {
		int shorter = done - 1;

		if (done == 0)
			return 0;
		while (shorter > 0 && memcmp(text, text + done - shorter, (size_t)shorter))
			shorter--;
		done = shorter > 0 ? shorter : 0;
	}
	return done + 1;
}

static void step_until(struct td_gwalk *w, const struct td_gitem *t, const struct td_gnode *n, uint8_t byte)
{
	int utf8 = td_g_utf8(t->sub >= UTF8_SUB ? t->sub - UTF8_SUB : 0, byte);

	if (utf8 > 0) {
		item_add(w, t->pc, (uint16_t)(UTF8_SUB + utf8), t->cell);
	} else if (utf8 == 0) {
		int done = t->sub >= UTF8_SUB ? 0 : matched(w->g->text + n->a, t->sub, byte);

		if (done == n->b)
			closure(w, t->pc + 1, t->cell);
		else
			item_add(w, t->pc, (uint16_t)done, t->cell);
	}
}

static void step_item(struct td_gwalk *w, const struct td_gitem *t, uint8_t byte)
{
	const struct td_gnode *n = &w->g->node[t->pc];
	int utf8;

	switch (n->op) {
	case TD_G_BYTE:
		if (byte >= n->lo && byte <= n->hi)
			closure(w, t->pc + 1, t->cell);
		break;
	case TD_G_TEXT:
		if (w->g->text[n->a + t->sub] != byte)
			break;
		if (t->sub + 1 == n->b)
			closure(w, t->pc + 1, t->cell);
		else
			item_add(w, t->pc, (uint16_t)(t->sub + 1), t->cell);
		break;
	case TD_G_CHAR:
		if (t->sub == 0 && byte < 0x80 ? !(w->g->set[n->a][byte / 8] >> byte % 8 & 1) : t->sub == 0 && n->lo != 1)
			break;
		utf8 = td_g_utf8(t->sub, byte);
		if (utf8 == 0)
			closure(w, t->pc + 1, t->cell);
		else if (utf8 > 0)
			item_add(w, t->pc, (uint16_t)utf8, t->cell);
		break;
	case TD_G_UNTIL:
		step_until(w, t, n, byte);
		break;
	}
}

struct td_gset td_gwalk_step(struct td_gwalk *w, struct td_gset from, uint8_t byte)
{
	set_begin(w);
	w->work += from.n;
	for (uint32_t i = 0; i < from.n; i++) {
		const struct td_gitem t = w->item[from.from + i];

		if (t.pc != TD_G_END)
			step_item(w, &t, byte);
	}
	return set_end(w);
}

void td_gwalk_back(struct td_gwalk *w, struct td_gset to)
{
	w->n_items = to.from + to.n;
	cells_cut(w, to.cells);
}

/* ---- states that are kept -------------------------------------------------------------------------------------------------------------------------- */

struct td_gset td_gwalk_load(struct td_gwalk *w, const struct td_grammar *g, const struct td_gstate *s)
{
	cells_cut(w, 1);
	w->n_items = 0;
	w->g = g;
	for (uint32_t i = 1; i < s->n_cells; i++)
		cell_add(w, s->cell[i].parent, s->cell[i].count, s->cell[i].pc);
	set_begin(w);
	for (uint32_t i = 0; i < s->n_items; i++)
		w->item[w->n_items++] = s->item[i];
	return set_end(w);
}

/* Keeps a set: only the cells that it reaches, in their order, so that a parent still comes before what stands on it. */
static int save(struct td_gwalk *w, struct td_gset set, struct td_gstate *s)
{
	uint32_t n = 1, top = 1;

	if (set.n == 0)
		return -1;
	/* Marks go into `next`: the chains are not needed any more. */
	memset(w->bucket, 0, sizeof(w->bucket));
	for (uint32_t i = 1; i < w->n_cells; i++)
		w->cell[i].next = 0;
	for (uint32_t i = 0; i < set.n; i++)
		for (uint32_t c = w->item[set.from + i].cell; c && !w->cell[c].next; c = w->cell[c].parent) {
			w->cell[c].next = 1;
			top = c + 1 > top ? c + 1 : top;
		}
	for (uint32_t i = 1; i < top; i++)
		n += w->cell[i].next;
	if (n <= TD_G_CELLS) {
		n = 1;
		s->cell[0] = (struct td_gcell){0};
		for (uint32_t i = 1; i < top; i++) {
			if (!w->cell[i].next)
				continue;
			s->cell[n] = w->cell[i];
			s->cell[n].parent = w->cell[i].parent ? w->cell[w->cell[i].parent].next : 0;
			w->cell[i].next = n++;
		}
		for (uint32_t i = 0; i < set.n; i++) {
			s->item[i] = w->item[set.from + i];
			s->item[i].cell = s->item[i].cell ? w->cell[s->item[i].cell].next : 0;
		}
		s->n_items = set.n;
		s->n_cells = n;
	}
	w->n_cells = 1;
	w->n_items = 0;
	return n <= TD_G_CELLS ? 0 : -1;
}

int td_gstate_start(struct td_gwalk *w, const struct td_grammar *g, struct td_gstate *s)
{
	static const struct td_gstate none = {.n_cells = 1};

	td_gwalk_load(w, g, &none);
	set_begin(w);
	closure(w, g->start, 0);
	return save(w, set_end(w), s);
}

int td_gstate_advance(struct td_gwalk *w, const struct td_grammar *g, struct td_gstate *s, const void *bytes, size_t n)
{
	struct td_gset set = td_gwalk_load(w, g, s);

	for (size_t i = 0; i < n && set.n; i++) {
		set = td_gwalk_step(w, set, ((const uint8_t *)bytes)[i]);
		memmove(w->item, w->item + set.from, set.n * sizeof(*w->item)); /* those before it are not needed */
		set.from = 0;
		w->n_items = set.n;
	}
	return save(w, set, s);
}

static int has_end(const struct td_gitem *item, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (item[i].pc == TD_G_END)
			return 1;
	return 0;
}

int td_gstate_may_end(const struct td_gstate *s)
{
	return has_end(s->item, s->n_items);
}

/* ---- for masks ------------------------------------------------------------------------------------------------------------------------------------- */

int td_gwalk_may_end(const struct td_gwalk *w, struct td_gset s)
{
	return has_end(w->item + s.from, s.n);
}

int td_gwalk_same(const struct td_gwalk *w, struct td_gset a, struct td_gset b)
{
	return a.n == b.n && !memcmp(w->item + a.from, w->item + b.from, a.n * sizeof(*w->item));
}

void td_gwalk_hash(const struct td_gwalk *w, struct td_gset s, uint64_t hash[2])
{
	hash[0] = w->g->hash;
	hash[1] = mix(w->g->hash, s.n);
	for (uint32_t i = 0; i < s.n; i++) { /* sums: the order of the items says nothing */
		const struct td_gitem *t = &w->item[s.from + i];
		uint64_t one = mix(w->cell[t->cell].hash, (uint64_t)t->pc << 16 | t->sub);

		hash[0] += one;
		hash[1] += mix(one, 0x517cc1b727220a95u);
	}
}

/* 1 when nothing but a quote or a backslash can come next here. */
static int only_marks(const struct td_grammar *g, const struct td_gitem *t)
{
	const struct td_gnode *n = &g->node[t->pc];
	int c = t->pc == TD_G_END ? '"' : n->op == TD_G_BYTE && n->lo == n->hi ? n->lo : n->op == TD_G_TEXT ? g->text[n->a + t->sub] : 0;

	return c == '"' || c == '\\';
}

void td_gwalk_easy(const struct td_gwalk *w, struct td_gset s, int most, int *string, int *newline, int *angle)
{
	int others = 0, room = -1;

	*newline = *angle = 0;
	for (uint32_t i = 0; i < s.n; i++) {
		const struct td_gitem *t = &w->item[s.from + i];
		const struct td_gnode *n = t->pc == TD_G_END ? NULL : &w->g->node[t->pc];
		const struct td_gcell *c = &w->cell[t->cell];

		if (n && n->op == TD_G_CHAR && t->sub == 0 && t->cell && c->count != CALLED && w->g->string[c->pc] && w->g->node[w->g->node[c->pc].a].a == t->pc) {
			struct td_gcount count = count_of(w->g, c->pc);
			uint32_t left = count.most == TD_G_FOREVER ? (uint32_t)most : count.most - c->count;

			room = left < (uint32_t)most ? (int)left > room ? (int)left : room : most;
			continue;
		}
		if (n && n->op == TD_G_UNTIL && t->sub == 0) {
			*newline |= w->g->text[n->a] == '\n';
			*angle |= w->g->text[n->a] == '<';
		}
		others |= !only_marks(w->g, t);
	}
	*string = room >= most || !others ? room : -1;
}
