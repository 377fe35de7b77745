/*
 * raw_script.c: a line of rawclient's script, taken apart (raw.h).
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/raw.h"

struct raw_arg raw_args[RAW_ARGS];
int raw_n_args, raw_line;

_Noreturn __attribute__((format(printf, 1, 2))) void raw_fail(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "rawclient: line %d: ", raw_line);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

/* One word, with "..." and \n \" \\ \xHH in it. */
static char *word(char **at)
{
	char *p = *at, *out, *start;
	int quoted = 0;

	while (isspace((unsigned char)*p))
		p++;
	if (!*p)
		return NULL;
	start = out = p;
	for (; *p && (quoted || !isspace((unsigned char)*p)); p++) {
		if (*p == '"') {
			quoted = !quoted;
		} else if (*p == '\\' && p[1] == 'x') {
			char hex[3] = {p[2], p[3], 0};

			*out++ = (char)strtol(hex, NULL, 16);
			p += 3;
		} else if (*p == '\\' && p[1]) {
			p++;
			*out++ = *p == 'n' ? '\n' : *p;
		} else {
			*out++ = *p;
		}
	}
	*at = *p ? p + 1 : p;
	*out = 0;
	return start;
}

void raw_split(char *line)
{
	char *w;

	raw_n_args = 0;
	while (raw_n_args < RAW_ARGS && (w = word(&line))) {
		char *eq = raw_n_args ? strchr(w, '=') : NULL;

		raw_args[raw_n_args++] = (struct raw_arg){w, eq ? eq + 1 : w};
		/* A text to look for may hold a '='; only names are cut. */
		if (eq && strcmp(raw_args[0].name, "expect") && strcmp(raw_args[0].name, "until") && strcmp(raw_args[0].name, "wait_status"))
			*eq = 0;
	}
}

const char *raw_get(const char *name)
{
	for (int i = 1; i < raw_n_args; i++)
		if (!strcmp(raw_args[i].name, name))
			return raw_args[i].value;
	return NULL;
}

uint64_t raw_get_number(const char *name, uint64_t otherwise)
{
	const char *v = raw_get(name);

	return v ? strtoull(v, NULL, 0) : otherwise;
}

int32_t *raw_get_ids(size_t *n)
{
	const char *v = raw_get("ids");
	int32_t *ids = malloc(sizeof(*ids));
	char *end;

	*n = 0;
	while (v && *v) { /* "7" or "7*100", by commas */
		long id = strtol(v, &end, 10), times = 1;

		if (*end == '*')
			times = strtol(end + 1, &end, 10);
		ids = realloc(ids, (*n + (size_t)times + 1) * sizeof(*ids));
		while (times-- > 0)
			ids[(*n)++] = (int32_t)id;
		v = *end == ',' ? end + 1 : "";
	}
	return ids;
}
