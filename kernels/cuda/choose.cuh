/*
 * choose.cuh: device code of sampling: from adjusted logits to a token, by one block of 1,024 threads (sample.cu has the kernels).
 *
 * The same steps as the CPU's: adjusted logits -> weights in [0, 1], 1 for the best -> cuts by a radix search on the bits of the weights ->
 * a draw in ascending id. Masses are 64-bit integers in units of 2^-44: sums of integers are the same in any order, so the result depends on
 * nothing but the row, and atomics may be used freely. 2^18 weights of 1 still fit; a weight below 2^-45 has no mass and is never drawn.
 *
 * A pass of one block over a vocabulary takes 10 us or more, so most settings work on a short list (shortlist.cuh); where it can't be known to
 * hold all that counts (a flat distribution), the whole row is used.
 */
#ifndef TD_CUDA_CHOOSE_CUH
#define TD_CUDA_CHOOSE_CUH

#include <float.h>

#include "kernels/cuda/internal.cuh"
#include "kernels/pack.h"

enum { CHOOSE = 1024, CHOOSE_WARPS = CHOOSE / 32, BUCKETS = 2048, PIECES = (1 << 18) / TD_SCRATCH_PIECE, LIST = 5120 };
typedef unsigned long long mass_t;

struct best {
	float value;
	int id;
};

/* Weights to choose from, ids ascending: the list in shared memory, or the whole row (id NULL: the place is the id). */
struct pool {
	float *w;
	const int *id;
	int n;
};

/* Lists of what changes single logits. */
struct adjust_shared {
	int bias_id[TD_BIAS_MAX], extra[TD_DRAFT_MAX], n_bias;
	float bias[TD_BIAS_MAX];
};

/* Shared memory of a choosing block, dynamic: more than 48 KiB. */
struct choose_shared {
	uint32_t bucket_low[BUCKETS], bucket_high[BUCKETS];
	mass_t part[CHOOSE_WARPS];
	double part_d[CHOOSE_WARPS];
	struct best best[CHOOSE_WARPS];
	mass_t above;
	int found, count[CHOOSE_WARPS];
	float list[LIST];
	int list_id[LIST];
	float few[TD_CAND_MAX]; /* what is left of a list after a cut to so few */
	int few_id[TD_CAND_MAX];
	float saved[TD_CAND_MAX];
	struct adjust_shared adjust;
	/* what the scan left of the row, by piece (shortlist.cuh) */
	struct best top, piece_best[PIECES];
	double scale[PIECES]; /* the weight of a piece's best */
	mass_t total;
	long long mass[PIECES];
	float least;
	int first[PIECES + 1], kept, too_long;
	/* accept: the row's draft, its token's q; and of a row that is drawn by pieces what its ids' masses became */
	int n_draft, listed, draft_id[TD_CAND_MAX];
	float q, draft_q[TD_CAND_MAX];
	mass_t draft_mass[TD_CAND_MAX];
	int token[TD_BLOCK_MAX], same[TD_BLOCK_MAX]; /* greedy: of each row */
};

/* ---- adjusted logits --------------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float sane(float logit)
{
	if (isnan(logit))
		return -INFINITY;
	return logit > FLT_MAX ? FLT_MAX : logit;
}

static __device__ __forceinline__ int penalises(const struct td_sampling *s)
{
	return (s->repetition > 0 && s->repetition != 1) || s->presence != 0 || s->frequency != 0;
}

/* What a thread needs to adjust one logit; the lists lie in shared memory. */
struct adjust {
	const struct td_sampling *s;
	const uint16_t *counts; /* (V) */
	const int32_t *ids; /* what the columns stand for, NULL: themselves */
	const struct adjust_shared *sh;
	int n_bias, n_extra, penalties;
};

/* For columns [from, to). Fills the lists; all threads of a block call it. `extra`: tokens to count as output on top of `counts`. */
static __device__ __forceinline__ void adjust_init(struct adjust *a, const struct td_sampling *s, const uint16_t *counts, const int32_t *ids, const int32_t *extra,
						   int n_extra, int from, int to, struct adjust_shared *sh)
{
	int n_bias = s->n_bias < 0 ? 0 : s->n_bias > TD_BIAS_MAX ? TD_BIAS_MAX : s->n_bias, lane = threadIdx.x & 31, n = 0;

	a->s = s;
	a->counts = counts;
	a->ids = ids;
	a->sh = sh;
	a->n_bias = 0;
	a->penalties = penalises(s);
	a->n_extra = a->penalties ? n_extra : 0;
	if (!n_bias && !a->n_extra)
		return;
	if (ids) {
		from = ids[from];
		to = ids[to - 1] + 1;
	}
	__syncthreads();
	if (threadIdx.x < 32) { /* in their order: an id may come twice, and float sums have an order */
		for (int i0 = 0; i0 < n_bias; i0 += 32) {
			int id = i0 + lane < n_bias ? s->bias_id[i0 + lane] : -1, here = id >= from && id < to;
			unsigned all = __ballot_sync(~0u, here);
			int at = n + __popc(all & ((1u << lane) - 1));

			if (here) {
				sh->bias_id[at] = id;
				sh->bias[at] = s->bias[i0 + lane];
			}
			n += __popc(all);
		}
		if (lane == 0)
			sh->n_bias = n;
		if (lane < a->n_extra)
			sh->extra[lane] = extra[lane];
	}
	__syncthreads();
	a->n_bias = sh->n_bias;
}

static __device__ __forceinline__ float adjusted(const struct adjust &a, float logit, int column)
{
	int id = a.ids && (a.n_bias || a.penalties) ? a.ids[column] : column;
	float l = sane(logit);

	for (int i = 0; i < a.n_bias; i++)
		if (a.sh->bias_id[i] == id)
			l = sane(l + a.sh->bias[i]);
	if (a.penalties) {
		int count = a.counts[id], times;

		for (int i = 0; i < a.n_extra; i++)
			count += a.sh->extra[i] == id && (count & 0x7fff) < 0x7fff;
		times = count & 0x7fff;
		if (count && a.s->repetition > 0)
			l = l > 0 ? l / a.s->repetition : l * a.s->repetition;
		if (times)
			l -= a.s->presence + a.s->frequency * (float)times;
	}
	return l;
}

/* ---- reductions of a block --------------------------------------------------------------------------------------------------------- */

/* The larger value; the lower id on a tie. */
static __device__ __forceinline__ struct best better(struct best a, struct best b)
{
	return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

static __device__ struct best best_of_warp(struct best b)
{
	for (int d = 16; d; d >>= 1) {
		struct best other = {__shfl_xor_sync(~0u, b.value, d), __shfl_xor_sync(~0u, b.id, d)};

		b = better(b, other);
	}
	return b;
}

/* `part`: shared memory for each warp; every thread gets the result. */
static __device__ struct best best_of_block(struct best b, struct best *part)
{
	b = best_of_warp(b);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = b;
	__syncthreads();
	b = part[0];
	for (unsigned i = 1; i < blockDim.x / 32; i++)
		b = better(b, part[i]);
	return b;
}

static __device__ __forceinline__ mass_t units(float w)
{
	return __float2ull_rn(w * 17592186044416.0f); /* 2^44 */
}

static __device__ mass_t sum_of_block(struct choose_shared *sh, mass_t v)
{
	mass_t sum = 0;

	for (int d = 16; d; d >>= 1)
		v += __shfl_xor_sync(~0u, v, d);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		sh->part[threadIdx.x / 32] = v;
	__syncthreads();
	for (int i = 0; i < CHOOSE_WARPS; i++)
		sum += sh->part[i];
	return sum;
}

static __device__ mass_t mass(struct choose_shared *sh, const float *w, int n)
{
	mass_t v = 0;

	for (int i = threadIdx.x; i < n; i += CHOOSE)
		v += units(w[i]);
	return sum_of_block(sh, v);
}

/* ---- cuts -------------------------------------------------------------------------------------------------------------------------- */

/* A 64-bit sum in two words: the hardware adds 32 bits in shared memory at once, but retries 64 until nobody else was faster. */
static __device__ __forceinline__ void bucket_add(struct choose_shared *sh, int at, mass_t v)
{
	uint32_t low = (uint32_t)v, high = (uint32_t)(v >> 32);

	high += atomicAdd(&sh->bucket_low[at], low) > ~low;
	if (high)
		atomicAdd(&sh->bucket_high[at], high);
}
static __device__ __forceinline__ mass_t bucket_mass(const struct choose_shared *sh, int at)
{
	return (mass_t)sh->bucket_high[at] << 32 | sh->bucket_low[at];
}

/* The highest bucket at which `above` plus all buckets from the top reaches `limit`, else 0; sh->above becomes what lies over it. */
static __device__ int threshold(struct choose_shared *sh, mass_t above, mass_t limit)
{
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, hi = BUCKETS - 1 - 2 * threadIdx.x; /* this thread: buckets hi, hi - 1 */
	mass_t a = bucket_mass(sh, hi), b = bucket_mass(sh, hi - 1), sum = a + b, before = above;

	for (int d = 1; d < 32; d <<= 1) {
		mass_t other = __shfl_up_sync(~0u, sum, d);

		sum += lane >= d ? other : 0;
	}
	if (lane == 31)
		sh->part[warp] = sum;
	if (threadIdx.x == 0)
		sh->found = 0;
	__syncthreads();
	for (int i = 0; i < warp; i++)
		before += sh->part[i];
	before += sum - a - b;
	if (before < limit && before + a >= limit) {
		sh->found = hi;
		sh->above = before;
	} else if (before + a < limit && (before + a + b >= limit || hi - 1 == 0)) {
		sh->found = hi - 1;
		sh->above = before + a;
	}
	__syncthreads();
	return sh->found;
}

/*
 * Keeps the best weights: the first `limit` (by_mass 0), or the fewest whose mass reaches `limit` units (by_mass 1), ties by lower id; the others
 * become 0. Three passes narrow the threshold's bits: 11, 11 and 10 of them, positive floats ordering like their bits.
 */
static __device__ __noinline__ void cut(struct choose_shared *sh, float *w, int n, int by_mass, mass_t limit)
{
	const int shift[3] = {21, 10, 0}, width[3] = {11, 11, 10};
	uint32_t prefix = 0, known = 0;
	mass_t above = 0;
	int keep, seen = 0;

	for (int i = 0; i < 3; i++) {
		uint32_t mask = (1u << width[i]) - 1;

		__syncthreads();
		for (int b = threadIdx.x; b < BUCKETS; b += CHOOSE)
			sh->bucket_low[b] = sh->bucket_high[b] = 0;
		__syncthreads();
		for (int t = threadIdx.x; t < n; t += CHOOSE) {
			uint32_t bits = __float_as_uint(w[t]);

			if (bits && (bits & known) == prefix)
				bucket_add(sh, bits >> shift[i] & mask, by_mass ? units(w[t]) : 1);
		}
		__syncthreads();
		prefix |= (uint32_t)threshold(sh, above, limit) << shift[i];
		above = sh->above;
		known |= mask << shift[i];
	}
	/* How many of those at the threshold stay: the lowest ids. */
	keep = 0;
	if (above < limit) {
		mass_t one = by_mass ? units(__uint_as_float(prefix)) : 1;

		keep = one ? (int)min((limit - above + one - 1) / one, (mass_t)n) : n;
	}
	for (int t0 = 0; t0 < n; t0 += CHOOSE) {
		int t = t0 + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x / 32, rank, all = 0;
		uint32_t bits = t < n ? __float_as_uint(w[t]) : 0;
		int tie = t < n && bits == prefix;
		unsigned ties = __ballot_sync(~0u, tie);

		if (t < n && bits < prefix)
			w[t] = 0;
		if (!__syncthreads_or(tie))
			continue;
		if (lane == 0)
			sh->count[warp] = __popc(ties);
		__syncthreads();
		rank = seen + __popc(ties & ((1u << lane) - 1));
		for (int i = 0; i < CHOOSE_WARPS; i++) {
			rank += i < warp ? sh->count[i] : 0;
			all += sh->count[i];
		}
		if (tie && rank >= keep)
			w[t] = 0;
		seen += all;
		__syncthreads();
	}
	__syncthreads();
}

/* ---- weights and draws ------------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ int top_k_of(const struct td_sampling *s, int vocab)
{
	return s->top_k > 0 && s->top_k < vocab ? s->top_k : 0;
}

/* The least weight that stays. */
static __device__ __forceinline__ float floor_of(const struct td_sampling *s)
{
	return s->min_p > 1 ? 1 : s->min_p;
}

/* Of an adjusted logit beside the best one, which is a number; as on the CPU nothing where float32 has no full precision left. */
static __device__ __forceinline__ float weight(float l, float best, float temperature)
{
	float x = (l - best) / temperature;

	return x < -87.0f ? 0 : expf(x);
}

/* The fewest whose mass reaches top_p of `total`. */
static __device__ __forceinline__ mass_t nucleus(const struct td_sampling *s, mass_t total)
{
	double limit = ceil((double)s->top_p * (double)total);

	return limit > 1 ? (mass_t)limit : 1;
}

/* A whole row, from its logits: adjusted, weighed and cut in `work` (vocab); returns the pool's mass. Temperature is above 0. */
static __device__ __noinline__ mass_t whole_row(struct choose_shared *sh, const struct td_sampling *s, const struct adjust &a, const float *logits, float *work,
				   int vocab, struct pool *pool)
{
	float min_p = floor_of(s);
	struct best top = {-INFINITY, INT32_MAX};
	int top_k = top_k_of(s, vocab);
	mass_t total = 0;

	__syncthreads();
	for (int i = threadIdx.x; i < vocab; i += CHOOSE) {
		struct best c = {adjusted(a, logits[i], i), i};

		work[i] = c.value;
		top = better(top, c);
	}
	top = best_of_block(top, sh->best);
	for (int i = threadIdx.x; i < vocab; i += CHOOSE) {
		float w = top.value == -INFINITY ? i == top.id : weight(work[i], top.value, s->temperature);

		w = w >= min_p ? w : 0;
		work[i] = w;
		total += units(w);
	}
	total = sum_of_block(sh, total);
	*pool = {work, NULL, vocab};
	if (top_k) {
		cut(sh, work, vocab, 0, top_k);
		total = mass(sh, work, vocab);
	}
	if (s->top_p < 1) {
		cut(sh, work, vocab, 1, nucleus(s, total));
		total = mass(sh, work, vocab);
	}
	return total;
}

static __device__ __forceinline__ int id_of(const struct pool &pool, int i)
{
	return pool.id ? pool.id[i] : i;
}

/* Where an id is in the pool, or -1. */
static __device__ __forceinline__ int place_of(const struct pool &pool, int id)
{
	int low = 0, high = pool.n;

	if (!pool.id)
		return id >= 0 && id < pool.n ? id : -1;
	while (low < high) {
		int mid = (low + high) / 2;

		if (pool.id[mid] < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low < pool.n && pool.id[low] == id ? low : -1;
}

/* Those of a list that have a weight, which are at most TD_CAND_MAX, in their order. */
static __device__ void gather_few(struct choose_shared *sh, struct pool *pool)
{
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, run = div_up(pool->n, CHOOSE_WARPS), from = warp * run, to = min(pool->n, from + run), n = 0,
	    before = 0, all = 0;

	for (int i = from; i < to; i += 32)
		n += __popc(__ballot_sync(~0u, i + lane < to && pool->w[i + lane] > 0));
	if (lane == 0)
		sh->count[warp] = n;
	__syncthreads();
	for (int i = 0; i < CHOOSE_WARPS; i++) {
		before += i < warp ? sh->count[i] : 0;
		all += sh->count[i];
	}
	for (int i = from; i < to; i += 32) {
		float w = i + lane < to ? pool->w[i + lane] : 0;
		unsigned some = __ballot_sync(~0u, w > 0);
		int at = before + __popc(some & ((1u << lane) - 1));

		if (w > 0 && at < TD_CAND_MAX) {
			sh->few[at] = w;
			sh->few_id[at] = pool->id[i + lane];
		}
		before += __popc(some);
	}
	__syncthreads();
	*pool = {sh->few, sh->few_id, min(all, (int)TD_CAND_MAX)};
}

/* cut by mass, for a pool of at most TD_CAND_MAX: a weight stays while those before it, in the order of the cut, don't reach the limit. */
static __device__ void cut_few(const struct pool &pool, mass_t limit)
{
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, drop[2] = {0, 0};

	for (int k = 0; k < 2; k++) {
		int i = warp + k * CHOOSE_WARPS;
		mass_t before = 0;

		if (i >= pool.n)
			break;
		for (int j = lane; j < pool.n; j += 32)
			before += pool.w[j] > pool.w[i] || (pool.w[j] == pool.w[i] && j < i) ? units(pool.w[j]) : 0;
		for (int d = 16; d; d >>= 1)
			before += __shfl_xor_sync(~0u, before, d);
		drop[k] = before >= limit;
	}
	__syncthreads();
	for (int k = 0; k < 2; k++)
		if (lane == 0 && drop[k])
			pool.w[warp + k * CHOOSE_WARPS] = 0;
	__syncthreads();
}

/* The id at which the running sum passes u * total; the last with weight when rounding leaves none. A warp has a run of neighbours. */
static __device__ __noinline__ int draw(struct choose_shared *sh, const float *w, int n, mass_t total, float u)
{
	mass_t target = (mass_t)((double)u * (double)total), sum = 0, before = 0;
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, run = div_up(n, CHOOSE_WARPS), from = warp * run, to = min(n, from + run), last = -1;

	for (int i = from + lane; i < to; i += 32) {
		sum += units(w[i]);
		last = w[i] > 0 ? i : last;
	}
	for (int d = 16; d; d >>= 1) {
		sum += __shfl_xor_sync(~0u, sum, d);
		last = max(last, __shfl_xor_sync(~0u, last, d));
	}
	__syncthreads();
	if (lane == 0) {
		sh->part[warp] = sum;
		sh->count[warp] = last;
	}
	if (threadIdx.x == 0)
		sh->found = -1;
	__syncthreads();
	for (int i = 0; i < warp; i++)
		before += sh->part[i];
	if (before <= target && before + sum > target) { /* this warp alone */
		for (int i0 = from; i0 < to; i0 += 32) {
			mass_t mine = i0 + lane < to ? units(w[i0 + lane]) : 0;
			unsigned past;

			for (int d = 1; d < 32; d <<= 1) {
				mass_t other = __shfl_up_sync(~0u, mine, d);

				mine += lane >= d ? other : 0;
			}
			past = __ballot_sync(~0u, before + mine > target);
			if (past) {
				if (lane == 0)
					sh->found = i0 + __ffs(past) - 1;
				break;
			}
			before += __shfl_sync(~0u, mine, 31);
		}
	}
	__syncthreads();
	last = sh->found;
	for (int i = 0; i < CHOOSE_WARPS && sh->found < 0; i++)
		last = max(last, sh->count[i]);
	__syncthreads();
	return max(last, 0);
}

#endif
