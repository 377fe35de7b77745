/*
 * target_config.c: config.json of a target (qwen35 1.1): qwen3_5_text, flat, or qwen3_5 with the text model in text_config.
 *
 * Limits are far above every published size and low enough that no product of two fields overflows an int. Settings that would change the
 * mathematics are refused. End-of-text ids come from config.json (both levels) and generation_config.json; that the tokenizer's own
 * end-of-turn token also ends an answer is the daemon's business, for the published configs don't name it.
 */
#include "engine/config_read.h"
#include "engine/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CONFIG_CAP = 16 << 20, HEAD_CAP = 256 }; /* HEAD_CAP: what the kernels are written for */

static void eos_add(struct td__cfg *c, struct td_target_config *t, int id)
{
	for (int i = 0; i < t->n_eos; i++)
		if (t->eos[i] == id)
			return;
	if (t->n_eos == TD_EOS_MAX)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "eos_token_id: more than %d different ids", TD_EOS_MAX);
	if (!c->rc)
		t->eos[t->n_eos++] = id;
}

static void eos_read(struct td__cfg *c, const json_t *o, struct td_target_config *t)
{
	const json_t *v = json_object_get(o, "eos_token_id");

	if (!json_is_array(v)) {
		int id = td__cfg_int(c, o, "eos_token_id", 0, t->vocab - 1, -1);

		if (id >= 0)
			eos_add(c, t, id);
		return;
	}
	for (size_t i = 0; i < json_array_size(v) && !c->rc; i++)
		eos_add(c, t, td__cfg_item(c, v, i, "eos_token_id", 0, t->vocab - 1));
}

static void layer_types(struct td__cfg *c, const json_t *o, struct td_target_config *t)
{
	const json_t *list = td__cfg_array(c, o, "layer_types");
	int every = td__cfg_int(c, o, "full_attention_interval", 1, TD_LAYERS_MAX, 4);

	if (list && json_array_size(list) != (size_t)t->layers)
		td__cfg_fail(c, TD_E_FORMAT, "layer_types names %zu layers, num_hidden_layers says %d", json_array_size(list), t->layers);
	for (int i = 0; i < t->layers && !c->rc; i++) {
		const char *type = list ? json_string_value(json_array_get(list, (size_t)i)) : NULL;

		if (!list)
			t->full_attention[i] = (i + 1) % every == 0;
		else if (type && !strcmp(type, "full_attention"))
			t->full_attention[i] = 1;
		else if (!type || strcmp(type, "linear_attention") != 0)
			td__cfg_fail(c, TD_E_UNSUPPORTED, "layer_types[%d] is %.40s; only full_attention and linear_attention are supported", i,
				     type ? type : "not a string");
	}
}

static void sizes(struct td__cfg *c, const json_t *o, struct td_target_config *t)
{
	t->layers = td__cfg_int(c, o, "num_hidden_layers", 1, TD_LAYERS_MAX, TD__REQUIRED);
	t->hidden = td__cfg_int(c, o, "hidden_size", 8, 1 << 15, TD__REQUIRED);
	t->intermediate = td__cfg_int(c, o, "intermediate_size", 8, 1 << 18, TD__REQUIRED);
	t->vocab = td__cfg_int(c, o, "vocab_size", 2, 1 << 22, TD__REQUIRED);
	t->heads = td__cfg_int(c, o, "num_attention_heads", 1, 512, TD__REQUIRED);
	t->kv_heads = td__cfg_int(c, o, "num_key_value_heads", 1, 512, t->heads);
	t->head_dim = td__cfg_int(c, o, "head_dim", 8, HEAD_CAP, TD__REQUIRED);
	t->k_heads = td__cfg_int(c, o, "linear_num_key_heads", 1, 512, TD__REQUIRED);
	t->v_heads = td__cfg_int(c, o, "linear_num_value_heads", 1, 512, TD__REQUIRED);
	t->k_dim = td__cfg_int(c, o, "linear_key_head_dim", 8, HEAD_CAP, TD__REQUIRED);
	t->v_dim = td__cfg_int(c, o, "linear_value_head_dim", 8, HEAD_CAP, TD__REQUIRED);
	t->conv_kernel = td__cfg_int(c, o, "linear_conv_kernel_dim", 1, 64, TD_CONV_TAIL + 1);
	t->max_position = td__cfg_int(c, o, "max_position_embeddings", 1, 1 << 26, TD__REQUIRED);
	t->eps = (float)td__cfg_real(c, o, "rms_norm_eps", 1e-12, 0.1, 1e-6);
	if (c->rc)
		return;
	if (t->heads % t->kv_heads)
		td__cfg_fail(c, TD_E_FORMAT, "num_attention_heads %d is no multiple of num_key_value_heads %d", t->heads, t->kv_heads);
	if (t->v_heads % t->k_heads)
		td__cfg_fail(c, TD_E_FORMAT, "linear_num_value_heads %d is no multiple of linear_num_key_heads %d", t->v_heads, t->k_heads);
	if (t->conv_kernel != TD_CONV_TAIL + 1)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "linear_conv_kernel_dim is %d; only %d is supported", t->conv_kernel, TD_CONV_TAIL + 1);
}

static void text_config(struct td__cfg *c, const json_t *o, struct td_target_config *t)
{
	double partial;

	sizes(c, o, t);
	layer_types(c, o, t);
	td__cfg_plain(c, o);
	t->rope_theta = (float)td__cfg_rope(c, o, 0.25, &partial);
	t->rotary_dim = (int)lrint(t->head_dim * partial);
	if (!c->rc && (t->rotary_dim < 2 || t->rotary_dim % 2 || fabs(t->rotary_dim - t->head_dim * partial) > 1e-6))
		td__cfg_fail(c, TD_E_FORMAT, "partial_rotary_factor %g of head_dim %d is not an even number of dimensions", partial, t->head_dim);
	t->attn_output_gate = td__cfg_bool(c, o, "attn_output_gate", 1);
	if (!t->attn_output_gate)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "attn_output_gate is false; attention without an output gate is not supported");
	if (td__cfg_int(c, o, "num_experts", 0, 1 << 16, 0) > 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "num_experts is set; mixtures of experts are not supported");
}

static void generation_config(const char *dir, struct td__cfg *c, struct td_target_config *t)
{
	struct td__cfg g;
	int rc = td__cfg_open(&g, dir, "generation_config.json", CONFIG_CAP, c->err);

	if (rc == 0)
		eos_read(&g, g.root, t);
	if (g.rc && g.rc != TD_E_NOT_FOUND)
		c->rc = g.rc;
	else if (g.rc && c->err)
		memset(c->err, 0, sizeof(*c->err));
	td__cfg_close(&g);
}

static void load(struct td__cfg *c, const char *dir, struct td_target_config *t)
{
	const char *type = td__cfg_text(c, c->root, "model_type", "(none)");
	const json_t *o = c->root;

	if (!strcmp(type, "qwen3_5")) {
		o = td__cfg_object(c, c->root, "text_config");
		if (!o)
			td__cfg_fail(c, TD_E_FORMAT, "model_type is qwen3_5 but there is no text_config");
		else
			type = td__cfg_text(c, o, "model_type", "qwen3_5_text");
	}
	if (!c->rc && strcmp(type, "qwen3_5_text") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "model_type %.40s is not supported as a target, only qwen3_5 and qwen3_5_text", type);
	if (c->rc)
		return;
	snprintf(t->model_type, sizeof(t->model_type), "%s", td__cfg_text(c, c->root, "model_type", ""));
	text_config(c, o, t);
	t->tied = td__cfg_bool(c, o, "tie_word_embeddings", td__cfg_bool(c, c->root, "tie_word_embeddings", 0));
	td__cfg_quant(c, json_object_get(c->root, "quantization_config") ? c->root : o, &t->quant);
	if (c->rc)
		return;
	eos_read(c, o, t);
	if (o != c->root)
		eos_read(c, c->root, t);
	if (!c->rc)
		generation_config(dir, c, t);
}

int td_target_config_load(const char *dir, struct td_target_config *t, struct td_error *err)
{
	struct td__cfg c;
	int rc;

	if (td_synthetic(dir))
		return td__synthetic_target(dir, t, err);
	memset(t, 0, sizeof(*t));
	if (td__cfg_open(&c, dir, "config.json", CONFIG_CAP, err) == 0)
		load(&c, dir, t);
	rc = c.rc;
	td__cfg_close(&c);
	return rc;
}
