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
 * What a block attends to: of each of its spans every tile below `end` down to `first`, of keys below `limit`. Keys from `fresh` on are rows of this step; a
 * block meets them in the first tile of its walk alone. A drafter's own keys are another matter: one tile, all of this step, as many as rows.
 */
struct span {
	int first, end, fresh, limit, start;
};

/* Where a block is: its place among the spans (span_at), the tile, below 0 when it is through. */
struct walk {
	int place, tile;
};
static __device__ __forceinline__ int own_keys(const struct attend_args &p, const struct walk &w)
{
	return p.draft && w.place == 0;
}

/*
 * MANY: a block has a strand of spans, not a single one. Those of strand i stand in places i, i + strands, ...: so neighbours, which may both have keys of
 * this step, go to different blocks. The last and the first one are neighbours, too, hence the last two change places.
 */
template <bool MANY> static __device__ __forceinline__ int span_at(const struct attend_args &p, int place)
{
	return !MANY || place < p.spans - 2 ? place : 2 * p.spans - 3 - place;
}

/* The last tile of the span in this place, below 0 where it has none. */
template <bool MANY> static __device__ __forceinline__ int last_tile(const struct attend_args &p, const struct span &sp, int place)
{
	int mine = span_at<MANY>(p, place) - p.draft, beyond = sp.end - sp.first - 1 - mine;

	return mine < 0 ? 0 : beyond >= 0 ? sp.first + mine + (p.draft ? beyond / (int)SPANS_DRAFT : beyond / (int)SPANS) * (p.spans - p.draft) : -1;
}

template <bool MANY> static __device__ __forceinline__ void walk_to(const struct attend_args &p, const struct span &sp, struct walk *w, int place)
{
	w->place = place;
	w->tile = last_tile<MANY>(p, sp, place);
}

/* To the next tile: of this span, or the last one of the strand's next span that has any. */
template <bool MANY> static __device__ __forceinline__ void walk_on(const struct attend_args &p, const struct span &sp, struct walk *w)
{
	int place = w->place;

	w->tile -= p.spans - p.draft;
	if (w->tile >= sp.first && !own_keys(p, *w))
		return;
	w->tile = -1;
	while (MANY && w->tile < 0) {
		place += p.strands;
		if (place >= p.spans)
			place = blockIdx.x;
		if (place == sp.start)
			break;
		walk_to<MANY>(p, sp, w, place);
	}
}

/* The whole of a block's walk; it begins where this step's keys are. */
template <bool MANY>
static __device__ __forceinline__ struct walk walk_begin(const struct attend_args &p, const struct td_seq &s, int r1, struct span *sp)
{
	struct reach a = reach_of(p, s, r1 - 1);
	struct walk w;

	sp->first = a.tile;
	sp->end = a.end;
	sp->limit = p.draft ? s.pos0 : s.pos0 + r1;
	sp->fresh = p.from_rows ? s.pos0 : sp->limit;
	sp->start = blockIdx.x;
	for (int t = s.pos0 / TILE; MANY && p.from_rows && t < a.end; t++) {
		int place = span_at<MANY>(p, t % (int)SPANS); /* it is its own inverse */

		if (place % p.strands == (int)blockIdx.x)
			sp->start = place;
	}
	walk_to<MANY>(p, *sp, &w, sp->start);
	if (MANY && w.tile < 0)
		walk_on<MANY>(p, *sp, &w);
	return w;
}

static __device__ __forceinline__ int fresh_of(const struct attend_args &p, const struct span &sp, const struct walk &w)
{
	return own_keys(p, w) ? 0 : sp.fresh;
}
static __device__ __forceinline__ int limit_of(const struct attend_args &p, const struct td_seq &s, const struct span &sp, const struct walk &w)
{
	return own_keys(p, w) ? s.rows : sp.limit;
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
 * Units 2 i and 2 i + 1 are K and V of the i-th tile of the walk; unit u lies in slot u % slots (2 or 4). Pages of the next three tiles are known, and the
 * first one's also where it has nothing but this step's keys: asked for where it is used it held up all of them.
 */
struct feed {
	struct walk at;
	int unit, page[3], new_page;
};

/* The page of the tile that comes `ahead` tiles after this one. */
template <bool MANY>
static __device__ __forceinline__ int page_of(const struct attend_args &p, const struct td_seq &s, const struct span &sp, struct walk w, int ahead)
{
	for (; ahead && w.tile >= 0; ahead--)
		walk_on<MANY>(p, sp, &w);
	return w.tile >= 0 && w.tile * TILE < fresh_of(p, sp, w) ? p.kv.table[(size_t)s.slot * p.kv.max_pages + w.tile] : 0;
}

template <bool MANY>
static __device__ __forceinline__ void feed_begin(const struct attend_args &p, const struct td_seq &s, const struct span &sp, const struct walk &w, struct feed *f)
{
	f->unit = 0;
	f->at = w;
	f->new_page = sp.fresh < sp.limit && !own_keys(p, w) ? p.kv.table[(size_t)s.slot * p.kv.max_pages + w.tile] : 0;
	for (int i = 0; i < 3; i++)
		f->page[i] = page_of<MANY>(p, s, sp, w, i);
}

/* Starts the next unit: what is there before this step, and zeroes beyond the last key. */
template <int D, bool MANY>
static __device__ __forceinline__ void feed_next(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int kv_head, struct feed *f,
						 bf16 *ring)
{
	enum { STRIDE = THREADS / (D / 8) }; /* rows at a time; a multiple of 8, so a thread's piece stays in its place */
	int base = f->at.tile * TILE, value = f->unit & 1, c = threadIdx.x % (D / 8), r0 = threadIdx.x / (D / 8);
	bf16 *sh = ring + (f->unit & (p.slots - 1)) * (TILE * D);
	uint32_t to = shared_address(piece<D>(sh, r0, c));
	const bf16 *old = (const bf16 *)(value ? p.kv.v : p.kv.k) + ((size_t)f->page[0] * p.w.kv_heads + kv_head) * (TILE * D);
	const bf16 *mine = old + r0 * D + c * 8;
	int limit = limit_of(p, s, sp, f->at) - base, n = min(fresh_of(p, sp, f->at) - base, limit);

	if (f->at.tile >= 0) {
		if (!MANY) { /* a single span is short, and more code comes slowly */
#pragma unroll
			for (int j = 0; j < TILE / STRIDE; j++) {
				int r = r0 + j * STRIDE;

				if (r < n || r >= limit)
					copy16_once(shared_address(piece<D>(sh, r, c)), old + (r < n ? r * D + c * 8 : 0), r < n ? 16 : 0);
			}
		} else if (n >= TILE) { /* nearly all tiles of a strand */
#pragma unroll
			for (int r = 0; r < TILE; r += STRIDE)
				copy16_once(to + r * D * 2, mine + r * D);
		} else {
#pragma unroll
			for (int r = 0; r < TILE; r += STRIDE)
				if (r0 + r < n || r0 + r >= limit)
					copy16_once(to + r * D * 2, r0 + r < n ? mine + r * D : (const bf16 *)p.kv.k, r0 + r < n ? 16 : 0);
		}
		if (value) {
			walk_on<MANY>(p, sp, &f->at);
			f->page[0] = f->page[1];
			f->page[1] = f->page[2];
			f->page[2] = page_of<MANY>(p, s, sp, f->at, 2);
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
static __device__ __forceinline__ void fresh_ask(const struct attend_args &p, const struct td_seq &s, const struct span &sp, const struct walk &w, int kv_head,
						 struct new_rows<D> &x)
{
	int fresh = fresh_of(p, sp, w), first = max(w.tile * TILE, fresh), end = min(limit_of(p, s, sp, w), w.tile * TILE + (int)TILE);

#pragma unroll
	for (int i = 0; i < new_rows<D>::EACH; i++) {
		int key = first + threadIdx.x / 32 + i * WARPS;
		const bf16 *row = p.x + (size_t)(s.row0 + min(key, end - 1) - fresh) * p.ldx + p.k_col + kv_head * D;

		x.k[i] = head_load<D>(row, threadIdx.x & 31);
		x.v[i] = head_load<D>(row + p.w.kv_heads * D, threadIdx.x & 31);
	}
}

template <int D>
static __device__ __forceinline__ void fresh_make(const struct attend_args &p, const struct td_seq &s, const struct span &sp, const struct walk &w, int kv_head,
						  const struct new_rows<D> &x, int page, bf16 *k_sh, const float2 *turn_sh, const float *weight_sh)
{
	int lane = threadIdx.x & 31, fresh = fresh_of(p, sp, w), first = max(w.tile * TILE, fresh), end = min(limit_of(p, s, sp, w), w.tile * TILE + (int)TILE);
	float weight[D / 32];

#pragma unroll
	for (int i = 0; i < D / 32; i++)
		weight[i] = weight_sh[lane * (D / 32) + i];
#pragma unroll
	for (int i = 0; i < new_rows<D>::EACH; i++) {
		int key = first + threadIdx.x / 32 + i * WARPS;
		head_words<D> y = norm_turn<D>(p.w, weight, x.k[i], turn_sh + (min(key, end - 1) - fresh) * (p.w.rotary_dim / 2), lane);

		if (key < end) {
			bf16 *at = lane_at<D>(k_sh, key - w.tile * TILE, lane);

			head_store<D>(at, y);
			head_store<D>(at + TILE * D, x.v[i]);
		}
		if (key < end && !p.draft) {
			size_t to = (((size_t)page * p.w.kv_heads + kv_head) * TILE + key - w.tile * TILE) * D + lane * (D / 32);

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
static __device__ __forceinline__ void leave(const struct attend_args &p, const float o[D * MT / WARPS / 8][4], const float l[4], const float max[2], int span,
					     int kv_head, int r0, int r1)
{
	enum { N = D * MT / WARPS / 32 };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, part = warp / MT;
	size_t head = (size_t)blockIdx.z * p.w.kv_heads + kv_head;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = warp % MT * 16 + (lane >> 2) + 8 * half;
		uint4 *to = p.o + (((head * p.spans + span) * (PAIRS / 16) + warp % MT) * (D / 32) + part * N) * 64 + half * 32 + lane;
		float inverse = l[2 * half] > 0 ? fast_inverse(l[2 * half]) : 0;

		if (r0 + row_of(p, m) >= r1)
			continue;
		if (part == 0 && (lane & 3) == 0)
			p.ms[(head * PAIRS + m) * p.spans + span] = make_float2(max[half], l[2 * half]);
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
