/*
 * draft_attention.cu: the drafter's attention: a block of rows over the cached context and over itself (dflash 1.4).
 *
 * The kernels are in attend.cu. The block's own keys and values are made where they are needed and never stored: they belong to masks.
 */
#include "kernels/cuda/attend.cuh"

void td__cuda_draft_attention(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv,
			      struct td_tensor out)
{
	struct attend_args p = {};

	if (td__cuda_type(dev, out, TD_BF16, "draft_attention") ||
	    !td__attend_prepare(dev, &p, w, kv, b, qkv, (w->heads + 2 * w->kv_heads) * w->head_dim, 1, "draft_attention"))
		return;
	p.out = (bf16 *)out.data;
	p.ldo = out.ld;
	p.k_col = w->heads * w->head_dim;
	td__attend(dev, &p, b);
}
