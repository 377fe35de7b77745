/*
 * Thinking, content and calls are told apart however the text is cut into pieces, and no text is lost.
 */
#include "tests/lib/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http/answer.h"

static char told[8192];
static char last;

static void add(char kind, const char *s, size_t n)
{
	size_t at = strlen(told);

	if (kind != last || kind == 'N' || kind == 'A')
		at += (size_t)snprintf(told + at, sizeof(told) - at, "[%c]", kind);
	last = kind;
	snprintf(told + at, sizeof(told) - at, "%.*s", (int)n, s);
}

static void thinking(void *ctx, const char *s, size_t n)
{
	(void)ctx;
	add('T', s, n);
}

static void content(void *ctx, const char *s, size_t n)
{
	(void)ctx;
	add('C', s, n);
}

static void call(void *ctx, int index, const char *name, size_t n)
{
	(void)ctx;
	(void)index;
	add('N', name, n);
}

static void arguments(void *ctx, int index, const char *json, size_t n)
{
	(void)ctx;
	(void)index;
	add('A', json, n);
}

static const struct td_answer_out out = {NULL, thinking, content, call, arguments};

static json_t *tools;

/* `cut`: bytes of each piece, 0: all in one; negative: two pieces, the first of -cut bytes. */
static const char *run(const char *text, int think, int with_tools, int cut)
{
	struct td_answer a;
	size_t n = strlen(text), at = 0;

	told[0] = last = 0;
	td_answer_init(&a, think, with_tools ? tools : NULL, &out);
	while (at < n) {
		size_t some = cut > 0 ? (size_t)cut : cut < 0 && !at ? (size_t)-cut : n - at;

		some = some < n - at ? some : n - at;
		td_answer_push(&a, text + at, some);
		at += some;
	}
	td_answer_end(&a);
	assert_false(td_answer_failed(&a));
	td_answer_finish(&a);
	return told;
}

/* The same for every way to cut it. */
static void check(const char *text, int think, int with_tools, const char *want)
{
	assert_string_equal(run(text, think, with_tools, 0), want);
	for (int cut = 1; cut < 9; cut++)
		assert_string_equal(run(text, think, with_tools, cut), want);
	for (int first = 1; first < (int)strlen(text); first++)
		assert_string_equal(run(text, think, with_tools, -first), want);
}

static void thinking_apart(void **state)
{
	(void)state;
	check("hmm\n\nwell\n</think>\n\nHello\n", 1, 0, "[T]hmm\n\nwell[C]Hello\n");
	check("<think>\nhmm\n</think>\n\nHello", 1, 0, "[T]hmm[C]Hello");
	check("<think>\nhmm\n</think>\n\nHello", 0, 0, "[T]hmm[C]Hello");
	check("</think>Hello", 1, 0, "[C]Hello");
	check("\n</think>\n\n", 1, 0, "");
	check("cut off here\n", 1, 0, "[T]cut off here\n");
	check("a </thin king", 1, 0, "[T]a </thin king");
	check("a </think", 1, 0, "[T]a </think");
	check("Hello <think>x</think> you", 0, 0, "[C]Hello <think>x</think> you");
	check("x</think>", 0, 0, "[C]x</think>");
	check("  Hello", 0, 0, "[C]  Hello");
	check("<thing>", 0, 0, "[C]<thing>");
	check("a</think>b</think>c", 1, 0, "[T]a[C]b</think>c");
}

static void calls(void **state)
{
	(void)state;
	check("<tool_call>\n<function=f>\n<parameter=s>\nParis\n</parameter>\n</function>\n</tool_call>", 0, 1, "[N]f[A]{\"s\": \"Paris\"}");
	check("I look.\n\n<tool_call>\n<function=f>\n<parameter=i>\n5\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>", 0, 1,
	      "[C]I look.[N]f[A]{\"i\": 5, \"b\": true}");
	check("<tool_call><function=f></function></tool_call>\n<tool_call><function=g></function></tool_call>\nend", 0, 1, "[N]f[A]{}[N]g[A]{}[C]end");
	check("t\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n", 1, 1, "[T]t[N]f[A]{}");
	check("<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\nb\n</parameter>\n</function>\n</tool_call>", 0, 1,
	      "[N]f[A]{\"s\": \"a\\n</parameter>\\nb\"}");
	check("<tool_call>\n<function=f>\n<parameter=o>\n{\"a\": [1, 2]}\n</parameter>\n<parameter=i>\nfive\n</parameter>\n</function>\n</tool_call>", 0, 1,
	      "[N]f[A]{\"o\": {\"a\": [1, 2]}, \"i\": \"five\"}");
	check("<tool_call>\n<function=f>\n<parameter=sn>\nNone\n</parameter>\n<parameter=unknown>\n5\n</parameter>\n</function>\n</tool_call>", 0, 1,
	      "[N]f[A]{\"sn\": null, \"unknown\": \"5\"}");
	check("<tool_call>\n<function=f>\n<parameter=s>\n\n\n</parameter>\n</function>\n</tool_call>", 0, 1, "[N]f[A]{\"s\": \"\\n\"}");
	check("<tool_call>\n<function=f>\n<parameter=s>\n</tool_call>\n</parameter>\n</function>\n</tool_call>", 0, 1, "[N]f[A]{\"s\": \"</tool_call>\"}");
}

static void broken_calls(void **state)
{
	(void)state;
	check("a\n\n<tool_call> is a tag", 0, 1, "[C]a\n\n<tool_call> is a tag");
	check("a\n\n<tool_ca", 0, 1, "[C]a\n\n<tool_ca");
	check("a \n", 0, 1, "[C]a \n");
	check("<tool_call>\n<function=f", 0, 1, "[C]<tool_call>\n<function=f");
	check("<tool_call>\n<function=>\n", 0, 1, "[C]<tool_call>\n<function=>\n");
	check("<tool_call>\n<function=f\ng>\n", 0, 1, "[C]<tool_call>\n<function=f\ng>\n");
	check("<tool_call>{\"name\": \"f\"}</tool_call>", 0, 1, "[C]<tool_call>{\"name\": \"f\"}</tool_call>");
	/* Broken off behind the name: what is whole, without an end. */
	check("<tool_call>\n<function=f>\n<parameter=i>\n5\n</parameter>\n<parameter=s>\nPar", 0, 1, "[N]f[A]{\"i\": 5");
	check("<tool_call>\n<function=f>\n<parameter=i>\n5\n</parameter>\n</function>", 0, 1, "[N]f[A]{\"i\": 5}");
	/* Without tools a call is text. */
	check("<tool_call>\n<function=f>\n</function>\n</tool_call>", 0, 0, "[C]<tool_call>\n<function=f>\n</function>\n</tool_call>");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thinking_apart),
		cmocka_unit_test(calls),
		cmocka_unit_test(broken_calls),
	};
	int rc;

	tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"},"
			   "\"i\": {\"type\": \"integer\"}, \"b\": {\"type\": \"boolean\"}, \"o\": {\"type\": \"object\"}, \"sn\": {\"type\": [\"string\", \"null\"]}}}}},"
			   "{\"type\": \"function\", \"function\": {\"name\": \"g\"}}]",
			   0, NULL);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	json_decref(tools);
	return rc;
}
