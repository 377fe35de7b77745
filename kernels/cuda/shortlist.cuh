/*
 * shortlist.cuh: device code of sampling from the few best of a row, which many blocks look for at once.
 *
 * Scan: a block has a piece of TD_SCRATCH_PIECE ids of one row in registers and leaves its best. Where the row is sampled it also leaves every value
 * that is at least the m-th largest of its threads' own largest ones, in ascending id: so at least m of the piece's best, seldom many more. A piece with
 * more of them than fit says so. Without top_k it also leaves the mass of its weights, taken beside its own best, as the row's best isn't known yet.
 *
 * Choose: one block has the lists of all pieces. Together they hold every value of the row that is at least the largest of the pieces' thresholds
 * ("least"): the others get no weight. Cuts that end inside that are exact. What must never happen: a list that lacks one of the row's values >= least.
 */
#ifndef TD_CUDA_SHORTLIST_CUH
#define TD_CUDA_SHORTLIST_CUH

#include "kernels/cuda/choose.cuh"

/* Of -inf: what lies below is no value. */
#define LEAST_KEY 0x007fffffu

enum { SCAN = 256, SCAN_WARPS = SCAN / 32, RUNS = TD_SCRATCH_PIECE / SCAN / 4, OWN = 4 * RUNS /* values of a thread */, SHORT = 64 /* largest m */,
       PIECE_LIST = 256 };

/* What is left of a piece. Entries behind `n` are undefined, and so are all where n > PIECE_LIST. */
struct piece {
	float least;
	int n;
	mass_t mass;
};
struct entry {
	float value;
	int id;
};
static_assert(sizeof(struct piece) + sizeof(struct best) == TD_SCRATCH_OF_PIECE && PIECE_LIST * sizeof(struct entry) == TD_SCRATCH_LIST, "pack.h");
static_assert(PIECES == 64, "two for each lane");
static_assert(RUNS == 4 && RUNS * SCAN_WARPS == 32, "counts of four runs are packed into a word, and those of the warps lie in a warp");

struct scan_shared {
	uint32_t key[SCAN], best_key[SCAN_WARPS];
	int best_id[SCAN_WARPS], count[32];
	mass_t mass[SCAN_WARPS];
	uint32_t least;
	struct adjust_shared adjust;
};

/* ---- scan -------------------------------------------------------------------------------------------------------------------------- */

/* Integers that order like the values, and never 0, which stands for "no value". Both zeros are one. */
static __device__ __forceinline__ uint32_t key_of(float v)
{
	uint32_t bits = __float_as_uint(v + 0.0f);

	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static __device__ __forceinline__ float value_of(uint32_t key)
{
	return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* The id of a thread's value k, in the piece. */
static __device__ __forceinline__ int place(int k)
{
	return (k / 4 * SCAN + threadIdx.x) * 4 + k % 4;
}

/* The piece's best, told to every thread. */
static __device__ __forceinline__ struct best best_of_piece(struct scan_shared *sh, const uint32_t key[OWN], int from, uint32_t *most)
{
	uint32_t top = 0, own = 0;
	int at = 0, id, warp = threadIdx.x / 32;

#pragma unroll
	for (int k = 0; k < OWN; k++)
		if (key[k] > own) {
			own = key[k];
			at = k;
		}
	*most = own;
	top = __reduce_max_sync(~0u, own);
	id = (int)__reduce_min_sync(~0u, own == top ? (uint32_t)place(at) : 0x7fffffffu);
	if ((threadIdx.x & 31) == 0) {
		sh->best_key[warp] = top;
		sh->best_id[warp] = id;
	}
	__syncthreads();
	top = sh->best_key[0];
	id = sh->best_id[0];
#pragma unroll
	for (int i = 1; i < SCAN_WARPS; i++) {
		uint32_t other = sh->best_key[i];
		int other_id = sh->best_id[i];

		if (other > top || (other == top && other_id < id)) {
			top = other;
			id = other_id;
		}
	}
	return {value_of(top), from + id};
}

/* The mass of the piece's weights beside its best, in thread 0. */
static __device__ mass_t mass_of_piece(struct scan_shared *sh, const uint32_t key[OWN], float best, float temperature)
{
	mass_t sum = 0;

	if (best == -INFINITY)
		return 0;
#pragma unroll
	for (int k = 0; k < OWN; k++)
		sum += key[k] ? units(weight(value_of(key[k]), best, temperature)) : 0;
	for (int d = 16; d; d >>= 1)
		sum += __shfl_xor_sync(~0u, sum, d);
	if ((threadIdx.x & 31) == 0)
		sh->mass[threadIdx.x / 32] = sum;
	__syncthreads();
	for (int i = 1; i < SCAN_WARPS && threadIdx.x == 0; i++)
		sum += sh->mass[i];
	return sum;
}

/* A key that at least m of the threads' largest reach, and not many more where there is such a one; 1 where fewer threads have a value. */
static __device__ uint32_t threshold_of_piece(struct scan_shared *sh, uint32_t most, int m)
{
	sh->key[threadIdx.x] = most;
	__syncthreads();
	if (threadIdx.x < 32) { /* a bisection: `low` is reached by enough, `high` by too few */
		uint32_t key[SCAN_WARPS], low = 1, high = 0;

		for (int i = 0; i < SCAN_WARPS; i++) {
			key[i] = sh->key[32 * i + threadIdx.x];
			high = max(high, key[i]);
			low = i == 0 || key[i] < low ? key[i] : low;
		}
		high = __reduce_max_sync(~0u, high) + 1;
		low = max(__reduce_min_sync(~0u, low), 1u);
		while (high - low > 1) {
			uint32_t mid = low + (high - low) / 2;
			int n = 0;

			for (int i = 0; i < SCAN_WARPS; i++)
				n += __popc(__ballot_sync(~0u, key[i] >= mid));
			if (n >= m)
				low = mid;
			else
				high = mid;
			if (n >= m && n <= m + m / 8)
				break;
		}
		if (threadIdx.x == 0)
			sh->least = low;
	}
	__syncthreads();
	return sh->least;
}

/* Writes the values from the threshold on, in ascending id; returns how many there are. */
static __device__ int list_piece(struct scan_shared *sh, const uint32_t key[OWN], uint32_t least, int from, struct entry *list)
{
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, here, before, all;
	uint32_t mine = 0, sum; /* four counts, one of each run, none of a warp above 128 */

#pragma unroll
	for (int k = 0; k < OWN; k++)
		mine += (uint32_t)(key[k] >= least) << 8 * (k / 4);
	sum = mine;
	for (int d = 1; d < 32; d <<= 1) {
		uint32_t other = __shfl_up_sync(~0u, sum, d);

		sum += lane >= d ? other : 0;
	}
	if (lane == 31)
		for (int k = 0; k < RUNS; k++)
			sh->count[k * SCAN_WARPS + warp] = sum >> 8 * k & 255;
	__syncthreads();
	here = before = sh->count[lane]; /* in the order of ids: run by run, warp by warp */
	for (int d = 1; d < 32; d <<= 1) {
		int other = __shfl_up_sync(~0u, before, d);

		before += lane >= d ? other : 0;
	}
	all = __shfl_sync(~0u, before, 31);
	before -= here;
#pragma unroll
	for (int run = 0; run < RUNS; run++) {
		int at = __shfl_sync(~0u, before, run * SCAN_WARPS + warp) + (int)((sum - mine) >> 8 * run & 255);

#pragma unroll
		for (int k = 4 * run; k < 4 * run + 4; k++)
			if (key[k] >= least && at < PIECE_LIST)
				list[at++] = {value_of(key[k]), from + place(k)};
	}
	return all;
}

/* ---- choose ------------------------------------------------------------------------------------------------------------------------ */

/* The best of a row by one warp, each lane gets it; with nothing finite it is id 0, the lowest. */
static __device__ __forceinline__ struct best best_of_row(const struct best *piece, int pieces)
{
	int lane = threadIdx.x & 31;
	struct best a = {-INFINITY, INT32_MAX}, b = a;
	uint32_t own, top;

	if (lane < pieces)
		a = piece[lane];
	if (lane + 32 < pieces)
		b = piece[lane + 32];
	a = better(a, b);
	own = key_of(a.value);
	top = __reduce_max_sync(~0u, own);
	return {value_of(top), (int)__reduce_min_sync(~0u, own == top ? (uint32_t)a.id : 0x7fffffffu)};
}

/* What the scan left of a row whose setting is sampled, into shared memory. */
static __device__ void row_init(struct choose_shared *sh, const struct best *best, const struct piece *piece, int pieces, float temperature)
{
	int lane = threadIdx.x, n[2], sum;

	__syncthreads();
	if (threadIdx.x < 32) {
		struct best top = best_of_row(best, pieces);
		float least = -INFINITY;
		int too_long = 0;
		mass_t total = 0;

		for (int k = 0; k < 2; k++) {
			int at = 2 * lane + k, there = at < pieces;
			struct piece one = there ? piece[at] : (struct piece){-INFINITY, 0, 0};
			struct best b = there ? best[at] : (struct best){-INFINITY, 0};
			double scale = b.value == -INFINITY ? 0 : exp((double)(b.value - top.value) / temperature);

			n[k] = one.n;
			too_long |= one.n > PIECE_LIST;
			least = fmaxf(least, one.least);
			sh->piece_best[at] = b;
			sh->scale[at] = scale;
			sh->mass[at] = (long long)((double)one.mass * scale);
			total += sh->mass[at];
		}
		sum = n[0] + n[1];
		for (int d = 1; d < 32; d <<= 1) {
			int other = __shfl_up_sync(~0u, sum, d);

			sum += lane >= d ? other : 0;
		}
		sh->first[2 * lane] = sum - n[0] - n[1];
		sh->first[2 * lane + 1] = sum - n[1];
		for (int d = 16; d; d >>= 1) {
			total += __shfl_xor_sync(~0u, total, d);
			least = fmaxf(least, __shfl_xor_sync(~0u, least, d));
		}
		too_long = __any_sync(~0u, too_long);
		if (lane == 31) {
			sh->first[PIECES] = sum;
			sh->too_long = too_long || sum > LIST;
			sh->top = top;
			sh->total = total;
			sh->least = least;
			sh->kept = 0;
		}
	}
	__syncthreads();
}

/*
 * The pool that top_k, top_p and min_p leave of the lists, and its mass; `want`: the caller cuts to so many of the best afterwards, 0 = it needs all.
 * Returns 0, with no pool, when the lists may lack what belongs to it. Temperature is above 0, the best a number.
 */
static __device__ mass_t short_row(struct choose_shared *sh, const struct td_sampling *s, const struct entry *list, int vocab, int want,
				   struct pool *pool)
{
	int lane = threadIdx.x & 31, n = sh->first[PIECES], top_k = top_k_of(s, vocab), kept = 0, whole;
	float min_p = floor_of(s), best = sh->top.value, least = sh->least, w;
	mass_t total = sh->total;

	if (sh->too_long)
		return 0;
	for (int p = threadIdx.x / 32; p < PIECES; p += CHOOSE_WARPS) {
		int first = sh->first[p], m = sh->first[p + 1] - first;

		for (int i = lane; i < m; i += 32) {
			struct entry e = list[(size_t)p * PIECE_LIST + i];

			w = e.value >= least ? weight(e.value, best, s->temperature) : 0;
			sh->list[first + i] = w >= min_p ? w : 0;
			sh->list_id[first + i] = e.id;
			kept += e.value >= least;
		}
	}
	for (int d = 16; d; d >>= 1)
		kept += __shfl_xor_sync(~0u, kept, d);
	if (lane == 0)
		atomicAdd(&sh->kept, kept);
	__syncthreads();
	kept = sh->kept;
	*pool = {sh->list, sh->list_id, n};
	/* What is not in the lists is at most as large as their threshold: nothing with a weight, or nothing that stays. */
	w = least == -INFINITY ? 0 : weight(least, best, s->temperature);
	whole = w == 0 || w < min_p;
	if (!whole && !top_k && (s->top_p < 1 ? min_p > 0 : !want)) /* the mass that min_p leaves of the row, or all of that, isn't here */
		return 0;
	if (!whole && kept < (top_k ? top_k : want))
		return 0;
	if (top_k)
		cut(sh, sh->list, n, 0, top_k);
	if (top_k && top_k <= TD_CAND_MAX)
		gather_few(sh, pool);
	if (whole || top_k)
		total = mass(sh, pool->w, pool->n);
	if (s->top_p < 1 && pool->n <= TD_CAND_MAX) {
		cut_few(*pool, nucleus(s, total));
		total = mass(sh, pool->w, pool->n);
	} else if (s->top_p < 1) {
		mass_t limit = nucleus(s, total);

		/* Where it reaches beyond the lists, all that they hold belongs to it: enough for a caller who wants so many. */
		if (whole || top_k || mass(sh, sh->list, n) >= limit)
			cut(sh, sh->list, n, 1, limit);
		else if (!want)
			return 0;
		total = mass(sh, sh->list, n);
	}
	return total;
}

#endif
