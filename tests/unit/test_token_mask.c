/*
 * test_token_mask.c: a mask says of every token what advancing its bytes says, in any state; masks that were kept say the same; what is no vocabulary
 * is refused; broken compiled grammars are refused or run within bounds. Prints what a mask costs, with the shipped vocabulary and one of 248,320.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/clock.h"
#include "engine/json_schema.h"
#include "engine/token_mask.h"
#include "tests/lib/schema_gen.h"
#include "tests/lib/unit.h"

static struct td_tokenizer *tok;
static struct td_token_mask *mask;
static struct td_grammar grammar;
static struct td_gstate state, before;
static struct td_error err;
static int words, n_ids;

static int open_bytes(uint8_t *bytes, size_t n)
{
	int rc = td_grammar_open(&grammar, bytes, n, &err);

	free(bytes);
	return rc;
}

static int compile(const char *schema)
{
	uint8_t *bytes;
	size_t n;
	int rc = td_constraint_schema(schema, 0, &bytes, &n, &err);

	return rc ? rc : open_bytes(bytes, n);
}

static const uint32_t *mask_now(void)
{
	return td_token_mask_of(mask, td_gwalk_load(td_token_mask_walk(mask), &grammar, &state));
}

/* Compares every token; returns one of those allowed, or -1. */
static int compare(const char *what)
{
	uint32_t *bits = malloc(sizeof(*bits) * (size_t)words);
	int some = -1, seen = 0;

	memcpy(bits, mask_now(), sizeof(*bits) * (size_t)words);
	before = state;
	for (int id = 0; id < n_ids; id++) {
		size_t n;
		const uint8_t *bytes = td_token_mask_bytes(mask, id, &n);
		int allowed = bits[id / 32] >> id % 32 & 1, fits = bytes && !td_gstate_advance(td_token_mask_walk(mask), &grammar, &state, bytes, n);

		state = before;
		if (allowed != fits)
			fail_msg("%s: token %d (%.*s): the mask says %d, its bytes %d", what, id, (int)n, bytes ? (const char *)bytes : "", allowed, fits);
		if (fits && schema_rnd((uint32_t)++seen) == 0)
			some = id;
	}
	for (int id = n_ids; id < 32 * words; id++)
		assert_false(bits[id / 32] >> id % 32 & 1);
	free(bits);
	return some;
}

static void travel(const char *what, int steps)
{
	assert_int_equal(td_gstate_start(td_token_mask_walk(mask), &grammar, &state), 0);
	for (int i = 0; i < steps; i++) {
		int id = compare(what);
		size_t n;
		const uint8_t *bytes;

		if (id < 0) {
			assert_true(td_gstate_may_end(&state));
			return;
		}
		bytes = td_token_mask_bytes(mask, id, &n);
		assert_int_equal(td_gstate_advance(td_token_mask_walk(mask), &grammar, &state, bytes, n), 0);
	}
}

static void same_as_bytes(void **unused)
{
	static const char *const schema[] = {
		"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":7},\"b\":{\"type\":\"integer\",\"minimum\":5,\"maximum\":90210}},\"required\":[\"a\",\"b\"]}",
		"{\"type\":\"string\",\"minLength\":3,\"maxLength\":300}",
		"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"pattern\":\"^[a-z ]+$\"},{\"type\":\"number\"}]}",
		"{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":2}",
		"{\"properties\":{\"name\":true},\"additionalProperties\":{\"enum\":[\"the\",\"then\",\"there\",\"é\"]}}",
	};
	const char *tool = "{\"name\":\"f\",\"parameters\":{\"properties\":{\"q\":{\"type\":\"string\"}},\"required\":[\"q\"]}}";
	uint8_t *bytes;
	size_t n;

	(void)unused;
	schema_seed(5);
	for (size_t i = 0; i < sizeof(schema) / sizeof(schema[0]); i++) {
		OK(compile(schema[i]));
		travel(schema[i], 12);
	}
	OK(td_constraint_object(0, &bytes, &n, &err));
	OK(open_bytes(bytes, n));
	travel("object", 25);
	OK(td_constraint_object(1, &bytes, &n, &err));
	OK(open_bytes(bytes, n));
	travel("thinking", 12);
	OK(td_constraint_tools(&tool, 1, "required", 0, &bytes, &n, &err));
	OK(open_bytes(bytes, n));
	travel("tool", 30);
	for (uint64_t seed = 1; seed <= 12; seed++) {
		json_t *s = (schema_seed(1000 + seed), schema_random(3));
		char *text = json_dumps(s, JSON_COMPACT);

		if (!compile(text))
			travel(text, 6);
		free(text);
		json_decref(s);
	}
	assert_true(td_token_mask_counts(mask).walked < td_token_mask_counts(mask).asked);
}

/* Bytes of a compiled grammar that some bits were turned in: refused, or run; never out of bounds (under SAN that is seen), never without an end. */
static void broken_grammars(void **unused)
{
	int ran = 0;
	uint8_t *bytes, *copy = malloc(TD_GRAMMAR_MAX);
	size_t n;

	(void)unused;
	OK(td_constraint_schema("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":9},\"b\":{\"enum\":[\"x\",\"yy\",3]}},\"additionalProperties\":{\"pattern\":\"^a+b$\"}}",
				0, &bytes, &n, &err));
	schema_seed(77);
	for (int i = 0; i < 3000; i++) {
		memcpy(copy, bytes, n);
		for (uint32_t k = 1 + schema_rnd(4); k; k--)
			copy[schema_rnd(i % 2 ? (uint32_t)n : 400)] ^= (uint8_t)(1 << schema_rnd(8));
		if (td_grammar_open(&grammar, copy, n, &err) || td_gstate_start(td_token_mask_walk(mask), &grammar, &state))
			continue;
		ran++;
		for (int b = 0; b < 30; b++) {
			uint8_t byte = (uint8_t)"{\"a\": }1,xyab\\u\n"[schema_rnd(16)];

			td_gstate_advance(td_token_mask_walk(mask), &grammar, &state, &byte, 1);
		}
		if (ran % 20 == 0)
			mask_now();
	}
	for (size_t cut = 0; cut < n; cut += 13)
		assert_int_equal(td_grammar_open(&grammar, bytes, cut, &err), TD_E_FORMAT);
	print_message("%d of 3000 broken grammars could be run\n", ran);
	assert_true(ran > 50);
	free(copy);
	free(bytes);
}

/* What can be read in very many ways is given up within bounds, and remembered; others get their masks as before. */
static void given_up(void **unused)
{
	static const char *const pattern[] = {"{\"pattern\":\"^(.?){1000}$\"}", "{\"pattern\":\"^.{0,1000}.{0,1000}.{0,1000}$\"}",
					      "{\"pattern\":\"^((((((((.?){9}){9}){9}){9}){9}){9}){9}){9}$\"}"};
	struct td_gwalk *w = td_token_mask_walk(mask);

	(void)unused;
	for (size_t i = 0; i < sizeof(pattern) / sizeof(pattern[0]); i++) {
		struct td_token_mask_counts c = td_token_mask_counts(mask);
		uint64_t work;

		OK(compile(pattern[i]));
		assert_int_equal(td_gstate_start(w, &grammar, &state), 0);
		assert_int_equal(td_gstate_advance(w, &grammar, &state, "\"abcdefghijk", 12), 0);
		work = td_gwalk_work(w);
		assert_null(mask_now());
		assert_null(mask_now());
		work = td_gwalk_work(w) - work;
		assert_in_range(work, TD_TOKEN_MASK_WORK, TD_TOKEN_MASK_WORK + TD_TOKEN_MASK_WORK / 4); /* a step may go beyond it */
		assert_int_equal(td_token_mask_counts(mask).walked - c.walked, 1);
		assert_int_equal(td_token_mask_counts(mask).given_up - c.given_up, 1);
	}
	OK(compile("{\"pattern\":\"^[a-z]+@[a-z]{2,20}$\"}"));
	travel("behind what was given up", 8);
}

static void bad_vocabularies(void **unused)
{
	struct td_token_mask *m;
	int fd = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	(void)unused;
	assert_int_equal(td_token_mask_create(-1, words, &m, &err), TD_E_PROTOCOL);
	assert_int_equal(write(fd, "tvcb\xff\xff\xff\x7f", 8), 8);
	assert_int_equal(td_token_mask_create(fd, words, &m, &err), TD_E_PROTOCOL);
	close(fd);
}

/* ---- what it costs --------------------------------------------------------------------------------------------------------------------------------- */

/* A token of the shipped vocabulary; of 20, 19 are words: that is what makes a vocabulary large. */
static const uint8_t *some_token(size_t *n)
{
	int word = schema_rnd(20) > 0;

	for (;;) {
		const uint8_t *s = td_token_mask_bytes(mask, (int)schema_rnd((uint32_t)n_ids), n);
		size_t i = 0;

		while (i < *n && word && td_g_plain(s[i]))
			i++;
		if (s && (!word || i == *n))
			return s;
	}
}

/* A vocabulary as large as the real one: the shipped one's tokens, then pairs of them. */
static void big_vocab(void)
{
	enum { N = 248320 };
	size_t size = 8 + 4 * (N + 1ul) + 4000000;
	int fd = memfd_create("big", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint32_t *map, at = 0;
	uint8_t *text;

	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	text = (uint8_t *)(map + 2 + N + 1);
	map[0] = 0x62637674;
	map[1] = N;
	schema_seed(9);
	for (int id = 0; id < N; id++) {
		size_t n = 0, k = 0;
		const uint8_t *a = id < n_ids ? td_token_mask_bytes(mask, id, &n) : some_token(&n), *b = id < n_ids ? NULL : some_token(&k);

		map[2 + id] = at;
		if (a && at + n + k < 3999000) {
			memcpy(text + at, a, n);
			memcpy(text + at + n, b ? b : a, k);
			at += (uint32_t)(n + k);
		}
	}
	map[2 + N] = at;
	munmap(map, size);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
	td_token_mask_destroy(mask);
	words = (N + 31) / 32;
	n_ids = N;
	uint64_t began = td_now_us();

	OK(td_token_mask_create(fd, words, &mask, &err));
	print_message("248320 ids, %u bytes: sorted in %.1f ms\n", at, (double)(td_now_us() - began) / 1e3);
	close(fd);
}

static void cost(const char *what, const char *schema, const char *text)
{
	struct td_token_mask_counts a, b;
	uint64_t began;

	OK(compile(schema));
	assert_int_equal(td_gstate_start(td_token_mask_walk(mask), &grammar, &state), 0);
	assert_int_equal(td_gstate_advance(td_token_mask_walk(mask), &grammar, &state, text, strlen(text)), 0);
	a = td_token_mask_counts(mask);
	mask_now();
	b = td_token_mask_counts(mask);
	began = td_now_us();
	for (int i = 0; i < 1000; i++)
		mask_now();
	print_message("  %-44s %7llu us walked, %6.2f us kept\n", what, (unsigned long long)(b.us - a.us), (double)(td_now_us() - began) / 1e3);
	assert_int_equal(b.walked - a.walked, 1);
}

static void costs(void **unused)
{
#define OBJECT "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"short\":{\"type\":\"string\",\"maxLength\":12},\"n\":{\"type\":\"integer\"},\"re\":{\"pattern\":\"^[a-z]+$\"}}}"
	struct td_token_mask_counts c;

	(void)unused;
	for (int big = 0; big < 2; big++) {
		if (big)
			big_vocab();
		print_message("%d ids\n", n_ids);
		cost("structure: the start", OBJECT, "");
		cost("structure: behind {", OBJECT, "{");
		cost("structure: behind a value", OBJECT, "{\"name\":\"x\"");
		cost("string content", OBJECT, "{\"name\":\"some");
		cost("string content, 5 characters left", OBJECT, "{\"short\":\"seventh");
		cost("number", OBJECT, "{\"n\":12");
		cost("pattern [a-z]+", OBJECT, "{\"re\":\"ab");
		cost("any JSON value", "true", "");
	}
	/* A long document, token by token: mostly masks that are kept. */
	OK(compile("{\"type\":\"array\",\"items\":" OBJECT "}"));
	assert_int_equal(td_gstate_start(td_token_mask_walk(mask), &grammar, &state), 0);
	c = td_token_mask_counts(mask);
	uint64_t began = td_now_us(), n = 0;

	for (int i = 0; i < 60; i++)
		for (const char *p = i ? ", {\"name\": \"somebody\", \"n\": 12}" : "[{\"name\": \"somebody\", \"n\": 12}"; *p; p++, n++) {
			mask_now();
			assert_int_equal(td_gstate_advance(td_token_mask_walk(mask), &grammar, &state, p, 1), 0);
		}
	print_message("  a document of %llu steps: %.1f us each, %llu masks walked\n", (unsigned long long)n, (double)(td_now_us() - began) / (double)n,
		      (unsigned long long)(td_token_mask_counts(mask).walked - c.walked));
	assert_true(td_token_mask_counts(mask).walked - c.walked < n / 4);
}

static int open_all(void **unused)
{
	int fd;

	(void)unused;
	OK(td_tokenizer_load("models/tiny", &tok, &err));
	n_ids = td_tokenizer_size(tok);
	words = (n_ids + 31) / 32 + 1;
	OK(td_vocab_make(tok, n_ids, &fd, &err));
	OK(td_token_mask_create(fd, words, &mask, &err));
	close(fd);
	return 0;
}

static int close_all(void **unused)
{
	(void)unused;
	td_token_mask_destroy(mask);
	td_tokenizer_free(tok);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_as_bytes), cmocka_unit_test(broken_grammars), cmocka_unit_test(given_up), cmocka_unit_test(bad_vocabularies), cmocka_unit_test(costs),
	};

	return cmocka_run_group_tests(tests, open_all, close_all);
}
