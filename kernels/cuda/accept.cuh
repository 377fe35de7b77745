/*
 * accept.cuh: which drafts count and the token after them, from what the scan left (sample.cu).
 *
 * All rows are decided at once, each as if the drafts before it had been accepted: if they were not, the walk never comes to it. That makes the penalties
 * of row r a matter of counting drafts 0 .. r-1 on top. The last of a sequence's blocks walks the rows up to the first that differs from its draft:
 * verdict, anchor, counts.
 */
#ifndef TD_CUDA_ACCEPT_CUH
#define TD_CUDA_ACCEPT_CUH

#include "kernels/cuda/sample.cuh"

/* ---- accept: from the short list or the whole row ----------------------------------------------------------------------------------- */

/* The draft of a row: its candidates, or the token alone as a point mass. q of a token that isn't in its own list is 0: it is never accepted. */
static __device__ void load_draft(struct choose_shared *sh, const struct td_draft *d, int at)
{
	int n = d->n_cand[at], token = d->token[at], c = threadIdx.x;

	if (c == 0) {
		sh->listed = n > 0;
		sh->n_draft = n > 0 ? min(n, (int)TD_CAND_MAX) : 1;
		sh->q = n > 0 ? 0 : 1;
		if (n <= 0)
			sh->draft_id[0] = token;
	}
	__syncthreads();
	if (c < min(n, (int)TD_CAND_MAX)) {
		int id = d->cand[at][c];
		float q = d->q[at][c];

		sh->draft_id[c] = id;
		sh->draft_q[c] = q;
		if (id == token)
			sh->q = q;
	}
	__syncthreads();
}

/* Takes q out of the weights, or leaves them when nothing would be left; returns the new mass. */
static __device__ mass_t residual(struct choose_shared *sh, const struct pool &pool, mass_t total)
{
	int c = threadIdx.x, i = c < sh->n_draft ? place_of(pool, sh->draft_id[c]) : -1;
	mass_t left;

	__syncthreads();
	if (i >= 0) {
		sh->saved[c] = pool.w[i];
		pool.w[i] = sh->listed ? (float)fmax(sh->saved[c] - sh->draft_q[c] * ((double)total / 17592186044416.0), 0.0) : 0;
	}
	__syncthreads();
	left = mass(sh, pool.w, pool.n);
	if (left > 0)
		return left;
	if (i >= 0)
		pool.w[i] = sh->saved[c];
	__syncthreads();
	return total;
}

/* Decides a sampled row: the token, and in *accepted whether it is the one drafted (< 0: there is none; else load_draft came before). */
static __device__ int decide_pool(struct choose_shared *sh, const struct td_sampling *set, const struct pool &pool, mass_t total, uint32_t position,
				  int drafted, int *accepted)
{
	if (drafted >= 0) {
		int i = place_of(pool, drafted);
		double share = (i >= 0 ? pool.w[i] : 0) / ((double)total / 17592186044416.0);

		*accepted = sh->q > 0 && (double)td_uniform(set->seed, position, TD_ACCEPT) * sh->q < share;
		if (*accepted)
			return drafted;
		total = residual(sh, pool, total);
	}
	return id_of(pool, draw(sh, pool.w, pool.n, total, td_uniform(set->seed, position, TD_DRAW)));
}

/* ---- accept: by pieces, where nothing is cut away ------------------------------------------------------------------------------------ */

/* The mass of an id's weight beside the row's best. */
static __device__ mass_t mass_of(const struct choose_shared *sh, const struct adjust &a, const float *logits, float temperature, int id)
{
	int piece = id / TD_SCRATCH_PIECE;
	float best = sh->piece_best[piece].value;

	return best == -INFINITY ? 0 : (mass_t)((double)units(weight(adjusted(a, logits[id], id), best, temperature)) * sh->scale[piece]);
}

/* Takes q out of the pieces' masses, noting what the ids' own became, or leaves them when nothing would be left; returns how many are noted. */
static __device__ int residual_by_pieces(struct choose_shared *sh, const struct adjust &a, const float *logits, int vocab, float temperature)
{
	int c = threadIdx.x, n = sh->n_draft, id = c < n ? sh->draft_id[c] : -1;
	mass_t was = 0, now = 0, left = 0;

	if (id >= 0 && id < vocab) {
		was = mass_of(sh, a, logits, temperature, id);
		now = sh->listed ? (mass_t)fmax((double)was - (double)sh->draft_q[c] * (double)sh->total, 0.0) : 0;
	}
	__syncthreads();
	if (c < n)
		sh->draft_mass[c] = now;
	if (was > now)
		atomicAdd((mass_t *)&sh->mass[id / TD_SCRATCH_PIECE], now - was);
	__syncthreads();
	for (int i = threadIdx.x & 31; i < PIECES; i += 32)
		left += sh->mass[i] > 0 ? (mass_t)sh->mass[i] : 0;
	for (int k = 16; k; k >>= 1)
		left += __shfl_xor_sync(~0u, left, k);
	__syncthreads();
	if (left == 0) {
		if (was > now)
			atomicAdd((mass_t *)&sh->mass[id / TD_SCRATCH_PIECE], was - now);
		n = 0;
	} else if (threadIdx.x == 0) {
		sh->total = left;
	}
	__syncthreads();
	return n;
}

/* An id by its mass: first its piece, then in there. `n_cut` ids of the draft have the mass that residual_by_pieces noted. */
static __device__ int draw_by_pieces(struct choose_shared *sh, const struct adjust &a, const float *logits, int vocab, float temperature, int n_cut, float u)
{
	enum { EACH = TD_SCRATCH_PIECE / CHOOSE };
	mass_t target = (mass_t)((double)u * (double)sh->total), own[EACH], mine = 0, before = 0, all = 0;
	int piece = 0, lane = threadIdx.x & 31, warp = threadIdx.x / 32, from;

	for (int i = 0; i < PIECES; i++) {
		mass_t one = sh->mass[i] > 0 ? (mass_t)sh->mass[i] : 0;

		if (one)
			piece = i; /* the last one with mass, when rounding leaves none */
		if (target < one)
			break;
		target -= one;
	}
	from = piece * TD_SCRATCH_PIECE + threadIdx.x * EACH;
	for (int i = 0; i < EACH; i++) {
		own[i] = from + i < vocab ? mass_of(sh, a, logits, temperature, from + i) : 0;
		for (int c = 0; c < n_cut; c++)
			own[i] = sh->draft_id[c] == from + i ? sh->draft_mass[c] : own[i];
		mine += own[i];
	}
	/* The piece's mass was rounded as a whole: the place in it is a share. */
	{
		mass_t here = (mass_t)sh->mass[piece], scan = mine;

		for (int d = 1; d < 32; d <<= 1) {
			mass_t other = __shfl_up_sync(~0u, scan, d);

			scan += lane >= d ? other : 0;
		}
		__syncthreads();
		if (lane == 31)
			sh->part[warp] = scan;
		if (threadIdx.x == 0)
			sh->found = sh->piece_best[piece].id;
		__syncthreads();
		for (int i = 0; i < CHOOSE_WARPS; i++) {
			before += i < warp ? sh->part[i] : 0;
			all += sh->part[i];
		}
		before += scan - mine;
		target = (mass_t)((double)(target < here ? target : here) / (double)here * (double)all);
		target = all && target >= all ? all - 1 : target;
	}
	if (before <= target && target < before + mine)
		for (int i = 0; i < EACH; i++) {
			if (target < before + own[i]) {
				sh->found = from + i;
				break;
			}
			before += own[i];
		}
	__syncthreads();
	return sh->found;
}

/* As decide_pool, for settings that cut nothing away. */
static __device__ int decide_by_pieces(struct choose_shared *sh, const struct sample_args &p, const struct td_sampling *set, const struct adjust &a, int row,
				       uint32_t position, int drafted, int *accepted)
{
	const float *logits = p.logits + (size_t)row * p.ld;
	int n_cut = 0;

	if (drafted >= 0) {
		double share = drafted < p.vocab ? (double)mass_of(sh, a, logits, set->temperature, drafted) / (double)sh->total : 0;

		*accepted = sh->q > 0 && (double)td_uniform(set->seed, position, TD_ACCEPT) * sh->q < share;
		if (*accepted)
			return drafted;
		n_cut = residual_by_pieces(sh, a, logits, p.vocab, set->temperature);
	}
	return draw_by_pieces(sh, a, logits, p.vocab, set->temperature, n_cut, td_uniform(set->seed, position, TD_DRAW));
}

/* ---- accept ------------------------------------------------------------------------------------------------------------------------ */

/* Log-probabilities of the raw logits: the token's, and the n best one after the other. What is not finite is told as -9999. */
static __device__ __noinline__ void report(struct choose_shared *sh, const float *logits, int vocab, int n, int token, struct decision *out)
{
	struct best b = {-INFINITY, INT32_MAX}, last = {INFINITY, -1};
	double sum = 0, all = 0, lp;
	float max;

	for (int i = threadIdx.x; i < vocab; i += CHOOSE)
		b = better(b, {sane(logits[i]), i});
	max = best_of_block(b, sh->best).value;
	for (int i = threadIdx.x; i < vocab; i += CHOOSE)
		sum += (double)expf(sane(logits[i]) - max);
	for (int d = 16; d; d >>= 1)
		sum += __shfl_xor_sync(~0u, sum, d);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		sh->part_d[threadIdx.x / 32] = sum;
	__syncthreads();
	for (int i = 0; i < CHOOSE_WARPS; i++)
		all += sh->part_d[i];
	lp = (double)sane(logits[token]) - max - log(all);
	if (threadIdx.x == 0)
		out->logprob = lp > -9999 ? (float)lp : -9999.0f;
	for (int k = 0; k < n; k++) {
		b = {-INFINITY, INT32_MAX};
		for (int i = threadIdx.x; i < vocab; i += CHOOSE) {
			struct best c = {sane(logits[i]), i};

			if (c.value < last.value || (c.value == last.value && c.id > last.id))
				b = better(b, c);
		}
		last = best_of_block(b, sh->best);
		lp = (double)last.value - max - log(all);
		if (threadIdx.x == 0) {
			out->top_id[k] = last.id;
			out->top_logprob[k] = lp > -9999 ? (float)lp : -9999.0f;
		}
	}
}

static __device__ __forceinline__ int tops(const struct td_sampling *s, int vocab)
{
	int n = s->logprobs < 0 ? 0 : s->logprobs > TD_TOP_MAX ? TD_TOP_MAX : s->logprobs;

	return min(n, vocab);
}

/* One row, as if those before it had been accepted. */
static __device__ __noinline__ void decide_row(struct choose_shared *sh, const struct sample_args &p, const struct td_seq &s, const struct td_sampling *set, int r)
{
	const struct td_draft *d = &p.draft[s.slot];
	int row = s.row0 + r, accepted = 0, token, drafted = -1;
	size_t at = (size_t)row * p.pieces;
	uint32_t position = s.pos0 + r + 1;

	if (r + 1 < s.rows)
		drafted = d->token[r] < 0 ? INT32_MAX : d->token[r]; /* no id: never accepted */
	if (greedy(set)) {
		token = best_of_row(p.best + at, p.pieces).id;
		accepted = token == drafted;
	} else {
		struct adjust a;

		adjust_init(&a, set, p.counts + (size_t)s.slot * p.wide, NULL, d->token, r, 0, p.vocab, &sh->adjust);
		if (r + 1 < s.rows)
			load_draft(sh, d, r);
		row_init(sh, p.best + at, p.piece + at, p.pieces, set->temperature);
		if (!top_k_of(set, p.vocab) && !(set->top_p < 1) && !(set->min_p > 0) && sh->top.value != -INFINITY) {
			token = decide_by_pieces(sh, p, set, a, row, position, drafted, &accepted);
		} else {
			struct pool pool;
			mass_t total = pool_of_row(sh, p, set, a, row, 0, &pool);

			token = decide_pool(sh, set, pool, total, position, drafted, &accepted);
		}
	}
	if (threadIdx.x == 0) {
		p.decision[row].token = token;
		p.decision[row].accepted = accepted;
		p.decision[row].logprob = 0;
	}
	if (set->logprobs >= 0)
		report(sh, p.logits + (size_t)row * p.ld, p.vocab, tops(set, p.vocab), token, &p.decision[row]);
}

/* One warp: rows up to the first that was not accepted, lane r knowing row r. Counts are kept for those who have penalties. */
static __device__ __forceinline__ int walk(const struct sample_args &p, const struct td_seq &s, const struct td_sampling *set, int *tokens, int token,
					   int accepted, struct td_verdict *v)
{
	int lane = threadIdx.x & 31, n = __ffs(__ballot_sync(~0u, lane >= s.rows - 1 || !accepted));

	if (lane < n)
		v->token[lane] = token;
	if (lane == n - 1)
		p.anchor[s.slot] = token;
	if (lane == 0) {
		v->n = n;
		v->n_top = tops(set, p.vocab);
	}
	if (!penalises(set))
		return n;
	if (lane < n)
		tokens[lane] = token;
	__syncwarp();
	if (lane < n) { /* the first of equal ones counts for all */
		uint16_t *count = p.counts + (size_t)s.slot * p.wide + token;
		int times = 0, first = lane;

		for (int i = 0; i < n; i++) {
			times += tokens[i] == token;
			first = tokens[i] == token && i < first ? i : first;
		}
		if (first == lane)
			*count = (uint16_t)((*count & 0x8000) | min((*count & 0x7fff) + times, 0x7fff));
	}
	return n;
}

/* A sequence that is greedy and asks for no log-probabilities, by one block: a warp for each row. */
static __device__ __forceinline__ void accept_greedy(struct choose_shared *sh, const struct sample_args &p, const struct td_seq &s,
						     const struct td_sampling *set, int top, int drafted, struct td_verdict *v)
{
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, there = lane < s.rows, n;

	if (warp < s.rows && lane == 0) {
		sh->token[warp] = top;
		sh->same[warp] = top == drafted;
	}
	__syncthreads();
	if (warp)
		return;
	n = walk(p, s, set, sh->token, there ? sh->token[lane] : -1, there && sh->same[lane], v);
	if (lane < n)
		v->logprob[lane] = 0;
}

/* The sequence's verdict from its rows' decisions. */
static __device__ void settle(struct choose_shared *sh, const struct sample_args &p, const struct td_seq &s, const struct td_sampling *set,
			      struct td_verdict *v)
{
	const struct decision *d = p.decision + s.row0;
	int lane = threadIdx.x, there = lane < s.rows, n, n_top = tops(set, p.vocab);

	if (threadIdx.x >= 32)
		return;
	n = walk(p, s, set, sh->token, there ? d[lane].token : -1, there && d[lane].accepted, v);
	if (lane < n)
		v->logprob[lane] = d[lane].logprob;
	for (int i = lane; i < n * n_top; i += 32) {
		v->top_id[i / n_top][i % n_top] = d[i / n_top].top_id[i % n_top];
		v->top_logprob[i / n_top][i % n_top] = d[i / n_top].top_logprob[i % n_top];
	}
}

/* grid (largest rows, sequences) */
static __global__ void __launch_bounds__(CHOOSE) accept_kernel(const __grid_constant__ struct sample_args p)
{
	extern __shared__ __align__(16) char accept_raw[];
	struct choose_shared *sh = (struct choose_shared *)accept_raw;
	struct td_verdict *v = &p.verdict[blockIdx.y];
	const struct td_sampling *set;
	struct td_seq s;
	int r = blockIdx.x, warp = threadIdx.x / 32, top = 0, drafted = -1;

	let_next_start();
	after_previous();
	s = p.seq[blockIdx.y];
	set = &p.sampling[s.slot];
	if (r == 0 && warp < s.rows) { /* the settings are on their way meanwhile */
		drafted = warp + 1 < s.rows ? p.draft[s.slot].token[warp] : -1;
		top = best_of_row(p.best + (size_t)(s.row0 + warp) * p.pieces, p.pieces).id;
	}
	if (greedy(set) && set->logprobs < 0) {
		if (r == 0)
			accept_greedy(sh, p, s, set, top, drafted, v);
		return;
	}
	if (r >= s.rows)
		return;
	decide_row(sh, p, s, set, r);
	if (last_to_arrive(p.counter + blockIdx.y, s.rows))
		settle(sh, p, s, set, v);
}

#endif
