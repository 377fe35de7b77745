/*
 * gdn_chunk.cu: the Gated DeltaNet layer over whole blocks of a prompt: 64 tokens at once, by matrix products (qwen35 3.5).
 *
 * With G the sums of log-decays inside a chunk and L_ij = exp(G_i - G_j) for i >= j, a chunk that starts with state S is
 *
 *	A = beta_i (k_i . k_j) L_ij below the diagonal, T = (I + A)^-1		W = T (beta exp(G) K)	U = T (beta V)
 *	D = U - W S	O = exp(G) (Q S) + ((Q K^T) L) D	S' = exp(G_last) S + (exp(G_last - G) K)^T D
 *
 * Only D, O and S' depend on the chunk before, so the work is three kernels:
 *
 *	local	a block per chunk and key head: convolution, norms, gates, then for each of its value heads A, T, W, U and P = (Q K^T) L
 *	scan	a block per value head and some groups of 16 columns of its state, from the first chunk to the last. Half of the warps carry the state, a
 *		group each: it stays in registers, transposed, so that a sum's fragment is the next product's operand as it is. The others make O of the
 *		chunk before, from copies of state and D that the first leave in shared memory. One barrier a chunk; copies run one chunk ahead.
 *	norm	a warp per row and head: the gated norm, in place
 *
 * What goes from one to the next lies in scratch memory in the order of fragments of mma.m16n8k16: each load is 16 bytes a lane, side by side.
 *
 * Rounding. Operands are halves (11 bits), not bf16 (8): normalised q and k, entries of T, W and P are at most 1 in size; V, U, D and the copy of S
 * that is read have the size of activations, and saturate. S itself and all sums are float32, so errors don't pile up from chunk to chunk: a chunk
 * reads S with a relative error of 2^-12 and the rule itself corrects what it then writes. (Half of an output's error is its rounding to bf16.)
 *
 * What must never happen: exp(-G), which overflows: differences are formed first. A chunk that starts elsewhere than at a multiple of 64 positions, or
 * a result that depends on where the run of blocks starts or ends: a prompt cut at other blocks must give the same bits.
 */
#include <cuda_fp16.h>

#include "kernels/cuda/gdn.cuh"
#include "kernels/pack.h"

enum {
	N = TD_SCRATCH_CHUNK, /* tokens of a chunk */
	LOCAL_THREADS = 256,
	LOCAL_WARPS = LOCAL_THREADS / 32,
	TURN = N / LOCAL_WARPS, /* tokens of a warp */
	PAD = 8, /* halves after a row in shared memory: the 8 rows of a matrix load then lie in different banks */
	HALF = N / 2,
	A_LD = N + 4,
	P_UNITS = 10, /* 16 x 16 blocks on and below the diagonal */
	PIECE = 8, /* chunks from one launch to the next */
	NORM_ROWS = 4, /* of a warp */
	NORM_WARPS = 8,
};
static_assert(TD_CUDA_LARGE % N == 0, "a run is whole chunks");

struct chunk_args {
	struct gdn_args g;
	int groups; /* of 16 columns of a value head */
	int chunk0, count; /* this launch's chunks of each run */
	int together; /* local: value heads at a time */
	int stages; /* scan: 1, or 2 where shared memory allows */
	/* by chunk (place in the batch / 64) and head; 32 lanes of 16 bytes make a unit */
	uint4 *q, *k; /* (chunks, k_heads, k_dim / 16 * 4 units): (dims, tokens); (tokens, dims) */
	uint4 *w; /* (chunks, v_heads, k_dim / 16 * 4 units): (dims, tokens) */
	uint4 *p; /* (chunks, v_heads, P_UNITS units) */
	uint4 *u; /* (chunks, v_heads, groups * 4 units): (columns, tokens) */
	float *decay; /* (chunks, v_heads, 2, N): exp(G), exp(G_last - G) */
};

static __device__ __forceinline__ int unit_block(int i, int j)
{
	return i * (i + 1) / 2 + j;
}

/* ---- local ------------------------------------------------------------------------------------------------------------------------- */

/* Addresses for load_matrix of the 16 x 16 elements at (row, col): as an A operand (matrices go down first), and as two B operands (right first). */
static __device__ __forceinline__ const __half *down(const __half *x, int ld, int row, int col)
{
	int lane = threadIdx.x & 31;

	return x + (row + (lane & 15)) * ld + col + (lane >> 4) * 8;
}
static __device__ __forceinline__ const __half *right(const __half *x, int ld, int row, int col)
{
	int lane = threadIdx.x & 31;

	return x + (row + (lane & 7) + (lane >> 4) * 8) * ld + col + ((lane >> 3) & 1) * 8;
}

/* Of a value head in shared memory: 2-based G, beta, exp(G) in halves. */
struct gates {
	float sum[N], beta[N];
	uint32_t since[N / 2];
};

/* What the gates of a lane's two tokens are made of. */
struct raw_gates {
	float b[2], a[2], rate, bias;
};
static __device__ __forceinline__ void fetch_gates(const struct gdn_args &p, const struct td_seq &s, int t0, int head, struct raw_gates *x)
{
	int token = t0 + 2 * (threadIdx.x & 31);

	x->rate = p.w.a_log[head];
	x->bias = p.w.dt_bias[head];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		x->b[i] = token_ba(p, s, token + i, head);
		x->a[i] = token_ba(p, s, token + i, p.w.v_heads + head);
	}
}

/* Gates of one value head by a warp. */
static __device__ __forceinline__ void make_gates(const struct chunk_args &c, const struct raw_gates &x, size_t at, struct gates *to)
{
	int lane = threadIdx.x & 31;
	float g[2], total, last;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		float u = x.a[i] + x.bias;

		to->beta[2 * lane + i] = sigmoid(x.b[i]);
		g[i] = -expf(x.rate) * (u > 20.0f ? u : log1pf(expf(u)));
	}
	total = g[0] + g[1];
#pragma unroll
	for (int d = 1; d < 32; d *= 2) {
		float v = __shfl_up_sync(~0u, total, d);

		total += lane >= d ? v : 0;
	}
	last = __shfl_sync(~0u, total, 31);
	g[0] = total - g[1];
	g[1] = total;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		to->sum[2 * lane + i] = g[i] * 1.44269504f;
		c.decay[at * 2 * N + N + 2 * lane + i] = expf(last - g[i]);
		g[i] = c.decay[at * 2 * N + 2 * lane + i] = expf(g[i]);
	}
	to->since[lane] = half_pair(g[0], g[1]);
}

/* As conv, but to be rounded to a half. */
static __device__ __forceinline__ float tap(float4 w, float a, float b, float c, float d)
{
	float v = fmaf(w.w, d, fmaf(w.z, c, fmaf(w.y, b, w.x * a)));

	return v * fast_inverse(1.0f + fast_exp2(v * -1.44269504f));
}

/* C neighbouring channels of a warp's tokens, and the three rows before: what is asked for before the stream fetched last is worked on. */
template <int C> struct raw {
	uint32_t row[TURN + TD_CONV_TAIL][C / 2];
	float4 taps[C];
};
template <int C>
static __device__ __forceinline__ void fetch_rows(const struct gdn_args &p, const struct td_seq &s, int t0, int channel, struct raw<C> *x)
{
	int first = threadIdx.x / 32 * TURN;

#pragma unroll
	for (int j = 0; j < TURN + TD_CONV_TAIL; j++)
		load_words<C / 2>(x->row[j], stream_row(p, s, t0 + first + j) + channel);
#pragma unroll
	for (int i = 0; i < C; i++)
		x->taps[i] = ((const float4 *)p.w.conv)[channel + i];
	loads_before();
}

/* Convolution and silu of token i of the turn. */
template <int C> static __device__ __forceinline__ void convolve(const struct raw<C> &x, int i, float y[C])
{
#pragma unroll
	for (int j = 0; j < C; j++)
		y[j] = tap(x.taps[j], element(x.row[i], j), element(x.row[i + 1], j), element(x.row[i + 2], j), element(x.row[i + 3], j));
}

/* Of q or k, with the L2 norm; to (N, KD + PAD). */
template <int KD> static __device__ __forceinline__ void put_keys(const struct raw<KD / 32> &x, float scale, __half *to)
{
	enum { C = KD / 32 };

#pragma unroll
	for (int i = 0; i < TURN; i++) {
		uint32_t *at = (uint32_t *)(to + (threadIdx.x / 32 * TURN + i) * (KD + PAD) + (threadIdx.x & 31) * C);
		float y[C], sum = 0;

		convolve<C>(x, i, y);
#pragma unroll
		for (int j = 0; j < C; j++)
			sum += y[j] * y[j];
		sum = rsqrtf(warp_sum(sum) + 1e-6f) * scale;
#pragma unroll
		for (int j = 0; j < C / 2; j++)
			at[j] = half_pair(y[2 * j] * sum, y[2 * j + 1] * sum);
	}
}

/* v: four columns a lane; those from v_dim to the end of the last group become 0. */
static __device__ __forceinline__ void fetch_values(const struct gdn_args &p, const struct td_seq &s, int t0, int head, struct raw<4> *x)
{
	int col = (threadIdx.x & 31) * 4;

	fetch_rows<4>(p, s, t0, 2 * p.w.k_heads * p.w.k_dim + head * p.w.v_dim + (col < p.w.v_dim ? col : 0), x);
}
static __device__ __forceinline__ void put_values(const struct raw<4> &x, int v_dim, __half *to, int ld)
{
	int col = (threadIdx.x & 31) * 4;

	if (col + PAD >= ld)
		return;
#pragma unroll
	for (int i = 0; i < TURN; i++) {
		float y[4];

		convolve<4>(x, i, y);
		if (col >= v_dim)
			y[0] = y[1] = y[2] = y[3] = 0;
		*(uint2 *)(to + (threadIdx.x / 32 * TURN + i) * ld + col) = make_uint2(half_pair(y[0], y[1]), half_pair(y[2], y[3]));
	}
}

/* All inputs of the chunk, v of its first `heads` (1 or 2) value heads: each stream is asked for before the one before it is worked on. */
template <int KD>
static __device__ __forceinline__ void inputs(const struct chunk_args &c, const struct td_seq &s, int t0, int k_head, int heads, size_t key,
					      struct gates *gates, __half *q_sh, __half *k_sh, __half *v_sh, int v_ld)
{
	const struct gdn_args &p = c.g;
	int group = p.w.v_heads / p.w.k_heads, warp = threadIdx.x / 32, channel = k_head * KD + (threadIdx.x & 31) * (KD / 32);
	struct raw_gates g;
	struct raw<KD / 32> q, k;
	struct raw<4> v, v2;

	if (warp < group)
		fetch_gates(p, s, t0, k_head * group + warp, &g);
	fetch_rows<KD / 32>(p, s, t0, channel, &q);
	fetch_rows<KD / 32>(p, s, t0, channel + p.w.k_heads * KD, &k);
	put_keys<KD>(q, rsqrtf((float)KD), q_sh);
	fetch_values(p, s, t0, k_head * group, &v);
	put_keys<KD>(k, 1, k_sh);
	if (heads > 1)
		fetch_values(p, s, t0, k_head * group + 1, &v2);
	if (warp < group)
		make_gates(c, g, key * group + warp, gates + warp);
	put_values(v, p.w.v_dim, v_sh, v_ld);
	if (heads > 1)
		put_values(v2, p.w.v_dim, v_sh + N * v_ld, v_ld);
}

/* The 16 x 16 block (i, j) of x k^T, x = k or q, in fragments of two products. */
template <int KD> static __device__ __forceinline__ void similar(const __half *x, const __half *k, int i, int j, float r[2][4])
{
	float odd[2][4] = {};
	uint32_t a[2][4], b[2][4];

#pragma unroll
	for (int n = 0; n < 8; n++)
		r[n >> 2][n & 3] = 0;
	load_matrix(a[0], down(x, KD + PAD, i * 16, 0));
	load_matrix(b[0], right(k, KD + PAD, j * 16, 0));
#pragma unroll
	for (int d = 0; d < KD / 16; d++) {
		float(*to)[4] = d & 1 ? odd : r;

		if (d + 1 < KD / 16) {
			load_matrix(a[(d + 1) & 1], down(x, KD + PAD, i * 16, d * 16 + 16));
			load_matrix(b[(d + 1) & 1], right(k, KD + PAD, j * 16, d * 16 + 16));
		}
		mma_half(to[0], a[d & 1], b[d & 1][0], b[d & 1][1]);
		mma_half(to[1], a[d & 1], b[d & 1][2], b[d & 1][3]);
	}
#pragma unroll
	for (int n = 0; n < 8; n++)
		r[n >> 2][n & 3] += odd[n >> 2][n & 3];
}

/* Such a block of A to shared memory, or (a_sh NULL) of P to scratch memory. */
static __device__ __forceinline__ void weigh(const float r[2][4], int i, int j, const struct gates *of, float *a_sh, uint4 *p_gl)
{
	int lane = threadIdx.x & 31, row = i * 16 + (lane >> 2), col = j * 16 + (lane & 3) * 2, from = a_sh != NULL;
	float v[2][4], down[2] = {of->sum[row], of->sum[row + 8]}, beta[2] = {of->beta[row], of->beta[row + 8]};
	float2 right[2] = {*(const float2 *)&of->sum[col], *(const float2 *)&of->sum[col + 8]};

#pragma unroll
	for (int n = 0; n < 8; n++) {
		int y = n >> 1 & 1, x = n >> 2;
		float e = fast_exp2(down[y] - (n & 1 ? right[x].y : right[x].x)); /* above the diagonal it may overflow, and is not taken */

		e *= a_sh ? r[x][n & 3] * beta[y] : r[x][n & 3];
		v[x][n & 3] = col + x * 8 + (n & 1) <= row + y * 8 - from ? e : 0.0f;
	}
	if (a_sh) {
#pragma unroll
		for (int n = 0; n < 4; n++)
			*(float2 *)(a_sh + (row + (n & 1) * 8) * A_LD + col + (n >> 1) * 8) =
				make_float2(v[n >> 1][(n & 1) * 2], v[n >> 1][(n & 1) * 2 + 1]);
	} else {
		p_gl[unit_block(i, j) * 32 + lane] =
			make_uint4(half_pair(v[0][0], v[0][1]), half_pair(v[1][0], v[1][1]), half_pair(v[0][2], v[0][3]), half_pair(v[1][2], v[1][3]));
	}
}

/*
 * T = (I + A)^-1 of a value head in shared memory, by halves: T11 and T22 are inverses of their own, T21 = -T22 A21 T11. First all is A, in float32; T11
 * and T22 replace A11 and A22, for T21 to be made of; what the products read is T diag(beta) in halves, T11 and T22 side by side where A12 would be.
 */
struct inverse {
	float a[N * A_LD];
	__half t21[HALF * (HALF + PAD)];
};
enum { T_LD = 2 * A_LD };

/* The 16 x 16 block (i, j) of T diag(beta), and the length of its rows. */
static __device__ __forceinline__ const __half *block_of_t(const struct inverse *x, int i, int j, int *ld)
{
	*ld = i >= 2 && j < 2 ? HALF + PAD : T_LD;
	if (i >= 2 && j < 2)
		return x->t21 + (i - 2) * 16 * (HALF + PAD) + j * 16;
	return (const __half *)x->a + i % 2 * 16 * T_LD + N + j * 16;
}

/* T11 (which 0) or T22 by a warp, a column a lane, by forward substitution. All is unrolled: the column lives in registers. */
static __device__ __forceinline__ void solve(struct inverse *x, const float *beta, int which)
{
	int lane = threadIdx.x & 31;
	float *a_sh = x->a + which * HALF * (A_LD + 1), t[HALF], b = beta[which * HALF + lane];
	__half *to = (__half *)x->a + N + which * HALF + lane;

#pragma unroll
	for (int i = 0; i < HALF; i++) {
		float r[4] = {i == lane ? 1.0f : 0.0f, 0, 0, 0};

#pragma unroll
		for (int j = 0; j < i; j += 4) {
			float4 a = *(const float4 *)(a_sh + i * A_LD + j);

			r[0] -= a.x * t[j];
			if (j + 1 < i)
				r[1] -= a.y * t[j + 1];
			if (j + 2 < i)
				r[2] -= a.z * t[j + 2];
			if (j + 3 < i)
				r[3] -= a.w * t[j + 3];
		}
		t[i] = (r[0] + r[1]) + (r[2] + r[3]);
	}
	__syncwarp();
#pragma unroll
	for (int i = 0; i < HALF; i++) {
		a_sh[i * A_LD + lane] = t[i];
		to[i * T_LD] = __float2half(t[i] * b);
	}
}

/* Two float32 as halves and what these leave over. */
static __device__ __forceinline__ void split(float x, float y, uint32_t *high, uint32_t *low)
{
	float2 v;

	*high = half_pair(x, y);
	v = __half22float2(*(const __half2 *)high);
	*low = half_pair(x - v.x, y - v.y);
}

/* r += x b for operands in two halves each; b is two neighbours of a row each at `from` and 8 further. */
static __device__ __forceinline__ void mma_split(float r[4], const uint32_t high[4], const uint32_t low[4], const float *from)
{
	float2 x = *(const float2 *)from, y = *(const float2 *)(from + 8);
	uint32_t h[2], l[2];

	split(x.x, x.y, &h[0], &l[0]);
	split(y.x, y.y, &h[1], &l[1]);
	mma_half(r, high, h[0], h[1]);
	mma_half(r, high, l[0], l[1]);
	mma_half(r, low, h[0], h[1]);
}

/* Columns 16 m .. 16 m + 15 of T21, as their transpose: -((T11^T A21^T) T22^T). */
static __device__ __forceinline__ void solve_below(struct inverse *x, const float *beta, int m)
{
	int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, col = m * 16 + g;
	float r[HALF / 8][4] = {}, y[HALF / 8][4] = {}, b[2] = {-beta[col], -beta[col + 8]};

#pragma unroll
	for (int k = 0; k < HALF; k += 16) {
		uint32_t high[4], low[4];

#pragma unroll
		for (int n = 0; n < 4; n++) {
			const float *from = x->a + (k + (n >> 1) * 8 + 2 * t) * A_LD + col + (n & 1) * 8;

			split(from[0], from[A_LD], &high[n], &low[n]);
		}
#pragma unroll
		for (int n = 0; n < HALF / 8; n++)
			mma_split(r[n], high, low, x->a + (HALF + n * 8 + g) * A_LD + k + 2 * t);
	}
#pragma unroll
	for (int k = 0; k < HALF; k += 16) {
		uint32_t high[4], low[4];

#pragma unroll
		for (int n = 0; n < 4; n++)
			split(r[k / 8 + (n >> 1)][(n & 1) * 2], r[k / 8 + (n >> 1)][(n & 1) * 2 + 1], &high[n], &low[n]);
#pragma unroll
		for (int n = 0; n < HALF / 8; n++)
			mma_split(y[n], high, low, x->a + (HALF + n * 8 + g) * A_LD + HALF + k + 2 * t);
	}
#pragma unroll
	for (int n = 0; n < HALF / 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			x->t21[(n * 8 + 2 * t + (i & 1)) * (HALF + PAD) + col + (i >> 1) * 8] = __float2half(y[n][i] * b[i >> 1]);
}

/* W = T (beta exp(G) K) for 16 dims; k[j] are the fragments of 16 tokens of K. */
static __device__ __forceinline__ void make_w(const struct inverse *x, const struct gates *of, const uint32_t k[4][4], uint4 *w_gl)
{
	int lane = threadIdx.x & 31;
	uint32_t e[4][4];

#pragma unroll
	for (int n = 0; n < 16; n++)
		e[n >> 2][n & 3] = half_times(k[n >> 2][n & 3], of->since[(n >> 2) * 8 + (n & 1) * 4 + (lane & 3)]);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float r[2][4] = {};

#pragma unroll
		for (int j = 0; j <= i; j++) {
			uint32_t a[4];
			int ld;
			const __half *t = block_of_t(x, i, j, &ld);

			load_matrix(a, down(t, ld, 0, 0));
			mma_half(r[0], a, e[j][0], e[j][1]);
			mma_half(r[1], a, e[j][2], e[j][3]);
		}
		w_gl[i * 32 + lane] =
			make_uint4(half_pair(r[0][0], r[0][1]), half_pair(r[1][0], r[1][1]), half_pair(r[0][2], r[0][3]), half_pair(r[1][2], r[1][3]));
	}
}

/* U^T = (beta V)^T T^T for 16 columns of V. */
static __device__ __forceinline__ void make_u(const struct inverse *x, const __half *v_sh, int ld, int group, uint4 *u_gl)
{
	uint32_t v[4][4];

#pragma unroll
	for (int j = 0; j < 4; j++)
		load_matrix_transposed(v[j], right(v_sh, ld, j * 16, group * 16));
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float r[2][4] = {};

#pragma unroll
		for (int j = 0; j <= i; j++) {
			uint32_t b[4];
			int ld_t;
			const __half *t = block_of_t(x, i, j, &ld_t);

			load_matrix(b, right(t, ld_t, 0, 0));
			mma_half(r[0], v[j], b[0], b[1]);
			mma_half(r[1], v[j], b[2], b[3]);
		}
		u_gl[i * 32 + (threadIdx.x & 31)] =
			make_uint4(half_pair(r[0][0], r[0][1]), half_pair(r[0][2], r[0][3]), half_pair(r[1][0], r[1][1]), half_pair(r[1][2], r[1][3]));
	}
}

/* Shared memory of a block of `local`: inverses (together), gates (value heads of a key head), q and k (N, KD + PAD), v (together, N, groups * 16 + PAD) */
static size_t local_bytes(const struct chunk_args &c)
{
	return c.together * (sizeof(struct inverse) + (size_t)N * (c.groups * 16 + PAD) * 2) +
	       (size_t)c.g.w.v_heads / c.g.w.k_heads * sizeof(struct gates) + (size_t)2 * N * (c.g.w.k_dim + PAD) * 2;
}

/* grid (chunks of a run, k_heads, sequences) */
template <int KD> static __global__ void __launch_bounds__(LOCAL_THREADS, 2) local_kernel(const struct chunk_args c)
{
	extern __shared__ __align__(16) char local_sh[];
	struct td_seq s;
	const struct gdn_args &p = c.g;
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, t0 = (c.chunk0 + blockIdx.x) * N, k_head = blockIdx.y, group = p.w.v_heads / p.w.k_heads;
	int v_ld = c.groups * 16 + PAD;
	struct inverse *inverse = (struct inverse *)local_sh;
	struct gates *gates = (struct gates *)(inverse + c.together);
	__half *q_sh = (__half *)(gates + group), *k_sh = q_sh + N * (KD + PAD), *v_sh = k_sh + N * (KD + PAD);
	size_t chunk, key;

	let_next_start();
	if (c.chunk0 == 0)
		after_previous();
	s = part_of(p.seq[blockIdx.z], GDN_BLOCKS);
	if (t0 >= s.rows) {
		after_previous();
		return;
	}
	chunk = (size_t)(s.row0 + t0) / N;
	key = chunk * p.w.k_heads + k_head;
	inputs<KD>(c, s, t0, k_head, min(group, c.together), key, gates, q_sh, k_sh, v_sh, v_ld);
	for (int h0 = 0; h0 < group; h0 += c.together) {
		int heads = min(group - h0, c.together);
		size_t at = key * group + h0;

		for (int h = 0; h0 > 0 && h < heads; h++) {
			struct raw<4> v;

			fetch_values(p, s, t0, k_head * group + h0 + h, &v);
			put_values(v, p.w.v_dim, v_sh + h * N * v_ld, v_ld);
		}
		__syncthreads();
		for (int b = warp; b < 2 * P_UNITS; b += LOCAL_WARPS) {
			int n = b % P_UNITS, i = (n >= 1) + (n >= 3) + (n >= 6), j = n - unit_block(i, 0), of_p = b >= P_UNITS;
			float r[2][4];

			similar<KD>(of_p ? q_sh : k_sh, k_sh, i, j, r);
			for (int h = 0; h < heads; h++)
				weigh(r, i, j, gates + h0 + h, of_p ? NULL : inverse[h].a, c.p + (at + h) * P_UNITS * 32);
		}
		__syncthreads();
		if (warp < 2 * heads)
			solve(inverse + warp / 2, gates[h0 + warp / 2].beta, warp & 1);
		else if (h0 == 0)
			for (int i = warp - 2 * heads; i < KD / 16 * 4; i += LOCAL_WARPS - 2 * heads) {
				uint32_t r[4];

				load_matrix(r, right(q_sh, KD + PAD, i % 4 * 16, i / 4 * 16));
				c.q[(key * (KD / 4) + i) * 32 + lane] = make_uint4(r[0], r[1], r[2], r[3]);
			}
		__syncthreads();
		if (warp < 2 * heads)
			solve_below(inverse + warp / 2, gates[h0 + warp / 2].beta, warp & 1);
		__syncthreads();
		for (int d = warp; d < KD / 16; d += LOCAL_WARPS) {
			uint32_t k[4][4];

#pragma unroll
			for (int j = 0; j < 4; j++) {
				load_matrix_transposed(k[j], down(k_sh, KD + PAD, j * 16, d * 16));
				if (h0 == 0)
					c.k[(key * (KD / 4) + j * (KD / 16) + d) * 32 + lane] = make_uint4(k[j][0], k[j][1], k[j][2], k[j][3]);
			}
			for (int h = 0; h < heads; h++)
				make_w(inverse + h, gates + h0 + h, k, c.w + ((at + h) * (KD / 4) + d * 4) * 32);
		}
		for (int i = warp; i < c.groups; i += LOCAL_WARPS)
			for (int h = 0; h < heads; h++)
				make_u(inverse + h, v_sh + h * N * v_ld, v_ld, i, c.u + ((at + h) * c.groups + i) * 4 * 32);
		__syncthreads();
	}
	after_previous();
}

/* ---- scan -------------------------------------------------------------------------------------------------------------------------- */

/* In shared memory: of a chunk for the state W, K, exp(G_last - G) and the end of exp(G); of the chunk before for the outputs Q, P and exp(G). */
template <int KD> struct stage {
	uint4 w[KD * N / 8], k[KD * N / 8], q[KD * N / 8], p[P_UNITS * 32];
	float left[N], last[4], since[N];
};
/* Left by a warp of the state for its companion: operands of S^T and of D^T. */
template <int KD> struct handed {
	uint4 s[KD / 16][32], d[4][32];
};
template <int KD> static size_t scan_bytes(int groups, int stages)
{
	return stages * sizeof(struct stage<KD>) + 2 * groups * sizeof(struct handed<KD>);
}

static __device__ __forceinline__ void fetch(void *to, const void *from, int bytes)
{
	for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
		copy16((char *)to + i, (const char *)from + i);
}

/* Copies for the state's chunk i and for the outputs' chunk i - 1. */
template <int KD>
static __device__ __forceinline__ void fetch_stage(const struct chunk_args &c, struct stage<KD> *to, size_t first, int i, int n, int head, int k_head)
{
	size_t chunk = first + i, at = chunk * c.g.w.v_heads + head;

	if (i < n) {
		fetch(to->w, c.w + at * (KD / 4) * 32, sizeof(to->w));
		fetch(to->k, c.k + (chunk * c.g.w.k_heads + k_head) * (KD / 4) * 32, sizeof(to->k));
		fetch(to->left, c.decay + at * 2 * N + N, sizeof(to->left));
		fetch(to->last, c.decay + at * 2 * N + N - 4, sizeof(to->last));
	}
	if (i > 0) {
		fetch(to->q, c.q + ((chunk - 1) * c.g.w.k_heads + k_head) * (KD / 4) * 32, sizeof(to->q));
		fetch(to->p, c.p + (at - c.g.w.v_heads) * P_UNITS * 32, sizeof(to->p));
		fetch(to->since, c.decay + (at - c.g.w.v_heads) * 2 * N, sizeof(to->since));
	}
	copy_commit();
}

/* Four units to registers. Asked for a step before they are used: left to itself the compiler waits for each load where it stands. */
static __device__ __forceinline__ void take(uint4 b[4], uint32_t sh)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		b[i] = load16(sh + i * 512);
}

/* r[token tile] = (state)^T x^T, x = W or Q, whose units of this lane start at x_sh */
template <int KD> static __device__ __forceinline__ void times_state(const uint32_t (*s)[4], uint32_t x_sh, float r[N / 8][4])
{
	uint4 b[2][4];

	take(b[0], x_sh);
#pragma unroll
	for (int d = 0; d < KD / 16; d++) {
		if (d + 1 < KD / 16)
			take(b[(d + 1) & 1], x_sh + (d + 1) * 4 * 512);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			mma_half(r[2 * i], s[d], b[d & 1][i].x, b[d & 1][i].y);
			mma_half(r[2 * i + 1], s[d], b[d & 1][i].z, b[d & 1][i].w);
		}
	}
}

static __device__ __forceinline__ void operand(uint32_t a[4], const float x[4], const float y[4])
{
	a[0] = half_pair(x[0], x[1]);
	a[1] = half_pair(x[2], x[3]);
	a[2] = half_pair(y[0], y[1]);
	a[3] = half_pair(y[2], y[3]);
}

/* This lane's words of U. */
static __device__ __forceinline__ void take_u(const struct chunk_args &c, size_t chunk, int head, int group, uint4 u[4])
{
	const uint4 *from = c.u + ((chunk * c.g.w.v_heads + head) * c.groups + group) * 4 * 32 + (threadIdx.x & 31);

#pragma unroll
	for (int j = 0; j < 4; j++)
		u[j] = __ldcg(from + j * 32);
}

/* One chunk on 16 columns of the state. u: this lane's words of U. */
template <int KD>
static __device__ __forceinline__ void advance(const struct stage<KD> *x, struct handed<KD> *out, float state[KD / 8][4], const uint4 u[4])
{
	int lane = threadIdx.x & 31;
	uint32_t s[KD / 16][4], a[4][4];
	float r[N / 8][4] = {}, decay = x->last[3];
	uint32_t k_sh = shared_address(x->k + lane);
	uint4 b[2][4];

#pragma unroll
	for (int d = 0; d < KD / 16; d++) {
		operand(s[d], state[2 * d], state[2 * d + 1]);
		out->s[d][lane] = make_uint4(s[d][0], s[d][1], s[d][2], s[d][3]);
	}
	times_state<KD>(s, shared_address(x->w + lane), r);
	take(b[0], k_sh);
#pragma unroll
	for (int j = 0; j < 4; j++) {
		const uint32_t word[4] = {u[j].x, u[j].y, u[j].z, u[j].w};
		float2 left[2];

#pragma unroll
		for (int n = 0; n < 4; n++) {
			float2 v = __half22float2(*(const __half2 *)&word[n]);
			float *d = r[2 * j + (n >> 1)] + (n & 1) * 2;

			d[0] = v.x - d[0];
			d[1] = v.y - d[1];
		}
		operand(a[j], r[2 * j], r[2 * j + 1]);
		out->d[j][lane] = make_uint4(a[j][0], a[j][1], a[j][2], a[j][3]);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			float *d = r[2 * j + n];

			left[n] = *(const float2 *)&x->left[(2 * j + n) * 8 + (lane & 3) * 2];
			d[0] *= left[n].x;
			d[1] *= left[n].y;
			d[2] *= left[n].x;
			d[3] *= left[n].y;
		}
		operand(a[j], r[2 * j], r[2 * j + 1]);
	}
#pragma unroll
	for (int d = 0; d < KD / 8; d++)
#pragma unroll
		for (int n = 0; n < 4; n++)
			state[d][n] *= decay;
#pragma unroll
	for (int n = 0; n < KD / 16; n++) {
		int j = n / (KD / 64), d0 = n % (KD / 64) * 4;

		if (n + 1 < KD / 16)
			take(b[(n + 1) & 1], k_sh + (n + 1) * 4 * 512);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			mma_half(state[2 * (d0 + i)], a[j], b[n & 1][i].x, b[n & 1][i].y);
			mma_half(state[2 * (d0 + i) + 1], a[j], b[n & 1][i].z, b[n & 1][i].w);
		}
	}
}

/* O of a chunk on 16 columns; to the rows from `row` on, as halves in the place of the layer's output. */
template <int KD>
static __device__ __forceinline__ void outputs(const struct gdn_args &p, const struct stage<KD> *x, const struct handed<KD> *in, int row, int head,
					       int col)
{
	int lane = threadIdx.x & 31, odd = lane >> 2 & 1;
	uint32_t s[KD / 16][4], a[4][4];
	float r[N / 8][4] = {};
	uint4 b[P_UNITS];

#pragma unroll
	for (int d = 0; d < KD / 16; d++)
		*(uint4 *)s[d] = in->s[d][lane];
	times_state<KD>(s, shared_address(x->q + lane), r);
#pragma unroll
	for (int j = 0; j < 4; j++)
		*(uint4 *)a[j] = in->d[j][lane];
#pragma unroll
	for (int n = 0; n < P_UNITS; n++) {
		int j = (n >= 4) + (n >= 7) + (n >= 9), i = j + n - (j > 0 ? 4 : 0) - (j > 1 ? 3 : 0) - (j > 2 ? 2 : 0);

		b[n] = load16(shared_address(x->p + unit_block(i, j) * 32 + lane));
	}
#pragma unroll
	for (int n = 0; n < N / 8; n++) {
		float2 e = *(const float2 *)&x->since[n * 8 + (lane & 3) * 2];

		r[n][0] *= e.x;
		r[n][1] *= e.y;
		r[n][2] *= e.x;
		r[n][3] *= e.y;
	}
#pragma unroll
	for (int n = 0; n < P_UNITS; n++) { /* from all of the first block of columns on, so that sums of one tile don't follow each other */
		int j = (n >= 4) + (n >= 7) + (n >= 9), i = j + n - (j > 0 ? 4 : 0) - (j > 1 ? 3 : 0) - (j > 2 ? 2 : 0);

		mma_half(r[2 * i], a[j], b[n].x, b[n].y);
		mma_half(r[2 * i + 1], a[j], b[n].z, b[n].w);
	}
	/* a lane has two tokens of one column; it gives one to its neighbour for the other token's next column */
#pragma unroll
	for (int n = 0; n < N / 8; n++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			uint32_t mine = half_pair(r[n][2 * h], r[n][2 * h + 1]), other = __shfl_xor_sync(~0u, mine, 4);
			uint32_t pair = odd ? other >> 16 | (mine & 0xffff0000u) : (mine & 0xffff) | other << 16;
			int to = row + n * 8 + (lane & 3) * 2 + odd, c = col + h * 8 + (lane >> 2 & 6);

			if (c < p.w.v_dim)
				*(uint32_t *)(p.out + (size_t)to * p.ld_out + head * p.w.v_dim + c) = pair;
		}
}

/* The state between memory (k_dim, v_dim) and fragments of its transpose. */
template <int KD, bool STORE> static __device__ __forceinline__ void move_state(float *kept, int v_dim, int col, float state[KD / 8][4])
{
	int lane = threadIdx.x & 31;

#pragma unroll
	for (int d = 0; d < KD / 8; d++)
#pragma unroll
		for (int n = 0; n < 4; n++) {
			int k = d * 8 + (lane & 3) * 2 + (n & 1), c = col + (lane >> 2) + (n >> 1) * 8;

			if (STORE) {
				if (c < v_dim)
					kept[(size_t)k * v_dim + c] = state[d][n];
			} else {
				state[d][n] = c < v_dim ? kept[(size_t)k * v_dim + c] : 0.0f;
			}
		}
}

/* The run's last rows become the tail; the blocks of a sequence share the channels. */
static __device__ void keep_tail(const struct gdn_args &p, const struct td_seq &s)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < TD_CONV_TAIL * p.channels / 2; i += gridDim.x * blockDim.x) {
		int row = i / (p.channels / 2), word = i % (p.channels / 2);

		((uint32_t *)((bf16 *)p.st.tail + ((size_t)s.slot * TD_CONV_TAIL + row) * p.channels))[word] =
			((const uint32_t *)(p.qkvz + (size_t)(s.row0 + s.rows - TD_CONV_TAIL + row) * p.ld))[word];
	}
}

/* grid (v_heads * slices of GROUPS groups of columns, sequences), 2 * GROUPS warps */
template <int KD, int GROUPS> static __global__ void __launch_bounds__(GROUPS * 64) scan_kernel(const struct chunk_args c)
{
	extern __shared__ __align__(16) uint4 scan_sh[];
	struct stage<KD> *stages = (struct stage<KD> *)scan_sh;
	struct handed<KD> *hand = (struct handed<KD> *)(stages + c.stages); /* (2, GROUPS) */
	struct td_seq s;
	const struct gdn_args &p = c.g;
	int warp = threadIdx.x / 32, slices = div_up(c.groups, GROUPS), head = blockIdx.x / slices,
	    carries = warp < GROUPS, group = blockIdx.x % slices * GROUPS + warp % GROUPS, k_head = head / (p.w.v_heads / p.w.k_heads), n;
	float *kept;
	float state[KD / 8][4];
	size_t first;
	uint4 u[4] = {}, next[4] = {};

	after_previous();
	let_next_start(); /* not earlier: the next kernel is the next piece's `local`, which reads what was there before this one began */
	s = part_of(p.seq[blockIdx.y], GDN_BLOCKS);
	n = min(s.rows / N - c.chunk0, c.count);
	if (n <= 0)
		return;
	first = s.row0 / N + c.chunk0;
	s.row0 += c.chunk0 * N;
	s.rows -= c.chunk0 * N;
	if (s.rows == n * N)
		keep_tail(p, s);
	kept = p.st.s + ((size_t)s.slot * p.w.v_heads + head) * KD * p.w.v_dim;
	if (c.stages == 2)
		fetch_stage<KD>(c, stages, first, 0, n, head, k_head);
	if (carries)
		move_state<KD, false>(kept, p.w.v_dim, group * 16, state);
	if (carries && group < c.groups)
		take_u(c, first, head, group, next);
	for (int i = 0; i <= n; i++) {
		struct stage<KD> *x = stages + (c.stages == 2 ? i & 1 : 0);
		struct handed<KD> *mine = hand + (i & 1) * GROUPS + warp % GROUPS, *theirs = hand + (~i & 1) * GROUPS + warp % GROUPS;

		if (c.stages == 1) {
			__syncthreads();
			fetch_stage<KD>(c, x, first, i, n, head, k_head);
		}
		copy_wait<0>();
		__syncthreads();
		if (c.stages == 2 && i < n)
			fetch_stage<KD>(c, stages + (~i & 1), first, i + 1, n, head, k_head);
		if (group >= c.groups)
			continue;
		if (carries && i < n) {
#pragma unroll
			for (int j = 0; j < 4; j++)
				u[j] = next[j];
			take_u(c, first + (i + 1 < n ? i + 1 : i), head, group, next);
			advance<KD>(x, mine, state, u);
		}
		if (!carries && i > 0)
			outputs<KD>(p, x, theirs, s.row0 + (i - 1) * N, head, group * 16);
	}
	if (carries)
		move_state<KD, true>(kept, p.w.v_dim, group * 16, state);
}

/* ---- norm -------------------------------------------------------------------------------------------------------------------------- */

/* grid (rows of a run / 32, v_heads, sequences). Four columns a lane; all rows are loaded before the first is written. */
static __global__ void __launch_bounds__(NORM_WARPS * 32) chunk_norm_kernel(const struct chunk_args c)
{
	const struct gdn_args &p = c.g;
	struct td_seq s;
	int lane = threadIdx.x & 31, head = blockIdx.y, col = lane * 4, there = col < p.w.v_dim, row;
	float4 w = there ? *(const float4 *)(p.w.norm + col) : make_float4(0, 0, 0, 0);
	uint2 o[NORM_ROWS], z[NORM_ROWS];

	let_next_start();
	after_previous();
	s = part_of(p.seq[blockIdx.z], GDN_BLOCKS);
	row = (blockIdx.x * NORM_WARPS + threadIdx.x / 32) * NORM_ROWS;
	if (row >= s.rows)
		return;
	row += s.row0;
#pragma unroll
	for (int i = 0; i < NORM_ROWS; i++) {
		o[i] = z[i] = make_uint2(0, 0);
		if (there) {
			o[i] = *(const uint2 *)(p.out + (size_t)(row + i) * p.ld_out + head * p.w.v_dim + col);
			z[i] = *(const uint2 *)(p.qkvz + (size_t)(row + i) * p.ld + p.channels + head * p.w.v_dim + col);
		}
	}
#pragma unroll
	for (int i = 0; i < NORM_ROWS; i++) {
		float2 a = __half22float2(*(const __half2 *)&o[i].x), b = __half22float2(*(const __half2 *)&o[i].y);
		float scale = rsqrtf(warp_sum(a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y) / p.w.v_dim + p.w.eps);

		if (there)
			*(uint2 *)(p.out + (size_t)(row + i) * p.ld_out + head * p.w.v_dim + col) =
				make_uint2(bf16_pair(a.x * scale * w.x * silu(bf16_lo(z[i].x)), a.y * scale * w.y * silu(bf16_hi(z[i].x))),
					   bf16_pair(b.x * scale * w.z * silu(bf16_lo(z[i].y)), b.y * scale * w.w * silu(bf16_hi(z[i].y))));
	}
}

/* ---- launch ------------------------------------------------------------------------------------------------------------------------ */

template <int KD, int GROUPS> static void scan(struct td_dev *dev, const struct chunk_args &c, int n_seq)
{
	size_t bytes = scan_bytes<KD>(GROUPS, c.stages);

	td__cuda_shared(dev, scan_kernel<KD, GROUPS>, bytes);
	td__cuda_launch(dev, "gdn: scan over chunks", scan_kernel<KD, GROUPS>, dim3(c.g.w.v_heads * div_up(c.groups, GROUPS), n_seq), GROUPS * 64, bytes, c);
}

/*
 * Pieces of a few chunks, for the machine to be full: a piece's `scan` leaves half of it free, and the next piece's `local`, which needs nothing of it, runs
 * there. So `local` waits for the kernel before it at its end, not at its beginning (but for the first one): what it reads was there before the scan
 * before it said that the next may start, and the scan after it then finds that scan's work, too.
 *
 * Blocks of 64 columns read each operand for twice as many columns as those of 32; where shared memory is small, there is room for these alone.
 */
template <int KD> static void run(struct td_dev *dev, struct chunk_args &c, const struct td_batch *b, int rows)
{
	size_t bytes = local_bytes(c);

	c.stages = scan_bytes<KD>(4, 2) <= dev->shared_max ? 2 : 1;
	td__cuda_shared(dev, local_kernel<KD>, bytes);
	for (c.chunk0 = 0; c.chunk0 < rows / N; c.chunk0 += c.count) {
		c.count = rows / N - c.chunk0 < PIECE ? rows / N - c.chunk0 : PIECE;
		td__cuda_launch(dev, "gdn: chunks", local_kernel<KD>, dim3(c.count, c.g.w.k_heads, b->n_seq), LOCAL_THREADS, bytes, c);
		if (c.stages == 2)
			scan<KD, 4>(dev, c, b->n_seq);
		else
			scan<KD, 2>(dev, c, b->n_seq);
	}
	td__cuda_launch(dev, "gdn: norm of chunks", chunk_norm_kernel, dim3(rows / (NORM_WARPS * NORM_ROWS), c.g.w.v_heads, b->n_seq), NORM_WARPS * 32, 0,
			c);
}

/* Scratch memory of a batch of `rows` in this form; 0: these sizes are left to the step form. */
size_t td__cuda_gdn_chunk_bytes(const struct td_dev *dev, const struct gdn_args &p, int rows)
{
	struct chunk_args c;

	c.g = p;
	c.groups = div_up(p.w.v_dim, 16);
	c.together = 1;
	if (p.w.v_dim % 4 || p.w.v_dim > 128 || p.w.v_heads > LOCAL_WARPS * p.w.k_heads || p.ld_out % 4 || (uintptr_t)p.out % 8 || local_bytes(c) > dev->shared_max)
		return 0;
	return td_scratch_gdn(rows, p.w.k_heads, p.w.v_heads, p.w.k_dim, p.w.v_dim);
}

/* The GDN_BLOCKS part of all sequences of the batch; the longest has `rows`. p.o is the scratch memory. */
void td__cuda_gdn_chunk(struct td_dev *dev, const struct gdn_args &p, const struct td_batch *b, int rows)
{
	size_t chunks = (size_t)b->n_rows / N + 1, keys = chunks * p.w.k_heads * (p.w.k_dim / 4) * 32, heads = chunks * p.w.v_heads;
	struct chunk_args c;

	c.g = p;
	c.groups = div_up(p.w.v_dim, 16);
	c.q = (uint4 *)p.o;
	c.k = c.q + keys;
	c.w = c.k + keys;
	c.u = c.w + heads * (p.w.k_dim / 4) * 32;
	c.p = c.u + heads * c.groups * 4 * 32;
	c.decay = (float *)(c.p + heads * P_UNITS * 32);
	c.together = p.w.v_heads / p.w.k_heads > 1 ? 2 : 1;
	if (local_bytes(c) > dev->shared_max)
		c.together = 1;
	if (p.w.k_dim == 128)
		run<128>(dev, c, b, rows);
	else
		run<64>(dev, c, b, rows);
}
