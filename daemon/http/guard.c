/*
 * guard.c: strict checks of a request's bytes. Nothing is owned.
 */
#include "daemon/http/guard.h"

#include <string.h>
#include <strings.h>

static int is_token(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int is_digit(unsigned char c)
{
	return c >= '0' && c <= '9';
}

size_t td_http_head_end(const char *p, size_t n, size_t from)
{
	const char *at;

	from = from > 3 ? from - 3 : 0;
	at = memmem(p + from, n - from, "\r\n\r\n", 4);
	return at ? (size_t)(at - p) + 4 : 0;
}

/* ---- head -------------------------------------------------------------------------------------------------------------------------- */

struct line {
	const char *p;
	size_t n;
};

/* The next line without its end; *at moves behind it. */
static struct line next_line(const char *p, size_t n, size_t *at)
{
	const char *end = memmem(p + *at, n - *at, "\r\n", 2);
	struct line l = {p + *at, end ? (size_t)(end - p) - *at : n - *at};

	*at += l.n + (end ? 2 : 0);
	return l;
}

static int check_request_line(struct line l, struct td_http_framing *f, const char **why)
{
	size_t i = 0, target;

	while (i < l.n && is_token((unsigned char)l.p[i]))
		i++;
	*why = "the request line is not METHOD TARGET HTTP/1.1";
	if (!i || i == l.n || l.p[i] != ' ')
		return 400;
	target = ++i;
	while (i < l.n && (unsigned char)l.p[i] > 0x20 && (unsigned char)l.p[i] < 0x7f)
		i++;
	if (i == target || i + 9 != l.n || memcmp(l.p + i, " HTTP/", 6) || !is_digit((unsigned char)l.p[i + 6]) || l.p[i + 7] != '.' ||
	    !is_digit((unsigned char)l.p[i + 8]))
		return 400;
	*why = "only HTTP/1.0 and HTTP/1.1 are spoken here";
	if (l.p[i + 6] != '1' || l.p[i + 8] > '1')
		return 505;
	f->minor = l.p[i + 8] - '0';
	return 0;
}

static int same(const char *p, size_t n, const char *name)
{
	return strlen(name) == n && !strncasecmp(p, name, n);
}

static int take_length(struct td_http_framing *f, const char *v, size_t n, const char **why)
{
	*why = f->has_length ? "Content-Length is given twice" : "Content-Length is not a number";
	if (f->has_length || !n || n > 18)
		return 400;
	for (size_t i = 0; i < n; i++) {
		if (!is_digit((unsigned char)v[i]))
			return 400;
		f->length = f->length * 10 + (uint64_t)(v[i] - '0');
	}
	f->has_length = 1;
	return 0;
}

struct seen {
	int hosts, encodings, keys, types;
};

static int take_field(struct td_http_framing *f, struct seen *seen, const char *name, size_t k, const char *v, size_t n, const char **why)
{
	if (same(name, k, "Content-Length"))
		return take_length(f, v, n, why);
	if (same(name, k, "Host")) {
		seen->hosts++;
	} else if (same(name, k, "Transfer-Encoding")) {
		*why = seen->encodings++ ? "Transfer-Encoding is given twice" : "the only Transfer-Encoding that is known is chunked";
		if (seen->encodings > 1 || !same(v, n, "chunked"))
			return seen->encodings > 1 ? 400 : 501;
		f->chunked = 1;
	} else if (same(name, k, "Expect")) {
		*why = "the only expectation that is met is 100-continue";
		if (!same(v, n, "100-continue"))
			return 417;
		f->expects = 1;
	} else if (same(name, k, "Authorization")) { /* a proxy may have looked at the other one */
		*why = "Authorization is given twice";
		return seen->keys++ ? 400 : 0;
	} else if (same(name, k, "Content-Type")) {
		*why = "Content-Type is given twice";
		return seen->types++ ? 400 : 0;
	}
	return 0;
}

/* Splits "Name: value"; 0 when it is not well formed. */
static int split_field(struct line l, size_t *name_n, const char **v, size_t *v_n)
{
	size_t i = 0;

	while (i < l.n && is_token((unsigned char)l.p[i]))
		i++;
	if (!i || i == l.n || l.p[i] != ':')
		return 0;
	*name_n = i++;
	while (i < l.n && (l.p[i] == ' ' || l.p[i] == '\t'))
		i++;
	*v = l.p + i;
	*v_n = l.n - i;
	while (*v_n && ((*v)[*v_n - 1] == ' ' || (*v)[*v_n - 1] == '\t'))
		--*v_n;
	for (size_t k = 0; k < *v_n; k++)
		if (((unsigned char)(*v)[k] < 0x20 && (*v)[k] != '\t') || (*v)[k] == 0x7f)
			return 0;
	return 1;
}

int td_http_head_check(const char *p, size_t n, struct td_http_framing *f, const char **why)
{
	struct seen seen = {0};
	size_t at = 0, fields = 0;
	int rc;

	memset(f, 0, sizeof(*f));
	if ((rc = check_request_line(next_line(p, n, &at), f, why)))
		return rc;
	while (at < n) {
		struct line l = next_line(p, n, &at);
		size_t name_n, v_n;
		const char *v;

		if (!l.n)
			break;
		*why = "there are too many header fields";
		if (++fields > TD_HTTP_FIELDS_MAX)
			return 431;
		*why = "a header field is not well formed";
		if (!split_field(l, &name_n, &v, &v_n))
			return 400;
		if ((rc = take_field(f, &seen, l.p, name_n, v, v_n, why)))
			return rc;
	}
	*why = "Content-Length and Transfer-Encoding are both given";
	if (f->chunked && f->has_length)
		return 400;
	*why = "HTTP/1.0 knows no Transfer-Encoding";
	if (f->chunked && !f->minor)
		return 400;
	*why = seen.hosts ? "Host is given twice" : "Host is missing";
	if (seen.hosts > 1 || (f->minor && !seen.hosts))
		return 400;
	return 0;
}

int td_http_head_field(const char *p, size_t n, const char *name, const char **value, size_t *len)
{
	size_t at = 0, name_n;

	next_line(p, n, &at);
	while (at < n) {
		struct line l = next_line(p, n, &at);

		if (!l.n)
			break;
		if (split_field(l, &name_n, value, len) && same(l.p, name_n, name))
			return 1;
	}
	return 0;
}

/* ---- body -------------------------------------------------------------------------------------------------------------------------- */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER_START, TRAILER_NAME, TRAILER_VALUE, TRAILER_LF, END_LF };

void td_http_body_begin(struct td_http_body *b, const struct td_http_framing *f)
{
	*b = (struct td_http_body){.chunked = f->chunked, .left = f->length, .done = !f->chunked && !f->length};
}

static int hex(unsigned char c)
{
	if (is_digit(c))
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A byte that is not data. 0 when it is well formed. */
static int step(struct td_http_body *b, unsigned char c)
{
	int text = c >= 0x20 ? c != 0x7f : c == '\t';

	switch (b->at) {
	case SIZE:
		if (hex(c) >= 0 && b->digits < 15) {
			b->left = b->left << 4 | (uint64_t)hex(c);
			b->digits++;
			return 0;
		}
		if (!b->digits || (c != ';' && c != '\r'))
			return -1;
		b->at = c == ';' ? EXTENSION : SIZE_LF;
		return 0;
	case EXTENSION:
		if (c == '\r')
			b->at = SIZE_LF;
		return c == '\r' || (text && ++b->trailer < TD_HTTP_TRAILER_MAX) ? 0 : -1;
	case SIZE_LF:
		b->at = b->left ? DATA : TRAILER_START;
		return c == '\n' ? 0 : -1;
	case DATA_CR:
		b->at = DATA_LF;
		return c == '\r' ? 0 : -1;
	case DATA_LF:
		b->at = SIZE;
		b->digits = 0;
		return c == '\n' ? 0 : -1;
	case TRAILER_START:
		b->at = c == '\r' ? END_LF : TRAILER_NAME;
		return c == '\r' || (is_token(c) && ++b->trailer < TD_HTTP_TRAILER_MAX) ? 0 : -1;
	case TRAILER_NAME:
		if (c == ':')
			b->at = TRAILER_VALUE;
		return (c == ':' || is_token(c)) && ++b->trailer < TD_HTTP_TRAILER_MAX ? 0 : -1;
	case TRAILER_VALUE:
		if (c == '\r')
			b->at = TRAILER_LF;
		return c == '\r' || (text && ++b->trailer < TD_HTTP_TRAILER_MAX) ? 0 : -1;
	case TRAILER_LF:
		b->at = TRAILER_START;
		return c == '\n' ? 0 : -1;
	default: /* END_LF */
		b->done = 1;
		return c == '\n' ? 0 : -1;
	}
}

long td_http_body_check(struct td_http_body *b, const char *p, size_t n)
{
	size_t i = 0;

	while (i < n && !b->done) {
		if (!b->chunked || b->at == DATA) {
			uint64_t some = n - i < b->left ? n - i : b->left;

			i += (size_t)some;
			b->left -= some;
			if (!b->left && b->chunked)
				b->at = DATA_CR;
			else if (!b->left)
				b->done = 1;
		} else if (step(b, (unsigned char)p[i++])) {
			return -1;
		}
	}
	return (long)i;
}
