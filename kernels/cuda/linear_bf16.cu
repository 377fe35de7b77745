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
		BYTES = UNITS * 1024,
		TILES = 1,
		TILES_WIDE = 1,
		DEEP = 4
	}; /* of a tile's chunk: (unit, row g or g + 8, lane) x 16; tiles of a pass for up to 16 rows, for more; stages */

	struct lane {
		const bf16 *w; /* row g of the block's first tile, column 8t of its first chunk */
		int out, k; /* that row's number, column */
		uint32_t lane_at;

		__device__ __forceinline__ lane(const struct linear_args &p, int tile0, int c0, int l)
		{
			out = tile0 * TILE + (l >> 2);
			k = c0 * CHUNK + (l & 3) * 8;
			w = (const bf16 *)p.w + (size_t)out * p.in + k;
			lane_at = l * 16;
		}

		template <int T> __device__ __forceinline__ void fetch(const struct linear_args &p, uint32_t stage, int tile, int, int c)
		{
			const bf16 *from = w + (size_t)(tile * TILE) * p.in + c * CHUNK;

#pragma unroll
			for (int u = 0; u < UNITS; u++) {
				int left = (p.in - k - c * CHUNK - u * UNIT) * 2, bytes = left >= 16 ? 16 : left > 0 ? left : 0;

#pragma unroll
				for (int m = 0; m < 2; m++) {
					int there = bytes && out + tile * TILE + m * 8 < p.out;

					copy16_to(stage + (u * 2 + m) * 512 + lane_at, there ? from + (size_t)(m * 8) * p.in + u * UNIT : (const bf16 *)p.w,
						  there ? bytes : 0);
				}
			}
		}

		template <int NT, int T>
		__device__ __forceinline__ void multiply(uint32_t stage, uint32_t rows, uint32_t, int, int, float acc[T][NT][4])
		{
#pragma unroll
			for (int u = 0; u < UNITS; u++) {
				uint4 a = load16(stage + u * 1024 + lane_at), b = load16(stage + u * 1024 + 512 + lane_at);

#pragma unroll
				for (int n = 0; n < NT; n++) {
					uint4 x = load16(rows + (u * NT + n) * 512 + lane_at);

					mma_bf16(acc[0][n], a.x, b.x, a.y, b.y, x.x, x.y);
					mma_bf16(acc[0][n], a.z, b.z, a.w, b.w, x.z, x.w);
				}
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
