/*
 * rows.cu: operations that move rows and ids about: embedding, copies, which rows go on, the ids of a block, token counts.
 *
 * A token id from device memory is compared with the table's size before it is an index; a wrong one leaves a zero row and a note that sync
 * turns into the sticky error (dev->fault), as the host can't see ids in time.
 */
#include "kernels/cuda/internal.cuh"

enum { THREADS = 256, COUNT_PROMPT = 0x8000, COUNT_MAX = 0x7fff };

static __device__ void blame(struct td_cuda_fault *f, int id, int at, int limit)
{
	f->id = id;
	f->at = at;
	f->limit = limit;
	__threadfence_system();
	f->set = 1;
}

static __device__ __forceinline__ void store(bf16 *to, bf16 v)
{
	*to = v;
}
static __device__ __forceinline__ void store(float *to, bf16 v)
{
	*to = __bfloat162float(v);
}

template <class T>
static __global__ void embed_kernel(const bf16 *table, int ld, int vocab, const int32_t *ids, T *out, int ldo, int cols, struct td_cuda_fault *fault)
{
	int r = blockIdx.x, id, there;
	const bf16 *src;

	let_next_start();
	after_previous();
	id = ids[r];
	there = id >= 0 && id < vocab;
	src = table + (size_t)(there ? id : 0) * ld;

	if (!there && threadIdx.x == 0)
		blame(fault, id, r, vocab);
	for (int c = threadIdx.x; c < cols; c += THREADS)
		store(out + (size_t)r * ldo + c, there ? src[c] : __float2bfloat16(0.0f));
}

void td__cuda_embed(struct td_dev *dev, struct td_tensor table, const int32_t *ids, struct td_tensor out)
{
	const bf16 *from = (const bf16 *)table.data;

	if (dev->error.code || out.rows == 0 || td__cuda_type(dev, table, TD_BF16, "embed"))
		return;
	if (out.dtype == TD_F32)
		td__cuda_launch(dev, "embed", embed_kernel<float>, out.rows, THREADS, 0, from, table.ld, table.rows, ids, (float *)out.data, out.ld, out.cols,
				dev->fault_dev);
	else if (!td__cuda_type(dev, out, TD_BF16, "embed"))
		td__cuda_launch(dev, "embed", embed_kernel<bf16>, out.rows, THREADS, 0, from, table.ld, table.rows, ids, (bf16 *)out.data, out.ld, out.cols,
				dev->fault_dev);
}

/* EACH neighbouring columns a thread: 8 where rows lie at multiples of 16 bytes, else 1 */
template <int EACH> static __global__ void round_kernel(const float *x, int ldx, bf16 *y, int ldy, int cols)
{
	int c = (blockIdx.x * blockDim.x + threadIdx.x) * EACH;

	let_next_start();
	after_previous();
	if (c >= cols)
		return;
	x += (size_t)blockIdx.y * ldx + c;
	y += (size_t)blockIdx.y * ldy + c;
	if (EACH == 8) {
		float4 a = ((const float4 *)x)[0], b = ((const float4 *)x)[1];

		*(uint4 *)y = make_uint4(bf16_pair(a.x, a.y), bf16_pair(a.z, a.w), bf16_pair(b.x, b.y), bf16_pair(b.z, b.w));
	} else {
		*y = __float2bfloat16(*x);
	}
}

static void round_rows(struct td_dev *dev, struct td_tensor x, struct td_tensor y)
{
	int each = x.cols % 8 == 0 && x.ld % 4 == 0 && y.ld % 8 == 0 && (uintptr_t)x.data % 16 == 0 && (uintptr_t)y.data % 16 == 0 ? 8 : 1;
	int columns = x.cols / each, blocks = div_up(columns, THREADS);

	td__cuda_launch(dev, "copy", each == 8 ? round_kernel<8> : round_kernel<1>, dim3(blocks, x.rows), div_up(div_up(columns, blocks), 32) * 32, 0,
			(const float *)x.data, x.ld, (bf16 *)y.data, y.ld, x.cols);
}

void td__cuda_copy(struct td_dev *dev, struct td_tensor src, struct td_tensor dst)
{
	size_t size = td_dtype_size(src.dtype);

	if (dev->error.code || src.rows == 0 || src.cols == 0)
		return;
	if (src.dtype == TD_F32 && dst.dtype == TD_BF16) {
		round_rows(dev, src, dst);
		return;
	}
	if (td__cuda_type(dev, dst, src.dtype, "copy"))
		return;
	td__cuda_check(
		dev,
		cudaMemcpy2DAsync(dst.data, dst.ld * size, src.data, src.ld * size, src.cols * size, src.rows, cudaMemcpyDeviceToDevice, dev->stream),
		"copy");
}

/* ---- rows that go on --------------------------------------------------------------------------------------------------------------- */

/* grid (largest rows of a sequence, sequences). tail 0: the last row of each sequence; 1: all but the first. */
static __global__ void pick_kernel(const struct td_seq *seq, int tail, const char *x, size_t ldx, char *y, size_t ldy, size_t bytes)
{
	struct td_seq s;
	int r, to = tail ? blockIdx.x : blockIdx.y;

	let_next_start();
	after_previous();
	s = seq[blockIdx.y];
	r = tail ? blockIdx.x + 1 : s.rows - 1;
	if (r >= s.rows || r < 0)
		return;
	if (tail)
		for (unsigned i = 0; i < blockIdx.y; i++)
			to += seq[i].rows - 1;
	x += (size_t)(s.row0 + r) * ldx;
	y += (size_t)to * ldy;
	for (size_t i = threadIdx.x * 2; i < bytes; i += THREADS * 2)
		*(uint16_t *)(y + i) = *(const uint16_t *)(x + i);
}

static void pick(struct td_dev *dev, const struct td_batch *b, int tail, struct td_tensor x, struct td_tensor y, const char *what)
{
	size_t size = td_dtype_size(x.dtype);
	int rows = tail ? b->max_rows - 1 : 1;

	if (dev->error.code || b->n_seq == 0 || rows <= 0 || td__cuda_type(dev, y, x.dtype, what))
		return;
	if (size < 2) {
		td__cuda_fail(dev, TD_E_INTERNAL, "%s: elements of one byte", what);
		return;
	}
	td__cuda_launch(dev, what, pick_kernel, dim3(rows, b->n_seq), THREADS, 0, b->dev, tail, (const char *)x.data, x.ld * size, (char *)y.data,
			y.ld * size, x.cols * size);
}

void td__cuda_rows_last(struct td_dev *dev, const struct td_batch *b, struct td_tensor x, struct td_tensor y)
{
	pick(dev, b, 0, x, y, "rows_last");
}

void td__cuda_rows_tail(struct td_dev *dev, const struct td_batch *b, struct td_tensor x, struct td_tensor y)
{
	pick(dev, b, 1, x, y, "rows_tail");
}

/* ---- ids --------------------------------------------------------------------------------------------------------------------------- */

/* One block per sequence. draft NULL: the mask id. */
static __global__ void ids_kernel(const struct td_seq *seq, const int32_t *anchor, const struct td_draft *draft, int32_t mask_id, int32_t *ids)
{
	struct td_seq s;

	let_next_start();
	after_previous();
	s = seq[blockIdx.x];
	for (int r = threadIdx.x; r < s.rows; r += blockDim.x)
		ids[s.row0 + r] = r == 0 ? anchor[s.slot] : draft ? draft[s.slot].token[r - 1] : mask_id;
}

void td__cuda_verify_ids(struct td_dev *dev, const struct td_batch *b, const int32_t *anchor, const struct td_draft *draft, int32_t *ids)
{
	if (b->max_rows > TD_BLOCK_MAX)
		td__cuda_fail(dev, TD_E_INTERNAL, "verify_ids: a block of %d rows", b->max_rows);
	if (dev->error.code || b->n_seq == 0)
		return;
	td__cuda_launch(dev, "verify_ids", ids_kernel, b->n_seq, 32, 0, b->dev, anchor, draft, 0, ids);
}

void td__cuda_mask_ids(struct td_dev *dev, const struct td_batch *b, const int32_t *anchor, int32_t mask_id, int32_t *ids)
{
	if (dev->error.code || b->n_seq == 0)
		return;
	td__cuda_launch(dev, "mask_ids", ids_kernel, b->n_seq, 32, 0, b->dev, anchor, (const struct td_draft *)NULL, mask_id, ids);
}

/* ---- counts ------------------------------------------------------------------------------------------------------------------------ */

/* Threads with one id store the same value. */
static __global__ void mark_kernel(uint16_t *counts, int vocab, const int32_t *ids, int n, struct td_cuda_fault *fault)
{
	int i = blockIdx.x * THREADS + threadIdx.x;

	if (i >= n)
		return;
	if (ids[i] < 0 || ids[i] >= vocab)
		blame(fault, ids[i], i, vocab);
	else
		counts[ids[i]] = COUNT_PROMPT;
}

static __global__ void add_kernel(uint16_t *counts, const int32_t *ids, int n, struct td_cuda_fault *fault)
{
	int i = blockIdx.x * THREADS + threadIdx.x;
	unsigned short seen, next;

	if (i >= n)
		return;
	if (ids[i] < 0) {
		blame(fault, ids[i], i, -1);
		return;
	}
	next = counts[ids[i]];
	do {
		seen = next;
		if ((seen & COUNT_MAX) == COUNT_MAX)
			return;
		next = atomicCAS((unsigned short *)&counts[ids[i]], seen, (unsigned short)(seen + 1));
	} while (next != seen);
}

void td__cuda_counts_reset(struct td_dev *dev, uint16_t *counts, int vocab, const int32_t *ids, int n)
{
	td__cuda_zero(dev, counts, (size_t)vocab * sizeof(*counts));
	if (dev->error.code || n <= 0)
		return;
	mark_kernel<<<div_up(n, THREADS), THREADS, 0, dev->stream>>>(counts, vocab, ids, n, dev->fault_dev);
	td__cuda_launched(dev, "counts_reset");
}

void td__cuda_counts_add(struct td_dev *dev, uint16_t *counts, const int32_t *ids, int n)
{
	if (dev->error.code || n <= 0)
		return;
	add_kernel<<<div_up(n, THREADS), THREADS, 0, dev->stream>>>(counts, ids, n, dev->fault_dev);
	td__cuda_launched(dev, "counts_add");
}
