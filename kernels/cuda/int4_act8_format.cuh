/*
 * int4_act8_format.cuh: packed 4-bit weights times activations in 8 bits (td_linear.act8), for the frame of linear_tile.cuh.
 *
 * Arithmetic: mma.m16n8k32 on bytes, a weight as 16 times (code - 8). The sum over a group's columns in a chunk is exact; it becomes a float without a
 * conversion (act8.cuh), is multiplied by weight scale times activation scale and added in float32. So sums of a group are the same in any order, and what
 * order is left is that of groups.
 *
 * A word (int4_order.cuh): byte j has of column 32u + 8t + 4i + j output g's code in the low half, output g + 8's in the high one, each with 8 flipped: code - 8
 * in two's complement. So a half in the high place of its byte is the byte to multiply: three operations for eight weights.
 */
#ifndef TD_CUDA_INT4_ACT8_FORMAT_CUH
#define TD_CUDA_INT4_ACT8_FORMAT_CUH

#include "kernels/cuda/act8.cuh"
#include "kernels/cuda/int4_order.cuh"

/* Two words of a unit -> the fragments of a product. */
static __device__ __forceinline__ void act8_weights(uint32_t first, uint32_t second, uint32_t a[4])
{
	const uint32_t high = 0xf0f0f0f0u;

	a[0] = first << 4 & high;
	a[1] = first & high;
	a[2] = second << 4 & high;
	a[3] = second & high;
}

/* A lane's fragments of part q of P of a tile's chunk, which lies at w in shared memory. */
template <int P> static __device__ __forceinline__ void act8_part(uint32_t w, int q, uint32_t a[UNITS / P][4])
{
#pragma unroll
	for (int i = 0; i < UNITS / P; i += 2) {
		int u = q * (UNITS / P) + i;
		uint4 v = load16(w + u / 2 * 512 + (threadIdx.x & 31) * 16);

		if (P < UNITS) {
			act8_weights(v.x, v.y, a[i]);
			act8_weights(v.z, v.w, a[(i + 1) % (UNITS / P)]);
		} else {
			act8_weights(u & 1 ? v.z : v.x, u & 1 ? v.w : v.y, a[0]);
		}
	}
}

template <int P> struct int4_act8_format : int4_order<P> {
	enum { STARTS = 1, ROW = CHUNK, EIGHT = 1, DEEP = P == 1 ? 6 : 4, COST_TILE = 45, COST_STEP = 8, COST_PART = 30, UNITS_OF = UNITS / P };

	/* The activations as bytes, and of each row and chunk the scale. */
	static __device__ __forceinline__ void keep(const uint4 x[UNITS], uint32_t to, uint32_t scales, int)
	{
		uint2 q[UNITS];
		float scale = act8_round(x, q);

		store16(to, make_uint4(q[0].x, q[0].y, q[1].x, q[1].y));
		store16(to + 64, make_uint4(q[2].x, q[2].y, q[3].x, q[3].y));
		if ((threadIdx.x & 3) == 0)
			store4(scales + (threadIdx.x >> 2 & 7) * 4, __float_as_uint(scale));
	}

	/* Where a lane's scales of chunk c are, of rows 2t and 2t + 1. */
	template <int NT> static __device__ __forceinline__ uint32_t start(uint32_t scales, int c)
	{
		return scales + c * (NT * 32) + (threadIdx.x & 3) * 8;
	}

	template <int T> struct lane : int4_order<P>::template words<T> {
		template <int NT> __device__ __forceinline__ void multiply(uint32_t x_sh, uint32_t pitch, uint32_t scales, float acc[T][NT][4]) const
		{
			enum { SOME = NT < 4 ? NT : 4 }; /* eights of rows at once */

#pragma unroll
			for (int n0 = 0; n0 < NT; n0 += SOME) {
				uint4 x[2][SOME];
				float2 s[SOME];

#pragma unroll
				for (int n = 0; n < SOME; n++) {
					s[n] = load8(scales + (n0 + n) * 32);
					x[0][n] = load16(x_sh + (n0 + n) * 8 * pitch);
					x[1][n] = load16(x_sh + (n0 + n) * 8 * pitch + 64);
				}
#pragma unroll
				for (int m = 0; m < T; m++) {
					int32_t c[SOME][4];

#pragma unroll
					for (int half = 0; half < 2; half++) {
						uint4 v = this->w[m][half];

						add<SOME, 0>(v.x, v.y, half * 2, m, x[half], s, c, acc[m] + n0);
						add<SOME, 1>(v.z, v.w, half * 2 + 1, m, x[half], s, c, acc[m] + n0);
					}
				}
			}
		}

	private:
		/* Unit u of tile m: words `first` and `second`. ODD: the second unit of the activations at hand. */
		template <int SOME, int ODD>
		__device__ __forceinline__ void add(uint32_t first, uint32_t second, int u, int m, const uint4 x[SOME], const float2 s[SOME], int32_t c[SOME][4],
						    float (*acc)[4]) const
		{
			uint32_t a[4];

			act8_weights(first, second, a);
#pragma unroll
			for (int n = 0; n < SOME; n++) {
				float *to = acc[n];
				int32_t *sum = c[n];

				if (u % UNITS_OF == 0)
					mma_bytes_on(sum, act8_zero, a, ODD ? x[n].z : x[n].x, ODD ? x[n].w : x[n].y);
				else
					mma_bytes(sum, a, ODD ? x[n].z : x[n].x, ODD ? x[n].w : x[n].y);
				if ((u + 1) % UNITS_OF == 0) {
					float lo = bf16_lo(this->scale[m][u / UNITS_OF]), hi = bf16_hi(this->scale[m][u / UNITS_OF]);

					to[0] = fmaf(act8_sum(sum[0]), lo * s[n].x, to[0]);
					to[1] = fmaf(act8_sum(sum[1]), lo * s[n].y, to[1]);
					to[2] = fmaf(act8_sum(sum[2]), hi * s[n].x, to[2]);
					to[3] = fmaf(act8_sum(sum[3]), hi * s[n].y, to[3]);
				}
			}
		}
	};
};

#endif
