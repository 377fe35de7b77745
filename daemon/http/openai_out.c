/*
 * openai_out.c: the JSON of answers that more than one kind of answer has: errors, usage, log-probabilities.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/http/openai.h"
#include "engine/utf8.h"

/* ---- errors ------------------------------------------------------------------------------------------------------------------------ */

static const char *type_of(int status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 403:
		return "permission_error";
	case 404:
		return "not_found_error";
	case 429:
		return "rate_limit_error";
	}
	return status < 500 ? "invalid_request_error" : "server_error";
}

/* request.c begins its sentences with the name of what is wrong, or has it early. */
static const char *param_of(const char *text, char *param, size_t size)
{
	static const char *const known[] = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logprobs",
					    "logit_bias", "stop_token_ids", "max_tokens", "draft_tokens", "deadline_ms", "messages", "tools", "prompt"};
	size_t n = strcspn(text, " [:.,");

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (strlen(known[i]) == n && !memcmp(text, known[i], n)) {
			snprintf(param, size, "%s", known[i]);
			return param;
		}
	return !strncmp(text, "stop string", 11) ? "stop" : !strncmp(text, "the prompt", 10) ? "messages" : NULL;
}

void td_openai_error(struct td__text *t, int status, const struct td_error *e, const char *param, const char *code)
{
	char name[64];

	if (!param && status == 400)
		param = param_of(e->text, name, sizeof(name));
	if (!code)
		code = e->code == TD_E_CONTEXT ? "context_length_exceeded" : td_error_name(e->code);
	td__text_puts(t, "{\"error\": {\"message\": ");
	td_json_string(t, e->text, strlen(e->text));
	td_json_format(t, ", \"type\": \"%s\", \"param\": ", type_of(status));
	if (param && *param)
		td_json_string(t, param, strlen(param));
	else
		td__text_puts(t, "null");
	td_json_format(t, ", \"code\": \"%s\"}}", code);
}

/* ---- usage ------------------------------------------------------------------------------------------------------------------------- */

void td_openai_usage_add(struct td_openai_usage *u, const Tandem__Usage *x, int with_prompt, uint64_t reasoning)
{
	u->prompt += with_prompt ? x->prompt_tokens : 0;
	u->cached += with_prompt ? x->cached_tokens : 0;
	u->output += x->output_tokens;
	u->reasoning += reasoning;
	u->cycles += x->cycles;
	u->drafted += x->drafted;
	u->accepted += x->accepted;
	u->queue_us += x->queue_us;
	u->prefill_us += x->prefill_us;
	u->decode_us += x->decode_us;
	u->gpu_us += x->gpu_us;
	u->wasted_us += x->wasted_us;
	u->restarts += x->restarts;
	if (with_prompt)
		u->seed = x->seed;
}

void td_openai_usage(struct td__text *t, const struct td_openai_usage *u)
{
#define N(field) (unsigned long long)u->field
	td_json_format(t,
		       "{\"prompt_tokens\": %llu, \"completion_tokens\": %llu, \"total_tokens\": %llu, \"prompt_tokens_details\": {\"cached_tokens\": %llu}, "
		       "\"completion_tokens_details\": {\"reasoning_tokens\": %llu, \"accepted_prediction_tokens\": 0, \"rejected_prediction_tokens\": 0}, ",
		       N(prompt), N(output), N(prompt) + N(output), N(cached), N(reasoning));
	td_json_format(t,
		       "\"tandem\": {\"cycles\": %llu, \"drafted\": %llu, \"accepted\": %llu, \"queue_us\": %llu, \"prefill_us\": %llu, \"decode_us\": %llu, "
		       "\"gpu_us\": %llu, \"wasted_us\": %llu, \"restarts\": %llu, \"seed\": %lld}}",
		       N(cycles), N(drafted), N(accepted), N(queue_us), N(prefill_us), N(decode_us), N(gpu_us), N(wasted_us), N(restarts), (long long)u->seed);
#undef N
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------------------------- */

static void put_token(struct td__text *t, const struct td_tokenizer *tok, int32_t id, float logprob)
{
	size_t n = 0;
	const char *bytes = td_token_bytes(tok, id, &n);

	td__text_puts(t, "{\"token\": ");
	td_json_string(t, bytes ? bytes : "", n);
	td_json_format(t, ", \"logprob\": %.6g, \"bytes\": [", (double)(logprob < -9999 ? -9999 : logprob));
	for (size_t i = 0; i < n; i++)
		td_json_format(t, "%s%u", i ? ", " : "", (unsigned)(unsigned char)bytes[i]);
	td__text_puts(t, "]");
}

void td_openai_logprobs(struct td__text *t, const struct td_tokenizer *tok, const struct td_commitlog *log, int from, int n, int first)
{
	for (int i = from; i < from + n; i++) {
		if (!first)
			td__text_puts(t, ", ");
		first = 0;
		put_token(t, tok, log->ids[log->n_prompt + i], log->logprob[i]);
		td__text_puts(t, ", \"top_logprobs\": [");
		for (int j = 0; j < log->n_top; j++) {
			size_t at = (size_t)i * (size_t)log->n_top + (size_t)j;

			if (log->top_id[at] < 0)
				break;
			if (j)
				td__text_puts(t, ", ");
			put_token(t, tok, log->top_id[at], log->top_logprob[at]);
			td__text_puts(t, "}");
		}
		td__text_puts(t, "]}");
	}
}

/* A token as /v1/completions writes it: its text, or its bytes when they are no text by themselves. */
static size_t put_name(struct td__text *t, const struct td_tokenizer *tok, int32_t id)
{
	size_t n = 0, characters = 0;
	const char *bytes = td_token_bytes(tok, id, &n);

	for (size_t i = 0; i < n; i++)
		characters += ((unsigned char)bytes[i] & 0xc0) != 0x80;
	if (td_utf8_span((const uint8_t *)bytes, n) == n) {
		td_json_string(t, bytes ? bytes : "", n);
		return characters;
	}
	td__text_puts(t, "\"bytes:");
	for (size_t i = 0; i < n; i++)
		td_json_format(t, "\\\\x%02x", (unsigned)(unsigned char)bytes[i]);
	td__text_puts(t, "\"");
	return characters;
}

void td_openai_columns_add(struct td_openai_columns *c, const struct td_tokenizer *tok, const struct td_commitlog *log, int from, int n)
{
	for (int i = from; i < from + n; i++) {
		const char *comma = c->tokens.n ? ", " : "";

		td_json_format(&c->offsets, "%s%zu", comma, c->offset);
		td__text_puts(&c->tokens, comma);
		c->offset += put_name(&c->tokens, tok, log->ids[log->n_prompt + i]);
		td_json_format(&c->logprobs, "%s%.6g", comma, (double)log->logprob[i]);
		td_json_format(&c->top, "%s{", comma);
		for (int j = 0; j < log->n_top; j++) {
			size_t at = (size_t)i * (size_t)log->n_top + (size_t)j;

			if (log->top_id[at] < 0)
				break;
			if (j)
				td__text_puts(&c->top, ", ");
			put_name(&c->top, tok, log->top_id[at]);
			td_json_format(&c->top, ": %.6g", (double)log->top_logprob[at]);
		}
		td__text_puts(&c->top, "}");
	}
}

void td_openai_columns_put(struct td__text *t, struct td_openai_columns *c)
{
	struct {
		const char *name;
		struct td__text *text;
	} each[] = {{"{\"tokens\": [", &c->tokens}, {"], \"token_logprobs\": [", &c->logprobs}, {"], \"top_logprobs\": [", &c->top}, {"], \"text_offset\": [", &c->offsets}};

	for (size_t i = 0; i < sizeof(each) / sizeof(*each); i++) {
		td__text_puts(t, each[i].name);
		td__text_add(t, each[i].text->s ? each[i].text->s : "", each[i].text->n);
		t->failed |= each[i].text->failed;
		each[i].text->n = 0;
	}
	td__text_puts(t, "]}");
}

void td_openai_columns_finish(struct td_openai_columns *c)
{
	td__text_finish(&c->tokens);
	td__text_finish(&c->logprobs);
	td__text_finish(&c->top);
	td__text_finish(&c->offsets);
}
