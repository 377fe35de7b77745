/*
 * Chat template: byte for byte what Qwen3.5's own template renders: its examples, each of its rules, Python's spelling of values, and what it
 * refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/chat_template.h"
#include "engine/pyvalue.h"

#define USER(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define ASSISTANT(text) "<|im_start|>assistant\n" text "<|im_end|>\n"
#define THINK "<|im_start|>assistant\n<think>\n"
#define NO_THINK "<|im_start|>assistant\n<think>\n\n</think>\n\n"
#define N_OF(a) ((int)(sizeof(a) / sizeof(*(a))))

static struct td_chat chat_of(const struct td_chat_message *message, int n, int generate)
{
	return (struct td_chat){.message = message, .n_messages = n, .add_generation_prompt = generate, .enable_thinking = -1, .thinking_default = 1};
}

static void expect_chat(const struct td_chat *chat, const char *want)
{
	struct td_error err = {0};
	char *text;
	size_t n;

	if (td_chat_render(chat, &text, &n, NULL, &err))
		fail_msg("%s", err.text);
	assert_string_equal(text, want);
	assert_int_equal(n, strlen(want));
	free(text);
}

static void expect_refused(const struct td_chat *chat, const char *says)
{
	struct td_error err = {0};
	char *text = (char *)"";
	size_t n;
	int code = td_chat_render(chat, &text, &n, NULL, &err);

	if (code != TD_E_INVALID || !strstr(err.text, says) || text)
		fail_msg("expected TD_E_INVALID and \"%s\", got %d: %s", says, code, err.text);
}

static void expect(const struct td_chat_message *message, int n, int generate, const char *want)
{
	const struct td_chat chat = chat_of(message, n, generate);

	expect_chat(&chat, want);
}

static void test_one_question(void **state)
{
	const struct td_chat_message m[] = {{.role = "user", .content = "  Hi  "}};
	struct td_chat chat = chat_of(m, 1, 1);

	(void)state;
	expect_chat(&chat, USER("Hi") THINK);
	chat.enable_thinking = 0;
	expect_chat(&chat, USER("Hi") NO_THINK);
	chat.enable_thinking = 1;
	expect_chat(&chat, USER("Hi") THINK);
	/* Models whose default is not to think: only a clear yes changes that. */
	chat.thinking_default = 0;
	expect_chat(&chat, USER("Hi") THINK);
	chat.enable_thinking = -1;
	expect_chat(&chat, USER("Hi") NO_THINK);
	chat.add_generation_prompt = 0;
	expect_chat(&chat, USER("Hi"));
}

static void test_earlier_thinking_is_dropped(void **state)
{
	struct td_chat_message m[] = {
		{.role = "user", .content = "Q1"},
		{.role = "assistant", .content = "<think>\nreason one\n</think>\n\nA1"},
		{.role = "user", .content = "Q2"},
	};
	const char *want = USER("Q1") ASSISTANT("A1") USER("Q2") THINK;

	(void)state;
	expect(m, 3, 1, want);
	m[1].content = "A1";
	m[1].reasoning = "reason one";
	expect(m, 3, 1, want);
}

static void test_last_answer_gets_a_think_block(void **state)
{
	const struct td_chat_message m[] = {{.role = "user", .content = "Q1"}, {.role = "assistant", .content = "A1"}};

	(void)state;
	expect(m, 2, 0, USER("Q1") ASSISTANT("<think>\n\n</think>\n\nA1"));
	expect(m, 2, 1, USER("Q1") ASSISTANT("<think>\n\n</think>\n\nA1") THINK);
}

#define TOOLS_TEXT(tool) \
	"<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n" tool "\n</tools>\n\n" \
	"If you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n" \
	"<parameter=example_parameter_1>\nvalue_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n" \
	"that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n" \
	"- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n" \
	"- Required parameters MUST be specified\n" \
	"- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n" \
	"- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls\n" \
	"</IMPORTANT>"

static void test_tools_calls_and_answers(void **state)
{
	static const char *const tool[] = {"{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Get <b>weather</b>\",\"parameters\":"
					   "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}"};
	const struct td_chat_call call[] = {
		{"get_weather", "{\"city\":\"Paris\",\"n\":3,\"deep\":{\"a\":[1,true,null]},\"flag\":true,\"none\":null}"},
		{"get_weather", "{\"city\": \"Rome\"}"},
	};
	const struct td_chat_message m[] = {
		{.role = "system", .content = "Be terse."},
		{.role = "user", .content = "Weather in Paris and Rome?"},
		{.role = "assistant", .content = "Let me check.", .reasoning = "need tool", .call = call, .n_calls = 2},
		{.role = "tool", .content = "18C"},
		{.role = "tool", .content = "21C"},
	};
	struct td_chat chat = chat_of(m, 5, 1);

	(void)state;
	chat.tool = tool;
	chat.n_tools = 1;
	expect_chat(&chat,
		    TOOLS_TEXT("{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Get <b>weather</b>\", \"parameters\": "
			       "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}}") "\n\nBe terse.<|im_end|>\n"
		    USER("Weather in Paris and Rome?")
		    ASSISTANT("<think>\nneed tool\n</think>\n\nLet me check.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
			      "<parameter=n>\n3\n</parameter>\n<parameter=deep>\n{\"a\": [1, true, null]}\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n"
			      "<parameter=none>\nNone\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n"
			      "</parameter>\n</function>\n</tool_call>")
		    USER("<tool_response>\n18C\n</tool_response>\n<tool_response>\n21C\n</tool_response>") THINK);
}

static void test_tools_without_system_text(void **state)
{
	static const char *const tool[] = {"{\"b\": 1, \"a\": \"\xc3\xa9\"}", "{}"};
	const struct td_chat_message with[] = {{.role = "system", .content = " \n "}, {.role = "user", .content = "Q"}};
	struct td_chat chat = chat_of(with, 2, 0);

	(void)state;
	chat.tool = tool;
	chat.n_tools = 2;
	expect_chat(&chat, TOOLS_TEXT("{\"b\": 1, \"a\": \"\xc3\xa9\"}\n{}") "<|im_end|>\n" USER("Q"));
	chat.message = with + 1;
	chat.n_messages = 1;
	expect_chat(&chat, TOOLS_TEXT("{\"b\": 1, \"a\": \"\xc3\xa9\"}\n{}") "<|im_end|>\n" USER("Q"));
	/* Without tools an empty system text still has its turn. */
	chat = chat_of(with, 2, 0);
	expect_chat(&chat, "<|im_start|>system\n<|im_end|>\n" USER("Q"));
}

static void test_call_without_text_or_arguments(void **state)
{
	struct td_chat_call call[] = {{"f", NULL}};
	struct td_chat_message m[] = {
		{.role = "user", .content = "W?"},
		{.role = "assistant", .content = "", .reasoning = "r", .call = call, .n_calls = 1},
		{.role = "tool", .content = "x"},
		{.role = "assistant", .content = "It is x.", .reasoning = "r2"},
		{.role = "user", .content = "Thanks"},
	};
	const char *want = USER("W?") ASSISTANT("<tool_call>\n<function=f>\n</function>\n</tool_call>") USER("<tool_response>\nx\n</tool_response>") ASSISTANT("It is x.")
		USER("Thanks") THINK;

	(void)state;
	expect(m, 5, 1, want);
	call[0].arguments = "{}";
	m[1].content = NULL;
	expect(m, 5, 1, want);
	/* Before the last question is answered, thinking stays. */
	expect(m, 3, 0, USER("W?") ASSISTANT("<think>\nr\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>") USER("<tool_response>\nx\n</tool_response>"));
}

static void test_where_thinking_is_cut(void **state)
{
	static const struct {
		const char *content, *reasoning, *want;
	} cases[] = {
		{"<think>\n\na\n\n</think>\n\n\nb", NULL, "<think>\na\n</think>\n\nb"},
		{"a</think>b", NULL, "<think>\na\n</think>\n\nb"},
		{"</think>b", NULL, "<think>\n\n</think>\n\nb"},
		{"x<think>y<think>z</think>b", NULL, "<think>\nz\n</think>\n\nb"},
		{"a</think>b</think>c", NULL, "<think>\na\n</think>\n\nc"},
		{"a</think>b<think>c</think>\n d", NULL, "<think>\na\n</think>\n\n d"},
		{"a\n \n</think> b", NULL, "<think>\na\n</think>\n\n b"},
		{"<think>a", NULL, "<think>\n\n</think>\n\n<think>a"},
		{"<think>a</think>b", "r", "<think>\nr\n</think>\n\n<think>a</think>b"},
		{"<think>a</think>b", "", "<think>\n\n</think>\n\n<think>a</think>b"},
		{"b", " \xc2\xa0r\xe3\x80\x80 ", "<think>\nr\n</think>\n\nb"},
		{NULL, NULL, "<think>\n\n</think>\n\n"},
		{"a</think>", NULL, "<think>\na\n</think>\n\n"},
	};
	char want[512];
	int i;

	(void)state;
	for (i = 0; i < N_OF(cases); i++) {
		const struct td_chat_message m[] = {{.role = "user", .content = "Q"},
			{.role = "assistant", .content = cases[i].content, .reasoning = cases[i].reasoning}};

		snprintf(want, sizeof(want), USER("Q") ASSISTANT("%s"), cases[i].want);
		expect(m, 2, 0, want);
	}
}

/* What stands between a text and its first call, seen after the thinking was cut. */
static void test_white_text_before_a_call(void **state)
{
	const struct td_chat_call call[] = {{"f", "{}"}, {"g", "{}"}};
	const struct td_chat_message m[] = {{.role = "user", .content = "Q"},
		{.role = "assistant", .content = "a</think>\n\n", .call = call, .n_calls = 2}};

	(void)state;
	expect(m, 2, 0,
	       USER("Q") ASSISTANT("<think>\na\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"));
}

static void test_answers_of_tools_share_a_turn(void **state)
{
	const struct td_chat_message m[] = {
		{.role = "tool", .content = "0"}, {.role = "user", .content = "Q"},	      {.role = "tool", .content = " 1 "},
		{.role = "tool", .content = NULL},
		{.role = "assistant", .content = "A"}, {.role = "tool", .content = "3"},
	};

	(void)state;
	/* A tool's answer at the very start opens no turn: so the reference has it. */
	expect(m, 6, 0,
	       "\n<tool_response>\n0\n</tool_response><|im_end|>\n" USER("Q") USER("<tool_response>\n1\n</tool_response>\n<tool_response>\n\n</tool_response>")
		       ASSISTANT("<think>\n\n</think>\n\nA") USER("<tool_response>\n3\n</tool_response>"));
}

/* A user's text that is a tool's answer is no question: the thinking before it stays. */
static void test_tool_answer_from_a_user(void **state)
{
	struct td_chat_message m[] = {
		{.role = "user", .content = "Q"},
		{.role = "assistant", .content = "A", .reasoning = "r"},
		{.role = "user", .content = " <tool_response>x</tool_response>\n"},
	};

	(void)state;
	expect(m, 3, 0, USER("Q") ASSISTANT("<think>\nr\n</think>\n\nA") USER("<tool_response>x</tool_response>"));
	m[2].content = "<tool_response>x</tool_response> so?";
	expect(m, 3, 0, USER("Q") ASSISTANT("A") USER("<tool_response>x</tool_response> so?"));
	m[2].content = "<tool_response>";
	expect(m, 3, 0, USER("Q") ASSISTANT("A") USER("<tool_response>"));
}

/* str.strip(), whose white space is wider than C's and narrower than some think. */
static void test_strip(void **state)
{
	static const struct {
		const char *text, *want;
	} cases[] = {
		{" \t\n\v\f\r\x1c\x1d\x1e\x1f\xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x80\xe2\x80\x8a\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaf\xe2\x81\x9f\xe3\x80\x80", ""},
		{"\xe3\x80\x80\xc2\x85x y\xe2\x80\xa9\x1f", "x y"},
		{"\xe2\x80\x8bx\xe2\x80\x8b", "\xe2\x80\x8bx\xe2\x80\x8b"}, /* zero width space */
		{"\xe1\xa0\x8ex\xef\xbb\xbf", "\xe1\xa0\x8ex\xef\xbb\xbf"}, /* Mongolian vowel separator, byte order mark */
		{"\x1b\x7f", "\x1b\x7f"},
		{"", ""},
	};
	int i;

	(void)state;
	for (i = 0; i < N_OF(cases); i++) {
		const char *s = cases[i].text;
		size_t n = strlen(s);

		td__py_strip(&s, &n);
		if (n != strlen(cases[i].want) || memcmp(s, cases[i].want, n))
			fail_msg("case %d: expected \"%s\", got \"%.*s\"", i, cases[i].want, (int)n, s);
	}
}

/* One argument's value as it is rendered. */
static void expect_argument(const char *json, const char *want)
{
	char arguments[512], text[1024];
	struct td_chat_call call = {"f", arguments};
	const struct td_chat_message m[] = {{.role = "user", .content = "Q"}, {.role = "assistant", .content = "", .call = &call, .n_calls = 1}};

	snprintf(arguments, sizeof(arguments), "{\"k\": %s}", json);
	snprintf(text, sizeof(text), USER("Q") ASSISTANT("<think>\n\n</think>\n\n<tool_call>\n<function=f>\n<parameter=k>\n%s\n</parameter>\n</function>\n</tool_call>"), want);
	expect(m, 2, 0, text);
}

static void test_values_as_python_spells_them(void **state)
{
	static const char *const cases[][2] = {
		{"true", "True"}, {"false", "False"}, {"null", "None"}, {"\" a\\nb \"", " a\nb "}, {"\"\"", ""}, {"0", "0"}, {"-0", "0"},
		{"9223372036854775807", "9223372036854775807"}, {"-9223372036854775808", "-9223372036854775808"},
		{"1.0", "1.0"}, {"-0.0", "-0.0"}, {"0.1", "0.1"}, {"1e5", "100000.0"}, {"1E16", "1e+16"}, {"1e15", "1000000000000000.0"},
		{"123456789012345680.0", "1.2345678901234568e+17"},
		{"9999999999999998.0", "9999999999999998.0"}, {"0.0001", "0.0001"}, {"0.00001", "1e-05"}, {"0.00012345", "0.00012345"},
		{"1.5e-7", "1.5e-07"}, {"1e100", "1e+100"},
		{"5e-324", "5e-324"}, {"1.7976931348623157e308", "1.7976931348623157e+308"}, {"0.30000000000000004", "0.30000000000000004"},
		{"2.50", "2.5"}, {"1e22", "1e+22"},
		{"1e23", "1e+23"}, {"100.0", "100.0"}, {"123.456", "123.456"}, {"2.2250738585072014e-308", "2.2250738585072014e-308"},
		{"1e-400", "0.0"},
		{"[]", "[]"}, {"{}", "{}"}, {"[1,2.0,\"x\",[],{}]", "[1, 2.0, \"x\", [], {}]"},
		{"{\"b\":1,\"a\":{\"c\":false}}", "{\"b\": 1, \"a\": {\"c\": false}}"},
		{"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}"},
		{"[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\\u00e9\\ud83d\\ude42<>&'\"]",
		"[\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xc3\xa9\xf0\x9f\x99\x82<>&'\"]"},
		{"[\"a\\u0000b\"]", "[\"a\\u0000b\"]"}, {"[true, false, null, -1.0]", "[true, false, null, -1.0]"},
	};
	int i;

	(void)state;
	for (i = 0; i < N_OF(cases); i++)
		expect_argument(cases[i][0], cases[i][1]);
}

/* A NUL in a bare string is a NUL in the prompt, as it is in Python. */
static void test_nul_in_an_argument(void **state)
{
	const struct td_chat_call call = {"f", "{\"k\": \"a\\u0000b\"}"};
	const struct td_chat_message m[] = {{.role = "user", .content = "Q"}, {.role = "assistant", .content = "", .call = &call, .n_calls = 1}};
	const struct td_chat chat = chat_of(m, 2, 0);
	struct td_error err;
	char *text;
	size_t n;

	(void)state;
	assert_int_equal(td_chat_render(&chat, &text, &n, NULL, &err), 0);
	assert_int_equal(n, strlen(text) + 1 + strlen("b\n</parameter>\n</function>\n</tool_call><|im_end|>\n"));
	free(text);
}

static void test_what_is_refused(void **state)
{
	static const char *const bad_json[] = {"\"{}\"", "[]", "5", "", "{", "{} x", "{\"a\": 18446744073709551616}", "{\"a\": 1e999}",
		"{\"a\": \"\\ud800\"}", "{\"a\": NaN}",
					       "{\"\\u0000\": 1}", "{\"a\": \"\xff\"}"};
	static const char *const two_tools[] = {"{}", "{\"a\":}"};
	const struct td_chat_message user = {.role = "user", .content = "Q"};
	struct td_chat_call call = {"f", "{}"};
	struct td_chat_message m[] = {user, {.role = "assistant", .content = "A", .call = &call, .n_calls = 1}, user};
	struct td_chat chat = chat_of(m, 0, 1);
	int i;

	(void)state;
	expect_refused(&chat, "messages is empty");
	chat.n_messages = 3;
	for (i = 0; i < N_OF(bad_json); i++) {
		call.arguments = bad_json[i];
		expect_refused(&chat, "messages[1].tool_calls[0].arguments");
	}
	call.arguments = NULL;
	call.name = NULL;
	expect_refused(&chat, "messages[1].tool_calls[0] has no name");
	call.name = "";
	expect_refused(&chat, "messages[1].tool_calls[0] has no name");
	call.name = "f\ng";
	expect_refused(&chat, "a name holds a line end");
	call.name = "f>";
	expect_refused(&chat, "a name holds a line end");
	call.name = "\xff";
	expect_refused(&chat, "messages[1].tool_calls");
	call.name = "f";
	m[1].role = "developer";
	expect_refused(&chat, "\"developer\"");
	m[1].role = "User";
	expect_refused(&chat, "\"User\"");
	m[1].role = NULL;
	expect_refused(&chat, "messages[1].role is missing");
	m[1].role = "system";
	expect_refused(&chat, "messages[1]: a system message must be the first");
	m[1].role = "assistant";
	m[1].content = "a\xc3";
	expect_refused(&chat, "messages[1].content");
	m[1].content = "";
	m[1].reasoning = "\xe2\x80";
	expect_refused(&chat, "messages[1].reasoning_content");
	m[1].reasoning = NULL;
	chat.tool = two_tools;
	chat.n_tools = 2;
	expect_refused(&chat, "tools[1]");
	chat.n_tools = 0;
	m[0].role = "system";
	m[2].content = "\n<tool_response>x</tool_response>";
	expect_refused(&chat, "no user message");
	m[2].role = "tool";
	expect_refused(&chat, "no user message");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_question),
		cmocka_unit_test(test_earlier_thinking_is_dropped),
		cmocka_unit_test(test_last_answer_gets_a_think_block),
		cmocka_unit_test(test_tools_calls_and_answers),
		cmocka_unit_test(test_tools_without_system_text),
		cmocka_unit_test(test_call_without_text_or_arguments),
		cmocka_unit_test(test_where_thinking_is_cut),
		cmocka_unit_test(test_white_text_before_a_call),
		cmocka_unit_test(test_answers_of_tools_share_a_turn),
		cmocka_unit_test(test_tool_answer_from_a_user),
		cmocka_unit_test(test_strip),
		cmocka_unit_test(test_values_as_python_spells_them),
		cmocka_unit_test(test_nul_in_an_argument),
		cmocka_unit_test(test_what_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
