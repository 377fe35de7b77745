/*
 * openai_impl.h: what openai_in.c and openai_chat.c share: the reader of one request. Internal to these two.
 *
 * A take function gets a field's value, which is not null, and puts it where it belongs; 0, or an error that names the field.
 */
#ifndef TD_OPENAI_IMPL_H
#define TD_OPENAI_IMPL_H

#include "daemon/http/openai.h"

struct td__openai_reader {
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

int td__openai_fail(struct td__openai_reader *r, const char *param, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int td__openai_wrong(struct td__openai_reader *r, const char *key, const char *want); /* "KEY must be WANT" */
int td__openai_nomem(struct td__openai_reader *r);
int td__openai_take_bool(struct td__openai_reader *r, const char *key, const json_t *v, int *out);
int td__openai_copy(struct td__openai_reader *r, const json_t *v, char **out); /* a string's */

/* ---- openai_chat.c ----------------------------------------------------------------------------------------------------------------- */

int td__openai_take_messages(struct td__openai_reader *r, const char *key, const json_t *v);
int td__openai_take_template_kwargs(struct td__openai_reader *r, const char *key, const json_t *v);
int td__openai_take_effort(struct td__openai_reader *r, const char *key, const json_t *v);
int td__openai_take_tools(struct td__openai_reader *r, const char *key, const json_t *v);
int td__openai_take_tool_choice(struct td__openai_reader *r, const char *key, const json_t *v);
int td__openai_take_response_format(struct td__openai_reader *r, const char *key, const json_t *v);
int td__openai_put_tools(struct td__openai_reader *r); /* once all fields are known: tools into the chat, tool_choice into the constraint */

#endif
