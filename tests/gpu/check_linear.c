/*
 * check_linear.c: linear maps of both kinds at the shapes of Qwen3.5-4B and at odd ones; and that a row's result does not depend on its company.
 */
#include "tests/gpu/check.h"

static int making_paired, making_act8; /* what make_linear makes is gate|up; takes activations in 8 bits */

void make_linear(enum td_weight_kind kind, int out, int in, int group, int n_part, struct td_linear *r, struct td_linear *d)
{
	struct td_linear_part part[4];
	struct side *side[2] = {&ref, &dut};
	struct td_linear *w[2] = {r, d};
	int left = out;

	for (int i = 0; i < n_part; i++) {
		int o = i + 1 == n_part ? left : out / n_part + (i % 2 ? -(out / n_part / 3) : out / n_part / 3);
		size_t words = (size_t)o * in / (kind == TD_W_INT4 ? 8 : 2) + 1;
		uint32_t *weight = host(words * 4);
		uint16_t *scale = host(kind == TD_W_INT4 ? (size_t)o * (in / group) * 2 : 2);

		left -= o;
		if (kind == TD_W_INT4) {
			for (size_t k = 0; k < words; k++)
				weight[k] = (uint32_t)(rnd() >> 16);
			for (size_t k = 0; k < (size_t)o * (in / group); k++)
				scale[k] = td_bf16(0.002f + 0.02f * rnd_uniform());
		} else {
			for (size_t k = 0; k < (size_t)o * in; k++)
				((uint16_t *)weight)[k] = td_bf16(((float)(rnd() >> 40) / 8388608.0f - 1) * 0.05f);
		}
		part[i] = (struct td_linear_part){.out = o, .weight = weight, .scale = scale};
	}
	for (int i = 0; i < 2; i++) {
		struct td_error err = {0};

		*w[i] = (struct td_linear){.kind = kind, .in = in, .out = out, .group = group, .paired = making_paired, .act8 = making_act8 && kind == TD_W_INT4};
		w[i]->data = poisoned(side[i], side[i]->ops->pack_bytes(kind, out, in, group));
		if (side[i]->ops->pack(side[i]->dev, w[i], part, n_part, &err))
			die("pack", &err);
	}
}

/* The next products' rows are those of a prompt, whose blocks of 256 go another way; of rows that are to be verified when `commit` is 0. */
static void batch_of(struct side *s, int rows, int commit)
{
	static struct td_seq seq;
	struct td_batch b;

	seq = (struct td_seq){.rows = rows, .commit = commit ? TD_COMMIT_END : 0};
	make_batch(s, &b, &seq, 1);
}

static void compare(const char *name, const struct td_linear *r, const struct td_linear *d, int rows, int f32, int accumulate)
{
	int in = r->in, out = r->out, ldx = in + 8, ldy = out + 8;
	float *x = random_values((size_t)rows * in, 1), *y0 = random_values((size_t)rows * out, 1), *a, *b;
	struct td_tensor xr = put_act(&ref, x, rows, in, ldx), xd = put_act(&dut, x, rows, in, ldx), yr, yd;
	char shape[96];

	if (accumulate) {
		yr = f32 ? put_f32(&ref, y0, rows, out, ldy) : put_act(&ref, y0, rows, out, ldy);
		yd = f32 ? put_f32(&dut, y0, rows, out, ldy) : put_act(&dut, y0, rows, out, ldy);
	} else {
		yr = f32 ? new_f32(&ref, rows, out, ldy) : new_act(&ref, rows, out, ldy);
		yd = f32 ? new_f32(&dut, rows, out, ldy) : new_act(&dut, rows, out, ldy);
	}
	batch_of(&ref, rows, rows > TD_BLOCK_MAX);
	batch_of(&dut, rows, rows > TD_BLOCK_MAX);
	ref.ops->linear(ref.dev, xr, r, yr, accumulate);
	dut.ops->linear(dut.dev, xd, d, yd, accumulate);
	a = get_values(&dut, yd);
	b = get_values(&ref, yr);
	snprintf(shape, sizeof(shape), "%s %d x %d, %d rows%s%s", name, out, in, rows, f32 ? ", f32 out" : "", accumulate ? ", accumulate" : "");
	/* prompts' blocks may take activations as they are */
	line("linear", shape, relative(a, b, (size_t)rows * out), f32 && rows <= 64 ? TOL_FLOAT : d->act8 && rows > 64 ? TOL_EIGHT : TOL_ROUND);
}

/* Rows alone, in other numbers and at other places give the bits of the row in a batch of 200, which some maps take at once, others in parts. */
static void invariance(const char *name, const struct td_linear *d, int f32)
{
	enum { ALL = 200 };
	static const int cut[][2] = {{0, 1}, {5, 1}, {199, 1}, {3, 7}, {0, 8}, {9, 15}, {16, 16}, {11, 17}, {2, 24}, {30, 33}, {130, 64}, {64, 136}, {7, 100}};
	int in = d->in, out = d->out, ok = 1;
	float *x = random_values((size_t)ALL * in, 1), *whole, *part;
	struct td_tensor xd = put_act(&dut, x, ALL, in, in), yd = f32 ? new_f32(&dut, ALL, out, out) : new_act(&dut, ALL, out, out);
	char shape[96];

	dut.ops->linear(dut.dev, xd, d, yd, 0);
	whole = get_values(&dut, yd);
	for (size_t i = 0; i < sizeof(cut) / sizeof(cut[0]); i++) {
		struct td_tensor y = f32 ? new_f32(&dut, cut[i][1], out, out) : new_act(&dut, cut[i][1], out, out);

		dut.ops->linear(dut.dev, td_rows(xd, cut[i][0], cut[i][1]), d, y, 0);
		part = get_values(&dut, y);
		ok &= same_bits(part, whole + (size_t)cut[i][0] * out, (size_t)cut[i][1] * out);
	}
	snprintf(shape, sizeof(shape), "%s %d x %d: row invariance, bits", name, out, in);
	verdict_bool("linear", shape, ok);
}

/* So many rows that they take several blocks and calls, on sums that were there: the bits of the same rows a few at a time. */
static void hundreds(int out, int in, int group)
{
	enum { ALL = 530, FEW = 31 };
	static const int cut[][2] = {{0, ALL}, {0, 511}, {0, 512}, {17, 513}, {5, 40}};
	float *x = random_values((size_t)ALL * in, 1), *y0 = random_values((size_t)ALL * out, 1), *want;
	struct td_tensor xd = put_act(&dut, x, ALL, in, in), y = put_f32(&dut, y0, ALL, out, out);
	struct td_linear r, d;
	char shape[96];
	int ok = 1;

	make_linear(TD_W_INT4, out, in, group, 1, &r, &d);
	batch_of(&dut, FEW, 0);
	for (int row = 0; row < ALL; row += FEW) {
		int rows = ALL - row < FEW ? ALL - row : FEW;

		dut.ops->linear(dut.dev, td_rows(xd, row, rows), &d, td_rows(y, row, rows), 1);
	}
	want = get_values(&dut, y);
	for (size_t i = 0; i < sizeof(cut) / sizeof(cut[0]); i++) {
		int row = cut[i][0], rows = cut[i][1];

		y = put_f32(&dut, y0 + (size_t)row * out, rows, out, out);
		batch_of(&dut, rows, 0);
		dut.ops->linear(dut.dev, td_rows(xd, row, rows), &d, y, 1);
		ok &= same_bits(get_values(&dut, y), want + (size_t)row * out, (size_t)rows * out);
	}
	snprintf(shape, sizeof(shape), "INT4 g%d %d x %d: hundreds of rows, accumulate, bits", group, out, in);
	verdict_bool("linear", shape, ok);
	drop_all();
}

/* Prompts in one batch, each against itself alone: the block of 256 lies at other rows, the others' number differs. */
static void company(const char *name, const struct td_linear *d)
{
	static const int length[] = {37, 300, 5, 600, 16, 101};
	enum { N = sizeof(length) / sizeof(length[0]), ALL = 37 + 300 + 5 + 600 + 16 + 101 };
	struct td_seq seq[N], one;
	struct td_batch b;
	int in = d->in, out = d->out, ok = 1, row = 0;
	struct td_tensor xd = put_act(&dut, random_values((size_t)ALL * in, 1), ALL, in, in), yd = new_act(&dut, ALL, out, out), y;
	float *whole;
	char shape[96];

	for (int i = 0; i < N; row += length[i++])
		seq[i] = (struct td_seq){.slot = i, .row0 = row, .rows = length[i], .commit = length[i] > TD_BLOCK_MAX ? TD_COMMIT_END : 0};
	make_batch(&dut, &b, seq, N);
	dut.ops->linear(dut.dev, xd, d, yd, 0);
	whole = get_values(&dut, yd);
	for (int i = 0; i < N; i++) {
		for (int from = 0; from < length[i]; from += 256) { /* and in chunks */
			int rows = length[i] - from < 256 ? length[i] - from : 256;

			one = (struct td_seq){.slot = i, .rows = rows, .pos0 = from, .commit = seq[i].commit && from + rows < length[i] ? TD_COMMIT_ROWS : seq[i].commit};
			make_batch(&dut, &b, &one, 1);
			y = new_act(&dut, rows, out, out);
			dut.ops->linear(dut.dev, td_rows(xd, seq[i].row0 + from, rows), d, y, 0);
			ok &= same_bits(get_values(&dut, y), whole + (size_t)(seq[i].row0 + from) * out, (size_t)rows * out);
		}
	}
	snprintf(shape, sizeof(shape), "%s %d x %d: prompts together and in chunks, bits", name, out, in);
	verdict_bool("linear", shape, ok);
}

/* One long prompt, whole and in chunks of other numbers of blocks: a row's bits are the same in a call of any length, at any place of it. */
static void chunks(const char *name, const struct td_linear *d, int f32)
{
	static const int chunk[] = {256, 512, 768, 1024, 1280, 2048};
	enum { ALL = 2304 + 90 };
	int in = d->in, out = d->out, n = small ? 4 : (int)(sizeof(chunk) / sizeof(chunk[0]));
	struct td_tensor x = put_act(&dut, random_values((size_t)ALL * in, 1), ALL, in, in), y[2];
	struct td_seq seq;
	struct td_batch b;
	char shape[96];

	for (int accumulate = 0; accumulate < 2; accumulate++) {
		float *whole = NULL, *y0 = random_values((size_t)ALL * out, 1);
		int ok = 1;

		for (int c = -1; c < n; c++) {
			int rows = c < 0 ? ALL : chunk[c];
			struct td_tensor *to = &y[c >= 0];

			*to = f32 ? put_f32(&dut, y0, ALL, out, out) : put_act(&dut, y0, ALL, out, out);
			for (int from = 0; from < ALL; from += rows) {
				int m = ALL - from < rows ? ALL - from : rows;

				seq = (struct td_seq){.rows = m, .pos0 = from, .commit = from + m == ALL ? TD_COMMIT_END : TD_COMMIT_ROWS};
				make_batch(&dut, &b, &seq, 1);
				dut.ops->linear(dut.dev, td_rows(x, from, m), d, td_rows(*to, from, m), accumulate);
			}
			if (c < 0)
				whole = get_values(&dut, *to);
			else
				ok &= same_bits(get_values(&dut, *to), whole, (size_t)ALL * out);
		}
		snprintf(shape, sizeof(shape), "%s %d x %d%s: one prompt in chunks, bits", name, out, in, accumulate ? ", accumulate" : "");
		verdict_bool("linear", shape, ok);
	}
}

static void map(const char *name, enum td_weight_kind kind, int out, int in, int group, int n_part, int f32, const int *rows)
{
	struct td_linear r, d;

	make_linear(kind, out, in, group, n_part, &r, &d);
	for (; *rows; rows++)
		compare(name, &r, &d, *rows, f32, *rows == 16 || *rows == 300);
	if (!brief)
		invariance(name, &d, f32);
	if (!f32 && !brief)
		company(name, &d);
	if (!self && (size_t)in * out <= (size_t)64 << 20 && (!small || (out > 64 && in <= 256)))
		chunks(name, &d, f32);
	drop_all();
}

/* So many columns that blocks of the GPU share the last tiles of a prompt. */
static void long_rows(int out, int in, int group, int f32)
{
	struct td_linear r, d;

	make_linear(TD_W_INT4, out, in, group, 1, &r, &d);
	chunks("INT4 act8", &d, f32);
	drop_all();
}

/* The calls that do several operations at once, against the operations one by one: bits, or the rounding of gate and up that is left out. */
static void together(int hidden, int inner, int wide, int few, int group)
{
	static const int many[] = {1, 8, 16, 33, 64, 100, 192};
	struct td_linear qkv_r, qkv, ba_r, ba, gate_r, gate;
	char shape[128];

	make_linear(TD_W_INT4, wide, hidden, group, 3, &qkv_r, &qkv);
	make_linear(TD_W_BF16, few, hidden, 0, 2, &ba_r, &ba);
	making_paired = 1;
	make_linear(TD_W_INT4, 2 * inner, hidden, group, 1, &gate_r, &gate);
	making_paired = 0;
	for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
		int rows = many[i];
		float *x = random_values((size_t)rows * hidden, 1);
		struct td_tensor xd = put_act(&dut, x, rows, hidden, hidden), xr = put_act(&ref, x, rows, hidden, hidden);
		struct td_tensor a[2], b[2], both_r = new_act(&ref, rows, 2 * inner, 2 * inner), both = new_act(&dut, rows, 2 * inner, 2 * inner);
		struct td_tensor sr = new_act(&ref, rows, inner, inner), sd = new_act(&dut, rows, inner, inner), again = new_act(&dut, rows, inner, inner);

		for (int k = 0; k < 2; k++) {
			a[k] = new_act(&dut, rows, wide, wide);
			b[k] = new_f32(&dut, rows, few, few);
		}
		batch_of(&dut, rows, 0);
		dut.ops->linear(dut.dev, xd, &qkv, a[0], 0);
		dut.ops->linear(dut.dev, xd, &ba, b[0], 0);
		dut.ops->linear2(dut.dev, xd, &qkv, a[1], &ba, b[1]);
		snprintf(shape, sizeof(shape), "linear2 %d and %d x %d, %d rows: bits of both operations", wide, few, hidden, rows);
		verdict_bool("linear", shape,
			     same_bits(get_values(&dut, a[0]), get_values(&dut, a[1]), (size_t)rows * wide) &&
				     same_bits(get_values(&dut, b[0]), get_values(&dut, b[1]), (size_t)rows * few));
		ref.ops->linear_swiglu(ref.dev, xr, &gate_r, both_r, sr);
		dut.ops->linear_swiglu(dut.dev, xd, &gate, both, sd);
		snprintf(shape, sizeof(shape), "linear_swiglu %d x %d, %d rows", inner, hidden, rows);
		line("linear", shape, relative(get_values(&dut, sd), get_values(&ref, sr), (size_t)rows * inner), TOL_ROUND);
		for (int row = 0; row < rows; row += 16) {
			int part = rows - row < 16 ? rows - row : 16;

			dut.ops->linear_swiglu(dut.dev, td_rows(xd, row, part), &gate, both, td_rows(again, row, part));
		}
		snprintf(shape, sizeof(shape), "linear_swiglu %d x %d, %d rows: bits of 16 at a time", inner, hidden, rows);
		verdict_bool("linear", shape, same_bits(get_values(&dut, again), get_values(&dut, sd), (size_t)rows * inner));
	}
	/* a prompt's block takes the dense way, with its rows paired too */
	{
		enum { ROWS = 300 };
		float *x = random_values((size_t)ROWS * hidden, 1);
		struct td_tensor xr = put_act(&ref, x, ROWS, hidden, hidden), xd = put_act(&dut, x, ROWS, hidden, hidden), sr = new_act(&ref, ROWS, inner, inner);
		struct td_tensor sd = new_act(&dut, ROWS, inner, inner);

		batch_of(&dut, ROWS, 1);
		ref.ops->linear_swiglu(ref.dev, xr, &gate_r, new_act(&ref, ROWS, 2 * inner, 2 * inner), sr);
		dut.ops->linear_swiglu(dut.dev, xd, &gate, new_act(&dut, ROWS, 2 * inner, 2 * inner), sd);
		snprintf(shape, sizeof(shape), "linear_swiglu %d x %d, %d rows of a prompt", inner, hidden, ROWS);
		line("linear", shape, relative(get_values(&dut, sd), get_values(&ref, sr), (size_t)ROWS * inner), making_act8 ? TOL_EIGHT : 2 * TOL_ROUND);
		{
			static struct td_seq rest;
			struct td_tensor alone = new_act(&dut, ROWS - 256, inner, inner);
			struct td_batch b;

			rest = (struct td_seq){.rows = ROWS - 256, .pos0 = 256, .commit = TD_COMMIT_END};
			make_batch(&dut, &b, &rest, 1);
			dut.ops->linear_swiglu(dut.dev, td_rows(xd, 256, ROWS - 256), &gate, new_act(&dut, ROWS - 256, 2 * inner, 2 * inner), alone);
			snprintf(shape, sizeof(shape), "linear_swiglu %d x %d: a prompt's rest alone, bits", inner, hidden);
			verdict_bool("linear", shape,
				     same_bits(get_values(&dut, alone), get_values(&dut, td_rows(sd, 256, ROWS - 256)), (size_t)(ROWS - 256) * inner));
		}
	}
	drop_all();
}

/* Some rows of a packed map are, byte for byte, what packing these rows alone makes. */
static void some_rows(const char *name, enum td_weight_kind kind, int out, int in, int group, int n)
{
	size_t row = kind == TD_W_INT4 ? (size_t)in / 2 : (size_t)in * 2, scales = kind == TD_W_INT4 ? (size_t)(in / group) * 2 : 0;
	uint8_t *w = host((size_t)out * row + 8), *s = host((size_t)out * scales + 8), *w1 = host((size_t)n * row + 8), *s1 = host((size_t)n * scales + 8);
	struct td_linear_part all = {.out = out, .weight = w, .scale = s}, part = {.out = n, .weight = w1, .scale = s1};
	struct side *side[2] = {&ref, &dut};
	int32_t *id = host((size_t)n * 4);
	char shape[96];
	int ok = 1;

	for (size_t i = 0; i < (size_t)out * row; i++)
		w[i] = (uint8_t)(rnd() >> 20);
	for (size_t i = 0; i < (size_t)out * scales; i++)
		s[i] = (uint8_t)(rnd() >> 20);
	for (int i = 0; i < n; i++) {
		id[i] = i == 0 ? out - 1 : i == 1 ? 0 : (int32_t)(rnd() % (uint64_t)out);
		memcpy(w1 + (size_t)i * row, w + (size_t)id[i] * row, row);
		memcpy(s1 + (size_t)i * scales, s + (size_t)id[i] * scales, scales);
	}
	for (int i = 0; i < 2; i++) {
		struct td_linear whole = {.kind = kind, .in = in, .out = out, .group = group, .act8 = making_act8}, want = whole, got;
		size_t bytes = side[i]->ops->pack_bytes(kind, n, in, group);
		uint8_t *a = host(bytes), *b = host(bytes);
		struct td_error err = {0};

		want.out = n;
		got = want;
		whole.data = poisoned(side[i], side[i]->ops->pack_bytes(kind, out, in, group));
		want.data = poisoned(side[i], bytes);
		got.data = poisoned(side[i], bytes);
		if (side[i]->ops->pack(side[i]->dev, &whole, &all, 1, &err) || side[i]->ops->pack(side[i]->dev, &want, &part, 1, &err))
			die("pack", &err);
		side[i]->ops->pack_rows(side[i]->dev, &whole, put(side[i], id, (size_t)n * 4), &got);
		get(side[i], a, want.data, bytes);
		get(side[i], b, got.data, bytes);
		ok &= !memcmp(a, b, bytes);
	}
	snprintf(shape, sizeof(shape), "%s: %d of %d rows of %d, bytes", name, n, out, in);
	verdict_bool("linear", shape, ok);
	drop_all();
}

/* Rows that the norm has left in 8 bits, too, give the bits of rows that the product rounds. */
static void rounded(int out, int in, int group)
{
	static const int many[] = {1, 9, 16, 40, 64};
	struct td_linear r, d, few_r, few;
	char shape[96];
	int ok = 1;

	if (dut.ops->act != TD_BF16)
		return;
	make_linear(TD_W_INT4, out, in, group, 1, &r, &d);
	make_linear(TD_W_BF16, 24, in, 0, 1, &few_r, &few);
	for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
		int rows = many[i];
		float *v = random_values((size_t)rows * in, 1), *w = random_values((size_t)in, 1);
		struct td_tensor x, y = new_act(&dut, rows, in, in + (int)td_act8_bytes(in) / 2), to[4], b[2];

		memset(v, 0, sizeof(*v) * (size_t)(in < 128 ? in / 2 : 128)); /* a group of nothing */
		x = put_f32(&dut, v, rows, in, in);
		y.eight = 1;
		batch_of(&dut, rows, 0);
		dut.ops->rms_norm(dut.dev, x, put(&dut, w, sizeof(*w) * (size_t)in), 1e-6f, 1, y);
		for (int k = 0; k < 4; k++) {
			to[k] = new_act(&dut, rows, out, out);
			b[k & 1] = new_f32(&dut, rows, 24, 24);
			y.eight = k & 1;
			if (k < 2)
				dut.ops->linear(dut.dev, y, &d, to[k], 0);
			else
				dut.ops->linear2(dut.dev, y, &d, to[k], &few, b[k & 1]);
			ok &= k == 0 || same_bits(get_values(&dut, to[0]), get_values(&dut, to[k]), (size_t)rows * out);
		}
	}
	snprintf(shape, sizeof(shape), "INT4 g%d act8 %d x %d: rows rounded by the norm, bits", group, out, in);
	verdict_bool("linear", shape, ok);
	drop_all();
}

/* Maps that take activations in 8 bits: as above, and sums of values that are far from each other, or all nothing. */
static void act8(int big)
{
	static const int few[] = {1, 16, 0}, many[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130, 256, 300, 333, 0}, some[] = {1, 5, 16, 40, 300, 0};

	making_act8 = 1;
	some_rows("INT4 g32 act8", TD_W_INT4, 100, 160, 32, 37);
	some_rows("INT4 g128 act8", TD_W_INT4, 72, 256, 128, 20);
	rounded(200, 640, 128);
	rounded(72, 96, 32);
	if (big)
		rounded(12288, 2560, 128);
	if (brief) {
		map("INT4 g32 act8", TD_W_INT4, 72, 96, 32, 1, 0, few);
		map("INT4 g128 act8", TD_W_INT4, 100, 1152, 128, 1, 1, few);
	} else {
		map("INT4 g32 act8", TD_W_INT4, 72, 96, 32, 1, 0, many);
		map("INT4 g96 act8", TD_W_INT4, 1, 96, 96, 1, 1, some);
		map("INT4 g160 act8", TD_W_INT4, 100, 160, 160, 3, 1, some);
		map("INT4 g64 act8", TD_W_INT4, 200, 1088, 64, 2, 0, some);
		map("INT4 g128 act8 o", TD_W_INT4, small ? 320 : 2560, 4096, 128, 1, 0, big ? many : few);
		hundreds(72, 640, 128);
		hundreds(200, 192, 64);
		together(256, 1152, 400, 24, 128);
		together(192, 320, 96, 16, 32);
		long_rows(56, 2560, 128, 0);
	}
	if (big) {
		together(2560, 9216, 12288, 64, 128);
		map("INT4 g32 act8 qkvz", TD_W_INT4, 12288, 2560, 32, 4, 0, some);
		map("INT4 g128 act8 gate|up", TD_W_INT4, 18432, 2560, 128, 2, 1, few);
		map("INT4 g128 act8 down", TD_W_INT4, 2560, 9216, 128, 1, 0, some);
		map("INT4 g32 act8 head part", TD_W_INT4, 40000, 2560, 32, 1, 1, few);
	}
	making_act8 = 0;
}

void check_linear(void)
{
	static const int few[] = {1, 16, 0}, many[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130, 256, 300, 333, 0}, some[] = {1, 5, 16, 40, 300, 0};
	static const int tiles[] = {1, 16, 33, 64, 300, 0};
	int big = !self && !small;

	some_rows("INT4 g32", TD_W_INT4, 100, 160, 32, 37);
	some_rows("INT4 g128", TD_W_INT4, 72, 256, 128, 20);
	some_rows("INT4 g96", TD_W_INT4, 40, 96, 96, 1);
	some_rows("BF16", TD_W_BF16, 50, 77, 0, 33);
	if (brief) {
		map("INT4 g32", TD_W_INT4, 72, 96, 32, 1, 0, tiles);
		map("INT4 g128", TD_W_INT4, 100, 1152, 128, 1, 1, few);
		map("BF16", TD_W_BF16, 37, 77, 0, 1, 0, tiles);
		map("BF16", TD_W_BF16, 64, 1000, 0, 1, 1, few);
		act8(0);
		return;
	}
	map("INT4 g32", TD_W_INT4, 72, 96, 32, 1, 0, many);
	map("INT4 g96", TD_W_INT4, 1, 96, 96, 1, 1, some);
	map("INT4 g160", TD_W_INT4, 100, 160, 160, 3, 1, some);
	map("INT4 g64", TD_W_INT4, 200, 1088, 64, 2, 0, some);
	map("INT4 g128 o", TD_W_INT4, small ? 320 : 2560, 4096, 128, 1, 0, big ? many : few);
	map("BF16 ba", TD_W_BF16, 64, 2560, 0, 2, 1, many);
	map("BF16", TD_W_BF16, 300, 1000, 0, 3, 0, some);
	map("BF16", TD_W_BF16, 37, 77, 0, 1, 0, some);
	map("BF16", TD_W_BF16, 1, 8, 0, 1, 1, some);
	hundreds(72, 640, 128);
	hundreds(200, 192, 64);
	together(256, 1152, 400, 24, 128);
	together(192, 320, 96, 16, 32);
	act8(big);
	if (!big)
		return;
	together(2560, 9216, 12288, 64, 128);
	map("INT4 g32 qkvz", TD_W_INT4, 12288, 2560, 32, 4, 0, some);
	map("INT4 g128 gate|up", TD_W_INT4, 18432, 2560, 128, 2, 0, few);
	map("INT4 g128 down", TD_W_INT4, 2560, 9216, 128, 1, 0, some);
	map("INT4 g32 head part", TD_W_INT4, 40000, 2560, 32, 1, 1, few);
	map("BF16 fc", TD_W_BF16, 2560, 20480, 0, 1, 0, some);
	map("BF16 head part", TD_W_BF16, 40000, 2560, 0, 1, 1, few);
}
