/*
 * linear_tile.cuh: the frame of both small linear kernels (linear_int4.cu, linear_bf16.cu): 1 to 64 rows, the same bits for a row in any company.
 *
 * A map is cut into tiles of 16 outputs and chunks of 64 columns; a weight format F says how many bytes a tile of one chunk takes, how a lane fetches
 * its share and how it multiplies. A block takes a rectangle of tiles times chunks, chosen so that every multiprocessor has about the same work:
 *
 *	columns		| slice 0: chunks 0 .. n-1 | slice 1 ...
 *	tiles 0 .. k-1	|       block (0, 0)       |  block (0, 1)
 *	tiles k .. 2k-1	|       block (1, 0)       |  block (1, 1)
 *
 * Wide maps have one slice. Narrow ones (few tiles, many columns) have several, and the last block of a row of the picture adds their sums.
 * In a block each warp takes every WARPS-th chunk, for T tiles at a time (a pass): a lane streams its weights through its own ring of asynchronous
 * copies, which nobody else reads, and the activations of a warp's chunks, kept in shared memory in fragment order, are read by that warp alone: no
 * barrier but at the end of a pass, where the warps' sums are added, and the ring runs on across it.
 *
 * Weights depend on nothing that is computed, so the ring is filled before the kernel waits for the one before it.
 *
 * Row invariance: an output is the sum over slices of the sum over warps of the sum over chunks, each in one order that hangs on the weight's
 * shape and the GPU alone: the cut never looks at the number of rows.
 */
#ifndef TD_CUDA_LINEAR_TILE_CUH
#define TD_CUDA_LINEAR_TILE_CUH

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/pack.h"

enum { TILE = TD_PACK_TILE, CHUNK = TD_PACK_CHUNK, UNIT = 32, UNITS = CHUNK / UNIT, WARPS = 8, THREADS = WARPS * 32 };

struct linear_args {
	const void *w, *scale;
	int in, out, chunks, tiles; /* of the whole map */
	int block_chunks, block_tiles; /* of a block */
	int groups; /* INT4: of a line */
	unsigned group_units, per_group; /* INT4; 2^32 / group_units, rounded up */
	const bf16 *x; /* (rows, ldx) */
	int ldx, rows;
	void *y; /* (rows, ldy) */
	int ldy, y_f32, accumulate;
	float *partial; /* (slices, rows, tiles * TILE) */
	unsigned *counter;
};

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

/* What a block of NT * 8 rows keeps in shared memory, in this order. */
template <class F, int NT, int T, int STAGES> struct linear_shape {
	static constexpr int stage = T * F::BYTES, pitch = T * TILE + 4, round = NT < 2 ? NT : 2; /* rows summed at once at the end of a pass, in eights */
	static constexpr size_t ring = (size_t)WARPS * STAGES * stage; /* (WARPS, STAGES, T, BYTES) */
	static constexpr size_t sums = (size_t)WARPS * round * 8 * pitch * 4; /* (WARPS, rows, pitch) */
	static constexpr size_t chunk = (size_t)UNITS * NT * 512 + UNITS * NT * 32; /* activations (UNITS, NT, 32) x 16 bytes; their sums (UNITS, NT, 8) */
};

/* This lane's activations of one chunk to x_sh (UNITS, NT, 32) x 16 bytes; x: column 8t of row g of the slice; k: first column that the lane reads. */
template <int NT>
static __device__ __forceinline__ void fetch_rows(const struct linear_args &p, uint32_t x_sh, const bf16 *x, int c, int k, int rows_left)
{
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		int at = c * CHUNK + u * UNIT, left = (p.in - k - at) * 2, bytes = left >= 16 ? 16 : left > 0 ? left : 0;

#pragma unroll
		for (int j = 0; j < NT; j++) {
			int there = bytes && j * 8 < rows_left;

			copy16_to(x_sh + ((c * UNITS + u) * NT + j) * 512, there ? x + (size_t)(j * 8) * p.ldx + at : p.x, there ? bytes : 0);
		}
	}
}

/* The sums of a pass, warps in order, ROUND * 8 rows at a time: to y, or to the slice's partial sums. */
template <int NT, int T, int ROUND>
static __device__ __forceinline__ void finish(const struct linear_args &p, float *sh, int row0, int tile0, int tiles, const float acc[T][NT][4])
{
	enum { WIDE = T * TILE, PITCH = WIDE + 4, ROWS = ROUND * 8 };
	int warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
	float *mine = sh + warp * (ROWS * PITCH);

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
		for (int i = threadIdx.x; i < ROWS * WIDE; i += THREADS) {
			int o = i % WIDE, r = i / WIDE, row = row0 + n0 * 8 + r;
			float v = 0;

			if (o >= tiles * TILE || row >= p.rows)
				continue;
#pragma unroll
			for (int k = 0; k < WARPS; k++)
				v += sh[(k * ROWS + r) * PITCH + o];
			o += tile0 * TILE;
			if (gridDim.y > 1)
				p.partial[((size_t)blockIdx.y * p.rows + row) * p.tiles * TILE + o] = v;
			else if (o < p.out)
				put(p, row, o, v);
		}
	}
}

/* By the last block of these tiles: the slices in order. */
template <int NT> static __device__ void add_slices(const struct linear_args &p, int row0, int tile0, int tiles)
{
	int wide = p.tiles * TILE, outs = min(tiles * TILE, p.out - tile0 * TILE), rows = min(NT * 8, p.rows - row0);
	size_t step = (size_t)p.rows * wide;

	for (int i = threadIdx.x; i < outs * rows; i += THREADS) {
		int row = row0 + i / outs, o = tile0 * TILE + i % outs;
		const float *from = p.partial + (size_t)row * wide + o;
		float v = 0;

#pragma unroll 8
		for (unsigned k = 0; k < gridDim.y; k++)
			v += __ldcg(from + k * step);
		put(p, row, o, v);
	}
}

/* grid (groups of tiles, slices, groups of NT * 8 rows) */
template <class F, int NT, int T, int STAGES> static __global__ void __launch_bounds__(THREADS) linear_kernel(const struct linear_args p)
{
	extern __shared__ __align__(16) char linear_sh[]; /* ring, sums, activations, their sums: linear_shape */
	typedef struct linear_shape<F, NT, T, STAGES> shape;
	static_assert(STAGES > 2, "the waits count on it");
	enum { RING = shape::stage * STAGES };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row0 = blockIdx.z * NT * 8, tile0 = blockIdx.x * p.block_tiles,
	    c0 = blockIdx.y * p.block_chunks;
	int tiles = min(p.block_tiles, p.tiles - tile0), chunks = min(p.block_chunks, p.chunks - c0), rows_left = p.rows - row0 - (lane >> 2);
	float *sums_sh = (float *)(linear_sh + shape::ring);
	uint32_t ring = shared_address(linear_sh) + warp * RING, x_sh = shared_address(linear_sh) + (uint32_t)(shape::ring + shape::sums);
	uint32_t columns_sh = x_sh + (uint32_t)(p.block_chunks * UNITS * NT * 512);
	int column = c0 * CHUNK + (lane & 3) * 8, into = 0, stage = 0, ahead = warp, ahead_tile = 0;
	const bf16 *x = p.x + (size_t)(row0 + (lane >> 2)) * p.ldx + column;
	typename F::lane weights(p, tile0, c0, lane);

	/* One more stage of this warp's line of chunks, pass after pass. */
	auto fetch = [&]() {
		if (ahead < chunks && ahead_tile < tiles) {
			weights.template fetch<T>(p, ring + into, ahead_tile, min((int)T, tiles - ahead_tile), ahead);
			ahead += WARPS;
			if (ahead >= chunks) {
				ahead = warp;
				ahead_tile += T;
			}
		}
		copy_commit();
		into = into == RING - shape::stage ? 0 : into + shape::stage;
	};

#pragma unroll
	for (int i = 0; i < STAGES - 1; i++)
		fetch();
	let_next_start();
	after_previous();
	for (int c = warp; c < chunks; c += WARPS) {
		fetch_rows<NT>(p, x_sh + lane * 16, x, c, column, rows_left);
		if (c == warp)
			copy_commit(); /* the first chunk need not wait for the others */
	}
	copy_commit();
	for (int tile = 0; tile < tiles; tile += T) {
		float acc[T][NT][4] = {};
		int here = min((int)T, tiles - tile);

		for (int c = warp; c < chunks; c += WARPS) {
			if (tile == 0 && c < 2 * WARPS)
				copy_wait<1>(); /* all but the latest group: the rest of the activations, then a stage */
			else
				copy_wait<STAGES - 2>();
			__syncwarp();
			weights.template multiply<NT, T>(ring + stage, x_sh + c * (UNITS * NT * 512), columns_sh + c * (UNITS * NT * 32), here, tile == 0, acc);
			fetch();
			stage = stage == RING - shape::stage ? 0 : stage + shape::stage;
		}
		finish<NT, T, shape::round>(p, sums_sh, row0, tile0 + tile, here, acc);
	}
	if (gridDim.y > 1 && last_to_arrive(p.counter + blockIdx.z * gridDim.x + blockIdx.x, gridDim.y))
		add_slices<NT>(p, row0, tile0, tiles);
}

template <class F, int NT, int T, int STAGES> static size_t shared_bytes(int block_chunks)
{
	typedef struct linear_shape<F, NT, T, STAGES> shape;

	return shape::ring + shape::sums + block_chunks * shape::chunk;
}

template <class F, int NT, int T, int STAGES> static void launch(struct td_dev *dev, const struct linear_args &p, int groups, int slices)
{
	size_t shared = shared_bytes<F, NT, T, STAGES>(p.block_chunks);
	static size_t allowed; /* the most that this kernel was given so far */

	if (shared > allowed)
		td__cuda_shared(dev, linear_kernel<F, NT, T, STAGES>, allowed = shared);
	td__cuda_launch(dev, "linear", linear_kernel<F, NT, T, STAGES>, dim3(groups, slices, div_up(p.rows, NT * 8)), THREADS, shared, p);
}

/* The deeper ring where it fits: on GPUs with 99 KiB of shared memory it may not. Stages have no influence on results. */
template <class F, int NT> static void launch_deep(struct td_dev *dev, const struct linear_args &p, int groups, int slices)
{
	if (shared_bytes<F, NT, F::TILES, F::DEEP>(p.block_chunks) <= dev->shared_max)
		launch<F, NT, F::TILES, F::DEEP>(dev, p, groups, slices);
	else
		launch<F, NT, F::TILES, 3>(dev, p, groups, slices);
}

/*
 * The rectangle of a block: of all numbers of slices the one with the least work for the busiest multiprocessor, in eighths of the time of a tile of
 * WARPS chunks: its own, fetching the activations, and what sharing costs. A slice is no wider than what the kernel for the most rows can hold.
 */
template <class F> static void cut(const struct td_dev *dev, struct linear_args *p, int *groups, int *slices)
{
	typedef struct linear_shape<F, 4, F::TILES_WIDE, 3> widest;
	int most = (int)((dev->shared_max - widest::ring - widest::sums) / widest::chunk), least = INT32_MAX, first = div_up(p->chunks, most);

	for (int s = first; s <= dev->sms && (s == first || p->chunks / s >= WARPS); s++) {
		int chunks = div_up(p->chunks, s), used = div_up(p->chunks, chunks), rows = dev->sms / used > 0 ? dev->sms / used : 1;
		int tiles = div_up(p->tiles, rows), cost = 8 * tiles * div_up(chunks, WARPS) + 2 * chunks + (used > 1 ? 88 + 4 * used + 2 * tiles * used : 0);

		if (cost >= least)
			continue;
		least = cost;
		p->block_chunks = chunks;
		p->block_tiles = tiles;
		*groups = div_up(p->tiles, tiles);
		*slices = used;
	}
}

template <class F>
static void run(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate, const void *scale)
{
	struct linear_args p = {};
	int groups = 1, slices = 1;
	size_t partial;

	p.w = w->data;
	p.scale = scale;
	p.in = w->in;
	p.out = w->out;
	p.chunks = div_up(w->in, CHUNK);
	p.tiles = div_up(w->out, TILE);
	if (w->kind == TD_W_INT4) {
		p.groups = w->in / w->group;
		p.group_units = w->group / UNIT;
		p.per_group = (unsigned)(((1ull << 32) + p.group_units - 1) / p.group_units);
	}
	p.x = (const bf16 *)x.data;
	p.ldx = x.ld;
	p.rows = x.rows;
	p.y = y.data;
	p.ldy = y.ld;
	p.y_f32 = y.dtype == TD_F32;
	p.accumulate = accumulate;
	p.counter = dev->counters;
	cut<F>(dev, &p, &groups, &slices);
	partial = slices > 1 ? (size_t)slices * p.tiles * TILE * sizeof(float) : 0;
	if (partial * x.rows > td__cuda_scratch_size(dev) && x.rows > 8) { /* a row's bits don't depend on where the rows are cut */
		int half = div_up(x.rows / 2, 8) * 8;

		run<F>(dev, td_rows(x, 0, half), w, td_rows(y, 0, half), accumulate, scale);
		run<F>(dev, td_rows(x, half, x.rows - half), w, td_rows(y, half, x.rows - half), accumulate, scale);
		return;
	}
	p.partial = partial ? (float *)td__cuda_scratch(dev, partial * x.rows) : NULL;
	if (dev->error.code)
		return;
	if (x.rows <= 8)
		launch_deep<F, 1>(dev, p, groups, slices);
	else if (x.rows <= 16)
		launch_deep<F, 2>(dev, p, groups, slices);
	else
		launch<F, 4, F::TILES_WIDE, 3>(dev, p, groups, slices);
}

#endif
