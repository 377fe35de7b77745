/*
 * split.h: cutting a text into the pieces that BPE works on, by a tokenizer.json's split pattern (behaviour Isolated). Internal to engine/.
 *
 * The pattern is compiled once and shared by all threads; what a match needs lives in struct td__split_work, one per caller.
 */
#ifndef TD_SPLIT_H
#define TD_SPLIT_H

#include <stddef.h>

#include "engine/error.h"

struct td__split;

/* `jit` 0: interpret the pattern even where PCRE2 could compile it to machine code. */
int td__split_create(const char *pattern, size_t n, int jit, struct td__split **split, struct td_error *err);
void td__split_destroy(struct td__split *split);

struct td__split_work {
	void *match; /* pcre2_match_data */
	void *context; /* pcre2_match_context */
	void *stack; /* pcre2_jit_stack, made when the small one proved too small */
	int interpret; /* machine code ran out of even that stack: the rest of this work is interpreted */
};
int td__split_work_init(struct td__split_work *w, const struct td__split *split, struct td_error *err);
void td__split_work_finish(struct td__split_work *w);

/* Goes through one text. Start with {.split, .work, .text, .n} and the rest zero. */
struct td__split_walk {
	const struct td__split *split; /* NULL: the text is one piece */
	struct td__split_work *work;
	const char *text; /* valid UTF-8 */
	size_t n;
	size_t from, given; /* where to search on; end of the last piece */
	size_t next, next_end; /* a match that waits for the gap before it to be given */
	int waiting, matched, done;
	size_t last_end; /* end of the last match, if `matched` */
};
/* 1: *start and *end are the next piece (never empty); 0: no more; negative: error. */
int td__split_next(struct td__split_walk *walk, size_t *start, size_t *end, struct td_error *err);

#endif
