/*
 * prompts.h: our own prompts for tests, and prompt files (JSON arrays of strings) for longer runs.
 */
#ifndef TD_TESTS_PROMPTS_H
#define TD_TESTS_PROMPTS_H

#include "engine/tokenizer.h"

struct prompts {
	int n;
	struct td_ids *ids; /* (n): each rendered by the chat template without thinking, encoded */
};

/* file NULL: the built-in ones. At most `limit` (0 = all). Exits with a message on failure. */
void prompts_load(struct prompts *p, const struct td_tokenizer *tok, const char *file, int limit);
/* One prompt of about n tokens, for prefill: built-in texts repeated with numbers between them. */
void prompts_long(struct td_ids *ids, const struct td_tokenizer *tok, int n);
void prompts_finish(struct prompts *p);

#endif
