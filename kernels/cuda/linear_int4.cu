/*
 * linear_int4.cu: y = W x for packed 4-bit weights and 1 to 64 rows, the same bits for a row in any company.
 *
 * Arithmetic: mma.m16n8k16 on bf16(16 + code), which is exact, and the bf16 activations. The sums of a group's columns begin at -24 times the sum of
 * the activations, so that they end at the sum of (code - 8) x; they are multiplied by the group's scale and added in float32. So the weight is
 * exactly (code - 8) * scale; all error is that of float32 sums (some 1e-6 relative, as up to 31 x is added and taken away) and of the last rounding.
 * Subtracting 8 from each weight instead would cost four instructions in eleven.
 *
 * Order in memory (made once by repack): tiles of 16 outputs; in a tile chunks of 64 columns, 512 bytes each:
 *	chunk = [lane: 32] x 16 bytes; word 2u + i of lane (g, t): unit u (32 columns), product i (16 columns)
 *	nibble r (r + 4): first (second) element of fragment register a_r: output g + 8(r & 1), columns 32u + 8t + 4i + 2(r >> 1) (+ 1)
 *	the whole word is turned left by 3 bits, so that turning it right by 4r puts nibble r at bits 3 to 6 of both halves: the place of 1/16 .. 1/2
 *	in a bf16 of 16 to 32
 * so a lane loads its own fragments as they are, 16 bytes at a time, and a lane's 8 activations of a unit are neighbours too: x[g][8t .. 8t+7].
 * Scales follow all weights: [tile][group][g: 8][row g or g + 8: 2] bf16, 4 bytes for a lane.
 *
 * How the work is split and in which order sums are made: linear_tile.cuh.
 */
#include "kernels/cuda/linear_tile.cuh"

static size_t weight_bytes(int out, int in)
{
	return (size_t)div_up(out, TILE) * (size_t)div_up(in, CHUNK) * 512;
}

/* Eight codes -> four registers of two bf16(16 + code). */
static __device__ __forceinline__ void expand(uint32_t w, uint32_t a[4])
{
#pragma unroll
	for (int r = 0; r < 4; r++)
		a[r] = and_or(r ? __funnelshift_r(w, w, 4 * r) : w, 0x00780078u, 0x41804180u);
}

/* PARTS: how many groups the columns of a chunk lie in, at most; 2 when a group is no multiple of a chunk. */
template <int PARTS> struct int4_format {
	enum {
		BYTES = 512 + 32 * PARTS,
		TILES = 3,
		TILES_WIDE = 2,
		DEEP = 4
	}; /* of a tile's chunk: weights (32) x 16, scales (PARTS, 8) x 4; tiles of a pass for up to 16 rows, for more; stages */

	/* What a lane keeps. */
	struct lane {
		const char *w, *scale;
		size_t line;
		int lane_at, g, t, unit0;

		__device__ __forceinline__ lane(const struct linear_args &p, int tile0, int c0, int l)
		{
			line = (size_t)p.chunks * 512;
			g = l >> 2;
			t = l & 3;
			lane_at = l * 16;
			w = (const char *)p.w + tile0 * line + (size_t)c0 * 512 + lane_at;
			scale = (const char *)p.scale + (size_t)tile0 * p.groups * 32 + g * 4;
			unit0 = c0 * UNITS + t;
		}

		template <int T> __device__ __forceinline__ void fetch(const struct linear_args &p, uint32_t stage, int tile, int tiles, int c)
		{
			const char *from = w + tile * line + (size_t)c * 512;
			unsigned unit = unit0 + c * UNITS, group = p.group_units == 1 ? unit : __umulhi(unit, p.per_group);
			const char *s = scale + ((size_t)tile * p.groups + min(group, (unsigned)p.groups - 1)) * 32;

#pragma unroll
			for (int m = 0; m < T; m++)
				if (m < tiles) {
					copy16_to(stage + m * BYTES + lane_at, from + m * line);
					if (t < PARTS)
						copy4_to(stage + m * BYTES + 512 + t * 32 + g * 4, s + (size_t)m * p.groups * 32);
				}
		}

		/* What the sums of a group start with: -24 times the activations' sum, for the rows 2t and 2t + 1 of each eight. Made once, then kept. */
		template <int NT>
		__device__ __forceinline__ void start(float first[PARTS][NT][2], const uint4 x[UNITS][NT], uint32_t columns, int make)
		{
			const uint32_t one = 0x3f803f80u;

#pragma unroll
			for (int n = 0; n < NT; n++)
#pragma unroll
				for (int q = 0; q < PARTS; q++) {
					float c[4] = {0, 0, 0, 0};

					if (!make) {
						uint2 v = load8(columns + (q * NT + n) * 32 + t * 8);

						first[q][n][0] = __uint_as_float(v.x);
						first[q][n][1] = __uint_as_float(v.y);
						continue;
					}
#pragma unroll
					for (int u = q; u < (PARTS == 1 ? (int)UNITS : q + 1); u++) {
						mma_bf16(c, one, one, one, one, x[u][n].x, x[u][n].y);
						mma_bf16(c, one, one, one, one, x[u][n].z, x[u][n].w);
					}
					first[q][n][0] = -24.0f * c[0];
					first[q][n][1] = -24.0f * c[1];
					if (g == 0)
						store8(columns + (q * NT + n) * 32 + t * 8, __float_as_uint(first[q][n][0]), __float_as_uint(first[q][n][1]));
				}
		}

		template <int NT, int T>
		__device__ __forceinline__ void multiply(uint32_t stage, uint32_t rows, uint32_t columns, int tiles, int make, float acc[T][NT][4])
		{
			uint4 x[UNITS][NT];
			float first[PARTS][NT][2];

#pragma unroll
			for (int u = 0; u < UNITS; u++)
#pragma unroll
				for (int n = 0; n < NT; n++)
					x[u][n] = load16(rows + (u * NT + n) * 512 + lane_at);
			start<NT>(first, x, columns, make);
#pragma unroll
			for (int m = 0; m < T; m++) {
				if (m >= tiles)
					break;
				uint4 w4 = load16(stage + m * BYTES + lane_at);
				const uint32_t word[4] = {w4.x, w4.y, w4.z, w4.w};

#pragma unroll
				for (int q = 0; q < PARTS; q++) {
					uint32_t s = load4(stage + m * BYTES + 512 + q * 32 + g * 4);
					float lo = bf16_lo(s), hi = bf16_hi(s), c[NT][4];

#pragma unroll
					for (int n = 0; n < NT; n++) {
						c[n][0] = c[n][2] = first[q][n][0];
						c[n][1] = c[n][3] = first[q][n][1];
					}
#pragma unroll
					for (int i = q * 2; i < (PARTS == 1 ? 4 : q * 2 + 2); i++) {
						uint32_t a[4];

						expand(word[i], a);
#pragma unroll
						for (int n = 0; n < NT; n++)
							mma_bf16(c[n], a[0], a[1], a[2], a[3], i & 1 ? x[i / 2][n].z : x[i / 2][n].x,
								 i & 1 ? x[i / 2][n].w : x[i / 2][n].y);
					}
#pragma unroll
					for (int n = 0; n < NT; n++) {
						acc[m][n][0] += lo * c[n][0];
						acc[m][n][1] += lo * c[n][1];
						acc[m][n][2] += hi * c[n][2];
						acc[m][n][3] += hi * c[n][3];
					}
				}
			}
		}
	};
};

void td__cuda_int4_small(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	const char *scale = (const char *)w->data + weight_bytes(w->out, w->in);

	if (w->group % CHUNK == 0)
		run<int4_format<1> >(dev, x, w, y, accumulate, scale);
	else
		run<int4_format<2> >(dev, x, w, y, accumulate, scale);
}

/* ---- packing and unpacking --------------------------------------------------------------------------------------------------------- */

/* Where word i of the weights lies: its tile, chunk, lane (g, t) and place. */
struct place {
	int tile, k, g; /* k: first of its 4 columns */
};

static __device__ __forceinline__ struct place place_of(size_t i, int chunks)
{
	struct place p;
	int product = i & 1, unit = i >> 1 & 1, t = i >> 2 & 3;

	p.g = i >> 4 & 7;
	p.k = (int)(i >> 7) % chunks * CHUNK + unit * UNIT + t * 8 + product * 4;
	p.tile = (int)((i >> 7) / chunks);
	return p;
}

/* One thread makes one word. weight: (rows, in / 8) with the low nibble first; rows and columns beyond become code 8. */
static __global__ void repack_weights(uint32_t *dst, const uint32_t *weight, int rows, int in, int chunks, size_t words)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	struct place p = place_of(i, chunks);
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
	dst[i] = v << 3 | v >> 29;
}

/* One thread places one scale; those of rows beyond become 0. */
static __global__ void repack_scales(bf16 *dst, const bf16 *scale, int rows, int groups, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	int upper = i & 1, g = i >> 1 & 7, group = (int)(i >> 4) % groups, tile = (int)((i >> 4) / groups);
	int row = tile * TILE + g + 8 * upper;

	if (i < n)
		dst[i] = row < rows ? scale[(size_t)row * groups + group] : __float2bfloat16(0.0f);
}

/* `rows` outputs from tile0 * TILE on; weight and scale are in device memory as the checkpoint has them. */
void td__cuda_int4_repack(struct td_dev *dev, const struct td_linear *w, int tile0, int rows, const uint32_t *weight, const bf16 *scale)
{
	int chunks = div_up(w->in, CHUNK), groups = w->in / w->group, tiles = div_up(rows, TILE);
	size_t words = (size_t)tiles * chunks * 128, scales = (size_t)tiles * groups * TILE;
	uint32_t *dst = (uint32_t *)w->data + (size_t)tile0 * chunks * 128;
	bf16 *dst_scale = (bf16 *)((char *)w->data + weight_bytes(w->out, w->in)) + (size_t)tile0 * groups * TILE;

	repack_weights<<<(unsigned)((words + 255) / 256), 256, 0, dev->stream>>>(dst, weight, rows, w->in, chunks, words);
	repack_scales<<<(unsigned)((scales + 255) / 256), 256, 0, dev->stream>>>(dst_scale, scale, rows, groups, scales);
	td__cuda_launched(dev, "packing INT4 weights");
}

/* Four codes of a row (registers r and r + 2) -> bf16(code - 8) * scale, rounded once. */
static __device__ __forceinline__ uint2 scaled(uint32_t a, uint32_t b, __nv_bfloat162 scale)
{
	const uint32_t bias = 0x41c041c0u; /* 24, 24 */
	__nv_bfloat162 lo = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<const __nv_bfloat162 *>(&bias));
	__nv_bfloat162 hi = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&b), *reinterpret_cast<const __nv_bfloat162 *>(&bias));

	lo = __hmul2(lo, scale);
	hi = __hmul2(hi, scale);
	return make_uint2(*reinterpret_cast<uint32_t *>(&lo), *reinterpret_cast<uint32_t *>(&hi));
}

/* One thread expands what a lane keeps of a chunk: for two outputs 8 columns of each unit, 16 bytes when expanded. */
static __global__ void expand_kernel(const uint4 *src, const uint32_t *scale, bf16 *dense, int rows, int in, int chunks, int group, size_t lanes)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, n = i >> 5;
	int g = i >> 2 & 7, t = i & 3, tile = (int)(n / chunks), k0 = (int)(n % chunks) * CHUNK, there = i < lanes;
	uint32_t s[UNITS];
	uint4 v = {};

	if (there) {
		v = src[i];
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			int k = k0 + u * UNIT;

			s[u] = scale[((size_t)tile * (in / group) + (k < in ? k : 0) / group) * 8 + g];
		}
	}
	let_next_start();
	after_previous();
	if (!there)
		return;
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
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
	int chunks = div_up(w->in, CHUNK), groups = w->in / w->group, tile0 = row0 / TILE;
	size_t lanes = (size_t)div_up(rows, TILE) * chunks * 32;
	const uint4 *src = (const uint4 *)w->data + (size_t)tile0 * chunks * 32;
	const uint32_t *scale = (const uint32_t *)((const char *)w->data + weight_bytes(w->out, w->in)) + (size_t)tile0 * groups * (TILE / 2);

	td__cuda_launch(dev, "expanding INT4 weights", expand_kernel, (unsigned)((lanes + 255) / 256), 256, 0, src, scale, dense, rows, w->in, chunks,
			w->group, lanes);
}
