/*
 * utf8.h: the one definition of well-formed UTF-8, for texts of errors, strings on the wire and streamed output.
 *
 * Header only, so that libtandem needs no more of engine/. Overlong forms, surrogates and values past U+10FFFF are not well-formed
 * (Unicode 15, table 3-7).
 */
#ifndef TD_UTF8_H
#define TD_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The n bytes (1..4) taken as the start of a character: the length of the well-formed characters that start so, 0 when there are none. */
static inline size_t td__utf8_prefix(const uint8_t *p, size_t n)
{
	uint8_t lo = 0x80, hi = 0xbf; /* range of the second byte, narrower after E0, ED, F0, F4 */
	size_t len;

	if (p[0] < 0x80) {
		len = 1;
	} else if (p[0] >= 0xc2 && p[0] <= 0xdf) {
		len = 2;
	} else if ((p[0] & 0xf0) == 0xe0) {
		len = 3;
		lo = p[0] == 0xe0 ? 0xa0 : lo;
		hi = p[0] == 0xed ? 0x9f : hi;
	} else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
		len = 4;
		lo = p[0] == 0xf0 ? 0x90 : lo;
		hi = p[0] == 0xf4 ? 0x8f : hi;
	} else {
		return 0;
	}
	if (n > len || (n > 1 && (p[1] < lo || p[1] > hi)))
		return 0;
	for (size_t i = 2; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	return len;
}

/* Bytes of the well-formed character at p (n > 0 bytes are there): 1..4, or 0 when there is none. */
static inline size_t td_utf8_length(const uint8_t *p, size_t n)
{
	size_t len = td__utf8_prefix(p, 1);

	return len <= n && len && td__utf8_prefix(p, len) ? len : 0;
}

/* Offset of the first byte that is not part of well-formed text; n when all of it is. */
static inline size_t td_utf8_span(const uint8_t *p, size_t n)
{
	size_t i = 0, len;

	while (i < n && (len = td_utf8_length(p + i, n - i)) > 0)
		i += len;
	return i;
}

/* ---- for the tokenizer, the detokenizer and the chat template (utf8.c) ------------------------------------------------------------- */

/* Writes c (any scalar value) and returns its length, 1..4. */
int td__utf8_put(uint32_t c, char *out);

/* Reads one code point from well-formed text and returns its length. */
static inline int td__utf8_get(const char *text, uint32_t *c)
{
	const uint8_t *p = (const uint8_t *)text;

	if (p[0] < 0x80) {
		*c = p[0];
		return 1;
	}
	if (p[0] < 0xe0) {
		*c = (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
		return 2;
	}
	if (p[0] < 0xf0) {
		*c = (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
		return 3;
	}
	*c = (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
	return 4;
}

#endif
