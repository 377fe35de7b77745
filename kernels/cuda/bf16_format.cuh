/*
 * bf16_format.cuh: plain row-major bf16 weights, for the frame of linear_tile.cuh.
 *
 * A lane's fragments of a unit are 8 neighbours of rows g and g + 8: the columns of a unit are permuted alike for weights and activations (column
 * 8t + 4i + j belongs to product i), which leaves the product unchanged and makes each load 16 bytes. Sums are the tensor core's float32, unit by unit.
 */
#ifndef TD_CUDA_BF16_FORMAT_CUH
#define TD_CUDA_BF16_FORMAT_CUH

#include "kernels/cuda/linear_tile.cuh"

struct bf16_format {
	enum { TILES = 1, STARTS = 0, ROW = CHUNK * 2, EIGHT = 0, DEEP = 2, COST_TILE = 54, COST_STEP = 22, COST_PART = 0 };

	static __device__ __forceinline__ void keep(const uint4 x[UNITS], uint32_t to, uint32_t, int)
	{
		keep_bf16(x, to);
	}
	template <int NT> static __device__ __forceinline__ uint32_t start(uint32_t, int)
	{
		return 0;
	}

	/* Where a lane reads next: rows g and g + 8 of a tile, column 8t of a chunk. Rows beyond the last are read as the last. */
	template <int T> struct line {
		const bf16 *low, *high;
		int k;

		__device__ __forceinline__ void start(const struct linear_args &p, int tile, int c)
		{
			int l = threadIdx.x & 31, o = tile * TILE + (l >> 2);

			k = c * CHUNK + (l & 3) * 8;
			low = (const bf16 *)p.w + (size_t)min(o, p.out - 1) * p.in + k;
			high = (const bf16 *)p.w + (size_t)min(o + 8, p.out - 1) * p.in + k;
		}
		__device__ __forceinline__ void step(int chunks)
		{
			k += chunks * CHUNK;
			low += chunks * CHUNK;
			high += chunks * CHUNK;
		}
	};

	/* A lane's weights of one chunk of a tile: 8 columns of each unit. */
	template <int T> struct lane {
		uint4 w[UNITS][2];

		__device__ __forceinline__ void load(const struct linear_args &p, const struct line<T> &from)
		{
#pragma unroll
			for (int u = 0; u < UNITS; u++) {
				int there = from.k + u * UNIT < p.in;

				w[u][0] = there ? load_once(from.low + u * UNIT) : make_uint4(0, 0, 0, 0);
				w[u][1] = there ? load_once(from.high + u * UNIT) : make_uint4(0, 0, 0, 0);
			}
		}

		template <int NT> __device__ __forceinline__ void multiply(uint32_t x_sh, uint32_t pitch, uint32_t, float acc[T][NT][4]) const
		{
#pragma unroll
			for (int u = 0; u < UNITS; u++)
#pragma unroll
				for (int n = 0; n < NT; n++) {
					uint4 x = load16(x_sh + n * 8 * pitch + u * (UNIT * 2)), a = w[u][0], b = w[u][1];

					mma_bf16(acc[0][n], a.x, b.x, a.y, b.y, x.x, x.y);
					mma_bf16(acc[0][n], a.z, b.z, a.w, b.w, x.z, x.w);
				}
		}
	};
};

#endif
