/*
 * linear_wide8.cu: y = W x for packed 4-bit weights and activations in 8 bits (td_linear.act8) of more rows than linear_int4.cu is made for, by the products of
 * warpgroups of compute capability 9.0.
 *
 * The columns are cut as linear_tile.cuh cuts them: the ranks of a cluster have a part of the columns each, for all of its tiles, so that narrow maps, too,
 * give every multiprocessor the same. A block has three warpgroups that multiply, each 64 outputs by 64 rows at a time: a pass is 12 tiles. The activations of
 * the block's columns lie in shared memory, as a kernel before rounded and arranged them (rows8.cuh); each warp has its own ring of stages in which the bulk
 * copy engine brings its tile's weights, a chunk each, asked for by lanes of a fourth warpgroup. At the end of a pass each warp sends its sums to the block
 * of the cluster that owns them, which adds the ranks in order.
 *
 * Bits: sums of a group are integers, so they have no order; the rest is done in the order of linear_tile.cuh: chunks of a part, parts of a rank, ranks. A row
 * may come here or go there.
 */
#include "kernels/cuda/rows8.cuh"

enum {
	NT = 8, /* eights of rows at a time */
	GROUP_ROWS = NT * 8,
	TEAMS = 3, /* warpgroups that multiply */
	TEAM_WARPS = 4,
	WIDE_WARPS = TEAMS * TEAM_WARPS, /* and tiles of a pass */
	WIDE_THREADS = (TEAMS + 1) * 128,
	ASKING_REGISTERS = 40, /* of a thread that asks, and what it leaves for one that multiplies */
	WIDE_REGISTERS = 152,
	STAGES_MOST = 12,
	X_BYTES = GROUP_ROWS * ROW8_BYTES, /* of a chunk: rows, their scales */
	SCALE_BYTES = GROUP_ROWS * 4,
	ALIGN = 1024 /* of the pattern in which products read rows */
};

struct wide8_args {
	struct linear_args l;
	struct image8 image; /* blocks of GROUP_ROWS rows */
	int groups, stages; /* of rows, of a ring */
};

static inline __host__ __device__ int exchange_bytes(int rank_bits)
{
	return rank_bits ? WIDE_WARPS * NT * SUM_BYTES : 0;
}
template <int P> static inline size_t wide8_shared(const struct linear_args &p, int stages)
{
	return ALIGN + (size_t)p.block_chunks * (X_BYTES + SCALE_BYTES + 16) + exchange_bytes(p.rank_bits) +
	       (size_t)WIDE_WARPS * stages * (int4_order<P>::BYTES + 16);
}

#ifdef TD_CUDA_GROUPS
/* Addresses of a block, and what it makes. */
struct wide8_place {
	uint32_t x, scales, rings; /* rows and scales by chunks; stages by warps */
	char *exchange; /* (unit of this rank, rank it is from, lane) */
	uint64_t *x_full, *x_empty, *full, *empty; /* gates: of a chunk's rows, of a warp's stage: what was asked for is there; it was left */
	int rank, c0, chunks, tile0, end; /* columns; tiles */
};

/* The asking threads come to the barriers of the cluster, too, as these count all: but they never make the others wait, who need the next pass's weights. */
static __device__ __forceinline__ void meet_again(const struct wide8_args &p, int first)
{
	if (!p.l.rank_bits)
		return;
	if (!first) {
		cluster_wait(); /* sums of the pass before are there */
		cluster_arrive();
		cluster_wait(); /* and were read */
	}
	ranks_arrive(p.l.rank_bits);
}

/* The weights of a team's warps, a lane for each; those of the first stages before the kernel before has ended. */
template <int P> static __device__ __forceinline__ void ask_weights(const struct wide8_args &p, const struct wide8_place &b, int team)
{
	enum { BYTES = int4_order<P>::BYTES };
	int lane = threadIdx.x & 31, mine = team * TEAM_WARPS + lane, ready = b.chunks < p.stages ? b.chunks : p.stages, first = 1;
	uint64_t *full = b.full + mine * p.stages, *empty = b.empty + mine * p.stages;
	uint32_t ring = b.rings + mine * p.stages * BYTES;
	const char *from = (const char *)p.l.w + ((size_t)(b.tile0 + mine) * p.l.chunks + b.c0) * BYTES;
	struct ring r = {};

	if (lane < TEAM_WARPS && b.tile0 + mine < b.end)
		for (int c = 0; c < ready; c++) {
			gate_expect(full + c, BYTES);
			bulk_copy(full + c, ring + c * BYTES, from + (size_t)c * BYTES, BYTES);
		}
	__syncwarp();
	after_previous();
	for (int z = 0; z < p.groups; z++)
		for (int pass = b.tile0; pass < b.end; pass += WIDE_WARPS, first = 0) {
			if (lane < TEAM_WARPS && pass + mine < b.end) {
				const char *at = from + (size_t)(pass - b.tile0) * p.l.chunks * BYTES;

				for (int c = 0; c < b.chunks; c++, r.step(p.stages)) {
					if (first && c < ready)
						continue;
					gate_wait(empty + r.stage, r.turn ^ 1);
					gate_expect(full + r.stage, BYTES);
					bulk_copy(full + r.stage, ring + r.stage * BYTES, at + (size_t)c * BYTES, BYTES);
				}
			}
			__syncwarp();
			meet_again(p, first);
		}
}

/* The rows, by one lane. */
static __device__ __forceinline__ void ask_rows(const struct wide8_args &p, const struct wide8_place &b)
{
	int first = 1;

	after_previous();
	for (int z = 0; z < p.groups; z++) {
		const char *from = p.image.at + z * p.image.block;

		if ((threadIdx.x & 31) == 0)
			for (int c = 0; c < b.chunks; c++) {
				gate_wait(b.x_empty + c, (z & 1) ^ 1);
				gate_expect(b.x_full + c, X_BYTES + SCALE_BYTES);
				bulk_copy(b.x_full + c, b.x + c * X_BYTES, from + (size_t)(b.c0 + c) * p.image.row_step, X_BYTES);
				bulk_copy(b.x_full + c, b.scales + c * SCALE_BYTES, from + p.image.scales + (size_t)(b.c0 + c) * p.image.scale_step, SCALE_BYTES);
			}
		__syncwarp();
		for (int pass = b.tile0; pass < b.end; pass += WIDE_WARPS, first = 0)
			meet_again(p, first);
	}
}

/* A warp's way through its tiles. */
template <int P> struct wide8 {
	enum { BYTES = int4_order<P>::BYTES, UNITS_OF = UNITS / P };

	float acc[NT * 4];

	/* acc += scales times the products of part q of a chunk. w: its weights. */
	__device__ __forceinline__ void multiply(uint32_t w, uint32_t x, uint32_t scales, int q, uint64_t *x_full, int turn)
	{
		uint32_t scale = load4(w + 1024 + q * 32 + (threadIdx.x >> 2 & 7) * 4), a[UNITS_OF][4];
		float lo = bf16_lo(scale), hi = bf16_hi(scale);
		uint64_t place = operand_by_rows(x);
		int sum[NT * 4];

		scales += (threadIdx.x & 3) * 16;
		act8_part<P>(w, q, a);
		if (q == 0)
			gate_wait(x_full, turn);
		group_begin();
#pragma unroll
		for (int i = 0; i < UNITS_OF; i++) {
			uint64_t at = operand_at(place, (q * UNITS_OF + i) * UNIT);

			if (i)
				group_mma_bytes<1>(sum, a[i], at);
			else
				group_mma_bytes<0>(sum, a[i], at);
		}
		group_commit();
		group_wait<0>();
		group_hold(sum);
#pragma unroll
		for (int n = 0; n < NT; n += 2) {
			uint4 v = load16(scales + n * 32);
			float s[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};

#pragma unroll
			for (int i = 0; i < 8; i++) {
				int e = n * 4 + i;

				acc[e] = fmaf(act8_sum_from_0(sum[e]), (i & 2 ? hi : lo) * s[(i >> 2) * 2 + (i & 1)], acc[e]);
			}
		}
	}

	/* Sums of the warp's tile and the group's rows over all columns of the block -> total. */
	__device__ __forceinline__ void all_columns(const struct wide8_args &p, const struct wide8_place &b, struct ring &r, int z, int mine, int last,
						    float (&total)[NT * 4])
	{
		int warp = threadIdx.x / 32, begin = 0, step = part_chunks(p.l, b.chunks);
		uint32_t ring = b.rings + warp * p.stages * BYTES;
		uint64_t *full = b.full + warp * p.stages, *empty = b.empty + warp * p.stages;

#pragma unroll 1
		for (int k = 0; k < 1 << p.l.part_bits; k++) {
			int end = min(begin + step, b.chunks);

#pragma unroll
			for (int i = 0; i < NT * 4; i++)
				acc[i] = 0;
#pragma unroll 1
			for (int c = begin; c < end; c++) {
				uint32_t x = of_the_warp(b.x + c * X_BYTES), w = ring + r.stage * BYTES;

				if (mine)
					gate_wait(full + r.stage, r.turn);
#pragma unroll
				for (int q = 0; q < P; q++)
					multiply(w, x, b.scales + c * SCALE_BYTES, q, b.x_full + c, z & 1);
				__syncwarp(); /* nobody of this warp reads the stage any more */
				if ((threadIdx.x & 31) == 0) {
					if (mine)
						gate_arrive(empty + r.stage);
					if (last)
						gate_arrive(b.x_empty + c);
				}
				if (mine)
					r.step(p.stages);
			}
			begin = end;
#pragma unroll
			for (int i = 0; i < NT * 4; i++)
				total[i] = k ? total[i] + acc[i] : acc[i];
		}
	}

	/* Nothing to make in this pass, but the rows are left here, too. */
	__device__ __forceinline__ void skip(const struct wide8_place &b, int z)
	{
		if ((threadIdx.x & 31) == 0)
			for (int c = 0; c < b.chunks; c++) {
				gate_wait(b.x_full + c, z & 1);
				gate_arrive(b.x_empty + c);
			}
		__syncwarp();
	}

	/* The sums of a pass to the blocks that own them, and those that this block owns to y. */
	__device__ __forceinline__ void exchange(const struct wide8_args &p, const struct wide8_place &b, int z, int tile0, int tiles, const float (&total)[NT * 4])
	{
		int warp = threadIdx.x / 32, bits = p.l.rank_bits, ranks = 1 << bits, units = tiles * NT;
		uint32_t lane16 = (threadIdx.x & 31) * 16;

#pragma unroll
		for (int n = 0; n < NT; n++) {
			int unit = warp * NT + n;

			if (warp < tiles)
				rank_store4((float4 *)(b.exchange + (((unit >> bits) << bits) + b.rank) * SUM_BYTES + lane16), unit & (ranks - 1),
					    make_float4(total[n * 4], total[n * 4 + 1], total[n * 4 + 2], total[n * 4 + 3]));
		}
		ranks_meet(bits);
#pragma unroll 2
		for (int i = warp; (i << bits) + b.rank < units; i += WIDE_WARPS) {
			int u = (i << bits) + b.rank, tile = tile0 + u / NT, row8 = z * GROUP_ROWS + u % NT * 8, row = unit_row(row8), o = unit_output(tile);
			float2 lo = before2(p.l, row, o), hi = before2(p.l, row, o + 8);
			const float4 *from = (const float4 *)(b.exchange + (i << bits) * SUM_BYTES + lane16);
			float4 v = from[0];

			for (int k = 1; k < ranks; k++)
				v = add4(v, from[k * 32]);
			put_unit(p.l, tile, row8, v, lo, hi);
		}
	}

	__device__ __forceinline__ void alone(const struct wide8_args &p, int z, int tile, const float (&total)[NT * 4])
	{
#pragma unroll
		for (int n = 0; n < NT; n++) {
			int row8 = z * GROUP_ROWS + n * 8, row = unit_row(row8), o = unit_output(tile);
			float2 lo = before2(p.l, row, o), hi = before2(p.l, row, o + 8);

			put_unit(p.l, tile, row8, make_float4(total[n * 4], total[n * 4 + 1], total[n * 4 + 2], total[n * 4 + 3]), lo, hi);
		}
	}

	__device__ __forceinline__ void run(const struct wide8_args &p, const struct wide8_place &b)
	{
		int warp = threadIdx.x / 32, first = 1;
		float total[NT * 4];
		struct ring r = {};

		for (int z = 0; z < p.groups; z++)
#pragma unroll 1
			for (int tile0 = b.tile0; tile0 < b.end; tile0 += WIDE_WARPS, first = 0) {
				int tiles = min((int)WIDE_WARPS, b.end - tile0), last = tile0 + WIDE_WARPS >= b.end;

				if (warp / TEAM_WARPS * TEAM_WARPS < tiles)
					all_columns(p, b, r, z, warp < tiles, last, total);
				else
					skip(b, z);
				if (!p.l.rank_bits) {
					if (warp < tiles)
						alone(p, z, tile0 + warp, total);
					continue;
				}
				if (!first)
					cluster_wait(); /* the sums of the pass before were read */
				exchange(p, b, z, tile0, tiles, total);
				if (!last || z + 1 < p.groups)
					cluster_arrive();
			}
	}
};
#endif

/* grid (groups of tiles << rank_bits) */
template <int P> static __global__ void __launch_bounds__(WIDE_THREADS, 1) wide8_kernel(const struct wide8_args p)
{
#ifdef TD_CUDA_GROUPS
	extern __shared__ __align__(16) char wide8_sh[];
	int warp = threadIdx.x / 32, gates = WIDE_WARPS * p.stages;
	struct wide8_place b;
	struct wide8<P> mine;

	b.rank = blockIdx.x & ((1 << p.l.rank_bits) - 1);
	b.c0 = b.rank * p.l.block_chunks;
	b.chunks = max(0, min(p.l.block_chunks, p.l.chunks - b.c0));
	b.tile0 = (blockIdx.x >> p.l.rank_bits) * p.l.block_tiles;
	b.end = min(b.tile0 + p.l.block_tiles, p.l.tiles);
	b.x = (shared_address(wide8_sh) + ALIGN - 1) & ~(uint32_t)(ALIGN - 1);
	b.scales = b.x + p.l.block_chunks * X_BYTES;
	b.exchange = wide8_sh + (b.scales - shared_address(wide8_sh)) + p.l.block_chunks * SCALE_BYTES;
	b.rings = shared_address(b.exchange) + exchange_bytes(p.l.rank_bits);
	b.full = (uint64_t *)(b.exchange + exchange_bytes(p.l.rank_bits) + gates * int4_order<P>::BYTES);
	b.empty = b.full + gates;
	b.x_full = b.empty + gates;
	b.x_empty = b.x_full + p.l.block_chunks;
	for (int i = threadIdx.x; i < gates; i += WIDE_THREADS) {
		gate_make(b.full + i, 1);
		gate_make(b.empty + i, 1);
	}
	if ((int)threadIdx.x < p.l.block_chunks) {
		gate_make(b.x_full + threadIdx.x, 1);
		gate_make(b.x_empty + threadIdx.x, WIDE_WARPS);
	}
	__syncthreads();
	let_next_start();
	if (p.l.rank_bits) { /* nobody sends before all are there */
		cluster_arrive();
		cluster_wait();
	}
	if (warp >= WIDE_WARPS) {
		group_registers_less<ASKING_REGISTERS>();
		if (warp < WIDE_WARPS + TEAMS)
			ask_weights<P>(p, b, warp - WIDE_WARPS);
		else
			ask_rows(p, b);
		if (p.l.rank_bits)
			cluster_wait();
		return;
	}
	group_registers_more<WIDE_REGISTERS>();
	after_previous();
	mine.run(p, b);
#else
	__trap(); /* code for another GPU */
#endif
}

/* 1 when it was launched, or failed; 0 where sums are cut into slices or there is too little shared memory: linear_int4.cu's matter. */
template <int P> static int wide8_run(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, const struct linear_use &use)
{
	struct wide8_args p = {};
	static size_t allowed;
	int groups = 1, slices = 1;
	size_t shared = 0;

	p.l = arguments(x, w, y, use);
	cut<int4_act8_format<P> >(dev, &p.l, &groups, &slices);
	for (p.stages = STAGES_MOST; p.stages > 1 && (shared = wide8_shared<P>(p.l, p.stages)) > dev->shared_max; p.stages--)
		;
	if (slices > 1 || p.stages < 2)
		return 0;
	p.groups = div_up(x.rows, (int)GROUP_ROWS);
	p.image = {NULL, (size_t)p.l.chunks * (X_BYTES + SCALE_BYTES), X_BYTES, p.l.chunks * X_BYTES, SCALE_BYTES};
	p.image.at = (char *)td__cuda_scratch(dev, p.groups * p.image.block);
	if (dev->error.code)
		return 1;
	if (shared > allowed)
		td__cuda_shared(dev, wide8_kernel<P>, allowed = shared);
	td__cuda_launch(dev, "rounding rows", arrange8<GROUP_ROWS>, dim3(p.l.chunks, div_up(p.groups * NT, (int)ARRANGE8_WARPS)), ARRANGE8_WARPS * 32, 0, p.l, p.image,
			p.groups * NT);
	td__cuda_launch_ranks(dev, "linear (wide)", wide8_kernel<P>, dim3(groups << p.l.rank_bits), WIDE_THREADS, shared, 1 << p.l.rank_bits, p);
	return 1;
}

/* 1 when it was launched; 0: linear_int4.cu's matter. */
int td__cuda_act8_wide(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate, int paired)
{
	struct linear_use use = {accumulate, paired};

	if (!dev->groups || x.rows <= TD_CUDA_NARROW)
		return 0;
	return parts_of(w) == 1 ? wide8_run<1>(dev, x, w, y, use) : wide8_run<UNITS>(dev, x, w, y, use);
}
