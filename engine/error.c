/*
 * error.c: the table of errors as text. Owns nothing; safe from any thread.
 */
#include "engine/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void one_line(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x20)
			*text = ' ';
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
	one_line(err->text);
	return code;
}

int td_error_prefix(struct td_error *err, const char *fmt, ...)
{
	char head[sizeof(err->text)], text[2 * sizeof(err->text)];
	va_list ap;

	if (!err)
		return TD_E_INTERNAL;
	va_start(ap, fmt);
	vsnprintf(head, sizeof(head), fmt, ap);
	va_end(ap);
	snprintf(text, sizeof(text), "%s: %s", head, err->text);
	text[sizeof(err->text) - 1] = '\0';
	memcpy(err->text, text, sizeof(err->text));
	one_line(err->text);
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
