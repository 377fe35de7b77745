/*
 * attend_prompt.cu: attention of a prompt's whole blocks (TD_CUDA_LARGE positions that are final rows of one batch, as linear.cu has them).
 *
 * Work: a block takes the 16 W (row, query head) pairs of some consecutive rows at one kv head, W warps of 16 pairs each, and goes through all keys
 * they see in tiles of 64, in ascending order. Nothing is divided but pairs, so no partial results go through memory:
 *
 *	norm and rotary of q -> for each tile: fetch the next one behind S = Q K^T -> maximum -> P = exp2(S - maximum), in registers -> O += P V
 *
 * The sums of P are one more column of that product. K and V come from the cache, where the append kernel has put this step's before. Blocks with the
 * most keys start first.
 *
 * Row invariance: a row's tiles begin at multiples of 64 from 0, whatever was cut; a tile that it can't see multiplies by 1 and adds 0, or is left out.
 * The sums' order differs from that of attend.cu, so which way a row takes is decided by its prompt alone, as for products (linear.cu).
 *
 * Bounds: with D = 256 a warp holds O in 128 registers a lane; each reads both tiles from shared memory for 16 pairs, 576 KB per 128 pairs and tile or
 * 4,600 cycles, against 3,300 of mma.sync: at most 440 TFLOP/s on an H200.
 */
#include "kernels/cuda/attend.cuh"

/* Norm and rotary of a warp's own 16 pairs. */
template <int D>
static __device__ __forceinline__ void queries(const struct attend_args &p, const struct td_seq &s, int r0, int pairs, int kv_head, bf16 *q_sh,
					       const float2 *turn_sh)
{
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, gqa = p.w.heads / p.w.kv_heads, q_step = p.w.gated ? 2 * D : D;
	float weight[D / 32];

	norm_weights<D>(p.w, p.w.q_norm, lane, weight);
#pragma unroll 4
	for (int i = 0; i < 16; i++) {
		int m = warp * 16 + i, r = m < pairs ? m / gqa : 0;
		head_words<D> x = {};

		if (m < pairs)
			x = head_load<D>(p.x + (size_t)(s.row0 + r0 + r) * p.ldx + (kv_head * gqa + m % gqa) * q_step, lane);
		head_store<D>(lane_at<D>(q_sh, m, lane), norm_turn<D>(p.w, weight, x, turn_sh + r * (p.w.rotary_dim / 2), lane));
	}
}

/* K and V of a page. */
template <int D, int W> static __device__ __forceinline__ void fetch(const struct attend_args &p, int page, int kv_head, bf16 *sh)
{
	size_t at = ((size_t)page * p.w.kv_heads + kv_head) * (TILE * D);
	const bf16 *k = (const bf16 *)p.kv.k + at, *v = (const bf16 *)p.kv.v + at;

#pragma unroll 4
	for (int i = threadIdx.x; i < TILE * D / 8; i += W * 32)
		copy16(piece<D>(sh, i / (D / 8), i % (D / 8)), k + i * 8);
#pragma unroll 4
	for (int i = threadIdx.x; i < TILE * D / 8; i += W * 32)
		copy16(piece<D>(sh + TILE * D, i / (D / 8), i % (D / 8)), v + i * 8);
	copy_commit();
}

/* Scores to probabilities in place; the sums so far are multiplied where a maximum grew. `last` are the positions of the lane's two rows. */
template <int D>
static __device__ __forceinline__ void soften(float s[8][4], float o[D / 8][4], float l[4], float max[2], int base, const int last[2], float scale, int lane)
{
	float keep[2];

#pragma unroll
	for (int half = 0; half < 2; half++) {
		float m = max[half], sub;

		if (base + (int)TILE - 1 > last[half])
#pragma unroll
			for (int n = 0; n < 8; n++)
#pragma unroll
				for (int i = 0; i < 2; i++)
					if (base + n * 8 + 2 * (lane & 3) + i > last[half])
						s[n][2 * half + i] = -INFINITY;
#pragma unroll
		for (int n = 0; n < 8; n++)
			m = fmaxf(m, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
		m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
		m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
		keep[half] = fast_exp2((max[half] - m) * scale);
		max[half] = m;
		sub = m * scale;
#pragma unroll
		for (int n = 0; n < 8; n++)
#pragma unroll
			for (int i = 2 * half; i < 2 * half + 2; i++)
				s[n][i] = fast_exp2(fmaf(s[n][i], scale, -sub));
	}
	if (!__any_sync(~0u, keep[0] != 1 || keep[1] != 1))
		return;
#pragma unroll
	for (int k = 0; k < 4; k++) {
		l[k] *= keep[k >> 1];
#pragma unroll
		for (int n = 0; n < D / 8; n++)
			o[n][k] *= keep[k >> 1];
	}
}

template <int D> static __device__ __forceinline__ void weigh(float o[D / 8][4], float l[4], const float s[8][4], bf16 *v_sh, int lane)
{
	int at = corner<D>(lane & 15, lane >> 4);

#pragma unroll
	for (int j = 0; j < 4; j++) {
		uint32_t a[4] = {bf16_pair(s[2 * j][0], s[2 * j][1]), bf16_pair(s[2 * j][2], s[2 * j][3]), bf16_pair(s[2 * j + 1][0], s[2 * j + 1][1]),
				 bf16_pair(s[2 * j + 1][2], s[2 * j + 1][3])};

		mma_bf16(l, a[0], a[1], a[2], a[3], BF16_ONES, BF16_ONES);
#pragma unroll
		for (int d = 0; d < D / 16; d++) {
			uint32_t b[4];

			load_matrix_transposed(b, v_sh + (at ^ d << 4) + j * 16 * D);
			mma_bf16(o[2 * d], a[0], a[1], a[2], a[3], b[0], b[1]);
			mma_bf16(o[2 * d + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
		}
	}
}

/* Divides, applies the gate, writes. */
template <int D>
static __device__ __forceinline__ void finish(const struct attend_args &p, const struct td_seq &s, const float o[D / 8][4], const float l[4], int r0,
					      int pairs, int kv_head)
{
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, gqa = p.w.heads / p.w.kv_heads;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = warp * 16 + (lane >> 2) + 8 * half, h = kv_head * gqa + m % gqa;
		size_t row = s.row0 + r0 + m / gqa;
		const bf16 *gate = p.x + row * p.ldx + (2 * h + 1) * D + 2 * (lane & 3);
		bf16 *out = p.out + row * p.ldo + h * D + 2 * (lane & 3);

		if (m >= pairs)
			continue;
#pragma unroll
		for (int n = 0; n < D / 8; n++) {
			float a = o[n][2 * half] / l[2 * half], b = o[n][2 * half + 1] / l[2 * half];

			if (p.w.gated) {
				uint32_t w = *(const uint32_t *)(gate + n * 8);

				a *= sigmoid(bf16_lo(w));
				b *= sigmoid(bf16_hi(w));
			}
			*(uint32_t *)(out + n * 8) = bf16_pair(a, b);
		}
	}
}

/* grid (groups of rows, kv_heads, sequences) */
template <int D, int W> static __global__ void __launch_bounds__(W * 32, 1) prompt_kernel(const struct attend_args p)
{
	extern __shared__ __align__(1024) bf16 attend_sh[]; /* q (16 W, D), then stages of K and V (TILE, D) */
	bf16 *q_sh = attend_sh, *ring = q_sh + W * 16 * D;
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, kv_head = blockIdx.y, gqa = p.w.heads / p.w.kv_heads, half = p.w.rotary_dim / 2;
	int r0 = (gridDim.x - 1 - blockIdx.x) * p.rows_per_group, rows, tiles, page, last[2], two = p.slots == 4;
	float2 *turn_sh = (float2 *)(ring + (two ? 2 * TILE * D : 0)); /* in the stage that is filled last */
	float o[D / 8][4] = {}, l[4] = {}, max[2] = {-INFINITY, -INFINITY}, sc[8][4];
	const int32_t *table;
	struct td_seq s;

	after_previous();
	let_next_start();
	s = part_of(p.seq[blockIdx.z], ROWS_BLOCKS);
	rows = min(s.rows - r0, p.rows_per_group);
	if (rows <= 0)
		return;
	tiles = (s.pos0 + r0 + rows - 1) / TILE + 1;
	table = p.kv.table + (size_t)s.slot * p.kv.max_pages;
	if (two)
		fetch<D, W>(p, table[0], kv_head, ring);
	page = table[two && tiles > 1];
	for (int r = warp; r < rows; r += W)
		turns(p.w, s.pos0 + r0 + r, turn_sh + r * half, lane, 32);
	__syncthreads();
	queries<D>(p, s, r0, rows * gqa, kv_head, q_sh, turn_sh);
	for (int i = 0; i < 2; i++)
		last[i] = s.pos0 + r0 + (warp * 16 + (lane >> 2) + 8 * i) / gqa;
	for (int i = 0; i < tiles; i++) {
		bf16 *k_sh = ring + (two ? i & 1 : 0) * (2 * TILE * D);

		if (!two) {
			__syncthreads();
			fetch<D, W>(p, page, kv_head, ring);
			page = table[min(i + 1, tiles - 1)];
		}
		copy_wait<0>();
		__syncthreads();
		if (two && i + 1 < tiles) {
			fetch<D, W>(p, page, kv_head, ring + (~i & 1) * (2 * TILE * D));
			page = table[min(i + 2, tiles - 1)];
		}
		if (i * TILE > s.pos0 + r0 + (warp * 16 + 15) / gqa) /* none of the warp's rows sees it */
			continue;
		scores<D, 8>(sc, q_sh, warp * 16, k_sh, 0, lane);
		soften<D>(sc, o, l, max, i * TILE, last, p.scale, lane);
		weigh<D>(o, l, sc, k_sh + TILE * D, lane);
	}
	finish<D>(p, s, o, l, r0, rows * gqa, kv_head);
}

/* ---- host ------------------------------------------------------------------------------------------------------------------------------ */

template <int D, int W> static void launch(struct td_dev *dev, struct attend_args p, const struct td_batch *b, int rows)
{
	const size_t q = (size_t)W * 16 * D * 2, stage = (size_t)2 * TILE * D * 2;
	int turned = (int)(stage / ((size_t)p.w.rotary_dim / 2 * 8 + 1)), fit = W * 16 / (p.w.heads / p.w.kv_heads);
	static int allowed; /* once per kernel */

	p.slots = q + 2 * stage <= dev->shared_max ? 4 : 2;
	p.rows_per_group = fit < turned ? fit : turned;
	if (!allowed)
		td__cuda_shared(dev, prompt_kernel<D, W>, q + p.slots / 2 * stage);
	allowed = 1;
	td__cuda_launch(dev, "attention of a prompt", prompt_kernel<D, W>, dim3(div_up(rows, p.rows_per_group), p.w.kv_heads, b->n_seq), W * 32,
			q + p.slots / 2 * stage, p);
}

/* Eight warps share a tile where there are rows enough for most multiprocessors, and memory for their q. */
template <int D> static void launch_any(struct td_dev *dev, const struct attend_args &p, const struct td_batch *b, int rows, int all)
{
	int blocks = div_up(all * p.w.heads, 128);

	if (blocks * 4 >= dev->sms * 3 && (size_t)(8 * 16 + 4 * TILE) * D * 2 <= dev->shared_max)
		launch<D, 8>(dev, p, b, rows);
	else
		launch<D, 4>(dev, p, b, rows);
}

void td__attend_prompt(struct td_dev *dev, const struct attend_args *p, const struct td_batch *b)
{
	int rows = 0, all = 0;

	for (int i = 0; i < b->n_seq; i++) {
		struct td_seq s = part_of(b->seq[i], ROWS_BLOCKS);

		rows = s.rows > rows ? s.rows : rows;
		all += s.rows;
	}
	if (p->w.head_dim == 256)
		launch_any<256>(dev, *p, b, rows, all);
	else if (p->w.head_dim == 128)
		launch_any<128>(dev, *p, b, rows, all);
	else
		launch_any<64>(dev, *p, b, rows, all);
}
