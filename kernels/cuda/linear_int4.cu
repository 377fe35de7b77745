/*
 * linear_int4.cu: y = W x for packed 4-bit weights and 1 to 64 rows, the same bits for a row in any company.
 *
 * Arithmetic: mma.m16n8k16 on bf16(code - 8), which is exact, and the bf16 activations; the float32 sum of a group's columns, or of the part of a group
 * in a chunk, is multiplied by the group's scale and added in float32. So the weight is exactly (code - 8) * scale; all error is that of float32 sums
 * (about 1e-6 relative) and of the last rounding to bf16. To start the sums at -24 times the activations' sum instead of taking 24 from each 16 + code
 * saves one instruction in four of the loop and costs more than that in front of it, where nothing overlaps.
 *
 * Order in memory (made once by repack): tiles of 16 outputs; in a tile chunks of 128 columns, each 1,024 bytes of weights and then its scales:
 *	chunk = [half: 2][lane: 32] x 16 bytes; word 4 half + 2u' + i of lane (g, t): unit u = 2 half + u' (32 columns), product i (16 columns)
 *	nibble r (r + 4): first (second) element of fragment register a_r: output g + 8(r & 1), columns 32u + 8t + 4i + 2(r >> 1) (+ 1)
 *	the whole word is turned left by 3 bits, so that turning it right by 4r puts nibble r at bits 3 to 6 of both halves: the place of 1/16 .. 1/2
 *	in a bf16 of 16 to 32
 *	scales = [part][g: 8][row g or g + 8: 2] bf16, 4 bytes for a lane; one part where a group is a multiple of a chunk, else one for each unit
 * so a lane loads its own fragments as they are, 16 bytes at a time, and a lane's 8 activations of a unit are neighbours too: x[g][8t .. 8t+7].
 *
 * How the work is split and in which order sums are made: linear_tile.cuh.
 */
#include "kernels/cuda/linear_tile.cuh"

static int parts_of(const struct td_linear *w)
{
	return td_pack_parts(w->group);
}

/* Eight codes -> four registers of two bf16(code - 8): bf16(16 + code) is a matter of bits, and taking 24 from it is exact. */
static __device__ __forceinline__ void expand(uint32_t w, uint32_t a[4])
{
	const uint32_t bias = 0x41c041c0u; /* 24, 24 */

#pragma unroll
	for (int r = 0; r < 4; r++) {
		uint32_t v = and_or(r ? __funnelshift_r(w, w, 4 * r) : w, 0x00780078u, 0x41804180u);
		__nv_bfloat162 d = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&v), *reinterpret_cast<const __nv_bfloat162 *>(&bias));

		a[r] = *reinterpret_cast<uint32_t *>(&d);
	}
}

template <int P> struct int4_format {
	enum { PARTS = P, BYTES = 1024 + 32 * P, TILES = 3 };

	/* Where a lane reads next, in T tiles. Tiles beyond the last are read as the last, and their sums not used. */
	template <int T> struct line {
		const char *at[T];

		__device__ __forceinline__ void start(const struct linear_args &p, int tile, int c)
		{
#pragma unroll
			for (int m = 0; m < T; m++)
				at[m] = (const char *)p.w + ((size_t)min(tile + m, p.tiles - 1) * p.chunks + c) * BYTES + (threadIdx.x & 31) * 16;
		}
		__device__ __forceinline__ void step()
		{
#pragma unroll
			for (int m = 0; m < T; m++)
				at[m] += K_PARTS * BYTES;
		}
	};

	/* A lane's weights of one chunk of T tiles. */
	template <int T> struct lane {
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

		template <int NT> __device__ __forceinline__ void multiply(uint32_t x_sh, uint32_t pitch, float acc[T][NT][4]) const
		{
			float c[T][NT][4];

#pragma unroll
			for (int u = 0; u < UNITS; u++) {
				uint4 x[NT];

#pragma unroll
				for (int n = 0; n < NT; n++)
					x[n] = load16(x_sh + n * 8 * pitch + u * (UNIT * 2));
#pragma unroll
				for (int m = 0; m < T; m++) {
					uint4 v = w[m][u / 2];
					uint32_t a[4], b[4];

					expand(u & 1 ? v.z : v.x, a);
					expand(u & 1 ? v.w : v.y, b);
#pragma unroll
					for (int n = 0; n < NT; n++) {
						if (u % (UNITS / P) == 0)
							c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
						mma_bf16(c[m][n], a[0], a[1], a[2], a[3], x[n].x, x[n].y);
						mma_bf16(c[m][n], b[0], b[1], b[2], b[3], x[n].z, x[n].w);
					}
				}
				if ((u + 1) % (UNITS / P) == 0)
#pragma unroll
					for (int m = 0; m < T; m++) {
						uint32_t s = scale[m][u / (UNITS / P)];

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

	/* The block's weights into the L2 cache. */
	static __device__ __forceinline__ void ask(const struct linear_args &p, int tile0, int tiles, int c0, int chunks)
	{
		for (int i = threadIdx.x / 32; i < tiles; i += WARPS) {
			const char *from = (const char *)p.w + ((size_t)(tile0 + i) * p.chunks + c0) * BYTES;

#pragma unroll 1
			for (int k = (threadIdx.x & 31) * 128; k < chunks * BYTES; k += 32 * 128)
				prefetch_line(from + k);
		}
	}
};

void td__cuda_int4_small(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	if (parts_of(w) == 1)
		run<int4_format<1> >(dev, x, w, y, accumulate);
	else
		run<int4_format<UNITS> >(dev, x, w, y, accumulate);
}

/* ---- packing and unpacking --------------------------------------------------------------------------------------------------------- */

/* Where word i of the weights lies: its tile, first of its 4 columns, lane's g; and where it is kept, in words. */
struct place {
	int tile, k, g;
	size_t at;
};

static __device__ __forceinline__ struct place place_of(size_t i, int chunks, int parts)
{
	struct place p;
	int product = i & 1, unit = (i >> 1 & 1) + 2 * (i >> 7 & 1), t = i >> 2 & 3;
	size_t chunk = i >> 8;

	p.g = i >> 4 & 7;
	p.k = (int)(chunk % chunks) * CHUNK + unit * UNIT + t * 8 + product * 4;
	p.tile = (int)(chunk / chunks);
	p.at = i + chunk * parts * 8;
	return p;
}

/* One thread makes one word. weight: (rows, in / 8) with the low nibble first; rows and columns beyond become code 8. */
static __global__ void repack_weights(uint32_t *dst, const uint32_t *weight, int rows, int in, int chunks, int parts, size_t words)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	struct place p = place_of(i, chunks, parts);
	uint32_t v = 0;

	if (i >= words)
		return;
	for (int r = 0; r < 4; r++) {
		int row = p.tile * TILE + p.g + 8 * (r & 1), k = p.k + 2 * (r >> 1);
		uint32_t pair = 0x88;

		if (row < rows && k < in)
			pair = weight[(size_t)row * (in / 8) + k / 8] >> (k % 8 * 4) & 0xff;
		v |= (pair & 15) << (4 * r) | (pair >> 4) << (4 * r + 16);
	}
	dst[p.at] = v << 3 | v >> 29;
}

/* One thread places one scale: of a tile's chunk, part, row. Those of rows and columns beyond become 0. */
static __global__ void repack_scales(bf16 *dst, const bf16 *scale, int rows, int in, int group, int chunks, int parts, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, chunk = i / (16 * parts);
	int upper = i & 1, g = i >> 1 & 7, part = (int)(i >> 4) % parts, k = (int)(chunk % chunks) * CHUNK + part * (CHUNK / parts);
	int row = (int)(chunk / chunks) * TILE + g + 8 * upper;

	if (i < n)
		dst[chunk * (512 + 16 * parts) + 512 + i % (16 * parts)] =
			row < rows && k < in ? scale[(size_t)row * (in / group) + k / group] : __float2bfloat16(0.0f);
}

/* `rows` outputs from tile0 * TILE on; weight and scale are in device memory as the checkpoint has them. */
void td__cuda_int4_repack(struct td_dev *dev, const struct td_linear *w, int tile0, int rows, const uint32_t *weight, const bf16 *scale)
{
	int chunks = div_up(w->in, CHUNK), parts = parts_of(w), tiles = div_up(rows, TILE);
	size_t words = (size_t)tiles * chunks * 256, scales = (size_t)tiles * chunks * parts * 16;
	char *dst = (char *)w->data + (size_t)tile0 * chunks * (1024 + 32 * parts);

	repack_weights<<<(unsigned)((words + 255) / 256), 256, 0, dev->stream>>>((uint32_t *)dst, weight, rows, w->in, chunks, parts, words);
	repack_scales<<<(unsigned)((scales + 255) / 256), 256, 0, dev->stream>>>((bf16 *)dst, scale, rows, w->in, w->group, chunks, parts, scales);
	td__cuda_launched(dev, "packing INT4 weights");
}

/* Four weights of a row (registers r and r + 2), each rounded once. */
static __device__ __forceinline__ uint2 scaled(uint32_t a, uint32_t b, __nv_bfloat162 scale)
{
	__nv_bfloat162 lo = __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&a), scale), hi = __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&b), scale);

	return make_uint2(*reinterpret_cast<uint32_t *>(&lo), *reinterpret_cast<uint32_t *>(&hi));
}

/* One thread expands what a lane keeps of half a chunk: for two outputs 8 columns of each of two units, 16 bytes when expanded. */
static __global__ void expand_kernel(const uint32_t *src, bf16 *dense, int rows, int in, int chunks, int parts, size_t lanes)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, n = i >> 6;
	int g = i >> 2 & 7, t = i & 3, half = i >> 5 & 1, tile = (int)(n / chunks), k0 = (int)(n % chunks) * CHUNK + half * 2 * UNIT, there = i < lanes;
	uint32_t s[2];
	uint4 v = {};

	if (there) {
		src += n * (256 + 8 * parts);
		v = *(const uint4 *)(src + (i & 63) * 4);
#pragma unroll
		for (int u = 0; u < 2; u++)
			s[u] = src[256 + (parts == 1 ? 0 : half * 2 + u) * 8 + g];
	}
	let_next_start();
	after_previous();
	if (!there)
		return;
#pragma unroll
	for (int u = 0; u < 2; u++) {
		int k = k0 + u * UNIT + t * 8;
		uint32_t a[2][4];

		expand(u ? v.z : v.x, a[0]);
		expand(u ? v.w : v.y, a[1]);
#pragma unroll
		for (int upper = 0; upper < 2; upper++) {
			int row = tile * TILE + g + 8 * upper;
			__nv_bfloat162 f = __bfloat162bfloat162(__ushort_as_bfloat16((unsigned short)(upper ? s[u] >> 16 : s[u])));
			uint2 lo = scaled(a[0][upper], a[0][upper + 2], f), hi = scaled(a[1][upper], a[1][upper + 2], f);

			if (row < rows && k < in)
				*reinterpret_cast<uint4 *>(dense + (size_t)row * in + k) = make_uint4(lo.x, lo.y, hi.x, hi.y);
		}
	}
}

/* Outputs row0 .. row0 + rows - 1 as plain (rows, in) bf16, each weight rounded once; row0 is a multiple of TILE. */
void td__cuda_int4_expand(struct td_dev *dev, const struct td_linear *w, int row0, int rows, bf16 *dense)
{
	int chunks = div_up(w->in, CHUNK), parts = parts_of(w);
	size_t lanes = (size_t)div_up(rows, TILE) * chunks * 64;
	const uint32_t *src = (const uint32_t *)((const char *)w->data + (size_t)(row0 / TILE) * chunks * (1024 + 32 * parts));

	td__cuda_launch(dev, "expanding INT4 weights", expand_kernel, (unsigned)((lanes + 255) / 256), 256, 0, src, dense, rows, w->in, chunks, parts, lanes);
}
