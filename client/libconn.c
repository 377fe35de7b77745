/*
 * libconn.c: the socket of a connection: connecting and greeting, bytes in and out, loss and reconnection.
 *
 * The socket never blocks; waiting is done in one place (wait_ready) for the greeting, and in libsync.c for blocking calls. Writing goes through one
 * buffer. A failed write is not yet a loss: the daemon may have said why before it closed, so reading decides.
 * What must never happen: SIGPIPE; a frame in memory beyond its cap; a callback after the caller was told that the connection is closed.
 */
#include "client/libtandem.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Reads per tandem_process(): a fast daemon must not keep a foreign event loop from its other work. */
enum { READS_PER_PROCESS = 16, READ_BYTES = 64 << 10, DEFAULT_TIMEOUT_MS = 5000, PROTOCOL_VERSION = 1 };

const char *tandem_version(void)
{
	return TANDEM_VERSION;
}

int td__error_out(const struct td_error *from, struct tandem_error *to)
{
	if (to) {
		memset(to, 0, sizeof(*to));
		to->code = from->code;
		snprintf(to->name, sizeof(to->name), "%s", td_error_name(from->code));
		memcpy(to->text, from->text, sizeof(to->text));
	}
	return from->code;
}

int tandem_socket_path(char *path, size_t size)
{
	const char *named = getenv("TANDEM_SOCKET"), *run = getenv("XDG_RUNTIME_DIR");
	int n;

	if (named && *named) {
		n = snprintf(path, size, "%s", named);
		return n < 0 || (size_t)n >= size ? TANDEM_E_TOO_LARGE : 0;
	}
	if (run && *run) {
		n = snprintf(path, size, "%s/tandem/tandem.sock", run);
		if (n < 0 || (size_t)n >= size)
			return TANDEM_E_TOO_LARGE;
		if (access(path, F_OK) == 0)
			return 0;
	}
	n = snprintf(path, size, "/run/tandem/tandem.sock");
	return n < 0 || (size_t)n >= size ? TANDEM_E_TOO_LARGE : 0;
}

static void lose(struct tandem *t)
{
	if (t->fd >= 0)
		close(t->fd);
	t->fd = -1;
	t->greeted = 0;
	t->out_off = t->out_n = 0;
	td_frame_reader_finish(&t->reader);
	td_frame_reader_init(&t->reader, TD_FRAME_MAX);
}

int td__queue_out(struct tandem *t, const uint8_t *data, size_t n, struct td_error *err)
{
	size_t size = t->out_size ? t->out_size : 4096;
	uint8_t *grown;

	if (t->out_off == t->out_n)
		t->out_off = t->out_n = 0;
	if (t->out_off && t->out_n + n > t->out_size) {
		memmove(t->out, t->out + t->out_off, t->out_n - t->out_off);
		t->out_n -= t->out_off;
		t->out_off = 0;
	}
	while (size < t->out_n + n)
		size *= 2;
	if (size > t->out_size) {
		grown = realloc(t->out, size);
		if (!grown)
			return td_error_set(err, TD_E_NOMEM, "no memory for a request of %zu bytes", n);
		t->out = grown;
		t->out_size = size;
	}
	memcpy(t->out + t->out_n, data, n);
	t->out_n += n;
	return 0;
}

int td__queue_message(struct tandem *t, const Tandem__ClientMessage *msg, struct td_error *err)
{
	size_t n;
	uint8_t *frame = td_client_message_pack(msg, &n);
	int rc;

	if (!frame)
		return td_error_set(err, TD_E_NOMEM, "no memory for a message");
	rc = td__queue_out(t, frame, n, err);
	free(frame);
	return rc;
}

static void flush(struct tandem *t)
{
	ssize_t n;

	while (t->fd >= 0 && t->out_off < t->out_n) {
		n = send(t->fd, t->out + t->out_off, t->out_n - t->out_off, MSG_NOSIGNAL);
		if (n > 0) {
			t->out_off += (size_t)n;
		} else if (n < 0 && errno == EINTR) {
			continue;
		} else {
			if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
				t->out_off = t->out_n = 0; /* nobody reads it any more; see the head */
			return;
		}
	}
}

static int welcome(struct tandem *t, Tandem__ServerMessage **msg, struct td_error *err)
{
	const Tandem__Welcome *w = (*msg)->welcome;

	if (w->version != PROTOCOL_VERSION)
		return td_error_set(err, TD_E_PROTOCOL, "%s speaks version %u of the protocol, this client version %d: use a client of the same release",
				    w->server, w->version, PROTOCOL_VERSION);
	t->info = (struct tandem_info){.server = w->server, .model = w->model, .tenant = w->tenant, .context = w->context,
				       .slots = w->slots, .max_frame = w->max_frame, .ready = w->ready};
	td_server_message_free(t->welcome);
	t->welcome = *msg;
	*msg = NULL;
	t->reader.cap = w->max_frame > TD_FRAME_MAX ? w->max_frame : TD_FRAME_MAX;
	t->greeted = 1;
	return 0;
}

/* One whole frame. An error here ends the connection. */
static int take(struct tandem *t, const uint8_t *payload, size_t n, struct td_error *err)
{
	Tandem__ServerMessage *msg = td_server_message_unpack(payload, n, err);
	int rc = 0;

	if (!msg)
		return td_error_prefix(err, "the daemon's answer can't be read");
	if (msg->body_case == TANDEM__SERVER_MESSAGE__BODY_WELCOME)
		rc = t->greeted ? td_error_set(err, TD_E_PROTOCOL, "the daemon sent a second greeting") : welcome(t, &msg, err);
	else if (!t->greeted && msg->body_case != TANDEM__SERVER_MESSAGE__BODY_ERROR)
		rc = td_error_set(err, TD_E_PROTOCOL, "the daemon didn't greet first: is this tandemd's socket? (%s)", t->path);
	else
		rc = td__dispatch(t, &msg, err);
	td_server_message_free(msg);
	return rc;
}

static int feed(struct tandem *t, const uint8_t *data, size_t n, struct td_error *err)
{
	const uint8_t *payload;
	size_t len;
	int rc;

	while (n && !t->closing) {
		long taken = td_frame_feed(&t->reader, data, n);

		if (taken < 0)
			return td_error_set(err, (int)taken, "the daemon sent a frame that is too large (over %zu bytes)", t->reader.cap);
		data += taken;
		n -= (size_t)taken;
		while (!t->closing && (rc = td_frame_peek(&t->reader, &payload, &len)) != 0) {
			if (rc < 0)
				return td_error_set(err, rc, "the daemon sent a frame that is too large (over %zu bytes)", t->reader.cap);
			rc = take(t, payload, len, err);
			if (rc)
				return rc;
			td_frame_drop(&t->reader);
		}
	}
	return 0;
}

/* Reads what is there. 0, TD_E_CLOSED at the end, or the code of a broken stream. */
static int fill(struct tandem *t, struct td_error *err)
{
	uint8_t buf[READ_BYTES];
	ssize_t n;
	int i, rc;

	for (i = 0; i < READS_PER_PROCESS && !t->closing; i++) {
		n = recv(t->fd, buf, sizeof(buf), 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (n <= 0) {
			if (t->lost.code) { /* told before closing (Error with tag 0) */
				*err = t->lost;
				return err->code;
			}
			return td_error_set(err, TD_E_CLOSED, "the daemon closed the connection%s%s", n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
		}
		rc = feed(t, buf, (size_t)n, err);
		if (rc)
			return rc;
	}
	return 0;
}

int td__process(struct tandem *t, struct td_error *err)
{
	int rc;

	if (t->busy)
		return td_error_set(err, TD_E_BUSY, "not from inside a callback");
	t->busy = 1;
	if (t->fd < 0) {
		td__calls_drop_cancelled(t);
		*err = t->lost;
		rc = err->code;
	} else {
		flush(t);
		rc = fill(t, err);
		if (!rc && !t->closing) {
			td__calls_expire(t);
			flush(t);
		}
		if (rc) {
			lose(t);
			t->lost = *err;
			td__calls_drop_cancelled(t);
		}
	}
	t->busy = 0;
	return rc;
}

int tandem_process(struct tandem *t, struct tandem_error *err)
{
	struct td_error e = {0};
	int rc = td__process(t, &e);

	td__error_out(&e, err);
	if (t->closing && !t->busy)
		td__free(t);
	return rc;
}

/* ---- connecting -------------------------------------------------------------------------------------------------------------------- */

static int wait_ready(int fd, short events, uint64_t until_us)
{
	struct pollfd p = {.fd = fd, .events = events};
	uint64_t now = td__now_us();
	int rc;

	if (now >= until_us)
		return 0;
	rc = poll(&p, fd < 0 ? 0 : 1, (int)((until_us - now + 999) / 1000));
	return rc < 0 && errno != EINTR ? -1 : 1;
}

static int connect_failed(const struct tandem *t, int cause, struct td_error *err)
{
	struct stat st;

	if (cause == ECONNREFUSED && stat(t->path, &st) == 0 && !S_ISSOCK(st.st_mode)) /* the system's word for a file as well as for a dead socket */
		cause = ENOTSOCK;
	switch (cause) {
	case ENOENT:
		return td_error_set(err, TD_E_NOT_FOUND, "no daemon at %s: start tandemd, or name its socket with --socket or TANDEM_SOCKET", t->path);
	case ECONNREFUSED:
		return td_error_set(err, TD_E_NOT_FOUND, "nobody listens at %s (left behind by a daemon that ended): start tandemd", t->path);
	case EACCES:
	case EPERM:
		return td_error_set(err, TD_E_PERMISSION, "no permission to use %s: ask for membership in the group that owns it", t->path);
	case EAGAIN:
		return td_error_set(err, TD_E_DEADLINE, "%s took no connection within %u ms: the daemon is stuck or overloaded", t->path, t->timeout_ms);
	case ENOTSOCK:
	case EPROTOTYPE:
		return td_error_set(err, TD_E_INVALID, "%s is not a socket that tandemd listens on", t->path);
	default:
		return td_error_set(err, TD_E_IO, "can't connect to %s: %s", t->path, strerror(cause));
	}
}

static int dial(struct tandem *t, uint64_t until_us, struct td_error *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	size_t n = strlen(t->path);
	int cause;

	if (n >= sizeof(addr.sun_path))
		return td_error_set(err, TD_E_TOO_LARGE, "the socket path has %zu bytes, a Unix socket allows %zu: %s", n, sizeof(addr.sun_path) - 1, t->path);
	memcpy(addr.sun_path, t->path, n + 1);
	t->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (t->fd < 0)
		return td_error_set(err, TD_E_IO, "can't make a socket: %s", strerror(errno));
	/* A full backlog is EAGAIN here, and no event tells when it has room again. */
	while (connect(t->fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		cause = errno;
		if (cause == EINTR)
			continue;
		if (cause != EAGAIN || td__now_us() >= until_us) {
			lose(t);
			return connect_failed(t, cause, err);
		}
		poll(NULL, 0, 10);
	}
	return 0;
}

static int greet(struct tandem *t, uint64_t until_us, struct td_error *err)
{
	Tandem__Hello hello = TANDEM__HELLO__INIT;
	Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
	int rc;

	hello.version = PROTOCOL_VERSION;
	hello.client = t->client;
	hello.tenant = t->tenant;
	msg.tag = t->next_tag++;
	msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_HELLO;
	msg.hello = &hello;
	rc = td__queue_message(t, &msg, err);
	while (!rc && !t->greeted) {
		flush(t);
		if (wait_ready(t->fd, t->out_off < t->out_n ? POLLIN | POLLOUT : POLLIN, until_us) <= 0)
			return td_error_set(err, TD_E_DEADLINE, "no greeting from %s within %u ms: is it tandemd's socket, and does the daemon still run?",
					    t->path, t->timeout_ms);
		rc = fill(t, err);
	}
	return rc;
}

int td__reconnect(struct tandem *t, struct td_error *err)
{
	uint64_t until_us = td__now_us() + (uint64_t)t->timeout_ms * 1000;
	int rc;

	if (t->busy)
		return td_error_set(err, TD_E_BUSY, "not from inside a callback");
	if (t->fd >= 0)
		return 0;
	t->busy = 1;
	td__calls_drop_cancelled(t);
	t->lost = (struct td_error){0};
	rc = dial(t, until_us, err);
	if (!rc)
		rc = greet(t, until_us, err);
	if (!rc)
		rc = td__calls_take_up(t, err);
	if (rc) {
		lose(t);
		t->lost = *err;
	}
	t->busy = 0;
	return rc;
}

int tandem_reconnect(struct tandem *t, struct tandem_error *err)
{
	struct td_error e = {0};
	int rc = td__reconnect(t, &e);

	td__error_out(&e, err);
	if (t->closing && !t->busy)
		td__free(t);
	return rc;
}

struct tandem *tandem_connect(const char *path, const struct tandem_options *options, struct tandem_error *err)
{
	static const struct tandem_options defaults;
	const struct tandem_options *o = options ? options : &defaults;
	struct tandem *t = calloc(1, sizeof(*t));
	struct td_error e = {0};
	char found[4096];

	td_error_set(&e, TD_E_NOMEM, "no memory for a connection");
	if (!t)
		goto failed;
	t->fd = -1;
	t->next_tag = 1;
	td_frame_reader_init(&t->reader, TD_FRAME_MAX);
	if (!path && tandem_socket_path(found, sizeof(found))) {
		td_error_set(&e, TD_E_TOO_LARGE, "the socket path in the environment is too long");
		goto failed;
	}
	t->path = strdup(path ? path : found);
	t->client = strdup(o->client ? o->client : "libtandem " TANDEM_VERSION);
	t->tenant = o->tenant ? strdup(o->tenant) : NULL;
	if (!t->path || !t->client || (o->tenant && !t->tenant))
		goto failed;
	t->timeout_ms = o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
	t->retry_ms = o->retry_ms;
	e = (struct td_error){0};
	if (td__reconnect(t, &e))
		goto failed;
	td__error_out(&e, err);
	return t;
failed:
	td__error_out(&e, err);
	td__free(t);
	return NULL;
}

void td__free(struct tandem *t)
{
	if (!t)
		return;
	while (t->call)
		td__call_end(t, t->call);
	if (t->fd >= 0)
		close(t->fd);
	td_frame_reader_finish(&t->reader);
	td_server_message_free(t->welcome);
	free(t->out);
	free(t->path);
	free(t->client);
	free(t->tenant);
	free(t);
}

void tandem_close(struct tandem *t)
{
	if (t && t->busy)
		t->closing = 1;
	else
		td__free(t);
}

const struct tandem_info *tandem_info(const struct tandem *t)
{
	return &t->info;
}

int tandem_fd(const struct tandem *t)
{
	return t->fd;
}

int tandem_want(const struct tandem *t)
{
	return t->fd < 0 ? 0 : t->out_off < t->out_n ? TANDEM_READ | TANDEM_WRITE : TANDEM_READ;
}
