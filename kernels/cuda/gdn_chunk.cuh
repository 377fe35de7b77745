/*
 * gdn_chunk.cuh: what the two halves of the chunked delta rule share: gdn_chunk.cu, where it is explained, and gdn_local.cu.
 */
#ifndef TD_CUDA_GDN_CHUNK_CUH
#define TD_CUDA_GDN_CHUNK_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/gdn.cuh"
#include "kernels/pack.h"

enum {
	N = TD_SCRATCH_CHUNK, /* tokens of a chunk */
	P_UNITS = 10, /* 16 x 16 blocks on and below the diagonal */
};
static_assert(TD_CUDA_LARGE % N == 0, "a run is whole chunks");

struct chunk_args {
	struct gdn_args g;
	int groups; /* of 16 columns of a value head */
	int chunk0, count; /* this launch's chunks of each run */
	int together; /* local: value heads at a time */
	int stages; /* scan: 1, or 2 where shared memory allows */
	/* by chunk (place in the batch / 64) and head; 32 lanes of 16 bytes make a unit */
	uint4 *q, *k; /* (chunks, k_heads, k_dim / 16 * 4 units): (dims, tokens); (tokens, dims) */
	uint4 *w; /* (chunks, v_heads, k_dim / 16 * 4 units): (dims, tokens) */
	uint4 *p; /* (chunks, v_heads, P_UNITS units) */
	uint4 *u; /* (chunks, v_heads, groups * 4 units): (columns, tokens) */
	float *decay; /* (chunks, v_heads, 2, N): exp(G), exp(G_last - G) */
};

static __device__ __forceinline__ int unit_block(int i, int j)
{
	return i * (i + 1) / 2 + j;
}

/* gdn_local.cu: shared memory of a block with c.together; most value heads of a key head; the launch. */
enum { GDN_LOCAL_GROUP = 8 };
size_t td__cuda_gdn_local_bytes(const struct chunk_args &c);
void td__cuda_gdn_local(struct td_dev *, const struct chunk_args &c, int n_seq);

#endif
