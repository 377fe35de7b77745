/*
 * attend.cuh: attention of a few rows over many keys, for the target and for the drafter (attention.cu, draft_attention.cu).
 *
 * Work: the keys of a sequence are cut into spans of SPAN positions, at absolute positions; a block takes one span, one kv head and a group of up to
 * 64 (row, query head) pairs that share this kv head: 16 rows at 4 query heads per kv head. So each key is read once for all of them. Each of the
 * 4 warps owns 16 pairs; keys and values pass through shared memory in tiles of 64, which is a page:
 *
 *	for each tile:	scores = Q K^T (mma) -> mask -> running maximum and sum (base 2) -> O += P V (mma)
 *	each block leaves its (O, maximum, sum) per pair; a second kernel adds a pair's spans in ascending order, divides, applies the gate
 *
 * Row invariance: which spans a row has, where its tiles lie and the order of all sums depend on the row's position alone. A tile that a row can't
 * see multiplies its sums by 1 and adds 0. Prefill goes the same way, 16 rows at a time.
 *
 * Drafter: the keys p < pos0 lie in the cache; the block's own, made by the caller, form one more span, after all others.
 *
 * Shared memory, (row, dim) bf16 with the 16-byte pieces of a row exchanged by the row's low 3 bits, so that ldmatrix meets no bank conflict.
 */
#ifndef TD_CUDA_ATTEND_CUH
#define TD_CUDA_ATTEND_CUH

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/pack.h"

enum { TILE = TD_PAGE, SPAN = TD_SCRATCH_SPAN, PAIRS = TD_SCRATCH_PAIRS, ATTEND_WARPS = 4, ATTEND_THREADS = ATTEND_WARPS * 32, ROTATE_WARPS = 4 };

struct attend_args {
	struct td_attn w;
	struct td_kv kv;
	const struct td_seq *seq;
	const bf16 *x; /* (R, ldx): rows as the projection leaves them */
	int ldx;
	bf16 *out; /* (R, ldo) */
	int ldo;
	bf16 *q; /* (R, heads, dim), normalised and rotated */
	bf16 *k, *v; /* drafter: (R, kv_heads, dim) of the block */
	float *o; /* (work items here, kv_heads, PAIRS, spans, dim) */
	float2 *ms; /* the same without dim: maximum, sum */
	int groups; /* of rows per sequence */
	int rows_per_group, spans, item0;
	int step; /* items at a time */
	float scale; /* log2(e) / sqrt(dim) */
};

/* ---- norm and rotary --------------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ size_t cache_at(const struct td_attn &w, const struct td_kv &kv, int slot, int pos, int head)
{
	size_t page = (size_t)kv.table[(size_t)slot * kv.max_pages + pos / TD_PAGE];

	return ((page * w.kv_heads + head) * TD_PAGE + pos % TD_PAGE) * w.head_dim;
}

static __device__ __forceinline__ int sequence_of(const struct td_seq *seq, int n_seq, int row)
{
	for (int i = 0; i < n_seq; i++)
		if (row >= seq[i].row0 && row < seq[i].row0 + seq[i].rows)
			return i;
	return -1;
}

/* One warp: y = rotary(norm(x)) of one head; `tmp` is the warp's own shared memory (dim). qwen35 3.2.3-4 */
static __device__ void norm_rotate(const struct td_attn &w, const float *weight, const bf16 *x, int pos, bf16 *y, float *tmp)
{
	int lane = threadIdx.x & 31, half = w.rotary_dim / 2;
	float sum = 0, one = w.zero_centred ? 1.0f : 0.0f;

	for (int c = lane; c < w.head_dim; c += 32) {
		float v = __bfloat162float(x[c]);

		tmp[c] = v;
		sum += v * v;
	}
	sum = 1.0f / sqrtf(warp_sum(sum) / w.head_dim + w.eps);
	for (int c = lane; c < w.head_dim; c += 32)
		tmp[c] *= sum * (one + weight[c]);
	__syncwarp();
	for (int j = lane; j < half; j += 32) {
		float angle = (float)pos * w.inv_freq[j], c = cosf(angle), s = sinf(angle), a = tmp[j], b = tmp[j + half];

		tmp[j] = a * c - b * s;
		tmp[j + half] = b * c + a * s;
	}
	__syncwarp();
	for (int c = lane; c < w.head_dim; c += 32)
		y[c] = __float2bfloat16(tmp[c]);
}

/* One warp per row and head, q heads first, then k, then v. heads 0: rows hold k|v only (drafter's context). k NULL: k and v go to the cache. */
static __global__ void rotate_kernel(const struct attend_args p, int n_seq, int rows, int heads)
{
	__shared__ float tmp[ROTATE_WARPS][256];
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row = blockIdx.x, h = blockIdx.y * ROTATE_WARPS + warp;
	int dim = p.w.head_dim, q_step = p.w.gated ? 2 * dim : dim, i = sequence_of(p.seq, n_seq, row);
	const bf16 *x = p.x + (size_t)row * p.ldx;
	size_t at, mine;
	struct td_seq s;
	int pos;

	if (i < 0 || h >= heads + 2 * p.w.kv_heads)
		return;
	s = p.seq[i];
	pos = s.pos0 + row - s.row0;
	if (h < heads) {
		norm_rotate(p.w, p.w.q_norm, x + h * q_step, pos, p.q + ((size_t)row * heads + h) * dim, tmp[warp]);
		return;
	}
	h -= heads;
	x += heads * q_step;
	if (h < p.w.kv_heads) {
		mine = ((size_t)row * p.w.kv_heads + h) * dim;
		norm_rotate(p.w, p.w.k_norm, x + h * dim, pos, p.k ? p.k + mine : (bf16 *)p.kv.k + cache_at(p.w, p.kv, s.slot, pos, h), tmp[warp]);
		return;
	}
	h -= p.w.kv_heads;
	x += (p.w.kv_heads + h) * dim;
	mine = ((size_t)row * p.w.kv_heads + h) * dim;
	at = p.k ? 0 : cache_at(p.w, p.kv, s.slot, pos, h);
	for (int c = lane; c < dim; c += 32)
		(p.k ? p.v + mine : (bf16 *)p.kv.v + at)[c] = x[c];
}

static inline void rotate(struct td_dev *dev, const struct attend_args &p, const struct td_batch *b, int heads)
{
	rotate_kernel<<<dim3(b->n_rows, div_up(heads + 2 * p.w.kv_heads, ROTATE_WARPS)), ROTATE_WARPS * 32, 0, dev->stream>>>(p, b->n_seq, b->n_rows,
															      heads);
	td__cuda_launched(dev, "norm and rotary");
}

/* ---- which keys -------------------------------------------------------------------------------------------------------------------- */

/* The spans [first, end) that pair row r of s needs; the drafter's block is the last of them, number div_up(pos0, SPAN). */
template <bool DRAFT> static __device__ __forceinline__ void spans_of(const struct td_attn &w, const struct td_seq &s, int r, int *first, int *end)
{
	int from = DRAFT && w.window ? s.pos0 + r - (w.window - 1) : 0;

	from = from > 0 ? from : 0;
	*first = DRAFT && from >= s.pos0 ? div_up(s.pos0, SPAN) : from / SPAN;
	*end = DRAFT ? div_up(s.pos0, SPAN) + 1 : (s.pos0 + r) / SPAN + 1;
}

/* Does row r see key `p` of this span? In the drafter's block span keys are numbered from 0. */
template <bool DRAFT> static __device__ __forceinline__ int sees(const struct td_attn &w, const struct td_seq &s, int r, int p, int in_block)
{
	if (!DRAFT)
		return p <= s.pos0 + r;
	if (!in_block)
		return p < s.pos0 && (!w.window || p >= s.pos0 + r - (w.window - 1));
	if (w.causal)
		return p <= r;
	return p < s.rows && (!w.window || (p - r < w.window && r - p < w.window));
}

/* ---- one span ---------------------------------------------------------------------------------------------------------------------- */

template <int D> static __device__ __forceinline__ bf16 *piece(bf16 *sh, int row, int c)
{
	return sh + row * D + ((c ^ (row & 7)) << 3);
}

/* Where the keys or values from position `base` on begin: in the cache, or among the block's own. */
template <bool DRAFT> static __device__ __forceinline__ const bf16 *tile_of(const struct attend_args &p, const struct td_seq &s, int in_block,
									    int base, int head, const void *cache, const bf16 *own)
{
	if (DRAFT && in_block)
		return own + ((size_t)s.row0 * p.w.kv_heads + head) * p.w.head_dim;
	return (const bf16 *)cache + cache_at(p.w, p.kv, s.slot, base, head);
}

/* A tile of n keys or values, `step` elements apart; zeroes beyond. */
template <int D> static __device__ __forceinline__ void fetch_tile(bf16 *sh, const bf16 *gl, int step, int n)
{
#pragma unroll 8
	for (int i = threadIdx.x; i < TILE * D / 8; i += ATTEND_THREADS) {
		int row = i / (D / 8), c = i % (D / 8), there = row < n;

		copy16(piece<D>(sh, row, c), gl + (there ? row * step + c * 8 : 0), there ? 16 : 0);
	}
}

template <int D> static __device__ __forceinline__ void scores(float s[8][4], const bf16 *q_sh, const bf16 *k_sh, int warp, int lane)
{
#pragma unroll
	for (int n = 0; n < 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			s[n][i] = 0;
#pragma unroll 4
	for (int kk = 0; kk < D / 16; kk++) {
		uint32_t a[4], b[4];

		load_matrix(a, piece<D>((bf16 *)q_sh, warp * 16 + (lane >> 3 & 1) * 8 + (lane & 7), kk * 2 + (lane >> 4)));
#pragma unroll
		for (int j = 0; j < 4; j++) {
			load_matrix(b, piece<D>((bf16 *)k_sh, j * 16 + (lane >> 4) * 8 + (lane & 7), kk * 2 + (lane >> 3 & 1)));
			mma_bf16(s[2 * j], a[0], a[1], a[2], a[3], b[0], b[1]);
			mma_bf16(s[2 * j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
		}
	}
}

/* Scores to probabilities in place; rescales the sums so far. A row with nothing to see yet keeps maximum -inf and probabilities 0. */
template <int D> static __device__ __forceinline__ void soften(float s[8][4], float o[D / 8][4], float max[2], float sum[2])
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float m = max[half], l = 0, base, keep;

#pragma unroll
		for (int n = 0; n < 8; n++)
			m = fmaxf(m, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
		m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
		m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
		base = m == -INFINITY ? 0 : m;
		keep = exp2f(max[half] - base);
#pragma unroll
		for (int n = 0; n < 8; n++)
#pragma unroll
			for (int i = 2 * half; i < 2 * half + 2; i++) {
				s[n][i] = exp2f(s[n][i] - base);
				l += s[n][i];
			}
		l += __shfl_xor_sync(~0u, l, 1);
		l += __shfl_xor_sync(~0u, l, 2);
		sum[half] = sum[half] * keep + l;
		max[half] = m;
#pragma unroll
		for (int n = 0; n < D / 8; n++) {
			o[n][2 * half] *= keep;
			o[n][2 * half + 1] *= keep;
		}
	}
}

template <int D> static __device__ __forceinline__ void weigh(float o[D / 8][4], const float s[8][4], const bf16 *v_sh, int lane)
{
#pragma unroll
	for (int j = 0; j < 4; j++) {
		uint32_t a[4] = {bf16_pair(s[2 * j][0], s[2 * j][1]), bf16_pair(s[2 * j][2], s[2 * j][3]), bf16_pair(s[2 * j + 1][0], s[2 * j + 1][1]),
				 bf16_pair(s[2 * j + 1][2], s[2 * j + 1][3])};

#pragma unroll
		for (int d = 0; d < D / 16; d++) {
			uint32_t b[4];

			load_matrix_transposed(b, piece<D>((bf16 *)v_sh, j * 16 + (lane >> 3 & 1) * 8 + (lane & 7), d * 2 + (lane >> 4)));
			mma_bf16(o[2 * d], a[0], a[1], a[2], a[3], b[0], b[1]);
			mma_bf16(o[2 * d + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
		}
	}
}

/* grid (spans, kv_heads, work items of this pass); an item is a sequence and a group of its rows */
template <int D, bool DRAFT> static __global__ void __launch_bounds__(ATTEND_THREADS) attend_kernel(const struct attend_args p)
{
	extern __shared__ __align__(128) bf16 attend_sh[]; /* q (PAIRS, D), k (TILE, D), v (TILE, D) */
	bf16 *q_sh = attend_sh, *k_sh = q_sh + PAIRS * D, *v_sh = k_sh + TILE * D;
	int item = p.item0 + blockIdx.z, r0 = item % p.groups * p.rows_per_group, kv_head = blockIdx.y, span = blockIdx.x;
	int gqa = p.w.heads / p.w.kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
	struct td_seq s = p.seq[item / p.groups];
	int rows = s.rows - r0 < p.rows_per_group ? s.rows - r0 : p.rows_per_group, pairs = rows * gqa, first, end, last, in_block, limit, step;
	float o[D / 8][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, sc[8][4];

	if (rows <= 0)
		return;
	spans_of<DRAFT>(p.w, s, r0, &first, &last);
	spans_of<DRAFT>(p.w, s, r0 + rows - 1, &last, &end);
	if (span < first || span >= end)
		return;
	in_block = DRAFT && span == end - 1;
	step = in_block ? p.w.kv_heads * D : D;
	limit = in_block ? s.rows : DRAFT ? s.pos0 : s.pos0 + r0 + rows; /* keys there are */
	for (int i = threadIdx.x; i < PAIRS * D / 8; i += ATTEND_THREADS) {
		int m = i / (D / 8), c = i % (D / 8), there = m < pairs;
		size_t row = s.row0 + r0 + (there ? m / gqa : 0);

		copy16(piece<D>(q_sh, m, c), p.q + (row * p.w.heads + kv_head * gqa + m % gqa) * D + c * 8, there ? 16 : 0);
	}
	for (int base = in_block ? 0 : span * SPAN, stop = min(base + (int)SPAN, limit), start = base; base < stop; base += TILE) {
		if (base == start)
			fetch_tile<D>(k_sh, tile_of<DRAFT>(p, s, in_block, base, kv_head, p.kv.k, p.k), step, limit - base);
		else
			__syncthreads(); /* the values before are done with */
		copy_commit();
		fetch_tile<D>(v_sh, tile_of<DRAFT>(p, s, in_block, base, kv_head, p.kv.v, p.v), step, limit - base);
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		if (warp * 16 < pairs) {
			scores<D>(sc, q_sh, k_sh, warp, lane);
#pragma unroll
			for (int k = 0; k < 8; k++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					int r = r0 + (warp * 16 + g + 8 * (i >> 1)) / gqa, key = base + k * 8 + 2 * t + (i & 1);

					sc[k][i] = sees<DRAFT>(p.w, s, r, key, in_block) ? sc[k][i] * p.scale : -INFINITY;
				}
			soften<D>(sc, o, max, sum);
		}
		copy_wait<0>();
		__syncthreads();
		if (base + TILE < stop) /* the next keys, behind the product with the values */
			fetch_tile<D>(k_sh, tile_of<DRAFT>(p, s, in_block, base + TILE, kv_head, p.kv.k, p.k), step, limit - base - TILE);
		if (warp * 16 < pairs)
			weigh<D>(o, sc, v_sh, lane);
	}
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = warp * 16 + g + 8 * half;
		size_t at = (((size_t)blockIdx.z * p.w.kv_heads + kv_head) * PAIRS + m) * p.spans + span;

		if (m >= pairs)
			continue;
		if (t == 0)
			p.ms[at] = make_float2(max[half], sum[half]);
#pragma unroll
		for (int n = 0; n < D / 8; n++)
			*(float2 *)(p.o + at * D + n * 8 + 2 * t) = make_float2(o[n][2 * half], o[n][2 * half + 1]);
	}
}

/*
 * Adds a pair's spans. Four groups of threads take every fourth span each, by number, in ascending order; then the four sums are added in order: an
 * order that hangs on the row's spans alone. grid (pairs, kv_heads, work items of this pass), D threads
 */
template <int D, bool DRAFT> static __global__ void merge_kernel(const struct attend_args p)
{
	__shared__ float4 o_sh[4][D / 4];
	__shared__ float sum_sh[4];
	int item = p.item0 + blockIdx.z, m = blockIdx.x, kv_head = blockIdx.y, gqa = p.w.heads / p.w.kv_heads, part = threadIdx.x / (D / 4),
	    c = threadIdx.x % (D / 4);
	struct td_seq s = p.seq[item / p.groups];
	int in_group = m / gqa, r = item % p.groups * p.rows_per_group + in_group, h = kv_head * gqa + m % gqa, first, end;
	size_t at = (((size_t)blockIdx.z * p.w.kv_heads + kv_head) * PAIRS + m) * p.spans;
	float max = -INFINITY, sum = 0, o[4] = {};
	uint2 y;

	if (in_group >= p.rows_per_group || r >= s.rows)
		return;
	spans_of<DRAFT>(p.w, s, r, &first, &end);
#pragma unroll 8
	for (int i = first; i < end; i++)
		max = fmaxf(max, p.ms[at + i].x);
#pragma unroll 8
	for (int i = (first + 3 - part) / 4 * 4 + part; i < end; i += 4) {
		float2 ms = p.ms[at + i];
		float f = exp2f(ms.x - max);
		float4 v = *(const float4 *)(p.o + (at + i) * D + c * 4);

		sum += f * ms.y;
		o[0] += f * v.x;
		o[1] += f * v.y;
		o[2] += f * v.z;
		o[3] += f * v.w;
	}
	o_sh[part][c] = make_float4(o[0], o[1], o[2], o[3]);
	sum_sh[part] = sum;
	__syncthreads();
	if (part)
		return;
	for (int i = 1; i < 4; i++) {
		float4 v = o_sh[i][c];

		sum += sum_sh[i];
		o[0] += v.x;
		o[1] += v.y;
		o[2] += v.z;
		o[3] += v.w;
	}
	for (int i = 0; i < 4; i++) {
		o[i] /= sum;
		if (p.w.gated)
			o[i] *= sigmoid(__bfloat162float(p.x[(size_t)(s.row0 + r) * p.ldx + (2 * h + 1) * D + c * 4 + i]));
	}
	y.x = bf16_pair(o[0], o[1]);
	y.y = bf16_pair(o[2], o[3]);
	*(uint2 *)(p.out + (size_t)(s.row0 + r) * p.ldo + h * D + c * 4) = y;
}

/* Passes over the work items, as many at once as scratch memory for their partial results allows. */
template <int D, bool DRAFT> static void attend(struct td_dev *dev, struct attend_args p, const struct td_batch *b)
{
	const size_t shared = (size_t)(PAIRS + 2 * TILE) * D * 2;
	int items = b->n_seq * p.groups, gqa = p.w.heads / p.w.kv_heads;

	static int allowed; /* once per kernel */

	if (!allowed)
		td__cuda_shared(dev, attend_kernel<D, DRAFT>, shared);
	allowed = 1;
	for (; p.item0 < items && !dev->error.code; p.item0 += p.step) {
		int n = items - p.item0 < p.step ? items - p.item0 : p.step, rows = b->max_rows < p.rows_per_group ? b->max_rows : p.rows_per_group;

		attend_kernel<D, DRAFT><<<dim3(p.spans, p.w.kv_heads, n), ATTEND_THREADS, shared, dev->stream>>>(p);
		merge_kernel<D, DRAFT><<<dim3(rows * gqa, p.w.kv_heads, n), D, 0, dev->stream>>>(p);
		td__cuda_launched(dev, DRAFT ? "draft_attention" : "attention");
	}
}

/* Checks, scratch and shapes common to both. Returns the bytes in front of the partial results, 0 after an error or with nothing to do. */
static inline int attend_prepare(struct td_dev *dev, struct attend_args *p, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b,
				 struct td_tensor x, int cols, int draft, const char *what)
{
	int gqa = w->heads / w->kv_heads;

	if (dev->error.code || b->n_seq == 0 || td__cuda_type(dev, x, TD_BF16, what))
		return 0;
	if (x.cols != cols || w->rotary_dim > w->head_dim || w->heads % w->kv_heads || gqa > PAIRS || w->head_dim > 256) {
		td__cuda_fail(dev, TD_E_UNSUPPORTED, "%s: rows of %d columns, head_dim %d, rotary_dim %d, %d heads over %d do not fit", what, x.cols,
			      w->head_dim, w->rotary_dim, w->heads, w->kv_heads);
		return 0;
	}
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *s = &b->seq[i];

		if (s->pos0 < 0 || s->pos0 + s->rows > kv->max_pages * TD_PAGE || s->row0 < 0 || s->row0 + s->rows > x.rows ||
		    (draft && s->rows > TD_BLOCK_MAX)) {
			td__cuda_fail(dev, TD_E_INTERNAL, "%s: positions %d to %d do not fit %d pages, or rows %d to %d the batch", what, s->pos0,
				      s->pos0 + s->rows, kv->max_pages, s->row0, s->row0 + s->rows);
			return 0;
		}
	}
	p->w = *w;
	p->kv = *kv;
	p->seq = b->dev;
	p->x = (const bf16 *)x.data;
	p->ldx = x.ld;
	p->rows_per_group = PAIRS / gqa;
	p->groups = div_up(b->max_rows, p->rows_per_group);
	p->spans = div_up(b->max_ctx, SPAN) + draft;
	p->scale = 1.44269504f / sqrtf((float)w->head_dim);
	return 1;
}

/* Places q (and k, v of a block) and the partial results in scratch memory. */
static inline int attend_place(struct td_dev *dev, struct attend_args *p, const struct td_batch *b, int draft)
{
	size_t dim = p->w.head_dim, q = align256((size_t)b->n_rows * p->w.heads * dim * 2),
	       k = draft ? align256((size_t)b->n_rows * p->w.kv_heads * dim * 2) : 0;
	size_t pairs = (size_t)p->w.kv_heads * PAIRS * p->spans, per_item = pairs * (dim * 4 + 8), there = td__cuda_scratch_size(dev);
	size_t items = (size_t)b->n_seq * p->groups, step = there > q + 2 * k ? (there - q - 2 * k) / per_item : 0;
	char *mem;

	step = step < 1 ? 1 : step > items ? items : step;
	p->step = (int)step;
	mem = (char *)td__cuda_scratch(dev, q + 2 * k + step * per_item);
	if (!mem)
		return 0;
	p->q = (bf16 *)mem;
	if (draft) {
		p->k = (bf16 *)(mem + q);
		p->v = (bf16 *)(mem + q + k);
	}
	p->o = (float *)(mem + q + 2 * k);
	p->ms = (float2 *)(mem + q + 2 * k + step * pairs * dim * 4);
	return 1;
}

template <bool DRAFT> static void attend_any(struct td_dev *dev, const struct attend_args &p, const struct td_batch *b)
{
	if (p.w.head_dim == 256)
		attend<256, DRAFT>(dev, p, b);
	else if (p.w.head_dim == 128)
		attend<128, DRAFT>(dev, p, b);
	else if (p.w.head_dim == 64)
		attend<64, DRAFT>(dev, p, b);
	else
		td__cuda_fail(dev, TD_E_UNSUPPORTED, "attention: head_dim %d; the GPU kernels have 64, 128 and 256", p.w.head_dim);
}

#endif
