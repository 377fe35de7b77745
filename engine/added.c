/*
 * added.c: added tokens as a sorted array that is narrowed byte by byte, which is a trie without its nodes.
 *
 * A text is looked at position by position; a position whose byte starts no token costs one load. The range of candidates is narrowed by binary
 * search, so thousands of reserved tokens with a common beginning cost no more than a few. Read-only after td__added_sort.
 */
#include "engine/added.h"

#include <stdlib.h>
#include <string.h>

int td__added_push(struct td__added *a, const char *text, size_t n, int32_t id, struct td_error *err)
{
	if (a->n == a->size) {
		size_t size = a->size ? 2 * a->size : 64;
		struct td__added_token *p = realloc(a->token, size * sizeof(*p));

		if (!p)
			return td_error_set(err, TD_E_NOMEM, "out of memory for %zu added tokens", size);
		a->token = p;
		a->size = size;
	}
	a->token[a->n++] = (struct td__added_token){text, n, id};
	a->first[(unsigned char)text[0]] = 1;
	return 0;
}

static int compare(const void *x, const void *y)
{
	const struct td__added_token *a = x, *b = y;
	int order = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);

	return order ? order : (a->n > b->n) - (a->n < b->n);
}

void td__added_sort(struct td__added *a)
{
	if (a->n)
		qsort(a->token, a->n, sizeof(*a->token), compare);
}

void td__added_finish(struct td__added *a)
{
	free(a->token);
	memset(a, 0, sizeof(*a));
}

/* The first token of [low, high), all of which agree on the bytes before `depth` and are longer, whose byte there is >= `byte`. */
static size_t bound(const struct td__added *a, size_t low, size_t high, size_t depth, int byte)
{
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if ((unsigned char)a->token[middle].text[depth] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static const struct td__added_token *longest(const struct td__added *a, const char *text, size_t n)
{
	const struct td__added_token *best = NULL;
	size_t low = 0, high = a->n, depth;

	for (depth = 0; depth < n && low < high; depth++) {
		int byte = (unsigned char)text[depth];

		low = bound(a, low, high, depth, byte);
		high = bound(a, low, high, depth, byte + 1);
		/* The shortest of those that share a beginning sorts first. */
		if (low < high && a->token[low].n == depth + 1)
			best = &a->token[low++];
	}
	return best;
}

const struct td__added_token *td__added_find(const struct td__added *a, const char *text, size_t n, size_t from, size_t *start)
{
	const struct td__added_token *found;
	size_t i;

	for (i = from; i < n; i++) {
		if (!a->first[(unsigned char)text[i]])
			continue;
		found = longest(a, text + i, n - i);
		if (found) {
			*start = i;
			return found;
		}
	}
	return NULL;
}

const struct td__added_token *td__added_exact(const struct td__added *a, const char *text, size_t n)
{
	const struct td__added_token *found = longest(a, text, n);

	return found && found->n == n ? found : NULL;
}
