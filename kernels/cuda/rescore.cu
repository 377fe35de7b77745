/*
 * rescore.cu: the best logits of a head in 4 bits, computed again from the table in BF16.
 *
 *	find     a block takes up to 8,192 neighbouring ids of a row into registers and writes its TD_RESCORE best as keys to scratch
 *	rescore  a block for each row: the best of those keys; then each of its warps multiplies one of the table's rows
 *
 * A key is the logit, as a number that sorts, above the id turned around: the largest key is the best logit and, among equals, the lowest id. So what is
 * chosen depends on the row alone, and sums of a product are made in one order. A NaN is never chosen.
 *
 * Choosing. A block has as many warps as there are keys to choose, so the least of the warps' largest values is one that TD_RESCORE values reach: whatever is
 * below it is out. What is left, about 22 of 8,192 values in no order, is a list in shared memory, of which a key's rank is found by counting. Taking the best
 * one out of the registers round by round instead costs ten times as many instructions: that is left for blocks where too many reach the mark (ties, or
 * warps without a number).
 *
 * What must never happen: an id from anywhere but the place of a logit, or what the caller says that place stands for.
 */
#include "kernels/cuda/internal.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, PER_LANE = 32, LIST = 256, KEYS_MAX = 1024 /* of a row, from all its blocks */ };
typedef unsigned long long rank_t;

static_assert((int)WARPS == (int)TD_RESCORE, "the mark is right for as many keys as there are warps, and each warp multiplies for one");

/* 0: none. Zeros of both signs are equal. */
static __device__ __forceinline__ rank_t rank_of(float logit, int id)
{
	uint32_t u = __float_as_uint(logit + 0.0f);

	return isnan(logit) ? 0 : (rank_t)(u & 0x80000000u ? ~u : u | 0x80000000u) << 32 | (uint32_t)~id;
}

template <class T> static __device__ __forceinline__ T warp_most(T v)
{
#pragma unroll
	for (int d = 16; d > 0; d /= 2) {
		T other = __shfl_xor_sync(~0u, v, d);

		v = other > v ? other : v;
	}
	return v;
}

template <class T> static __device__ __forceinline__ T least_of(const T most[WARPS])
{
	T least = most[0];

#pragma unroll
	for (int i = 1; i < WARPS; i++)
		least = most[i] < least ? most[i] : least;
	return least;
}

/* The first TD_RESCORE of n different keys go to their places, zeros behind them. For a whole block. */
static __device__ __forceinline__ void place(const rank_t *list, int n, rank_t *to)
{
	for (int i = threadIdx.x; i < n; i += THREADS) {
		rank_t key = list[i];
		int before = 0;

		for (int j = 0; j < n; j++)
			before += list[j] > key;
		if (before < TD_RESCORE)
			to[before] = key;
	}
	for (int i = n + threadIdx.x; i < TD_RESCORE; i += THREADS)
		to[i] = 0;
}

/* The same from the values themselves, round by round. */
static __device__ __noinline__ void place_slowly(const float *row, int from, int to, rank_t part[WARPS], rank_t *best)
{
	rank_t last = ~0ull;

	for (int k = 0; k < TD_RESCORE; k++) {
		rank_t mine = 0;

		for (int id = from + threadIdx.x; id < to; id += THREADS) {
			rank_t r = rank_of(row[id], id);

			mine = r < last && r > mine ? r : mine;
		}
		mine = warp_most(mine);
		if (threadIdx.x % 32 == 0)
			part[threadIdx.x / 32] = mine;
		__syncthreads();
		last = part[0];
		for (int i = 1; i < WARPS; i++)
			last = part[i] > last ? part[i] : last;
		if (threadIdx.x == 0)
			best[k] = last;
		__syncthreads();
	}
}

/* span: ids of a warp, so that no block's last warps are without any. */
static __global__ void __launch_bounds__(THREADS) find_kernel(const float *logits, int ld, int vocab, int span, rank_t *found)
{
	__shared__ rank_t list[LIST], part[WARPS];
	__shared__ float most[WARPS];
	__shared__ int n;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, from = blockIdx.x * WARPS * span, to = min(from + WARPS * span, vocab);
	int first = from + warp * span, end = min(first + span, vocab);
	const float *row = logits + (size_t)blockIdx.y * ld;
	float v[PER_LANE], mine = -INFINITY, mark;

	found += ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * TD_RESCORE;
	if (threadIdx.x == 0)
		n = 0;
	let_next_start();
	after_previous();
#pragma unroll
	for (int i = 0; i < PER_LANE; i++)
		v[i] = first + 32 * i + lane < end ? row[first + 32 * i + lane] : NAN;
#pragma unroll
	for (int i = 0; i < PER_LANE; i++)
		mine = fmaxf(mine, v[i]);
	mark = warp_most(mine);
	if (lane == 0)
		most[warp] = mark;
	__syncthreads();
	mark = least_of(most);
	if (mine >= mark) {
#pragma unroll
		for (int i = 0; i < PER_LANE; i++)
			if (v[i] >= mark) {
				int at = atomicAdd(&n, 1);

				if (at < LIST)
					list[at] = rank_of(v[i], first + 32 * i + lane);
			}
	}
	__syncthreads();
	if (n <= LIST)
		place(list, n, found);
	else
		place_slowly(row, from, to, part, found);
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
								  const int32_t *ids, float *logits, int ld)
{
	__shared__ rank_t list[KEYS_MAX], most[WARPS], chosen[TD_RESCORE];
	__shared__ int left;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	rank_t v[KEYS_MAX / THREADS], mine = 0, mark;

	if (threadIdx.x == 0)
		left = 0;
	let_next_start();
	after_previous();
	found += (size_t)blockIdx.x * n;
#pragma unroll
	for (int i = 0; i < KEYS_MAX / THREADS; i++)
		v[i] = i * THREADS + (int)threadIdx.x < n ? found[i * THREADS + threadIdx.x] : 0;
#pragma unroll
	for (int i = 0; i < KEYS_MAX / THREADS; i++)
		mine = v[i] > mine ? v[i] : mine;
	mark = warp_most(mine);
	if (lane == 0)
		most[warp] = mark;
	__syncthreads();
	mark = least_of(most);
#pragma unroll
	for (int i = 0; i < KEYS_MAX / THREADS; i++)
		if (v[i] && v[i] >= mark)
			list[atomicAdd(&left, 1)] = v[i];
	__syncthreads();
	place(list, left, chosen);
	__syncthreads();
	if (chosen[warp]) {
		int id = (int)~(uint32_t)chosen[warp];
		float y = product(x + (size_t)blockIdx.x * ldx, table + (size_t)(ids ? ids[id] : id) * ldw, cols, by8, lane);

		if (lane == 0)
			logits[(size_t)blockIdx.x * ld + id] = y;
	}
}

void td__cuda_rescore(struct td_dev *dev, struct td_tensor x, struct td_tensor table, struct td_tensor logits, const struct td_columns *of, int vocab)
{
	int blocks, span, n;
	int by8 = x.cols % 8 == 0 && x.ld % 8 == 0 && table.ld % 8 == 0 && (uintptr_t)x.data % 16 == 0 && (uintptr_t)table.data % 16 == 0;
	rank_t *found;

	if (dev->error.code || logits.rows == 0 || td__cuda_type(dev, logits, TD_F32, "rescore") || td__cuda_type(dev, x, TD_BF16, "rescore") ||
	    td__cuda_type(dev, table, TD_BF16, "rescore"))
		return;
	vocab = of ? of->n : vocab;
	blocks = div_up(vocab, THREADS * PER_LANE);
	span = div_up(vocab, blocks * WARPS);
	n = blocks * TD_RESCORE;
	if (n > KEYS_MAX) {
		td__cuda_fail(dev, TD_E_UNSUPPORTED, "rescore: %d ids are more than %d", vocab, KEYS_MAX / TD_RESCORE * THREADS * PER_LANE);
		return;
	}
	found = (rank_t *)td__cuda_scratch(dev, (size_t)logits.rows * n * sizeof(*found));
	if (!found)
		return;
	td__cuda_launch(dev, "rescore", find_kernel, dim3(blocks, logits.rows), THREADS, 0, (const float *)logits.data, logits.ld, vocab, span, found);
	td__cuda_launch(dev, "rescore", rescore_kernel, logits.rows, THREADS, 0, (const rank_t *)found, n, (const bf16 *)x.data, x.ld, (const bf16 *)table.data,
			table.ld, x.cols, by8, of ? of->id : (const int32_t *)NULL, (float *)logits.data, logits.ld);
}
