/*
 * attention.cu: the target's attention: norm and rotary, append to the cache, attend, gate; and the drafter's context rows.
 *
 * The kernels are in attend.cuh. New keys are in the cache before anything attends, so a block of rows sees itself through the cache.
 */
#include "kernels/cuda/attend.cuh"

void td__cuda_attention(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv,
			struct td_tensor out)
{
	struct attend_args p = {};

	if (!attend_prepare(dev, &p, w, kv, b, qkv, ((w->gated ? 2 : 1) * w->heads + 2 * w->kv_heads) * w->head_dim, 0, "attention") ||
	    td__cuda_type(dev, out, TD_BF16, "attention") || !attend_place(dev, &p, b, 0))
		return;
	p.out = (bf16 *)out.data;
	p.ldo = out.ld;
	rotate(dev, p, b, w->heads);
	attend_any<false>(dev, p, b);
}

void td__cuda_draft_context(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor kvrow)
{
	struct attend_args p = {};

	if (attend_prepare(dev, &p, w, kv, b, kvrow, 2 * w->kv_heads * w->head_dim, 0, "draft_context"))
		rotate(dev, p, b, 0);
}
