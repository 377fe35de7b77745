/*
 * linear_bf16.cu: y = W x for plain row-major bf16 weights and 1 to 64 rows, the same bits for a row in any company.
 *
 * The frame is linear_tile.cuh. A lane's fragments of a unit are 8 neighbours of rows g, g + 8, ..: the columns of a unit are permuted alike for
 * weights and activations (column 8t + 4i + j belongs to product i), which leaves the product unchanged and makes each load 16 bytes. Sums are
 * the tensor core's float32, unit by unit. A length that is no multiple of 8, or data off 16 bytes, takes a plain kernel: one warp per output.
 */
#include "kernels/cuda/linear_tile.cuh"

struct bf16_format {
	enum { TILES = 1 };

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
		__device__ __forceinline__ void step()
		{
			k += K_PARTS * CHUNK;
			low += K_PARTS * CHUNK;
			high += K_PARTS * CHUNK;
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

		template <int NT> __device__ __forceinline__ void multiply(uint32_t x_sh, uint32_t pitch, float acc[T][NT][4]) const
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

	static __device__ __forceinline__ void ask(const struct linear_args &p, int tile0, int tiles, int c0, int chunks)
	{
		int bytes = min(chunks * CHUNK, p.in - c0 * CHUNK) * 2, rows = min(tiles * TILE, p.out - tile0 * TILE);

		for (int i = threadIdx.x / 32; i < rows; i += WARPS)
#pragma unroll 1
			for (int k = (threadIdx.x & 31) * 128; k < bytes; k += 32 * 128)
				prefetch_line((const char *)p.w + ((size_t)(tile0 * TILE + i) * p.in + c0 * CHUNK) * 2 + k);
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
		run<bf16_format>(dev, x, w, y, accumulate);
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
