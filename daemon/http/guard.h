/*
 * guard.h: is this HTTP/1.1 as strictly written as two programs must agree on? (RFC 9112)
 *
 * http-parser reads what is meant; some of its builds forgive line folding, spaces in names, bare line ends and what follows a chunk. A proxy in front
 * may read such things otherwise, and then one client's bytes become another's request. So each byte passes here first, and what is not plain is refused.
 * Pure functions of bytes: nothing is allocated, nothing is kept but the state given.
 */
#ifndef TD_HTTP_GUARD_H
#define TD_HTTP_GUARD_H

#include <stddef.h>
#include <stdint.h>

enum { TD_HTTP_HEAD_MAX = 32768, TD_HTTP_FIELDS_MAX = 100, TD_HTTP_TRAILER_MAX = 8192 };

/* Length of the head that starts at p, with its empty line; 0 when its end is not there yet. `from`: bytes looked at before. */
size_t td_http_head_end(const char *p, size_t n, size_t from);

struct td_http_framing {
	int minor; /* HTTP/1.minor */
	int chunked;
	int has_length;
	uint64_t length;
	int expects; /* Expect: 100-continue */
};
/* Checks a whole head and tells how its body is framed. 0, or the HTTP status to refuse it by with a reason in *why. */
int td_http_head_check(const char *p, size_t n, struct td_http_framing *f, const char **why);

/* The value of a field in a checked head: 1 and the part of it without white space around, or 0. */
int td_http_head_field(const char *p, size_t n, const char *name, const char **value, size_t *len);

struct td_http_body {
	int chunked, done;
	uint64_t left; /* bytes of the body or of the chunk */
	int at; /* chunked: where */
	int digits;
	size_t trailer; /* bytes so far; of a chunk's extension too */
};
void td_http_body_begin(struct td_http_body *b, const struct td_http_framing *f);
/* Bytes of p that belong to this body, or -1 when they are not well formed; sets b->done at its end. */
long td_http_body_check(struct td_http_body *b, const char *p, size_t n);

#endif
