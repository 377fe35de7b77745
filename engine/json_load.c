/*
 * json_load.c: jansson with a reserve. While a text is read, an allocation that fails is served from a block that was taken beforehand, and the text ends
 * there for the reader: it comes to its end in an orderly way with what is left of its buffer, and the result is thrown away. All its allocations pass through
 * here from the first call on; outside of a reading, and what was allocated before, they are plain malloc and free.
 * What must never happen: memory of the reserve that is used after the reading.
 */
#include "engine/json_load.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
	READ_MOST = 1024, /* jansson's buffer; what can still be read after the failure */
	VALUE_MOST = 512, /* of memory for a byte of text: an empty object and its place in another one */
	ROUND = 16,
};

struct reading {
	const char *text;
	size_t left;
	char *begin, *at, *end; /* the reserve */
	int failed;
};

static __thread struct reading *here;

static void *take(size_t n)
{
	struct reading *r = here;
	void *p = r && r->failed ? NULL : malloc(n);

	if (p || !r)
		return p;
	r->failed = 1;
	n = (n + ROUND - 1) / ROUND * ROUND;
	if (n > (size_t)(r->end - r->at))
		return NULL;
	p = r->at;
	r->at += n;
	return p;
}

static void give(void *p)
{
	if (!here || (uintptr_t)p < (uintptr_t)here->begin || (uintptr_t)p >= (uintptr_t)here->end)
		free(p);
}

static void install(void)
{
	json_set_alloc_funcs(take, give);
}

static size_t next(void *out, size_t size, void *ctx)
{
	struct reading *r = ctx;
	size_t n = r->failed ? 0 : size < r->left ? size : r->left;

	memcpy(out, r->text, n);
	r->text += n;
	r->left -= n;
	return n;
}

json_t *td_json_load(const char *text, size_t n, size_t flags, json_error_t *why, int *no_memory)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	/* A token's buffer doubles, and is there twice while it does. */
	size_t size = 8 * n + (size_t)READ_MOST * VALUE_MOST;
	struct reading r = {.text = text, .left = n};
	json_t *root;

	pthread_once(&once, install);
	*no_memory = 1;
	r.begin = r.at = malloc(size);
	if (!r.begin)
		return NULL;
	r.end = r.begin + size;
	here = &r;
	root = json_load_callback(next, &r, flags, why);
	if (r.failed) {
		json_decref(root);
		root = NULL;
	}
	here = NULL;
	free(r.begin);
	*no_memory = r.failed;
	return root;
}
