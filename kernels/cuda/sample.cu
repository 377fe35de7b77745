/*
 * sample.cu: what to propose and what to accept, without the host (dflash 2.3.4), in two kernels each.
 *
 *	scan	grid (pieces of the vocabulary, logit rows): each piece's best; of sampled rows the short list, too (shortlist.cuh)
 *	choose	grid (largest rows, sequences): a greedy sequence is one block's matter, a warp for each row. Otherwise each row has a block: with
 *		temperature the weights, cuts and draws of choose.cuh, on the short lists where they suffice. In accept the last of a sequence's blocks
 *		walks the rows up to the first that differs from its draft: verdict, anchor, counts
 *
 * In accept all rows are decided at once, each as if the drafts before it had been accepted: if they were not, the walk never comes to it. That makes
 * the penalties of row r a matter of counting drafts 0 .. r-1 on top. In propose a row's penalties need the tokens proposed just before, so one block
 * takes the rows of a sequence with penalties in turn.
 *
 * Nothing that the host decides here hangs on settings, drafts or counts: a captured call serves any of them.
 *
 * A proposal may be over some ids only (struct td_columns). All counting, cutting and drawing is by columns then, whose order is that of their ids; bias,
 * penalties and what is written speak of ids.
 *
 * What must never happen: a token id outside [0, vocab) committed, or one from device memory used as an index before it was compared.
 */
#include "kernels/cuda/shortlist.cuh"

/* What accept's choosing blocks leave for the walk. */
struct decision {
	int token, accepted;
	float logprob, top_logprob[TD_TOP_MAX];
	int top_id[TD_TOP_MAX];
};

struct sample_args {
	const struct td_seq *seq;
	int n_seq;
	const float *logits;
	const int32_t *id; /* propose: what the columns stand for, NULL: themselves. "Column" and "id" are one thing where that is so */
	int ld, vocab, wide, pieces; /* vocab: columns; wide: of a row of counts */
	int aligned; /* rows of logits begin at multiples of 16 bytes */
	int propose; /* 1: logit rows are those of rows 1.., numbered through */
	const struct td_sampling *sampling;
	uint16_t *counts;
	const struct td_draft *draft;
	struct td_draft *proposal;
	char *work; /* (logit rows, work_row bytes): the lists of a row's pieces; then, where they don't do, its weights */
	size_t work_row;
	struct best *best; /* (logit rows, pieces) */
	struct piece *piece; /* (logit rows, pieces) */
	struct decision *decision; /* (logit rows) */
	unsigned *counter; /* (sequences) */
	int32_t *anchor;
	struct td_verdict *verdict;
};

/* The logit row of row 0 of sequence i. */
static __device__ int logit_row(const struct sample_args &p, int i)
{
	int at = 0;

	if (!p.propose)
		return p.seq[i].row0;
	for (int k = 0; k < i; k++)
		at += p.seq[k].rows - 1;
	return at;
}

/* Whose a logit row is: the sequence, or -1, told to each lane of the warp; and in *at which of its rows. */
static __device__ __forceinline__ int owner(const struct sample_args &p, int row, int *at)
{
	int lane = threadIdx.x & 31, before = 0;

	for (int i0 = 0; i0 < p.n_seq; i0 += 32) {
		int i = i0 + lane, rows = 0, from = 0;
		unsigned here;

		if (i < p.n_seq) {
			rows = p.seq[i].rows - p.propose;
			from = p.seq[i].row0;
		}
		if (p.propose) {
			from = rows;
			for (int d = 1; d < 32; d <<= 1) {
				int other = __shfl_up_sync(~0u, from, d);

				from += lane >= d ? other : 0;
			}
			from += before - rows;
			before = __shfl_sync(~0u, from + rows, 31);
		}
		here = __ballot_sync(~0u, row >= from && row < from + rows);
		if (here) {
			*at = row - __shfl_sync(~0u, from, __ffs(here) - 1);
			return i0 + __ffs(here) - 1;
		}
	}
	return -1;
}

static __device__ __forceinline__ int id_at(const struct sample_args &p, int column)
{
	return p.id ? p.id[column] : column;
}

static __device__ __forceinline__ int greedy(const struct td_sampling *s)
{
	return !(s->temperature > 0);
}

static __device__ __forceinline__ struct entry *lists_of(const struct sample_args &p, int row)
{
	return (struct entry *)(p.work + row * p.work_row);
}

/* ---- scan -------------------------------------------------------------------------------------------------------------------------- */

/* A thread's values of the piece at `from`, without waiting for them. */
static __device__ __forceinline__ void load_values(float4 v[RUNS], const float *row, int from, int end, int aligned)
{
#pragma unroll
	for (int k = 0; k < RUNS; k++) {
		int at = from + place(4 * k);

		v[k] = make_float4(0, 0, 0, 0);
		if (aligned) { /* up to the end of a row, which may lie behind the last id */
			if (at < end)
				v[k] = __ldcg((const float4 *)(row + at));
		} else {
			v[k].x = at < end ? row[at] : 0;
			v[k].y = at + 1 < end ? row[at + 1] : 0;
			v[k].z = at + 2 < end ? row[at + 2] : 0;
			v[k].w = at + 3 < end ? row[at + 3] : 0;
		}
	}
}

/* Apart from the kernel, so that rows that need it not have registers for more blocks. */
static __device__ __noinline__ float adjusted_apart(const struct adjust &a, float logit, int id)
{
	return adjusted(a, logit, id);
}
static __device__ __noinline__ void leave_list(struct scan_shared *sh, const struct td_sampling *set, int vocab, const uint32_t own[OWN], uint32_t most,
					       float best, int from, struct entry *list, struct piece *piece)
{
	int top_k = top_k_of(set, vocab), n;
	uint32_t key[OWN], least;
	mass_t mass;

#pragma unroll
	for (int k = 0; k < OWN; k++)
		key[k] = own[k];
	least = threshold_of_piece(sh, most, top_k && top_k < SHORT ? top_k : SHORT);
	n = list_piece(sh, key, least, from, list);
	mass = top_k ? 0 : mass_of_piece(sh, key, best, set->temperature);
	if (threadIdx.x == 0)
		*piece = {least <= LEAST_KEY ? -INFINITY : value_of(least), n, mass};
}

/* grid (pieces, logit rows) */
static __global__ void __launch_bounds__(SCAN, 5) scan_kernel(const __grid_constant__ struct sample_args p)
{
	__shared__ struct scan_shared sh;
	int row = blockIdx.y, from = blockIdx.x * TD_SCRATCH_PIECE, end = min(p.vocab, from + TD_SCRATCH_PIECE), r, i;
	size_t at = (size_t)row * p.pieces + blockIdx.x;
	const struct td_sampling *set;
	float4 v[RUNS];
	uint32_t key[OWN], most, copy[OWN];
	struct adjust a;
	struct best best;

	let_next_start();
	after_previous();
	load_values(v, p.logits + (size_t)row * p.ld, from, end, p.aligned);
	i = owner(p, row, &r);
	if (i < 0)
		return;
	set = &p.sampling[p.seq[i].slot];
	if (p.propose && penalises(set))
		return;
	adjust_init(&a, set, p.counts + (size_t)p.seq[i].slot * p.wide, p.id, p.propose ? NULL : p.draft[p.seq[i].slot].token, p.propose ? 0 : r, from, end,
		    &sh.adjust);
	if (a.n_bias || a.penalties) {
#pragma unroll
		for (int k = 0; k < OWN; k++) {
			float4 &four = v[k / 4];
			float &x = k % 4 == 0 ? four.x : k % 4 == 1 ? four.y : k % 4 == 2 ? four.z : four.w;

			if (from + place(k) < end)
				x = adjusted_apart(a, x, from + place(k));
		}
	}
#pragma unroll
	for (int k = 0; k < OWN; k++) {
		const float4 &four = v[k / 4];

		key[k] = from + place(k) < end ? key_of(sane(k % 4 == 0 ? four.x : k % 4 == 1 ? four.y : k % 4 == 2 ? four.z : four.w)) : 0;
	}
	best = best_of_piece(&sh, key, from, &most);
	if (threadIdx.x == 0)
		p.best[at] = best;
	if (greedy(set))
		return;
#pragma unroll
	for (int k = 0; k < OWN; k++)
		copy[k] = key[k];
	leave_list(&sh, set, p.vocab, copy, most, best.value, from, lists_of(p, row) + (size_t)blockIdx.x * PIECE_LIST, p.piece + at);
}

/* ---- choose: common to both -------------------------------------------------------------------------------------------------------- */

/* The pool of a sampled row. row_init came before. */
static __device__ mass_t pool_of_row(struct choose_shared *sh, const struct sample_args &p, const struct td_sampling *set, const struct adjust &a, int row,
				     int want, struct pool *pool)
{
	mass_t total = 0;

	if (!(p.propose && a.penalties) && sh->top.value != -INFINITY)
		total = short_row(sh, set, lists_of(p, row), p.vocab, want, pool);
	if (!total)
		total = whole_row(sh, set, a, p.logits + (size_t)row * p.ld, (float *)lists_of(p, row), p.vocab, pool);
	return total;
}

/* ---- propose ----------------------------------------------------------------------------------------------------------------------- */

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

/* ---- mask -------------------------------------------------------------------------------------------------------------------------- */

/* grid (pieces of the vocabulary, lines). The row is compared before it is used: lines come from the host, but an index is an index. */
static __global__ void __launch_bounds__(SCAN) mask_kernel(float *logits, int ld, int rows, int cols, const uint32_t *line, int words)
{
	const uint32_t *bits = line + (size_t)blockIdx.y * (words + 1);
	int end = min(cols, (int)(blockIdx.x + 1) * TD_SCRATCH_PIECE);
	uint32_t row;

	let_next_start();
	after_previous();
	row = bits[words];
	if (row >= (uint32_t)rows)
		return;
	for (int i = blockIdx.x * TD_SCRATCH_PIECE + threadIdx.x; i < end; i += SCAN)
		if (!(bits[i / 32] >> (i & 31) & 1))
			logits[(size_t)row * ld + i] = -INFINITY;
}

/* ---- host -------------------------------------------------------------------------------------------------------------------------- */

/* Checks, scratch memory and the scan; returns 0 when there is nothing more to run. */
static int scan(struct td_dev *dev, struct sample_args *p, const struct td_batch *b, struct td_tensor logits, const struct td_columns *of, int vocab,
		const struct td_sampling *sampling, const char *what)
{
	size_t work, best, piece;
	char *mem;

	if (dev->error.code || b->n_seq == 0 || logits.rows == 0 || td__cuda_type(dev, logits, TD_F32, what))
		return 0;
	vocab = of ? of->n : vocab < logits.cols ? vocab : logits.cols;
	if (vocab > logits.cols) {
		td__cuda_fail(dev, TD_E_INTERNAL, "%s: %d columns of logits for %d ids", what, logits.cols, vocab);
		return 0;
	}
	for (int i = 0; i < b->n_seq; i++)
		if (b->seq[i].rows < 1 || b->seq[i].rows > TD_BLOCK_MAX || vocab < 1 || vocab > 1 << 18) {
			td__cuda_fail(dev, TD_E_INTERNAL, "%s: a block of %d rows over %d ids", what, b->seq[i].rows, vocab);
			return 0;
		}
	p->seq = b->dev;
	p->n_seq = b->n_seq;
	p->logits = (const float *)logits.data;
	p->ld = logits.ld;
	p->vocab = vocab;
	p->id = of ? of->id : NULL;
	p->wide = of ? of->vocab : logits.cols;
	p->pieces = div_up(vocab, TD_SCRATCH_PIECE);
	p->aligned = logits.ld % 4 == 0 && (uintptr_t)logits.data % 16 == 0;
	p->sampling = sampling;
	p->counter = dev->counters;
	p->work_row = (size_t)max(vocab * 4, p->pieces * TD_SCRATCH_LIST) + 15 & ~(size_t)15;
	work = align256(p->work_row * logits.rows);
	best = align256((size_t)logits.rows * p->pieces * sizeof(struct best));
	piece = align256((size_t)logits.rows * p->pieces * sizeof(struct piece));
	mem = (char *)td__cuda_scratch(dev, work + best + piece + (size_t)logits.rows * sizeof(struct decision));
	if (!mem)
		return 0;
	p->work = mem;
	p->best = (struct best *)(mem + work);
	p->piece = (struct piece *)(mem + work + best);
	p->decision = (struct decision *)(mem + work + best + piece);
	td__cuda_launch(dev, what, scan_kernel, dim3(p->pieces, logits.rows), SCAN, 0, *p);
	return 1;
}

void td__cuda_propose(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, const struct td_columns *of, int vocab_real,
		      const struct td_sampling *sampling, const uint16_t *counts, struct td_draft *draft)
{
	struct sample_args p = {};

	p.propose = 1;
	p.counts = (uint16_t *)counts;
	p.proposal = draft;
	if (!scan(dev, &p, b, logits, of, vocab_real, sampling, "propose"))
		return;
	td__cuda_shared(dev, propose_kernel, sizeof(struct choose_shared));
	td__cuda_launch(dev, "propose", propose_kernel, dim3(max(b->max_rows - 1, 1), b->n_seq), CHOOSE, sizeof(struct choose_shared), p);
}

void td__cuda_accept(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, int vocab_real, const struct td_sampling *sampling,
		     const struct td_draft *draft, uint16_t *counts, int32_t *anchor, struct td_verdict *verdict)
{
	struct sample_args p = {};

	p.counts = counts;
	p.draft = draft;
	p.anchor = anchor;
	p.verdict = verdict;
	if (!scan(dev, &p, b, logits, NULL, vocab_real, sampling, "accept"))
		return;
	td__cuda_shared(dev, accept_kernel, sizeof(struct choose_shared));
	td__cuda_launch(dev, "accept", accept_kernel, dim3(b->max_rows, b->n_seq), CHOOSE, sizeof(struct choose_shared), p);
}

void td__cuda_mask(struct td_dev *dev, struct td_tensor logits, const uint32_t *line, int n)
{
	if (dev->error.code || n < 1 || logits.rows == 0 || td__cuda_type(dev, logits, TD_F32, "mask"))
		return;
	td__cuda_launch(dev, "mask", mask_kernel, dim3(div_up(logits.cols, TD_SCRATCH_PIECE), n), SCAN, 0, (float *)logits.data, logits.ld, logits.rows,
			logits.cols, line, TD_MASK_WORDS(logits.cols));
}
