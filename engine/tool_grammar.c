/*
 * tool_grammar.c: tool_choice: the model's own text form of a call, with the function's name among the tools and its parameters by their schemas.
 *
 *	<tool_call>\n<function=NAME>\n( <parameter=KEY>\nVALUE\n</parameter>\n )*</function>\n</tool_call>
 *
 * Parameters come in the order of the schema, required ones always. A VALUE that may be a string is any text up to its closing tag (the form has no
 * quotes), one of the enum's if there is one; any other is JSON. Calls are joined by a line feed.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/json_load.h"
#include "engine/json_schema.h"
#include "engine/schema_internal.h"

enum { CALLS_MAX = 16 };

static json_t *function_of(json_t *tool)
{
	json_t *f = json_object_get(tool, "function");

	return json_is_object(f) ? f : tool;
}

/* 1 when a value of this schema may be a string; *list: its enum, when all of that are strings. */
static int may_be_text(struct td__schema *c, json_t *s, json_t **list, int level)
{
	static const char *const several[] = {"anyOf", "oneOf", "allOf"};
	json_t *type = json_object_get(s, "type"), *values = json_object_get(s, "enum"), *one, *to;
	size_t i;
	int text = 0, n;

	*list = NULL;
	if (level > 8)
		return 1;
	if (json_object_get(s, "$ref"))
		return td__schema_follow(c, s, &to) == 0 ? may_be_text(c, to, list, level + 1) : 1;
	if (json_is_array(values)) {
		n = 0;
		json_array_foreach (values, i, one)
			n += json_is_string(one);
		*list = n && (size_t)n == json_array_size(values) ? values : NULL;
		return n > 0;
	}
	if (json_object_get(s, "const"))
		return json_is_string(json_object_get(s, "const"));
	for (int k = 0; k < 3; k++) {
		json_array_foreach (json_object_get(s, several[k]), i, one)
			text |= may_be_text(c, one, &to, level + 1);
		if (json_object_get(s, several[k]))
			return text;
	}
	if (json_is_string(type))
		return !strcmp(json_string_value(type), "string");
	json_array_foreach (type, i, one)
		text |= json_is_string(one) && !strcmp(json_string_value(one), "string");
	return type ? text : !json_object_get(s, "properties") && !json_object_get(s, "items");
}

static int parameter(struct td__schema *c, const char *name, json_t *s)
{
	struct td_gtext *text;
	json_t *list, *one;
	size_t i, n = 0;
	int rc = 0;

	td_gb_puts(c->b, "<parameter=");
	td_gb_puts(c->b, name);
	td_gb_puts(c->b, ">\n");
	if (!may_be_text(c, s, &list, 0)) {
		rc = td__schema_value(c, s);
		td_gb_puts(c->b, "\n</parameter>\n");
		return rc;
	}
	if (json_is_string(json_object_get(s, "const"))) {
		td_gb_puts(c->b, json_string_value(json_object_get(s, "const")));
	} else if (list) {
		text = calloc(json_array_size(list), sizeof(*text));
		if (!text)
			return td_error_set(c->err, TD_E_NOMEM, "out of memory");
		json_array_foreach (list, i, one)
			text[n++] = (struct td_gtext){json_string_value(one), strlen(json_string_value(one))};
		td_gb_one_of(c->b, text, n);
		free(text);
	} else {
		td_gb_until(c->b, "\n</parameter>\n");
		return 0;
	}
	td_gb_puts(c->b, "\n</parameter>\n");
	return 0;
}

static int one_call(struct td__schema *c, json_t *function)
{
	json_t *parameters = json_object_get(function, "parameters"), *properties = json_object_get(parameters, "properties"),
	       *required = json_object_get(parameters, "required"), *s, *one;
	const char *name;
	size_t i;
	int rc = 0;

	c->root = parameters;
	td_gb_puts(c->b, json_string_value(json_object_get(function, "name")));
	td_gb_puts(c->b, ">\n");
	json_object_foreach (properties, name, s) {
		int pass = td_gb_emit(c->b, TD_G_SPLIT, 0, 0, c->b->n_nodes + 1, 0), must = 0;

		json_array_foreach (required, i, one)
			must |= json_is_string(one) && !strcmp(json_string_value(one), name);
		if ((rc = parameter(c, name, s)))
			return rc;
		if (must)
			c->b->node[pass].op = TD_G_JUMP;
		else
			c->b->node[pass].b = (uint16_t)c->b->n_nodes;
	}
	td_gb_puts(c->b, "</function>\n</tool_call>");
	return 0;
}

/* A rule with a call of any of the functions that are chosen. */
static int calls(struct td__schema *c, json_t *functions, const char *choice, int *rule)
{
	int any = !strcmp(choice, "required"), over, found = 0, rc = 0;
	struct td_galt alt;
	json_t *f;
	size_t i;

	*rule = td_gb_rule(c->b, &over);
	td_gb_puts(c->b, "<tool_call>\n<function=");
	td_gb_alt(&alt);
	json_array_foreach (functions, i, f) {
		const char *name = json_string_value(json_object_get(f, "name"));

		if (!name || !*name)
			return td_error_set(c->err, TD_E_INVALID, "tools[%zu] has no name", i);
		if (strpbrk(name, "\r\n>"))
			return td_error_set(c->err, TD_E_INVALID, "tools[%zu]: its name holds a line end or \">\"", i);
		if (!any && strcmp(choice, name))
			continue;
		found = 1;
		td_gb_alt_next(c->b, &alt);
		if ((rc = one_call(c, f)))
			return rc;
	}
	td_gb_alt_end(c->b, &alt);
	td_gb_rule_end(c->b, over);
	return found ? 0 : td_error_set(c->err, TD_E_INVALID, "tool_choice names \"%.80s\", which is none of the request's tools", choice);
}

static int parse(const char *const *tool, size_t n, json_t **functions, struct td_error *err)
{
	*functions = json_array();
	if (!*functions)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		json_error_t why;
		int no_memory, lost;
		json_t *t = td_json_load(tool[i], strlen(tool[i]), 0, &why, &no_memory);

		if (no_memory)
			return td_error_set(err, TD_E_NOMEM, "out of memory");
		if (!json_is_object(t)) {
			json_decref(t);
			return td_error_set(err, TD_E_INVALID, "tools[%zu] is no JSON object", i);
		}
		lost = json_array_append(*functions, function_of(t));
		json_decref(t);
		if (lost)
			return td_error_set(err, TD_E_NOMEM, "out of memory");
	}
	return 0;
}

static int tools(struct td__schema *c, json_t *functions, const char *choice)
{
	int call, over, more, rc = calls(c, functions, choice, &call);

	if (rc)
		return rc;
	td_gb_call(c->b, call);
	if (strcmp(choice, "required"))
		return 0;
	more = td_gb_rule(c->b, &over);
	td_gb_byte(c->b, '\n', '\n');
	td_gb_call(c->b, call);
	td_gb_rule_end(c->b, over);
	td_gb_repeat(c->b, more, 0, CALLS_MAX - 1);
	return 0;
}

int td_constraint_tools(const char *const *tool, size_t n_tools, const char *choice, int thinking, uint8_t **bytes, size_t *n, struct td_error *err)
{
	struct td__schema *c = td__schema_create("a tool's parameters", err);
	json_t *functions = NULL;
	int rc;

	*bytes = NULL;
	*n = 0;
	if (!c)
		return TD_E_NOMEM;
	c->relaxed = 1;
	rc = parse(tool, n_tools, &functions, err);
	if (!rc && !n_tools)
		rc = td_error_set(err, TD_E_INVALID, "tool_choice is given, but the chat has no tools");
	if (!rc) {
		td__constraint_begin(c->b, thinking);
		rc = tools(c, functions, choice);
	}
	rc = td__schema_end(c, rc, bytes, n); /* its rules point into the functions */
	json_decref(functions);
	return rc;
}
