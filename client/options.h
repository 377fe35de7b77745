/*
 * options.h: the options of a sub-command as one table, from which both the parsing and the --help text come, so they can't disagree.
 *
 * A table is an array that ends with an entry of kind TD_OPT_END. A command passes several: its own and the shared ones. Values are stored
 * through pointers; strings and lists point into argv, which must outlive them. Lists are malloc'd: td_list_finish.
 */
#ifndef TD_OPTIONS_H
#define TD_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum td_option_kind {
	TD_OPT_END,
	TD_OPT_TITLE, /* only a heading of the help text, in `help` */
	TD_OPT_FLAG, /* int *: becomes `value` */
	TD_OPT_INT, /* int32_t * */
	TD_OPT_COUNT, /* uint32_t *, 0 and up */
	TD_OPT_SEED, /* uint64_t * */
	TD_OPT_FLOAT, /* float * */
	TD_OPT_SECONDS, /* uint32_t *, in milliseconds; given in seconds, fractions allowed. value 1: may be left out, which is UINT32_MAX */
	TD_OPT_TEXT, /* const char ** */
	TD_OPT_LIST, /* struct td_list *, may be given several times */
};

struct td_option {
	enum td_option_kind kind;
	const char *name; /* without dashes */
	char letter; /* 0 = none */
	const char *arg; /* what the value is called in the help text */
	const char *help;
	void *to;
	int value; /* FLAG, SECONDS */
	uint32_t *set; /* not NULL: `bit` is added there when the option is given */
	uint32_t bit;
};

struct td_list {
	const char **item;
	size_t n, size;
};
void td_list_finish(struct td_list *l);

/* Exit codes of every sub-command. */
enum {
	TD_EXIT_OK = 0,
	TD_EXIT_FAILED = 1,
	TD_EXIT_USAGE = 2,
	TD_EXIT_NO_DAEMON = 3,
	TD_EXIT_LATER = 4,
	TD_EXIT_INTERRUPTED = 130,
};

/* Number parsing for values that are parts of an option's text. 1 when the whole text is a number within the type. */
int td_parse_int(const char *text, int32_t *v);
int td_parse_float(const char *text, float *v);

/*
 * Parses argv[1..]; what isn't an option lands in *rest (in order). `usage` and `about` head the help text.
 * TD_EXIT_OK: go on. Otherwise *code is what the program exits with: -1 is returned after --help (code 0) and after a mistake that has been told (2).
 */
int td_options_parse(int argc, char **argv, const char *usage, const char *about, const struct td_option *const *tables, struct td_list *rest, int *code);

#endif
