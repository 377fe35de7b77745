/*
 * assume.c: for a bench alone: logits that make a step commit a given number of tokens, whatever the drafts are (kernels/assume.h).
 *
 * The rows that are to be accepted get their draft as by far the best id; the row after them can't choose its draft. `accept` then does what it
 * always does, so that anchor, counts and everything behind it are as in life. Nothing here runs unless the lever target.assume is set.
 */
#include "kernels/assume.h"
#include "kernels/cpu/cpu.h"

void td__assume(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, const struct td_draft *draft, const struct td_sampling *sampling)
{
	(void)dev;
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *s = &b->dev[i];
		int n = td_assumed(sampling[s->slot].seed, s->pos0, s->rows);

		for (int r = 0; r < n && r < s->rows - 1; r++) {
			int id = draft[s->slot].token[r];

			if (id >= 0 && id < logits.cols && s->row0 + r < logits.rows)
				td__row(&logits, s->row0 + r)[id] = r < n - 1 ? 1e30f : -INFINITY;
		}
	}
}
