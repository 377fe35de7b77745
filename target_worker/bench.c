/*
 * bench.c: what each operation takes at a model's shapes, next to what the machine can do (bench.h).
 *
 * Shapes come from the configuration alone, contents are random: an operation's time doesn't depend on them. Rows: 1 (plain decoding), TD_BLOCK_MAX
 * (a verify), CHUNK (prefill). Linear maps go through several copies of their weights in turn, so that no cache holds what memory would have to
 * deliver while serving. Times are medians of SAMPLES runs, each long enough for the clock.
 *
 * Two roofs are measured in the same run: bandwidth is the best that was seen from memory (a copy, a large BF16 matrix past one row, the maps
 * themselves), arithmetic the best of all products, a dense BF16 one of ROOF_ROWS rows among them. An operation's share is the time that the nearer
 * roof would allow over the time that it took; it may exceed 1 where everything lies in a cache. Bytes are those that must move (weights, state,
 * cache, rows in and out), once.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/clock.h"
#include "engine/model.h"
#include "target_worker/bench.h"

enum { SAMPLES = 5, COPIES_MAX = 32, CHUNK = 256, ROOF_ROWS = 512, ROOF_SIDE = 2048, STREAM_OUT = 8192, STREAM_IN = 4096, REPLAY = 6, OPS_MAX = 96 };
#define COLD_BYTES ((size_t)192 << 20) /* weights of one map in turn: more than a cache holds */

struct result {
	char name[32], shape[48];
	int rows, cold; /* cold: what moved came from memory for sure, not from a cache */
	double bytes, flops, us;
};

struct bench {
	const struct td_ops *ops;
	struct td_dev *dev;
	struct td_target_config cfg;
	int context, ms;
	uint32_t random;
	struct result result[OPS_MAX];
	int n;
	struct td_error err; /* the first one; nothing is measured after it */
};

/* What an operation works on; each uses some of it. */
struct work {
	struct td_linear w[COPIES_MAX];
	int copies, turn;
	struct td_tensor x, y, z, table;
	struct td_batch batch;
	struct td_seq seq;
	struct td_attn attn;
	struct td_kv kv;
	struct td_gdn gdn;
	struct td_gdn_state state;
	const float *norm;
	int32_t *ids, *anchor;
	uint16_t *counts;
	struct td_sampling *sampling;
	struct td_draft *draft;
	struct td_verdict *verdict;
	void *held[96]; /* freed at the end */
	int n_held;
};

/* ---- memory ------------------------------------------------------------------------------------------------------------------------- */

static uint32_t next(struct bench *b)
{
	b->random = b->random * 1664525u + 1013904223u;
	return b->random >> 8;
}

static void *device(struct bench *b, struct work *w, size_t bytes)
{
	void *p = b->err.code ? NULL : b->ops->alloc(b->dev, bytes, &b->err);

	if (p && w->n_held < (int)(sizeof(w->held) / sizeof(*w->held)))
		w->held[w->n_held++] = p;
	return p;
}

static void release(struct bench *b, struct work *w)
{
	b->ops->sync(b->dev, NULL);
	while (w->n_held > 0)
		b->ops->free(b->dev, w->held[--w->n_held]);
}

/* BF16 words of magnitude about 0.01, of either sign; as float32 words they are as small. */
static void *random_host(struct bench *b, size_t bytes, int packed)
{
	uint32_t *p = malloc(bytes + 4);
	size_t i;

	if (!p) {
		td_error_set(&b->err, TD_E_NOMEM, "bench-ops: no memory for %zu MiB of random weights", bytes >> 20);
		return NULL;
	}
	for (i = 0; i <= bytes / 4; i++)
		p[i] = packed ? next(b) * 2654435761u : (next(b) & 0x80ff80ffu) | 0x3c003c00u;
	return p;
}

static struct td_tensor tensor(struct bench *b, struct work *w, enum td_dtype type, int rows, int cols)
{
	size_t bytes = (size_t)rows * (size_t)cols * td_dtype_size(type);
	struct td_tensor t = {device(b, w, bytes), type, rows, cols, cols};
	void *host = t.data ? random_host(b, bytes, 0) : NULL;

	if (host) {
		b->ops->upload(b->dev, t.data, host, bytes);
		b->ops->sync(b->dev, &b->err);
	}
	free(host);
	return t;
}

static const float *floats(struct bench *b, struct work *w, int n)
{
	return tensor(b, w, TD_F32, 1, n).data;
}

/* One sequence whose last row is at the end of the context. */
static void batch(struct bench *b, struct work *w, int rows, int replay)
{
	w->seq = (struct td_seq){.rows = rows, .pos0 = b->context - rows, .replay = replay, .commit = rows > TD_BLOCK_MAX};
	w->batch = (struct td_batch){.n_seq = 1, .n_rows = rows, .max_rows = rows, .max_ctx = b->context, .seq = &w->seq};
	if (!b->err.code)
		b->ops->batch_set(b->dev, &w->batch);
}

/* ---- measuring ---------------------------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double run_us(struct bench *b, void (*op)(struct bench *, struct work *), struct work *w, long times)
{
	uint64_t from;
	long i;

	b->ops->sync(b->dev, &b->err);
	from = td_now_us();
	for (i = 0; i < times; i++)
		op(b, w);
	b->ops->sync(b->dev, &b->err);
	return (double)(td_now_us() - from) / (double)times;
}

/* Median time of one call in microseconds, 0 after a failure. */
static double measure(struct bench *b, void (*op)(struct bench *, struct work *), struct work *w)
{
	double sample[SAMPLES], once;
	long times;
	int i;

	if (b->err.code)
		return 0;
	run_us(b, op, w, 1);
	once = run_us(b, op, w, 2);
	times = (long)(b->ms * 1000.0 / SAMPLES / (once > 0.2 ? once : 0.2));
	times = times < 1 ? 1 : times > 100000 ? 100000 : times;
	for (i = 0; i < SAMPLES && !b->err.code; i++)
		sample[i] = run_us(b, op, w, times);
	if (b->err.code)
		return 0;
	qsort(sample, SAMPLES, sizeof(*sample), compare);
	return sample[SAMPLES / 2] > 1e-3 ? sample[SAMPLES / 2] : 1e-3;
}

static void note(struct bench *b, const char *name, int rows, const char *shape, double bytes, double flops, double us, int cold)
{
	struct result *r = &b->result[b->n];

	if (b->err.code || b->n == OPS_MAX)
		return;
	*r = (struct result){.rows = rows, .cold = cold, .bytes = bytes, .flops = flops, .us = us};
	snprintf(r->name, sizeof(r->name), "%s", name);
	snprintf(r->shape, sizeof(r->shape), "%s", shape);
	b->n++;
}

/* ---- linear maps -------------------------------------------------------------------------------------------------------------------- */

static void op_linear(struct bench *b, struct work *w)
{
	b->ops->linear(b->dev, w->x, &w->w[w->turn++ % w->copies], w->y, 0);
}

static void pack(struct bench *b, struct work *w, enum td_weight_kind kind, int in, int out, int group)
{
	size_t bytes = b->ops->pack_bytes(kind, out, in, group), n;
	void *weight, *scale = NULL;
	struct td_linear_part part = {.out = out};

	n = bytes ? COLD_BYTES / bytes + 1 : 1;
	weight = random_host(b, kind == TD_W_INT4 ? (size_t)out * (size_t)in / 2 : (size_t)out * (size_t)in * 2, kind == TD_W_INT4);
	if (kind == TD_W_INT4)
		scale = random_host(b, (size_t)out * (size_t)(in / group) * 2, 0);
	part.weight = weight;
	part.scale = scale;
	for (w->copies = 0; !b->err.code && w->copies < COPIES_MAX && (size_t)w->copies < n;) {
		struct td_linear *l = &w->w[w->copies];

		*l = (struct td_linear){.kind = kind, .in = in, .out = out, .group = group, .data = device(b, w, bytes)};
		if (!b->err.code && !b->ops->pack(b->dev, l, &part, 1, &b->err))
			w->copies++;
	}
	b->ops->sync(b->dev, &b->err);
	free(weight);
	free(scale);
}

static void linear(struct bench *b, const char *name, enum td_weight_kind kind, int in, int out, int group, int logits)
{
	static const int rows[] = {1, TD_BLOCK_MAX, CHUNK};
	enum td_dtype result = logits ? TD_F32 : b->ops->act;
	struct work w = {0};
	char shape[48];
	size_t i;

	pack(b, &w, kind, in, out, group);
	snprintf(shape, sizeof(shape), "%d x %d %s", out, in, kind == TD_W_INT4 ? "int4" : "bf16");
	for (i = 0; i < 3u - (unsigned)logits && !b->err.code; i++) {
		double n = rows[i];

		w.x = tensor(b, &w, b->ops->act, rows[i], in);
		w.y = tensor(b, &w, result, rows[i], out);
		batch(b, &w, rows[i], 0);
		note(b, name, rows[i], shape,
		     (double)b->ops->pack_bytes(kind, out, in, group) + n * (in * (double)td_dtype_size(b->ops->act) + out * (double)td_dtype_size(result)),
		     2 * n * in * out, measure(b, op_linear, &w), (double)w.copies * (double)b->ops->pack_bytes(kind, out, in, group) >= (double)COLD_BYTES / 2);
	}
	release(b, &w);
}

static void linears(struct bench *b)
{
	const struct td_target_config *c = &b->cfg;
	enum td_weight_kind kind = c->quant.bits == 4 ? TD_W_INT4 : TD_W_BF16;
	int v = c->v_heads * c->v_dim, conv = 2 * c->k_heads * c->k_dim + v, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, i, has[2] = {0, 0};
	int group = kind == TD_W_INT4 ? c->quant.size[0] : 0;

#define GROUP(in) (group > 0 ? group : (in)) /* -1: a scale for a whole row */
	for (i = 0; i < c->layers; i++)
		has[c->full_attention[i] != 0] = 1;
	if (has[0]) {
		linear(b, "qkvz", kind, c->hidden, conv + v, GROUP(c->hidden), 0);
		linear(b, "ba", TD_W_BF16, c->hidden, 2 * c->v_heads, 0, 0);
		linear(b, "delta out", kind, v, c->hidden, GROUP(v), 0);
	}
	if (has[1]) {
		linear(b, "qkv", kind, c->hidden, 2 * q + 2 * kv, GROUP(c->hidden), 0);
		linear(b, "attention out", kind, q, c->hidden, GROUP(q), 0);
	}
	linear(b, "gate and up", kind, c->hidden, 2 * c->intermediate, GROUP(c->hidden), 0);
	linear(b, "down", kind, c->intermediate, c->hidden, GROUP(c->intermediate), 0);
	linear(b, "head", TD_W_BF16, c->hidden, c->vocab, 0, 1);
#undef GROUP
}

/* ---- the others --------------------------------------------------------------------------------------------------------------------- */

static void op_gdn(struct bench *b, struct work *w)
{
	b->ops->gdn(b->dev, &w->gdn, &w->state, &w->batch, w->x, w->z, w->y);
}

static void gdn(struct bench *b, int rows, int replay)
{
	const struct td_target_config *c = &b->cfg;
	int v = c->v_heads * c->v_dim, conv = 2 * c->k_heads * c->k_dim + v;
	double act = (double)td_dtype_size(b->ops->act), state = (double)c->v_heads * c->k_dim * c->v_dim;
	struct work w = {.gdn = {.k_heads = c->k_heads, .v_heads = c->v_heads, .k_dim = c->k_dim, .v_dim = c->v_dim, .eps = c->eps}};
	char shape[48];

	w.gdn.conv = floats(b, &w, 4 * conv);
	w.gdn.a_log = floats(b, &w, c->v_heads);
	w.gdn.dt_bias = floats(b, &w, c->v_heads);
	w.gdn.norm = floats(b, &w, c->v_dim);
	w.state.s = (float *)floats(b, &w, (int)state);
	w.state.tail = tensor(b, &w, b->ops->act, TD_CONV_TAIL, conv).data;
	w.state.ring_m = tensor(b, &w, b->ops->act, TD_BLOCK_MAX, conv).data;
	w.state.ring_ba = (float *)floats(b, &w, TD_BLOCK_MAX * 2 * c->v_heads);
	w.x = tensor(b, &w, b->ops->act, rows, conv + v);
	w.z = tensor(b, &w, b->ops->act, rows, 2 * c->v_heads);
	w.y = tensor(b, &w, b->ops->act, rows, v);
	batch(b, &w, rows, replay);
	snprintf(shape, sizeof(shape), "%d heads of %d x %d, replay %d", c->v_heads, c->k_dim, c->v_dim, replay);
	note(b, "delta rule", rows, shape, 2 * 4 * state + rows * act * (conv + 2 * v), (rows + replay) * 6 * state, measure(b, op_gdn, &w), 0);
	release(b, &w);
}

static void op_attention(struct bench *b, struct work *w)
{
	b->ops->attention(b->dev, &w->attn, &w->kv, &w->batch, w->x, w->y);
}

static void attention(struct bench *b, int rows)
{
	const struct td_target_config *c = &b->cfg;
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, pages = (b->context + TD_PAGE - 1) / TD_PAGE, i;
	double act = (double)td_dtype_size(b->ops->act);
	struct work w = {.attn = {.heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .eps = c->eps,
				  .zero_centred = 1, .gated = 1, .causal = 1}};
	int32_t *table = malloc((size_t)pages * sizeof(*table));
	char shape[48];

	for (i = 0; table && i < pages; i++)
		table[i] = pages - 1 - i;
	w.attn.q_norm = floats(b, &w, c->head_dim);
	w.attn.k_norm = floats(b, &w, c->head_dim);
	w.attn.inv_freq = floats(b, &w, c->rotary_dim / 2 + 1);
	w.kv.k = tensor(b, &w, b->ops->act, pages * TD_PAGE, kv).data;
	w.kv.v = tensor(b, &w, b->ops->act, pages * TD_PAGE, kv).data;
	w.kv.table = device(b, &w, (size_t)pages * sizeof(*table));
	w.kv.max_pages = pages;
	if (table && !b->err.code) {
		b->ops->upload(b->dev, (void *)w.kv.table, table, (size_t)pages * sizeof(*table));
		b->ops->sync(b->dev, &b->err);
	}
	w.x = tensor(b, &w, b->ops->act, rows, 2 * q + 2 * kv);
	w.y = tensor(b, &w, b->ops->act, rows, q);
	batch(b, &w, rows, 0);
	snprintf(shape, sizeof(shape), "%d and %d heads of %d, %d keys", c->heads, c->kv_heads, c->head_dim, b->context);
	if (table)
		note(b, "attention", rows, shape, 2 * act * kv * b->context + rows * act * (3 * q + 2 * kv), 4.0 * rows * q * b->context,
		     measure(b, op_attention, &w), 0);
	free(table);
	release(b, &w);
}

static void op_norm(struct bench *b, struct work *w)
{
	b->ops->rms_norm(b->dev, w->x, w->norm, 1e-6f, 1, w->y);
}

static void op_swiglu(struct bench *b, struct work *w)
{
	b->ops->swiglu(b->dev, w->x, w->y);
}

static void op_embed(struct bench *b, struct work *w)
{
	b->ops->embed(b->dev, w->table, w->ids, w->y);
}

static void small(struct bench *b, int rows)
{
	const struct td_target_config *c = &b->cfg;
	double act = (double)td_dtype_size(b->ops->act);
	struct work w = {0};
	char shape[48];

	batch(b, &w, rows, 0);
	w.ids = device(b, &w, (size_t)rows * sizeof(int32_t));
	w.table = tensor(b, &w, TD_BF16, 1, c->hidden); /* row 0 again and again: the table itself would be the head's size */
	w.y = tensor(b, &w, b->ops->act, rows, c->hidden);
	snprintf(shape, sizeof(shape), "%d", c->hidden);
	note(b, "embed", rows, shape, rows * (act + 2) * c->hidden, 0, measure(b, op_embed, &w), 0);
	w.x = tensor(b, &w, b->ops->act, rows, c->hidden);
	w.norm = floats(b, &w, c->hidden);
	note(b, "norm", rows, shape, rows * act * 2 * c->hidden, 4.0 * rows * c->hidden, measure(b, op_norm, &w), 0);
	w.x = tensor(b, &w, b->ops->act, rows, 2 * c->intermediate);
	w.y = tensor(b, &w, b->ops->act, rows, c->intermediate);
	snprintf(shape, sizeof(shape), "%d", c->intermediate);
	note(b, "swiglu", rows, shape, rows * act * 3 * c->intermediate, 8.0 * rows * c->intermediate, measure(b, op_swiglu, &w), 0);
	release(b, &w);
}

static void op_accept(struct bench *b, struct work *w)
{
	b->ops->accept(b->dev, &w->batch, w->x, w->x.cols, w->sampling, w->draft, w->counts, w->anchor, w->verdict);
}

static void op_propose(struct bench *b, struct work *w)
{
	b->ops->propose(b->dev, &w->batch, w->x, w->x.cols, w->sampling, w->counts, w->draft);
}

/* Greedy, as the gates of speed are. */
static void choosing(struct bench *b)
{
	struct td_sampling greedy = {.top_p = 1, .repetition = 1, .logprobs = -1};
	struct td_draft draft = {.n = TD_DRAFT_MAX};
	double bytes = 4.0 * b->cfg.vocab;
	struct work w = {0};
	char shape[48];

	w.x = tensor(b, &w, TD_F32, TD_BLOCK_MAX, b->cfg.vocab);
	w.counts = device(b, &w, (size_t)b->cfg.vocab * sizeof(uint16_t));
	w.anchor = device(b, &w, sizeof(int32_t));
	w.sampling = device(b, &w, sizeof(greedy));
	w.draft = device(b, &w, sizeof(draft));
	w.verdict = device(b, &w, sizeof(*w.verdict));
	if (!b->err.code) {
		b->ops->upload(b->dev, w.sampling, &greedy, sizeof(greedy));
		b->ops->upload(b->dev, w.draft, &draft, sizeof(draft));
		b->ops->sync(b->dev, &b->err);
	}
	snprintf(shape, sizeof(shape), "%d ids, greedy", b->cfg.vocab);
	batch(b, &w, TD_BLOCK_MAX, 0);
	note(b, "accept", TD_BLOCK_MAX, shape, TD_BLOCK_MAX * bytes, 0, measure(b, op_accept, &w), 0);
	w.x = td_rows(w.x, 1, TD_DRAFT_MAX);
	note(b, "propose", TD_DRAFT_MAX, shape, TD_DRAFT_MAX * bytes, 0, measure(b, op_propose, &w), 0);
	release(b, &w);
}

/* ---- roofs -------------------------------------------------------------------------------------------------------------------------- */

static void op_copy(struct bench *b, struct work *w)
{
	b->ops->copy(b->dev, w->x, w->y);
}

static void roofs(struct bench *b)
{
	double act = (double)td_dtype_size(b->ops->act);
	struct work w = {0};

	w.x = tensor(b, &w, b->ops->act, 4096, 4096);
	w.y = tensor(b, &w, b->ops->act, 4096, 4096);
	batch(b, &w, 1, 0);
	note(b, "roof: copy", 4096, "4096", 2 * act * 4096 * 4096, 0, measure(b, op_copy, &w), 1);
	release(b, &w);
	pack(b, &w, TD_W_BF16, STREAM_IN, STREAM_OUT, 0);
	w.x = tensor(b, &w, b->ops->act, 1, STREAM_IN);
	w.y = tensor(b, &w, b->ops->act, 1, STREAM_OUT);
	batch(b, &w, 1, 0);
	note(b, "roof: stream", 1, "8192 x 4096 bf16", 2.0 * STREAM_IN * STREAM_OUT, 2.0 * STREAM_IN * STREAM_OUT, measure(b, op_linear, &w), 1);
	release(b, &w);
	w.turn = 0;
	pack(b, &w, TD_W_BF16, ROOF_SIDE, ROOF_SIDE, 0);
	w.x = tensor(b, &w, b->ops->act, ROOF_ROWS, ROOF_SIDE);
	w.y = tensor(b, &w, b->ops->act, ROOF_ROWS, ROOF_SIDE);
	batch(b, &w, ROOF_ROWS, 0);
	note(b, "roof: product", ROOF_ROWS, "2048 x 2048 bf16", 2.0 * ROOF_SIDE * ROOF_SIDE + ROOF_ROWS * act * 2 * ROOF_SIDE,
	     2.0 * ROOF_ROWS * ROOF_SIDE * ROOF_SIDE, measure(b, op_linear, &w), 1);
	release(b, &w);
}

/* ---- telling ------------------------------------------------------------------------------------------------------------------------ */

static json_t *report(const struct bench *b, const char *model)
{
	double bandwidth = 0, arithmetic = 0, rate; /* per microsecond */
	char device_text[256] = "";
	json_t *rows = json_array();
	int i;

	for (i = 0; i < b->n; i++) {
		rate = b->result[i].bytes / b->result[i].us;
		bandwidth = b->result[i].cold && rate > bandwidth ? rate : bandwidth;
		rate = b->result[i].flops / b->result[i].us;
		arithmetic = rate > arithmetic ? rate : arithmetic;
	}
	b->ops->describe(b->dev, device_text, sizeof(device_text));
	for (i = 0; i < b->n; i++) {
		const struct result *r = &b->result[i];
		double memory_us = r->bytes / bandwidth, arithmetic_us = r->flops / arithmetic, roof = fmax(memory_us, arithmetic_us);

		json_array_append_new(rows, json_pack("{s:s, s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:s, s:f, s:b}", "name", r->name, "rows", r->rows, "shape", r->shape,
						      "us", r->us, "bytes", r->bytes, "flop", r->flops, "gb_per_s", r->bytes / r->us / 1e3, "gflop_per_s",
						      r->flops / r->us / 1e3, "bound", memory_us >= arithmetic_us ? "memory" : "arithmetic", "roof_share", roof / r->us,
						      "from_memory", r->cold));
	}
	return json_pack("{s:s, s:s, s:s, s:s, s:i, s:f, s:f, s:o}", "suite", "ops", "backend", b->ops->name, "device", device_text, "model", model, "context",
			 b->context, "roof_gb_per_s", bandwidth / 1e3, "roof_gflop_per_s", arithmetic / 1e3, "ops", rows);
}

static int measure_all(struct bench *b)
{
	static const int rows[] = {1, TD_BLOCK_MAX, CHUNK};
	size_t i;

	roofs(b);
	linears(b);
	gdn(b, 1, 1);
	gdn(b, TD_BLOCK_MAX, REPLAY);
	gdn(b, CHUNK, 0);
	for (i = 0; i < 3; i++)
		attention(b, rows[i]);
	for (i = 0; i < 3; i++)
		small(b, rows[i]);
	choosing(b);
	if (!b->err.code)
		b->ops->sync(b->dev, &b->err);
	return b->err.code;
}

int td_target_bench(int argc, char **argv)
{
	struct td_dev_options opt = {.slots = 1};
	struct bench b = {.random = 1};
	struct td_error err;
	json_t *j = NULL;
	int rc = -1;

	if (argc != 6) {
		fprintf(stderr, "usage: tandem-target bench-ops DEVICE MODEL CONTEXT MILLISECONDS THREADS\n");
		return 2;
	}
	b.context = atoi(argv[3]);
	b.ms = atoi(argv[4]);
	opt.threads = atoi(argv[5]);
	if (b.context < CHUNK || b.context > 1 << 20 || b.ms < 1 || opt.threads < 0)
		td_error_set(&err, TD_E_INVALID, "bench-ops: the context is a number from %d to 1048576, the time one from 1 on", CHUNK);
	else if (!td_target_config_load(argv[2], &b.cfg, &err) && (b.ops = td_ops_find(argv[1], &err)) && !b.ops->open(&b.dev, &opt, &err)) {
		rc = measure_all(&b);
		err = b.err;
		j = rc ? NULL : report(&b, argv[2]);
	}
	if (j && !json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) && putchar('\n') != EOF && !fflush(stdout))
		rc = 0;
	else
		fprintf(stderr, "%s\n", rc ? err.text : "bench-ops: the result can't be written");
	json_decref(j);
	if (b.dev)
		b.ops->close(b.dev);
	return rc ? 1 : 0;
}
