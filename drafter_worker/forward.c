/*
 * forward.c: the two halves of a draft.
 *
 *   append: features -> fc -> hidden_norm -> per layer k, v (k normalised, rotated) into the cache      once per committed position
 *   block:  (anchor, mask, ...) -> layers over [context | block] -> rows 1.. -> norm -> target's head, or some rows of it -> propose
 *
 * The drafter's RMSNorm multiplies by w, not by 1 + w; input_layernorm is not applied to context rows. Formulas: kernels.h, dflash 1.2.
 */
#include "drafter_worker/internal.h"

void td__drafter_append(struct td_drafter *d, const struct td_batch *b, struct td_tensor features)
{
	const struct td_drafter_config *c = &d->w->cfg;
	int n = features.rows;
	struct td_tensor fused = td_rows(d->fused, 0, n), context = td_rows(d->context_row, 0, n), kv = td_rows(d->kv_row, 0, n);

	d->ops->linear(d->dev, features, &d->w->fc, fused, 0);
	d->ops->rms_norm(d->dev, fused, d->w->hidden_norm, c->eps, 0, context);
	for (int i = 0; i < c->layers; i++) {
		td_fused_apply(d->ops, d->dev, context, &d->w->layer[i].kv, kv);
		d->ops->draft_context(d->dev, &d->w->layer[i].attn, &d->kv[i], b, kv);
	}
}

void td__drafter_block(struct td_drafter *d, const struct td_batch *b)
{
	const struct td_drafter_config *c = &d->w->cfg;
	int n = b->n_rows, drafts = b->n_rows - b->n_seq;
	struct td_tensor x = td_rows(d->x, 0, n), norm = td_rows(d->norm, 0, n), gate_up = td_rows(d->gate_up, 0, n), inner = td_rows(d->inner, 0, n);
	struct td_tensor wide = td_rows(d->wide, 0, n), mixed = td_rows(d->mixed, 0, n);
	struct td_tensor tail = td_rows(d->tail, 0, drafts), tail_norm = td_rows(d->tail_norm, 0, drafts);
	struct td_tensor logits = td_cols(td_rows(d->logits, 0, drafts), 0, d->head.out);
	const struct td_columns *of = d->columns.n ? &d->columns : NULL;

	d->ops->mask_ids(d->dev, b, d->o.exchange.anchor, c->mask_id, d->ids);
	d->ops->embed(d->dev, d->o.embed, d->ids, x);
	for (int i = 0; i < c->layers; i++) {
		const struct td_drafter_layer *l = &d->w->layer[i];

		d->ops->rms_norm(d->dev, x, l->input_norm, c->eps, 0, norm);
		td_fused_apply(d->ops, d->dev, norm, &l->qkv, wide);
		d->ops->draft_attention(d->dev, &l->attn, &d->kv[i], b, wide, mixed);
		d->ops->linear(d->dev, mixed, &l->o, x, 1);
		d->ops->rms_norm(d->dev, x, l->post_norm, c->eps, 0, norm);
		td_fused_swiglu(d->ops, d->dev, norm, &l->gate_up, gate_up, inner);
		d->ops->linear(d->dev, inner, &l->down, x, 1);
	}
	d->ops->rows_tail(d->dev, b, x, tail);
	d->ops->rms_norm(d->dev, tail, d->w->norm, c->eps, 0, tail_norm);
	d->ops->linear(d->dev, tail_norm, &d->head, logits, 0);
	if (d->o.exact.data)
		d->ops->rescore(d->dev, tail_norm, d->o.exact, logits, of, d->o.vocab_real);
	if (d->o.probe)
		d->o.probe(d->o.probe_ctx, "draft_logits", logits);
	d->ops->propose(d->dev, b, logits, of, d->o.vocab_real, d->sampling, d->o.exchange.counts, d->o.exchange.draft);
}
