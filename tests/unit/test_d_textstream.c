/*
 * test_d_textstream.c: text comes whole, stop strings are found wherever tokens end, and nothing that could become one is shown before its time.
 * Against a plain search over random texts, stop strings and tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"

static struct td_tokenizer *tok;

static int setup(void **state)
{
	struct td_error err;

	(void)state;
	return td_tokenizer_load("models/tiny/tokenizer.json", &tok, &err);
}

static int teardown(void **state)
{
	(void)state;
	td_tokenizer_free(tok);
	return 0;
}

/* What is shown at the end of `text`, and 1 when stopped. Checks after each token that what is shown is final. */
static int feed(struct td_textstream *s, const char *text, char *shown, size_t size)
{
	struct td_ids ids = {0};
	struct td_error err;
	size_t before = 0;
	int stopped = 0;

	assert_int_equal(td_encode(tok, text, strlen(text), 0, &ids, &err), 0);
	for (size_t i = 0; i < ids.n && !stopped; i++) {
		stopped = td_textstream_push(s, ids.id[i]);
		assert_true(stopped >= 0);
		assert_true(s->shown >= before);
		before = s->shown;
		assert_memory_equal(s->text, text, s->shown);
	}
	if (!stopped)
		assert_int_equal(td_textstream_flush(s), 0);
	snprintf(shown, size, "%.*s", (int)s->shown, s->text);
	td_ids_finish(&ids);
	return stopped;
}

static void check(const char *text, char *const *stops, size_t n, const char *want, const char *match)
{
	struct td_textstream s;
	char shown[4096];

	assert_int_equal(td_textstream_init(&s, tok, stops, n), 0);
	assert_int_equal(feed(&s, text, shown, sizeof(shown)), match != NULL);
	assert_string_equal(shown, want);
	if (match)
		assert_string_equal(td_textstream_stop(&s), match);
	else
		assert_null(td_textstream_stop(&s));
	td_textstream_finish(&s);
}

static void test_cases(void **state)
{
	char *none[1] = {NULL}, *aab[] = {(char *)"aab"}, *two[] = {(char *)"cde", (char *)"bcd"}, *nested[] = {(char *)"b", (char *)"abc"};
	char *same[] = {(char *)"yz", (char *)"xyz"}, *accents[] = {(char *)"é\n"}, *border[] = {(char *)"\n\n"};

	(void)state;
	check("hello world", none, 0, "hello world", NULL);
	check("xaaab!", aab, 1, "xa", "aab"); /* the search falls back inside itself */
	check("aaaa", aab, 1, "aaaa", NULL); /* held back until the end, then shown */
	check("abcdef", two, 2, "a", "bcd"); /* the first that is complete */
	check("abc", nested, 2, "a", "b"); /* a shorter one inside a longer one is complete first */
	check("wxyz", same, 2, "w", "xyz"); /* complete at the same byte: the longer, it began first */
	check("caf\u00e9\nx", accents, 1, "caf", "é\n");
	check("caf\u00e8\nx", accents, 1, "caf\u00e8\nx", NULL); /* shares a byte with it */
	check("a\nb\n\nc", border, 1, "a\nb", "\n\n");
}

static void test_held_back(void **state)
{
	char *stop[] = {(char *)"STOP"};
	struct td_textstream s;
	struct td_ids ids = {0};
	struct td_error err;

	(void)state;
	assert_int_equal(td_textstream_init(&s, tok, stop, 1), 0);
	const char *part[] = {"a", "S", "T", "O", "x"};
	const size_t shown[] = {1, 1, 1, 1, 5};

	for (size_t i = 0; i < 5; i++) {
		ids.n = 0;
		assert_int_equal(td_encode(tok, part[i], 1, 0, &ids, &err), 0);
		assert_int_equal(ids.n, 1);
		assert_int_equal(td_textstream_push(&s, ids.id[0]), 0);
		assert_int_equal(s.shown, shown[i]);
	}
	td_ids_finish(&ids);
	td_textstream_finish(&s);
}

static unsigned next(unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return *seed >> 16;
}

static void random_text(unsigned *seed, char *text, int n)
{
	static const char *const letter[] = {"a", "b", "c", " ", "é", "€"};
	size_t at = 0;

	for (int i = 0; i < n; i++) {
		const char *l = letter[next(seed) % 6];

		memcpy(text + at, l, strlen(l));
		at += strlen(l);
	}
	text[at] = 0;
}

static void test_random(void **state)
{
	unsigned seed = 1;
	int matched = 0;

	(void)state;
	for (int round = 0; round < 3000; round++) {
		char text[256], stop_text[4][64], want[256], *stops[4];
		int n_stops = (int)(next(&seed) % 5), best = -1;
		size_t end = SIZE_MAX;

		random_text(&seed, text, (int)(next(&seed) % 60));
		for (int i = 0; i < n_stops; i++) {
			random_text(&seed, stop_text[i], 1 + (int)(next(&seed) % 4));
			stops[i] = stop_text[i];
			const char *p = strstr(text, stop_text[i]);

			if (!p)
				continue;
			size_t e = (size_t)(p - text) + strlen(stop_text[i]);

			if (e < end || (e == end && strlen(stop_text[i]) > strlen(stop_text[best]))) {
				end = e;
				best = i;
			}
		}
		snprintf(want, sizeof(want), "%.*s", best < 0 ? (int)strlen(text) : (int)(end - strlen(stop_text[best])), text);
		check(text, stops, (size_t)n_stops, want, best < 0 ? NULL : stop_text[best]);
		matched += best >= 0;
	}
	assert_in_range(matched, 500, 2900);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_held_back), cmocka_unit_test(test_random)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
