/*
 * tokenizer_random.h: the random texts that the tokenizer is held against the reference with, and the digest of what comes out.
 *
 * tests/tokenizer_vs_reference.py makes the very same texts: a change here must be made there too, and the stored digest made anew by it
 * (never by this code: the digest is what the reference says). All code points are assigned since Unicode 13 at the latest, because the
 * libraries of both sides follow different, later versions.
 *
 * Generator: xorshift64*, x ^= x >> 12, x ^= x << 25, x ^= x >> 27, the result is the high half of x * 0x2545F4914F6CDD1D;
 * below(n) = high half of (result * n).
 */
#ifndef TD_TOKENIZER_RANDOM_H
#define TD_TOKENIZER_RANDOM_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "engine/tokenizer.h"
#include "engine/utf8.h"

enum { RANDOM_TEXTS = 100000, RANDOM_SEQUENCES = 50000, RANDOM_TEXT_MAX = 8192, DIGEST_KINDS = 4 };
static const char *const digest_kind[DIGEST_KINDS] = {"texts", "encode", "plain", "decode"};

struct random {
	uint64_t x;
};

static inline uint32_t random_below(struct random *r, uint32_t n)
{
	r->x ^= r->x >> 12;
	r->x ^= r->x << 25;
	r->x ^= r->x >> 27;
	return (uint32_t)(((r->x * 0x2545F4914F6CDD1Du >> 32) * n) >> 32);
}

struct range {
	uint32_t low, high;
};
static const struct range random_script[] = {
	{0x20, 0x7e}, {0xa0, 0xff}, {0x100, 0x17f}, {0x180, 0x233}, {0x250, 0x2ad}, {0x1e00, 0x1e9b}, {0x1ea0, 0x1ef9}, {0x391, 0x3a1}, {0x3a3, 0x3ce},
	{0x1f00, 0x1f15}, {0x1f80, 0x1fb4}, {0x400, 0x45f}, {0x531, 0x556}, {0x5d0, 0x5ea}, {0x621, 0x63a}, {0x904, 0x939}, {0x958, 0x961},
	{0x985, 0x98c},
	{0x9dc, 0x9dd}, {0xa59, 0xa5c}, {0xb5c, 0xb5d}, {0xb85, 0xb8a}, {0xe01, 0xe30}, {0xf40, 0xf47}, {0xf49, 0xf6a}, {0x10d0, 0x10f6},
	{0x1100, 0x1112},
	{0x1161, 0x1175}, {0x11a8, 0x11c2}, {0x1200, 0x1206}, {0x13a0, 0x13f4}, {0x1820, 0x1877}, {0x3041, 0x3094}, {0x30a1, 0x30fa}, {0x4e00, 0x9fa5},
	{0xac00, 0xd7a3}, {0xf900, 0xfa2d}, {0xfb00, 0xfb06}, {0xfb1d, 0xfb36}, {0xfb46, 0xfbb1}, {0xff01, 0xffbe}, {0x10400, 0x10425},
	{0x1d400, 0x1d454},
	{0x20000, 0x2a6d6}, {0x2f800, 0x2fa1d}, {0x10300, 0x1031e}, {0x1d15e, 0x1d164},
};
static const struct range random_mark[] = {
	{0x300, 0x34e}, {0x300, 0x345}, {0x360, 0x36f}, {0x483, 0x486}, {0x488, 0x489}, {0x591, 0x5a1}, {0x5b0, 0x5b9}, {0x64b, 0x655}, {0x93c, 0x93c},
	{0x93e, 0x94d}, {0x9be, 0x9be}, {0x9d7, 0x9d7}, {0xb3e, 0xb3e}, {0xbd7, 0xbd7}, {0xcd5, 0xcd6}, {0xdcf, 0xdcf}, {0xe31, 0xe31}, {0xe34, 0xe3a},
	{0xf71, 0xf7d}, {0x102e, 0x102e}, {0x3099, 0x309a}, {0x20d0, 0x20ea}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe23}, {0x1d165, 0x1d166},
	{0x1d16e, 0x1d172},
	{0x302a, 0x302f},
};
static const struct range random_number[] = {
	{0x30, 0x39}, {0x30, 0x39}, {0x30, 0x39}, {0x660, 0x669}, {0x966, 0x96f}, {0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}, {0x2150, 0x215e},
	{0x2160, 0x2183},
	{0x2460, 0x249b}, {0x3007, 0x3007}, {0x3021, 0x3029}, {0xff10, 0xff19}, {0x1d7ce, 0x1d7ff}, {0x10107, 0x10133}, {0x1369, 0x137c},
};
static const struct range random_other[] = {
	{0x21, 0x2f}, {0x3a, 0x40}, {0x5b, 0x60}, {0x7b, 0x7e}, {0xa1, 0xa9}, {0x2010, 0x2027}, {0x2030, 0x2052}, {0x20a0, 0x20b1}, {0x2100, 0x213a},
	{0x2190, 0x21ff}, {0x2200, 0x22ff}, {0x2500, 0x2595}, {0x3001, 0x3006}, {0x3008, 0x3020}, {0xfe30, 0xfe46}, {0, 8}, {0xe, 0x1f}, {0x7f, 0x84},
	{0x86, 0x9f}, {0x200b, 0x200f}, {0x202a, 0x202e}, {0x2060, 0x2063}, {0xfeff, 0xfeff}, {0xfffc, 0xfffd}, {0xe000, 0xe010}, {0xf0000, 0xf0010},
	{0xfdd0, 0xfdef}, {0x1d100, 0x1d126}, {0xe0020, 0xe007f}, {0xad, 0xad},
};
static const struct range random_emoji[] = {
	{0x1f600, 0x1f640}, {0x1f300, 0x1f320}, {0x1f442, 0x1f4f7}, {0x1f1e6, 0x1f1ff}, {0x1f3fb, 0x1f3ff}, {0x200d, 0x200d}, {0xfe0f, 0xfe0f},
	{0x2600, 0x2613},
	{0x2701, 0x2704}, {0x1f910, 0x1f91e}, {0x20e3, 0x20e3},
};
static const struct range random_space[] = {
	{0x20, 0x20}, {0x20, 0x20}, {0x20, 0x20}, {0x9, 0x9}, {0xa, 0xa}, {0xb, 0xc}, {0xd, 0xd}, {0x1c, 0x1f}, {0x85, 0x85}, {0xa0, 0xa0},
	{0x1680, 0x1680},
	{0x180e, 0x180e}, {0x2000, 0x200a}, {0x200b, 0x200b}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff},
};
static const char *const random_added[] = {
	"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>",
	"</think>",
	"<|fim_prefix|>", "<|vision_start|>",
};
static const char *const random_ending[] = {"s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "vE", "M", "Ll", "D", "\xc5\xbf", "x",
	"\xe2\x84\xaa", "l"};
static const char *const random_newline[] = {"\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t\n\t", "\r\r\n"};

#define N_OF(a) ((uint32_t)(sizeof(a) / sizeof(*(a))))

static inline void random_put(char *text, size_t *n, const char *s, size_t len)
{
	assert(*n + len <= RANDOM_TEXT_MAX);
	memcpy(text + *n, s, len);
	*n += len;
}

/* `count` code points, each of one of the ranges. */
static inline void random_from(struct random *r, const struct range *ranges, uint32_t n_ranges, uint32_t count, char *text, size_t *n)
{
	char c[4];

	while (count--) {
		const struct range *g = &ranges[random_below(r, n_ranges)];

		random_put(text, n, c, (size_t)td__utf8_put(g->low + random_below(r, g->high - g->low + 1), c));
	}
}

static inline void random_item(struct random *r, char *text, size_t *n)
{
	const struct range letter = {'a', 'z'}, printable = {0x20, 0x7e}, *g;
	const char *s;
	uint32_t from, count;

	switch (random_below(r, 16)) {
	case 0:
	case 1:
		random_from(r, &printable, 1, 1 + random_below(r, 4), text, n);
		return;
	case 2:
		random_put(text, n, " ", 1);
		/* fall through */
	case 3:
		random_from(r, &letter, 1, 1 + random_below(r, 8), text, n);
		return;
	case 4:
		random_from(r, random_script, N_OF(random_script), 1, text, n);
		return;
	case 5:
		g = &random_script[random_below(r, N_OF(random_script))];
		random_from(r, g, 1, 1 + random_below(r, 5), text, n);
		return;
	case 6:
		random_from(r, random_script, N_OF(random_script), 1, text, n);
		/* fall through */
	case 7:
		random_from(r, random_mark, N_OF(random_mark), 1 + random_below(r, 4), text, n);
		return;
	case 8:
		random_from(r, random_number, N_OF(random_number), 1 + random_below(r, 3), text, n);
		return;
	case 9:
		random_from(r, random_space, N_OF(random_space), 1 + random_below(r, 3), text, n);
		return;
	case 10:
		g = &random_space[random_below(r, N_OF(random_space))];
		random_from(r, g, 1, 1 + random_below(r, 20), text, n);
		return;
	case 11:
		s = random_newline[random_below(r, N_OF(random_newline))];
		random_put(text, n, s, strlen(s));
		return;
	case 12:
		s = random_added[random_below(r, N_OF(random_added))];
		random_put(text, n, s, strlen(s));
		return;
	case 13: /* a part of an added token */
		s = random_added[random_below(r, N_OF(random_added))];
		from = random_below(r, (uint32_t)strlen(s));
		count = 1 + random_below(r, (uint32_t)strlen(s) - from);
		random_put(text, n, s + from, count);
		return;
	case 14:
		random_from(r, random_emoji, N_OF(random_emoji), 1 + random_below(r, 4), text, n);
		return;
	default:
		if (random_below(r, 2)) {
			random_from(r, random_other, N_OF(random_other), 1 + random_below(r, 3), text, n);
			return;
		}
		random_put(text, n, "'", 1);
		s = random_ending[random_below(r, N_OF(random_ending))];
		random_put(text, n, s, strlen(s));
	}
}

/* Text number i; `text` holds RANDOM_TEXT_MAX bytes. */
static inline size_t random_text(uint32_t i, char *text)
{
	struct random r = {0x9E3779B97F4A7C15u * (i + 1)};
	uint32_t items = random_below(&r, 24);
	size_t n = 0;

	if (!random_below(&r, 16))
		items += 60;
	while (items--)
		random_item(&r, text, &n);
	return n;
}

/* Token sequence number i, of a vocabulary of `size` ids; returns how many of at most 16. */
static inline uint32_t random_sequence(uint32_t i, uint32_t size, int32_t ids[16])
{
	struct random r = {0xD1B54A32D192ED03u * (i + 1)};
	uint32_t n = 1 + random_below(&r, 16), k;

	for (k = 0; k < n; k++) /* half of them low ids, which are single bytes */
		ids[k] = (int32_t)(random_below(&r, 2) ? random_below(&r, 256) : random_below(&r, size));
	return n;
}

static inline void digest_block(XXH3_state_t *h, const void *p, size_t bytes, size_t count)
{
	uint8_t head[4] = {(uint8_t)count, (uint8_t)(count >> 8), (uint8_t)(count >> 16), (uint8_t)(count >> 24)};

	XXH3_64bits_update(h, head, sizeof(head));
	XXH3_64bits_update(h, p, bytes);
}

/* One text's ids and what they decode to, with special tokens and without. */
static inline void digest_round(XXH3_state_t *h, const struct td_tokenizer *t, const char *text, size_t n, int parse_added)
{
	struct td_error err = {0};
	struct td_ids ids = {0};
	size_t len, i;
	char *decoded;
	int skip;

	if (td_encode(t, text, n, parse_added, &ids, &err)) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	for (i = 0; i < ids.n; i++) /* ids are hashed little-endian */
		if (ids.id[i] < 0)
			abort();
	digest_block(h, ids.id, ids.n * sizeof(*ids.id), ids.n);
	for (skip = 0; skip < 2; skip++) {
		decoded = td_decode(t, ids.id, ids.n, skip, &len);
		digest_block(h, decoded, len, len);
		free(decoded);
	}
	td_ids_finish(&ids);
}

/* The four digests, in the order of digest_kind. */
static inline void digest_random(const struct td_tokenizer *t, uint64_t digest[DIGEST_KINDS])
{
	char *text = malloc(RANDOM_TEXT_MAX);
	XXH3_state_t *h[DIGEST_KINDS];
	int32_t ids[16];
	uint32_t i, n;
	size_t len;
	int k;

	for (k = 0; k < DIGEST_KINDS; k++) {
		h[k] = XXH3_createState();
		XXH3_64bits_reset(h[k]);
	}
	for (i = 0; i < RANDOM_TEXTS; i++) {
		len = random_text(i, text);
		digest_block(h[0], text, len, len);
		digest_round(h[1], t, text, len, 1);
		digest_round(h[2], t, text, len, 0);
	}
	for (i = 0; i < RANDOM_SEQUENCES; i++) {
		char *decoded;

		n = random_sequence(i, (uint32_t)td_tokenizer_size(t), ids);
		decoded = td_decode(t, ids, n, i & 1, &len);
		digest_block(h[3], decoded, len, len);
		free(decoded);
	}
	for (k = 0; k < DIGEST_KINDS; k++) {
		digest[k] = XXH3_64bits_digest(h[k]);
		XXH3_freeState(h[k]);
	}
	free(text);
}

#endif
