/*
 * gdn.cu: the Gated DeltaNet layer in one launch: causal convolution, silu, L2 norms, gates, delta rule, gated norm (qwen35 3.4, 3.8).
 *
 * Work: the columns of a state matrix (k_dim, v_dim) evolve apart from each other, so a block owns 32 columns of one value head of one sequence.
 * Its first warps, the steppers, keep them in registers from the first token to the last: eight columns a warp, 8 lanes (parts) for each two columns,
 * every one with each 8th run of four rows.
 *
 *	before the kernel before this one has ended (p.early):
 *		state -> registers; tail and rows to replay -> shared memory; prepare the latter, step through them, store the state
 *	after it, for each 16 new rows:
 *		rows -> shared memory
 *		prepare (convolution, silu, norms -> shared memory):
 *			steppers: q and k of the first half	| others: values and gates
 *		steppers: step, token by token			| others: q and k of the second half; tail and ring are brought up to date
 *		sums of o; gated norm
 *
 * The norm is over a head, that is over four blocks. Where they can be a cluster they exchange their sums of squares, else the last one to finish does
 * it for all, and with more rows than a block of verification a second kernel.
 *
 * Latency is all there is: 4 MB move in a microsecond, but a chain of loads, norms and 21 tokens lies between input and output. So a token's chain is
 * one dot product, three shuffles and one update; with a stepper on each scheduler what else it does has to pass under its own shuffles. Hence the order
 * in step(): a turn begins with a token's shuffles and ends with the next one's dot product, and what the token before read from the state it left, the
 * decay and the next loads stand between; the sum of o over the parts waits until all tokens are through. Of 280 cycles a token 167 are instructions, 128
 * of them multiply-adds. (Loads at the end of a turn, for the next: 310. Two steppers a scheduler, with 16 parts: a tenth more. A lane's word takes its
 * time in shared memory though others read the same one, so a lane has two columns for each word.)
 *
 * A block needs less than half of a multiprocessor's registers and shared memory and lets the next kernel start at once: the products before and after it
 * run beside it, and what it does early passes under the former. (158 registers a thread, which leave no room for another block: 5 us more a layer.)
 *
 * Replay, plain decoding, verification and prefill below a block of the chunked form (gdn_chunk.cu) are this one code, or with many sequences that of
 * gdn_many.cu (gdn_step.cuh tells what both share), every sum in written-out order, so they agree to the bit, wherever a prompt is cut.
 *
 * Shared inputs: the blocks of a key head all read its q and k channels, old tail and ring, so these are overwritten by the last of them to say that
 * it has read them: that is before the steps, and nobody waits for the answer.
 */
#include "kernels/cuda/gdn_step.cuh"

enum { COLS = GDN_SLICE, OWN = 2, STEPPERS = 4, SHARES = PARTS / 2, KEEPERS = WARPS - STEPPERS, HALF = 8, TURN = 4, MAX_SLICES = 4 };

template <int KD> struct window : inputs<KD, COLS> {
	float q[WINDOW * KD], k[(WINDOW + 1) * KD], v[(WINDOW + 1) * COLS]; /* the line behind the last is read and not used */
	float4 gate[WINDOW + 1]; /* decay, beta, -decay * beta */
	float o[(WINDOW + 1) * COLS * SHARES]; /* of token i in line i + 1 */
	float squares[MAX_SLICES * WINDOW]; /* of a row's o, from each slice of the head, counted by */
	uint64_t inbox;
};

template <int KD, int VD> static __device__ __forceinline__ struct place place_of(const struct gdn_args &p)
{
	struct place at = find_place<KD, VD, COLS>(p);

	at.col = (at.warp * (32 / PARTS) + at.lane / PARTS) * OWN;
	return at;
}

/* Tail and rows to replay: rows 0 .. replay + 2 of the stream. */
template <int KD>
static __device__ __forceinline__ void load_kept(const struct gdn_args &p, const struct td_seq &s, const struct place &at, struct inputs<KD, COLS> &x)
{
	enum { KEPT = inputs<KD, COLS>::KEPT };

#pragma unroll 1
	for (int id = threadIdx.x; id < (s.replay + TD_CONV_TAIL) * KEPT; id += THREADS) {
		int row = id / KEPT, piece = id % KEPT, channel = piece_column<KD, COLS>(p, at, piece);

		if (channel >= 0)
			copy16(&x.raw[row * inputs<KD, COLS>::PIECES + piece], stream_row(p, s, row) + channel);
	}
}

/* Where a thread's pieces of a window's new rows come from and go to, before these rows may be read. */
template <int KD> struct pieces {
	enum { LOADS = (WINDOW * inputs<KD, COLS>::PIECES + THREADS - 1) / THREADS };
	uint32_t to[LOADS];
	int offset[LOADS]; /* -1: none */
};

template <int KD>
static __device__ __forceinline__ void find_pieces(const struct gdn_args &p, const struct place &at, int base, int n, struct inputs<KD, COLS> &x,
						   struct pieces<KD> &mine)
{
	enum { PIECES = inputs<KD, COLS>::PIECES };

#pragma unroll
	for (int i = 0; i < (int)pieces<KD>::LOADS; i++) {
		int id = threadIdx.x + i * THREADS, row = id / PIECES, piece = id % PIECES, column = piece_column<KD, COLS>(p, at, piece);

		mine.offset[i] = column < 0 || row >= n ? -1 : row * p.ld + column;
		mine.to[i] = shared_address(&x.raw[(base + TD_CONV_TAIL + row) * PIECES + piece]);
	}
}

/* This and the next lane's share of a token's o: the lane's first or second column by its parity. */
static __device__ __forceinline__ float share(const float e[OWN], int odd)
{
	return (odd ? e[1] : e[0]) + __shfl_xor_sync(~0u, odd ? e[0] : e[1], 1);
}

/*
 * n tokens on this lane's part of its two columns. k of a token is kept in registers from its dot product to its update; q is read ahead for the turn after
 * its own. Each token leaves this and the next lane's share of o. Halfway all warps meet, as the others prepare the second half.
 */
template <int KD> static __device__ __forceinline__ void step(struct window<KD> &x, const struct place &at, int n, float state[2][KD / PARTS])
{
	enum { RUNS = KD / (4 * PARTS) };
	const float4 *q_sh = (const float4 *)x.q + at.part, *k_sh = (const float4 *)x.k + at.part, *gate_sh = x.gate;
	const float2 *v_sh = (const float2 *)(x.v + at.col);
	int odd = __shfl_sync(~0u, at.part & 1, at.lane), stop = n > HALF ? HALF - 2 : n, t = 0; /* a shuffle, or it would be made anew each time */
	float *o_sh = x.o + (at.col + odd) * SHARES + at.part / 2;
	float4 k[RUNS], q[RUNS] = {}, gate = *gate_sh;
	float2 v = *v_sh;
	float r[OWN], e[OWN];

	load_line<KD>(k, k_sh);
	times<KD, OWN, 2>(r, k, state);
#pragma unroll 1
	for (;; stop = n) {
#pragma unroll 2
		for (; t < stop; t++) {
			float4 next[RUNS];
			float d[OWN];

			k_sh += KD / 4;
			load_line<KD>(next, k_sh);
#pragma unroll
			for (int m = 1; m < PARTS; m <<= 1) {
				r[0] += __shfl_xor_sync(~0u, r[0], m);
				r[1] += __shfl_xor_sync(~0u, r[1], m);
			}
			times<KD, OWN, 1>(e, q, state);
			load_line<KD>(q, q_sh);
			q_sh += KD / 4;
			d[0] = fmaf(gate.z, r[0], gate.y * v.x);
			d[1] = fmaf(gate.z, r[1], gate.y * v.y);
			update<KD, OWN>(state, k, gate.x, d);
#pragma unroll
			for (int j = 0; j < RUNS; j++)
				k[j] = next[j];
			gate = *++gate_sh;
			v = *(v_sh += COLS / 2);
			times<KD, OWN, 2>(r, k, state);
			*o_sh = share(e, odd); /* of the token before */
			o_sh += COLS * SHARES;
		}
		if (stop == n)
			break;
		__syncthreads(); /* run_window's others are there, too */
	}
	times<KD, OWN, 1>(e, q, state);
	*o_sh = share(e, odd);
}

/* Two neighbouring columns of o of a window's row, from their shares. */
template <int KD> static __device__ __forceinline__ float2 sum_shares(const struct window<KD> &x, int row, int col)
{
	const float4 *share = (const float4 *)(x.o + ((row + 1) * COLS + col) * SHARES);
	float4 a = share[0], b = share[1];

	static_assert(SHARES == 4, "a word of four for each column");
	return make_float2((a.x + a.y) + (a.z + a.w), (b.x + b.y) + (b.z + b.w));
}

/*
 * Gated norm of a window's rows, at the end of a call: the blocks of a head are a cluster, and each gives its sums of squares to all. The order of the
 * sums is that of gated_norm, so it makes no difference which of them does it.
 */
template <int KD>
static __device__ __forceinline__ void norm_in_cluster(const struct gdn_args &p, const struct td_seq &s, const struct place &at, int t0, int base, int n,
						       float2 weight, struct window<KD> &x)
{
	int row = threadIdx.x / (COLS / 2), lane = threadIdx.x % (COLS / 2), slice = at.col0 / COLS;
	float2 o = {}, gate;
	uint32_t z;
	float sum;

	static_assert(THREADS == WINDOW * COLS / 2, "a thread has a pair of columns");
	if (row < n)
		o = sum_shares(x, row, lane * 2);
	sum = slice_squares(o);
	if (lane < MAX_SLICES)
		inbox_send(&x.inbox, &x.squares[slice * WINDOW + row], lane, sum);
	z = ((const uint32_t *)(x.raw + (base + TD_CONV_TAIL + row) * window<KD>::PIECES + window<KD>::KEPT))[lane];
	gate = swish_pair(z); /* before the wait */
	inbox_wait(&x.inbox);
	if (row < n) {
		sum = 0;
		for (int i = 0; i < MAX_SLICES; i++)
			sum += x.squares[i * WINDOW + row];
		((uint32_t *)(p.out + (size_t)(s.row0 + t0 - s.replay + row) * p.ld_out + at.head * at.v_dim + at.col0))[lane] =
			gate_pair(o, norm_scale(p, sum), weight, gate);
	}
}

/* `kept`: the first of this lane's rows, in its two columns. */
static __device__ __forceinline__ float2 *state_row(float *kept, const struct place &at, int i)
{
	return (float2 *)(kept + ((i >> 2) * 4 * PARTS + (i & 3)) * at.v_dim);
}

template <int KD> static __device__ __forceinline__ void store_state(float *kept, const struct place &at, const float state[2][KD / PARTS])
{
#pragma unroll
	for (int i = 0; i < KD / PARTS; i++)
		*state_row(kept, at, i) = make_float2(state[0][i], state[1][i]);
}

/* Arrival counters of a sequence: one for each keeper warp of a key head, one for each value head. */
static __device__ __forceinline__ unsigned *counters(const struct gdn_args &p)
{
	return p.counter + blockIdx.z * (KEEPERS * p.w.k_heads + p.w.v_heads);
}

/* How many blocks of the key head read the old tail and ring before: a keeper's answer, in its first lane, as each counts for itself. */
static __device__ __forceinline__ unsigned readers_before(const struct gdn_args &p, const struct place &at)
{
	return at.lane ? 0 : count_reader(counters(p) + at.k_head * KEEPERS + at.warp - STEPPERS, p.group * at.slices);
}

/* Piece of row `row` of what is kept, the tail and then the ring, which begin at row `first` of the raw ones. */
template <int KD>
static __device__ __forceinline__ void keep_piece(const struct gdn_args &p, const struct td_seq &s, const struct place &at, const struct inputs<KD, COLS> &x,
						  int first, int row, int piece)
{
	int channel = piece_column<KD, COLS>(p, at, piece);

	if (channel >= 0)
		*(uint4 *)(kept_row(p, s, row) + channel) = x.raw[(first + row) * inputs<KD, COLS>::PIECES + piece];
}

/* Column of the id-th of a key head's b and a, of which a row has 2 * group. */
static __device__ __forceinline__ int ba_column(const struct gdn_args &p, const struct place &at, int id)
{
	int j = id % (2 * p.group);

	return at.k_head * p.group + j + (j < p.group ? 0 : p.w.v_heads - p.group);
}

/*
 * With the last window: the warps that do not step bring tail and ring up to date from the raw rows. The values' channels are this block's own; q, k, b
 * and a are written by the last block of the key head to have read them.
 */
template <int KD>
static __device__ __forceinline__ void keep(const struct gdn_args &p, const struct td_seq &s, const struct place &at, const struct window<KD> &x, int first,
					    unsigned before)
{
	enum { Q_K = 2 * KD / 8, V = COLS / 8 };
	int i = (at.warp - STEPPERS) * 32 + at.lane, rows = s.commit ? 0 : s.rows, all_ba = rows * 2 * p.group;
	float ba = i < all_ba ? read_ba(p, s.row0 + i / (2 * p.group), ba_column(p, at, i)) : 0; /* comes while the answer does */

#pragma unroll 1
	for (int id = i; id < (TD_CONV_TAIL + rows) * V; id += KEEPERS * 32)
		keep_piece<KD>(p, s, at, x, first, id / V, Q_K + id % V);
	if (__shfl_sync(~0u, before, 0) != p.group * at.slices - 1)
		return;
#pragma unroll 2
	for (int id = i; id < (TD_CONV_TAIL + rows) * Q_K; id += KEEPERS * 32)
		keep_piece<KD>(p, s, at, x, first, id / Q_K, id % Q_K);
#pragma unroll 1
	for (int id = i; id < all_ba; id += KEEPERS * 32) {
		int r = id / (2 * p.group), column = ba_column(p, at, id);

		if (id != i)
			ba = read_ba(p, s.row0 + r, column);
		p.st.ring_ba[((size_t)s.slot * TD_BLOCK_MAX + r) * 2 * p.w.v_heads + column] = ba;
	}
}

/*
 * A window of n tokens, whose rows are there, from row `base` on. The steppers prepare q and k of its first half, the others its values and gates;
 * then the former step, and the latter prepare the second half. A warp comes to prepare() in one place only, so that its instructions are there.
 */
template <int KD>
static __device__ __forceinline__ void run_window(const struct place &at, int base, int n, struct gate_word gate, float rate, float bias,
						  struct window<KD> &x, float state[2][KD / PARTS])
{
	int other = at.warp >= STEPPERS;

	static_assert(STEPPERS == 2 * HALF / TURN && KEEPERS == STEPPERS, "a warp prepares once");
#pragma unroll 1
	for (int half = 0; half < 2; half++) {
		int t = half * HALF + at.warp % STEPPERS / 2 * TURN;

		if (half == other) {
			if (n == 1 && at.warp < 2)
				prepare<1, KD, COLS>(at, x, base, at.warp, at.warp ? x.k : x.q);
			else if (n > 1 && t < n)
				prepare<TURN, KD, COLS>(at, x, base + t, at.warp & 1, (at.warp & 1 ? x.k : x.q) + t * KD);
		} else if (!other) {
			step<KD>(x, at, n, state);
		} else if (at.warp == STEPPERS) {
			make_gates(at, gate, rate, bias, x.gate);
		} else {
#pragma unroll 1
			for (int i = (WARPS - 1 - at.warp) * TURN; i < n; i += (KEEPERS - 1) * TURN)
				prepare_values<TURN, KD, COLS>(at, x, base + i, 0, x.v + i * COLS);
		}
		if (!half || (other && n > HALF))
			__syncthreads();
	}
}

/*
 * grid (slices of a key head's value heads, k_heads, sequences). With p.early all that was kept by steps before, state, tail, ring and td_seq, is read
 * before the kernel before this one has ended, and the rows to replay are gone through: see td__cuda_gdn.
 */
template <int KD, int VD, bool CLUSTER> static __global__ void __launch_bounds__(THREADS, 2) gdn_kernel(const struct gdn_args p)
{
	extern __shared__ __align__(16) char memory[];
	struct window<KD> &x = *(struct window<KD> *)memory;
	struct place at = place_of<KD, VD>(p);
	int steps = at.warp < STEPPERS && at.col0 + at.col < at.v_dim, row = threadIdx.x / (COLS / 2), pair = threadIdx.x % (COLS / 2) * 2;
	float state[2][KD / PARTS] = {}, *kept, rate = 0, bias = 0;
	int t0 = 0, base = 0, n, fresh, end, total;
	unsigned before = 0;
	struct td_seq s;

	let_next_start();
	if (CLUSTER) {
		if (threadIdx.x == 0)
			inbox_make(&x.inbox, sizeof(x.squares));
		cluster_arrive();
	}
	if (!p.early)
		after_previous();
	s = part_of(p.seq[blockIdx.z], p.part);
	load_weights<KD, COLS>(p, at, x);
	if (at.warp == STEPPERS) {
		rate = p.w.a_log[at.head];
		bias = p.w.dt_bias[at.head];
	}
	s.rows = __shfl_sync(~0u, s.rows, 0); /* for the compiler again */
	s.replay = __shfl_sync(~0u, s.replay, 0);
	total = s.replay + s.rows;
	if (total == 0) {
		copy_commit();
		copy_wait<0>();
		after_previous();
		return;
	}
	load_kept<KD>(p, s, at, x);
	kept = p.st.s + (((size_t)s.slot * p.w.v_heads + at.head) * KD + at.part * 4) * at.v_dim + at.col0 + at.col;
#pragma unroll
	for (int i = 0; i < KD / PARTS; i++)
		if (steps) {
			float2 v = __ldcg(state_row(kept, at, i));

			state[0][i] = v.x;
			state[1][i] = v.y;
		}
	if (CLUSTER)
		cluster_wait(); /* the others have started, and made their inboxes */
	rate = -expf(rate);
#pragma unroll 1
	do { /* the last window of a sequence without new rows is empty */
		struct gate_word gate = {};
		float2 weight = {};

		fresh = t0 >= s.replay;
		n = min((fresh ? total : s.replay) - t0, (int)WINDOW);
		end = fresh && t0 + n == total;
		if (base > WINDOW) { /* no room for another window behind the last */
			for (int i = threadIdx.x; i < TD_CONV_TAIL * window<KD>::PIECES; i += THREADS)
				x.raw[i] = x.raw[base * window<KD>::PIECES + i];
			base = 0;
			__syncthreads(); /* new rows may be copied to where these were */
		}
		if (fresh) {
			const bf16 *from = p.qkvz + (ptrdiff_t)(s.row0 + t0 - s.replay) * p.ld;
			struct pieces<KD> mine;

			find_pieces<KD>(p, at, base, n, x, mine);
			after_previous();
#pragma unroll
			for (int i = 0; i < (int)pieces<KD>::LOADS; i++)
				if (mine.offset[i] >= 0)
					copy16_to(mine.to[i], from + mine.offset[i]);
		}
		if (at.warp == STEPPERS)
			gate = load_gate(p, s, at, t0, n);
		copy_commit();
		copy_wait<0>();
		__syncthreads();
		if (at.warp >= STEPPERS && end)
			before = readers_before(p, at); /* an answer that takes long */
		run_window<KD>(at, base, n, gate, rate, bias, x, state);
		if (steps && !fresh && !s.commit)
			store_state<KD>(kept, at, state);
		if (at.warp >= STEPPERS && end)
			keep<KD>(p, s, at, x, base + (s.commit ? n : 0), before);
		if (CLUSTER && fresh)
			weight = __ldg((const float2 *)(p.w.norm + at.col0 + pair));
		__syncthreads();
		if (CLUSTER && fresh)
			norm_in_cluster<KD>(p, s, at, t0, base, n, weight, x);
		else if (fresh && row < n && at.col0 + pair < at.v_dim)
			*(float2 *)(p.o + ((size_t)(s.row0 + t0 - s.replay + row) * p.w.v_heads + at.head) * at.v_dim + at.col0 + pair) =
				sum_shares(x, row, pair);
		t0 += n;
		base += n;
	} while (!end);
	if (steps && s.commit)
		store_state<KD>(kept, at, state);
	if (!CLUSTER && p.norm_here && last_to_arrive(counters(p) + KEEPERS * p.w.k_heads + at.head, at.slices))
#pragma unroll 1
		for (int r = at.warp; r < s.rows; r += WARPS)
			gated_norm(p, s.row0 + r, at.head);
}

/* One warp per row and head. grid (rows of a sequence, v_heads / WARPS, sequences) */
static __global__ void norm_kernel(const struct gdn_args p)
{
	int head = blockIdx.y * WARPS + threadIdx.x / 32;
	struct td_seq s;

	after_previous();
	let_next_start();
	s = part_of(p.seq[blockIdx.z], p.part);
	if (head < p.w.v_heads && (int)blockIdx.x < s.rows)
		gated_norm(p, s.row0 + blockIdx.x, head);
}

static int fits(struct td_dev *dev, const struct gdn_args &p, const struct td_batch *b, struct td_tensor qkvz, struct td_tensor ba,
		struct td_tensor out)
{
	const struct td_gdn *w = &p.w;

	if (dev->error.code || td__cuda_type(dev, qkvz, TD_BF16, "gdn") || td__cuda_type(dev, out, TD_BF16, "gdn"))
		return 0;
	if (w->v_heads % w->k_heads || (w->k_dim != 128 && w->k_dim != 64) || qkvz.cols != p.channels + w->v_heads * w->v_dim ||
	    ba.cols != 2 * w->v_heads || out.cols != w->v_heads * w->v_dim || b->n_seq * (KEEPERS * w->k_heads + w->v_heads) > TD_CUDA_COUNTERS) {
		td__cuda_fail(
			dev, TD_E_UNSUPPORTED,
			"gdn: %d key and %d value heads of %d and %d with rows of %d, %d and %d; the GPU kernels have key dimensions 64 and 128",
			w->k_heads, w->v_heads, w->k_dim, w->v_dim, qkvz.cols, ba.cols, out.cols);
		return 0;
	}
	if (p.ld % 8 || p.ld_out % 2 || p.channels % 8 || w->v_dim % 8 || w->v_dim > 256 || (uintptr_t)p.qkvz % 16) {
		td__cuda_fail(dev, TD_E_UNSUPPORTED, "gdn: rows of %d values, %d channels and value heads of %d don't fit loads of eight values", p.ld,
			      p.channels, w->v_dim);
		return 0;
	}
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *s = &b->seq[i];

		if (s->replay < 0 || s->replay > TD_BLOCK_MAX || (!s->commit && s->rows > TD_BLOCK_MAX)) {
			td__cuda_fail(dev, TD_E_INTERNAL, "gdn: %d rows to replay and %d new ones in a ring of %d", s->replay, s->rows, TD_BLOCK_MAX);
			return 0;
		}
	}
	return b->n_seq > 0;
}

/* Rows of the longest sequence in this part, -1 when none has anything to do there. */
static int longest(const struct td_batch *b, int part)
{
	int rows = -1;

	for (int i = 0; i < b->n_seq; i++) {
		struct td_seq s = part_of(b->seq[i], part);

		if (s.rows + s.replay > 0 && s.rows > rows)
			rows = s.rows;
	}
	return rows;
}

/* The launch, in clusters of the slices of a head where asked to. */
static void launch(struct td_dev *dev, void (*kernel)(struct gdn_args), size_t shared, const struct gdn_args &p, dim3 grid, int cluster)
{
	td__cuda_shared(dev, kernel, shared);
	td__cuda_launch_ranks(dev, "gdn", kernel, grid, THREADS, shared, cluster ? MAX_SLICES : 1, p);
}

/* A narrow share of the GPU (MPS) may have no room for a cluster: then the last block of a head does the norm. */
static int can_cluster(struct td_dev *dev, dim3 grid)
{
	if (!dev->clusters)
		dev->clusters = td__cuda_clusters(dev, gdn_kernel<128, 128, true>, grid, THREADS, sizeof(struct window<128>), MAX_SLICES) > 0 ? 1 : -1;
	return dev->clusters > 0;
}

/* One part of all sequences by the step form. */
static void run_part(struct td_dev *dev, struct gdn_args &p, const struct td_batch *b, int rows)
{
	dim3 grid(p.group * div_up(p.w.v_dim, COLS), p.w.k_heads, b->n_seq);

	p.norm_here = rows <= TD_BLOCK_MAX;
	if (td__cuda_gdn_many(dev, p, b->n_seq))
		return;
	if (p.w.k_dim == 128 && p.w.v_dim == 128 && p.norm_here && can_cluster(dev, grid))
		launch(dev, gdn_kernel<128, 128, true>, sizeof(struct window<128>), p, grid, 1);
	else if (p.w.k_dim == 128 && p.w.v_dim == 128)
		launch(dev, gdn_kernel<128, 128, false>, sizeof(struct window<128>), p, grid, 0);
	else if (p.w.k_dim == 128)
		launch(dev, gdn_kernel<128, 0, false>, sizeof(struct window<128>), p, grid, 0);
	else
		launch(dev, gdn_kernel<64, 0, false>, sizeof(struct window<64>), p, grid, 0);
	if (!p.norm_here)
		td__cuda_launch(dev, "gdn", norm_kernel, dim3(rows, div_up(p.w.v_heads, WARPS), b->n_seq), THREADS, 0, p);
}

/*
 * What a step may read early (p.early): the copy that batch_set enqueues, or the first kernel of a recorded step, which lets nothing start before it
 * has written td_seq, is a full stop: every kernel behind it starts after all that was enqueued before it has ended. Within the step no other operation
 * writes a layer's state, tail and ring. So only its own earlier parts are to be waited for, and its own earlier calls: a prompt's rows come in several where
 * the state between them is kept (dev->recurred).
 */
void td__cuda_gdn(struct td_dev *dev, const struct td_gdn *w, const struct td_gdn_state *st, const struct td_batch *b, struct td_tensor qkvz,
		  struct td_tensor ba, struct td_tensor out)
{
	struct gdn_args p;
	size_t bytes, chunk_bytes;
	int first;

	p.w = *w;
	p.st = *st;
	p.seq = b->dev;
	p.qkvz = (const bf16 *)qkvz.data;
	p.ld = qkvz.ld;
	p.ba = ba.data;
	p.ld_ba = ba.ld;
	p.ba_f32 = ba.dtype == TD_F32;
	p.out = (bf16 *)out.data;
	p.ld_out = out.ld;
	p.group = w->k_heads ? w->v_heads / w->k_heads : 0;
	p.share = 1.0f / w->v_dim;
	p.channels = 2 * w->k_heads * w->k_dim + w->v_heads * w->v_dim;
	p.counter = dev->counters;
	p.engine = dev->groups;
	if (!fits(dev, p, b, qkvz, ba, out))
		return;
	bytes = (size_t)qkvz.rows * w->v_heads * w->v_dim * sizeof(float);
	chunk_bytes = longest(b, ROWS_BLOCKS) > 0 ? td__cuda_gdn_chunk_bytes(dev, p, b->n_rows) : 0;
	p.o = (float *)td__cuda_scratch(dev, bytes > chunk_bytes ? bytes : chunk_bytes);
	if (!p.o)
		return;
	first = st->s != dev->recurred;
	dev->recurred = st->s;
	for (p.part = ROWS_BEFORE; p.part <= ROWS_AFTER; p.part++) {
		int rows = longest(b, p.part);

		p.early = first && p.part == ROWS_BEFORE;
		if (p.part == ROWS_BLOCKS && chunk_bytes)
			td__cuda_gdn_chunk(dev, p, b, rows);
		else if (rows >= 0)
			run_part(dev, p, b, rows);
	}
}
