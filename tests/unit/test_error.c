/*
 * test_error.c: the table is one-to-one; a sentence is one line of well-formed UTF-8 whatever goes into it; docs/errors.md names every code.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/utf8.h"

static const struct {
	const char *name;
	int code;
	const char *wire;
	int http;
} table[] = {
#define X(name, number, wire, http) {#name, number, wire, http},
	TD_ERRORS(X)
#undef X
};
enum { N = sizeof(table) / sizeof(table[0]) };

static void one_to_one(void **state)
{
	(void)state;
	for (int i = 0; i < N; i++) {
		assert_true(table[i].code < 0);
		assert_true(table[i].http >= 400 && table[i].http < 600);
		assert_string_equal(td_error_name(table[i].code), table[i].wire);
		assert_int_equal(td_error_http(table[i].code), table[i].http);
		assert_int_equal(td_error_code(table[i].wire, 5), table[i].code);
		for (int k = 0; k < i; k++) {
			assert_int_not_equal(table[k].code, table[i].code);
			assert_string_not_equal(table[k].wire, table[i].wire);
		}
	}
	assert_string_equal(td_error_name(0), "ok");
	assert_string_equal(td_error_name(-9999), "internal");
	assert_int_equal(td_error_http(-9999), 500);
	assert_int_equal(td_error_code("of a later release", 5), 5);
	assert_int_equal(td_error_code("", 5), 5);
}

static void sentences(void **state)
{
	struct td_error err;
	char bytes[1000];

	(void)state;
	assert_int_equal(td_error_set(NULL, TD_E_IO, "x"), TD_E_IO);
	assert_int_equal(td_error_set(&err, TD_E_IO, "a\nb\tc\x7f %s", "\xc3\xbc"), TD_E_IO);
	assert_string_equal(err.text, "a b c  \xc3\xbc");
	assert_int_equal(td_error_prefix(&err, "shard %d", 3), TD_E_IO);
	assert_string_equal(err.text, "shard 3: a b c  \xc3\xbc");
	td_error_set(&err, TD_E_INVALID, "name '%s'", "\xff\xc3");
	assert_string_equal(err.text, "name '" "?" "?'");
	/* cut in the middle of a character, at every offset */
	for (size_t shift = 0; shift < 4; shift++) {
		memset(bytes, 'a', shift);
		for (size_t i = shift; i + 3 < sizeof(bytes); i += 3)
			memcpy(bytes + i, "\xe2\x82\xac", 4);
		td_error_set(&err, TD_E_INVALID, "%s", bytes);
		assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
		assert_int_equal(td_utf8_span((const uint8_t *)err.text, strlen(err.text)), strlen(err.text));
		td_error_prefix(&err, "%s", bytes);
		assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
		assert_int_equal(td_utf8_span((const uint8_t *)err.text, strlen(err.text)), strlen(err.text));
		td_error_prefix(&err, "p%s", shift ? "q" : "");
		assert_memory_equal(err.text, shift ? "pq: " : "p: ", 3);
	}
}

/* Run from the root of the tree, as tests/run.sh does. */
static void documented(void **state)
{
	static char text[1 << 16];
	FILE *f = fopen("docs/errors.md", "r");
	size_t n;
	int rows = 0;

	(void)state;
	assert_non_null(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	for (int i = 0; i < N; i++) {
		char row[128];

		snprintf(row, sizeof(row), "\n| `%s` | %d | %d | ", table[i].wire, table[i].code, table[i].http);
		if (!strstr(text, row))
			fail_msg("docs/errors.md has no row that begins with %s", row + 1);
	}
	for (char *p = text; (p = strstr(p, "\n| `")); p++)
		rows++;
	assert_int_equal(rows, N);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(one_to_one), cmocka_unit_test(sentences), cmocka_unit_test(documented)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
