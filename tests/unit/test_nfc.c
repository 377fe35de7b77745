/*
 * Normalization form C: the same as utf8proc's own for every code point, every composing pair and random mixtures; linear where that is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <utf8proc.h>

#include "engine/nfc.h"
#include "engine/utf8.h"
#include "tests/tokenizer_random.h"

static struct td__nfc work;

static int finish(void **state)
{
	(void)state;
	td__nfc_finish(&work);
	return 0;
}

static void expect_as_library(const char *text, size_t n)
{
	struct td_error err = {0};
	utf8proc_uint8_t *want;
	utf8proc_ssize_t want_n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
	const char *got;
	size_t got_n;

	assert_true(want_n >= 0);
	if (td__nfc_apply(&work, text, n, &got, &got_n, &err))
		fail_msg("%s", err.text);
	if (got_n != (size_t)want_n || memcmp(got, want, got_n))
		fail_msg("\"%.*s\": expected \"%s\", got \"%.*s\"", (int)n, text, (char *)want, (int)got_n, got);
	free(want);
}

static int is_scalar(uint32_t c)
{
	return c < 0xd800 || c >= 0xe000;
}

static void test_every_code_point(void **state)
{
	char text[64];
	uint32_t c;
	size_t n;

	(void)state;
	for (c = 0; c < 0x110000; c++) {
		if (!is_scalar(c))
			continue;
		n = (size_t)td__utf8_put(c, text);
		expect_as_library(text, n);
		/* Between things that compose with much. */
		n = (size_t)td__utf8_put('e', text);
		n += (size_t)td__utf8_put(c, text + n);
		n += (size_t)td__utf8_put(0x301, text + n);
		expect_as_library(text, n);
	}
}

/* What each code point decomposes into, put together again, whole and with all but the last composed beforehand: finds every code point that
 * composes with what stands before it. */
static void test_every_composition(void **state)
{
	char text[64];
	int32_t d[8], last;
	uint32_t c;
	int class, count, k, found = 0;
	size_t n;

	(void)state;
	for (c = 0; c < 0x110000; c++) {
		if (!is_scalar(c))
			continue;
		class = 0;
		count = (int)utf8proc_decompose_char((int32_t)c, d, 8, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &class);
		if (count < 2)
			continue;
		found++;
		for (n = 0, k = 0; k < count; k++)
			n += (size_t)td__utf8_put((uint32_t)d[k], text + n);
		expect_as_library(text, n);
		last = d[count - 1];
		count = (int)utf8proc_normalize_utf32(d, count - 1, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
		for (n = 0, k = 0; k < count; k++)
			n += (size_t)td__utf8_put((uint32_t)d[k], text + n);
		n += (size_t)td__utf8_put((uint32_t)last, text + n);
		expect_as_library(text, n);
	}
	assert_true(found > 12000);
}

static void test_random_texts(void **state)
{
	char *text = malloc(RANDOM_TEXT_MAX);
	uint32_t i;

	(void)state;
	for (i = 0; i < 20000; i++) {
		struct random r = {i + 1};
		size_t n = random_text(i, text);

		expect_as_library(text, n);
		n = 0;
		random_from(&r, random_mark, N_OF(random_mark), 1 + random_below(&r, 40), text, &n);
		random_from(&r, random_script, N_OF(random_script), 1 + random_below(&r, 3), text, &n);
		random_from(&r, random_mark, N_OF(random_mark), 1 + random_below(&r, 40), text, &n);
		expect_as_library(text, n);
	}
	free(text);
}

static void test_unchanged_text_is_not_copied(void **state)
{
	static const char text[] = "plain, d\xc3\xa9j\xc3\xa0 vu, \xe4\xbd\xa0\xe5\xa5\xbd, \xea\xb0\x81";
	struct td_error err;
	const char *got;
	size_t n;

	(void)state;
	assert_int_equal(td__nfc_apply(&work, text, strlen(text), &got, &n, &err), 0);
	assert_ptr_equal(got, text);
	assert_int_equal(n, strlen(text));
}

static double seconds_for(size_t pairs)
{
	struct td_error err;
	struct timespec a, b;
	char *text = malloc(4 * pairs);
	const char *got;
	size_t i, n;

	for (i = 0; i < pairs; i++)
		memcpy(text + 4 * i, "\xcc\x81\xcc\xa3", 4); /* U+0301 (class 230), U+0323 (class 220) */
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	assert_int_equal(td__nfc_apply(&work, text, 4 * pairs, &got, &n, &err), 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	assert_int_equal(n, 4 * pairs);
	for (i = 0; i < pairs; i++) {
		assert_memory_equal(got + 2 * i, "\xcc\xa3", 2);
		assert_memory_equal(got + 2 * (pairs + i), "\xcc\x81", 2);
	}
	free(text);
	return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/*
 * Marks in the wrong order. By swapping neighbours, 16 times as many take 256 times as long (and the megabyte at the end 3 * 10^10 swaps, most of a
 * minute). Both are measured here, several times, so that a busy machine doesn't decide.
 */
static void test_ordering_is_linear(void **state)
{
	double few = 1e9, many = 1e9, t;
	int i;

	(void)state;
	for (i = 0; i < 5; i++) {
		t = seconds_for(1 << 14);
		few = t < few ? t : few;
		t = seconds_for(1 << 18);
		many = t < many ? t : many;
	}
	if (many > 80 * few)
		fail_msg("%.6f s for %d marks, %.6f s for 16 times as many", few, 1 << 15, many);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_code_point),
		cmocka_unit_test(test_every_composition),
		cmocka_unit_test(test_random_texts),
		cmocka_unit_test(test_unchanged_text_is_not_copied),
		cmocka_unit_test(test_ordering_is_linear),
	};

	return cmocka_run_group_tests(tests, NULL, finish);
}
