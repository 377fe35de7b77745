/*
 * attend.cu: attention of a few rows over many keys: verify and decode of the target, the drafter's block.
 *
 * Work: keys come in tiles of 64, a page. Of the tiles that a row sees each belongs to one of SPANS spans by its number alone (tile modulo SPANS; drafter:
 * counted from the first tile that the block's window needs). A block takes a span, one kv head and a group of up to 64 (row, query head) pairs that
 * share this kv head: 16 rows at 4 query heads per kv head. So each key is read once for all of them. The grid is as large as the most spans there can be,
 * whatever the context: blocks without a tile leave at once, and a recorded launch fits every context.
 *
 * Where many sequences have more spans than the GPU has room for blocks, a block takes a strand of them, one after the other (attend_span.cuh), and all that
 * stands before its first tile, q above all, is done once. Each span is summed for itself and leaves the same bits as in a block of its own.
 *
 *	weights of the norms; K and V tiles into a ring, as far as there is room; cos and sin	| before the kernel before this one has ended
 *	q and this step's own k and v: norm and rotary -> shared memory, new keys to the cache
 *	for each tile, from the last one down:
 *		S = Q K^T, 8 warps = MT tiles of 16 pairs times 8 / MT parts of the keys -> maximum over the parts
 *		P = exp2(S - maximum) through shared memory -> O += P V, parts of the dims
 *	each span leaves (O / sum, maximum, sum) per pair; the second kernel, attend_sum.cu, adds a pair's spans and applies the gate
 *
 * Row invariance: which span a tile belongs to, where tiles lie and the order of all sums depend on a row's position alone: on MT, the parts and the ring
 * nothing depends. A tile that a row can't see multiplies its sums by 1 and adds 0. The last tiles come first since this step's own keys lie there, which are
 * made beside q then; a batch whose keys are made here has at most TD_BLOCK_MAX rows a sequence, so one block has at most one tile of them.
 *
 * Drafter: the keys p < pos0 lie in the cache; the block's own, made from its rows, are span 0, before all others.
 *
 * Reading ahead: what lies in the cache before this step is fetched before after_previous(). The copy that batch_set enqueues, or the first kernel of a recorded
 * step, is a full stop (gdn.cu): every kernel behind it starts after all that earlier steps enqueued has ended. Within a step append_kernel alone writes what
 * is read early, and lets the next kernel start only after its writes.
 *
 * What must never happen: a block that reads a key from the cache which another block of the same launch writes.
 */
#include "kernels/cuda/attend_span.cuh"

enum { APPEND_WARPS = 4 };

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
	turns(p.w.inv_freq, p.w.rotary_dim / 2, pos, turn_sh, threadIdx.x, APPEND_WARPS * 32);
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

/* All tiles of a walk for the pairs of rows [r0, r1). Units of the ring one by one: scores with K, sums with V. */
template <int D, int MT, bool MANY>
static __device__ __forceinline__ void attend_walk(const struct attend_args &p, const struct td_seq &s, const struct span &sp, struct walk w, struct feed *f,
						   int kv_head, int r0, int r1, const struct places<D, MT> &sh)
{
	enum { PARTS = WARPS / MT, KEYS = TILE / PARTS, COLS = D / PARTS };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, m0 = warp % MT * 16, part = warp / MT;
	int active = r0 + row_of(p, m0) < r1;
	float o[1][COLS / 8][4] = {}, l[1][4] = {}, max[2] = {-INFINITY, -INFINITY}, keep[2], sc[1][KEYS / 8][4];

#pragma unroll 1
	for (int u = 0;; u++) {
		bf16 *sh_u = sh.ring + (u & (p.slots - 1)) * (TILE * D);

		feed_wait(p.slots);
		__syncthreads();
		if (!(u & 1)) {
			if (active) {
				scores<D, 1, KEYS / 8>(sc, sh.q, m0, sh_u, part * KEYS, lane);
				mask<KEYS / 8>(sc[0], w.tile * TILE + part * KEYS, sh.sees + m0, sh.scale + m0, sh.max + part * MT * 16 + m0, lane);
			}
			__syncthreads();
			if (MANY) /* two slots: the next keys may come as soon as these are read */
				feed_next<D, MANY>(p, s, sp, kv_head, f, sh.ring);
			if (active)
				soften<KEYS / 8, PARTS>(sc[0], sh.max + m0, MT * 16, max, keep, sh.p, m0, part * KEYS / 8, lane);
		} else {
			int place = w.place;

			if (active) {
#pragma unroll
				for (int k = 0; k < 4; k++) {
					l[0][k] *= keep[k >> 1];
#pragma unroll
					for (int n = 0; n < COLS / 8; n++)
						o[0][n][k] *= keep[k >> 1];
				}
				weigh<D, TILE, 1, COLS / 8>(o, l, sh.p, m0, sh_u, part * COLS / 8, lane);
			}
			walk_on<MANY>(p, sp, &w);
			if (!MANY && w.tile < 0)
				break; /* what it leaves is left below: within the loop it costs this form time */
			if (MANY && (w.tile < 0 || w.place != place)) { /* this span is done */
				leave<D, MT>(p, o[0], l[0], max, span_at<MANY>(p, place), kv_head, r0, r1);
				if (w.tile < 0)
					return;
#pragma unroll
				for (int k = 0; k < 4; k++) {
					l[0][k] = 0;
					max[k >> 1] = -INFINITY;
#pragma unroll
					for (int n = 0; n < COLS / 8; n++)
						o[0][n][k] = 0;
				}
				if (p.draft && place == 0 && threadIdx.x < MT * 16)
					sh.sees[threadIdx.x] = sees(p, s, r0 + row_of(p, threadIdx.x), 0);
			}
			__syncthreads();
		}
		if (!MANY || (u & 1))
			feed_next<D, MANY>(p, s, sp, kv_head, f, sh.ring);
	}
	leave<D, MT>(p, o[0], l[0], max, span_at<MANY>(p, w.place), kv_head, r0, r1);
}

/* grid (strands, kv_heads, work items of this pass); an item is a sequence and a group of its rows */
template <int D, int MT, bool MANY> static __global__ void __launch_bounds__(THREADS, 2) span_kernel(const struct attend_args p)
{
	extern __shared__ __align__(1024) bf16 attend_sh[];
	struct places<D, MT> sh;
	int item = p.item0 + blockIdx.z, r0 = item % p.groups * p.rows_per_group, kv_head = blockIdx.y;
	int r1, first, last, early = p.draft || p.from_rows, fresh, half = p.w.rotary_dim / 2;
	float freq = (int)threadIdx.x < half ? p.w.inv_freq[threadIdx.x] : 0, weight[2] = {};
	const bf16 *x;
	struct raw_queries<D> q;
	struct new_rows<D> mine;
	struct td_seq s;
	struct span sp;
	struct walk w;
	struct feed f;

	let_next_start();
	if ((int)threadIdx.x < D) { /* asked for before the keys, which would stand before it in the queue */
		weight[0] = p.w.q_norm[threadIdx.x];
		weight[1] = p.w.k_norm[threadIdx.x];
	}
	sh.q = attend_sh;
	sh.ring = sh.q + MT * 16 * D;
	sh.p = sh.ring + p.slots * TILE * D;
	sh.max = (float *)(sh.p + MT * 16 * TILE);
	sh.sees = (int2 *)(sh.max + WARPS * 16);
	sh.scale = (float *)(sh.sees + MT * 16);
	sh.weight = sh.scale + MT * 16;
	sh.freq = sh.weight + 2 * D;
	sh.turn = (float2 *)(sh.freq + D / 2);
	s = part_of(p.seq[item / p.groups], p.part);
	r1 = min(s.rows, r0 + p.rows_per_group);
	w = walk_begin<MANY>(p, s, r1, &sp);
	if (r0 >= r1 || w.tile < 0) {
		after_previous();
		return;
	}
	feed_begin<MANY>(p, s, sp, w, &f);
	if ((int)threadIdx.x < half)
		sh.freq[threadIdx.x] = freq;
	if ((int)threadIdx.x < D) {
		sh.weight[threadIdx.x] = (p.w.zero_centred ? 1.0f : 0.0f) + weight[0];
		sh.weight[D + threadIdx.x] = (p.w.zero_centred ? 1.0f : 0.0f) + weight[1];
	}
	if (threadIdx.x < MT * 16)
		sh.sees[threadIdx.x] = sees(p, s, r0 + row_of(p, threadIdx.x), own_keys(p, w));
	__syncthreads();
	first = p.draft ? 0 : r0;
	last = p.draft ? s.rows : r1;
#pragma unroll 1
	for (int r = first + threadIdx.x / 32; r < last; r += WARPS) /* meanwhile the pages' numbers come */
		turns(sh.freq, half, s.pos0 + r, sh.turn + (r - first) * half, threadIdx.x & 31, 32);
#pragma unroll 1
	for (int i = 0; early && i < p.slots; i++)
		feed_next<D, MANY>(p, s, sp, kv_head, &f, sh.ring);
	queries_find<D>(p, (r1 - r0) * p.gqa, q);
	x = p.x + (size_t)(s.row0 + r0) * p.ldx + kv_head * p.gqa * (p.w.gated ? 2 * D : D);
	make_now(x);
	__syncthreads();
	after_previous();
	queries_ask<D>(x, q);
	fresh = fresh_of(p, sp, w) < limit_of(p, s, sp, w) && (w.tile + 1) * TILE > fresh_of(p, sp, w);
	if (fresh)
		fresh_ask<D>(p, s, sp, w, kv_head, mine);
#pragma unroll 1
	for (int i = 0; !early && i < p.slots; i++)
		feed_next<D, MANY>(p, s, sp, kv_head, &f, sh.ring);
	queries<D, MT>(p, r0, (r1 - r0) * p.gqa, q, sh);
	if (fresh)
		fresh_make<D>(p, s, sp, w, kv_head, mine, f.new_page, sh.ring, sh.turn, sh.weight + D);
	attend_walk<D, MT, MANY>(p, s, sp, w, &f, kv_head, r0, r1, sh);
}

/* ---- host ------------------------------------------------------------------------------------------------------------------------------ */

/*
 * Into how many strands the spans of a kv head go, where there are `heads` of these and room for `room` blocks at a time: the least time, if each span has
 * one tile and a block's beginning takes as long as one and a half. At least 3, so that neighbours are apart.
 */
static int strands_for(int heads, int spans, int room)
{
	int best = spans, least = 0;

	for (int n = spans; n >= 3; n--) {
		int time = div_up(heads * n, room) * (2 * div_up(spans, n) + 3);

		if (n != spans - 2 && (!least || time < least)) { /* with spans - 2 the first and the last one would be together (span_at) */
			best = n;
			least = time;
		}
	}
	return best;
}

/* Passes over the work items, as many at once as scratch memory for their partial results allows. */
template <int D, int MT> static void attend(struct td_dev *dev, struct attend_args p, const struct td_batch *b)
{
	int items = b->n_seq * p.groups, turned = p.draft ? TD_BLOCK_MAX : p.rows_per_group;
	int rows = p.rows < p.rows_per_group ? p.rows : p.rows_per_group;
	size_t most = shared_bytes<D>(MT, 4, turned, p.w.rotary_dim), shared;
	static int allowed; /* bit by bit: once per kernel */
	int many;

	/* The long ring where a block has a multiprocessor for itself; with the short one it leaves room for others, of its own launch as well. */
	p.slots = most > dev->shared_max || items * p.w.kv_heads * p.spans > dev->sms ? 2 : 4;
	shared = shared_bytes<D>(MT, p.slots, turned, p.w.rotary_dim);
	p.strands = p.slots == 4 ? p.spans : strands_for(items * p.w.kv_heads, p.spans, 2 * dev->sms);
	many = p.strands < p.spans;
	if (!(allowed >> many & 1))
		td__cuda_shared(dev, many ? span_kernel<D, MT, true> : span_kernel<D, MT, false>, dev->shared_max); /* layers differ in what they need */
	allowed |= 1 << many;
	for (; p.item0 < items && !dev->error.code; p.item0 += p.step) {
		int n = items - p.item0 < p.step ? items - p.item0 : p.step;

		td__cuda_launch(dev, "attention", many ? span_kernel<D, MT, true> : span_kernel<D, MT, false>, dim3(p.strands, p.w.kv_heads, n), THREADS,
				shared, p);
		td__attend_sum(dev, &p, rows, n);
	}
}

template <int D> static void attend_pairs(struct td_dev *dev, const struct attend_args &p, const struct td_batch *b)
{
	int rows = p.rows < p.rows_per_group ? p.rows : p.rows_per_group;

	if (rows * p.gqa <= 32)
		attend<D, 2>(dev, p, b);
	else
		attend<D, 4>(dev, p, b);
}

/* Pairs of a group: 64, or 32 where a block's shared memory can't hold their q beside two tiles. */
static int pairs_of(const struct td_dev *dev, const struct td_attn *w, int draft)
{
	int gqa = w->heads / w->kv_heads;
	size_t need = (size_t)PAIRS * ((w->head_dim + TILE) * 2 + 12) + (size_t)2 * TILE * w->head_dim * 2 + WARPS * 16 * 4 + (size_t)w->head_dim * 10 +
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
	    (dim != 64 && dim != 128 && dim != 256) || w->rotary_dim % 16) {
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
	p->gqa = gqa;
	p->gqa_inverse = div_up(1 << 16, gqa);
	p->scale = 1.44269504f / sqrtf((float)dim);
	return 1;
}

void td__attend(struct td_dev *dev, struct attend_args *p, const struct td_batch *b)
{
	size_t pairs = (size_t)p->w.kv_heads * PAIRS * p->spans, per_item = pairs * ((size_t)p->w.head_dim * 2 + 8), step, items;
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
	p->o = (uint4 *)mem;
	p->ms = (float2 *)(mem + step * pairs * p->w.head_dim * 2);
	if (p->w.head_dim == 256)
		attend_pairs<256>(dev, *p, b);
	else if (p->w.head_dim == 128)
		attend_pairs<128>(dev, *p, b);
	else
		attend<64, 4>(dev, *p, b); /* with fewer pairs a warp would have half a piece of the dims */
}
