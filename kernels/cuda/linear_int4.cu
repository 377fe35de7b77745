/*
 * linear_int4.cu: y = W x for packed 4-bit weights and 1 to 64 rows, the same bits for a row in any company.
 *
 * Arithmetic: mma.m16n8k16 on bf16(code - 8), which is exact, and the bf16 activations; the float32 sum of 32 columns is multiplied by the
 * group's scale and added in float32. So the weight is exactly (code - 8) * scale; all error is that of float32 sums (about 1e-6 relative)
 * and of the last rounding to bf16.
 *
 * Order in memory (made once by repack): strips of 32 outputs; in a strip units of 32 columns, 512 bytes each:
 *	unit = [lane: 32] x 16 bytes; word 2m + i of lane (g, t): tile m (16 outputs), product i (16 columns)
 *	nibble r (r + 4): first (second) element of fragment register a_r: output 16m + g + 8(r & 1), columns 8t + 4i + 2(r >> 1) (+ 1)
 * so a lane loads its own fragments as they are, 16 bytes at a time, and a lane's 8 activations of a unit are neighbours too: x[g][8t .. 8t+7].
 * Scales follow all weights: [strip][group][g: 8][tile: 2][row g or g + 8: 2] bf16, 8 bytes for a lane.
 *
 * How the work is split and in which order sums are made: linear_tile.cuh.
 */
#include "kernels/cuda/linear_tile.cuh"

static size_t weight_bytes(int out, int in)
{
	return (size_t)div_up(out, STRIP) * (size_t)(in / UNIT) * 512;
}

/* Eight codes -> four registers of two bf16(code - 8): 128 + code is 0x4300 | code in bf16, and 128 + code - 136 is exact. */
static __device__ __forceinline__ void expand(uint32_t w, uint32_t a[4])
{
	const uint32_t bias = 0x43084308u; /* 136, 136 */

#pragma unroll
	for (int r = 0; r < 4; r++) {
		uint32_t v = and_or(w >> (4 * r), 0x000f000fu, 0x43004300u);
		__nv_bfloat162 d;

		d = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&v), *reinterpret_cast<const __nv_bfloat162 *>(&bias));
		a[r] = *reinterpret_cast<uint32_t *>(&d);
	}
}

struct int4_format {
	enum {
		BYTES = 768,
		DEEP = 6,
		WIDE = 3
	}; /* of a warp's unit: weights (32) x 16, scales (32) x 8; DEEP, WIDE: stages for up to 16 rows, for more */

	/* What a lane keeps. Units and groups both lie in one line, strip after strip. */
	struct lane {
		const char *w, *scale;
		uint32_t at;

		__device__ __forceinline__ lane(const struct linear_args &p, int, int l)
		{
			w = (const char *)p.w + l * 16;
			scale = (const char *)p.scale + (l >> 2) * 8;
			at = l * 16;
		}

		__device__ __forceinline__ void fetch(const struct linear_args &p, uint32_t stage, const struct cursor &c, int)
		{
			unsigned group = p.units_per_group == 1 ? c.l : __umulhi(c.l, p.per_group);

			copy16_to(stage + at, w + (size_t)c.l * 512);
			copy8_to(stage + 512 + at / 2, scale + (size_t)group * 64);
		}

		template <int NT> __device__ __forceinline__ void multiply(uint32_t stage, uint32_t rows, float acc[2][NT][4])
		{
			uint4 w4 = load16(stage + at), x[NT];
			uint2 s = load8(stage + 512 + at / 2);

#pragma unroll
			for (int n = 0; n < NT; n++)
				x[n] = load16(rows + n * 512);
#pragma unroll
			for (int m = 0; m < 2; m++) {
				uint32_t a[2][4];
				float lo = bf16_lo(m ? s.y : s.x), hi = bf16_hi(m ? s.y : s.x);

				expand(m ? w4.z : w4.x, a[0]);
				expand(m ? w4.w : w4.y, a[1]);
#pragma unroll
				for (int n = 0; n < NT; n++) {
					float c[4] = {0, 0, 0, 0};

					mma_bf16(c, a[0][0], a[0][1], a[0][2], a[0][3], x[n].x, x[n].y);
					mma_bf16(c, a[1][0], a[1][1], a[1][2], a[1][3], x[n].z, x[n].w);
					acc[m][n][0] += lo * c[0];
					acc[m][n][1] += lo * c[1];
					acc[m][n][2] += hi * c[2];
					acc[m][n][3] += hi * c[3];
				}
			}
		}
	};
};

void td__cuda_int4_small(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	run<int4_format>(dev, x, w, y, accumulate, (const char *)w->data + weight_bytes(w->out, w->in));
}

/* ---- packing and unpacking --------------------------------------------------------------------------------------------------------- */

/* Where word i of the weights lies: its strip, unit, lane (g, t) and place. */
struct place {
	int strip, u, g, t, tile, product;
};

static __device__ __forceinline__ struct place place_of(size_t i, int units)
{
	struct place p;

	p.product = i & 1;
	p.tile = i >> 1 & 1;
	p.t = i >> 2 & 3;
	p.g = i >> 4 & 7;
	p.u = (int)(i >> 7) % units;
	p.strip = (int)((i >> 7) / units);
	return p;
}

/* One thread makes one word. weight: (rows, in / 8) with the low nibble first; rows beyond become code 8. */
static __global__ void repack_weights(uint32_t *dst, const uint32_t *weight, int rows, int units, size_t words)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	struct place p = place_of(i, units);
	uint32_t v = 0;

	if (i >= words)
		return;
	for (int r = 0; r < 4; r++) {
		int row = p.strip * STRIP + p.tile * 16 + p.g + 8 * (r & 1), k = p.u * UNIT + p.t * 8 + p.product * 4 + 2 * (r >> 1);
		uint32_t pair = 0x88;

		if (row < rows)
			pair = weight[(size_t)row * (units * UNIT / 8) + k / 8] >> (k % 8 * 4) & 0xff;
		v |= (pair & 15) << (4 * r) | (pair >> 4) << (4 * r + 16);
	}
	dst[i] = v;
}

/* One thread places one scale; those of rows beyond become 0. */
static __global__ void repack_scales(bf16 *dst, const bf16 *scale, int rows, int groups, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	int upper = i & 1, tile = i >> 1 & 1, g = i >> 2 & 7, group = (int)(i >> 5) % groups, strip = (int)((i >> 5) / groups);
	int row = strip * STRIP + tile * 16 + g + 8 * upper;

	if (i < n)
		dst[i] = row < rows ? scale[(size_t)row * groups + group] : __float2bfloat16(0.0f);
}

/* `rows` outputs from strip0 * STRIP on; weight and scale are in device memory as the checkpoint has them. */
void td__cuda_int4_repack(struct td_dev *dev, const struct td_linear *w, int strip0, int rows, const uint32_t *weight, const bf16 *scale)
{
	int units = w->in / UNIT, groups = w->in / w->group, strips = div_up(rows, STRIP);
	size_t words = (size_t)strips * units * 128, scales = (size_t)strips * groups * STRIP;
	uint32_t *dst = (uint32_t *)w->data + (size_t)strip0 * units * 128;
	bf16 *dst_scale = (bf16 *)((char *)w->data + weight_bytes(w->out, w->in)) + (size_t)strip0 * groups * STRIP;

	repack_weights<<<(unsigned)((words + 255) / 256), 256, 0, dev->stream>>>(dst, weight, rows, units, words);
	repack_scales<<<(unsigned)((scales + 255) / 256), 256, 0, dev->stream>>>(dst_scale, scale, rows, groups, scales);
	td__cuda_launched(dev, "packing INT4 weights");
}

/* One thread expands one word: 8 weights of two outputs. */
static __global__ void expand_kernel(const uint32_t *src, const bf16 *scale, bf16 *dense, int rows, int units, int units_per_group, size_t words)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	struct place p = place_of(i, units);
	int k = p.u * UNIT + p.t * 8 + p.product * 4, in = units * UNIT, groups = units / units_per_group;
	uint32_t v;

	if (i >= words)
		return;
	v = src[i];
	for (int upper = 0; upper < 2; upper++) {
		int row = p.strip * STRIP + p.tile * 16 + p.g + 8 * upper;
		float s = __bfloat162float(scale[(((size_t)p.strip * groups + p.u / units_per_group) * 8 + p.g) * 4 + p.tile * 2 + upper]);
		int a = upper * 4, b = (2 + upper) * 4;
		uint2 out;

		out.x = bf16_pair(((int)(v >> a & 15) - 8) * s, ((int)(v >> (a + 16) & 15) - 8) * s);
		out.y = bf16_pair(((int)(v >> b & 15) - 8) * s, ((int)(v >> (b + 16) & 15) - 8) * s);
		if (row < rows)
			*reinterpret_cast<uint2 *>(dense + (size_t)row * in + k) = out;
	}
}

/* Outputs row0 .. row0 + rows - 1 as plain (rows, in) bf16, each weight rounded once; row0 is a multiple of STRIP. */
void td__cuda_int4_expand(struct td_dev *dev, const struct td_linear *w, int row0, int rows, bf16 *dense)
{
	int units = w->in / UNIT, groups = w->in / w->group, strip0 = row0 / STRIP;
	size_t words = (size_t)div_up(rows, STRIP) * units * 128;
	const uint32_t *src = (const uint32_t *)w->data + (size_t)strip0 * units * 128;
	const bf16 *scale = (const bf16 *)((const char *)w->data + weight_bytes(w->out, w->in)) + (size_t)strip0 * groups * STRIP;

	expand_kernel<<<(unsigned)((words + 255) / 256), 256, 0, dev->stream>>>(src, scale, dense, rows, units, w->group / UNIT, words);
	td__cuda_launched(dev, "expanding INT4 weights");
}
