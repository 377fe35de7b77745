/*
 * draft_attention.cu: the drafter's attention: a block of rows over the cached context and over itself (dflash 1.4).
 *
 * The kernels are in attend.cuh. The block's own keys and values go to scratch memory and are dropped afterwards: they belong to masks.
 */
#include "kernels/cuda/attend.cuh"

void td__cuda_draft_attention(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv,
			      struct td_tensor out)
{
	struct attend_args p = {};

	if (!attend_prepare(dev, &p, w, kv, b, qkv, (w->heads + 2 * w->kv_heads) * w->head_dim, 1, "draft_attention") ||
	    td__cuda_type(dev, out, TD_BF16, "draft_attention") || !attend_place(dev, &p, b, 1))
		return;
	p.out = (bf16 *)out.data;
	p.ldo = out.ld;
	rotate(dev, p, b, w->heads);
	attend_any<true>(dev, p, b);
}
