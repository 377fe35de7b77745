/*
 * notify.c: the service manager is told how it goes, and hands over descriptors: systemd's two protocols, in own code.
 *
 * Both are small and stable (datagrams of NAME=value lines; descriptors from 3 on, counted and named by variables), so tandemd needs no library for them
 * and runs the same where there is no systemd.
 *
 * READY=1 comes when both workers serve for the first time. Until then the start's time limit is extended while the start gets on; a worker that can't
 * be had ends that, so a start that is not going to succeed fails with the reason in its status line. Later failures of workers are no reason to end: clients
 * are told, and tandemd goes on trying.
 * WATCHDOG=1 is sent by the loop's timer, so a loop that hangs is what stops it. It is also withheld when the supervision of the workers itself has
 * failed: a worker that has work and no progress for twice its own limit, or one that is not gone a minute after it was killed. A worker that dies, or that
 * can't be had, withholds nothing: there a restart of tandemd would do no more than tandemd does.
 * A message that the manager's full socket does not take is said again at a later turn, when it matters.
 */
#include "daemon/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon.h"

enum {
	S = 1000000,
	FIRST_FD = 3,
	FDS_MAX = 4, /* in one message */
	LOADING_US = 1 * S, /* how often what is said of itself */
	SERVING_US = 5 * S,
	EXTEND_US = 30 * S, /* each time: longer than the loop may take for a turn */
	TICK_US = 100000,
};

/* ---- what was passed --------------------------------------------------------------------------------------------------------------- */

static long number_of(const char *variable)
{
	const char *text = getenv(variable);
	char *end;
	long n;

	if (!text || !*text)
		return -1;
	errno = 0;
	n = strtol(text, &end, 10);
	return errno || *end || n < 0 ? -1 : n;
}

/* Names stand in the descriptors' order, by ':'. */
static void name_passed(struct td_notify *n, const char *names)
{
	for (int i = 0; i < n->n_passed; i++) {
		size_t k = names ? strcspn(names, ":") : 0;

		snprintf(n->passed[i].name, sizeof(n->passed[i].name), "%.*s", (int)k, names ? names : "");
		if (names)
			names += k + (names[k] == ':');
	}
}

static void read_passed(struct td_notify *n)
{
	long count = number_of("LISTEN_FDS");

	if (number_of("LISTEN_PID") != (long)getpid())
		return;
	for (int fd = FIRST_FD; fd < FIRST_FD + count; fd++) {
		int flags = fcntl(fd, F_GETFD);

		if (flags < 0)
			break; /* fewer than was said */
		fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
		if (n->n_passed < TD_PASSED_MAX)
			n->passed[n->n_passed++].fd = fd;
		else
			close(fd);
	}
	name_passed(n, getenv("LISTEN_FDNAMES"));
}

int td_notify_take(struct td_notify *n, const char *name)
{
	for (int i = 0; i < n->n_passed; i++) {
		int fd = n->passed[i].fd;

		if (fd < 0 || strcmp(n->passed[i].name, name))
			continue;
		n->passed[i].fd = -1;
		return fd;
	}
	return -1;
}

static int option_of(int fd, int option)
{
	int value;
	socklen_t size = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, option, &value, &size) < 0 ? -1 : value;
}

static int is_listening(int fd, int family)
{
	int domain = option_of(fd, SO_DOMAIN);

	return option_of(fd, SO_TYPE) == SOCK_STREAM && option_of(fd, SO_ACCEPTCONN) == 1 && (domain == family || (family == AF_INET && domain == AF_INET6));
}

static int is_ours(const char *name)
{
	static const char *const known[] = {"tandem", "http", "http-tcp"};

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(name, known[i]))
			return 1;
	return 0;
}

int td_notify_take_socket(struct td_notify *n, const char *name, int family)
{
	for (int i = 0; i < n->n_passed; i++) {
		struct td_passed *p = &n->passed[i];
		int fd = p->fd;

		if (fd < 0 || (name ? strcmp(p->name, name) != 0 : is_ours(p->name)) || !is_listening(fd, family))
			continue;
		p->fd = -1;
		return fd;
	}
	return -1;
}

/* ---- sending ----------------------------------------------------------------------------------------------------------------------- */

/* A path, or "@name" for an abstract one. */
static void read_address(struct td_notify *n)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t size = path ? strlen(path) : 0;

	if (!size)
		return;
	if ((path[0] != '/' && path[0] != '@') || size < 2 || size >= sizeof(n->to.sun_path)) {
		td_log(TD_LOG_WARN, "NOTIFY_SOCKET = %s: no path and no abstract name: nobody is told how it goes", path);
		return;
	}
	n->to.sun_family = AF_UNIX;
	memcpy(n->to.sun_path, path, size);
	if (path[0] == '@')
		n->to.sun_path[0] = 0;
	n->to_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + (path[0] == '/'));
	n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (n->fd < 0)
		td_log(TD_LOG_WARN, "NOTIFY_SOCKET: cannot make a socket: %s", strerror(errno));
}

void td_notify_open(struct td_notify *n)
{
	static const char *const variables[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"};
	long watchdog = number_of("WATCHDOG_USEC"), whose = number_of("WATCHDOG_PID");

	memset(n, 0, sizeof(*n));
	n->fd = -1;
	read_passed(n);
	read_address(n);
	if (watchdog > 0 && (!getenv("WATCHDOG_PID") || whose == (long)getpid()))
		n->watchdog_us = (uint64_t)watchdog;
	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		unsetenv(variables[i]);
}

void td_notify_close(struct td_notify *n)
{
	for (int i = 0; i < n->n_passed; i++)
		if (n->passed[i].fd >= 0)
			close(n->passed[i].fd);
	n->n_passed = 0;
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
}

static int send_text(struct td_notify *n, const char *text, const int *fds, int n_fds)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = (char *)text, .iov_len = strlen(text)};
	struct msghdr m = {.msg_name = &n->to, .msg_namelen = n->to_size, .msg_iov = &iov, .msg_iovlen = 1};
	ssize_t k;

	if (n_fds) {
		size_t bytes = (size_t)n_fds * sizeof(int);

		memset(&control, 0, sizeof(control));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(&control.head), fds, bytes);
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(bytes);
	}
	do
		k = sendmsg(n->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (k < 0 && errno == EINTR);
	return k < 0 ? (errno == EAGAIN ? TD_E_BUSY : TD_E_IO) : 0;
}

int td_notify_send(struct td_notify *n, const int *fds, int n_fds, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	int k;

	if (n->fd < 0)
		return 0;
	va_start(ap, fmt);
	k = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (k < 0 || (size_t)k >= sizeof(text) || n_fds > FDS_MAX)
		return TD_E_INVALID;
	return send_text(n, text, fds, n_fds);
}

int td_notify_barrier(struct td_notify *n, int ms)
{
	int pair[2], rc;
	struct pollfd p;

	if (n->fd < 0)
		return 0;
	if (pipe2(pair, O_CLOEXEC) < 0)
		return TD_E_LIMIT;
	rc = td_notify_send(n, &pair[1], 1, "BARRIER=1");
	close(pair[1]);
	p = (struct pollfd){.fd = pair[0]};
	if (!rc && poll(&p, 1, ms) != 1) /* the manager closes its end when it comes to it */
		rc = TD_E_DEADLINE;
	close(pair[0]);
	return rc;
}

/* ---- how it goes ------------------------------------------------------------------------------------------------------------------- */

static void describe_loading(const struct td_child *c, char *text, size_t size)
{
	if (c->state == TD_CHILD_READY)
		snprintf(text, size, "%s ready", c->name);
	else if (c->state == TD_CHILD_LOADING && c->stage[0] && c->stage_total)
		snprintf(text, size, "%s %d%% (%s)", c->name, (int)(100.0 * (double)c->stage_done / (double)c->stage_total), c->stage);
	else if (c->state == TD_CHILD_STARTING || c->state == TD_CHILD_LOADING)
		snprintf(text, size, "%s starts", c->name);
	else
		snprintf(text, size, "%s waits", c->name);
}

static void describe(const struct td_daemon *d, char *text, size_t size)
{
	const struct td_child *failed = td_supervisor_failed(d);
	char target[112], drafter[112] = "";
	int waiting = 0;

	for (const struct td_request *r = d->requests; r; r = r->hh.next)
		waiting += r->state == TD_REQ_QUEUED;
	describe_loading(&d->target, target, sizeof(target));
	if (d->drafter.state != TD_CHILD_OFF)
		describe_loading(&d->drafter, drafter, sizeof(drafter));
	if (d->draining)
		snprintf(text, size, "Draining: %d running", td_scheduler_used(d));
	else if (failed)
		snprintf(text, size, "The %s worker cannot be had: %.180s", failed->name, failed->why_text);
	else if (!td_supervisor_serving(d))
		snprintf(text, size, "%s: %s%s%s", d->notify.ready ? "Recovering" : "Loading", target, drafter[0] ? ", " : "", drafter);
	else
		snprintf(text, size, "Serving %.100s on %s: %d of %d slots, %d waiting, %d connections", d->model.name, d->model.device, td_scheduler_used(d),
			 d->model.shm.slots, waiting, d->n_sessions);
	for (char *p = text; *p; p++) /* a line is what ends a status */
		if ((unsigned char)*p < ' ')
			*p = ' ';
}

/* The start gets on, or the end does: both have a clock at the manager's. */
static int is_in_time(const struct td_daemon *d)
{
	return d->draining || (!d->notify.ready && !td_supervisor_failed(d));
}

static void tell_status(struct td_daemon *d, uint64_t now)
{
	struct td_notify *n = &d->notify;
	char text[TD_STATUS_TEXT], extend[48] = "";
	int changed, serving = td_supervisor_serving(d);

	if (is_in_time(d))
		snprintf(extend, sizeof(extend), "\nEXTEND_TIMEOUT_USEC=%d", EXTEND_US);
	if (serving == n->serving && now < n->told_us + (extend[0] || !serving ? LOADING_US : SERVING_US))
		return;
	n->serving = serving;
	describe(d, text, sizeof(text));
	changed = strcmp(text, n->status);
	if ((changed || extend[0]) && td_notify_send(n, NULL, 0, "STATUS=%s%s", text, extend) == 0)
		memcpy(n->status, text, sizeof(text));
	n->told_us = now;
}

static void tell_ready(struct td_daemon *d)
{
	struct td_notify *n = &d->notify;
	char text[TD_STATUS_TEXT];

	describe(d, text, sizeof(text));
	if (td_notify_send(n, NULL, 0, "READY=1\nSTATUS=%s", text))
		return;
	n->ready = 1;
	n->ready_owed = 0;
	memcpy(n->status, text, sizeof(text));
}

void td_notify_check(struct td_daemon *d, uint64_t now)
{
	struct td_notify *n = &d->notify;

	if (n->fd < 0)
		return;
	if (d->draining && !n->stopping)
		td_notify_stopping(d);
	if (!d->draining && (n->ready_owed || (!n->ready && td_supervisor_serving(d))))
		tell_ready(d);
	tell_status(d, now);
	if (n->watchdog_us && now + TICK_US >= n->pinged_us + n->watchdog_us / 2 && !td_supervisor_stuck(d, now) && td_notify_send(n, NULL, 0, "WATCHDOG=1") == 0)
		n->pinged_us = now;
}

void td_notify_starting(struct td_notify *n)
{
	td_notify_send(n, NULL, 0, "STATUS=Loading: the configuration and the heads of the model's files\nEXTEND_TIMEOUT_USEC=%d", EXTEND_US);
}

void td_notify_stopping(struct td_daemon *d)
{
	struct td_notify *n = &d->notify;

	if (td_notify_send(n, NULL, 0, "STOPPING=1\nSTATUS=Draining: %d running\nEXTEND_TIMEOUT_USEC=%d", td_scheduler_used(d), EXTEND_US) == 0)
		n->stopping = 1;
}

void td_notify_reloading(struct td_daemon *d)
{
	struct td_notify *n = &d->notify;

	if (!n->ready) /* of a start nobody waits for a reload */
		return;
	if (td_notify_send(n, NULL, 0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)td_now_us()) == 0)
		n->ready_owed = 1;
}

void td_notify_reloaded(struct td_daemon *d)
{
	if (d->notify.ready_owed)
		tell_ready(d);
}
