/*
 * text.c: a growing byte string. The struct owns its memory; zeroed memory is an empty text.
 */
#include "engine/text.h"

#include <stdlib.h>
#include <string.h>

void td__text_add(struct td__text *t, const char *s, size_t n)
{
	if (t->failed)
		return;
	if (t->n + n + 1 > t->size) {
		size_t size = 2 * (t->n + n) + 256;
		char *p = realloc(t->s, size);

		if (!p) {
			t->failed = 1;
			return;
		}
		t->s = p;
		t->size = size;
	}
	memcpy(t->s + t->n, s, n);
	t->n += n;
	t->s[t->n] = '\0';
}

void td__text_puts(struct td__text *t, const char *s)
{
	td__text_add(t, s, strlen(s));
}

void td__text_finish(struct td__text *t)
{
	free(t->s);
	memset(t, 0, sizeof(*t));
}
