/*
 * fake_daemon.h: a daemon played by a thread that follows a script, for libtandem's tests: real sockets and real frames, and every misbehaviour
 * that a test can think of. A script takes connections, expects messages and answers them; when it returns, its connection is closed.
 * A script that is told something unexpected aborts: the test fails with its name.
 */
#ifndef TD_FAKE_DAEMON_H
#define TD_FAKE_DAEMON_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/tandem.h"
#include "proto/frame.h"

struct fake {
	char dir[64], path[96];
	int listener, fd;
	pthread_t thread;
	void (*script)(struct fake *f);
	struct td_frame_reader reader;
	size_t piece; /* bytes per write, 0 = all at once */
	uint32_t max_frame;
};

#define FAKE_CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: the fake daemon expected %s\n", __FILE__, __LINE__, #cond); \
			abort(); \
		} \
	} while (0)

/* `piece` and `max_frame` are settings; the rest is made here. */
void fake_start(struct fake *f, void (*script)(struct fake *f));
void fake_stop(struct fake *f);

/* ---- for scripts ------------------------------------------------------------------------------------------------------------------------ */

void fake_accept(struct fake *f); /* hangs up on the connection before */
void fake_hangup(struct fake *f);
void fake_greet(struct fake *f); /* takes a connection and greets it */
uint64_t fake_asked(struct fake *f); /* greets, and is asked to generate: the tag */
uint64_t fake_begin(struct fake *f); /* the same, and accepts it as request 1 with key "k" */

/* The next message of the client, NULL when it hung up. Free with td_client_message_free. */
Tandem__ClientMessage *fake_recv(struct fake *f);
Tandem__ClientMessage *fake_expect(struct fake *f, Tandem__ClientMessage__BodyCase kind);
/* Like fake_expect, and throws the message away: its tag. */
uint64_t fake_expect_tag(struct fake *f, Tandem__ClientMessage__BodyCase kind);
/* Until the client hangs up, whatever it says. */
void fake_drain(struct fake *f);

void fake_raw(struct fake *f, const void *data, size_t n);
void fake_send(struct fake *f, uint64_t tag, Tandem__ServerMessage *m);
void fake_welcome(struct fake *f, uint64_t tag);
void fake_accepted(struct fake *f, uint64_t tag, uint64_t request, const char *key);
/* n tokens with ids position, position + 1, ... */
void fake_delta(struct fake *f, uint64_t tag, uint32_t position, size_t n, const char *text);
void fake_finish(struct fake *f, uint64_t tag, Tandem__FinishReason reason, uint32_t output_tokens);
void fake_error(struct fake *f, uint64_t tag, const char *code, const char *text, uint32_t retry_after_ms);

/* ---- what a client saw of one call ------------------------------------------------------------------------------------------------- */

struct seen {
	char text[4096];
	int32_t id[256];
	size_t n_ids;
	int accepted, finished, failed, deltas;
	int cancel_at; /* deltas: ask to cancel at this one */
	struct tandem_finish finish;
	struct tandem_error error;
};

/* Its callbacks fail the test when an end comes twice, or a delta out of its place. */
struct tandem_handler seen_handler(struct seen *s);

/* Runs the event-loop form until *done (0), even when the daemon hung up right after, or an error. */
int pump(struct tandem *t, const int *done, struct tandem_error *err);

/* ---- talks: one client and one script ---------------------------------------------------------------------------------------------- */

struct talk {
	struct fake f;
	struct seen s; /* by h */
	struct tandem_handler h;
	struct tandem *t;
	struct tandem_error err;
};

extern const struct tandem_request hello; /* a request with nothing but a text */

/* Settings of k->f and k->s are kept. Fails the test when there is no connection. */
void talk_open(struct talk *k, void (*script)(struct fake *f), const struct tandem_options *o);
/* Generates for `hello`, blocking. */
int talk_ask(struct talk *k);
void talk_close(struct talk *k);

#endif
