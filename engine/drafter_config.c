/*
 * drafter_config.c: config.json of a DFlash drafter (dflash 1.2-1.4), and whether a drafter fits its target.
 *
 * Published drafters differ in mask id, taps, layer types and window, so all are read from the file and none is guessed, but for the two
 * defaults that the format itself defines: the tap list from the number of layers, and which layers are causal inside the block. Variants
 * that change the mathematics (convolutions and candidate selector of DFlash2, sinks, a vocabulary of its own, ...) are refused by name.
 */
#include "engine/config_read.h"
#include "engine/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CONFIG_CAP = 16 << 20, BLOCK_CAP = 1024, HEAD_CAP = 256 }; /* HEAD_CAP: what the kernels are written for */

/* A value that leaves the mathematics as they are: absent, null, false, 0. */
static int is_off(const json_t *v)
{
	return !v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0);
}

static void refuse_variants(struct td__cfg *c, const json_t *o, const struct td_drafter_config *d)
{
	static const char *const dflash2[] = { "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k" };
	static const char *const other[] = { "final_logit_softcapping", "attention_sink_bias", "add_attention_sink_bias", "add_swa_attention_sink_bias",
					     "add_full_attention_sink_bias", "attention_sinks", "use_swa", "swa_window_size", "sample_from_anchor",
					     "mask_embedding", "use_aux_hidden_norms" };

	for (size_t i = 0; i < sizeof(dflash2) / sizeof(*dflash2); i++)
		if (!is_off(json_object_get(o, dflash2[i])))
			td__cfg_fail(c, TD_E_UNSUPPORTED, "%s belongs to DFlash2, whose convolutions and candidate selector are not supported; use a DFlash drafter",
				     dflash2[i]);
	for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++)
		if (!is_off(json_object_get(o, other[i])))
			td__cfg_fail(c, TD_E_UNSUPPORTED, "%s is set; this variant of the drafter is not supported", other[i]);
	if (td__cfg_real(c, o, "input_embedding_scale", -1e9, 1e9, 1) != 1 || td__cfg_real(c, o, "output_multiplier", -1e9, 1e9, 1) != 1)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "input_embedding_scale and output_multiplier other than 1 are not supported");
	if (!td__cfg_bool(c, o, "is_neox_style", 1))
		td__cfg_fail(c, TD_E_UNSUPPORTED, "is_neox_style is false; interleaved rotary is not supported");
	if (td__cfg_int(c, o, "draft_vocab_size", 0, 1 << 30, d->vocab) != d->vocab)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "draft_vocab_size differs from vocab_size %d; a vocabulary of the drafter's own is not supported", d->vocab);
	if (td__cfg_int(c, o, "target_hidden_size", 0, 1 << 30, d->hidden) != d->hidden)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "target_hidden_size differs from hidden_size %d; such drafters are not supported", d->hidden);
}

static void sizes(struct td__cfg *c, const json_t *o, struct td_drafter_config *d)
{
	double partial;

	d->layers = td__cfg_int(c, o, "num_hidden_layers", 1, TD_LAYERS_MAX, TD__REQUIRED);
	d->hidden = td__cfg_int(c, o, "hidden_size", 8, 1 << 15, TD__REQUIRED);
	d->intermediate = td__cfg_int(c, o, "intermediate_size", 8, 1 << 18, TD__REQUIRED);
	d->vocab = td__cfg_int(c, o, "vocab_size", 2, 1 << 22, TD__REQUIRED);
	d->heads = td__cfg_int(c, o, "num_attention_heads", 1, 512, TD__REQUIRED);
	d->kv_heads = td__cfg_int(c, o, "num_key_value_heads", 1, 512, d->heads);
	d->head_dim = td__cfg_int(c, o, "head_dim", 8, HEAD_CAP, c->rc ? 8 : d->hidden / d->heads);
	d->max_position = td__cfg_int(c, o, "max_position_embeddings", 1, 1 << 26, TD__REQUIRED);
	d->eps = (float)td__cfg_real(c, o, "rms_norm_eps", 1e-12, 0.1, 1e-6);
	d->target_layers = td__cfg_int(c, o, "num_target_layers", 1, TD_LAYERS_MAX, 0);
	d->rope_theta = (float)td__cfg_rope(c, o, 1, &partial);
	if (c->rc)
		return;
	if (partial != 1)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "partial_rotary_factor is %g; a drafter rotates whole heads", partial);
	if (d->head_dim < 8 || d->head_dim > HEAD_CAP || d->head_dim % 2)
		td__cfg_fail(c, TD_E_FORMAT, "head_dim is %d; it must be even and lie in 8..%d", d->head_dim, HEAD_CAP);
	if (d->heads % d->kv_heads)
		td__cfg_fail(c, TD_E_FORMAT, "num_attention_heads %d is no multiple of num_key_value_heads %d", d->heads, d->kv_heads);
}

/* Without a list, Qwen3's own rule: the layers from max_window_layers on slide when use_sliding_window says so. */
static void layer_types(struct td__cfg *c, const json_t *o, struct td_drafter_config *d)
{
	const json_t *list = td__cfg_array(c, o, "layer_types");
	int first = td__cfg_int(c, o, "max_window_layers", 0, 1 << 20, 28), sliding = 0;
	int use = td__cfg_bool(c, o, "use_sliding_window", 0);

	if (list && json_array_size(list) != (size_t)d->layers)
		td__cfg_fail(c, TD_E_FORMAT, "layer_types names %zu layers, num_hidden_layers says %d", json_array_size(list), d->layers);
	for (int i = 0; i < d->layers && !c->rc; i++) {
		const char *type = list ? json_string_value(json_array_get(list, (size_t)i)) : NULL;

		if (!list)
			d->sliding[i] = use && i >= first;
		else if (type && !strcmp(type, "sliding_attention"))
			d->sliding[i] = 1;
		else if (!type || strcmp(type, "full_attention") != 0)
			td__cfg_fail(c, TD_E_UNSUPPORTED, "layer_types[%d] is %.40s; only full_attention and sliding_attention are supported", i,
				     type ? type : "not a string");
		sliding |= d->sliding[i];
	}
	if (sliding)
		d->window = td__cfg_int(c, o, "sliding_window", 1, 1 << 26, TD__REQUIRED);
}

/* dflash 1.4: one switch for all layers where the file has one; otherwise sliding layers are causal inside the block and full layers are not. */
static void causality(struct td__cfg *c, const json_t *o, const json_t *dflash, struct td_drafter_config *d)
{
	int all = td__cfg_bool(c, o, "is_causal", td__cfg_bool(c, dflash, "causal", -1));

	for (int i = 0; i < d->layers; i++)
		d->causal[i] = all >= 0 ? all : d->sliding[i];
}

/* Either level may hold the drafter's own fields; dflash_config is asked first. */
static const json_t *holder(const json_t *o, const json_t *dflash, const char *key)
{
	const json_t *v = json_object_get(dflash, key);

	return v && !json_is_null(v) ? dflash : o;
}

void td__taps_spread(int n, int layers, int *tap)
{
	for (int i = 0; i < n; i++)
		tap[i] = n == 1 ? layers / 2 : (int)rint(1 + (double)i * (layers - 4) / (n - 1));
}

/* Without a list there is one tap per drafter layer. */
static void taps_default(struct td__cfg *c, struct td_drafter_config *d)
{
	int n = d->layers, t = d->target_layers;

	if (t == 0 || n > TD_TAPS_MAX || (n > 1 && t - 3 < n)) {
		td__cfg_fail(c, TD_E_FORMAT, "target_layer_ids is missing and can't be derived from num_target_layers %d and %d layers", t, n);
		return;
	}
	d->n_taps = n;
	td__taps_spread(n, t, d->tap);
}

static void taps(struct td__cfg *c, const json_t *o, const json_t *dflash, struct td_drafter_config *d)
{
	const json_t *list = td__cfg_array(c, holder(o, dflash, "target_layer_ids"), "target_layer_ids");
	size_t n = json_array_size(list);

	if (c->rc)
		return;
	if (!list) {
		taps_default(c, d);
		return;
	}
	if (n < 1 || n > TD_TAPS_MAX) {
		td__cfg_fail(c, TD_E_FORMAT, "target_layer_ids has %zu entries; 1..%d are supported", n, TD_TAPS_MAX);
		return;
	}
	/* Any order: the list's order is the order of the parts of fc's input, whatever the layers' numbers. Published lists grow. */
	d->n_taps = (int)n;
	for (int i = 0; i < d->n_taps; i++) {
		d->tap[i] = td__cfg_item(c, list, (size_t)i, "target_layer_ids", 0, (d->target_layers ? d->target_layers : TD_LAYERS_MAX) - 1);
		for (int j = 0; j < i; j++)
			if (d->tap[j] == d->tap[i])
				td__cfg_fail(c, TD_E_FORMAT, "target_layer_ids names layer %d twice", d->tap[i]);
	}
}

/* The published drafters call themselves qwen3, for their layers are; the architecture's name tells them from plain models and from DFlash2. */
static void identity(struct td__cfg *c, const json_t *o, const json_t *dflash)
{
	const char *type = td__cfg_text(c, o, "model_type", "(none)");
	const char *name = json_string_value(json_array_get(td__cfg_array(c, o, "architectures"), 0));

	if (strcmp(type, "qwen3") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "model_type %.40s is not supported as a drafter, only qwen3 with DFlash fields", type);
	if (name && strcmp(name, "DFlashDraftModel") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "architecture %.60s is not supported as a drafter, only DFlashDraftModel", name);
	if (!dflash && !json_object_get(o, "block_size"))
		td__cfg_fail(c, TD_E_UNSUPPORTED, "is not a DFlash drafter: it has neither dflash_config nor block_size");
}

static void load(struct td__cfg *c, struct td_drafter_config *d)
{
	const json_t *o = c->root, *dflash = td__cfg_object(c, o, "dflash_config");

	identity(c, o, dflash);
	sizes(c, o, d);
	if (c->rc)
		return;
	refuse_variants(c, o, d);
	refuse_variants(c, dflash, d);
	td__cfg_plain(c, o);
	layer_types(c, o, d);
	causality(c, o, dflash, d);
	d->block = td__cfg_int(c, holder(o, dflash, "block_size"), "block_size", 2, BLOCK_CAP, TD__REQUIRED);
	d->mask_id = td__cfg_int(c, holder(o, dflash, "mask_token_id"), "mask_token_id", 0, d->vocab - 1, TD__REQUIRED);
	taps(c, o, dflash, d);
	td__cfg_quant(c, o, &d->quant);
}

int td_drafter_config_load(const char *dir, struct td_drafter_config *d, struct td_error *err)
{
	struct td__cfg c;
	int rc;

	if (td_synthetic(dir))
		return td__synthetic_drafter(dir, d, err);
	memset(d, 0, sizeof(*d));
	if (td__cfg_open(&c, dir, "config.json", CONFIG_CAP, err) == 0)
		load(&c, d);
	rc = c.rc;
	td__cfg_close(&c);
	return rc;
}

int td_pair_check(const struct td_target_config *t, const struct td_drafter_config *d, struct td_error *err)
{
	const char *fix = "take the drafter that was trained for this target";

	if (d->hidden != t->hidden)
		return td_error_set(err, TD_E_MISMATCH, "hidden_size: target %d, drafter %d; %s", t->hidden, d->hidden, fix);
	if (d->vocab != t->vocab)
		return td_error_set(err, TD_E_MISMATCH, "vocab_size: target %d, drafter %d; %s", t->vocab, d->vocab, fix);
	if (d->target_layers && d->target_layers != t->layers)
		return td_error_set(err, TD_E_MISMATCH, "layers of the target: target %d, drafter expects %d (num_target_layers); %s", t->layers,
				    d->target_layers, fix);
	for (int i = 0; i < d->n_taps; i++)
		if (d->tap[i] < 0 || d->tap[i] >= t->layers)
			return td_error_set(err, TD_E_MISMATCH, "target_layer_ids: drafter taps layer %d, target has layers 0..%d; %s", d->tap[i],
					    t->layers - 1, fix);
	if (d->block > TD_BLOCK_MAX)
		return td_error_set(err, TD_E_MISMATCH, "block_size: drafter %d, at most %d is served", d->block, TD_BLOCK_MAX);
	if (d->mask_id < 0 || d->mask_id >= t->vocab)
		return td_error_set(err, TD_E_MISMATCH, "mask_token_id: drafter %d, target has ids 0..%d; %s", d->mask_id, t->vocab - 1, fix);
	return 0;
}
