/*
 * attend_span.cuh: the stages of the kernel for few rows over many keys, attend.cu, which tells how the work is split and what must never happen.
 *
 * Which tiles a block has -> their way into the ring -> this step's keys -> queries -> scores, maxima, probabilities -> what a block leaves.
 *
 * Where time goes (ncu and clocks in the kernel, H200, 16 rows at 2,048): code that runs once comes slowly, and so do loads of many blocks for the same
 * lines. So stages are loops where they can be, whole lines are asked for, and what isn't a key is asked for before the keys: loads wait in one queue.
 */
#ifndef TD_CUDA_ATTEND_SPAN_CUH
#define TD_CUDA_ATTEND_SPAN_CUH

#include "kernels/cuda/attend.cuh"

enum { WARPS = 8, THREADS = WARPS * 32 };

/* ---- which keys ------------------------------------------------------------------------------------------------------------------------ */

/*
 * What a block attends to: tiles tile, tile - step, ... down to `first`, of keys below `limit`. Keys from `fresh` on are rows of this step; they all lie in
 * the first of these tiles.
 */
struct span {
	int tile, first, step, fresh, limit, own;
};
static __device__ __forceinline__ struct span span_of(const struct attend_args &p, const struct td_seq &s, int r1)
{
	struct reach a = reach_of(p, s, r1 - 1);
	int limit = p.draft ? s.pos0 : s.pos0 + r1, mine = (int)blockIdx.x - p.draft, step = p.spans - p.draft, beyond = a.end - a.tile - 1 - mine;
	struct span sp = {-1, a.tile, step, p.from_rows ? s.pos0 : limit, limit, mine < 0};

	if (mine < 0) {
		sp.tile = sp.first = sp.fresh = 0;
		sp.limit = s.rows;
	} else if (beyond >= 0) {
		sp.tile = a.tile + mine + (p.draft ? beyond / (int)SPANS_DRAFT : beyond / (int)SPANS) * step;
	}
	return sp;
}

/* The keys [x, y) that row r sees; those of a drafter's block are numbered from 0. */
static __device__ __forceinline__ int2 sees(const struct attend_args &p, const struct td_seq &s, int r, int own)
{
	int w = p.w.window;

	if (!p.draft)
		return make_int2(0, s.pos0 + r + 1);
	if (!own)
		return make_int2(w ? s.pos0 + r - (w - 1) : 0, s.pos0);
	if (p.w.causal)
		return make_int2(0, r + 1);
	return make_int2(w ? r - (w - 1) : 0, w ? min(s.rows, r + w) : s.rows);
}

/* Shared memory of a block. */
template <int D, int MT> struct places {
	bf16 *q, *ring, *p; /* (16 MT, D), slots of (TILE, D), (16 MT, TILE) */
	float *max; /* (8 / MT, 16 MT) */
	int2 *sees; /* (16 MT): the keys [x, y) of a pair */
	float *scale; /* (16 MT): what a pair's scores are multiplied by */
	float *weight; /* (2, D): of the norms of q and k */
	float *freq; /* (D / 2): of the pairs of dims that turn */
	float2 *turn; /* (rows, rotary_dim / 2) */
};
template <int D> static size_t shared_bytes(int mt, int slots, int rows, int rotary_dim)
{
	return (size_t)mt * 16 * ((D + TILE) * 2 + 12) + (size_t)slots * TILE * D * 2 + WARPS * 16 * 4 + 10 * D + (size_t)rows * rotary_dim / 2 * 8;
}

/* ---- the ring of tiles --------------------------------------------------------------------------------------------------------------- */

/*
 * Units 2 i and 2 i + 1 are K and V of the i-th tile of the span; unit u lies in slot u % slots (2 or 4). Pages of the next three tiles are known, and the
 * first one's also where it has nothing but this step's keys: asked for where it is used it held up all of them.
 */
struct feed {
	int unit, tile, page[3], new_page;
};

static __device__ __forceinline__ int page_of(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int tile)
{
	return tile >= sp.first && tile * TILE < sp.fresh ? p.kv.table[(size_t)s.slot * p.kv.max_pages + tile] : 0;
}

static __device__ __forceinline__ void feed_begin(const struct attend_args &p, const struct td_seq &s, const struct span &sp, struct feed *f)
{
	f->unit = 0;
	f->tile = sp.tile;
	f->new_page = sp.fresh < sp.limit && !sp.own ? p.kv.table[(size_t)s.slot * p.kv.max_pages + sp.tile] : 0;
	for (int i = 0; i < 3; i++)
		f->page[i] = page_of(p, s, sp, sp.tile - i * sp.step);
}

/* Starts the next unit: what is there before this step, and zeroes beyond the last key. */
template <int D>
static __device__ __forceinline__ void feed_next(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int kv_head, struct feed *f,
						 bf16 *ring)
{
	int base = f->tile * TILE, value = f->unit & 1, c = threadIdx.x % (D / 8), r0 = threadIdx.x / (D / 8);
	bf16 *sh = ring + (f->unit & (p.slots - 1)) * (TILE * D);
	const bf16 *old = (const bf16 *)(value ? p.kv.v : p.kv.k) + ((size_t)f->page[0] * p.w.kv_heads + kv_head) * (TILE * D);
	int n = min(sp.fresh, sp.limit) - base, limit = sp.limit - base;

	if (f->tile >= sp.first) {
#pragma unroll
		for (int j = 0; j < D / 32; j++) {
			int r = r0 + j * (THREADS / (D / 8));

			if (r < n || r >= limit)
				copy16(piece<D>(sh, r, c), old + (r < n ? r * D + c * 8 : 0), r < n ? 16 : 0);
		}
		if (value) {
			f->tile -= sp.step;
			f->page[0] = f->page[1];
			f->page[1] = f->page[2];
			f->page[2] = page_of(p, s, sp, f->tile - 2 * sp.step);
		}
	}
	f->unit++;
	copy_commit();
}

/* Until the oldest of the units under way is there. */
static __device__ __forceinline__ void feed_wait(int slots)
{
	if (slots == 2)
		copy_wait<1>();
	else
		copy_wait<3>();
}

/* ---- this step's keys and values ----------------------------------------------------------------------------------------------------------- */

/* A warp takes every eighth of at most 16 rows: asked for early, then made (norm and rotary of k) and put into the first tile and the cache. */
template <int D> struct new_rows {
	enum { EACH = TD_BLOCK_MAX / WARPS };
	head_words<D> k[EACH], v[EACH];
};

template <int D>
static __device__ __forceinline__ void fresh_ask(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int kv_head, struct new_rows<D> &x)
{
	int first = max(sp.tile * TILE, sp.fresh), end = min(sp.limit, sp.tile * TILE + (int)TILE);

#pragma unroll
	for (int i = 0; i < new_rows<D>::EACH; i++) {
		int key = first + threadIdx.x / 32 + i * WARPS;
		const bf16 *row = p.x + (size_t)(s.row0 + min(key, end - 1) - sp.fresh) * p.ldx + p.k_col + kv_head * D;

		x.k[i] = head_load<D>(row, threadIdx.x & 31);
		x.v[i] = head_load<D>(row + p.w.kv_heads * D, threadIdx.x & 31);
	}
}

template <int D>
static __device__ __forceinline__ void fresh_make(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int kv_head, const struct new_rows<D> &x,
						  int page, bf16 *k_sh, const float2 *turn_sh, const float *weight_sh)
{
	int lane = threadIdx.x & 31, first = max(sp.tile * TILE, sp.fresh), end = min(sp.limit, sp.tile * TILE + (int)TILE);
	float weight[D / 32];

#pragma unroll
	for (int i = 0; i < D / 32; i++)
		weight[i] = weight_sh[lane * (D / 32) + i];
#pragma unroll
	for (int i = 0; i < new_rows<D>::EACH; i++) {
		int key = first + threadIdx.x / 32 + i * WARPS;
		head_words<D> y = norm_turn<D>(p.w, weight, x.k[i], turn_sh + (min(key, end - 1) - sp.fresh) * (p.w.rotary_dim / 2), lane);

		if (key < end) {
			bf16 *at = lane_at<D>(k_sh, key - sp.tile * TILE, lane);

			head_store<D>(at, y);
			head_store<D>(at + TILE * D, x.v[i]);
		}
		if (key < end && !p.draft) {
			size_t to = (((size_t)page * p.w.kv_heads + kv_head) * TILE + key - sp.tile * TILE) * D + lane * (D / 32);

			head_store<D>((bf16 *)p.kv.k + to, y);
			head_store<D>((bf16 *)p.kv.v + to, x.v[i]);
		}
	}
}

/* ---- one span ---------------------------------------------------------------------------------------------------------------------- */

/* Eight bf16 and eight weights of them: x times weight. Adds the squares of x to *sum. */
static __device__ __forceinline__ void weighed(float y[8], uint4 x, const float *weight_sh, float *sum)
{
	const uint32_t w[4] = {x.x, x.y, x.z, x.w};
	float4 a = *(const float4 *)weight_sh, b = *(const float4 *)(weight_sh + 4);
	float f[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};

#pragma unroll
	for (int i = 0; i < 8; i++) {
		float v = i & 1 ? bf16_hi(w[i / 2]) : bf16_lo(w[i / 2]);

		*sum = fmaf(v, v, *sum);
		y[i] = v * f[i];
	}
}

static __device__ __forceinline__ uint4 packed(const float y[8])
{
	return make_uint4(bf16_pair(y[0], y[1]), bf16_pair(y[2], y[3]), bf16_pair(y[4], y[5]), bf16_pair(y[6], y[7]));
}

/*
 * The pairs' q times the norm's weights, turned; what the norm divides by is left to the scores (scale_sh). A warp takes eight pairs, four lanes each: all
 * is asked for at once, then made in loops, since code that runs once is slow to come.
 */
template <int D> struct raw_queries {
	enum { AT_ONCE = 256 / D /* pairs of one load of a warp */, LOADS = 8 / AT_ONCE };
	int at[LOADS]; /* from the first pair's; -1: no pair */
	uint4 x[LOADS];
};

/* Where they lie, counted from the group's first. */
template <int D> static __device__ __forceinline__ void queries_find(const struct attend_args &p, int pairs, struct raw_queries<D> &q)
{
#pragma unroll
	for (int i = 0; i < raw_queries<D>::LOADS; i++) {
		int m = threadIdx.x / 32 * 8 + i * raw_queries<D>::AT_ONCE + threadIdx.x % 32 / (D / 8), r = row_of(p, m);

		q.at[i] = m < pairs ? r * p.ldx + (m - r * p.gqa) * (p.w.gated ? 2 * D : D) + (int)threadIdx.x % (D / 8) * 8 : -1;
		make_now(q.at[i]);
	}
}

template <int D> static __device__ __forceinline__ void queries_ask(const bf16 *x, struct raw_queries<D> &q)
{
#pragma unroll
	for (int i = 0; i < raw_queries<D>::LOADS; i++) {
		q.x[i] = make_uint4(0, 0, 0, 0);
		if (q.at[i] >= 0)
			q.x[i] = *(const uint4 *)(x + q.at[i]);
	}
}

template <int D, int MT>
static __device__ __forceinline__ void queries(const struct attend_args &p, int r0, int pairs, const struct raw_queries<D> &q, const struct places<D, MT> &sh)
{
	int lane = threadIdx.x & 31, m = threadIdx.x / 32 * 8 + (lane & 7), c0 = lane >> 3, half = p.w.rotary_dim / 16;
	const float2 *turn = sh.turn + (m < pairs ? (p.draft ? r0 : 0) + row_of(p, m) : 0) * (half * 8);
	float y[8], z[8], sum = 0;

	if (threadIdx.x >= MT * 64)
		return;
#pragma unroll
	for (int i = 0; i < raw_queries<D>::LOADS; i++)
		*(uint4 *)piece<D>(sh.q, m - (lane & 7) + i * raw_queries<D>::AT_ONCE + lane / (D / 8), lane % (D / 8)) = q.x[i];
	__syncwarp();
#pragma unroll 1
	for (int c = c0; c < half; c += 4) {
		uint4 *lo = (uint4 *)piece<D>(sh.q, m, c), *hi = (uint4 *)piece<D>(sh.q, m, c + half);
		const float4 *t = (const float4 *)(turn + c * 8);

		weighed(y, *lo, sh.weight + c * 8, &sum);
		weighed(z, *hi, sh.weight + (c + half) * 8, &sum);
#pragma unroll
		for (int i = 0; i < 8; i += 2) {
			float4 a = t[i / 2];
			float u = y[i], v = y[i + 1];

			y[i] = u * a.x - z[i] * a.y;
			z[i] = z[i] * a.x + u * a.y;
			y[i + 1] = v * a.z - z[i + 1] * a.w;
			z[i + 1] = z[i + 1] * a.z + v * a.w;
		}
		*lo = packed(y);
		*hi = packed(z);
	}
#pragma unroll 2
	for (int c = 2 * half + c0; c < D / 8; c += 4) {
		uint4 *at = (uint4 *)piece<D>(sh.q, m, c);

		weighed(y, *at, sh.weight + c * 8, &sum);
		*at = packed(y);
	}
	sum += __shfl_xor_sync(~0u, sum, 8);
	sum += __shfl_xor_sync(~0u, sum, 16);
	if (c0 == 0)
		sh.scale[m] = p.scale * rsqrtf(sum / D + p.w.eps);
}

/* Masks and scales the scores; the maximum of each of the warp's rows to max_sh. */
template <int N> static __device__ __forceinline__ void mask(float s[N][4], int key, const int2 *sees_sh, const float *scale_sh, float *max_sh, int lane)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int2 sees = sees_sh[(lane >> 2) + 8 * half];
		float m = -INFINITY, scale = scale_sh[(lane >> 2) + 8 * half];

		if (sees.x > key || sees.y < key + N * 8) { /* not all of them */
			sees.x -= key + 2 * (lane & 3);
			sees.y -= key + 2 * (lane & 3);
#pragma unroll
			for (int n = 0; n < N; n++)
#pragma unroll
				for (int i = 0; i < 2; i++)
					if (n * 8 + i < sees.x || n * 8 + i >= sees.y)
						s[n][2 * half + i] = -INFINITY;
		}
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 2 * half; i < 2 * half + 2; i++) {
				s[n][i] *= scale;
				m = fmaxf(m, s[n][i]);
			}
		m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
		m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
		if ((lane & 3) == 0)
			max_sh[(lane >> 2) + 8 * half] = m;
	}
}

/* Scores to probabilities in p_sh. Returns in `keep` what the sums so far are multiplied by. A row with nothing to see yet keeps maximum -inf. */
template <int N, int PARTS>
static __device__ __forceinline__ void soften(float s[N][4], const float *max_sh, int rows, float max[2], float keep[2], bf16 *p_sh, int m0, int c0, int lane)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = (lane >> 2) + 8 * half;
		float m = max[half], base;

#pragma unroll
		for (int i = 0; i < PARTS; i++)
			m = fmaxf(m, max_sh[i * rows + row]);
		base = m == -INFINITY ? 0 : m;
		keep[half] = fast_exp2(max[half] - base);
		max[half] = m;
#pragma unroll
		for (int n = 0; n < N; n++)
			*(uint32_t *)(piece<TILE>(p_sh, m0 + row, c0 + n) + 2 * (lane & 3)) =
				bf16_pair(fast_exp2(s[n][2 * half] - base), fast_exp2(s[n][2 * half + 1] - base));
	}
}

/*
 * The sums of rows [r0, r1) to memory, divided, as halves: eight times finer than what the output is rounded to. A piece of 16 bytes has a lane's eight dims
 * among 32 of one pair; a store of a warp is 512 bytes in a row: (tile of 16 pairs, D / 32, its halves, 32 lanes).
 */
template <int D, int MT>
static __device__ __forceinline__ void leave(const struct attend_args &p, const float o[D * MT / WARPS / 8][4], const float l[4], const float max[2], int kv_head,
					     int r0, int r1)
{
	enum { N = D * MT / WARPS / 32 };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, part = warp / MT;
	size_t head = (size_t)blockIdx.z * p.w.kv_heads + kv_head;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = warp % MT * 16 + (lane >> 2) + 8 * half;
		uint4 *to = p.o + (((head * p.spans + blockIdx.x) * (PAIRS / 16) + warp % MT) * (D / 32) + part * N) * 64 + half * 32 + lane;
		float inverse = l[2 * half] > 0 ? fast_inverse(l[2 * half]) : 0;

		if (r0 + row_of(p, m) >= r1)
			continue;
		if (part == 0 && (lane & 3) == 0)
			p.ms[(head * PAIRS + m) * p.spans + blockIdx.x] = make_float2(max[half], l[2 * half]);
#pragma unroll
		for (int n = 0; n < N; n++) {
			uint32_t v[4];

#pragma unroll
			for (int i = 0; i < 4; i++)
				v[i] = half_pair(o[4 * n + i][2 * half] * inverse, o[4 * n + i][2 * half + 1] * inverse);
			to[n * 64] = make_uint4(v[0], v[1], v[2], v[3]);
		}
	}
}

#endif
