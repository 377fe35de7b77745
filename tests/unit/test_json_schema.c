/*
 * test_json_schema.c: the compiled grammar of a JSON schema accepts what fits it, and nothing that does not: hundreds of random schemas against a
 * validator of its own, then the corners one by one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar.h"
#include "engine/json_schema.h"
#include "tests/lib/schema_gen.h"
#include "tests/lib/unit.h"
#include "tests/unit/schema_walk.h"

static int compile(const char *schema)
{
	uint8_t *bytes;
	size_t n;
	int rc;

	err.code = 0;
	rc = td_constraint_schema(schema, 0, &bytes, &n, &err);
	if (!rc)
		rc = td_grammar_open(&grammar, bytes, n, &err);
	free(bytes);
	return rc;
}

static int accepts(const char *text)
{
	if (td_gstate_start(walk, &grammar, &state))
		return 0;
	for (; *text; text++)
		if (td_gstate_advance(walk, &grammar, &state, text, 1))
			return 0;
	return td_gstate_may_end(&state);
}

static void yes(const char *text)
{
	if (!accepts(text))
		fail_msg("this should fit and does not: %s", text);
}

static void no(const char *text)
{
	if (accepts(text))
		fail_msg("this should not fit and does: %s", text);
}

/* A walk of random bytes that are allowed, from start to end: what comes out must be JSON that fits. The shortest way is preferred later on. */
static char *babble(void)
{
	size_t n = 0, size = 1 << 16;
	char *out = malloc(size);

	assert_int_equal(td_gstate_start(walk, &grammar, &state), 0);
	while (n + 1 < size && !(td_gstate_may_end(&state) && (n > 400 || schema_rnd(4) == 0))) {
		static const char common[] = "\"}],0123456789:{[ etrufalsn\\";
		int tries = 0;

		for (; tries < 3000; tries++) {
			char c = tries < 200 && (n > 300 || schema_rnd(2)) ? common[n > 300 && tries < 5 ? (uint32_t)tries : schema_rnd(sizeof(common) - 1)] : (char)schema_rnd(256);

			if (!td_gstate_advance(walk, &grammar, &state, &c, 1)) {
				out[n++] = c;
				break;
			}
		}
		if (tries == 3000) {
			if (td_gstate_may_end(&state))
				break;
			fail_msg("a dead end after %.*s", (int)n, out);
		}
	}
	out[n] = 0;
	assert_true(n + 1 < size);
	return out;
}

static void random_schemas(void **unused)
{
	int fitting = 0, other = 0, refused = 0;

	(void)unused;
	for (uint64_t seed = 1; seed <= 400; seed++) {
		schema_seed(seed);
		json_t *s = schema_random(3);
		char *text = json_dumps(s, JSON_COMPACT);

		if (compile(text)) {
			refused++;
			free(text);
			json_decref(s);
			continue;
		}
		for (int i = 0; i < 6; i++) {
			json_t *v = schema_instance(s), *bad = schema_mutated(v);
			char *good = json_dumps(v, i % 3 == 0 ? JSON_COMPACT | JSON_ENCODE_ANY : i % 3 == 1 ? JSON_INDENT(2) | JSON_ENCODE_ANY : JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
			char *wrong = json_dumps(bad, JSON_COMPACT | JSON_ENCODE_ANY);

			/* A constant is written in one way only, a key too: indentation and escapes may be others'. */
			if (schema_fits(s, s, v) && !accepts(good) && (i % 3 == 0))
				fail_msg("seed %llu: %s\nfits and is refused: %s", (unsigned long long)seed, text, good);
			fitting += schema_fits(s, s, v) && accepts(good);
			if (!schema_fits(s, s, bad) && accepts(wrong))
				fail_msg("seed %llu: %s\ndoes not fit and is accepted: %s", (unsigned long long)seed, text, wrong);
			other += !schema_fits(s, s, bad);
			free(good);
			free(wrong);
			json_decref(v);
			json_decref(bad);
		}
		for (int i = 0; i < 2; i++) {
			char *said = babble();
			json_t *v = json_loads(said, JSON_DECODE_ANY, NULL);

			if (!v || !schema_fits(s, s, v))
				fail_msg("seed %llu: %s\nits own text %s: %s", (unsigned long long)seed, text, v ? "does not fit" : "is no JSON", said);
			json_decref(v);
			free(said);
		}
		free(text);
		json_decref(s);
	}
	print_message("%d documents that fit accepted, %d others refused, %d of 400 schemas refused\n", fitting, other, refused);
	assert_true(fitting > 1000 && other > 1000 && refused < 40);
}

static void refused(const char *schema, const char *keyword)
{
	if (compile(schema) != TD_E_SCHEMA)
		fail_msg("%s is not refused", schema);
	if (!strstr(err.text, keyword))
		fail_msg("%s: \"%s\" does not name %s", schema, err.text, keyword);
}

static void refusals(void **unused)
{
	(void)unused;
	refused("{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems at #");
	refused("{\"properties\":{\"a/b\":{\"items\":{\"not\":{}}}}}", "not at #/properties/a/b/items");
	refused("{\"type\":\"number\",\"multipleOf\":2}", "multipleOf");
	refused("{\"type\":\"integer\",\"multipleOf\":2}", "multipleOf");
	refused("{\"type\":\"integer\",\"not\":{}}", "not");
	refused("{\"type\":[\"null\",\"array\"],\"contains\":{}}", "contains");
	refused("{\"patternProperties\":{}}", "patternProperties");
	refused("{\"allOf\":[{},{}]}", "allOf");
	refused("{\"if\":{}}", "if");
	refused("{\"$ref\":\"#/$defs/none\"}", "$ref");
	refused("{\"$ref\":\"http://x/y\"}", "$ref");
	refused("{\"type\":\"strin\"}", "type");
	refused("{\"type\":[]}", "type");
	refused("{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "minimum");
	refused("{\"type\":\"number\",\"exclusiveMinimum\":0}", "exclusiveMinimum");
	refused("{\"type\":\"string\",\"minLength\":2,\"maxLength\":1}", "minLength");
	refused("{\"type\":\"string\",\"minLength\":-1}", "minLength");
	refused("{\"type\":\"string\",\"minLength\":16777216}", "minLength");
	refused("{\"enum\":[]}", "enum");
	refused("{\"enum\":[1],\"minimum\":0}", "minimum");
	refused("{\"pattern\":\"(?=a)b\"}", "pattern");
	refused("{\"pattern\":\"a{2\"}", "pattern");
	refused("{\"pattern\":\"[a\"}", "pattern");
	refused("{\"pattern\":\"(a\"}", "pattern");
	refused("{\"pattern\":\"a)\"}", "pattern");
	refused("{\"pattern\":\"*\"}", "pattern");
	refused("{\"pattern\":\"\\\\1\"}", "pattern");
	refused("{\"pattern\":\"a\",\"minLength\":1}", "pattern");
	refused("{\"required\":[\"x\"],\"additionalProperties\":false}", "required");
	refused("{\"properties\":{\"n\":{\"$ref\":\"#\"}},\"required\":[\"n\"]}", "no finite text");
	refused("{\"$ref\":\"#\"}", "no finite text");
	refused("{\"a\":1", "no JSON");
	refused("3", "no schema");
	refused("false", "false");
}

static void recursion(void **unused)
{
	char deep[2000];

	(void)unused;
	OK(compile("{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"],"
		   "\"additionalProperties\":false}"));
	yes("{\"v\":1,\"next\":null}");
	yes("{\"v\":1,\"next\":{\"v\": 2, \"next\": {\"v\":3,\"next\":null}}}");
	no("{\"v\":1}");
	/* As deep as it lets us: there is always a way out. */
	deep[0] = 0;
	for (int depth = 0; depth < 200; depth++) {
		strcat(deep, "{\"v\":1,\"next\":");
		if (accepts(deep))
			fail_msg("half an object");
		if (td_gstate_start(walk, &grammar, &state) || td_gstate_advance(walk, &grammar, &state, deep, strlen(deep)))
			fail_msg("a dead end at depth %d", depth);
		if (td_gstate_advance(walk, &grammar, &state, "{", 1)) {
			assert_int_equal(td_gstate_advance(walk, &grammar, &state, "null", 4), 0);
			print_message("lists nest %d deep\n", depth + 1);
			assert_true(depth >= 40);
			return;
		}
		if (strlen(deep) > sizeof(deep) - 40)
			break;
	}
	fail_msg("no bound of depth");
}

/* What is too large is told as that, whatever part it is; tens of thousands of names are looked at once each, not once for each other. */
static void too_large(void **unused)
{
	enum { N = 60000 };
	char *schema = malloc(N * 64);
	size_t n = 0;

	(void)unused;
	n += (size_t)sprintf(schema + n, "{\"properties\":{");
	for (int i = 0; i < N; i++)
		n += (size_t)sprintf(schema + n, "%s\"name %d\":{}", i ? "," : "", i);
	n += (size_t)sprintf(schema + n, "},\"required\":[\"other\"");
	for (int i = 0; i < N; i++)
		n += (size_t)sprintf(schema + n, ",\"%s %d\"", i % 2 ? "name" : "more", i);
	sprintf(schema + n, "]}");
	assert_int_equal(compile(schema), TD_E_SCHEMA);
	if (!strstr(err.text, "once compiled"))
		fail_msg("%s", err.text);
	n = (size_t)sprintf(schema, "{\"pattern\":\"^(");
	for (int i = 0; i < 2000; i++)
		n += (size_t)sprintf(schema + n, "word%d|", i);
	sprintf(schema + n, "x)$\"}");
	assert_int_equal(compile(schema), TD_E_SCHEMA);
	if (!strstr(err.text, "once compiled"))
		fail_msg("%s", err.text);
	free(schema);
	OK(compile("{\"properties\":{\"b\":{},\"a\":{}},\"required\":[\"z\",\"a\",\"z\",\"a\"]}"));
	yes("{\"a\":1,\"z\":2}");
	yes("{\"b\":0,\"a\":1,\"z\":2}");
	no("{\"a\":1}");
	no("{\"a\":1,\"z\":2,\"z\":2}");
}

/* Whole lengths and cut ones beside each other, on both sides of 0; and a plain integer is small, so that hundreds of them fit. */
static void integers(void **unused)
{
	static const int64_t range[][2] = {{0, INT64_MAX}, {INT64_MIN, INT64_MAX}, {1, 99}, {0, 9}, {7, 12345}, {-99, -10}, {-1000, 100}, {10, 10}, {0, 0}};
	char schema[16000], text[20];
	size_t n = 0;

	(void)unused;
	for (size_t k = 0; k < sizeof(range) / sizeof(range[0]); k++) {
		snprintf(schema, sizeof(schema), "{\"type\":\"integer\",\"minimum\":%lld,\"maximum\":%lld}", (long long)range[k][0], (long long)range[k][1]);
		OK(compile(schema));
		for (int i = -1200; i < 12500; i++) {
			snprintf(text, sizeof(text), "%d", i);
			if (accepts(text) != (i >= range[k][0] && i <= range[k][1]))
				fail_msg("%s: %d: %d", schema, i, accepts(text));
		}
		no("-0");
		no("007");
	}
	for (int i = 0; i < 200; i++)
		n += (size_t)snprintf(schema + n, sizeof(schema) - n, "%s\"number_%d\":{\"type\":\"integer\"}", i ? "," : "{\"properties\":{", i);
	snprintf(schema + n, sizeof(schema) - n, "}}");
	OK(compile(schema));
	yes("{\"number_0\":-5,\"number_199\":10}"); /* whatever is between them may be left out */
	yes("{ \"number_199\": 0}");
	yes("{\"number_3\":1,\n\t\"number_4\":1, \"number_198\":1}");
	yes("{}");
	no("{\"number_3\":1,}");
	no("{\"number_4\":1,\"number_3\":1}");
	no("{\"number_0\":-05}");
}

static void corners(void **unused)
{
	(void)unused;
	OK(compile("{\"type\":\"integer\",\"minimum\":-12,\"maximum\":1005}"));
	for (int i = -1100; i < 12000; i++) {
		char text[20];

		snprintf(text, sizeof(text), "%d", i);
		if (accepts(text) != (i >= -12 && i <= 1005))
			fail_msg("%d: %d", i, accepts(text));
	}
	no("-0");
	no("007");
	OK(compile("{\"type\":\"number\",\"minimum\":-1,\"maximum\":10}"));
	yes("10");
	yes("10.0");
	yes("9.999");
	yes("-0.5");
	yes("-1.0");
	no("-1.5");
	no("10.1");
	no("11");
	OK(compile("{\"type\":\"string\",\"pattern\":\"^(foo|b[a-c]+)-\\\\d{2,3}\\\"?$\"}"));
	yes("\"foo-12\"");
	yes("\"bca-123\\\"\"");
	no("\"foo-1\"");
	no("\"b-12\"");
	no("\"foo-1234\"");
	OK(compile("{\"pattern\":\"x.y\"}"));
	yes("\"aaxéyb\\n\"");
	no("\"xy\"");
	OK(compile("{\"format\":\"date\",\"type\":\"string\"}"));
	yes("\"2024-02-28\"");
	no("\"2024-02-30\"");
	no("\"2024-13-01\"");
	OK(compile("{\"format\":\"uuid\"}"));
	yes("\"123e4567-e89b-12d3-a456-426614174000\"");
	no("\"123e4567-e89b-12d3-a456-42661417400\"");
	OK(compile("{\"format\":\"email\"}"));
	yes("\"a.b@example.org\"");
	no("\"a.b@example\"");
	OK(compile("{\"properties\":{\"ab\":{\"type\":\"integer\"},\"ac\":true},\"additionalProperties\":{\"type\":\"string\"}}"));
	yes("{\"a\":\"x\",\"abc\":\"\",\"\":\"\"}");
	no("{\"ab\":\"x\"}");
	no("{\"\\u0061b\":\"x\"}");
	OK(compile("{\"type\":[\"string\",\"null\"],\"maxLength\":2}"));
	yes("\"\\ud83d\\ude00é\"");
	yes("null");
	no("\"abc\"");
	no("\"\xff\"");
	no("\"\xc0\x80\"");
	no("\"\xed\xa0\x80\"");
	no("\"\t\"");
	no("\"\\u0000\"");
	no("\"\\ud800\"");
	OK(compile("{\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"type\":\"object\"}"));
	yes("{\"a\":null}");
	yes("{\"b\":null}");
	no("{}");
}

static void long_enum(void **unused)
{
	char *schema = malloc(200000), *at = schema;

	(void)unused;
	at += sprintf(at, "{\"enum\":[");
	for (int i = 0; i < 700; i++)
		at += sprintf(at, "%s\"value %d of many\"", i ? "," : "", i * 7);
	sprintf(at, "]}");
	OK(compile(schema));
	yes("\"value 4893 of many\"");
	no("\"value 4894 of many\"");
	assert_true(grammar.nodes < 6000);
	at = schema + sprintf(schema, "{\"enum\":[");
	for (int i = 0; i < 9000; i++)
		at += sprintf(at, "%s\"%d\"", i ? "," : "", i * 7919);
	sprintf(at, "]}");
	refused(schema, "more than 65536 bytes");
	free(schema);
}

/* Texts of schemas with bytes changed, doubled or gone: compiled or refused, and what is compiled can be opened. */
static void broken_schemas(void **unused)
{
	int compiled = 0;

	(void)unused;
	for (uint64_t seed = 1; seed <= 1500; seed++) {
		json_t *s = (schema_seed(seed), schema_random(3));
		char *text = json_dumps(s, JSON_COMPACT);
		size_t n = strlen(text);

		for (uint32_t k = schema_rnd(4); k && n > 2; k--) {
			uint32_t at = schema_rnd((uint32_t)n - 1);

			if (schema_rnd(3) == 0)
				memmove(text + at, text + at + 1, n-- - at);
			else
				text[at] = "\"{}[]:,0123456789aeintrsx$#/-\\^*("[schema_rnd(34)];
		}
		compiled += !compile(text);
		assert_true(err.code == 0 || err.code == TD_E_SCHEMA || err.code == TD_E_FORMAT);
		free(text);
		json_decref(s);
	}
	print_message("%d of 1500 broken schemas were schemas nevertheless\n", compiled);
	assert_true(compiled > 100);
}

static void tools(void **unused)
{
	const char *tool[] = {"{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{\"q\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
			      "\"deep\":{\"type\":\"boolean\"}},\"required\":[\"q\"]}}}", "{\"type\":\"function\",\"function\":{\"name\":\"none\"}}"};
	uint8_t *bytes;
	size_t n;

	(void)unused;
	OK(td_constraint_tools(tool, 2, "required", 1, &bytes, &n, &err));
	OK(td_grammar_open(&grammar, bytes, n, &err));
	free(bytes);
	yes("let me <b>think</b>\n</thi</think>\n\n<tool_call>\n<function=none>\n</function>\n</tool_call>");
	no("<tool_call>\n<function=none>\n</function>\n</tool_call>");
	yes("</think>\n\n<tool_call>\n<function=get>\n<parameter=q>\nsome\n</parameter text\n\n</parameter>\n<parameter=deep>\ntrue\n</parameter>\n</function>\n</tool_call>\n"
	    "<tool_call>\n<function=none>\n</function>\n</tool_call>");
	no("</think>\n\n<tool_call>\n<function=get>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>");
	OK(td_constraint_tools(tool, 2, "get", 0, &bytes, &n, &err));
	OK(td_grammar_open(&grammar, bytes, n, &err));
	free(bytes);
	yes("<tool_call>\n<function=get>\n<parameter=q>\n\n</parameter>\n</function>\n</tool_call>");
	no("<tool_call>\n<function=none>\n</function>\n</tool_call>");
	no("<tool_call>\n<function=get>\n<parameter=q>\na\n</parameter>\n</function>\n</tool_call>\n<tool_call>");
	assert_int_equal(td_constraint_tools(tool, 2, "other", 0, &bytes, &n, &err), TD_E_INVALID);
	assert_int_equal(td_constraint_tools(tool, 0, "required", 0, &bytes, &n, &err), TD_E_INVALID);
	tool[0] = "[]";
	assert_int_equal(td_constraint_tools(tool, 2, "get", 0, &bytes, &n, &err), TD_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(integers), cmocka_unit_test(too_large), cmocka_unit_test(corners), cmocka_unit_test(refusals), cmocka_unit_test(recursion), cmocka_unit_test(long_enum), cmocka_unit_test(tools),
		cmocka_unit_test(broken_schemas),
		cmocka_unit_test(random_schemas),
	};

	return cmocka_run_group_tests(tests, open_walk, close_walk);
}
