/*
 * The JSON of the OpenAI API becomes a Generate message: each field where it belongs; what is wrong is refused under its name.
 */
#include "tests/lib/unit.h"

#include <string.h>

#include "daemon/http/openai.h"

static struct td_openai_request q;
static struct td_error err;

static int read_as(int chat, const char *body)
{
	td_openai_finish(&q);
	memset(&err, 0, sizeof(err));
	return td_openai_read(&q, chat, body, strlen(body), "tiny", &err);
}

static void refused(int chat, const char *body, int code, const char *param)
{
	assert_int_equal(read_as(chat, body), code);
	assert_string_equal(q.param, param);
	assert_true(err.text[0] != 0);
}

#define USER "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

static void sampling(void **state)
{
	const Tandem__Sampling *s;

	(void)state;
	OK(read_as(0, "{\"prompt\": \"a\", \"temperature\": 0.5, \"top_k\": 7, \"top_p\": 0.9, \"min_p\": 0.1, \"repetition_penalty\": 1.5, \"presence_penalty\": 1,"
		      "\"frequency_penalty\": -1, \"seed\": -1, \"stop\": [\"x\", \"yy\"], \"stop_token_ids\": [3, 4], \"ignore_eos\": true, \"max_tokens\": 9,"
		      "\"draft_tokens\": 2, \"logprobs\": 3, \"logit_bias\": {\"17\": -100, \"18\": 2.5}, \"deadline_ms\": 5, \"band\": \"batch\", \"cache\": false,"
		      "\"user\": \"me\", \"n\": 2, \"stream\": true, \"stream_options\": {\"include_usage\": true}}"));
	s = q.g->sampling;
	assert_true(s->has_temperature && s->temperature == 0.5f && s->top_k == 7 && s->top_p == 0.9f && s->min_p == 0.1f);
	assert_true(s->repetition_penalty == 1.5f && s->presence_penalty == 1 && s->frequency_penalty == -1 && s->seed == UINT64_MAX);
	assert_int_equal(s->n_stop, 2);
	assert_string_equal(s->stop[1], "yy");
	assert_int_equal(s->n_stop_token_ids, 2);
	assert_int_equal(s->stop_token_ids[1], 4);
	assert_true(s->ignore_eos && s->max_tokens == 9 && s->draft_tokens == 2 && s->logprobs == 3);
	assert_int_equal(s->n_logit_bias, 2);
	assert_int_equal(s->logit_bias[0]->id, 17);
	assert_true(s->logit_bias[1]->bias == 2.5f);
	assert_int_equal(q.g->deadline_ms, 5);
	assert_int_equal(q.g->band, TANDEM__BAND__BATCH);
	assert_true(q.g->has_cache && !q.g->cache && q.n == 2 && q.stream && q.include_usage && q.logprobs);
	/* Nothing said: nothing set. */
	OK(read_as(0, "{\"prompt\": \"a\", \"temperature\": null, \"stop\": null}"));
	s = q.g->sampling;
	assert_true(!s->has_temperature && !s->has_seed && !s->has_max_tokens && !s->n_stop && !q.g->has_band && q.n == 1);
	/* The newer name wins, in either order. */
	OK(read_as(1, "{" USER ", \"max_completion_tokens\": 5, \"max_tokens\": 9}"));
	assert_int_equal(q.g->sampling->max_tokens, 5);
	OK(read_as(1, "{" USER ", \"max_tokens\": 9, \"max_completion_tokens\": 5}"));
	assert_int_equal(q.g->sampling->max_tokens, 5);
}

static void prompts(void **state)
{
	(void)state;
	OK(read_as(0, "{\"prompt\": [\"a\", [1, 2]]}"));
	assert_int_equal(q.n_prompts, 2);
	assert_string_equal(q.prompt[0].text, "a");
	assert_int_equal(q.prompt[1].ids->n_id, 2);
	OK(read_as(0, "{\"prompt\": [5, 6, 7]}"));
	assert_int_equal(q.n_prompts, 1);
	assert_int_equal(q.prompt[0].ids->id[2], 7);
	refused(0, "{\"prompt\": [5, \"a\"]}", TD_E_INVALID, "prompt");
	refused(0, "{\"prompt\": 5}", TD_E_INVALID, "prompt");
	refused(0, "{}", TD_E_INVALID, "prompt");
	refused(0, "{\"prompt\": [\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]}", TD_E_INVALID, "prompt");
}

static void chats(void **state)
{
	const Tandem__Chat *c;

	(void)state;
	OK(read_as(1, "{\"messages\": [{\"role\": \"developer\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"b\"},"
		      "{\"type\": \"text\", \"text\": \"c\"}]}, {\"role\": \"user\", \"content\": \"d\", \"name\": \"x\"}, {\"role\": \"assistant\", \"content\": null,"
		      "\"reasoning_content\": \"r\", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]},"
		      "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"e\"}], \"chat_template_kwargs\": {\"enable_thinking\": false},"
		      "\"logprobs\": true, \"top_logprobs\": 4}"));
	c = q.g->chat;
	assert_int_equal(c->n_message, 4);
	assert_string_equal(c->message[0]->role, "system");
	assert_string_equal(c->message[0]->content, "a\n\nbc");
	assert_null(c->message[2]->content);
	assert_string_equal(c->message[2]->reasoning_content, "r");
	assert_string_equal(c->message[2]->tool_call[0]->arguments, "{\"x\": 1}");
	assert_string_equal(c->message[3]->tool_call_id, "1");
	assert_true(c->has_enable_thinking && !c->enable_thinking && q.g->sampling->logprobs == 4);
	refused(1, "{\"messages\": []}", TD_E_INVALID, "messages");
	refused(1, "{\"messages\": [{\"content\": \"a\"}]}", TD_E_INVALID, "messages");
	refused(1, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", TD_E_INVALID, "messages");
	refused(1, "{\"messages\": [{\"role\": \"user\", \"contents\": \"a\"}]}", TD_E_INVALID, "messages");
}

#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"

static void forms(void **state)
{
	(void)state;
	OK(read_as(1, "{" USER ", " TOOLS "}"));
	assert_int_equal(q.g->chat->n_tool, 1);
	assert_null(q.g->constraint);
	assert_non_null(q.tools);
	OK(read_as(1, "{" USER ", " TOOLS ", \"tool_choice\": \"none\"}"));
	assert_int_equal(q.g->chat->n_tool, 0);
	assert_null(q.tools);
	OK(read_as(1, "{" USER ", " TOOLS ", \"tool_choice\": \"required\"}"));
	assert_string_equal(q.g->constraint->tool_choice, "required");
	OK(read_as(1, "{" USER ", " TOOLS ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}}"));
	assert_string_equal(q.g->constraint->tool_choice, "f");
	OK(read_as(1, "{" USER ", \"response_format\": {\"type\": \"json_object\"}}"));
	assert_int_equal(q.g->constraint->kind_case, TANDEM__CONSTRAINT__KIND_JSON_OBJECT);
	OK(read_as(0, "{\"prompt\": \"a\", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\", \"schema\": {\"type\": \"object\"}}}}"));
	assert_string_equal(q.g->constraint->json_schema, "{\"type\": \"object\"}");
	refused(1, "{" USER ", \"response_format\": {\"type\": \"json_schema\"}}", TD_E_INVALID, "response_format");
	refused(1, "{" USER ", \"tool_choice\": \"required\"}", TD_E_INVALID, "tool_choice");
	refused(1, "{" USER ", " TOOLS ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"g\"}}}", TD_E_INVALID, "tool_choice");
	refused(1, "{" USER ", " TOOLS ", \"tool_choice\": \"required\", \"response_format\": {\"type\": \"json_object\"}}", TD_E_INVALID, "tool_choice");
	refused(1, "{" USER ", \"tools\": [{\"type\": \"function\"}]}", TD_E_INVALID, "tools");
}

static void bad_json(void **state)
{
	static char deep[400], wide[1100000] = "{\"prompt\": [";

	(void)state;
	refused(0, "{\"prompt\": \"a\", \"oops\": 1}", TD_E_INVALID, "oops");
	refused(0, "{\"prompt\": \"a\", \"prompt\": \"a\"}", TD_E_INVALID, "");
	refused(0, "{\"prompt\": \"a\\u0000b\"}", TD_E_INVALID, "");
	refused(0, "{\"prompt\": \"\xff\"}", TD_E_INVALID, "");
	refused(0, "{\"prompt\": \"a\"} x", TD_E_INVALID, "");
	refused(0, "{\"prompt\": \"a\", \"top_k\": 99999999999}", TD_E_INVALID, "top_k");
	refused(0, "{\"prompt\": \"a\", \"top_k\": 1.5}", TD_E_INVALID, "top_k");
	refused(0, "{\"model\": \"other\", \"prompt\": \"a\"}", TD_E_NOT_FOUND, "model");
	assert_string_equal(q.code, "model_not_found");
	OK(read_as(0, "{\"model\": \"\", \"prompt\": \"a [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"}"));
	memset(deep, '[', 200);
	refused(0, deep, TD_E_INVALID, "");
	for (size_t i = strlen(wide); i < sizeof(wide) - 3; i += 2)
		memcpy(wide + i, "1,", 3);
	refused(0, wide, TD_E_TOO_LARGE, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sampling), cmocka_unit_test(prompts), cmocka_unit_test(chats), cmocka_unit_test(forms), cmocka_unit_test(bad_json),
	};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);

	td_openai_finish(&q);
	return rc;
}
