/*
 * int4_order.cuh: how packed 4-bit weights lie in memory, whatever a format (int4_format.cuh, int4_act8_format.cuh) makes of their words.
 *
 * Tiles of 16 outputs; in a tile chunks of 128 columns, each 1,024 bytes of weights and then its scales:
 *	chunk = [half: 2][lane: 32] x 16 bytes; word 4 half + 2u' + i of lane (g, t): unit u = 2 half + u' (32 columns): outputs g and g + 8,
 *	columns 32u + 8t + 4i .. + 3; the format says which bits
 *	scales = [part][g: 8][row g or g + 8: 2] bf16, 4 bytes for a lane; one part where a group is a multiple of a chunk, else one for each unit
 * so a lane loads its own fragments as they are, 16 bytes at a time, and a lane's 8 activations of a unit are neighbours too: x[g][8t .. 8t+7].
 */
#ifndef TD_CUDA_INT4_ORDER_CUH
#define TD_CUDA_INT4_ORDER_CUH

#include "kernels/cuda/linear_tile.cuh"

static inline int parts_of(const struct td_linear *w)
{
	return td_pack_parts(w->group);
}

template <int P> struct int4_order {
	enum { PARTS = P, BYTES = 1024 + 32 * P, TILES = P == 1 ? 3 : 2, UNITS_OF = UNITS / P };

	/* Where a lane reads next, in T tiles. Tiles beyond the last are read as the last, and their sums not used. */
	template <int T> struct line {
		const char *at[T];

		__device__ __forceinline__ void start(const struct linear_args &p, int tile, int c)
		{
#pragma unroll
			for (int m = 0; m < T; m++)
				at[m] = (const char *)p.w + ((size_t)min(tile + m, p.tiles - 1) * p.chunks + c) * BYTES + (threadIdx.x & 31) * 16;
		}
		__device__ __forceinline__ void step(int chunks)
		{
#pragma unroll
			for (int m = 0; m < T; m++)
				at[m] += chunks * BYTES;
		}
	};

	/* A lane's weights of one chunk of T tiles. */
	template <int T> struct words {
		uint4 w[T][2];
		uint32_t scale[T][P];

		__device__ __forceinline__ void load(const struct linear_args &, const struct line<T> &from)
		{
			int l = threadIdx.x & 31, back = (l >> 2) * 4 - l * 16;

#pragma unroll
			for (int m = 0; m < T; m++) {
				w[m][0] = load_once(from.at[m]);
				w[m][1] = load_once(from.at[m] + 512);
#pragma unroll
				for (int q = 0; q < P; q++)
					scale[m][q] = __ldg((const uint32_t *)(from.at[m] + back + 1024 + q * 32));
			}
		}
	};
};

#endif
