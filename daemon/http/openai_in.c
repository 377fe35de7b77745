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

#include "daemon/http/openai_impl.h"
#include "engine/json_load.h"
#include "kernels/kernels.h"

enum { PROMPTS_MAX = TD_OPENAI_CHOICES_MAX };

int td__openai_fail(struct td__openai_reader *r, const char *param, int code, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	snprintf(r->q->param, sizeof(r->q->param), "%s", param);
	return td_error_set(r->err, code, "%s", text);
}

int td__openai_wrong(struct td__openai_reader *r, const char *key, const char *want)
{
	return td__openai_fail(r, key, TD_E_INVALID, "%.64s must be %s", key, want);
}

int td__openai_nomem(struct td__openai_reader *r)
{
	return td__openai_fail(r, "", TD_E_NOMEM, "out of memory");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------------- */

static int look_over(struct td__openai_reader *r, const char *p, size_t n)
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
			return td__openai_fail(r, "", TD_E_INVALID, "the JSON is nested deeper than %d levels", TD_OPENAI_DEPTH_MAX);
		if (values > TD_OPENAI_VALUES_MAX)
			return td__openai_fail(r, "", TD_E_TOO_LARGE, "the JSON has more than %d values", TD_OPENAI_VALUES_MAX);
	}
	return 0;
}

static int parse(struct td__openai_reader *r, const char *body, size_t n, json_t **root)
{
	json_error_t e;
	int rc, no_memory;

	*root = NULL;
	if ((rc = look_over(r, body, n)))
		return rc;
	*root = td_json_load(body, n, JSON_REJECT_DUPLICATES, &e, &no_memory);
	if (no_memory)
		return td__openai_nomem(r);
	if (!*root)
		return td__openai_fail(r, "", TD_E_INVALID, "the body is not JSON that can be taken: %.160s (line %d, column %d)", e.text, e.line, e.column);
	if (!json_is_object(*root))
		return td__openai_fail(r, "", TD_E_INVALID, "the body must be a JSON object");
	return 0;
}

static int take_int(struct td__openai_reader *r, const char *key, const json_t *v, int32_t *out)
{
	if (!json_is_integer(v) || json_integer_value(v) < INT32_MIN || json_integer_value(v) > INT32_MAX)
		return td__openai_wrong(r, key, "a whole number");
	*out = (int32_t)json_integer_value(v);
	return 0;
}

int td__openai_take_bool(struct td__openai_reader *r, const char *key, const json_t *v, int *out)
{
	if (!json_is_boolean(v))
		return td__openai_wrong(r, key, "true or false");
	*out = json_is_true(v);
	return 0;
}

int td__openai_copy(struct td__openai_reader *r, const json_t *v, char **out)
{
	free(*out);
	*out = strdup(json_string_value(v));
	return *out ? 0 : td__openai_nomem(r);
}

/* ---- sampling ---------------------------------------------------------------------------------------------------------------------- */

#define REAL(field) \
	static int take_##field(struct td__openai_reader *r, const char *key, const json_t *v) \
	{ \
		if (!json_is_number(v)) \
			return td__openai_wrong(r, key, "a number"); \
		r->s->has_##field = 1; \
		r->s->field = (float)json_number_value(v); \
		return 0; \
	}
#define WHOLE(field) \
	static int take_##field(struct td__openai_reader *r, const char *key, const json_t *v) \
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

static int take_max_tokens(struct td__openai_reader *r, const char *key, const json_t *v)
{
	int newer = !strcmp(key, "max_completion_tokens"), rc;
	int32_t n;

	if ((rc = take_int(r, key, v, &n)))
		return rc;
	if (n < 1)
		return td__openai_wrong(r, key, "1 or more");
	if (newer || !r->max_completion_given)
		r->s->max_tokens = n;
	r->s->has_max_tokens = 1;
	r->max_completion_given |= newer;
	return 0;
}

static int take_seed(struct td__openai_reader *r, const char *key, const json_t *v)
{
	if (!json_is_integer(v))
		return td__openai_wrong(r, key, "a whole number of 64 bits");
	r->s->has_seed = 1;
	r->s->seed = (uint64_t)json_integer_value(v);
	return 0;
}

static int take_ignore_eos(struct td__openai_reader *r, const char *key, const json_t *v)
{
	int yes = 0, rc = td__openai_take_bool(r, key, v, &yes);

	r->s->has_ignore_eos = 1;
	r->s->ignore_eos = yes;
	return rc;
}

static int take_stop(struct td__openai_reader *r, const char *key, const json_t *v)
{
	size_t n = json_is_array(v) ? json_array_size(v) : 1;

	if (!json_is_array(v) && !json_is_string(v))
		return td__openai_wrong(r, key, "a string or an array of strings");
	r->s->stop = calloc(n ? n : 1, sizeof(*r->s->stop));
	if (!r->s->stop)
		return td__openai_nomem(r);
	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
		int rc;

		if (!json_is_string(one))
			return td__openai_wrong(r, key, "a string or an array of strings");
		if ((rc = td__openai_copy(r, one, &r->s->stop[r->s->n_stop])))
			return rc;
		r->s->n_stop++;
	}
	return 0;
}

static int take_ids(struct td__openai_reader *r, const char *key, const json_t *v, int32_t **id, size_t *count)
{
	size_t n = json_array_size(v);
	int32_t *out = json_is_array(v) ? malloc((n ? n : 1) * sizeof(*out)) : NULL;

	if (!json_is_array(v))
		return td__openai_wrong(r, key, "an array of token ids");
	if (!out)
		return td__openai_nomem(r);
	for (size_t i = 0; i < n; i++)
		if (take_int(r, key, json_array_get(v, i), &out[i])) {
			free(out);
			return td__openai_wrong(r, key, "an array of token ids");
		}
	free(*id);
	*id = out;
	*count = n;
	return 0;
}

static int take_stop_token_ids(struct td__openai_reader *r, const char *key, const json_t *v)
{
	return take_ids(r, key, v, &r->s->stop_token_ids, &r->s->n_stop_token_ids);
}

static int take_logit_bias(struct td__openai_reader *r, const char *key, const json_t *v)
{
	const json_t *one;
	const char *id;

	if (!json_is_object(v))
		return td__openai_wrong(r, key, "an object of token ids and numbers");
	r->s->logit_bias = calloc(json_object_size(v) + 1, sizeof(*r->s->logit_bias));
	if (!r->s->logit_bias)
		return td__openai_nomem(r);
	json_object_foreach ((json_t *)v, id, one) {
		Tandem__LogitBias *b = malloc(sizeof(*b));
		char *end;
		long n;

		if (!b)
			return td__openai_nomem(r);
		tandem__logit_bias__init(b);
		r->s->logit_bias[r->s->n_logit_bias++] = b;
		n = strtol(id, &end, 10);
		if (end == id || *end || n < 0 || n > INT32_MAX || !json_is_number(one))
			return td__openai_wrong(r, key, "an object of token ids and numbers");
		b->id = (int32_t)n;
		b->bias = (float)json_number_value(one);
	}
	return 0;
}

static int take_logprobs(struct td__openai_reader *r, const char *key, const json_t *v)
{
	int yes = 0, rc;

	if (r->q->chat) {
		rc = td__openai_take_bool(r, key, v, &yes);
		r->q->logprobs = r->logprobs_given = yes;
		return rc;
	}
	rc = take_int(r, key, v, &r->s->logprobs);
	r->q->logprobs = r->s->has_logprobs = 1;
	return rc;
}

static int take_top_logprobs(struct td__openai_reader *r, const char *key, const json_t *v)
{
	(void)key;
	r->top_logprobs = v;
	return 0;
}

/* ---- the request as a whole -------------------------------------------------------------------------------------------------------- */

static int take_model(struct td__openai_reader *r, const char *key, const json_t *v)
{
	if (!json_is_string(v))
		return td__openai_wrong(r, key, "a string");
	if (!json_string_length(v) || !strcmp(json_string_value(v), r->model))
		return 0;
	r->q->code = "model_not_found";
	return td__openai_fail(r, key, TD_E_NOT_FOUND, "The model `%.100s` does not exist: `%.100s` is served here", json_string_value(v), r->model);
}

static int take_n(struct td__openai_reader *r, const char *key, const json_t *v)
{
	int32_t n = 0;

	if (take_int(r, key, v, &n) || n < 1 || n > TD_OPENAI_CHOICES_MAX)
		return td__openai_wrong(r, key, "a whole number from 1 to 16");
	r->q->n = n;
	return 0;
}

static int take_stream(struct td__openai_reader *r, const char *key, const json_t *v)
{
	return td__openai_take_bool(r, key, v, &r->q->stream);
}

static int take_stream_options(struct td__openai_reader *r, const char *key, const json_t *v)
{
	const json_t *usage = json_object_get(v, "include_usage"), *one;
	const char *name;

	if (!json_is_object(v))
		return td__openai_wrong(r, key, "an object");
	json_object_foreach ((json_t *)v, name, one)
		if (strcmp(name, "include_usage") && strcmp(name, "include_obfuscation"))
			return td__openai_fail(r, key, TD_E_INVALID, "Unrecognized request argument supplied: stream_options.%.64s", name);
	r->stream_options = v;
	return usage && !json_is_null(usage) ? td__openai_take_bool(r, "stream_options.include_usage", usage, &r->q->include_usage) : 0;
}

static int take_deadline(struct td__openai_reader *r, const char *key, const json_t *v)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
		return td__openai_wrong(r, key, "a number of milliseconds, 0 or more");
	r->q->g->has_deadline_ms = 1;
	r->q->g->deadline_ms = (uint32_t)json_integer_value(v);
	return 0;
}

static int take_band(struct td__openai_reader *r, const char *key, const json_t *v)
{
	const char *s = json_is_string(v) ? json_string_value(v) : "";

	if (strcmp(s, "interactive") && strcmp(s, "batch"))
		return td__openai_wrong(r, key, "\"interactive\" or \"batch\"");
	r->q->g->has_band = 1;
	r->q->g->band = strcmp(s, "batch") ? TANDEM__BAND__INTERACTIVE : TANDEM__BAND__BATCH;
	return 0;
}

static int take_cache(struct td__openai_reader *r, const char *key, const json_t *v)
{
	int yes = 1, rc = td__openai_take_bool(r, key, v, &yes);

	r->q->g->has_cache = 1;
	r->q->g->cache = yes;
	return rc;
}

static int ignore(struct td__openai_reader *r, const char *key, const json_t *v)
{
	(void)r;
	(void)key;
	(void)v;
	return 0;
}

static int only_false(struct td__openai_reader *r, const char *key, const json_t *v)
{
	return json_is_false(v) ? 0 : td__openai_fail(r, key, TD_E_INVALID, "%.64s is not done here", key);
}

static int take_best_of(struct td__openai_reader *r, const char *key, const json_t *v)
{
	(void)key;
	r->best_of = v;
	return 0;
}

static int take_modalities(struct td__openai_reader *r, const char *key, const json_t *v)
{
	const char *one = json_string_value(json_array_get(v, 0));

	return json_array_size(v) == 1 && one && !strcmp(one, "text") ? 0 : td__openai_fail(r, key, TD_E_INVALID, "modalities: this model writes text only");
}

/* ---- prompt ------------------------------------------------------------------------------------------------------------------------ */

static int take_one_prompt(struct td__openai_reader *r, const char *key, const json_t *v)
{
	struct td_openai_prompt *p = &r->q->prompt[r->q->n_prompts++];
	int rc;

	if (json_is_string(v))
		return td__openai_copy(r, v, &p->text);
	p->ids = malloc(sizeof(*p->ids));
	if (!p->ids)
		return td__openai_nomem(r);
	tandem__token_ids__init(p->ids);
	rc = take_ids(r, key, v, &p->ids->id, &p->ids->n_id);
	return rc && rc != TD_E_NOMEM ? td__openai_wrong(r, key, "a string, an array of strings, of token ids, or of arrays of token ids") : rc;
}

static int take_prompt(struct td__openai_reader *r, const char *key, const json_t *v)
{
	const json_t *first = json_array_get(v, 0), *one;
	int many = json_is_string(first) || json_is_array(first), rc = 0;
	size_t n = many ? json_array_size(v) : 1, i;

	if (n > PROMPTS_MAX)
		return td__openai_fail(r, key, TD_E_INVALID, "prompt holds %zu prompts; %d are allowed", n, PROMPTS_MAX);
	r->q->prompt = calloc(n, sizeof(*r->q->prompt));
	if (!r->q->prompt)
		return td__openai_nomem(r);
	if (!many)
		return take_one_prompt(r, key, v);
	json_array_foreach ((json_t *)v, i, one)
		if ((rc = take_one_prompt(r, key, one)))
			return rc;
	return 0;
}

/* ---- the table --------------------------------------------------------------------------------------------------------------------- */

enum { CHAT = 1, TEXT = 2, TOKENIZE = 4, DETOKENIZE = 8, BOTH = CHAT | TEXT, ALL = 15 };

static int take_strings(struct td__openai_reader *r, const char *key, const json_t *v)
{
	return td__openai_take_bool(r, key, v, &r->strings);
}

static int take_text(struct td__openai_reader *r, const char *key, const json_t *v)
{
	if (!json_is_string(v))
		return td__openai_wrong(r, key, "a string");
	if (r->t->input_case != TANDEM__TOKENIZE__INPUT__NOT_SET)
		return td__openai_wrong(r, key, "given once: prompt or content");
	r->t->text = NULL;
	r->t->input_case = TANDEM__TOKENIZE__INPUT_TEXT;
	return td__openai_copy(r, v, &r->t->text);
}

static int take_tokens(struct td__openai_reader *r, const char *key, const json_t *v)
{
	int rc = take_ids(r, key, v, &r->ids->id, &r->ids->n);

	r->ids->size = r->ids->n;
	return rc;
}

static const struct {
	const char *name;
	int where;
	int (*take)(struct td__openai_reader *r, const char *key, const json_t *v);
} fields[] = {
	{"model", ALL, take_model},
	{"messages", CHAT | TOKENIZE, td__openai_take_messages},
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
	{"response_format", BOTH, td__openai_take_response_format},
	{"tools", CHAT | TOKENIZE, td__openai_take_tools},
	{"tool_choice", CHAT, td__openai_take_tool_choice},
	{"chat_template_kwargs", CHAT | TOKENIZE, td__openai_take_template_kwargs},
	{"reasoning_effort", CHAT, td__openai_take_effort},
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

static int take_fields(struct td__openai_reader *r, int where, json_t *root)
{
	const json_t *v;
	const char *key;
	int rc;

	json_object_foreach (root, key, v) {
		size_t i = 0;

		while (i < sizeof(fields) / sizeof(*fields) && (strcmp(key, fields[i].name) || !(fields[i].where & where)))
			i++;
		if (i == sizeof(fields) / sizeof(*fields))
			return td__openai_fail(r, key, TD_E_INVALID, "Unrecognized request argument supplied: %.64s", key);
		if (!json_is_null(v) && (rc = fields[i].take(r, key, v)))
			return rc;
	}
	return 0;
}

/* What depends on more than one field. */
static int put_together(struct td__openai_reader *r)
{
	struct td_openai_request *q = r->q;
	int rc;

	if (r->top_logprobs && !q->logprobs)
		return td__openai_fail(r, "top_logprobs", TD_E_INVALID, "top_logprobs needs logprobs to be true");
	if (q->chat && r->logprobs_given) {
		r->s->has_logprobs = 1;
		r->s->logprobs = 0;
		if (r->top_logprobs && (rc = take_int(r, "top_logprobs", r->top_logprobs, &r->s->logprobs)))
			return rc;
		if (r->s->logprobs < 0 || r->s->logprobs > TD_TOP_MAX) /* by the name that was given: the engine's is another */
			return td__openai_fail(r, "top_logprobs", TD_E_INVALID, "top_logprobs is %d; it must be from 0 to %d", r->s->logprobs, TD_TOP_MAX);
	}
	if (r->stream_options && !q->stream)
		return td__openai_fail(r, "stream_options", TD_E_INVALID, "stream_options is only for stream = true");
	if (r->best_of && json_integer_value(r->best_of) != q->n)
		return td__openai_fail(r, "best_of", TD_E_INVALID, "best_of other than n is not done here");
	if (q->n_prompts * (size_t)q->n > TD_OPENAI_CHOICES_MAX)
		return td__openai_fail(r, "n", TD_E_INVALID, "n times the number of prompts is %zu; %d choices are allowed", q->n_prompts * (size_t)q->n, TD_OPENAI_CHOICES_MAX);
	q->g->has_stream = 1;
	q->g->stream = q->stream;
	return 0;
}

static int begin(struct td__openai_reader *r, struct td_openai_request *q, const char *model, struct td_error *err)
{
	memset(q, 0, sizeof(*q));
	q->n = 1;
	*r = (struct td__openai_reader){.q = q, .err = err, .model = model};
	q->g = malloc(sizeof(*q->g));
	r->s = malloc(sizeof(*r->s));
	if (!q->g || !r->s) {
		free(r->s);
		free(q->g);
		q->g = NULL;
		return td__openai_nomem(r);
	}
	tandem__generate__init(q->g);
	tandem__sampling__init(r->s);
	q->g->sampling = r->s;
	return 0;
}

int td_openai_read(struct td_openai_request *q, int chat, const char *body, size_t n, const char *model, struct td_error *err)
{
	struct td__openai_reader r;
	json_t *root = NULL;
	int rc = begin(&r, q, model, err);

	q->chat = chat;
	if (!rc)
		rc = parse(&r, body, n, &root);
	if (!rc)
		rc = take_fields(&r, chat ? CHAT : TEXT, root);
	if (!rc && chat && (q->g->input_case != TANDEM__GENERATE__INPUT_CHAT || !q->g->chat->n_message))
		rc = td__openai_fail(&r, "messages", TD_E_INVALID, "you must provide messages");
	if (!rc && !chat && !q->n_prompts)
		rc = td__openai_fail(&r, "prompt", TD_E_INVALID, "you must provide a prompt");
	if (!rc && chat) {
		q->n_prompts = 1;
		rc = td__openai_put_tools(&r);
	}
	if (!rc)
		rc = put_together(&r);
	json_decref(root);
	return rc;
}

int td_openai_read_tokenize(struct td_openai_request *q, const char *body, size_t n, const char *model, Tandem__Tokenize **t, int *strings, struct td_error *err)
{
	struct td__openai_reader r;
	json_t *root = NULL;
	int rc = begin(&r, q, model, err);

	*t = NULL;
	q->chat = 1;
	if (!rc && !(r.t = malloc(sizeof(*r.t))))
		rc = td__openai_nomem(&r);
	if (!rc) {
		tandem__tokenize__init(r.t);
		*t = r.t;
		rc = parse(&r, body, n, &root);
	}
	if (!rc)
		rc = take_fields(&r, TOKENIZE, root);
	if (!rc && q->g->input_case == TANDEM__GENERATE__INPUT_CHAT && q->g->chat->n_message) {
		rc = r.t->input_case ? td__openai_fail(&r, "messages", TD_E_INVALID, "give a prompt or messages, not both") : td__openai_put_tools(&r);
		if (!rc) {
			r.t->input_case = TANDEM__TOKENIZE__INPUT_CHAT;
			r.t->chat = q->g->chat;
			q->g->chat = NULL;
			q->g->input_case = TANDEM__GENERATE__INPUT__NOT_SET;
		}
	} else if (!rc && !r.t->input_case) {
		rc = td__openai_fail(&r, "prompt", TD_E_INVALID, "give a prompt (or content), or messages");
	}
	*strings = r.strings;
	json_decref(root);
	return rc;
}

int td_openai_read_detokenize(struct td_openai_request *q, const char *body, size_t n, const char *model, struct td_ids *ids, struct td_error *err)
{
	struct td__openai_reader r;
	json_t *root = NULL;
	int rc = begin(&r, q, model, err);

	r.ids = ids;
	if (!rc)
		rc = parse(&r, body, n, &root);
	if (!rc)
		rc = take_fields(&r, DETOKENIZE, root);
	if (!rc && !ids->id)
		rc = td__openai_fail(&r, "tokens", TD_E_INVALID, "give tokens");
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
