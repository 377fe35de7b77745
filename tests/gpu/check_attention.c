/*
 * check_attention.c: the target's attention and the drafter's, over a paged cache with scattered pages; row invariance.
 */
#include "tests/gpu/check.h"

enum { SLOTS = 3 };

struct layer {
	struct td_attn w[2];
	struct td_kv kv[2];
	int pages;
	size_t cache; /* elements of k and of v */
};

static struct side *sides[2] = {&ref, &dut};

/* `fill`: the cache holds random keys and values everywhere; otherwise NaN, so that reading beyond what was written shows. */
static void layer_make_for(int slots, struct layer *l, struct td_attn shape, int context, int fill)
{
	int per_slot = (context + TD_PAGE - 1) / TD_PAGE, pages = per_slot * slots;
	float *qn = random_values((size_t)shape.head_dim, 0.3f), *kn = random_values((size_t)shape.head_dim, 0.3f),
	      *freq = host((size_t)shape.rotary_dim * 2);
	int32_t *table = host((size_t)pages * 4);
	float *k, *v;

	l->pages = pages;
	l->cache = (size_t)pages * shape.kv_heads * TD_PAGE * shape.head_dim;
	k = fill ? random_values(l->cache, 1) : NULL;
	v = fill ? random_values(l->cache, 1) : NULL;
	for (int i = 0; i < shape.head_dim && !shape.zero_centred; i++) {
		qn[i] += 1;
		kn[i] += 1;
	}
	for (int j = 0; j < shape.rotary_dim / 2; j++)
		freq[j] = powf(10000000.0f, -2.0f * (float)j / (float)shape.rotary_dim);
	for (int i = 0; i < pages; i++)
		table[i] = i;
	for (int i = pages - 1; i > 0; i--) {
		int k2 = (int)(rnd() % (uint64_t)(i + 1)), tmp = table[i];

		table[i] = table[k2];
		table[k2] = tmp;
	}
	for (int i = 0; i < 2; i++) {
		struct side *s = sides[i];
		size_t bytes = l->cache * td_dtype_size(s->ops->act);

		l->w[i] = shape;
		l->w[i].q_norm = put(s, qn, (size_t)shape.head_dim * 4);
		l->w[i].k_norm = put(s, kn, (size_t)shape.head_dim * 4);
		l->w[i].inv_freq = put(s, freq, (size_t)shape.rotary_dim * 2);
		l->kv[i].table = put(s, table, (size_t)pages * 4);
		l->kv[i].max_pages = per_slot;
		l->kv[i].k = fill ? put_act(s, k, 1, (int)l->cache, (int)l->cache).data : poisoned(s, bytes);
		l->kv[i].v = fill ? put_act(s, v, 1, (int)l->cache, (int)l->cache).data : poisoned(s, bytes);
	}
}

static void layer_make(struct layer *l, struct td_attn shape, int context, int fill)
{
	layer_make_for(SLOTS, l, shape, context, fill);
}

enum kind { TARGET, CONTEXT, BLOCK };

static int columns(const struct td_attn *w, enum kind kind)
{
	return ((kind == CONTEXT ? 0 : w->gated ? 2 * w->heads : w->heads) + 2 * w->kv_heads) * w->head_dim;
}

static float *step(const struct layer *l, int i, enum kind kind, const struct td_seq *seq, int n, const float *x, int rows)
{
	struct side *s = sides[i];
	int cols = columns(&l->w[i], kind), wide = l->w[i].heads * l->w[i].head_dim;
	struct td_tensor in = put_act(s, x, rows, cols, cols + 8), out = new_act(s, rows, wide, wide);
	struct td_batch b;

	make_batch(s, &b, seq, n);
	if (kind == TARGET)
		s->ops->attention(s->dev, &l->w[i], &l->kv[i], &b, in, out);
	else if (kind == BLOCK)
		s->ops->draft_attention(s->dev, &l->w[i], &l->kv[i], &b, in, out);
	else
		s->ops->draft_context(s->dev, &l->w[i], &l->kv[i], &b, in);
	return kind == CONTEXT ? NULL : get_values(s, out);
}

static void run(const struct layer *l, const char *op, const char *name, enum kind kind, const struct td_seq *seq, int n)
{
	int rows = 0, wide = l->w[0].heads * l->w[0].head_dim;
	float *x, *a, *b;
	char shape[96];

	for (int i = 0; i < n; i++)
		rows = seq[i].row0 + seq[i].rows > rows ? seq[i].row0 + seq[i].rows : rows;
	x = random_values((size_t)rows * columns(&l->w[0], kind), 1);
	b = step(l, 0, kind, seq, n, x, rows);
	a = step(l, 1, kind, seq, n, x, rows);
	snprintf(shape, sizeof(shape), "%s, %d seq, %d rows, first at %d", name, n, rows, seq[0].pos0);
	if (kind != CONTEXT)
		line(op, shape, relative(a, b, (size_t)rows * wide), TOL_CHAIN);
}

static void compare_cache(const struct layer *l, const char *op, const char *name)
{
	char shape[96];

	snprintf(shape, sizeof(shape), "%s: cache, k", name);
	line(op, shape, relative(get_act_array(&dut, l->kv[1].k, l->cache), get_act_array(&ref, l->kv[0].k, l->cache), l->cache), TOL_ROUND);
	snprintf(shape, sizeof(shape), "%s: cache, v", name);
	verdict_bool(op, shape, same_bits(get_act_array(&dut, l->kv[1].v, l->cache), get_act_array(&ref, l->kv[0].v, l->cache), l->cache));
}

/*
 * Eight sequences together, then each alone: the same bits, though many sequences share the GPU in another way than one. A span takes every 33rd page (of a
 * drafter's every 32nd): new keys lie in the last page of that round and the first of the next, in its last two, on both sides of other pages' ends, and at 0.
 */
static void together(const char *op, const char *name, struct td_attn shape, enum kind kind)
{
	static const int pos0[] = {2110, 2046, 700, 60, 0, 2111, 1983, 130}, rows[] = {16, 8, 16, 5, 3, 1, 16, 9};
	enum { N = sizeof(rows) / sizeof(rows[0]) };
	int wide = shape.heads * shape.head_dim, cols = columns(&shape, kind), n = 0, ok = 1;
	struct td_seq seq[N];
	struct layer l;
	float *x, *all;
	char text[96];

	for (int i = 0; i < N; i++) {
		seq[i] = (struct td_seq){.slot = (i + 3) % N, .row0 = n, .rows = rows[i], .pos0 = pos0[i]};
		n += rows[i];
	}
	layer_make_for(N, &l, shape, 2126, 1);
	x = random_values((size_t)n * cols, 1);
	all = step(&l, 1, kind, seq, N, x, n);
	for (int i = 0; i < N; i++) {
		struct td_seq one = seq[i];
		size_t row0 = (size_t)one.row0;

		one.row0 = 0;
		ok &= same_bits(step(&l, 1, kind, &one, 1, x + row0 * cols, one.rows), all + row0 * wide, (size_t)one.rows * wide);
	}
	snprintf(text, sizeof(text), "%s: 8 together = each alone, bits", name);
	verdict_bool(op, text, ok);
	drop_all();
}

/* ---- target ------------------------------------------------------------------------------------------------------------------------ */

/* From an empty cache of NaN: prefill, then blocks. */
static void target_life(const char *name, struct td_attn shape)
{
	static const struct td_seq one[] = {{.slot = 1, .rows = 150, .commit = 1}, {.slot = 0, .row0 = 150, .rows = 5, .commit = 1}};
	static const struct td_seq two[] = {
		{.slot = 0, .rows = 16, .pos0 = 5}, {.slot = 1, .row0 = 16, .rows = 1, .pos0 = 150}, {.slot = 2, .row0 = 17, .rows = 70}};
	static const struct td_seq three[] = {{.slot = 1, .rows = 16, .pos0 = 120}, {.slot = 0, .row0 = 16, .rows = 7, .pos0 = 10}};
	static const struct td_seq four[] = {{.slot = 2, .rows = 20, .pos0 = 70, .commit = 1}}; /* one group of rows, but more than a block */
	struct layer l;

	layer_make(&l, shape, 300, 0);
	run(&l, "attention", name, TARGET, one, 2);
	run(&l, "attention", name, TARGET, two, 3);
	run(&l, "attention", name, TARGET, three, 2);
	run(&l, "attention", name, TARGET, four, 1);
	drop_all();
}

/* The n values of x, and random ones up to `all`. */
static float *long_values(const float *x, size_t n, size_t all)
{
	float *y = random_values(all, 1);

	memcpy(y, x, n * sizeof(*y));
	return y;
}

/* Blocks of 16 and of fewer rows far in. Up to position 33 * 64 - 1 a span has one tile, beyond some have two: a context of 2,100 has rows of both. */
static void target_long(const char *name, struct td_attn shape, int context)
{
	struct td_seq seq[2] = {{.slot = 2, .rows = 16, .pos0 = context}, {.slot = 0, .row0 = 16, .rows = 3, .pos0 = context / 3}};
	struct td_seq one = {.slot = 2, .rows = 1, .pos0 = context + 5}, few = {.slot = 2, .rows = 4, .pos0 = context + 9};
	struct layer l;
	float *x, *all, *part;
	int wide = shape.heads * shape.head_dim, cols = columns(&shape, TARGET), ok;

	layer_make(&l, shape, context + 40, 1);
	run(&l, "attention", name, TARGET, seq, 2);
	compare_cache(&l, "attention", name);
	x = random_values((size_t)19 * cols, 1);
	all = step(&l, 1, TARGET, seq, 2, x, 19);
	part = step(&l, 1, TARGET, &one, 1, x + (size_t)5 * cols, 1);
	ok = same_bits(part, all + (size_t)5 * wide, (size_t)wide);
	part = step(&l, 1, TARGET, &few, 1, x + (size_t)9 * cols, 4);
	ok &= same_bits(part, all + (size_t)9 * wide, (size_t)4 * wide);
	/* beside a prompt: the new keys then go through the cache */
	seq[1] = (struct td_seq){.slot = 1, .row0 = 16, .rows = 70, .commit = 1};
	part = step(&l, 1, TARGET, seq, 2, long_values(x, (size_t)19 * cols, (size_t)86 * cols), 86);
	ok &= same_bits(part, all, (size_t)16 * wide);
	verdict_bool("attention", "row invariance, bits", ok);
	drop_all();
}

/* A prompt whole and cut in two: the same bits. */
static void target_cut(struct td_attn shape)
{
	static const struct td_seq whole = {.slot = 0, .rows = 200, .commit = 1}, a = {.slot = 1, .rows = 77, .commit = 1},
				   b = {.slot = 1, .rows = 123, .pos0 = 77, .commit = 1};
	struct layer l;
	float *x = random_values((size_t)200 * columns(&shape, TARGET), 1), *all, *part;
	int wide = shape.heads * shape.head_dim, cols = columns(&shape, TARGET), ok;

	layer_make(&l, shape, 200, 0);
	all = step(&l, 1, TARGET, &whole, 1, x, 200);
	part = step(&l, 1, TARGET, &a, 1, x, 77);
	ok = same_bits(part, all, (size_t)77 * wide);
	part = step(&l, 1, TARGET, &b, 1, x + (size_t)77 * cols, 123);
	ok &= same_bits(part, all + (size_t)77 * wide, (size_t)123 * wide);
	verdict_bool("attention", "prompt of 200 whole = cut at 77, bits", ok);
	drop_all();
}

/* A prompt with whole blocks of 256 positions beside a verified block, against the CPU; then alone and cut between its blocks: the same bits. */
static void target_blocks(const char *name, struct td_attn shape)
{
	enum { ROWS = 640, BESIDE = 7 };
	struct td_seq seq[2] = {{.slot = 1, .rows = BESIDE, .pos0 = 70}, {.slot = 0, .row0 = BESIDE, .rows = ROWS, .commit = 1}};
	struct td_seq a = {.slot = 2, .rows = 256, .commit = 1}, b = {.slot = 2, .rows = ROWS - 256, .pos0 = 256, .commit = 1};
	struct layer l;
	int wide = shape.heads * shape.head_dim, cols = columns(&shape, TARGET), ok;
	float *x, *all, *part;

	layer_make(&l, shape, ROWS, 1);
	run(&l, "attention", name, TARGET, seq, 2);
	compare_cache(&l, "attention", name);
	x = random_values((size_t)(ROWS + BESIDE) * cols, 1);
	all = step(&l, 1, TARGET, seq, 2, x, ROWS + BESIDE) + (size_t)BESIDE * wide;
	x += (size_t)BESIDE * cols;
	part = step(&l, 1, TARGET, &a, 1, x, a.rows);
	ok = same_bits(part, all, (size_t)a.rows * wide);
	part = step(&l, 1, TARGET, &b, 1, x + (size_t)a.rows * cols, b.rows);
	ok &= same_bits(part, all + (size_t)a.rows * wide, (size_t)b.rows * wide);
	verdict_bool("attention", "prompt of 640 in company = alone, cut at 256, bits", ok);
	drop_all();
}

void check_attention(void)
{
	const struct td_attn big = {.heads = 16, .kv_heads = 4, .head_dim = 256, .rotary_dim = 64, .eps = 1e-6f, .zero_centred = 1, .gated = 1};
	const struct td_attn tiny = {.heads = 4, .kv_heads = 1, .head_dim = 256, .rotary_dim = 64, .eps = 1e-6f, .zero_centred = 1, .gated = 1};
	const struct td_attn thin = {.heads = 2, .kv_heads = 1, .head_dim = 256, .rotary_dim = 64, .eps = 1e-6f, .zero_centred = 1, .gated = 1};
	const struct td_attn odd = {.heads = 6, .kv_heads = 2, .head_dim = 128, .rotary_dim = 48, .eps = 1e-6f, .zero_centred = 1, .gated = 1};
	const struct td_attn plain = {.heads = 5, .kv_heads = 5, .head_dim = 64, .rotary_dim = 64, .eps = 1e-6f};

	target_life("tiny: 4/1 of 256", tiny);
	target_life("odd: 6/2 of 128", odd);
	target_life("plain: 5/5 of 64", plain);
	target_long("odd", odd, 1000);
	if (brief)
		return;
	target_long("tiny", tiny, 2100);
	target_long("tiny", tiny, 6330);
	target_long("plain", plain, 4220);
	together("attention", "tiny", tiny, TARGET);
	together("attention", "odd", odd, TARGET);
	target_blocks("tiny", tiny);
	target_blocks("odd", odd);
	target_blocks("plain", plain);
	target_blocks("thin", thin); /* too few heads for wide blocks, but for the whole prompt on the emulated GPU */
	if (small)
		return;
	target_life("4B: 16/4 of 256", big);
	target_cut(big);
	target_blocks("4B", big);
	target_long("4B", big, 500);
	target_long("4B", big, 2048);
	together("attention", "4B", big, TARGET);
	if (!self)
		target_long("4B", big, 8190);
}

/* ---- drafter ----------------------------------------------------------------------------------------------------------------------- */

static void draft_life(const char *name, struct td_attn shape, int context)
{
	struct td_seq append[2] = {{.slot = 0, .rows = 70, .pos0 = 0}, {.slot = 1, .row0 = 70, .rows = 5, .pos0 = context - 5}};
	struct td_seq block[3] = {{.slot = 1, .rows = 16, .pos0 = context},
				  {.slot = 0, .row0 = 16, .rows = 5, .pos0 = 70},
				  {.slot = 2, .row0 = 21, .rows = 16, .pos0 = 0}};
	struct td_seq again = {.slot = 1, .rows = 16, .pos0 = context};
	struct layer l;
	float *x, *all;
	int wide = shape.heads * shape.head_dim;

	layer_make(&l, shape, context + 80, 1);
	run(&l, "draft_context", name, CONTEXT, append, 2);
	compare_cache(&l, "draft_context", name);
	run(&l, "draft_attention", name, BLOCK, block, 3);
	x = random_values((size_t)37 * columns(&shape, BLOCK), 1);
	all = step(&l, 1, BLOCK, block, 3, x, 37);
	verdict_bool("draft_attention", "batch of 3 = single, bits", same_bits(step(&l, 1, BLOCK, &again, 1, x, 16), all, (size_t)16 * wide));
	drop_all();
}

void check_draft(void)
{
	struct td_attn full = {.heads = 32, .kv_heads = 8, .head_dim = 128, .rotary_dim = 128, .eps = 1e-6f}, tiny = full, sliding, both, odd;

	tiny.heads = 4;
	tiny.kv_heads = 2;
	sliding = both = full;
	sliding.window = 100;
	sliding.causal = 1;
	both.window = 7;
	odd = both;
	odd.heads = 3;
	odd.kv_heads = 1;
	odd.head_dim = 64;
	odd.rotary_dim = 64;
	odd.causal = 1;
	odd.window = 5;
	draft_life("4B window 7, both ways", both, 300);
	draft_life("tiny full", tiny, 128);
	draft_life("odd window 5", odd, 129);
	if (brief)
		return;
	draft_life("tiny full", tiny, 2500);
	sliding.heads = tiny.heads;
	sliding.kv_heads = tiny.kv_heads;
	sliding.window = 1500;
	draft_life("tiny window 1500, causal", sliding, 2700);
	together("draft_attention", "tiny full", tiny, BLOCK);
	together("draft_attention", "tiny window 1500, causal", sliding, BLOCK);
	sliding.heads = full.heads;
	sliding.kv_heads = full.kv_heads;
	sliding.window = 100;
	if (small)
		return;
	draft_life("4B full", full, 500);
	draft_life("4B window 100, causal", sliding, 500);
	if (!self) {
		together("draft_attention", "4B full", full, BLOCK);
		sliding.window = 4096;
		draft_life("4B window 4096", sliding, 6000);
	}
}
