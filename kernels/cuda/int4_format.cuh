/*
 * int4_format.cuh: packed 4-bit weights, for the frame of linear_tile.cuh.
 *
 * Arithmetic: mma.m16n8k16 on bf16(16 + code), which is a matter of bits and exact, and the bf16 activations. The float32 sum of a group's columns, or of the
 * part of a group in a chunk, starts at -24 times the sum of its activations (begin), is multiplied by the group's scale and added in float32. So the weight
 * is exactly (code - 8) * scale; all error is that of float32 sums (about 1e-6 relative) and of the last rounding to bf16. To take 24 from each weight
 * instead is a quarter of the loop's instructions, and it is these that take the time.
 *
 * A word (int4_order.cuh): nibble r (r + 4) is the first (second) element of fragment register a_r: output g + 8(r & 1), columns 32u + 8t + 4i + 2(r >> 1) (+ 1);
 * the whole word is turned left by 3 bits, so that turning it right by 4r puts nibble r at bits 3 to 6 of both halves: the place of 1/16 .. 1/2 in a bf16
 * of 16 to 32.
 */
#ifndef TD_CUDA_INT4_FORMAT_CUH
#define TD_CUDA_INT4_FORMAT_CUH

#include "kernels/cuda/int4_order.cuh"

/* Eight codes -> four registers of two bf16(16 + code). */
static __device__ __forceinline__ void expand(uint32_t w, uint32_t a[4])
{
#pragma unroll
	for (int r = 0; r < 4; r++)
		a[r] = and_or(r ? __funnelshift_r(w, w, 4 * r) : w, 0x00780078u, 0x41804180u);
}

template <int P> struct int4_format : int4_order<P> {
	enum { STARTS = P, ROW = CHUNK * 2, EIGHT = 0, DEEP = 2, COST_TILE = 54, COST_STEP = 22, COST_PART = 0, UNITS_OF = UNITS / P };

	/* Of eight rows of a chunk -24 times the sums of their activations, each group's part q by itself, by products with ones: put(q, row 2t's, row 2t + 1's),
	 * in lane 4g + t. */
	template <class PUT> static __device__ __forceinline__ void starts_of(const uint4 x[UNITS], PUT put)
	{
		const uint32_t one = 0x3f803f80u; /* 1, 1 */

#pragma unroll
		for (int q = 0; q < P; q++) {
			float sum[4] = {};

#pragma unroll
			for (int u = q * UNITS_OF; u < (q + 1) * UNITS_OF; u++) {
				mma_bf16(sum, one, one, one, one, x[u].x, x[u].y);
				mma_bf16(sum, one, one, one, one, x[u].z, x[u].w);
			}
			put(q, -24 * sum[0], -24 * sum[1]);
		}
	}

	/* The activations and these to shared memory, parts `step` bytes apart. */
	static __device__ __forceinline__ void keep(const uint4 x[UNITS], uint32_t to, uint32_t starts, int step)
	{
		keep_bf16(x, to);
		starts_of(x, [&](int q, float a, float b) {
			if ((threadIdx.x & 31) < 4)
				store8(starts + q * step + (threadIdx.x & 3) * 8, a, b);
		});
	}

	/* Where a lane's starts of chunk c are. */
	template <int NT> static __device__ __forceinline__ uint32_t start(uint32_t starts, int c)
	{
		return starts + c * (P * NT * 32) + (threadIdx.x & 3) * 8;
	}

	/* A lane's weights of one chunk of T tiles. */
	template <int T> struct lane : int4_order<P>::template words<T> {
		template <int NT> __device__ __forceinline__ void multiply(uint32_t x_sh, uint32_t pitch, uint32_t starts, float acc[T][NT][4]) const
		{
			enum { SOME = NT < 4 ? NT : 4 }; /* eights of rows whose activations are in registers at once */
			float c[T][NT][4];

#pragma unroll
			for (int i = 0; i < UNITS * (NT / SOME); i++) {
				int u = i / (NT / SOME), n0 = i % (NT / SOME) * SOME;
				uint4 x[SOME];
				float2 from[SOME];

#pragma unroll
				for (int n = 0; n < SOME; n++)
					if (u % UNITS_OF == 0)
						from[n] = load8(starts + (u / UNITS_OF * NT + n0 + n) * 32);
#pragma unroll
				for (int n = 0; n < SOME; n++)
					x[n] = load16(x_sh + (n0 + n) * 8 * pitch + u * (UNIT * 2));
#pragma unroll
				for (int m = 0; m < T; m++) {
					uint4 v = this->w[m][u / 2];
					uint32_t a[4], b[4];

					expand(u & 1 ? v.z : v.x, a);
					expand(u & 1 ? v.w : v.y, b);
#pragma unroll
					for (int n = 0; n < SOME; n++) {
						if (u % UNITS_OF == 0)
							mma_bf16_on(c[m][n0 + n], from[n].x, from[n].y, a, x[n].x, x[n].y);
						else
							mma_bf16(c[m][n0 + n], a[0], a[1], a[2], a[3], x[n].x, x[n].y);
						mma_bf16(c[m][n0 + n], b[0], b[1], b[2], b[3], x[n].z, x[n].w);
					}
				}
				if ((u + 1) % UNITS_OF == 0 && n0 + SOME == NT)
#pragma unroll
					for (int m = 0; m < T; m++) {
						uint32_t s = this->scale[m][u / UNITS_OF];

#pragma unroll
						for (int n = 0; n < NT; n++) {
							acc[m][n][0] += bf16_lo(s) * c[m][n][0];
							acc[m][n][1] += bf16_lo(s) * c[m][n][1];
							acc[m][n][2] += bf16_hi(s) * c[m][n][2];
							acc[m][n][3] += bf16_hi(s) * c[m][n][3];
						}
					}
			}
		}
	};
};

#endif
