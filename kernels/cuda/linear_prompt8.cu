/*
 * linear_prompt8.cu: y = W x for packed 4-bit weights and activations in 8 bits (td_linear.act8), of blocks of prompts: hundreds to thousands of rows, by the
 * products of warpgroups of compute capability 9.0.
 *
 * A tile is 128 rows of 64, 128 or 192 outputs, over all columns: one to three warpgroups multiply, each 64 outputs, and turn their sums of a chunk into floats
 * while the products of others run. A further warpgroup asks for what is needed a few chunks ahead, by the bulk copy engine, in a ring of
 * stages: activations as a kernel before rounded and arranged them (rows8.cuh), weights as they lie in memory. A chunk costs 66 bytes an output and 132 a row,
 * so tiles are wide rather than high: the L2 cache's bandwidth is what they must not exceed.
 *
 * A block makes every gridDim.x-th tile, so that at any time those of a few outputs are under way and their weights are read from memory once. Where the last
 * round would leave most blocks without one, the last two rounds are shared evenly: a line of tiles times chunks, of which each block has a stretch. The tile
 * in which a stretch ends is begun by its block, first of all, and its sums are left in memory; the next block takes them up at its very end. So nobody waits,
 * and each output is still one sum over its chunks in order:
 *
 *	block i		| begins tile t | its own tiles ... | ends tile s
 *	block i + 1	| begins tile u | its own tiles ... | ends tile t
 *
 * Bits: sums of a group are exact, and groups are added in order, so neither tiles nor stretches matter. They are not those of few rows (linear_wide8.cu),
 * which add parts of the columns: which way a row goes is a matter of its position in the prompt alone (linear.cu).
 */
#include "kernels/cuda/rows8.cuh"

enum {
	ROWS = 128, /* of a tile */
	EIGHTS = ROWS / 8,
	HALF = EIGHTS / 2,
	WGS_MOST = 3, /* warpgroups that multiply, at most */
	ASKING8_WARPS = 4,
	ASKING_REGISTERS = 32, /* of a thread that asks, and what it leaves for one that multiplies, where there are so many */
	REGISTERS = 160,
	STAGE8_ALIGN = 1024, /* of the pattern in which products read rows */
	WORTH = 12, /* chunks of a tile that sharing must save: it writes and reads a tile's sums */
	SCRATCH = 64 << 20, /* bytes that every engine lends */
	BATCH = 4 /* units whose outputs are read at once, to be added to */
};

struct prompt8_args {
	struct linear_args l;
	struct image8 image; /* tiles of rows; a chunk's rows and scales together */
	int row_tiles, all_tiles; /* tiles of rows, tiles of all */
	int rounds, shared; /* tiles of every block; those that are shared, or 0 */
	int stages;
	int by_eight; /* outputs can be written eight at a time */
	float *begun; /* [block][warp][sums][lane]: of tiles that the next block ends */
	unsigned *begun_flag; /* [block][warp], zero between kernels */
};

/* WGS warpgroups that multiply, 64 outputs each. */
template <int P, int WGS> struct prompt8_sizes {
	enum {
		TILES = WGS * 4,
		WEIGHTS = int4_order<P>::BYTES,
		IMAGE = ROWS * (ROW8_BYTES + 4),
		STAGE = (IMAGE + TILES * WEIGHTS + STAGE8_ALIGN - 1) / STAGE8_ALIGN * STAGE8_ALIGN,
		SUMS = EIGHTS * 4 /* of a lane */
	};
};

#ifdef TD_CUDA_GROUPS
struct prompt8_place {
	uint32_t ring;
	uint64_t *full, *empty; /* gates of a stage: what was asked for is there; it was left */
};

/* Chunks from .. to - 1 of a tile; begun by another, or ended by another. */
struct prompt8_piece {
	int tile, from, to, begun, ends;
};

/* The i-th piece of this block, which may have no chunks; 0 when there is none. */
static __device__ __forceinline__ int piece_of(const struct prompt8_args &p, int i, struct prompt8_piece *t)
{
	int chunks = p.l.chunks, line = p.shared * chunks, begin, end, whole;

	*t = {(int)blockIdx.x + i * (int)gridDim.x, 0, chunks, 0, 1};
	if (!p.shared)
		return i < p.rounds && t->tile < p.all_tiles;
	begin = (int)((long long)line * blockIdx.x / gridDim.x);
	end = (int)((long long)line * (blockIdx.x + 1) / gridDim.x);
	if (i == 0) {
		*t = {p.all_tiles - p.shared + end / chunks, 0, end % chunks, 0, 0};
		return 1;
	}
	t->tile -= (int)gridDim.x;
	if (i <= p.rounds)
		return 1;
	whole = (begin + chunks - 1) / chunks + i - 1 - p.rounds;
	t->tile = p.all_tiles - p.shared + whole;
	if (whole < end / chunks)
		return 1;
	if (whole > end / chunks || begin % chunks == 0)
		return 0;
	*t = {p.all_tiles - p.shared + begin / chunks, begin % chunks, chunks, 1, 1};
	return 1;
}

/* An asking warp: a lane for each of its share of the tile's weights, and in the first warp one for the rows. */
template <int P, int WGS> static __device__ __forceinline__ void ask8(const struct prompt8_args &p, const struct prompt8_place &b, int warp)
{
	typedef prompt8_sizes<P, WGS> S;
	enum { MINE = S::TILES / ASKING8_WARPS };
	int lane = threadIdx.x & 31, weights = lane < MINE, mine = warp * MINE + lane, bytes = weights ? S::WEIGHTS : S::IMAGE;
	uint32_t to = b.ring + (weights ? S::IMAGE + mine * S::WEIGHTS : 0);
	struct prompt8_piece t;
	struct ring r = {};

	if (lane > MINE || (lane == MINE && warp))
		return;
	for (int i = 0; piece_of(p, i, &t); i++) {
		int rows = t.tile % p.row_tiles, tile0 = t.tile / p.row_tiles * S::TILES;
		const char *from = weights ? (const char *)p.l.w + (size_t)min(tile0 + mine, p.l.tiles - 1) * p.l.chunks * S::WEIGHTS
					   : p.image.at + rows * p.image.block;

#pragma unroll 1
		for (int c = t.from; c < t.to; c++, r.step(p.stages)) {
			gate_wait(b.empty + r.stage, r.turn ^ 1);
			if (!weights)
				gate_expect(b.full + r.stage, S::IMAGE + S::TILES * S::WEIGHTS);
			bulk_copy(b.full + r.stage, to + r.stage * S::STAGE, from + (size_t)c * bytes, bytes);
		}
	}
}

/* A multiplying warp: 16 outputs. */
template <int P, int WGS> struct prompt8 {
	typedef prompt8_sizes<P, WGS> S;
	enum { UNITS_OF = UNITS / P };

	float acc[EIGHTS * 4];

	/* The weights of a part of a tile's chunk: operands, and scales of the lane's two outputs. */
	struct weights {
		uint32_t a[UNITS_OF][4];
		float lo, hi;

		__device__ __forceinline__ void load(uint32_t w, int q)
		{
			uint32_t scale = load4(w + 1024 + q * 32 + (threadIdx.x >> 2 & 7) * 4);

			act8_part<P>(w, q, a);
			lo = bf16_lo(scale);
			hi = bf16_hi(scale);
		}
	};

	/* Products of part q of the chunk in a stage, for half of its rows from eight n on. */
	__device__ __forceinline__ void multiply(int (&sum)[HALF * 4], const weights &w, uint32_t stage, int q, int n)
	{
		uint64_t place = operand_by_rows(stage);

		group_begin();
#pragma unroll
		for (int i = 0; i < UNITS_OF; i++) {
			uint64_t at = operand_at(place, n * 8 * ROW8_BYTES + (q * UNITS_OF + i) * UNIT);

			if (i)
				group_mma_bytes<1>(sum, w.a[i], at);
			else
				group_mma_bytes<0>(sum, w.a[i], at);
		}
		group_commit();
		group_wait<0>();
		group_hold(sum);
	}

	/* acc += scales times their sums. */
	__device__ __forceinline__ void add(const int (&sum)[HALF * 4], const weights &w, uint32_t stage, int n0)
	{
		uint32_t scales = stage + ROWS * ROW8_BYTES + (threadIdx.x & 3) * 16;

#pragma unroll
		for (int n = 0; n < HALF; n += 2) {
			uint4 v = load16(scales + (n0 + n) * 32);
			float s[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};

#pragma unroll
			for (int i = 0; i < 8; i++) {
				float &to = acc[(n0 + n) * 4 + i];

				to = fmaf(act8_sum_from_0(sum[n * 4 + i]), (i & 2 ? w.hi : w.lo) * s[(i >> 2) * 2 + (i & 1)], to);
			}
		}
	}

	/* acc += scales times the products of a stage's chunk. Half of the rows at a time, so that there are registers for three warpgroups. */
	__device__ __forceinline__ void chunk(uint32_t stage, uint32_t w)
	{
		int sum[HALF * 4];
		weights v;

#pragma unroll
		for (int q = 0; q < P; q++) {
			v.load(w, q);
#pragma unroll
			for (int n = 0; n < EIGHTS; n += HALF) {
				multiply(sum, v, stage, q, n);
				add(sum, v, stage, n);
			}
		}
	}

	__device__ __forceinline__ float4 unit(int i) const
	{
		return make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]);
	}

	/* Zero, or what the block before left. (One word at a time: four would have to lie in four registers that follow each other, which costs the loop some.) */
	__device__ __forceinline__ void begin(const struct prompt8_args &p, int begun)
	{
		int at = (blockIdx.x - 1) * S::TILES + threadIdx.x / 32;
		const float *from = p.begun + (size_t)at * S::SUMS * 32 + (threadIdx.x & 31);

		if (begun)
			flag_wait(p.begun_flag + at);
#pragma unroll
		for (int i = 0; i < S::SUMS; i++)
			acc[i] = begun ? __ldcg(from + i * 32) : 0;
		if (begun)
			flag_clear(p.begun_flag + at);
	}

	__device__ __forceinline__ void leave(const struct prompt8_args &p)
	{
		int at = blockIdx.x * S::TILES + threadIdx.x / 32;
		float *to = p.begun + (size_t)at * S::SUMS * 32 + (threadIdx.x & 31);

#pragma unroll
		for (int i = 0; i < S::SUMS; i++)
			to[i * 32] = acc[i];
		flag_set(p.begun_flag + at);
	}

	__device__ __forceinline__ void run(const struct prompt8_args &p, const struct prompt8_place &b)
	{
		int warp = threadIdx.x / 32;
		struct prompt8_piece t;
		struct ring r = {};

#pragma unroll 1
		for (int i = 0; piece_of(p, i, &t); i++) {
			int row0 = t.tile % p.row_tiles * ROWS, tile = t.tile / p.row_tiles * S::TILES + warp;

			if (t.from == t.to)
				continue;
			begin(p, t.begun);
#pragma unroll 1
			for (int c = t.from; c < t.to; c++, r.step(p.stages)) {
				uint32_t stage = of_the_warp(b.ring + r.stage * S::STAGE), w = stage + S::IMAGE + warp * S::WEIGHTS;

				gate_wait(b.full + r.stage, r.turn);
				chunk(stage, w);
				__syncwarp(); /* nobody of this warp reads the stage any more */
				if ((threadIdx.x & 31) == 0)
					gate_arrive(b.empty + r.stage);
			}
			if (!t.ends)
				leave(p);
			else if (p.by_eight && p.l.paired)
				put_gated(p.l, row0, tile);
			else if (p.by_eight)
				put_rounded(p.l, row0, tile);
			else
				put_each(p.l, row0, tile);
		}
	}

	/* Two outputs of a row at a time, perhaps added to what is there. */
	__device__ __forceinline__ void put_each(const struct linear_args &l, int row0, int tile)
	{
		int o = unit_output(tile);

		if (tile >= l.tiles)
			return;
#pragma unroll
		for (int n0 = 0; n0 < EIGHTS; n0 += BATCH) {
			float2 lo[BATCH], hi[BATCH];

#pragma unroll
			for (int i = 0; i < BATCH; i++) {
				int row = unit_row(row0 + (n0 + i) * 8);

				lo[i] = before2(l, row, o);
				hi[i] = before2(l, row, o + 8);
			}
#pragma unroll
			for (int i = 0; i < BATCH; i++)
				put_unit(l, tile, row0 + (n0 + i) * 8, unit(n0 + i), lo[i], hi[i]);
		}
	}

	/* Eight outputs of a row at a time: of 8 x 8 outputs of four kinds each lane gets two neighbours of a row by turning them in the warp, and then all eight
	 * of one kind from the row's other lanes. */
	__device__ __forceinline__ void put_rounded(const struct linear_args &l, int row0, int tile)
	{
		int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3, o = tile * TILE + (t & 1) * 8;

#pragma unroll
		for (int n = 0; n < EIGHTS; n += 2) {
			const float *a = acc + n * 4;
			int row = row0 + (n + t / 2) * 8 + g;
			uint4 all = turn_words(make_uint4(turn_matrix(bf16_pair(a[0], a[1])), turn_matrix(bf16_pair(a[2], a[3])), turn_matrix(bf16_pair(a[4], a[5])),
							  turn_matrix(bf16_pair(a[6], a[7]))));

			if (row < l.rows && o < l.out)
				*(uint4 *)((bf16 *)l.y + (size_t)row * l.ldy + o) = all;
		}
	}

	__device__ __forceinline__ void put_gated(const struct linear_args &l, int row0, int tile)
	{
		int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;

#pragma unroll
		for (int n = 0; n < EIGHTS; n += 4) {
			int row = row0 + (n + t) * 8 + g;
			uint32_t v[4];
			uint4 all;

#pragma unroll
			for (int i = 0; i < 4; i++) {
				const float *a = acc + (n + i) * 4;

				v[i] = turn_matrix(bf16_pair(silu(a[0]) * a[2], silu(a[1]) * a[3]));
			}
			all = turn_words(make_uint4(v[0], v[1], v[2], v[3]));
			if (row < l.rows && tile < l.tiles)
				*(uint4 *)((bf16 *)l.y + (size_t)row * l.ldy + tile * (TILE / 2)) = all;
		}
	}
};
#endif

template <int P, int WGS> static __global__ void __launch_bounds__((WGS + 1) * 128, 1) prompt8_kernel(const struct prompt8_args p)
{
#ifdef TD_CUDA_GROUPS
	typedef prompt8_sizes<P, WGS> S;
	extern __shared__ __align__(16) char prompt8_sh[];
	int warp = threadIdx.x / 32;
	struct prompt8_place b;
	struct prompt8<P, WGS> mine;

	b.ring = (shared_address(prompt8_sh) + STAGE8_ALIGN - 1) & ~(uint32_t)(STAGE8_ALIGN - 1);
	b.full = (uint64_t *)(prompt8_sh + (b.ring - shared_address(prompt8_sh)) + p.stages * S::STAGE);
	b.empty = b.full + p.stages;
	if ((int)threadIdx.x < p.stages) {
		gate_make(b.full + threadIdx.x, 1);
		gate_make(b.empty + threadIdx.x, S::TILES);
	}
	__syncthreads();
	let_next_start();
	after_previous();
	if (warp >= S::TILES) {
		if constexpr (WGS == WGS_MOST)
			group_registers_less<ASKING_REGISTERS>();
		ask8<P, WGS>(p, b, warp - S::TILES);
	} else {
		if constexpr (WGS == WGS_MOST)
			group_registers_more<REGISTERS>();
		mine.run(p, b);
	}
#else
	__trap(); /* code for another GPU */
#endif
}

static int tiles_of_all(int rows, int tiles, int tiles_each)
{
	return div_up(rows, (int)ROWS) * div_up(tiles, tiles_each);
}

static struct prompt8_args some_rows(struct prompt8_args p, int row0, int rows)
{
	p.l.x += (size_t)row0 * p.l.ldx;
	p.l.y = (char *)p.l.y + (size_t)row0 * p.l.ldy * (p.l.y_f32 ? sizeof(float) : sizeof(bf16));
	p.l.rows = rows;
	return p;
}

template <int P, int WGS> static void prompt8_launch(struct td_dev *dev, struct prompt8_args p)
{
	typedef prompt8_sizes<P, WGS> S;
	static size_t allowed;
	int blocks, rest;
	size_t shared, begun, image;

	p.row_tiles = div_up(p.l.rows, (int)ROWS);
	p.all_tiles = tiles_of_all(p.l.rows, p.l.tiles, S::TILES);
	blocks = p.all_tiles < dev->sms ? p.all_tiles : dev->sms;
	rest = p.all_tiles % blocks;
	p.shared = rest && p.l.chunks * (blocks - rest) >= WORTH * blocks ? blocks + rest : 0;
	p.rounds = p.shared ? p.all_tiles / blocks - 1 : div_up(p.all_tiles, blocks);
	p.stages = (int)((dev->shared_max - STAGE8_ALIGN) / (S::STAGE + 16));
	shared = STAGE8_ALIGN + (size_t)p.stages * (S::STAGE + 16);
	begun = p.shared ? (size_t)blocks * S::TILES * S::SUMS * 32 * sizeof(float) : 0;
	p.image = {NULL, (size_t)p.l.chunks * S::IMAGE, S::IMAGE, ROWS * ROW8_BYTES, S::IMAGE};
	image = p.row_tiles * p.image.block;
	if (begun + image > SCRATCH && begun + image > td__cuda_scratch_size(dev) && p.row_tiles > 1) { /* bits don't depend on where rows are cut */
		int half = p.row_tiles / 2 * ROWS;

		prompt8_launch<P, WGS>(dev, some_rows(p, 0, half));
		prompt8_launch<P, WGS>(dev, some_rows(p, half, p.l.rows - half));
		return;
	}
	p.begun = (float *)td__cuda_scratch(dev, begun + image);
	p.image.at = (char *)p.begun + begun;
	p.begun_flag = dev->counters;
	if (dev->error.code)
		return;
	if (shared > allowed)
		td__cuda_shared(dev, prompt8_kernel<P, WGS>, allowed = shared);
	td__cuda_launch(dev, "rounding rows", arrange8<ROWS>, dim3(p.l.chunks, div_up(p.row_tiles * EIGHTS, (int)ARRANGE8_WARPS)), ARRANGE8_WARPS * 32, 0, p.l,
			p.image, p.row_tiles * EIGHTS);
	td__cuda_launch(dev, "linear (prompt)", prompt8_kernel<P, WGS>, dim3(blocks), (WGS + 1) * 128, shared, p);
}

/* The widest tiles of which each multiprocessor gets one. */
template <int P> static void prompt8_run(struct td_dev *dev, const struct prompt8_args &p)
{
	if (tiles_of_all(p.l.rows, p.l.tiles, WGS_MOST * 4) >= dev->sms)
		prompt8_launch<P, WGS_MOST>(dev, p);
	else if (tiles_of_all(p.l.rows, p.l.tiles, 8) >= dev->sms)
		prompt8_launch<P, 2>(dev, p);
	else
		prompt8_launch<P, 1>(dev, p);
}

/* 1 when it was launched; 0 on a GPU without products of warpgroups. */
int td__cuda_act8_prompt(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate, int paired)
{
	struct linear_use use = {accumulate, paired};
	struct prompt8_args p = {};

	if (!dev->groups)
		return 0;
	p.l = arguments(x, w, y, use);
	p.by_eight = !p.l.y_f32 && !accumulate && y.ld % 8 == 0 && (uintptr_t)y.data % 16 == 0 && w->out % 8 == 0;
	if (parts_of(w) == 1)
		prompt8_run<1>(dev, p);
	else
		prompt8_run<UNITS>(dev, p);
	return 1;
}
