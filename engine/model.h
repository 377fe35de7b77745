/*
 * model.h: what a model folder says (config.json), and its weights in an arena, ready for kernels.h.
 *
 * Two steps. td_*_config_load reads and checks config.json alone (tandemd and `tandem doctor` need no more). td_*_weights_load maps the
 * checkpoint, plans the arena, fills it through td_ops.pack and writes what it found, configuration and addresses, to the arena's end. A successor
 * that holds the arena (td_*_weights_take) reads no file: it serves what was loaded, whatever lies in the folder by then.
 * Each module is BF16 or packed INT4 by which tensors exist, cross-checked against quantization_config. Fused maps (q|k|v ...) are made where
 * the parts have one format, otherwise the parts stay apart (struct td_fused). Prefixes `model.` and `model.language_model.`; vision
 * (`model.visual.`, `visual.`) and MTP (`mtp.`) tensors are skipped; any other tensor nobody asked for is an error that names it.
 */
#ifndef TD_MODEL_H
#define TD_MODEL_H

#include <stdint.h>

#include "kernels/kernels.h"

enum { TD_LAYERS_MAX = 128, TD_TAPS_MAX = 16, TD_EOS_MAX = 8, TD_FUSED_MAX = 4 };

/* ---- config.json ------------------------------------------------------------------------------------------------------------------- */

enum { TD_QUANT_SIZES = 8 };
struct td_quant { /* from quantization_config; zeroed = none */
	int bits, symmetric;
	int n_sizes, size[TD_QUANT_SIZES]; /* of groups of columns that share a scale, all different; -1 = a whole row. A packed tensor must have one of them */
};

struct td_target_config {
	char model_type[32]; /* qwen3_5_text, or qwen3_5 with a text_config */
	int layers, hidden, intermediate, vocab;
	int heads, kv_heads, head_dim, rotary_dim;
	int k_heads, v_heads, k_dim, v_dim, conv_kernel; /* of the linear layers; conv_kernel must be 4 */
	int full_attention[TD_LAYERS_MAX]; /* layer_types */
	float rope_theta, eps;
	int attn_output_gate; /* must be 1 */
	int tied; /* tie_word_embeddings */
	int max_position;
	int n_eos, eos[TD_EOS_MAX]; /* config.json and generation_config.json together */
	struct td_quant quant;
};

struct td_drafter_config {
	int layers, hidden, intermediate, vocab;
	int heads, kv_heads, head_dim;
	int sliding[TD_LAYERS_MAX]; /* layer_types */
	int causal[TD_LAYERS_MAX]; /* inside the block: is_causal, else dflash_config.causal, else sliding layers only */
	int window; /* 0 when no layer slides */
	int block, mask_id;
	int n_taps, tap[TD_TAPS_MAX]; /* target layers whose output is tapped, 0-based */
	float rope_theta, eps;
	int max_position;
	int target_layers; /* num_target_layers, 0 = not said */
	struct td_quant quant;
};

/* Wherever a folder `dir` is asked for here, "synthetic:NAME[:option...]" may stand for a model of the published shapes with random weights, to
 * measure speed and memory: targets qwen3.5-0.8b, -2b, -4b, -9b, tiny; drafters dflash-SIZE (official layout), dflash-SIZE-paper (the paper's).
 * Options: int4 (default) or bf16, g128 (default) or g32, seed=N. Weights are a pure function of this text. */
int td_synthetic(const char *dir); /* 1: is of that kind */
/* Both names, malloc'd, from "NAME[:option...]" of a target. */
int td_synthetic_pair(const char *name, char **target, char **drafter, struct td_error *err);

int td_target_config_load(const char *dir, struct td_target_config *c, struct td_error *err);
int td_drafter_config_load(const char *dir, struct td_drafter_config *c, struct td_error *err);
/* The pair fits: hidden size, vocabulary, taps within the target's layers, block <= TD_BLOCK_MAX, mask id. TD_E_MISMATCH names the field and both values. */
int td_pair_check(const struct td_target_config *t, const struct td_drafter_config *d, struct td_error *err);

/* ---- weights ----------------------------------------------------------------------------------------------------------------------- */

/* Modules that read the same input, side by side in the output: part i writes columns [off[i], off[i] + part[i].out). */
struct td_fused {
	int n, out;
	int off[TD_FUSED_MAX];
	struct td_linear part[TD_FUSED_MAX];
};

struct td_target_layer {
	int full; /* which half of the union below is meant */
	const float *input_norm, *post_norm; /* (hidden) */
	struct td_fused gate_up; /* 2 * intermediate */
	struct td_linear down;
	/* full attention */
	struct td_fused qkv; /* q|gate per head, k, v */
	struct td_linear o;
	struct td_attn attn;
	/* linear attention */
	struct td_fused qkvz; /* q|k|v|z */
	struct td_fused ba; /* b|a */
	struct td_linear out;
	struct td_gdn gdn;
};

struct td_target_weights {
	struct td_target_config cfg;
	struct td_arena arena;
	struct td_tensor embed; /* bf16 (vocab, hidden) */
	struct td_linear head; /* the same memory when tied */
	struct td_tensor exact; /* bf16 (vocab, hidden), beside a head in 4 bits: the best logits are computed again from it; data NULL: they stay */
	const float *norm;
	struct td_target_layer layer[TD_LAYERS_MAX];
};

struct td_drafter_layer {
	const float *input_norm, *post_norm;
	struct td_fused qkv; /* q, k, v */
	struct td_fused kv; /* the k, v part of qkv for context rows: same memory where the backend's order allows a row range, else packed again */
	struct td_linear o;
	struct td_fused gate_up;
	struct td_linear down;
	struct td_attn attn;
};

struct td_drafter_weights {
	struct td_drafter_config cfg;
	struct td_arena arena;
	struct td_linear fc; /* hidden x (taps * hidden) */
	const float *hidden_norm, *norm;
	struct td_drafter_layer layer[TD_LAYERS_MAX];
};

/* What a worker keeps of its arena so that a successor can trust it. */
struct td_arena_seal {
	char fingerprint[256];
	uint64_t block;
	int n;
	uint64_t *checksum; /* malloc'd (n) */
};
void td_arena_seal_finish(struct td_arena_seal *seal);
int td_arena_seal_make(const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, const char *fingerprint, struct td_arena_seal *seal, struct td_error *err);
int td_arena_seal_check(const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, const struct td_arena_seal *seal, struct td_error *err); /* TD_E_FORMAT: content changed */

/* Called while loading: for the progress message and the watchdog. */
typedef void td_progress(void *ctx, const char *stage, uint64_t done, uint64_t total);

/* In which form weights lie in the arena, other than the files' own. */
enum td_form {
	TD_FORM_BF16 = 1, /* packed INT4 modules become BF16, value (code - 8) * scale rounded: every linear map takes the BF16 path */
	TD_FORM_HEAD_INT4 = 2, /* a BF16 head is quantised (quantise.h); the table of embeddings stays */
	TD_FORM_HEAD_EXACT = 4, /* with the former: the head's BF16 table stays, too, and logits are rescored */
	TD_FORM_ACT8 = 8, /* maps of 4 bits, whichever there are, take their input in 8 bits (td_linear.act8) */
};
/* `form` with what model.head says: "bf16", "int4", "rescored"; "auto": as the other maps are in that form, if the head's rows can be cut into groups (only
 * then c is looked at). */
int td_form_head(const char *head, const struct td_target_config *c, int form);
/* `form` with what model.activations says: "bf16", "int8"; "auto": what is usual on the device ("cpu", "cuda"). Means nothing where no map has 4 bits. */
int td_form_activations(const char *activations, const char *device, int form);

/* How to load; NULL or zeroed: in the files' own form, silently. */
struct td_load {
	int form; /* sum of enum td_form */
	td_progress *progress;
	void *ctx;
};

/* The fingerprint is computed in any case and returned (text of at most 255 bytes). */
int td_target_weights_load(const struct td_ops *ops, struct td_dev *dev, const char *dir, const struct td_load *how, struct td_target_weights **w,
			   char fingerprint[256], struct td_error *err);
int td_drafter_weights_load(const struct td_ops *ops, struct td_dev *dev, const char *dir, const struct td_load *how, struct td_drafter_weights **w,
			    char fingerprint[256], struct td_error *err);
/* The weights in an arena that a predecessor of the same build filled, imported and its seal checked: no file is read. *kept is moved into the weights
 * and zeroed on success, and stays the caller's on failure. `form` must be the maker's. Also gives the fingerprint of what was loaded. */
int td_target_weights_take(const struct td_ops *ops, struct td_dev *dev, struct td_arena *kept, int form, struct td_target_weights **w,
			   char fingerprint[256], struct td_error *err);
int td_drafter_weights_take(const struct td_ops *ops, struct td_dev *dev, struct td_arena *kept, int form, struct td_drafter_weights **w,
			    char fingerprint[256], struct td_error *err);
/* The configuration alone, for who maps another's arena. */
int td_target_weights_config(const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, int form, struct td_target_config *c,
			     struct td_error *err);
/* Bytes of the arena that load would make, from the files' headers. Of `ops` only name and pack_bytes are used. *head, where not NULL: the target's, without
 * its data. */
int td_target_weights_plan(const struct td_ops *ops, const char *dir, int form, size_t *bytes, struct td_linear *head, struct td_error *err);
int td_drafter_weights_plan(const struct td_ops *ops, const char *dir, int form, size_t *bytes, struct td_error *err);
void td_target_weights_free(const struct td_ops *ops, struct td_dev *dev, struct td_target_weights *w);
void td_drafter_weights_free(const struct td_ops *ops, struct td_dev *dev, struct td_drafter_weights *w);
/* Fingerprint alone, from the files' names, sizes and times, the backend's name and `form`: tells whether a folder is still what was loaded. */
int td_weights_fingerprint(const struct td_ops *ops, const char *dir, int form, char fingerprint[256], struct td_error *err);
/* The same in two steps, for who learns of the backend later: what the folder holds, then its fingerprint. Of `ops` only the name is used. */
enum { TD_IDENTITY = 128 };
int td_weights_identity(const char *dir, char identity[TD_IDENTITY], struct td_error *err);
void td_weights_fingerprint_of(const struct td_ops *ops, const char identity[TD_IDENTITY], int form, char fingerprint[256]);

/* y = W x for a fused map: one td_ops.linear per part. */
void td_fused_apply(const struct td_ops *ops, struct td_dev *dev, struct td_tensor x, const struct td_fused *w, struct td_tensor y);
/* Two of them on one input. */
void td_fused_apply2(const struct td_ops *ops, struct td_dev *dev, struct td_tensor x, const struct td_fused *w0, struct td_tensor y0, const struct td_fused *w1,
		     struct td_tensor y1);
/* y = swiglu of gate|up; `both`: room for their outputs. */
void td_fused_swiglu(const struct td_ops *ops, struct td_dev *dev, struct td_tensor x, const struct td_fused *w, struct td_tensor both, struct td_tensor y);

#endif
