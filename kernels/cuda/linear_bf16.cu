/*
 * linear_bf16.cu: y = W x for plain row-major bf16 weights and 1 to 64 rows, the same bits for a row in any company.
 *
 * The frame is linear_tile.cuh. A lane's fragments of a unit are 8 neighbours of rows g, g + 8, ..: the columns of a unit are permuted alike for
 * weights and activations (column 8t + 4i + j belongs to product i), which leaves the product unchanged and makes each load 16 bytes. Sums are
 * the tensor core's float32, unit by unit. A length that is no multiple of 8, or data off 16 bytes, takes a plain kernel: one warp per output.
 */
#include "kernels/cuda/linear_tile.cuh"

struct bf16_format {
	enum {
		ROWS = 4,
		BYTES = ROWS * 512,
		DEEP = 4,
		WIDE = 2
	}; /* a lane's pieces: rows g, g + 8, g + 16, g + 24; DEEP, WIDE: stages for up to 16 rows, for more */

	struct lane {
		const bf16 *w; /* row g of the block's first strip, column 8t */
		int out, k; /* that row's number, column */
		uint32_t at;

		__device__ __forceinline__ lane(const struct linear_args &p, int strip0, int l)
		{
			out = strip0 * STRIP + (l >> 2);
			k = (l & 3) * 8;
			w = (const bf16 *)p.w + (size_t)out * p.in + k;
			at = l * 16;
		}

		__device__ __forceinline__ void fetch(const struct linear_args &p, uint32_t stage, const struct cursor &c, int u0)
		{
			int column = (u0 + c.u) * UNIT, left = (p.in - column - k) * 2, bytes = left >= 16 ? 16 : left > 0 ? left : 0;
			const bf16 *from = w + (size_t)(c.strip * STRIP) * p.in + column;

#pragma unroll
			for (int m = 0; m < ROWS; m++) {
				int there = bytes && out + c.strip * STRIP + m * 8 < p.out;

				copy16_to(stage + m * 512 + at, there ? from + (size_t)(m * 8) * p.in : (const bf16 *)p.w, there ? bytes : 0);
			}
		}

		template <int NT> __device__ __forceinline__ void multiply(uint32_t stage, uint32_t rows, float acc[2][NT][4])
		{
			uint4 w4[ROWS], x[NT];

#pragma unroll
			for (int m = 0; m < ROWS; m++)
				w4[m] = load16(stage + m * 512 + at);
#pragma unroll
			for (int n = 0; n < NT; n++)
				x[n] = load16(rows + n * 512);
#pragma unroll
			for (int m = 0; m < 2; m++)
#pragma unroll
				for (int n = 0; n < NT; n++) {
					mma_bf16(acc[m][n], w4[2 * m].x, w4[2 * m + 1].x, w4[2 * m].y, w4[2 * m + 1].y, x[n].x, x[n].y);
					mma_bf16(acc[m][n], w4[2 * m].z, w4[2 * m + 1].z, w4[2 * m].w, w4[2 * m + 1].w, x[n].z, x[n].w);
				}
		}
	};
};

/* One warp per output and row. */
static __global__ void plain_kernel(const struct linear_args p)
{
	int o = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31, row = blockIdx.y;
	const bf16 *w = (const bf16 *)p.w + (size_t)o * p.in, *x = p.x + (size_t)row * p.ldx;
	float v = 0;

	if (o >= p.out)
		return;
	for (int k = lane; k < p.in; k += 32)
		v += __bfloat162float(w[k]) * __bfloat162float(x[k]);
	v = warp_sum(v);
	if (lane == 0)
		put(p, row, o, v);
}

void td__cuda_bf16_small(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	struct linear_args p = {};

	if (w->in % 8 == 0 && x.ld % 8 == 0 && (uintptr_t)x.data % 16 == 0 && (uintptr_t)w->data % 16 == 0) {
		run<bf16_format>(dev, x, w, y, accumulate, NULL);
		return;
	}
	p.w = w->data;
	p.in = w->in;
	p.out = w->out;
	p.x = (const bf16 *)x.data;
	p.ldx = x.ld;
	p.y = y.data;
	p.ldy = y.ld;
	p.y_f32 = y.dtype == TD_F32;
	p.accumulate = accumulate;
	plain_kernel<<<dim3(div_up(w->out, 8), x.rows), 256, 0, dev->stream>>>(p);
	td__cuda_launched(dev, "linear (plain)");
}
