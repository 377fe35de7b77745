/*
 * philox.h: the counter-based random numbers of sampling, the same on every backend.
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). A draw is a pure function of (seed, position,
 * purpose): no generator state, so a replay after a crash and any batch shape see the same numbers. Plain C, also compiled as CUDA.
 */
#ifndef TD_PHILOX_H
#define TD_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define TD_PHILOX_FN static __host__ __device__ inline
#else
#define TD_PHILOX_FN static inline
#endif

TD_PHILOX_FN void td_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4])
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32), c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

		c1 = (uint32_t)p1;
		c3 = (uint32_t)p0;
		c0 = n0;
		c2 = n2;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

/* Uniform in [0, 1) with 24 bits. `purpose` is an enum td_purpose. */
TD_PHILOX_FN float td_uniform(uint64_t seed, uint32_t position, uint32_t purpose)
{
	uint32_t r[4];

	td_philox(seed, purpose, position, r);
	return (float)(r[0] >> 8) * (1.0f / 16777216.0f);
}

#endif
