/*
 * added.h: finding added tokens in raw text, leftmost first and the longest of those that start there. Internal to engine/.
 */
#ifndef TD_ADDED_H
#define TD_ADDED_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"

struct td__added_token {
	const char *text; /* owned by the token table */
	size_t n;
	int32_t id;
};
struct td__added {
	struct td__added_token *token; /* sorted by bytes once td__added_sort ran */
	size_t n, size;
	uint8_t first[256]; /* 1: some token starts with this byte */
};

int td__added_push(struct td__added *a, const char *text, size_t n, int32_t id, struct td_error *err);
void td__added_sort(struct td__added *a);
void td__added_finish(struct td__added *a);

/* The next added token at or after `from`, or NULL; *start is where it begins. */
const struct td__added_token *td__added_find(const struct td__added *a, const char *text, size_t n, size_t from, size_t *start);
const struct td__added_token *td__added_exact(const struct td__added *a, const char *text, size_t n);

#endif
