/*
 * rescore.c: the best logits of a head in 4 bits, computed again from the table in BF16. A row is an item; its sums are made in the order of td__dot.
 */
#include "kernels/cpu/cpu.h"

struct job {
	struct td_dev *dev;
	struct td_tensor x, table, logits;
	const int32_t *id; /* of each column of the logits, NULL: itself */
	int vocab;
};

/* Descending; the lower id first among equals. NaN is never among them. Returns how many there are. */
static int find_best(const float *v, int n, int best[TD_RESCORE])
{
	int found = 0;

	for (int id = 0; id < n; id++) {
		int at = found;

		if (isnan(v[id]) || (found == TD_RESCORE && v[id] <= v[best[found - 1]]))
			continue;
		if (found < TD_RESCORE)
			found++;
		else
			at--;
		for (; at > 0 && v[best[at - 1]] < v[id]; at--)
			best[at] = best[at - 1];
		best[at] = id;
	}
	return found;
}

TD__INLINE float product_body(const float *x, const uint16_t *w, float *row, int n)
{
	for (int i = 0; i < n; i++)
		row[i] = td__from_bf16(w[i]);
	return td__dot(x, row, n);
}

TD__INLINE void row_body(const struct job *j, int r, float *row)
{
	int best[TD_RESCORE], n = find_best(td__row(&j->logits, r), j->vocab, best);

	for (int k = 0; k < n; k++) {
		size_t at = (size_t)(j->id ? j->id[best[k]] : best[k]) * (size_t)j->table.ld;

		td__row(&j->logits, r)[best[k]] = product_body(td__row(&j->x, r), (const uint16_t *)j->table.data + at, row, j->x.cols);
	}
}
TD__DISPATCH(row, (const struct job *j, int r, float *scratch), (j, r, scratch))

static void item(void *job, int r, int thread)
{
	const struct job *j = job;

	row(j, r, j->dev->scratch[thread].mem);
}

void td__rescore(struct td_dev *dev, struct td_tensor x, struct td_tensor table, struct td_tensor logits, const struct td_columns *of, int vocab)
{
	struct job job = { dev, x, table, logits, of ? of->id : NULL, of ? of->n : vocab };

	vocab = job.vocab;
	if (x.dtype != TD_F32 || table.dtype != TD_BF16 || logits.dtype != TD_F32 || x.cols != table.cols || x.rows != logits.rows || vocab > table.rows ||
	    vocab > logits.cols) {
		td__fail(dev, TD_E_INTERNAL, "rescore: x (%d, %d), table (%d, %d), logits (%d, %d) of %d ids do not fit", x.rows, x.cols, table.rows, table.cols,
			 logits.rows, logits.cols, vocab);
		return;
	}
	if (x.rows <= 0 || td__scratch_need(dev, sizeof(float) * (size_t)x.cols))
		return;
	td__parallel(dev, x.rows, 1, item, &job);
}
