/*
 * grammar_build.h: writing a grammar (grammar.h), instruction by instruction, and the parts that JSON is made of.
 *
 * Every td_gb_ function appends code that begins here and ends by falling through to what is appended next. A rule is code that ends in RET and
 * stands out of the way. When there is no room the builder is `full`, appends nothing more, and td_gb_finish says so: nobody checks in between.
 * Internal to engine/.
 */
#ifndef TD_GRAMMAR_BUILD_H
#define TD_GRAMMAR_BUILD_H

#include "engine/grammar.h"

enum { TD_GB_SETS = 512, TD_GB_DIGITS = 18 /* of a number's whole part: fits 64 bits */ };

enum td_gb_part { TD_GB_WS, TD_GB_STRCHAR, TD_GB_DIGIT, TD_GB_HEX, TD_GB_ANY, TD_GB_PARTS };

struct td_gbuild {
	int full;
	int n_nodes, n_sets;
	size_t n_text;
	int part[TD_GB_PARTS]; /* address of a rule that JSON needs often, + 1; 0 = not written yet */
	struct td_gnode node[TD_G_NODES];
	uint8_t set[TD_GB_SETS][16];
	uint8_t text[TD_GRAMMAR_MAX];
};

struct td_gbuild *td_gbuild_create(void);
/* The compiled bytes (malloc'd), begun at `start`; frees the builder. */
int td_gb_finish(struct td_gbuild *b, int start, uint8_t **bytes, size_t *n, struct td_error *err);

/* ---- instructions ---------------------------------------------------------------------------------------------------------------------------------- */

int td_gb_emit(struct td_gbuild *b, enum td_gop op, int lo, int hi, int a, int bb); /* its address */
void td_gb_byte(struct td_gbuild *b, int lo, int hi);
void td_gb_text(struct td_gbuild *b, const void *text, size_t n); /* n 0: nothing */
void td_gb_puts(struct td_gbuild *b, const char *text);
void td_gb_until(struct td_gbuild *b, const char *text);
void td_gb_char(struct td_gbuild *b, const uint8_t set[16], int others); /* others: characters that are not ASCII, too */
void td_gb_fail(struct td_gbuild *b); /* nothing fits */
void td_gb_call(struct td_gbuild *b, int rule);
void td_gb_repeat(struct td_gbuild *b, int rule, uint32_t least, uint32_t most);

/* A rule: the code between the two. `over` is kept by the caller. */
int td_gb_rule(struct td_gbuild *b, int *over); /* its address */
void td_gb_rule_end(struct td_gbuild *b, int over);

/* Alternatives: begin, then `next` before each one, then end. */
struct td_galt {
	int split, chain;
};
void td_gb_alt(struct td_galt *a);
void td_gb_alt_next(struct td_gbuild *b, struct td_galt *a);
void td_gb_alt_end(struct td_gbuild *b, struct td_galt *a);

struct td_gtext {
	const char *s;
	size_t n;
};
void td_gb_texts_sort(struct td_gtext *text, size_t n); /* by bytes */
/* One of these texts, as a tree, so that many of them are no more than a few items of a state. Sorts them. */
void td_gb_one_of(struct td_gbuild *b, struct td_gtext *text, size_t n);

/* ---- JSON ------------------------------------------------------------------------------------------------------------------------------------------ */

int td_gb_part(struct td_gbuild *b, enum td_gb_part part); /* address of the rule, written when it is asked for first */
void td_gb_space(struct td_gbuild *b); /* nothing, a blank, or a line's end with at most TD_GB_INDENT blanks or tabs */
void td_gb_colon(struct td_gbuild *b);
void td_gb_string(struct td_gbuild *b, uint32_t least, uint32_t most);
void td_gb_object(struct td_gbuild *b); /* any */
void td_gb_any(struct td_gbuild *b); /* any value */
void td_gb_number(struct td_gbuild *b);
/* From lo to hi; whole: integers only, else also with a fraction. Nothing beyond TD_GB_DIGITS digits. */
void td_gb_range(struct td_gbuild *b, int64_t lo, int64_t hi, int whole);
/* A string's key that is none of these names; no escapes in it. */
void td_gb_other_key(struct td_gbuild *b, struct td_gtext *name, size_t n);
enum { TD_GB_INDENT = 40 };
#define TD_GB_MOST 999999999999999999ll

#endif
