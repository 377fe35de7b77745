/*
 * pyvalue.c: Python's spelling of JSON values, and Python's idea of white space.
 *
 * The prompt must be byte for byte what the reference renders: a model that has seen {"a": 1.0} a million times reads {"a":1.0} worse. Key order
 * is kept and the last of duplicate keys wins at the first one's place, both as jansson and Python's dict have it. Integers beyond 64 bits, which
 * Python would keep, are refused by the parser rather than rounded. Owns nothing.
 */
#include "engine/pyvalue.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/json_load.h"
#include "engine/utf8.h"

enum { DIGITS_MAX = 17, EXPONENT_LOW = -4, EXPONENT_HIGH = 16 };

int td__py_parse_object(const char *text, const char *what, json_t **v, struct td_error *err)
{
	json_error_t parse;
	int no_memory;

	*v = td_json_load(text, strlen(text), JSON_ALLOW_NUL | JSON_DECODE_ANY, &parse, &no_memory);
	if (no_memory)
		return td_error_set(err, TD_E_NOMEM, "%s: out of memory", what);
	if (!*v)
		return td_error_set(err, TD_E_INVALID, "%s is not valid JSON (line %d, column %d): %s", what, parse.line, parse.column, parse.text);
	if (!json_is_object(*v)) {
		json_decref(*v);
		*v = NULL;
		return td_error_set(err, TD_E_INVALID, "%s must be a JSON object", what);
	}
	return 0;
}

/* The fewest significant digits that read back as x. Returns their number; *exponent is that of the first one. */
static int shortest(double x, char digits[DIGITS_MAX + 1], int *exponent)
{
	char text[64];
	int n, precision, i;

	for (precision = 0; precision < DIGITS_MAX; precision++) {
		snprintf(text, sizeof(text), "%.*e", precision, x);
		if (strtod(text, NULL) == x)
			break;
	}
	/* Digits are picked out one by one: the locale may have its own decimal point. */
	for (n = 0, i = 0; text[i] != 'e'; i++)
		if (text[i] >= '0' && text[i] <= '9')
			digits[n++] = text[i];
	*exponent = atoi(text + i + 1);
	while (n > 1 && digits[n - 1] == '0')
		n--;
	digits[n] = '\0';
	return n;
}

/* repr() of a float. */
static void py_float(struct td__text *out, double x)
{
	char digits[DIGITS_MAX + 1], tail[16];
	int n, exponent, i;

	if (signbit(x))
		td__text_puts(out, "-");
	x = fabs(x);
	n = shortest(x, digits, &exponent);
	if (exponent < EXPONENT_LOW || exponent >= EXPONENT_HIGH) {
		td__text_add(out, digits, 1);
		if (n > 1) {
			td__text_puts(out, ".");
			td__text_puts(out, digits + 1);
		}
		snprintf(tail, sizeof(tail), "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
		td__text_puts(out, tail);
		return;
	}
	if (exponent < 0) {
		td__text_puts(out, "0.");
		for (i = -1; i > exponent; i--)
			td__text_puts(out, "0");
		td__text_puts(out, digits);
		return;
	}
	for (i = 0; i <= exponent; i++)
		td__text_add(out, i < n ? digits + i : "0", 1);
	td__text_puts(out, ".");
	td__text_puts(out, n > exponent + 1 ? digits + exponent + 1 : "0");
}

static void json_string_out(struct td__text *out, const char *s, size_t n)
{
	static const char escaped[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
	char code[8];
	size_t i, plain = 0;

	td__text_puts(out, "\"");
	for (i = 0; i < n; i++) {
		const char *at = s[i] ? strchr(escaped, s[i]) : NULL;

		if (!at && (unsigned char)s[i] >= 0x20)
			continue;
		td__text_add(out, s + plain, i - plain);
		plain = i + 1;
		if (at)
			snprintf(code, sizeof(code), "\\%c", letter[at - escaped]);
		else
			snprintf(code, sizeof(code), "\\u%04x", (unsigned char)s[i]);
		td__text_puts(out, code);
	}
	td__text_add(out, s + plain, n - plain);
	td__text_puts(out, "\"");
}

static void number(struct td__text *out, const json_t *v)
{
	char text[32];

	if (json_is_real(v)) {
		py_float(out, json_real_value(v));
		return;
	}
	snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	td__text_puts(out, text);
}

void td__py_json(struct td__text *out, const json_t *v)
{
	const char *key, *between = "";
	json_t *item;
	size_t i;

	switch (json_typeof(v)) {
	case JSON_OBJECT:
		td__text_puts(out, "{");
		json_object_foreach ((json_t *)v, key, item) {
			td__text_puts(out, between);
			json_string_out(out, key, strlen(key));
			td__text_puts(out, ": ");
			td__py_json(out, item);
			between = ", ";
		}
		td__text_puts(out, "}");
		return;
	case JSON_ARRAY:
		td__text_puts(out, "[");
		json_array_foreach (v, i, item) {
			td__text_puts(out, i ? ", " : "");
			td__py_json(out, item);
		}
		td__text_puts(out, "]");
		return;
	case JSON_STRING:
		json_string_out(out, json_string_value(v), json_string_length(v));
		return;
	case JSON_INTEGER:
	case JSON_REAL:
		number(out, v);
		return;
	case JSON_TRUE:
		td__text_puts(out, "true");
		return;
	case JSON_FALSE:
		td__text_puts(out, "false");
		return;
	case JSON_NULL:
		td__text_puts(out, "null");
	}
}

void td__py_argument(struct td__text *out, const json_t *v)
{
	if (json_is_string(v))
		td__text_add(out, json_string_value(v), json_string_length(v));
	else if (json_is_boolean(v))
		td__text_puts(out, json_is_true(v) ? "True" : "False");
	else if (json_is_null(v))
		td__text_puts(out, "None");
	else
		td__py_json(out, v);
}

/* str.isspace(): Unicode's White_Space and the four separators U+001C to U+001F. */
static int is_space(uint32_t c)
{
	return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
	       c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

void td__py_strip(const char **text, size_t *n)
{
	const char *s = *text, *end = s + *n;
	uint32_t c;
	int len;

	while (s < end) {
		len = td__utf8_get(s, &c);
		if (!is_space(c))
			break;
		s += len;
	}
	while (s < end) {
		const char *last = end - 1;

		while (((unsigned char)*last & 0xc0) == 0x80)
			last--;
		td__utf8_get(last, &c);
		if (!is_space(c))
			break;
		end = last;
	}
	*text = s;
	*n = (size_t)(end - s);
}
