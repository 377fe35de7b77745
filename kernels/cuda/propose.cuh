/*
 * propose.cuh: the drafter's tokens from what the scan left, and the candidates and shares that accept will see (sample.cu).
 *
 * A row's penalties need the tokens proposed just before, so one block takes the rows of a sequence with penalties in turn, each of them whole.
 */
#ifndef TD_CUDA_PROPOSE_CUH
#define TD_CUDA_PROPOSE_CUH

#include "kernels/cuda/sample.cuh"

/* The pool's shares as the proposal's q, candidates in ascending id. */
static __device__ __noinline__ void list_candidates(struct choose_shared *sh, const struct sample_args &p, const struct pool &pool, double total,
						    struct td_draft *d, int at)
{
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, run = div_up(pool.n, CHOOSE_WARPS), from = warp * run, to = min(pool.n, from + run),
	    n = 0;

	for (int i = from + lane; i < to; i += 32)
		n += (float)(pool.w[i] / total) > 0;
	for (int k = 16; k; k >>= 1)
		n += __shfl_xor_sync(~0u, n, k);
	__syncthreads();
	if (lane == 0)
		sh->count[warp] = n;
	__syncthreads();
	n = 0;
	for (int i = 0; i < warp; i++)
		n += sh->count[i];
	for (int i0 = from; i0 < to; i0 += 32) {
		float share = i0 + lane < to ? (float)(pool.w[i0 + lane] / total) : 0;
		unsigned some = __ballot_sync(~0u, share > 0);
		int mine = n + __popc(some & ((1u << lane) - 1));

		if (share > 0 && mine < TD_CAND_MAX) {
			d->cand[at][mine] = sh->draft_id[mine] = id_at(p, id_of(pool, i0 + lane));
			d->q[at][mine] = sh->draft_q[mine] = share;
		}
		n += __popc(some);
	}
	if (threadIdx.x == CHOOSE - 1)
		sh->found = min(n, (int)TD_CAND_MAX);
	__syncthreads();
}

/* One sampled proposal. */
static __device__ __noinline__ void propose_row(struct choose_shared *sh, const struct sample_args &p, const struct td_sampling *set, const struct adjust &a, int row,
				   uint32_t position, struct td_draft *d, int at)
{
	struct pool pool;
	mass_t total = pool_of_row(sh, p, set, a, row, TD_CAND_MAX, &pool);

	if (pool.n > TD_CAND_MAX) {
		cut(sh, pool.w, pool.n, 0, TD_CAND_MAX);
		total = mass(sh, pool.w, pool.n);
	}
	list_candidates(sh, p, pool, (double)total / 17592186044416.0, d, at);
	if (threadIdx.x < 32) { /* from the very numbers that accept will see; two for each lane */
		int lane = threadIdx.x, n = sh->found, i = 2 * lane;
		double one = i < n ? sh->draft_q[i] : 0, two = one + (i + 1 < n ? sh->draft_q[i + 1] : 0), sum = two, target;
		unsigned past;

		for (int k = 1; k < 32; k <<= 1) {
			double other = __shfl_up_sync(~0u, sum, k);

			sum += lane >= k ? other : 0;
		}
		target = (double)td_uniform(set->seed, position, TD_PROPOSE) * __shfl_sync(~0u, sum, 31);
		past = __ballot_sync(~0u, sum > target);
		i = past ? __ffs(past) - 1 : 31;
		i = 2 * i + (__shfl_sync(~0u, sum - two + one, i) <= target);
		if (lane == 0) {
			d->n_cand[at] = n;
			d->token[at] = sh->draft_id[i < n ? i : n - 1];
		}
	}
	__syncthreads();
}

/* Row by row, each with the penalties of the tokens proposed before it. */
static __device__ __noinline__ void propose_in_turn(struct choose_shared *sh, const struct sample_args &p, const struct td_seq &s, const struct td_sampling *set,
				       int row0, struct td_draft *d)
{
	for (int r = 0; r < s.rows - 1; r++) {
		const float *logits = p.logits + (size_t)(row0 + r) * p.ld;
		struct best b = {-INFINITY, INT32_MAX};
		struct adjust a;

		__syncthreads(); /* the token proposed last is in d */
		adjust_init(&a, set, p.counts + (size_t)s.slot * p.wide, p.id, d->token, r, 0, p.vocab, &sh->adjust);
		if (!greedy(set)) {
			propose_row(sh, p, set, a, row0 + r, s.pos0 + r + 1, d, r);
			continue;
		}
		for (int i = threadIdx.x; i < p.vocab; i += CHOOSE)
			b = better(b, {adjusted(a, logits[i], i), i});
		b = best_of_block(b, sh->best);
		if (threadIdx.x == 0) {
			d->n_cand[r] = 0;
			d->token[r] = id_at(p, b.id);
		}
	}
}

/* grid (largest rows, sequences) */
static __global__ void __launch_bounds__(CHOOSE) propose_kernel(const __grid_constant__ struct sample_args p)
{
	extern __shared__ __align__(16) char propose_raw[];
	struct choose_shared *sh = (struct choose_shared *)propose_raw;
	int r = blockIdx.x, warp = threadIdx.x / 32, row0;
	const struct td_sampling *set;
	struct td_draft *d;
	struct td_seq s;
	struct adjust a;
	int top = 0;

	let_next_start();
	after_previous();
	s = p.seq[blockIdx.y];
	row0 = logit_row(p, blockIdx.y);
	set = &p.sampling[s.slot];
	d = &p.proposal[s.slot];
	if (r == 0 && warp < s.rows - 1) /* the settings are on their way meanwhile */
		top = best_of_row(p.best + (size_t)(row0 + warp) * p.pieces, p.pieces).id;
	if (r == 0 && threadIdx.x == 0)
		d->n = s.rows - 1;
	if (penalises(set)) {
		if (r == 0)
			propose_in_turn(sh, p, s, set, row0, d);
	} else if (greedy(set)) {
		if (r == 0 && warp < s.rows - 1 && (threadIdx.x & 31) == 0) {
			d->n_cand[warp] = 0;
			d->token[warp] = id_at(p, top);
		}
	} else if (r < s.rows - 1) {
		size_t at = (size_t)(row0 + r) * p.pieces;

		adjust_init(&a, set, NULL, p.id, NULL, 0, 0, p.vocab, &sh->adjust);
		row_init(sh, p.best + at, p.piece + at, p.pieces, set->temperature);
		propose_row(sh, p, set, a, row0 + r, s.pos0 + r + 1, d, r);
	}
}

#endif
