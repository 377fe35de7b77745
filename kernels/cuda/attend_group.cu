/*
 * attend_group.cu: attention of a prompt's whole blocks by products of warpgroups (compute capability 9.0), for heads of 256 dims.
 *
 * Work: a warpgroup takes the 64 (row, query head) pairs of some consecutive rows at one kv head and goes through all keys they see, 64 at a time (a page),
 * in ascending order. A block is one or two such warpgroups, which read the same keys, and a warp that brings those. Q stays in shared memory, S, P and O
 * in registers:
 *
 *	warp of copies:	K0 K1 V0 K2 V1 ... V(last) into a ring of SLOTS units, as places become free
 *	warpgroup:	norm and rotary of q; S = Q K0; P = exp2(S - maximum)
 *			for each further tile i:	S = Q Ki and O += P V(i-1) begin; once S is there: maximum, exp2; once O is there: P
 *			O += P V(last); divides, gate, out
 *
 * So a warpgroup's own products run while it makes probabilities. O is brought to a new maximum only where that grew by more than 2^8: a bf16 has a float's
 * exponent, so P loses nothing by being larger than 1. A block begins and ends without products for about 10 us: what it needs there from memory is asked
 * for early and at once.
 *
 * Row invariance: all of a row's sums are made by one warpgroup from tiles at multiples of 64, in order; a tile beyond a row's last key adds zeroes and
 * changes no maximum. On the warpgroups of a block and on other rows nothing depends.
 *
 * What must never happen: a warpgroup that leaves the ring early, since each unit is waited for and left by all. Every key of the last tile is there: blocks of
 * a prompt end at multiples of it.
 *
 * Measured (H200, 16 heads over 4): 2,048 rows at 6,144 take 316 us, 760 TFLOP/s, as much as plain products reach there; at 0 68 us, where beginning and end
 * of blocks count most. Blocks of one warpgroup wait for keys from the L2 cache. Clusters of two that bring keys for each other gain 2 %, 5 % with one
 * warpgroup; of four, nothing. Half of q in registers: nothing. Queries made by four lanes a pair: 1 %. Two kv heads at a time: nothing.
 */
#include "kernels/cuda/attend.cuh"

enum { D = 256, GROUP = 128 /* threads */, MINE = 64 /* pairs of a warpgroup */, SLOTS = 5 };
enum { UNIT = TILE * D * 2, PLACE = UNIT / 4 }; /* bytes of 64 rows, and of 64 dims of them */

template <int WGS> struct places {
	char q[WGS][UNIT], ring[SLOTS][UNIT]; /* four tiles of 64 dims each */
	uint64_t there[SLOTS], empty[SLOTS], made[WGS]; /* gates */
};

#ifdef TD_CUDA_GROUPS
enum { PART = 4 };

/* What a block, or a warpgroup of it, works on. */
struct work {
	struct td_seq s;
	int kv_head, steps; /* tiles of keys; all of the block's warpgroups take them */
	int r0, rows; /* in the sequence */
};

/* The next unit of the ring, for one who takes them one by one. */
struct turn {
	int slot;
	unsigned round;
};
static __device__ __forceinline__ void next(struct turn &t)
{
	if (++t.slot == SLOTS) {
		t.slot = 0;
		t.round ^= 1;
	}
}

/* ---- keys and values into the ring ---------------------------------------------------------------------------------------------------------- */

template <int WGS>
static __device__ __forceinline__ void put(const struct tile_map *map, struct places<WGS> *sh, struct turn &t, int row)
{
	int lane = threadIdx.x & 31;

	/* The last place holds cosines and sines at first, so it is left once more than the others. */
	gate_wait(&sh->empty[t.slot], t.slot == SLOTS - 1 ? t.round : t.round ^ 1);
	if (lane == 0)
		gate_expect(&sh->there[t.slot], UNIT);
	__syncwarp();
	if (lane < D / 64)
		tile_copy(map, &sh->there[t.slot], sh->ring[t.slot] + lane * PLACE, lane * 64, row);
	next(t);
}

template <int WGS>
static __device__ __forceinline__ void feed(const struct attend_args &p, const struct tile_map *k, const struct tile_map *v, const struct work &w,
					    struct places<WGS> *sh)
{
	const int32_t *table = p.kv.table + (size_t)w.s.slot * p.kv.max_pages;
	int pages = 0, row, before = 0;
	struct turn t = {0, 0};

	for (int i = 0; i <= w.steps; i++) {
		if ((i & 31) == 0)
			pages = table[min(i + (int)(threadIdx.x & 31), w.steps - 1)];
		row = (__shfl_sync(~0u, pages, i & 31) * p.w.kv_heads + w.kv_head) * TILE;
		if (i < w.steps)
			put(k, sh, t, row);
		if (i > 0)
			put(v, sh, t, before);
		before = row;
	}
}

/* A unit has been read by this warp. */
template <int WGS> static __device__ __forceinline__ void leave(struct places<WGS> *sh, struct turn &t)
{
	if ((threadIdx.x & 31) == 0)
		gate_arrive(&sh->empty[t.slot]);
	next(t);
}

/* ---- queries ---------------------------------------------------------------------------------------------------------------------------- */

/* A warp's 16 pairs come in parts, the next one asked for while one is made: longer code takes longer to come than it saves. */
struct part {
	head_words<D> x[PART];
};
static __device__ __forceinline__ void queries_ask(const struct attend_args &p, const struct work &w, int m0, struct part &q)
{
	int lane = threadIdx.x & 31, q_step = p.w.gated ? 2 * D : D;

#pragma unroll
	for (int i = 0; i < PART; i++) {
		int r = row_of(p, m0 + i);

		q.x[i] = {};
		if (r < w.rows)
			q.x[i] = head_load<D>(p.x + (size_t)(w.s.row0 + w.r0 + r) * p.ldx + (w.kv_head * p.gqa + m0 + i - r * p.gqa) * q_step, lane);
	}
}

/* Norm and rotary of a warpgroup's queries, to q_sh; turn_sh is memory for the turns of its rows, which nobody reads afterwards. */
static __device__ __forceinline__ void queries(const struct attend_args &p, const struct work &w, char *q_sh, float2 *turn_sh, uint64_t *made)
{
	int warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31, half = p.w.rotary_dim / 2;
	float weight[D / 32];
	struct part q, ahead;

	queries_ask(p, w, warp * 16, q);
	norm_weights<D>(p.w, p.w.q_norm, lane, weight);
	for (int r = warp; r < w.rows; r += 4)
		turns(p.w.inv_freq, half, w.s.pos0 + w.r0 + r, turn_sh + r * half, lane, 32);
	gate_arrive(made);
	gate_wait(made, 0);
#pragma unroll 1
	for (int m = warp * 16; m < warp * 16 + 16; m += PART) {
		if (m % 16 + PART < 16)
			queries_ask(p, w, m + PART, ahead);
#pragma unroll
		for (int i = 0; i < PART; i++) {
			int r = row_of(p, m + i);
			head_words<D> y = norm_turn<D>(p.w, weight, q.x[i], turn_sh + (r < w.rows ? r : 0) * half, lane);

			head_store<D>((bf16 *)(q_sh + lane / 8 * PLACE + (m + i) * 128 + ((lane ^ (m + i)) & 7) * 16), y);
		}
		q = ahead;
	}
	tiles_written();
	gate_arrive(made);
	gate_wait(made, 1);
}

/* ---- scores, probabilities, sums: a lane has two pairs, h = 0 and 1, eight further ----------------------------------------------------------- */

/* S = Q K^T of 64 pairs and 64 keys begins. */
static __device__ __forceinline__ void scores(float (&s)[32], uint64_t q, const char *k_sh)
{
	uint64_t k = operand_by_rows(k_sh);

	group_begin();
#pragma unroll
	for (int i = 0; i < D / 16; i++) {
		int at = i / 4 * PLACE + i % 4 * 32;

		if (i == 0)
			group_mma_64<0>(s, q, k);
		else
			group_mma_64<1>(s, operand_at(q, at), operand_at(k, at));
	}
	group_commit();
}

/* O += P V of 64 keys begins. */
static __device__ __forceinline__ void weigh(float (&o)[128], const uint32_t pr[4][4], const char *v_sh)
{
	uint64_t v = operand_by_dims(v_sh);

	group_begin();
#pragma unroll
	for (int i = 0; i < 4; i++)
		group_mma_256(o, pr[i], operand_at(v, i * 16 * 128));
	group_commit();
}

/* Keys beyond a pair's last one, which counts from the lane's first key. */
static __device__ __forceinline__ void mask(float (&s)[32], int last0, int last1)
{
#pragma unroll
	for (int i = 0; i < 32; i++)
		if (i / 4 * 8 + (i & 1) > (i & 2 ? last1 : last0))
			s[i] = -INFINITY;
}

/* Scores to exp2(scale * (score - max)), sums of a lane's own; `keep` is what O is to be multiplied by. Each row sees key 0, so max doesn't stay -inf. */
static __device__ __forceinline__ void soften(float (&s)[32], float max[2], float sum[2], float keep[2], float scale)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m[2] = {s[2 * h], s[2 * h + 1]}, part[2] = {0, 0}, most, sub;
		int grew;

#pragma unroll
		for (int i = 4 + 2 * h; i < 32; i += 4) {
			m[0] = fmaxf(m[0], s[i]);
			m[1] = fmaxf(m[1], s[i + 1]);
		}
		most = fmaxf(m[0], m[1]);
		most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
		most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
		grew = (most - max[h]) * scale > 8;
		keep[h] = grew ? fast_exp2((max[h] - most) * scale) : 1.0f;
		max[h] = grew ? most : max[h];
		sub = max[h] * scale;
#pragma unroll
		for (int i = 2 * h; i < 32; i += 4) {
			s[i] = fast_exp2(fmaf(s[i], scale, -sub));
			s[i + 1] = fast_exp2(fmaf(s[i + 1], scale, -sub));
			part[0] += s[i];
			part[1] += s[i + 1];
		}
		sum[h] = sum[h] * keep[h] + (part[0] + part[1]);
	}
}

static __device__ __forceinline__ void shrink(float (&o)[128], const float keep[2])
{
	if (!__any_sync(~0u, keep[0] != 1 || keep[1] != 1))
		return;
#pragma unroll
	for (int i = 0; i < 128; i++)
		o[i] *= keep[i >> 1 & 1];
}

/* Probabilities as the first operand of weigh. */
static __device__ __forceinline__ void pack(uint32_t pr[4][4], const float (&s)[32])
{
#pragma unroll
	for (int i = 0; i < 16; i++)
		pr[i / 4][i % 4] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

/* ---- output ---------------------------------------------------------------------------------------------------------------------------- */

/* What opens the output of pair m: all of a lane's share at once. Without gates what a gate of 1 looks like. */
static __device__ __forceinline__ void gates_ask(const struct attend_args &p, const struct work &w, int m, uint32_t g[D / 8])
{
	int r = row_of(p, m);
	const bf16 *at = p.x + (size_t)(w.s.row0 + w.r0 + r) * p.ldx + (2 * (w.kv_head * p.gqa + m - r * p.gqa) + 1) * D + 2 * (threadIdx.x & 3);

#pragma unroll
	for (int n = 0; n < D / 8; n++) {
		g[n] = 0x7f807f80;
		if (p.w.gated && r < w.rows)
			g[n] = *(const uint32_t *)(at + n * 8);
	}
}

/* The sigmoid to 22 bits, for what is rounded to bf16. */
static __device__ __forceinline__ float opened(float v, float gate)
{
	return v * fast_inverse(1 + fast_exp2(gate * -1.44269504f));
}

/* Divides, applies the gate, writes pair m, which is a lane's pair h. */
static __device__ __forceinline__ void finish(const struct attend_args &p, const struct work &w, const float (&o)[128], int h, float sum, int m,
					      const uint32_t g[D / 8])
{
	int r = row_of(p, m);
	bf16 *out = p.out + (size_t)(w.s.row0 + w.r0 + r) * p.ldo + (w.kv_head * p.gqa + m - r * p.gqa) * D + 2 * (threadIdx.x & 3);

	sum += __shfl_xor_sync(~0u, sum, 1);
	sum += __shfl_xor_sync(~0u, sum, 2);
	sum = 1.0f / sum;
	if (r >= w.rows)
		return;
#pragma unroll
	for (int n = 0; n < D / 8; n++)
		*(uint32_t *)(out + n * 8) =
			bf16_pair(opened(o[4 * n + 2 * h] * sum, bf16_lo(g[n])), opened(o[4 * n + 2 * h + 1] * sum, bf16_hi(g[n])));
}

/* ---- a warpgroup ------------------------------------------------------------------------------------------------------------------------ */

template <int WGS> static __device__ __forceinline__ void attend(const struct attend_args &p, const struct work &w, int wg, struct places<WGS> *sh)
{
	int lane = threadIdx.x & 31, m = threadIdx.x / 32 % 4 * 16 + (lane >> 2), pos = w.s.pos0 + w.r0;
	int last0 = pos + row_of(p, m) - 2 * (lane & 3), last1 = pos + row_of(p, m + 8) - 2 * (lane & 3);
	float o[128] = {}, s[32], max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, keep[2];
	struct turn in = {0, 0}, out = {SLOTS - 1, 0};
	uint64_t q = operand_by_rows(sh->q[wg]);
	uint32_t pr[4][4], g[2][D / 8];

	queries(p, w, sh->q[wg], (float2 *)(sh->ring[SLOTS - 1] + wg * (UNIT / WGS)), &sh->made[wg]);
	leave(sh, out);
	gate_wait(&sh->there[0], 0);
	scores(s, q, sh->ring[0]);
	next(in);
	group_wait<0>();
	group_hold(s);
	leave(sh, out);
	if (TILE - 1 > pos)
		mask(s, last0, last1);
	soften(s, max, sum, keep, p.scale);
	pack(pr, s);
#pragma unroll 1
	for (int i = 1; i < w.steps; i++) {
		gate_wait(&sh->there[in.slot], in.round);
		group_hold(s);
		group_hold(o);
		scores(s, q, sh->ring[in.slot]);
		next(in);
		gate_wait(&sh->there[in.slot], in.round);
		weigh(o, pr, sh->ring[in.slot]);
		next(in);
		group_wait<1>();
		group_hold(s);
		leave(sh, out);
		if (i * TILE + TILE - 1 > pos)
			mask(s, last0 - i * TILE, last1 - i * TILE);
		soften(s, max, sum, keep, p.scale);
		group_after(sum[0] + sum[1]);
		group_wait<0>();
		group_hold(o);
		leave(sh, out);
		shrink(o, keep);
		pack(pr, s);
	}
	gates_ask(p, w, m, g[0]);
	gate_wait(&sh->there[in.slot], in.round);
	group_hold(o);
	weigh(o, pr, sh->ring[in.slot]);
	group_wait<0>();
	group_hold(o);
	gates_ask(p, w, m + 8, g[1]);
	finish(p, w, o, 0, sum[0], m, g[0]);
	finish(p, w, o, 1, sum[1], m + 8, g[1]);
}
#endif

/* grid (groups of rows x kv_heads, sequences): blocks with the most keys start first */
template <int WGS>
static __global__ void __launch_bounds__((WGS + 1) * GROUP, 1)
	group_kernel(const __grid_constant__ struct attend_args p, const __grid_constant__ struct tile_map k, const __grid_constant__ struct tile_map v)
{
#ifdef TD_CUDA_GROUPS
	extern __shared__ __align__(1024) char group_sh[];
	struct places<WGS> *sh = (struct places<WGS> *)group_sh;
	int i = (int)(gridDim.x - 1 - blockIdx.x), wg = threadIdx.x / GROUP, all = WGS * p.rows_per_group;
	struct work w;

	if (threadIdx.x == 0) {
		for (int j = 0; j < SLOTS; j++) {
			gate_make(&sh->there[j], 1);
			gate_make(&sh->empty[j], WGS * (GROUP / 32));
		}
		for (int j = 0; j < WGS; j++)
			gate_make(&sh->made[j], GROUP);
	}
	__syncthreads();
	after_previous();
	let_next_start();
	w.s = part_of(p.seq[blockIdx.y], ROWS_BLOCKS);
	w.kv_head = i % p.w.kv_heads;
	w.r0 = i / p.w.kv_heads * all;
	if (w.r0 >= w.s.rows)
		return;
	w.steps = (w.s.pos0 + min(w.r0 + all, w.s.rows) - 1) / TILE + 1;
	if (wg == WGS) {
		group_registers_less<24>();
		if (threadIdx.x < WGS * GROUP + 32)
			feed(p, &k, &v, w, sh);
	} else {
		group_registers_more<240>();
		w.r0 += wg * p.rows_per_group;
		w.rows = min(w.s.rows - w.r0, p.rows_per_group);
		attend(p, w, wg, sh);
	}
#else
	__trap(); /* code for another GPU */
#endif
}

/* ---- host ------------------------------------------------------------------------------------------------------------------------------ */

template <int WGS> static void launch(struct td_dev *dev, struct attend_args p, const struct td_batch *b, int rows)
{
	struct tile_map k, v;
	static int allowed; /* once per kernel */

	if (tile_map_make(&k, p.kv.k, D) || tile_map_make(&v, p.kv.v, D)) {
		td__cuda_fail(dev, TD_E_DEVICE, "attention of a prompt: the driver makes no tensor map of the cache");
		return;
	}
	p.rows_per_group = MINE / p.gqa;
	if (!allowed)
		td__cuda_shared(dev, group_kernel<WGS>, sizeof(struct places<WGS>));
	allowed = 1;
	td__cuda_launch(dev, "attention of a prompt", group_kernel<WGS>, dim3(div_up(rows, WGS * p.rows_per_group) * p.w.kv_heads, b->n_seq), (WGS + 1) * GROUP,
			sizeof(struct places<WGS>), p, k, v);
}

/* One warpgroup a block where multiprocessors would be left over: such a block takes 0.7 of the time of one of two. */
int td__attend_prompt_groups(struct td_dev *dev, const struct attend_args *p, const struct td_batch *b, int rows, int all)
{
	int turned = MINE / p->gqa * (p->w.rotary_dim / 2) * (int)sizeof(float2), pairs = all * p->w.heads;

	if (!dev->groups || p->w.head_dim != D || sizeof(struct places<2>) > dev->shared_max || turned > UNIT / 2)
		return 0;
	if (div_up(div_up(pairs, MINE), dev->sms) * 7 < div_up(div_up(pairs, 2 * MINE), dev->sms) * 10)
		launch<1>(dev, *p, b, rows);
	else
		launch<2>(dev, *p, b, rows);
	return 1;
}
