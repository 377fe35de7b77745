/*
 * gdn_local.cu: the chunked delta rule (gdn_chunk.cu), first half: all that a chunk of 64 tokens needs and that does not depend on the state.
 *
 * Work: a block of 8 warps per chunk and key head, its value heads two at a time where shared memory allows:
 *
 *	inputs	a warp takes 8 tokens: convolution, silu and norms of q, k and v as halves; a warp per value head the gates and their sums
 *	A, P	16 x 16 blocks on and below the diagonal of K K^T and Q K^T, weighed for each value head
 *	T	the inverse of I + A: four blocks by forward substitution in float32, side by side, then what is below them by products, in two steps
 *	W, U	products with T, 16 dims or columns a warp; with W goes K
 *
 * What must never happen: writing what the kernel before reads, or reading what it writes: all but the first piece begin while the scan before still runs
 * (gdn_chunk.cu, run), and most of their blocks never wait for it.
 */
#include "kernels/cuda/gdn_chunk.cuh"

enum {
	LOCAL_WARPS = GDN_LOCAL_GROUP,
	LOCAL_THREADS = LOCAL_WARPS * 32,
	TURN = N / LOCAL_WARPS, /* tokens of a warp */
	PAD = 8, /* halves after a row in shared memory: the 8 rows of a matrix load then lie in different banks */
	HALF = N / 2,
	A_LD = N + 4,
};

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
	float g[2], total, last, *decay = decays_of(c, at) + 2 * lane;

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
		decay[N + i] = expf(last - g[i]);
		g[i] = decay[i] = expf(g[i]);
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
	int first = t0 + threadIdx.x / 32 * TURN;
	const bf16 *fresh = p.qkvz + (ptrdiff_t)(s.row0 + first - TD_CONV_TAIL) * p.ld + channel; /* blocks have no rows to replay */

#pragma unroll
	for (int j = 0; j < TURN + TD_CONV_TAIL; j++)
		load_words<C / 2>(x->row[j], j < TD_CONV_TAIL ? stream_row(p, s, first + j) + channel : fresh + (ptrdiff_t)j * p.ld);
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
	int group = p.group, warp = threadIdx.x / 32, channel = k_head * KD + (threadIdx.x & 31) * (KD / 32);
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
template <bool MATRICES> static __device__ __forceinline__ void weigh(const float r[2][4], int i, int j, const struct gates *of, float *a_sh, uint4 *p_gl)
{
	int lane = threadIdx.x & 31, row = i * 16 + (lane >> 2), col = j * 16 + (lane & 3) * 2, from = a_sh != NULL;
	float v[2][4], down[2] = {of->sum[row], of->sum[row + 8]}, beta[2] = {of->beta[row], of->beta[row + 8]};
	float2 right[2] = {*(const float2 *)&of->sum[col], *(const float2 *)&of->sum[col + 8]};

#pragma unroll
	for (int n = 0; n < 8; n++) {
		int y = n >> 1 & 1, x = n >> 2;
		float e = fast_exp2(down[y] - (n & 1 ? right[x].y : right[x].x)); /* above the diagonal it may overflow, and is not taken */

		v[x][n & 3] = e * (a_sh ? r[x][n & 3] * beta[y] : r[x][n & 3]);
	}
	if (i == j)
#pragma unroll
		for (int n = 0; n < 8; n++)
			if ((lane & 3) * 2 + (n >> 2) * 8 + (n & 1) > (lane >> 2) + (n >> 1 & 1) * 8 - from)
				v[n >> 2][n & 3] = 0;
	if (a_sh) {
#pragma unroll
		for (int n = 0; n < 4; n++)
			*(float2 *)(a_sh + (row + (n & 1) * 8) * A_LD + col + (n >> 1) * 8) =
				make_float2(v[n >> 1][(n & 1) * 2], v[n >> 1][(n & 1) * 2 + 1]);
	} else {
		p_gl += (MATRICES ? j * 4 + i : unit_block(i, j)) * 32;
		put_unit<MATRICES>(p_gl, half_pair(v[0][0], v[0][1]), half_pair(v[1][0], v[1][1]), half_pair(v[0][2], v[0][3]), half_pair(v[1][2], v[1][3]));
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

/* T11 (which 0) or T22 by a warp: of its 16 x 16 blocks on the diagonal a column a lane, side by side, by forward substitution (all is unrolled, as columns
 * live in registers); then the block below them by products, as its transpose: -((T00^T A10^T) T11^T). Fewer and longer steps would be instructions
 * that come once, and it is fetching these that takes the time. */
static __device__ __forceinline__ void solve(struct inverse *x, const float *beta, int which)
{
	int lane = threadIdx.x & 31, second = lane >> 4, g = lane >> 2, two = (lane & 3) * 2;
	float *a_sh = x->a + which * HALF * (A_LD + 1), *own = a_sh + second * 16 * A_LD + lane, t[16], r[2][4] = {}, y[2][4] = {};
	__half *to = (__half *)x->a + N + which * HALF;
	uint32_t high[4], low[4];

	beta += which * HALF;
#pragma unroll
	for (int i = 0; i < 16; i++) {
		float sum[4] = {i == lane % 16 ? 1.0f : 0.0f, 0, 0, 0};

#pragma unroll
		for (int j = 0; j < i; j += 4) {
			float4 a = *(const float4 *)(a_sh + (second * 16 + i) * A_LD + second * 16 + j);

			sum[0] -= a.x * t[j];
			if (j + 1 < i)
				sum[1] -= a.y * t[j + 1];
			if (j + 2 < i)
				sum[2] -= a.z * t[j + 2];
			if (j + 3 < i)
				sum[3] -= a.w * t[j + 3];
		}
		t[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
	}
	__syncwarp();
#pragma unroll
	for (int i = 0; i < 16; i++) {
		own[i * A_LD] = t[i];
		to[(second * 16 + i) * T_LD + lane] = __float2half(t[i] * beta[lane]);
		if (second)
			a_sh[i * A_LD + lane] = 0;
	}
	__syncwarp();
#pragma unroll
	for (int n = 0; n < 4; n++) {
		const float *from = a_sh + ((n >> 1) * 8 + two) * A_LD + g + (n & 1) * 8;

		split(from[0], from[A_LD], &high[n], &low[n]);
	}
#pragma unroll
	for (int n = 0; n < 2; n++)
		mma_split(r[n], high, low, a_sh + (16 + n * 8 + g) * A_LD + two);
#pragma unroll
	for (int n = 0; n < 4; n++)
		split(r[n >> 1][(n & 1) * 2], r[n >> 1][(n & 1) * 2 + 1], &high[n], &low[n]);
#pragma unroll
	for (int n = 0; n < 2; n++)
		mma_split(y[n], high, low, a_sh + (16 + n * 8 + g) * A_LD + 16 + two);
	__syncwarp();
#pragma unroll
	for (int n = 0; n < 8; n++) {
		int row = 16 + (n >> 2) * 8 + two + (n & 1), col = g + (n >> 1 & 1) * 8;
		float v = -y[n >> 2][n & 3];

		a_sh[row * A_LD + col] = v;
		to[row * T_LD + col] = __float2half(v * beta[col]);
	}
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
template <bool MATRICES>
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
		put_unit<MATRICES>(w_gl + i * 32, half_pair(r[0][0], r[0][1]), half_pair(r[1][0], r[1][1]), half_pair(r[0][2], r[0][3]),
				   half_pair(r[1][2], r[1][3]));
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
size_t td__cuda_gdn_local_bytes(const struct chunk_args &c)
{
	return c.together * (sizeof(struct inverse) + (size_t)N * (c.groups * 16 + PAD) * 2) +
	       (size_t)c.g.group * sizeof(struct gates) + (size_t)2 * N * (c.g.w.k_dim + PAD) * 2;
}

/* grid (chunks of a run, k_heads, sequences) */
template <int KD, bool MATRICES> static __global__ void __launch_bounds__(LOCAL_THREADS, 2) local_kernel(const struct chunk_args c)
{
	extern __shared__ __align__(16) char local_sh[];
	struct td_seq s;
	const struct gdn_args &p = c.g;
	int warp = threadIdx.x / 32, t0 = (c.chunk0 + blockIdx.x) * N, k_head = blockIdx.y, group = p.group;
	int v_ld = c.groups * 16 + PAD;
	struct inverse *inverse = (struct inverse *)local_sh;
	struct gates *gates = (struct gates *)(inverse + c.together);
	__half *q_sh = (__half *)(gates + group), *k_sh = q_sh + N * (KD + PAD), *v_sh = k_sh + N * (KD + PAD);
	size_t chunk, key;
	/* A kernel has not ended before the last of its blocks, and one that waits for the scan before is enough: others make room. */
	int last = blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1;

	let_next_start();
	if (c.chunk0 == 0)
		after_previous();
	s = part_of(p.seq[blockIdx.z], ROWS_BLOCKS);
	if (t0 >= s.rows) {
		if (last)
			after_previous();
		return;
	}
	chunk = first_place(c, s) + blockIdx.x;
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
		if (MATRICES && warp > 1) { /* P above the diagonal */
			int n = warp - 2, j = 1 + (n >= 1) + (n >= 3);

			for (int h = 0; h < heads; h++)
				c.p[((at + h) * P_ROOM + j * 4 + n - j * (j - 1) / 2) * 32 + (threadIdx.x & 31)] = make_uint4(0, 0, 0, 0);
		}
		for (int b = warp; b < 2 * P_UNITS; b += LOCAL_WARPS) {
			int n = b % P_UNITS, i = (n >= 1) + (n >= 3) + (n >= 6), j = n - unit_block(i, 0), of_p = b >= P_UNITS;
			float r[2][4];

			similar<KD>(of_p ? q_sh : k_sh, k_sh, i, j, r);
			for (int h = 0; h < heads; h++)
				weigh<MATRICES>(r, i, j, gates + h0 + h, of_p ? NULL : inverse[h].a, c.p + (at + h) * P_ROOM * 32);
		}
		__syncthreads();
		if (warp < 2 * heads)
			solve(inverse + warp / 2, gates[h0 + warp / 2].beta, warp & 1);
		else if (h0 == 0)
			for (int i = warp - 2 * heads; i < KD / 16 * 4; i += LOCAL_WARPS - 2 * heads) {
				uint32_t r[4];

				load_matrix(r, right(q_sh, KD + PAD, i % 4 * 16, i / 4 * 16));
				put_unit<MATRICES>(c.q + (key * (KD / 4) + i) * 32, r[0], r[1], r[2], r[3]);
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
					put_unit<MATRICES>(c.k + (key * (KD / 4) + j * (KD / 16) + d) * 32, k[j][0], k[j][1], k[j][2], k[j][3]);
			}
			for (int h = 0; h < heads; h++)
				make_w<MATRICES>(inverse + h, gates + h0 + h, k, w_of(c, at + h) + d * 4 * 32);
		}
		for (int i = warp; i < c.groups; i += LOCAL_WARPS)
			for (int h = 0; h < heads; h++)
				make_u(inverse + h, v_sh + h * N * v_ld, v_ld, i, c.u + ((at + h) * c.groups + i) * 4 * 32);
		__syncthreads();
	}
	if (last)
		after_previous();
}

void td__cuda_gdn_local(struct td_dev *dev, const struct chunk_args &c, int n_seq)
{
	void (*kernel)(const struct chunk_args) = c.g.w.k_dim == 128 ? c.matrices ? local_kernel<128, true> : local_kernel<128, false> :
						  c.matrices ? local_kernel<64, true> : local_kernel<64, false>;
	size_t bytes = td__cuda_gdn_local_bytes(c);

	td__cuda_shared(dev, kernel, bytes);
	td__cuda_launch(dev, "gdn: chunks", kernel, dim3(c.count, c.g.w.k_heads, n_seq), LOCAL_THREADS, bytes, c);
}
