/*
 * sample.cuh: what a call of propose or accept works on, and whose a row of logits is (sample.cu says how both go).
 *
 * A proposal may be over some ids only (struct td_columns). All counting, cutting and drawing is by columns then, whose order is that of their ids; bias,
 * penalties and what is written speak of ids.
 */
#ifndef TD_CUDA_SAMPLE_CUH
#define TD_CUDA_SAMPLE_CUH

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

#endif
