/*
 * answer.c: a model's text into thinking, content and calls. The held text is owned here; tools and callbacks are the caller's.
 *
 * Each turn of step() decides about the front of what is held: a part of it comes out, the part changes, or more text is needed. A piece that could be
 * the beginning of a tag, and white space that a tag would swallow, wait for what follows.
 */
#include "daemon/http/answer.h"
#include "engine/json_load.h"

#include <stdlib.h>
#include <string.h>

#define THINK_OPEN "<think>"
#define THINK_CLOSE "</think>"
#define CALL_OPEN "<tool_call>"
#define CALL_CLOSE "</tool_call>"
#define FUNCTION "<function="
#define FUNCTION_CLOSE "</function>"
#define PARAMETER "<parameter="
#define PARAMETER_CLOSE "</parameter>"

void td_answer_init(struct td_answer *a, int thinking, const json_t *tools, const struct td_answer_out *out)
{
	memset(a, 0, sizeof(*a));
	a->out = *out;
	a->tools = tools;
	a->at = thinking ? TD_ANSWER_THINKING : TD_ANSWER_CONTENT;
}

void td_answer_finish(struct td_answer *a)
{
	td__text_finish(&a->held);
}

/* ---- text -------------------------------------------------------------------------------------------------------------------------- */

static int is_space(char c)
{
	return c == '\n' || c == ' ' || c == '\t' || c == '\r';
}

static size_t spaces(const char *s, size_t n)
{
	size_t i = 0;

	while (i < n && is_space(s[i]))
		i++;
	return i;
}

static int starts(const char *s, size_t n, const char *tag)
{
	return n >= strlen(tag) && !memcmp(s, tag, strlen(tag));
}

/* What is there could still become the tag. */
static int may_start(const char *s, size_t n, const char *tag)
{
	return !memcmp(s, tag, n < strlen(tag) ? n : strlen(tag));
}

static void drop(struct td_answer *a, size_t n)
{
	memmove(a->held.s, a->held.s + n, a->held.n - n);
	a->held.n -= n;
	if (a->held.s)
		a->held.s[a->held.n] = 0;
}

static void give(struct td_answer *a, const char *s, size_t n)
{
	if (!n)
		return;
	a->begun = a->told = 1;
	(a->at == TD_ANSWER_THINKING ? a->out.thinking : a->out.content)(a->out.ctx, s, n);
}

/* Bytes at the end that may be the beginning of the tag. */
static size_t tail_of(const char *s, size_t n, const char *tag)
{
	size_t k = strlen(tag) - 1;

	for (k = k < n ? k : n; k; k--)
		if (!memcmp(s + n - k, tag, k))
			return k;
	return 0;
}

/* Gives the front as far as it is text, up to the tag. When the tag was there, the length of the white space and the tag that the held text begins with. */
static size_t give_until(struct td_answer *a, const char *tag)
{
	const char *at = memmem(a->held.s, a->held.n, tag, strlen(tag));
	size_t n = at ? (size_t)(at - a->held.s) : a->held.n - tail_of(a->held.s, a->held.n, tag), safe = n;

	while (safe && is_space(a->held.s[safe - 1]))
		safe--;
	give(a, a->held.s, safe);
	drop(a, safe);
	return at ? n - safe + strlen(tag) : 0;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------- */

/* The JSON schema of a parameter, or NULL. */
static const json_t *schema_of(const json_t *tools, const char *function, size_t n, const char *key)
{
	const json_t *tool;
	size_t i;

	json_array_foreach (tools, i, tool) {
		const json_t *f = json_object_get(tool, "function");
		const char *name = json_string_value(json_object_get(f, "name"));

		if (name && strlen(name) == n && !memcmp(name, function, n))
			return json_object_get(json_object_get(json_object_get(f, "parameters"), "properties"), key);
	}
	return NULL;
}

static unsigned type_bit(const char *type)
{
	static const char *const names[] = {"string", "integer", "number", "boolean", "object", "array", "null"};

	for (unsigned i = 0; type && i < sizeof(names) / sizeof(*names); i++)
		if (!strcmp(type, names[i]))
			return 1u << i;
	return 0;
}
enum { STRING = 1, INTEGER = 2, NUMBER = 4, BOOLEAN = 8, OBJECT = 16, ARRAY = 32, NUL = 64 };

static unsigned type_of_value(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_STRING:
		return STRING;
	case JSON_INTEGER:
		return INTEGER | NUMBER;
	case JSON_REAL:
		return NUMBER;
	case JSON_TRUE:
	case JSON_FALSE:
		return BOOLEAN;
	case JSON_OBJECT:
		return OBJECT;
	case JSON_ARRAY:
		return ARRAY;
	default:
		return NUL;
	}
}

/* The types that a schema allows; 0 when it does not say. */
static unsigned types_of(const json_t *schema, int depth)
{
	const json_t *type = json_object_get(schema, "type"), *each;
	const json_t *choices = json_object_get(schema, "anyOf") ? json_object_get(schema, "anyOf") : json_object_get(schema, "oneOf");
	unsigned types = json_is_string(type) ? type_bit(json_string_value(type)) : 0;
	size_t i;

	json_array_foreach (type, i, each)
		types |= type_bit(json_string_value(each));
	if (types || depth > 4)
		return types;
	json_array_foreach (choices, i, each)
		types |= types_of(each, depth + 1);
	if (types)
		return types;
	json_array_foreach (json_object_get(schema, "enum"), i, each)
		types |= type_of_value(each);
	return types;
}

/* The template writes words of Python for these; models do, too. */
static json_t *python_word(const char *s, size_t n)
{
	if (n == 4 && !memcmp(s, "True", 4))
		return json_true();
	if (n == 5 && !memcmp(s, "False", 5))
		return json_false();
	if (n == 4 && !memcmp(s, "None", 4))
		return json_null();
	return NULL;
}

/* A parameter's text as the value that the tool's schema wants; what does not fit stays a string. */
static json_t *typed(const json_t *schema, const char *s, size_t n)
{
	unsigned types = types_of(schema, 0);
	int no_memory = 0;
	json_t *v;

	if (!types || types == STRING)
		return json_stringn_nocheck(s, n);
	v = python_word(s, n);
	if (!v)
		v = td_json_load(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL, &no_memory);
	if (no_memory)
		return NULL;
	if (v && types & STRING && !json_is_null(v)) { /* a string is fine as it is */
		json_decref(v);
		v = NULL;
	}
	if (v && types & type_of_value(v))
		return v;
	json_decref(v);
	return json_stringn_nocheck(s, n);
}

/* End of a parameter's value: the closing tag behind which something fitting stands. NULL: not there yet. */
static const char *value_end(const char *p, const char *end)
{
	const char *at, *first = NULL, *from = p;

	while ((at = memmem(from, (size_t)(end - from), PARAMETER_CLOSE, strlen(PARAMETER_CLOSE)))) {
		const char *next = at + strlen(PARAMETER_CLOSE);

		next += spaces(next, (size_t)(end - next));
		if (!first)
			first = at;
		if (next == end || starts(next, (size_t)(end - next), PARAMETER) || starts(next, (size_t)(end - next), FUNCTION_CLOSE))
			return at;
		from = at + 1;
	}
	return first;
}

/* The parameters in [p, end) as an object; *whole: the function's end came. */
static json_t *read_parameters(const json_t *tools, const char *name, size_t name_n, const char *p, const char *end, int *whole)
{
	json_t *o = json_object();

	*whole = 0;
	while (o) {
		const char *key_end, *v, *v_end;
		char *key;

		p += spaces(p, (size_t)(end - p));
		*whole = starts(p, (size_t)(end - p), FUNCTION_CLOSE);
		if (*whole || !starts(p, (size_t)(end - p), PARAMETER))
			return o;
		p += strlen(PARAMETER);
		key_end = memchr(p, '>', (size_t)(end - p));
		v = key_end ? key_end + 1 : NULL;
		v_end = v ? value_end(v, end) : NULL;
		if (!v_end)
			return o;
		key = strndup(p, (size_t)(key_end - p));
		p = v_end + strlen(PARAMETER_CLOSE);
		if (v < v_end && *v == '\n')
			v++;
		if (v < v_end && v_end[-1] == '\n')
			v_end--;
		if (!key || json_object_set_new_nocheck(o, key, typed(schema_of(tools, name, name_n, key), v, (size_t)(v_end - v)))) {
			free(key);
			json_decref(o);
			return NULL;
		}
		free(key);
	}
	return NULL;
}

/* [0, n) of what is held is a call, or what there is of one. */
static void give_call(struct td_answer *a, size_t n)
{
	const char *name = a->held.s + spaces(a->held.s, n) + strlen(FUNCTION), *name_end = memchr(name, '>', (size_t)(a->held.s + n - name));
	int whole;
	json_t *o = read_parameters(a->tools, name, (size_t)(name_end - name), name_end + 1, a->held.s + n, &whole);
	char *text = o ? json_dumps(o, 0) : NULL;

	json_decref(o);
	if (text)
		a->out.arguments(a->out.ctx, a->calls, text, strlen(text) - (size_t)!whole);
	else
		a->held.failed = 1;
	free(text);
	a->calls++;
	a->named = 0;
	a->at = TD_ANSWER_CONTENT;
	a->begun = 0;
}

/* It does not begin as a call does: text after all. */
static void not_a_call(struct td_answer *a)
{
	a->at = TD_ANSWER_CONTENT;
	give(a, a->held.s, a->front);
	drop(a, a->front);
}

/* 1 when something was decided. */
static int step_call(struct td_answer *a)
{
	const char *s = a->held.s, *at;
	size_t skip = a->front + spaces(s + a->front, a->held.n - a->front), n = a->held.n - skip;

	if (!a->named) {
		const char *end = n > strlen(FUNCTION) ? memchr(s + skip, '>', n) : NULL;
		const char *stop = n > strlen(FUNCTION) ? memchr(s + skip, '\n', n) : NULL;

		if (!may_start(s + skip, n, FUNCTION) || (stop && (!end || stop < end)) || end == s + skip + strlen(FUNCTION)) {
			not_a_call(a);
			return 1;
		}
		if (!end)
			return 0;
		a->named = a->told = 1;
		a->looked = 0;
		a->out.call(a->out.ctx, a->calls, s + skip + strlen(FUNCTION), (size_t)(end - s) - skip - strlen(FUNCTION));
		drop(a, a->front);
		a->front = 0;
		return 1;
	}
	while ((at = memmem(s + a->looked, a->held.n - a->looked, CALL_CLOSE, strlen(CALL_CLOSE)))) {
		size_t before = (size_t)(at - s);

		a->looked = before + 1;
		while (before && is_space(s[before - 1]))
			before--;
		if (before < strlen(FUNCTION_CLOSE) || memcmp(s + before - strlen(FUNCTION_CLOSE), FUNCTION_CLOSE, strlen(FUNCTION_CLOSE)))
			continue;
		before = (size_t)(at - s);
		give_call(a, before);
		drop(a, before + strlen(CALL_CLOSE));
		return 1;
	}
	if (a->held.n >= strlen(CALL_CLOSE) && a->held.n - strlen(CALL_CLOSE) + 1 > a->looked)
		a->looked = a->held.n - strlen(CALL_CLOSE) + 1;
	return 0;
}

/* ---- parts ------------------------------------------------------------------------------------------------------------------------- */

/* At the front of an answer: <think> opens the thinking, or is there once more. 1: decided; 0: needs more; -1: it is not there. */
static int step_open(struct td_answer *a)
{
	size_t skip = spaces(a->held.s, a->held.n), n = a->held.n - skip;

	if (a->told || !may_start(a->held.s + skip, n, THINK_OPEN))
		return -1;
	if (n < strlen(THINK_OPEN))
		return 0;
	drop(a, skip + strlen(THINK_OPEN));
	a->at = TD_ANSWER_THINKING;
	a->told = 1;
	return 1;
}

static int step_thinking(struct td_answer *a)
{
	size_t tag;

	if (!a->begun)
		drop(a, spaces(a->held.s, a->held.n));
	tag = give_until(a, THINK_CLOSE);
	if (!tag)
		return 0;
	drop(a, tag);
	a->at = TD_ANSWER_CONTENT;
	a->begun = 0;
	a->told = 1;
	return 1;
}

static int step_content(struct td_answer *a)
{
	if (!a->begun && a->told) /* behind a tag */
		drop(a, spaces(a->held.s, a->held.n));
	if (!a->tools) {
		give(a, a->held.s, a->held.n);
		drop(a, a->held.n);
		return 0;
	}
	a->front = give_until(a, CALL_OPEN);
	if (!a->front)
		return 0;
	a->at = TD_ANSWER_CALL;
	a->named = 0;
	return 1;
}

static int step(struct td_answer *a)
{
	int rc = a->at == TD_ANSWER_CALL ? -1 : step_open(a);

	if (rc >= 0)
		return rc;
	switch (a->at) {
	case TD_ANSWER_THINKING:
		return step_thinking(a);
	case TD_ANSWER_CONTENT:
		return step_content(a);
	default:
		return step_call(a);
	}
}

void td_answer_push(struct td_answer *a, const char *s, size_t n)
{
	td__text_add(&a->held, s, n);
	while (a->held.n && !a->held.failed && step(a))
		;
}

void td_answer_end(struct td_answer *a)
{
	if (a->held.failed)
		return;
	if (a->at == TD_ANSWER_CALL && a->named) {
		give_call(a, a->held.n);
	} else {
		if (a->at == TD_ANSWER_CALL)
			a->at = TD_ANSWER_CONTENT;
		give(a, a->held.s, a->held.n);
	}
	a->held.n = 0;
}
