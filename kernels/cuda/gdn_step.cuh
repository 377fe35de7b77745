/*
 * gdn_step.cuh: what the two step forms of the Gated DeltaNet layer share, gdn.cu for few sequences and gdn_many.cu for many: a block's shared memory, its
 * inputs, the preparation of tokens, dot products with the state.
 *
 * Both give the same bits: a state's column is dealt to PARTS lanes, each with every PARTS-th run of four rows, whatever else the lane has, and a sum over
 * the rows is that of a lane's own in the order of times(), then of lanes that are 1, 2 and 4 apart. So rows may come in either form at any time.
 */
#ifndef TD_CUDA_GDN_STEP_CUH
#define TD_CUDA_GDN_STEP_CUH

#include "kernels/cuda/gdn.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, PARTS = 8, WINDOW = 16, ROWS = TD_CONV_TAIL + 2 * WINDOW };

/*
 * A block's inputs in shared memory: rows of the stream (stream_row), [q | k | v of the slice | z of the slice] in pieces of eight channels, of which tail
 * and ring have the first KEPT; convolution weights, [q, k][channel of a lane][lane], then v.
 */
template <int KD, int COLS> struct inputs {
	enum { KEPT = (2 * KD + COLS) / 8, PIECES = KEPT + COLS / 8 };
	uint4 raw[ROWS * PIECES];
	float4 taps[2 * KD + COLS];
};

/* Where a thread's work lies. Value heads of VD columns, or of any number where VD is 0; slices of COLS. The kernels fill in col. */
struct place {
	int lane, warp, head, k_head, col0, channel; /* channel: of the slice's first column among the channels of the convolution */
	int part, col; /* of a lane that steps: where its columns begin in the slice */
	int v_dim, slices;
};

template <int KD, int VD, int COLS> static __device__ __forceinline__ struct place find_place(const struct gdn_args &p)
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
	return at;
}

template <int KD, int COLS>
static __device__ __forceinline__ void load_weights(const struct gdn_args &p, const struct place &at, struct inputs<KD, COLS> &x)
{
	enum { C = KD / 32 };
	const float4 *w = (const float4 *)p.w.conv;

#pragma unroll
	for (int i = threadIdx.x; i < 2 * KD + COLS; i += THREADS) {
		int c = (i & 31) * C + i / 32 % C, col = at.col0 + i - 2 * KD < at.v_dim ? i - 2 * KD : 0;

		copy16(&x.taps[i], &w[i >= 2 * KD ? at.channel + col : ((i / KD) * p.w.k_heads + at.k_head) * KD + c]);
	}
}

/* Column of a piece of a row of qkvz, or -1 where the slice is narrower. */
template <int KD, int COLS> static __device__ __forceinline__ int piece_column(const struct gdn_args &p, const struct place &at, int piece)
{
	int i = piece % inputs<KD, COLS>::KEPT * 8 - (piece < inputs<KD, COLS>::KEPT ? 2 * KD : 0);

	if (i < 0)
		return (piece * 8 < KD ? at.k_head : p.w.k_heads + at.k_head - 1) * KD + piece * 8;
	if (at.col0 + i >= at.v_dim)
		return -1;
	return i + (piece < inputs<KD, COLS>::KEPT ? at.channel : p.channels + at.head * at.v_dim + at.col0);
}

/* What a lane's gate is made of, as it stands in memory: b of token t0 + lane of the stream in the first half of a warp, a in its second. */
struct gate_word {
	uint32_t word;
	int f32, odd;
};

static __device__ __forceinline__ struct gate_word load_gate(const struct gdn_args &p, const struct td_seq &s, const struct place &at, int t0, int n)
{
	int i = t0 + max(min(at.lane % WINDOW, n - 1), 0), column = at.head + at.lane / WINDOW * p.w.v_heads;
	struct gate_word g;

	g.word = token_ba_word(p, s, i, column, &g.odd, &g.f32);
	return g;
}

/* Decay, beta, -decay * beta of sixteen tokens. */
static __device__ __forceinline__ void make_gates(const struct place &at, struct gate_word g, float rate, float bias, float4 *gate)
{
	float v = either(g.word, g.odd, g.f32), beta = sigmoid(v), u = v + bias, decay = expf(rate * (u > 20.0f ? u : log1pf(expf(u))));

	decay = __shfl_xor_sync(~0u, decay, WINDOW);
	if (at.lane < WINDOW)
		gate[at.lane] = make_float4(decay, beta, -decay * beta, 0);
}

/*
 * Convolution, silu and norm of q or k of N tokens, of which the first one's rows begin at row `row`, into lines from `line` on, by a warp. Neighbours
 * share weights and rows: what they cost is mostly reads of shared memory. Behind a window's last token stands whatever was there, and nobody reads what
 * becomes of it.
 */
template <int N, int KD, int COLS>
static __device__ __forceinline__ void prepare(const struct place &at, const struct inputs<KD, COLS> &x, int row, int is_k, float *line)
{
	enum { C = KD / 32 };
	const bf16 *rows = (const bf16 *)(x.raw + row * inputs<KD, COLS>::PIECES) + is_k * KD + at.lane * C;
	const float4 *taps = x.taps + is_k * KD + at.lane;
	float *to = line + at.lane * C, scale = is_k ? 1.0f : rsqrtf((float)KD);
	uint32_t w[TD_CONV_TAIL + N][C / 2];
	float a[N][C], sum[N] = {};

#pragma unroll
	for (int j = 0; j < TD_CONV_TAIL + N; j++)
		copy_words<C / 2>(w[j], rows + j * inputs<KD, COLS>::PIECES * 8);
#pragma unroll
	for (int c = 0; c < C; c++) {
		float4 tap = taps[c * 32];

#pragma unroll
		for (int i = 0; i < N; i++) {
			a[i][c] = conv(tap, element(w[i], c), element(w[i + 1], c), element(w[i + 2], c), element(w[i + 3], c));
			sum[i] = fmaf(a[i][c], a[i][c], sum[i]);
		}
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		sum[i] = rsqrtf(warp_sum(sum[i]) + 1e-6f) * scale;
#pragma unroll
	for (int i = 0; i < N; i++)
		store_lane<C>(to + i * KD, a[i], sum[i]);
}

/* The same of values, which have no norm: 32 columns from col on. */
template <int N, int KD, int COLS>
static __device__ __forceinline__ void prepare_values(const struct place &at, const struct inputs<KD, COLS> &x, int row, int col, float *line)
{
	const bf16 *rows = (const bf16 *)(x.raw + row * inputs<KD, COLS>::PIECES) + 2 * KD + col + at.lane;
	float4 w = x.taps[2 * KD + col + at.lane];
	float v[TD_CONV_TAIL + N];

#pragma unroll
	for (int j = 0; j < TD_CONV_TAIL + N; j++)
		v[j] = __bfloat162float(rows[j * inputs<KD, COLS>::PIECES * 8]);
#pragma unroll
	for (int i = 0; i < N; i++)
		line[i * COLS + col + at.lane] = conv(w, v[i], v[i + 1], v[i + 2], v[i + 3]);
}

template <int KD> static __device__ __forceinline__ void load_line(float4 to[KD / (4 * PARTS)], const float4 *from)
{
#pragma unroll
	for (int j = 0; j < KD / (4 * PARTS); j++)
		to[j] = from[j * PARTS];
}

/* This lane's part of a line times its columns, in CHAINS sums each. */
template <int KD, int OWN, int CHAINS>
static __device__ __forceinline__ void times(float r[OWN], const float4 k[KD / (4 * PARTS)], const float state[OWN][KD / PARTS])
{
	float second[OWN] = {};

#pragma unroll
	for (int c = 0; c < OWN; c++)
		r[c] = 0;
#pragma unroll
	for (int j = 0; j < KD / (4 * PARTS); j++)
#pragma unroll
		for (int c = 0; c < OWN; c++) {
			float &other = CHAINS == 1 ? r[c] : second[c];

			r[c] = fmaf(state[c][j * 4], k[j].x, r[c]);
			other = fmaf(state[c][j * 4 + 1], k[j].y, other);
			r[c] = fmaf(state[c][j * 4 + 2], k[j].z, r[c]);
			other = fmaf(state[c][j * 4 + 3], k[j].w, other);
		}
#pragma unroll
	for (int c = 0; c < OWN && CHAINS > 1; c++)
		r[c] += second[c];
}

/* A lane's part of the state from one token to the next: S' = decay * S + k d */
template <int KD, int OWN>
static __device__ __forceinline__ void update(float state[OWN][KD / PARTS], const float4 k[KD / (4 * PARTS)], float decay, const float d[OWN])
{
#pragma unroll
	for (int j = 0; j < KD / (4 * PARTS); j++)
#pragma unroll
		for (int c = 0; c < OWN; c++) {
			state[c][j * 4] = fmaf(k[j].x, d[c], state[c][j * 4] * decay);
			state[c][j * 4 + 1] = fmaf(k[j].y, d[c], state[c][j * 4 + 1] * decay);
			state[c][j * 4 + 2] = fmaf(k[j].z, d[c], state[c][j * 4 + 2] * decay);
			state[c][j * 4 + 3] = fmaf(k[j].w, d[c], state[c][j * 4 + 3] * decay);
		}
}

#endif
