/*
 * synthetic.h: models without files, for this folder only; what they are for stands in model.h (td_synthetic).
 *
 * A name "synthetic:NAME[:option...]" stands where a folder's path would: the configuration comes from a table, and td_st_open gives a set of
 * tensors whose names, types and shapes are those of the published checkpoint and whose contents are random, a pure function of the name.
 */
#ifndef TD_SYNTHETIC_H
#define TD_SYNTHETIC_H

#include "engine/model.h"
#include "engine/safetensors.h"

int td__synthetic_target(const char *name, struct td_target_config *c, struct td_error *err);
int td__synthetic_drafter(const char *name, struct td_drafter_config *c, struct td_error *err);
/* Stands for the bytes that all tensors will hold. */
int td__synthetic_identity(const char *name, uint64_t *identity, struct td_error *err);

/* Tensors are listed at once and addresses reserved; the random bytes are made by td__synthetic_fill, for who really reads them. */
struct td__synthetic;
int td__synthetic_list(const char *name, struct td_st *st, struct td__synthetic **out, struct td_error *err);
void td__synthetic_fill(struct td__synthetic *s);
void td__synthetic_free(struct td__synthetic *s);

/* safetensors.c: appends a tensor to a set that is being made */
int td__st_add(struct td_st *st, const char *name, enum td_dtype dtype, const int64_t *dim, int n_dims, struct td_error *err);

#endif
