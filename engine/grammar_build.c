/*
 * grammar_build.c: see grammar_build.h: instructions, alternatives, texts.
 */
#include "engine/grammar_build.h"

#include <stdlib.h>
#include <string.h>

struct td_gbuild *td_gbuild_create(void)
{
	return calloc(1, sizeof(struct td_gbuild));
}

int td_gb_finish(struct td_gbuild *b, int start, uint8_t **bytes, size_t *n, struct td_error *err)
{
	struct td_ghead h = {.magic = TD_G_MAGIC, .start = (uint16_t)start, .nodes = (uint16_t)b->n_nodes, .sets = (uint16_t)b->n_sets, .text = (uint32_t)b->n_text};
	size_t nodes = 8 * (size_t)b->n_nodes, sets = 16 * (size_t)b->n_sets, all = sizeof(h) + nodes + sets + b->n_text;
	uint8_t *out = NULL;

	*bytes = NULL;
	*n = 0;
	if (b->full || all > TD_GRAMMAR_MAX) {
		free(b);
		return td_error_set(err, TD_E_SCHEMA,
				    "what the output must be takes more than %d bytes once compiled: fewer properties, enum values or shorter repeats are needed",
				    TD_GRAMMAR_MAX);
	}
	out = malloc(all);
	if (!out) {
		free(b);
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	}
	memcpy(out, &h, sizeof(h));
	memcpy(out + sizeof(h), b->node, nodes);
	memcpy(out + sizeof(h) + nodes, b->set, sets);
	memcpy(out + sizeof(h) + nodes + sets, b->text, b->n_text);
	free(b);
	*bytes = out;
	*n = all;
	return 0;
}

/* ---- instructions ---------------------------------------------------------------------------------------------------------------------------------- */

int td_gb_emit(struct td_gbuild *b, enum td_gop op, int lo, int hi, int a, int bb)
{
	if (b->n_nodes == TD_G_NODES) {
		b->full = 1;
		return TD_G_NODES - 1;
	}
	b->node[b->n_nodes] = (struct td_gnode){.op = (uint8_t)op, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .a = (uint16_t)a, .b = (uint16_t)bb};
	return b->n_nodes++;
}

void td_gb_byte(struct td_gbuild *b, int lo, int hi)
{
	td_gb_emit(b, TD_G_BYTE, lo, hi, 0, 0);
}

/* Where this text lies; texts that are there already are used again. */
static int text_at(struct td_gbuild *b, const void *text, size_t n)
{
	const uint8_t *there = b->n_text ? memmem(b->text, b->n_text, text, n) : NULL;

	if (there)
		return (int)(there - b->text);
	if (n > sizeof(b->text) - b->n_text) {
		b->full = 1;
		return 0;
	}
	memcpy(b->text + b->n_text, text, n);
	b->n_text += n;
	return (int)(b->n_text - n);
}

void td_gb_text(struct td_gbuild *b, const void *text, size_t n)
{
	if (n == 1)
		td_gb_byte(b, *(const uint8_t *)text, *(const uint8_t *)text);
	else if (n > TD_GRAMMAR_MAX / 2)
		b->full = 1;
	else if (n)
		td_gb_emit(b, TD_G_TEXT, 0, 0, text_at(b, text, n), (int)n);
}

void td_gb_puts(struct td_gbuild *b, const char *text)
{
	td_gb_text(b, text, strlen(text));
}

void td_gb_until(struct td_gbuild *b, const char *text)
{
	size_t n = strlen(text);

	td_gb_emit(b, TD_G_UNTIL, 0, 0, text_at(b, text, n), (int)n);
}

void td_gb_char(struct td_gbuild *b, const uint8_t set[16], int others)
{
	int i = 0;

	while (i < b->n_sets && memcmp(b->set[i], set, 16))
		i++;
	if (i == TD_GB_SETS) {
		b->full = 1;
		return;
	}
	if (i == b->n_sets)
		memcpy(b->set[b->n_sets++], set, 16);
	td_gb_emit(b, TD_G_CHAR, others, 0, i, 0);
}

void td_gb_fail(struct td_gbuild *b)
{
	static const uint8_t none[16];

	td_gb_char(b, none, 0);
}

void td_gb_call(struct td_gbuild *b, int rule)
{
	td_gb_emit(b, TD_G_CALL, 0, 0, rule, 0);
}

void td_gb_repeat(struct td_gbuild *b, int rule, uint32_t least, uint32_t most)
{
	struct td_gcount c = {.least = least << 8 | TD_G_COUNT, .most = most};

	td_gb_emit(b, TD_G_REPEAT, 0, 0, rule, 0);
	memcpy(&b->node[td_gb_emit(b, TD_G_COUNT, 0, 0, 0, 0)], &c, sizeof(c));
}

int td_gb_rule(struct td_gbuild *b, int *over)
{
	*over = td_gb_emit(b, TD_G_JUMP, 0, 0, 0, 0);
	return b->n_nodes;
}

void td_gb_rule_end(struct td_gbuild *b, int over)
{
	td_gb_emit(b, TD_G_RET, 0, 0, 0, 0);
	b->node[over].a = (uint16_t)b->n_nodes;
}

/* ---- alternatives ---------------------------------------------------------------------------------------------------------------------------------- */

void td_gb_alt(struct td_galt *a)
{
	*a = (struct td_galt){-1, -1};
}

/* The jumps to the end are a chain through their own targets until the end is known. */
void td_gb_alt_next(struct td_gbuild *b, struct td_galt *a)
{
	if (a->split >= 0) {
		a->chain = td_gb_emit(b, TD_G_JUMP, 0, 0, a->chain < 0 ? TD_G_END : a->chain, 0);
		b->node[a->split].b = (uint16_t)b->n_nodes;
	}
	a->split = td_gb_emit(b, TD_G_SPLIT, 0, 0, b->n_nodes + 1, 0);
}

void td_gb_alt_end(struct td_gbuild *b, struct td_galt *a)
{
	int at = a->chain < 0 ? TD_G_END : a->chain;

	if (a->split < 0) {
		td_gb_fail(b);
		return;
	}
	b->node[a->split].op = TD_G_JUMP; /* there is no other one */
	while (at != TD_G_END && !b->full) {
		int before = b->node[at].a;

		b->node[at].a = (uint16_t)b->n_nodes;
		at = before;
	}
}

static int text_order(const void *x, const void *y)
{
	const struct td_gtext *a = x, *b = y;
	int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);

	return c ? c : (a->n > b->n) - (a->n < b->n);
}

void td_gb_texts_sort(struct td_gtext *text, size_t n)
{
	qsort(text, n, sizeof(*text), text_order);
}

/* Texts [0, n), sorted, alike in their first k bytes. */
static void one_of(struct td_gbuild *b, const struct td_gtext *t, size_t n, size_t k)
{
	size_t same = k;
	struct td_galt alt;

	while (same < t[0].n && same < t[n - 1].n && t[0].s[same] == t[n - 1].s[same])
		same++;
	td_gb_text(b, t[0].s + k, same - k);
	if (b->full || (t[0].n == same && t[n - 1].n == same))
		return;
	td_gb_alt(&alt);
	if (t[0].n == same)
		td_gb_alt_next(b, &alt);
	while (n && t[0].n == same) {
		t++;
		n--;
	}
	for (size_t i = 0, j; i < n; i = j) {
		for (j = i + 1; j < n && t[j].s[same] == t[i].s[same]; j++)
			;
		td_gb_alt_next(b, &alt);
		one_of(b, t + i, j - i, same);
	}
	td_gb_alt_end(b, &alt);
}

void td_gb_one_of(struct td_gbuild *b, struct td_gtext *text, size_t n)
{
	if (!n) {
		td_gb_fail(b);
		return;
	}
	td_gb_texts_sort(text, n);
	one_of(b, text, n, 0);
}
