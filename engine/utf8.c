/*
 * utf8.c: writing a code point, and checking long texts. What is well-formed is said in utf8.h. Owns nothing; safe from any thread.
 */
#include "engine/utf8.h"

#include <string.h>

#include "engine/tokenizer.h"

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
	const uint8_t *p = (const uint8_t *)text;
	uint64_t eight;
	size_t i = 0, len;

	while (i < n) {
		if (n - i >= 8) { /* prompts are mostly ASCII */
			memcpy(&eight, p + i, 8);
			if (!(eight & 0x8080808080808080u)) {
				i += 8;
				continue;
			}
		}
		len = td_utf8_length(p + i, n - i);
		if (!len)
			return 0;
		i += len;
	}
	return 1;
}
