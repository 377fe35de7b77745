/*
 * answer.h: what a chat model writes, taken apart: thinking, content, calls of tools.
 *
 * Text is pushed in as it comes, in pieces of any size, and comes out through callbacks as early as it can be known what it is: what may become a
 * tag is held back, and given out as text when it does not. The result does not depend on how the text was cut into pieces.
 *   thinking   up to </think>, when the prompt opened it (or the answer itself begins with <think>)
 *   content    the rest, without the empty lines around it where a tag stands next
 *   call       <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>, when the chat has tools
 * A call that is not of that form, or broken off before its name, comes out as content: nothing is lost. One that is broken off later gives the parameters
 * that are whole, as JSON without its end, so that nobody takes it for complete.
 */
#ifndef TD_ANSWER_H
#define TD_ANSWER_H

#include <jansson.h>
#include <stddef.h>

#include "engine/text.h"

struct td_answer_out {
	void *ctx;
	void (*thinking)(void *ctx, const char *s, size_t n);
	void (*content)(void *ctx, const char *s, size_t n);
	void (*call)(void *ctx, int index, const char *name, size_t n); /* a call begins */
	void (*arguments)(void *ctx, int index, const char *json, size_t n);
};

enum td_answer_at { TD_ANSWER_THINKING, TD_ANSWER_CONTENT, TD_ANSWER_CALL };

struct td_answer {
	struct td_answer_out out;
	const json_t *tools; /* array in OpenAI's form, or NULL: calls are text. Lent */
	enum td_answer_at at;
	int begun; /* something of this part came out */
	int told; /* something of the answer came out */
	int named; /* CALL: its name came out */
	int calls;
	struct td__text held; /* what is not decided yet; of a call: all of it */
	size_t front; /* CALL, not named: bytes of held up to the tag's end */
	size_t looked; /* CALL: bytes of it searched for the end */
};

void td_answer_init(struct td_answer *a, int thinking, const json_t *tools, const struct td_answer_out *out);
void td_answer_push(struct td_answer *a, const char *s, size_t n);
void td_answer_end(struct td_answer *a); /* no more text */
void td_answer_finish(struct td_answer *a);
static inline int td_answer_failed(const struct td_answer *a) /* no memory: what came out lacks something */
{
	return a->held.failed;
}

#endif
