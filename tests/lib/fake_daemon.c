/*
 * fake_daemon.c: the thread that plays a daemon, the messages it sends, and what a client's callbacks saw (fake_daemon.h).
 *
 * Owns the socket and its folder from fake_start to fake_stop. A client that hangs up is no failure here: it is what some tests are about.
 */
#include "tests/lib/fake_daemon.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

const struct tandem_request hello = {.prompt = {.text = "hello"}};

void fake_raw(struct fake *f, const void *data, size_t n)
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

void fake_send(struct fake *f, uint64_t tag, Tandem__ServerMessage *m)
{
	size_t n;
	uint8_t *frame;

	m->tag = tag;
	frame = td_server_message_pack(m, &n);
	FAKE_CHECK(frame);
	fake_raw(f, frame, n);
	free(frame);
}

Tandem__ClientMessage *fake_recv(struct fake *f)
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

Tandem__ClientMessage *fake_expect(struct fake *f, Tandem__ClientMessage__BodyCase kind)
{
	Tandem__ClientMessage *m = fake_recv(f);

	FAKE_CHECK(m);
	FAKE_CHECK(m->body_case == kind);
	return m;
}

uint64_t fake_expect_tag(struct fake *f, Tandem__ClientMessage__BodyCase kind)
{
	Tandem__ClientMessage *m = fake_expect(f, kind);
	uint64_t tag = m->tag;

	td_client_message_free(m);
	return tag;
}

void fake_drain(struct fake *f)
{
	Tandem__ClientMessage *m;

	while ((m = fake_recv(f)))
		td_client_message_free(m);
}

void fake_hangup(struct fake *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
	td_frame_reader_finish(&f->reader);
	td_frame_reader_init(&f->reader, TD_FRAME_MAX);
}

void fake_accept(struct fake *f)
{
	fake_hangup(f);
	f->fd = accept(f->listener, NULL, NULL);
	FAKE_CHECK(f->fd >= 0);
}

void fake_welcome(struct fake *f, uint64_t tag)
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

void fake_greet(struct fake *f)
{
	fake_accept(f);
	fake_welcome(f, fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_HELLO));
}

void fake_accepted(struct fake *f, uint64_t tag, uint64_t request, const char *key)
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

uint64_t fake_asked(struct fake *f)
{
	fake_greet(f);
	return fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
}

uint64_t fake_begin(struct fake *f)
{
	uint64_t tag = fake_asked(f);

	fake_accepted(f, tag, 1, "k");
	return tag;
}

void fake_delta(struct fake *f, uint64_t tag, uint32_t position, size_t n, const char *text)
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

void fake_finish(struct fake *f, uint64_t tag, Tandem__FinishReason reason, uint32_t output_tokens)
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

void fake_error(struct fake *f, uint64_t tag, const char *code, const char *text, uint32_t retry_after_ms)
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

static void *thread(void *arg)
{
	struct fake *f = arg;

	f->script(f);
	fake_hangup(f);
	return NULL;
}

void fake_start(struct fake *f, void (*script)(struct fake *f))
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
	FAKE_CHECK(pthread_create(&f->thread, NULL, thread, f) == 0);
}

void fake_stop(struct fake *f)
{
	pthread_join(f->thread, NULL);
	close(f->listener);
	unlink(f->path);
	rmdir(f->dir);
}

/* ---- what a client saw ---------------------------------------------------------------------------------------------------------------- */

static void seen_accepted(void *ctx, const struct tandem_accepted *a)
{
	struct seen *s = ctx;

	assert_int_equal(s->deltas, 0);
	assert_int_equal(a->prompt_tokens, 5);
	s->accepted++;
}

static int seen_delta(void *ctx, const struct tandem_delta *d)
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

static void seen_finish(void *ctx, const struct tandem_finish *f)
{
	struct seen *s = ctx;

	assert_int_equal(s->finished + s->failed, 0);
	s->finish = *f;
	s->finished++;
}

static void seen_error(void *ctx, const struct tandem_error *e)
{
	struct seen *s = ctx;

	assert_int_equal(s->finished + s->failed, 0);
	s->error = *e;
	s->failed++;
}

struct tandem_handler seen_handler(struct seen *s)
{
	return (struct tandem_handler){.ctx = s, .accepted = seen_accepted, .delta = seen_delta, .finish = seen_finish, .error = seen_error};
}

int pump(struct tandem *t, const int *done, struct tandem_error *err)
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

/* ---- talks ----------------------------------------------------------------------------------------------------------------------------- */

void talk_open(struct talk *k, void (*script)(struct fake *f), const struct tandem_options *o)
{
	k->h = seen_handler(&k->s);
	fake_start(&k->f, script);
	k->t = tandem_connect(k->f.path, o, &k->err);
	assert_non_null(k->t);
}

int talk_ask(struct talk *k)
{
	return tandem_generate(k->t, &hello, &k->h, &k->err);
}

void talk_close(struct talk *k)
{
	tandem_close(k->t);
	fake_stop(&k->f);
}
