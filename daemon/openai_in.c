/*
 * openai_in.c: a request of the OpenAI API becomes a Generate message.
 *
 * One table names the fields. The JSON is looked over before it is parsed: nesting and the number of values are bounded, so that a small body cannot
 * grow into a large tree or a deep recursion. All strings of the message are copies; the tree is gone when td_openai_read returns, but for the tools.
 */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/openai.h"

enum { PROMPTS_MAX = TD_OPENAI_CHOICES_MAX };

struct reader {
	struct td_openai_request *q;
	struct td_error *err;
	const char *model;
	Tandem__Sampling *s;
	Tandem__Tokenize *t;
	/* what is put together at the end */
	const json_t *tools, *tool_choice, *top_logprobs, *stream_options, *best_of;
	int logprobs_given, max_completion_given, strings;
	struct td_ids *ids;
};

static int fail(struct reader *r, const char *param, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static int fail(struct reader *r, const char *param, int code, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	snprintf(r->q->param, sizeof(r->q->param), "%s", param);
	return td_error_set(r->err, code, "%s", text);
}

static int wrong(struct reader *r, const char *key, const char *want)
{
	return fail(r, key, TD_E_INVALID, "%.64s must be %s", key, want);
}

static int nomem(struct reader *r)
{
	return fail(r, "", TD_E_NOMEM, "out of memory");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------------- */

static int look_over(struct reader *r, const char *p, size_t n)
{
	int depth = 0, text = 0;
	long values = 0;

	for (size_t i = 0; i < n; i++) {
		if (text) {
			if (p[i] == '\\')
				i++;
			else if (p[i] == '"')
				text = 0;
			continue;
		}
		text = p[i] == '"';
		values += p[i] == ',' || p[i] == '[' || p[i] == '{';
		depth += p[i] == '[' || p[i] == '{';
		depth -= p[i] == ']' || p[i] == '}';
		if (depth > TD_OPENAI_DEPTH_MAX)
			return fail(r, "", TD_E_INVALID, "the JSON is nested deeper than %d levels", TD_OPENAI_DEPTH_MAX);
		if (values > TD_OPENAI_VALUES_MAX)
			return fail(r, "", TD_E_TOO_LARGE, "the JSON has more than %d values", TD_OPENAI_VALUES_MAX);
	}
	return 0;
}

static int parse(struct reader *r, const char *body, size_t n, json_t **root)
{
	json_error_t e;
	int rc;

	*root = NULL;
	if ((rc = look_over(r, body, n)))
		return rc;
	*root = json_loadb(body, n, JSON_REJECT_DUPLICATES, &e);
	if (!*root)
		return fail(r, "", TD_E_INVALID, "the body is not JSON that can be taken: %.160s (line %d, column %d)", e.text, e.line, e.column);
	if (!json_is_object(*root))
		return fail(r, "", TD_E_INVALID, "the body must be a JSON object");
	return 0;
}

static int take_int(struct reader *r, const char *key, const json_t *v, int32_t *out)
{
	if (!json_is_integer(v) || json_integer_value(v) < INT32_MIN || json_integer_value(v) > INT32_MAX)
		return wrong(r, key, "a whole number");
	*out = (int32_t)json_integer_value(v);
	return 0;
}

static int take_bool(struct reader *r, const char *key, const json_t *v, int *out)
{
	if (!json_is_boolean(v))
		return wrong(r, key, "true or false");
	*out = json_is_true(v);
	return 0;
}

static int copy(struct reader *r, const json_t *v, char **out)
{
	free(*out);
	*out = strdup(json_string_value(v));
	return *out ? 0 : nomem(r);
}

/* ---- sampling ---------------------------------------------------------------------------------------------------------------------- */

#define REAL(field) \
	static int take_##field(struct reader *r, const char *key, const json_t *v) \
	{ \
		if (!json_is_number(v)) \
			return wrong(r, key, "a number"); \
		r->s->has_##field = 1; \
		r->s->field = (float)json_number_value(v); \
		return 0; \
	}
#define WHOLE(field) \
	static int take_##field(struct reader *r, const char *key, const json_t *v) \
	{ \
		r->s->has_##field = 1; \
		return take_int(r, key, v, &r->s->field); \
	}
REAL(temperature)
REAL(top_p)
REAL(min_p)
REAL(repetition_penalty)
REAL(presence_penalty)
REAL(frequency_penalty)
WHOLE(top_k)
WHOLE(draft_tokens)

static int take_max_tokens(struct reader *r, const char *key, const json_t *v)
{
	int newer = !strcmp(key, "max_completion_tokens"), rc;
	int32_t n;

	if ((rc = take_int(r, key, v, &n)))
		return rc;
	if (n < 1)
		return wrong(r, key, "1 or more");
	if (newer || !r->max_completion_given)
		r->s->max_tokens = n;
	r->s->has_max_tokens = 1;
	r->max_completion_given |= newer;
	return 0;
}

static int take_seed(struct reader *r, const char *key, const json_t *v)
{
	if (!json_is_integer(v))
		return wrong(r, key, "a whole number of 64 bits");
	r->s->has_seed = 1;
	r->s->seed = (uint64_t)json_integer_value(v);
	return 0;
}

static int take_ignore_eos(struct reader *r, const char *key, const json_t *v)
{
	int yes = 0, rc = take_bool(r, key, v, &yes);

	r->s->has_ignore_eos = 1;
	r->s->ignore_eos = yes;
	return rc;
}

static int take_stop(struct reader *r, const char *key, const json_t *v)
{
	size_t n = json_is_array(v) ? json_array_size(v) : 1;

	if (!json_is_array(v) && !json_is_string(v))
		return wrong(r, key, "a string or an array of strings");
	r->s->stop = calloc(n ? n : 1, sizeof(*r->s->stop));
	if (!r->s->stop)
		return nomem(r);
	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
		int rc;

		if (!json_is_string(one))
			return wrong(r, key, "a string or an array of strings");
		if ((rc = copy(r, one, &r->s->stop[r->s->n_stop])))
			return rc;
		r->s->n_stop++;
	}
	return 0;
}

static int take_ids(struct reader *r, const char *key, const json_t *v, int32_t **id, size_t *count)
{
	size_t n = json_array_size(v);
	int32_t *out = json_is_array(v) ? malloc((n ? n : 1) * sizeof(*out)) : NULL;

	if (!json_is_array(v))
		return wrong(r, key, "an array of token ids");
	if (!out)
		return nomem(r);
	for (size_t i = 0; i < n; i++)
		if (take_int(r, key, json_array_get(v, i), &out[i])) {
			free(out);
			return wrong(r, key, "an array of token ids");
		}
	free(*id);
	*id = out;
	*count = n;
	return 0;
}

static int take_stop_token_ids(struct reader *r, const char *key, const json_t *v)
{
	return take_ids(r, key, v, &r->s->stop_token_ids, &r->s->n_stop_token_ids);
}

static int take_logit_bias(struct reader *r, const char *key, const json_t *v)
{
	const json_t *one;
	const char *id;

	if (!json_is_object(v))
		return wrong(r, key, "an object of token ids and numbers");
	r->s->logit_bias = calloc(json_object_size(v) + 1, sizeof(*r->s->logit_bias));
	if (!r->s->logit_bias)
		return nomem(r);
	json_object_foreach ((json_t *)v, id, one) {
		Tandem__LogitBias *b = malloc(sizeof(*b));
		char *end;
		long n;

		if (!b)
			return nomem(r);
		tandem__logit_bias__init(b);
		r->s->logit_bias[r->s->n_logit_bias++] = b;
		n = strtol(id, &end, 10);
		if (end == id || *end || n < 0 || n > INT32_MAX || !json_is_number(one))
			return wrong(r, key, "an object of token ids and numbers");
		b->id = (int32_t)n;
		b->bias = (float)json_number_value(one);
	}
	return 0;
}

static int take_logprobs(struct reader *r, const char *key, const json_t *v)
{
	int yes = 0, rc;

	if (r->q->chat) {
		rc = take_bool(r, key, v, &yes);
		r->q->logprobs = r->logprobs_given = yes;
		return rc;
	}
	rc = take_int(r, key, v, &r->s->logprobs);
	r->q->logprobs = r->s->has_logprobs = 1;
	return rc;
}

static int take_top_logprobs(struct reader *r, const char *key, const json_t *v)
{
	(void)key;
	r->top_logprobs = v;
	return 0;
}

/* ---- the request as a whole -------------------------------------------------------------------------------------------------------- */

static int take_model(struct reader *r, const char *key, const json_t *v)
{
	if (!json_is_string(v))
		return wrong(r, key, "a string");
	if (!json_string_length(v) || !strcmp(json_string_value(v), r->model))
		return 0;
	r->q->code = "model_not_found";
	return fail(r, key, TD_E_NOT_FOUND, "The model `%.100s` does not exist: `%.100s` is served here", json_string_value(v), r->model);
}

static int take_n(struct reader *r, const char *key, const json_t *v)
{
	int32_t n = 0;

	if (take_int(r, key, v, &n) || n < 1 || n > TD_OPENAI_CHOICES_MAX)
		return wrong(r, key, "a whole number from 1 to 16");
	r->q->n = n;
	return 0;
}

static int take_stream(struct reader *r, const char *key, const json_t *v)
{
	return take_bool(r, key, v, &r->q->stream);
}

static int take_stream_options(struct reader *r, const char *key, const json_t *v)
{
	const json_t *usage = json_object_get(v, "include_usage"), *one;
	const char *name;

	if (!json_is_object(v))
		return wrong(r, key, "an object");
	json_object_foreach ((json_t *)v, name, one)
		if (strcmp(name, "include_usage") && strcmp(name, "include_obfuscation"))
			return fail(r, key, TD_E_INVALID, "Unrecognized request argument supplied: stream_options.%.64s", name);
	r->stream_options = v;
	return usage && !json_is_null(usage) ? take_bool(r, "stream_options.include_usage", usage, &r->q->include_usage) : 0;
}

static int take_deadline(struct reader *r, const char *key, const json_t *v)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
		return wrong(r, key, "a number of milliseconds, 0 or more");
	r->q->g->has_deadline_ms = 1;
	r->q->g->deadline_ms = (uint32_t)json_integer_value(v);
	return 0;
}

static int take_band(struct reader *r, const char *key, const json_t *v)
{
	const char *s = json_is_string(v) ? json_string_value(v) : "";

	if (strcmp(s, "interactive") && strcmp(s, "batch"))
		return wrong(r, key, "\"interactive\" or \"batch\"");
	r->q->g->has_band = 1;
	r->q->g->band = strcmp(s, "batch") ? TANDEM__BAND__INTERACTIVE : TANDEM__BAND__BATCH;
	return 0;
}

static int take_cache(struct reader *r, const char *key, const json_t *v)
{
	int yes = 1, rc = take_bool(r, key, v, &yes);

	r->q->g->has_cache = 1;
	r->q->g->cache = yes;
	return rc;
}

static int ignore(struct reader *r, const char *key, const json_t *v)
{
	(void)r;
	(void)key;
	(void)v;
	return 0;
}

static int only_false(struct reader *r, const char *key, const json_t *v)
{
	return json_is_false(v) ? 0 : fail(r, key, TD_E_INVALID, "%.64s is not done here", key);
}

static int take_best_of(struct reader *r, const char *key, const json_t *v)
{
	(void)key;
	r->best_of = v;
	return 0;
}

static int take_modalities(struct reader *r, const char *key, const json_t *v)
{
	const char *one = json_string_value(json_array_get(v, 0));

	return json_array_size(v) == 1 && one && !strcmp(one, "text") ? 0 : fail(r, key, TD_E_INVALID, "modalities: this model writes text only");
}

/* ---- messages ---------------------------------------------------------------------------------------------------------------------- */

/* A content: a string, or parts of text that are put one behind the other. *out stays NULL for null. */
static int take_content(struct reader *r, const char *where, const json_t *v, char **out)
{
	struct td__text t = {0};
	const json_t *part;
	size_t i;

	if (!v || json_is_null(v))
		return 0;
	if (json_is_string(v))
		return copy(r, v, out);
	if (!json_is_array(v))
		return wrong(r, where, "a string or an array of text parts");
	td__text_puts(&t, "");
	json_array_foreach ((json_t *)v, i, part) {
		const char *type = json_string_value(json_object_get(part, "type")), *text = json_string_value(json_object_get(part, "text"));

		if (!type || strcmp(type, "text") || !text) {
			td__text_finish(&t);
			return fail(r, "messages", TD_E_INVALID, "%s: part %zu is of the type %.40s: only {\"type\": \"text\", \"text\": ...} can be read", where, i + 1,
				    type ? type : "(none)");
		}
		td__text_puts(&t, text);
	}
	if (t.failed) {
		td__text_finish(&t);
		return nomem(r);
	}
	free(*out);
	*out = t.s;
	return 0;
}

static int take_tool_calls(struct reader *r, const char *where, const json_t *v, Tandem__ChatMessage *m)
{
	const json_t *one;
	size_t i;

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_array(v))
		return wrong(r, where, "an array");
	m->tool_call = calloc(json_array_size(v) + 1, sizeof(*m->tool_call));
	if (!m->tool_call)
		return nomem(r);
	json_array_foreach ((json_t *)v, i, one) {
		const json_t *f = json_object_get(one, "function"), *arguments = json_object_get(f, "arguments"), *id = json_object_get(one, "id");
		Tandem__ToolCall *c;

		if (!json_is_string(json_object_get(f, "name")))
			return fail(r, "messages", TD_E_INVALID, "%s: call %zu has no function.name", where, i + 1);
		c = malloc(sizeof(*c));
		if (!c)
			return nomem(r);
		tandem__tool_call__init(c);
		m->tool_call[m->n_tool_call++] = c;
		c->name = strdup(json_string_value(json_object_get(f, "name")));
		if (json_is_object(arguments))
			c->arguments = json_dumps(arguments, 0);
		else
			c->arguments = strdup(json_is_string(arguments) && json_string_length(arguments) ? json_string_value(arguments) : "{}");
		c->id = json_is_string(id) ? strdup(json_string_value(id)) : NULL;
		if (!c->name || !c->arguments)
			return nomem(r);
	}
	return 0;
}

static int take_message(struct reader *r, size_t i, const json_t *v, Tandem__ChatMessage *m)
{
	static const char *const known[] = {"role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name", "refusal", "audio",
					    "annotations", "function_call"};
	const json_t *role = json_object_get(v, "role"), *id = json_object_get(v, "tool_call_id"), *one;
	const json_t *thinking = json_object_get(v, "reasoning_content") ? json_object_get(v, "reasoning_content") : json_object_get(v, "reasoning");
	const char *name;
	char where[64];
	int rc;

	if (!json_is_object(v) || !json_is_string(role))
		return fail(r, "messages", TD_E_INVALID, "messages[%zu] must be an object with a role", i);
	json_object_foreach ((json_t *)v, name, one) {
		size_t k = 0;

		while (k < sizeof(known) / sizeof(*known) && strcmp(name, known[k]))
			k++;
		if (k == sizeof(known) / sizeof(*known) || ((!strcmp(name, "audio") || !strcmp(name, "function_call")) && !json_is_null(one)))
			return fail(r, "messages", TD_E_INVALID, "Unrecognized request argument supplied: messages[%zu].%.64s", i, name);
	}
	name = json_string_value(role);
	m->role = strdup(strcmp(name, "developer") ? name : "system");
	if (!m->role)
		return nomem(r);
	snprintf(where, sizeof(where), "messages[%zu].content", i);
	if ((rc = take_content(r, where, json_object_get(v, "content"), &m->content)))
		return rc;
	snprintf(where, sizeof(where), "messages[%zu].reasoning_content", i);
	if ((rc = take_content(r, where, thinking, &m->reasoning_content)))
		return rc;
	snprintf(where, sizeof(where), "messages[%zu].tool_calls", i);
	if ((rc = take_tool_calls(r, where, json_object_get(v, "tool_calls"), m)))
		return rc;
	return json_is_string(id) ? copy(r, id, &m->tool_call_id) : 0;
}

/* The template knows one system message, at the front: several there become one. */
static int join_systems(struct reader *r, Tandem__Chat *c)
{
	while (c->n_message > 1 && !strcmp(c->message[0]->role, "system") && !strcmp(c->message[1]->role, "system")) {
		const char *a = c->message[0]->content ? c->message[0]->content : "", *b = c->message[1]->content ? c->message[1]->content : "";
		char *both = malloc(strlen(a) + strlen(b) + 3);

		if (!both)
			return nomem(r);
		sprintf(both, "%s%s%s", a, *a && *b ? "\n\n" : "", b);
		free(c->message[0]->content);
		c->message[0]->content = both;
		tandem__chat_message__free_unpacked(c->message[1], NULL);
		memmove(&c->message[1], &c->message[2], (c->n_message - 2) * sizeof(*c->message));
		c->n_message--;
	}
	return 0;
}

static Tandem__Chat *chat_of(struct reader *r)
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

static int take_messages(struct reader *r, const char *key, const json_t *v)
{
	Tandem__Chat *c = chat_of(r);
	const json_t *one;
	size_t i;
	int rc;

	if (!json_is_array(v) || !json_array_size(v))
		return wrong(r, key, "an array of at least one message");
	if (!c || !(c->message = calloc(json_array_size(v), sizeof(*c->message))))
		return nomem(r);
	json_array_foreach ((json_t *)v, i, one) {
		Tandem__ChatMessage *m = malloc(sizeof(*m));

		if (!m)
			return nomem(r);
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

static int take_template_kwargs(struct reader *r, const char *key, const json_t *v)
{
	Tandem__Chat *c = chat_of(r);
	const json_t *one;
	const char *name;
	int yes = 0, rc;

	if (!json_is_object(v))
		return wrong(r, key, "an object");
	if (!c)
		return nomem(r);
	json_object_foreach ((json_t *)v, name, one) {
		if (strcmp(name, "enable_thinking"))
			return fail(r, key, TD_E_INVALID, "Unrecognized request argument supplied: chat_template_kwargs.%.64s", name);
		if ((rc = take_bool(r, "chat_template_kwargs.enable_thinking", one, &yes)))
			return rc;
		c->has_enable_thinking = 1;
		c->enable_thinking = yes;
	}
	return 0;
}

static int take_effort(struct reader *r, const char *key, const json_t *v)
{
	Tandem__Chat *c = chat_of(r);

	if (!json_is_string(v))
		return wrong(r, key, "a string");
	if (!c)
		return nomem(r);
	if (!c->has_enable_thinking) {
		c->has_enable_thinking = 1;
		c->enable_thinking = strcmp(json_string_value(v), "none") && strcmp(json_string_value(v), "minimal");
	}
	return 0;
}

/* ---- tools and forms of the answer ------------------------------------------------------------------------------------------------- */

static int take_tools(struct reader *r, const char *key, const json_t *v)
{
	if (!json_is_array(v))
		return wrong(r, key, "an array");
	r->tools = json_array_size(v) ? v : NULL;
	return 0;
}

static int take_tool_choice(struct reader *r, const char *key, const json_t *v)
{
	(void)key;
	r->tool_choice = v;
	return 0;
}

static Tandem__Constraint *constraint_of(struct reader *r)
{
	Tandem__Constraint *c = malloc(sizeof(*c));

	if (c)
		tandem__constraint__init(c);
	r->q->g->constraint = c;
	return c;
}

static int take_response_format(struct reader *r, const char *key, const json_t *v)
{
	const char *type = json_string_value(json_object_get(v, "type"));
	const json_t *schema = json_object_get(json_object_get(v, "json_schema"), "schema");
	Tandem__Constraint *c;

	if (!type || (strcmp(type, "text") && strcmp(type, "json_object") && strcmp(type, "json_schema")))
		return wrong(r, key, "an object whose type is text, json_object or json_schema");
	if (!strcmp(type, "text"))
		return 0;
	if (!strcmp(type, "json_schema") && !json_is_object(schema) && !json_is_boolean(schema))
		return fail(r, key, TD_E_INVALID, "response_format.json_schema.schema is missing");
	if (!(c = constraint_of(r)))
		return nomem(r);
	if (!strcmp(type, "json_object")) {
		c->kind_case = TANDEM__CONSTRAINT__KIND_JSON_OBJECT;
		c->json_object = 1;
		return 0;
	}
	c->json_schema = json_dumps(schema, JSON_ENCODE_ANY);
	c->kind_case = TANDEM__CONSTRAINT__KIND_JSON_SCHEMA;
	return c->json_schema ? 0 : nomem(r);
}

static int check_tools(struct reader *r)
{
	const json_t *one;
	size_t i;

	json_array_foreach ((json_t *)r->tools, i, one) {
		const char *type = json_string_value(json_object_get(one, "type"));

		if (!type || strcmp(type, "function") || !json_is_string(json_object_get(json_object_get(one, "function"), "name")))
			return fail(r, "tools", TD_E_INVALID, "tools[%zu] must be {\"type\": \"function\", \"function\": {\"name\": ...}}", i);
	}
	return 0;
}

static int force_tool(struct reader *r, const char *name)
{
	Tandem__Constraint *c;

	if (r->q->g->constraint)
		return fail(r, "tool_choice", TD_E_INVALID, "tool_choice wants a call and response_format a JSON answer: give one of them");
	if (!(c = constraint_of(r)) || !(c->tool_choice = strdup(name)))
		return nomem(r);
	c->kind_case = TANDEM__CONSTRAINT__KIND_TOOL_CHOICE;
	return 0;
}

/* The name of the function that tool_choice wants, "required", "none" or "auto"; NULL: it is something else. */
static const char *choice_of(struct reader *r)
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

static int put_tools(struct reader *r)
{
	const char *choice = choice_of(r);
	Tandem__Chat *c = r->q->g->chat;
	const json_t *one;
	size_t i;
	int rc;

	if (!choice)
		return wrong(r, "tool_choice", "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": one of tools}}");
	if (!r->tools)
		return json_is_string(r->tool_choice) && strcmp(choice, "required") ? 0 :
		       r->tool_choice ? fail(r, "tool_choice", TD_E_INVALID, "tool_choice needs tools") : 0;
	if ((rc = check_tools(r)) || !strcmp(choice, "none"))
		return rc;
	c->tool = calloc(json_array_size(r->tools), sizeof(*c->tool));
	if (!c->tool)
		return nomem(r);
	json_array_foreach ((json_t *)r->tools, i, one) {
		c->tool[c->n_tool] = json_dumps(one, 0);
		if (!c->tool[c->n_tool])
			return nomem(r);
		c->n_tool++;
	}
	r->q->tools = json_incref((json_t *)r->tools);
	return strcmp(choice, "auto") ? force_tool(r, choice) : 0;
}

/* ---- prompt ------------------------------------------------------------------------------------------------------------------------ */

static int take_one_prompt(struct reader *r, const char *key, const json_t *v)
{
	struct td_openai_prompt *p = &r->q->prompt[r->q->n_prompts++];

	if (json_is_string(v))
		return copy(r, v, &p->text);
	p->ids = malloc(sizeof(*p->ids));
	if (!p->ids)
		return nomem(r);
	tandem__token_ids__init(p->ids);
	return take_ids(r, key, v, &p->ids->id, &p->ids->n_id) ? wrong(r, key, "a string, an array of strings, of token ids, or of arrays of token ids") : 0;
}

static int take_prompt(struct reader *r, const char *key, const json_t *v)
{
	const json_t *first = json_array_get(v, 0), *one;
	int many = json_is_string(first) || json_is_array(first), rc = 0;
	size_t n = many ? json_array_size(v) : 1, i;

	if (n > PROMPTS_MAX)
		return fail(r, key, TD_E_INVALID, "prompt holds %zu prompts; %d are allowed", n, PROMPTS_MAX);
	r->q->prompt = calloc(n, sizeof(*r->q->prompt));
	if (!r->q->prompt)
		return nomem(r);
	if (!many)
		return take_one_prompt(r, key, v);
	json_array_foreach ((json_t *)v, i, one)
		if ((rc = take_one_prompt(r, key, one)))
			return rc;
	return 0;
}

/* ---- the table --------------------------------------------------------------------------------------------------------------------- */

enum { CHAT = 1, TEXT = 2, TOKENIZE = 4, DETOKENIZE = 8, BOTH = CHAT | TEXT, ALL = 15 };

static int take_strings(struct reader *r, const char *key, const json_t *v)
{
	return take_bool(r, key, v, &r->strings);
}

static int take_text(struct reader *r, const char *key, const json_t *v)
{
	if (!json_is_string(v))
		return wrong(r, key, "a string");
	if (r->t->input_case != TANDEM__TOKENIZE__INPUT__NOT_SET)
		return wrong(r, key, "given once: prompt or content");
	r->t->text = NULL;
	r->t->input_case = TANDEM__TOKENIZE__INPUT_TEXT;
	return copy(r, v, &r->t->text);
}

static int take_tokens(struct reader *r, const char *key, const json_t *v)
{
	int rc = take_ids(r, key, v, &r->ids->id, &r->ids->n);

	r->ids->size = r->ids->n;
	return rc;
}

static const struct {
	const char *name;
	int where;
	int (*take)(struct reader *r, const char *key, const json_t *v);
} fields[] = {
	{"model", ALL, take_model},
	{"messages", CHAT | TOKENIZE, take_messages},
	{"prompt", TEXT, take_prompt},
	{"temperature", BOTH, take_temperature},
	{"top_p", BOTH, take_top_p},
	{"top_k", BOTH, take_top_k},
	{"min_p", BOTH, take_min_p},
	{"repetition_penalty", BOTH, take_repetition_penalty},
	{"presence_penalty", BOTH, take_presence_penalty},
	{"frequency_penalty", BOTH, take_frequency_penalty},
	{"seed", BOTH, take_seed},
	{"stop", BOTH, take_stop},
	{"stop_token_ids", BOTH, take_stop_token_ids},
	{"ignore_eos", BOTH, take_ignore_eos},
	{"max_tokens", BOTH, take_max_tokens},
	{"max_completion_tokens", CHAT, take_max_tokens},
	{"n", BOTH, take_n},
	{"best_of", TEXT, take_best_of},
	{"logprobs", BOTH, take_logprobs},
	{"top_logprobs", CHAT, take_top_logprobs},
	{"logit_bias", BOTH, take_logit_bias},
	{"stream", BOTH, take_stream},
	{"stream_options", BOTH, take_stream_options},
	{"response_format", BOTH, take_response_format},
	{"tools", CHAT | TOKENIZE, take_tools},
	{"tool_choice", CHAT, take_tool_choice},
	{"chat_template_kwargs", CHAT | TOKENIZE, take_template_kwargs},
	{"reasoning_effort", CHAT, take_effort},
	{"modalities", CHAT, take_modalities},
	{"deadline_ms", BOTH, take_deadline},
	{"band", BOTH, take_band},
	{"draft_tokens", BOTH, take_draft_tokens},
	{"cache", BOTH, take_cache},
	{"echo", TEXT, only_false},
	/* without effect here */
	{"user", BOTH, ignore},
	{"safety_identifier", BOTH, ignore},
	{"prompt_cache_key", BOTH, ignore},
	{"prompt_cache_retention", BOTH, ignore},
	{"metadata", CHAT, ignore},
	{"store", CHAT, ignore},
	{"service_tier", BOTH, ignore},
	{"parallel_tool_calls", CHAT, ignore},
	/* /tokenize and /detokenize */
	{"prompt", TOKENIZE, take_text},
	{"content", TOKENIZE, take_text},
	{"return_token_strs", TOKENIZE, take_strings},
	{"with_pieces", TOKENIZE, take_strings},
	{"add_special_tokens", TOKENIZE, ignore},
	{"add_special", TOKENIZE, ignore},
	{"add_generation_prompt", TOKENIZE, ignore},
	{"tokens", DETOKENIZE, take_tokens},
};

static int take_fields(struct reader *r, int where, json_t *root)
{
	const json_t *v;
	const char *key;
	int rc;

	json_object_foreach (root, key, v) {
		size_t i = 0;

		while (i < sizeof(fields) / sizeof(*fields) && (strcmp(key, fields[i].name) || !(fields[i].where & where)))
			i++;
		if (i == sizeof(fields) / sizeof(*fields))
			return fail(r, key, TD_E_INVALID, "Unrecognized request argument supplied: %.64s", key);
		if (!json_is_null(v) && (rc = fields[i].take(r, key, v)))
			return rc;
	}
	return 0;
}

/* What depends on more than one field. */
static int put_together(struct reader *r)
{
	struct td_openai_request *q = r->q;
	int rc;

	if (r->top_logprobs && !q->logprobs)
		return fail(r, "top_logprobs", TD_E_INVALID, "top_logprobs needs logprobs to be true");
	if (q->chat && r->logprobs_given) {
		r->s->has_logprobs = 1;
		r->s->logprobs = 0;
		if (r->top_logprobs && (rc = take_int(r, "top_logprobs", r->top_logprobs, &r->s->logprobs)))
			return rc;
	}
	if (r->stream_options && !q->stream)
		return fail(r, "stream_options", TD_E_INVALID, "stream_options is only for stream = true");
	if (r->best_of && json_integer_value(r->best_of) != q->n)
		return fail(r, "best_of", TD_E_INVALID, "best_of other than n is not done here");
	if (q->n_prompts * (size_t)q->n > TD_OPENAI_CHOICES_MAX)
		return fail(r, "n", TD_E_INVALID, "n times the number of prompts is %zu; %d choices are allowed", q->n_prompts * (size_t)q->n, TD_OPENAI_CHOICES_MAX);
	q->g->has_stream = 1;
	q->g->stream = q->stream;
	return 0;
}

static int begin(struct reader *r, struct td_openai_request *q, const char *model, struct td_error *err)
{
	memset(q, 0, sizeof(*q));
	q->n = 1;
	*r = (struct reader){.q = q, .err = err, .model = model};
	q->g = malloc(sizeof(*q->g));
	r->s = malloc(sizeof(*r->s));
	if (!q->g || !r->s) {
		free(r->s);
		free(q->g);
		q->g = NULL;
		return nomem(r);
	}
	tandem__generate__init(q->g);
	tandem__sampling__init(r->s);
	q->g->sampling = r->s;
	return 0;
}

int td_openai_read(struct td_openai_request *q, int chat, const char *body, size_t n, const char *model, struct td_error *err)
{
	struct reader r;
	json_t *root = NULL;
	int rc = begin(&r, q, model, err);

	q->chat = chat;
	if (!rc)
		rc = parse(&r, body, n, &root);
	if (!rc)
		rc = take_fields(&r, chat ? CHAT : TEXT, root);
	if (!rc && chat && (q->g->input_case != TANDEM__GENERATE__INPUT_CHAT || !q->g->chat->n_message))
		rc = fail(&r, "messages", TD_E_INVALID, "you must provide messages");
	if (!rc && !chat && !q->n_prompts)
		rc = fail(&r, "prompt", TD_E_INVALID, "you must provide a prompt");
	if (!rc && chat) {
		q->n_prompts = 1;
		rc = put_tools(&r);
	}
	if (!rc)
		rc = put_together(&r);
	json_decref(root);
	return rc;
}

int td_openai_read_tokenize(struct td_openai_request *q, const char *body, size_t n, const char *model, Tandem__Tokenize **t, int *strings, struct td_error *err)
{
	struct reader r;
	json_t *root = NULL;
	int rc = begin(&r, q, model, err);

	*t = NULL;
	q->chat = 1;
	if (!rc && !(r.t = malloc(sizeof(*r.t))))
		rc = nomem(&r);
	if (!rc) {
		tandem__tokenize__init(r.t);
		*t = r.t;
		rc = parse(&r, body, n, &root);
	}
	if (!rc)
		rc = take_fields(&r, TOKENIZE, root);
	if (!rc && q->g->input_case == TANDEM__GENERATE__INPUT_CHAT && q->g->chat->n_message) {
		rc = r.t->input_case ? fail(&r, "messages", TD_E_INVALID, "give a prompt or messages, not both") : put_tools(&r);
		if (!rc) {
			r.t->input_case = TANDEM__TOKENIZE__INPUT_CHAT;
			r.t->chat = q->g->chat;
			q->g->chat = NULL;
			q->g->input_case = TANDEM__GENERATE__INPUT__NOT_SET;
		}
	} else if (!rc && !r.t->input_case) {
		rc = fail(&r, "prompt", TD_E_INVALID, "give a prompt (or content), or messages");
	}
	*strings = r.strings;
	json_decref(root);
	return rc;
}

int td_openai_read_detokenize(struct td_openai_request *q, const char *body, size_t n, const char *model, struct td_ids *ids, struct td_error *err)
{
	struct reader r;
	json_t *root = NULL;
	int rc = begin(&r, q, model, err);

	r.ids = ids;
	if (!rc)
		rc = parse(&r, body, n, &root);
	if (!rc)
		rc = take_fields(&r, DETOKENIZE, root);
	if (!rc && !ids->id)
		rc = fail(&r, "tokens", TD_E_INVALID, "give tokens");
	json_decref(root);
	return rc;
}

void td_openai_finish(struct td_openai_request *q)
{
	if (q->g && q->g->input_case != TANDEM__GENERATE__INPUT_CHAT)
		q->g->input_case = TANDEM__GENERATE__INPUT__NOT_SET; /* lent from `prompt` */
	if (q->g)
		tandem__generate__free_unpacked(q->g, NULL);
	for (size_t i = 0; q->prompt && i < q->n_prompts; i++) {
		free(q->prompt[i].text);
		if (q->prompt[i].ids)
			tandem__token_ids__free_unpacked(q->prompt[i].ids, NULL);
	}
	free(q->prompt);
	json_decref(q->tools);
	q->g = NULL;
	q->prompt = NULL;
	q->tools = NULL;
}
