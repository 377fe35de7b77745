/*
 * gdn.cuh: what the step forms (gdn.cu, gdn_many.cu) and other forms of the Gated DeltaNet layer share: where the inputs of a token lie, its convolution
 * and gates, the gated norm, and what a call leaves in tail and ring.
 *
 * What must never happen: two forms that read or round an input differently. So each of these is written once, here.
 */
#ifndef TD_CUDA_GDN_CUH
#define TD_CUDA_GDN_CUH

#include "kernels/cuda/internal.cuh"

enum { GDN_SLICE = 32 }; /* columns of a value head whose squares are added first; a block of the step form for few sequences owns as many */

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
	float share; /* 1 / v_dim */
	int channels, norm_here, part, group; /* group: value heads of a key head */
	int early; /* no kernel since the batch was set has written this state, tail or ring */
	int engine; /* the bulk copy engine is there */
	unsigned *counter; /* gdn.cu's arrivals */
};

/* gdn_many.cu: a part by the form for many sequences; 0 where it doesn't fit or pay. */
int td__cuda_gdn_many(struct td_dev *, const struct gdn_args &, int n_seq);

/* gdn_chunk.cu: the middle parts. */
size_t td__cuda_gdn_chunk_bytes(const struct td_dev *, const struct gdn_args &, int rows);
void td__cuda_gdn_chunk(struct td_dev *, const struct gdn_args &, const struct td_batch *, int rows);

/* Row i of what is kept of a sequence: the 3 rows of the tail, then the ring. */
static __device__ __forceinline__ bf16 *kept_row(const struct gdn_args &p, const struct td_seq &s, int i)
{
	bf16 *tail = (bf16 *)p.st.tail + (ptrdiff_t)s.slot * TD_CONV_TAIL * p.channels;
	bf16 *ring = (bf16 *)p.st.ring_m + ((ptrdiff_t)s.slot * TD_BLOCK_MAX - TD_CONV_TAIL) * p.channels;

	return (i < TD_CONV_TAIL ? tail : ring) + (ptrdiff_t)i * p.channels;
}

/* A sequence's inputs as one stream: the 3 rows of the tail, the rows to replay, the new rows. Token i reads rows i .. i + 3. No branches: loads of
 * several rows are to leave one behind the other. */
static __device__ __forceinline__ const bf16 *stream_row(const struct gdn_args &p, const struct td_seq &s, int i)
{
	const bf16 *tail = (const bf16 *)p.st.tail + (ptrdiff_t)s.slot * TD_CONV_TAIL * p.channels;
	const bf16 *ring = (const bf16 *)p.st.ring_m + ((ptrdiff_t)s.slot * TD_BLOCK_MAX - TD_CONV_TAIL) * p.channels;
	const bf16 *fresh = p.qkvz + (ptrdiff_t)(s.row0 - s.replay - TD_CONV_TAIL) * p.ld, *from;
	int kept = i < TD_CONV_TAIL + s.replay;

	from = i < TD_CONV_TAIL ? tail : ring;
	from = kept ? from : fresh;
	return from + (ptrdiff_t)i * (kept ? p.channels : p.ld);
}

/* A float32 word, or the word in which a bf16 is one half; one load either way. */
static __device__ __forceinline__ uint32_t load_either(const void *from, size_t at, int f32)
{
	return __ldcg((const uint32_t *)from + (f32 ? at : at / 2));
}

static __device__ __forceinline__ float either(uint32_t word, int odd, int f32)
{
	return f32 ? __uint_as_float(word) : odd ? bf16_hi(word) : bf16_lo(word);
}

static __device__ __forceinline__ float read_ba(const struct gdn_args &p, int row, int i)
{
	size_t at = (size_t)row * p.ld_ba + i;

	return either(load_either(p.ba, at, p.ba_f32), at & 1, p.ba_f32);
}

/* b or a of token i of the stream without the tail, and where the word comes from. */
static __device__ __forceinline__ uint32_t token_ba_word(const struct gdn_args &p, const struct td_seq &s, int i, int column, int *odd, int *f32)
{
	int kept = i < s.replay;
	size_t at = (kept ? ((size_t)s.slot * TD_BLOCK_MAX + i) * 2 * p.w.v_heads : (size_t)(s.row0 + i - s.replay) * p.ld_ba) + column;

	*odd = at & 1;
	*f32 = kept | p.ba_f32;
	return load_either(kept ? p.st.ring_ba : p.ba, at, *f32);
}

static __device__ __forceinline__ float token_ba(const struct gdn_args &p, const struct td_seq &s, int i, int column)
{
	int odd, f32;
	uint32_t word = token_ba_word(p, s, i, column, &odd, &f32);

	return either(word, odd, f32);
}

/* silu by the GPU's own exponential and reciprocal: some units in the last place, less than a bf16 input carries, for a fifth of the instructions. */
static __device__ __forceinline__ float swish(float x)
{
	return x * fast_inverse(1.0f + fast_exp2(x * -1.4426950408889634f));
}

/* Convolution and silu of one channel from four rows. The order of the sums is written out, so that no two kernels can round them differently. */
static __device__ __forceinline__ float conv(float4 w, float a, float b, float c, float d)
{
	return swish(fmaf(w.w, d, fmaf(w.z, c, fmaf(w.y, b, w.x * a))));
}

/* A lane's neighbouring channels of one row, as words of two. */
template <int N> static __device__ __forceinline__ void load_words(uint32_t *to, const bf16 *from)
{
	if (N == 2) {
		uint2 v = __ldcg((const uint2 *)from);

		to[0] = v.x;
		to[N - 1] = v.y;
	} else {
		to[0] = __ldcg((const uint32_t *)from);
	}
}

template <int N> static __device__ __forceinline__ void copy_words(uint32_t *to, const bf16 *from)
{
	if (N == 2) {
		uint2 v = *(const uint2 *)from;

		to[0] = v.x;
		to[N - 1] = v.y;
	} else {
		to[0] = *(const uint32_t *)from;
	}
}

/* N neighbours, scaled */
template <int N> static __device__ __forceinline__ void store_lane(float *to, const float *v, float scale)
{
	if (N == 4)
		*(float4 *)to = make_float4(v[0] * scale, v[1] * scale, v[N - 2] * scale, v[N - 1] * scale);
	else
		*(float2 *)to = make_float2(v[0] * scale, v[1] * scale);
}

static __device__ __forceinline__ float element(const uint32_t *words, int i)
{
	return i & 1 ? bf16_hi(words[i >> 1]) : bf16_lo(words[i >> 1]);
}

/* Sum of squares over a slice of GDN_SLICE columns, a pair of neighbours in each of 16 lanes; the order is the same wherever it is taken. */
static __device__ __forceinline__ float slice_squares(float2 v)
{
	float sum = fmaf(v.y, v.y, v.x * v.x);

	for (int d = 8; d; d >>= 1)
		sum += __shfl_xor_sync(~0u, sum, d);
	return sum;
}

/* From the sum of squares over a head: that of its slices, added in their order. */
static __device__ __forceinline__ float norm_scale(const struct gdn_args &p, float sum)
{
	return rsqrtf(fmaf(sum, p.share, p.w.eps));
}

static __device__ __forceinline__ float2 swish_pair(uint32_t z)
{
	return make_float2(swish(bf16_lo(z)), swish(bf16_hi(z)));
}

static __device__ __forceinline__ uint32_t gate_pair(float2 o, float scale, float2 weight, float2 gate)
{
	return bf16_pair(o.x * scale * weight.x * gate.x, o.y * scale * weight.y * gate.y);
}

/* Gated norm of one head of one row by one warp (3.1 rmsg), half a warp for each slice. v_dim <= 256, even */
static __device__ __forceinline__ void gated_norm(const struct gdn_args &p, int row, int head)
{
	enum { MAX = 256 / (2 * GDN_SLICE) };
	int lane = threadIdx.x & 31, n = p.w.v_dim;
	const float *o = p.o + ((size_t)row * p.w.v_heads + head) * n;
	const bf16 *z = p.qkvz + (size_t)row * p.ld + p.channels + head * n;
	bf16 *y = p.out + (size_t)row * p.ld_out + head * n;
	float2 v[MAX], w[MAX];
	uint32_t g[MAX];
	float sum = 0;

#pragma unroll
	for (int i = 0; i < MAX; i++) {
		int c = 2 * (lane + 32 * i);

		v[i] = c < n ? __ldcg((const float2 *)(o + c)) : make_float2(0, 0);
		w[i] = c < n ? *(const float2 *)(p.w.norm + c) : make_float2(0, 0);
		g[i] = c < n ? __ldcg((const uint32_t *)(z + c)) : 0;
	}
#pragma unroll
	for (int i = 0; i < MAX; i++)
		if (i * 2 * GDN_SLICE < n) {
			float part = slice_squares(v[i]);

			sum += __shfl_sync(~0u, part, 0);
			sum += __shfl_sync(~0u, part, 16);
		}
	sum = norm_scale(p, sum);
#pragma unroll
	for (int i = 0; i < MAX; i++)
		if (2 * (lane + 32 * i) < n)
			*(uint32_t *)(y + 2 * (lane + 32 * i)) = gate_pair(v[i], sum, w[i], swish_pair(g[i]));
}

#endif
