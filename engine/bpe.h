/*
 * bpe.h: token table and byte-pair merging. Internal to engine/.
 *
 * struct td__vocab knows each id's bytes; struct td__bpe knows which two ids merge into which third, and in which order. Both are filled once at
 * load and then only read; td__bpe_piece needs working memory of its own per caller.
 */
#ifndef TD_BPE_H
#define TD_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"
#include "engine/tokenizer.h"

/* UNMAPPED: its text is not in the byte alphabet, so it is decoded but never encoded to. */
enum { TD__TOKEN_ADDED = 1, TD__TOKEN_SPECIAL = 2, TD__TOKEN_UNMAPPED = 4 };

struct td__token {
	char *bytes; /* malloc'd, NUL-terminated; NULL for an id that nobody uses */
	uint32_t n;
	uint32_t flags;
};

struct td__merge {
	int32_t left, right; /* left -1: free slot */
	uint32_t rank;
	int32_t made;
};

struct td__bpe {
	struct td__token *token; /* by id */
	int n_tokens; /* highest id + 1 */
	struct td__merge *merge; /* open addressing */
	uint32_t merge_mask;
	int32_t *whole; /* open addressing by bytes: tokens that their own bytes encode to, -1 free */
	uint32_t whole_mask;
	int32_t byte_id[256]; /* -1: none */
};

int td__bpe_reserve(struct td__bpe *b, size_t n_merges, struct td_error *err); /* before the first merge */
void td__bpe_merge_set(struct td__bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t made); /* a pair given again takes the later rank */
/* After tokens, bytes and merges are set: finds the tokens that can be given for a piece without merging. `ignore_merges`: all of the model's. */
int td__bpe_index(struct td__bpe *b, int ignore_merges, struct td_error *err);
void td__bpe_finish(struct td__bpe *b);

struct td__bpe_symbol {
	int32_t id; /* -1: merged away */
	int32_t prev, next;
};
struct td__bpe_pair {
	uint32_t rank;
	int32_t at, left, right;
};
/* Reused from piece to piece; zeroed memory is a fresh one. */
struct td__bpe_work {
	struct td__bpe_symbol *symbol;
	struct td__bpe_pair *heap;
	size_t symbol_size, heap_size, n_heap;
	uint64_t steps; /* heap moves so far: lets a test see that long pieces stay near-linear */
};
void td__bpe_work_finish(struct td__bpe_work *w);

/* Appends the ids of one piece (n > 0). */
int td__bpe_piece(const struct td__bpe *b, struct td__bpe_work *w, const char *piece, size_t n, struct td_ids *out, struct td_error *err);

int td__ids_push(struct td_ids *ids, int32_t id, struct td_error *err);

#endif
