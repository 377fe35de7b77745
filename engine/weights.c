/*
 * weights.c: what the two weight loaders share with their callers: the fingerprint of a checkpoint, and applying a fused map.
 *
 * The fingerprint answers one question: would loading this folder now, with this backend and this build, fill an arena with the same bytes
 * in the same places? So it covers the checkpoint files, config.json, the backend, the program's version and the arena's layout.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/config_read.h"
#include "engine/loader.h"
#include "engine/synthetic.h"

/* Raise it when the order or the form of anything in an arena changes. */
enum { LAYOUT = 5 };

static int config_hash(const char *dir, uint64_t *hash, struct td_error *err)
{
	struct td__cfg c;
	char *text = NULL;

	if (td_synthetic(dir))
		return td__synthetic_identity(dir, hash, err);
	if (td__cfg_open(&c, dir, "config.json", 16 << 20, err) == 0) {
		text = json_dumps(c.root, JSON_COMPACT | JSON_SORT_KEYS);
		if (!text)
			td__cfg_fail(&c, TD_E_NOMEM, "no memory");
		else
			*hash = XXH3_64bits(text, strlen(text));
	}
	free(text);
	td__cfg_close(&c);
	return c.rc;
}

void td__fingerprint_head(const struct td_ops *ops, int form, char head[96])
{
	snprintf(head, 96, "layout=%d version=%s backend=%s%s%s%s ", LAYOUT, TD_VERSION, ops->name, form & TD_FORM_BF16 ? " weights=bf16" : "",
		 !(form & TD_FORM_HEAD_INT4) ? "" : form & TD_FORM_HEAD_EXACT ? " head=rescored" : " head=int4", form & TD_FORM_ACT8 ? " activations=int8" : "");
}

static int identity(const char *dir, const struct td_st *st, char out[TD_IDENTITY], struct td_error *err)
{
	char files[96] = "";
	uint64_t config = 0;
	int rc = config_hash(dir, &config, err);

	if (rc)
		return rc;
	td_st_identity(st, files, sizeof(files));
	snprintf(out, TD_IDENTITY, "%s config=%016llx", files, (unsigned long long)config);
	return 0;
}

int td_weights_identity(const char *dir, char out[TD_IDENTITY], struct td_error *err)
{
	struct td_st *st = NULL;
	int rc = td_st_open(dir, &st, err);

	if (!rc)
		rc = identity(dir, st, out, err);
	td_st_close(st);
	return rc;
}

void td_weights_fingerprint_of(const struct td_ops *ops, const char identity[TD_IDENTITY], int form, char fingerprint[256])
{
	char head[96];

	td__fingerprint_head(ops, form, head);
	snprintf(fingerprint, 256, "%s%s", head, identity);
}

int td__fingerprint(const struct td_ops *ops, const char *dir, const struct td_st *st, int form, char fingerprint[256], struct td_error *err)
{
	char what[TD_IDENTITY];
	int rc = identity(dir, st, what, err);

	if (!rc)
		td_weights_fingerprint_of(ops, what, form, fingerprint);
	return rc;
}

int td_weights_fingerprint(const struct td_ops *ops, const char *dir, int form, char fingerprint[256], struct td_error *err)
{
	char what[TD_IDENTITY];
	int rc = td_weights_identity(dir, what, err);

	if (!rc)
		td_weights_fingerprint_of(ops, what, form, fingerprint);
	return rc;
}

void td_fused_apply(const struct td_ops *ops, struct td_dev *dev, struct td_tensor x, const struct td_fused *w, struct td_tensor y)
{
	for (int i = 0; i < w->n; i++)
		ops->linear(dev, x, &w->part[i], td_cols(y, w->off[i], w->part[i].out), 0);
}

void td_fused_apply2(const struct td_ops *ops, struct td_dev *dev, struct td_tensor x, const struct td_fused *w0, struct td_tensor y0, const struct td_fused *w1,
		     struct td_tensor y1)
{
	if (w0->n == 1 && w1->n == 1) {
		ops->linear2(dev, x, &w0->part[0], y0, &w1->part[0], y1);
		return;
	}
	td_fused_apply(ops, dev, x, w0, y0);
	td_fused_apply(ops, dev, x, w1, y1);
}

void td_fused_swiglu(const struct td_ops *ops, struct td_dev *dev, struct td_tensor x, const struct td_fused *w, struct td_tensor both, struct td_tensor y)
{
	if (w->n == 1) {
		ops->linear_swiglu(dev, x, &w->part[0], both, y);
		return;
	}
	td_fused_apply(ops, dev, x, w, both);
	ops->swiglu(dev, both, y);
}
