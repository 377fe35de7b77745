/*
 * draft_list.h: the ids that drafts are chosen from, when they are not all: a text file, and what is always among them.
 *
 * The file: the line "tandem-draft-vocabulary 1", then one id in decimal on each line. Empty lines and lines that begin with # are passed over. The order
 * means nothing here; who counted ids writes the most frequent first, so that a shorter list is the beginning of a longer one.
 */
#ifndef TD_DRAFT_LIST_H
#define TD_DRAFT_LIST_H

#include "engine/tokenizer.h"

enum { TD_DRAFT_LIST_LEAST = 64 }; /* ids of a file: fewer are no list but a mistake */

struct td_draft_list { /* zeroed: all ids */
	int32_t *id; /* ascending, malloc'd */
	int n;
	int listed; /* of these: in the file */
};

/* Beside the file's ids: added tokens, tokens of one byte, and `end`, so that no list can keep an answer's end or a tool call from being drafted. Ids must
 * be below vocab_real. TD_E_FORMAT names the line, TD_E_MISMATCH an id that the model does not have. */
int td_draft_list_read(const char *path, const struct td_tokenizer *t, int vocab_real, const int *end, int n_end, struct td_draft_list *list, struct td_error *err);
void td_draft_list_finish(struct td_draft_list *list);

#endif
