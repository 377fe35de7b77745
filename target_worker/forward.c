/*
 * forward.c: the rows of a batch through the target's layers.
 *
 *   embed -> per layer: norm, mixer (Gated DeltaNet or gated attention), + residual, norm, SwiGLU, + residual -> features of tapped layers
 *
 * The residual stream stays in t->x; the caller picks the rows that need logits (td__target_head). Formulas: kernels.h.
 */
#include "target_worker/internal.h"

static void probe(struct td_target *t, const char *what, int index, struct td_tensor x)
{
	if (t->o.probe)
		t->o.probe(t->o.probe_ctx, what, index, x);
}

/* Stage by stage, with what is kept of each. */
static void recur(struct td_target *t, const struct td_target_layer *l, int layer, const struct td_batch *b, const struct td__stages *stages,
		  struct td_tensor qkvz, struct td_tensor ba, struct td_tensor out)
{
	for (int i = 0; i < (stages ? stages->n : 1); i++) {
		t->ops->gdn(t->dev, &l->gdn, &t->gdn[layer], stages && stages->n > 1 ? &stages->batch[i] : b, qkvz, ba, out);
		for (int k = 0; stages && k < stages->n_kept; k++)
			if (stages->kept[k].stage == i)
				td__cache_copy(t, layer, stages->kept[k].slot, t->n_slots + stages->kept[k].state);
	}
}

static void mix_linear(struct td_target *t, const struct td_target_layer *l, int layer, const struct td_batch *b, const struct td__stages *stages,
		       struct td_tensor x, struct td_tensor norm)
{
	int n = b->n_rows;
	struct td_tensor qkvz = td_cols(td_rows(t->wide, 0, n), 0, l->qkvz.out), ba = td_rows(t->ba, 0, n);
	struct td_tensor out = td_cols(td_rows(t->mixed, 0, n), 0, l->out.in);

	td_fused_apply2(t->ops, t->dev, norm, &l->qkvz, qkvz, &l->ba, ba);
	recur(t, l, layer, b, stages, qkvz, ba, out);
	t->ops->linear(t->dev, out, &l->out, x, 1);
}

static void mix_attention(struct td_target *t, const struct td_target_layer *l, int layer, const struct td_batch *b, struct td_tensor x, struct td_tensor norm)
{
	int n = b->n_rows;
	struct td_tensor qkv = td_cols(td_rows(t->wide, 0, n), 0, l->qkv.out);
	struct td_tensor out = td_cols(td_rows(t->mixed, 0, n), 0, l->o.in);

	td_fused_apply(t->ops, t->dev, norm, &l->qkv, qkv);
	t->ops->attention(t->dev, &l->attn, &t->kv[layer], b, qkv, out);
	t->ops->linear(t->dev, out, &l->o, x, 1);
}

void td__target_forward(struct td_target *t, const struct td_batch *b, const struct td__stages *stages, struct td_tensor features)
{
	const struct td_target_config *c = &t->w->cfg;
	int n = b->n_rows;
	struct td_tensor x = td_rows(t->x, 0, n), norm = td_rows(t->norm, 0, n);
	struct td_tensor gate_up = td_rows(t->gate_up, 0, n), inner = td_rows(t->inner, 0, n);

	t->ops->embed(t->dev, t->w->embed, t->ids, x);
	for (int i = 0; i < c->layers; i++) {
		const struct td_target_layer *l = &t->w->layer[i];

		probe(t, "hidden", i, x);
		t->ops->rms_norm(t->dev, x, l->input_norm, c->eps, 1, norm);
		if (l->full)
			mix_attention(t, l, i, b, x, norm);
		else
			mix_linear(t, l, i, b, stages, x, norm);
		t->ops->rms_norm(t->dev, x, l->post_norm, c->eps, 1, norm);
		td_fused_swiglu(t->ops, t->dev, norm, &l->gate_up, gate_up, inner);
		t->ops->linear(t->dev, inner, &l->down, x, 1);
		for (int k = 0; features.data && k < t->o.n_taps; k++)
			if (t->o.tap[k] == i)
				t->ops->copy(t->dev, x, td_cols(td_rows(features, 0, n), k * c->hidden, c->hidden));
	}
	if (features.data)
		probe(t, "features", 0, td_rows(features, 0, n));
	if (t->o.probe) { /* all rows' logits, which the engine itself needs only for some */
		for (int r = 0; r < n; r += t->block_rows) {
			int m = n - r < t->block_rows ? n - r : t->block_rows;

			td__target_head(t, td_rows(x, r, m));
		}
	}
}

struct td_tensor td__target_head(struct td_target *t, struct td_tensor rows)
{
	struct td_tensor norm = td_rows(t->picked_norm, 0, rows.rows), logits = td_rows(t->logits, 0, rows.rows);

	t->ops->rms_norm(t->dev, rows, t->w->norm, t->w->cfg.eps, 1, norm);
	probe(t, "hidden", t->w->cfg.layers, norm);
	t->ops->linear(t->dev, norm, &t->w->head, logits, 0);
	if (t->w->exact.data)
		t->ops->rescore(t->dev, norm, t->w->exact, logits, NULL, t->o.vocab_real);
	probe(t, "logits", 0, logits);
	return logits;
}
