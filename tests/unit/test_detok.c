/*
 * Streaming detokenizer: pieces put together equal the whole decode, which equals an independent reading of the rule (one U+FFFD per maximal
 * invalid part); nothing is given out that is not complete UTF-8; skipped special tokens don't disturb a character that spans them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tokenizer_random.h"
#include "tests/tokenizer_tiny.h"

static int32_t id_of_byte[256];

static int setup(void **state)
{
	const char *bytes;
	size_t n;
	int id;

	load_tiny(state);
	for (id = 0; id < td_tokenizer_size(tiny); id++)
		if ((bytes = td_token_bytes(tiny, id, &n)) && n == 1)
			id_of_byte[(unsigned char)bytes[0]] = id;
	return 0;
}

/* The well-formed sequences as a table, written apart from the code under test: lead from..to, range of the second byte, length. */
static const struct {
	uint8_t lead, last, low, high;
	int len;
} forms[] = {
	{0x00, 0x7f, 0, 0, 1},	     {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
	{0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
};

/* Length of the longest start of p that begins a well-formed sequence; *complete tells whether it is a whole one. */
static size_t maximal_part(const uint8_t *p, size_t n, int *complete)
{
	size_t f, k;

	*complete = 0;
	for (f = 0; f < sizeof(forms) / sizeof(*forms); f++) {
		if (p[0] < forms[f].lead || p[0] > forms[f].last)
			continue;
		for (k = 1; k < (size_t)forms[f].len; k++)
			if (k >= n || p[k] < (k == 1 ? forms[f].low : 0x80) || p[k] > (k == 1 ? forms[f].high : 0xbf))
				return k;
		*complete = 1;
		return k;
	}
	return 1;
}

static size_t lossy(const uint8_t *p, size_t n, char *out)
{
	size_t i = 0, used = 0, len;
	int complete;

	while (i < n) {
		len = maximal_part(p + i, n - i, &complete);
		memcpy(out + used, complete ? (const char *)p + i : "\xef\xbf\xbd", complete ? len : 3);
		used += complete ? len : 3;
		i += len;
	}
	return used;
}

static void expect_same(const int32_t *id, size_t n, int skip)
{
	uint8_t bytes[4096];
	char want[3 * sizeof(bytes)], streamed[3 * sizeof(bytes)];
	struct td_detok d;
	size_t n_bytes = 0, want_n, len, used = 0, i;
	char *whole;

	for (i = 0; i < n; i++) {
		const char *b = td_token_bytes(tiny, id[i], &len);

		if (!b || (skip && td_tokenizer_is_special(tiny, id[i])))
			continue;
		assert_true(n_bytes + len <= sizeof(bytes));
		memcpy(bytes + n_bytes, b, len);
		n_bytes += len;
	}
	want_n = lossy(bytes, n_bytes, want);
	whole = td_decode(tiny, id, n, skip, &len);
	assert_int_equal(len, want_n);
	assert_memory_equal(whole, want, len);
	assert_int_equal(whole[len], 0);
	free(whole);
	td_detok_init(&d, tiny, skip);
	for (i = 0; i < n; i++) {
		size_t room, given;

		td_token_bytes(tiny, id[i], &room);
		given = td_detok_push(&d, id[i], streamed + used);
		assert_true(given <= 3 * (room + 8));
		assert_true(td_utf8_check(streamed + used, given));
		assert_true(d.n_held <= 3);
		used += given;
		/* Only what may still become a character is held back. */
		if (d.n_held)
			assert_true(td__utf8_prefix(d.held, (size_t)d.n_held) > (size_t)d.n_held);
	}
	used += td_detok_flush(&d, streamed + used);
	assert_int_equal(td_detok_flush(&d, streamed + used), 0);
	assert_int_equal(used, want_n);
	assert_memory_equal(streamed, want, used);
}

static void expect_bytes(const uint8_t *p, size_t n)
{
	int32_t id[16];
	size_t i;

	for (i = 0; i < n; i++)
		id[i] = id_of_byte[p[i]];
	expect_same(id, n, 0);
}

/* Bytes at and around every edge of the table, in all sequences of up to four, with and without a letter behind. */
static void test_edges_of_one_to_four_bytes(void **state)
{
	static const uint8_t edge[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee,
		0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
	enum { N = sizeof(edge) };
	uint8_t p[5];
	size_t i, k, n, all, c;

	(void)state;
	for (n = 1, all = N; n <= 3; n++, all *= N) {
		for (i = 0; i < all; i++) {
			for (c = i, k = 0; k < n; k++, c /= N)
				p[k] = edge[c % N];
			expect_bytes(p, n);
			p[n] = 'x';
			expect_bytes(p, n + 1);
		}
	}
	/* Four: the leads of four-byte sequences, then everything. */
	for (i = 0; i < 5 * N * N * N; i++) {
		p[0] = edge[19 + i % 5];
		for (c = i / 5, k = 1; k < 4; k++, c /= N)
			p[k] = edge[c % N];
		expect_bytes(p, 4);
	}
}

static void test_every_character_cut_everywhere(void **state)
{
	uint32_t c;
	char p[4];

	(void)state;
	for (c = 0; c < 0x110000; c += c < 0x900 ? 1 : 97)
		if (c < 0xd800 || c >= 0xe000)
			expect_bytes((const uint8_t *)p, (size_t)td__utf8_put(c, p));
}

static void test_random_sequences(void **state)
{
	struct random r = {20250101};
	int32_t id[24];
	uint32_t i, k, n;

	(void)state;
	for (i = 0; i < 100000; i++) {
		n = random_below(&r, 24);
		for (k = 0; k < n; k++) {
			switch (random_below(&r, 4)) {
			case 0: /* bytes of one another's characters */
			case 1:
				id[k] = id_of_byte[0x80 + random_below(&r, 0x80)];
				break;
			case 2:
				id[k] = (int32_t)random_below(&r, (uint32_t)td_tokenizer_size(tiny));
				break;
			default: /* special tokens, and ids that don't exist */
				id[k] = (int32_t)(8180 + random_below(&r, 20)) - (random_below(&r, 20) ? 0 : 10000);
			}
		}
		expect_same(id, n, (int)(i & 1));
	}
}

static void test_special_tokens_inside_a_character(void **state)
{
	const int32_t id[] = {id_of_byte[0xe4], 8184, id_of_byte[0xbd], 8190, id_of_byte[0xa0]};
	const int32_t special_only[] = {id_of_byte[0xe4], 8184, id_of_byte[0xbd], 8183, id_of_byte[0xa0]};
	size_t n;
	char *text;

	(void)state;
	text = td_decode(tiny, special_only, 5, 1, &n);
	assert_string_equal(text, "\xe4\xbd\xa0");
	free(text);
	text = td_decode(tiny, special_only, 5, 0, &n);
	assert_string_equal(text, "\xef\xbf\xbd<|im_end|>\xef\xbf\xbd<|im_start|>\xef\xbf\xbd");
	free(text);
	text = td_decode(tiny, id, 5, 1, &n); /* <think> is added but not special: it stays */
	assert_string_equal(text, "\xef\xbf\xbd<think>\xef\xbf\xbd");
	free(text);
	text = td_decode(tiny, NULL, 0, 1, &n);
	assert_string_equal(text, "");
	assert_int_equal(n, 0);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_edges_of_one_to_four_bytes),
		cmocka_unit_test(test_every_character_cut_everywhere),
		cmocka_unit_test(test_random_sequences),
		cmocka_unit_test(test_special_tokens_inside_a_character),
	};

	return cmocka_run_group_tests(tests, setup, free_tiny);
}
