/*
 * gdn.cu: the Gated DeltaNet layer in one launch: causal convolution, silu, L2 norms, gates, delta rule, gated norm (qwen35 3.4, 3.8).
 *
 * Work: the columns of a state matrix (k_dim, v_dim) evolve apart from each other, so a block owns 32 columns of one value head of one sequence.
 * Its first warps, the steppers, keep them in registers from the first token to the last: four columns a warp, 16 lanes (parts) for each two columns,
 * every one with each 16th run of four rows.
 *
 *	before the kernel before this one has ended (p.early):
 *		state -> registers; tail and rows to replay -> shared memory; prepare the latter, step through them
 *	after it, for each 16 new rows:
 *		rows -> shared memory; the replayed state is stored
 *		prepare: a warp takes a token: convolution, silu, norms -> shared memory
 *		step, token by token without a barrier | meanwhile the other warps bring tail and ring up to date
 *		sums of o; gated norm
 *
 * The norm is over a head, that is over four blocks. Where they can be a cluster they exchange their sums of squares, else the last one to finish does
 * it for all, and with more rows than a block of verification a second kernel.
 *
 * Latency is all there is: 4 MB move in a microsecond, but a chain of loads, norms and 21 tokens lies between input and output. So a token's chain is
 * one dot product, four shuffles and one update. What is read after the write comes from the old state, beside the chain: S' = a S + k d, so
 * S'q = a Sq + d (k.q); and its sum over the parts waits until all tokens are through. A token costs a scheduler 128 multiply-adds and about 70 other
 * instructions, and the reads of k and q as many cycles of shared memory: a lane's word takes its time there though others read the same one, so a
 * lane has two columns for each word. (With one column, 8 parts: 350 cycles a token measured.) Two steppers share a scheduler, so that one's shuffles
 * pass under the other's sums; the compiler would not do that within one warp.
 *
 * Replay, plain decoding, verification and prefill below a block of the chunked form (gdn_chunk.cu) are this one code, every sum in written-out
 * order, so they agree to the bit, wherever a prompt is cut.
 *
 * Shared inputs: the blocks of a key head all read its q and k channels, old tail and ring, so these are overwritten by the last of them to say that
 * it has read them: that is before the steps, and nobody waits for the answer.
 */
#include "kernels/cuda/gdn.cuh"

enum { COLS = GDN_SLICE, WARPS = 12, THREADS = WARPS * 32, STEPPERS = 8, PARTS = 16, SHARES = PARTS / 2, KEEPERS = WARPS - STEPPERS };
enum { WINDOW = 16, RING = 24, MAX_SLICES = 4 };

/*
 * A block's shared memory: raw inputs, a row of the stream (stream_row) at its number modulo RING, [q | k | v of the slice | z of the slice] in pieces of
 * eight channels, of which tail and ring have the first KEPT; a window's tokens, prepared; what they leave of o.
 */
template <int KD> struct window {
	enum { KEPT = (2 * KD + COLS) / 8, PIECES = KEPT + COLS / 8 };
	uint4 raw[RING * PIECES];
	float k[WINDOW * KD], q[WINDOW * KD], v[WINDOW * COLS];
	float2 gate[WINDOW]; /* decay, beta */
	float kq[WINDOW], d[WINDOW * COLS];
	float o[WINDOW * COLS * SHARES];
	float4 taps[2 * KD + COLS]; /* convolution weights, [q, k][channel of a lane][lane], then v */
	float norm[COLS]; /* weights of the gated norm */
	float squares[MAX_SLICES * WINDOW]; /* of a row's o, from each slice of the head, counted by */
	uint64_t inbox;
};

/* Where a thread's work lies. Value heads of VD columns, or of any number where VD is 0. */
struct place {
	int lane, warp, head, k_head, col0, channel; /* channel: of the slice's first column among the channels of the convolution */
	int part, col; /* of a stepper, in the slice: it has two columns */
	int v_dim, slices;
};

template <int KD, int VD> static __device__ __forceinline__ struct place find_place(const struct gdn_args &p)
{
	struct place at;

	at.v_dim = VD ? VD : p.w.v_dim;
	at.slices = div_up(at.v_dim, COLS);
	at.lane = threadIdx.x & 31;
	at.warp = __shfl_sync(~0u, threadIdx.x / 32, 0); /* so the compiler knows that a warp's lanes stay together */
	at.k_head = blockIdx.y;
	at.head = at.k_head * p.group + blockIdx.x / at.slices;
	at.col0 = blockIdx.x % at.slices * COLS;
	at.channel = 2 * p.w.k_heads * KD + at.head * at.v_dim + at.col0;
	at.part = at.lane % PARTS;
	at.col = (at.warp * (32 / PARTS) + at.lane / PARTS) * 2;
	return at;
}

template <int KD> static __device__ __forceinline__ void load_weights(const struct gdn_args &p, const struct place &at, struct window<KD> &x)
{
	enum { N = KD / 32 };
	const float4 *w = (const float4 *)p.w.conv;

	if ((int)threadIdx.x < COLS)
		x.norm[threadIdx.x] = at.col0 + (int)threadIdx.x < at.v_dim ? p.w.norm[at.col0 + threadIdx.x] : 0.0f;
	for (int i = threadIdx.x; i < 2 * KD + COLS; i += THREADS) {
		int lane = i & 31, c = i / 32 % N, col = at.col0 + lane < at.v_dim ? lane : 0;

		x.taps[i] = w[i >= 2 * KD ? at.channel + col : ((i / KD) * p.w.k_heads + at.k_head) * KD + lane * N + c];
	}
}

/* Column of a piece of a row of qkvz, or -1 where the slice is narrower. */
template <int KD> static __device__ __forceinline__ int piece_column(const struct gdn_args &p, const struct place &at, int piece)
{
	int i = piece % window<KD>::KEPT * 8 - (piece < window<KD>::KEPT ? 2 * KD : 0);

	if (i < 0)
		return (piece * 8 < KD ? at.k_head : p.w.k_heads + at.k_head - 1) * KD + piece * 8;
	if (at.col0 + i >= at.v_dim)
		return -1;
	return i + (piece < window<KD>::KEPT ? at.channel : p.channels + at.head * at.v_dim + at.col0);
}

/* A thread's pieces of up to LOADS * THREADS / PIECES rows: number of the row, and how far from the first. */
template <int KD> struct pieces {
	enum { LOADS = (WINDOW * window<KD>::PIECES + THREADS - 1) / THREADS };
	int row[LOADS], offset[LOADS];
};

template <int KD> static __device__ __forceinline__ void find_pieces(const struct gdn_args &p, const struct place &at, struct pieces<KD> &x)
{
#pragma unroll
	for (int i = 0; i < pieces<KD>::LOADS; i++) {
		int id = threadIdx.x + i * THREADS, column = piece_column<KD>(p, at, id % window<KD>::PIECES);

		x.row[i] = column < 0 ? WINDOW : id / window<KD>::PIECES;
		x.offset[i] = x.row[i] * p.ld + column;
	}
}

/* Tail and rows to replay: rows 0 .. replay + 2 of the stream. */
template <int KD>
static __device__ __forceinline__ void load_kept(const struct gdn_args &p, const struct td_seq &s, const struct place &at, struct window<KD> &x)
{
	enum { KEPT = window<KD>::KEPT };

#pragma unroll 2
	for (int id = threadIdx.x; id < (s.replay + TD_CONV_TAIL) * KEPT; id += THREADS) {
		int row = id / KEPT, piece = id % KEPT, channel = piece_column<KD>(p, at, piece);

		if (channel >= 0)
			x.raw[row * window<KD>::PIECES + piece] = __ldcg((const uint4 *)(stream_row(p, s, row) + channel));
	}
}

/* What a lane's gate is made of, for n tokens from token t0 of the stream on by one warp: b of the tokens in its first half, a in the second. */
static __device__ __forceinline__ float load_gate(const struct gdn_args &p, const struct td_seq &s, const struct place &at, int t0, int n)
{
	return token_ba(p, s, t0 + max(min(at.lane % WINDOW, n - 1), 0), at.head + at.lane / WINDOW * p.w.v_heads);
}

template <int KD>
static __device__ __forceinline__ void make_gate(const struct place &at, float v, float rate, float bias, struct window<KD> &x)
{
	float beta = sigmoid(v), u = v + bias, decay = expf(rate * (u > 20.0f ? u : log1pf(expf(u))));

	decay = __shfl_xor_sync(~0u, decay, WINDOW);
	if (at.lane < WINDOW)
		x.gate[at.lane] = make_float2(decay, beta);
}

/*
 * Convolution, silu and norms of tokens t .. t + TURN - 1 of a window that begins at token t0 of the stream, by a warp. Two neighbours share weights and
 * rows: what they cost is mostly reads of shared memory.
 */
template <int KD, int TURN> static __device__ __forceinline__ void prepare(const struct place &at, int t0, int t, struct window<KD> &x)
{
	enum { N = KD / 32, ROWS = TD_CONV_TAIL + TURN };
	uint32_t q[ROWS][N / 2], k[ROWS][N / 2];
	float a[TURN][N], b[TURN][N], v[ROWS], qq[TURN] = {}, kk[TURN] = {}, kq[TURN] = {};
	float4 w = x.taps[2 * KD + at.lane];

#pragma unroll
	for (int j = 0; j < ROWS; j++) {
		const bf16 *row = (const bf16 *)(x.raw + (t0 + t + j) % RING * window<KD>::PIECES);

		copy_words<N / 2>(q[j], row + at.lane * N);
		copy_words<N / 2>(k[j], row + KD + at.lane * N);
		v[j] = __bfloat162float(row[2 * KD + at.lane]);
	}
#pragma unroll
	for (int c = 0; c < N; c++) {
		float4 wq = x.taps[c * 32 + at.lane], wk = x.taps[KD + c * 32 + at.lane];

#pragma unroll
		for (int i = 0; i < TURN; i++) {
			a[i][c] = conv(wq, element(q[i], c), element(q[i + 1], c), element(q[i + 2], c), element(q[i + 3], c));
			b[i][c] = conv(wk, element(k[i], c), element(k[i + 1], c), element(k[i + 2], c), element(k[i + 3], c));
			qq[i] = fmaf(a[i][c], a[i][c], qq[i]);
			kk[i] = fmaf(b[i][c], b[i][c], kk[i]);
			kq[i] = fmaf(a[i][c], b[i][c], kq[i]);
		}
	}
#pragma unroll
	for (int i = 0; i < TURN; i++) {
		qq[i] = rsqrtf(warp_sum(qq[i]) + 1e-6f) * rsqrtf((float)KD);
		kk[i] = rsqrtf(warp_sum(kk[i]) + 1e-6f);
		kq[i] = warp_sum(kq[i]) * qq[i] * kk[i];
		store_lane<N>(x.q + (t + i) * KD + at.lane * N, a[i], qq[i]);
		store_lane<N>(x.k + (t + i) * KD + at.lane * N, b[i], kk[i]);
		x.v[(t + i) * COLS + at.lane] = conv(w, v[i], v[i + 1], v[i + 2], v[i + 3]);
		if (at.lane == 0)
			x.kq[t + i] = kq[i];
	}
}

/*
 * n tokens on this lane's part of its two columns. k of a token is kept in registers from its dot product to its update, and there the next token's takes
 * its place. Sums go through the warp as the lane's first or second column's by the lane's parity: half as many shuffles. Each token leaves d, and this
 * and the next lane's share of q times the old state.
 */
template <int KD> static __device__ __forceinline__ void step(struct window<KD> &x, const struct place &at, int n, float state[2][KD / PARTS])
{
	enum { RUNS = KD / (4 * PARTS) };
	const float4 *k_sh = (const float4 *)x.k + at.part, *q_sh = (const float4 *)x.q + at.part;
	int odd = __shfl_sync(~0u, at.part & 1, at.lane), own = at.col + odd; /* a shuffle, or it would be made anew each time */
	float *o_sh = x.o + own * SHARES + at.part / 2;
	float4 k[RUNS];

#pragma unroll
	for (int j = 0; j < RUNS; j++)
		k[j] = k_sh[j * PARTS];
#pragma unroll 2
	for (int t = 0; t < n; t++) {
		float2 gate = x.gate[t];
		float v = x.v[t * COLS + own], r[2][2] = {}, e[2][2] = {}, d[2], sum;
		float4 q[RUNS];

#pragma unroll
		for (int j = 0; j < RUNS; j++)
			q[j] = q_sh[j * PARTS];
		q_sh += KD / 4;
		k_sh += KD / 4; /* behind the last token lies something else, which is read and not used */
#pragma unroll
		for (int j = 0; j < RUNS; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				r[c][0] = fmaf(state[c][j * 4], k[j].x, r[c][0]);
				r[c][1] = fmaf(state[c][j * 4 + 1], k[j].y, r[c][1]);
				r[c][0] = fmaf(state[c][j * 4 + 2], k[j].z, r[c][0]);
				r[c][1] = fmaf(state[c][j * 4 + 3], k[j].w, r[c][1]);
			}
		r[0][0] += r[0][1];
		r[1][0] += r[1][1];
		sum = (odd ? r[1][0] : r[0][0]) + __shfl_xor_sync(~0u, odd ? r[0][0] : r[1][0], 1);
#pragma unroll
		for (int m = 2; m < PARTS; m <<= 1)
			sum += __shfl_xor_sync(~0u, sum, m);
#pragma unroll
		for (int j = 0; j < RUNS; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				e[c][0] = fmaf(state[c][j * 4], q[j].x, e[c][0]);
				e[c][1] = fmaf(state[c][j * 4 + 1], q[j].y, e[c][1]);
				e[c][0] = fmaf(state[c][j * 4 + 2], q[j].z, e[c][0]);
				e[c][1] = fmaf(state[c][j * 4 + 3], q[j].w, e[c][1]);
			}
		sum = gate.y * fmaf(-gate.x, sum, v);
		if (at.part < 2)
			x.d[t * COLS + own] = sum;
		d[1] = __shfl_xor_sync(~0u, sum, 1);
		d[0] = odd ? d[1] : sum;
		d[1] = odd ? sum : d[1];
#pragma unroll
		for (int j = 0; j < RUNS; j++) {
#pragma unroll
			for (int c = 0; c < 2; c++) {
				state[c][j * 4] = fmaf(k[j].x, d[c], state[c][j * 4] * gate.x);
				state[c][j * 4 + 1] = fmaf(k[j].y, d[c], state[c][j * 4 + 1] * gate.x);
				state[c][j * 4 + 2] = fmaf(k[j].z, d[c], state[c][j * 4 + 2] * gate.x);
				state[c][j * 4 + 3] = fmaf(k[j].w, d[c], state[c][j * 4 + 3] * gate.x);
			}
			k[j] = k_sh[j * PARTS];
		}
		e[0][0] += e[0][1];
		e[1][0] += e[1][1];
		*o_sh = (odd ? e[1][0] : e[0][0]) + __shfl_xor_sync(~0u, odd ? e[0][0] : e[1][0], 1);
		o_sh += COLS * SHARES;
	}
}

/* Two neighbouring columns of o of a window's row, from their shares. */
template <int KD> static __device__ __forceinline__ float2 sum_shares(const struct window<KD> &x, int row, int col)
{
	const float4 *share = (const float4 *)(x.o + (row * COLS + col) * SHARES);
	float4 a = share[0], b = share[1], c = share[2], d = share[3];
	float decay = x.gate[row].x, kq = x.kq[row];

	static_assert(SHARES == 8, "two words of four for each column");
	return make_float2(fmaf(decay, ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)), x.d[row * COLS + col] * kq),
			   fmaf(decay, ((c.x + c.y) + (c.z + c.w)) + ((d.x + d.y) + (d.z + d.w)), x.d[row * COLS + col + 1] * kq));
}

/*
 * Gated norm of a window's rows, at the end of a call: the blocks of a head are a cluster, and each gives its sums of squares to all. The order of the
 * sums is that of gated_norm, so it makes no difference which of them does it.
 */
template <int KD>
static __device__ __forceinline__ void norm_in_cluster(const struct gdn_args &p, const struct td_seq &s, const struct place &at, int t0, int n,
						       struct window<KD> &x)
{
	int row = threadIdx.x / (COLS / 2), lane = threadIdx.x % (COLS / 2), slice = at.col0 / COLS;
	float2 o = {};
	float sum;

	cluster_wait(); /* the others have started, and made their inboxes */
	if (at.warp >= WINDOW * COLS / 64)
		return;
	if (row < n)
		o = sum_shares(x, row, lane * 2);
	sum = slice_squares(o);
	if (lane < MAX_SLICES)
		inbox_send(&x.inbox, &x.squares[slice * WINDOW + row], lane, sum);
	inbox_wait(&x.inbox);
	if (row < n) {
		const uint32_t *z = (const uint32_t *)(x.raw + (t0 + TD_CONV_TAIL + row) % RING * window<KD>::PIECES + window<KD>::KEPT);

		sum = 0;
		for (int i = 0; i < MAX_SLICES; i++)
			sum += x.squares[i * WINDOW + row];
		((uint32_t *)(p.out + (size_t)(s.row0 + t0 - s.replay + row) * p.ld_out + at.head * at.v_dim + at.col0))[lane] =
			gate_pair(o, norm_scale(p, sum), *(const float2 *)(x.norm + lane * 2), z[lane]);
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

/* Is this block the last of the key head to have read the old tail and ring? A keeper's answer, in its first lane: each counts for itself. */
static __device__ __forceinline__ int last_reader(const struct gdn_args &p, const struct place &at)
{
	unsigned all = p.group * at.slices;

	return at.lane == 0 && count_reader(counters(p) + at.k_head * KEEPERS + at.warp - STEPPERS, all) == all - 1;
}

/*
 * With the last window: the warps that do not step bring tail and ring up to date from the raw rows. The values' channels are this block's own; q, k, b
 * and a are written by the last block of the key head to have read them.
 */
template <int KD>
static __device__ __forceinline__ void keep(const struct gdn_args &p, const struct td_seq &s, const struct place &at, const struct window<KD> &x,
					    int last)
{
	enum { KEPT = window<KD>::KEPT, Q_K = 2 * KD / 8 };
	int i = (at.warp - STEPPERS) * 32 + at.lane, rows = s.commit ? 0 : s.rows, first = s.replay + (s.commit ? s.rows : 0);
	bf16 *tail = (bf16 *)p.st.tail + (size_t)s.slot * TD_CONV_TAIL * p.channels;
	bf16 *ring = (bf16 *)p.st.ring_m + (size_t)s.slot * TD_BLOCK_MAX * p.channels;

	last = __shfl_sync(~0u, last, 0);
#pragma unroll 2
	for (int id = i; id < (TD_CONV_TAIL + rows) * KEPT; id += KEEPERS * 32) {
		int row = id / KEPT, piece = id % KEPT, channel = piece_column<KD>(p, at, piece);
		bf16 *to = row < TD_CONV_TAIL ? tail + (size_t)row * p.channels : ring + (size_t)(row - TD_CONV_TAIL) * p.channels;

		if (channel >= 0 && (last || piece >= Q_K))
			*(uint4 *)(to + channel) = x.raw[(first + row) % RING * window<KD>::PIECES + piece];
	}
#pragma unroll 1
	for (int id = i; id < rows * 2 * p.group; id += KEEPERS * 32) {
		int r = id / (2 * p.group), j = id % (2 * p.group), column = at.k_head * p.group + j + (j < p.group ? 0 : p.w.v_heads - p.group);
		float v = read_ba(p, s.row0 + r, column);

		if (last)
			p.st.ring_ba[((size_t)s.slot * TD_BLOCK_MAX + r) * 2 * p.w.v_heads + column] = v;
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
	struct place at = find_place<KD, VD>(p);
	int steps = at.warp < STEPPERS && at.col0 + at.col < at.v_dim, row = threadIdx.x / (COLS / 2), pair = threadIdx.x % (COLS / 2) * 2;
	float state[2][KD / PARTS] = {}, *kept, rate = -expf(p.w.a_log[at.head]), bias = p.w.dt_bias[at.head];
	int t0 = 0, n, fresh, total, last;
	struct pieces<KD> mine;
	struct td_seq s;

	if (CLUSTER) {
		if (threadIdx.x == 0)
			inbox_make(&x.inbox, sizeof(x.squares));
		cluster_arrive();
	}
	load_weights<KD>(p, at, x);
	if (!p.early)
		after_previous();
	s = part_of(p.seq[blockIdx.z], p.part);
	s.rows = __shfl_sync(~0u, s.rows, 0); /* for the compiler again */
	s.replay = __shfl_sync(~0u, s.replay, 0);
	total = s.replay + s.rows;
	if (total == 0) {
		after_previous();
		return;
	}
	kept = p.st.s + (((size_t)s.slot * p.w.v_heads + at.head) * KD + at.part * 4) * at.v_dim + at.col0 + at.col;
#pragma unroll
	for (int i = 0; i < KD / PARTS; i++)
		if (steps) {
			float2 v = __ldcg(state_row(kept, at, i));

			state[0][i] = v.x;
			state[1][i] = v.y;
		}
	load_kept<KD>(p, s, at, x);
	find_pieces<KD>(p, at, mine);
#pragma unroll 1
	do { /* the last window of a sequence without new rows is empty */
		uint4 raw[pieces<KD>::LOADS];
		float gate = 0;

		fresh = t0 >= s.replay;
		n = min((fresh ? total : s.replay) - t0, (int)WINDOW);
		if (fresh) {
			const bf16 *from = p.qkvz + (ptrdiff_t)(s.row0 + t0 - s.replay) * p.ld;

			after_previous();
			let_next_start();
#pragma unroll
			for (int i = 0; i < pieces<KD>::LOADS; i++)
				if (mine.row[i] < n)
					raw[i] = __ldcg((const uint4 *)(from + mine.offset[i]));
			if (steps && !s.commit && t0 && t0 == s.replay)
				store_state<KD>(kept, at, state);
		}
		if (at.warp == WARPS - 1)
			gate = load_gate(p, s, at, t0, n);
#pragma unroll
		for (int i = 0; i < pieces<KD>::LOADS; i++)
			if (fresh && mine.row[i] < n)
				x.raw[(t0 + TD_CONV_TAIL + mine.row[i]) % RING * window<KD>::PIECES +
				      (threadIdx.x + i * THREADS) % window<KD>::PIECES] = raw[i];
		__syncthreads();
		last = at.warp >= STEPPERS && fresh && t0 + n == total ? last_reader(p, at) : 0; /* an answer that takes long */
		if (n > WARPS && at.warp * 2 < n) /* of an odd number the last has a neighbour that is none, and nobody reads */
			prepare<KD, 2>(at, t0, at.warp * 2, x);
		else if (n <= WARPS && at.warp < n)
			prepare<KD, 1>(at, t0, at.warp, x);
		if (at.warp == WARPS - 1)
			make_gate<KD>(at, gate, rate, bias, x);
		__syncthreads();
		if (at.warp < STEPPERS)
			step<KD>(x, at, n, state);
		else if (fresh && t0 + n == total)
			keep<KD>(p, s, at, x, last);
		__syncthreads();
		if (CLUSTER && fresh) { /* there is one such window */
			norm_in_cluster<KD>(p, s, at, t0, n, x);
			break;
		}
		if (fresh && row < n && at.col0 + pair < at.v_dim)
			*(float2 *)(p.o + ((size_t)(s.row0 + t0 - s.replay + row) * p.w.v_heads + at.head) * at.v_dim + at.col0 + pair) =
				sum_shares(x, row, pair);
		t0 += n;
	} while (!fresh || t0 < total);
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
	cudaLaunchAttribute attr[2];
	cudaLaunchConfig_t c = {grid, dim3(THREADS), shared, dev->stream, attr, 2};

	td__cuda_shared(dev, kernel, shared);
	if (!cluster) {
		td__cuda_launch(dev, "gdn", kernel, grid, THREADS, shared, p);
		return;
	}
	attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attr[0].val.programmaticStreamSerializationAllowed = 1;
	attr[1].id = cudaLaunchAttributeClusterDimension;
	attr[1].val.clusterDim.x = MAX_SLICES;
	attr[1].val.clusterDim.y = attr[1].val.clusterDim.z = 1;
	td__cuda_check(dev, cudaLaunchKernelEx(&c, kernel, p), "gdn");
}

/* A narrow share of the GPU (MPS) may have no room for a cluster: then the last block of a head does the norm. */
static int can_cluster(struct td_dev *dev, dim3 grid)
{
	if (!dev->clusters) {
		cudaLaunchAttribute attr[1];
		cudaLaunchConfig_t c = {grid, dim3(THREADS), sizeof(struct window<128>), dev->stream, attr, 1};
		int n = 0;

		attr[0].id = cudaLaunchAttributeClusterDimension;
		attr[0].val.clusterDim.x = MAX_SLICES;
		attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
		td__cuda_shared(dev, gdn_kernel<128, 128, true>, c.dynamicSmemBytes);
		if (!dev->overlap || cudaOccupancyMaxActiveClusters(&n, gdn_kernel<128, 128, true>, &c) != cudaSuccess)
			cudaGetLastError();
		dev->clusters = n > 0 ? 1 : -1;
	}
	return dev->clusters > 0;
}

/* One part of all sequences by the step form. */
static void run_part(struct td_dev *dev, struct gdn_args &p, const struct td_batch *b, int rows)
{
	dim3 grid(p.group * div_up(p.w.v_dim, COLS), p.w.k_heads, b->n_seq);

	p.norm_here = rows <= TD_BLOCK_MAX;
	p.early = p.part == ROWS_BEFORE;
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
 * writes a layer's state, tail and ring, and this one is called once for each. So only its own earlier parts are to be waited for.
 */
void td__cuda_gdn(struct td_dev *dev, const struct td_gdn *w, const struct td_gdn_state *st, const struct td_batch *b, struct td_tensor qkvz,
		  struct td_tensor ba, struct td_tensor out)
{
	struct gdn_args p;
	size_t bytes, chunk_bytes;

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
	if (!fits(dev, p, b, qkvz, ba, out))
		return;
	bytes = (size_t)qkvz.rows * w->v_heads * w->v_dim * sizeof(float);
	chunk_bytes = longest(b, ROWS_BLOCKS) > 0 ? td__cuda_gdn_chunk_bytes(dev, p, b->n_rows) : 0;
	p.o = (float *)td__cuda_scratch(dev, bytes > chunk_bytes ? bytes : chunk_bytes);
	if (!p.o)
		return;
	for (p.part = ROWS_BEFORE; p.part <= ROWS_AFTER; p.part++) {
		int rows = longest(b, p.part);

		if (p.part == ROWS_BLOCKS && chunk_bytes)
			td__cuda_gdn_chunk(dev, p, b, rows);
		else if (rows >= 0)
			run_part(dev, p, b, rows);
	}
}
