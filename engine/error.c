/*
 * error.c: the table of errors as text. Owns nothing; safe from any thread.
 */
#include "engine/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/utf8.h"

/* The sentence goes to terminals, JSON and the wire: one line, well-formed UTF-8, also when it was cut in the middle of a character or
 * quotes what somebody sent. */
static void clean(char *text)
{
	size_t n = strlen(text), len;

	for (size_t i = 0; i < n; i += len) {
		len = td_utf8_length((const uint8_t *)text + i, n - i);
		if (!len) {
			text[i] = '?';
			len = 1;
		} else if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
			text[i] = ' ';
		}
	}
}

int td_error_set(struct td_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	clean(err->text);
	return code;
}

int td_error_prefix(struct td_error *err, const char *fmt, ...)
{
	char head[sizeof(err->text)], old[sizeof(err->text)];
	size_t n;
	va_list ap;

	if (!err)
		return TD_E_INTERNAL;
	va_start(ap, fmt);
	vsnprintf(head, sizeof(head), fmt, ap);
	va_end(ap);
	memcpy(old, err->text, sizeof(old));
	n = strlen(head);
	if (n > sizeof(head) - 3)
		n = sizeof(head) - 3;
	memcpy(err->text, head, n);
	memcpy(err->text + n, ": ", 3);
	strncat(err->text, old, sizeof(err->text) - 1 - (n + 2));
	clean(err->text);
	return err->code;
}

const char *td_error_name(int code)
{
	switch (code) {
	case TD_OK:
		return "ok";
#define X(name, number, wire, http) \
	case number: \
		return wire;
		TD_ERRORS(X)
#undef X
	}
	return "internal";
}

int td_error_code(const char *name, int otherwise)
{
#define X(n, number, wire, http) \
	if (!strcmp(name, wire)) \
		return number;
	TD_ERRORS(X)
#undef X
	return otherwise;
}

int td_error_http(int code)
{
	switch (code) {
	case TD_OK:
		return 200;
#define X(name, number, wire, http) \
	case number: \
		return http;
		TD_ERRORS(X)
#undef X
	}
	return 500;
}
