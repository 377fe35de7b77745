/*
 * rawclient.c: a client for tests that does what a good client never would. Reads a script from standard input, a command per line, and prints what the
 * daemon says, one line a message. Exit code 0 when every expectation held.
 *
 *   rawclient SOCKET < script
 *
 * Several connections: `connect N [rcvbuf=BYTES]` opens one and makes it current, `use N` changes, `close`; `greet N [rcvbuf=BYTES] [tenant=NAME]` connects, says
 * hello and is welcome. Commands on the current one:
 *   hello [version=N] [tenant=NAME]
 *   gen tag=N text="..." | ids=1,2*10 | chat="role:content"... [fields of Sampling, stream=0, deadline_ms=N, band=batch, cache=0, stop="..."...,
 *     bias=ID:X*N, stop_id=ID*N, json_object=1 | schema="..." | tool_choice=NAME | no_constraint=1, tool="..."..., thinking=0|1]
 *   tokenize tag=N text="..."                  detokenize tag=N ids=...
 *   cancel tag=N target=N                      resume tag=N position=N [request=N] [key=bad]   defaults: the last Accepted
 *   status [tag=N]
 *   bytes HEX                                  as they are
 *   frame HEX                                  with its length before it
 *   half BYTES                                 a frame of so many bytes, less the last one
 *   expect "text"                              the next message's line contains it
 *   until "text"                               read on until a line contains it
 *   wait_status "text"                         ask for the status until it contains it
 *   eof                                        the daemon closes (messages before it are printed)
 *   silence MS                                 nothing comes for so long
 *   total tag=N                                print all ids and the text of a request, as its deltas put them together
 *   noise N [seed=S]                           N connections, each with a good request in which some bits are wrong
 *   crowd N                                    open N more connections that say nothing
 *   places                                     from now on messages about places in the queue count; else they are passed over
 *   sleep MS        timeout MS        note TEXT        kill WORKER SIGNAL (by the pid of the last status)
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/clock.h"
#include "tests/lib/raw.h"

enum { CONNECTIONS = 64 };

struct raw_connection *raw;
static struct raw_connection conn[CONNECTIONS];
static const char *path;
static int places, timeout_ms = 60000; /* for what never comes; a busy machine is given time */

/* ---- receiving ---------------------------------------------------------------------------------------------------------------------- */

/* A whole frame out of what was read already. */
static int take_frame(int quiet)
{
	const uint8_t *payload;
	struct td_error err;
	size_t n;
	long taken = td_frame_feed(&raw->in, raw->raw + raw->raw_at, raw->raw_n - raw->raw_at);
	Tandem__ServerMessage *m;
	int skip;

	if (taken < 0)
		raw_fail("the daemon sent a frame that is too large");
	raw->raw_at += (size_t)taken;
	if (td_frame_peek(&raw->in, &payload, &n) != 1)
		return 0;
	m = td_server_message_unpack(payload, n, &err);
	if (!m)
		raw_fail("the daemon sent a message that cannot be read: %s", err.text);
	raw_describe(m);
	skip = m->body_case == TANDEM__SERVER_MESSAGE__BODY_QUEUE && !places;
	td_server_message_free(m);
	td_frame_drop(&raw->in);
	if (skip)
		return take_frame(quiet);
	if (!quiet)
		printf("%d: %s\n", (int)(raw - conn), raw_said);
	return 1;
}

/* 1 and a line in raw_said; 0 at the end; -1 when nothing came in time. */
static int receive(int wait_ms, int quiet)
{
	uint64_t end = td_now_us() + (uint64_t)wait_ms * 1000;

	for (;;) {
		struct pollfd p = {.fd = raw->fd, .events = POLLIN};
		uint64_t now = td_now_us();
		ssize_t k;

		if (take_frame(quiet))
			return 1;
		if (now >= end || poll(&p, 1, (int)((end - now) / 1000) + 1) == 0)
			return -1;
		k = recv(raw->fd, raw->raw, sizeof(raw->raw), 0);
		if (k <= 0)
			return 0;
		raw->raw_n = (size_t)k;
		raw->raw_at = 0;
	}
}

static void must_receive(const char *want, int quiet)
{
	int rc = receive(timeout_ms, quiet);

	if (rc == 0)
		raw_fail("the daemon closed the connection; wanted \"%s\"", want);
	if (rc < 0)
		raw_fail("nothing came for %d ms; wanted \"%s\"; the last was: %s", timeout_ms, want, raw_said);
}

static void do_expect(const char *want)
{
	must_receive(want, 0);
	if (!strstr(raw_said, want))
		raw_fail("wanted \"%s\", got: %s", want, raw_said);
}

static void do_eof(void)
{
	int rc;

	while ((rc = receive(timeout_ms, 0)) == 1)
		;
	if (rc < 0)
		raw_fail("the daemon did not close the connection within %d ms", timeout_ms);
	printf("%d: eof\n", (int)(raw - conn));
}

static void do_wait_status(const char *want)
{
	uint64_t end = td_now_us() + (uint64_t)timeout_ms * 1000;

	do {
		raw_status();
		do
			must_receive(want, 1);
		while (!strstr(raw_said, " status "));
		if (strstr(raw_said, want)) {
			printf("%d: %s\n", (int)(raw - conn), raw_said);
			return;
		}
		usleep(5000);
	} while (td_now_us() < end);
	raw_fail("the status did not become \"%s\" within %d ms; it is: %s", want, timeout_ms, raw_said);
}

static void do_kill(const char *worker, int number)
{
	char key[64], *at;

	snprintf(key, sizeof(key), "pid_%s=", worker);
	at = strstr(raw_said, key);
	if (!at)
		raw_fail("the last message was no status that tells %s", key);
	kill((pid_t)strtol(at + strlen(key), NULL, 10), number);
}

/* ---- connections -------------------------------------------------------------------------------------------------------------------- */

static int open_socket(int rcvbuf)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		raw_fail("cannot connect to %s: %s", path, strerror(errno));
	if (rcvbuf)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf));
	return fd;
}

static void do_close(void)
{
	if (raw->fd > 0)
		close(raw->fd);
	raw->fd = 0;
	td_frame_reader_finish(&raw->in);
	for (int i = 0; i < RAW_TAGS; i++) {
		free(raw->total[i].ids);
		free(raw->total[i].text);
		raw->total[i] = (struct raw_total){0};
	}
}

static void do_connect(int i)
{
	if (i < 0 || i >= CONNECTIONS)
		raw_fail("there are only %d connections", CONNECTIONS);
	raw = &conn[i];
	do_close();
	raw->fd = open_socket((int)raw_get_number("rcvbuf", 0));
	raw->raw_n = raw->raw_at = 0;
	td_frame_reader_init(&raw->in, TD_FRAME_MAX);
}

/* Spoils a few bytes or the length of a good frame; what the daemon answers is read and thrown away. */
static void do_noise(long times)
{
	static char good[] = "gen tag=3 text=\"some words\" max_tokens=3 stop=\"a b\" stop=xyz temperature=0.5 bias=5:1*3 stop_id=7*2 logprobs=3";
	static char chat[] = "gen tag=4 chat=\"system:be brief\" chat=\"user:hello there\" max_tokens=2 deadline_ms=5000 seed=9";
	uint32_t x = (uint32_t)raw_get_number("seed", 1);
	long answers = 0;

	for (long i = 0; i < times; i++) {
		char line[sizeof(good) > sizeof(chat) ? sizeof(good) : sizeof(chat)];

		do_connect(0);
		raw_hello();
		strcpy(line, i & 1 ? good : chat);
		raw_split(line);
		raw_spoil = x = x * 1664525u + 1013904223u;
		raw_gen();
		raw_spoil = 0;
		while (receive(answers % 8 ? 2 : 20, 1) == 1)
			answers++;
	}
	printf("%ld answers to %ld spoiled requests\n", answers, times);
}

static void command(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} plain[] = {{"hello", raw_hello}, {"gen", raw_gen}, {"cancel", raw_cancel}, {"resume", raw_resume}, {"status", raw_status}, {"tokenize", raw_tokenize},
		     {"detokenize", raw_detokenize}, {"eof", do_eof}, {"total", raw_total}};
	const char *name = raw_args[0].name, *value = raw_n_args > 1 ? raw_args[1].name : "";

	for (size_t i = 0; i < sizeof(plain) / sizeof(*plain); i++)
		if (!strcmp(name, plain[i].name)) {
			plain[i].run();
			return;
		}
	if (!strcmp(name, "connect")) {
		do_connect(atoi(value));
	} else if (!strcmp(name, "greet")) {
		do_connect(atoi(value));
		raw_hello();
		do_expect("welcome");
	} else if (!strcmp(name, "use")) {
		raw = &conn[atoi(value)];
	} else if (!strcmp(name, "close")) {
		do_close();
	} else if (!strcmp(name, "bytes") || !strcmp(name, "frame")) {
		raw_send_hex(value, *name == 'f');
	} else if (!strcmp(name, "half")) {
		raw_send_half((size_t)atol(value));
	} else if (!strcmp(name, "expect")) {
		do_expect(value);
	} else if (!strcmp(name, "until")) {
		do
			must_receive(value, 0);
		while (!strstr(raw_said, value));
	} else if (!strcmp(name, "wait_status")) {
		do_wait_status(value);
	} else if (!strcmp(name, "silence")) {
		int rc = receive(atoi(value), 0);

		if (rc >= 0)
			raw_fail("wanted silence, got: %s", rc ? raw_said : "the end");
	} else if (!strcmp(name, "crowd")) {
		for (int i = atoi(value); i > 0; i--)
			open_socket(0); /* closed by the exit */
	} else if (!strcmp(name, "noise")) {
		do_noise(atol(value));
	} else if (!strcmp(name, "sleep")) {
		usleep((useconds_t)atoi(value) * 1000);
	} else if (!strcmp(name, "places")) {
		places = 1;
	} else if (!strcmp(name, "timeout")) {
		timeout_ms = atoi(value);
	} else if (!strcmp(name, "note")) {
		printf("note %s\n", value);
	} else if (!strcmp(name, "kill") && raw_n_args == 3) {
		do_kill(value, atoi(raw_args[2].name));
	} else {
		raw_fail("no such command: %s", name);
	}
}

int main(int argc, char **argv)
{
	static char line[RAW_LINE];

	if (argc != 2) {
		fprintf(stderr, "usage: rawclient SOCKET < script\n");
		return 2;
	}
	path = argv[1];
	signal(SIGPIPE, SIG_IGN);
	while (fgets(line, sizeof(line), stdin)) {
		raw_line++;
		raw_split(line);
		if (raw_n_args && raw_args[0].name[0] != '#')
			command();
		fflush(stdout);
	}
	return 0;
}
