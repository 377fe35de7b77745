/*
 * Long runs: a megabyte of one thing is legal input. It must be encoded, in near-linear time (counted in steps, so that a busy machine can't
 * fail it), whatever PCRE2's machine code, its stack or its interpreter make of it; and decoding must give the text back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/bpe.h"
#include "engine/nfc.h"
#include "engine/split.h"
#include "engine/tokenizer_impl.h"
#include "tests/tokenizer_tiny.h"

enum { MEGABYTE = 1 << 20 };

/* `unit` over and over, in whole units, about a megabyte. */
static char *run_of(const char *unit, size_t *n)
{
	size_t len = strlen(unit), count = MEGABYTE / len, i;
	char *text = malloc(count * len + 1);

	for (i = 0; i < count; i++)
		memcpy(text + i * len, unit, len);
	*n = count * len;
	text[*n] = '\0';
	return text;
}

static void test_runs_come_back(void **state)
{
	/* In form C already, so that decoding gives them back. U+0301 alone: acute accents; U+0E34: a Thai vowel sign; U+1F600. */
	static const char *const unit[] = {" ",  "a", "A", "\n", "\r\n", "\t", "1", "!", "=", "ab", "the ", " \n", "\xcc\x81", "\xe0\xb8\xb4",
		"\xf0\x9f\x98\x80", "\xe4\xbd\xa0",
					   "'s", "<", "<|im_start", "<think>", "\xc2\x85", "\xe1\xa0\x8e", "'", "a'"};
	struct td_error err = {0};
	size_t i, n, len;

	(void)state;
	for (i = 0; i < sizeof(unit) / sizeof(*unit); i++) {
		struct td_ids ids = {0};
		char *text = run_of(unit[i], &n), *back;

		if (td_encode(tiny, text, n, 1, &ids, &err))
			fail_msg("a run of \"%s\": %s", unit[i], err.text);
		back = td_decode(tiny, ids.id, ids.n, 0, &len);
		if (len != n || memcmp(back, text, n))
			fail_msg("a run of \"%s\" comes back as %zu bytes instead of %zu", unit[i], len, n);
		free(back);
		free(text);
		td_ids_finish(&ids);
	}
}

static void test_merging_is_near_linear(void **state)
{
	static const char *const unit[] = {"a", "=", "ab", "the", " ", "e\xcc\x81"};
	struct td_error err = {0};
	size_t i, n;

	(void)state;
	for (i = 0; i < sizeof(unit) / sizeof(*unit); i++) {
		struct td__bpe_work w = {0};
		struct td_ids ids = {0};
		char *text = run_of(unit[i], &n);

		assert_int_equal(td__bpe_piece(&tiny->bpe, &w, text, n, &ids, &err), 0);
		/* 3n candidates, each moved up and down a heap of at most log2(3n) = 22 levels; a quadratic way would take 10^11. */
		if (w.steps > (uint64_t)n * 3 * 23 * 2)
			fail_msg("a run of \"%s\": %llu steps for %zu bytes", unit[i], (unsigned long long)w.steps, n);
		free(text);
		td_ids_finish(&ids);
		td__bpe_work_finish(&w);
	}
}

/* Short pieces are merged another way than long ones: a long run must begin as its parts would. */
static void test_short_and_long_pieces_agree(void **state)
{
	struct td_error err = {0};
	struct td__bpe_work w = {0};
	uint64_t x = 1;
	int round;

	(void)state;
	for (round = 0; round < 2000; round++) {
		char text[96];
		struct td_ids one = {0}, two = {0};
		size_t n = 1 + (size_t)(x >> 33) % 47, i;

		for (i = 0; i < n; i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			text[i] = "etaoinshrdlu e"[(x >> 33) % 14];
		}
		/* Bytes that no merge joins to anything keep the first half apart from the rest. */
		memset(text + n, 0x01, 49);
		assert_int_equal(td__bpe_piece(&tiny->bpe, &w, text, n, &one, &err), 0);
		assert_int_equal(td__bpe_piece(&tiny->bpe, &w, text, n + 49, &two, &err), 0);
		assert_int_equal(two.n, one.n + 49);
		assert_memory_equal(one.id, two.id, one.n * sizeof(*one.id));
		td_ids_finish(&one);
		td_ids_finish(&two);
	}
	td__bpe_work_finish(&w);
}

/* All pieces of a text, as their ends. Returns their number; *interpreted tells whether the interpreter had to help. */
static size_t ends(const char *pattern, int jit, const char *text, size_t n, size_t **end, int *interpreted, int *stack)
{
	struct td_error err = {0};
	struct td__split *split;
	struct td__split_work w;
	struct td__split_walk walk = {0};
	size_t count = 0, from, to, before = 0;
	int more;

	if (td__split_create(pattern, strlen(pattern), jit, &split, &err) || td__split_work_init(&w, split, &err))
		fail_msg("%s", err.text);
	*end = malloc((n + 1) * sizeof(**end));
	walk = (struct td__split_walk){.split = split, .work = &w, .text = text, .n = n};
	while ((more = td__split_next(&walk, &from, &to, &err)) > 0) {
		assert_int_equal(from, before);
		assert_true(to > from);
		(*end)[count++] = before = to;
	}
	if (more < 0)
		fail_msg("%s", err.text);
	assert_int_equal(before, n);
	*interpreted = w.interpret;
	*stack = w.stack != NULL;
	td__split_work_finish(&w);
	td__split_destroy(split);
	return count;
}

/* A group that is repeated needs stack for each round: first the small stack, then the large one, then the interpreter on the heap. Where PCRE2
 * has no machine code, the interpreter does it all. */
static void test_stack_of_the_machine_code_may_run_out(void **state)
{
	const size_t length[] = {300, 60000, MEGABYTE - 1};
	size_t n, i, *end;
	int interpreted, stack, no_jit;
	char *text = run_of("ab1", &n);

	(void)state;
	assert_int_equal(ends("a", 1, "a", 1, &end, &no_jit, &stack), 1);
	free(end);
	for (i = 0; i < 3; i++) {
		assert_int_equal(ends("(?:[a-z]|[0-9])+", 1, text, length[i], &end, &interpreted, &stack), 1);
		assert_int_equal(end[0], length[i]);
		assert_int_equal(stack, !no_jit && i > 0);
		assert_int_equal(interpreted, no_jit || i == 2);
		free(end);
	}
	free(text);
}

static void test_interpreter_gives_the_same_pieces(void **state)
{
	static const char pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
				      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
	static const char *const unit[] = {" ", "x", "\xcc\x81", " \n\t", "It's  12 d\xc3\xa9j\xc3\xa0 -- vu!\r\n\r\n\t x",
		"\xe1\xa0\x8e \xc2\x85\xe2\x80\x8b"};
	size_t i, n, *fast, *slow, count;
	int interpreted, stack;

	(void)state;
	for (i = 0; i < sizeof(unit) / sizeof(*unit); i++) {
		char *text = run_of(unit[i], &n);

		count = ends(pattern, 1, text, n, &fast, &interpreted, &stack);
		assert_int_equal(ends(pattern, 0, text, n, &slow, &interpreted, &stack), count);
		assert_true(interpreted);
		assert_memory_equal(fast, slow, count * sizeof(*fast));
		free(fast);
		free(slow);
		free(text);
	}
}

/* PCRE2 gives up after ten million steps of its interpreter unless told otherwise; a try of "\\s*[\\r\\n]+" takes one for each blank. */
static void test_no_match_limit(void **state)
{
	const size_t n = 12 * MEGABYTE;
	char *text = malloc(n);
	size_t *end;
	int interpreted, stack;

	(void)state;
	memset(text, ' ', n);
	assert_int_equal(ends("\\s*[\\r\\n]+|\\s+", 0, text, n, &end, &interpreted, &stack), 1);
	assert_int_equal(end[0], n);
	free(end);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_runs_come_back),
		cmocka_unit_test(test_merging_is_near_linear),
		cmocka_unit_test(test_short_and_long_pieces_agree),
		cmocka_unit_test(test_stack_of_the_machine_code_may_run_out),
		cmocka_unit_test(test_interpreter_gives_the_same_pieces),
		cmocka_unit_test(test_no_match_limit),
	};

	return cmocka_run_group_tests(tests, load_tiny, free_tiny);
}
