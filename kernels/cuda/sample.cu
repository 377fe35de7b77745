/*
 * sample.cu: what to propose and what to accept, without the host (dflash 2.3.4).
 *
 *	scan	grid (pieces of the vocabulary, rows): adjusts the logits, finds each piece's best; writes them out only where a row is sampled
 *	choose	one block per row: the best of all pieces; with temperature the weights, cuts and draws of choose.cuh
 *	settle	accept only, one block per sequence: walks the rows up to the first that differs from its draft; verdict, anchor, counts
 *
 * In accept all rows are decided at once, each as if the drafts before it had been accepted: if they were not, settle never looks at it. That makes
 * the penalties of row r a matter of counting drafts 0 .. r-1 on top. In propose a row's penalties need the tokens proposed just before, so a
 * sequence with penalties is left to a kernel that goes row by row in one block.
 *
 * What must never happen: a token id outside [0, vocab) committed, or one from device memory used as an index before it was compared.
 */
#include "kernels/cuda/choose.cuh"
#include "kernels/pack.h"

enum { PIECE = TD_SCRATCH_PIECE, SCAN = 256 };

/* What accept's choosing blocks leave for settle. */
struct decision {
	int token, accepted;
	float logprob, top_logprob[TD_TOP_MAX];
	int top_id[TD_TOP_MAX];
};

struct sample_args {
	const struct td_seq *seq;
	const float *logits;
	int ld, vocab, wide, pieces; /* wide: columns of a row of counts */
	int propose; /* 1: logit rows are those of rows 1.., numbered through */
	const struct td_sampling *sampling;
	uint16_t *counts;
	const struct td_draft *draft;
	struct td_draft *proposal;
	float *work; /* (logit rows, vocab) */
	struct best *best; /* (logit rows, pieces) */
	struct decision *decision; /* (logit rows) */
	int32_t *anchor;
	struct td_verdict *verdict;
};

/* The logit row of row r (from 0) of sequence i. */
static __device__ int logit_row(const struct sample_args &p, int i, int r)
{
	int at = r;

	if (!p.propose)
		return p.seq[i].row0 + r;
	for (int k = 0; k < i; k++)
		at += p.seq[k].rows - 1;
	return at;
}

static __device__ __forceinline__ int decided_rows(const struct sample_args &p, const struct td_seq &s)
{
	return s.rows - p.propose;
}

/* grid (pieces, largest rows, sequences) */
static __global__ void __launch_bounds__(SCAN) scan_kernel(const struct sample_args p)
{
	__shared__ int bias_id[TD_BIAS_MAX], extra[TD_DRAFT_MAX];
	__shared__ float bias[TD_BIAS_MAX];
	__shared__ struct best part[SCAN / 32];
	struct td_seq s = p.seq[blockIdx.z];
	const struct td_sampling *set = &p.sampling[s.slot];
	int r = blockIdx.y, row, end = min(p.vocab, (int)(blockIdx.x + 1) * PIECE);
	struct best b = {-INFINITY, INT32_MAX};
	struct adjust a;
	const float *logits;

	if (r >= decided_rows(p, s) || (p.propose && penalises(set)))
		return;
	row = logit_row(p, blockIdx.z, r);
	logits = p.logits + (size_t)row * p.ld;
	adjust_init(&a, set, p.counts + (size_t)s.slot * p.wide, p.propose ? NULL : p.draft[s.slot].token, p.propose ? 0 : r, p.vocab, bias_id, bias,
		    extra);
	for (int i = blockIdx.x * PIECE + threadIdx.x; i < end; i += SCAN) {
		struct best c = {adjusted(a, logits[i], i), i};

		b = better(b, c);
		if (set->temperature > 0)
			p.work[(size_t)row * p.vocab + i] = c.value;
	}
	b = best_of_block(b, part);
	if (threadIdx.x == 0)
		p.best[(size_t)row * p.pieces + blockIdx.x] = b;
}

/* The best of a row; with nothing finite it is id 0, the lowest. */
static __device__ struct best best_of_row(const struct sample_args &p, struct choose_shared *sh, int row)
{
	struct best b = {-INFINITY, INT32_MAX};

	for (int i = threadIdx.x; i < p.pieces; i += CHOOSE)
		b = better(b, p.best[(size_t)row * p.pieces + i]);
	return best_of_block(b, sh->best);
}

/* ---- propose ----------------------------------------------------------------------------------------------------------------------- */

/* The pool's shares as the proposal's q, candidates in ascending id. */
static __device__ void list_candidates(struct choose_shared *sh, const struct pool &pool, double total, struct td_draft *d, int at)
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
			d->cand[at][mine] = id_of(pool, i0 + lane);
			d->q[at][mine] = share;
		}
		n += __popc(some);
	}
	if (threadIdx.x == CHOOSE - 1)
		sh->found = min(n, (int)TD_CAND_MAX);
	__syncthreads();
}

/* One proposal from the adjusted logits l, whose best is known. */
static __device__ void propose_row(struct choose_shared *sh, const struct td_sampling *set, float *l, int vocab, uint32_t position, struct best top,
				   struct td_draft *d, int at)
{
	struct pool pool;
	mass_t total;

	if (!(set->temperature > 0)) {
		if (threadIdx.x == 0) {
			d->n_cand[at] = 0;
			d->token[at] = top.id;
		}
		return;
	}
	total = weights(sh, set, l, vocab, top, TD_CAND_MAX, &pool);
	if (vocab > TD_CAND_MAX) {
		cut(sh, pool.w, pool.n, 0, TD_CAND_MAX);
		total = mass(sh, pool.w, pool.n);
	}
	list_candidates(sh, pool, (double)total / 17592186044416.0, d, at);
	if (threadIdx.x == 0) { /* from the very numbers that accept will see */
		double sum = 0, left;
		int last = 0, n = sh->found;

		for (int i = 0; i < n; i++)
			sum += d->q[at][i];
		left = (double)td_uniform(set->seed, position, TD_PROPOSE) * sum;
		for (int i = 0; i < n; i++) {
			last = i;
			left -= d->q[at][i];
			if (left < 0)
				break;
		}
		d->n_cand[at] = n;
		d->token[at] = d->cand[at][last];
	}
	__syncthreads();
}

/* grid (largest rows, sequences) */
static __global__ void __launch_bounds__(CHOOSE) propose_kernel(const struct sample_args p)
{
	__shared__ struct choose_shared sh;
	struct td_seq s = p.seq[blockIdx.y];
	const struct td_sampling *set = &p.sampling[s.slot];
	struct td_draft *d = &p.proposal[s.slot];
	int r = blockIdx.x, row;

	if (r == 0 && threadIdx.x == 0)
		d->n = s.rows - 1;
	if (r >= decided_rows(p, s) || penalises(set))
		return;
	row = logit_row(p, blockIdx.y, r);
	propose_row(&sh, set, p.work + (size_t)row * p.vocab, p.vocab, s.pos0 + r + 1, best_of_row(p, &sh, row), d, r);
}

/* Row by row, for sequences with penalties. grid (sequences) */
static __global__ void __launch_bounds__(CHOOSE) propose_in_turn_kernel(const struct sample_args p)
{
	__shared__ struct choose_shared sh;
	struct td_seq s = p.seq[blockIdx.x];
	const struct td_sampling *set = &p.sampling[s.slot];
	struct td_draft *d = &p.proposal[s.slot];
	struct adjust a;

	if (!penalises(set))
		return;
	for (int r = 0; r < s.rows - 1; r++) {
		int row = logit_row(p, blockIdx.x, r);
		float *l = p.work + (size_t)row * p.vocab;
		struct best b = {-INFINITY, INT32_MAX};

		__syncthreads(); /* the token proposed last is in d */
		adjust_init(&a, set, p.counts + (size_t)s.slot * p.wide, d->token, r, p.vocab, sh.bias_id, sh.bias, sh.extra);
		for (int i = threadIdx.x; i < p.vocab; i += CHOOSE) {
			struct best c = {adjusted(a, p.logits[(size_t)row * p.ld + i], i), i};

			b = better(b, c);
			l[i] = c.value;
		}
		propose_row(&sh, set, l, p.vocab, s.pos0 + r + 1, best_of_block(b, sh.best), d, r);
	}
}

/* ---- accept ------------------------------------------------------------------------------------------------------------------------ */

/* q of the drafted token: 1 for a point mass, 0 when it is missing from its own list (then it is never accepted). */
static __device__ float drafted_q(const struct td_draft *d, int at)
{
	if (d->n_cand[at] <= 0)
		return 1;
	for (int i = 0; i < d->n_cand[at] && i < TD_CAND_MAX; i++)
		if (d->cand[at][i] == d->token[at])
			return d->q[at][i];
	return 0;
}

/* The weight of an id, told to every thread; 0 when it is not in the pool. */
static __device__ float weight_of(struct choose_shared *sh, const struct pool &pool, int id)
{
	float w;

	__syncthreads();
	if (threadIdx.x == 0)
		sh->saved[0] = !pool.id && id >= 0 && id < pool.n ? pool.w[id] : 0;
	__syncthreads();
	for (int i = threadIdx.x; pool.id && i < pool.n; i += CHOOSE)
		if (pool.id[i] == id)
			sh->saved[0] = pool.w[i];
	__syncthreads();
	w = sh->saved[0];
	__syncthreads();
	return w;
}

/* Takes q out of the weights, or leaves them when nothing would be left; returns the new mass. `undo` puts the saved weights back. */
static __device__ void subtract(struct choose_shared *sh, const struct pool &pool, double total, const struct td_draft *d, int at, int undo)
{
	int listed = d->n_cand[at] > 0, n = listed ? min(d->n_cand[at], (int)TD_CAND_MAX) : 1;

	for (int c = pool.id ? 0 : threadIdx.x; c < n; c += pool.id ? 1 : CHOOSE) {
		int id = listed ? d->cand[at][c] : d->token[at], i = pool.id ? (int)threadIdx.x : id;

		if (i < 0 || i >= pool.n || id_of(pool, i) != id)
			continue;
		if (undo) {
			pool.w[i] = sh->saved[c];
		} else {
			sh->saved[c] = pool.w[i];
			pool.w[i] = listed ? (float)fmax(sh->saved[c] - d->q[at][c] * total, 0.0) : 0;
		}
	}
	__syncthreads();
}

static __device__ mass_t residual(struct choose_shared *sh, const struct pool &pool, mass_t total, const struct td_draft *d, int at)
{
	mass_t left;

	subtract(sh, pool, (double)total / 17592186044416.0, d, at, 0);
	left = mass(sh, pool.w, pool.n);
	if (left > 0)
		return left;
	subtract(sh, pool, 0, d, at, 1);
	return total;
}

/* Log-probabilities of the raw logits: the token's, and the n best one after the other. What is not finite is told as -9999. */
static __device__ void report(struct choose_shared *sh, const float *logits, int vocab, int n, int token, struct decision *out)
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

/* grid (largest rows, sequences) */
static __global__ void __launch_bounds__(CHOOSE) decide_kernel(const struct sample_args p)
{
	__shared__ struct choose_shared sh;
	struct td_seq s = p.seq[blockIdx.y];
	const struct td_sampling *set = &p.sampling[s.slot];
	const struct td_draft *d = &p.draft[s.slot];
	int r = blockIdx.x, row = s.row0 + r, last = r + 1 >= s.rows, drafted = -1, token, accepted = 0;
	uint32_t position = s.pos0 + r + 1;
	float *w = p.work + (size_t)row * p.vocab;
	struct best top;

	if (r >= s.rows)
		return;
	drafted = last ? -1 : d->token[r];
	top = best_of_row(p, &sh, row);
	token = top.id;
	if (!(set->temperature > 0)) {
		accepted = token == drafted;
	} else {
		struct pool pool;
		mass_t total = weights(&sh, set, w, p.vocab, top, 0, &pool);

		if (!last) {
			double share = weight_of(&sh, pool, drafted) / ((double)total / 17592186044416.0), q = drafted_q(d, r);

			accepted = q > 0 && (double)td_uniform(set->seed, position, TD_ACCEPT) * q < share;
			if (accepted)
				token = drafted;
			else
				total = residual(&sh, pool, total, d, r);
		}
		if (!accepted)
			token = id_of(pool, draw(&sh, pool.w, pool.n, total, td_uniform(set->seed, position, TD_DRAW)));
	}
	if (threadIdx.x == 0) {
		p.decision[row].token = token;
		p.decision[row].accepted = accepted;
		p.decision[row].logprob = 0;
	}
	if (set->logprobs >= 0)
		report(&sh, p.logits + (size_t)row * p.ld, p.vocab, tops(set, p.vocab), token, &p.decision[row]);
}

/* One warp per sequence. */
static __global__ void settle_kernel(const struct sample_args p)
{
	struct td_seq s = p.seq[blockIdx.x];
	const struct td_sampling *set = &p.sampling[s.slot];
	struct td_verdict *v = &p.verdict[blockIdx.x];
	const struct decision *d = p.decision + s.row0;
	int n = 0, n_top = tops(set, p.vocab);

	while (n < s.rows && d[n++].accepted)
		;
	for (int i = threadIdx.x; i < n * n_top; i += 32) {
		v->top_id[i / n_top][i % n_top] = d[i / n_top].top_id[i % n_top];
		v->top_logprob[i / n_top][i % n_top] = d[i / n_top].top_logprob[i % n_top];
	}
	if (threadIdx.x)
		return;
	v->n = n;
	v->n_top = n_top;
	for (int i = 0; i < n; i++) {
		uint16_t *count = p.counts + (size_t)s.slot * p.wide + d[i].token;

		v->token[i] = d[i].token;
		v->logprob[i] = d[i].logprob;
		*count += (*count & 0x7fff) < 0x7fff;
	}
	p.anchor[s.slot] = v->token[n - 1];
}

/* ---- mask -------------------------------------------------------------------------------------------------------------------------- */

/* grid (pieces of the vocabulary, lines). The row is compared before it is used: lines come from the host, but an index is an index. */
static __global__ void __launch_bounds__(SCAN) mask_kernel(float *logits, int ld, int rows, int cols, const uint32_t *line, int words)
{
	const uint32_t *bits = line + (size_t)blockIdx.y * (words + 1);
	uint32_t row = bits[words];
	int end = min(cols, (int)(blockIdx.x + 1) * PIECE);

	if (row >= (uint32_t)rows)
		return;
	for (int i = blockIdx.x * PIECE + threadIdx.x; i < end; i += SCAN)
		if (!(bits[i / 32] >> (i & 31) & 1))
			logits[(size_t)row * ld + i] = -INFINITY;
}

/* ---- host -------------------------------------------------------------------------------------------------------------------------- */

/* Checks and scratch memory; returns 0 when there is nothing to run. */
static int prepare(struct td_dev *dev, struct sample_args *p, const struct td_batch *b, struct td_tensor logits, int vocab,
		   const struct td_sampling *sampling, const char *what)
{
	size_t work, best;
	char *mem;

	if (dev->error.code || b->n_seq == 0 || logits.rows == 0 || td__cuda_type(dev, logits, TD_F32, what))
		return 0;
	vocab = vocab < logits.cols ? vocab : logits.cols;
	for (int i = 0; i < b->n_seq; i++)
		if (b->seq[i].rows < 1 || b->seq[i].rows > TD_BLOCK_MAX || vocab < 1 || vocab > 1 << 18) {
			td__cuda_fail(dev, TD_E_INTERNAL, "%s: a block of %d rows over %d ids", what, b->seq[i].rows, vocab);
			return 0;
		}
	p->seq = b->dev;
	p->logits = (const float *)logits.data;
	p->ld = logits.ld;
	p->vocab = vocab;
	p->wide = logits.cols;
	p->pieces = div_up(vocab, PIECE);
	p->sampling = sampling;
	work = align256((size_t)logits.rows * vocab * sizeof(float));
	best = align256((size_t)logits.rows * p->pieces * sizeof(struct best));
	mem = (char *)td__cuda_scratch(dev, work + best + (size_t)logits.rows * sizeof(struct decision));
	if (!mem)
		return 0;
	p->work = (float *)mem;
	p->best = (struct best *)(mem + work);
	p->decision = (struct decision *)(mem + work + best);
	return 1;
}

void td__cuda_propose(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, int vocab_real, const struct td_sampling *sampling,
		      const uint16_t *counts, struct td_draft *draft)
{
	struct sample_args p = {};
	int rows = b->max_rows - 1;

	p.propose = 1;
	p.counts = (uint16_t *)counts;
	p.proposal = draft;
	if (!prepare(dev, &p, b, logits, vocab_real, sampling, "propose"))
		return;
	if (rows > 0)
		scan_kernel<<<dim3(p.pieces, rows, b->n_seq), SCAN, 0, dev->stream>>>(p);
	propose_kernel<<<dim3(rows > 0 ? rows : 1, b->n_seq), CHOOSE, 0, dev->stream>>>(p);
	if (rows > 0)
		propose_in_turn_kernel<<<b->n_seq, CHOOSE, 0, dev->stream>>>(p);
	td__cuda_launched(dev, "propose");
}

void td__cuda_accept(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, int vocab_real, const struct td_sampling *sampling,
		     const struct td_draft *draft, uint16_t *counts, int32_t *anchor, struct td_verdict *verdict)
{
	struct sample_args p = {};

	p.counts = counts;
	p.draft = draft;
	p.anchor = anchor;
	p.verdict = verdict;
	if (!prepare(dev, &p, b, logits, vocab_real, sampling, "accept"))
		return;
	scan_kernel<<<dim3(p.pieces, b->max_rows, b->n_seq), SCAN, 0, dev->stream>>>(p);
	decide_kernel<<<dim3(b->max_rows, b->n_seq), CHOOSE, 0, dev->stream>>>(p);
	settle_kernel<<<b->n_seq, 32, 0, dev->stream>>>(p);
	td__cuda_launched(dev, "accept");
}

void td__cuda_mask(struct td_dev *dev, struct td_tensor logits, const uint32_t *line, int n)
{
	if (dev->error.code || n < 1 || logits.rows == 0 || td__cuda_type(dev, logits, TD_F32, "mask"))
		return;
	mask_kernel<<<dim3(div_up(logits.cols, PIECE), n), SCAN, 0, dev->stream>>>((float *)logits.data, logits.ld, logits.rows, logits.cols, line,
										   TD_MASK_WORDS(logits.cols));
	td__cuda_launched(dev, "mask");
}
