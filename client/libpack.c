/*
 * libpack.c: a request as the caller describes it, packed into one frame.
 *
 * The protobuf structures live in a pool that is thrown away as soon as the frame is made; they only point at the caller's strings. What the
 * daemon would have to refuse as a broken message (not UTF-8, no prompt) is refused here with a sentence; values are the daemon's to judge.
 */
#include "client/libtandem.h"

#include <stdlib.h>
#include <string.h>

#include "engine/utf8.h"

struct block {
	struct block *next;
	_Alignas(16) char data[];
};

struct pool {
	struct block *first;
	struct td_error *err; /* of the call in hand; code set = failed */
};

static void *take(struct pool *p, size_t n)
{
	struct block *b = calloc(1, sizeof(*b) + n);

	if (!b) {
		td_error_set(p->err, TD_E_NOMEM, "no memory for a request");
		return NULL;
	}
	b->next = p->first;
	p->first = b;
	return b->data;
}

static void drop(struct pool *p)
{
	while (p->first) {
		struct block *next = p->first->next;

		free(p->first);
		p->first = next;
	}
}

/* The same string, after a check; protobuf-c wants it without const. */
static char *text(struct pool *p, const char *s, const char *what)
{
	if (s && td_utf8_span((const uint8_t *)s, strlen(s)) != strlen(s))
		td_error_set(p->err, TD_E_INVALID, "%s is not valid UTF-8", what);
	return (char *)s;
}

static int message(struct pool *p, const struct tandem_message *in, Tandem__ChatMessage *out)
{
	size_t i;

	tandem__chat_message__init(out);
	if (!in->role)
		return td_error_set(p->err, TD_E_INVALID, "a message has no role");
	out->role = text(p, in->role, "a message's role");
	out->content = text(p, in->content, "a message's content");
	out->reasoning_content = text(p, in->reasoning, "a message's reasoning");
	out->tool_call_id = text(p, in->tool_call_id, "a tool call's id");
	if (!in->n_calls)
		return p->err->code;
	out->tool_call = take(p, in->n_calls * sizeof(*out->tool_call));
	for (i = 0; !p->err->code && i < in->n_calls; i++) {
		Tandem__ToolCall *call = take(p, sizeof(*call));

		if (!call)
			break;
		if (!in->call[i].name || !in->call[i].arguments)
			return td_error_set(p->err, TD_E_INVALID, "a tool call has no name or no arguments");
		tandem__tool_call__init(call);
		call->name = text(p, in->call[i].name, "a tool's name");
		call->arguments = text(p, in->call[i].arguments, "a tool call's arguments");
		call->id = text(p, in->call[i].id, "a tool call's id");
		out->tool_call[i] = call;
		out->n_tool_call++;
	}
	return p->err->code;
}

static Tandem__Chat *chat(struct pool *p, const struct tandem_prompt *in)
{
	Tandem__Chat *out = take(p, sizeof(*out));
	size_t i;

	if (!out)
		return NULL;
	tandem__chat__init(out);
	out->message = take(p, in->n_messages * sizeof(*out->message));
	out->tool = take(p, in->n_tools * sizeof(*out->tool));
	for (i = 0; !p->err->code && i < in->n_messages; i++) {
		out->message[i] = take(p, sizeof(**out->message));
		if (out->message[i] && !message(p, in->message + i, out->message[i]))
			out->n_message++;
	}
	for (i = 0; !p->err->code && i < in->n_tools; i++)
		out->tool[out->n_tool++] = text(p, in->tool[i], "a tool");
	out->has_enable_thinking = in->thinking != TANDEM_THINK_DEFAULT;
	out->enable_thinking = in->thinking == TANDEM_THINK_ON;
	return out;
}

static int one_prompt(const struct tandem_prompt *p, int ids_too, struct td_error *err)
{
	int n = !!p->text + !!p->message + !!p->id;

	if (n != 1 || (p->id && !ids_too))
		return td_error_set(err, TD_E_INVALID, ids_too ? "a prompt must be one of text, messages and token ids" : "give one of text and messages");
	return 0;
}

#define SET(flag, field) \
	if (in->set & (flag)) { \
		out->has_##field = 1; \
		out->field = in->field; \
	}

static Tandem__Sampling *sampling(struct pool *p, const struct tandem_sampling *in)
{
	Tandem__Sampling *out = take(p, sizeof(*out));
	size_t i;

	if (!out)
		return NULL;
	tandem__sampling__init(out);
	SET(TANDEM_TEMPERATURE, temperature)
	SET(TANDEM_TOP_K, top_k)
	SET(TANDEM_TOP_P, top_p)
	SET(TANDEM_MIN_P, min_p)
	SET(TANDEM_REPETITION_PENALTY, repetition_penalty)
	SET(TANDEM_PRESENCE_PENALTY, presence_penalty)
	SET(TANDEM_FREQUENCY_PENALTY, frequency_penalty)
	SET(TANDEM_SEED, seed)
	SET(TANDEM_LOGPROBS, logprobs)
	SET(TANDEM_IGNORE_EOS, ignore_eos)
	SET(TANDEM_MAX_TOKENS, max_tokens)
	SET(TANDEM_DRAFT_TOKENS, draft_tokens)
	out->logit_bias = take(p, in->n_bias * sizeof(*out->logit_bias));
	for (i = 0; !p->err->code && i < in->n_bias; i++) {
		Tandem__LogitBias *b = take(p, sizeof(*b));

		if (!b)
			break;
		tandem__logit_bias__init(b);
		b->id = in->bias[i].id;
		b->bias = in->bias[i].bias;
		out->logit_bias[out->n_logit_bias++] = b;
	}
	out->stop = take(p, in->n_stop * sizeof(*out->stop));
	for (i = 0; !p->err->code && i < in->n_stop; i++)
		out->stop[out->n_stop++] = text(p, in->stop[i], "a stop string");
	out->stop_token_ids = (int32_t *)in->stop_id;
	out->n_stop_token_ids = in->n_stop_id;
	return out;
}

/* The frame, unless the pool's call went wrong; the pool is gone in both cases. */
static uint8_t *pack(struct pool *p, uint64_t tag, Tandem__ClientMessage *msg, size_t *n)
{
	uint8_t *frame = NULL;

	msg->tag = tag;
	if (!p->err->code) {
		frame = td_client_message_pack(msg, n);
		if (!frame)
			td_error_set(p->err, TD_E_NOMEM, "no memory for a request");
	}
	drop(p);
	return frame;
}

static Tandem__Constraint *constraint(struct pool *p, const struct tandem_request *r)
{
	Tandem__Constraint *c;

	if (!r->json_object && !r->json_schema && !r->tool_choice)
		return NULL;
	if ((r->json_object != 0) + (r->json_schema != NULL) + (r->tool_choice != NULL) > 1) {
		td_error_set(p->err, TD_E_INVALID, "a request has more than one of json_object, json_schema and tool_choice");
		return NULL;
	}
	c = take(p, sizeof(*c));
	if (!c)
		return NULL;
	tandem__constraint__init(c);
	c->kind_case = r->json_object ? TANDEM__CONSTRAINT__KIND_JSON_OBJECT : r->json_schema ? TANDEM__CONSTRAINT__KIND_JSON_SCHEMA : TANDEM__CONSTRAINT__KIND_TOOL_CHOICE;
	if (r->json_object)
		c->json_object = 1;
	else if (r->json_schema)
		c->json_schema = text(p, r->json_schema, "the JSON schema");
	else
		c->tool_choice = text(p, r->tool_choice, "tool_choice");
	return c;
}

uint8_t *td__pack_generate(uint64_t tag, const struct tandem_request *r, size_t *n, struct td_error *err)
{
	Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Generate g = TANDEM__GENERATE__INIT;
	Tandem__TokenIds ids = TANDEM__TOKEN_IDS__INIT;
	struct pool p = {.err = err};

	if (one_prompt(&r->prompt, 1, err))
		return NULL;
	if (r->prompt.text) {
		g.input_case = TANDEM__GENERATE__INPUT_TEXT;
		g.text = text(&p, r->prompt.text, "the prompt");
	} else if (r->prompt.message) {
		g.input_case = TANDEM__GENERATE__INPUT_CHAT;
		g.chat = chat(&p, &r->prompt);
	} else {
		ids.id = (int32_t *)r->prompt.id;
		ids.n_id = r->prompt.n_ids;
		g.input_case = TANDEM__GENERATE__INPUT_TOKENS;
		g.tokens = &ids;
	}
	g.sampling = sampling(&p, &r->sampling);
	g.has_stream = 1;
	g.stream = !r->whole;
	g.has_deadline_ms = r->deadline_ms > 0;
	g.deadline_ms = r->deadline_ms;
	g.has_band = r->band != TANDEM_BAND_DEFAULT;
	g.band = r->band == TANDEM_BATCH ? TANDEM__BAND__BATCH : TANDEM__BAND__INTERACTIVE;
	g.has_cache = r->no_cache != 0;
	g.cache = !r->no_cache;
	g.constraint = constraint(&p, r);
	msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_GENERATE;
	msg.generate = &g;
	return pack(&p, tag, &msg, n);
}

uint8_t *td__pack_tokenize(uint64_t tag, const struct tandem_prompt *prompt, size_t *n, struct td_error *err)
{
	Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Tokenize ask = TANDEM__TOKENIZE__INIT;
	struct pool p = {.err = err};

	if (one_prompt(prompt, 0, err))
		return NULL;
	if (prompt->text) {
		ask.input_case = TANDEM__TOKENIZE__INPUT_TEXT;
		ask.text = text(&p, prompt->text, "the text");
	} else {
		ask.input_case = TANDEM__TOKENIZE__INPUT_CHAT;
		ask.chat = chat(&p, prompt);
	}
	msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_TOKENIZE;
	msg.tokenize = &ask;
	return pack(&p, tag, &msg, n);
}
