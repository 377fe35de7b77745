/*
 * control.c: the control channel (nanomsg PAIR over ipc://) and the fd socket (SCM_RIGHTS).
 *
 * nanomsg hands a message to the kernel inside nn_send when the pipe is idle; a send here waits for that, so that BUSY means a peer that does
 * not read. On the receiving side, though, a message lies in the pipe until it is asked for, and a pipe whose peer hangs up is dropped with what
 * lies in it (seen with 1.1.5: the last message before an exit arrived in about half of the runs). So the last word, Failure, is followed by a
 * `sync` that the receiver's td_control_recv answers, and the sender stays until then.
 * nanomsg does not tell the peer's death either: it reconnects in silence. tandemd learns it from SIGCHLD, a worker from the fd socket's end.
 * What must never happen: tandemd waiting for a worker here for longer than 2 * SEND_WAIT_MS.
 */
#include "engine/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <nanomsg/nn.h>
#include <nanomsg/pair.h>

#include "engine/clock.h"

enum {
	MESSAGE_MAX = 4 << 20, /* checksums of an arena are the largest thing said */
	SEND_WAIT_MS = 10,
	CONNECT_WAIT_MS = 5000,
	LAST_WORD_MS = 2000,
	NAME_BYTES = 32,
};

static int64_t now_ms(void)
{
	return (int64_t)(td_now_us() / 1000);
}

/* poll() that goes on after signals. timeout_ms < 0 = for ever. Returns revents, 0 at the deadline. */
static int wait_for(int fd, short events, int timeout_ms)
{
	int64_t end = now_ms() + timeout_ms;
	struct pollfd p = {.fd = fd, .events = events};

	for (;;) {
		int64_t left = end - now_ms();
		int rc = poll(&p, 1, timeout_ms < 0 ? -1 : left > 0 ? (int)left : 0);

		if (rc >= 0)
			return rc ? p.revents : 0;
		if (errno != EINTR)
			return POLLERR;
	}
}

/* ---- messages ---------------------------------------------------------------------------------------------------------------------- */

static int sock_open(struct td_control *c, const char *path, char url[160], struct td_error *err)
{
	size_t room = sizeof(((struct sockaddr_un *)0)->sun_path);
	int max = MESSAGE_MAX, ivl = 20;
	size_t n = sizeof(c->rcvfd);

	*c = TD_CONTROL_CLOSED;
	if (!*path || strlen(path) >= room)
		return td_error_set(err, TD_E_INVALID, "control channel: the path %s has %zu bytes, a Unix socket's may have 1 to %zu; use a shorter runtime folder",
				    path, strlen(path), room - 1);
	snprintf(url, 160, "ipc://%s", path);
	c->sock = nn_socket(AF_SP, NN_PAIR);
	if (c->sock < 0)
		return td_error_set(err, errno == EMFILE ? TD_E_LIMIT : TD_E_IO, "control channel: cannot make a socket: %s", nn_strerror(errno));
	if (nn_setsockopt(c->sock, NN_SOL_SOCKET, NN_RCVMAXSIZE, &max, sizeof(max)) < 0 ||
	    nn_setsockopt(c->sock, NN_SOL_SOCKET, NN_RECONNECT_IVL, &ivl, sizeof(ivl)) < 0 ||
	    nn_getsockopt(c->sock, NN_SOL_SOCKET, NN_RCVFD, &c->rcvfd, &n) < 0) {
		td_error_set(err, TD_E_IO, "control channel: cannot set up a socket: %s", nn_strerror(errno));
		td_control_close(c);
		return err ? err->code : TD_E_IO;
	}
	return 0;
}

/* A socket file that nobody listens on is a predecessor's and goes. Anything else at this path is not ours to remove. */
static int stale_remove(const char *path, struct td_error *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct stat st;
	int fd, alive;

	if (lstat(path, &st) < 0)
		return 0; /* bind will tell what else is wrong */
	if (!S_ISSOCK(st.st_mode))
		return td_error_set(err, TD_E_INVALID, "control channel: %s is there and is no socket; remove it or use another runtime folder", path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return td_error_set(err, TD_E_LIMIT, "control channel: cannot make a socket: %s", strerror(errno));
	memcpy(addr.sun_path, path, strlen(path) + 1);
	alive = !connect(fd, (struct sockaddr *)&addr, sizeof(addr)) || errno == EAGAIN;
	close(fd);
	if (alive)
		return td_error_set(err, TD_E_BUSY, "control channel: another process serves %s; stop it or use another runtime folder", path);
	unlink(path);
	return 0;
}

int td_control_bind(struct td_control *c, const char *path, struct td_error *err)
{
	char url[160];
	int rc;

	rc = sock_open(c, path, url, err);
	if (rc)
		return rc;
	rc = stale_remove(path, err);
	if (!rc && nn_bind(c->sock, url) < 0)
		rc = td_error_set(err, errno == EADDRINUSE ? TD_E_BUSY : errno == EACCES ? TD_E_PERMISSION : TD_E_IO,
				  "control channel: cannot bind %s: %s; check that the folder is there and writable", path, nn_strerror(errno));
	if (!rc && chmod(path, 0600) < 0)
		rc = td_error_set(err, TD_E_IO, "control channel: cannot restrict %s: %s", path, strerror(errno));
	if (rc)
		td_control_close(c);
	return rc;
}

static int writable(struct td_control *c, int timeout_ms)
{
	struct nn_pollfd p = {.fd = c->sock, .events = NN_POLLOUT};
	int64_t end = now_ms() + timeout_ms;
	int rc;

	do
		rc = nn_poll(&p, 1, timeout_ms);
	while (rc < 0 && errno == EINTR && now_ms() < end);
	return rc > 0;
}

int td_control_connect(struct td_control *c, const char *path, struct td_error *err)
{
	char url[160];
	int rc;

	rc = sock_open(c, path, url, err);
	if (rc)
		return rc;
	if (nn_connect(c->sock, url) < 0)
		rc = td_error_set(err, TD_E_IO, "control channel: cannot connect to %s: %s", path, nn_strerror(errno));
	else if (!writable(c, CONNECT_WAIT_MS))
		rc = td_error_set(err, TD_E_CLOSED, "control channel: nobody answers at %s; is tandemd running?", path);
	if (rc)
		td_control_close(c);
	return rc;
}

void td_control_close(struct td_control *c)
{
	/* Zeroed memory is fine though 0 is a valid number for a nanomsg socket: then rcvfd is no 0. */
	if (c->sock > 0 || (c->sock == 0 && c->rcvfd > 0))
		nn_close(c->sock);
	*c = TD_CONTROL_CLOSED;
}

static int send_one(struct td_control *c, const Tandem__Worker__Message *msg, struct td_error *err)
{
	size_t n = tandem__worker__message__get_packed_size(msg);
	void *buf;

	if (c->sock < 0)
		return td_error_set(err, TD_E_CLOSED, "control channel: it is closed");
	if (n > MESSAGE_MAX)
		return td_error_set(err, TD_E_TOO_LARGE, "control channel: a message of %zu bytes, at most %d are taken", n, MESSAGE_MAX);
	buf = nn_allocmsg(n ? n : 1, 0);
	if (!buf)
		return td_error_set(err, TD_E_NOMEM, "control channel: out of memory");
	tandem__worker__message__pack(msg, buf);
	if (!writable(c, SEND_WAIT_MS) || nn_send(c->sock, &buf, NN_MSG, NN_DONTWAIT) < 0) {
		nn_freemsg(buf);
		return td_error_set(err, TD_E_BUSY, "control channel: the peer takes no messages now");
	}
	writable(c, SEND_WAIT_MS);
	return 0;
}

/* A message of this file's own: answers a sync, or notes that ours was answered. 1 when it was one. */
static int own_message(struct td_control *c, const Tandem__Worker__Message *msg)
{
	if (msg->has_sync) {
		Tandem__Worker__Message answer = TANDEM__WORKER__MESSAGE__INIT;

		answer.has_synced = 1;
		answer.synced = msg->sync;
		send_one(c, &answer, NULL);
	}
	if (msg->has_synced)
		atomic_store(&c->synced, msg->synced);
	return msg->has_sync || msg->has_synced;
}

int td_control_recv(struct td_control *c, Tandem__Worker__Message **msg, int timeout_ms, struct td_error *err)
{
	int64_t end = now_ms() + timeout_ms;
	void *buf = NULL;
	int n;

	*msg = NULL;
	if (c->sock < 0)
		return td_error_set(err, TD_E_CLOSED, "control channel: it is closed");
	for (;;) {
		int64_t left = end - now_ms();

		n = nn_recv(c->sock, &buf, NN_MSG, NN_DONTWAIT);
		if (n >= 0) {
			*msg = tandem__worker__message__unpack(NULL, (size_t)n, buf);
			nn_freemsg(buf);
			if (!*msg || !own_message(c, *msg))
				break;
			tandem__worker__message__free_unpacked(*msg, NULL);
			*msg = NULL;
			continue;
		}
		if (errno != EAGAIN && errno != EINTR)
			return td_error_set(err, TD_E_IO, "control channel: %s", nn_strerror(errno));
		if (timeout_ms >= 0 && left <= 0)
			return 0;
		wait_for(c->rcvfd, POLLIN, timeout_ms < 0 ? -1 : (int)left);
	}
	if (!*msg)
		return td_error_set(err, TD_E_PROTOCOL, "control channel: a message of %d bytes is not one of worker.proto", n);
	if ((*msg)->body_case == TANDEM__WORKER__MESSAGE__BODY__NOT_SET) {
		tandem__worker__message__free_unpacked(*msg, NULL);
		*msg = NULL;
		return td_error_set(err, TD_E_PROTOCOL, "control channel: a message without a known body; install tandemd and its workers from one build");
	}
	return 1;
}

/* Until the peer has received all that was sent. What it says meanwhile is dropped: this side is about to end. A thread that receives on the
 * same channel may see the answer instead; it notes it, and the short waits here notice. */
static void linger(struct td_control *c)
{
	static _Atomic uint32_t serial;
	Tandem__Worker__Message ask = TANDEM__WORKER__MESSAGE__INIT;
	int64_t end = now_ms() + LAST_WORD_MS;

	ask.has_sync = 1;
	ask.sync = atomic_fetch_add(&serial, 1) + 1;
	if (send_one(c, &ask, NULL))
		return;
	while (atomic_load(&c->synced) != ask.sync && now_ms() < end) {
		Tandem__Worker__Message *msg;

		if (td_control_recv(c, &msg, 5, NULL) == 1)
			tandem__worker__message__free_unpacked(msg, NULL);
	}
}

int td_control_send(struct td_control *c, const Tandem__Worker__Message *msg, struct td_error *err)
{
	int rc = send_one(c, msg, err);

	if (!rc && msg->body_case == TANDEM__WORKER__MESSAGE__BODY_FAILURE)
		linger(c);
	return rc;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------------------------- */

int td_fd_send(int sock, int fd, const char *name, struct td_error *err)
{
	char text[NAME_BYTES] = {0};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = text, .iov_len = sizeof(text)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t n;

	if (!*name || strlen(name) >= sizeof(text))
		return td_error_set(err, TD_E_INVALID, "fd socket: the name '%s' must have 1 to %zu bytes", name, sizeof(text) - 1);
	memcpy(text, name, strlen(name));
	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.head), &fd, sizeof(int));
	do
		n = sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n == (ssize_t)sizeof(text))
		return 0;
	switch (errno) {
	case EPIPE:
	case ECONNRESET:
	case ENOTCONN:
		return td_error_set(err, TD_E_CLOSED, "fd socket: the peer is gone, '%s' was not sent", name);
	case EAGAIN:
		return td_error_set(err, TD_E_BUSY, "fd socket: the peer takes no more, '%s' was not sent", name);
	case ETOOMANYREFS:
	case ENOBUFS:
		return td_error_set(err, TD_E_LIMIT, "fd socket: too many descriptors in flight, '%s' was not sent", name);
	}
	return td_error_set(err, TD_E_IO, "fd socket: sending '%s' (fd %d): %s", name, fd, strerror(errno));
}

/* Takes every descriptor out of a message; keeps one, closes the others. Returns how many there were. */
static int rights_take(struct msghdr *m, int *fd)
{
	int n = 0, got;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int), n++) {
			memcpy(&got, CMSG_DATA(c) + at, sizeof(int));
			if (n == 0)
				*fd = got;
			else
				close(got);
		}
	}
	return n;
}

int td_fd_recv(int sock, int *fd, char name[32], int timeout_ms, struct td_error *err)
{
	char text[NAME_BYTES + 1] = {0}; /* one more: a longer datagram is noticed */
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(4 * sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = text, .iov_len = sizeof(text)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	int got = -1, n_fds;
	ssize_t n;

	*fd = -1;
	name[0] = '\0';
	if (!wait_for(sock, POLLIN, timeout_ms))
		return td_error_set(err, TD_E_DEADLINE, "fd socket: nothing came within %d ms", timeout_ms);
	do
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n == 0 || (n < 0 && errno == ECONNRESET))
		return td_error_set(err, TD_E_CLOSED, "fd socket: the peer is gone");
	if (n < 0)
		return td_error_set(err, errno == EAGAIN ? TD_E_DEADLINE : TD_E_IO, "fd socket: %s", strerror(errno));
	n_fds = rights_take(&m, &got);
	if (n_fds == 1 && n == NAME_BYTES && text[0] && !text[NAME_BYTES - 1] && !(m.msg_flags & MSG_CTRUNC)) {
		memcpy(name, text, NAME_BYTES);
		*fd = got;
		return 0;
	}
	if (n_fds > 0)
		close(got);
	if (m.msg_flags & MSG_CTRUNC)
		return td_error_set(err, TD_E_LIMIT, "fd socket: a descriptor was lost, this process has too many open; raise its limit (ulimit -n)");
	return td_error_set(err, TD_E_PROTOCOL, "fd socket: a datagram of %zd bytes with %d descriptors, want %d and 1", n, n_fds, NAME_BYTES);
}
