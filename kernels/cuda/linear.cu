/*
 * linear.cu: linear maps: packing at load, and the choice of a kernel by the number of rows.
 *
 * Up to 64 rows at a time (512 of 4-bit weights on a Hopper) go through the small kernels, which are row-invariant. Prompts' positions 256 k to 256 k + 255,
 * where a batch has all of them as final rows, go to the dense products (linear_dense.cu; of maps with activations in 8 bits linear_prompt8.cu, on a Hopper),
 * and so does the rest of a prompt of more than 64. The two ways differ in rounding (INT4 weights are exact in the small kernels) or in the order of sums, so
 * which one a position takes must be a matter of the prompt alone: that is why verified rows never go there, however many there are, and why the blocks are
 * those of the batch and not simply of the rows.
 */
#include "kernels/cuda/internal.cuh"
#include "kernels/pack.h"

enum { TILE = TD_PACK_TILE, UNIT = 32 };
static const size_t staging_bytes = (size_t)32 << 20;

/* ---- packing ----------------------------------------------------------------------------------------------------------------------- */

size_t td__cuda_pack_bytes(enum td_weight_kind kind, int out, int in, int group)
{
	return td_pack_bytes_cuda(kind, out, in, group);
}

int td__cuda_paired(const struct td_linear *w)
{
	return w->paired && w->kind == TD_W_INT4 && w->out % TILE == 0;
}

/* Copies rows [row0, row0 + rows) of the stacked parts, `size` bytes a row, to device memory. */
static void gather(struct td_dev *dev, char *dst, const struct td_linear_part *part, int n_part, int row0, int rows, size_t size, int scales)
{
	int at = 0;

	for (int i = 0; i < n_part; i++) {
		int lo = row0 > at ? row0 : at, hi = row0 + rows < at + part[i].out ? row0 + rows : at + part[i].out;
		const char *src = (const char *)(scales ? part[i].scale : part[i].weight);

		if (lo < hi)
			td__cuda_upload(dev, dst + (size_t)(lo - row0) * size, src + (size_t)(lo - at) * size, (size_t)(hi - lo) * size);
		at += part[i].out;
	}
}

static int check(const struct td_linear *w, const struct td_linear_part *part, int n_part, struct td_error *err)
{
	int out = 0;

	for (int i = 0; i < n_part; i++)
		out += part[i].out;
	if (out != w->out)
		return td_error_set(err, TD_E_INVALID, "a linear map of %d outputs was given parts with %d", w->out, out);
	if (w->kind == TD_W_INT4 && (w->group <= 0 || w->group % UNIT || w->in % w->group))
		return td_error_set(err, TD_E_UNSUPPORTED,
				    "INT4 weights of %d columns in groups of %d: the GPU kernels need groups that are multiples of %d and divide the "
				    "columns; load them as bf16",
				    w->in, w->group, UNIT);
	return 0;
}

int td__cuda_pack(struct td_dev *dev, const struct td_linear *w, const struct td_linear_part *part, int n_part, struct td_error *err)
{
	size_t row_weight = (size_t)w->in / 2, row_scale;
	int rc = check(w, part, n_part, err), step;
	char *staging;

	if (rc)
		return rc;
	if (w->kind == TD_W_BF16) {
		gather(dev, (char *)w->data, part, n_part, 0, w->out, (size_t)w->in * 2, 0);
		return td__cuda_sync(dev, err);
	}
	row_scale = (size_t)(w->in / w->group) * 2;
	step = (int)(staging_bytes / (row_weight + row_scale)) / TILE * TILE;
	step = step < TILE ? TILE : step;
	staging = (char *)td__cuda_scratch(dev, (size_t)step * (row_weight + row_scale) + 256);
	for (int row0 = 0; staging && row0 < w->out; row0 += step) {
		int rows = w->out - row0 < step ? w->out - row0 : step;
		char *scale = staging + align256((size_t)rows * row_weight);

		if (td__cuda_paired(w)) {
			gather(dev, staging, part, n_part, row0 / 2, rows / 2, row_weight, 0);
			gather(dev, staging + (size_t)(rows / 2) * row_weight, part, n_part, (w->out + row0) / 2, rows / 2, row_weight, 0);
			gather(dev, scale, part, n_part, row0 / 2, rows / 2, row_scale, 1);
			gather(dev, scale + (size_t)(rows / 2) * row_scale, part, n_part, (w->out + row0) / 2, rows / 2, row_scale, 1);
		} else {
			gather(dev, staging, part, n_part, row0, rows, row_weight, 0);
			gather(dev, scale, part, n_part, row0, rows, row_scale, 1);
		}
		td__cuda_int4_repack(dev, w, row0 / TILE, rows, (const uint32_t *)staging, (const bf16 *)scale);
	}
	return td__cuda_sync(dev, err);
}

void td__cuda_pack_rows(struct td_dev *dev, const struct td_linear *from, const int32_t *id, const struct td_linear *w)
{
	struct td_tensor all = {from->data, TD_BF16, from->out, from->in, from->in, 0}, some = {w->data, TD_BF16, w->out, w->in, w->in, 0};

	if (dev->error.code)
		return;
	if (w->kind != from->kind || w->in != from->in || w->group != from->group || w->act8 != from->act8 || td__cuda_paired(from))
		td__cuda_fail(dev, TD_E_INTERNAL, "pack_rows: from a map of %d columns, group %d, to one of %d, group %d", from->in, from->group, w->in, w->group);
	else if (w->kind == TD_W_BF16)
		td__cuda_embed(dev, all, id, some);
	else
		td__cuda_int4_rows(dev, from, id, w);
}

/* ---- the product ------------------------------------------------------------------------------------------------------------------- */

/* Rows of a call that go one way: a block of a prompt, or some rows of what lies between blocks. Begins as {0}. */
struct piece {
	int row0, rows, dense, block; /* block: of dev->large, the next one */
};

/* Are these the rows of the batch, and has it blocks of prompts? */
static int has_blocks(const struct td_dev *dev, struct td_tensor x)
{
	return x.rows == dev->batch_rows && dev->n_large;
}

/* Rows that a map's kernels take at once. */
static int most_rows(const struct td_dev *dev, const struct td_linear *w)
{
	return dev->groups && w->kind == TD_W_INT4 ? TD_CUDA_WIDE : TD_CUDA_SMALL;
}

/* The next piece of `rows` rows, of at most `most` where it is no block; 0 when there is none left. */
static int next(const struct td_dev *dev, int rows, int blocks, int most, struct piece *p)
{
	const struct td_cuda_block *l = blocks && p->block < dev->n_large ? &dev->large[p->block] : NULL;
	int row = p->row0 + p->rows, left = (l ? l->row0 : rows) - row, dense = l && !left;

	*p = {row, dense ? l->rows : left < most ? left : most, dense, p->block + dense};
	return p->rows > 0 && !dev->error.code;
}

/* Do all rows begin at multiples of 16 bytes? */
static int aligned16(struct td_tensor t)
{
	return (size_t)t.ld * td_dtype_size(t.dtype) % 16 == 0 && (uintptr_t)t.data % 16 == 0;
}

void td__cuda_linear(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	int aligned = aligned16(x), blocks;
	struct piece p = {0};

	if (dev->error.code || x.rows == 0 || td__cuda_type(dev, x, TD_BF16, "linear"))
		return;
	if (y.dtype != TD_F32 && td__cuda_type(dev, y, TD_BF16, "linear"))
		return;
	if (x.cols != w->in || y.cols != w->out || y.rows != x.rows || (w->kind == TD_W_INT4 && !aligned)) {
		td__cuda_fail(dev, TD_E_INTERNAL, "linear: a map %d x %d on x (%d, %d; ld %d) and y (%d, %d)", w->out, w->in, x.rows, x.cols, x.ld,
			      y.rows, y.cols);
		return;
	}
	blocks = has_blocks(dev, x) && aligned && aligned16(y) && w->in % 8 == 0;
	while (next(dev, x.rows, blocks, most_rows(dev, w), &p)) {
		struct td_tensor xs = td_rows(x, p.row0, p.rows), ys = td_rows(y, p.row0, p.rows);

		if (p.dense && w->act8 && td__cuda_act8_prompt(dev, xs, w, ys, accumulate, 0))
			continue;
		if (p.dense)
			td__cuda_dense(dev, xs, w, ys, accumulate);
		else if (w->kind == TD_W_INT4)
			td__cuda_int4_small(dev, xs, w, ys, accumulate);
		else
			td__cuda_bf16_small(dev, xs, w, ys, accumulate);
	}
}

/* ---- several operations in one call -------------------------------------------------------------------------------------------------- */

void td__cuda_linear2(struct td_dev *dev, struct td_tensor x, const struct td_linear *w0, struct td_tensor y0, const struct td_linear *w1, struct td_tensor y1)
{
	int few = x.rows <= TD_CUDA_SMALL && !has_blocks(dev, x) && aligned16(x) && x.dtype == TD_BF16;

	if (dev->error.code || x.rows == 0)
		return;
	if (few && x.cols == w0->in && x.cols == w1->in && y0.cols == w0->out && y1.cols == w1->out && y0.rows == x.rows && y1.rows == x.rows &&
	    td__cuda_linear_pair(dev, x, w0, y0, w1, y1))
		return;
	td__cuda_linear(dev, x, w0, y0, 0);
	td__cuda_linear(dev, x, w1, y1, 0);
}

/* Few rows are gated before they are rounded, blocks of prompts after it, so each row goes the way that is its own whatever else the call has. A paired
 * map's outputs lie tile by tile, so swiglu must know when they were made by another product. */
void td__cuda_linear_swiglu(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor both, struct td_tensor y)
{
	int paired = td__cuda_paired(w), blocks = has_blocks(dev, x);
	struct piece p = {0};

	if (dev->error.code || x.rows == 0)
		return;
	if (!paired || !aligned16(x) || !aligned16(both) || x.cols != w->in || 2 * y.cols != w->out || y.dtype != TD_BF16 || y.ld % 4 ||
	    (uintptr_t)y.data % 8) {
		td__cuda_linear(dev, x, w, both, 0);
		td__cuda_swiglu_of(dev, both, y, paired);
		return;
	}
	while (next(dev, x.rows, blocks, most_rows(dev, w), &p)) {
		struct td_tensor xs = td_rows(x, p.row0, p.rows), ys = td_rows(y, p.row0, p.rows), sums = td_rows(both, p.row0, p.rows);

		if (p.dense && w->act8 && td__cuda_act8_prompt(dev, xs, w, ys, 0, 1))
			continue;
		if (p.dense) {
			td__cuda_dense(dev, xs, w, sums, 0);
			td__cuda_swiglu_of(dev, sums, ys, 1);
		} else {
			td__cuda_int4_gated(dev, xs, w, ys);
		}
	}
}
