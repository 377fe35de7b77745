/*
 * check_rows.c: operations on rows by themselves: norm, SwiGLU, copies, embedding, picking rows, ids, counts.
 */
#include "tests/gpu/check.h"

static void norm(int rows, int cols, int ld, int zero_centred)
{
	float *x = random_values((size_t)rows * cols, 2), *w = random_values((size_t)cols, 0.5f), *one;
	struct td_tensor xr = put_act(&ref, x, rows, cols, ld), xd = put_act(&dut, x, rows, cols, ld), yr = new_act(&ref, rows, cols, ld),
			 yd = new_act(&dut, rows, cols, ld);
	float *wr = put(&ref, w, (size_t)cols * 4), *wd = put(&dut, w, (size_t)cols * 4), *all;
	struct td_tensor y1 = new_act(&dut, 1, cols, ld);
	char shape[96];

	ref.ops->rms_norm(ref.dev, xr, wr, 1e-6f, zero_centred, yr);
	dut.ops->rms_norm(dut.dev, xd, wd, 1e-6f, zero_centred, yd);
	dut.ops->rms_norm(dut.dev, td_rows(xd, rows - 1, 1), wd, 1e-6f, zero_centred, y1);
	all = get_values(&dut, yd);
	snprintf(shape, sizeof(shape), "(%d, %d; ld %d)%s", rows, cols, ld, zero_centred ? ", 1 + w" : "");
	line("rms_norm", shape, relative(all, get_values(&ref, yr), (size_t)rows * cols), TOL_ROUND);
	one = get_values(&dut, y1);
	verdict_bool("rms_norm", "row invariance, bits", same_bits(one, all + (size_t)(rows - 1) * cols, (size_t)cols));
	xd = put_f32(&dut, x, rows, cols, ld); /* the residual stream */
	dut.ops->rms_norm(dut.dev, xd, wd, 1e-6f, zero_centred, yd);
	snprintf(shape, sizeof(shape), "(%d, %d; ld %d) of f32", rows, cols, ld);
	line("rms_norm", shape, relative(get_values(&dut, yd), get_values(&ref, yr), (size_t)rows * cols), TOL_ROUND);
	drop_all();
}

static void swiglu(int rows, int cols)
{
	float *x = random_values((size_t)rows * cols * 2, 2);
	struct td_tensor xr = put_act(&ref, x, rows, 2 * cols, 2 * cols), xd = put_act(&dut, x, rows, 2 * cols, 2 * cols);
	struct td_tensor yr = new_act(&ref, rows, cols, cols + 3), yd = new_act(&dut, rows, cols, cols + 3);
	char shape[96];

	ref.ops->swiglu(ref.dev, xr, yr);
	dut.ops->swiglu(dut.dev, xd, yd);
	snprintf(shape, sizeof(shape), "(%d, %d)", rows, cols);
	line("swiglu", shape, relative(get_values(&dut, yd), get_values(&ref, yr), (size_t)rows * cols), TOL_ROUND);
	drop_all();
}

static void embed(int vocab, int cols, int rows)
{
	float *x = random_values((size_t)vocab * cols, 1), *a, *b;
	uint16_t *bits = host((size_t)vocab * cols * 2);
	int32_t *ids = host((size_t)rows * 4);
	struct td_tensor tr, td, yr = new_act(&ref, rows, cols, cols), yd = new_act(&dut, rows, cols, cols);
	char shape[96];

	for (size_t i = 0; i < (size_t)vocab * cols; i++)
		bits[i] = td_bf16(x[i]);
	for (int i = 0; i < rows; i++)
		ids[i] = i == 0 ? vocab - 1 : (int32_t)(rnd() % (uint64_t)vocab);
	tr = (struct td_tensor){put(&ref, bits, (size_t)vocab * cols * 2), TD_BF16, vocab, cols, cols, 0};
	td = (struct td_tensor){put(&dut, bits, (size_t)vocab * cols * 2), TD_BF16, vocab, cols, cols, 0};
	ref.ops->embed(ref.dev, tr, put(&ref, ids, (size_t)rows * 4), yr);
	dut.ops->embed(dut.dev, td, put(&dut, ids, (size_t)rows * 4), yd);
	a = get_values(&dut, yd);
	b = get_values(&ref, yr);
	snprintf(shape, sizeof(shape), "table (%d, %d), %d rows", vocab, cols, rows);
	verdict_bool("embed", shape, same_bits(a, b, (size_t)rows * cols));
	yd = new_f32(&dut, rows, cols, cols);
	dut.ops->embed(dut.dev, td, put(&dut, ids, (size_t)rows * 4), yd);
	verdict_bool("embed", "to f32", same_bits(get_values(&dut, yd), b, (size_t)rows * cols));
	drop_all();
}

/* Rows of the residual stream into a part of wider rows, as the features go: eight at once, and a width that has no eights. */
static void rounded(int cols)
{
	enum { ROWS = 5 };
	float *x = random_values((size_t)ROWS * cols, 1);
	struct td_tensor from = put_f32(&dut, x, ROWS, cols, cols), xr = put_act(&ref, x, ROWS, cols, cols), to = new_act(&dut, ROWS, 3 * cols, 3 * cols);
	struct td_tensor yr = new_act(&ref, ROWS, cols, cols);
	char shape[64];

	ref.ops->copy(ref.dev, xr, yr);
	dut.ops->copy(dut.dev, from, td_cols(to, cols, cols));
	snprintf(shape, sizeof(shape), "f32 rows of %d into columns of wider ones", cols);
	verdict_bool("copy", shape, same_bits(get_values(&dut, td_cols(to, cols, cols)), get_values(&ref, yr), (size_t)ROWS * cols));
	drop_all();
}

static void copies(void)
{
	static const struct td_seq seq[] = {{.slot = 2, .row0 = 0, .rows = 5}, {.slot = 0, .row0 = 5, .rows = 1}, {.slot = 7, .row0 = 6, .rows = 16}};
	enum { ROWS = 22, COLS = 77, TAIL = ROWS - 3 };
	float *x = random_values((size_t)ROWS * COLS, 1);
	struct td_tensor xr = put_act(&ref, x, ROWS, COLS, COLS), xd = put_act(&dut, x, ROWS, COLS, COLS), y[2];
	struct td_batch br, bd;

	make_batch(&ref, &br, seq, 3);
	make_batch(&dut, &bd, seq, 3);
	y[0] = new_act(&ref, ROWS, 10, 13);
	y[1] = new_act(&dut, ROWS, 10, 13);
	ref.ops->copy(ref.dev, td_cols(xr, 3, 10), y[0]);
	dut.ops->copy(dut.dev, td_cols(xd, 3, 10), y[1]);
	verdict_bool("copy", "columns 3..12 of (22, 77)", same_bits(get_values(&dut, y[1]), get_values(&ref, y[0]), ROWS * 10));
	dut.ops->copy(dut.dev, td_cols(put_f32(&dut, x, ROWS, COLS, COLS), 3, 10), y[1]);
	verdict_bool("copy", "the same of f32", same_bits(get_values(&dut, y[1]), get_values(&ref, y[0]), ROWS * 10));
	y[0] = new_act(&ref, 3, COLS, COLS);
	y[1] = new_act(&dut, 3, COLS, COLS);
	ref.ops->rows_last(ref.dev, &br, xr, y[0]);
	dut.ops->rows_last(dut.dev, &bd, xd, y[1]);
	verdict_bool("rows_last", "5, 1, 16 rows", same_bits(get_values(&dut, y[1]), get_values(&ref, y[0]), 3 * COLS));
	y[0] = new_act(&ref, TAIL, COLS, COLS + 1);
	y[1] = new_act(&dut, TAIL, COLS, COLS + 1);
	ref.ops->rows_tail(ref.dev, &br, xr, y[0]);
	dut.ops->rows_tail(dut.dev, &bd, xd, y[1]);
	verdict_bool("rows_tail", "5, 1, 16 rows", same_bits(get_values(&dut, y[1]), get_values(&ref, y[0]), TAIL * COLS));
	drop_all();
}

static void ids(void)
{
	static const struct td_seq seq[] = {{.slot = 2, .row0 = 0, .rows = 5}, {.slot = 0, .row0 = 5, .rows = 1}, {.slot = 7, .row0 = 6, .rows = 16}};
	struct td_draft *draft = host(8 * sizeof(*draft));
	int32_t anchor[8], a[22], b[22];
	struct td_batch br, bd;
	int32_t *ir = poisoned(&ref, sizeof(a)), *id = poisoned(&dut, sizeof(a));

	for (int i = 0; i < 8; i++) {
		anchor[i] = 1000 + i;
		for (int k = 0; k < TD_DRAFT_MAX; k++)
			draft[i].token[k] = 100 * i + k;
	}
	make_batch(&ref, &br, seq, 3);
	make_batch(&dut, &bd, seq, 3);
	ref.ops->verify_ids(ref.dev, &br, put(&ref, anchor, sizeof(anchor)), put(&ref, draft, 8 * sizeof(*draft)), ir);
	dut.ops->verify_ids(dut.dev, &bd, put(&dut, anchor, sizeof(anchor)), put(&dut, draft, 8 * sizeof(*draft)), id);
	get(&ref, a, ir, sizeof(a));
	get(&dut, b, id, sizeof(b));
	verdict_bool("verify_ids", "5, 1, 16 rows", !memcmp(a, b, sizeof(a)));
	ref.ops->mask_ids(ref.dev, &br, put(&ref, anchor, sizeof(anchor)), 77, ir);
	dut.ops->mask_ids(dut.dev, &bd, put(&dut, anchor, sizeof(anchor)), 77, id);
	get(&ref, a, ir, sizeof(a));
	get(&dut, b, id, sizeof(b));
	verdict_bool("mask_ids", "5, 1, 16 rows", !memcmp(a, b, sizeof(a)));
	drop_all();
}

static void counts(void)
{
	enum { V = 1001, N = 3000 };
	static uint16_t a[V], b[V];
	int32_t *prompt = host(N * 4);
	uint16_t *cr = poisoned(&ref, sizeof(a)), *cd = poisoned(&dut, sizeof(a));

	for (int i = 0; i < N; i++)
		prompt[i] = (int32_t)(rnd() % (i < 1500 ? 20 : V));
	ref.ops->counts_reset(ref.dev, cr, V, put(&ref, prompt + 2000, 400), 100);
	dut.ops->counts_reset(dut.dev, cd, V, put(&dut, prompt + 2000, 400), 100);
	ref.ops->counts_add(ref.dev, cr, put(&ref, prompt, N * 4), N);
	dut.ops->counts_add(dut.dev, cd, put(&dut, prompt, N * 4), N);
	get(&ref, a, cr, sizeof(a));
	get(&dut, b, cd, sizeof(b));
	verdict_bool("counts", "100 prompt ids, 3000 output ids of 1001", !memcmp(a, b, sizeof(a)));
	drop_all();
}

void check_rows(void)
{
	norm(16, 2560, 2560, 1);
	norm(16, 2560, 20480, 0);
	norm(3, 77, 80, 1);
	norm(5, 20480, 20480, 0);
	norm(3, 10248, 10248, 1);
	norm(1, 1, 1, 0);
	swiglu(16, 9216);
	swiglu(3, 77);
	swiglu(3, 1032);
	embed(5000, 2560, 33);
	embed(7, 9, 5);
	copies();
	rounded(2568);
	rounded(2562);
	ids();
	counts();
}
