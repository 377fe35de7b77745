/*
 * chat_template.c: messages to prompt text, as Qwen3.5's chat_template.jinja renders them.
 *
 * Two passes. The first checks every message and finds the last real question: assistant turns after it keep their thinking, those before lose
 * it. The second writes turn by turn. The fixed wording is the format that the model was trained on: it must not be improved.
 * What the template writes goes through own(), what the request gave through given(), which notes the range.
 * The result belongs to the caller; inputs are only read. Nothing may be rendered that the reference refuses, and nothing refused that it renders.
 */
#include "engine/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/pyvalue.h"
#include "engine/text.h"
#include "engine/tokenizer.h"

#define THINK_OPEN "<think>"
#define THINK_CLOSE "</think>"
#define RESPONSE_OPEN "<tool_response>"
#define RESPONSE_CLOSE "</tool_response>"
#define TURN_END "<|im_end|>\n"

static const char tools_head[] = "<|im_start|>system\n"
				 "# Tools\n\n"
				 "You have access to the following functions:\n\n"
				 "<tools>";
static const char tools_tail[] =
	"\n</tools>\n\n"
	"If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
	"<tool_call>\n"
	"<function=example_function_name>\n"
	"<parameter=example_parameter_1>\n"
	"value_1\n"
	"</parameter>\n"
	"<parameter=example_parameter_2>\n"
	"This is the value for the second parameter\n"
	"that can span\n"
	"multiple lines\n"
	"</parameter>\n"
	"</function>\n"
	"</tool_call>\n\n"
	"<IMPORTANT>\n"
	"Reminder:\n"
	"- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
	"- Required parameters MUST be specified\n"
	"- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n"
	"- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls\n"
	"</IMPORTANT>";

/* Part of a message's text. */
struct span {
	const char *s;
	size_t n;
};

static struct span stripped(const char *text)
{
	struct span p = {text ? text : "", text ? strlen(text) : 0};

	td__py_strip(&p.s, &p.n);
	return p;
}

static int has_role(const struct td_chat *chat, int i, const char *role)
{
	return i >= 0 && i < chat->n_messages && !strcmp(chat->message[i].role, role);
}

/* ---- writing ----------------------------------------------------------------------------------------------------------------------- */

struct out {
	struct td__text text;
	struct td_spans *given; /* NULL: nobody asks */
};

static void own(struct out *out, const char *s)
{
	td__text_puts(&out->text, s);
}

/* What was written from `from` on is the request's. */
static void note(struct out *out, size_t from)
{
	struct td_spans *g = out->given;

	if (!g || out->text.failed || out->text.n == from)
		return;
	if (g->n == g->size) {
		size_t size = 2 * g->size + 16;
		struct td_span *p = realloc(g->span, size * sizeof(*p));

		if (!p) {
			out->text.failed = 1;
			return;
		}
		g->span = p;
		g->size = size;
	}
	g->span[g->n++] = (struct td_span){from, out->text.n};
}

static void given(struct out *out, struct span p)
{
	size_t from = out->text.n;

	td__text_add(&out->text, p.s, p.n);
	note(out, from);
}

static void given_text(struct out *out, const char *s)
{
	given(out, (struct span){s, strlen(s)});
}

static void given_json(struct out *out, const json_t *v, void (*write)(struct td__text *, const json_t *))
{
	size_t from = out->text.n;

	write(&out->text, v);
	note(out, from);
}

/* ---- checks ------------------------------------------------------------------------------------------------------------------------ */

static int check_text(int i, const char *field, const char *text, struct td_error *err)
{
	if (text && !td_utf8_check(text, strlen(text)))
		return td_error_set(err, TD_E_INVALID, "messages[%d].%s is not valid UTF-8", i, field);
	return 0;
}

static int check_message(const struct td_chat *chat, int i, struct td_error *err)
{
	static const char *const roles[] = {"system", "user", "assistant", "tool"};
	const struct td_chat_message *m = &chat->message[i];
	size_t k;
	int c, code;

	if (!m->role)
		return td_error_set(err, TD_E_INVALID, "messages[%d].role is missing", i);
	for (k = 0; k < sizeof(roles) / sizeof(*roles) && strcmp(m->role, roles[k]); k++)
		;
	if (k == sizeof(roles) / sizeof(*roles))
		return td_error_set(err, TD_E_INVALID, "messages[%d].role is \"%.40s\": this model knows system, user, assistant and tool", i, m->role);
	if (i && !strcmp(m->role, "system"))
		return td_error_set(err, TD_E_INVALID, "messages[%d]: a system message must be the first one", i);
	if ((code = check_text(i, "content", m->content, err)) || (code = check_text(i, "reasoning_content", m->reasoning, err)))
		return code;
	for (c = 0; c < m->n_calls; c++) {
		if (!m->call[c].name || !*m->call[c].name)
			return td_error_set(err, TD_E_INVALID, "messages[%d].tool_calls[%d] has no name", i, c);
		if (strpbrk(m->call[c].name, "\r\n>")) /* it ends a call's head in the model's own form */
			return td_error_set(err, TD_E_INVALID, "messages[%d].tool_calls[%d]: a name holds a line end or \">\"", i, c);
		if ((code = check_text(i, "tool_calls: a name", m->call[c].name, err)))
			return code;
	}
	return 0;
}

/* A user's text that is nothing but a tool's answer asks nothing. */
static int is_question(const struct td_chat *chat, int i)
{
	struct span p;

	if (!has_role(chat, i, "user"))
		return 0;
	p = stripped(chat->message[i].content);
	return !(p.n >= strlen(RESPONSE_OPEN) && !memcmp(p.s, RESPONSE_OPEN, strlen(RESPONSE_OPEN)) && p.n >= strlen(RESPONSE_CLOSE) &&
		 !memcmp(p.s + p.n - strlen(RESPONSE_CLOSE), RESPONSE_CLOSE, strlen(RESPONSE_CLOSE)));
}

/* ---- turns ------------------------------------------------------------------------------------------------------------------------- */

static int render_system(struct out *out, const struct td_chat *chat, struct td_error *err)
{
	const int stated = has_role(chat, 0, "system");
	const struct span content = stated ? stripped(chat->message[0].content) : (struct span){"", 0};
	int i, code;

	if (chat->n_tools) {
		own(out, tools_head);
		for (i = 0; i < chat->n_tools; i++) {
			char what[32];
			json_t *tool;

			snprintf(what, sizeof(what), "tools[%d]", i);
			if ((code = td__py_parse_object(chat->tool[i], what, &tool, err)))
				return code;
			own(out, "\n");
			given_json(out, tool, td__py_json);
			json_decref(tool);
		}
		own(out, tools_tail);
		if (content.n)
			own(out, "\n\n");
	} else if (stated) {
		own(out, "<|im_start|>system\n");
	} else {
		return 0;
	}
	given(out, content);
	own(out, TURN_END);
	return 0;
}

/* Cuts the thinking out of a content that holds "</think>": what stands before the first one, behind the last "<think>" there, without the line
 * feeds at its edges. What is left is the text behind the last "</think>". */
static struct span take_thinking(struct span *content)
{
	const size_t open = strlen(THINK_OPEN), close = strlen(THINK_CLOSE);
	const char *end = memmem(content->s, content->n, THINK_CLOSE, close), *at, *rest = content->s;
	struct span p = {content->s, 0};

	if (!end)
		return p;
	p.n = (size_t)(end - p.s);
	while (p.n && p.s[p.n - 1] == '\n')
		p.n--;
	while ((at = memmem(p.s, p.n, THINK_OPEN, open))) {
		p.n -= (size_t)(at - p.s) + open;
		p.s = at + open;
	}
	while (p.n && *p.s == '\n') {
		p.s++;
		p.n--;
	}
	while ((at = memmem(rest, content->n - (size_t)(rest - content->s), THINK_CLOSE, close)))
		rest = at + close;
	content->n -= (size_t)(rest - content->s);
	content->s = rest;
	while (content->n && *content->s == '\n') {
		content->s++;
		content->n--;
	}
	return p;
}

static int render_call(struct out *out, const struct td_chat_call *call, int message, int index, struct td_error *err)
{
	json_t *arguments, *value;
	const char *key;
	char what[64];
	int code;

	own(out, "<tool_call>\n<function=");
	given_text(out, call->name);
	own(out, ">\n");
	if (call->arguments) {
		snprintf(what, sizeof(what), "messages[%d].tool_calls[%d].arguments", message, index);
		if ((code = td__py_parse_object(call->arguments, what, &arguments, err)))
			return code;
		json_object_foreach (arguments, key, value) {
			own(out, "<parameter=");
			given_text(out, key);
			own(out, ">\n");
			given_json(out, value, td__py_argument);
			own(out, "\n</parameter>\n");
		}
		json_decref(arguments);
	}
	own(out, "</function>\n</tool_call>");
	return 0;
}

static int render_assistant(struct out *out, const struct td_chat *chat, int i, int keep_thinking, struct td_error *err)
{
	const struct td_chat_message *m = &chat->message[i];
	struct span content = stripped(m->content), thinking, bare;
	int c, code;

	thinking = m->reasoning ? (struct span){m->reasoning, strlen(m->reasoning)} : take_thinking(&content);
	td__py_strip(&thinking.s, &thinking.n);
	own(out, "<|im_start|>assistant\n");
	if (keep_thinking) {
		own(out, THINK_OPEN "\n");
		given(out, thinking);
		own(out, "\n" THINK_CLOSE "\n\n");
	}
	given(out, content);
	bare = content;
	td__py_strip(&bare.s, &bare.n);
	for (c = 0; c < m->n_calls; c++) {
		own(out, c ? "\n" : bare.n ? "\n\n" : "");
		if ((code = render_call(out, &m->call[c], i, c, err)))
			return code;
	}
	own(out, TURN_END);
	return 0;
}

static void render_tool(struct out *out, const struct td_chat *chat, int i)
{
	/* Answers in a row share one turn. A tool message at the very start opens none: so the reference has it. */
	if (i && !has_role(chat, i - 1, "tool"))
		own(out, "<|im_start|>user");
	own(out, "\n" RESPONSE_OPEN "\n");
	given(out, stripped(chat->message[i].content));
	own(out, "\n" RESPONSE_CLOSE);
	if (!has_role(chat, i + 1, "tool"))
		own(out, TURN_END);
}

static int render(struct out *out, const struct td_chat *chat, int last_question, struct td_error *err)
{
	int thinking = chat->enable_thinking < 0 ? chat->thinking_default : chat->enable_thinking;
	int i, code = render_system(out, chat, err);

	for (i = 0; i < chat->n_messages && !code; i++) {
		if (has_role(chat, i, "user")) {
			own(out, "<|im_start|>user\n");
			given(out, stripped(chat->message[i].content));
			own(out, TURN_END);
		} else if (has_role(chat, i, "assistant")) {
			code = render_assistant(out, chat, i, i > last_question, err);
		} else if (has_role(chat, i, "tool")) {
			render_tool(out, chat, i);
		}
	}
	if (code)
		return code;
	if (chat->add_generation_prompt)
		own(out, thinking ? "<|im_start|>assistant\n" THINK_OPEN "\n" : "<|im_start|>assistant\n" THINK_OPEN "\n\n" THINK_CLOSE "\n\n");
	return out->text.failed ? td_error_set(err, TD_E_NOMEM, "out of memory while rendering a chat of %d messages", chat->n_messages) : 0;
}

int td_chat_render(const struct td_chat *chat, char **text, size_t *n, struct td_spans *ranges, struct td_error *err)
{
	struct out out = {.given = ranges};
	int i, code, last_question = -1;

	*text = NULL;
	*n = 0;
	if (chat->n_messages <= 0)
		return td_error_set(err, TD_E_INVALID, "messages is empty: give at least one user message");
	for (i = 0; i < chat->n_messages; i++) {
		if ((code = check_message(chat, i, err)))
			return code;
		if (is_question(chat, i))
			last_question = i;
	}
	if (last_question < 0)
		return td_error_set(err, TD_E_INVALID, "messages has no user message that asks something: give one (a tool's answer alone doesn't count)");
	code = render(&out, chat, last_question, err);
	if (code) {
		td__text_finish(&out.text);
		return code;
	}
	*text = out.text.s;
	*n = out.text.n;
	return 0;
}

int td_chat_blank(const char *content)
{
	return stripped(content).n == 0;
}
