/*
 * command.h: what the sub-commands of `tandem` share: the connection, waiting with Ctrl-C, the sampling options, texts and JSON.
 *
 * A sub-command is int td_cmd_NAME(argc, argv) with argv[0] = its name; it returns the exit code. Results go to stdout, everything said to people
 * to stderr. Ctrl-C ends the program, except inside td_call_generate() and in chat.
 */
#ifndef TD_COMMAND_H
#define TD_COMMAND_H

#include <jansson.h>

#include "client/options.h"
#include "client/tandem.h"

int td_cmd_run(int argc, char **argv);
int td_cmd_chat(int argc, char **argv);
int td_cmd_status(int argc, char **argv);
int td_cmd_metrics(int argc, char **argv);
int td_cmd_top(int argc, char **argv);
int td_cmd_tokenize(int argc, char **argv);
int td_cmd_doctor(int argc, char **argv);
int td_cmd_bench(int argc, char **argv);

/* ---- progress.c -------------------------------------------------------------------------------------------------------------------- */

struct td_progress {
	const char *command;
	int quiet;
	int drawn; /* a bar stands on the terminal's line */
	char last[128]; /* what was told last */
};
void td_progress_bar(char *out, int cells, uint64_t done, uint64_t total); /* "[###...]": cells + 3 bytes */
void td_progress_show(struct td_progress *p, const struct tandem_status *s); /* on stderr, what is still missing */
void td_progress_place(struct td_progress *p, uint32_t before); /* on a terminal: how many start earlier */
void td_progress_end(struct td_progress *p); /* takes the bar away */

/* ---- common.c ---------------------------------------------------------------------------------------------------------------------- */

/* One line on stderr: "tandem NAME: sentence". Returns the exit code that belongs to the error. */
int td_say_error(const char *command, const struct tandem_error *e);

/* One line of figures on stderr. */
void td_say_stats(const struct tandem_finish *f);

struct td_text { /* data NULL or a string of n bytes; free(data) */
	char *data;
	size_t n, size;
};
int td_text_add(struct td_text *t, const char *more); /* -1: no memory, nothing changed */

struct td_common { /* options of every command that talks to the daemon */
	const char *socket, *tenant;
	int json; /* 1: errors go to stdout as well, as {"error": ...}; 2: as an event of a stream */
};
enum { TD_COMMON_OPTIONS = 4 };
void td_common_options(struct td_common *c, struct td_option table[TD_COMMON_OPTIONS]);
/* td_say_error, and for a reader of stdout as c->json wants it. */
int td_common_say_error(const struct td_common *c, const char *command, const struct tandem_error *e);
/* NULL after telling why (with *code). */
struct tandem *td_common_connect(const struct td_common *c, const char *command, int *code);

struct td_generation { /* options of what generates */
	struct tandem_sampling sampling;
	struct td_list stop, stop_id, bias;
	int greedy;
	int thinking; /* enum tandem_thinking */
	uint32_t deadline_ms;
	const char *band_name;
	enum tandem_band band; /* from its name, by td_generation_ready */
	int no_cache;
	int quiet;
};
enum { TD_GENERATION_OPTIONS = 27 };
void td_generation_options(struct td_generation *g, struct td_option table[TD_GENERATION_OPTIONS]);
/* Turns the lists into g->sampling's arrays. 0, or -1 after telling what is wrong. */
int td_generation_ready(struct td_generation *g, const char *command);
void td_generation_finish(struct td_generation *g);

/*
 * Submits and waits for the end. Ctrl-C cancels the request (the end then comes as usual), a second one gives up at once. A lost connection is taken
 * up again for some seconds. While the model loads *p shows how far it is. 0, or the code that is in *err; *t is closed and NULL when the connection is
 * of no use any more.
 */
int td_call_generate(struct tandem **t, const struct tandem_request *r, const struct tandem_handler *h, struct td_progress *p, struct tandem_error *err);

/* What an option's text stands for: itself, or after @ the contents of a file (@@ for a text that begins with @). malloc'd; NULL after telling why. */
char *td_option_text(const char *text, const char *option, const char *command);
/* The words joined by spaces, "-" standing for stdin's text on lines of its own; no words = stdin. NULL after telling why. */
char *td_prompt_text(const struct td_list *words, const char *command);
/* 0 after flushing stdout, or -1 after telling that it can't be written. */
int td_flush_stdout(const char *command);

/* ---- chat_file.c ------------------------------------------------------------------------------------------------------------------- */

/* An array of messages that are all well formed, a system message only in front; NULL after telling why. */
json_t *td_chat_file_read(const char *path);
int td_chat_file_write(const char *path, const json_t *messages); /* 0, or -1 after telling why */

/* ---- json.c: new references; NULL when out of memory ------------------------------------------------------------------------------- */

json_t *td_json_finish(const struct tandem_finish *f);
json_t *td_json_error(const struct tandem_error *e);
json_t *td_json_ids(const int32_t *id, size_t n);
json_t *td_json_logprobs(const struct tandem_delta *d);
json_t *td_json_status(const struct tandem_status *s);
/* One line on stdout; takes the reference. */
void td_json_print(json_t *j, size_t flags);
const char *td_reason_name(enum tandem_reason reason);
double td_acceptance(uint64_t accepted, uint64_t cycles); /* mean acceptance length, 0 without cycles */

#endif
