/*
 * utf8.c: well-formedness of UTF-8 (Unicode, table 3-7), and writing a code point. Owns nothing; safe from any thread.
 */
#include "engine/utf8.h"

#include <string.h>

#include "engine/tokenizer.h"

int td__utf8_prefix(const uint8_t *p, int n)
{
	uint8_t low = 0x80, high = 0xbf;
	int len, i;

	if (p[0] < 0x80)
		len = 1;
	else if (p[0] < 0xc2)
		return 0;
	else if (p[0] < 0xe0)
		len = 2;
	else if (p[0] < 0xf0)
		len = 3;
	else if (p[0] < 0xf5)
		len = 4;
	else
		return 0;
	if (n > len)
		return 0;
	/* Only the second byte has a narrower range: no overlong forms, no surrogates, nothing above U+10FFFF. */
	if (p[0] == 0xe0)
		low = 0xa0;
	else if (p[0] == 0xed)
		high = 0x9f;
	else if (p[0] == 0xf0)
		low = 0x90;
	else if (p[0] == 0xf4)
		high = 0x8f;
	for (i = 1; i < n; i++) {
		if (p[i] < low || p[i] > high)
			return 0;
		low = 0x80;
		high = 0xbf;
	}
	return len;
}

int td__utf8_put(uint32_t c, char *out)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

int td_utf8_check(const char *text, size_t n)
{
	size_t i = 0;
	uint64_t eight;

	while (i < n) {
		const uint8_t *p;
		int len;

		while (n - i >= 8) { /* prompts are mostly ASCII */
			memcpy(&eight, text + i, 8);
			if (eight & 0x8080808080808080u)
				break;
			i += 8;
		}
		if (i == n)
			break;
		p = (const uint8_t *)text + i;
		len = td__utf8_prefix(p, 1);
		if (!len || (size_t)len > n - i || td__utf8_prefix(p, len) != len)
			return 0;
		i += (size_t)len;
	}
	return 1;
}
