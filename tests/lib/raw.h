/*
 * raw.h: the parts of rawclient, a client for tests that does what a good client never would (tests/tools/rawclient.c says what its scripts hold):
 * raw_script.c takes a line apart, raw_send.c makes messages of it, raw_say.c makes a line of each answer. What they share is one script's state;
 * there is one script in a process.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"

enum { RAW_ARGS = 64, RAW_TAGS = 256, RAW_LINE = 1 << 20, RAW_READ = 4096 };

struct raw_arg {
	char *name, *value;
};

struct raw_total {
	uint32_t n_ids;
	char *ids, *text;
	int gap; /* a delta did not follow the one before */
};

struct raw_connection {
	int fd;
	struct td_frame_reader in;
	uint8_t raw[RAW_READ];
	size_t raw_n, raw_at;
	struct raw_total total[RAW_TAGS];
};

extern struct raw_connection *raw; /* the current one */

/* ---- the script's line: args[0] is the command, of name=value both are kept --------------------------------------------------------- */
extern struct raw_arg raw_args[RAW_ARGS];
extern int raw_n_args, raw_line;

/* Ends the program with a sentence and the line's number. */
_Noreturn void raw_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The line is kept in pieces; it must live as long as they are looked at. */
void raw_split(char *line);
const char *raw_get(const char *name);
uint64_t raw_get_number(const char *name, uint64_t otherwise);
/* ids=1,2*10, malloc'd. */
int32_t *raw_get_ids(size_t *n);

/* ---- sending, by the line's arguments ------------------------------------------------------------------------------------------------ */
extern uint32_t raw_spoil; /* not 0: the next message is damaged, by this seed */

void raw_send_bytes(const uint8_t *data, size_t n);
void raw_send_hex(const char *hex, int framed);
void raw_send_half(size_t n);
void raw_gen(void);
void raw_resume(void);
void raw_hello(void);
void raw_status(void);
void raw_cancel(void);
void raw_tokenize(void);
void raw_detokenize(void);

/* ---- answers ---------------------------------------------------------------------------------------------------------------------------- */
extern char raw_said[RAW_LINE]; /* the last answer as a line */
extern uint64_t raw_last_request;
extern uint8_t raw_last_key[64];
extern size_t raw_last_key_n;

void raw_describe(const Tandem__ServerMessage *m);
/* Prints what the deltas of a request gave together. */
void raw_total(void);
