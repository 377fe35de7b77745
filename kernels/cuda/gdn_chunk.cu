/*
 * gdn_chunk.cu: the Gated DeltaNet layer over whole blocks of a prompt: 64 tokens at once, by matrix products (qwen35 3.5).
 *
 * With G the sums of log-decays inside a chunk and L_ij = exp(G_i - G_j) for i >= j, a chunk that starts with state S is
 *
 *	A = beta_i (k_i . k_j) L_ij below the diagonal, T = (I + A)^-1		W = T (beta exp(G) K)	U = T (beta V)
 *	D = U - W S	O = exp(G) (Q S) + ((Q K^T) L) D	S' = exp(G_last) S + (exp(G_last - G) K)^T D
 *
 * Only D, O and S' depend on the chunk before, so the work is three kernels:
 *
 *	local	(gdn_local.cu) per chunk and key head: convolution, norms, gates, then for each of its value heads A, T, W, U and P = (Q K^T) L
 *	scan	a block per value head and some groups of 16 columns of its state, from the first chunk to the last. Half of the warps carry the state, a
 *		group each: it stays in registers, transposed, so that a sum's fragment is the next product's operand as it is. The others make O of the
 *		chunk before, from copies of state and D that the first leave in shared memory. One barrier a chunk; copies run one chunk ahead.
 *		Where warpgroups multiply, gdn_scan.cu does that.
 *	norm	a warp per row and head: the gated norm, in place
 *
 * What goes from one to the next lies in scratch memory in the order of fragments of mma.m16n8k16: each load is 16 bytes a lane, side by side.
 *
 * Rounding. Operands are halves (11 bits), not bf16 (8): normalised q and k, entries of T, W and P are at most 1 in size; V, U, D and the copy of S
 * that is read have the size of activations, and saturate. S itself and all sums are float32, so errors don't pile up from chunk to chunk: a chunk
 * reads S with a relative error of 2^-12 and the rule itself corrects what it then writes. (Half of an output's error is its rounding to bf16.)
 *
 * What must never happen: exp(-G), which overflows: differences are formed first. A chunk that starts elsewhere than at a multiple of 64 positions, or
 * a result that depends on where the run of blocks starts or ends: a prompt cut at other blocks must give the same bits.
 */
#include "kernels/cuda/gdn_chunk.cuh"

enum {
	PIECE = 8, GROUP_PIECE = 16, /* chunks from one launch to the next */
	NORM_ROWS = 4, /* of a warp */
	NORM_WARPS = 8,
};

/* ---- scan -------------------------------------------------------------------------------------------------------------------------- */

/* In shared memory: of a chunk for the state W, K, exp(G_last - G) and the end of exp(G); of the chunk before for the outputs Q, P and exp(G). */
template <int KD> struct stage {
	uint4 w[KD * N / 8], k[KD * N / 8], q[KD * N / 8], p[P_UNITS * 32];
	float left[N], last[4], since[N]; /* last follows left: one copy of 17 times 16 bytes */
};
/* Left by a warp of the state for its companion: operands of S^T and of D^T. */
template <int KD> struct handed {
	uint4 s[KD / 16][32], d[4][32];
};
template <int KD> static size_t scan_bytes(int groups, int stages)
{
	return stages * sizeof(struct stage<KD>) + 2 * groups * sizeof(struct handed<KD>);
}

/* Where this lane's copies for chunk 0 of a launch start, and how far chunks lie apart: the addresses are made once. */
struct sources {
	const char *w, *k, *q, *p, *decay;
	size_t head_step, key_step, p_step;
};
template <int KD> static __device__ __forceinline__ struct sources find_sources(const struct chunk_args &c, size_t first, int head, int k_head, int lane)
{
	size_t at = first * c.g.w.v_heads + head, key = first * c.g.w.k_heads + k_head;
	struct sources x;

	x.w = (const char *)(w_of(c, at) + lane);
	x.k = (const char *)(c.k + key * (KD / 4) * 32 + lane);
	x.q = (const char *)(c.q + key * (KD / 4) * 32 + lane);
	x.p = (const char *)(c.p + at * P_ROOM * 32 + lane);
	x.decay = (const char *)decays_of(c, at);
	x.head_step = (size_t)c.g.w.v_heads * (KD / 4 + 1) * 512;
	x.key_step = (size_t)c.g.w.k_heads * (KD / 4) * 512;
	x.p_step = (size_t)c.g.w.v_heads * P_ROOM * 512;
	return x;
}

/* BYTES by LANES threads */
template <int BYTES, int LANES> static __device__ __forceinline__ void fetch(uint32_t to, const char *from, int lane)
{
#pragma unroll
	for (int i = 0; i < BYTES; i += LANES * 16)
		if (i + LANES * 16 <= BYTES || i + lane * 16 < BYTES)
			copy16_to(to + i, from + i);
}

/* Copies for the state's chunk i and for the outputs' chunk i - 1, by the LANES threads that make outputs: the state is the longer chain. */
template <int KD, int LANES>
static __device__ __forceinline__ void fetch_stage(const struct sources &x, struct stage<KD> *to, int i, int n, int lane)
{
	enum { OPERAND = KD * N * 2, SMALL = N * 4 };
	uint32_t own = lane * 16;

	if (i < n) {
		const char *decay = x.decay + i * x.head_step;

		fetch<OPERAND, LANES>(shared_address(to->w) + own, x.w + i * x.head_step, lane);
		fetch<OPERAND, LANES>(shared_address(to->k) + own, x.k + i * x.key_step, lane);
		if (lane <= SMALL / 16)
			copy16_to(shared_address(to->left) + own, lane < SMALL / 16 ? decay + SMALL + own : decay + SMALL - 16);
	}
	if (i > 0) {
		fetch<OPERAND, LANES>(shared_address(to->q) + own, x.q + (i - 1) * x.key_step, lane);
		fetch<P_UNITS * 512, LANES>(shared_address(to->p) + own, x.p + (i - 1) * x.p_step, lane);
		if (lane < SMALL / 16)
			copy16_to(shared_address(to->since) + own, x.decay + (i - 1) * x.head_step + own);
	}
	copy_commit();
}

/* Four units to registers. Asked for a step before they are used: left to itself the compiler waits for each load where it stands. */
static __device__ __forceinline__ void take(uint4 b[4], uint32_t sh)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		b[i] = load16(sh + i * 512);
}

/* r[token tile] = (state)^T x^T, x = W or Q, whose units of this lane start at x_sh */
template <int KD> static __device__ __forceinline__ void times_state(const uint32_t (*s)[4], uint32_t x_sh, float r[N / 8][4])
{
	uint4 b[2][4];

	take(b[0], x_sh);
#pragma unroll
	for (int d = 0; d < KD / 16; d++) {
		if (d + 1 < KD / 16)
			take(b[(d + 1) & 1], x_sh + (d + 1) * 4 * 512);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			mma_half(r[2 * i], s[d], b[d & 1][i].x, b[d & 1][i].y);
			mma_half(r[2 * i + 1], s[d], b[d & 1][i].z, b[d & 1][i].w);
		}
	}
}

/* One chunk on 16 columns of the state. u: this lane's words of U. */
template <int KD>
static __device__ __forceinline__ void advance(const struct stage<KD> *x, struct handed<KD> *out, float state[KD / 8][4], const uint4 u[4])
{
	int lane = threadIdx.x & 31;
	uint32_t s[KD / 16][4], a[4][4];
	float r[N / 8][4] = {}, decay = x->last[3];
	uint32_t k_sh = shared_address(x->k + lane);
	uint4 b[2][4];

#pragma unroll
	for (int d = 0; d < KD / 16; d++) {
		operand(s[d], state[2 * d], state[2 * d + 1]);
		out->s[d][lane] = make_uint4(s[d][0], s[d][1], s[d][2], s[d][3]);
	}
	times_state<KD>(s, shared_address(x->w + lane), r);
	take(b[0], k_sh);
#pragma unroll
	for (int j = 0; j < 4; j++) {
		float2 left[2];

		take_from_u(u[j], r + 2 * j);
		operand(a[j], r[2 * j], r[2 * j + 1]);
		out->d[j][lane] = make_uint4(a[j][0], a[j][1], a[j][2], a[j][3]);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			float *d = r[2 * j + n];

			left[n] = *(const float2 *)&x->left[(2 * j + n) * 8 + (lane & 3) * 2];
			d[0] *= left[n].x;
			d[1] *= left[n].y;
			d[2] *= left[n].x;
			d[3] *= left[n].y;
		}
		operand(a[j], r[2 * j], r[2 * j + 1]);
	}
#pragma unroll
	for (int d = 0; d < KD / 8; d++)
#pragma unroll
		for (int n = 0; n < 4; n++)
			state[d][n] *= decay;
#pragma unroll
	for (int n = 0; n < KD / 16; n++) {
		int j = n / (KD / 64), d0 = n % (KD / 64) * 4;

		if (n + 1 < KD / 16)
			take(b[(n + 1) & 1], k_sh + (n + 1) * 4 * 512);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			mma_half(state[2 * (d0 + i)], a[j], b[n & 1][i].x, b[n & 1][i].y);
			mma_half(state[2 * (d0 + i) + 1], a[j], b[n & 1][i].z, b[n & 1][i].w);
		}
	}
}

/* O of a chunk on 16 columns; to the rows from `row` on, as halves in the place of the layer's output. */
template <int KD>
static __device__ __forceinline__ void outputs(const struct gdn_args &p, const struct stage<KD> *x, const struct handed<KD> *in, int row, int head,
					       int col)
{
	int lane = threadIdx.x & 31;
	bf16 *to = outputs_of(p, row, head, col);
	uint32_t s[KD / 16][4], a[4][4], pair[N / 8][2];
	float r[N / 8][4] = {};
	uint4 b[P_UNITS];

#pragma unroll
	for (int d = 0; d < KD / 16; d++)
		*(uint4 *)s[d] = in->s[d][lane];
	times_state<KD>(s, shared_address(x->q + lane), r);
#pragma unroll
	for (int j = 0; j < 4; j++)
		*(uint4 *)a[j] = in->d[j][lane];
#pragma unroll
	for (int n = 0; n < P_UNITS; n++) {
		int j = (n >= 4) + (n >= 7) + (n >= 9), i = j + n - (j > 0 ? 4 : 0) - (j > 1 ? 3 : 0) - (j > 2 ? 2 : 0);

		b[n] = load16(shared_address(x->p + unit_block(i, j) * 32 + lane));
	}
#pragma unroll
	for (int n = 0; n < N / 8; n++) {
		float2 e = *(const float2 *)&x->since[n * 8 + (lane & 3) * 2];

		r[n][0] *= e.x;
		r[n][1] *= e.y;
		r[n][2] *= e.x;
		r[n][3] *= e.y;
	}
#pragma unroll
	for (int n = 0; n < P_UNITS; n++) { /* from all of the first block of columns on, so that sums of one tile don't follow each other */
		int j = (n >= 4) + (n >= 7) + (n >= 9), i = j + n - (j > 0 ? 4 : 0) - (j > 1 ? 3 : 0) - (j > 2 ? 2 : 0);

		mma_half(r[2 * i], a[j], b[n].x, b[n].y);
		mma_half(r[2 * i + 1], a[j], b[n].z, b[n].w);
	}
	words_of_tokens(r, pair);
	if (col + 16 <= p.w.v_dim) {
#pragma unroll
		for (int n = 0; n < N / 8; n++)
#pragma unroll
			for (int h = 0; h < 2; h++)
				*(uint32_t *)(to + (size_t)n * 8 * p.ld_out + h * 8) = pair[n][h];
	} else {
#pragma unroll
		for (int h = 0; h < 2; h++)
			if (col + h * 8 + (lane >> 2 & 6) < p.w.v_dim)
#pragma unroll
				for (int n = 0; n < N / 8; n++)
					*(uint32_t *)(to + (size_t)n * 8 * p.ld_out + h * 8) = pair[n][h];
	}
}

/* grid (v_heads * slices of GROUPS groups of columns, sequences), 2 * GROUPS warps */
template <int KD, int GROUPS> static __global__ void __launch_bounds__(GROUPS * 64) scan_kernel(const struct chunk_args c)
{
	extern __shared__ __align__(16) uint4 scan_sh[];
	struct stage<KD> *stages = (struct stage<KD> *)scan_sh;
	struct handed<KD> *hand = (struct handed<KD> *)(stages + c.stages); /* (2, GROUPS) */
	struct td_seq s;
	const struct gdn_args &p = c.g;
	struct sources x;
	int warp = threadIdx.x / 32, slices = div_up(c.groups, GROUPS), head = blockIdx.x / slices, lane = threadIdx.x - GROUPS * 32,
	    carries = warp < GROUPS, group = blockIdx.x % slices * GROUPS + warp % GROUPS, k_head = head / p.group, n;
	float *kept;
	float state[KD / 8][4];
	size_t first;
	uint4 u[4] = {}, next[4] = {};

	after_previous();
	let_next_start(); /* not earlier: the next kernel is the next piece's `local`, which reads what was there before this one began */
	s = part_of(p.seq[blockIdx.y], ROWS_BLOCKS);
	n = min(s.rows / N - c.chunk0, c.count);
	if (n <= 0)
		return;
	first = first_place(c, s);
	s.row0 += c.chunk0 * N;
	s.rows -= c.chunk0 * N;
	if (s.rows == n * N)
		keep_tail(p, s);
	kept = p.st.s + ((size_t)s.slot * p.w.v_heads + head) * KD * p.w.v_dim;
	x = find_sources<KD>(c, first, head, k_head, lane);
	if (c.stages == 2 && !carries)
		fetch_stage<KD, GROUPS * 32>(x, stages, 0, n, lane);
	if (carries)
		move_state<KD, false>(kept, p.w.v_dim, group * 16, state);
	if (carries && group < c.groups)
		take_u(c, first, head, group, next);
	for (int i = 0; i <= n; i++) {
		struct stage<KD> *now = stages + (c.stages == 2 ? i & 1 : 0);
		struct handed<KD> *mine = hand + (i & 1) * GROUPS + warp % GROUPS, *theirs = hand + (~i & 1) * GROUPS + warp % GROUPS;

		if (c.stages == 1) {
			__syncthreads();
			if (!carries)
				fetch_stage<KD, GROUPS * 32>(x, now, i, n, lane);
		}
		copy_wait<0>();
		__syncthreads();
		if (c.stages == 2 && i < n && !carries)
			fetch_stage<KD, GROUPS * 32>(x, stages + (~i & 1), i + 1, n, lane);
		if (group >= c.groups)
			continue;
		if (carries && i < n) {
#pragma unroll
			for (int j = 0; j < 4; j++)
				u[j] = next[j];
			take_u(c, first + (i + 1 < n ? i + 1 : i), head, group, next);
			advance<KD>(now, mine, state, u);
		}
		if (!carries && i > 0)
			outputs<KD>(p, now, theirs, s.row0 + (i - 1) * N, head, group * 16);
	}
	if (carries)
		move_state<KD, true>(kept, p.w.v_dim, group * 16, state);
}

/* ---- norm -------------------------------------------------------------------------------------------------------------------------- */

/* grid (rows of a run / 32, v_heads, sequences). Four columns a lane; all rows are loaded before the first is written. */
static __global__ void __launch_bounds__(NORM_WARPS * 32) chunk_norm_kernel(const struct chunk_args c)
{
	const struct gdn_args &p = c.g;
	struct td_seq s;
	int lane = threadIdx.x & 31, head = blockIdx.y, col = lane * 4, there = col < p.w.v_dim, row;
	float4 w = there ? *(const float4 *)(p.w.norm + col) : make_float4(0, 0, 0, 0);
	uint2 o[NORM_ROWS], z[NORM_ROWS];

	let_next_start();
	after_previous();
	s = part_of(p.seq[blockIdx.z], ROWS_BLOCKS);
	row = (blockIdx.x * NORM_WARPS + threadIdx.x / 32) * NORM_ROWS;
	if (row >= s.rows)
		return;
	row += s.row0;
#pragma unroll
	for (int i = 0; i < NORM_ROWS; i++) {
		o[i] = z[i] = make_uint2(0, 0);
		if (there) {
			o[i] = *(const uint2 *)(p.out + (size_t)(row + i) * p.ld_out + head * p.w.v_dim + col);
			z[i] = *(const uint2 *)(p.qkvz + (size_t)(row + i) * p.ld + p.channels + head * p.w.v_dim + col);
		}
	}
#pragma unroll
	for (int i = 0; i < NORM_ROWS; i++) {
		float2 a = __half22float2(*(const __half2 *)&o[i].x), b = __half22float2(*(const __half2 *)&o[i].y);
		float scale = rsqrtf(warp_sum(a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y) / p.w.v_dim + p.w.eps);

		if (there)
			*(uint2 *)(p.out + (size_t)(row + i) * p.ld_out + head * p.w.v_dim + col) =
				make_uint2(bf16_pair(a.x * scale * w.x * silu(bf16_lo(z[i].x)), a.y * scale * w.y * silu(bf16_hi(z[i].x))),
					   bf16_pair(b.x * scale * w.z * silu(bf16_lo(z[i].y)), b.y * scale * w.w * silu(bf16_hi(z[i].y))));
	}
}

/* ---- launch ------------------------------------------------------------------------------------------------------------------------ */

template <int KD, int GROUPS> static void scan(struct td_dev *dev, const struct chunk_args &c, int n_seq)
{
	size_t bytes = scan_bytes<KD>(GROUPS, c.stages);

	td__cuda_shared(dev, scan_kernel<KD, GROUPS>, bytes);
	td__cuda_launch(dev, "gdn: scan over chunks", scan_kernel<KD, GROUPS>, dim3(c.g.w.v_heads * div_up(c.groups, GROUPS), n_seq), GROUPS * 64, bytes, c);
}

/*
 * Pieces of a few chunks, for the machine to be full: a piece's `scan` leaves half of it free, and the next piece's `local`, which needs nothing of it, runs
 * there. So `local` waits for the kernel before it at its end, not at its beginning (but for the first one): what it reads was there before the scan
 * before it said that the next may start, and the scan after it then finds that scan's work, too. So two pieces are in work at a time, and a single
 * sequence has room for two alone, which stay in the L2 cache and are seldom written to memory.
 *
 * Blocks of 64 columns read each operand for twice as many columns as those of 32; where shared memory is small, there is room for these alone.
 */
template <int KD> static void run(struct td_dev *dev, struct chunk_args &c, const struct td_batch *b, int rows)
{
	int piece = c.matrices ? GROUP_PIECE : PIECE;

	c.stages = scan_bytes<KD>(4, 2) <= dev->shared_max ? 2 : 1;
	c.ring = b->n_seq == 1 ? 2 * piece : 0;
	for (c.chunk0 = 0; c.chunk0 < rows / N; c.chunk0 += c.count) {
		c.count = rows / N - c.chunk0 < piece ? rows / N - c.chunk0 : piece;
		td__cuda_gdn_local(dev, c, b->n_seq);
		if (c.matrices)
			td__cuda_gdn_scan(dev, c, b->n_seq);
		else if (c.stages == 2)
			scan<KD, 4>(dev, c, b->n_seq);
		else
			scan<KD, 2>(dev, c, b->n_seq);
	}
	td__cuda_launch(dev, "gdn: norm of chunks", chunk_norm_kernel, dim3(rows / (NORM_WARPS * NORM_ROWS), c.g.w.v_heads, b->n_seq), NORM_WARPS * 32, 0,
			c);
}

/* Scratch memory of a batch of `rows` in this form; 0: these sizes are left to the step form. */
size_t td__cuda_gdn_chunk_bytes(const struct td_dev *dev, const struct gdn_args &p, int rows)
{
	struct chunk_args c;

	c.g = p;
	c.groups = div_up(p.w.v_dim, 16);
	c.together = 1;
	if (p.w.v_dim % 4 || p.w.v_dim > 128 || p.group > GDN_LOCAL_GROUP || p.ld_out % 4 || (uintptr_t)p.out % 8 ||
	    td__cuda_gdn_local_bytes(c) > dev->shared_max)
		return 0;
	return td_scratch_gdn(rows, p.w.k_heads, p.w.v_heads, p.w.k_dim, p.w.v_dim);
}

/* The ROWS_BLOCKS part of all sequences of the batch; the longest has `rows`. p.o is the scratch memory. */
void td__cuda_gdn_chunk(struct td_dev *dev, const struct gdn_args &p, const struct td_batch *b, int rows)
{
	size_t chunks = (size_t)b->n_rows / N + 1, keys = chunks * p.w.k_heads * (p.w.k_dim / 4) * 32, heads = chunks * p.w.v_heads;
	struct chunk_args c;

	c.g = p;
	c.groups = div_up(p.w.v_dim, 16);
	c.q = (uint4 *)p.o;
	c.k = c.q + keys;
	c.w = c.k + keys;
	c.u = c.w + heads * (p.w.k_dim / 4 + 1) * 32;
	c.p = c.u + heads * c.groups * 4 * 32;
	c.matrices = td__cuda_gdn_scans(dev, p);
	c.together = p.group > 1 ? 2 : 1;
	if (td__cuda_gdn_local_bytes(c) > dev->shared_max)
		c.together = 1;
	if (p.w.k_dim == 128)
		run<128>(dev, c, b, rows);
	else
		run<64>(dev, c, b, rows);
}
