/*
 * check_time.c: how long the operations take at Qwen3.5-4B shapes: `ops_check --time`.
 *
 * Calls are enqueued one behind another and timed by the host from the first to the end of the last, so a figure holds the launch where that is the
 * slower part (about 3 us a call). Weights, states and caches rotate among copies that don't fit in the L2 cache together. Each figure stands beside
 * the bytes that must move and their share of the read bandwidth measured on the H200.
 */
#include <time.h>

#include "tests/gpu/check.h"

static const double roof = 4240; /* GB/s */
static const size_t cache_beats = (size_t)240 << 20;

struct bench {
	struct td_linear w[64];
	struct td_tensor x, y;
	struct td_gdn gdn;
	struct td_gdn_state state;
	struct td_attn attn;
	struct td_kv kv[8];
	struct td_tensor a, b;
	struct td_batch batch;
	struct td_seq seq[16];
	int copies, accumulate;
	void *sampling, *counts, *draft, *anchor, *verdict;
};

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* The median of five runs of n calls, in microseconds a call. */
static double time_calls(void (*call)(struct bench *, int), struct bench *b, int n)
{
	double us[5];
	struct td_error err = {0};

	for (int i = 0; i < 5; i++) {
		double start;

		call(b, 0);
		if (dut.ops->sync(dut.dev, &err))
			die("measuring", &err);
		start = seconds();
		for (int k = 0; k < n; k++)
			call(b, k);
		if (dut.ops->sync(dut.dev, &err))
			die("measuring", &err);
		us[i] = (seconds() - start) / n * 1e6;
		for (int k = i; k > 0 && us[k] < us[k - 1]; k--) {
			double t = us[k];

			us[k] = us[k - 1];
			us[k - 1] = t;
		}
	}
	return us[2];
}

/* The same in a step that is kept: a graph of twenty calls, by the GPU's clock; the last of seven. */
static double time_kept(void (*call)(struct bench *, int), struct bench *b)
{
	enum { CALLS = 20 };
	static uint32_t what;
	struct td_replay r = {.who = b, .what = ++what, .ctx_max = b->batch.max_ctx, .n = 1, .batch = {&b->batch}};
	struct td_error err = {0};

	for (int i = 0; i < 7; i++) {
		if (!dut.ops->replay(dut.dev, &r)) {
			for (int k = 0; k < CALLS; k++)
				call(b, k);
			dut.ops->replay_end(dut.dev);
		}
		if (dut.ops->replay_wait(dut.dev, &err))
			die("measuring", &err);
	}
	return dut.ops->elapsed_us(dut.dev, TD_MARK_BEGIN, TD_MARK_END) / CALLS;
}

static void show(const char *what, double us, double bytes, double flops)
{
	printf("%-52s %9.1f us", what, us);
	if (bytes > 0)
		printf("  %7.0f GB/s  %5.1f %%", bytes / us * 1e-3, bytes / us * 1e-3 / roof * 100);
	if (flops > 0)
		printf("  %7.1f TFLOP/s", flops / us * 1e-6);
	printf("\n");
	fflush(stdout);
}

/* ---- linear ------------------------------------------------------------------------------------------------------------------------ */

static void call_linear(struct bench *b, int i)
{
	dut.ops->linear(dut.dev, b->x, &b->w[i % b->copies], b->y, b->accumulate);
}

/* One map packed from random data, and copies of it made on the device. */
static void linear(const char *name, enum td_weight_kind kind, int act8, int out, int in, int group, const int *rows)
{
	size_t bytes = dut.ops->pack_bytes(kind, out, in, group), words = (size_t)out * in / (kind == TD_W_INT4 ? 8 : 2),
	       groups = group ? (size_t)in / group : 1;
	uint64_t *weight = host(words * 4 + 8);
	uint16_t *scale = host((size_t)out * groups * 2);
	struct td_linear_part part = {.out = out, .weight = weight, .scale = scale};
	struct td_error err = {0};
	struct bench *b = host(sizeof(*b));
	char text[96];

	for (size_t i = 0; i < words / 2; i++) /* bf16: exponents kept small, or sums would overflow */
		weight[i] = kind == TD_W_INT4 ? rnd() : (rnd() & 0x80ff80ff80ff80ffull) | 0x3c003c003c003c00ull;
	for (size_t i = 0; i < (size_t)out * groups; i++)
		scale[i] = td_bf16(0.002f + 0.02f * rnd_uniform());
	b->copies = (int)(cache_beats / bytes) + 1;
	b->copies = b->copies > 64 ? 64 : b->copies;
	for (int i = 0; i < b->copies; i++) {
		b->w[i] = (struct td_linear){.kind = kind, .in = in, .out = out, .group = group, .act8 = act8, .data = put(&dut, NULL, bytes)};
		if (i == 0 && dut.ops->pack(dut.dev, &b->w[0], &part, 1, &err))
			die("pack", &err);
		dut.ops->copy(dut.dev, (struct td_tensor){b->w[0].data, TD_F32, 1, (int)(bytes / 4), (int)(bytes / 4), 0},
			      (struct td_tensor){b->w[i].data, TD_F32, 1, (int)(bytes / 4), (int)(bytes / 4), 0});
	}
	for (; *rows; rows++) {
		float *x = random_values((size_t)*rows * in, 1);
		struct td_seq seq = {.rows = *rows, .commit = *rows > TD_BLOCK_MAX};
		struct td_batch batch;

		make_batch(&dut, &batch, &seq, 1);

		b->x = put_act(&dut, x, *rows, in, in);
		b->y = out > 100000 ? new_f32(&dut, *rows, out, out) : new_act(&dut, *rows, out, out);
		snprintf(text, sizeof(text), "linear %s%s %d x %d, %d rows", name, act8 ? " act8" : "", out, in, *rows);
		show(text,
		     time_calls(call_linear, b,
				bytes > cache_beats ? 20
				: *rows > 64	    ? 40
						    : 400),
		     *rows > 64 ? 0 : (double)bytes, *rows > 64 ? 2.0 * out * in * *rows : 0);
	}
	drop_all();
}

/* ---- layers ------------------------------------------------------------------------------------------------------------------------ */

enum { GDN_SLOTS = 48, GDN_CHANNELS = 8192, GDN_HEADS = 32 };

/* Each call has another layer's state, as in a step: one batch for all, set before. */
static void call_gdn(struct bench *b, int i)
{
	size_t slot = (size_t)(i % (GDN_SLOTS / b->batch.n_seq) * b->batch.n_seq), act = td_dtype_size(dut.ops->act);
	struct td_gdn_state st = b->state;

	st.s += slot * GDN_HEADS * 128 * 128;
	st.tail = (char *)st.tail + slot * TD_CONV_TAIL * GDN_CHANNELS * act;
	st.ring_m = (char *)st.ring_m + slot * TD_BLOCK_MAX * GDN_CHANNELS * act;
	st.ring_ba += slot * TD_BLOCK_MAX * 2 * GDN_HEADS;
	dut.ops->gdn(dut.dev, &b->gdn, &st, &b->batch, b->x, b->a, b->y);
}

static void gdn(int n_seq, int rows, int replay, int commit)
{
	enum { C = GDN_CHANNELS, WIDE = 4096, HEADS = GDN_HEADS };
	struct bench *b = host(sizeof(*b));
	int all = n_seq * rows;
	char text[96];

	b->gdn = (struct td_gdn){.k_heads = 16, .v_heads = HEADS, .k_dim = 128, .v_dim = 128, .eps = 1e-6f};
	b->gdn.conv = put(&dut, random_values(C * 4, 0.5f), C * 16);
	b->gdn.a_log = put(&dut, random_values(HEADS, 0.5f), HEADS * 4);
	b->gdn.dt_bias = put(&dut, random_values(HEADS, 0.5f), HEADS * 4);
	b->gdn.norm = put(&dut, random_values(128, 1), 512);
	b->state.s = put(&dut, NULL, (size_t)GDN_SLOTS * HEADS * 128 * 128 * 4);
	b->state.tail = put(&dut, NULL, (size_t)GDN_SLOTS * TD_CONV_TAIL * C * 4);
	b->state.ring_m = put(&dut, NULL, (size_t)GDN_SLOTS * TD_BLOCK_MAX * C * 4);
	b->state.ring_ba = put(&dut, NULL, (size_t)GDN_SLOTS * TD_BLOCK_MAX * HEADS * 8);
	b->x = put_act(&dut, random_values((size_t)all * (C + WIDE), 1), all, C + WIDE, C + WIDE);
	b->a = put_f32(&dut, random_values((size_t)all * HEADS * 2, 1), all, HEADS * 2, HEADS * 2);
	b->y = new_act(&dut, all, WIDE, WIDE);
	for (int i = 0; i < n_seq; i++)
		b->seq[i] = (struct td_seq){.slot = i, .rows = rows, .row0 = i * rows, .pos0 = 0, .replay = replay, .commit = commit};
	make_batch(&dut, &b->batch, b->seq, n_seq);
	snprintf(text, sizeof(text), "gdn, %d x %d rows%s, %d replayed", n_seq, rows, commit ? " final" : "", replay);
	show(text, time_calls(call_gdn, b, rows > 16 ? 50 : 200),
	     rows > 16 ? 0 : n_seq * ((2.0 - (replay == 0 && !commit)) * HEADS * 128 * 128 * 4 + rows * (C + 2.0 * WIDE) * 2), 0);
	drop_all();
}

static void call_attention(struct bench *b, int i)
{
	dut.ops->attention(dut.dev, &b->attn, &b->kv[i % b->copies], &b->batch, b->x, b->y);
}

static void call_draft(struct bench *b, int i)
{
	dut.ops->draft_attention(dut.dev, &b->attn, &b->kv[i % b->copies], &b->batch, b->x, b->y);
}

/* `n` sequences of the same length, `rows` each. */
static void attention(int draft, int context, int rows, int n)
{
	int heads = draft ? 32 : 16, kv_heads = draft ? 8 : 4, dim = draft ? 128 : 256, pages = (context + rows + TD_PAGE - 1) / TD_PAGE;
	size_t cache = (size_t)n * pages * kv_heads * TD_PAGE * dim;
	struct bench *b = host(sizeof(*b));
	int32_t *table = host((size_t)n * pages * 4);
	float *norm = random_values((size_t)dim, 0.2f), *freq = host((size_t)dim * 4);
	int cols = ((draft ? 1 : 2) * heads + 2 * kv_heads) * dim;
	char text[96];

	for (int i = 0; i < n * pages; i++)
		table[i] = n * pages - 1 - i;
	b->attn = (struct td_attn){.heads = heads,
				   .kv_heads = kv_heads,
				   .head_dim = dim,
				   .rotary_dim = draft ? 128 : 64,
				   .eps = 1e-6f,
				   .zero_centred = !draft,
				   .gated = !draft};
	b->attn.q_norm = b->attn.k_norm = put(&dut, norm, (size_t)dim * 4);
	b->attn.inv_freq = put(&dut, freq, (size_t)dim * 4);
	b->copies = n > 1 ? 2 : 8;
	for (int i = 0; i < b->copies; i++) {
		b->kv[i] = (struct td_kv){.max_pages = pages, .table = put(&dut, table, (size_t)n * pages * 4)};
		b->kv[i].k = put_act(&dut, random_values(cache, 1), 1, (int)cache, (int)cache).data;
		b->kv[i].v = put_act(&dut, random_values(cache, 1), 1, (int)cache, (int)cache).data;
	}
	b->x = put_act(&dut, random_values((size_t)n * rows * cols, 1), n * rows, cols, cols);
	b->y = new_act(&dut, n * rows, heads * dim, heads * dim);
	for (int i = 0; i < n; i++)
		b->seq[i] = (struct td_seq){.slot = i, .row0 = i * rows, .rows = rows, .pos0 = context, .commit = rows > TD_BLOCK_MAX};
	make_batch(&dut, &b->batch, b->seq, n);
	snprintf(text, sizeof(text), n > 1 ? "%s at %d, %d rows, %d sequences" : "%s at %d, %d rows", draft ? "draft_attention" : "attention", context, rows, n);
	show(text, time_calls(draft ? call_draft : call_attention, b, rows > 16 ? 20 : 200), rows > 16 ? 0 : (double)n * context * kv_heads * dim * 4,
	     rows > 16 ? 4.0 * heads * dim * rows * (context + rows / 2.0) : 0);
	if (rows <= 16)
		show("  the same in a graph", time_kept(draft ? call_draft : call_attention, b), (double)n * context * kv_heads * dim * 4, 0);
	drop_all();
}

/* ---- the rest ---------------------------------------------------------------------------------------------------------------------- */

static void call_norm(struct bench *b, int i)
{
	(void)i;
	dut.ops->rms_norm(dut.dev, b->x, b->gdn.norm, 1e-6f, 1, b->y);
}

static void call_swiglu(struct bench *b, int i)
{
	(void)i;
	dut.ops->swiglu(dut.dev, b->a, b->b);
}

static void call_accept(struct bench *b, int i)
{
	(void)i;
	dut.ops->accept(dut.dev, &b->batch, b->x, 248077, b->sampling, b->draft, b->counts, b->anchor, b->verdict);
}

static void call_rescore(struct bench *b, int i)
{
	(void)i;
	dut.ops->rescore(dut.dev, b->a, b->b, b->x, NULL, 248077);
}

static void call_propose(struct bench *b, int i)
{
	(void)i;
	dut.ops->propose(dut.dev, &b->batch, td_rows(b->x, 0, 15), NULL, 248077, b->sampling, b->counts, b->draft);
}

static void rest(void)
{
	struct bench *b = host(sizeof(*b));
	struct td_sampling *s = host(sizeof(*s));
	float *logits;

	for (int rows = 16; rows <= 2048; rows += 2032) {
		char text[64];

		b = host(sizeof(*b));
		b->gdn.norm = put(&dut, random_values(2560, 1), 2560 * 4);
		b->x = put_f32(&dut, random_values((size_t)rows * 2560, 1), rows, 2560, 2560);
		b->y = new_act(&dut, rows, 2560, 2560);
		b->a = put_act(&dut, random_values((size_t)rows * 18432, 1), rows, 18432, 18432);
		b->b = new_act(&dut, rows, 9216, 9216);
		snprintf(text, sizeof(text), "rms_norm (%d, 2560) of f32", rows);
		show(text, time_calls(call_norm, b, 400), rows > 16 ? rows * 2560 * 6.0 : 0, 0);
		snprintf(text, sizeof(text), "swiglu (%d, 18432)", rows);
		show(text, time_calls(call_swiglu, b, 400), rows > 16 ? rows * 9216 * 6.0 : 0, 0);
		drop_all();
	}
	for (int sampled = 0; sampled < 2; sampled++) {
		b = host(sizeof(*b));
		s = host(sizeof(*s));
		*s = (struct td_sampling){
			.temperature = sampled ? 0.8f : 0, .top_p = sampled ? 0.95f : 1, .top_k = sampled ? 20 : 0, .repetition = 1, .logprobs = -1};
		logits = random_values((size_t)16 * 248320, 3);
		b->x = put_f32(&dut, logits, 16, 248320, 248320);
		b->sampling = put(&dut, s, sizeof(*s));
		b->counts = put(&dut, NULL, 248320 * 2);
		b->draft = put(&dut, NULL, sizeof(struct td_draft));
		b->anchor = put(&dut, NULL, 4);
		b->verdict = put(&dut, NULL, sizeof(struct td_verdict));
		b->seq[0] = (struct td_seq){.rows = 16};
		make_batch(&dut, &b->batch, b->seq, 1);
		show(sampled ? "propose 15 x 248320, T 0.8 top_k 20 top_p 0.95" : "propose 15 x 248320, greedy", time_calls(call_propose, b, 50),
		     15 * 248077 * 4.0, 0);
		show(sampled ? "accept 16 x 248320, T 0.8 top_k 20 top_p 0.95" : "accept 16 x 248320, greedy", time_calls(call_accept, b, 50),
		     16 * 248077 * 4.0, 0);
		show("  the same in a graph: propose", time_kept(call_propose, b), 15 * 248077 * 4.0, 0);
		show("  accept", time_kept(call_accept, b), 16 * 248077 * 4.0, 0);
		drop_all();
	}
	b = host(sizeof(*b));
	b->x = put_f32(&dut, random_values((size_t)16 * 248320, 3), 16, 248320, 248320);
	b->a = put_act(&dut, random_values((size_t)16 * 2560, 1), 16, 2560, 2560);
	b->b = put_act(&dut, random_values((size_t)248320 * 2560, 1), 248320, 2560, 2560);
	show("rescore 16 x 248320", time_calls(call_rescore, b, 50), 16 * 248077 * 4.0, 0);
	drop_all();
}

static void linears(void)
{
	static const int few[] = {1, 16, 32, 64, 256, 512, 2048, 0}, head[] = {1, 16, 0}, out[] = {1, 16, 512, 2048, 0};

	linear("INT4 g128", TD_W_INT4, 0, 12288, 2560, 128, few);
	linear("INT4 g32", TD_W_INT4, 0, 12288, 2560, 32, head);
	linear("INT4 g128", TD_W_INT4, 0, 18432, 2560, 128, few);
	linear("INT4 g128", TD_W_INT4, 0, 2560, 4096, 128, out);
	linear("INT4 g128", TD_W_INT4, 0, 2560, 9216, 128, few);
	linear("BF16", TD_W_BF16, 0, 64, 2560, 0, head);
	linear("INT4 g128 head", TD_W_INT4, 0, 248320, 2560, 128, head);
	linear("INT4 g128", TD_W_INT4, 1, 12288, 2560, 128, few);
	linear("INT4 g32", TD_W_INT4, 1, 12288, 2560, 32, head);
	linear("INT4 g128", TD_W_INT4, 1, 18432, 2560, 128, few);
	linear("INT4 g128", TD_W_INT4, 1, 2560, 4096, 128, out);
	linear("INT4 g128", TD_W_INT4, 1, 2560, 9216, 128, few);
	linear("INT4 g128 head", TD_W_INT4, 1, 248320, 2560, 128, head);
	linear("BF16 head", TD_W_BF16, 0, 248320, 2560, 0, head);
}

static void gdns(void)
{
	gdn(1, 1, 1, 0);
	gdn(1, 16, 0, 0);
	gdn(1, 16, 5, 0);
	gdn(4, 16, 5, 0);
	gdn(16, 16, 5, 0);
	gdn(1, 256, 0, 1);
	gdn(1, 512, 0, 1);
	gdn(1, 1024, 0, 1);
	gdn(1, 2048, 0, 1);
}

static void attentions(void)
{
	attention(0, 2048, 1, 1);
	attention(0, 2048, 16, 1);
	attention(0, 8192, 16, 1);
	attention(0, 2048, 16, 8);
	attention(0, 7680, 512, 1);
	attention(0, 0, 2048, 1);
	attention(0, 6144, 2048, 1);
	attention(1, 2048, 16, 1);
	attention(1, 8192, 16, 1);
	attention(1, 2048, 16, 8);
}

void measure(const char *only)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} part[] = {{"linear", linears}, {"gdn", gdns}, {"attention", attentions}, {"sample", rest}};

	for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
		if (strstr(part[i].name, only))
			part[i].run();
}
