/*
 * linear_int4.cu: y = W x for packed 4-bit weights and few rows, the same bits for a row in any company; packing and unpacking.
 *
 * Order of weights in memory: int4_order.cuh; arithmetic: int4_format.cuh, and int4_act8_format.cuh where the map takes activations in 8 bits. How the work is
 * split and in which order sums are made: linear_tile.cuh.
 */
#include "kernels/cuda/int4_act8_format.cuh"
#include "kernels/cuda/int4_format.cuh"

template <class ONE, class MORE>
static void run_parts(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, const struct linear_use &use)
{
	if (parts_of(w) == 1)
		run<ONE>(dev, x, w, y, use);
	else
		run<MORE>(dev, x, w, y, use);
}

/* What linear_wide.cu and linear_wide8.cu leave, up to 64 rows at a time. */
static void small(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, const struct linear_use &use)
{
	if ((w->act8 ? td__cuda_act8_wide : td__cuda_int4_wide)(dev, x, w, y, use.accumulate, use.paired))
		return;
	if (x.rows > TD_CUDA_SMALL) {
		small(dev, td_rows(x, 0, TD_CUDA_SMALL), w, td_rows(y, 0, TD_CUDA_SMALL), use);
		small(dev, td_rows(x, TD_CUDA_SMALL, x.rows - TD_CUDA_SMALL), w, td_rows(y, TD_CUDA_SMALL, x.rows - TD_CUDA_SMALL), use);
		return;
	}
	if (w->act8)
		run_parts<int4_act8_format<1>, int4_act8_format<UNITS> >(dev, x, w, y, use);
	else
		run_parts<int4_format<1>, int4_format<UNITS> >(dev, x, w, y, use);
}

void td__cuda_int4_small(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	struct linear_use use = {};

	use.accumulate = accumulate;
	small(dev, x, w, y, use);
}

void td__cuda_int4_gated(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y)
{
	struct linear_use use = {};

	use.paired = 1;
	small(dev, x, w, y, use);
}

/* ---- packing and unpacking --------------------------------------------------------------------------------------------------------- */

/* Where word i of the weights lies: its tile, first of its 4 columns, lane's g; and where it is kept, in words. */
struct place {
	int tile, k, g;
	size_t at;
};

static __device__ __forceinline__ struct place word_place(size_t i, int chunks, int parts)
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

/* A word of four codes of outputs g (low) and g + 8 (high), each with nibbles of columns k .. k + 3 from the lowest, as the format has it. */
static __device__ __forceinline__ uint32_t word_of(uint32_t low, uint32_t high, int act8)
{
	uint32_t v = 0;

	for (int j = 0; j < 4; j++)
		v |= (low >> 4 * j & 15) << (act8 ? 8 * j : 8 * (j >> 1) + 16 * (j & 1)) | (high >> 4 * j & 15) << (act8 ? 8 * j + 4 : 8 * (j >> 1) + 4 + 16 * (j & 1));
	return act8 ? v ^ 0x88888888u : v << 3 | v >> 29;
}

/* Row r (0 .. 15) of a tile among `rows`: paired, the first half's rows are the lower eight of the tiles. */
static __device__ __forceinline__ int row_of(int tile, int r, int rows, int paired)
{
	return paired ? tile * (TILE / 2) + r % 8 + (r < 8 ? 0 : rows / 2) : tile * TILE + r;
}

/* One thread makes one word. weight: (rows, in / 8) with the low nibble first; rows and columns beyond become code 8. */
static __global__ void repack_weights(uint32_t *dst, const uint32_t *weight, int rows, int in, int chunks, int parts, int paired, int act8, size_t words)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	struct place p = word_place(i, chunks, parts);
	uint32_t four[2];

	if (i >= words)
		return;
	for (int upper = 0; upper < 2; upper++) {
		int row = row_of(p.tile, p.g + 8 * upper, rows, paired);

		four[upper] = row < rows && p.k < in ? weight[(size_t)row * (in / 8) + p.k / 8] >> (p.k % 8 * 4) : 0x8888;
	}
	dst[p.at] = word_of(four[0], four[1], act8);
}

/* One thread places one scale: of a tile's chunk, part, row. Those of rows and columns beyond become 0. */
static __global__ void repack_scales(bf16 *dst, const bf16 *scale, int rows, int in, int group, int chunks, int parts, int paired, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, chunk = i / (16 * parts);
	int upper = i & 1, g = i >> 1 & 7, part = (int)(i >> 4) % parts, k = (int)(chunk % chunks) * CHUNK + part * (CHUNK / parts);
	int row = row_of((int)(chunk / chunks), g + 8 * upper, rows, paired);

	if (i < n)
		dst[chunk * (512 + 16 * parts) + 512 + i % (16 * parts)] =
			row < rows && k < in ? scale[(size_t)row * (in / group) + k / group] : __float2bfloat16(0.0f);
}

/* `rows` outputs from tile0 * TILE on; weight and scale are in device memory as the checkpoint has them, of a paired map the gates' rows first. */
void td__cuda_int4_repack(struct td_dev *dev, const struct td_linear *w, int tile0, int rows, const uint32_t *weight, const bf16 *scale)
{
	int chunks = div_up(w->in, CHUNK), parts = parts_of(w), tiles = div_up(rows, TILE), paired = td__cuda_paired(w);
	size_t words = (size_t)tiles * chunks * 256, scales = (size_t)tiles * chunks * parts * 16;
	char *dst = (char *)w->data + (size_t)tile0 * chunks * (1024 + 32 * parts);

	repack_weights<<<(unsigned)((words + 255) / 256), 256, 0, dev->stream>>>((uint32_t *)dst, weight, rows, w->in, chunks, parts, paired,
									       w->act8, words);
	repack_scales<<<(unsigned)((scales + 255) / 256), 256, 0, dev->stream>>>((bf16 *)dst, scale, rows, w->in, w->group, chunks, parts,
										paired, scales);
	td__cuda_launched(dev, "packing INT4 weights");
}

/* One thread makes one word, of two rows: each takes its nibbles, every other one, from where the row lies in `src`. */
static __global__ void pick_weights(uint32_t *dst, const uint32_t *src, const int32_t *id, int rows, int chunks, int parts, int act8, size_t words)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	struct place p = word_place(i, chunks, parts);
	uint32_t v = 0;

	if (i >= words)
		return;
	for (int upper = 0; upper < 2; upper++) {
		int row = p.tile * TILE + p.g + 8 * upper, from;
		uint32_t codes = act8 ? 0 : 0x08080808u;

		if (row < rows) {
			from = id[row];
			codes = src[word_place((((size_t)(from / TILE) * chunks + (i >> 8) % chunks) << 8) + (i & 0x8f) + (from % 8 << 4), chunks, parts).at];
			codes = (act8 ? codes : codes >> 3 | codes << 29) >> (from & 8 ? 4 : 0) & 0x0f0f0f0fu;
		}
		v |= codes << (4 * upper);
	}
	dst[p.at] = act8 ? v : v << 3 | v >> 29;
}

static __global__ void pick_scales(bf16 *dst, const bf16 *src, const int32_t *id, int rows, int chunks, int parts, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, chunk = i / (16 * parts), size = 512 + 16 * parts;
	int row = (int)(chunk / chunks) * TILE + (int)(i >> 1 & 7) + 8 * (int)(i & 1), part = (int)(i >> 4) % parts, from;
	bf16 scale = __float2bfloat16(0.0f);

	if (i >= n)
		return;
	if (row < rows) {
		from = id[row];
		scale = src[((size_t)(from / TILE) * chunks + chunk % chunks) * size + 512 + part * 16 + from % 8 * 2 + from / 8 % 2];
	}
	dst[chunk * size + 512 + i % (16 * parts)] = scale;
}

/* Rows `id` of a map that isn't paired, as a map of their own. */
void td__cuda_int4_rows(struct td_dev *dev, const struct td_linear *from, const int32_t *id, const struct td_linear *w)
{
	int chunks = div_up(w->in, CHUNK), parts = parts_of(w);
	size_t words = (size_t)div_up(w->out, TILE) * chunks * 256, scales = words / 16 * parts;

	pick_weights<<<(unsigned)((words + 255) / 256), 256, 0, dev->stream>>>((uint32_t *)w->data, (const uint32_t *)from->data, id, w->out, chunks, parts,
									     w->act8, words);
	pick_scales<<<(unsigned)((scales + 255) / 256), 256, 0, dev->stream>>>((bf16 *)w->data, (const bf16 *)from->data, id, w->out, chunks, parts, scales);
	td__cuda_launched(dev, "picking rows of INT4 weights");
}

/* Four weights of a row (registers r and r + 2 of 16 + code), each rounded once: taking 24 is exact. */
static __device__ __forceinline__ uint2 scaled(uint32_t a, uint32_t b, __nv_bfloat162 scale)
{
	const uint32_t v = 0x41c041c0u; /* 24, 24 */
	const __nv_bfloat162 bias = *reinterpret_cast<const __nv_bfloat162 *>(&v);
	__nv_bfloat162 lo = __hmul2(__hsub2(*reinterpret_cast<__nv_bfloat162 *>(&a), bias), scale);
	__nv_bfloat162 hi = __hmul2(__hsub2(*reinterpret_cast<__nv_bfloat162 *>(&b), bias), scale);

	return make_uint2(*reinterpret_cast<uint32_t *>(&lo), *reinterpret_cast<uint32_t *>(&hi));
}

/* The same registers as `expand` makes, of a word for activations in 8 bits. */
static __device__ __forceinline__ void expand_bytes(uint32_t v, uint32_t a[4])
{
	v ^= 0x88888888u;
#pragma unroll
	for (int r = 0; r < 4; r++) {
		uint32_t two = pick_bytes(v, 0, r >> 1 ? 0x4342 : 0x4140);

		a[r] = and_or(r & 1 ? two >> 1 : two << 3, 0x00780078u, 0x41804180u);
	}
}

/* One thread expands what a lane keeps of half a chunk: for two outputs 8 columns of each of two units, 16 bytes when expanded. */
template <int ACT8> static __global__ void expand_kernel(const uint32_t *src, bf16 *dense, int rows, int in, int chunks, int parts, size_t lanes)
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

		if (ACT8) {
			expand_bytes(u ? v.z : v.x, a[0]);
			expand_bytes(u ? v.w : v.y, a[1]);
		} else {
			expand(u ? v.z : v.x, a[0]);
			expand(u ? v.w : v.y, a[1]);
		}
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

	td__cuda_launch(dev, "expanding INT4 weights", w->act8 ? expand_kernel<1> : expand_kernel<0>, (unsigned)((lanes + 255) / 256), 256, 0, src, dense,
			rows, w->in, chunks, parts, lanes);
}
