/*
 * assume.h: how many tokens a step commits where a bench assumes the acceptance length (td_ops.assume), the same on every backend.
 *
 * The mean of a whole block of 16 rows is told in tenths, as the request's seed (33 = 3.3 tokens a step). Shorter blocks have the mean that they would have
 * if each draft were right with one and the same probability. The positions 0, 1, 2, ... are cut into pieces whose mean length is that: 3, 3, 3, 4, ... for
 * 3.3, always 5 for 5.0. A step commits as many tokens as the piece has that its first row lies in. So the number hangs on position and rows alone: it is the
 * same after a crash and in any company, and needs no state. Plain C, also compiled as CUDA.
 */
#ifndef TD_ASSUME_H
#define TD_ASSUME_H

#include <stdint.h>

#ifdef __CUDACC__
#define TD_ASSUME_FN static __host__ __device__ inline
#else
#define TD_ASSUME_FN static inline
#endif

/* 2^16 times the probability p with 1 + p + ... + p^15 = tenths / 10, for 10 to 160 tenths. */
TD_ASSUME_FN uint32_t td_assumed_probability(int tenths)
{
	const uint16_t p[151] = {
		0, 5958, 10923, 15124, 18725, 21845, 24576, 26985, 29127, 31044, 32769, 34329, 35749, 37045, 38234, 39329,
		40341, 41278, 42150, 42964, 43724, 44438, 45108, 45740, 46336, 46900, 47435, 47943, 48426, 48886, 49326, 49746,
		50148, 50533, 50903, 51258, 51600, 51929, 52246, 52552, 52848, 53134, 53410, 53678, 53938, 54189, 54434, 54671,
		54902, 55126, 55344, 55557, 55764, 55966, 56162, 56355, 56542, 56725, 56904, 57079, 57251, 57418, 57582, 57743,
		57900, 58054, 58205, 58353, 58499, 58641, 58781, 58919, 59054, 59186, 59317, 59445, 59571, 59694, 59816, 59936,
		60054, 60170, 60285, 60397, 60508, 60617, 60725, 60831, 60936, 61039, 61140, 61241, 61340, 61437, 61534, 61629,
		61723, 61815, 61907, 61997, 62086, 62174, 62261, 62347, 62432, 62516, 62600, 62682, 62763, 62843, 62923, 63001,
		63079, 63156, 63232, 63307, 63381, 63455, 63528, 63600, 63671, 63742, 63812, 63882, 63950, 64018, 64086, 64152,
		64219, 64284, 64349, 64413, 64477, 64540, 64603, 64665, 64727, 64788, 64848, 64908, 64967, 65026, 65085, 65143,
		65200, 65257, 65314, 65370, 65426, 65481, 65535};

	return p[tenths - 10];
}

/* Mean tokens of a block of so many rows, in tenths. */
TD_ASSUME_FN int td_assumed_mean(int tenths, int rows)
{
	uint32_t p = td_assumed_probability(tenths), power = 1 << 16, sum = 0;

	if (rows >= 16)
		return tenths;
	for (int i = 0; i < rows; i++) {
		sum += power;
		power = (uint32_t)((uint64_t)power * p >> 16);
	}
	return (int)((sum * 10 + (1 << 15)) >> 16);
}

/* 0: nothing is assumed for this request. A seed that nobody chose has more than 50 random bits and does not come in here by accident. */
TD_ASSUME_FN int td_assumed(uint64_t seed, int position, int rows)
{
	int64_t tenths, piece;

	if (seed < 10 || seed > 160 || position < 0 || rows < 1)
		return 0;
	tenths = td_assumed_mean((int)seed, rows);
	piece = (10 * (int64_t)position + 9) / tenths;
	return (int)((piece + 1) * tenths / 10 - piece * tenths / 10);
}

#endif
