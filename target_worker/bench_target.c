/*
 * bench_target.c: the target's operations at its shapes (bench_internal.h).
 */
#include <stdio.h>

#include "engine/quantise.h"
#include "target_worker/bench_internal.h"

/* Maps of the target, in the order of a forward; the head is what loading makes of it where nobody says otherwise. */
int td__bench_shapes(const struct td__bench *b, struct td_linear *shape, int max)
{
	const struct td_target_config *c = &b->cfg;
	enum td_weight_kind kind = c->quant.bits == 4 ? TD_W_INT4 : TD_W_BF16;
	int v = c->v_heads * c->v_dim, conv = 2 * c->k_heads * c->k_dim + v, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, n = 0;
	int group = kind == TD_W_INT4 ? c->quant.size[0] : 0;

#define MAP(k, i, o) \
	do { \
		if (n < max) \
			shape[n++] = (struct td_linear){.kind = (k), .in = (i), .out = (o), .group = (k) == TD_W_BF16 ? 0 : group > 0 ? group : (i) /* -1: a whole row */, \
							.act8 = (k) == TD_W_INT4 && b->act8}; \
	} while (0)
	for (int i = 0; i < c->layers; i++) {
		if (c->full_attention[i]) {
			MAP(kind, c->hidden, 2 * q + 2 * kv);
			MAP(kind, q, c->hidden);
		} else {
			MAP(kind, c->hidden, conv + v);
			MAP(TD_W_BF16, c->hidden, 2 * c->v_heads);
			MAP(kind, v, c->hidden);
		}
		MAP(kind, c->hidden, 2 * c->intermediate);
		MAP(kind, c->intermediate, c->hidden);
	}
	if (td_form_head("auto", c, 0) & TD_FORM_HEAD_INT4) {
		kind = TD_W_INT4;
		group = td_quantise_group(c->hidden);
	} else {
		kind = TD_W_BF16;
	}
	MAP(kind, c->hidden, c->vocab);
#undef MAP
	return n;
}

/* ---- linear maps -------------------------------------------------------------------------------------------------------------------- */

void td__bench_linear(struct td__bench *b, const char *name, const struct td_linear *s, const int rows[3], int logits)
{
	enum td_dtype result = logits ? TD_F32 : b->ops->act;
	double bytes = (double)b->ops->pack_bytes(s->kind, s->out, s->in, s->group), act = (double)td_dtype_size(b->ops->act), to = (double)td_dtype_size(result);
	struct td__work w = {0};
	char shape[48];

	td__bench_pack(b, &w, s);
	snprintf(shape, sizeof(shape), "%d x %d %s%s", s->out, s->in, s->kind == TD_W_INT4 ? "int4" : "bf16", s->act8 ? " x int8" : "");
	for (int i = 0; i < 3 && rows[i] && !b->err.code; i++) {
		double n = rows[i];

		w.x = td__bench_rows(b, &w, b->ops->act, rows[i], s->in);
		w.y = td__bench_rows(b, &w, result, rows[i], s->out);
		td__bench_batch(b, &w, rows[i], 0);
		td__bench_note(b, name, rows[i], shape, bytes + n * (s->in * act + s->out * to), 2 * n * s->in * s->out, td__bench_measure(b, td__bench_op_linear, &w),
			       w.copies * bytes >= (double)TD__COLD_BYTES / 2);
	}
	td__bench_release(b, &w);
}

/* The maps of one layer of each kind, and the head in each form that it may have. */
static void linears(struct td__bench *b)
{
	static const char *const delta[] = {"qkvz", "ba", "delta out"}, *const full[] = {"qkv", "attention out"}, *const both[] = {"gate and up", "down"};
	const int rows[3] = {1, TD_BLOCK_MAX, b->chunk}, few[3] = {1, TD_BLOCK_MAX, 0};
	struct td_linear shape[5 * TD_LAYERS_MAX + 1], head;
	int n = td__bench_shapes(b, shape, 5 * TD_LAYERS_MAX + 1), at = 0, seen[2] = {0, 0};

	for (int i = 0; i < b->cfg.layers; i++) {
		int is_full = b->cfg.full_attention[i] != 0, own = is_full ? 2 : 3;

		for (int k = 0; k < own && !seen[is_full]; k++)
			td__bench_linear(b, is_full ? full[k] : delta[k], &shape[at + k], rows, 0);
		for (int k = 0; k < 2 && !seen[0] && !seen[1]; k++)
			td__bench_linear(b, both[k], &shape[at + own + k], rows, 0);
		seen[is_full] = 1;
		at += own + 2;
	}
	head = shape[n - 1];
	if (head.kind == TD_W_INT4)
		td__bench_linear(b, "head", &head, few, 1);
	head.kind = TD_W_BF16;
	head.group = head.act8 = 0;
	td__bench_linear(b, "head", &head, few, 1);
}

/* ---- the others --------------------------------------------------------------------------------------------------------------------- */

static void op_gdn(struct td__bench *b, struct td__work *w)
{
	b->ops->gdn(b->dev, &w->gdn, &w->state[w->turn++ % w->copies], &w->batch, w->x, w->z, w->y);
}

/* As many states in turn as no cache holds. */
static void states(struct td__bench *b, struct td__work *w, size_t state, size_t conv)
{
	size_t act = td_dtype_size(b->ops->act), s = state * sizeof(float), tail = TD_CONV_TAIL * conv * act, ring = TD_BLOCK_MAX * conv * act;
	size_t ba = TD_BLOCK_MAX * 2 * (size_t)b->cfg.v_heads * sizeof(float), all = (s + tail + ring + ba + 255) / 256 * 256;
	char *p;

	w->copies = TD__COLD_BYTES / all < TD__STATES_MAX ? (int)(TD__COLD_BYTES / all) + 1 : TD__STATES_MAX;
	p = td__bench_device(b, w, all * (size_t)w->copies);
	for (int i = 0; p && i < w->copies; i++, p += all)
		w->state[i] = (struct td_gdn_state){.s = (float *)p, .tail = p + s, .ring_m = p + s + tail, .ring_ba = (float *)(p + s + tail + ring)};
}

static void gdn(struct td__bench *b, int rows, int replay)
{
	const struct td_target_config *c = &b->cfg;
	int v = c->v_heads * c->v_dim, conv = 2 * c->k_heads * c->k_dim + v;
	double act = (double)td_dtype_size(b->ops->act), state = (double)c->v_heads * c->k_dim * c->v_dim;
	struct td__work w = {.gdn = {.k_heads = c->k_heads, .v_heads = c->v_heads, .k_dim = c->k_dim, .v_dim = c->v_dim, .eps = c->eps}};
	char shape[48];

	w.gdn.conv = td__bench_floats(b, &w, 4 * conv);
	w.gdn.a_log = td__bench_floats(b, &w, c->v_heads);
	w.gdn.dt_bias = td__bench_floats(b, &w, c->v_heads);
	w.gdn.norm = td__bench_floats(b, &w, c->v_dim);
	states(b, &w, (size_t)state, (size_t)conv);
	w.x = td__bench_rows(b, &w, b->ops->act, rows, conv + v);
	w.z = td__bench_rows(b, &w, b->ops->act, rows, 2 * c->v_heads);
	w.y = td__bench_rows(b, &w, b->ops->act, rows, v);
	td__bench_batch(b, &w, rows, replay);
	snprintf(shape, sizeof(shape), "%d heads of %d x %d, replay %d", c->v_heads, c->k_dim, c->v_dim, replay);
	td__bench_note(b, "delta rule", rows, shape, 2 * 4 * state + rows * act * (conv + 2 * v), (rows + replay) * 6 * state, td__bench_measure(b, op_gdn, &w),
		       w.copies * state * 4 >= (double)TD__COLD_BYTES / 2);
	td__bench_release(b, &w);
}

static void op_attention(struct td__bench *b, struct td__work *w)
{
	b->ops->attention(b->dev, &w->attn, &w->kv[w->turn++ % w->copies], &w->batch, w->x, w->y);
}

static void attention(struct td__bench *b, int rows)
{
	const struct td_target_config *c = &b->cfg;
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
	double act = (double)td_dtype_size(b->ops->act), cache = 2 * act * kv * b->context;
	struct td__work w = {.attn = {.heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .eps = c->eps,
				      .zero_centred = 1, .gated = 1, .causal = 1}};
	char shape[48];

	w.attn.q_norm = td__bench_floats(b, &w, c->head_dim);
	w.attn.k_norm = td__bench_floats(b, &w, c->head_dim);
	w.attn.inv_freq = td__bench_floats(b, &w, c->rotary_dim / 2 + 1);
	td__bench_cache(b, &w, kv);
	w.x = td__bench_rows(b, &w, b->ops->act, rows, 2 * q + 2 * kv);
	w.y = td__bench_rows(b, &w, b->ops->act, rows, q);
	td__bench_batch(b, &w, rows, 0);
	snprintf(shape, sizeof(shape), "%d and %d heads of %d, %d keys", c->heads, c->kv_heads, c->head_dim, b->context);
	/* keys that a row sees, not all there are: in prefill that is a good part of the arithmetic */
	td__bench_note(b, "attention", rows, shape, cache + rows * act * (3 * q + 2 * kv), 4.0 * rows * q * (b->context - (rows - 1) / 2.0),
		       td__bench_measure(b, op_attention, &w), w.copies * cache >= (double)TD__COLD_BYTES / 2);
	td__bench_release(b, &w);
}

static void op_norm(struct td__bench *b, struct td__work *w)
{
	b->ops->rms_norm(b->dev, w->x, w->norm, 1e-6f, 1, w->y);
}

static void op_swiglu(struct td__bench *b, struct td__work *w)
{
	b->ops->swiglu(b->dev, w->x, w->y);
}

static void op_embed(struct td__bench *b, struct td__work *w)
{
	b->ops->embed(b->dev, w->table, w->ids, w->y);
}

static void small(struct td__bench *b, int rows)
{
	const struct td_target_config *c = &b->cfg;
	double act = (double)td_dtype_size(b->ops->act);
	struct td__work w = {0};
	char shape[48];

	td__bench_batch(b, &w, rows, 0);
	w.ids = td__bench_device(b, &w, (size_t)rows * sizeof(int32_t));
	w.table = td__bench_tensor(b, &w, TD_BF16, 1, c->hidden); /* row 0 again and again: the table itself would be the head's size */
	w.y = td__bench_rows(b, &w, b->ops->act, rows, c->hidden);
	snprintf(shape, sizeof(shape), "%d", c->hidden);
	td__bench_note(b, "embed", rows, shape, rows * (act + 2) * c->hidden, 0, td__bench_measure(b, op_embed, &w), 0);
	w.x = td__bench_rows(b, &w, b->ops->act, rows, c->hidden);
	w.norm = td__bench_floats(b, &w, c->hidden);
	td__bench_note(b, "norm", rows, shape, rows * act * 2 * c->hidden, 4.0 * rows * c->hidden, td__bench_measure(b, op_norm, &w), 0);
	w.x = td__bench_rows(b, &w, b->ops->act, rows, 2 * c->intermediate);
	w.y = td__bench_rows(b, &w, b->ops->act, rows, c->intermediate);
	snprintf(shape, sizeof(shape), "%d", c->intermediate);
	td__bench_note(b, "swiglu", rows, shape, rows * act * 3 * c->intermediate, 8.0 * rows * c->intermediate, td__bench_measure(b, op_swiglu, &w), 0);
	td__bench_release(b, &w);
}

static void op_accept(struct td__bench *b, struct td__work *w)
{
	b->ops->accept(b->dev, &w->batch, w->x, w->x.cols, w->sampling, w->draft, w->counts, w->anchor, w->verdict);
}

static void op_propose(struct td__bench *b, struct td__work *w)
{
	b->ops->propose(b->dev, &w->batch, w->x, NULL, w->x.cols, w->sampling, w->counts, w->draft);
}

static void op_rescore(struct td__bench *b, struct td__work *w)
{
	b->ops->rescore(b->dev, w->x, w->table, w->y, NULL, w->y.cols);
}

/* What follows a head in 4 bits: the rows of the table in BF16 that its best logits are made of again. */
static void rescoring(struct td__bench *b, int rows)
{
	const struct td_target_config *c = &b->cfg;
	double act = (double)td_dtype_size(b->ops->act), best = (double)rows * TD_RESCORE * c->hidden;
	struct td__work w = {0};
	char shape[48];

	if (!(td_form_head("auto", c, 0) & TD_FORM_HEAD_EXACT))
		return;
	w.table = td__bench_tensor(b, &w, TD_BF16, c->vocab, c->hidden);
	w.x = td__bench_rows(b, &w, b->ops->act, rows, c->hidden);
	w.y = td__bench_rows(b, &w, TD_F32, rows, c->vocab);
	td__bench_batch(b, &w, rows, 0);
	snprintf(shape, sizeof(shape), "%d of %d ids, %d bf16", TD_RESCORE, c->vocab, c->hidden);
	td__bench_note(b, "rescore", rows, shape, rows * (4.0 * c->vocab + act * c->hidden) + 2 * best, 2 * best, td__bench_measure(b, op_rescore, &w), 0);
	td__bench_release(b, &w);
}

/* Greedy, as the gates of speed are. */
static void choosing(struct td__bench *b)
{
	struct td_sampling greedy = {.top_p = 1, .repetition = 1, .logprobs = -1};
	struct td_draft draft = {.n = TD_DRAFT_MAX};
	double bytes = 4.0 * b->cfg.vocab;
	struct td__work w = {0};
	char shape[48];

	w.x = td__bench_tensor(b, &w, TD_F32, TD_BLOCK_MAX, b->cfg.vocab);
	w.counts = td__bench_device(b, &w, (size_t)b->cfg.vocab * sizeof(uint16_t));
	w.anchor = td__bench_device(b, &w, sizeof(int32_t));
	w.sampling = td__bench_device(b, &w, sizeof(greedy));
	w.draft = td__bench_device(b, &w, sizeof(draft));
	w.verdict = td__bench_device(b, &w, sizeof(*w.verdict));
	if (!b->err.code) {
		b->ops->upload(b->dev, w.sampling, &greedy, sizeof(greedy));
		b->ops->upload(b->dev, w.draft, &draft, sizeof(draft));
		b->ops->sync(b->dev, &b->err);
	}
	snprintf(shape, sizeof(shape), "%d ids, greedy", b->cfg.vocab);
	td__bench_batch(b, &w, TD_BLOCK_MAX, 0);
	td__bench_note(b, "accept", TD_BLOCK_MAX, shape, TD_BLOCK_MAX * bytes, 0, td__bench_measure(b, op_accept, &w), 0);
	w.x = td_rows(w.x, 1, TD_DRAFT_MAX);
	td__bench_note(b, "propose", TD_DRAFT_MAX, shape, TD_DRAFT_MAX * bytes, 0, td__bench_measure(b, op_propose, &w), 0);
	td__bench_release(b, &w);
}

void td__bench_target(struct td__bench *b)
{
	const int rows[] = {1, TD_BLOCK_MAX, b->chunk};

	linears(b);
	gdn(b, 1, 1);
	gdn(b, TD_BLOCK_MAX, TD__REPLAYED);
	gdn(b, b->chunk, 0);
	for (int i = 0; i < 3; i++)
		attention(b, rows[i]);
	for (int i = 0; i < 3; i++)
		small(b, rows[i]);
	for (int i = 0; i < 2; i++)
		rescoring(b, rows[i]);
	choosing(b);
}
