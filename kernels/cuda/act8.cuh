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

/*
 * A lane's 32 values of a row's chunk -> q[u]: the bytes of columns 32u + 8t + j in x, 32u + 8t + 4 + j in y. Returns a sixteenth of the scale, for weights
 * are multiplied as 16 times themselves. All lanes of a warp call it.
 */
static __device__ __forceinline__ float act8_round(const uint4 v[4], uint2 q[4])
{
	uint32_t most = 0;
	float a, r;

#pragma unroll
	for (int u = 0; u < 4; u++)
		most = most_of_halves(most, most_of_halves(most_of_halves(v[u].x & 0x7fff7fffu, v[u].y & 0x7fff7fffu),
							   most_of_halves(v[u].z & 0x7fff7fffu, v[u].w & 0x7fff7fffu)));
	most = max(most >> 16, most & 0xffffu);
	most = max(most, __shfl_xor_sync(~0u, most, 1));
	most = max(most, __shfl_xor_sync(~0u, most, 2));
	a = __uint_as_float(most << 16);
	r = most ? 127.0f * __frcp_rn(a) : 0.0f;
#pragma unroll
	for (int u = 0; u < 4; u++)
		q[u] = make_uint2(act8_bytes(v[u].x, v[u].y, r), act8_bytes(v[u].z, v[u].w, r));
	return a * (1.0f / 127.0f) * 0.0625f;
}

#endif
