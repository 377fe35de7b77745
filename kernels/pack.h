/*
 * pack.h: bytes of a packed linear map on each backend (td_ops.pack_bytes) and of what the CUDA operations work in (td_ops.lend), as plain arithmetic
 * that needs no backend: tandemd plans memory with it and links no kernels. The backends use these same functions, so plan and arena can't differ. Their
 * orders are described where they pack.
 */
#ifndef TD_PACK_H
#define TD_PACK_H

#include "kernels/kernels.h"

enum { TD_PACK_TILE = 16 /* CUDA: rows of a tile */, TD_PACK_CHUNK = 128 /* and columns of a chunk */ };

/* Rows one after the other: codes, then scales. 0: there is no form for these sizes. */
static inline size_t td_pack_bytes_cpu(enum td_weight_kind kind, int out, int in, int group)
{
	if (out <= 0 || in <= 0)
		return 0;
	if (kind == TD_W_BF16)
		return (size_t)out * (size_t)in * 2;
	return kind == TD_W_INT4 && group >= 8 && group % 8 == 0 && in % group == 0 ? (size_t)out * ((size_t)in / 2 + (size_t)(in / group) * 2) : 0;
}

/* Scales of a row in a chunk: of the group, where a group is a multiple of a chunk, else of each 32 columns. */
static inline int td_pack_parts(int group)
{
	return group % TD_PACK_CHUNK ? TD_PACK_CHUNK / 32 : 1;
}

/* Tiles of rows, the last one filled up, in chunks of columns, likewise, each with its scales. */
static inline size_t td_pack_bytes_cuda(enum td_weight_kind kind, int out, int in, int group)
{
	size_t tiles = ((size_t)out + TD_PACK_TILE - 1) / TD_PACK_TILE, chunks = ((size_t)in + TD_PACK_CHUNK - 1) / TD_PACK_CHUNK;

	if (kind == TD_W_BF16)
		return (size_t)out * (size_t)in * 2;
	return tiles * chunks * (size_t)TD_PACK_TILE * (TD_PACK_CHUNK / 2 + 2 * (size_t)td_pack_parts(group));
}

enum { TD_SCRATCH_CHUNK = 64 /* recurrent layers: tokens of a chunk */ };

/* Recurrent layers, whole blocks of a prompt (gdn_chunk.cu): of each chunk q and k of a key head, W, U, P and decays of a value head. */
static inline size_t td_scratch_gdn(int rows, int k_heads, int v_heads, int k_dim, int v_dim)
{
	size_t row = TD_SCRATCH_CHUNK * 2, wide = ((size_t)v_dim + 15) / 16 * 16, k = (size_t)k_dim, lower = 16 * 512, decays = TD_SCRATCH_CHUNK * 2 * 4;

	return ((size_t)rows / TD_SCRATCH_CHUNK + 1) * ((size_t)k_heads * 2 * k * row + (size_t)v_heads * ((k + wide) * row + lower + decays));
}

/* What an engine asks of the CUDA operations; a field that an engine has no use for is 0. */
struct td_scratch_of {
	int rows, logit_rows, vocab; /* rows of a step, rows that get logits */
	int kv_heads, head_dim;
	int k_heads, v_heads, k_dim, v_dim; /* recurrent layers */
};

enum { TD_SCRATCH_PAIRS = 64, TD_SCRATCH_SPANS = 33 /* attention: of a work item, at most */, TD_SCRATCH_PIECE = 4096 /* sampling: ids of a block */,
       TD_SCRATCH_OF_PIECE = 24, TD_SCRATCH_LIST = 2048 /* and bytes of what it leaves and of its list */ };

/* The largest of: expanded weights, partial sums or arranged rows of a product (512 rows of 60,000 columns are 64 MiB); the partial results of one work item
 * of attention (of more items when there is room);
 * outputs of the recurrent layers, or their chunks; processed logits or, in their place, the lists of their best. */
static inline size_t td_scratch_cuda(const struct td_scratch_of *o)
{
	size_t least = (size_t)64 << 20;
	size_t attention = (size_t)o->kv_heads * TD_SCRATCH_PAIRS * TD_SCRATCH_SPANS * ((size_t)o->head_dim * 4 + 8);
	size_t steps = (size_t)o->rows * (size_t)o->v_heads * (size_t)o->v_dim * 4;
	size_t chunks = o->v_heads ? td_scratch_gdn(o->rows, o->k_heads, o->v_heads, o->k_dim, o->v_dim) : 0, recurrent = steps > chunks ? steps : chunks;
	size_t pieces = (size_t)(o->vocab + TD_SCRATCH_PIECE - 1) / TD_SCRATCH_PIECE;
	size_t row = (size_t)o->vocab * 4 > pieces * TD_SCRATCH_LIST ? (size_t)o->vocab * 4 : pieces * TD_SCRATCH_LIST;
	size_t sampling = (size_t)o->logit_rows * (row + pieces * TD_SCRATCH_OF_PIECE + 256) + 1024, most = attention > recurrent ? attention : recurrent;

	most = most > sampling ? most : sampling;
	return ((most > least ? most : least) + ((size_t)2 << 20)) >> 20 << 20;
}

#endif
