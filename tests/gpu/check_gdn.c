/*
 * check_gdn.c: the Gated DeltaNet layer over several steps: prefill, verification, lazy commit by replay, batches that mix them; then that replay,
 * plain decoding and prefill cut anywhere give the same bits.
 */
#include "tests/gpu/check.h"

enum { SLOTS = 5, STEPS_MAX = 8 };

struct layer {
	int channels, wide, heads2;
	struct td_gdn w[2]; /* reference, under test */
	struct td_gdn_state st[2];
};

static struct side *sides[2] = {&ref, &dut};

/* slow: decays of 0.9 to 0.9995 a token, heads differ; else they forget within a few tokens. */
static void layer_make(struct layer *l, int k_heads, int v_heads, int k_dim, int v_dim, int slow)
{
	int c = 2 * k_heads * k_dim + v_heads * v_dim;
	float *conv = random_values((size_t)c * 4, 0.5f), *a_log = random_values((size_t)v_heads, 0.7f), *dt = random_values((size_t)v_heads, 0.5f);
	float *norm = random_values((size_t)v_dim, 1);

	for (int h = 0; slow && h < v_heads; h++)
		a_log[h] -= h % 2 ? 6 : 3;
	l->channels = c;
	l->wide = v_heads * v_dim;
	l->heads2 = 2 * v_heads;
	for (int i = 0; i < 2; i++) {
		size_t act = td_dtype_size(sides[i]->ops->act);

		l->w[i] = (struct td_gdn){.k_heads = k_heads, .v_heads = v_heads, .k_dim = k_dim, .v_dim = v_dim, .eps = 1e-6f};
		l->w[i].conv = put(sides[i], conv, (size_t)c * 16);
		l->w[i].a_log = put(sides[i], a_log, (size_t)v_heads * 4);
		l->w[i].dt_bias = put(sides[i], dt, (size_t)v_heads * 4);
		l->w[i].norm = put(sides[i], norm, (size_t)v_dim * 4);
		l->st[i].s = put(sides[i], NULL, (size_t)SLOTS * v_heads * k_dim * v_dim * 4);
		l->st[i].tail = put(sides[i], NULL, (size_t)SLOTS * TD_CONV_TAIL * c * act);
		l->st[i].ring_m = put(sides[i], NULL, (size_t)SLOTS * TD_BLOCK_MAX * c * act);
		l->st[i].ring_ba = put(sides[i], NULL, (size_t)SLOTS * TD_BLOCK_MAX * 2 * v_heads * 4);
	}
}

/* One call on one side; the outputs as float. */
static float *step(const struct layer *l, int i, const struct td_seq *seq, int n, const float *qkvz, const float *ba, int rows)
{
	struct td_tensor x = put_act(sides[i], qkvz, rows, l->channels + l->wide, l->channels + l->wide + 8),
			 b = put_f32(sides[i], ba, rows, l->heads2, l->heads2);
	struct td_tensor out = new_act(sides[i], rows, l->wide, l->wide);
	struct td_batch batch;

	make_batch(sides[i], &batch, seq, n);
	sides[i]->ops->gdn(sides[i]->dev, &l->w[i], &l->st[i], &batch, x, b, out);
	return get_values(sides[i], out);
}

static void compare_state(const struct layer *l, const char *shape, double allowed)
{
	size_t n = (size_t)SLOTS * l->w[0].v_heads * l->w[0].k_dim * l->w[0].v_dim, t = (size_t)SLOTS * TD_CONV_TAIL * l->channels;
	size_t r = (size_t)SLOTS * TD_BLOCK_MAX * l->channels, g = (size_t)SLOTS * TD_BLOCK_MAX * l->heads2;
	float *a = host(n * 4), *b = host(n * 4), *ga = host(g * 4), *gb = host(g * 4);
	char text[128];

	get(&ref, b, l->st[0].s, n * 4);
	get(&dut, a, l->st[1].s, n * 4);
	snprintf(text, sizeof(text), "%s: state", shape);
	line("gdn", text, relative(a, b, n), self ? 1e-5 : allowed);
	get(&ref, gb, l->st[0].ring_ba, g * 4);
	get(&dut, ga, l->st[1].ring_ba, g * 4);
	snprintf(text, sizeof(text), "%s: tail, ring", shape);
	verdict_bool("gdn", text,
		     same_bits(get_act_array(&dut, l->st[1].tail, t), get_act_array(&ref, l->st[0].tail, t), t) &&
			     same_bits(get_act_array(&dut, l->st[1].ring_m, r), get_act_array(&ref, l->st[0].ring_m, r), r) && same_bits(ga, gb, g));
}

/* The life of three slots: prefill, blocks that are accepted in part, plain decoding, prefill after a block. */
static void life(const char *name, int k_heads, int v_heads, int k_dim, int v_dim)
{
	static const struct td_seq steps[][3] = {
		{{.slot = 1, .row0 = 0, .rows = 100, .commit = 1},
		 {.slot = 0, .row0 = 100, .rows = 3, .commit = 1},
		 {.slot = 3, .row0 = 103, .rows = 64, .commit = 1}},
		{{.slot = 1, .row0 = 0, .rows = 16, .pos0 = 100},
		 {.slot = 0, .row0 = 16, .rows = 1, .pos0 = 3, .commit = 1},
		 {.slot = 3, .row0 = 17, .rows = 9, .pos0 = 64}},
		{{.slot = 1, .row0 = 9, .rows = 16, .pos0 = 106, .replay = 6},
		 {.slot = 0, .row0 = 0, .rows = 5, .pos0 = 4},
		 {.slot = 3, .row0 = 5, .rows = 4, .pos0 = 65, .replay = 1}},
		{{.slot = 0, .row0 = 0, .rows = 40, .pos0 = 9, .replay = 5, .commit = 1},
		 {.slot = 1, .row0 = 40, .rows = 1, .pos0 = 122, .replay = 16},
		 {.slot = 3, .row0 = 41, .rows = 2, .pos0 = 69, .replay = 4}},
	};
	struct layer l;
	char shape[96];

	layer_make(&l, k_heads, v_heads, k_dim, v_dim, 0);
	for (size_t k = 0; k < sizeof(steps) / sizeof(steps[0]); k++) {
		int rows = 0;
		float *x, *ba, *a, *b;

		for (int i = 0; i < 3; i++)
			rows = steps[k][i].row0 + steps[k][i].rows > rows ? steps[k][i].row0 + steps[k][i].rows : rows;
		x = random_values((size_t)rows * (l.channels + l.wide), 1);
		ba = random_values((size_t)rows * l.heads2, 1);
		b = step(&l, 0, steps[k], 3, x, ba, rows);
		a = step(&l, 1, steps[k], 3, x, ba, rows);
		snprintf(shape, sizeof(shape), "%s, step %zu of 3 slots, %d rows", name, k + 1, rows);
		line("gdn", shape, relative(a, b, (size_t)rows * l.wide), TOL_ROUND);
		compare_state(&l, shape, 5e-5);
	}
	drop_all();
}

/* Slot 0 decodes one token at a time; slot 1 takes blocks of which some rows are accepted; both see the same tokens. */
static void exact(const char *name, int k_heads, int v_heads, int k_dim, int v_dim)
{
	enum { PROMPT = 150, TOKENS = 40 };
	struct layer l;
	float *x, *ba, *plain = host(1), *one;
	size_t in, n;
	int ok = 1, done = 0, replay = 0;
	char shape[96];

	layer_make(&l, k_heads, v_heads, k_dim, v_dim, 0);
	in = (size_t)(l.channels + l.wide);
	n = (size_t)v_heads * k_dim * v_dim;
	x = random_values((PROMPT + TOKENS) * in, 1);
	ba = random_values((size_t)(PROMPT + TOKENS) * l.heads2, 1);
	/* prompt: whole, and cut at 64 */
	one = step(&l, 1, &(struct td_seq){.slot = 0, .rows = PROMPT, .commit = 1}, 1, x, ba, PROMPT);
	plain = step(&l, 1, &(struct td_seq){.slot = 1, .rows = 64, .commit = 1}, 1, x, ba, 64);
	ok &= same_bits(one, plain, (size_t)64 * l.wide);
	plain = step(&l, 1, &(struct td_seq){.slot = 1, .rows = PROMPT - 64, .pos0 = 64, .commit = 1}, 1, x + 64 * in, ba + 64 * l.heads2, PROMPT - 64);
	ok &= same_bits(one + 64 * l.wide, plain, (size_t)(PROMPT - 64) * l.wide);
	snprintf(shape, sizeof(shape), "%s: prompt whole = cut at 64, bits", name);
	verdict_bool("gdn", shape, ok);
	ok = 1;
	plain = host((size_t)TOKENS * l.wide * 4);
	for (int t = 0; t < TOKENS; t++) {
		struct td_seq seq = {.slot = 0, .rows = 1, .pos0 = PROMPT + t, .commit = 1};

		memcpy(plain + (size_t)t * l.wide, step(&l, 1, &seq, 1, x + (PROMPT + t) * in, ba + (PROMPT + t) * l.heads2, 1), (size_t)l.wide * 4);
	}
	while (done < TOKENS) {
		int rows = TOKENS - done < 16 ? TOKENS - done : 16, kept = 1 + (int)(rnd() % (uint64_t)rows);
		struct td_seq seq = {.slot = 1, .rows = rows, .pos0 = PROMPT + done, .replay = replay};
		float *block = step(&l, 1, &seq, 1, x + (PROMPT + done) * in, ba + (PROMPT + done) * l.heads2, rows);

		ok &= same_bits(block, plain + (size_t)done * l.wide, (size_t)rows * l.wide);
		done += kept;
		replay = kept;
	}
	snprintf(shape, sizeof(shape), "%s: blocks with replay = one by one, bits", name);
	verdict_bool("gdn", shape, ok);
	/* replaying the last accepted rows must leave the state of plain decoding */
	step(&l, 1, &(struct td_seq){.slot = 1, .rows = 1, .pos0 = PROMPT + TOKENS, .replay = replay}, 1, x, ba, 1);
	one = host(SLOTS * n * 4);
	get(&dut, one, l.st[1].s, SLOTS * n * 4);
	snprintf(shape, sizeof(shape), "%s: state after replay = after decoding, bits", name);
	verdict_bool("gdn", shape, same_bits(one, one + n, n));
	drop_all();
}

/*
 * Slot 0 goes through prefill, blocks with replay and single rows alone, slot 1 through the same beside three others: few and many sequences have forms of
 * their own on the GPU, and each must go on where the other left off, so slot 0 has company in every third step.
 */
static void company(const char *name, int k_heads, int v_heads, int k_dim, int v_dim)
{
	static const struct {
		int rows, replay, commit;
	} steps[] = {{70, 0, 1}, {16, 0, 0}, {16, 5, 0}, {1, 16, 0}, {9, 1, 0}, {4, 3, 1}, {16, 0, 0}, {50, 1, 1}, {16, 0, 0}, {2, 13, 0}, {1, 2, 1}};
	enum { BESIDE = 7, STEPS = sizeof(steps) / sizeof(steps[0]) };
	struct layer l;
	size_t in, n;
	int ok = 1, pos = 0;
	float *both;
	char shape[96];

	layer_make(&l, k_heads, v_heads, k_dim, v_dim, 0);
	in = (size_t)(l.channels + l.wide);
	n = (size_t)v_heads * k_dim * v_dim;
	for (int i = 0; i < STEPS; i++) {
		int rows = steps[i].rows, all = rows + 3 * BESIDE;
		float *x = random_values((size_t)all * in, 1), *ba = random_values((size_t)all * l.heads2, 1), *out[2];

		pos += steps[i].replay;
		for (int k = 0; k < 2; k++) {
			struct td_seq seq[4] = {
				{.slot = k, .row0 = BESIDE, .rows = rows, .pos0 = pos, .replay = steps[i].replay, .commit = steps[i].commit},
				{.slot = 2, .row0 = 0, .rows = BESIDE, .pos0 = i * BESIDE, .commit = 1},
				{.slot = 3, .row0 = BESIDE + rows, .rows = BESIDE, .pos0 = i * BESIDE, .commit = 1},
				{.slot = 4, .row0 = 2 * BESIDE + rows, .rows = BESIDE, .pos0 = i * BESIDE, .commit = 1}};

			out[k] = step(&l, 1, seq, k || i % 3 == 2 ? 4 : 1, x, ba, all);
		}
		ok &= same_bits(out[0] + BESIDE * l.wide, out[1] + BESIDE * l.wide, (size_t)rows * l.wide);
		pos += steps[i].commit ? rows : 0;
	}
	both = host(SLOTS * n * 4);
	get(&dut, both, l.st[1].s, SLOTS * n * 4);
	snprintf(shape, sizeof(shape), "%s: alone = beside others, bits", name);
	verdict_bool("gdn", shape, ok);
	snprintf(shape, sizeof(shape), "%s: states of both, bits", name);
	verdict_bool("gdn", shape, same_bits(both, both + n, n));
	drop_all();
}

/*
 * Whole blocks of 256 positions take another form on the GPU: chunks of 64 tokens, products of halves with float32 sums. So the state of a prompt differs
 * from the CPU's by about a half's rounding (2^-12 at most, a few of them one after the other), not by float32's, and must not drift as chunks follow
 * each other: the same is allowed at the end of any prompt.
 */
#define TOL_BLOCKS 1e-3

/* A prompt of `rows` (not a whole number of blocks) against the CPU; then cut at blocks with other sequences beside it, to the bit. */
static void blocks(const char *name, int k_heads, int v_heads, int k_dim, int v_dim, int rows)
{
	static const int cut[] = {256, 512, 1 << 30};
	struct layer l;
	float *x, *ba, *whole, *part;
	size_t in, n;
	int ok = 1;
	char shape[96];

	layer_make(&l, k_heads, v_heads, k_dim, v_dim, 1);
	in = (size_t)(l.channels + l.wide);
	n = (size_t)v_heads * k_dim * v_dim;
	x = random_values((size_t)rows * in, 1);
	ba = random_values((size_t)rows * l.heads2, 1);
	part = step(&l, 0, &(struct td_seq){.slot = 0, .rows = rows, .commit = 1}, 1, x, ba, rows);
	whole = step(&l, 1, &(struct td_seq){.slot = 0, .rows = rows, .commit = 1}, 1, x, ba, rows);
	snprintf(shape, sizeof(shape), "%s, prompt of %d", name, rows);
	line("gdn", shape, relative(whole, part, (size_t)rows * l.wide), TOL_ROUND);
	compare_state(&l, shape, TOL_BLOCKS);
	for (int i = 0, at = 0; at < rows; i++) {
		enum { BESIDE = 5 };
		int m = rows - at < cut[i] ? rows - at : cut[i], first = at + BESIDE < rows ? at : rows - BESIDE;
		struct td_seq seq[2] = {{.slot = 2, .row0 = 0, .rows = BESIDE, .pos0 = BESIDE * i, .commit = 1},
					{.slot = 1, .row0 = BESIDE, .rows = m, .pos0 = at, .commit = 1}};
		float *both = host((size_t)(BESIDE + m) * in * 4), *both_ba = host((size_t)(BESIDE + m) * l.heads2 * 4);

		memcpy(both, x + first * in, BESIDE * in * 4);
		memcpy(both + BESIDE * in, x + at * in, m * in * 4);
		memcpy(both_ba, ba + first * l.heads2, (size_t)BESIDE * l.heads2 * 4);
		memcpy(both_ba + BESIDE * l.heads2, ba + at * l.heads2, (size_t)m * l.heads2 * 4);
		part = step(&l, 1, seq, 2, both, both_ba, BESIDE + m);
		ok &= same_bits(part + (size_t)BESIDE * l.wide, whole + (size_t)at * l.wide, (size_t)m * l.wide);
		at += m;
	}
	snprintf(shape, sizeof(shape), "%s: prompt of %d whole = cut at blocks, bits", name, rows);
	verdict_bool("gdn", shape, ok);
	part = host(SLOTS * n * 4);
	get(&dut, part, l.st[1].s, SLOTS * n * 4);
	snprintf(shape, sizeof(shape), "%s: state of both, bits", name);
	verdict_bool("gdn", shape, same_bits(part, part + n, n));
	drop_all();
}

/* A prompt's rows in two calls of one step, whose batches were set before both: the bits of one call. Nothing between them makes the second wait. */
static void stages(const char *name, int k_heads, int v_heads, int k_dim, int v_dim)
{
	static const int cut[][2] = {{256, 300}, {64, 128}, {512, 529}, {5, 21}, {1, 2}, {256, 512}};
	struct layer l;
	size_t in, n;
	float *state = host(1);
	int ok = 1;
	char shape[96];

	layer_make(&l, k_heads, v_heads, k_dim, v_dim, 1);
	in = (size_t)(l.channels + l.wide);
	n = (size_t)v_heads * k_dim * v_dim;
	for (size_t i = 0; i < sizeof(cut) / sizeof(cut[0]); i++) {
		int at = cut[i][0], rows = cut[i][1];
		float *x = random_values((size_t)rows * in, 1), *ba = random_values((size_t)rows * l.heads2, 1);
		struct td_seq seq[2] = {{.slot = 1, .rows = at, .commit = TD_COMMIT_ROWS},
					{.slot = 1, .row0 = at, .rows = rows - at, .pos0 = at, .commit = TD_COMMIT_END}};
		float *whole = step(&l, 1, &(struct td_seq){.slot = 0, .rows = rows, .commit = TD_COMMIT_END}, 1, x, ba, rows);
		struct td_tensor xd = put_act(&dut, x, rows, (int)in, (int)in + 8), bd = put_f32(&dut, ba, rows, l.heads2, l.heads2);
		struct td_tensor out = new_act(&dut, rows, l.wide, l.wide);
		struct td_batch batch[2];

		for (int k = 0; k < 2; k++)
			make_batch(&dut, &batch[k], &seq[k], 1);
		for (int k = 0; k < 2; k++)
			dut.ops->gdn(dut.dev, &l.w[1], &l.st[1], &batch[k], xd, bd, out);
		ok &= same_bits(get_values(&dut, out), whole, (size_t)rows * l.wide);
		state = host(SLOTS * n * 4);
		get(&dut, state, l.st[1].s, SLOTS * n * 4);
		ok &= same_bits(state, state + n, n);
	}
	snprintf(shape, sizeof(shape), "%s: two calls of a step = one, bits", name);
	verdict_bool("gdn", shape, ok);
	drop_all();
}

/* Blocks after rows that are none, in one call: after a replay too, and two sequences with blocks, one at an odd row. */
static void between(const char *name, int k_heads, int v_heads, int k_dim, int v_dim)
{
	static const struct td_seq steps[][2] = {
		{{.slot = 3, .row0 = 0, .rows = 100, .commit = 1}, {.slot = 1, .row0 = 100, .rows = 1, .commit = 1}},
		{{.slot = 3, .row0 = 0, .rows = 9, .pos0 = 100}, {.slot = 1, .row0 = 9, .rows = 255, .pos0 = 1, .commit = 1}},
		{{.slot = 3, .row0 = 0, .rows = 426, .pos0 = 106, .replay = 6, .commit = 1}, {.slot = 1, .row0 = 426, .rows = 513, .pos0 = 256, .commit = 1}},
		{{.slot = 3, .row0 = 0, .rows = 4, .pos0 = 532}, {.slot = 1, .row0 = 4, .rows = 3, .pos0 = 769}},
	};
	struct layer l;
	char shape[96];

	layer_make(&l, k_heads, v_heads, k_dim, v_dim, 1);
	for (size_t k = 0; k < sizeof(steps) / sizeof(steps[0]); k++) {
		int rows = steps[k][1].row0 + steps[k][1].rows;
		float *x = random_values((size_t)rows * (l.channels + l.wide), 1), *ba = random_values((size_t)rows * l.heads2, 1);
		float *b = step(&l, 0, steps[k], 2, x, ba, rows), *a = step(&l, 1, steps[k], 2, x, ba, rows);

		snprintf(shape, sizeof(shape), "%s, blocks among others, step %zu", name, k + 1);
		line("gdn", shape, relative(a, b, (size_t)rows * l.wide), TOL_ROUND);
		compare_state(&l, shape, TOL_BLOCKS);
	}
	drop_all();
}

void check_gdn(void)
{
	life("tiny: 4/8 heads of 128", 4, 8, 128, 128);
	life("odd: 2/6 heads of 64, 40", 2, 6, 64, 40);
	blocks("odd: 2/6 heads of 64, 40", 2, 6, 64, 40, 1307); /* so long that what a prompt's chunks leave is written over */
	blocks("one head of 128", 1, 1, 128, 128, 2850);
	between("odd: 2/6 heads of 64, 40", 2, 6, 64, 40);
	between("one value head a key head: 2/2 of 128", 2, 2, 128, 128);
	if (!self) { /* the CPU's prefill is chunked and cut elsewhere; its own tests cover it */
		exact("odd", 2, 6, 64, 40);
		company("2/2 of 128", 2, 2, 128, 128);
		stages("2/2 of 128", 2, 2, 128, 128);
	}
	if (small)
		return;
	blocks("tiny: 4/8 heads of 128", 4, 8, 128, 128, 4100);
	life("4B: 16/32 heads of 128", 16, 32, 128, 128);
	blocks("4B: 16/32 heads of 128", 16, 32, 128, 128, 1050);
	if (!self) {
		exact("4B", 16, 32, 128, 128);
		company("4B: 16/32 heads of 128", 16, 32, 128, 128);
		stages("4B: 16/32 heads of 128", 16, 32, 128, 128);
	}
}
