/*
 * linear_bf16.cu: y = W x for plain row-major bf16 weights and 1 to 64 rows, the same bits for a row in any company.
 *
 * The frame is linear_tile.cuh. A lane's fragments of a unit are 8 neighbours of rows g, g + 8, ..: the columns of a unit are permuted alike for
 * weights and activations (column 8t + 4i + j belongs to product i), which leaves the product unchanged and makes each load 16 bytes. Sums are
 * the tensor core's float32, unit by unit. A length that is no multiple of 8, or data off 16 bytes, takes a plain kernel: one warp per output.
 */
#include "kernels/cuda/linear_tile.cuh"

struct bf16_format {
	enum { TILES = 2, SLOTS = 4, DEEP = WARPS >= 12 ? 4 : 5 }; /* slots: rows g, g + 8, g + 16, g + 24 of the strip; DEEP: stages for 16 rows */

	static __device__ __forceinline__ void fetch(const struct linear_args &p, uint4 *stage, int l, int lane)
	{
		int strip = l / p.units, k = (l - strip * p.units) * UNIT + (lane & 3) * 8, o = strip * 32 + (lane >> 2), left = (p.in - k) * 2;
		int bytes = left >= 16 ? 16 : left > 0 ? left : 0;
		const bf16 *w = (const bf16 *)p.w + (size_t)o * p.in + (bytes ? k : 0);

#pragma unroll
		for (int m = 0; m < SLOTS; m++) {
			int there = o + m * 8 < p.out;

			copy16(stage + m * 32, there ? w + (size_t)(m * 8) * p.in : (const bf16 *)p.w, there ? bytes : 0);
		}
	}

	template <int NT> static __device__ __forceinline__ void multiply(const uint4 *stage, const uint4 *rows, float acc[TILES][NT][4])
	{
		uint4 w[SLOTS], x[NT];

#pragma unroll
		for (int m = 0; m < SLOTS; m++)
			w[m] = stage[m * 32];
#pragma unroll
		for (int n = 0; n < NT; n++)
			x[n] = rows[n * 32];
#pragma unroll
		for (int m = 0; m < TILES; m++)
#pragma unroll
			for (int n = 0; n < NT; n++) {
				mma_bf16(acc[m][n], w[2 * m].x, w[2 * m + 1].x, w[2 * m].y, w[2 * m + 1].y, x[n].x, x[n].y);
				mma_bf16(acc[m][n], w[2 * m].z, w[2 * m + 1].z, w[2 * m].w, w[2 * m + 1].w, x[n].z, x[n].w);
			}
	}
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
