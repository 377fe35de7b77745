/*
 * Out of memory: whichever allocation fails while a tokenizer is loaded, a text encoded or decoded or a chat rendered, the call says so with a
 * code, leaves its outputs alone and loses nothing. The libraries under it share the allocator that fails; jansson is left out: its scanner asserts
 * instead of returning when its buffer can't grow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/chat_template.h"
#include "engine/tokenizer.h"
#include "failing_alloc.h"

#if FAILING_ALLOC

static struct td_tokenizer *small;
static char path[] = "/tmp/td-nomem-XXXXXX";

/* The tiny tokenizer cut down to its bytes and first merges, so that each allocation can fail in turn. */
static int setup(void **state)
{
	json_t *root, *model, *vocab, *v;
	FILE *f = fdopen(mkstemp(path), "w");
	struct td_error err;
	const char *key;

	(void)state;
	json_set_alloc_funcs(__libc_malloc, __libc_free);
	root = json_load_file("models/tiny/tokenizer.json", 0, NULL);
	model = json_object_get(root, "model");
	vocab = json_object();
	assert_non_null(root);
	assert_non_null(f);
	json_object_foreach (json_object_get(model, "vocab"), key, v)
		if (json_integer_value(v) < 276)
			json_object_set(vocab, key, v);
	json_object_set_new(model, "vocab", vocab);
	while (json_array_size(json_object_get(model, "merges")) > 20)
		json_array_remove(json_object_get(model, "merges"), json_array_size(json_object_get(model, "merges")) - 1);
	assert_int_equal(json_dumpf(root, f, 0), 0);
	assert_int_equal(fclose(f), 0);
	json_decref(root);
	if (td_tokenizer_load(path, &small, &err))
		fail_msg("%s", err.text);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	td_tokenizer_free(small);
	return unlink(path);
}

typedef int attempt(void);

/* Lets the 1st, 2nd, ... allocation of `run` fail until one run gets through untouched. Returns how many failed. */
static long loop(attempt *run)
{
	long n, before, left;
	int code;

	for (n = 1;; n++) {
		before = alloc_alive;
		alloc_countdown = n;
		code = run();
		left = alloc_countdown;
		alloc_countdown = 0;
		if (alloc_alive != before)
			fail_msg("allocation %ld: %ld more are alive than before", n, alloc_alive - before);
		if (left)
			break;
		/* Some failures are survived: without machine code the pattern is interpreted, and a text that can't be shrunk stays large. */
		if (code)
			assert_true(code < 0);
	}
	assert_int_equal(code, 0);
	return n - 1;
}

static int load(void)
{
	struct td_error err = {0};
	struct td_tokenizer *t = (struct td_tokenizer *)1;
	int code = td_tokenizer_load(path, &t, &err);

	if (code && (t || !err.text[0]))
		return 1;
	td_tokenizer_free(t);
	return code;
}

static void *none(size_t n)
{
	(void)n;
	return NULL;
}

static void nothing_to_read_with(void **state)
{
	struct td_error err = {0};
	struct td_tokenizer *t;

	(void)state;
	json_set_alloc_funcs(none, __libc_free);
	assert_int_equal(td_tokenizer_load(path, &t, &err), TD_E_NOMEM);
	json_set_alloc_funcs(__libc_malloc, __libc_free);
	assert_null(t);
	assert_non_null(strstr(err.text, "out of memory"));
}

static int encode(void)
{
	static char text[3000];
	struct td_error err = {0};
	struct td_ids ids = {0};
	int code;

	/* A long piece, marks out of order, an added token, many pieces. */
	memset(text, 'a', sizeof(text));
	memcpy(text + 200, " e\xcc\x81\xcc\xa3 <think> ", 16);
	memset(text + 1000, '1', 1000);
	code = td_encode(small, text, sizeof(text), 1, &ids, &err);
	if (code && (ids.n || !err.text[0]))
		code = 1;
	td_ids_finish(&ids);
	return code;
}

static int decode(void)
{
	const int32_t id[] = {1, 2, 3, 200};
	size_t n;
	char *text = td_decode(small, id, 4, 0, &n);

	free(text);
	return text ? 0 : -1;
}

static int render(void)
{
	static const char *const tool[] = {"{\"a\": [1, {\"b\": 2.5}]}"};
	const struct td_chat_call call = {"f", "{\"k\": \"v\"}"};
	const struct td_chat_message m[] = {{.role = "user", .content = "Q"}, {.role = "assistant", .content = "A", .call = &call, .n_calls = 1}};
	const struct td_chat chat = {.message = m, .n_messages = 2, .tool = tool, .n_tools = 1};
	struct td_spans given = {0};
	struct td_error err = {0};
	char *text;
	size_t n;
	int code = td_chat_render(&chat, &text, &n, &given, &err);

	td_spans_finish(&given);
	if (code && (text || n || !err.text[0]))
		return 1;
	free(text);
	return code;
}

static void test_every_allocation_may_fail(void **state)
{
	long loads, encodes, decodes, renders;

	(void)state;
	loads = loop(load);
	encodes = loop(encode);
	decodes = loop(decode);
	renders = loop(render);
	print_message("allocations that failed: load %ld, encode %ld, decode %ld, render %ld\n", loads, encodes, decodes, renders);
	assert_true(loads > 300 && encodes > 8 && decodes >= 1 && renders >= 1);
}

#else

static void test_every_allocation_may_fail(void **state)
{
	(void)state;
	skip();
}
static void nothing_to_read_with(void **state)
{
	(void)state;
	skip();
}
static int setup(void **state)
{
	(void)state;
	return 0;
}
static int teardown(void **state)
{
	(void)state;
	return 0;
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_to_read_with), cmocka_unit_test(test_every_allocation_may_fail)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
