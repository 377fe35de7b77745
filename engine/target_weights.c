/*
 * target_weights.c: the weights of a Qwen3.5 target (qwen35 2.1) in an arena.
 *
 * Owns nothing but the returned struct, which owns the arena. The embedding is a BF16 table, since rows are looked up in it; a tied head is the
 * same memory seen as a linear map, unless it is wanted in 4 bits: then it is a second, quantised copy. Constants of attention and recurrent layers are float32.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/loader.h"
#include "engine/quantise.h"

static void full_attention(struct td__loader *l, const struct td_target_config *c, int i, const float *inv_freq, struct td_target_layer *w)
{
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
	const struct td__module m[] = { { "q_proj", 2 * q }, { "k_proj", kv }, { "v_proj", kv } };

	td__load_at(l, "layers.%d.self_attn.", i);
	td__load_fused(l, m, 3, c->hidden, &w->qkv);
	td__load_linear(l, "o_proj", c->hidden, q, &w->o);
	w->attn = (struct td_attn){ .heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .eps = c->eps };
	w->attn.zero_centred = w->attn.gated = w->attn.causal = 1;
	w->attn.q_norm = td__load_small(l, "q_norm.weight", c->head_dim, 0);
	w->attn.k_norm = td__load_small(l, "k_norm.weight", c->head_dim, 0);
	w->attn.inv_freq = inv_freq;
}

static void linear_attention(struct td__loader *l, const struct td_target_config *c, int i, struct td_target_layer *w)
{
	int key = c->k_heads * c->k_dim, value = c->v_heads * c->v_dim, channels = 2 * key + value;
	const struct td__module qkvz[] = { { "in_proj_qkv", channels }, { "in_proj_z", value } };
	const struct td__module ba[] = { { "in_proj_b", c->v_heads }, { "in_proj_a", c->v_heads } };

	td__load_at(l, "layers.%d.linear_attn.", i);
	td__load_fused(l, qkvz, 2, c->hidden, &w->qkvz);
	td__load_fused(l, ba, 2, c->hidden, &w->ba);
	td__load_linear(l, "out_proj", c->hidden, value, &w->out);
	w->gdn = (struct td_gdn){ .k_heads = c->k_heads, .v_heads = c->v_heads, .k_dim = c->k_dim, .v_dim = c->v_dim, .eps = c->eps };
	w->gdn.conv = td__load_small(l, "conv1d.weight", channels, c->conv_kernel);
	w->gdn.a_log = td__load_small(l, "A_log", c->v_heads, 0);
	w->gdn.dt_bias = td__load_small(l, "dt_bias", c->v_heads, 0);
	w->gdn.norm = td__load_small(l, "norm.weight", c->v_dim, 0);
}

int td_form_head(const char *head, const struct td_target_config *c, int form)
{
	form &= ~(TD_FORM_HEAD_INT4 | TD_FORM_HEAD_EXACT);
	if (!strcmp(head, "auto"))
		head = c->quant.bits == 4 && !(form & TD_FORM_BF16) && td_quantise_group(c->hidden) ? "rescored" : "bf16";
	if (!strcmp(head, "bf16"))
		return form;
	return form | TD_FORM_HEAD_INT4 | (strcmp(head, "rescored") ? 0 : TD_FORM_HEAD_EXACT);
}

int td_form_activations(const char *activations, const char *device, int form)
{
	static const struct { const char *device, *activations; } usual[] = { { "cpu", "bf16" }, { "cuda", "int8" } };

	for (size_t i = 0; i < sizeof(usual) / sizeof(*usual); i++)
		if (!strcmp(activations, "auto") && !strcmp(device, usual[i].device))
			activations = usual[i].activations;
	return strcmp(activations, "int8") ? form & ~TD_FORM_ACT8 : form | TD_FORM_ACT8;
}

/* lm_head stands outside of `model.`. When the head is tied, some writers store the table a second time: it is the same and skipped. */
static void head(struct td__loader *l, struct td_target_weights *w)
{
	const struct td_target_config *c = &w->cfg;
	const char *prefix = l->prefix, *name = c->tied ? "embed_tokens.weight" : "lm_head.weight";
	int quantised = l->how.form & TD_FORM_HEAD_INT4, exact = quantised && l->how.form & TD_FORM_HEAD_EXACT;
	struct td_tensor table = w->embed;

	l->where[0] = '\0';
	if (!c->tied)
		l->prefix = "";
	if (!c->tied && !td__load_has(l, name)) {
		td__load_linear(l, "lm_head", c->vocab, c->hidden, &w->head); /* packed, or missing */
	} else {
		if (!c->tied)
			table.data = quantised && !exact ? NULL : td__load_table(l, name, c->vocab, c->hidden);
		w->head = (struct td_linear){ .kind = TD_W_BF16, .in = c->hidden, .out = c->vocab, .data = table.data };
		if (quantised)
			td__load_quantised(l, name, c->vocab, c->hidden, &w->head);
		if (exact)
			w->exact = table;
	}
	l->prefix = "";
	if (c->tied)
		td__load_has(l, "lm_head.weight");
	l->prefix = prefix;
}

static void build(struct td__loader *l, void *weights)
{
	struct td_target_weights *w = weights;
	const struct td_target_config *c = &w->cfg;
	const struct td__module gate_up[] = { { "gate_proj", c->intermediate }, { "up_proj", c->intermediate } };
	const float *inv_freq = td__load_inv_freq(l, c->rotary_dim, c->rope_theta);

	l->prefix = td_st_find(l->st, "model.language_model.norm.weight") ? "model.language_model." : "model.";
	w->embed = (struct td_tensor){ .dtype = TD_BF16, .rows = c->vocab, .cols = c->hidden, .ld = c->hidden };
	w->embed.data = td__load_table(l, "embed_tokens.weight", c->vocab, c->hidden);
	w->norm = td__load_small(l, "norm.weight", c->hidden, 0);
	for (int i = 0; i < c->layers && !l->rc; i++) {
		struct td_target_layer *layer = &w->layer[i];

		td__load_at(l, "layers.%d.", i);
		layer->full = c->full_attention[i];
		layer->input_norm = td__load_small(l, "input_layernorm.weight", c->hidden, 0);
		layer->post_norm = td__load_small(l, "post_attention_layernorm.weight", c->hidden, 0);
		if (layer->full)
			full_attention(l, c, i, inv_freq, layer);
		else
			linear_attention(l, c, i, layer);
		td__load_at(l, "layers.%d.mlp.", i);
		td__load_gate_up(l, gate_up, c->hidden, &layer->gate_up);
		td__load_linear(l, "down_proj", c->hidden, c->intermediate, &layer->down);
	}
	head(l, w);
}

static int config(const char *dir, void *weights, struct td_error *err)
{
	struct td_target_weights *w = weights;

	return td_target_config_load(dir, &w->cfg, err);
}

static void pointers(void *weights, struct td__mover *m)
{
	struct td_target_weights *w = weights;

	td__move(m, &w->embed.data);
	td__move(m, &w->exact.data);
	td__move_linear(m, &w->head);
	td__move(m, &w->norm);
	for (int i = 0; i < w->cfg.layers; i++) {
		struct td_target_layer *layer = &w->layer[i];

		td__move(m, &layer->input_norm);
		td__move(m, &layer->post_norm);
		td__move_fused(m, &layer->gate_up);
		td__move_linear(m, &layer->down);
		td__move_fused(m, &layer->qkv);
		td__move_linear(m, &layer->o);
		td__move_attn(m, &layer->attn);
		td__move_fused(m, &layer->qkvz);
		td__move_fused(m, &layer->ba);
		td__move_linear(m, &layer->out);
		td__move(m, &layer->gdn.conv);
		td__move(m, &layer->gdn.a_log);
		td__move(m, &layer->gdn.dt_bias);
		td__move(m, &layer->gdn.norm);
	}
}

static const struct td__weights_kind kind = {
	.name = "target",
	.size = sizeof(struct td_target_weights),
	.arena = offsetof(struct td_target_weights, arena),
	.quant = offsetof(struct td_target_weights, cfg.quant),
	.config = config,
	.build = build,
	.pointers = pointers,
};

int td_target_weights_load(const struct td_ops *ops, struct td_dev *dev, const char *dir, const struct td_load *how, struct td_target_weights **out,
			   char fingerprint[256], struct td_error *err)
{
	void *w;
	int rc = td__weights_load(&kind, ops, dev, dir, how, &w, fingerprint, err);

	*out = w;
	return rc;
}

int td_target_weights_take(const struct td_ops *ops, struct td_dev *dev, struct td_arena *kept, int form, struct td_target_weights **out,
			   char fingerprint[256], struct td_error *err)
{
	void *w;
	int rc = td__weights_take(&kind, ops, dev, kept, form, &w, fingerprint, err);

	*out = w;
	return rc;
}

int td_target_weights_config(const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, int form, struct td_target_config *c,
			     struct td_error *err)
{
	char fingerprint[256];
	void *w;
	int rc = td__note_read(&kind, ops, dev, arena, form, &w, fingerprint, err);

	if (!rc)
		*c = ((struct td_target_weights *)w)->cfg;
	free(w);
	return rc;
}

int td_target_weights_plan(const struct td_ops *ops, const char *dir, int form, size_t *bytes, struct td_linear *head_of, struct td_error *err)
{
	void *w;
	int rc = td__weights_plan(&kind, ops, dir, form, bytes, &w, err);

	if (!rc && head_of) {
		*head_of = ((struct td_target_weights *)w)->head;
		head_of->data = NULL;
	}
	free(w);
	return rc;
}

void td_target_weights_free(const struct td_ops *ops, struct td_dev *dev, struct td_target_weights *w)
{
	td__weights_free(&kind, ops, dev, w);
}
