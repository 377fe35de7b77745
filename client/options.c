/*
 * options.c: see options.h. One pass over argv; the first mistake is told in one line on stderr and ends it.
 */
#include "client/options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 30, HELP_WIDTH = 100 };

void td_list_finish(struct td_list *l)
{
	free(l->item);
	*l = (struct td_list){0};
}

static int list_add(struct td_list *l, const char *item)
{
	const char **grown;

	if (l->n == l->size) {
		grown = realloc(l->item, (l->size ? 2 * l->size : 8) * sizeof(*grown));
		if (!grown)
			return -1;
		l->item = grown;
		l->size = l->size ? 2 * l->size : 8;
	}
	l->item[l->n++] = item;
	return 0;
}

int td_parse_int(const char *text, int32_t *v)
{
	char *end;
	long long n;

	errno = 0;
	n = strtoll(text, &end, 10);
	if (end == text || *end || errno || n < INT32_MIN || n > INT32_MAX)
		return 0;
	*v = (int32_t)n;
	return 1;
}

/* "nan" and "inf" are numbers here: whether they make sense is the daemon's to say. */
int td_parse_float(const char *text, float *v)
{
	char *end;

	*v = strtof(text, &end);
	return end != text && !*end;
}

static int parse_u64(const char *text, uint64_t *v)
{
	char *end;

	if (*text < '0' || *text > '9')
		return 0;
	errno = 0;
	*v = strtoull(text, &end, 10);
	return !*end && !errno;
}

static int parse_seconds(const char *text, uint32_t *ms)
{
	char *end;
	double s = strtod(text, &end);

	if (end == text || *end || !isfinite(s) || s < 0 || s * 1000 > UINT_MAX)
		return 0;
	*ms = (uint32_t)(s * 1000);
	return 1;
}

/* NULL when stored, else what was expected. */
static const char *store(const struct td_option *o, const char *value)
{
	uint64_t n;

	switch (o->kind) {
	case TD_OPT_INT:
		return td_parse_int(value, o->to) ? NULL : "a whole number";
	case TD_OPT_COUNT:
		if (!parse_u64(value, &n) || n > UINT32_MAX)
			return "a whole number from 0 on";
		*(uint32_t *)o->to = (uint32_t)n;
		return NULL;
	case TD_OPT_SEED:
		return parse_u64(value, o->to) ? NULL : "a whole number from 0 on";
	case TD_OPT_FLOAT:
		return td_parse_float(value, o->to) ? NULL : "a number";
	case TD_OPT_SECONDS:
		return parse_seconds(value, o->to) ? NULL : "a number of seconds from 0 on";
	case TD_OPT_TEXT:
		*(const char **)o->to = value;
		return NULL;
	case TD_OPT_LIST:
		return list_add(o->to, value) ? "memory (there is none)" : NULL;
	default:
		return "nothing";
	}
}

static const struct td_option *find(const struct td_option *const *tables, const char *name, size_t n, char letter)
{
	const struct td_option *o;

	for (; *tables; tables++)
		for (o = *tables; o->kind != TD_OPT_END; o++)
			if (o->kind != TD_OPT_TITLE && (name ? strlen(o->name) == n && !memcmp(o->name, name, n) : letter && o->letter == letter))
				return o;
	return NULL;
}

/* A text from `column` on, broken at spaces. */
static void print_wrapped(FILE *f, const char *text, int column)
{
	int at = column;

	while (*text) {
		size_t n = strcspn(text, " ");

		if (at > column && at + 1 + (int)n > HELP_WIDTH) {
			fprintf(f, "\n%*s", column, "");
			at = column;
		} else if (at > column) {
			fputc(' ', f);
			at++;
		}
		fwrite(text, 1, n, f);
		at += (int)n;
		text += n + strspn(text + n, " ");
	}
	fputc('\n', f);
}

static void print_option(FILE *f, const struct td_option *o)
{
	char letter[8] = "    ", head[80];
	int n;

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	n = snprintf(head, sizeof(head), "  %s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
	fputs(head, f);
	if (n >= HELP_COLUMN)
		fprintf(f, "\n%*s", HELP_COLUMN, "");
	else
		fprintf(f, "%*s", HELP_COLUMN - n, "");
	print_wrapped(f, o->help, HELP_COLUMN);
}

static void print_help(FILE *f, const char *usage, const char *about, const struct td_option *const *tables)
{
	static const struct td_option help = {TD_OPT_FLAG, "help", 'h', NULL, "show this text", NULL, 0, NULL, 0};
	const struct td_option *o;

	fprintf(f, "usage: %s\n\n%s\n", usage, about);
	for (; *tables; tables++)
		for (o = *tables; o->kind != TD_OPT_END; o++)
			if (o->kind == TD_OPT_TITLE)
				fprintf(f, "\n%s\n", o->help);
			else
				print_option(f, o);
	print_option(f, &help);
}

struct place { /* in argv */
	int argc, i;
	char **argv;
};

/* An option at argv[i], long or a cluster of letters. NULL, or the sentence's end for a mistake (in `wrong`). */
static int option(struct place *at, const struct td_option *const *tables, char *wrong, size_t size)
{
	const char *arg = at->argv[at->i], *name = arg + 2, *value = NULL, *expected;
	int is_long = arg[1] == '-';
	size_t n = is_long ? strcspn(name, "=") : 1;
	const struct td_option *o;
	char shown[64];

	snprintf(shown, sizeof(shown), "%.*s", (int)(is_long ? n + 2 : 2), arg);
	o = find(tables, is_long ? name : NULL, n, is_long ? 0 : arg[1]);
	if (!o)
		return snprintf(wrong, size, "there is no option %s", shown);
	if (is_long && name[n] == '=')
		value = name + n + 1;
	else if (!is_long && arg[2])
		value = arg + 2;
	if (o->kind == TD_OPT_FLAG) {
		if (value)
			return snprintf(wrong, size, "option %s takes no value", shown);
		*(int *)o->to = o->value;
	} else if (o->kind == TD_OPT_SECONDS && o->value && !value && !(at->i + 1 < at->argc && parse_seconds(at->argv[at->i + 1], o->to))) {
		*(uint32_t *)o->to = UINT32_MAX;
	} else {
		if (!value && at->i + 1 >= at->argc)
			return snprintf(wrong, size, "option %s needs %s", shown, o->arg);
		if (!value)
			value = at->argv[++at->i];
		expected = store(o, value);
		if (expected)
			return snprintf(wrong, size, "option %s takes %s, not '%s'", shown, expected, value);
	}
	if (o->set)
		*o->set |= o->bit;
	return 0;
}

int td_options_parse(int argc, char **argv, const char *usage, const char *about, const struct td_option *const *tables, struct td_list *rest, int *code)
{
	struct place at = {argc, 1, argv};
	int only_rest = 0;
	char wrong[200];

	for (; at.i < argc; at.i++) {
		const char *arg = argv[at.i];

		if (only_rest || arg[0] != '-' || !arg[1]) {
			if (list_add(rest, arg)) {
				*code = TD_EXIT_FAILED;
				return -1;
			}
		} else if (!strcmp(arg, "--")) {
			only_rest = 1;
		} else if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
			print_help(stdout, usage, about, tables);
			*code = TD_EXIT_OK;
			return -1;
		} else if (option(&at, tables, wrong, sizeof(wrong))) {
			fprintf(stderr, "tandem %s: %s (see tandem %s --help)\n", argv[0], wrong, argv[0]);
			*code = TD_EXIT_USAGE;
			return -1;
		}
	}
	return 0;
}
