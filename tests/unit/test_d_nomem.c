/*
 * test_d_nomem.c: whichever allocation fails while a request is made or gets its tokens, or while HTTP's JSON is read or written, the caller is told, and nothing
 * is lost or freed twice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/http/answer.h"
#include "daemon/http/openai.h"
#include "engine/json_schema.h"
#include "failing_alloc.h"

#if FAILING_ALLOC

static struct td_daemon_config cfg;
static struct td_model model;

static int setup(void **state)
{
	char *argv[] = {(char *)"tandemd", (char *)"--config=/dev/null", (char *)"--model.target=models/tiny/target-int4", (char *)"--model.drafter=none",
			(char *)"--engine.target_worker=/bin/true", (char *)"--tandem.socket=/s", (char *)"--tandem.runtime_dir=/r"};
	enum td_config_action action;
	struct td_error err;

	(void)state;
	return td_daemon_config_load(7, argv, &cfg, &action, &err) || td_model_load(&cfg, &model, &err) ? -1 : 0;
}

static int teardown(void **state)
{
	(void)state;
	td_model_finish(&model);
	td_daemon_config_finish(&cfg);
	return 0;
}

/* A request by text with everything that takes memory, and 3000 tokens. 0, or the code that it failed with. */
static int live(struct td_error *err)
{
	static struct td_verdict v;
	char *stop[] = {(char *)"never there", (char *)"nor this"};
	Tandem__Sampling s = TANDEM__SAMPLING__INIT;
	Tandem__Generate g = TANDEM__GENERATE__INIT;
	struct td_request *r;
	int rc = 0, stopped;

	s.n_stop = 2;
	s.stop = stop;
	s.has_logprobs = 1;
	s.logprobs = 5;
	g.input_case = TANDEM__GENERATE__INPUT_TEXT;
	g.text = (char *)"how large is the largest file?";
	g.sampling = &s;
	r = td_request_create(&cfg, &model, &g, err);
	if (!r)
		return err->code;
	for (int i = 0; i < 3000 && !rc; i++)
		rc = td_request_commit(r, (int32_t[]){300 + i % 50}, 1, &v, &stopped, err);
	td_request_free(r);
	return rc;
}

/* Runs `once` with the first, the second, ... allocation failing, until none is left: 0 or out of memory, nothing lost. How often it was told. */
static long each_allocation(int (*once)(struct td_error *err))
{
	long failed = 0;

	for (long n = 1;; n++) {
		struct td_error err = {0};
		long before = alloc_alive, left;
		int rc;

		alloc_countdown = n;
		rc = once(&err);
		left = alloc_countdown;
		alloc_countdown = 0;
		assert_int_equal(alloc_alive, before);
		if (left) {
			assert_int_equal(rc, 0);
			return failed;
		}
		if (rc) { /* some are survived: a pattern without machine code is interpreted */
			if (rc != TD_E_NOMEM)
				print_message("allocation %ld: %s\n", n, err.text);
			assert_int_equal(rc, TD_E_NOMEM);
			assert_true(err.text[0] != 0);
			failed++;
		}
	}
}

static void test_request(void **state)
{
	(void)state;
	assert_in_range(each_allocation(live), 15, 10000);
}

/* ---- HTTP: the request's JSON, the answer's pieces and its JSON -------------------------------------------------------------------------- */

static const char *body;
static int chat;

static int read_body(struct td_error *err)
{
	struct td_openai_request q;
	int rc = td_openai_read(&q, chat, body, strlen(body), "tiny", err);

	td_openai_finish(&q);
	return rc;
}

static int read_tokenize(struct td_error *err)
{
	struct td_openai_request q;
	Tandem__Tokenize *t = NULL;
	int strings, rc = td_openai_read_tokenize(&q, body, strlen(body), "tiny", &t, &strings, err);

	if (t)
		tandem__tokenize__free_unpacked(t, NULL);
	td_openai_finish(&q);
	return rc;
}

static int read_detokenize(struct td_error *err)
{
	struct td_openai_request q;
	struct td_ids ids = {0};
	int rc = td_openai_read_detokenize(&q, body, strlen(body), "tiny", &ids, err);

	free(ids.id);
	td_openai_finish(&q);
	return rc;
}

static void test_bodies(void **state)
{
	static const char *const text[] = {
		"{\"prompt\": \"a\", \"n\": 2, \"stop\": [\"x\", \"y\"], \"logit_bias\": {\"3\": -1}, \"stop_token_ids\": [4, 5], \"logprobs\": 3, \"stream\": true}",
		"{\"prompt\": [\"a\", \"b\"], \"max_tokens\": 3}", "{\"prompt\": [[1, 2], [3]]}", "{\"prompt\": [1, 2, 3]}",
	};
	static const char *const chats[] = {
		"{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"developer\", \"content\": \"t\"}, {\"role\": \"user\", \"content\": "
		"[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}], \"chat_template_kwargs\": {\"enable_thinking\": true}, "
		"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": {\"type\": \"object\"}}}}",
		"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"r\", \"tool_calls\": "
		"[{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, {}]}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"1\", "
		"\"content\": \"c\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}], "
		"\"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}}",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++) {
		body = text[i];
		chat = 0;
		assert_in_range(each_allocation(read_body), 5, 10000);
	}
	for (size_t i = 0; i < sizeof(chats) / sizeof(*chats); i++) {
		body = chats[i];
		chat = 1;
		assert_in_range(each_allocation(read_body), 20, 10000);
	}
	body = "{\"content\": \"a\", \"with_pieces\": true}";
	assert_in_range(each_allocation(read_tokenize), 3, 10000);
	body = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}";
	assert_in_range(each_allocation(read_tokenize), 5, 10000);
	body = "{\"tokens\": [1, 2, 3]}";
	assert_in_range(each_allocation(read_detokenize), 3, 10000);
}

static void put_piece(void *ctx, const char *s, size_t n)
{
	td_json_string(ctx, s, n);
}

static void put_call(void *ctx, int index, const char *s, size_t n)
{
	td_json_format(ctx, "[%d]", index);
	td_json_string(ctx, s, n);
}

/* A model's text piece by piece, written as JSON. */
static int write_answer(struct td_error *err)
{
	static const char text[] = "thinks\n</think>\n\nsays\n<tool_call>\n<function=f>\n<parameter=x>\n[1, \"a\"]\n</parameter>\n<parameter=y>\nword\n</parameter>\n"
				   "</function>\n</tool_call>\nand <tool_call>not one";
	json_t *tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"x\": {\"type\": \"array\"}}}}}]", 0, NULL);
	struct td__text t = {0};
	struct td_answer_out out = {&t, put_piece, put_piece, put_call, put_call};
	struct td_openai_usage u = {.prompt = 1};
	struct td_answer a;
	int failed;

	td_answer_init(&a, 1, tools, &out);
	for (size_t at = 0; at + 1 < sizeof(text); at += 7)
		td_answer_push(&a, text + at, sizeof(text) - 1 - at < 7 ? sizeof(text) - 1 - at : 7);
	td_answer_end(&a);
	td_openai_usage(&t, &u);
	td_openai_error(&t, 500, &(struct td_error){.code = TD_E_INTERNAL, .text = "it is so"}, NULL, NULL);
	failed = td_answer_failed(&a) || t.failed || !tools;
	td_answer_finish(&a);
	td__text_finish(&t);
	json_decref(tools);
	return failed ? td_error_set(err, TD_E_NOMEM, "out of memory") : 0;
}

/* Log-probabilities of a request's tokens in both shapes. */
static int write_logprobs(struct td_error *err)
{
	struct td_commitlog log;
	struct td_openai_columns columns = {0};
	static struct td_verdict v;
	struct td__text t = {0};
	int32_t *prompt = calloc(2, sizeof(*prompt));
	int failed, rc = prompt ? 0 : TD_E_NOMEM;

	if (rc)
		return td_error_set(err, rc, "out of memory");
	td_commitlog_init(&log, prompt, 2, 3);
	for (int i = 0; !rc && i < 5; i++)
		rc = td_commitlog_append(&log, 300 + i, &v, 0);
	if (!rc) {
		td_openai_logprobs(&t, model.tokenizer, &log, 0, 5, 1);
		td_openai_columns_add(&columns, model.tokenizer, &log, 0, 5);
		td_openai_columns_put(&t, &columns);
	}
	failed = rc || t.failed;
	td_openai_columns_finish(&columns);
	td__text_finish(&t);
	td_commitlog_finish(&log);
	return failed ? td_error_set(err, TD_E_NOMEM, "out of memory") : 0;
}

static int compile_schema(struct td_error *err)
{
	uint8_t *bytes = NULL;
	size_t n;
	int rc = td_constraint_schema("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"^[a-z]+$\"}, \"b\": {\"enum\": [1, \"x\"]}}}", 1, &bytes, &n, err);

	free(bytes);
	return rc;
}

static int compile_tools(struct td_error *err)
{
	static const char *const tool[] = {"{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\"}}}}}"};
	uint8_t *bytes = NULL;
	size_t n;
	int rc = td_constraint_tools(tool, 1, "f", 0, &bytes, &n, err);

	free(bytes);
	return rc;
}

static void test_constraints(void **state)
{
	(void)state;
	assert_in_range(each_allocation(compile_schema), 5, 10000);
	assert_in_range(each_allocation(compile_tools), 5, 10000);
}

static void test_answers(void **state)
{
	(void)state;
	assert_in_range(each_allocation(write_answer), 10, 10000);
	assert_in_range(each_allocation(write_logprobs), 5, 10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_request), cmocka_unit_test(test_bodies), cmocka_unit_test(test_answers), cmocka_unit_test(test_constraints)};

	return cmocka_run_group_tests(tests, setup, teardown);
}

#else
int main(void)
{
	return 0;
}
#endif
