/*
 * linear_wide.cu: y = W x for packed 4-bit weights and more rows than linear_int4.cu is made for (33 to some hundreds: several requests' verifies), by the
 * products of warpgroups of compute capability 9.0.
 *
 * A block is three warpgroups that multiply and one that asks. It makes 64 rows of 192 outputs, each warpgroup a third of these over all columns; or, of a
 * map too narrow to give every multiprocessor such a block, of 64 outputs, each warpgroup every third segment of the columns (a team is who shares columns).
 * For each team a warp asks for what is needed a few chunks ahead, by the bulk copy engine, in a ring of stages: the weights of a chunk as they lie in
 * memory, and the activations as a kernel before arranged them (`arrange`), which is how the products read them from shared memory. Weights are expanded in
 * registers while products of other warpgroups run.
 *
 * Bits: those of linear_tile.cuh. A product of a warpgroup sums as that of a warp does (no manual says so: it was measured, and ops_check compares). The
 * columns are cut as they are there (segment_end), each segment's sum by itself, and the segments are added in the order in which `finish` adds them,
 * whichever team made them. So a row may come here or go there.
 */
#include "kernels/cuda/int4_format.cuh"

enum {
	NT = 8, /* eights of rows of a block */
	TEAM_WARPS = 4, /* of a warpgroup */
	TEAMS = 3, /* warpgroups that multiply */
	WIDE_WARPS = TEAMS * TEAM_WARPS,
	WIDE_THREADS = WIDE_WARPS * 32 + 128,
	ASKING_REGISTERS = 40, /* of a thread that asks, and what it leaves for one that multiplies */
	WIDE_REGISTERS = 152,
	STAGES_MOST = 5,
	STAGE_ALIGN = 1024, /* of the pattern in which products read activations */
	ROW_BYTES = CHUNK * 2, /* of a row's chunk */
	WARP_TOTALS = NT * 512, /* what a warp's sums take */
	ARRANGE_WARPS = 4
};

struct wide_args {
	struct linear_args l;
	const char *image; /* [blocks of NT * 8 rows][chunks] of activations and starts */
	int by_columns; /* a team is one warpgroup, and each has its own columns; else one team of all, each with its own outputs */
	int stages; /* of a ring */
};

/* What a chunk of a block's rows takes: activations, then what sums start at, for outputs g and g + 8 as a lane has them; a tile's weights. */
template <int P> struct wide_sizes {
	enum { X = NT * 8 * ROW_BYTES, STARTS = P * NT * 8 * 8, IMAGE = X + STARTS, WEIGHTS = int4_format<P>::BYTES };
};
/* Tiles of a block, bytes of a stage, of all. */
static inline __host__ __device__ int wide_tiles(int by_columns)
{
	return by_columns ? TEAM_WARPS : WIDE_WARPS;
}
template <int P> static inline __host__ __device__ int stage_bytes(int by_columns)
{
	return (wide_sizes<P>::IMAGE + wide_tiles(by_columns) * wide_sizes<P>::WEIGHTS + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
}
template <int P> static inline size_t wide_shared(int by_columns, int stages)
{
	int rings = by_columns ? TEAMS : 1;

	return STAGE_ALIGN + (size_t)rings * stages * stage_bytes<P>(by_columns) + wide_tiles(by_columns) * WARP_TOTALS + rings * stages * 16 + TEAM_WARPS * 4;
}

/* ---- arranging ------------------------------------------------------------------------------------------------------------------------ */

/*
 * A warp arranges eight rows of a chunk: 64 columns of a row are 128 bytes, the eight rows after each other, their 16-byte pieces exchanged as the hardware
 * wants it to read without conflicts (piece p of row g lies at p ^ g). A piece holds what the four lanes of a row have of a product's half.
 * grid (chunks, eights of rows / ARRANGE_WARPS)
 */
template <int P> static __global__ void __launch_bounds__(ARRANGE_WARPS * 32) arrange(const struct linear_args p, char *image, int eights)
{
	int c = blockIdx.x, eight = blockIdx.y * ARRANGE_WARPS + threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, n = eight % NT;
	int row = eight * 8 + g, col = c * CHUNK + t * 8;
	char *to = image + ((size_t)(eight / NT) * p.chunks + c) * wide_sizes<P>::IMAGE;
	uint4 v[UNITS];

	let_next_start();
	after_previous();
	if (eight >= eights)
		return;
	row_chunk(p, row, col, v);
#pragma unroll
	for (int u = 0; u < UNITS; u++)
		*(uint4 *)(to + ((u >> 1) * NT + n) * 1024 + g * 128 + (((u & 1) * 4 + t) ^ g) * 16) = turn_words(v[u]);
	int4_format<P>::starts_of(v, [&](int q, float a, float b) {
		if (lane < 4)
			*(float4 *)(to + wide_sizes<P>::X + (q * NT + n) * 64 + t * 16) = make_float4(a, b, a, b);
	});
}

/* ---- the product ---------------------------------------------------------------------------------------------------------------------- */

/* The chunks of a team in order: those of every `step`-th segment from the team's own on. Begins before the first. */
struct walk {
	int segment, step, c, end;

	__device__ __forceinline__ void start(const struct linear_args &p, int first, int by)
	{
		segment = first;
		step = by;
		c = first ? segment_end(p, first - 1) : 0;
		end = segment_end(p, first);
	}
	__device__ __forceinline__ void next_segment(const struct linear_args &p, int segments)
	{
		segment += step;
		if (segment < segments) {
			c = segment_end(p, segment - 1);
			end = segment_end(p, segment);
		}
	}
	/* To a segment that has a chunk, if there is one. */
	__device__ __forceinline__ int there(const struct linear_args &p, int segments)
	{
		while (segment < segments && c == end)
			next_segment(p, segments);
		return segment < segments;
	}
};

/* Addresses of a block and of a warp's team. */
struct wide_place {
	uint32_t ring; /* the stages */
	uint64_t *full, *empty; /* a gate for each by which what was asked for arrives, one by which the multiplying warps leave it */
	uint32_t totals, turns; /* sums of segments so far, of the warp; which segment is added next, a word for each of a team's warps */
	int tile0, team, teams, tiles, stage_bytes; /* first tile of the block; the team, how many, tiles that it makes */
};

#ifdef TD_CUDA_GROUPS
static __device__ __forceinline__ int segments_of(const struct linear_args &p)
{
	return 1 << (p.rank_bits + p.part_bits);
}

/*
 * An asking warp of a team: the weights of tiles [first, first + tiles) of the block, a lane for each, and the activations if it is the team's first. A copy
 * takes the better part of a hundred cycles to ask for, so that a team of many tiles has several. Weights of the first stages are asked for before the
 * kernel before has ended.
 */
template <int P> static __device__ __forceinline__ void ask(const struct wide_args &p, const struct wide_place &b, int first, int tiles)
{
	typedef wide_sizes<P> S;
	int lane = threadIdx.x & 31, chunks = p.l.chunks, segments = segments_of(p.l), weights = lane < tiles, bytes = weights ? S::WEIGHTS : S::IMAGE, ready = 0;
	uint32_t to = b.ring + (weights ? S::IMAGE + (first + lane) * S::WEIGHTS : 0);
	const char *from = weights ? (const char *)p.l.w + (size_t)min(b.tile0 + first + lane, p.l.tiles - 1) * chunks * S::WEIGHTS
				   : p.image + (size_t)blockIdx.z * chunks * S::IMAGE;
	struct ring r = {};
	struct walk at;

	for (at.start(p.l, b.team, b.teams); ready < p.stages && at.there(p.l, segments); at.c++, ready++) {
		if (lane == tiles && first == 0)
			gate_expect(b.full + ready, S::IMAGE + b.tiles * S::WEIGHTS);
		else if (weights)
			bulk_copy(b.full + ready, to + ready * b.stage_bytes, from + (size_t)at.c * S::WEIGHTS, S::WEIGHTS);
	}
	after_previous();
	at.start(p.l, b.team, b.teams);
	for (int i = 0; at.there(p.l, segments); at.c++, r.step(p.stages), i++) {
		if (i >= ready)
			gate_wait(b.empty + r.stage, r.turn ^ 1);
		if (lane == tiles && first == 0 && i >= ready)
			gate_expect(b.full + r.stage, S::IMAGE + b.tiles * S::WEIGHTS);
		if ((lane == tiles && first == 0) || (weights && i >= ready))
			bulk_copy(b.full + r.stage, to + r.stage * b.stage_bytes, from + (size_t)at.c * bytes, bytes);
	}
}

/* A warpgroup's way through its chunks. */
template <int P> struct wide {
	typedef wide_sizes<P> S;
	enum { UNITS_OF = int4_format<P>::UNITS_OF, PRODUCTS = UNITS_OF * 2 };

	float acc[NT * 4];

	/* acc += scale times the products of part q of the chunk in a stage. w: the warp's tile's weights of it. */
	__device__ __forceinline__ void multiply(uint32_t stage, uint32_t w, int q)
	{
		uint32_t starts = stage + S::X + (threadIdx.x & 3) * 16, lane16 = (threadIdx.x & 31) * 16;
		uint32_t scale = load4(w + 1024 + q * 32 + (threadIdx.x >> 2 & 7) * 4), a[PRODUCTS][4];
		uint64_t place = operand_by_rows(stage);
		float sum[NT * 4];

#pragma unroll
		for (int i = 0; i < UNITS_OF; i += 2) {
			int u = q * UNITS_OF + i;

			if (UNITS_OF > 1) {
				uint4 v = load16(w + u / 2 * 512 + lane16);

				expand(v.x, a[i * 2]);
				expand(v.y, a[i * 2 + 1]);
				expand(v.z, a[(i * 2 + 2) % PRODUCTS]);
				expand(v.w, a[(i * 2 + 3) % PRODUCTS]);
			} else {
				expand(load4(w + u / 2 * 512 + lane16 + u % 2 * 8), a[0]);
				expand(load4(w + u / 2 * 512 + lane16 + u % 2 * 8 + 4), a[1]);
			}
		}
#pragma unroll
		for (int n = 0; n < NT; n++) {
			uint4 from = load16(starts + (q * NT + n) * 64);

			sum[n * 4] = __uint_as_float(from.x);
			sum[n * 4 + 1] = __uint_as_float(from.y);
			sum[n * 4 + 2] = __uint_as_float(from.z);
			sum[n * 4 + 3] = __uint_as_float(from.w);
		}
		group_begin();
#pragma unroll
		for (int i = 0; i < PRODUCTS; i++) {
			int k = q * PRODUCTS + i;

			group_mma_in_64(sum, a[i], operand_at(place, (k >> 2) * (NT * 1024) + (k & 3) * 32));
		}
		group_commit();
		group_wait<0>();
		group_hold(sum);
#pragma unroll
		for (int i = 0; i < NT * 4; i++)
			acc[i] += (i & 2 ? bf16_hi(scale) : bf16_lo(scale)) * sum[i];
	}

	/* The sums of segment k to those before it, when these are there. */
	__device__ __forceinline__ void add_segment(const struct wide_place &b, int k)
	{
		uint32_t at = b.totals + (threadIdx.x & 31) * 16, turn = b.turns + (threadIdx.x / 32 % TEAM_WARPS) * 4;

		if (b.teams > 1)
			word_wait(turn, k);
#pragma unroll
		for (int n = 0; n < NT; n++) {
			float *v = acc + n * 4;

			if (k > 0) {
				uint4 was = load16(at + n * 512);

				v[0] = __uint_as_float(was.x) + v[0];
				v[1] = __uint_as_float(was.y) + v[1];
				v[2] = __uint_as_float(was.z) + v[2];
				v[3] = __uint_as_float(was.w) + v[3];
			}
			store16(at + n * 512, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])));
			v[0] = v[1] = v[2] = v[3] = 0;
		}
		if (b.teams > 1)
			word_set(turn, k + 1);
	}

	/* All chunks of the team; the outputs' sums are in `totals` when all segments were added. */
	__device__ __forceinline__ void run(const struct wide_args &p, const struct wide_place &b)
	{
		uint32_t mine = S::IMAGE + threadIdx.x / 32 % b.tiles * S::WEIGHTS;
		int segments = segments_of(p.l);
		struct ring r = {};
		struct walk at;

#pragma unroll
		for (int i = 0; i < NT * 4; i++)
			acc[i] = 0;
		for (at.start(p.l, b.team, b.teams); at.segment < segments; at.next_segment(p.l, segments)) {
#pragma unroll 1
			for (; at.c < at.end; at.c++, r.step(p.stages)) {
				uint32_t stage = of_the_warp(b.ring + r.stage * b.stage_bytes);

				gate_wait(b.full + r.stage, r.turn);
#pragma unroll
				for (int q = 0; q < P; q++)
					multiply(stage, stage + mine, q);
				__syncwarp(); /* nobody of this warp reads the stage any more */
				if ((threadIdx.x & 31) == 0)
					gate_arrive(b.empty + r.stage);
			}
			add_segment(b, at.segment);
		}
		if (b.teams > 1)
			word_wait(b.turns + (threadIdx.x / 32 % TEAM_WARPS) * 4, segments);
	}
};
#endif

template <int P> static __global__ void __launch_bounds__(WIDE_THREADS, 1) wide_kernel(const struct wide_args p)
{
#ifdef TD_CUDA_GROUPS
	extern __shared__ __align__(16) char wide_sh[];
	int warp = threadIdx.x / 32, asking = warp >= WIDE_WARPS, rings = p.by_columns ? TEAMS : 1, gates = rings * p.stages;
	struct wide_place b;
	struct wide<P> mine;

	b.teams = rings;
	b.tiles = wide_tiles(p.by_columns);
	b.tile0 = blockIdx.x * b.tiles;
	b.team = !p.by_columns ? 0 : asking ? min(warp - WIDE_WARPS, TEAMS - 1) : warp / TEAM_WARPS;
	b.stage_bytes = stage_bytes<P>(p.by_columns);
	b.ring = (shared_address(wide_sh) + STAGE_ALIGN - 1) & ~(uint32_t)(STAGE_ALIGN - 1);
	b.totals = b.ring + gates * b.stage_bytes;
	b.full = (uint64_t *)(wide_sh + (b.totals - shared_address(wide_sh)) + b.tiles * WARP_TOTALS);
	b.empty = b.full + gates;
	b.turns = shared_address(b.empty + gates);
	if ((int)threadIdx.x < gates) {
		gate_make(b.full + threadIdx.x, 1);
		gate_make(b.empty + threadIdx.x, b.tiles);
	}
	if (threadIdx.x < TEAM_WARPS)
		store4(b.turns + threadIdx.x * 4, 0);
	__syncthreads();
	let_next_start();
	b.ring += b.team * p.stages * b.stage_bytes;
	b.full += b.team * p.stages;
	b.empty += b.team * p.stages;
	if (asking) {
		group_registers_less<ASKING_REGISTERS>();
		if (!p.by_columns)
			ask<P>(p, b, (warp - WIDE_WARPS) * (WIDE_WARPS / TEAM_WARPS), WIDE_WARPS / TEAM_WARPS);
		else if (warp - WIDE_WARPS < TEAMS)
			ask<P>(p, b, 0, TEAM_WARPS);
		else
			after_previous();
		return;
	}
	group_registers_more<WIDE_REGISTERS>();
	b.totals += warp % b.tiles * WARP_TOTALS;
	after_previous();
	mine.run(p, b);
	warp %= b.tiles;
#pragma unroll 4
	for (int n = b.team; n < NT && b.tile0 + warp < p.l.tiles; n += rings) {
		int row8 = (blockIdx.z * NT + n) * 8, row = unit_row(row8), o = unit_output(b.tile0 + warp);
		float2 lo = before2(p.l, row, o), hi = before2(p.l, row, o + 8);
		uint4 v = load16(b.totals + n * 512 + (threadIdx.x & 31) * 16);

		put_unit(p.l, b.tile0 + warp, row8, make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)), lo, hi);
	}
#else
	__trap(); /* code for another GPU */
#endif
}

/* 1 when it was launched, or failed; 0 where the kernel for few rows is faster (a map too narrow for the GPU, up to SMALL rows) or cuts its sums into slices,
 * and where there is too little shared memory. */
template <int P> static int wide_run(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, const struct linear_use &use)
{
	struct wide_args p = {};
	static size_t allowed;
	int groups = 1, slices = 1, blocks = div_up(x.rows, NT * 8);
	size_t shared = 0;

	p.l = arguments(x, w, y, use);
	p.by_columns = div_up(p.l.tiles, (int)WIDE_WARPS) * blocks * 2 < dev->sms;
	cut<int4_format<P> >(dev, &p.l, &groups, &slices);
	if (slices > 1 || (p.by_columns && x.rows <= TD_CUDA_SMALL))
		return 0;
	for (p.stages = STAGES_MOST; p.stages > 1 && (shared = wide_shared<P>(p.by_columns, p.stages)) > dev->shared_max; p.stages--)
		;
	if (p.stages < 2)
		return 0;
	p.image = (const char *)td__cuda_scratch(dev, (size_t)blocks * p.l.chunks * wide_sizes<P>::IMAGE);
	if (dev->error.code)
		return 1;
	if (shared > allowed)
		td__cuda_shared(dev, wide_kernel<P>, allowed = shared);
	td__cuda_launch(dev, "arranging rows", arrange<P>, dim3(p.l.chunks, div_up(blocks * NT, (int)ARRANGE_WARPS)), ARRANGE_WARPS * 32, 0, p.l, (char *)p.image,
			blocks * NT);
	td__cuda_launch(dev, "linear (wide)", wide_kernel<P>, dim3(div_up(p.l.tiles, wide_tiles(p.by_columns)), 1, blocks), WIDE_THREADS, shared, p);
	return 1;
}

/* 1 when it was launched; 0: linear_int4.cu's matter. */
int td__cuda_int4_wide(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate, int paired)
{
	struct linear_use use = {accumulate, paired};

	if (!dev->groups || x.rows <= TD_CUDA_NARROW)
		return 0;
	return parts_of(w) == 1 ? wide_run<1>(dev, x, w, y, use) : wide_run<UNITS>(dev, x, w, y, use);
}
