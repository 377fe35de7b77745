/*
 * top.h: `tandem top` in two parts: top_view.c makes lines of two answers of the daemon, cmd_top.c has the terminal, the keys and the connection.
 *
 * A line is plain text with one style for the whole of it. What comes from the daemon is made harmless on the way in: no control character ever reaches
 * the terminal.
 */
#ifndef TD_TOP_H
#define TD_TOP_H

#include "client/command.h"

enum { TD_TOP_LINES = 128, TD_TOP_WIDTH = 400 };

enum td_top_style { TD_TOP_PLAIN, TD_TOP_BOLD, TD_TOP_REVERSE };

struct td_top_screen {
	int n, width;
	struct {
		char text[4 * TD_TOP_WIDTH + 1]; /* UTF-8, at most `width` characters */
		enum td_top_style style;
	} line[TD_TOP_LINES];
};

/* What tenants are sorted by; the letters are keys of the live screen and values of --sort. */
#define TD_TOP_SORTS(X) \
	X(NAME, "name", 'n') X(RUNNING, "running", 'r') X(WAITING, "waiting", 'w') X(TOKENS, "tokens", 't') \
	X(DEVICE, "device", 'd') X(ACCEPT, "accept", 'a') X(WASTED, "wasted", 'x')
enum td_top_sort {
#define X(id, name, key) TD_TOP_BY_##id,
	TD_TOP_SORTS(X)
#undef X
	TD_TOP_SORT_COUNT,
};
extern const char *const td_top_sort_name[TD_TOP_SORT_COUNT];
extern const char td_top_sort_key[TD_TOP_SORT_COUNT];

void td_top_add(struct td_top_screen *s, enum td_top_style style, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Rates between the two answers; before NULL, or of another life of the daemon: since its start. */
void td_top_view(struct td_top_screen *s, const struct tandem_status *before, const struct tandem_status *now, enum td_top_sort by);

#endif
