/*
 * suite.h: what programs that send prompts through a pair (pair.h) take from their command line: the models, the device, forms, prompts.
 */
#ifndef TD_TESTS_SUITE_H
#define TD_TESTS_SUITE_H

#include "tests/lib/pair.h"
#include "tests/lib/prompts.h"

enum { SUITE_FILES = 16 };

struct suite {
	struct pair_options o; /* its form: what `weights`, `head` and `activations` say */
	struct td_tokenizer *tok;
	const char *tokenizer, *weights, *head; /* file | bf16; int4 | bf16 | rescored */
	const char *activations; /* bf16 | int8, or int8 in one of both: target | drafter */
	const char *kl; /* form_check: the largest mean divergence of a file that is let pass; NULL: any */
	int limit, tokens; /* prompts of a file, 0 = all; tokens of an answer */
	int n_files;
	const char *file[SUITE_FILES]; /* NULL: our own prompts */
};

/* --device, --target, --drafter, --tokenizer, --weights, --head, --activations, --kl, --limit, --tokens; other words are files of prompts. What neither the caller nor the words
 * say is the tiny pair on the CPU and our own prompts. Loads the tokenizer; exits with a message on failure. */
void suite_open(struct suite *s, int argc, char **argv);
/* Calls back for each file, with its prompts and what to call it. */
void suite_each(const struct suite *s, void (*run)(void *ctx, const char *name, const struct prompts *p), void *ctx);
void suite_close(struct suite *s);

#endif
