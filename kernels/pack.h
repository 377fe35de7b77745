/*
 * pack.h: bytes of a packed linear map on each backend (td_ops.pack_bytes), as plain arithmetic that needs no backend: tandemd plans memory with it
 * and links no kernels. The backends use these same functions, so plan and arena can't differ. Their orders are described where they pack.
 */
#ifndef TD_PACK_H
#define TD_PACK_H

#include "kernels/kernels.h"

enum { TD_PACK_STRIP = 32 /* CUDA: rows of a strip */, TD_PACK_UNIT = 32 /* and columns of a unit */ };

/* Rows one after the other: codes, then scales. 0: there is no form for these sizes. */
static inline size_t td_pack_bytes_cpu(enum td_weight_kind kind, int out, int in, int group)
{
	if (out <= 0 || in <= 0)
		return 0;
	if (kind == TD_W_BF16)
		return (size_t)out * (size_t)in * 2;
	return kind == TD_W_INT4 && group >= 8 && group % 8 == 0 && in % group == 0 ? (size_t)out * ((size_t)in / 2 + (size_t)(in / group) * 2) : 0;
}

/* Strips of rows, the last one filled up; then their scales. */
static inline size_t td_pack_bytes_cuda(enum td_weight_kind kind, int out, int in, int group)
{
	size_t strips = ((size_t)out + TD_PACK_STRIP - 1) / TD_PACK_STRIP, units = ((size_t)in + TD_PACK_UNIT - 1) / TD_PACK_UNIT;
	size_t groups = group > 0 ? ((size_t)in + (size_t)group - 1) / (size_t)group : 1;

	if (kind == TD_W_BF16)
		return (size_t)out * (size_t)in * 2;
	return strips * units * (TD_PACK_STRIP * TD_PACK_UNIT / 2) + strips * groups * TD_PACK_STRIP * 2;
}

#endif
