/*
 * act8.cuh: activations in 8 bits, for maps of 4-bit weights that ask for it (td_linear.act8; kernels.h says what is computed).
 *
 * A row's chunk of 128 columns is shared by four lanes, t of which has columns 32u + 8t .. 32u + 8t + 7 of each unit u, as a product's fragments want them.
 * Rounding is one fma onto a float whose last place is 1: its low byte is then the integer in two's complement, and nothing needs to be converted.
 */
#ifndef TD_CUDA_ACT8_CUH
#define TD_CUDA_ACT8_CUH

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"

/* 1.5 * 2^23: a sum of bytes' products that begins here, as bits, is this float plus the sum, as long as that is below 2^22. */
static const uint32_t act8_zero = 0x4b400000u;

/* The sum in c, which began at act8_zero, as a float. */
static __device__ __forceinline__ float act8_sum(int32_t c)
{
	return __uint_as_float((uint32_t)c) - __uint_as_float(act8_zero);
}

/* The same where it began at 0: in one instruction, and the same bits. */
static __device__ __forceinline__ float act8_sum_from_0(int32_t c)
{
	return (float)c;
}

/* Four floats onto bytes, two at a time in a word of bf16. */
static __device__ __forceinline__ uint32_t act8_bytes(uint32_t v01, uint32_t v23, float r)
{
	const float zero = __uint_as_float(act8_zero);
	uint32_t a = __float_as_uint(fmaf(bf16_lo(v01), r, zero)), b = __float_as_uint(fmaf(bf16_hi(v01), r, zero));
	uint32_t c = __float_as_uint(fmaf(bf16_lo(v23), r, zero)), d = __float_as_uint(fmaf(bf16_hi(v23), r, zero));

	return pick_bytes(pick_bytes(a, b, 0x0040), pick_bytes(c, d, 0x0040), 0x5410);
}

/* The largest of eight values without their signs, as a word of two bf16. */
static __device__ __forceinline__ uint32_t act8_most(uint4 v)
{
	return most_of_halves(most_of_halves(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu), most_of_halves(v.z & 0x7fff7fffu, v.w & 0x7fff7fffu));
}
/* That of a chunk, which LANES neighbouring lanes share, as a float. */
template <int LANES> static __device__ __forceinline__ float act8_largest(uint32_t most)
{
	most = max(most >> 16, most & 0xffffu);
#pragma unroll
	for (int by = 1; by < LANES; by *= 2)
		most = max(most, __shfl_xor_sync(~0u, most, by));
	return __uint_as_float(most << 16);
}
/* What values are multiplied by, and a sixteenth of the scale that undoes it: weights are multiplied as 16 times themselves. Nothing, and what is so near to it
 * that the factor would be infinite, becomes zeros; what is no number stays so in the scale. */
static __device__ __forceinline__ float act8_factor(float largest)
{
	float r = 127.0f * __frcp_rn(largest);

	return r < __uint_as_float(0x7f800000u) ? r : 0.0f;
}
static __device__ __forceinline__ float act8_scale(float largest)
{
	return largest * (1.0f / 127.0f) * 0.0625f;
}
/* Eight values as bytes: those of the first four, then of the others. */
static __device__ __forceinline__ uint2 act8_eight(uint4 v, float r)
{
	return make_uint2(act8_bytes(v.x, v.y, r), act8_bytes(v.z, v.w, r));
}

/*
 * A lane's 32 values of a row's chunk -> q[u]: the bytes of columns 32u + 8t + j in x, 32u + 8t + 4 + j in y. Returns a sixteenth of the scale. All lanes of a
 * warp call it.
 */
static __device__ __forceinline__ float act8_round(const uint4 v[4], uint2 q[4])
{
	float largest = act8_largest<4>(most_of_halves(most_of_halves(act8_most(v[0]), act8_most(v[1])), most_of_halves(act8_most(v[2]), act8_most(v[3]))));
	float r = act8_factor(largest);

#pragma unroll
	for (int u = 0; u < 4; u++)
		q[u] = act8_eight(v[u], r);
	return act8_scale(largest);
}

/*
 * A row that is kept in 8 bits (td_tensor.eight): of each chunk 128 bytes, [half][t] x 16: what lane t has of units 2 half and 2 half + 1; then the chunks'
 * scales, a sixteenth each. Where columns 8i .. 8i + 7 of a chunk lie:
 */
static __device__ __forceinline__ int act8_place(int i)
{
	return (i >> 3) * 64 + (i & 3) * 16 + (i >> 2 & 1) * 8;
}

#endif
