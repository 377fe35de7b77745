/*
 * rows8.cuh: activations in 8 bits as products of warpgroups read them from shared memory: an image that a kernel makes before (arrange8), by blocks of rows and
 * chunks of columns, each fetched in one piece.
 *
 * Of a block's chunk: ROWS rows of 128 bytes, whose 16-byte pieces are exchanged as the hardware wants it to read without conflicts (piece p of row r lies at
 * p ^ r % 8). Pieces 2u and 2u + 1 are unit u in the order of a product's depth: byte 4t + j is column 32u + 8t + j, byte 16 + 4t + j column 32u + 8t + 4 + j.
 * Then the rows' scales / 16, in the order in which a lane reads those of its rows 8n + 2t, 8n + 2t + 1 of two eights n at once.
 */
#ifndef TD_CUDA_ROWS8_CUH
#define TD_CUDA_ROWS8_CUH

#include "kernels/cuda/int4_act8_format.cuh"

enum { ROW8_BYTES = CHUNK, ARRANGE8_WARPS = 4 };

static inline __host__ __device__ constexpr int image8_bytes(int rows)
{
	return rows * (ROW8_BYTES + 4);
}

/* Where parts of an image lie, in bytes: a block of rows, then of a chunk its rows and its scales. */
struct image8 {
	char *at;
	size_t block;
	int row_step, scales, scale_step;
};

/* A warp arranges eight rows of a chunk. grid (chunks, eights of rows / ARRANGE8_WARPS); rows and columns beyond are zero. */
template <int ROWS> static __global__ void __launch_bounds__(ARRANGE8_WARPS * 32) arrange8(const struct linear_args p, const struct image8 image, int eights)
{
	int c = blockIdx.x, eight = blockIdx.y * ARRANGE8_WARPS + threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, n = eight % (ROWS / 8);
	int row = eight * 8 + g, col = c * CHUNK + t * 8;
	char *to = image.at + eight / (ROWS / 8) * image.block;
	float scale;
	uint4 v[UNITS];
	uint2 q[UNITS];

	let_next_start();
	after_previous();
	if (eight >= eights)
		return;
	row_chunk(p, row, col, v);
	scale = act8_round(v, q);
#pragma unroll
	for (int h = 0; h < 2; h++)
		*(uint4 *)(to + (size_t)c * image.row_step + (n * 8 + g) * ROW8_BYTES + ((h * 4 + t) ^ g) * 16) =
			turn_words(make_uint4(q[2 * h].x, q[2 * h].y, q[2 * h + 1].x, q[2 * h + 1].y));
	if (t == 0)
		*(float *)(to + image.scales + (size_t)c * image.scale_step + (n >> 1) * 64 + (g >> 1) * 16 + (n & 1) * 8 + (g & 1) * 4) = scale;
}

#endif
