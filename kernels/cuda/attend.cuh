/*
 * attend.cuh: what the attention kernels share: their arguments, norm and rotary of a head, where keys lie, tiles in shared memory.
 *
 * attend.cu, attend_span.cuh and attend_sum.cu have the kernels for few rows over many keys (verify, decode, drafter), attend_prompt.cu and
 * attend_group.cu those for whole blocks of a prompt; attention.cu and draft_attention.cu are the operations.
 *
 * Tiles in shared memory are (row, dim) bf16 with the 16-byte pieces of a row exchanged by the row's low 3 bits, so that ldmatrix meets no bank conflict.
 */
#ifndef TD_CUDA_ATTEND_CUH
#define TD_CUDA_ATTEND_CUH

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/pack.h"

enum { TILE = TD_PAGE, PAIRS = TD_SCRATCH_PAIRS, SPANS = TD_SCRATCH_SPANS, SPANS_DRAFT = 32 /* and the block's own */ };

static const uint32_t BF16_ONES = 0x3f803f80;

struct attend_args {
	struct td_attn w;
	struct td_kv kv;
	const struct td_seq *seq;
	const bf16 *x; /* (R, ldx): rows as the projection leaves them */
	int ldx;
	bf16 *out; /* (R, ldo) */
	int ldo;
	uint4 *o; /* (work items here, kv_heads, spans, PAIRS / 16, dim / 16, 32 lanes): halves, two fragments side by side, divided by the span's sum */
	float2 *ms; /* (work items here, kv_heads, PAIRS, spans): maximum, sum */
	int draft; /* the block's own keys are a span of their own; nothing is stored */
	int from_rows; /* target: keys from pos0 on are made from x and stored by the blocks that need them; otherwise the cache has them already */
	int k_col; /* column of x where the keys begin; values follow */
	int part; /* which rows of each sequence */
	int rows, rows_per_group, groups; /* of rows per sequence, at most */
	int spans; /* of a work item, at most */
	int strands; /* blocks that share them */
	int item0, step; /* items at a time */
	int slots; /* of the ring of tiles */
	float scale; /* log2(e) / sqrt(dim) */
	int gqa, gqa_inverse; /* query heads of a kv head; 2^16 / that, rounded up */
};

static __device__ __forceinline__ size_t cache_at(const struct td_attn &w, const struct td_kv &kv, int slot, int pos, int head)
{
	size_t page = (size_t)kv.table[(size_t)slot * kv.max_pages + pos / TD_PAGE];

	return ((page * w.kv_heads + head) * TD_PAGE + pos % TD_PAGE) * w.head_dim;
}

/* The row of pair m, counted from the group's first. */
static __device__ __forceinline__ int row_of(const struct attend_args &p, int m)
{
	return m * p.gqa_inverse >> 16;
}

/* The tiles [tile, end) that row r of s needs; the drafter's block's own keys come besides. */
struct reach {
	int tile, end;
};
static __device__ __forceinline__ struct reach reach_of(const struct attend_args &p, const struct td_seq &s, int r)
{
	struct reach a = {0, (s.pos0 + r) / TILE + 1};

	if (p.draft) {
		a.tile = p.w.window && s.pos0 >= p.w.window ? (s.pos0 - (p.w.window - 1)) / TILE : 0;
		a.end = div_up(s.pos0, TILE);
	}
	return a;
}

static __device__ __forceinline__ int sequence_of(const struct td_seq *seq, int n_seq, int row)
{
	for (int i = 0; i < n_seq; i++)
		if (row >= seq[i].row0 && row < seq[i].row0 + seq[i].rows)
			return i;
	return -1;
}

/* ---- a head in a warp: lane l holds the D / 32 dims from l * D / 32 on -------------------------------------------------------------------- */

template <int D> struct alignas(D / 16) head_words {
	uint32_t w[D / 64];
};

/* A lane's share at x, in one piece. */
template <int D> static __device__ __forceinline__ head_words<D> head_get(const bf16 *x)
{
	head_words<D> h;

	if (D == 256)
		*(uint4 *)h.w = *(const uint4 *)x;
	else if (D == 128)
		*(uint2 *)h.w = *(const uint2 *)x;
	else
		h.w[0] = *(const uint32_t *)x;
	return h;
}

template <int D> static __device__ __forceinline__ head_words<D> head_load(const bf16 *x, int lane)
{
	return head_get<D>(x + lane * (D / 32));
}

template <int D> static __device__ __forceinline__ void head_store(bf16 *x, const head_words<D> &h)
{
	if (D == 256)
		*(uint4 *)x = *(const uint4 *)h.w;
	else if (D == 128)
		*(uint2 *)x = *(const uint2 *)h.w;
	else
		*(uint32_t *)x = h.w[0];
}

/* This lane's weights of a head's norm. */
template <int D> static __device__ __forceinline__ void norm_weights(const struct td_attn &w, const float *weight, int lane, float y[D / 32])
{
#pragma unroll
	for (int i = 0; i < D / 32; i++)
		y[i] = (w.zero_centred ? 1.0f : 0.0f) + weight[lane * (D / 32) + i];
}

/*
 * cos and sin of an angle that a position can make (below 2^22), to about an ulp: pi / 2 in three parts, of which the first product is exact, and short
 * polynomials. The library's functions have a second way for larger angles, and that is much code for kernels that run through theirs once.
 */
static __device__ __forceinline__ float2 turn_of(float angle)
{
	float k = rintf(angle * 0.636619772f), r = fmaf(k, 1.7151245e-15f, fmaf(k, 4.37113883e-8f, fmaf(k, -1.57079637f, angle))), z = r * r;
	float s = fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z, r, r);
	float c = fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f) * z, z, fmaf(-0.5f, z, 1.0f));
	int quarter = (int)k;

	if (quarter & 1) {
		float t = c;

		c = -s;
		s = t;
	}
	return quarter & 2 ? make_float2(-c, -s) : make_float2(c, s);
}

/* cos and sin of position `pos` for the pairs of dims (j, j + half), j = first, first + step, ... below n. qwen35 3.2.4 */
static __device__ __forceinline__ void turns(const float *inv_freq, int n, int pos, float2 *turn, int first, int step)
{
#pragma unroll 1
	for (int j = first; j < n; j += step)
		turn[j] = turn_of((float)pos * inv_freq[j]);
}

/* rotary(norm(x)) of one head; `turn` is its position's. The halves of a pair lie in two lanes at the same place, or in one (qwen35 3.2.3-4). */
template <int D>
static __device__ __forceinline__ head_words<D> norm_turn(const struct td_attn &w, const float weight[D / 32], head_words<D> x, const float2 *turn, int lane)
{
	enum { N = D / 32 };
	int half = w.rotary_dim / 2, d = lane * N, low = d < half, turned = d < 2 * half, from = !turned ? lane : low ? lane + half / N : lane - half / N;
	float v[N], sum = 0;
	head_words<D> y;

#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		v[2 * i] = bf16_lo(x.w[i]);
		v[2 * i + 1] = bf16_hi(x.w[i]);
		sum += v[2 * i] * v[2 * i] + v[2 * i + 1] * v[2 * i + 1];
	}
	sum = rsqrtf(warp_sum(sum) / D + w.eps);
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] *= sum * weight[i];
#pragma unroll
	for (int i = 0; i < N; i++) {
		float other = __shfl_sync(~0u, v[i], from);
		float2 t = turned ? turn[low ? d + i : d + i - half] : make_float2(1, 0);

		v[i] = v[i] * t.x + (low ? -other : other) * t.y;
	}
#pragma unroll
	for (int i = 0; i < N / 2; i++)
		y.w[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
	return y;
}

/* ---- tiles --------------------------------------------------------------------------------------------------------------------------- */

/* Piece c (8 elements) of a row. */
template <int D> static __device__ __forceinline__ bf16 *piece(bf16 *sh, int row, int c)
{
	return sh + row * D + ((c ^ (row & 7)) << 3);
}

/* Where a lane's dims of a row lie. */
template <int D> static __device__ __forceinline__ bf16 *lane_at(bf16 *sh, int row, int lane)
{
	return piece<D>(sh, row, lane * (D / 32) / 8) + lane * (D / 32) % 8;
}

/* ---- the two products ------------------------------------------------------------------------------------------------------------------ */

/*
 * Elements from a tile's begin to where lane l points ldmatrix: row `row` of the 16 x 16 block at piece 0, second half of the columns for `high`. The block
 * at an even piece c lies at this XOR c * 8, since rows are as long as a power of two.
 */
template <int D> static __device__ __forceinline__ int corner(int row, int high)
{
	return row * D + ((high ^ (row & 7)) << 3);
}

/*
 * Scores of M * 16 pairs with N * 8 keys from `key` on. Fragments are loaded two products ahead: ldmatrix keeps its place among the instructions, and
 * its answer takes as long as several products.
 */
template <int D, int M, int N> static __device__ __forceinline__ void scores(float s[M][N][4], bf16 *q_sh, int m0, bf16 *k_sh, int key, int lane)
{
	enum { AHEAD = 2, EACH_K = N / 2, STEPS = D / 16 * EACH_K };
	int q_at = corner<D>(m0 + (lane & 15), lane >> 4), k_at = corner<D>(key + (lane >> 4) * 8 + (lane & 7), lane >> 3 & 1);
	uint32_t a[2][M][4], b[AHEAD + 1][4];

#pragma unroll
	for (int i = 0; i < M; i++) {
		load_matrix(a[0][i], q_sh + q_at + i * 16 * D);
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int k = 0; k < 4; k++)
				s[i][n][k] = 0;
	}
#pragma unroll
	for (int t = 0; t < AHEAD; t++)
		load_matrix(b[t], k_sh + (k_at ^ t / EACH_K << 4) + t % EACH_K * 16 * D);
#pragma unroll
	for (int t = 0; t < STEPS; t++) {
		int kk = t / EACH_K, j = t % EACH_K, next = t + AHEAD;

		if (j == 0 && kk + 1 < D / 16)
#pragma unroll
			for (int i = 0; i < M; i++)
				load_matrix(a[(kk + 1) & 1][i], q_sh + (q_at ^ (kk + 1) << 4) + i * 16 * D);
		if (next < STEPS)
			load_matrix(b[next % (AHEAD + 1)], k_sh + (k_at ^ next / EACH_K << 4) + next % EACH_K * 16 * D);
#pragma unroll
		for (int i = 0; i < M; i++) {
			const uint32_t *x = a[kk & 1][i], *y = b[t % (AHEAD + 1)];

			mma_bf16(s[i][2 * j], x[0], x[1], x[2], x[3], y[0], y[1]);
			mma_bf16(s[i][2 * j + 1], x[0], x[1], x[2], x[3], y[2], y[3]);
		}
	}
}

/* o += P V for M * 16 pairs, KEYS keys and N * 8 dims from piece c0 on; l += the sums of P's rows. Loaded ahead as above. */
template <int D, int KEYS, int M, int N>
static __device__ __forceinline__ void weigh(float o[M][N][4], float l[M][4], bf16 *p_sh, int m0, bf16 *v_sh, int c0, int lane)
{
	enum { AHEAD = 2, EACH_K = N / 2, STEPS = KEYS / 16 * EACH_K };
	int p_at = corner<KEYS>(m0 + (lane & 15), lane >> 4), v_at = corner<D>(lane & 15, lane >> 4) ^ c0 << 3;
	uint32_t a[2][M][4], b[AHEAD + 1][4];

#pragma unroll
	for (int i = 0; i < M; i++)
		load_matrix(a[0][i], p_sh + p_at + i * 16 * KEYS);
#pragma unroll
	for (int t = 0; t < AHEAD; t++)
		load_matrix_transposed(b[t], v_sh + (v_at ^ t % EACH_K << 4) + t / EACH_K * 16 * D);
#pragma unroll
	for (int t = 0; t < STEPS; t++) {
		int kk = t / EACH_K, d = t % EACH_K, next = t + AHEAD;

		if (d == 0 && kk + 1 < KEYS / 16)
#pragma unroll
			for (int i = 0; i < M; i++)
				load_matrix(a[(kk + 1) & 1][i], p_sh + (p_at ^ (kk + 1) << 4) + i * 16 * KEYS);
		if (next < STEPS)
			load_matrix_transposed(b[next % (AHEAD + 1)], v_sh + (v_at ^ next % EACH_K << 4) + next / EACH_K * 16 * D);
#pragma unroll
		for (int i = 0; i < M; i++) {
			const uint32_t *x = a[kk & 1][i], *y = b[t % (AHEAD + 1)];

			if (d == 0)
				mma_bf16(l[i], x[0], x[1], x[2], x[3], BF16_ONES, BF16_ONES);
			mma_bf16(o[i][2 * d], x[0], x[1], x[2], x[3], y[0], y[1]);
			mma_bf16(o[i][2 * d + 1], x[0], x[1], x[2], x[3], y[2], y[3]);
		}
	}
}

/* attend.cu. Checks, and what is common to all; 0 after an error or with nothing to do. */
int td__attend_prepare(struct td_dev *dev, struct attend_args *p, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b,
		       struct td_tensor x, int cols, int draft, const char *what);
/* Norm and rotary of k, then k and v to the cache. */
void td__attend_append(struct td_dev *dev, const struct attend_args *p, const struct td_batch *b);
/* The spans and their sum, for rows of p->part. */
void td__attend(struct td_dev *dev, struct attend_args *p, const struct td_batch *b);
/* attend_sum.cu: the sum alone, of n work items of up to `rows` rows. */
void td__attend_sum(struct td_dev *dev, const struct attend_args *p, int rows, int n);
/* attend_prompt.cu: rows of whole blocks. */
void td__attend_prompt(struct td_dev *dev, const struct attend_args *p, const struct td_batch *b);
/* attend_group.cu: the same by products of warpgroups; 0 where there are none, or they don't fit. */
int td__attend_prompt_groups(struct td_dev *dev, const struct attend_args *p, const struct td_batch *b, int rows, int all);

#endif
