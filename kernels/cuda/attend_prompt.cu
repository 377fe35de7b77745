/*
 * attend_prompt.cu: attention of a prompt's whole blocks (TD_CUDA_LARGE positions that are final rows of one batch, as linear.cu has them), by mma.sync.
 * Where the GPU has products of warpgroups and heads have 256 dims, attend_group.cu does it instead.
 *
 * Work: a block takes the 16 MT (row, query head) pairs of some consecutive rows at one kv head and goes through all keys they see, KEYS at a time, in
 * ascending order. Nothing is divided but pairs, so no partial results go through memory. What limits is how often shared memory is read for a product, so
 * a warp's share of each is as square as registers allow: 8 warps = MT / 2 groups of 32 pairs times PARTS parts, of the keys in one, of the dims in the other:
 *
 *	norm and rotary of q -> for each step:	S = Q K^T -> maximum over the parts -> P = exp2(S - maximum) to shared memory, the next K meanwhile
 *						O += P V, and the sums of P as one more column -> the next V
 *
 * K and V come from the cache, where the append kernel has put this step's before. Blocks with the most keys start first.
 *
 * Row invariance: a row's steps begin at multiples of KEYS from 0, whatever was cut, and KEYS is the device's; keys that it can't see count 0. The sums' order
 * differs from that of attend.cu, so which way a row takes is decided by its prompt alone, as for products (linear.cu).
 *
 * A form with 16 pairs of all dims in each warp, P in registers, reached 230 TFLOP/s on an H200: each warp read all of K and V from shared memory.
 */
#include "kernels/cuda/attend.cuh"

enum { WARPS = 8, THREADS = WARPS * 32 };

/* Shared memory: q (16 MT, D), K and V (KEYS, D), P (16 MT, KEYS), maxima (PARTS, 16 MT). With 64 keys, for small multiprocessors, P takes K's place. */
template <int D, int MT, int KEYS> struct shape {
	enum { PARTS = WARPS / (MT / 2), MINE = KEYS / PARTS /* keys of a warp */, COLS = D / PARTS, ALIAS = KEYS == TILE };
	static constexpr size_t q = (size_t)MT * 16 * D, kv = (size_t)KEYS * D, p = ALIAS ? 0 : (size_t)MT * 16 * KEYS; /* elements */
	static constexpr size_t bytes = (q + 2 * kv + p) * 2 + (size_t)PARTS * MT * 16 * 4;
};

/* Norm and rotary of 2 MT pairs a warp. */
template <int D, int MT>
static __device__ __forceinline__ void queries(const struct attend_args &p, const struct td_seq &s, int r0, int pairs, int kv_head, bf16 *q_sh,
					       const float2 *turn_sh)
{
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, gqa = p.w.heads / p.w.kv_heads, q_step = p.w.gated ? 2 * D : D;
	float weight[D / 32];

	norm_weights<D>(p.w, p.w.q_norm, lane, weight);
#pragma unroll 4
	for (int i = 0; i < 2 * MT; i++) {
		int m = warp * 2 * MT + i, r = m < pairs ? m / gqa : 0;
		head_words<D> x = {};

		if (m < pairs)
			x = head_load<D>(p.x + (size_t)(s.row0 + r0 + r) * p.ldx + (kv_head * gqa + m % gqa) * q_step, lane);
		head_store<D>(lane_at<D>(q_sh, m, lane), norm_turn<D>(p.w, weight, x, turn_sh + r * (p.w.rotary_dim / 2), lane));
	}
}

/* One step's keys or values. */
template <int D, int KEYS>
static __device__ __forceinline__ void fetch(const void *cache, const int page[KEYS / TILE], int kv_heads, int kv_head, bf16 *sh)
{
#pragma unroll
	for (int i = 0; i < KEYS / TILE; i++) {
		const bf16 *from = (const bf16 *)cache + ((size_t)page[i] * kv_heads + kv_head) * (TILE * D);

#pragma unroll 4
		for (int j = threadIdx.x; j < TILE * D / 8; j += THREADS)
			copy16(piece<D>(sh, i * TILE + j / (D / 8), j % (D / 8)), from + j * 8);
	}
	copy_commit();
}

/* The maximum of each of the warp's rows to max_sh. `last` is the last key that the first of its pairs sees; `gqa` pairs see as many. */
template <int N> static __device__ __forceinline__ void mask(float s[2][N][4], int key, int pos, int m0, int gqa, float *max_sh, int lane)
{
	int whole = key + N * 8 - 1 <= pos + m0 / gqa;

#pragma unroll
	for (int h = 0; h < 4; h++) {
		int row = m0 + (h >> 1) * 16 + (h & 1) * 8 + (lane >> 2), last = whole ? 0 : pos + row / gqa;
		float m = -INFINITY;

#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float *v = &s[h >> 1][n][2 * (h & 1) + i];

				if (!whole && key + n * 8 + 2 * (lane & 3) + i > last)
					*v = -INFINITY;
				m = fmaxf(m, *v);
			}
		m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
		m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
		if ((lane & 3) == 0)
			max_sh[row] = m;
	}
}

/* Scores to probabilities in p_sh; `keep` is what the sums so far are multiplied by. Each row sees key 0, so no maximum stays -inf. */
template <int N, int PARTS, int KEYS>
static __device__ __forceinline__ void soften(const float s[2][N][4], const float *max_sh, int rows, float max[4], float keep[4], bf16 *p_sh, int m0, int c0,
					      float scale, int lane)
{
#pragma unroll
	for (int h = 0; h < 4; h++) {
		int row = m0 + (h >> 1) * 16 + (h & 1) * 8 + (lane >> 2);
		float m = max[h], sub;

#pragma unroll
		for (int i = 0; i < PARTS; i++)
			m = fmaxf(m, max_sh[i * rows + row]);
		keep[h] = fast_exp2((max[h] - m) * scale);
		max[h] = m;
		sub = m * scale;
#pragma unroll
		for (int n = 0; n < N; n++) {
			const float *v = &s[h >> 1][n][2 * (h & 1)];

			*(uint32_t *)(piece<KEYS>(p_sh, row, c0 + n) + 2 * (lane & 3)) =
				bf16_pair(fast_exp2(fmaf(v[0], scale, -sub)), fast_exp2(fmaf(v[1], scale, -sub)));
		}
	}
}

/* The sums so far times `keep`, where a maximum grew. */
template <int N> static __device__ __forceinline__ void shrink(float o[2][N][4], float l[2][4], const float keep[4])
{
	if (!__any_sync(~0u, keep[0] != 1 || keep[1] != 1 || keep[2] != 1 || keep[3] != 1))
		return;
#pragma unroll
	for (int h = 0; h < 4; h++)
#pragma unroll
		for (int i = 2 * (h & 1); i < 2 * (h & 1) + 2; i++) {
			l[h >> 1][i] *= keep[h];
#pragma unroll
			for (int n = 0; n < N; n++)
				o[h >> 1][n][i] *= keep[h];
		}
}

/* Divides, applies the gate, writes. */
template <int D, int N>
static __device__ __forceinline__ void finish(const struct attend_args &p, const struct td_seq &s, const float o[2][N][4], const float l[2][4], int r0,
					      int pairs, int kv_head, int m0, int col)
{
	int lane = threadIdx.x & 31, gqa = p.w.heads / p.w.kv_heads;

#pragma unroll
	for (int k = 0; k < 4; k++) {
		int m = m0 + (k >> 1) * 16 + (k & 1) * 8 + (lane >> 2), h = kv_head * gqa + m % gqa;
		size_t row = s.row0 + r0 + m / gqa;
		const bf16 *gate = p.x + row * p.ldx + (2 * h + 1) * D + col + 2 * (lane & 3);
		bf16 *out = p.out + row * p.ldo + h * D + col + 2 * (lane & 3);
		float inverse = 1.0f / l[k >> 1][2 * (k & 1)];

		if (m >= pairs)
			continue;
#pragma unroll
		for (int n = 0; n < N; n++) {
			float a = o[k >> 1][n][2 * (k & 1)] * inverse, b = o[k >> 1][n][2 * (k & 1) + 1] * inverse;

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
template <int D, int MT, int KEYS> static __global__ void __launch_bounds__(THREADS, 1) prompt_kernel(const struct attend_args p)
{
	typedef shape<D, MT, KEYS> S;
	enum { PARTS = S::PARTS, NK = S::MINE / 8, ND = S::COLS / 8, PAGES = KEYS / TILE, ROWS = MT * 16 };
	extern __shared__ __align__(1024) bf16 attend_sh[];
	bf16 *q_sh = attend_sh, *k_sh = q_sh + S::q, *v_sh = k_sh + S::kv, *p_sh = S::ALIAS ? k_sh : v_sh + S::kv;
	float *max_sh = (float *)(v_sh + S::kv + S::p);
	float2 *turn_sh = (float2 *)v_sh; /* until q is made */
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, kv_head = blockIdx.y, gqa = p.w.heads / p.w.kv_heads, half = p.w.rotary_dim / 2;
	int m0 = warp % (MT / 2) * 32, part = warp / (MT / 2), r0 = (gridDim.x - 1 - blockIdx.x) * p.rows_per_group, rows, steps, pos, page[PAGES];
	float o[2][ND][4] = {}, l[2][4] = {}, max[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, keep[4], sc[2][NK][4];
	const int32_t *table;
	struct td_seq s;

	after_previous();
	let_next_start();
	s = part_of(p.seq[blockIdx.z], ROWS_BLOCKS);
	rows = min(s.rows - r0, p.rows_per_group);
	if (rows <= 0)
		return;
	pos = s.pos0 + r0;
	steps = (pos + rows - 1) / KEYS + 1; /* all pages of the last one are there: blocks end at multiples of it */
	table = p.kv.table + (size_t)s.slot * p.kv.max_pages;
	for (int j = 0; j < PAGES; j++)
		page[j] = table[j];
	fetch<D, KEYS>(p.kv.k, page, p.w.kv_heads, kv_head, k_sh);
	for (int r = warp; r < rows; r += WARPS)
		turns(p.w.inv_freq, half, pos + r, turn_sh + r * half, lane, 32);
	__syncthreads();
	queries<D, MT>(p, s, r0, rows * gqa, kv_head, q_sh, turn_sh);
	__syncthreads();
	fetch<D, KEYS>(p.kv.v, page, p.w.kv_heads, kv_head, v_sh);
	for (int i = 0; i < steps; i++) {
		copy_wait<1>();
		__syncthreads();
		for (int j = 0; j < PAGES; j++)
			page[j] = table[min(i + 1, steps - 1) * PAGES + j];
		scores<D, 2, NK>(sc, q_sh, m0, k_sh, part * S::MINE, lane);
		mask<NK>(sc, i * KEYS + part * S::MINE, pos, m0, gqa, max_sh + part * ROWS, lane);
		__syncthreads();
		if (!S::ALIAS)
			fetch<D, KEYS>(p.kv.k, page, p.w.kv_heads, kv_head, k_sh);
		soften<NK, PARTS, KEYS>(sc, max_sh, ROWS, max, keep, p_sh, m0, part * NK, p.scale, lane);
		shrink<ND>(o, l, keep);
		copy_wait<S::ALIAS ? 0 : 1>();
		__syncthreads();
		weigh<D, KEYS, 2, ND>(o, l, p_sh, m0, v_sh, part * ND, lane);
		__syncthreads();
		if (S::ALIAS)
			fetch<D, KEYS>(p.kv.k, page, p.w.kv_heads, kv_head, k_sh);
		fetch<D, KEYS>(p.kv.v, page, p.w.kv_heads, kv_head, v_sh);
	}
	copy_wait<0>();
	finish<D, ND>(p, s, o, l, r0, rows * gqa, kv_head, m0, part * S::COLS);
}

/* ---- host ------------------------------------------------------------------------------------------------------------------------------ */

template <int D, int MT, int KEYS> static void launch(struct td_dev *dev, struct attend_args p, const struct td_batch *b, int rows)
{
	typedef shape<D, MT, KEYS> S;
	int turned = (int)(S::kv * 2 / ((size_t)p.w.rotary_dim / 2 * 8 + 1)), fit = MT * 16 / (p.w.heads / p.w.kv_heads);
	static int allowed; /* once per kernel */

	p.rows_per_group = fit < turned ? fit : turned;
	if (!allowed)
		td__cuda_shared(dev, prompt_kernel<D, MT, KEYS>, S::bytes);
	allowed = 1;
	td__cuda_launch(dev, "attention of a prompt", prompt_kernel<D, MT, KEYS>, dim3(div_up(rows, p.rows_per_group), p.w.kv_heads, b->n_seq), THREADS,
			S::bytes, p);
}

/* Steps of 128 keys where memory allows; groups of 128 pairs where there are rows enough for most multiprocessors. */
template <int D> static void launch_any(struct td_dev *dev, const struct attend_args &p, const struct td_batch *b, int rows, int all)
{
	if (shape<D, 8, 2 * TILE>::bytes > dev->shared_max)
		launch<D, 4, TILE>(dev, p, b, rows);
	else if (div_up(all * p.w.heads, 128) * 4 >= dev->sms * 3)
		launch<D, 8, 2 * TILE>(dev, p, b, rows);
	else
		launch<D, 4, 2 * TILE>(dev, p, b, rows);
}

void td__attend_prompt(struct td_dev *dev, const struct attend_args *p, const struct td_batch *b)
{
	int rows = 0, all = 0;

	for (int i = 0; i < b->n_seq; i++) {
		struct td_seq s = part_of(b->seq[i], ROWS_BLOCKS);

		rows = s.rows > rows ? s.rows : rows;
		all += s.rows;
	}
	if (td__attend_prompt_groups(dev, p, b, rows, all))
		return;
	if (p->w.head_dim == 256)
		launch_any<256>(dev, *p, b, rows, all);
	else if (p->w.head_dim == 128)
		launch_any<128>(dev, *p, b, rows, all);
	else
		launch_any<64>(dev, *p, b, rows, all);
}
