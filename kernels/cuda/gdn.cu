/*
 * gdn.cu: the Gated DeltaNet layer in one launch: causal convolution, silu, L2 norms, gates, delta rule, gated norm (qwen35 3.4, 3.8).
 *
 * Work: the columns of a state matrix (k_dim, v_dim) evolve apart from each other, so a block owns 32 columns of one value head of one sequence.
 * Its first four warps, the steppers, keep them in registers from the first token to the last: lane (col, part) of a warp holds every fourth run of
 * four rows of one column.
 *
 *	rows to replay:		prepare (all warps, a token or two each: convolution, silu, norms, gates -> shared memory); step; store the state
 *	each 16 new rows:	prepare; step, token by token without a barrier | meanwhile the other warps bring tail and ring up to date
 *				sums of o -> device memory
 *	last block of a head:	gated norm (a second kernel when there are more rows than a block of verification)
 *
 * Latency is all there is: 4 MB move in a microsecond, but a chain of loads, norms and 21 tokens lies between input and output. So a token's chain is
 * one dot product, two shuffles and one update. What is read after the write comes from the old state, beside the chain: S' = a S + k d, so
 * S'q = a Sq + d (k.q); and its sum over the parts waits until all tokens are through.
 *
 * Replay, plain decoding, verification and prefill below a block of the chunked form (gdn_chunk.cu) are this one code, every sum in written-out
 * order, so they agree to the bit, wherever a prompt is cut.
 *
 * Shared inputs: the blocks of a key head all read its q and k channels, old tail and ring, so these are overwritten by the last of them to say that
 * it has read them: that is early, beside the steps, and nobody waits for it.
 */
#include "kernels/cuda/gdn.cuh"

enum { COLS = GDN_SLICE, WARPS = 8, THREADS = WARPS * 32, STEPPERS = 4, PARTS = 4, KEEPERS = WARPS - STEPPERS, WINDOW = 16, TURN = WINDOW / WARPS };

/* A window's tokens, prepared, and what they leave of o. */
template <int KD> struct window {
	float k[WINDOW * KD], q[WINDOW * KD], v[WINDOW * COLS];
	float beta[WINDOW], decay[WINDOW], kq[WINDOW];
	float o[WINDOW * COLS * PARTS];
	float4 taps[2 * KD + COLS]; /* convolution weights, [q, k][channel of a lane][lane], then v */
};

/* Where a thread's work lies. Value heads of VD columns, or of any number where VD is 0. */
struct place {
	int lane, warp, head, k_head, col0, channel; /* channel: of the slice's first column among the channels of the convolution */
	int part, col; /* of a stepper, in the slice */
	int v_dim, slices;
};

template <int KD, int VD> static __device__ __forceinline__ struct place find_place(const struct gdn_args &p)
{
	struct place at;

	at.v_dim = VD ? VD : p.w.v_dim;
	at.slices = div_up(at.v_dim, COLS);
	at.lane = threadIdx.x & 31;
	at.warp = threadIdx.x / 32;
	at.k_head = blockIdx.y;
	at.head = at.k_head * p.group + blockIdx.x / at.slices;
	at.col0 = blockIdx.x % at.slices * COLS;
	at.channel = 2 * p.w.k_heads * KD + at.head * at.v_dim + at.col0;
	at.part = at.lane & 3;
	at.col = at.warp * 8 + (at.lane >> 2);
	return at;
}

template <int KD> static __device__ __forceinline__ void load_taps(const struct gdn_args &p, const struct place &at, float4 *taps)
{
	enum { N = KD / 32 };
	const float4 *w = (const float4 *)p.w.conv;

	for (int i = threadIdx.x; i < 2 * KD + COLS; i += THREADS) {
		int lane = i & 31, c = i / 32 % N, col = at.col0 + lane < at.v_dim ? lane : 0;

		taps[i] = w[i >= 2 * KD ? at.channel + col : ((i / KD) * p.w.k_heads + at.k_head) * KD + lane * N + c];
	}
}

/* A warp's raw inputs: its tokens' rows and the three before them, and what the gates are made of. */
template <int KD> struct raw {
	enum { N = KD / 32, ROWS = TURN + TD_CONV_TAIL };
	uint32_t q[ROWS][N / 2], k[ROWS][N / 2];
	bf16 v[ROWS];
	float b, a;
};

/* Tokens of a window of n that a warp prepares: one or two neighbours, which share rows. */
static __device__ __forceinline__ int turn(int n)
{
	return n > WARPS ? TURN : 1;
}

/* For n tokens from token t0 of the stream on. */
template <int KD>
static __device__ __forceinline__ void fetch(const struct gdn_args &p, const struct td_seq &s, const struct place &at, int t0, int n, struct raw<KD> &x)
{
	enum { N = raw<KD>::N };
	int first = at.warp * turn(n), last = t0 + n + TD_CONV_TAIL - 1, mine = t0 + min(first + min(at.lane, turn(n) - 1), n - 1);
	int q0 = at.k_head * KD + at.lane * N, k0 = q0 + p.w.k_heads * KD, v0 = at.channel + (at.col0 + at.lane < at.v_dim ? at.lane : 0);

	if (first >= n)
		return;
#pragma unroll
	for (int j = 0; j < raw<KD>::ROWS; j++) {
		const bf16 *row = stream_row(p, s, min(t0 + first + j, last));

		load_words<N / 2>(x.q[j], row + q0);
		load_words<N / 2>(x.k[j], row + k0);
		x.v[j] = __ldcg(row + v0);
	}
	x.b = token_ba(p, s, mine, at.head);
	x.a = token_ba(p, s, mine, p.w.v_heads + at.head);
}

/* Convolution, silu, norms and gates of what was fetched. */
template <int KD>
static __device__ __forceinline__ void prepare(const struct place &at, int n, const struct raw<KD> &in, float rate, float bias, struct window<KD> &x)
{
	enum { N = raw<KD>::N };
	int count = turn(n), first = at.warp * count;
	float u = in.a + bias;

	if (first >= n)
		return;
#pragma unroll
	for (int i = 0; i < TURN; i++) {
		int t = first + i;
		float a[N], b[N], qq = 0, kk = 0, kq = 0, v;

#pragma unroll
		for (int c = 0; c < N; c++) {
			float4 wq = x.taps[c * 32 + at.lane], wk = x.taps[KD + c * 32 + at.lane];

			a[c] = conv(wq, element(in.q[i], c), element(in.q[i + 1], c), element(in.q[i + 2], c), element(in.q[i + 3], c));
			b[c] = conv(wk, element(in.k[i], c), element(in.k[i + 1], c), element(in.k[i + 2], c), element(in.k[i + 3], c));
			qq = fmaf(a[c], a[c], qq);
			kk = fmaf(b[c], b[c], kk);
			kq = fmaf(a[c], b[c], kq);
		}
		v = conv(x.taps[2 * KD + at.lane], __bfloat162float(in.v[i]), __bfloat162float(in.v[i + 1]), __bfloat162float(in.v[i + 2]),
			 __bfloat162float(in.v[i + 3]));
		qq = rsqrtf(warp_sum(qq) + 1e-6f) * rsqrtf((float)KD);
		kk = rsqrtf(warp_sum(kk) + 1e-6f);
		kq = warp_sum(kq) * qq * kk;
		if (i >= count)
			continue;
		store_lane<N>(x.q + t * KD + at.lane * N, a, qq);
		store_lane<N>(x.k + t * KD + at.lane * N, b, kk);
		x.v[t * COLS + at.lane] = v;
		if (at.lane == 0)
			x.kq[t] = kq;
	}
	if (at.lane < count && first + at.lane < WINDOW) {
		x.beta[first + at.lane] = sigmoid(in.b);
		x.decay[first + at.lane] = expf(rate * (u > 20.0f ? u : log1pf(expf(u))));
	}
}

/*
 * n tokens on this lane's part of its column. k of a token is kept in registers from its dot product to its update, and there the next token's takes
 * its place. Each token leaves this part's share of o.
 */
template <int KD> static __device__ __forceinline__ void step(struct window<KD> &x, const struct place &at, int n, float state[KD / PARTS])
{
	enum { RUNS = KD / (4 * PARTS) };
	const float4 *k_sh = (const float4 *)x.k + at.part, *q_sh = (const float4 *)x.q + at.part;
	float4 k[RUNS];

#pragma unroll
	for (int j = 0; j < RUNS; j++)
		k[j] = k_sh[j * PARTS];
#pragma unroll 1
	for (int t = 0; t < n; t++) {
		float decay = x.decay[t], beta = x.beta[t], kq = x.kq[t], v = x.v[t * COLS + at.col], r[4] = {}, e[4] = {}, d;

		k_sh += t + 1 < n ? KD / 4 : 0;
#pragma unroll
		for (int j = 0; j < RUNS; j++) {
			r[0] = fmaf(state[j * 4], k[j].x, r[0]);
			r[1] = fmaf(state[j * 4 + 1], k[j].y, r[1]);
			r[2] = fmaf(state[j * 4 + 2], k[j].z, r[2]);
			r[3] = fmaf(state[j * 4 + 3], k[j].w, r[3]);
		}
		d = (r[0] + r[1]) + (r[2] + r[3]);
		d += __shfl_xor_sync(~0u, d, 1);
		d += __shfl_xor_sync(~0u, d, 2);
#pragma unroll
		for (int j = 0; j < RUNS; j++) {
			float4 q = q_sh[t * (KD / 4) + j * PARTS];

			e[0] = fmaf(state[j * 4], q.x, e[0]);
			e[1] = fmaf(state[j * 4 + 1], q.y, e[1]);
			e[2] = fmaf(state[j * 4 + 2], q.z, e[2]);
			e[3] = fmaf(state[j * 4 + 3], q.w, e[3]);
		}
		d = beta * fmaf(-decay, d, v);
#pragma unroll
		for (int j = 0; j < RUNS; j++) {
			state[j * 4] = fmaf(k[j].x, d, state[j * 4] * decay);
			state[j * 4 + 1] = fmaf(k[j].y, d, state[j * 4 + 1] * decay);
			state[j * 4 + 2] = fmaf(k[j].z, d, state[j * 4 + 2] * decay);
			state[j * 4 + 3] = fmaf(k[j].w, d, state[j * 4 + 3] * decay);
			k[j] = k_sh[j * PARTS];
		}
		x.o[(t * COLS + at.col) * PARTS + at.part] = fmaf(decay, (e[0] + e[1]) + (e[2] + e[3]), at.part == 0 ? d * kq : 0.0f);
	}
}

/* Two neighbouring columns of o of a window's row, from their parts. */
static __device__ __forceinline__ float2 sum_parts(const float *o_sh, int row, int col)
{
	const float4 *part = (const float4 *)(o_sh + (row * COLS + col) * PARTS);
	float4 a = part[0], b = part[1];

	return make_float2((a.x + a.y) + (a.z + a.w), (b.x + b.y) + (b.z + b.w));
}

/* Of this lane's part of a column whose first row is `kept`. */
static __device__ __forceinline__ float *state_row(float *kept, const struct place &at, int i)
{
	return kept + (size_t)((i >> 2) * 4 * PARTS + at.part * 4 + (i & 3)) * at.v_dim;
}

template <int KD> static __device__ __forceinline__ void store_state(float *kept, const struct place &at, const float state[KD / PARTS])
{
#pragma unroll
	for (int i = 0; i < KD / PARTS; i++)
		*state_row(kept, at, i) = state[i];
}

/* Arrival counters of a sequence: one for each keeper warp of a key head, one for each value head. */
static __device__ __forceinline__ unsigned *counters(const struct gdn_args &p)
{
	return p.counter + blockIdx.z * (KEEPERS * p.w.k_heads + p.w.v_heads);
}

/*
 * The warps that do not step bring tail and ring up to date: the values' channels of this block at once, as nobody else reads them; q, k, b and a by
 * the last block of the key head that comes here, for by then all have read them. Each warp counts for itself, so none waits for another.
 */
template <int KD> static __device__ __forceinline__ void keep(const struct gdn_args &p, const struct td_seq &s, const struct place &at)
{
	unsigned all = p.group * at.slices;
	int warp = at.warp - STEPPERS, i = warp * 32 + at.lane, last;
	int channel = (i < KD / 2 ? at.k_head : p.w.k_heads + at.k_head - 1) * KD + i * 2;
	struct kept k;

	static_assert(KD <= KEEPERS * 32, "a thread of the keepers has one pair of channels");
	if (i < KD)
		keep_load(p, s, channel, k);
	last = at.lane == 0 ? count_arrival(counters(p) + at.k_head * KEEPERS + warp, all) == all - 1 : 0;
	last = __shfl_sync(~0u, last, 0);
	if (last && i < KD)
		keep_store(p, s, channel, k);
	for (; last && !s.commit && i < s.rows * 2 * p.group; i += KEEPERS * 32) {
		int r = i / (2 * p.group), j = i % (2 * p.group), column = at.k_head * p.group + j + (j < p.group ? 0 : p.w.v_heads - p.group);

		p.st.ring_ba[((size_t)s.slot * TD_BLOCK_MAX + r) * 2 * p.w.v_heads + column] = read_ba(p, s.row0 + r, column);
	}
	if (warp == KEEPERS - 1 && at.lane < COLS / 2 && at.col0 + at.lane * 2 < at.v_dim) {
		keep_load(p, s, at.channel + at.lane * 2, k);
		keep_store(p, s, at.channel + at.lane * 2, k);
	}
}

/* grid (slices of a key head's value heads, k_heads, sequences) */
template <int KD, int VD> static __global__ void __launch_bounds__(THREADS, 2) gdn_kernel(const struct gdn_args p)
{
	__shared__ __align__(16) struct window<KD> x;
	struct place at = find_place<KD, VD>(p);
	int steps = at.warp < STEPPERS && at.col0 + at.col < at.v_dim, row = threadIdx.x / (COLS / 2), pair = threadIdx.x % (COLS / 2) * 2, total;
	float state[KD / PARTS] = {}, *kept, rate = -expf(p.w.a_log[at.head]), bias = p.w.dt_bias[at.head];
	int t0 = 0, n, fresh;
	struct td_seq s;
	struct raw<KD> in;

	load_taps<KD>(p, at, x.taps);
	after_previous();
	let_next_start();
	s = part_of(p.seq[blockIdx.z], p.part);
	total = s.replay + s.rows;
	if (total == 0)
		return;
	kept = p.st.s + ((size_t)s.slot * p.w.v_heads + at.head) * KD * at.v_dim + at.col0 + at.col;
#pragma unroll
	for (int i = 0; i < KD / PARTS; i++)
		if (steps)
			state[i] = __ldcg(state_row(kept, at, i));
	do { /* the last window of a sequence without new rows is empty */
		fresh = t0 >= s.replay;
		n = min((fresh ? total : s.replay) - t0, (int)WINDOW);
		fetch<KD>(p, s, at, t0, n, in);
		if (steps && !s.commit && t0 && t0 == s.replay)
			store_state<KD>(kept, at, state);
		if (t0 == 0)
			__syncthreads(); /* the taps */
		prepare<KD>(at, n, in, rate, bias, x);
		__syncthreads();
		if (at.warp < STEPPERS)
			step<KD>(x, at, n, state);
		else if (t0 == s.replay)
			keep<KD>(p, s, at);
		__syncthreads();
		if (fresh && row < n && at.col0 + pair < at.v_dim)
			*(float2 *)(p.o + ((size_t)(s.row0 + t0 - s.replay + row) * p.w.v_heads + at.head) * at.v_dim + at.col0 + pair) =
				sum_parts(x.o, row, pair);
		t0 += n;
	} while (!fresh || t0 < total);
	if (steps && s.commit)
		store_state<KD>(kept, at, state);
	if (p.norm_here && last_to_arrive(counters(p) + KEEPERS * p.w.k_heads + at.head, at.slices))
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
	if (p.ld % 4 || p.ld_out % 2 || p.channels % 4 || w->v_dim % 2 || w->v_dim > 256 || (uintptr_t)p.qkvz % 8) {
		td__cuda_fail(dev, TD_E_UNSUPPORTED, "gdn: rows of %d values, %d channels and value heads of %d don't fit loads of four values", p.ld,
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

/* One part of all sequences by the step form. */
static void run_part(struct td_dev *dev, struct gdn_args &p, const struct td_batch *b, int rows)
{
	dim3 grid(p.group * div_up(p.w.v_dim, COLS), p.w.k_heads, b->n_seq);

	p.norm_here = rows <= TD_BLOCK_MAX;
	if (p.w.k_dim == 128 && p.w.v_dim == 128)
		td__cuda_launch(dev, "gdn", gdn_kernel<128, 128>, grid, THREADS, 0, p);
	else if (p.w.k_dim == 128)
		td__cuda_launch(dev, "gdn", gdn_kernel<128, 0>, grid, THREADS, 0, p);
	else
		td__cuda_launch(dev, "gdn", gdn_kernel<64, 0>, grid, THREADS, 0, p);
	if (!p.norm_here)
		td__cuda_launch(dev, "gdn", norm_kernel, dim3(rows, div_up(p.w.v_heads, WARPS), b->n_seq), THREADS, 0, p);
}

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
	p.channels = 2 * w->k_heads * w->k_dim + w->v_heads * w->v_dim;
	p.counter = dev->counters;
	if (!fits(dev, p, b, qkvz, ba, out))
		return;
	bytes = (size_t)qkvz.rows * w->v_heads * w->v_dim * sizeof(float);
	chunk_bytes = longest(b, GDN_BLOCKS) > 0 ? td__cuda_gdn_chunk_bytes(dev, p, b->n_rows) : 0;
	p.o = (float *)td__cuda_scratch(dev, bytes > chunk_bytes ? bytes : chunk_bytes);
	if (!p.o)
		return;
	for (p.part = GDN_BEFORE; p.part <= GDN_AFTER; p.part++) {
		int rows = longest(b, p.part);

		if (p.part == GDN_BLOCKS && chunk_bytes)
			td__cuda_gdn_chunk(dev, p, b, rows);
		else if (rows >= 0)
			run_part(dev, p, b, rows);
	}
}
