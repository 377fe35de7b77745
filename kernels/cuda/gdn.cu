/*
 * gdn.cu: the Gated DeltaNet layer in one launch: causal convolution, silu, L2 norms, gates, delta rule, gated norm (qwen35 3.4, 3.8).
 *
 * Work: the columns of a state matrix (k_dim, v_dim) evolve apart from each other, so a block owns 32 columns of one value head of one sequence
 * and keeps them in registers from the first token to the last: lane (part, col) of a warp holds every fourth run of four rows of one column.
 *
 *	for each window of 16 tokens (replay rows first, then the new rows):
 *		prepare	a warp takes 4 tokens: all inputs at once, then convolution and silu of q, k and v, norms, gates -> shared memory
 *		advance	token by token, without a barrier: both reads of the old state, then delta, o and the new state
 *	after the replay rows the state is stored (that is the lazy commit); after the new rows only when they are final
 *
 * Replay, plain decoding, verification and prefill are this one loop, so they agree to the bit, wherever a prompt is cut. (The chunked form with
 * matrix products would be faster for prefill and round otherwise.) The read after the write is taken from the old state, which shortens the chain
 * from token to token by half: S' = a S + k d, so S'q = a Sq + d (k.q).
 *
 * Shared inputs: the blocks of a key head all read its q and k channels, old tail and ring, so these are overwritten by the last of them to finish.
 * The gated norm needs whole heads: the last block of a head applies it, or, with more rows than a block of verification, a second kernel.
 */
#include "kernels/cuda/gdn.cuh"

enum { COLS = 32, THREADS = 128, WARPS = THREADS / 32, WINDOW = 16, TURN = WINDOW / WARPS };

/* Convolution weights of a lane's channels: KD / 32 neighbours of q and of k, one of v. */
template <int KD> struct taps {
	float4 q[KD / 32], k[KD / 32], v;
};

/* A window's inputs. */
template <int KD> struct window {
	float q[WINDOW * KD], k[WINDOW * KD], v[WINDOW * COLS];
	float beta[WINDOW], decay[WINDOW], kq[WINDOW];
};

/* This warp's share of n tokens from token t0 of the stream on. */
template <int KD> static __device__ __forceinline__ void prepare(const struct gdn_args &p, const struct td_seq &s, struct window<KD> &x,
								 const struct taps<KD> &w, int t0, int n, int head, int col0)
{
	enum { N = KD / 32, ROWS = TURN + TD_CONV_TAIL };
	int lane = threadIdx.x & 31, first = threadIdx.x / 32 * TURN, k_head = head / (p.w.v_heads / p.w.k_heads),
	    last = s.replay + s.rows + TD_CONV_TAIL - 1;
	int q0 = k_head * KD + lane * N, k0 = q0 + p.w.k_heads * KD,
	    v0 = 2 * p.w.k_heads * KD + head * p.w.v_dim + (col0 + lane < p.w.v_dim ? col0 + lane : 0);
	uint32_t q[ROWS][N / 2], k[ROWS][N / 2];
	bf16 v[ROWS];

	if (first >= n)
		return;
#pragma unroll
	for (int j = 0; j < ROWS; j++) {
		const bf16 *row = stream_row(p, s, min(t0 + first + j, last));

		load_words<N / 2>(q[j], row + q0);
		load_words<N / 2>(k[j], row + k0);
		v[j] = row[v0];
	}
	if (lane < TURN && first + lane < n) {
		float u = token_ba(p, s, t0 + first + lane, p.w.v_heads + head) + p.w.dt_bias[head];

		x.beta[first + lane] = sigmoid(token_ba(p, s, t0 + first + lane, head));
		x.decay[first + lane] = expf(-expf(p.w.a_log[head]) * (u > 20.0f ? u : log1pf(expf(u))));
	}
#pragma unroll
	for (int i = 0; i < TURN; i++) {
		int t = first + i;
		float a[N], b[N], qq = 0, kk = 0, kq = 0;

#pragma unroll
		for (int c = 0; c < N; c++) {
			a[c] = conv(w.q[c], element(q[i], c), element(q[i + 1], c), element(q[i + 2], c), element(q[i + 3], c));
			b[c] = conv(w.k[c], element(k[i], c), element(k[i + 1], c), element(k[i + 2], c), element(k[i + 3], c));
			qq += a[c] * a[c];
			kk += b[c] * b[c];
			kq += a[c] * b[c];
		}
		qq = rsqrtf(warp_sum(qq) + 1e-6f) * rsqrtf((float)KD);
		kk = rsqrtf(warp_sum(kk) + 1e-6f);
		kq = warp_sum(kq) * qq * kk;
#pragma unroll
		for (int c = 0; c < N; c++) {
			x.q[t * KD + lane * N + c] = a[c] * qq;
			x.k[t * KD + lane * N + c] = b[c] * kk;
		}
		x.v[t * COLS + lane] =
			conv(w.v, __bfloat162float(v[i]), __bfloat162float(v[i + 1]), __bfloat162float(v[i + 2]), __bfloat162float(v[i + 3]));
		if (lane == 0)
			x.kq[t] = kq;
	}
}

/* One token on this lane's part of its column; returns the column's o in every lane of it. Lanes 8, 16 and 24 apart share a column. */
template <int KD> static __device__ __forceinline__ float advance(const struct window<KD> &x, int t, int part, float v, float state[KD / 4])
{
	const float4 *k = (const float4 *)(x.k + t * KD) + part, *q = (const float4 *)(x.q + t * KD) + part;
	float decay = x.decay[t], r[4] = {}, o[4] = {}, d, e;

#pragma unroll
	for (int j = 0; j < KD / 16; j++) {
		float4 a = k[j * 4], b = q[j * 4];
		const float *s = state + j * 4;

		r[0] += s[0] * a.x;
		r[1] += s[1] * a.y;
		r[2] += s[2] * a.z;
		r[3] += s[3] * a.w;
		o[0] += s[0] * b.x;
		o[1] += s[1] * b.y;
		o[2] += s[2] * b.z;
		o[3] += s[3] * b.w;
	}
	d = (r[0] + r[1]) + (r[2] + r[3]);
	e = (o[0] + o[1]) + (o[2] + o[3]);
	d += __shfl_xor_sync(~0u, d, 8);
	e += __shfl_xor_sync(~0u, e, 8);
	d += __shfl_xor_sync(~0u, d, 16);
	e += __shfl_xor_sync(~0u, e, 16);
	d = x.beta[t] * (v - decay * d);
#pragma unroll
	for (int j = 0; j < KD / 16; j++) {
		float4 a = k[j * 4];
		float *s = state + j * 4;

		s[0] = s[0] * decay + a.x * d;
		s[1] = s[1] * decay + a.y * d;
		s[2] = s[2] * decay + a.z * d;
		s[3] = s[3] * decay + a.w * d;
	}
	return decay * e + d * x.kq[t];
}

/* What the last block of a key head does for all of them. */
template <int KD> static __device__ void close_head(const struct gdn_args &p, const struct td_seq &s, int k_head)
{
	int group = p.w.v_heads / p.w.k_heads, head0 = k_head * group, wide = group * p.w.v_dim;

	for (int c = threadIdx.x * 2; c < 2 * KD + wide; c += THREADS * 2)
		keep_pair(p, s,
			  c < KD       ? k_head * KD + c
			  : c < 2 * KD ? (p.w.k_heads + k_head) * KD + c - KD
				       : 2 * p.w.k_heads * KD + k_head * wide + c - 2 * KD);
	for (int i = threadIdx.x; !s.commit && i < s.rows * 2 * group; i += THREADS) {
		int r = i / (2 * group), j = i % (2 * group), column = j < group ? head0 + j : p.w.v_heads + head0 + j - group;

		p.st.ring_ba[((size_t)s.slot * TD_BLOCK_MAX + r) * 2 * p.w.v_heads + column] = read_ba(p, s.row0 + r, column);
	}
}

/* grid (v_heads * slices of COLS columns, sequences) */
template <int KD> static __global__ void __launch_bounds__(THREADS) gdn_kernel(const struct gdn_args p)
{
	__shared__ __align__(16) struct window<KD> x;
	struct td_seq s = part_of(p.seq[blockIdx.y], p.part);
	int slices = div_up(p.w.v_dim, COLS), head = blockIdx.x / slices, col0 = blockIdx.x % slices * COLS, group = p.w.v_heads / p.w.k_heads;
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, part = lane >> 3, mine = warp * 8 + (lane & 7), col = col0 + mine,
	    there = col < p.w.v_dim;
	float *kept = p.st.s + ((size_t)s.slot * p.w.v_heads + head) * KD * p.w.v_dim + col;
	float state[KD / 4];
	int total = s.replay + s.rows, k_head = head / group;
	const float4 *conv_w = (const float4 *)p.w.conv;
	struct taps<KD> w;

	if (total == 0)
		return;
#pragma unroll
	for (int i = 0; i < KD / 4; i++)
		state[i] = there ? kept[(size_t)((i >> 2) * 16 + part * 4 + (i & 3)) * p.w.v_dim] : 0.0f;
#pragma unroll
	for (int c = 0; c < KD / 32; c++) {
		w.q[c] = conv_w[k_head * KD + lane * (KD / 32) + c];
		w.k[c] = conv_w[(p.w.k_heads + k_head) * KD + lane * (KD / 32) + c];
	}
	w.v = conv_w[2 * p.w.k_heads * KD + head * p.w.v_dim + (col0 + lane < p.w.v_dim ? col0 + lane : 0)];
	for (int t0 = 0, n; t0 < total; t0 += n) {
		int end = t0 < s.replay ? s.replay : total;

		n = end - t0 < WINDOW ? end - t0 : WINDOW;
		__syncthreads();
		prepare<KD>(p, s, x, w, t0, n, head, col0);
		__syncthreads();
#pragma unroll 2
		for (int t = 0; t < n; t++) {
			float o = advance<KD>(x, t, part, x.v[t * COLS + mine], state);

			if (t0 >= s.replay && part == 0 && there)
				p.o[((size_t)(s.row0 + t0 + t - s.replay) * p.w.v_heads + head) * p.w.v_dim + col] = o;
		}
		if ((t0 + n == s.replay && t0 < s.replay && !s.commit) || (s.commit && t0 + n == total)) {
#pragma unroll
			for (int i = 0; i < KD / 4; i++)
				if (there)
					kept[(size_t)((i >> 2) * 16 + part * 4 + (i & 3)) * p.w.v_dim] = state[i];
		}
	}
	if (p.norm_here && last_to_arrive(p.counter + blockIdx.y * (p.w.k_heads + p.w.v_heads) + p.w.k_heads + head, slices))
#pragma unroll 4
		for (int r = warp; r < s.rows; r += WARPS)
			gated_norm(p, s.row0 + r, head);
	if (last_to_arrive(p.counter + blockIdx.y * (p.w.k_heads + p.w.v_heads) + k_head, group * slices))
		close_head<KD>(p, s, k_head);
}

/* One warp per row and head. grid (rows of a sequence, v_heads / WARPS, sequences) */
static __global__ void norm_kernel(const struct gdn_args p)
{
	int head = blockIdx.y * WARPS + threadIdx.x / 32;
	struct td_seq s = part_of(p.seq[blockIdx.z], p.part);

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
	    ba.cols != 2 * w->v_heads || out.cols != w->v_heads * w->v_dim || b->n_seq * (w->k_heads + w->v_heads) > TD_CUDA_COUNTERS) {
		td__cuda_fail(
			dev, TD_E_UNSUPPORTED,
			"gdn: %d key and %d value heads of %d and %d with rows of %d, %d and %d; the GPU kernels have key dimensions 64 and 128",
			w->k_heads, w->v_heads, w->k_dim, w->v_dim, qkvz.cols, ba.cols, out.cols);
		return 0;
	}
	if (p.ld % 4 || p.channels % 4 || w->v_dim % 2 || w->v_dim > 256 || (uintptr_t)p.qkvz % 8) {
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

/* One part of all sequences by the step form. */
static void run_part(struct td_dev *dev, struct gdn_args &p, const struct td_batch *b)
{
	dim3 grid(p.w.v_heads * div_up(p.w.v_dim, COLS), b->n_seq);
	int rows = 0, any = 0;

	for (int i = 0; i < b->n_seq; i++) {
		struct td_seq s = part_of(b->seq[i], p.part);

		any |= s.rows + s.replay;
		rows = s.rows > rows ? s.rows : rows;
	}
	if (!any)
		return;
	p.norm_here = rows <= TD_BLOCK_MAX;
	if (p.w.k_dim == 128)
		gdn_kernel<128><<<grid, THREADS, 0, dev->stream>>>(p);
	else
		gdn_kernel<64><<<grid, THREADS, 0, dev->stream>>>(p);
	if (!p.norm_here)
		norm_kernel<<<dim3(rows, div_up(p.w.v_heads, WARPS), b->n_seq), THREADS, 0, dev->stream>>>(p);
	td__cuda_launched(dev, "gdn");
}

void td__cuda_gdn(struct td_dev *dev, const struct td_gdn *w, const struct td_gdn_state *st, const struct td_batch *b, struct td_tensor qkvz,
		  struct td_tensor ba, struct td_tensor out)
{
	struct gdn_args p;

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
	p.channels = 2 * w->k_heads * w->k_dim + w->v_heads * w->v_dim;
	p.counter = dev->counters;
	if (!fits(dev, p, b, qkvz, ba, out))
		return;
	p.o = (float *)td__cuda_scratch(dev, (size_t)qkvz.rows * w->v_heads * w->v_dim * sizeof(float));
	if (!p.o)
		return;
	for (p.part = GDN_BEFORE; p.part <= GDN_AFTER; p.part++)
		run_part(dev, p, b);
}
