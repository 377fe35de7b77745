/*
 * drafter_weights.c: the weights of a DFlash drafter (dflash 1.5) in an arena.
 *
 * A drafter has neither embedding nor head: both are the target's. Context rows need the k|v part of a layer's q|k|v alone, block rows all of it;
 * in BF16 that is one memory, in a packed order the small part is kept twice.
 */
#include <stddef.h>
#include <stdlib.h>

#include "engine/loader.h"

static void attention(struct td__loader *l, const struct td_drafter_config *c, int i, const float *inv_freq, struct td_drafter_layer *w)
{
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
	const struct td__module m[] = { { "q_proj", q }, { "k_proj", kv }, { "v_proj", kv } };

	td__load_at(l, "layers.%d.self_attn.", i);
	td__load_fused(l, m, 3, c->hidden, &w->qkv);
	td__load_tail(l, m, 3, 1, c->hidden, &w->qkv, &w->kv);
	td__load_linear(l, "o_proj", c->hidden, q, &w->o);
	w->attn = (struct td_attn){ .heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .rotary_dim = c->head_dim, .eps = c->eps };
	w->attn.window = c->sliding[i] ? c->window : 0;
	w->attn.causal = c->causal[i];
	w->attn.q_norm = td__load_small(l, "q_norm.weight", c->head_dim, 0);
	w->attn.k_norm = td__load_small(l, "k_norm.weight", c->head_dim, 0);
	w->attn.inv_freq = inv_freq;
}

static void build(struct td__loader *l, void *weights)
{
	struct td_drafter_weights *w = weights;
	const struct td_drafter_config *c = &w->cfg;
	const struct td__module gate_up[] = { { "gate_proj", c->intermediate }, { "up_proj", c->intermediate } };
	const float *inv_freq = td__load_inv_freq(l, c->head_dim, c->rope_theta);

	l->prefix = td_st_find(l->st, "model.hidden_norm.weight") ? "model." : "";
	td__load_linear(l, "fc", c->hidden, c->n_taps * c->hidden, &w->fc);
	w->hidden_norm = td__load_small(l, "hidden_norm.weight", c->hidden, 0);
	w->norm = td__load_small(l, "norm.weight", c->hidden, 0);
	for (int i = 0; i < c->layers && !l->rc; i++) {
		struct td_drafter_layer *layer = &w->layer[i];

		td__load_at(l, "layers.%d.", i);
		layer->input_norm = td__load_small(l, "input_layernorm.weight", c->hidden, 0);
		layer->post_norm = td__load_small(l, "post_attention_layernorm.weight", c->hidden, 0);
		attention(l, c, i, inv_freq, layer);
		td__load_at(l, "layers.%d.mlp.", i);
		td__load_gate_up(l, gate_up, c->hidden, &layer->gate_up);
		td__load_linear(l, "down_proj", c->hidden, c->intermediate, &layer->down);
	}
}

static int config(const char *dir, void *weights, struct td_error *err)
{
	struct td_drafter_weights *w = weights;

	return td_drafter_config_load(dir, &w->cfg, err);
}

static void pointers(void *weights, struct td__mover *m)
{
	struct td_drafter_weights *w = weights;

	td__move_linear(m, &w->fc);
	td__move(m, &w->hidden_norm);
	td__move(m, &w->norm);
	for (int i = 0; i < w->cfg.layers; i++) {
		struct td_drafter_layer *layer = &w->layer[i];

		td__move(m, &layer->input_norm);
		td__move(m, &layer->post_norm);
		td__move_fused(m, &layer->qkv);
		td__move_fused(m, &layer->kv);
		td__move_linear(m, &layer->o);
		td__move_fused(m, &layer->gate_up);
		td__move_linear(m, &layer->down);
		td__move_attn(m, &layer->attn);
	}
}

static const struct td__weights_kind kind = {
	.name = "drafter",
	.size = sizeof(struct td_drafter_weights),
	.arena = offsetof(struct td_drafter_weights, arena),
	.quant = offsetof(struct td_drafter_weights, cfg.quant),
	.config = config,
	.build = build,
	.pointers = pointers,
};

int td_drafter_weights_load(const struct td_ops *ops, struct td_dev *dev, const char *dir, const struct td_load *how, struct td_drafter_weights **out,
			    char fingerprint[256], struct td_error *err)
{
	void *w;
	int rc = td__weights_load(&kind, ops, dev, dir, how, &w, fingerprint, err);

	*out = w;
	return rc;
}

int td_drafter_weights_take(const struct td_ops *ops, struct td_dev *dev, struct td_arena *kept, int form, struct td_drafter_weights **out,
			    char fingerprint[256], struct td_error *err)
{
	void *w;
	int rc = td__weights_take(&kind, ops, dev, kept, form, &w, fingerprint, err);

	*out = w;
	return rc;
}

int td_drafter_weights_plan(const struct td_ops *ops, const char *dir, int form, size_t *bytes, struct td_error *err)
{
	void *w;
	int rc = td__weights_plan(&kind, ops, dir, form, bytes, &w, err);

	free(w);
	return rc;
}

void td_drafter_weights_free(const struct td_ops *ops, struct td_dev *dev, struct td_drafter_weights *w)
{
	td__weights_free(&kind, ops, dev, w);
}
