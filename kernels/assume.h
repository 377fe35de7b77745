/*
 * assume.h: how many tokens a step commits where a bench assumes the acceptance length (td_ops.assume), the same on every backend.
 *
 * The mean is told in tenths, as the request's seed (33 = 3.3 tokens a step). The positions 0, 1, 2, ... are cut into pieces whose mean length is that:
 * 3, 3, 3, 4, ... for 3.3, always 5 for 5.0. A step commits as many tokens as the piece has that its first row lies in. So the number hangs on
 * the position alone: it is the same after a crash and in any company, and needs no state. Plain C, also compiled as CUDA.
 */
#ifndef TD_ASSUME_H
#define TD_ASSUME_H

#include <stdint.h>

#ifdef __CUDACC__
#define TD_ASSUME_FN static __host__ __device__ inline
#else
#define TD_ASSUME_FN static inline
#endif

/* 0: nothing is assumed for this request. A seed that nobody chose has 64 random bits and does not come in here by accident. */
TD_ASSUME_FN int td_assumed(uint64_t seed, int position)
{
	int64_t tenths = (int64_t)seed, piece;

	if (seed < 10 || seed > 160 || position < 0)
		return 0;
	piece = (10 * (int64_t)position + 9) / tenths;
	return (int)((piece + 1) * tenths / 10 - piece * tenths / 10);
}

#endif
