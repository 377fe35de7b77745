/*
 * grammar.c: checking a compiled grammar. The machine is in grammar_walk.c; see grammar.h for the whole.
 */
#include "engine/grammar.h"

#include <string.h>
#include <xxhash.h>

enum { PASSES_MAX = 2 * TD_G_NODES, UNTIL_MAX = 200 };

int td_g_utf8(int state, uint8_t b)
{
	static const struct { uint8_t lo, hi; int8_t next; } more[8] = {
		{0, 0, 0}, {0x80, 0xbf, 0}, {0x80, 0xbf, 1}, {0x80, 0xbf, 2}, {0xa0, 0xbf, 1}, {0x80, 0x9f, 1}, {0x90, 0xbf, 2}, {0x80, 0x8f, 2},
	};

	if (state > 0)
		return state < 8 && b >= more[state].lo && b <= more[state].hi ? more[state].next : -1;
	if (b < 0x80)
		return 0;
	if (b < 0xc2 || b > 0xf4)
		return -1;
	if (b < 0xe0)
		return 1;
	if (b < 0xf0)
		return b == 0xe0 ? 4 : b == 0xed ? 5 : 2;
	return b == 0xf0 ? 6 : b == 0xf4 ? 7 : 3;
}

static int runs(const struct td_grammar *g, int pc)
{
	return pc < g->nodes && g->node[pc].op != TD_G_COUNT;
}

static const char *node_fault(const struct td_grammar *g, const struct td_ghead *h, int pc)
{
	const struct td_gnode *n = &g->node[pc];
	struct td_gcount c;

	switch (n->op) {
	case TD_G_RET:
		return NULL;
	case TD_G_BYTE:
		return n->lo > n->hi ? "an empty range" : runs(g, pc + 1) ? NULL : "no next instruction";
	case TD_G_TEXT:
	case TD_G_UNTIL:
		if (n->b < 1 || (uint32_t)n->a + n->b > h->text || (n->op == TD_G_UNTIL && n->b > UNTIL_MAX))
			return "text out of range";
		return runs(g, pc + 1) ? NULL : "no next instruction";
	case TD_G_CHAR:
		return n->a >= h->sets ? "a set out of range" : runs(g, pc + 1) ? NULL : "no next instruction";
	case TD_G_SPLIT:
		return runs(g, n->a) && runs(g, n->b) ? NULL : "a target out of range";
	case TD_G_JUMP:
		return runs(g, n->a) ? NULL : "a target out of range";
	case TD_G_CALL:
		return runs(g, n->a) && runs(g, pc + 1) ? NULL : "a target out of range";
	case TD_G_REPEAT:
		if (!runs(g, n->a) || pc + 1 >= g->nodes || g->node[pc + 1].op != TD_G_COUNT || !runs(g, pc + 2))
			return "a target out of range";
		memcpy(&c, &g->node[pc + 1], sizeof(c));
		return c.most > TD_G_FOREVER || c.most < c.least >> 8 ? "a count out of range" : NULL;
	case TD_G_COUNT:
		return pc > 0 && g->node[pc - 1].op == TD_G_REPEAT ? NULL : "a count without a repeat";
	}
	return "an unknown instruction";
}

/* The least depth by which a node comes to its RET, from those of its successors. */
static int need_of(const struct td_grammar *g, int pc)
{
	const struct td_gnode *n = &g->node[pc];
	static const uint8_t none[16];
	const uint8_t *need = g->need;
	struct td_gcount c;
	int in, after;

	switch (n->op) {
	case TD_G_RET:
		return 0;
	case TD_G_SPLIT:
		return need[n->a] < need[n->b] ? need[n->a] : need[n->b];
	case TD_G_JUMP:
		return need[n->a];
	case TD_G_CALL:
		in = need[n->a] < 254 ? need[n->a] + 1 : 255;
		return in > need[pc + 1] ? in : need[pc + 1];
	case TD_G_REPEAT:
		memcpy(&c, &g->node[pc + 1], sizeof(c));
		in = need[n->a] < 254 ? need[n->a] + 1 : 255;
		after = need[pc + 2];
		return c.least >> 8 && in > after ? in : after;
	case TD_G_COUNT:
		return 255;
	case TD_G_CHAR:
		if (n->lo != 1 && !memcmp(g->set[n->a], none, sizeof(none)))
			return 255;
		break;
	}
	return need[pc + 1];
}

/* From the ends back until nothing changes. Every pass lowers something, and a value can be lowered 255 times at the most: in practice a few passes do. */
static void needs(struct td_grammar *g)
{
	int changed = 1;

	memset(g->need, 255, sizeof(g->need));
	for (int pass = 0; changed && pass < PASSES_MAX; pass++) {
		changed = 0;
		for (int pc = g->nodes - 1; pc >= 0; pc--) {
			int n = need_of(g, pc);

			changed |= n < g->need[pc];
			g->need[pc] = (uint8_t)(n < g->need[pc] ? n : g->need[pc]);
		}
	}
}

/* A repeat whose rule begins with "a plain character, and back" is a JSON string's: tokens of nothing but such characters need no walk. */
static int is_string(const struct td_grammar *g, int pc)
{
	const struct td_gnode *rule = &g->node[g->node[pc].a], *one;

	if (g->node[pc].op != TD_G_REPEAT || rule->op != TD_G_SPLIT)
		return 0;
	one = &g->node[rule->a];
	if (one->op != TD_G_CHAR || one->lo != 1 || one[1].op != TD_G_RET)
		return 0;
	for (int c = 0; c < 128; c++)
		if ((g->set[one->a][c / 8] >> c % 8 & 1) != td_g_plain((uint8_t)c))
			return 0;
	return 1;
}

int td_grammar_open(struct td_grammar *g, const void *bytes, size_t n, struct td_error *err)
{
	struct td_ghead h;

	if (n < sizeof(h) || n > TD_GRAMMAR_MAX)
		return td_error_set(err, TD_E_FORMAT, "a compiled grammar of %zu bytes; it has %zu to %d", n, sizeof(h), TD_GRAMMAR_MAX);
	memcpy(g->bytes, bytes, n);
	memcpy(&h, g->bytes, sizeof(h));
	if (h.magic != TD_G_MAGIC || h.nodes < 1 || h.nodes > TD_G_NODES || h.start >= h.nodes ||
	    sizeof(h) + 8ull * h.nodes + 16ull * h.sets + h.text != n)
		return td_error_set(err, TD_E_FORMAT, "a compiled grammar whose head does not fit its %zu bytes", n);
	g->node = (const struct td_gnode *)(g->bytes + sizeof(h));
	g->set = (const uint8_t(*)[16])(g->node + h.nodes);
	g->text = (const uint8_t *)(g->set + h.sets);
	g->nodes = h.nodes;
	g->start = h.start;
	for (int pc = 0; pc < g->nodes; pc++) {
		const char *fault = node_fault(g, &h, pc);

		if (fault)
			return td_error_set(err, TD_E_FORMAT, "a compiled grammar has %s at instruction %d", fault, pc);
	}
	needs(g);
	if (!runs(g, g->start) || g->need[g->start] > TD_G_DEPTH)
		return td_error_set(err, TD_E_FORMAT, "nothing fits this grammar within %d levels", TD_G_DEPTH);
	for (int pc = 0; pc < g->nodes; pc++)
		g->string[pc] = (uint8_t)is_string(g, pc);
	g->hash = XXH3_64bits(g->bytes, n);
	return 0;
}
