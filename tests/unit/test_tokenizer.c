/*
 * Tokenizer: ids and decoded text equal the reference's, for stored cases and for random texts by digest; and each tokenizer.json that would be
 * encoded wrongly is refused with the field's name. The reference's values were made by tests/tokenizer_vs_reference.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/tokenizer_random.h"
#include "tests/tokenizer_tiny.h"

/* A tokenizer from a changed copy of the tiny one's file. Takes over `root`. */
static int load_changed(json_t *root, struct td_tokenizer **t, struct td_error *err)
{
	char path[] = "/tmp/td-tokenizer-XXXXXX";
	FILE *f = fdopen(mkstemp(path), "w");
	int code;

	assert_non_null(f);
	assert_int_equal(json_dumpf(root, f, JSON_COMPACT), 0);
	assert_int_equal(fclose(f), 0);
	json_decref(root);
	code = td_tokenizer_load(path, t, err);
	unlink(path);
	return code;
}

static json_t *tiny_json(void)
{
	json_t *root = json_load_file(TINY, 0, NULL);

	assert_non_null(root);
	return root;
}

/* The ids as text, for messages that show both sides. */
static char *spell(const int32_t *id, size_t n)
{
	char *text = calloc(n + 1, 12);
	size_t i, used = 0;

	for (i = 0; i < n; i++)
		used += (size_t)sprintf(text + used, "%d ", id[i]);
	return text;
}

static void expect_ids(const struct td_tokenizer *t, const char *text, size_t n, int parse_added, const int32_t *id, size_t n_ids)
{
	struct td_error err = {0};
	struct td_ids ids = {0};
	char *want = spell(id, n_ids), *got;

	if (td_encode(t, text, n, parse_added, &ids, &err))
		fail_msg("\"%s\": %s", text, err.text);
	got = spell(ids.id, ids.n);
	if (strcmp(want, got))
		fail_msg("\"%s\" (parse_added %d): expected %s, got %s", text, parse_added, want, got);
	td_ids_finish(&ids);
	free(want);
	free(got);
}

static void expect_decoded(const struct td_tokenizer *t, const int32_t *id, size_t n, int skip_special, const json_t *want)
{
	size_t len;
	char *text = td_decode(t, id, n, skip_special, &len);

	if (len != json_string_length(want) || memcmp(text, json_string_value(want), len))
		fail_msg("decode (skip_special %d): expected \"%s\", got \"%s\"", skip_special, json_string_value(want), text);
	free(text);
}

/* Returns the number of cases, 0 when there is no such file. */
static size_t run_cases(const char *path)
{
	json_t *cases, *c, *v;
	size_t i, k, count;

	if (access(path, R_OK))
		return 0;
	cases = json_load_file(path, JSON_ALLOW_NUL, NULL);
	assert_non_null(cases);
	json_array_foreach (cases, i, c) {
		const json_t *text = json_object_get(c, "text"), *ids = json_object_get(c, "ids"), *skipped = json_object_get(c, "skipped");
		size_t n = json_array_size(ids);
		int32_t *id = calloc(n + 1, sizeof(*id));

		json_array_foreach (ids, k, v)
			id[k] = (int32_t)json_integer_value(v);
		expect_ids(tiny, json_string_value(text), json_string_length(text), !json_is_false(json_object_get(c, "parse_added")), id, n);
		expect_decoded(tiny, id, n, 0, json_object_get(c, "decoded"));
		if (skipped)
			expect_decoded(tiny, id, n, 1, skipped);
		free(id);
	}
	count = json_array_size(cases);
	json_decref(cases);
	return count;
}

static void test_stored_cases(void **state)
{
	(void)state;
	assert_true(run_cases("tests/data/tokenizer_cases.json") >= 80);
	/* Not part of the repository: used where it lies beside it. */
	print_message("%zu cases of the shared reference\n", run_cases("../shared/reference/tokenizer.json"));
}

static void test_random_texts_by_digest(void **state)
{
	uint64_t digest[DIGEST_KINDS];
	char line[256], want[64], got[64];
	FILE *f = fopen("tests/data/tokenizer.digest", "r");
	int k;

	(void)state;
	assert_non_null(f);
	assert_non_null(fgets(line, sizeof(line), f)); /* how it was made */
	assert_true(line[0] == '#');
	digest_random(tiny, digest);
	for (k = 0; k < DIGEST_KINDS; k++) {
		assert_non_null(fgets(want, sizeof(want), f));
		snprintf(got, sizeof(got), "%s %d %016llx\n", digest_kind[k], k < 3 ? RANDOM_TEXTS : RANDOM_SEQUENCES, (unsigned long long)digest[k]);
		assert_string_equal(want, got);
	}
	fclose(f);
}

static void test_what_it_tells(void **state)
{
	size_t n;

	(void)state;
	assert_int_equal(td_tokenizer_size(tiny), 8192);
	assert_int_equal(td_tokenizer_added(tiny, "<|im_end|>"), 8184);
	assert_int_equal(td_tokenizer_added(tiny, "<think>"), 8190);
	assert_int_equal(td_tokenizer_added(tiny, "<think"), -1);
	assert_int_equal(td_tokenizer_added(tiny, "<think>x"), -1);
	assert_int_equal(td_tokenizer_added(tiny, ""), -1);
	assert_int_equal(td_tokenizer_added(tiny, "the"), -1);
	assert_true(td_tokenizer_is_special(tiny, 8184));
	assert_false(td_tokenizer_is_special(tiny, 8190));
	assert_false(td_tokenizer_is_special(tiny, -1));
	assert_false(td_tokenizer_is_special(tiny, 8192));
	assert_string_equal(td_token_bytes(tiny, 8190, &n), "<think>");
	assert_int_equal(n, 7);
	assert_string_equal(td_token_bytes(tiny, 220, &n), " ");
	assert_int_equal(n, 1);
	assert_null(td_token_bytes(tiny, -1, &n));
	assert_null(td_token_bytes(tiny, 8192, &n));
	assert_null(td_token_bytes(tiny, INT32_MIN, &n));
}

static void test_encode_appends_or_leaves_alone(void **state)
{
	static const char *const invalid[] = {"\x80", "a\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "aaaaaaaa\xe2\x82",
		"\xf0\x8f\xbf\xbf"};
	struct td_error err = {0};
	struct td_ids ids = {0};
	size_t i;

	(void)state;
	assert_int_equal(td_encode(tiny, "a", 1, 1, &ids, &err), 0);
	assert_int_equal(td_encode(tiny, "b", 1, 1, &ids, &err), 0);
	assert_int_equal(td_encode(tiny, "", 0, 1, &ids, &err), 0);
	assert_int_equal(ids.n, 2);
	assert_int_equal(ids.id[1], 65);
	for (i = 0; i < sizeof(invalid) / sizeof(*invalid); i++) {
		assert_int_equal(td_encode(tiny, invalid[i], strlen(invalid[i]), 1, &ids, &err), TD_E_INVALID);
		assert_non_null(strstr(err.text, "UTF-8"));
		assert_int_equal(ids.n, 2);
	}
	assert_int_equal(td_encode(tiny, "a", (size_t)1 << 40, 1, &ids, &err), TD_E_TOO_LARGE);
	td_ids_finish(&ids);
}

static void test_utf8_check_by_scalar(void **state)
{
	char text[4];
	uint32_t c;
	int len, i;

	(void)state;
	for (c = 0; c < 0x110000; c++) {
		int surrogate = c >= 0xd800 && c < 0xe000;

		len = td__utf8_put(c, text);
		if (td_utf8_check(text, (size_t)len) == surrogate)
			fail_msg("U+%04X: valid is %d, expected %d", c, surrogate, !surrogate);
		for (i = 1; i < len; i++)
			assert_false(td_utf8_check(text, (size_t)i));
	}
	assert_false(td_utf8_check("\xf4\x90\x80\x80", 4));
	assert_false(td_utf8_check("\xe0\x9f\xbf", 3));
	assert_true(td_utf8_check("", 0));
	assert_true(td_utf8_check("12345678\0abc", 12));
}

/* "a b" and ["a", "b"] are one file to us. */
static void test_merges_in_both_spellings(void **state)
{
	json_t *root = tiny_json(), *merges = json_object_get(json_object_get(root, "model"), "merges"), *v;
	struct td_tokenizer *t;
	struct td_error err = {0};
	char text[RANDOM_TEXT_MAX];
	size_t i, n;

	(void)state;
	json_array_foreach (merges, i, v)
		json_array_set_new(merges, i, json_sprintf("%s %s", json_string_value(json_array_get(v, 0)), json_string_value(json_array_get(v, 1))));
	if (load_changed(root, &t, &err))
		fail_msg("%s", err.text);
	for (i = 0; i < 1000; i++) {
		struct td_ids ids = {0};

		n = random_text((uint32_t)i, text);
		assert_int_equal(td_encode(tiny, text, n, 1, &ids, &err), 0);
		expect_ids(t, text, n, 1, ids.id, ids.n);
		td_ids_finish(&ids);
	}
	td_tokenizer_free(t);
}

static void set_path(json_t *root, const char *path, const char *json)
{
	char copy[256], *key, *next;
	json_t *v = json_loads(json, JSON_DECODE_ANY, NULL), *at = root;

	assert_non_null(v);
	snprintf(copy, sizeof(copy), "%s", path);
	for (key = copy; (next = strchr(key, '/')); key = next + 1) {
		*next = '\0';
		at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
		assert_non_null(at);
	}
	if (json_is_array(at) && (size_t)atoi(key) == json_array_size(at))
		json_array_append_new(at, v);
	else if (json_is_array(at))
		json_array_set_new(at, (size_t)atoi(key), v);
	else
		json_object_set_new(at, key, v);
}

#define TOKEN(id, text, special) "{\"id\": " #id ", \"content\": \"" text "\", \"special\": " #special ", \"normalized\": false}"

/* Expected ids are the reference's for the same changed file. */
static void test_accepted_variants(void **state)
{
	static const struct {
		const char *path, *json, *text;
		int n;
		int32_t id[20];
	} cases[] = {
		{"normalizer", "null", "e\xcc\x81", 3, {68, 136, 223}},
		{"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}", "\xc3\xa9", 1, {8103}},
		{"post_processor", "{\"type\": \"ByteLevel\", \"trim_offsets\": false}", "b", 1, {65}},
		{"model/vocab/zzqq", "8192", "zzqq", 3, {4198, 80, 80}},
		{"model/merges/7926", "[\"h\", \"e\"]", "the he", 4, {540, 68, 327, 68}},
		{"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", "abc 1234 don't \xe1\xa0\x8e\n\n  x", 15,
		 {8181, 220, 16, 17, 18, 19, 2091, 1346, 220, 157, 254, 236, 262, 220, 727}},
		{"pre_tokenizer", "{\"type\": \"ByteLevel\", \"use_regex\": false}", "abc 1234 don't \xe1\xa0\x8e\n\n  x", 15,
		 {8181, 220, 16, 17, 18, 19, 2091, 1346, 220, 157, 254, 236, 262, 256, 87}},
		/* Patterns that leave gaps and that match nothing between characters. */
		{"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(?:[a-z]|[0-9])+|x*\"", "abc  1234 -- don't", 15,
		 {8181, 220, 220, 16, 17, 18, 19, 220, 12, 12, 220, 67, 264, 6, 83}},
		{"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"x*|b\"", "the xx he b  h", 13,
		{83, 71, 68, 220, 2550, 220, 71, 68, 220, 65, 220, 220, 71}},
		{"added_tokens/10", TOKEN(8192, "a b", false), "xa by", 3, {87, 8192, 88}},
		{"added_tokens/10", TOKEN(8192, "<think>x", false), "<think><think>x<thin", 5, {8190, 8192, 27, 540, 259}},
	};
	struct td_tokenizer *t;
	struct td_error err = {0};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		json_t *root = tiny_json();

		set_path(root, cases[i].path, cases[i].json);
		if (load_changed(root, &t, &err))
			fail_msg("%s = %s: %s", cases[i].path, cases[i].json, err.text);
		expect_ids(t, cases[i].text, strlen(cases[i].text), 1, cases[i].id, (size_t)cases[i].n);
		td_tokenizer_free(t);
	}
}

static void test_ignore_merges(void **state)
{
	json_t *root = tiny_json();
	struct td_tokenizer *t;
	struct td_error err = {0};
	const int32_t want[] = {8192};

	(void)state;
	set_path(root, "model/vocab/zzqq", "8192");
	set_path(root, "model/ignore_merges", "true");
	assert_int_equal(load_changed(root, &t, &err), 0);
	expect_ids(t, "zzqq", 4, 1, want, 1);
	td_tokenizer_free(t);
}

/* The reference decodes an added token by the byte alphabet when all of its characters are in it. */
static void test_added_tokens_are_decoded_as_the_reference_does(void **state)
{
	static const struct {
		const char *token, *decoded;
	} cases[] = {
		{TOKEN(8192, "\xc4\xa0\xc4\xa0!", false), "  !"},
		{TOKEN(8192, "\xe6\x97\xa5\xe6\x9c\xac", false), "\xe6\x97\xa5\xe6\x9c\xac"},
		{TOKEN(8192, "a b", true), "a b"},
	};
	struct td_tokenizer *t;
	struct td_error err = {0};
	const int32_t id = 8192;
	size_t i, n;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		json_t *root = tiny_json();
		char *text;

		set_path(root, "added_tokens/10", cases[i].token);
		if (load_changed(root, &t, &err))
			fail_msg("%s", err.text);
		text = td_decode(t, &id, 1, 0, &n);
		assert_string_equal(text, cases[i].decoded);
		free(text);
		text = td_decode(t, &id, 1, 1, &n);
		assert_string_equal(text, i == 2 ? "" : cases[i].decoded);
		free(text);
		td_tokenizer_free(t);
	}
}

static void test_refused_files(void **state)
{
	static const struct {
		const char *path, *json;
		int code;
		const char *says;
	} cases[] = {
		{"model/type", "\"Unigram\"", TD_E_UNSUPPORTED, "model.type"},
		{"model/dropout", "0.1", TD_E_UNSUPPORTED, "model.dropout"},
		{"model/unk_token", "\"<unk>\"", TD_E_UNSUPPORTED, "model.unk_token"},
		{"model/continuing_subword_prefix", "\"##\"", TD_E_UNSUPPORTED, "model.continuing_subword_prefix"},
		{"model/end_of_word_suffix", "\"</w>\"", TD_E_UNSUPPORTED, "model.end_of_word_suffix"},
		{"model/byte_fallback", "true", TD_E_UNSUPPORTED, "model.byte_fallback"},
		{"model/vocab", "[]", TD_E_FORMAT, "model.vocab"},
		{"model/vocab", "{}", TD_E_FORMAT, "byte 0x00"},
		{"model/vocab/new", "5", TD_E_FORMAT, "id 5 is given twice"},
		{"model/vocab/new", "-1", TD_E_FORMAT, "new"},
		{"model/vocab/new", "99999999999", TD_E_FORMAT, "new"},
		{"model/vocab/new", "\"7\"", TD_E_FORMAT, "new"},
		{"model/merges", "{}", TD_E_FORMAT, "model.merges"},
		{"model/merges/3", "[\"a\"]", TD_E_FORMAT, "model.merges[3]"},
		{"model/merges/3", "[\"a\", 5]", TD_E_FORMAT, "model.merges[3]"},
		{"model/merges/3", "7", TD_E_FORMAT, "model.merges[3]"},
		{"model/merges/3", "\"abc\"", TD_E_FORMAT, "model.merges[3]"},
		{"model/merges/3", "\"a b c\"", TD_E_FORMAT, "model.merges[3]"},
		{"model/merges/3", "[\"q\", \"qqqqqq\"]", TD_E_FORMAT, "model.merges[3]"},
		{"normalizer", "{\"type\": \"NFKC\"}", TD_E_UNSUPPORTED, "normalizer"},
		{"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}", TD_E_UNSUPPORTED, "normalizer"},
		{"pre_tokenizer", "null", TD_E_UNSUPPORTED, "pre_tokenizer"},
		{"pre_tokenizer", "{\"type\": \"Whitespace\"}", TD_E_UNSUPPORTED, "pre_tokenizer"},
		{"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", TD_E_UNSUPPORTED, "behavior"},
		{"pre_tokenizer/pretokenizers/0/invert", "true", TD_E_UNSUPPORTED, "invert"},
		{"pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", TD_E_UNSUPPORTED, "pattern"},
		{"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(\"", TD_E_UNSUPPORTED, "split pattern"},
		{"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\w+\"", TD_E_UNSUPPORTED, "\\w"},
		{"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"^a\"", TD_E_UNSUPPORTED, "anchor ^"},
		{"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[a[b]]\"", TD_E_UNSUPPORTED, "class"},
		{"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a\\\\\"", TD_E_UNSUPPORTED, "escape"},
		{"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\p{L\"", TD_E_UNSUPPORTED, "escape"},
		{"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", TD_E_UNSUPPORTED, "add_prefix_space"},
		{"pre_tokenizer/pretokenizers/1/use_regex", "true", TD_E_UNSUPPORTED, "use_regex"},
		{"pre_tokenizer/pretokenizers/1/type", "\"Metaspace\"", TD_E_UNSUPPORTED, "ByteLevel"},
		{"pre_tokenizer/pretokenizers/2", "{\"type\": \"ByteLevel\"}", TD_E_UNSUPPORTED, "pre_tokenizer"},
		{"decoder", "null", TD_E_UNSUPPORTED, "decoder"},
		{"post_processor", "{\"type\": \"TemplateProcessing\"}", TD_E_UNSUPPORTED, "post_processor"},
		{"truncation", "{\"max_length\": 5}", TD_E_UNSUPPORTED, "truncation"},
		{"padding", "{\"strategy\": \"BatchLongest\"}", TD_E_UNSUPPORTED, "padding"},
		{"added_tokens", "{}", TD_E_FORMAT, "added_tokens"},
		{"added_tokens/2/lstrip", "true", TD_E_UNSUPPORTED, "added_tokens[2].lstrip"},
		{"added_tokens/2/rstrip", "true", TD_E_UNSUPPORTED, "added_tokens[2].rstrip"},
		{"added_tokens/2/single_word", "true", TD_E_UNSUPPORTED, "added_tokens[2].single_word"},
		{"added_tokens/2/normalized", "true", TD_E_UNSUPPORTED, "added_tokens[2].normalized"},
		{"added_tokens/2/content", "\"\"", TD_E_FORMAT, "added_tokens[2].content"},
		{"added_tokens/2/content", "\"<think>\"", TD_E_FORMAT, "<think>"},
		{"added_tokens/2/content", "\"the\"", TD_E_FORMAT, "the"},
		{"added_tokens/2/id", "8183", TD_E_FORMAT, "8183"},
		{"added_tokens/2/id", "null", TD_E_FORMAT, "added_tokens[2].id"},
		{"model", "5", TD_E_FORMAT, "model"},
	};
	struct td_tokenizer *t;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct td_error err = {0};
		json_t *root = tiny_json();
		int code;

		set_path(root, cases[i].path, cases[i].json);
		code = load_changed(root, &t, &err);
		if (code != cases[i].code || !strstr(err.text, cases[i].says) || t)
			fail_msg("%s = %s: expected code %d and \"%s\", got %d: %s", cases[i].path, cases[i].json, cases[i].code, cases[i].says, code,
				err.text);
	}
}

static void test_bad_paths(void **state)
{
	char dir[] = "/tmp/td-tokenizer-XXXXXX", pipe[64];
	struct td_tokenizer *t;
	struct td_error err;

	(void)state;
	assert_int_equal(td_tokenizer_load("/nowhere/tokenizer.json", &t, &err), TD_E_NOT_FOUND);
	assert_null(t);
	assert_int_equal(td_tokenizer_load("tests", &t, &err), TD_E_NOT_FOUND);
	assert_non_null(strstr(err.text, "tests has no tokenizer.json"));
	assert_true(mkdtemp(dir) != NULL);
	snprintf(pipe, sizeof(pipe), "%s/tokenizer.json", dir);
	assert_int_equal(mkfifo(pipe, 0600), 0);
	assert_int_equal(td_tokenizer_load(pipe, &t, &err), TD_E_INVALID); /* instead of waiting for a writer */
	assert_non_null(strstr(err.text, "not a regular file"));
	assert_int_equal(td_tokenizer_load(dir, &t, &err), TD_E_INVALID);
	assert_int_equal(unlink(pipe), 0);
	assert_int_equal(mkdir(pipe, 0700), 0);
	assert_int_equal(td_tokenizer_load(dir, &t, &err), TD_E_INVALID);
	assert_int_equal(rmdir(pipe), 0);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(td_tokenizer_load("/dev/zero", &t, &err), TD_E_INVALID);
	assert_int_equal(td_tokenizer_load("Makefile", &t, &err), TD_E_FORMAT);
	assert_non_null(strstr(err.text, "line 1"));
	assert_int_equal(td_tokenizer_load("models/tiny", &t, &err), 0);
	td_tokenizer_free(t);
	td_tokenizer_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stored_cases),
		cmocka_unit_test(test_random_texts_by_digest),
		cmocka_unit_test(test_what_it_tells),
		cmocka_unit_test(test_encode_appends_or_leaves_alone),
		cmocka_unit_test(test_utf8_check_by_scalar),
		cmocka_unit_test(test_merges_in_both_spellings),
		cmocka_unit_test(test_accepted_variants),
		cmocka_unit_test(test_ignore_merges),
		cmocka_unit_test(test_added_tokens_are_decoded_as_the_reference_does),
		cmocka_unit_test(test_refused_files),
		cmocka_unit_test(test_bad_paths),
	};

	return cmocka_run_group_tests(tests, load_tiny, free_tiny);
}
