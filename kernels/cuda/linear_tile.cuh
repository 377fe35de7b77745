/*
 * linear_tile.cuh: the frame of both small linear kernels (linear_int4.cu, linear_bf16.cu): 1 to 64 rows, the same bits for a row in any company.
 *
 * A map is cut into tiles of 16 outputs and chunks of 128 columns; a weight format F says how a lane loads its share of a tile's chunk and how it
 * multiplies. A block takes a rectangle of tiles times chunks, chosen so that every multiprocessor has about the same work:
 *
 *	columns		| slice 0: chunks 0 .. n-1 | slice 1 ...
 *	tiles 0 .. k-1	|       block (0, 0)       |  block (0, 1)
 *	tiles k .. 2k-1	|       block (1, 0)       |  block (1, 1)
 *
 * Wide maps have one slice. Narrow ones (few tiles, many columns) have several, and the last block of a row of the picture adds their sums.
 * In a block warp (k, n) takes every K_PARTS-th chunk of T tiles, the n-th of N_PARTS such groups: one pass of the block is N_PARTS * T tiles. Weights go
 * from memory to registers, a step (a chunk of T tiles) ahead of the products; the first before the kernel waits for the one before it, as weights depend
 * on nothing that is computed. (To ask the block's weights into the L2 cache ahead of that costs a tenth: the loads queue behind the asking.) The
 * activations of the slice lie in shared memory as they are. At the end of a pass the K_PARTS sums of an output are added.
 *
 * Row invariance: an output is the sum over slices of the sum over K_PARTS of the sum over chunks, each in one order that hangs on the weight's
 * shape and the GPU alone: the cut never looks at the number of rows.
 */
#ifndef TD_CUDA_LINEAR_TILE_CUH
#define TD_CUDA_LINEAR_TILE_CUH

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/pack.h"

enum {
	TILE = TD_PACK_TILE,
	CHUNK = TD_PACK_CHUNK,
	UNIT = 32, /* columns of two products: a lane's 16 bytes of activations */
	UNITS = CHUNK / UNIT,
	K_PARTS = 4,
	N_PARTS = 3,
	WARPS = K_PARTS * N_PARTS,
	THREADS = WARPS * 32,
	ARRIVALS = 8 /* barriers on which activations arrive, at most */
};

struct linear_args {
	const void *w;
	int in, out, chunks, tiles; /* of the whole map */
	int block_chunks, block_tiles; /* of a block */
	const bf16 *x; /* (rows, ldx) */
	int ldx, rows;
	void *y; /* (rows, ldy) */
	int ldy, y_f32, accumulate, by_four; /* four neighbours at once */
	int paired; /* rows g of a tile are gates, g + 8 what they let through: y (rows, out / 2) is swiglu */
	float *partial; /* (slices, rows, tiles * TILE) */
	unsigned *counter; /* NULL: the slices' sums stay where they are */
};

/* One output. */
static __device__ __forceinline__ void put(const struct linear_args &p, int row, int o, float v)
{
	size_t at = (size_t)row * p.ldy + o;

	if (p.y_f32) {
		float *y = (float *)p.y;

		y[at] = p.accumulate ? y[at] + v : v;
	} else {
		bf16 *y = (bf16 *)p.y;

		y[at] = __float2bfloat16(p.accumulate ? __bfloat162float(y[at]) + v : v);
	}
}

/* Four neighbours, as far as the map goes. */
static __device__ __forceinline__ void put4(const struct linear_args &p, int row, int o, float4 v)
{
	size_t at = (size_t)row * p.ldy + o;

	if (o >= p.out)
		return;
	if (p.by_four && p.y_f32) {
		float4 *y = (float4 *)((float *)p.y + at);

		if (p.accumulate) {
			float4 old = *y;

			v = make_float4(old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w);
		}
		*y = v;
	} else if (p.by_four && !p.accumulate) {
		*(uint2 *)((bf16 *)p.y + at) = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
	} else {
		const float each[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
		for (int i = 0; i < 4; i++)
			if (o + i < p.out)
				put(p, row, o + i, each[i]);
	}
}

/* Four gates and their fellows, from output o of the map on. */
static __device__ __forceinline__ void put_gated(const struct linear_args &p, int row, int o, float4 gate, float4 up)
{
	size_t at = (size_t)row * p.ldy + o / TILE * (TILE / 2) + o % TILE;

	if (o < p.out) /* a whole tile: the map is of such */
		*(uint2 *)((bf16 *)p.y + at) = make_uint2(bf16_pair(silu(gate.x) * up.x, silu(gate.y) * up.y), bf16_pair(silu(gate.z) * up.z, silu(gate.w) * up.w));
}

static __device__ __forceinline__ float4 add4(float4 a, float4 b)
{
	return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* What a block of NT * 8 rows keeps in shared memory, in this order. A row of activations is `pitch` bytes; the 64 beyond its chunks make the reads of a
 * product fall on all banks. */
template <class F, int NT, int T> struct linear_shape {
	static constexpr int wide = N_PARTS * T * TILE, round = NT < 2 ? NT : 2; /* rows summed at once at a pass's end, in eights */
	static constexpr size_t sums = (size_t)K_PARTS * round * 8 * (wide + 4) * 4; /* (K_PARTS, rows, wide + 4) */
	static constexpr size_t chunk = (size_t)NT * 8 * CHUNK * 2, rest = NT * 8 * 64; /* (rows, pitch) */
};
static __device__ __forceinline__ uint32_t row_pitch(const struct linear_args &p)
{
	return p.block_chunks * (CHUNK * 2) + 64;
}

/* Chunks that arrive together: a few steps' worth, so that the first need not wait for the last. */
static __device__ __forceinline__ int arrival_chunks(const struct linear_args &p)
{
	return (p.block_chunks + K_PARTS * ARRIVALS - 1) / (K_PARTS * ARRIVALS) * K_PARTS;
}

/* Columns [first, end) of the slice's activations to x_sh by asynchronous copies of all threads; those beyond the map's as zeroes. */
static __device__ __forceinline__ void copy_columns(uint32_t x_sh, uint32_t pitch, const bf16 *x, int ldx, int rows, int first, int end, int there)
{
	int n = (end - first) / 8;

	for (int i = threadIdx.x; i < n * rows; i += THREADS) {
		int r = i / n, k = first + i % n * 8;

		copy16_to(x_sh + r * pitch + k * 2, k < there ? x + (size_t)r * ldx + k : x, k < there ? 16 : 0);
	}
	copy_commit();
}

/* The activations of the slice: by the engine as far as the map goes, the rest and without an engine by the threads, who then have all. */
template <int NT>
static __device__ __forceinline__ void copy_rows(const struct linear_args &p, uint32_t bar, uint32_t x_sh, uint32_t pitch, int row0, int c0, int chunks)
{
	const bf16 *x = p.x + (size_t)row0 * p.ldx + c0 * CHUNK;
	int rows = min(NT * 8, p.rows - row0), there = min(chunks * CHUNK, p.in - c0 * CHUNK), wide = arrival_chunks(p) * CHUNK;

	/* The engine takes one copy at a time from a warp, some twenty cycles each: so every warp asks for another arrival. */
	if (rows_by_engine())
		for (int k = threadIdx.x / 32 * wide; k < there; k += WARPS * wide)
			rows_copy(bar + k / wide * 8, x_sh + k * 2, pitch, (const char *)(x + k), (size_t)p.ldx * 2, rows, min(wide, there - k) * 2);
	if (rows_by_engine() && there == chunks * CHUNK)
		return;
	copy_columns(x_sh, pitch, x, p.ldx, rows, rows_by_engine() ? there : 0, chunks * CHUNK, there);
	copy_wait<0>();
	__syncthreads();
}

template <int STEP> static __device__ __forceinline__ float4 part_sum(const float *from)
{
	float4 v = *(const float4 *)from;

#pragma unroll
	for (int k = 1; k < K_PARTS; k++)
		v = add4(v, *(const float4 *)(from + k * STEP));
	return v;
}

/* The sums of a pass, K_PARTS in order, ROUND * 8 rows at a time: to y, or to the slice's partial sums. */
template <int NT, int T, int ROUND>
static __device__ __forceinline__ void finish(const struct linear_args &p, float *sh, int row0, int tile0, int tiles, const float acc[T][NT][4])
{
	enum { WIDE = N_PARTS * T * TILE, PITCH = WIDE + 4, ROWS = ROUND * 8 };
	int warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, wide = min((int)WIDE, tiles * TILE);
	float *mine = sh + warp % K_PARTS * (ROWS * PITCH) + warp / K_PARTS * (T * TILE);

#pragma unroll
	for (int n0 = 0; n0 < NT; n0 += ROUND) {
		__syncthreads(); /* the sums before were read */
#pragma unroll
		for (int m = 0; m < T; m++)
#pragma unroll
			for (int n = 0; n < ROUND; n++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					mine[(n * 8 + 2 * t + (i & 1)) * PITCH + m * TILE + g + 8 * (i >> 1)] = acc[m][n0 + n][i];
		__syncthreads();
#pragma unroll
		for (int i = threadIdx.x; i < ROWS * WIDE / 4; i += THREADS) {
			int o = i % (WIDE / 4) * 4, r = i / (WIDE / 4), row = row0 + n0 * 8 + r;
			float4 v = part_sum<ROWS * PITCH>(sh + r * PITCH + o);

			if (o >= wide || row >= p.rows)
				continue;
			if (gridDim.y > 1)
				*(float4 *)(p.partial + ((size_t)blockIdx.y * p.rows + row) * p.tiles * TILE + tile0 * TILE + o) = v;
			else if (!p.paired)
				put4(p, row, tile0 * TILE + o, v);
			else if (o % TILE < TILE / 2)
				put_gated(p, row, tile0 * TILE + o, v, part_sum<ROWS * PITCH>(sh + r * PITCH + o + TILE / 2));
		}
	}
}

static __device__ __forceinline__ float4 slice_sum(const float *from, size_t step)
{
	float4 v = make_float4(0, 0, 0, 0);

#pragma unroll 4
	for (unsigned k = 0; k < gridDim.y; k++)
		v = add4(v, __ldcg((const float4 *)(from + k * step)));
	return v;
}

/* By the last block of these tiles: the slices in order. */
template <int NT> static __device__ void add_slices(const struct linear_args &p, int row0, int tile0, int tiles)
{
	int wide = p.tiles * TILE, fours = tiles * (TILE / 4), rows = min(NT * 8, p.rows - row0);
	size_t step = (size_t)p.rows * wide;

	for (int i = threadIdx.x; i < fours * rows; i += THREADS) {
		int row = row0 + i / fours, o = tile0 * TILE + i % fours * 4;
		const float *from = p.partial + (size_t)row * wide + o;

		if (!p.paired)
			put4(p, row, o, slice_sum(from, step));
		else if (o % TILE < TILE / 2)
			put_gated(p, row, o, slice_sum(from, step), slice_sum(from + TILE / 2, step));
	}
}

/* Block (group of tiles, slice blockIdx.y, rows blockIdx.z) */
template <class F, int NT, int T> static __device__ __forceinline__ void linear_block(const struct linear_args &p, int group)
{
	extern __shared__ __align__(16) char linear_sh[]; /* sums, activations: linear_shape */
	__shared__ __align__(8) uint64_t arrival[ARRIVALS];
	typedef struct linear_shape<F, NT, T> shape;
	int warp = threadIdx.x / 32, row0 = blockIdx.z * NT * 8, tile0 = group * p.block_tiles, c0 = blockIdx.y * p.block_chunks;
	int tiles = min(p.block_tiles, p.tiles - tile0), chunks = min(p.block_chunks, p.chunks - c0), part = warp % K_PARTS;
	int first = tile0 + warp / K_PARTS * T, wide = arrival_chunks(p);
	uint32_t bar = shared_address(arrival), pitch = row_pitch(p), x_sh = shared_address(linear_sh) + (uint32_t)shape::sums;
	uint32_t at = x_sh + (threadIdx.x >> 2 & 7) * pitch + (threadIdx.x & 3) * 16;
	typename F::template lane<T> even, odd;
	typename F::template line<T> line;

	if (threadIdx.x < ARRIVALS)
		rows_init(bar + threadIdx.x * 8);
	line.start(p, first, min(c0 + part, p.chunks - 1));
	even.load(p, line);
	__syncthreads();
	let_next_start();
	after_previous();
	copy_rows<NT>(p, bar, x_sh, pitch, row0, c0, chunks);
	for (int pass = 0; pass < tiles; pass += N_PARTS * T) {
		float acc[T][NT][4] = {};

		for (int c = part; c < chunks;) {
			if (c + K_PARTS < chunks) {
				line.step();
				odd.load(p, line);
			}
			rows_wait(bar + c / wide * 8);
			even.template multiply<NT>(at + c * (CHUNK * 2), pitch, acc);
			if ((c += K_PARTS) >= chunks)
				break;
			if (c + K_PARTS < chunks) {
				line.step();
				even.load(p, line);
			}
			rows_wait(bar + c / wide * 8);
			odd.template multiply<NT>(at + c * (CHUNK * 2), pitch, acc);
			c += K_PARTS;
		}
		if (pass + N_PARTS * T < tiles) {
			line.start(p, first + pass + N_PARTS * T, min(c0 + part, p.chunks - 1));
			even.load(p, line);
		}
		finish<NT, T, shape::round>(p, (float *)linear_sh, row0, tile0 + pass, tiles - pass, acc);
	}
	if (gridDim.y > 1 && p.counter && last_to_arrive(p.counter + blockIdx.z * gridDim.x + group, gridDim.y))
		add_slices<NT>(p, row0, tile0, tiles);
}

/* grid (groups of tiles, slices, groups of NT * 8 rows) */
template <class F, int NT, int T> static __global__ void __launch_bounds__(THREADS, 1) linear_kernel(const struct linear_args p)
{
	linear_block<F, NT, T>(p, blockIdx.x);
}

template <class F, int NT, int T> static size_t shared_bytes(const struct linear_args &p)
{
	typedef struct linear_shape<F, NT, T> shape;

	return shape::sums + p.block_chunks * shape::chunk + shape::rest;
}

template <class F, int NT, int T> static void launch(struct td_dev *dev, const struct linear_args &p, int groups, int slices)
{
	size_t shared = shared_bytes<F, NT, T>(p);
	static size_t allowed; /* the most that this kernel was given so far */

	if (shared > allowed)
		td__cuda_shared(dev, linear_kernel<F, NT, T>, allowed = shared);
	td__cuda_launch(dev, "linear", linear_kernel<F, NT, T>, dim3(groups, slices, div_up(p.rows, NT * 8)), THREADS, shared, p);
}

/* Tiles of a warp in a pass: the fewest that do, up to what there are registers for. Results don't depend on it. */
static inline int tiles_of(const struct linear_args &p, int most)
{
	return div_up(p.block_tiles, div_up(p.block_tiles, most * N_PARTS) * N_PARTS);
}

template <class F, int NT> static void launch_wide(struct td_dev *dev, const struct linear_args &p, int groups, int slices)
{
	enum { MOST = NT > 2 && F::TILES > 2 ? 2 : F::TILES };
	int t = tiles_of(p, MOST);

	if (MOST > 2 && t > 2)
		launch<F, NT, MOST>(dev, p, groups, slices);
	else if (MOST > 1 && t > 1)
		launch<F, NT, MOST < 2 ? MOST : 2>(dev, p, groups, slices);
	else
		launch<F, NT, 1>(dev, p, groups, slices);
}

/*
 * The rectangle of a block: of all numbers of slices the one with the least work for the busiest multiprocessor, in eighths of the time of N_PARTS
 * tiles of K_PARTS chunks: its own, fetching the activations, and what sharing costs. A slice is no wider than what the kernel for the most rows can hold.
 */
template <class F> static void cut(const struct td_dev *dev, struct linear_args *p, int *groups, int *slices)
{
	typedef struct linear_shape<F, 4, 2> widest;
	int most = (int)((dev->shared_max - widest::sums - widest::rest) / widest::chunk), least = INT32_MAX, first = div_up(p->chunks, most);

	for (int s = first; s <= dev->sms && (s == first || p->chunks / s >= K_PARTS); s++) {
		int chunks = div_up(p->chunks, s), used = div_up(p->chunks, chunks), rows = dev->sms / used > 0 ? dev->sms / used : 1;
		int tiles = div_up(p->tiles, rows), cost = 8 * div_up(tiles, N_PARTS) * div_up(chunks, K_PARTS) + 2 * chunks + (used > 1 ? 40 + 2 * used : 0);

		if (cost >= least)
			continue;
		least = cost;
		p->block_chunks = chunks;
		p->block_tiles = tiles;
		*groups = div_up(p->tiles, tiles);
		*slices = used;
	}
}

/* What becomes of a product. `slices`: when there are several, the sums stay apart at `partial` (slices, rows, `wide`), and their number is told. */
struct linear_use {
	int accumulate, paired;
	int *slices, *wide;
	const float **partial;
};

static inline struct linear_args arguments(struct td_tensor x, const struct td_linear *w, struct td_tensor y, const struct linear_use &use)
{
	struct linear_args p = {};

	p.w = w->data;
	p.in = w->in;
	p.out = w->out;
	p.chunks = div_up(w->in, CHUNK);
	p.tiles = div_up(w->out, TILE);
	p.x = (const bf16 *)x.data;
	p.ldx = x.ld;
	p.rows = x.rows;
	p.y = y.data;
	p.ldy = y.ld;
	p.y_f32 = y.dtype == TD_F32;
	p.accumulate = use.accumulate;
	p.paired = use.paired;
	p.by_four = y.ld % 4 == 0 && w->out % 4 == 0 && (uintptr_t)y.data % 16 == 0;
	return p;
}

template <class F>
static void run(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, const struct linear_use &use)
{
	struct linear_args p = arguments(x, w, y, use);
	int groups = 1, slices = 1;
	size_t partial;

	cut<F>(dev, &p, &groups, &slices);
	partial = slices > 1 ? (size_t)slices * p.tiles * TILE * sizeof(float) : 0;
	if (partial * x.rows > td__cuda_scratch_size(dev) && x.rows > 8 && !use.slices) { /* a row's bits don't depend on where the rows are cut */
		int half = div_up(x.rows / 2, 8) * 8;

		run<F>(dev, td_rows(x, 0, half), w, td_rows(y, 0, half), use);
		run<F>(dev, td_rows(x, half, x.rows - half), w, td_rows(y, half, x.rows - half), use);
		return;
	}
	p.partial = partial ? (float *)td__cuda_scratch(dev, partial * x.rows) : NULL;
	if (dev->error.code)
		return;
	if (use.slices && slices > 1) {
		*use.slices = slices;
		*use.wide = p.tiles * TILE;
		*use.partial = p.partial;
	} else {
		p.counter = dev->counters;
	}
	if (x.rows <= 8)
		launch_wide<F, 1>(dev, p, groups, slices);
	else if (x.rows <= 16)
		launch_wide<F, 2>(dev, p, groups, slices);
	else
		launch_wide<F, 4>(dev, p, groups, slices);
}

#endif
