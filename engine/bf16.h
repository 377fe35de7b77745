/*
 * bf16.h: float32 to BF16 on the host, to nearest, ties to even, for finite values; and back, exactly.
 */
#ifndef TD_BF16_H
#define TD_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint16_t td_bf16(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float td_bf16_float(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

#endif
