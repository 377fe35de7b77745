/*
 * safetensors.h: read-only access to a checkpoint folder's tensors: one file, or shards with model.safetensors.index.json.
 *
 * Files are memory-mapped; every offset, size, dtype and shape of the header is checked at open, so that a lookup can be trusted.
 * A truncated or lying file is an error that names file and tensor. The set owns the mappings; tensors are views into it. What no check at
 * open can catch is a file that is cut while it is mapped: then a read of its pages ends the process, so replace a checkpoint by rename.
 */
#ifndef TD_SAFETENSORS_H
#define TD_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"
#include "kernels/kernels.h"

#define TD_ST_OTHER ((enum td_dtype)127)

struct td_st_tensor {
	const char *name;
	enum td_dtype dtype; /* what kernels.h names, else TD_ST_OTHER: refused by who looks it up, not by the file's reader */
	char dtype_name[12]; /* as the file spells it */
	int n_dims;
	int64_t dim[8];
	const void *data; /* not aligned to more than the file was: read with memcpy or as bytes when in doubt */
	size_t bytes;
	int used; /* set by td_st_find, so that a loader can tell what nobody asked for */
};

struct td_st; /* opaque */

int td_st_open(const char *dir, struct td_st **st, struct td_error *err); /* folder, or one .safetensors file */
void td_st_close(struct td_st *st);
/* Makes the contents of a synthetic set (model.h); before, its data reads as zeros, weight_shape excepted. Nothing to do for files. */
void td_st_fill(struct td_st *st);
/* NULL when absent. */
struct td_st_tensor *td_st_find(struct td_st *st, const char *name);
size_t td_st_count(const struct td_st *st);
struct td_st_tensor *td_st_at(struct td_st *st, size_t i); /* in the order of the names */
/* Element i of an F32, F16 or BF16 tensor. */
float td_st_value(const struct td_st_tensor *t, size_t i);
/* Identity of the files (a hash over names, sizes, modification times and headers) for a fingerprint; appended to text, under 64 bytes. */
void td_st_identity(const struct td_st *st, char *text, size_t size);

#endif
