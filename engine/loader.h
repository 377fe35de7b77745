/*
 * loader.h: from a checkpoint's tensors to an arena's contents, for the two weight loaders of this folder only.
 *
 * A model says once, in a `td__build` function, which tensors it wants and where their device addresses go. That function runs twice: in
 * the PLAN pass it only checks names, types and shapes and adds up the arena's size; then the arena is made and in the FILL pass the same
 * calls in the same order get their final addresses and are packed or uploaded. So a bad checkpoint is refused before memory is taken.
 * The weights' struct itself goes to the arena's end (note.c): a successor takes configuration and addresses from there, and asks no file.
 *
 * The first error sticks: later calls do nothing, so that a build function needs no error paths. Device memory is never dereferenced.
 */
#ifndef TD_LOADER_H
#define TD_LOADER_H

#include "engine/model.h"
#include "engine/safetensors.h"

enum td__pass { TD__PLAN, TD__FILL };

struct td__loader {
	const struct td_ops *ops;
	struct td_dev *dev;
	const char *dir;
	const struct td_quant *quant;
	struct td_st *st;
	const char *prefix; /* of every name: "", "model.", "model.language_model." */
	char where[64]; /* after the prefix: "layers.3.mlp.", set by td__load_at */
	enum td__pass pass;
	uintptr_t base; /* of the arena; 0 in the PLAN pass */
	size_t at;
	uint64_t done, total; /* bytes of the checkpoint */
	struct td_load how;
	int paired; /* the maps that are loaded now are gate|up (td_linear.paired) */
	int rc;
	struct td_error *err;
};

struct td__module {
	const char *name;
	int out;
};

typedef void td__build(struct td__loader *l, void *weights);
struct td__mover;

/* A kind of model, to load, plan, take over and free its weights by. */
struct td__weights_kind {
	const char *name;
	size_t size, arena, quant; /* of its struct, and where in it struct td_arena and struct td_quant lie */
	int (*config)(const char *dir, void *weights, struct td_error *err);
	td__build *build; /* sets l->prefix first */
	void (*pointers)(void *weights, struct td__mover *m); /* td__move for each pointer into the arena */
};

/* Reads the configuration, opens the checkpoint, writes its fingerprint, runs both passes. The weights own the new arena; *out is NULL on failure. */
int td__weights_load(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, const char *dir, const struct td_load *how,
		     void **out, char fingerprint[256], struct td_error *err);
/* The first pass alone: bytes of the arena, and the weights as that leaves them, without data (NULL after an error; for free). Only ops->name and
 * ops->pack_bytes are used. */
int td__weights_plan(const struct td__weights_kind *kind, const struct td_ops *ops, const char *dir, int form, size_t *bytes, void **weights, struct td_error *err);
void td__weights_free(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, void *weights);
int td__fingerprint(const struct td_ops *ops, const char *dir, const struct td_st *st, int form, char fingerprint[256], struct td_error *err);
void td__fingerprint_head(const struct td_ops *ops, int form, char head[96]); /* what it begins with: build, layout, backend, form */

/* note.c: the weights' struct at the end of its own arena. */
size_t td__note_bytes(const struct td__weights_kind *kind);
int td__note_write(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, const void *weights, const struct td_arena *arena,
		   const char *fingerprint, struct td_error *err);
/* malloc'd, its addresses those of `arena`, which stays the caller's. */
int td__note_read(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, int form, void **weights,
		  char fingerprint[256], struct td_error *err);
/* As td__note_read, and *kept moves into the weights (and is zeroed). */
int td__weights_take(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, struct td_arena *kept, int form, void **weights,
		     char fingerprint[256], struct td_error *err);
void td__move(struct td__mover *m, void *at); /* `at`: the address of a pointer; NULL pointers stay */
void td__move_linear(struct td__mover *m, struct td_linear *w);
void td__move_fused(struct td__mover *m, struct td_fused *f);
void td__move_attn(struct td__mover *m, struct td_attn *a);

void td__load_at(struct td__loader *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int td__load_has(struct td__loader *l, const char *name); /* prefix + where + name */

/* A small tensor as float32: (n), or with cols > 0 (n, cols) or (n, 1, cols). */
const float *td__load_small(struct td__loader *l, const char *name, int n, int cols);
/* Rotary frequencies theta^(-2j/dim), j < dim/2. */
const float *td__load_inv_freq(struct td__loader *l, int dim, float theta);
/* A BF16 table (rows, cols), plain row-major. */
void *td__load_table(struct td__loader *l, const char *name, int rows, int cols);
/* A BF16 table as a map of 4 bits, quantised while loading. */
void td__load_quantised(struct td__loader *l, const char *name, int out, int in, struct td_linear *w);
void td__load_linear(struct td__loader *l, const char *name, int out, int in, struct td_linear *w);
/* Modules side by side; neighbours of one format become one map. */
void td__load_fused(struct td__loader *l, const struct td__module *m, int n, int in, struct td_fused *f);
/* gate|up, for td_fused_swiglu. */
void td__load_gate_up(struct td__loader *l, const struct td__module m[2], int in, struct td_fused *f);
/* The modules from m[first] on once more, as a map of their own: rows of `all`'s memory where its order allows, else packed again. */
void td__load_tail(struct td__loader *l, const struct td__module *m, int n, int first, int in, const struct td_fused *all, struct td_fused *f);

#endif
