/*
 * listener.c: the runtime folder's lock, the sockets that listen, and accepting.
 *
 * The lock (flock on <runtime_dir>/lock) is what makes a daemon the only one; it goes away with the process, however that ends. A socket file that
 * nobody listens on is a leftover and is replaced; one that answers belongs to somebody and is an error.
 * Sockets are of three kinds (td_listen_kind): libtandem's frames, HTTP on a Unix socket, HTTP on TCP. One that somebody else made and listens on
 * already is adopted alike; its file is not ours to remove. A file of ours that somebody removed while we serve is made again.
 * Clients get no descriptor that the workers may need (main.c counts them at the start): a crowd must not keep a successor from starting. Should they
 * run out all the same (the system's own limit), one is kept in reserve: it is given up to accept a connection, tell it why it is refused, and close it. When even that
 * fails, accepting rests until the next turn of the timer, since a readable listening socket would otherwise wake the loop without end.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/clock.h"
#include "engine/fault.h"
#include "engine/log.h"

enum { BACKLOG = 128, ACCEPTS_PER_TURN = 64, LOOK_US = 1000000 };

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

/* It is written to, so it must be a file of its own: a link that the folder's owner put there would have root write somewhere else. What root makes in somebody's
 * folder is given to him, or he could not lock it the next time. The descriptor, or an error's code. */
static int open_lock(const char *dir, const char *path, struct td_error *err)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600), rc = 0;
	struct stat st, folder;

	if (fd < 0 && errno != ELOOP && errno != EISDIR && errno != ENXIO)
		return td_error_set(err, path_code(), "cannot open %s: %s", path, strerror(errno));
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink > 1)
		rc = td_error_set(err, TD_E_INVALID, "%s is not a file of its own; remove it, or set tandem.runtime_dir", path);
	else if (geteuid() == 0 && st.st_uid == 0 && stat(dir, &folder) == 0 && folder.st_uid && fchown(fd, folder.st_uid, folder.st_gid) < 0)
		rc = td_error_set(err, path_code(), "cannot give %s to the owner of its folder: %s", path, strerror(errno));
	if (rc && fd >= 0)
		close(fd);
	return rc ? rc : fd;
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
	if ((fd = open_lock(dir, path, err)) < 0)
		return fd;
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
static int clear_path(const char *setting, const struct sockaddr_un *sa, struct td_error *err)
{
	struct stat st;
	int fd, rc, e;

	if (lstat(sa->sun_path, &st) < 0)
		return 0; /* bind tells what else is wrong */
	if (!S_ISSOCK(st.st_mode))
		return td_error_set(err, TD_E_INVALID, "%s = %s: something that is not a socket is there; remove it, or choose another path", setting,
				    sa->sun_path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return td_error_set(err, TD_E_IO, "cannot make a socket: %s", strerror(errno));
	rc = connect(fd, (const struct sockaddr *)sa, sizeof(*sa));
	e = errno;
	close(fd);
	if (rc == 0 || e == EAGAIN)
		return td_error_set(err, TD_E_BUSY, "%s = %s: another program listens there; end it, or choose another path", setting, sa->sun_path);
	if (e != ECONNREFUSED)
		return td_error_set(err, e == EACCES ? TD_E_PERMISSION : TD_E_IO, "%s = %s: %s", setting, sa->sun_path, strerror(e));
	if (unlink(sa->sun_path) < 0)
		return td_error_set(err, TD_E_PERMISSION, "%s = %s: a stale socket is there and cannot be removed: %s", setting, sa->sun_path, strerror(errno));
	td_log(TD_LOG_INFO, "removed the stale socket %s", sa->sun_path);
	return 0;
}

#define NO_FD "tandemd has no file descriptor left for it (raise its limit: ulimit -n, LimitNOFILE)"

/* ---- accepting --------------------------------------------------------------------------------------------------------------------- */

static int spare_open(void)
{
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static const struct {
	const struct td_session_protocol *protocol;
	const char *setting;
	int tcp;
} kinds[] = {
	[TD_LISTEN_FRAMES] = {&td_frames, "tandem.socket", 0},
	[TD_LISTEN_HTTP] = {&td_http, "http.socket", 0},
	[TD_LISTEN_HTTP_TCP] = {&td_http, "http.listen", 1},
};

/* A connection gets no session, but the reason, as far as the socket's buffer takes it. */
static void turn_away(struct td_listen *l, int fd, const char *why)
{
	struct td_listener *all = &l->d->listener;
	uint8_t text[1024];
	size_t n = kinds[l->kind].protocol->last_words(text, sizeof(text), TD_E_LIMIT, why);

	if (send(fd, text, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		/* it hung up already */
	}
	close(fd);
	if (all->refused++ % 1000 == 0)
		td_log(TD_LOG_WARN, "connection refused: %s (%lu so far)", why, all->refused);
}

/* No descriptor is left. 1 when a connection could be turned away with the one in reserve. */
static int accept_starved(struct td_listen *l)
{
	struct td_listener *all = &l->d->listener;
	int fd;

	if (all->spare_fd < 0)
		return 0;
	close(all->spare_fd);
	fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		turn_away(l, fd, NO_FD);
	all->spare_fd = spare_open();
	return fd >= 0;
}

static void rest(struct td_listen *l)
{
	if (l->polling)
		uv_poll_stop(&l->poll);
	l->polling = 0;
	l->resting = 1;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
	struct td_listen *l = poll->data;
	struct td_daemon *d = l->d;
	struct td_error err;

	(void)events;
	if (status < 0) {
		td_log(TD_LOG_ERROR, "listening: %s", uv_strerror(status));
		rest(l);
		return;
	}
	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int starved = td_fault("daemon.accept.emfile");
		int fd = starved ? -1 : accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 && (starved || errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
			if (accept_starved(l))
				continue;
			rest(l);
			return;
		}
		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0)
			return;
		if (d->n_sessions >= d->cfg.max_connections)
			turn_away(l, fd, d->fds_short ? NO_FD : "tandemd has as many connections as tandem.max_connections allows");
		else if (td_session_open(d, fd, kinds[l->kind].protocol, kinds[l->kind].tcp, &err))
			td_log(TD_LOG_WARN, "connection refused: %s", err.text);
	}
}

/* ---- open and close ---------------------------------------------------------------------------------------------------------------- */

int td_listener_adopt(struct td_daemon *d, int fd, enum td_listen_kind kind, struct td_error *err)
{
	struct td_listener *all = &d->listener;
	struct td_listen *l = &all->at[all->n];
	int rc;

	if (all->n == TD_LISTEN_MAX) {
		close(fd);
		return td_error_set(err, TD_E_LIMIT, "more than %d sockets to listen on", TD_LISTEN_MAX);
	}
	*l = (struct td_listen){.d = d, .kind = kind, .fd = fd, .resting = 1};
	rc = uv_poll_init(&d->loop, &l->poll, fd);
	if (rc < 0) {
		close(fd);
		return td_error_set(err, TD_E_IO, "%s: cannot wait for connections: %s", kinds[kind].setting, uv_strerror(rc));
	}
	l->poll.data = l;
	all->n++;
	return 0;
}

static int unix_address(const char *setting, const char *path, struct sockaddr_un *sa, struct td_error *err)
{
	*sa = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(sa->sun_path))
		return td_error_set(err, TD_E_INVALID, "%s: the path has %zu bytes, a Unix socket's may have %zu at most: %s", setting, strlen(path),
				    sizeof(sa->sun_path) - 1, path);
	memcpy(sa->sun_path, path, strlen(path) + 1);
	return 0;
}

/* The default folder is ours to make; one that a person chose must be there, else a typing error makes folders. */
static int own_folder(struct td_daemon *d, const char *path, struct td_error *err)
{
	char parent[sizeof(((struct sockaddr_un *)0)->sun_path)], *slash;

	snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	if (!slash || slash == parent)
		return 0;
	*slash = 0;
	return d->cfg.socket_by_default || !strcmp(parent, d->cfg.runtime_dir) ? make_folder(parent, 0755, err) : 0;
}

/* A socket with its file; *fd is the caller's, also after an error. */
static int bind_unix(const char *setting, const struct sockaddr_un *sa, int mode, int *fd, struct stat *st, struct td_error *err)
{
	mode_t mask;
	int rc;

	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*fd < 0)
		return td_error_set(err, TD_E_IO, "cannot make a socket: %s", strerror(errno));
	mask = umask(0777 & ~mode); /* never more open than asked for, not even for a moment */
	rc = bind(*fd, (const struct sockaddr *)sa, sizeof(*sa));
	umask(mask);
	if (rc < 0)
		return td_error_set(err, path_code(), "%s = %s: cannot make it: %s", setting, sa->sun_path, strerror(errno));
	if (chmod(sa->sun_path, (mode_t)mode) < 0 || lstat(sa->sun_path, st) < 0)
		return td_error_set(err, TD_E_IO, "%s = %s: %s", setting, sa->sun_path, strerror(errno));
	if (listen(*fd, BACKLOG) < 0)
		return td_error_set(err, TD_E_IO, "%s = %s: cannot listen: %s", setting, sa->sun_path, strerror(errno));
	return 0;
}

/* A new socket with its file takes the place of the one whose file is gone, under the same descriptor. What waited there is lost, connections are not. */
static int bind_again(struct td_listen *l, struct td_error *err)
{
	struct td_daemon *d = l->d;
	struct sockaddr_un sa;
	struct stat st;
	int fd = -1, rc;

	if ((rc = td_listener_keep_folder(d, err)) || (rc = own_folder(d, l->path, err)) || (rc = unix_address(kinds[l->kind].setting, l->path, &sa, err)))
		return rc;
	rc = bind_unix(kinds[l->kind].setting, &sa, l->kind == TD_LISTEN_FRAMES ? d->cfg.socket_mode : d->cfg.http_socket_mode, &fd, &st, err);
	if (!rc) {
		if (l->polling)
			uv_poll_stop(&l->poll); /* before the old socket goes: it must leave the loop's set */
		l->polling = 0;
		l->resting = 1; /* goes on at once, below */
		if (dup3(fd, l->fd, O_CLOEXEC) < 0)
			rc = td_error_set(err, TD_E_IO, "%s = %s: %s", kinds[l->kind].setting, l->path, strerror(errno));
		l->ino = st.st_ino;
		l->dev = st.st_dev;
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

/* Cleaners of /tmp and people remove sockets' files: then nobody new would ever reach us. A file of somebody else in its place is left alone. */
static void keep_file(struct td_listen *l)
{
	uint64_t now = td_now_us();
	struct td_error err;
	struct stat st;

	if (!l->path || now - l->looked_us < LOOK_US)
		return;
	l->looked_us = now;
	if (lstat(l->path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR))
		return;
	if (!bind_again(l, &err)) {
		td_log(TD_LOG_WARN, "%s = %s was removed; it is there again", kinds[l->kind].setting, l->path);
		l->lost = 0;
	} else if (!l->lost) {
		td_log(TD_LOG_ERROR, "%s = %s was removed and can't be made again: %s; tried again every second", kinds[l->kind].setting, l->path, err.text);
		l->lost = 1;
	}
}

void td_listener_check(struct td_daemon *d)
{
	struct td_listener *all = &d->listener;

	if (all->spare_fd < 0)
		all->spare_fd = spare_open();
	for (int i = 0; i < all->n; i++) {
		struct td_listen *l = &all->at[i];

		if (!d->draining)
			keep_file(l);
		if (!l->resting)
			continue;
		l->resting = 0;
		if (uv_poll_start(&l->poll, UV_READABLE, on_connection) == 0)
			l->polling = 1;
	}
}

static int open_unix(struct td_daemon *d, enum td_listen_kind kind, const char *path, int mode, struct td_error *err)
{
	const char *setting = kinds[kind].setting;
	struct sockaddr_un sa;
	struct stat st;
	int fd = -1, rc;

	if ((rc = unix_address(setting, path, &sa, err)))
		return rc;
	if ((rc = own_folder(d, path, err)))
		return td_error_prefix(err, "%s", setting);
	if ((rc = clear_path(setting, &sa, err)) || (rc = bind_unix(setting, &sa, mode, &fd, &st, err))) {
		if (fd >= 0)
			close(fd);
		return rc;
	}
	rc = td_listener_adopt(d, fd, kind, err);
	if (!rc) {
		struct td_listen *l = &d->listener.at[d->listener.n - 1];

		l->path = strdup(path);
		l->ino = st.st_ino;
		l->dev = st.st_dev;
	}
	return rc;
}

static int is_loopback(const struct sockaddr_storage *sa)
{
	if (sa->ss_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
	return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

/* "127.0.0.1:8080" or "[::1]:8080" */
static int tcp_address(const char *text, struct sockaddr_storage *sa, struct td_error *err)
{
	const char *colon = strrchr(text, ':');
	char host[64], *end;
	long port = colon ? strtol(colon + 1, &end, 10) : -1;
	size_t n = colon ? (size_t)(colon - text) : 0;

	memset(sa, 0, sizeof(*sa));
	if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
		text++;
		n -= 2;
	}
	snprintf(host, sizeof(host), "%.*s", (int)n, text);
	if (colon && colon[1] && !*end && port >= 1 && port <= 65535 && n && n < sizeof(host) &&
	    (uv_ip4_addr(host, (int)port, (struct sockaddr_in *)sa) == 0 || uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)sa) == 0))
		return 0;
	return td_error_set(err, TD_E_INVALID, "http.listen must be an address and a port, such as 127.0.0.1:8080 or [::1]:8080");
}

static int open_tcp(struct td_daemon *d, const char *text, struct td_error *err)
{
	struct sockaddr_storage sa;
	int one = 1, fd, rc = tcp_address(text, &sa, err);

	if (rc)
		return rc;
	if (!is_loopback(&sa)) {
		if (strcmp(d->cfg.http_allow_remote, "yes"))
			return td_error_set(err, TD_E_INVALID, "http.listen = %s: not a loopback address; set http.allow_remote = yes if others shall reach it", text);
		td_log(TD_LOG_WARN, "http.listen = %s: whoever reaches this address can try API keys, and nothing is encrypted (http.allow_remote)", text);
	}
	fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return td_error_set(err, TD_E_IO, "http.listen = %s: cannot make a socket: %s", text, strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (const struct sockaddr *)&sa, sa.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) < 0 || listen(fd, BACKLOG) < 0) {
		rc = td_error_set(err, errno == EADDRINUSE ? TD_E_BUSY : errno == EACCES ? TD_E_PERMISSION : TD_E_IO, "http.listen = %s: cannot listen: %s", text,
				  strerror(errno));
		close(fd);
		return rc;
	}
	return td_listener_adopt(d, fd, TD_LISTEN_HTTP_TCP, err);
}

/* ---- sockets that the service manager made (notify.c) ------------------------------------------------------------------------------ */

/* Whoever wrote the socket unit is held to the same rule as http.listen. */
static int check_reach(struct td_daemon *d, int fd, struct td_error *err)
{
	struct sockaddr_storage sa = {0};
	socklen_t size = sizeof(sa);

	if (getsockname(fd, (struct sockaddr *)&sa, &size) == 0 && (is_loopback(&sa) || !strcmp(d->cfg.http_allow_remote, "yes")))
		return 0;
	return td_error_set(err, TD_E_INVALID, "the TCP socket that was passed to tandemd is not on a loopback address; set http.allow_remote = yes if others shall reach it");
}

/* Takes all that were passed under this name (NULL: one of those without a name that is ours). *n: how many. */
static int adopt_passed(struct td_daemon *d, enum td_listen_kind kind, const char *name, int *n, struct td_error *err)
{
	int family = kinds[kind].tcp ? AF_INET : AF_UNIX, fd, rc = 0;

	while (!rc && !(*n && !name) && (fd = td_notify_take_socket(&d->notify, name, family)) >= 0) {
		rc = kinds[kind].tcp ? check_reach(d, fd, err) : 0;
		if (!rc && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
			rc = td_error_set(err, TD_E_IO, "a socket that was passed to tandemd can't be used: %s", strerror(errno));
		if (rc)
			close(fd);
		else if (!(rc = td_listener_adopt(d, fd, kind, err)))
			td_log(TD_LOG_INFO, "%s: a socket that was passed to tandemd takes its place", kinds[kind].setting);
		(*n)++;
	}
	return rc;
}

int td_listener_open(struct td_daemon *d, struct td_error *err)
{
	static const char *const name[] = {[TD_LISTEN_FRAMES] = "tandem", [TD_LISTEN_HTTP] = "http", [TD_LISTEN_HTTP_TCP] = "http-tcp"};
	const struct td_daemon_config *c = &d->cfg;
	int passed[] = {[TD_LISTEN_FRAMES] = 0, [TD_LISTEN_HTTP] = 0, [TD_LISTEN_HTTP_TCP] = 0}, rc = 0;

	d->listener.spare_fd = spare_open();
	for (int kind = TD_LISTEN_FRAMES; kind <= TD_LISTEN_HTTP_TCP && !rc; kind++) {
		rc = adopt_passed(d, (enum td_listen_kind)kind, name[kind], &passed[kind], err);
		if (!rc && kind != TD_LISTEN_HTTP) /* by what it is */
			rc = adopt_passed(d, (enum td_listen_kind)kind, NULL, &passed[kind], err);
	}
	if (rc || (!passed[TD_LISTEN_FRAMES] && (rc = open_unix(d, TD_LISTEN_FRAMES, c->socket, c->socket_mode, err))) ||
	    (!passed[TD_LISTEN_HTTP] && c->http_socket[0] && (rc = open_unix(d, TD_LISTEN_HTTP, c->http_socket, c->http_socket_mode, err))) ||
	    (!passed[TD_LISTEN_HTTP_TCP] && c->http_listen[0] && (rc = open_tcp(d, c->http_listen, err))))
		return rc;
	td_listener_check(d);
	return 0;
}

void td_listener_close(struct td_daemon *d)
{
	for (int i = 0; i < d->listener.n; i++) {
		struct td_listen *l = &d->listener.at[i];
		struct stat st;

		if (l->fd < 0)
			continue;
		uv_close((uv_handle_t *)&l->poll, NULL);
		l->resting = l->polling = 0;
		close(l->fd);
		l->fd = -1;
		/* A successor may have put its own socket there. */
		if (l->path && lstat(l->path, &st) == 0 && st.st_ino == l->ino && st.st_dev == l->dev)
			unlink(l->path);
		free(l->path);
		l->path = NULL;
	}
}
