/*
 * linear.c: y = W x for BF16 and packed INT4 weights.
 *
 * Why not a library's sgemm: its result for a row may depend on how many rows there are and where the row stands, and it wants the weights in
 * float32 at once. Here a weight row is expanded to float32 a few hundred columns at a time, into the first-level cache, and used for all rows of
 * the batch before the next is touched. Each (row, output) has its own eight lanes: lane l sums columns l, l+8, l+16, ... in order, then the
 * lanes are added in a fixed tree. So a result depends on its row and its weights only.
 *
 * Work: an item is a panel of PANEL outputs times a group of ROW_GROUP rows.
 *
 *	for each K_STEP of columns                                  x of the group stays in the second-level cache
 *	    for each OUT_TILE outputs of the panel                  expand (OUT_TILE, K_STEP) weights
 *	        for each ROW_TILE rows of the group                 acc[row][out] lanes += w * x, in registers
 *	y = sums of the lanes
 *
 * Formats in the arena. BF16: (out, in), plain. INT4: row by row, in/8 words (low nibble first, value + 8), then in/group bf16 scales, so that a
 * row range of a map is a map and a row is one stream.
 *
 * Activations in 8 bits (td_linear.act8): a call's rows are rounded once, before the product, to whole numbers that stand as floats, and their scales.
 * The product goes the same way, but of each group's columns the lanes start anew and are added times the scale. A lane's sum of (code - 8) * scale * q is
 * exact there as long as the weights' scale stays the same: 16 products of 11 bits times a scale of 8 bits are less than 24.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/pack.h"

/* K_STEP is a multiple of TD_ACT8_GROUP. */
enum { OUT_TILE = 4, ROW_TILE = 3, PANEL = 32, ROW_GROUP = 48, K_STEP = 512, LANES = 8 };

struct scratch {
	float w[OUT_TILE][K_STEP];
	float acc[ROW_GROUP][PANEL][LANES];
};

struct job {
	struct td_dev *dev;
	struct td_tensor x, y;
	const struct td_linear *w;
	int accumulate, panels;
	const float *x_scale; /* (rows, x_groups); NULL: x is multiplied as it is */
	int x_groups;
};

struct rounding {
	struct td_tensor x, q;
	float *scale; /* (rows, groups) */
	int groups;
};

typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

/* ---- packing ---------------------------------------------------------------------------------------------------------------------- */

static size_t row_bytes(enum td_weight_kind kind, int in, int group)
{
	return kind == TD_W_BF16 ? (size_t)in * 2 : (size_t)in / 2 + (size_t)(in / group) * 2;
}

size_t td__pack_bytes(enum td_weight_kind kind, int out, int in, int group)
{
	return td_pack_bytes_cpu(kind, out, in, group);
}

int td__pack(struct td_dev *dev, const struct td_linear *w, const struct td_linear_part *part, int n_part, struct td_error *err)
{
	size_t row = 0, words = (size_t)w->in / 2, scales;
	uint8_t *dst = w->data;
	int out = 0;

	(void)dev;
	for (int i = 0; i < n_part; i++)
		out += part[i].out;
	if (!td__pack_bytes(w->kind, w->out, w->in, w->group) || out != w->out)
		return td_error_set(err, TD_E_UNSUPPORTED, "a linear map of %d x %d, group %d, from %d rows can't be packed", w->out, w->in, w->group, out);
	row = row_bytes(w->kind, w->in, w->group);
	scales = row - words;
	for (int i = 0; i < n_part; i++) {
		const uint8_t *weight = part[i].weight, *scale = part[i].scale;

		if (w->kind == TD_W_BF16) {
			memcpy(dst, weight, row * (size_t)part[i].out);
			dst += row * (size_t)part[i].out;
			continue;
		}
		for (int o = 0; o < part[i].out; o++, dst += row) {
			memcpy(dst, weight + (size_t)o * words, words);
			memcpy(dst + words, scale + (size_t)o * scales, scales);
		}
	}
	return 0;
}

void td__pack_rows(struct td_dev *dev, const struct td_linear *from, const int32_t *id, const struct td_linear *w)
{
	size_t row = row_bytes(w->kind, w->in, w->group);

	(void)dev;
	for (int i = 0; i < w->out; i++)
		memcpy((uint8_t *)w->data + (size_t)i * row, (const uint8_t *)from->data + (size_t)id[i] * row, row);
}

/* ---- expansion -------------------------------------------------------------------------------------------------------------------- */

TD__INLINE void expand_bf16(float *dst, const uint16_t *src, int n)
{
	int k = 0;

	for (; k + LANES <= n; k += LANES) {
		u16x8 h;
		u32x8 f;

		memcpy(&h, src + k, sizeof(h));
		f = __builtin_convertvector(h, u32x8) << 16;
		memcpy(dst + k, &f, sizeof(f));
	}
	for (; k < n; k++)
		dst[k] = td__from_bf16(src[k]);
}

/* Eight columns. A weight is (code - 8) * scale, the exact product in float32. */
TD__INLINE void expand_word(float *dst, const uint8_t *src, float scale)
{
	const u32x8 shift = { 0, 4, 8, 12, 16, 20, 24, 28 };
	uint32_t word;
	u32x8 code;
	td__v8 f;

	memcpy(&word, src, 4);
	code = ((u32x8){ word, word, word, word, word, word, word, word } >> shift) & 15;
	f = __builtin_convertvector((i32x8)code - 8, td__v8) * scale;
	memcpy(dst, &f, sizeof(f));
}

/* Columns [k0, k0 + n) of one row; k0 and n are multiples of 8. */
TD__INLINE void expand_int4(float *dst, const uint8_t *row, int in, int group, int k0, int n)
{
	const uint8_t *scales = row + in / 2 + (size_t)(k0 / group) * 2;
	int i = 0, left = group - k0 % group; /* columns that the scale at hand still serves */

	row += k0 / 2;
	for (; i < n; scales += 2, left = group) {
		int end = i + left < n ? i + left : n;
		uint16_t h;
		float scale;

		memcpy(&h, scales, 2);
		scale = td__from_bf16(h);
		for (; i + 4 * LANES <= end; i += 4 * LANES)
			for (int u = 0; u < 4 * LANES; u += LANES)
				expand_word(dst + i + u, row + (i + u) / 2, scale);
		for (; i < end; i += LANES)
			expand_word(dst + i, row + i / 2, scale);
	}
}

/* ---- rounding ---------------------------------------------------------------------------------------------------------------------- */

/* A group of a row, by the formulas beside TD_ACT8_GROUP. Where 127 / a is more than a float holds, a is as good as 0. */
TD__INLINE void round_group_body(const float *x, float *q, float *scale, int n)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	float a = 0, r;

	for (int i = 0; i < n; i++)
		a = fabsf(x[i]) > a ? fabsf(x[i]) : a;
	r = 127.0f * (1.0f / a);
	*scale = a * (1.0f / 127.0f);
	if (isinf(r))
		r = *scale = 0;
	for (int i = 0; i < n; i++)
		q[i] = __builtin_fmaf(x[i], r, magic) - magic;
}
TD__DISPATCH(round_group, (const float *x, float *q, float *scale, int n), (x, q, scale, n))

static void round_row(void *job, int r, int thread)
{
	const struct rounding *j = job;
	const float *x = td__row(&j->x, r);
	float *q = td__row(&j->q, r), *scale = j->scale + (size_t)r * (size_t)j->groups;

	(void)thread;
	for (int g = 0, k = 0; g < j->groups; g++, k += TD_ACT8_GROUP)
		round_group(x + k, q + k, scale + g, j->x.cols - k < TD_ACT8_GROUP ? j->x.cols - k : TD_ACT8_GROUP);
}

/* x becomes its rounded self, in the device's room for it. */
static int round_rows(struct td_dev *dev, struct job *j)
{
	struct td_tensor q = { NULL, TD_F32, j->x.rows, j->x.cols, j->x.cols, 0 };
	int groups = (q.cols + TD_ACT8_GROUP - 1) / TD_ACT8_GROUP;
	size_t values = (size_t)q.rows * (size_t)q.cols;
	struct rounding rounding;

	q.data = td__room(dev, &dev->rounded, (values + (size_t)q.rows * (size_t)groups) * sizeof(float));
	if (!q.data)
		return -1;
	rounding = (struct rounding){ j->x, q, (float *)q.data + values, groups };
	td__parallel(dev, q.rows, 1, round_row, &rounding);
	j->x = q;
	j->x_scale = rounding.scale;
	j->x_groups = groups;
	return 0;
}

/* ---- product ---------------------------------------------------------------------------------------------------------------------- */

/* acc[r][o] += w[o] * x[r] over n8 vectors of columns, for `rows` rows of x and all OUT_TILE outputs; with a scale for each row, `step` of them apart, the sum
 * is made first and multiplied by that. */
TD__INLINE void tile(float *acc, const float *w, const float *x, size_t ldx, int n8, int rows, const float *scale, int step)
{
	td__v8 a[ROW_TILE][OUT_TILE];

	for (int r = 0; r < rows; r++)
		for (int o = 0; o < OUT_TILE; o++)
			if (scale)
				a[r][o] = (td__v8){ 0 };
			else
				a[r][o] = *(const td__v8_any *)(acc + (r * PANEL + o) * LANES);
	for (int i = 0; i < n8; i++) {
		td__v8 xv[ROW_TILE];

		/* volatile: loaded once and kept; otherwise each product loads its row again, and loads are what this loop runs out of */
		for (int r = 0; r < rows; r++)
			xv[r] = *(const volatile td__v8_any *)(x + (size_t)r * ldx + i * LANES);
		for (int o = 0; o < OUT_TILE; o++) {
			td__v8 wv = *(const td__v8_any *)(w + o * K_STEP + i * LANES);

			for (int r = 0; r < rows; r++)
				a[r][o] += wv * xv[r];
		}
	}
	for (int r = 0; r < rows; r++)
		for (int o = 0; o < OUT_TILE; o++) {
			td__v8_any *to = (td__v8_any *)(acc + (r * PANEL + o) * LANES);

			if (scale)
				*to += a[r][o] * scale[r * step];
			else
				*to = a[r][o];
		}
}

/* Columns past the last whole vector (BF16 maps only): lane l takes column l of the rest. */
TD__INLINE void tile_rest(float *acc, const float *w, const float *x, size_t ldx, int n, int rows)
{
	for (int r = 0; r < rows; r++)
		for (int o = 0; o < OUT_TILE; o++)
			for (int l = 0; l < n; l++)
				acc[(r * PANEL + o) * LANES + l] += w[o * K_STEP + l] * x[(size_t)r * ldx + l];
}

/* The weights of `outs` outputs from o0 on, columns [k, k + n), into s->w; zeros where there are fewer than OUT_TILE. */
TD__INLINE void expand_body(const struct td_linear *w, struct scratch *s, int o0, int outs, int k, int n)
{
	const size_t row = row_bytes(w->kind, w->in, w->group);

	for (int t = 0; t < OUT_TILE; t++) {
		const uint8_t *src = (const uint8_t *)w->data + (size_t)(o0 + t) * row;

		if (t >= outs)
			memset(s->w[t], 0, sizeof(s->w[t]));
		else if (w->kind == TD_W_BF16)
			expand_bf16(s->w[t], (const uint16_t *)src + k, n);
		else
			expand_int4(s->w[t], src, w->in, w->group, k, n);
	}
}
TD__DISPATCH(expand, (const struct td_linear *w, struct scratch *s, int o0, int outs, int k, int n), (w, s, o0, outs, k, n))

/* One tile of one, two or three rows: numbers that the compiler knows keep the sums in registers. */
TD__INLINE void tile_of(float *acc, const float *w, const float *x, size_t ldx, int n8, int rows, const float *scale, int step)
{
	if (rows == 3)
		tile(acc, w, x, ldx, n8, 3, scale, step);
	else if (rows == 2)
		tile(acc, w, x, ldx, n8, 2, scale, step);
	else
		tile(acc, w, x, ldx, n8, 1, scale, step);
}

/* Four rows are two and two: a lone row leaves the multipliers waiting for its sums. */
TD__INLINE int rows_of_tile(int left)
{
	return left == 4 ? 2 : left < ROW_TILE ? left : ROW_TILE;
}

/* s->acc of output tile o += s->w * x for all rows. Apart from expand, whose constants would push sums out of the registers. */
TD__INLINE void multiply_body(struct scratch *s, int o, const float *x, size_t ldx, int n, int rows)
{
	const int n8 = n / LANES;

	for (int r = 0, take; r < rows; r += take) {
		float *acc = s->acc[r][o];
		const float *xr = x + (size_t)r * ldx;

		take = rows_of_tile(rows - r);
		tile_of(acc, s->w[0], xr, ldx, n8, take, NULL, 0);
		if (n % LANES)
			tile_rest(acc, s->w[0] + n8 * LANES, xr + n8 * LANES, ldx, n % LANES, take);
	}
}
TD__DISPATCH(multiply, (struct scratch *s, int o, const float *x, size_t ldx, int n, int rows), (s, o, x, ldx, n, rows))

/* The same for rounded x, group by group; `scale` is that of the first row's first group here. A map of 4 bits has whole vectors of columns. */
TD__INLINE void multiply_rounded_body(struct scratch *s, int o, const float *x, size_t ldx, int n, int rows, const float *scale, int step)
{
	for (int r = 0, take; r < rows; r += take) {
		take = rows_of_tile(rows - r);
		for (int k = 0, g = 0; k < n; k += TD_ACT8_GROUP, g++) {
			int cols = n - k < TD_ACT8_GROUP ? n - k : TD_ACT8_GROUP;

			tile_of(s->acc[r][o], s->w[0] + k, x + (size_t)r * ldx + k, ldx, cols / LANES, take, scale + r * step + g, step);
		}
	}
}
TD__DISPATCH(multiply_rounded, (struct scratch *s, int o, const float *x, size_t ldx, int n, int rows, const float *scale, int step),
	     (s, o, x, ldx, n, rows, scale, step))

TD__INLINE void store_body(const struct job *j, const struct scratch *s, int o0, int outs, int r0, int rows)
{
	for (int r = 0; r < rows; r++) {
		float *y = td__row(&j->y, r0 + r) + o0;

		for (int o = 0; o < outs; o += OUT_TILE) {
			float v[OUT_TILE];

			td__lanes4((const td__v8 *)s->acc[r][o], v);
			for (int t = 0; t < OUT_TILE && o + t < outs; t++)
				y[o + t] = j->accumulate ? y[o + t] + v[t] : v[t];
		}
	}
}
TD__DISPATCH(store, (const struct job *j, const struct scratch *s, int o0, int outs, int r0, int rows), (j, s, o0, outs, r0, rows))

static void panel(const struct job *j, struct scratch *s, int o0, int outs, int r0, int rows)
{
	memset(s->acc, 0, sizeof(s->acc[0]) * (size_t)rows);
	for (int k = 0; k < j->w->in; k += K_STEP) {
		int n = j->w->in - k < K_STEP ? j->w->in - k : K_STEP;

		for (int o = 0; o < outs; o += OUT_TILE) {
			expand(j->w, s, o0 + o, outs - o, k, n);
			if (j->x_scale)
				multiply_rounded(s, o, td__row(&j->x, r0) + k, (size_t)j->x.ld, n, rows,
						 j->x_scale + (size_t)r0 * (size_t)j->x_groups + k / TD_ACT8_GROUP, j->x_groups);
			else
				multiply(s, o, td__row(&j->x, r0) + k, (size_t)j->x.ld, n, rows);
		}
	}
	store(j, s, o0, outs, r0, rows);
}

static void item(void *job, int i, int thread)
{
	const struct job *j = job;
	int o0 = i % j->panels * PANEL, r0 = i / j->panels * ROW_GROUP;
	int outs = j->w->out - o0, rows = j->x.rows - r0;

	panel(j, j->dev->scratch[thread].mem, o0, outs < PANEL ? outs : PANEL, r0, rows < ROW_GROUP ? rows : ROW_GROUP);
}

void td__linear(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	struct job job = { .dev = dev, .x = x, .y = y, .w = w, .accumulate = accumulate, .panels = (w->out + PANEL - 1) / PANEL };

	if (x.dtype != TD_F32 || y.dtype != TD_F32 || x.cols != w->in || y.cols != w->out || x.rows != y.rows) {
		td__fail(dev, TD_E_INTERNAL, "linear: x (%d, %d), W (%d, %d), y (%d, %d) do not fit", x.rows, x.cols, w->out, w->in, y.rows, y.cols);
		return;
	}
	if (x.rows <= 0 || td__scratch_need(dev, sizeof(struct scratch)) || (w->act8 && w->kind == TD_W_INT4 && round_rows(dev, &job)))
		return;
	td__parallel(dev, job.panels * ((x.rows + ROW_GROUP - 1) / ROW_GROUP), 1, item, &job);
}

/* Nothing is gained by making these together on a CPU: a product takes far longer than its rows' way through the cache. */
void td__linear2(struct td_dev *dev, struct td_tensor x, const struct td_linear *w0, struct td_tensor y0, const struct td_linear *w1, struct td_tensor y1)
{
	td__linear(dev, x, w0, y0, 0);
	td__linear(dev, x, w1, y1, 0);
}

void td__linear_swiglu(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor both, struct td_tensor y)
{
	td__linear(dev, x, w, both, 0);
	td__swiglu(dev, both, y);
}
