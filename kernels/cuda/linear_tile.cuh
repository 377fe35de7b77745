/*
 * linear_tile.cuh: the frame of the small linear kernels (linear_int4.cu, linear_bf16.cu): 1 to 64 rows, the same bits for a row in any company. How it cuts
 * a map is how linear_wide.cu sums, too.
 *
 * A map is cut into tiles of 16 outputs and chunks of 128 columns; a weight format F says how a lane loads its share of a tile's chunk and how it
 * multiplies. A block takes a rectangle of tiles times chunks, chosen so that every multiprocessor has about the same work:
 *
 *	columns		| rank 0: chunks 0 .. n-1 | rank 1 ...
 *	tiles 0 .. k-1	|       block (0, 0)      |  block (0, 1)
 *	tiles k .. 2k-1	|       block (1, 0)      |  block (1, 1)
 *
 * The ranks of a row of the picture are a cluster, whose blocks reach each other's shared memory (mma.cuh). Where there are no clusters it is one block
 * wide, or narrow maps (few tiles, many columns) have slices, whose sums go through device memory: the last block of a row adds them.
 * In a block warp (n, k) takes the k-th part of the chunks of T tiles, the n-th such group of them: one pass of the block is WARPS / parts * T tiles. Weights go
 * from memory to registers, one step (a chunk of T tiles) or a few ahead of the products; the first before the kernel waits for the one before it, as weights
 * depend on nothing that is computed, the others when the activations have come, which would wait behind them. (To ask the block's weights into the L2
 * cache ahead costs a tenth, for the same reason.) The activations of the block's chunks lie in shared memory as the format wants them: as they are, or in 8
 * bits.
 * At the end of a pass every warp sends its sums, as the products left them, to the block of the cluster that owns the unit (8 rows of a tile).
 *
 * Row invariance: an output is the sum over slices of the sum over ranks and parts of the sum over chunks, each in one order that hangs on the weight's
 * format and shape and the GPU alone: the cut never looks at the number of rows.
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
	WARPS = 12,
	THREADS = WARPS * 32,
	SUM_BYTES = 512, /* sums of a unit: 8 rows of a tile, 4 of a lane */
	RANK_BITS = 3,
	PART_BITS = 2,
	MANY_PASSES = 3
};

struct linear_args {
	const void *w;
	int in, out, chunks, tiles; /* of the whole map */
	int block_chunks, block_tiles; /* of a block */
	int rank_bits, part_bits; /* 1 << bits blocks of a cluster, parts of a block's chunks */
	const bf16 *x; /* (rows, ldx) */
	const char *x8; /* the first row in 8 bits, rows as far from each other as x's (act8.cuh); or NULL */
	int ldx, rows;
	void *y; /* (rows, ldy) */
	int ldy, y_f32, accumulate, by_two; /* two neighbours at once */
	int paired; /* rows g of a tile are gates, g + 8 what they let through: y (rows, out / 2) is swiglu */
	float *partial; /* (slices, rows, tiles * TILE) */
	unsigned *counter; /* of the slices */
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

/* Two neighbours, as far as the map goes, and what they are added to. */
static __device__ __forceinline__ float2 before2(const struct linear_args &p, int row, int o)
{
	return p.accumulate && p.by_two && p.y_f32 && o < p.out && row < p.rows ? *(const float2 *)((const float *)p.y + (size_t)row * p.ldy + o) : make_float2(0, 0);
}
static __device__ __forceinline__ void put2(const struct linear_args &p, int row, int o, float2 v, float2 before)
{
	size_t at = (size_t)row * p.ldy + o;

	if (o >= p.out)
		return;
	if (p.by_two && p.y_f32) {
		*(float2 *)((float *)p.y + at) = make_float2(before.x + v.x, before.y + v.y);
	} else if (p.by_two && !p.accumulate) {
		*(uint32_t *)((bf16 *)p.y + at) = bf16_pair(v.x, v.y);
	} else {
		put(p, row, o, v.x);
		if (o + 1 < p.out)
			put(p, row, o + 1, v.y);
	}
}

/* Two outputs of a paired map, the first of them made of row o, a gate's. */
static __device__ __forceinline__ void put2_gated(const struct linear_args &p, int row, int o, float2 v)
{
	*(uint32_t *)((bf16 *)p.y + (size_t)row * p.ldy + o / TILE * (TILE / 2) + o % TILE) = bf16_pair(v.x, v.y);
}

static __device__ __forceinline__ float4 add4(float4 a, float4 b)
{
	return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Sums that a block gets in a pass, in bytes. */
static inline __host__ __device__ int sum_bytes(const struct linear_args &p, int nt, int t)
{
	return ((((WARPS >> p.part_bits) * t * nt + (1 << p.rank_bits) - 1) >> p.rank_bits) << (p.part_bits + p.rank_bits)) * SUM_BYTES;
}
/* Bytes from one row of activations to the next; the 64 beyond its chunks make the reads of a product fall on all banks. */
static inline __host__ __device__ int row_pitch(const struct linear_args &p, int row_bytes)
{
	return p.block_chunks * row_bytes + 64;
}
/* Chunks of a part. Nothing is divided here: a division by what only the host knows is thirty instructions, which all warps wait for. */
static inline __host__ __device__ int part_chunks(const struct linear_args &p, int chunks)
{
	return (chunks + (1 << p.part_bits) - 1) >> p.part_bits;
}
/* Where segment k of the columns ends: part k % parts of rank k / parts, which are summed by themselves; sums are added in this order. */
static inline __host__ __device__ int segment_end(const struct linear_args &p, int k)
{
	int first = (k >> p.part_bits) * p.block_chunks, chunks = p.chunks - first;

	chunks = chunks < p.block_chunks ? (chunks < 0 ? 0 : chunks) : p.block_chunks;
	first = first < p.chunks ? first : p.chunks;
	k = ((k & ((1 << p.part_bits) - 1)) + 1) * part_chunks(p, chunks);
	return first + (k < chunks ? k : chunks);
}
/* For what a weight format makes of the activations: `starts` floats of each chunk and row. ROW: bytes of a row's chunk. */
static inline __host__ __device__ int start_bytes(const struct linear_args &p, int nt, int starts)
{
	return p.block_chunks * starts * nt * 8 * 4;
}
/* Dynamic shared memory: sums, activations, starts. */
template <class F> static inline __host__ __device__ size_t linear_shared(const struct linear_args &p, int nt, int t)
{
	return sum_bytes(p, nt, t) + (size_t)nt * 8 * row_pitch(p, F::ROW) + start_bytes(p, nt, F::STARTS);
}

/* Where a block and a warp are. */
struct linear_place {
	int rank, row0, tile0, tiles, c0, chunks; /* of the block */
	int n, k, begin, end; /* of the warp: its chunks of the block's */
};

/* Of 4 x 4 words that 4 neighbouring lanes hold by rows, a column each. */
static __device__ __forceinline__ uint4 turn_words(uint4 v)
{
	int t = threadIdx.x & 3;
	uint32_t a, b;

	a = __shfl_xor_sync(~0u, t & 1 ? v.x : v.y, 1);
	b = __shfl_xor_sync(~0u, t & 1 ? v.z : v.w, 1);
	v = t & 1 ? make_uint4(a, v.y, b, v.w) : make_uint4(v.x, a, v.z, b);
	a = __shfl_xor_sync(~0u, t & 2 ? v.x : v.z, 2);
	b = __shfl_xor_sync(~0u, t & 2 ? v.y : v.w, 2);
	return t & 2 ? make_uint4(a, b, v.z, v.w) : make_uint4(v.x, v.y, a, b);
}

/* What a lane takes of a row's chunk, from column `col` on: eight columns of each unit; zero beyond rows and columns. */
static __device__ __forceinline__ void row_chunk(const struct linear_args &p, int row, int col, uint4 v[UNITS])
{
#pragma unroll
	for (int u = 0; u < UNITS; u++)
		v[u] = row < p.rows && col + u * UNIT < p.in ? __ldcg((const uint4 *)(p.x + (size_t)row * p.ldx + col + u * UNIT)) : make_uint4(0, 0, 0, 0);
}

/* Where a ring of stages is at, for kernels of warpgroups: a stage, and whether it was used an odd number of times before. */
struct ring {
	int stage, turn;

	__device__ __forceinline__ void step(int stages)
	{
		if (++stage == stages) {
			stage = 0;
			turn ^= 1;
		}
	}
};

/* A lane's activations of a chunk as they are. */
static __device__ __forceinline__ void keep_bf16(const uint4 x[UNITS], uint32_t to)
{
#pragma unroll
	for (int u = 0; u < UNITS; u++)
		store16(to + u * (UNIT * 2), x[u]);
}

/*
 * The activations of the part's chunks, by way of registers: the part's warps take eight rows of a chunk each, all of whose loads are under way at once
 * (the bulk copy engine takes a microsecond longer), and keep them as the weights' format wants them. What lies beyond rows and columns is zero.
 */
template <class F, int NT>
static __device__ __forceinline__ void take_rows(const struct linear_args &p, const struct linear_place &b, uint32_t at, uint32_t pitch, uint32_t starts)
{
	enum { BATCH = 2 };
	int columns = WARPS >> p.part_bits, last = b.end * NT, row0 = b.row0 + (threadIdx.x >> 2 & 7), col0 = b.c0 * CHUNK + (threadIdx.x & 3) * 8;
	const bf16 *x = p.x + (size_t)row0 * p.ldx + col0;

	for (int first = b.begin * NT + b.n; first < last; first += BATCH * columns) {
		uint4 v[BATCH][UNITS];

#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			int i = first + k * columns, n = i % NT * 8, c = i / NT * CHUNK, there = i < last && row0 + n < p.rows ? p.in - col0 - c : 0;

#pragma unroll
			for (int u = 0; u < UNITS; u++)
				v[k][u] = u * UNIT < there ? __ldcg((const uint4 *)(x + (size_t)n * p.ldx + c + u * UNIT)) : make_uint4(0, 0, 0, 0);
		}
#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			int i = first + k * columns;

			if (i >= last)
				break;
			F::keep(v[k], at + i % NT * 8 * pitch + i / NT * F::ROW, starts + i / NT * (F::STARTS * NT * 32) + i % NT * 32, NT * 32);
		}
	}
	part_meets(b.k, columns * 32);
}

/* The same of rows that are in 8 bits already. */
template <class F, int NT>
static __device__ __forceinline__ void take_rounded(const struct linear_args &p, const struct linear_place &b, uint32_t at, uint32_t pitch, uint32_t scales)
{
	enum { BATCH = 3 };
	int columns = WARPS >> p.part_bits, last = b.end * NT, row0 = b.row0 + (threadIdx.x >> 2 & 7), t = threadIdx.x & 3;
	size_t step = (size_t)p.ldx * 2;
	const char *x = p.x8 + row0 * step + (size_t)b.c0 * CHUNK + t * 16;
	const float *scale = (const float *)(p.x8 + row0 * step + (size_t)p.chunks * CHUNK) + b.c0;

	for (int first = b.begin * NT + b.n; first < last; first += BATCH * columns) {
		uint4 v[BATCH][2];
		float s[BATCH];

#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			int i = first + k * columns, n = i % NT * 8, c = i / NT, there = i < last && row0 + n < p.rows;

			v[k][0] = there ? __ldcg((const uint4 *)(x + n * step + c * CHUNK)) : make_uint4(0, 0, 0, 0);
			v[k][1] = there ? __ldcg((const uint4 *)(x + n * step + c * CHUNK + CHUNK / 2)) : make_uint4(0, 0, 0, 0);
			s[k] = there ? __ldcg((const float *)((const char *)scale + n * step) + c) : 0.0f;
		}
#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			int i = first + k * columns;
			uint32_t to = at + i % NT * 8 * pitch + i / NT * F::ROW;

			if (i >= last)
				break;
			store16(to, v[k][0]);
			store16(to + CHUNK / 2, v[k][1]);
			if (t == 0)
				store4(scales + i / NT * (NT * 32) + i % NT * 32 + (threadIdx.x >> 2 & 7) * 4, __float_as_uint(s[k]));
		}
	}
	part_meets(b.k, columns * 32);
}

/* ---- sums ---------------------------------------------------------------------------------------------------------------------------- */

/* A warp's sums of a pass to the blocks that own them: (unit of the owner, source, lane). */
template <int NT, int T>
static __device__ __forceinline__ void send_sums(const struct linear_args &p, const struct linear_place &b, char *sums, int tiles, const float acc[T][NT][4])
{
	int ranks = 1 << p.rank_bits, sources = 1 << (p.part_bits + p.rank_bits);
	char *mine = sums + ((b.rank << p.part_bits) + b.k) * SUM_BYTES + (threadIdx.x & 31) * 16;

#pragma unroll
	for (int m = 0; m < T; m++)
#pragma unroll
		for (int n = 0; n < NT; n++) {
			int unit = (b.n * T + m) * NT + n;

			if (b.n * T + m < tiles)
				rank_store4((float4 *)(mine + (unit >> p.rank_bits) * sources * SUM_BYTES), unit & (ranks - 1),
					    make_float4(acc[m][n][0], acc[m][n][1], acc[m][n][2], acc[m][n][3]));
		}
}

/* A lane has rows 2t and 2t + 1 of outputs g and g + 8 of a unit. Lanes of neighbouring g exchange, so that each has two neighbouring outputs of a row:
 * its row and first output. */
static __device__ __forceinline__ int unit_row(int row8)
{
	return row8 + (threadIdx.x & 3) * 2 + (threadIdx.x >> 2 & 1);
}
static __device__ __forceinline__ int unit_output(int tile)
{
	return tile * TILE + (threadIdx.x >> 2 & 6);
}

static __device__ __forceinline__ void put_unit(const struct linear_args &p, int tile, int row8, float4 v, float2 before_lo, float2 before_hi)
{
	int odd = threadIdx.x >> 2 & 1, row = unit_row(row8), o = unit_output(tile);
	float2 lo, hi;
	float a, b;

	if (p.paired && gridDim.y == 1) {
		v.x = silu(v.x) * v.z;
		v.y = silu(v.y) * v.w;
	}
	a = __shfl_xor_sync(~0u, odd ? v.x : v.y, 4);
	b = __shfl_xor_sync(~0u, odd ? v.z : v.w, 4);
	lo = odd ? make_float2(a, v.y) : make_float2(v.x, a);
	hi = odd ? make_float2(b, v.w) : make_float2(v.z, b);
	if (row >= p.rows)
		return;
	if (gridDim.y > 1) {
		float *to = p.partial + ((size_t)blockIdx.y * p.rows + row) * p.tiles * TILE + o;

		*(float2 *)to = lo;
		*(float2 *)(to + 8) = hi;
	} else if (p.paired) {
		put2_gated(p, row, o, lo);
	} else {
		put2(p, row, o, lo, before_lo);
		put2(p, row, o + 8, hi, before_hi);
	}
}

/* Sources in order; or each rank's parts by themselves, and then the ranks. */
static __device__ __forceinline__ float4 add_sources(const float4 *from, int n)
{
	float4 v = from[0];

#pragma unroll 4
	for (int s = 1; s < n; s++)
		v = add4(v, from[s * 32]);
	return v;
}
static __device__ __forceinline__ float4 add_ranks(const float4 *from, int part_bits, int n)
{
	float4 v = add_sources(from, 1 << part_bits);

	for (int s = 1 << part_bits; s < n; s += 1 << part_bits)
		v = add4(v, add_sources(from + s * 32, 1 << part_bits));
	return v;
}

/* The sums of a pass that this block owns, in the format's order: to y, or to the slice's partial sums. */
template <class F, int NT>
static __device__ __forceinline__ void finish(const struct linear_args &p, const struct linear_place &b, const char *sums, int tile0, int tiles)
{
	int sources = 1 << (p.part_bits + p.rank_bits), i = threadIdx.x / 32, u = (i << p.rank_bits) + b.rank, units = tiles * NT;
	int row = unit_row(b.row0 + u % NT * 8), o = unit_output(tile0 + u / NT);
	float2 before_lo = u < units ? before2(p, row, o) : make_float2(0, 0), before_hi = u < units ? before2(p, row, o + 8) : make_float2(0, 0);

	ranks_meet(p.rank_bits);
	for (; (u = (i << p.rank_bits) + b.rank) < units; i += WARPS) {
		const float4 *from = (const float4 *)(sums + i * sources * SUM_BYTES) + (threadIdx.x & 31);
		float4 v;

		row = unit_row(b.row0 + u % NT * 8);
		o = unit_output(tile0 + u / NT);
		if (i >= WARPS) {
			before_lo = before2(p, row, o);
			before_hi = before2(p, row, o + 8);
		}
		v = F::EIGHT ? add_ranks(from, p.part_bits, sources) : add_sources(from, sources);
		put_unit(p, tile0 + u / NT, b.row0 + u % NT * 8, v, before_lo, before_hi);
	}
}

/* By the last block of these tiles: the slices in order. (Slices are blocks alone, which own all of their tiles.) */
static __device__ void add_slices(const struct linear_args &p, const struct linear_place &b, int rows8)
{
	int wide = p.tiles * TILE, twos = b.tiles * (TILE / 2), rows = min(rows8, p.rows - b.row0);
	size_t step = (size_t)p.rows * wide;

	for (int i = threadIdx.x; i < twos * rows; i += THREADS) {
		int row = b.row0 + i / twos, o = b.tile0 * TILE + i % twos * 2;
		const float *from = p.partial + (size_t)row * wide + o;
		float2 v = {}, up = {};

		if (p.paired && o % TILE >= TILE / 2)
			continue;
#pragma unroll 4
		for (unsigned k = 0; k < gridDim.y; k++) {
			float2 a = __ldcg((const float2 *)(from + k * step)), c = p.paired ? __ldcg((const float2 *)(from + k * step + TILE / 2)) : a;

			v = make_float2(v.x + a.x, v.y + a.y);
			up = make_float2(up.x + c.x, up.y + c.y);
		}
		if (p.paired)
			put2_gated(p, row, o, make_float2(silu(v.x) * up.x, silu(v.y) * up.y));
		else
			put2(p, row, o, v, before2(p, row, o));
	}
}

/* ---- the block ----------------------------------------------------------------------------------------------------------------------- */

template <int NT> static __device__ __forceinline__ struct linear_place place_of(const struct linear_args &p, int block, int group)
{
	struct linear_place b;

	b.rank = block & ((1 << p.rank_bits) - 1);
	b.row0 = group * NT * 8;
	b.tile0 = (block >> p.rank_bits) * p.block_tiles;
	b.tiles = min(p.block_tiles, p.tiles - b.tile0);
	b.c0 = ((blockIdx.y << p.rank_bits) + b.rank) * p.block_chunks;
	b.chunks = max(0, min(p.block_chunks, p.chunks - b.c0));
	b.n = threadIdx.x / 32 >> p.part_bits;
	b.k = threadIdx.x / 32 & ((1 << p.part_bits) - 1);
	b.begin = min(b.k * part_chunks(p, b.chunks), b.chunks);
	b.end = min(b.begin + part_chunks(p, b.chunks), b.chunks);
	return b;
}

/* Sets [from, to) of a pass's weights, of the first chunks of the part. The line is at the last one asked for. */
template <class F, int T, int SETS>
static __device__ __forceinline__ void ask_ahead(const struct linear_args &p, const struct linear_place &b, int from, int to,
						 typename F::template lane<T> set[SETS], typename F::template line<T> &line)
{
#pragma unroll
	for (int s = from; s < to; s++)
		if (s == 0 || b.begin + s < b.end) {
			if (s > 0)
				line.step(1);
			set[s].load(p, line);
		}
}

/* Block `block`: of its row of the picture the one of its rank; slice blockIdx.y; `group` of NT * 8 rows */
template <class F, int NT, int T> static __device__ __forceinline__ void linear_block(const struct linear_args &p, int block, int group)
{
	extern __shared__ __align__(16) char linear_sh[]; /* linear_shared */
	struct linear_place b = place_of<NT>(p, block, group);
	int first = b.tile0 + b.n * T, columns = WARPS >> p.part_bits, pass_tiles = columns * T;
	uint32_t pitch = row_pitch(p, F::ROW), x_sh = shared_address(linear_sh) + sum_bytes(p, NT, T), starts = x_sh + NT * 8 * pitch;
	uint32_t at = x_sh + (threadIdx.x >> 2 & 7) * pitch + (threadIdx.x & 3) * 16;
	enum { SETS = NT <= 2 && F::DEEP / T > 2 ? F::DEEP / T : 2 };
	typename F::template lane<T> set[SETS];
	typename F::template line<T> line;

	line.start(p, first, min(b.c0 + b.begin, p.chunks - 1));
	ask_ahead<F, T, SETS>(p, b, 0, 1, set, line);
	ranks_arrive(p.rank_bits);
	let_next_start();
	after_previous();
	if (F::EIGHT && p.x8)
		take_rounded<F, NT>(p, b, at, pitch, starts);
	else
		take_rows<F, NT>(p, b, at, pitch, starts);
	ask_ahead<F, T, SETS>(p, b, 1, SETS - 1, set, line);
	if (p.rank_bits)
		cluster_wait();
	for (int pass = 0; pass < b.tiles; pass += pass_tiles) {
		float acc[T][NT][4] = {};

#pragma unroll 1
		for (int c0 = b.begin; c0 < b.end; c0 += SETS) {
#pragma unroll
			for (int s = 0; s < SETS; s++) {
				int c = c0 + s;

				if (c >= b.end)
					break;
				if (c + SETS - 1 < b.end) {
					line.step(1);
					set[(s + SETS - 1) % SETS].load(p, line);
				}
				set[s].template multiply<NT>(at + c * F::ROW, pitch, F::template start<NT>(starts, c), acc);
			}
		}
		if (pass + pass_tiles < b.tiles) {
			line.start(p, first + pass + pass_tiles, min(b.c0 + b.begin, p.chunks - 1));
			ask_ahead<F, T, SETS>(p, b, 0, SETS - 1, set, line);
		}
		if (pass) /* the sums before were read */
			ranks_wait(p.rank_bits);
		send_sums<NT, T>(p, b, linear_sh, b.tiles - pass, acc);
		finish<F, NT>(p, b, linear_sh, b.tile0 + pass, min(pass_tiles, b.tiles - pass));
		if (pass + pass_tiles < b.tiles)
			ranks_arrive(p.rank_bits);
	}
	if (gridDim.y > 1 && last_to_arrive(p.counter + blockIdx.z * gridDim.x + blockIdx.x, gridDim.y))
		add_slices(p, b, NT * 8);
}

/* grid (groups of tiles, slices, groups of NT * 8 rows) */
template <class F, int NT, int T> static __global__ void __launch_bounds__(THREADS, 1) linear_kernel(const struct linear_args p)
{
	linear_block<F, NT, T>(p, blockIdx.x, blockIdx.z);
}

template <class F, int NT, int T> static void launch(struct td_dev *dev, const struct linear_args &p, int groups, int slices)
{
	size_t shared = linear_shared<F>(p, NT, T);
	static size_t allowed; /* the most that this kernel was given so far */

	if (shared > allowed)
		td__cuda_shared(dev, linear_kernel<F, NT, T>, allowed = shared);
	td__cuda_launch_ranks(dev, "linear", linear_kernel<F, NT, T>, dim3(groups << p.rank_bits, slices, div_up(p.rows, NT * 8)), THREADS, shared,
			      1 << p.rank_bits, p);
}

/* Tiles of a warp in a pass: the fewest that do, up to what there are registers for; one where many passes are needed anyway, and sets of one tile can be deep.
 * Results don't depend on it. */
template <class F> static inline int tiles_of(const struct linear_args &p, int most)
{
	int columns = WARPS >> p.part_bits;

	return F::DEEP > 2 && p.block_tiles > MANY_PASSES * most * columns ? 1 : div_up(p.block_tiles, div_up(p.block_tiles, most * columns) * columns);
}

template <class F, int NT> static void launch_wide(struct td_dev *dev, const struct linear_args &p, int groups, int slices)
{
	enum { MOST = NT > 4 ? 1 : NT > 2 && F::TILES > 2 ? 2 : F::TILES };
	int t = tiles_of<F>(p, MOST);

	if (MOST > 2 && t > 2)
		launch<F, NT, MOST>(dev, p, groups, slices);
	else if (MOST > 1 && t > 1)
		launch<F, NT, MOST < 2 ? MOST : 2>(dev, p, groups, slices);
	else
		launch<F, NT, 1>(dev, p, groups, slices);
}

/* Clusters of 1 << bits blocks that run at once, one block a multiprocessor; 0: none. */
template <class F> static int clusters_of(struct td_dev *dev, int bits)
{
	int most = dev->sms >> bits, n;

	if (!bits)
		return most;
	if (!dev->ranks[bits]) {
		n = most ? td__cuda_clusters(dev, linear_kernel<F, 1, 1>, dim3((unsigned)(most << bits)), THREADS, dev->shared_max, 1 << bits) : 0;
		dev->ranks[bits] = n > 0 ? (n < most ? n : most) : -1;
	}
	return dev->ranks[bits] < 0 ? 0 : dev->ranks[bits];
}

/*
 * Time of the busiest block, in hundredths of a microsecond on an H200 with 16 rows, by a fit to products of 160 to 15,520 tiles by 20 to 72 chunks: tiles'
 * chunks of a warp; chunks whose activations the block fetches; steps, which read them from shared memory; what each pass costs, and each way to share.
 */
template <class F> static inline int cost_of(int tiles, int chunks, int bits, int part_bits, int slices)
{
	int columns = WARPS >> part_bits, each = div_up(tiles, columns), passes = div_up(each, F::TILES), steps = div_up(chunks, 1 << part_bits);

	return F::COST_TILE * each * steps + 10 * chunks + F::COST_STEP * passes * steps + (passes - 1) * (30 + 40 * bits) + 10 * bits + F::COST_PART * part_bits +
	       (slices > 1 ? 150 + 10 * slices : 0);
}

/*
 * The rectangle of a block: of all shapes that fit (with 32 rows) the cheapest. A map of a few tiles is cut as the large one is whose launch it may share
 * (linear_pair.cu): by pairs of blocks, two parts each.
 */
template <class F> static void cut(struct td_dev *dev, struct linear_args *p, int *groups, int *slices)
{
	int sums = WARPS * 2 * 4 * SUM_BYTES, most = (int)((dev->shared_max - sums - 32 * 64) / (32 * (F::ROW + 4 * F::STARTS))), least = INT32_MAX;
	int slices_most = dev->sms < p->chunks ? dev->sms : p->chunks; /* no slice without a chunk */
	int few = p->tiles < WARPS, few_bits = clusters_of<F>(dev, 1) && div_up(p->chunks, 2) <= most;

	for (int bits = 0; bits <= RANK_BITS; bits++) {
		int clusters = clusters_of<F>(dev, bits), first = div_up(p->chunks, most << bits);

		/* slices needn't run at once: on a few multiprocessors there may be more of them than of these */
		for (int s = first; s <= (bits ? 1 : few || first > slices_most ? first : slices_most); s++) {
			int chunks = div_up(p->chunks, s << bits), used = div_up(p->chunks, chunks << bits), rows = bits || clusters > used ? clusters / used : 1;
			int tiles = rows ? div_up(p->tiles, rows) : 0;

			for (int part_bits = 0; tiles && part_bits <= PART_BITS; part_bits++) {
				int cost = cost_of<F>(tiles, chunks, bits, part_bits, used);

				if (cost >= least || (few && (bits != few_bits || part_bits != 1)))
					continue;
				least = cost;
				p->rank_bits = bits;
				p->part_bits = part_bits;
				p->block_chunks = chunks;
				p->block_tiles = tiles;
				*groups = div_up(p->tiles, tiles);
				*slices = used;
			}
		}
	}
}

/* What a product is part of. */
struct linear_use {
	int accumulate, paired;
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
	p.x8 = x.eight ? (const char *)(p.x + x.cols) : NULL;
	p.ldx = x.ld;
	p.rows = x.rows;
	p.y = y.data;
	p.ldy = y.ld;
	p.y_f32 = y.dtype == TD_F32;
	p.accumulate = use.accumulate;
	p.paired = use.paired;
	p.by_two = y.ld % 2 == 0 && w->out % 2 == 0 && (uintptr_t)y.data % 8 == 0;
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
	if (partial * x.rows > td__cuda_scratch_size(dev) && x.rows > 8) { /* a row's bits don't depend on where the rows are cut */
		int half = div_up(x.rows / 2, 8) * 8;

		run<F>(dev, td_rows(x, 0, half), w, td_rows(y, 0, half), use);
		run<F>(dev, td_rows(x, half, x.rows - half), w, td_rows(y, half, x.rows - half), use);
		return;
	}
	p.partial = partial ? (float *)td__cuda_scratch(dev, partial * x.rows) : NULL;
	if (dev->error.code)
		return;
	p.counter = dev->counters;
	if (x.rows <= 8)
		launch_wide<F, 1>(dev, p, groups, slices);
	else if (x.rows <= 16)
		launch_wide<F, 2>(dev, p, groups, slices);
	else if (x.rows <= 32 || linear_shared<F>(p, 8, 1) > dev->shared_max)
		launch_wide<F, 4>(dev, p, groups, slices);
	else
		launch_wide<F, 8>(dev, p, groups, slices); /* one pass over the weights */
}

#endif
