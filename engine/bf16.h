/*
 * bf16.h: float32 to BF16 on the host, to nearest, ties to even; for finite values.
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

#endif
