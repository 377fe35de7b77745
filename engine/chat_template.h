/*
 * chat_template.h: the Qwen3.5 chat template in C: messages to the prompt text (rules: qwen35 5.4, i.e. chat_template.jinja of Qwen3.5-4B).
 *
 * The reference encodes the whole text alike, so that "<|im_end|>" written by a user ends the user's turn. Here the text says which of it was given by
 * the request, so that an encoder can leave what looks like a control token there as text (td_encode_guarded).
 */
#ifndef TD_CHAT_TEMPLATE_H
#define TD_CHAT_TEMPLATE_H

#include <stddef.h>

#include "engine/error.h"
#include "engine/tokenizer.h"

struct td_chat_call {
	const char *name;
	const char *arguments; /* JSON object */
};
struct td_chat_message {
	const char *role; /* system, user, assistant, tool */
	const char *content; /* NULL = empty */
	const char *reasoning; /* reasoning_content, NULL = absent */
	const struct td_chat_call *call;
	int n_calls;
};
struct td_chat {
	const struct td_chat_message *message;
	int n_messages;
	const char *const *tool; /* JSON objects, OpenAI's form {"type": "function", "function": {...}} */
	int n_tools;
	int add_generation_prompt;
	int enable_thinking; /* -1 = not said: the model's default, which is on for 4B and up (off for 0.8B and 2B: `thinking_default`) */
	int thinking_default;
};

/* malloc'd, NUL-terminated text of the prompt; TD_E_INVALID with a sentence for what the template refuses. `ranges` (may be NULL; else the caller's to
 * finish, also after an error) is filled with the ranges that the request's own words take: contents, thinking, tools, names and arguments of calls. */
int td_chat_render(const struct td_chat *chat, char **text, size_t *n, struct td_spans *ranges, struct td_error *err);
/* 1 when the template makes nothing of this content: NULL, empty, white space. */
int td_chat_blank(const char *content);

#endif
