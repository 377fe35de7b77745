/*
 * fake_daemon.h: a daemon played by a thread that follows a script, for libtandem's tests: real sockets and real frames, and every misbehaviour
 * that a test can think of. A script takes connections, expects messages and answers them; when it returns, its connection is closed.
 * A script that is told something unexpected aborts: the test fails with its name.
 */
#ifndef TD_FAKE_DAEMON_H
#define TD_FAKE_DAEMON_H

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
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

static inline void fake_raw(struct fake *f, const void *data, size_t n)
{
	const uint8_t *p = data;
	size_t piece = f->piece ? f->piece : n;

	while (n) {
		ssize_t sent = send(f->fd, p, n < piece ? n : piece, MSG_NOSIGNAL);

		if (sent < 0)
			return; /* the client hung up: its own business */
		p += sent;
		n -= (size_t)sent;
		if (f->piece)
			usleep(200);
	}
}

static inline void fake_send(struct fake *f, uint64_t tag, Tandem__ServerMessage *m)
{
	size_t n;
	uint8_t *frame;

	m->tag = tag;
	frame = td_server_message_pack(m, &n);
	FAKE_CHECK(frame);
	fake_raw(f, frame, n);
	free(frame);
}

/* The next message of the client, NULL when it hung up. Free with td_client_message_free. */
static inline Tandem__ClientMessage *fake_recv(struct fake *f)
{
	const uint8_t *payload;
	uint8_t byte[1];
	struct td_error err;
	Tandem__ClientMessage *m;
	size_t n;

	while (!td_frame_peek(&f->reader, &payload, &n)) {
		if (recv(f->fd, byte, 1, 0) != 1)
			return NULL;
		FAKE_CHECK(td_frame_feed(&f->reader, byte, 1) == 1);
	}
	m = td_client_message_unpack(payload, n, &err);
	if (!m)
		fprintf(stderr, "fake daemon: %s\n", err.text);
	FAKE_CHECK(m);
	td_frame_drop(&f->reader);
	return m;
}

static inline Tandem__ClientMessage *fake_expect(struct fake *f, Tandem__ClientMessage__BodyCase kind)
{
	Tandem__ClientMessage *m = fake_recv(f);

	FAKE_CHECK(m);
	FAKE_CHECK(m->body_case == kind);
	return m;
}

/* Like fake_expect, and throws the message away: its tag. */
static inline uint64_t fake_expect_tag(struct fake *f, Tandem__ClientMessage__BodyCase kind)
{
	Tandem__ClientMessage *m = fake_expect(f, kind);
	uint64_t tag = m->tag;

	td_client_message_free(m);
	return tag;
}

/* Until the client hangs up, whatever it says. */
static inline void fake_drain(struct fake *f)
{
	Tandem__ClientMessage *m;

	while ((m = fake_recv(f)))
		td_client_message_free(m);
}

static inline void fake_hangup(struct fake *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
	td_frame_reader_finish(&f->reader);
	td_frame_reader_init(&f->reader, TD_FRAME_MAX);
}

static inline void fake_accept(struct fake *f)
{
	fake_hangup(f);
	f->fd = accept(f->listener, NULL, NULL);
	FAKE_CHECK(f->fd >= 0);
}

static inline void fake_welcome(struct fake *f, uint64_t tag)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Welcome w = TANDEM__WELCOME__INIT;

	w.version = 1;
	w.server = (char *)"fake 1";
	w.model = (char *)"none";
	w.context = 512;
	w.slots = 3;
	w.tenant = (char *)"you";
	w.max_frame = f->max_frame;
	w.ready = 1;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_WELCOME;
	m.welcome = &w;
	fake_send(f, tag, &m);
}

/* Takes a connection and greets it. */
static inline void fake_greet(struct fake *f)
{
	fake_accept(f);
	fake_welcome(f, fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_HELLO));
}

static inline void fake_accepted(struct fake *f, uint64_t tag, uint64_t request, const char *key)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Accepted a = TANDEM__ACCEPTED__INIT;

	a.request = request;
	a.key.data = (uint8_t *)key;
	a.key.len = strlen(key);
	a.prompt_tokens = 5;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_ACCEPTED;
	m.accepted = &a;
	fake_send(f, tag, &m);
}

/* n tokens with ids position, position + 1, ... */
static inline void fake_delta(struct fake *f, uint64_t tag, uint32_t position, size_t n, const char *text)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Delta d = TANDEM__DELTA__INIT;
	int32_t id[64];
	size_t i;

	for (i = 0; i < n; i++)
		id[i] = (int32_t)(position + i);
	d.position = position;
	d.id = id;
	d.n_id = n;
	d.text = (char *)text;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_DELTA;
	m.delta = &d;
	fake_send(f, tag, &m);
}

static inline void fake_finish(struct fake *f, uint64_t tag, Tandem__FinishReason reason, uint32_t output_tokens)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Finish fin = TANDEM__FINISH__INIT;
	Tandem__Usage u = TANDEM__USAGE__INIT;

	u.prompt_tokens = 5;
	u.output_tokens = output_tokens;
	u.cycles = 2;
	u.drafted = 30;
	u.accepted = 4;
	u.seed = UINT64_MAX;
	fin.reason = reason;
	fin.usage = &u;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_FINISH;
	m.finish = &fin;
	fake_send(f, tag, &m);
}

static inline void fake_error(struct fake *f, uint64_t tag, const char *code, const char *text, uint32_t retry_after_ms)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Error e = TANDEM__ERROR__INIT;

	e.code = (char *)code;
	e.text = (char *)text;
	e.has_retry_after_ms = retry_after_ms > 0;
	e.retry_after_ms = retry_after_ms;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_ERROR;
	m.error = &e;
	fake_send(f, tag, &m);
}

static inline void *fake_thread(void *arg)
{
	struct fake *f = arg;

	f->script(f);
	fake_hangup(f);
	return NULL;
}

static inline void fake_start(struct fake *f, void (*script)(struct fake *f))
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	size_t piece = f->piece;
	uint32_t max_frame = f->max_frame ? f->max_frame : TD_FRAME_MAX;

	*f = (struct fake){.dir = "/tmp/td_fake.XXXXXX", .script = script, .fd = -1, .piece = piece, .max_frame = max_frame};
	FAKE_CHECK(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/sock", f->dir);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", f->path);
	td_frame_reader_init(&f->reader, TD_FRAME_MAX);
	f->listener = socket(AF_UNIX, SOCK_STREAM, 0);
	FAKE_CHECK(bind(f->listener, (struct sockaddr *)&addr, sizeof(addr)) == 0 && listen(f->listener, 8) == 0);
	FAKE_CHECK(pthread_create(&f->thread, NULL, fake_thread, f) == 0);
}

static inline void fake_stop(struct fake *f)
{
	pthread_join(f->thread, NULL);
	close(f->listener);
	unlink(f->path);
	rmdir(f->dir);
}

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

static inline void seen_accepted(void *ctx, const struct tandem_accepted *a)
{
	struct seen *s = ctx;

	assert_int_equal(s->deltas, 0);
	assert_int_equal(a->prompt_tokens, 5);
	s->accepted++;
}

static inline int seen_delta(void *ctx, const struct tandem_delta *d)
{
	struct seen *s = ctx;
	size_t i;

	assert_int_equal(s->finished + s->failed, 0);
	assert_int_equal(d->position, s->n_ids);
	for (i = 0; i < d->n_ids; i++)
		s->id[s->n_ids++] = d->id[i];
	strcat(s->text, d->text);
	return ++s->deltas == s->cancel_at;
}

static inline void seen_finish(void *ctx, const struct tandem_finish *f)
{
	struct seen *s = ctx;

	assert_int_equal(s->finished + s->failed, 0);
	s->finish = *f;
	s->finished++;
}

static inline void seen_error(void *ctx, const struct tandem_error *e)
{
	struct seen *s = ctx;

	assert_int_equal(s->finished + s->failed, 0);
	s->error = *e;
	s->failed++;
}

static inline struct tandem_handler seen_handler(struct seen *s)
{
	return (struct tandem_handler){.ctx = s, .accepted = seen_accepted, .delta = seen_delta, .finish = seen_finish, .error = seen_error};
}

/* Runs the event-loop form until *done (0), even when the daemon hung up right after, or an error. */
static inline int pump(struct tandem *t, const int *done, struct tandem_error *err)
{
	int rc = 0;

	while (!*done && !(rc = tandem_process(t, err))) {
		int want = tandem_want(t);
		struct pollfd p = {.fd = tandem_fd(t), .events = (short)((want & TANDEM_READ ? POLLIN : 0) | (want & TANDEM_WRITE ? POLLOUT : 0))};

		if (!*done)
			poll(&p, 1, tandem_timeout_ms(t));
	}
	return *done ? 0 : rc;
}

#endif
