/*
 * openai.h: OpenAI's JSON, in and out. Pure functions of their arguments: nothing here knows a connection.
 *
 * The request becomes the same Generate message that libtandem sends, so that request.c checks every value in one place; here it is only checked that a value
 * has a type which the message can hold. Fields that are neither known nor without effect are refused, as OpenAI does, and so is a name given twice:
 * a typing error must not pass for a default.
 */
#ifndef TD_OPENAI_H
#define TD_OPENAI_H

#include <jansson.h>
#include <stdint.h>

#include "engine/error.h"
#include "engine/text.h"
#include "engine/tokenizer.h"
#include "tandem.pb-c.h"

struct td_commitlog;

enum { TD_OPENAI_CHOICES_MAX = 16, TD_OPENAI_DEPTH_MAX = 64, TD_OPENAI_VALUES_MAX = 500000 };

struct td_openai_prompt {
	char *text; /* or, when NULL: */
	Tandem__TokenIds *ids;
};

struct td_openai_request {
	int chat;
	int stream, include_usage;
	int n; /* choices per prompt */
	int logprobs; /* the answer tells them */
	Tandem__Generate *g; /* without its input when it is not a chat */
	struct td_openai_prompt *prompt; /* not a chat: (n_prompts) */
	size_t n_prompts; /* of a chat: 1 */
	json_t *tools; /* array, or NULL: none, or not to be called */
	/* of a refusal */
	char param[64];
	const char *code; /* "model_not_found", or NULL */
};

/* Reads a body; `model`: the name served. Finish it in any case. */
int td_openai_read(struct td_openai_request *q, int chat, const char *body, size_t n, const char *model, struct td_error *err);
/* A body of /tokenize: text or chat in *t, for the caller to free; *strings: return_token_strs. */
int td_openai_read_tokenize(struct td_openai_request *q, const char *body, size_t n, const char *model, Tandem__Tokenize **t, int *strings, struct td_error *err);
/* A body of /detokenize: malloc'd ids. */
int td_openai_read_detokenize(struct td_openai_request *q, const char *body, size_t n, const char *model, struct td_ids *ids, struct td_error *err);
void td_openai_finish(struct td_openai_request *q);

/* ---- openai_out.c ------------------------------------------------------------------------------------------------------------------ */

/* {"error": ...}; param: NULL: taken from the sentence if it begins with the name of one. */
void td_openai_error(struct td__text *t, int status, const struct td_error *e, const char *param, const char *code);
struct td_openai_usage {
	uint64_t prompt, output, reasoning, cached;
	uint64_t cycles, drafted, accepted, queue_us, prefill_us, decode_us, gpu_us, wasted_us, seed, restarts;
};
void td_openai_usage_add(struct td_openai_usage *u, const Tandem__Usage *x, int with_prompt, uint64_t reasoning);
void td_openai_usage(struct td__text *t, const struct td_openai_usage *u);
/* The elements of a chat's logprobs.content, with commas between (and before, unless `first`). */
void td_openai_logprobs(struct td__text *t, const struct td_tokenizer *tok, const struct td_commitlog *log, int from, int n, int first);
/* The same for /v1/completions: its four arrays' elements. */
struct td_openai_columns {
	struct td__text tokens, logprobs, top, offsets;
	size_t offset; /* characters so far */
};
void td_openai_columns_add(struct td_openai_columns *c, const struct td_tokenizer *tok, const struct td_commitlog *log, int from, int n);
void td_openai_columns_put(struct td__text *t, struct td_openai_columns *c); /* as an object; empties it */
void td_openai_columns_finish(struct td_openai_columns *c);

#endif
