/*
 * json_text.c: JSON as it is written, piece by piece: a stream's events are made from tokens, and no tree is built for them.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/http/http.h"
#include "engine/utf8.h"

void td_json_format(struct td__text *t, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	td__text_add(t, text, n < (int)sizeof(text) ? (size_t)n : sizeof(text) - 1);
}

void td_json_string(struct td__text *t, const char *s, size_t n)
{
	size_t from = 0, i = 0, len;

	td__text_puts(t, "\"");
	while (i < n) {
		unsigned char c = (unsigned char)s[i];

		len = td_utf8_length((const uint8_t *)s + i, n - i);
		if (len && c >= 0x20 && c != '"' && c != '\\') {
			i += len;
			continue;
		}
		td__text_add(t, s + from, i - from);
		if (!len)
			td__text_puts(t, "\xef\xbf\xbd");
		else if (c == '"' || c == '\\')
			td_json_format(t, "\\%c", c);
		else if (c == '\n')
			td__text_puts(t, "\\n");
		else
			td_json_format(t, "\\u%04x", c);
		from = ++i;
	}
	td__text_add(t, s + from, i - from);
	td__text_puts(t, "\"");
}
