/*
 * attend.cu: attention of a few rows over many keys: verify and decode of the target, the drafter's block.
 *
 * Work: a row's keys are cut into at most SPANS spans of whole tiles (64 keys, a page); how many tiles a span has is a function of the row's position alone
 * (drafter: of the block's). A block takes one span, one kv head and a group of up to 64 (row, query head) pairs that share this kv head: 16 rows at
 * 4 query heads per kv head. So each key is read once for all of them. The grid is as large as the most spans there can be, whatever the context: blocks
 * without a span leave at once, and a recorded launch fits every context.
 *
 *	fetch K and V tiles into a ring -> norm and rotary of q -> for each tile:
 *		the rows' own new keys: norm and rotary in place, to the cache
 *		S = Q K^T, 8 warps = MT tiles of 16 pairs times 8 / MT parts of the keys -> maximum over the parts
 *		P = exp2(S - maximum) through shared memory -> O += P V, parts of the dims; the sum of P is one more column of that product
 *	each block leaves (O, maximum, sum) per pair; the second kernel adds a pair's spans, divides, applies the gate
 *
 * Row invariance: which spans a row has, where its tiles lie and the order of all sums depend on its position alone: on MT, the parts and the ring nothing
 * depends. A tile that a row can't see multiplies its sums by 1 and adds 0. Rows of a group whose spans differ in length are attended one after the other.
 *
 * Drafter: the keys p < pos0 lie in the cache; the block's own, made from its rows, form one more span after all others.
 *
 * Reading ahead: what lies in the cache before this step is fetched before after_previous(). That is safe as long as its writers have ended: they are spans
 * of an earlier step, and between them and here stands at least their own sum, which lets nobody start before it has itself waited for all before it; or
 * append_kernel, which lets the next kernel start only after its writes. td_seq and the page table are written by copies, or by kernels that do likewise.
 *
 * What must never happen: a block that reads a key from the cache which another block of the same launch writes.
 */
#include "kernels/cuda/attend.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, APPEND_WARPS = 4 };

/* ---- new keys to the cache ------------------------------------------------------------------------------------------------------------- */

/* A block takes a row; its warps the heads of k, then of v. */
template <int D> static __global__ void append_kernel(const struct attend_args p, int n_seq)
{
	__shared__ float2 turn_sh[D / 2];
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row = blockIdx.x, i, n = p.w.kv_heads, pos;
	const bf16 *x = p.x + (size_t)row * p.ldx + p.k_col;
	float weight[D / 32];
	struct td_seq s;

	norm_weights<D>(p.w, p.w.k_norm, lane, weight);
	after_previous();
	i = sequence_of(p.seq, n_seq, row);
	if (i < 0)
		return; /* a row of no sequence */
	s = p.seq[i];
	pos = s.pos0 + row - s.row0;
	turns(p.w, pos, turn_sh, threadIdx.x, APPEND_WARPS * 32);
	__syncthreads();
	for (int h = warp; h < 2 * n; h += APPEND_WARPS) {
		head_words<D> v = head_load<D>(x + h * D, lane);
		bf16 *to = (bf16 *)(h < n ? p.kv.k : p.kv.v) + cache_at(p.w, p.kv, s.slot, pos, h % n);

		head_store<D>(to + lane * (D / 32), h < n ? norm_turn<D>(p.w, weight, v, turn_sh, lane) : v);
	}
	__threadfence(); /* the drafter's block reads ahead, perhaps a few kernels later */
	let_next_start();
}

void td__attend_append(struct td_dev *dev, const struct attend_args *p, const struct td_batch *b)
{
	td__cuda_launch(dev, "appending keys",
			p->w.head_dim == 256   ? append_kernel<256>
			: p->w.head_dim == 128 ? append_kernel<128>
					       : append_kernel<64>,
			dim3(b->n_rows), APPEND_WARPS * 32, 0, *p, b->n_seq);
}

/* ---- which keys -------------------------------------------------------------------------------------------------------------------- */

/* The tiles [tile, end) that row r of s needs, cut into n spans of `step`. */
struct reach {
	int tile, end, step, n;
};
static __device__ __forceinline__ struct reach reach_of(const struct attend_args &p, const struct td_seq &s, int r)
{
	struct reach a = {0, (s.pos0 + r) / TILE + 1, 1, 0};
	int most = SPANS;

	if (p.draft) {
		a.tile = p.w.window && s.pos0 >= p.w.window ? (s.pos0 - (p.w.window - 1)) / TILE : 0;
		a.end = div_up(s.pos0, TILE);
		most = SPANS_DRAFT;
	}
	if (a.end > a.tile) {
		a.step = div_up(a.end - a.tile, most);
		a.n = div_up(a.end - a.tile, a.step);
	}
	return a;
}

/* The first row after r whose spans have another length. */
static __device__ __forceinline__ int alike(const struct attend_args &p, const struct td_seq &s, const struct reach &a, int r1)
{
	return p.draft ? r1 : min(r1, a.step * SPANS * TILE - s.pos0);
}

/* What a block attends to in one pass: tiles [tile, end) of keys below `limit`. Those from `fresh` on are rows of this step. */
struct span {
	int tile, end, fresh, limit, own, keep;
};
static __device__ __forceinline__ int span_of(const struct attend_args &p, const struct td_seq &s, int ra, int rb, struct span *sp)
{
	struct reach a = reach_of(p, s, rb - 1);
	int i = blockIdx.x;

	sp->own = p.draft && i == a.n;
	sp->keep = !p.draft && rb == s.rows;
	sp->limit = p.draft ? s.pos0 : s.pos0 + rb;
	sp->fresh = p.from_rows ? s.pos0 : sp->limit;
	sp->tile = a.tile + i * a.step;
	sp->end = min(sp->tile + a.step, a.end);
	if (sp->own) {
		sp->tile = sp->fresh = 0;
		sp->end = 1;
		sp->limit = s.rows;
	}
	return sp->tile < sp->end && (sp->own || i < a.n);
}

/* The next rows [*ra, *rb) with spans of one length, from *rb on; returns whether this block has a span of theirs. */
static __device__ __forceinline__ int next_rows(const struct attend_args &p, const struct td_seq &s, int r1, int *ra, int *rb, struct span *sp)
{
	*ra = *rb;
	*rb = alike(p, s, reach_of(p, s, *ra), r1);
	return span_of(p, s, *ra, *rb, sp);
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

/* ---- the ring of tiles --------------------------------------------------------------------------------------------------------------- */

/* Units 2 i and 2 i + 1 are K and V of the i-th tile of the span; unit u lies in slot u % slots (2 or 4). Pages of the next three tiles are known. */
struct feed {
	int unit, units, page[3];
};

static __device__ __forceinline__ int page_of(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int tile)
{
	return tile < sp.end && tile * TILE < sp.fresh ? p.kv.table[(size_t)s.slot * p.kv.max_pages + tile] : 0;
}

static __device__ __forceinline__ void feed_begin(const struct attend_args &p, const struct td_seq &s, const struct span &sp, struct feed *f)
{
	f->unit = 0;
	f->units = (sp.end - sp.tile) * 2;
	for (int i = 0; i < 3; i++)
		f->page[i] = page_of(p, s, sp, sp.tile + i);
}

/* The part of the next unit that is there before this step, and zeroes beyond the last key. */
template <int D>
static __device__ __forceinline__ void feed_old(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int kv_head, struct feed *f,
						bf16 *ring)
{
	int tile = sp.tile + f->unit / 2, base = tile * TILE, value = f->unit & 1, c = threadIdx.x % (D / 8), r0 = threadIdx.x / (D / 8);
	bf16 *sh = ring + (f->unit & (p.slots - 1)) * (TILE * D);
	const bf16 *old = (const bf16 *)(value ? p.kv.v : p.kv.k) + ((size_t)f->page[0] * p.w.kv_heads + kv_head) * (TILE * D);
	int n = min(sp.fresh, sp.limit) - base, limit = sp.limit - base;

	if (f->unit < f->units) {
#pragma unroll
		for (int j = 0; j < D / 32; j++) {
			int r = r0 + j * (THREADS / (D / 8));

			if (r < n || r >= limit)
				copy16(piece<D>(sh, r, c), old + (r < n ? r * D + c * 8 : 0), r < n ? 16 : 0);
		}
		if (value) {
			f->page[0] = f->page[1];
			f->page[1] = f->page[2];
			f->page[2] = page_of(p, s, sp, tile + 3);
		}
	}
}

/* The part of a unit that is made from this step's rows. */
template <int D>
static __device__ __forceinline__ void feed_new(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int kv_head, int unit, int units,
						bf16 *ring)
{
	int base = (sp.tile + unit / 2) * TILE, value = unit & 1, c = threadIdx.x % (D / 8), r0 = threadIdx.x / (D / 8);
	bf16 *sh = ring + (unit & (p.slots - 1)) * (TILE * D);
	const bf16 *rows = p.x + (size_t)s.row0 * p.ldx + p.k_col + (value ? p.w.kv_heads + kv_head : kv_head) * D + c * 8;

	if (unit >= units || base + TILE <= sp.fresh || base >= sp.limit)
		return;
#pragma unroll 1
	for (int r = r0; r < TILE && base + r < sp.limit; r += THREADS / (D / 8))
		if (base + r >= sp.fresh)
			copy16(piece<D>(sh, r, c), rows + (size_t)(base + r - sp.fresh) * p.ldx);
}

/* Starts the next unit. */
template <int D>
static __device__ __forceinline__ void feed_next(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int kv_head, struct feed *f,
						 bf16 *ring)
{
	feed_new<D>(p, s, sp, kv_head, f->unit, f->units, ring);
	feed_old<D>(p, s, sp, kv_head, f, ring);
	f->unit++;
	copy_commit();
}

/* Until the oldest of the units under way is there; all of them where rows of this step are among the keys, which come last. */
static __device__ __forceinline__ void feed_wait(int slots, int all)
{
	if (all) {
		copy_commit();
		copy_wait<0>();
	} else if (slots == 2) {
		copy_wait<1>();
	} else {
		copy_wait<3>();
	}
}

/* Keys made from rows: norm and rotary in place, and both to the cache. A warp takes a key. */
template <int D>
static __device__ __forceinline__ void renew(const struct attend_args &p, const struct td_seq &s, const struct span &sp, int kv_head, int base, bf16 *k_sh,
					     bf16 *v_sh, const float2 *turn_sh)
{
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, first = max(base, sp.fresh), end = min(sp.limit, base + (int)TILE);
	float weight[D / 32];

	norm_weights<D>(p.w, p.w.k_norm, lane, weight);
#pragma unroll 1
	for (int key = first + warp; key < end; key += WARPS) {
		bf16 *at = lane_at<D>(k_sh, key - base, lane);
		head_words<D> y = norm_turn<D>(p.w, weight, head_get<D>(at), turn_sh + (key - sp.fresh) * (p.w.rotary_dim / 2), lane);
		head_store<D>(at, y);
		if (sp.keep) {
			size_t to = cache_at(p.w, p.kv, s.slot, key, kv_head) + lane * (D / 32);

			head_store<D>((bf16 *)p.kv.k + to, y);
			head_store<D>((bf16 *)p.kv.v + to, head_get<D>(lane_at<D>(v_sh, key - base, lane)));
		}
	}
}

/* ---- one span ---------------------------------------------------------------------------------------------------------------------- */

/*
 * Norm and rotary of the pairs' q; zeroes beyond. A warp takes 2 MT of them: asked for all at once, then made in a loop, since code that runs once is slow
 * to come.
 */
template <int D, int MT>
static __device__ __forceinline__ void queries(const struct attend_args &p, const struct td_seq &s, int r0, int pairs, int kv_head, bf16 *q_sh,
					       const float2 *turn_sh, const float weight[D / 32])
{
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, gqa = p.w.heads / p.w.kv_heads, q_step = p.w.gated ? 2 * D : D, m0 = warp * 2 * MT;
	int r = m0 / gqa, h = m0 % gqa, half = p.w.rotary_dim / 2;
	const bf16 *x = p.x + (size_t)(s.row0 + r0 + r) * p.ldx + (kv_head * gqa + h) * q_step;
	const float2 *turn = turn_sh + (p.draft ? r0 + r : r) * half;
	head_words<D> raw[2 * MT];

#pragma unroll
	for (int i = 0, g = h; i < 2 * MT; i++) {
		raw[i] = {};
		if (m0 + i < pairs)
			raw[i] = head_load<D>(x, lane);
		x += q_step;
		if (++g == gqa) {
			g = 0;
			x += p.ldx - gqa * q_step;
		}
	}
#pragma unroll
	for (int i = 0; i < 2 * MT; i++)
		head_store<D>(lane_at<D>(q_sh, m0 + i, lane), raw[i]);
	__syncthreads(); /* turn_sh; what q_sh holds is the lane's own */
#pragma unroll (MT)
	for (int i = 0; i < 2 * MT; i++) {
		bf16 *at = lane_at<D>(q_sh, m0 + i, lane);

		head_store<D>(at, norm_turn<D>(p.w, weight, head_get<D>(at), m0 + i < pairs ? turn : turn_sh, lane));
		if (++h == gqa) {
			h = 0;
			turn += half;
		}
	}
}

/* Masks and scales the scores; the maximum of each of the warp's rows to max_sh. */
template <int N> static __device__ __forceinline__ void mask(float s[N][4], int key, const int2 *sees_sh, float scale, float *max_sh, int lane)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int2 sees = sees_sh[(lane >> 2) + 8 * half];
		float m = -INFINITY;

		sees.x -= key + 2 * (lane & 3);
		sees.y -= key + 2 * (lane & 3);
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 2 * half; i < 2 * half + 2; i++) {
				int k = n * 8 + (i & 1);

				s[n][i] = k >= sees.x && k < sees.y ? s[n][i] * scale : -INFINITY;
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

/* Shared memory of a block. */
template <int D, int MT> struct places {
	bf16 *q, *ring, *p; /* (16 MT, D), slots of (TILE, D), (16 MT, TILE) */
	float *max; /* (8 / MT, 16 MT) */
	int2 *sees; /* (16 MT): the keys [x, y) of a pair */
	float2 *turn; /* (rows, rotary_dim / 2) */
};
template <int D> static size_t shared_bytes(int mt, int slots, int rows, int rotary_dim)
{
	return (size_t)mt * 16 * (D + TILE) * 2 + (size_t)slots * TILE * D * 2 + WARPS * 16 * 4 + (size_t)mt * 16 * 8 + (size_t)rows * rotary_dim / 2 * 8;
}

/*
 * The sums of rows [ra, rb) to memory, as they lie in the registers: a store of a warp is 512 bytes in a row, and the kernel that adds them reads them so.
 */
template <int D, int MT>
static __device__ __forceinline__ void leave(const struct attend_args &p, const float o[D * MT / WARPS / 8][4], const float l[4], const float max[2], int kv_head,
					     int r0, int ra, int rb)
{
	enum { N = D * MT / WARPS / 8 };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, gqa = p.w.heads / p.w.kv_heads, mt = warp % MT, part = warp / MT, mine[2];
	size_t head = (size_t)blockIdx.z * p.w.kv_heads + kv_head;
	float *to = p.o + ((head * p.spans + blockIdx.x) * (PAIRS / 16) + mt) * (16 * D) + (part * N * 32 + lane) * 4;

	for (int half = 0; half < 2; half++) {
		int m = mt * 16 + (lane >> 2) + 8 * half, r = r0 + m / gqa;

		mine[half] = r >= ra && r < rb;
		if (mine[half] && part == 0 && (lane & 3) == 0)
			p.ms[(head * PAIRS + m) * p.spans + blockIdx.x] = make_float2(max[half], l[2 * half]);
	}
	if (mine[0] && mine[1]) {
#pragma unroll
		for (int n = 0; n < N; n++)
			*(float4 *)(to + n * 128) = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
		return;
	}
#pragma unroll
	for (int n = 0; n < N; n++) {
		if (mine[0])
			*(float2 *)(to + n * 128) = make_float2(o[n][0], o[n][1]);
		if (mine[1])
			*(float2 *)(to + n * 128 + 2) = make_float2(o[n][2], o[n][3]);
	}
}

/* All tiles of a span for pairs that lie from r0 on; the results of rows [ra, rb) go to memory. */
template <int D, int MT>
static __device__ __forceinline__ void attend_span(const struct attend_args &p, const struct td_seq &s, const struct span &sp, struct feed *f, int kv_head,
						   int r0, int ra, int rb, const struct places<D, MT> &sh)
{
	enum { PARTS = WARPS / MT, KEYS = TILE / PARTS, COLS = D / PARTS };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, gqa = p.w.heads / p.w.kv_heads, m0 = warp % MT * 16, part = warp / MT;
	int active = r0 + m0 / gqa < rb;
	float o[1][COLS / 8][4] = {}, l[1][4] = {}, max[2] = {-INFINITY, -INFINITY}, keep[2], sc[1][KEYS / 8][4];

	if (threadIdx.x < MT * 16)
		sh.sees[threadIdx.x] = sees(p, s, r0 + threadIdx.x / gqa, sp.own);
#pragma unroll 1
	for (int i = 0; i < sp.end - sp.tile; i++) {
		int base = (sp.tile + i) * TILE, fresh = base + TILE > sp.fresh && sp.fresh < sp.limit;
		bf16 *k_sh = sh.ring + (2 * i & (p.slots - 1)) * (TILE * D), *v_sh = sh.ring + ((2 * i + 1) & (p.slots - 1)) * (TILE * D);

		feed_wait(p.slots, fresh);
		__syncthreads();
		if (fresh) {
			renew<D>(p, s, sp, kv_head, base, k_sh, v_sh, sh.turn);
			__syncthreads();
		}
		if (active) {
			scores<D, 1, KEYS / 8>(sc, sh.q, m0, k_sh, part * KEYS, lane);
			mask<KEYS / 8>(sc[0], base + part * KEYS, sh.sees + m0, p.scale, sh.max + part * MT * 16 + m0, lane);
		}
		__syncthreads();
		if (active)
			soften<KEYS / 8, PARTS>(sc[0], sh.max + m0, MT * 16, max, keep, sh.p, m0, part * KEYS / 8, lane);
		feed_next<D>(p, s, sp, kv_head, f, sh.ring);
		feed_wait(p.slots, 0);
		__syncthreads();
		if (active) {
#pragma unroll
			for (int k = 0; k < 4; k++) {
				l[0][k] *= keep[k >> 1];
#pragma unroll
				for (int n = 0; n < COLS / 8; n++)
					o[0][n][k] *= keep[k >> 1];
			}
			weigh<D, TILE, 1, COLS / 8>(o, l, sh.p, m0, v_sh, part * COLS / 8, lane);
		}
		__syncthreads();
		feed_next<D>(p, s, sp, kv_head, f, sh.ring);
	}
	leave<D, MT>(p, o[0], l[0], max, kv_head, r0, ra, rb);
}

/* grid (spans, kv_heads, work items of this pass); an item is a sequence and a group of its rows */
template <int D, int MT> static __global__ void __launch_bounds__(THREADS, 2) span_kernel(const struct attend_args p)
{
	extern __shared__ __align__(1024) bf16 attend_sh[];
	struct places<D, MT> sh;
	int item = p.item0 + blockIdx.z, r0 = item % p.groups * p.rows_per_group, kv_head = blockIdx.y, gqa = p.w.heads / p.w.kv_heads;
	int ra, rb, r1, rows, first, there = 0, early = p.draft || p.from_rows;
	float weight[D / 32];
	struct td_seq s;
	struct span sp;
	struct feed f;

	sh.q = attend_sh;
	sh.ring = sh.q + MT * 16 * D;
	sh.p = sh.ring + p.slots * TILE * D;
	sh.max = (float *)(sh.p + MT * 16 * TILE);
	sh.sees = (int2 *)(sh.max + WARPS * 16);
	sh.turn = (float2 *)(sh.sees + MT * 16);
	norm_weights<D>(p.w, p.w.q_norm, threadIdx.x & 31, weight);
	s = part_of(p.seq[item / p.groups], p.part);
	r1 = min(s.rows, r0 + p.rows_per_group);
	rows = p.draft ? s.rows : r1 - r0;
	first = p.draft ? 0 : r0;
	for (ra = rb = r0; !there && rb < r1;)
		there = next_rows(p, s, r1, &ra, &rb, &sp);
	if (there) {
		feed_begin(p, s, sp, &f);
#pragma unroll 1
		for (int i = 0; early && i < p.slots; i++, f.unit++, copy_commit())
			feed_old<D>(p, s, sp, kv_head, &f, sh.ring);
#pragma unroll 1
		for (int r = threadIdx.x / 32; r < rows; r += WARPS)
			turns(p.w, s.pos0 + first + r, sh.turn + r * (p.w.rotary_dim / 2), threadIdx.x & 31, 32);
	}
	after_previous();
	let_next_start(); /* not sooner: see the head */
	if (!there)
		return;
#pragma unroll 1
	for (int i = 0; i < p.slots; i++)
		if (early)
			feed_new<D>(p, s, sp, kv_head, i, f.units, sh.ring);
		else
			feed_next<D>(p, s, sp, kv_head, &f, sh.ring);
	queries<D, MT>(p, s, r0, (r1 - r0) * gqa, kv_head, sh.q, sh.turn, weight);
	for (;;) {
		attend_span<D, MT>(p, s, sp, &f, kv_head, r0, ra, rb, sh);
		for (there = 0; !there && rb < r1;)
			there = next_rows(p, s, r1, &ra, &rb, &sp);
		if (!there)
			return;
		feed_begin(p, s, sp, &f);
#pragma unroll 1
		for (int i = 0; i < p.slots; i++)
			feed_next<D>(p, s, sp, kv_head, &f, sh.ring);
	}
}

/* ---- the sum of a pair's spans --------------------------------------------------------------------------------------------------------- */

enum { EACH = (SPANS + 3) / 4 }; /* spans of a warp */

/* A row's spans: lane l has span l, all lanes know the 33rd. */
struct shares {
	float2 one, more;
};
static __device__ __forceinline__ struct shares shares_load(const float2 *ms, int n, int lane)
{
	struct shares a = {make_float2(-INFINITY, 0), make_float2(-INFINITY, 0)};

	if (lane < n)
		a.one = ms[lane];
	if (n > 32)
		a.more = ms[32];
	return a;
}

/* What each counts, to f_sh, and the sum of all. Zero beyond the row's last span, and for a row of nothing (n 0). */
static __device__ __forceinline__ void shares_weigh(const struct shares &a, int n, int lane, float *f_sh, float *sum_sh)
{
	float max = fmaxf(a.one.x, a.more.x), f, more;

	for (int d = 16; d; d >>= 1)
		max = fmaxf(max, __shfl_xor_sync(~0u, max, d));
	f = lane < n ? fast_exp2(a.one.x - max) : 0;
	more = n > 32 ? fast_exp2(a.more.x - max) : 0;
	f_sh[lane] = f;
	if (lane < 4 * EACH - 32)
		f_sh[32 + lane] = lane ? 0 : more;
	f = warp_sum(f * a.one.y) + more * a.more.y;
	if (lane == 0)
		*sum_sh = f;
}

/*
 * A block has 16 pairs and 16 dims, a warp 8 of these dims and every fourth span; all that a thread needs is asked for at once, and where it lies is known
 * before the wait. The four parts are added in order: an order that hangs on the row's spans alone.
 * grid (tiles of 16 pairs times D / 16, kv_heads, work items of this pass)
 */
template <int D> static __global__ void __launch_bounds__(THREADS, 4) merge_kernel(const struct attend_args p)
{
	__shared__ float f_sh[16][4 * EACH + 1], sum_sh[16];
	__shared__ float4 v_sh[EACH][THREADS], o_sh[WARPS][32]; /* v_sh: by asynchronous copies, since the compiler would ask for registers one by one */
	__shared__ int n_sh[16], row_sh[16], head_sh[16]; /* of each pair: spans (0: no pair), row of the batch, query head */
	int item = p.item0 + blockIdx.z, mt = blockIdx.x / (D / 16), kv_head = blockIdx.y, gqa = p.w.heads / p.w.kv_heads, warp = threadIdx.x / 32;
	int lane = threadIdx.x & 31, part = warp & 3, frag = blockIdx.x % (D / 16) * 2 + warp / 4, n[2], most, col = frag * 8 + 2 * (lane & 3);
	size_t head = (size_t)blockIdx.z * p.w.kv_heads + kv_head;
	const float *from = p.o + (head * p.spans * (PAIRS / 16) + mt) * (16 * D) + (frag * 32 + lane) * 4;
	const float2 *ms = p.ms + (head * PAIRS + mt * 16 + warp * 2) * p.spans;
	uint32_t gate[2] = {};
	struct shares a[2];
	float4 o = {};

	if (threadIdx.x < 16) {
		struct td_seq s = part_of(p.seq[item / p.groups], p.part);
		int r0 = item % p.groups * p.rows_per_group, m = mt * 16 + threadIdx.x, r = r0 + m / gqa;

		n_sh[threadIdx.x] = m / gqa < p.rows_per_group && r < s.rows ? reach_of(p, s, r).n + p.draft : 0;
		row_sh[threadIdx.x] = s.row0 + r;
		head_sh[threadIdx.x] = kv_head * gqa + m % gqa;
	}
	__syncthreads();
	most = n_sh[lane & 15];
	for (int d = 8; d; d >>= 1)
		most = max(most, __shfl_xor_sync(~0u, most, d));
	n[0] = n_sh[warp * 2];
	n[1] = n_sh[warp * 2 + 1];
	after_previous();
	let_next_start(); /* not sooner: see the head */
	if (most == 0)
		return;
#pragma unroll
	for (int i = 0; i < EACH; i++)
		copy16(&v_sh[i][threadIdx.x], from + (size_t)min(i * 4 + part, most - 1) * (PAIRS * D));
	copy_commit();
	a[0] = shares_load(ms, n[0], lane);
	a[1] = shares_load(ms + p.spans, n[1], lane);
	for (int half = 0; half < 2; half++) {
		int row = (lane >> 2) + 8 * half;

		if (p.w.gated && part == 0 && n_sh[row])
			gate[half] = *(const uint32_t *)(p.x + (size_t)row_sh[row] * p.ldx + (2 * head_sh[row] + 1) * D + col);
	}
	shares_weigh(a[0], n[0], lane, f_sh[warp * 2], &sum_sh[warp * 2]);
	shares_weigh(a[1], n[1], lane, f_sh[warp * 2 + 1], &sum_sh[warp * 2 + 1]);
	copy_wait<0>();
	__syncthreads();
#pragma unroll
	for (int i = 0; i < EACH; i++) { /* what no span of the row left may be anything, so it isn't multiplied by 0 */
		float f = f_sh[lane >> 2][i * 4 + part], g = f_sh[(lane >> 2) + 8][i * 4 + part];

		float4 v = v_sh[i][threadIdx.x];

		o.x += f != 0 ? f * v.x : 0;
		o.y += f != 0 ? f * v.y : 0;
		o.z += g != 0 ? g * v.z : 0;
		o.w += g != 0 ? g * v.w : 0;
	}
	o_sh[warp][lane] = o;
	__syncthreads();
	if (part)
		return;
	for (int i = 1; i < 4; i++) {
		float4 other = o_sh[warp + i][lane];

		o.x += other.x;
		o.y += other.y;
		o.z += other.z;
		o.w += other.w;
	}
	for (int half = 0; half < 2; half++) {
		int row = (lane >> 2) + 8 * half;
		float inverse = 1.0f / sum_sh[row], x = (half ? o.z : o.x) * inverse, y = (half ? o.w : o.y) * inverse;

		if (p.w.gated) {
			x *= sigmoid(bf16_lo(gate[half]));
			y *= sigmoid(bf16_hi(gate[half]));
		}
		if (n_sh[row])
			*(uint32_t *)(p.out + (size_t)row_sh[row] * p.ldo + head_sh[row] * D + col) = bf16_pair(x, y);
	}
}

/* ---- host ------------------------------------------------------------------------------------------------------------------------------ */

/* Passes over the work items, as many at once as scratch memory for their partial results allows. */
template <int D, int MT> static void attend(struct td_dev *dev, struct attend_args p, const struct td_batch *b)
{
	int items = b->n_seq * p.groups, gqa = p.w.heads / p.w.kv_heads, turned = p.draft ? TD_BLOCK_MAX : p.rows_per_group;
	int rows = p.rows < p.rows_per_group ? p.rows : p.rows_per_group;
	size_t most = shared_bytes<D>(MT, 4, turned, p.w.rotary_dim), shared;
	static int allowed; /* once per kernel */

	/* Two blocks fit on a large multiprocessor with the short ring: better than a long one where there are more blocks than multiprocessors. */
	p.slots = most > dev->shared_max || (D == 256 && items * p.w.kv_heads * p.spans > dev->sms) ? 2 : 4;
	shared = shared_bytes<D>(MT, p.slots, turned, p.w.rotary_dim);
	if (!allowed)
		td__cuda_shared(dev, span_kernel<D, MT>, dev->shared_max); /* layers differ in what they need */
	allowed = 1;
	for (; p.item0 < items && !dev->error.code; p.item0 += p.step) {
		int n = items - p.item0 < p.step ? items - p.item0 : p.step;

		td__cuda_launch(dev, "attention", span_kernel<D, MT>, dim3(p.spans, p.w.kv_heads, n), THREADS, shared, p);
		td__cuda_launch(dev, "sum of attention", merge_kernel<D>, dim3(div_up(rows * gqa, 16) * (D / 16), p.w.kv_heads, n), THREADS, 0, p);
	}
}

template <int D> static void attend_pairs(struct td_dev *dev, const struct attend_args &p, const struct td_batch *b)
{
	int rows = p.rows < p.rows_per_group ? p.rows : p.rows_per_group;

	if (rows * (p.w.heads / p.w.kv_heads) <= 32)
		attend<D, 2>(dev, p, b);
	else
		attend<D, 4>(dev, p, b);
}

/* Pairs of a group: 64, or 32 where a block's shared memory can't hold their q beside two tiles. */
static int pairs_of(const struct td_dev *dev, const struct td_attn *w, int draft)
{
	int gqa = w->heads / w->kv_heads;
	size_t need = (size_t)PAIRS * (w->head_dim + TILE) * 2 + (size_t)2 * TILE * w->head_dim * 2 + WARPS * 16 * 4 + PAIRS * 8 +
		      (size_t)(draft ? (int)TD_BLOCK_MAX : PAIRS / gqa) * w->rotary_dim / 2 * 8;

	return need > dev->shared_max ? PAIRS / 2 : (int)PAIRS;
}

int td__attend_prepare(struct td_dev *dev, struct attend_args *p, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b,
		       struct td_tensor x, int cols, int draft, const char *what)
{
	int gqa = w->heads / w->kv_heads, dim = w->head_dim, pairs;

	if (dev->error.code || b->n_seq == 0 || td__cuda_type(dev, x, TD_BF16, what))
		return 0;
	pairs = gqa <= PAIRS / 2 ? pairs_of(dev, w, draft) : 0;
	if (x.cols != cols || x.ld % 8 || (uintptr_t)x.data % 16 || w->rotary_dim > dim || w->heads % w->kv_heads || !pairs ||
	    (dim != 64 && dim != 128 && dim != 256) || w->rotary_dim % (dim / 16)) {
		td__cuda_fail(dev, TD_E_UNSUPPORTED, "%s: rows of %d columns (%d apart), head_dim %d, rotary_dim %d, %d heads over %d do not fit", what,
			      x.cols, x.ld, dim, w->rotary_dim, w->heads, w->kv_heads);
		return 0;
	}
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *s = &b->seq[i];

		if (s->pos0 < 0 || s->pos0 + s->rows > kv->max_pages * TD_PAGE || s->row0 < 0 || s->row0 + s->rows > x.rows ||
		    (draft && s->rows > TD_BLOCK_MAX)) {
			td__cuda_fail(dev, TD_E_INTERNAL, "%s: positions %d to %d do not fit %d pages, or rows %d to %d the batch", what, s->pos0,
				      s->pos0 + s->rows, kv->max_pages, s->row0, s->row0 + s->rows);
			return 0;
		}
	}
	p->w = *w;
	p->kv = *kv;
	p->seq = b->dev;
	p->x = (const bf16 *)x.data;
	p->ldx = x.ld;
	p->draft = draft;
	p->rows_per_group = pairs / gqa;
	p->rows = b->max_rows;
	p->groups = div_up(p->rows, p->rows_per_group);
	p->spans = draft ? SPANS_DRAFT + 1 : SPANS;
	p->scale = 1.44269504f / sqrtf((float)dim);
	return 1;
}

void td__attend(struct td_dev *dev, struct attend_args *p, const struct td_batch *b)
{
	size_t pairs = (size_t)p->w.kv_heads * PAIRS * p->spans, per_item = pairs * ((size_t)p->w.head_dim * 4 + 8), step, items;
	char *mem;

	if (p->part != ROWS_ALL) {
		p->rows = 0;
		for (int i = 0; i < b->n_seq; i++) {
			struct td_seq s = part_of(b->seq[i], p->part);

			p->rows = s.rows > p->rows ? s.rows : p->rows;
		}
		p->groups = div_up(p->rows, p->rows_per_group);
	}
	items = (size_t)b->n_seq * p->groups;
	if (items == 0)
		return;
	step = td__cuda_scratch_size(dev) / per_item;
	step = step < 1 ? 1 : step > items ? items : step;
	step = (items - 1) / ((items - 1) / step + 1) + 1; /* passes of about the same size */
	p->step = (int)step;
	mem = (char *)td__cuda_scratch(dev, step * per_item);
	if (!mem)
		return;
	p->o = (float *)mem;
	p->ms = (float2 *)(mem + step * pairs * p->w.head_dim * 4);
	if (p->w.head_dim == 256)
		attend_pairs<256>(dev, *p, b);
	else if (p->w.head_dim == 128)
		attend_pairs<128>(dev, *p, b);
	else
		attend_pairs<64>(dev, *p, b);
}
