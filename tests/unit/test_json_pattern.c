/*
 * test_json_pattern.c: a schema's pattern takes the strings that PCRE2 says match, and no others: random patterns, random strings. Patterns that are
 * broken at random are refused or compiled, never anything else.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar.h"
#include "engine/json_schema.h"
#include "tests/lib/schema_gen.h"
#include "tests/lib/unit.h"
#include "tests/unit/schema_walk.h"

static int compile(const char *pattern)
{
	json_t *s = json_pack("{s:s, s:s}", "type", "string", "pattern", pattern);
	char *text = json_dumps(s, 0);
	uint8_t *bytes;
	size_t n;
	int rc = text ? td_constraint_schema(text, 0, &bytes, &n, &err) : TD_E_SCHEMA;

	if (!rc)
		rc = td_grammar_open(&grammar, bytes, n, &err);
	if (text)
		free(bytes);
	free(text);
	json_decref(s);
	return rc;
}

static int accepts(const char *string)
{
	json_t *v = json_string(string);
	char *json = json_dumps(v, JSON_ENCODE_ANY);
	int fits = !td_gstate_start(walk, &grammar, &state) && !td_gstate_advance(walk, &grammar, &state, json, strlen(json)) && td_gstate_may_end(&state);

	free(json);
	json_decref(v);
	return fits;
}

static void put(char *out, const char *more)
{
	if (strlen(out) + strlen(more) < 190)
		strcat(out, more);
}

static void random_pattern(char *out, int depth)
{
	static const char *const atoms[] = {"a", "b", "c", "1", ".", "\\d", "\\w", "\\s", "\\D", "\\W", "[ab]", "[^a]", "[a-c1]", "[\\\\\"]", "\\\"", "\\\\", "é", "\\n", "\\.", "[^\\w]", "[\\d-]"};
	static const char *const times[] = {"", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?"};

	for (uint32_t n = 1 + schema_rnd(3); n; n--) {
		if (depth > 0 && schema_rnd(3) == 0) {
			put(out, schema_rnd(2) ? "(" : "(?:");
			random_pattern(out, depth - 1);
			if (schema_rnd(2)) {
				put(out, "|");
				random_pattern(out, depth - 1);
			}
			put(out, ")");
		} else {
			put(out, atoms[schema_rnd(sizeof(atoms) / sizeof(atoms[0]))]);
		}
		put(out, times[schema_rnd(sizeof(times) / sizeof(times[0]))]);
	}
}

static void random_string(char *out)
{
	static const char *const chars[] = {"a", "b", "c", "1", "\"", "\\", "é", " ", "\n", ".", "-", "_", "日"};

	*out = 0;
	for (uint32_t n = schema_rnd(7); n; n--)
		strcat(out, chars[schema_rnd(13)]);
}

static void against_pcre(void **unused)
{
	int yes = 0, no = 0, patterns = 0;

	(void)unused;
	for (uint64_t seed = 1; seed <= 600; seed++) {
		char pattern[400] = "", string[64];
		int code;
		PCRE2_SIZE at;
		pcre2_code *re;
		pcre2_match_data *data;

		schema_seed(seed);
		if (schema_rnd(3))
			put(pattern, "^");
		random_pattern(pattern, 2);
		if (schema_rnd(3) && pattern[strlen(pattern) - 1] != '\\')
			put(pattern, "$");
		/* In PCRE \s and \w look at ASCII alone unless told otherwise: like here. */
		re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
		if (!re)
			continue; /* cut off by its length */
		if (compile(pattern))
			fail_msg("seed %llu: %s is refused: %s", (unsigned long long)seed, pattern, err.text);
		patterns++;
		data = pcre2_match_data_create(1, NULL);
		for (int i = 0; i < 60; i++) {
			int match;

			random_string(string);
			match = pcre2_match(re, (PCRE2_SPTR)string, strlen(string), 0, 0, data, NULL) >= 0;
			if (match != accepts(string) && !strchr(string, '\n')) /* "." and line ends: ECMAScript has its own */
				fail_msg("seed %llu: %s on '%s': PCRE2 says %d", (unsigned long long)seed, pattern, string, match);
			yes += match;
			no += !match;
		}
		pcre2_match_data_free(data);
		pcre2_code_free(re);
	}
	print_message("%d patterns, %d strings match, %d do not\n", patterns, yes, no);
	assert_true(patterns > 400 && yes > 1000 && no > 1000);
}

static void broken(void **unused)
{
	int compiled = 0;

	(void)unused;
	for (uint64_t seed = 1; seed <= 5000; seed++) {
		char pattern[64];
		size_t n;

		schema_seed(seed);
		n = 1 + schema_rnd(14);
		for (size_t i = 0; i < n; i++)
			pattern[i] = "abc1()[]{}|*+?.^$\\,-:\"xud0\n"[schema_rnd(27)];
		pattern[n] = 0;
		err.code = 0;
		compiled += !compile(pattern);
		assert_true(err.code == 0 || err.code == TD_E_SCHEMA || err.code == TD_E_FORMAT);
	}
	print_message("%d of 5000 were patterns\n", compiled);
	assert_true(compiled > 50);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(against_pcre), cmocka_unit_test(broken)};

	return cmocka_run_group_tests(tests, open_walk, close_walk);
}
