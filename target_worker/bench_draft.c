/*
 * bench_draft.c: the drafter's operations at its shapes (bench_internal.h). Its blocks have the target's number of rows; what it appends after a verify
 * is about as many rows as were accepted, in prefill a whole step.
 */
#include <stdio.h>

#include "target_worker/bench_internal.h"

static struct td_linear map(const struct td__bench *b, int in, int out)
{
	const struct td_drafter_config *c = &b->draft;
	int group = c->quant.size[0];

	if (c->quant.bits != 4)
		return (struct td_linear){.kind = TD_W_BF16, .in = in, .out = out};
	return (struct td_linear){.kind = TD_W_INT4, .in = in, .out = out, .group = group > 0 ? group : in, .act8 = b->act8};
}

static void linears(struct td__bench *b)
{
	const struct td_drafter_config *c = &b->draft;
	const int block[3] = {TD_BLOCK_MAX, 0, 0}, context[3] = {TD__REPLAYED, b->chunk, 0};
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
	const struct {
		const char *name;
		struct td_linear shape;
		const int *rows;
	} one[] = {{"draft fc", map(b, c->n_taps * c->hidden, c->hidden), context}, {"draft kv", map(b, c->hidden, 2 * kv), context},
		   {"draft qkv", map(b, c->hidden, q + 2 * kv), block}, {"draft out", map(b, q, c->hidden), block},
		   {"draft gate and up", map(b, c->hidden, 2 * c->intermediate), block}, {"draft down", map(b, c->intermediate, c->hidden), block}};

	for (size_t i = 0; i < sizeof(one) / sizeof(*one); i++)
		td__bench_linear(b, one[i].name, &one[i].shape, one[i].rows, 0);
}

static void op_attention(struct td__bench *b, struct td__work *w)
{
	b->ops->draft_attention(b->dev, &w->attn, &w->kv[w->turn++ % w->copies], &w->batch, w->x, w->y);
}

static void op_append(struct td__bench *b, struct td__work *w)
{
	b->ops->draft_context(b->dev, &w->attn, &w->kv[w->turn++ % w->copies], &w->batch, w->x);
}

/* A layer that sees the whole context, and appending to it. */
static void attention(struct td__bench *b)
{
	const struct td_drafter_config *c = &b->draft;
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, rows = TD_BLOCK_MAX, append[] = {TD__REPLAYED, b->chunk};
	double act = (double)td_dtype_size(b->ops->act), cache = 2 * act * kv * b->context;
	struct td__work w = {.attn = {.heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .rotary_dim = c->head_dim, .eps = c->eps}};
	char shape[48];

	w.attn.q_norm = td__bench_floats(b, &w, c->head_dim);
	w.attn.k_norm = td__bench_floats(b, &w, c->head_dim);
	w.attn.inv_freq = td__bench_floats(b, &w, c->head_dim / 2 + 1);
	td__bench_cache(b, &w, kv);
	w.x = td__bench_rows(b, &w, b->ops->act, rows, q + 2 * kv);
	w.y = td__bench_rows(b, &w, b->ops->act, rows, q);
	td__bench_batch(b, &w, rows, 0);
	snprintf(shape, sizeof(shape), "%d and %d heads of %d, %d keys", c->heads, c->kv_heads, c->head_dim, b->context);
	td__bench_note(b, "draft attention", rows, shape, cache + rows * act * (2 * q + 2 * kv), 4.0 * rows * q * b->context, td__bench_measure(b, op_attention, &w),
		       w.copies * cache >= (double)TD__COLD_BYTES / 2);
	snprintf(shape, sizeof(shape), "%d heads of %d", c->kv_heads, c->head_dim);
	for (int i = 0; i < 2; i++) {
		w.x = td__bench_rows(b, &w, b->ops->act, append[i], 2 * kv);
		td__bench_batch(b, &w, append[i], 0);
		td__bench_note(b, "draft append", append[i], shape, append[i] * act * 4 * kv, 0, td__bench_measure(b, op_append, &w), 0);
	}
	td__bench_release(b, &w);
}

void td__bench_draft(struct td__bench *b)
{
	linears(b);
	attention(b);
}
