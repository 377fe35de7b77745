/*
 * gdn.cuh: what the step form (gdn.cu) and other forms of the Gated DeltaNet layer share: where the inputs of a token lie, its convolution and gates,
 * the gated norm, and what a call leaves in tail and ring.
 *
 * What must never happen: two forms that read or round an input differently. So each of these is written once, here.
 */
#ifndef TD_CUDA_GDN_CUH
#define TD_CUDA_GDN_CUH

#include "kernels/cuda/internal.cuh"

struct gdn_args {
	struct td_gdn w;
	struct td_gdn_state st;
	const struct td_seq *seq;
	const bf16 *qkvz; /* (R, C + v_heads * v_dim) */
	int ld;
	const void *ba; /* (R, 2 * v_heads) */
	int ld_ba, ba_f32;
	bf16 *out; /* (R, v_heads * v_dim) */
	int ld_out;
	float *o; /* (R, v_heads * v_dim): before the norm */
	int channels, norm_here, part;
	unsigned *counter; /* (sequences, k_heads + v_heads) */
};

/*
 * Which form a row takes is a matter of its position in the prompt, as for products (linear.cu): final rows that fill blocks of TD_CUDA_LARGE positions
 * are the middle part of a sequence, all others come before or after. A part of nothing has rows 0 and replay 0.
 */
enum gdn_part { GDN_BEFORE, GDN_BLOCKS, GDN_AFTER };
static inline __host__ __device__ struct td_seq part_of(struct td_seq s, int part)
{
	int from = (TD_CUDA_LARGE - s.pos0 % TD_CUDA_LARGE) % TD_CUDA_LARGE, end;

	if (!s.commit || s.rows < from + TD_CUDA_LARGE)
		from = s.rows;
	end = from + (s.rows - from) / TD_CUDA_LARGE * TD_CUDA_LARGE;
	if (part == GDN_BEFORE) {
		s.rows = from;
		return s;
	}
	if (part == GDN_AFTER)
		from = end;
	s.row0 += from;
	s.pos0 += from;
	s.rows = part == GDN_AFTER ? s.rows - end : end - from;
	s.replay = 0;
	return s;
}

/* A sequence's inputs as one stream: the 3 rows of the tail, the rows to replay, the new rows. Token i reads rows i .. i + 3. */
static __device__ __forceinline__ const bf16 *stream_row(const struct gdn_args &p, const struct td_seq &s, int i)
{
	if (i < TD_CONV_TAIL)
		return (const bf16 *)p.st.tail + ((size_t)s.slot * TD_CONV_TAIL + i) * p.channels;
	i -= TD_CONV_TAIL;
	if (i < s.replay)
		return (const bf16 *)p.st.ring_m + ((size_t)s.slot * TD_BLOCK_MAX + i) * p.channels;
	return p.qkvz + (size_t)(s.row0 + i - s.replay) * p.ld;
}

static __device__ __forceinline__ float read_ba(const struct gdn_args &p, int row, int i)
{
	size_t at = (size_t)row * p.ld_ba + i;

	return p.ba_f32 ? ((const float *)p.ba)[at] : __bfloat162float(((const bf16 *)p.ba)[at]);
}

/* b or a of token i of the stream without the tail */
static __device__ __forceinline__ float token_ba(const struct gdn_args &p, const struct td_seq &s, int i, int column)
{
	if (i < s.replay)
		return p.st.ring_ba[((size_t)s.slot * TD_BLOCK_MAX + i) * 2 * p.w.v_heads + column];
	return read_ba(p, s.row0 + i - s.replay, column);
}

/* Convolution and silu of one channel from four rows. */
static __device__ __forceinline__ float conv(float4 w, float a, float b, float c, float d)
{
	return silu(w.x * a + w.y * b + w.z * c + w.w * d);
}

/* A lane's neighbouring channels of one row, as words of two. */
template <int N> static __device__ __forceinline__ void load_words(uint32_t *to, const bf16 *from)
{
	if (N == 2) {
		uint2 v = *(const uint2 *)from;

		to[0] = v.x;
		to[N - 1] = v.y;
	} else {
		to[0] = *(const uint32_t *)from;
	}
}

static __device__ __forceinline__ float element(const uint32_t *words, int i)
{
	return i & 1 ? bf16_hi(words[i >> 1]) : bf16_lo(words[i >> 1]);
}

/* Gated norm of one head of one row by one warp (3.1 rmsg). v_dim <= 256 */
static __device__ __forceinline__ void gated_norm(const struct gdn_args &p, int row, int head)
{
	enum { MAX = 8 };
	int lane = threadIdx.x & 31, n = p.w.v_dim;
	const float *o = p.o + ((size_t)row * p.w.v_heads + head) * n;
	const bf16 *z = p.qkvz + (size_t)row * p.ld + p.channels + head * n;
	bf16 *y = p.out + (size_t)row * p.ld_out + head * n;
	float v[MAX], g[MAX], sum = 0;

#pragma unroll
	for (int i = 0; i < MAX; i++) {
		int c = lane + 32 * i;

		v[i] = c < n ? __ldcg(&o[c]) : 0;
		g[i] = c < n ? __bfloat162float(z[c]) : 0;
		sum += v[i] * v[i];
	}
	sum = rsqrtf(warp_sum(sum) / n + p.w.eps);
#pragma unroll
	for (int i = 0; i < MAX; i++)
		if (lane + 32 * i < n)
			y[lane + 32 * i] = __float2bfloat16(v[i] * sum * p.w.norm[lane + 32 * i] * silu(g[i]));
}

/* Tail and ring of two neighbouring channels. All is read before anything is overwritten; no other thread touches these channels. */
static __device__ void keep_pair(const struct gdn_args &p, const struct td_seq &s, int channel)
{
	uint32_t *tail = (uint32_t *)((bf16 *)p.st.tail + (size_t)s.slot * TD_CONV_TAIL * p.channels + channel);
	uint32_t *ring = (uint32_t *)((bf16 *)p.st.ring_m + (size_t)s.slot * TD_BLOCK_MAX * p.channels + channel);
	int done = s.replay + (s.commit ? s.rows : 0);
	uint32_t last[TD_CONV_TAIL], fresh[TD_BLOCK_MAX];

#pragma unroll
	for (int i = 0; i < TD_CONV_TAIL; i++)
		last[i] = *(const uint32_t *)(stream_row(p, s, done + i) + channel);
#pragma unroll
	for (int i = 0; i < TD_BLOCK_MAX; i++)
		fresh[i] = !s.commit && i < s.rows ? *(const uint32_t *)(p.qkvz + (size_t)(s.row0 + i) * p.ld + channel) : 0;
#pragma unroll
	for (int i = 0; i < TD_CONV_TAIL; i++)
		tail[(size_t)i * p.channels / 2] = last[i];
#pragma unroll
	for (int i = 0; i < TD_BLOCK_MAX; i++)
		if (!s.commit && i < s.rows)
			ring[(size_t)i * p.channels / 2] = fresh[i];
}

#endif
