/*
 * gdn_many.cu: the step form of the Gated DeltaNet layer for many sequences at once, where it is work that counts and not a token's chain (gdn.cu).
 *
 * Work: a block owns a value head of one sequence, so it makes the gated norm alone and q and k of a key head are prepared twice instead of eight times;
 * its eight warps step through sixteen columns each. A lane has a part of the rows of four columns: a word of k or q serves four of them (two where latency
 * counts), as shared memory hands out 32 words a cycle to whatever lanes while the four schedulers ask for 128 multiply-adds.
 *
 *	state, tail and rows to replay -> shared memory; the state from there to registers
 *	after the kernel before this one has ended: new rows -> shared memory
 *	prepare all tokens at once, those to replay and up to 16 new ones, in the state's place; step; gated norm; tail and ring
 *	(a prompt's further rows, 16 at a time)
 *
 * A lane's four columns are dealt so that sums over the parts need no choices: slot i holds column i ^ (part & 3) of the four. So the lane ends up with
 * the sum of its own column, slot 0 (add_parts), and its neighbours get their factors from there.
 *
 * Two blocks fit a multiprocessor, with 128 registers a thread, so 8 sequences of 32 heads are one wave on an H200. Registers are short: with k asked for
 * in the turn before, the compiler orders the 300 instructions of a token so that a warp alone takes 600 cycles for them instead of 350.
 *
 * Nothing is replayed before the kernel before this one has ended, as a few sequences do: a second round of loads and preparation costs more than it hides.
 */
#include "kernels/cuda/gdn_step.cuh"

enum { OWN = 4, TOKENS = 2 * WINDOW, EACH = 3, FEW = 4 };

/*
 * Behind its inputs a block has room for the state on its way to registers, in runs of four rows, and after that for a window's tokens, prepared; v makes
 * room for o. The lines behind the last are read or written, and not used.
 */
template <int KD, int COLS> struct window : inputs<KD, COLS> {
	enum { RUN = 4 * COLS + 4 /* so that the parts' words lie in different banks */ };
	union {
		float state[KD / 4 * RUN];
		struct {
			float q[(WINDOW + EACH) * KD], k[(TOKENS + EACH) * KD], v[(TOKENS + 1) * COLS];
		};
	};
	float4 gate[TOKENS + 1];
	float ba[2][TOKENS]; /* as they came */
	float norm[COLS];
	uint64_t arrived; /* the state */
	int last;
};

/* Sum over the parts of what each has in its slots; the lane gets that of its slot 0. */
static __device__ __forceinline__ float add_parts(const float r[OWN])
{
	float a = r[0] + __shfl_xor_sync(~0u, r[1], 1), b = r[2] + __shfl_xor_sync(~0u, r[3], 1);

	a += __shfl_xor_sync(~0u, b, 2);
	return a + __shfl_xor_sync(~0u, a, 4);
}

/*
 * The state into shared memory, by the copy engine where there is one (p.engine): loads of a lane's own pieces, which are 8 bytes in as many lines, take 2 us
 * for a block and stand before all that follows them.
 */
template <int KD, int COLS>
static __device__ __forceinline__ void fetch_state(const struct gdn_args &p, const float *kept, struct window<KD, COLS> &x)
{
#ifdef TD_CUDA_GROUPS
	enum { BYTES = 4 * COLS * sizeof(float), RUNS = KD / 4 };

	static_assert(RUNS <= 32, "a copy of a lane");
	if (p.engine) {
		if (threadIdx.x == 0) {
			gate_make(&x.arrived, 1);
			gate_expect(&x.arrived, RUNS * BYTES);
		}
		__syncwarp();
		if (threadIdx.x < RUNS)
			bulk_copy(&x.arrived, shared_address(x.state + threadIdx.x * window<KD, COLS>::RUN), kept + threadIdx.x * 4 * COLS, BYTES);
		return;
	}
#endif
#pragma unroll 4
	for (int i = threadIdx.x; i < KD * COLS / 4; i += THREADS)
		copy16(x.state + i / COLS * window<KD, COLS>::RUN + i % COLS * 4, kept + i * 4);
}

/* This lane's part of its columns; then all may use the place of the state. */
template <int KD, int COLS>
static __device__ __forceinline__ void take_state(const struct gdn_args &p, const struct place &at, struct window<KD, COLS> &x, float state[OWN][KD / PARTS])
{
	const float *from = x.state + at.part * window<KD, COLS>::RUN + at.col;

#ifdef TD_CUDA_GROUPS
	if (p.engine)
		gate_wait(&x.arrived, 0);
#endif
#pragma unroll
	for (int i = 0; i < KD / PARTS; i++)
#pragma unroll
		for (int c = 0; c < OWN; c++)
			state[c][i] = from[(i >> 2) * PARTS * window<KD, COLS>::RUN + (i & 3) * COLS + (c ^ at.part % OWN)];
	__syncthreads();
}

/* `kept`: the first of this lane's rows, in its columns. */
template <int KD> static __device__ __forceinline__ void store_state(float *kept, const struct place &at, const float state[OWN][KD / PARTS])
{
#pragma unroll
	for (int i = 0; i < KD / PARTS; i++) {
		float4 v = make_float4(state[0][i], state[1][i], state[2][i], state[3][i]);

		if (at.part & 1)
			v = make_float4(v.y, v.x, v.w, v.z);
		if (at.part & 2)
			v = make_float4(v.z, v.w, v.x, v.y);
		*(float4 *)(kept + ((i >> 2) * 4 * PARTS + (i & 3)) * at.v_dim) = v;
	}
}

/* n tokens from the first of these lines on. Where o is asked for, that of a token takes the place of its v, a turn later. */
template <int KD, int COLS, bool OUT>
static __device__ __forceinline__ void step(const struct place &at, int n, const float *k_line, const float *q_line, float *v_line, const float4 *gate_sh,
					    float state[OWN][KD / PARTS])
{
	enum { RUNS = KD / (4 * PARTS) };
	const float4 *k_sh = (const float4 *)k_line + at.part, *q_sh = (const float4 *)q_line + at.part;
	float *v_sh = v_line + at.col + at.part % OWN;
	float4 q[RUNS] = {};
	float r[OWN], d[OWN];

#pragma unroll 1
	for (int t = 0; t < n; t++) {
		float4 k[RUNS], gate = *gate_sh++;
		float v = *v_sh;

		load_line<KD>(k, k_sh);
		k_sh += KD / 4;
		times<KD, OWN, 2>(r, k, state);
		d[0] = fmaf(gate.z, add_parts(r), gate.y * v);
		if (OUT) {
			float o;

			times<KD, OWN, 1>(r, q, state);
			load_line<KD>(q, q_sh);
			q_sh += KD / 4;
			o = add_parts(r);
			if (t && at.part < OWN)
				v_sh[-COLS] = o; /* of the token before */
		}
#pragma unroll
		for (int i = 1; i < OWN; i++)
			d[i] = __shfl_xor_sync(~0u, d[0], i);
		update<KD, OWN>(state, k, gate.x, d);
		v_sh += COLS;
	}
	if (OUT && n > 0) {
		float o;

		times<KD, OWN, 1>(r, q, state);
		o = add_parts(r);
		if (at.part < OWN)
			v_sh[-COLS] = o;
	}
}

/* n tokens from their raw rows, by all warps. q of the first `skip`, rows to replay, serves nothing. */
template <int KD, int COLS>
static __device__ __forceinline__ void prepare_window(const struct place &at, int base, int skip, int n, struct gate_word gate, float rate, float bias,
						      struct window<KD, COLS> &x)
{
	int keys = div_up(n, EACH), all = keys + div_up(n - skip, EACH), half = WARPS - 1 - at.warp;

	if (half < 2) {
		x.ba[at.lane / WINDOW][half * WINDOW + at.lane % WINDOW] = either(gate.word, gate.odd, gate.f32);
		make_gates(at, gate, rate, bias, x.gate + half * WINDOW);
	}
#pragma unroll 1
	for (int i = at.warp; i < all; i += WARPS) {
		int is_k = i < keys, t = (is_k ? i : i - keys) * EACH;

		prepare<EACH, KD, COLS>(at, x, base + t + (is_k ? 0 : skip), is_k, (is_k ? x.k : x.q) + t * KD);
	}
#pragma unroll 1
	for (int t = at.warp / (COLS / 32) * FEW; t < n; t += WARPS / (COLS / 32) * FEW)
		prepare_values<FEW, KD, COLS>(at, x, base + t, at.warp % (COLS / 32) * 32, x.v + t * COLS);
}

/* Gated norm of n rows from row0 of the batch on, whose raw rows begin at `raw`, a warp for each at a time; the sums are those of gated_norm. */
template <int KD, int COLS>
static __device__ __forceinline__ void norm_rows(const struct gdn_args &p, const struct place &at, int row0, int n, const uint4 *raw, const float *o_sh,
						 const float *norm_sh)
{
	enum { HALVES = COLS / (2 * GDN_SLICE) };
	float2 weight[HALVES];

#pragma unroll
	for (int i = 0; i < HALVES; i++)
		weight[i] = ((const float2 *)norm_sh)[i * 32 + at.lane];
#pragma unroll 2
	for (int row = at.warp; row < n; row += WARPS) {
		const uint32_t *z = (const uint32_t *)(raw + row * inputs<KD, COLS>::PIECES + inputs<KD, COLS>::KEPT) + at.lane;
		uint32_t *y = (uint32_t *)(p.out + (size_t)(row0 + row) * p.ld_out + at.head * at.v_dim) + at.lane;
		float2 v[HALVES];
		float sum = 0;

#pragma unroll
		for (int i = 0; i < HALVES; i++) {
			float part;

			v[i] = ((const float2 *)(o_sh + row * COLS))[i * 32 + at.lane];
			part = slice_squares(v[i]);
			sum += __shfl_sync(~0u, part, 0);
			sum += __shfl_sync(~0u, part, 16);
		}
		sum = norm_scale(p, sum);
#pragma unroll
		for (int i = 0; i < HALVES; i++)
			y[i * 32] = gate_pair(v[i], sum, weight[i], swish_pair(z[i * 32]));
	}
}

/* A thread moves one piece of every STRIDE-th row. */
struct share {
	int piece, row, column; /* of qkvz */
};
template <int KD, int COLS> struct rows_at_once {
	enum { PIECES = inputs<KD, COLS>::PIECES, KEPT = inputs<KD, COLS>::KEPT, STRIDE = THREADS / PIECES };
	static_assert(THREADS % PIECES == 0, "whole rows");
};

/* Tail and rows to replay: the first raw rows. */
template <int KD, int COLS>
static __device__ __forceinline__ void load_kept(const struct gdn_args &p, const struct td_seq &s, const struct share &mine, struct window<KD, COLS> &x)
{
	typedef rows_at_once<KD, COLS> at;

#pragma unroll 1
	for (int row = mine.row; row < s.replay + TD_CONV_TAIL; row += at::STRIDE)
		if (mine.piece < at::KEPT)
			copy16(&x.raw[row * at::PIECES + mine.piece], kept_row(p, s, row) + mine.column);
}

/* Tail and ring from the raw rows: the value head's own channels, b and a; those of q and k by the last block of the key head to have read them. */
template <int KD, int COLS>
static __device__ __forceinline__ void keep(const struct gdn_args &p, const struct td_seq &s, const struct place &at, const struct share &mine, int skip,
					    int first, const struct window<KD, COLS> &x)
{
	typedef rows_at_once<KD, COLS> by;
	int rows = s.commit ? 0 : s.rows, id = threadIdx.x;

	if (id < rows * 2)
		p.st.ring_ba[((size_t)s.slot * TD_BLOCK_MAX + id / 2) * 2 * p.w.v_heads + at.head + (id & 1) * p.w.v_heads] = x.ba[id & 1][skip + id / 2];
	if (mine.piece >= by::KEPT || (mine.piece < 2 * KD / 8 && !x.last))
		return;
#pragma unroll 1
	for (int row = mine.row; row < TD_CONV_TAIL + rows; row += by::STRIDE)
		*(uint4 *)(kept_row(p, s, row) + mine.column) = x.raw[(first + row) * by::PIECES + mine.piece];
}

/*
 * Where a block is: its window is tokens of which the first `skip` are rows to replay, n in all; their raw rows begin at `base`, their new ones at row
 * `done` of the sequence.
 */
struct at_window {
	int base, done, skip, n;
};

/* The window's new rows into shared memory, beside what was asked for before; the token's gates as they lie in memory, by the last two warps. */
template <int KD, int COLS>
static __device__ __forceinline__ struct gate_word fetch(const struct gdn_args &p, const struct td_seq &s, const struct place &at, const struct share &mine,
							 const struct at_window &w, struct window<KD, COLS> &x)
{
	typedef rows_at_once<KD, COLS> by;
	int half = (WARPS - 1 - at.warp) * WINDOW;
	const bf16 *from = p.qkvz + (ptrdiff_t)(s.row0 + w.done + mine.row) * p.ld + mine.column;
	uint32_t to = shared_address(&x.raw[(w.base + w.skip + TD_CONV_TAIL + mine.row) * by::PIECES + mine.piece]);
	struct gate_word gate = {};

#pragma unroll
	for (int i = 0; i < WINDOW; i += by::STRIDE)
		if (mine.row + i < w.n - w.skip)
			copy16_to(to + i * by::PIECES * 16, from + (ptrdiff_t)i * p.ld);
	copy_commit();
	if (half < 2 * WINDOW && half < w.n) /* what would be read behind the last row may lie behind all memory */
		gate = load_gate(p, s, at, s.replay + w.done - w.skip + half, w.n - half);
	copy_wait<0>();
	__syncthreads();
	return gate;
}

/* The next window, whose rows follow those of the one before or, where there is no room for them, come to the beginning. */
template <int KD, int COLS> static __device__ __forceinline__ void next_window(const struct td_seq &s, struct at_window &w, struct window<KD, COLS> &x)
{
	enum { PIECES = inputs<KD, COLS>::PIECES };

	w.done += w.n - w.skip;
	w.base += w.n;
	w.skip = 0;
	w.n = min(s.rows - w.done, (int)WINDOW);
	__syncthreads(); /* the window before has been left */
	if (w.base > WINDOW) {
		for (int i = threadIdx.x; i < TD_CONV_TAIL * PIECES; i += THREADS)
			x.raw[i] = x.raw[w.base * PIECES + i];
		w.base = 0;
		__syncthreads(); /* new rows may be copied to where these were */
	}
}

/* grid (value heads of a key head, k_heads, sequences) */
template <int KD, int COLS> static __global__ void __launch_bounds__(THREADS, 2) many_kernel(const struct gdn_args p)
{
	extern __shared__ __align__(16) char memory[];
	struct window<KD, COLS> &x = *(struct window<KD, COLS> *)memory;
	struct place at = find_place<KD, COLS, COLS>(p);
	float state[OWN][KD / PARTS], *kept, rate = p.w.a_log[at.head], bias = p.w.dt_bias[at.head];
	struct share mine = {(int)threadIdx.x % inputs<KD, COLS>::PIECES, (int)threadIdx.x / inputs<KD, COLS>::PIECES, 0};
	struct gate_word gate;
	struct at_window w;
	unsigned before = 0;
	struct td_seq s;

	let_next_start();
	if (!p.early)
		after_previous();
	s = p.seq[blockIdx.z];
	load_weights<KD, COLS>(p, at, x);
	if (threadIdx.x < COLS / 4)
		copy16(&x.norm[threadIdx.x * 4], p.w.norm + threadIdx.x * 4);
	mine.column = piece_column<KD, COLS>(p, at, mine.piece);
	s = part_of(s, p.part);
	at.col = (at.warp * (32 / PARTS) + at.lane / PARTS) * OWN;
	kept = p.st.s + ((size_t)s.slot * p.w.v_heads + at.head) * KD * COLS;
	if (s.replay + s.rows > 0)
		fetch_state<KD, COLS>(p, kept, x);
	s.rows = __shfl_sync(~0u, s.rows, 0); /* for the compiler, as in find_place */
	s.replay = __shfl_sync(~0u, s.replay, 0);
	kept += at.part * 4 * COLS + at.col;
	load_kept<KD, COLS>(p, s, mine, x);
	rate = -expf(rate);
	after_previous();
	if (s.replay + s.rows == 0) {
		copy_commit();
		copy_wait<0>();
		return;
	}
	w = {0, 0, s.replay, s.replay + min(s.rows, (int)WINDOW)};
	gate = fetch<KD, COLS>(p, s, at, mine, w, x);
	if (threadIdx.x == 0)
		before = count_reader(p.counter + (size_t)blockIdx.z * p.w.k_heads + at.k_head, p.group); /* an answer that takes long */
	take_state<KD, COLS>(p, at, x, state);
	prepare_window<KD, COLS>(at, w.base, w.skip, w.n, gate, rate, bias, x);
	__syncthreads();
	step<KD, COLS, false>(at, w.skip, x.k, x.q, x.v, x.gate, state);
	if (w.skip && !s.commit)
		store_state<KD>(kept, at, state);
#pragma unroll 1
	for (;;) {
		step<KD, COLS, true>(at, w.n - w.skip, x.k + w.skip * KD, x.q, x.v + w.skip * COLS, x.gate + w.skip, state);
		if (threadIdx.x == 0)
			x.last = before == (unsigned)p.group - 1;
		__syncthreads();
		norm_rows<KD, COLS>(p, at, s.row0 + w.done, w.n - w.skip, x.raw + (w.base + w.skip + TD_CONV_TAIL) * inputs<KD, COLS>::PIECES,
				    x.v + w.skip * COLS, x.norm);
		if (w.done + w.n - w.skip == s.rows)
			break;
		next_window<KD, COLS>(s, w, x);
		gate = fetch<KD, COLS>(p, s, at, mine, w, x);
		prepare_window<KD, COLS>(at, w.base, w.skip, w.n, gate, rate, bias, x);
		__syncthreads();
	}
	keep<KD, COLS>(p, s, at, mine, w.skip, w.base + (s.commit ? w.n : w.skip), x);
	if (s.commit)
		store_state<KD>(kept, at, state);
}

int td__cuda_gdn_many(struct td_dev *dev, const struct gdn_args &p, int n_seq)
{
	const struct td_gdn *w = &p.w;
	size_t shared = sizeof(struct window<128, 128>);

	/* From 4 sequences on an H200 it is faster than gdn.cu (16 + 5 rows: 29 us against 35, 3 sequences 28 against 27). */
	if (w->k_dim != 128 || w->v_dim != 128 || shared > dev->shared_max || w->v_heads * n_seq * 4 < dev->sms * 3)
		return 0;
	td__cuda_shared(dev, many_kernel<128, 128>, shared);
	td__cuda_launch(dev, "gdn", many_kernel<128, 128>, dim3(p.group, w->k_heads, n_seq), THREADS, shared, p);
	return 1;
}
