/*
 * grammar.h: what an output may be, as a small program over bytes, and the machine that runs it.
 *
 * A compiled grammar is position-independent bytes (at most TD_GRAMMAR_MAX): a head, instructions of 8 bytes, sets of ASCII characters, and text.
 * tandemd compiles it (json_schema.h), the target worker runs it; between them it lies in shared memory, so td_grammar_open copies it first and then
 * checks every index in the copy. The program is nondeterministic: a state is a set of items, each an instruction that waits for a byte and a stack
 * of return addresses. Stacks share their tails: a stack is the index of its top cell, and equal stacks are one cell, so a state stays small.
 *
 * Nesting is bounded: a stack has at most TD_G_DEPTH cells. Each instruction knows how deep the shortest way to the end leads; a way that could not be
 * ended within the bound is not begun, so a state that lives can always be completed: there are no dead ends.
 *
 * A grammar and a state belong to the caller, a walk is scratch memory for one thread. Nothing is allocated but by td_gwalk_create.
 * What must never happen: an index from a compiled grammar used unchecked; a loop without a bound, whatever the program says.
 */
#ifndef TD_GRAMMAR_H
#define TD_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"
#include "engine/shm.h"

enum {
	TD_G_DEPTH = 128, /* cells of a stack */
	TD_G_NODES = 8160, /* instructions: what fits */
	TD_G_ITEMS = 512, /* of a state */
	TD_G_CELLS = 2048, /* of a state that is kept */
	TD_G_END = 0xffff, /* pc of the item that says: the grammar may end here */
	TD_G_FOREVER = 0x7fffffff, /* `most` of a repeat without a bound */
};

enum td_gop {
	TD_G_RET, /* end of a rule; of the first one: end of the grammar */
	TD_G_BYTE, /* one byte from lo to hi */
	TD_G_TEXT, /* b bytes of the text from a on */
	TD_G_CHAR, /* one character in UTF-8: of the ASCII set a, or not ASCII if lo is 1 */
	TD_G_UNTIL, /* any valid UTF-8 up to and including the first time that the text (a, b) comes */
	TD_G_SPLIT, /* a or b */
	TD_G_JUMP, /* a */
	TD_G_CALL, /* rule a, then the next */
	TD_G_REPEAT, /* rule a, so many times as the next node (a struct td_gcount) says, then the one after that */
	TD_G_COUNT, /* the second half of a REPEAT: is never run */
	TD_G_OPS,
};

struct td_gnode {
	uint8_t op, lo, hi, pad;
	uint16_t a, b;
};
struct td_gcount { /* as long as a node; the op's place is in `least`, so a least count is below 2^24 */
	uint32_t least; /* low byte TD_G_COUNT, then the number */
	uint32_t most;
};
struct td_ghead {
	uint32_t magic; /* TD_G_MAGIC */
	uint16_t start, nodes, sets, pad;
	uint32_t text;
};
#define TD_G_MAGIC 0x31677274u
_Static_assert(sizeof(struct td_gnode) == 8 && sizeof(struct td_gcount) == 8 && sizeof(struct td_ghead) == 16, "the compiled form");

/* A copy that was checked. */
struct td_grammar {
	const struct td_gnode *node;
	const uint8_t (*set)[16];
	const uint8_t *text;
	int nodes, start;
	uint64_t hash; /* of the bytes */
	_Alignas(8) uint8_t bytes[TD_GRAMMAR_MAX];
	uint8_t need[TD_G_NODES + 1]; /* cells that the shortest way from here to its RET takes; 255: there is none */
	uint8_t string[TD_G_NODES + 1]; /* 1: a REPEAT of characters of a JSON string */
};

/* Copies and checks. TD_E_FORMAT when anything in it is out of range, or when nothing fits the grammar. */
int td_grammar_open(struct td_grammar *g, const void *bytes, size_t n, struct td_error *err);

/* ---- states ---------------------------------------------------------------------------------------------------------------------------------------- */

struct td_gitem {
	uint16_t pc, sub; /* sub: how far inside the instruction */
	uint32_t cell;
};
struct td_gcell {
	uint32_t parent, count;
	uint32_t next; /* in its bucket */
	uint16_t pc, depth;
	uint64_t hash; /* of the stack from here down, counts as far as a token can tell them apart */
};
struct td_gstate {
	uint32_t n_items, n_cells;
	struct td_gitem item[TD_G_ITEMS];
	struct td_gcell cell[TD_G_CELLS];
};

struct td_gwalk; /* for states of one grammar at a time */
struct td_gset { /* a set of items inside a walk; n == 0: dead */
	uint32_t from, n;
	uint32_t cells; /* of the walk when it was made */
};

struct td_gwalk *td_gwalk_create(void); /* NULL: no memory */
void td_gwalk_destroy(struct td_gwalk *w);
/* `reach`: the most bytes of a token. Counts that differ by more cannot be told apart by one token, and hash alike. */
void td_gwalk_reach(struct td_gwalk *w, int reach);

int td_gstate_start(struct td_gwalk *w, const struct td_grammar *g, struct td_gstate *s); /* 0, or -1: nothing fits */
/* 0, or -1 when the bytes do not fit (or the state became too large to keep): then *s is as it was. */
int td_gstate_advance(struct td_gwalk *w, const struct td_grammar *g, struct td_gstate *s, const void *bytes, size_t n);
int td_gstate_may_end(const struct td_gstate *s);

/* Inside a walk, without keeping: load, then step from set to set; sets made later go when an earlier one is returned to. */
/* Instructions run and items compared so far: what walking costs, counted alike on every machine. */
uint64_t td_gwalk_work(const struct td_gwalk *w);
struct td_gset td_gwalk_load(struct td_gwalk *w, const struct td_grammar *g, const struct td_gstate *s);
struct td_gset td_gwalk_step(struct td_gwalk *w, struct td_gset from, uint8_t byte);
void td_gwalk_back(struct td_gwalk *w, struct td_gset to); /* forgets what was made after `to` */
int td_gwalk_may_end(const struct td_gwalk *w, struct td_gset s);
int td_gwalk_same(const struct td_gwalk *w, struct td_gset a, struct td_gset b); /* 1: the same items in the same order */
void td_gwalk_hash(const struct td_gwalk *w, struct td_gset s, uint64_t hash[2]); /* equal: the same tokens may come next */
/* What need not be walked: *string: characters of a JSON string that may come at the least, -1 when it must be walked; *newline, *angle: free text up to
 * something that begins with a line feed, or with '<', goes on. */
void td_gwalk_easy(const struct td_gwalk *w, struct td_gset s, int most, int *string, int *newline, int *angle);

/* The plain characters of a JSON string: all but controls, quote and backslash. */
static inline int td_g_plain(uint8_t c)
{
	return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* UTF-8 byte by byte: state 0 is between characters. The next state, or -1. */
int td_g_utf8(int state, uint8_t byte);

#endif
