/*
 * rows.c: operations that move rows and ids about: embedding, copies, which rows go on, the ids of a block, token counts.
 *
 * What must never happen: a token id from device memory used as an index before it was compared with the table's size.
 */
#include "kernels/cpu/cpu.h"

enum { COUNT_PROMPT = 0x8000, COUNT_MAX = 0x7fff };

void td__embed(struct td_dev *dev, struct td_tensor table, const int32_t *ids, struct td_tensor out)
{
	if (table.dtype != TD_BF16 || out.dtype != TD_F32 || table.cols != out.cols) {
		td__fail(dev, TD_E_INTERNAL, "embed: a table of %d columns for rows of %d", table.cols, out.cols);
		return;
	}
	for (int r = 0; r < out.rows; r++) {
		const uint16_t *src;
		float *y = td__row(&out, r);

		if (ids[r] < 0 || ids[r] >= table.rows) {
			td__fail(dev, TD_E_INVALID, "token id %d at row %d is outside the vocabulary of %d", ids[r], r, table.rows);
			memset(y, 0, (size_t)out.cols * sizeof(*y));
			continue;
		}
		src = (const uint16_t *)table.data + (size_t)ids[r] * (size_t)table.ld;
		for (int i = 0; i < out.cols; i++)
			y[i] = td__from_bf16(src[i]);
	}
}

static void copy_row(struct td_tensor src, int r, struct td_tensor dst, int to)
{
	struct td_tensor a = td_rows(src, r, 1), b = td_rows(dst, to, 1);

	memcpy(b.data, a.data, (size_t)src.cols * td_dtype_size(src.dtype));
}

static int same_row(struct td_dev *dev, const char *op, struct td_tensor x, struct td_tensor y)
{
	if (x.dtype == y.dtype && x.cols == y.cols)
		return 1;
	td__fail(dev, TD_E_INTERNAL, "%s: rows of %d and of %d columns, or of different types", op, x.cols, y.cols);
	return 0;
}

void td__copy(struct td_dev *dev, struct td_tensor src, struct td_tensor dst)
{
	if (!same_row(dev, "copy", src, dst))
		return;
	for (int r = 0; r < src.rows; r++)
		copy_row(src, r, dst, r);
}

void td__rows_last(struct td_dev *dev, const struct td_batch *b, struct td_tensor x, struct td_tensor y)
{
	if (!same_row(dev, "rows_last", x, y))
		return;
	for (int i = 0; i < b->n_seq; i++)
		copy_row(x, b->dev[i].row0 + b->dev[i].rows - 1, y, i);
}

void td__rows_tail(struct td_dev *dev, const struct td_batch *b, struct td_tensor x, struct td_tensor y)
{
	int to = 0;

	if (!same_row(dev, "rows_tail", x, y))
		return;
	for (int i = 0; i < b->n_seq; i++)
		for (int r = 1; r < b->dev[i].rows; r++)
			copy_row(x, b->dev[i].row0 + r, y, to++);
}

void td__verify_ids(struct td_dev *dev, const struct td_batch *b, const int32_t *anchor, const struct td_draft *draft, int32_t *ids)
{
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *s = &b->dev[i];

		if (s->rows > TD_BLOCK_MAX) {
			td__fail(dev, TD_E_INTERNAL, "verify_ids: a block of %d rows", s->rows);
			return;
		}
		ids[s->row0] = anchor[s->slot];
		for (int r = 1; r < s->rows; r++)
			ids[s->row0 + r] = draft[s->slot].token[r - 1];
	}
}

void td__mask_ids(struct td_dev *dev, const struct td_batch *b, const int32_t *anchor, int32_t mask_id, int32_t *ids)
{
	(void)dev;
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *s = &b->dev[i];

		ids[s->row0] = anchor[s->slot];
		for (int r = 1; r < s->rows; r++)
			ids[s->row0 + r] = mask_id;
	}
}

void td__count_token(uint16_t *count)
{
	if ((*count & COUNT_MAX) < COUNT_MAX)
		++*count;
}

void td__counts_reset(struct td_dev *dev, uint16_t *counts, int vocab, const int32_t *ids, int n)
{
	memset(counts, 0, (size_t)vocab * sizeof(*counts));
	for (int i = 0; i < n; i++) {
		if (ids[i] < 0 || ids[i] >= vocab)
			td__fail(dev, TD_E_INVALID, "token id %d of the prompt is outside the vocabulary of %d", ids[i], vocab);
		else
			counts[ids[i]] |= COUNT_PROMPT;
	}
}

/* The ids are tokens that the engine itself committed, and the vocabulary is not told: they are trusted but for their sign. */
void td__counts_add(struct td_dev *dev, uint16_t *counts, const int32_t *ids, int n)
{
	for (int i = 0; i < n; i++) {
		if (ids[i] < 0)
			td__fail(dev, TD_E_INVALID, "token id %d can't be counted", ids[i]);
		else
			td__count_token(&counts[ids[i]]);
	}
}
