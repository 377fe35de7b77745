/*
 * listener.c: the runtime folder's lock, the socket, and accepting.
 *
 * The lock (flock on <runtime_dir>/lock) is what makes a daemon the only one; it goes away with the process, however that ends. A socket file that
 * nobody listens on is a leftover and is replaced; one that answers belongs to somebody and is an error.
 * Clients get no descriptor that the workers may need (main.c counts them at the start): a crowd must not keep a successor from starting. Should they
 * run out all the same (the system's own limit), one is kept in reserve: it is given up to accept a connection, tell it why it is refused, and close it. When even that
 * fails, accepting rests until the next turn of the timer, since a readable listening socket would otherwise wake the loop without end.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/fault.h"
#include "engine/log.h"

enum { BACKLOG = 128, ACCEPTS_PER_TURN = 64 };

/* What errno says of a path: most of it will be the same at the next start. */
static int path_code(void)
{
	switch (errno) {
	case EACCES:
	case EPERM:
	case EROFS:
		return TD_E_PERMISSION;
	case ENOENT:
	case ENOTDIR:
		return TD_E_NOT_FOUND;
	}
	return TD_E_IO;
}

/* Makes a folder and its parents. */
static int make_folder(const char *path, mode_t mode, struct td_error *err)
{
	char part[4096];
	size_t n = strlen(path);

	if (n >= sizeof(part))
		return td_error_set(err, TD_E_INVALID, "the path %.64s... is too long", path);
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i])
			continue;
		memcpy(part, path, i);
		part[i] = 0;
		if (mkdir(part, i == n ? mode : 0755) < 0 && errno != EEXIST)
			return td_error_set(err, path_code(), "cannot make the folder %s: %s", part, strerror(errno));
	}
	return 0;
}

int td_listener_lock(struct td_daemon *d, struct td_error *err)
{
	const char *dir = d->cfg.runtime_dir;
	struct sockaddr_un sa;
	char path[4096];
	int rc, fd;

	if (strlen(dir) + strlen("/drafter.ipc") >= sizeof(sa.sun_path))
		return td_error_set(err, TD_E_INVALID, "tandem.runtime_dir = %s: %zu bytes are too long for a socket's path in it (%zu at most)", dir, strlen(dir),
				    sizeof(sa.sun_path) - 1 - strlen("/drafter.ipc"));
	if ((rc = make_folder(dir, 0755, err)))
		return td_error_prefix(err, "tandem.runtime_dir");
	snprintf(path, sizeof(path), "%s/lock", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return td_error_set(err, path_code(), "cannot open %s: %s", path, strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		char pid[32] = "";
		ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);

		close(fd);
		return td_error_set(err, TD_E_BUSY, "the runtime folder %s belongs to another tandemd (process %.*s); end it, or set tandem.runtime_dir", dir,
				    n > 0 ? (int)strcspn(pid, "\n") : 1, n > 0 ? pid : "?");
	}
	if (ftruncate(fd, 0) == 0)
		dprintf(fd, "%d\n", (int)getpid());
	d->listener.lock_fd = fd;
	return 0;
}

int td_listener_keep_folder(struct td_daemon *d, struct td_error *err)
{
	int old = d->listener.lock_fd, rc;
	struct stat ours, there;
	char path[4096];

	snprintf(path, sizeof(path), "%s/lock", d->cfg.runtime_dir);
	if (fstat(old, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
		return 0;
	if ((rc = td_listener_lock(d, err)))
		return rc;
	close(old);
	td_log(TD_LOG_WARN, "the runtime folder %s was removed; it is there again", d->cfg.runtime_dir);
	return 0;
}

/* A socket file may be in the way: alive, stale, or something else altogether. */
static int clear_path(const struct sockaddr_un *sa, struct td_error *err)
{
	struct stat st;
	int fd, rc, e;

	if (lstat(sa->sun_path, &st) < 0)
		return 0; /* bind tells what else is wrong */
	if (!S_ISSOCK(st.st_mode))
		return td_error_set(err, TD_E_INVALID, "tandem.socket = %s: something that is not a socket is there; remove it, or choose another path",
				    sa->sun_path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return td_error_set(err, TD_E_IO, "cannot make a socket: %s", strerror(errno));
	rc = connect(fd, (const struct sockaddr *)sa, sizeof(*sa));
	e = errno;
	close(fd);
	if (rc == 0 || e == EAGAIN)
		return td_error_set(err, TD_E_BUSY, "tandem.socket = %s: another program listens there; end it, or choose another path", sa->sun_path);
	if (e != ECONNREFUSED)
		return td_error_set(err, e == EACCES ? TD_E_PERMISSION : TD_E_IO, "tandem.socket = %s: %s", sa->sun_path, strerror(e));
	if (unlink(sa->sun_path) < 0)
		return td_error_set(err, TD_E_PERMISSION, "tandem.socket = %s: a stale socket is there and cannot be removed: %s", sa->sun_path, strerror(errno));
	td_log(TD_LOG_INFO, "removed the stale socket %s", sa->sun_path);
	return 0;
}

#define NO_FD "tandemd has no file descriptor left for it (raise its limit: ulimit -n, LimitNOFILE)"

/* ---- accepting --------------------------------------------------------------------------------------------------------------------- */

static int spare_open(void)
{
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* The last words to a connection that gets no session: one frame, as far as the socket's buffer takes it. */
static void turn_away(struct td_daemon *d, int fd, const char *why)
{
	Tandem__Error e = TANDEM__ERROR__INIT;
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	uint8_t *frame;
	size_t n;

	e.code = (char *)td_error_name(TD_E_LIMIT);
	e.text = (char *)why;
	e.has_retry_after_ms = 1;
	e.retry_after_ms = 1000;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_ERROR;
	m.error = &e;
	frame = td_server_message_pack(&m, &n);
	if (frame && send(fd, frame, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		/* it hung up already */
	}
	free(frame);
	close(fd);
	if (d->listener.refused++ % 1000 == 0)
		td_log(TD_LOG_WARN, "connection refused: %s (%lu so far)", why, d->listener.refused);
}

/* No descriptor is left. 1 when a connection could be turned away with the one in reserve. */
static int accept_starved(struct td_daemon *d)
{
	struct td_listener *l = &d->listener;
	int fd;

	if (l->spare_fd < 0)
		return 0;
	close(l->spare_fd);
	fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		turn_away(d, fd, NO_FD);
	l->spare_fd = spare_open();
	return fd >= 0;
}

static void rest(struct td_daemon *d)
{
	struct td_listener *l = &d->listener;

	if (l->polling)
		uv_poll_stop(&l->poll);
	l->polling = 0;
	l->resting = 1;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
	struct td_daemon *d = poll->data;
	struct td_error err;

	(void)events;
	if (status < 0) {
		td_log(TD_LOG_ERROR, "listening: %s", uv_strerror(status));
		rest(d);
		return;
	}
	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int starved = td_fault("daemon.accept.emfile");
		int fd = starved ? -1 : accept4(d->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 && (starved || errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
			if (accept_starved(d))
				continue;
			rest(d);
			return;
		}
		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0)
			return;
		if (d->n_sessions >= d->cfg.max_connections)
			turn_away(d, fd, d->fds_short ? NO_FD : "tandemd has as many connections as tandem.max_connections allows");
		else if (td_session_open(d, fd, &td_frames, 0, &err))
			td_log(TD_LOG_WARN, "connection refused: %s", err.text);
	}
}

void td_listener_check(struct td_daemon *d)
{
	struct td_listener *l = &d->listener;

	if (l->spare_fd < 0)
		l->spare_fd = spare_open();
	if (!l->resting || l->fd < 0)
		return;
	l->resting = 0;
	if (uv_poll_start(&l->poll, UV_READABLE, on_connection) == 0)
		l->polling = 1;
}

/* ---- open and close ---------------------------------------------------------------------------------------------------------------- */

static int bind_and_listen(struct td_daemon *d, const struct sockaddr_un *sa, struct td_error *err)
{
	struct td_listener *l = &d->listener;
	struct stat st;
	mode_t mask;
	int rc;

	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return td_error_set(err, TD_E_IO, "cannot make a socket: %s", strerror(errno));
	mask = umask(0777 & ~d->cfg.socket_mode); /* never more open than asked for, not even for a moment */
	rc = bind(l->fd, (const struct sockaddr *)sa, sizeof(*sa));
	umask(mask);
	if (rc < 0)
		return td_error_set(err, path_code(), "tandem.socket = %s: cannot make it: %s", sa->sun_path, strerror(errno));
	l->path = strdup(sa->sun_path);
	if (chmod(sa->sun_path, (mode_t)d->cfg.socket_mode) < 0 || lstat(sa->sun_path, &st) < 0)
		return td_error_set(err, TD_E_IO, "tandem.socket = %s: %s", sa->sun_path, strerror(errno));
	l->ino = st.st_ino;
	l->dev = st.st_dev;
	if (listen(l->fd, BACKLOG) < 0)
		return td_error_set(err, TD_E_IO, "tandem.socket = %s: cannot listen: %s", sa->sun_path, strerror(errno));
	return 0;
}

int td_listener_open(struct td_daemon *d, struct td_error *err)
{
	struct td_listener *l = &d->listener;
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	char parent[sizeof(sa.sun_path)], *slash;
	int rc;

	if (strlen(d->cfg.socket) >= sizeof(sa.sun_path))
		return td_error_set(err, TD_E_INVALID, "tandem.socket: the path has %zu bytes, a Unix socket's may have %zu at most: %s", strlen(d->cfg.socket),
				    sizeof(sa.sun_path) - 1, d->cfg.socket);
	memcpy(sa.sun_path, d->cfg.socket, strlen(d->cfg.socket) + 1);
	memcpy(parent, sa.sun_path, sizeof(parent));
	slash = strrchr(parent, '/');
	if (slash && slash != parent) {
		*slash = 0;
		/* The default folder is ours to make; one that a person chose must be there, else a typing error makes folders. */
		if ((d->cfg.socket_by_default || !strcmp(parent, d->cfg.runtime_dir)) && (rc = make_folder(parent, 0755, err)))
			return td_error_prefix(err, "tandem.socket");
	}
	l->spare_fd = spare_open();
	if ((rc = clear_path(&sa, err)) || (rc = bind_and_listen(d, &sa, err)))
		return rc;
	uv_poll_init(&d->loop, &l->poll, l->fd);
	l->poll.data = d;
	l->resting = 1;
	td_listener_check(d);
	return 0;
}

void td_listener_close(struct td_daemon *d)
{
	struct td_listener *l = &d->listener;
	struct stat st;

	if (l->poll.data && !uv_is_closing((uv_handle_t *)&l->poll))
		uv_close((uv_handle_t *)&l->poll, NULL);
	l->resting = l->polling = 0;
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
	/* A successor may have put its own socket there. */
	if (l->path && lstat(l->path, &st) == 0 && st.st_ino == l->ino && st.st_dev == l->dev)
		unlink(l->path);
	free(l->path);
	l->path = NULL;
}
