/*
 * token_mask.h: which tokens may come next: the vocabulary's bytes, sorted into tries, walked by a grammar's machine.
 *
 * tandemd writes the bytes of all tokens into a memfd once (td_vocab_make: sealed, read-only); the worker maps it and sorts it when it starts. A token
 * that no grammar may give (control tokens, ids without bytes) has none there. A mask is found by walking the tries with the state, so that what
 * tokens begin with alike is walked once and what is forbidden is cut with all that follows it; inside a JSON string, and in free text, tokens of
 * nothing but ordinary characters need no walk. Masks are kept by state, the least recently used one goes.
 *
 * A grammar with very many ways to read the same text makes a walk dear: of some patterns minutes, in which nobody would be served. So a walk has a
 * bound (TD_TOKEN_MASK_WORK), counted and not timed, so that it is the same everywhere; past it there is no mask.
 *
 * Memory is taken by td_token_mask_create alone. One thread.
 */
#ifndef TD_TOKEN_MASK_H
#define TD_TOKEN_MASK_H

#include "engine/grammar.h"
#include "engine/tokenizer.h"

/* A sealed memfd with the bytes of ids [0, n_ids). */
int td_vocab_make(const struct td_tokenizer *t, int n_ids, int *fd, struct td_error *err);

struct td_token_mask;

/* `words`: uint32 of a mask (TD_MASK_WORDS of the logits' columns). fd is only read here; its contents are checked. */
int td_token_mask_create(int fd, int words, struct td_token_mask **m, struct td_error *err);
void td_token_mask_destroy(struct td_token_mask *m);
struct td_gwalk *td_token_mask_walk(struct td_token_mask *m); /* to make and advance states with */
/* Bytes of a token; NULL for one that no grammar gives. */
const uint8_t *td_token_mask_bytes(const struct td_token_mask *m, int id, size_t *n);
enum { TD_TOKEN_MASK_WORK = 1 << 26 }; /* about 0.1 s; an address's pattern takes 2^22 with 248,320 tokens */
/* The mask of a set in the walk: lent, until the next call. NULL: finding it takes more work than it may. */
const uint32_t *td_token_mask_of(struct td_token_mask *m, struct td_gset set);
struct td_token_mask_counts {
	uint64_t asked, walked, given_up, us; /* masks asked for, of these not kept, of these given up, time in walks */
};
struct td_token_mask_counts td_token_mask_counts(const struct td_token_mask *m);

#endif
