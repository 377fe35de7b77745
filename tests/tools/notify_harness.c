/*
 * notify_harness.c: plays the service manager for one service, as systemd does for Type=notify, so that tests see what an administrator would.
 *
 *   notify_harness FOLDER [name=value]... -- PROGRAM [ARGUMENT]...
 *
 * watchdog_ms, start_ms, stop_ms, store_max: as WatchdogSec, TimeoutStartSec, TimeoutStopSec, FileDescriptorStoreMax. abstract=1: the notify socket has no
 * path. unix=NAME:PATH and tcp=NAME:PORT: a listening socket that is passed under this name, made at once and kept (port 0: printed as "port NAME N"); wide=: the
 * same as tcp, not on loopback.
 *
 * Commands on standard input, one a line: start, stop (what is stored goes), restart (it stays), reload, signal N, store, quit, and to damage what is
 * stored under a name: `spoil WHAT NAME` (note_cut, note_bits, note_empty, foreign, short, pipe, double, alone, none, strange).
 * Events on standard output: "say NAME=VALUE", "state S", "exit N" or "died N", "store NAME COUNT", "watchdog", "timeout"; "BAD ..." for what a manager would
 * not have believed. Like Restart=on-failure it starts a service again that ended otherwise than asked, unless by exit code 2. Whatever the service
 * leaves behind is killed, as with a control group.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/clock.h"

enum { FDS = 32, NAME = 64, FIRST_FD = 3, AGAIN_US = 100000, CONFIG_ERROR = 2 };
enum state { INACTIVE, ACTIVATING, ACTIVE, RELOADING, STOPPING, FAILED };
static const char *const state_name[] = {"inactive", "activating", "active", "reloading", "stopping", "failed"};

struct held {
	int fd;
	char name[NAME];
};

static struct {
	const char *folder;
	char **argv;
	long watchdog_ms, start_ms, stop_ms, store_max;
	int abstract;
	struct held socket[FDS], store[FDS];
	int n_sockets, n_store;
	int notify_fd;
	char notify_path[200];
	enum state state;
	pid_t pid;
	uint64_t limit_us, ping_us, again_us; /* of the state; the last ping; start again then. 0: none */
	int killed; /* the next end is not the service's own idea */
	int want_start, want_quit; /* after the end */
} h = {.start_ms = 30000, .stop_ms = 30000, .store_max = 8};

static __attribute__((format(printf, 1, 2))) void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

static _Noreturn void die(const char *what)
{
	perror(what);
	exit(2);
}

static void enter(enum state s)
{
	h.state = s;
	say("state %s", state_name[s]);
}

/* ---- what is stored ---------------------------------------------------------------------------------------------------------------------- */

/* As systemd has it: one open file. Where the kernel won't say, regular files are told apart by their inode; all of a GPU's have one. */
static int same_file(int a, int b)
{
	struct stat x, y;
	long order = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b);

	if (order >= 0)
		return order == 0;
	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static void store_add(int fd, const char *name)
{
	for (int i = 0; i < h.n_store; i++) {
		if (!same_file(h.store[i].fd, fd))
			continue;
		say("BAD stored twice: %s", name);
		close(fd);
		return;
	}
	if (h.n_store >= h.store_max || h.n_store >= FDS) {
		say("BAD the store is full: %s", name);
		close(fd);
		return;
	}
	h.store[h.n_store].fd = fd;
	snprintf(h.store[h.n_store].name, NAME, "%s", name);
	h.n_store++;
}

static void store_remove(const char *name)
{
	int kept = 0;

	for (int i = 0; i < h.n_store; i++) {
		if (name && strcmp(h.store[i].name, name))
			h.store[kept++] = h.store[i];
		else
			close(h.store[i].fd);
	}
	h.n_store = kept;
}

static void store_print(void)
{
	for (int i = 0; i < h.n_store; i++) {
		int n = 0, first = 1;

		for (int j = 0; j < h.n_store; j++) {
			n += !strcmp(h.store[j].name, h.store[i].name);
			first &= j >= i || strcmp(h.store[j].name, h.store[i].name);
		}
		if (first)
			say("store %s %d", h.store[i].name, n);
	}
	say("stored %d", h.n_store);
}

static int is_note(int fd)
{
	char magic[6];

	return pread(fd, magic, sizeof(magic), 0) == sizeof(magic) && !memcmp(magic, "tdkept", sizeof(magic));
}

static struct held *find(const char *name, int note)
{
	for (int i = 0; i < h.n_store; i++)
		if (!strcmp(h.store[i].name, name) && is_note(h.store[i].fd) == note)
			return &h.store[i];
	say("BAD nothing to spoil: %s", name);
	return NULL;
}

/* A memfd of `size` bytes that begins with `from`'s. */
static int copy_of(int from, off_t size)
{
	int fd = memfd_create("spoiled", MFD_CLOEXEC);
	char buf[4096];
	ssize_t k;

	if (fd < 0 || ftruncate(fd, size))
		die("memfd");
	for (off_t at = 0; from >= 0 && at < size; at += k) {
		k = pread(from, buf, (size_t)(size - at < (off_t)sizeof(buf) ? size - at : (off_t)sizeof(buf)), at);
		if (k <= 0)
			break;
		if (pwrite(fd, buf, (size_t)k, at) != k)
			die("pwrite");
	}
	return fd;
}

static void spoil_note(const char *what, const char *name)
{
	struct held *e = find(name, 1);
	struct stat st;
	int fd;

	if (!e || fstat(e->fd, &st))
		return;
	if (!strcmp(what, "note_cut")) {
		fd = copy_of(e->fd, st.st_size - 7);
	} else if (!strcmp(what, "note_empty")) {
		fd = copy_of(e->fd, 8);
	} else {
		unsigned char byte = 0;

		fd = copy_of(e->fd, st.st_size);
		if (pread(fd, &byte, 1, st.st_size / 2) != 1)
			die("pread");
		byte ^= 0x10;
		if (pwrite(fd, &byte, 1, st.st_size / 2) != 1)
			die("pwrite");
	}
	close(e->fd);
	e->fd = fd;
}

static void spoil(const char *what, const char *name)
{
	struct held *e;
	struct stat st;
	int fd = -1, pair[2];

	if (!strncmp(what, "note_", 5)) {
		spoil_note(what, name);
		return;
	}
	if (!strcmp(what, "none")) {
		store_remove(name);
		return;
	}
	if (!strcmp(what, "strange")) {
		store_add(copy_of(-1, 100), "somebody-elses");
		return;
	}
	e = find(name, !strcmp(what, "alone"));
	if (!e || fstat(e->fd, &st))
		return;
	if (!strcmp(what, "alone")) { /* without its note */
		close(e->fd);
		*e = h.store[--h.n_store];
		return;
	}
	if (!strcmp(what, "double")) {
		store_add(copy_of(e->fd, st.st_size), name);
		return;
	}
	if (!strcmp(what, "foreign")) {
		fd = copy_of(-1, st.st_size);
	} else if (!strcmp(what, "short")) {
		fd = copy_of(e->fd, st.st_size / 2);
	} else if (!strcmp(what, "pipe")) {
		if (pipe2(pair, O_CLOEXEC))
			die("pipe");
		fd = pair[0]; /* the other end stays open */
	} else {
		say("BAD unknown way to spoil: %s", what);
		return;
	}
	close(e->fd);
	e->fd = fd;
}

/* ---- sockets ----------------------------------------------------------------------------------------------------------------------------- */

static void notify_open(void)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	socklen_t size;
	int on = 1;

	snprintf(h.notify_path, sizeof(h.notify_path), h.abstract ? "@%s/notify" : "%s/notify", h.folder);
	size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(h.notify_path));
	memcpy(sa.sun_path, h.notify_path, strlen(h.notify_path));
	if (h.abstract)
		sa.sun_path[0] = 0;
	else
		unlink(h.notify_path);
	h.notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (h.notify_fd < 0 || bind(h.notify_fd, (struct sockaddr *)&sa, h.abstract ? size : (socklen_t)sizeof(sa)) ||
	    setsockopt(h.notify_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)))
		die(h.notify_path);
}

static void listen_at(int family, in_addr_t where_ip, char *spec)
{
	char *where = strchr(spec, ':');
	struct held *e = &h.socket[h.n_sockets++];
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(where_ip)};
	socklen_t size = sizeof(in);
	int rc;

	if (!where)
		die(spec);
	*where++ = 0;
	snprintf(e->name, NAME, "%s", spec);
	e->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (family == AF_UNIX) {
		snprintf(un.sun_path, sizeof(un.sun_path), "%s", where);
		rc = bind(e->fd, (struct sockaddr *)&un, sizeof(un));
	} else {
		in.sin_port = htons((uint16_t)atoi(where));
		rc = bind(e->fd, (struct sockaddr *)&in, sizeof(in)) || getsockname(e->fd, (struct sockaddr *)&in, &size);
		say("port %s %d", e->name, ntohs(in.sin_port));
	}
	if (e->fd < 0 || rc || listen(e->fd, 128))
		die(where);
}

/* ---- one life ---------------------------------------------------------------------------------------------------------------------------- */

static _Noreturn void run_service(void)
{
	struct held all[2 * FDS];
	char names[2 * FDS * NAME] = "", text[32];
	sigset_t none;
	int n = 0;

	for (int i = 0; i < h.n_sockets; i++)
		all[n++] = h.socket[i];
	for (int i = 0; i < h.n_store; i++)
		all[n++] = h.store[i];
	for (int i = 0; i < n; i++) { /* out of the way first */
		all[i].fd = fcntl(all[i].fd, F_DUPFD, 256);
		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? ":" : "", all[i].name);
	}
	for (int i = 0; i < n; i++) {
		dup2(all[i].fd, FIRST_FD + i);
		close(all[i].fd);
	}
	snprintf(text, sizeof(text), "%d", (int)getpid());
	if (n) {
		setenv("LISTEN_PID", text, 1);
		setenv("LISTEN_FDNAMES", names, 1);
	}
	setenv("WATCHDOG_PID", text, 1);
	snprintf(text, sizeof(text), "%d", n);
	if (n)
		setenv("LISTEN_FDS", text, 1);
	snprintf(text, sizeof(text), "%ld000", h.watchdog_ms);
	if (h.watchdog_ms)
		setenv("WATCHDOG_USEC", text, 1);
	else
		unsetenv("WATCHDOG_PID");
	setenv("NOTIFY_SOCKET", h.notify_path, 1);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvp(h.argv[0], h.argv);
	die(h.argv[0]);
}

static void set_limit(long ms)
{
	h.limit_us = ms ? td_now_us() + (uint64_t)ms * 1000 : 0;
}

static void start(void)
{
	h.again_us = 0;
	h.killed = h.want_start = 0;
	h.ping_us = 0;
	enter(ACTIVATING);
	set_limit(h.start_ms);
	h.pid = fork();
	if (h.pid < 0)
		die("fork");
	if (h.pid == 0)
		run_service();
	say("start %d", (int)h.pid);
}

static void stop(int start_after, int quit_after)
{
	h.want_start = start_after;
	h.want_quit = quit_after;
	h.again_us = 0;
	if (!h.pid) {
		if (start_after)
			start();
		return;
	}
	h.killed = 1;
	if (h.state != STOPPING)
		enter(STOPPING);
	set_limit(h.stop_ms);
	kill(h.pid, SIGTERM);
}

/* What a control group would hold. We are the orphans' parent. */
static void kill_left_over(void)
{
	char path[64], list[4096];
	int fd, status;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	for (int tries = 0; tries < 100; tries++) {
		fd = open(path, O_RDONLY | O_CLOEXEC);
		n = fd >= 0 ? read(fd, list, sizeof(list) - 1) : 0;
		if (fd >= 0)
			close(fd);
		if (n <= 0)
			return;
		list[n] = 0;
		for (char *p = list; *p; p += strspn(p, " ")) {
			pid_t pid = (pid_t)strtol(p, &p, 10);

			if (pid <= 0)
				break;
			if (kill(pid, SIGKILL) == 0)
				waitpid(pid, &status, 0);
		}
	}
}

static void ended(int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, wanted = h.state == STOPPING && h.killed == 1;

	say(WIFEXITED(status) ? "exit %d" : "died %d", WIFEXITED(status) ? code : WTERMSIG(status));
	h.pid = 0;
	h.limit_us = h.ping_us = 0;
	kill_left_over();
	if (wanted) {
		enter(code == 0 ? INACTIVE : FAILED);
		if (h.want_start) {
			start();
			return;
		}
		store_remove(NULL);
		return;
	}
	enter(code == 0 ? INACTIVE : FAILED);
	if (code != 0 && code != CONFIG_ERROR)
		h.again_us = td_now_us() + AGAIN_US;
	else
		store_remove(NULL);
}

static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == h.pid)
			ended(status);
}

/* ---- what it says ------------------------------------------------------------------------------------------------------------------------ */

struct message {
	int store, remove, barrier, poll_off;
	const char *name;
};

static void ready(void)
{
	if (h.state == ACTIVATING || h.state == RELOADING) {
		enter(ACTIVE);
		h.limit_us = 0;
		if (!h.ping_us)
			h.ping_us = td_now_us();
	} else if (h.state != ACTIVE) {
		say("BAD READY=1 while %s", state_name[h.state]);
	}
}

static void take_line(struct message *m, const char *line)
{
	uint64_t now = td_now_us(), extended;

	say("say %s", line);
	if (!strcmp(line, "READY=1")) {
		ready();
	} else if (!strcmp(line, "RELOADING=1")) {
		if (h.state == ACTIVE)
			enter(RELOADING);
	} else if (!strcmp(line, "STOPPING=1")) {
		if (h.state != STOPPING) {
			enter(STOPPING);
			set_limit(h.stop_ms);
		}
	} else if (!strcmp(line, "WATCHDOG=1")) {
		if (h.ping_us)
			h.ping_us = now;
	} else if (!strncmp(line, "EXTEND_TIMEOUT_USEC=", 20)) {
		extended = now + strtoull(line + 20, NULL, 10);
		if (h.limit_us && extended > h.limit_us)
			h.limit_us = extended;
	} else if (!strcmp(line, "FDSTORE=1")) {
		m->store = 1;
	} else if (!strcmp(line, "FDSTOREREMOVE=1")) {
		m->remove = 1;
	} else if (!strncmp(line, "FDNAME=", 7)) {
		m->name = line + 7;
	} else if (!strcmp(line, "BARRIER=1")) {
		m->barrier = 1;
	} else if (strncmp(line, "STATUS=", 7) && strncmp(line, "MONOTONIC_USEC=", 15) && strcmp(line, "FDPOLL=0")) {
		say("BAD unknown: %s", line);
	}
}

static void take_fds(const struct message *m, const int *fd, int n)
{
	if (m->remove && m->name)
		store_remove(m->name);
	for (int i = 0; i < n; i++) {
		if (m->store && m->name) {
			store_add(fd[i], m->name);
			continue;
		}
		if (!m->barrier)
			say("BAD a descriptor that nobody asked for");
		close(fd[i]);
	}
}

static int take_message(void)
{
	char text[8192], *save = NULL;
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(FDS * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = text, .iov_len = sizeof(text) - 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct message m = {0};
	struct ucred from = {0};
	int fd[FDS], n_fds = 0;
	ssize_t n = recvmsg(h.notify_fd, &msg, MSG_CMSG_CLOEXEC);

	if (n < 0)
		return 0;
	text[n] = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_type == SCM_CREDENTIALS)
			memcpy(&from, CMSG_DATA(c), sizeof(from));
		if (c->cmsg_type == SCM_RIGHTS) {
			n_fds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fd, CMSG_DATA(c), (size_t)n_fds * sizeof(int));
		}
	}
	if (from.pid != h.pid) {
		if (h.pid) /* else the last words of one that has ended */
			say("BAD message of process %d: %s", (int)from.pid, text);
		while (n_fds > 0)
			close(fd[--n_fds]);
		return 1;
	}
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		take_line(&m, line);
	take_fds(&m, fd, n_fds);
	return 1;
}

/* ---- commands, time ---------------------------------------------------------------------------------------------------------------------- */

static void command(char *line)
{
	char what[32] = "", a[64] = "", b[64] = "";

	sscanf(line, "%31s %63s %63s", what, a, b);
	say("command %s", line);
	if (!strcmp(what, "start") && !h.pid)
		start();
	else if (!strcmp(what, "stop"))
		stop(0, 0);
	else if (!strcmp(what, "restart"))
		stop(1, 0);
	else if (!strcmp(what, "quit"))
		stop(0, 1);
	else if (!strcmp(what, "reload") && h.pid)
		kill(h.pid, SIGHUP);
	else if (!strcmp(what, "signal") && h.pid)
		kill(h.pid, atoi(a));
	else if (!strcmp(what, "store"))
		store_print();
	else if (!strcmp(what, "spoil"))
		spoil(a, b);
	else
		say("BAD command %s", line);
	if (!strcmp(what, "quit") && !h.pid)
		exit(0);
}

static void read_commands(void)
{
	static char buf[4096];
	static size_t n;
	ssize_t k = read(STDIN_FILENO, buf + n, sizeof(buf) - 1 - n);
	char *end;

	if (k == 0) { /* nobody commands any more */
		if (h.pid)
			kill(h.pid, SIGKILL);
		kill_left_over();
		exit(1);
	}
	if (k < 0)
		return;
	n += (size_t)k;
	buf[n] = 0;
	while ((end = strchr(buf, '\n'))) {
		*end = 0;
		command(buf);
		n -= (size_t)(end + 1 - buf);
		memmove(buf, end + 1, n + 1);
	}
}

static void check_time(void)
{
	uint64_t now = td_now_us();

	if (h.again_us && now >= h.again_us)
		start();
	if (!h.pid)
		return;
	if (h.watchdog_ms && h.ping_us && h.state != STOPPING && now > h.ping_us + (uint64_t)h.watchdog_ms * 1000) {
		say("watchdog");
		h.ping_us = 0;
		h.killed = 2;
		kill(h.pid, SIGABRT);
		kill(h.pid, SIGCONT);
	}
	if (h.limit_us && now > h.limit_us) {
		say("timeout");
		h.limit_us = 0;
		h.killed = 2;
		kill(h.pid, SIGKILL);
	}
}

static void option(char *arg)
{
	char *value = strchr(arg, '=');

	if (!value)
		die(arg);
	*value++ = 0;
	if (!strcmp(arg, "unix"))
		listen_at(AF_UNIX, 0, value);
	else if (!strcmp(arg, "tcp"))
		listen_at(AF_INET, INADDR_LOOPBACK, value);
	else if (!strcmp(arg, "wide"))
		listen_at(AF_INET, INADDR_ANY, value);
	else if (!strcmp(arg, "abstract"))
		h.abstract = atoi(value);
	else
		*(!strcmp(arg, "watchdog_ms") ? &h.watchdog_ms : !strcmp(arg, "start_ms") ? &h.start_ms : !strcmp(arg, "stop_ms") ? &h.stop_ms : &h.store_max) =
			atol(value);
}

int main(int argc, char **argv)
{
	struct pollfd p[3];
	sigset_t set;
	int i = 2, chld;

	for (; i < argc && strcmp(argv[i], "--"); i++)
		option(argv[i]);
	if (argc < 4 || i + 1 >= argc) {
		fprintf(stderr, "usage: notify_harness FOLDER [name=value]... -- PROGRAM [ARGUMENT]...\n");
		return 2;
	}
	h.folder = argv[1];
	h.argv = argv + i + 1;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	signal(SIGPIPE, SIG_IGN);
	notify_open();
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	chld = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	enter(INACTIVE);
	for (;;) {
		struct signalfd_siginfo info;

		p[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
		p[1] = (struct pollfd){.fd = h.notify_fd, .events = POLLIN};
		p[2] = (struct pollfd){.fd = chld, .events = POLLIN};
		poll(p, 3, 10);
		while (take_message())
			;
		if (p[2].revents && read(chld, &info, sizeof(info)) > 0)
			reap();
		if (h.want_quit && !h.pid)
			return 0;
		if (p[0].revents)
			read_commands();
		check_time();
	}
}
