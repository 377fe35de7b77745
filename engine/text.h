/*
 * text.h: a growing byte string. Internal to engine/.
 *
 * Appending never fails at once: an allocation failure is remembered in `failed` and checked once at the end, so that a renderer reads as the
 * text it makes.
 */
#ifndef TD_TEXT_H
#define TD_TEXT_H

#include <stddef.h>

struct td__text {
	char *s; /* malloc'd, NUL-terminated once something was added */
	size_t n, size;
	int failed;
};

void td__text_add(struct td__text *t, const char *s, size_t n);
void td__text_puts(struct td__text *t, const char *s);
void td__text_finish(struct td__text *t);

#endif
