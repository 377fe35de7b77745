/*
 * attention.cu: the target's attention: norm and rotary, append to the cache, attend, gate; and the drafter's context rows.
 *
 * The kernels are in attend.cu, for whole blocks of a prompt in attend_prompt.cu. With one group of rows a sequence (verify, decode) the blocks that attend
 * make the new keys themselves; with more, the new keys are in the cache before anything attends. The bits are the same.
 */
#include "kernels/cuda/attend.cuh"

void td__cuda_attention(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv,
			struct td_tensor out)
{
	int q_cols = (w->gated ? 2 : 1) * w->heads * w->head_dim;
	struct attend_args p = {};

	if (td__cuda_type(dev, out, TD_BF16, "attention") ||
	    !td__attend_prepare(dev, &p, w, kv, b, qkv, q_cols + 2 * w->kv_heads * w->head_dim, 0, "attention"))
		return;
	p.out = (bf16 *)out.data;
	p.ldo = out.ld;
	p.k_col = q_cols;
	for (int i = 0; i < b->n_seq; i++)
		if (part_of(b->seq[i], ROWS_BLOCKS).rows)
			p.part = ROWS_BEFORE;
	p.from_rows = p.rows <= TD_BLOCK_MAX && p.groups == 1 && p.part == ROWS_ALL;
	if (!p.from_rows)
		td__attend_append(dev, &p, b);
	td__attend(dev, &p, b);
	if (p.part == ROWS_ALL)
		return;
	td__attend_prompt(dev, &p, b);
	p.part = ROWS_AFTER;
	td__attend(dev, &p, b);
}

void td__cuda_draft_context(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor kvrow)
{
	struct attend_args p = {};

	if (td__attend_prepare(dev, &p, w, kv, b, kvrow, 2 * w->kv_heads * w->head_dim, 0, "draft_context"))
		td__attend_append(dev, &p, b);
}
