/*
 * rescore.cu: the best logits of a head in 4 bits, computed again from the table in BF16.
 *
 *	find     a warp takes 1,024 neighbouring ids of a row into registers and writes its TD_RESCORE best as keys to scratch
 *	rescore  a block for each row: its warps take the keys in turns, one of them the best of all; then each warp multiplies one of the table's rows
 *
 * A key is the logit, as a number that sorts, above the id turned around: the largest key is the best logit and, among equals, the lowest id. So what is
 * chosen depends on the row alone, and sums of a product are made in one order. A NaN is never chosen. What must never happen: an id from anywhere
 * but the place of a logit.
 */
#include "kernels/cuda/internal.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, PER_LANE = 32, SPAN = PER_LANE * 32 /* ids of a warp */ };
typedef unsigned long long rank_t;

static __device__ __forceinline__ uint32_t sortable(float v)
{
	uint32_t u = __float_as_uint(v);

	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* 0: none. */
static __device__ __forceinline__ rank_t rank(float logit, int id)
{
	return isnan(logit) ? 0 : (rank_t)sortable(logit) << 32 | (uint32_t)~id;
}

static __device__ __forceinline__ rank_t warp_most(rank_t v)
{
#pragma unroll
	for (int d = 16; d > 0; d /= 2) {
		rank_t other = __shfl_xor_sync(~0u, v, d);

		v = other > v ? other : v;
	}
	return v;
}

/* Of the keys that the warp's lanes hold, the k-th best in lane k < TD_RESCORE; others get 0. The keys taken become 0. */
template <int N> static __device__ __forceinline__ rank_t warp_best(rank_t v[N], int lane)
{
	rank_t kept = 0, mine = 0;

#pragma unroll
	for (int i = 0; i < N; i++)
		mine = v[i] > mine ? v[i] : mine;
	for (int k = 0; k < TD_RESCORE; k++) {
		rank_t best = warp_most(mine);

		if (lane == k)
			kept = best;
		if (mine != best || !best)
			continue;
		mine = 0;
#pragma unroll
		for (int i = 0; i < N; i++) {
			v[i] = v[i] == best ? 0 : v[i];
			mine = v[i] > mine ? v[i] : mine;
		}
	}
	return kept;
}

static __global__ void __launch_bounds__(THREADS) find_kernel(const float *logits, int ld, int vocab, rank_t *found)
{
	int lane = threadIdx.x % 32, warp = blockIdx.x * WARPS + threadIdx.x / 32, from = warp * SPAN + lane;
	const float *row = logits + (size_t)blockIdx.y * ld;
	rank_t v[PER_LANE], best;

	let_next_start();
	after_previous();
#pragma unroll
	for (int i = 0; i < PER_LANE; i++) {
		int id = from + 32 * i;

		v[i] = id < vocab ? rank(row[id], id) : 0;
	}
	best = warp_best<PER_LANE>(v, lane);
	if (lane < TD_RESCORE)
		found[((size_t)blockIdx.y * gridDim.x * WARPS + warp) * TD_RESCORE + lane] = best;
}

/* x times a row of the table: by eights where all rows lie at multiples of 16 bytes. */
static __device__ __forceinline__ float product(const bf16 *x, const bf16 *w, int cols, int by8, int lane)
{
	float sum = 0;

	if (by8) {
#pragma unroll 5
		for (int c = lane * 8; c < cols; c += 256) {
			uint4 a = *(const uint4 *)(x + c), b = *(const uint4 *)(w + c);

			sum += bf16_lo(a.x) * bf16_lo(b.x) + bf16_hi(a.x) * bf16_hi(b.x) + bf16_lo(a.y) * bf16_lo(b.y) + bf16_hi(a.y) * bf16_hi(b.y);
			sum += bf16_lo(a.z) * bf16_lo(b.z) + bf16_hi(a.z) * bf16_hi(b.z) + bf16_lo(a.w) * bf16_lo(b.w) + bf16_hi(a.w) * bf16_hi(b.w);
		}
	} else {
		for (int c = lane; c < cols; c += 32)
			sum += __bfloat162float(x[c]) * __bfloat162float(w[c]);
	}
	return warp_sum(sum);
}

static __global__ void __launch_bounds__(THREADS) rescore_kernel(const rank_t *found, int n, const bf16 *x, int ldx, const bf16 *table, int ldw, int cols, int by8,
								  float *logits, int ld)
{
	enum { TAKE = 8 };
	__shared__ rank_t part[WARPS * TD_RESCORE], chosen[TD_RESCORE];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	rank_t v[TAKE + 1], best = 0;

	let_next_start();
	after_previous();
	found += (size_t)blockIdx.x * n;
	for (int from = 0; from < n; from += THREADS * TAKE) {
#pragma unroll
		for (int i = 0; i < TAKE; i++) {
			int at = from + i * THREADS + threadIdx.x;

			v[i] = at < n ? found[at] : 0;
		}
		v[TAKE] = best;
		best = warp_best<TAKE + 1>(v, lane);
	}
	if (lane < TD_RESCORE)
		part[warp * TD_RESCORE + lane] = best;
	__syncthreads();
	if (warp == 0) {
		v[0] = part[lane];
		v[1] = part[32 + lane];
		best = warp_best<2>(v, lane);
		if (lane < TD_RESCORE)
			chosen[lane] = best;
	}
	__syncthreads();
	if (chosen[warp]) {
		int id = (int)~(uint32_t)chosen[warp];
		float y = product(x + (size_t)blockIdx.x * ldx, table + (size_t)id * ldw, cols, by8, lane);

		if (lane == 0)
			logits[(size_t)blockIdx.x * ld + id] = y;
	}
}

static_assert((int)TD_RESCORE == (int)WARPS && WARPS * WARPS == 64, "a warp for each candidate, two keys for each lane of the last choice");

void td__cuda_rescore(struct td_dev *dev, struct td_tensor x, struct td_tensor table, struct td_tensor logits, int vocab)
{
	int blocks = div_up(vocab, SPAN * WARPS), n = blocks * WARPS * TD_RESCORE;
	int by8 = x.cols % 8 == 0 && x.ld % 8 == 0 && table.ld % 8 == 0 && (uintptr_t)x.data % 16 == 0 && (uintptr_t)table.data % 16 == 0;
	rank_t *found;

	if (dev->error.code || logits.rows == 0 || td__cuda_type(dev, logits, TD_F32, "rescore") || td__cuda_type(dev, x, TD_BF16, "rescore") ||
	    td__cuda_type(dev, table, TD_BF16, "rescore"))
		return;
	found = (rank_t *)td__cuda_scratch(dev, (size_t)logits.rows * n * sizeof(*found));
	if (!found)
		return;
	td__cuda_launch(dev, "rescore", find_kernel, dim3(blocks, logits.rows), THREADS, 0, (const float *)logits.data, logits.ld, vocab, found);
	td__cuda_launch(dev, "rescore", rescore_kernel, logits.rows, THREADS, 0, (const rank_t *)found, n, (const bf16 *)x.data, x.ld, (const bf16 *)table.data,
			table.ld, x.cols, by8, (float *)logits.data, logits.ld);
}
