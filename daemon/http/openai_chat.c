/*
 * openai_chat.c: the fields of a request that only chats have, or that say what form the answer must have: messages, tools, response_format.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http/openai_impl.h"

/* ---- messages ---------------------------------------------------------------------------------------------------------------------- */

/* A content: a string, or parts of text that are put one behind the other. *out stays NULL for null. */
static int take_content(struct td__openai_reader *r, const char *where, const json_t *v, char **out)
{
	struct td__text t = {0};
	const json_t *part;
	size_t i;

	if (!v || json_is_null(v))
		return 0;
	if (json_is_string(v))
		return td__openai_copy(r, v, out);
	if (!json_is_array(v))
		return td__openai_wrong(r, where, "a string or an array of text parts");
	td__text_puts(&t, "");
	json_array_foreach ((json_t *)v, i, part) {
		const char *type = json_string_value(json_object_get(part, "type")), *text = json_string_value(json_object_get(part, "text"));

		if (!type || strcmp(type, "text") || !text) {
			td__text_finish(&t);
			return td__openai_fail(r, "messages", TD_E_INVALID, "%s: part %zu is of the type %.40s: only {\"type\": \"text\", \"text\": ...} can be read", where, i + 1,
				    type ? type : "(none)");
		}
		td__text_puts(&t, text);
	}
	if (t.failed) {
		td__text_finish(&t);
		return td__openai_nomem(r);
	}
	free(*out);
	*out = t.s;
	return 0;
}

static int take_tool_calls(struct td__openai_reader *r, const char *where, const json_t *v, Tandem__ChatMessage *m)
{
	const json_t *one;
	size_t i;

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_array(v))
		return td__openai_wrong(r, where, "an array");
	m->tool_call = calloc(json_array_size(v) + 1, sizeof(*m->tool_call));
	if (!m->tool_call)
		return td__openai_nomem(r);
	json_array_foreach ((json_t *)v, i, one) {
		const json_t *f = json_object_get(one, "function"), *arguments = json_object_get(f, "arguments"), *id = json_object_get(one, "id");
		Tandem__ToolCall *c;

		if (!json_is_string(json_object_get(f, "name")))
			return td__openai_fail(r, "messages", TD_E_INVALID, "%s: call %zu has no function.name", where, i + 1);
		c = malloc(sizeof(*c));
		if (!c)
			return td__openai_nomem(r);
		tandem__tool_call__init(c);
		m->tool_call[m->n_tool_call++] = c;
		c->name = strdup(json_string_value(json_object_get(f, "name")));
		if (json_is_object(arguments))
			c->arguments = json_dumps(arguments, 0);
		else
			c->arguments = strdup(json_is_string(arguments) && json_string_length(arguments) ? json_string_value(arguments) : "{}");
		c->id = json_is_string(id) ? strdup(json_string_value(id)) : NULL;
		if (!c->name || !c->arguments)
			return td__openai_nomem(r);
	}
	return 0;
}

static int take_message(struct td__openai_reader *r, size_t i, const json_t *v, Tandem__ChatMessage *m)
{
	static const char *const known[] = {"role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name", "refusal", "audio",
					    "annotations", "function_call"};
	const json_t *role = json_object_get(v, "role"), *id = json_object_get(v, "tool_call_id"), *one;
	const json_t *thinking = json_object_get(v, "reasoning_content") ? json_object_get(v, "reasoning_content") : json_object_get(v, "reasoning");
	const char *name;
	char where[64];
	int rc;

	if (!json_is_object(v) || !json_is_string(role))
		return td__openai_fail(r, "messages", TD_E_INVALID, "messages[%zu] must be an object with a role", i);
	json_object_foreach ((json_t *)v, name, one) {
		size_t k = 0;

		while (k < sizeof(known) / sizeof(*known) && strcmp(name, known[k]))
			k++;
		if (k == sizeof(known) / sizeof(*known) || ((!strcmp(name, "audio") || !strcmp(name, "function_call")) && !json_is_null(one)))
			return td__openai_fail(r, "messages", TD_E_INVALID, "Unrecognized request argument supplied: messages[%zu].%.64s", i, name);
	}
	name = json_string_value(role);
	m->role = strdup(strcmp(name, "developer") ? name : "system");
	if (!m->role)
		return td__openai_nomem(r);
	snprintf(where, sizeof(where), "messages[%zu].content", i);
	if ((rc = take_content(r, where, json_object_get(v, "content"), &m->content)))
		return rc;
	snprintf(where, sizeof(where), "messages[%zu].reasoning_content", i);
	if ((rc = take_content(r, where, thinking, &m->reasoning_content)))
		return rc;
	snprintf(where, sizeof(where), "messages[%zu].tool_calls", i);
	if ((rc = take_tool_calls(r, where, json_object_get(v, "tool_calls"), m)))
		return rc;
	return json_is_string(id) ? td__openai_copy(r, id, &m->tool_call_id) : 0;
}

/* The template knows one system message, at the front: several there become one. */
static int join_systems(struct td__openai_reader *r, Tandem__Chat *c)
{
	while (c->n_message > 1 && !strcmp(c->message[0]->role, "system") && !strcmp(c->message[1]->role, "system")) {
		const char *a = c->message[0]->content ? c->message[0]->content : "", *b = c->message[1]->content ? c->message[1]->content : "";
		char *both = malloc(strlen(a) + strlen(b) + 3);

		if (!both)
			return td__openai_nomem(r);
		sprintf(both, "%s%s%s", a, *a && *b ? "\n\n" : "", b);
		free(c->message[0]->content);
		c->message[0]->content = both;
		tandem__chat_message__free_unpacked(c->message[1], NULL);
		memmove(&c->message[1], &c->message[2], (c->n_message - 2) * sizeof(*c->message));
		c->n_message--;
	}
	return 0;
}

static Tandem__Chat *chat_of(struct td__openai_reader *r)
{
	Tandem__Generate *g = r->q->g;

	if (g->input_case != TANDEM__GENERATE__INPUT_CHAT) {
		g->chat = malloc(sizeof(*g->chat));
		if (!g->chat)
			return NULL;
		tandem__chat__init(g->chat);
		g->input_case = TANDEM__GENERATE__INPUT_CHAT;
	}
	return g->chat;
}

int td__openai_take_messages(struct td__openai_reader *r, const char *key, const json_t *v)
{
	Tandem__Chat *c = chat_of(r);
	const json_t *one;
	size_t i;
	int rc;

	if (!json_is_array(v) || !json_array_size(v))
		return td__openai_wrong(r, key, "an array of at least one message");
	if (!c || !(c->message = calloc(json_array_size(v), sizeof(*c->message))))
		return td__openai_nomem(r);
	json_array_foreach ((json_t *)v, i, one) {
		Tandem__ChatMessage *m = malloc(sizeof(*m));

		if (!m)
			return td__openai_nomem(r);
		tandem__chat_message__init(m);
		if ((rc = take_message(r, i, one, m))) {
			if (!m->role)
				m->role = strdup("");
			tandem__chat_message__free_unpacked(m, NULL);
			return rc;
		}
		c->message[c->n_message++] = m;
	}
	return join_systems(r, c);
}

int td__openai_take_template_kwargs(struct td__openai_reader *r, const char *key, const json_t *v)
{
	Tandem__Chat *c = chat_of(r);
	const json_t *one;
	const char *name;
	int yes = 0, rc;

	if (!json_is_object(v))
		return td__openai_wrong(r, key, "an object");
	if (!c)
		return td__openai_nomem(r);
	json_object_foreach ((json_t *)v, name, one) {
		if (strcmp(name, "enable_thinking"))
			return td__openai_fail(r, key, TD_E_INVALID, "Unrecognized request argument supplied: chat_template_kwargs.%.64s", name);
		if ((rc = td__openai_take_bool(r, "chat_template_kwargs.enable_thinking", one, &yes)))
			return rc;
		c->has_enable_thinking = 1;
		c->enable_thinking = yes;
	}
	return 0;
}

int td__openai_take_effort(struct td__openai_reader *r, const char *key, const json_t *v)
{
	Tandem__Chat *c = chat_of(r);

	if (!json_is_string(v))
		return td__openai_wrong(r, key, "a string");
	if (!c)
		return td__openai_nomem(r);
	if (!c->has_enable_thinking) {
		c->has_enable_thinking = 1;
		c->enable_thinking = strcmp(json_string_value(v), "none") && strcmp(json_string_value(v), "minimal");
	}
	return 0;
}

/* ---- tools and forms of the answer ------------------------------------------------------------------------------------------------- */

int td__openai_take_tools(struct td__openai_reader *r, const char *key, const json_t *v)
{
	if (!json_is_array(v))
		return td__openai_wrong(r, key, "an array");
	r->tools = json_array_size(v) ? v : NULL;
	return 0;
}

int td__openai_take_tool_choice(struct td__openai_reader *r, const char *key, const json_t *v)
{
	(void)key;
	r->tool_choice = v;
	return 0;
}

static Tandem__Constraint *constraint_of(struct td__openai_reader *r)
{
	Tandem__Constraint *c = malloc(sizeof(*c));

	if (c)
		tandem__constraint__init(c);
	r->q->g->constraint = c;
	return c;
}

int td__openai_take_response_format(struct td__openai_reader *r, const char *key, const json_t *v)
{
	const char *type = json_string_value(json_object_get(v, "type"));
	const json_t *schema = json_object_get(json_object_get(v, "json_schema"), "schema");
	Tandem__Constraint *c;

	if (!type || (strcmp(type, "text") && strcmp(type, "json_object") && strcmp(type, "json_schema")))
		return td__openai_wrong(r, key, "an object whose type is text, json_object or json_schema");
	if (!strcmp(type, "text"))
		return 0;
	if (!strcmp(type, "json_schema") && !json_is_object(schema) && !json_is_boolean(schema))
		return td__openai_fail(r, key, TD_E_INVALID, "response_format.json_schema.schema is missing");
	if (!(c = constraint_of(r)))
		return td__openai_nomem(r);
	if (!strcmp(type, "json_object")) {
		c->kind_case = TANDEM__CONSTRAINT__KIND_JSON_OBJECT;
		c->json_object = 1;
		return 0;
	}
	c->json_schema = json_dumps(schema, JSON_ENCODE_ANY);
	c->kind_case = TANDEM__CONSTRAINT__KIND_JSON_SCHEMA;
	return c->json_schema ? 0 : td__openai_nomem(r);
}

static int check_tools(struct td__openai_reader *r)
{
	const json_t *one;
	size_t i;

	json_array_foreach ((json_t *)r->tools, i, one) {
		const char *type = json_string_value(json_object_get(one, "type"));

		if (!type || strcmp(type, "function") || !json_is_string(json_object_get(json_object_get(one, "function"), "name")))
			return td__openai_fail(r, "tools", TD_E_INVALID, "tools[%zu] must be {\"type\": \"function\", \"function\": {\"name\": ...}}", i);
	}
	return 0;
}

static int force_tool(struct td__openai_reader *r, const char *name)
{
	Tandem__Constraint *c;

	if (r->q->g->constraint)
		return td__openai_fail(r, "tool_choice", TD_E_INVALID, "tool_choice wants a call and response_format a JSON answer: give one of them");
	if (!(c = constraint_of(r)) || !(c->tool_choice = strdup(name)))
		return td__openai_nomem(r);
	c->kind_case = TANDEM__CONSTRAINT__KIND_TOOL_CHOICE;
	return 0;
}

/* The name of the function that tool_choice wants, "required", "none" or "auto"; NULL: it is something else. */
static const char *choice_of(struct td__openai_reader *r)
{
	const char *type = json_string_value(json_object_get(r->tool_choice, "type"));
	const char *name = json_string_value(json_object_get(json_object_get(r->tool_choice, "function"), "name"));
	const json_t *one;
	size_t i;

	if (!r->tool_choice)
		return "auto";
	if (json_is_string(r->tool_choice)) {
		name = json_string_value(r->tool_choice);
		return !strcmp(name, "none") || !strcmp(name, "auto") || !strcmp(name, "required") ? name : NULL;
	}
	json_array_foreach ((json_t *)r->tools, i, one) {
		const char *its = json_string_value(json_object_get(json_object_get(one, "function"), "name"));

		if (type && !strcmp(type, "function") && name && its && !strcmp(name, its))
			return name;
	}
	return NULL;
}

int td__openai_put_tools(struct td__openai_reader *r)
{
	const char *choice = choice_of(r);
	Tandem__Chat *c = r->q->g->chat;
	const json_t *one;
	size_t i;
	int rc;

	if (!choice)
		return td__openai_wrong(r, "tool_choice", "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": one of tools}}");
	if (!r->tools)
		return json_is_string(r->tool_choice) && strcmp(choice, "required") ? 0 :
		       r->tool_choice ? td__openai_fail(r, "tool_choice", TD_E_INVALID, "tool_choice needs tools") : 0;
	if ((rc = check_tools(r)) || !strcmp(choice, "none"))
		return rc;
	c->tool = calloc(json_array_size(r->tools), sizeof(*c->tool));
	if (!c->tool)
		return td__openai_nomem(r);
	json_array_foreach ((json_t *)r->tools, i, one) {
		c->tool[c->n_tool] = json_dumps(one, 0);
		if (!c->tool[c->n_tool])
			return td__openai_nomem(r);
		c->n_tool++;
	}
	r->q->tools = json_incref((json_t *)r->tools);
	return strcmp(choice, "auto") ? force_tool(r, choice) : 0;
}
