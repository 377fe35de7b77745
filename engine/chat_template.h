/*
 * chat_template.h: the Qwen3.5 chat template in C: messages to the prompt text (rules: qwen35 5.4, i.e. chat_template.jinja of Qwen3.5-4B).
 *
 * The rendered text is encoded with parse_added = 1, as the reference does: an added token written inside a content counts as that token.
 */
#ifndef TD_CHAT_TEMPLATE_H
#define TD_CHAT_TEMPLATE_H

#include <stddef.h>

#include "engine/error.h"

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

/* malloc'd, NUL-terminated text of the prompt; TD_E_INVALID with a sentence for what the template refuses. */
int td_chat_render(const struct td_chat *chat, char **text, size_t *n, struct td_error *err);

#endif
