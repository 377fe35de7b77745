/*
 * sample.cu: what to propose and what to accept, without the host (dflash 2.3.4), in two kernels each; and masks.
 *
 *	scan	grid (pieces of the vocabulary, logit rows): each piece's best; of sampled rows the short list, too (shortlist.cuh)
 *	choose	(propose.cuh, accept.cuh) grid (largest rows, sequences): a greedy sequence is one block's matter, a warp for each row. Otherwise each row has a
 *		block: with temperature the weights, cuts and draws of choose.cuh, on the short lists where they suffice
 *
 * Nothing that the host decides here hangs on settings, drafts or counts: a captured call serves any of them. Both kernels are compiled
 * together: in a unit of its own each is a twelfth larger, as the compiler unrolls what it sees called less often.
 *
 * What must never happen: a token id outside [0, vocab) committed, or one from device memory used as an index before it was compared.
 */
#include "kernels/cuda/accept.cuh"
#include "kernels/cuda/propose.cuh"

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
