/*
 * test_control.c: messages and descriptors between two processes; a peer that dies, floods, or sends nonsense.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <nanomsg/nn.h>
#include <nanomsg/pair.h>

#include "engine/control.h"

typedef Tandem__Worker__Message Message;

static char folder[] = "/tmp/tandem-control-XXXXXX";
static char path[128];

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int send_health(struct td_control *c, uint64_t serial, struct td_error *err)
{
	Tandem__Worker__Health body = TANDEM__WORKER__HEALTH__INIT;
	Message m = TANDEM__WORKER__MESSAGE__INIT;

	body.serial = serial;
	m.body_case = TANDEM__WORKER__MESSAGE__BODY_HEALTH;
	m.health = &body;
	return td_control_send(c, &m, err);
}

/* Serial of the next Health, or a negative code; -1000 at the deadline. */
static int64_t recv_health(struct td_control *c, int timeout_ms)
{
	struct td_error err = {0};
	Message *m;
	int64_t serial;
	int rc = td_control_recv(c, &m, timeout_ms, &err);

	if (rc <= 0)
		return rc ? rc : -1000;
	serial = m->body_case == TANDEM__WORKER__MESSAGE__BODY_HEALTH ? (int64_t)m->health->serial : -2000;
	tandem__worker__message__free_unpacked(m, NULL);
	return serial;
}

/* nanomsg's threads do not survive a fork: each side of a test is a child that never used it. */
static pid_t child(int (*body)(void))
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(30); /* also when the test has failed and gone */
		_exit(body());
	}
	return pid;
}

static int status_of(pid_t pid)
{
	int status = -1;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* ---- messages ---------------------------------------------------------------------------------------------------------------------- */

static int echo_client(void)
{
	struct td_control c;
	struct td_error err = {0};

	if (td_control_connect(&c, path, &err))
		return 1;
	for (uint64_t i = 0; i < 2000; i++)
		if (recv_health(&c, 5000) != (int64_t)i || send_health(&c, i + 1, &err))
			return 2;
	if (recv_health(&c, 5000) != 9999)
		return 3;
	td_control_close(&c);
	return 0;
}

static int echo_server(void)
{
	struct td_control c;
	struct td_error err = {0};
	Message *m;

	if (td_control_bind(&c, path, &err))
		return 1;
	if (td_control_recv(&c, &m, 0, &err) != 0) /* nothing is there yet */
		return 2;
	while (send_health(&c, 0, &err)) /* until the peer has connected */
		if (err.code != TD_E_BUSY)
			return 3;
	for (uint64_t i = 1; i < 2000; i++)
		if (recv_health(&c, 5000) != (int64_t)i || send_health(&c, i, &err))
			return 4;
	if (recv_health(&c, 5000) != 2000 || send_health(&c, 9999, &err))
		return 5;
	usleep(100000);
	td_control_close(&c);
	td_control_close(&c);
	return 0;
}

static void two_processes(void **state)
{
	pid_t server = child(echo_server), client = child(echo_client);

	(void)state;
	assert_int_equal(status_of(client), 0);
	assert_int_equal(status_of(server), 0);
}

enum { FLOOD = 3000 };

/* Sends as fast as it can, then says Failure and exits at once, without closing: everything must arrive. */
static int flood_client(void)
{
	struct td_control c;
	struct td_error err = {0};
	Tandem__Worker__Failure body = TANDEM__WORKER__FAILURE__INIT;
	Message m = TANDEM__WORKER__MESSAGE__INIT;

	if (td_control_connect(&c, path, &err))
		return 1;
	for (uint64_t i = 0; i < FLOOD; i++)
		while (send_health(&c, i, &err))
			if (err.code != TD_E_BUSY)
				return 2;
	body.code = (char *)"device";
	body.text = (char *)"the last word";
	m.body_case = TANDEM__WORKER__MESSAGE__BODY_FAILURE;
	m.failure = &body;
	while (td_control_send(&c, &m, &err))
		if (err.code != TD_E_BUSY)
			return 3;
	return 0;
}

static int slow_server(void)
{
	struct td_control c;
	struct td_error err = {0};
	Message *m;

	if (td_control_bind(&c, path, &err))
		return 1;
	for (int64_t i = 0; i < FLOOD; i++) {
		if (recv_health(&c, 5000) != i)
			return 2;
		if (i % 500 == 499)
			usleep(20000);
	}
	usleep(50000);
	if (td_control_recv(&c, &m, 5000, &err) != 1 || m->body_case != TANDEM__WORKER__MESSAGE__BODY_FAILURE || strcmp(m->failure->text, "the last word"))
		return 3;
	tandem__worker__message__free_unpacked(m, NULL);
	if (recv_health(&c, 100) != -1000)
		return 4;
	td_control_close(&c);
	return 0;
}

static void flood_and_exit(void **state)
{
	pid_t server = child(slow_server), client = child(flood_client);

	(void)state;
	assert_int_equal(status_of(client), 0);
	assert_int_equal(status_of(server), 0);
}

static int deaf_client(void)
{
	struct td_control c;
	struct td_error err = {0};

	if (td_control_connect(&c, path, &err) || send_health(&c, 7, &err))
		return 1;
	for (;;)
		pause();
}

/* A peer that reads nothing: the sender is told, soon, and never blocks. */
static int patient_server(void)
{
	struct td_control c;
	struct td_error err = {0};
	int64_t longest = 0;
	int sent = 0, refused = 0;

	if (td_control_bind(&c, path, &err) || recv_health(&c, 5000) != 7)
		return 1;
	for (; sent < 1000000 && !refused; sent++) {
		int64_t t = now_ms();

		refused = send_health(&c, (uint64_t)sent, &err);
		longest = now_ms() - t > longest ? now_ms() - t : longest;
	}
	if (refused != TD_E_BUSY || longest > 10000)
		return 2;
	td_control_close(&c);
	return 0;
}

static void deaf_peer(void **state)
{
	pid_t server = child(patient_server), client = child(deaf_client);

	(void)state;
	assert_int_equal(status_of(server), 0);
	kill(client, SIGKILL);
	assert_int_equal(status_of(client), 1000 + SIGKILL);
}

static int one_word_client(void)
{
	struct td_control c;
	struct td_error err = {0};

	if (td_control_connect(&c, path, &err) || send_health(&c, 42, &err))
		return 1;
	for (;;)
		pause();
}

static int told[2]; /* a pipe for what the server has seen */

/* The peer is killed: sending says BUSY, receiving nothing; a successor on the same socket is heard, and hears. */
static int surviving_server(void)
{
	struct td_control c;
	struct td_error err = {0};

	if (td_control_bind(&c, path, &err))
		return 1;
	for (int life = 0; life < 3; life++) {
		int64_t end = now_ms() + 5000;

		if (recv_health(&c, 5000) != 42)
			return 2;
		if (send_health(&c, 1, &err))
			return 3;
		if (write(told[1], "x", 1) != 1)
			return 5;
		while (!send_health(&c, 1, &err) && now_ms() < end)
			usleep(1000);
		if (err.code != TD_E_BUSY || recv_health(&c, 20) != -1000)
			return 4;
		if (write(told[1], "x", 1) != 1)
			return 6;
	}
	td_control_close(&c);
	return 0;
}

static void peer_dies(void **state)
{
	pid_t server, client;
	char x;

	(void)state;
	assert_int_equal(pipe2(told, O_CLOEXEC), 0);
	server = child(surviving_server);
	for (int life = 0; life < 3; life++) {
		client = child(one_word_client);
		assert_int_equal(read(told[0], &x, 1), 1); /* the server has heard it */
		kill(client, SIGKILL);
		assert_int_equal(status_of(client), 1000 + SIGKILL);
		assert_int_equal(read(told[0], &x, 1), 1); /* the server has noticed the death */
	}
	assert_int_equal(status_of(server), 0);
	close(told[0]);
	close(told[1]);
}

static int nonsense_client(void)
{
	char url[160];
	int s = nn_socket(AF_SP, NN_PAIR);
	struct nn_pollfd p = {.fd = s, .events = NN_POLLOUT};

	snprintf(url, sizeof(url), "ipc://%s", path);
	if (s < 0 || nn_connect(s, url) < 0)
		return 1;
	for (int i = 0; i < 2; i++) {
		nn_poll(&p, 1, 5000);
		if (nn_send(s, i ? "" : "\xff\xff\xff", i ? 0 : 3, 0) < 0)
			return 2;
	}
	nn_poll(&p, 1, 5000);
	usleep(200000);
	return 0;
}

static int strict_server(void)
{
	struct td_control c;
	struct td_error err = {0};

	if (td_control_bind(&c, path, &err))
		return 1;
	if (recv_health(&c, 5000) != TD_E_PROTOCOL || recv_health(&c, 5000) != TD_E_PROTOCOL)
		return 2;
	td_control_close(&c);
	return 0;
}

static void nonsense(void **state)
{
	pid_t server = child(strict_server), client = child(nonsense_client);

	(void)state;
	assert_int_equal(status_of(server), 0);
	assert_int_equal(status_of(client), 0);
}

/* ---- paths ------------------------------------------------------------------------------------------------------------------------- */

static int bad_paths(void)
{
	char longest[300], plain[160];
	struct td_control a, b, zero = {0};
	struct td_error err = {0};
	struct stat st;
	int fd;

	td_control_close(&zero);
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	if (td_control_bind(&a, longest, &err) != TD_E_INVALID || td_control_bind(&a, "", &err) != TD_E_INVALID)
		return 1;
	if (td_control_bind(&a, "/nowhere/at/all/x.sock", &err) >= 0 || a.sock != -1)
		return 2;
	snprintf(plain, sizeof(plain), "%s/plain", folder);
	fd = open(plain, O_CREAT | O_WRONLY, 0600);
	if (fd < 0 || td_control_bind(&a, plain, &err) != TD_E_INVALID || access(plain, F_OK) != 0)
		return 3; /* somebody's file stays */
	close(fd);
	unlink(plain);
	/* a stale socket is removed, a live one is not */
	{
		struct sockaddr_un addr = {.sun_family = AF_UNIX};
		int s = socket(AF_UNIX, SOCK_STREAM, 0);

		memcpy(addr.sun_path, path, strnlen(path, sizeof(addr.sun_path) - 1) + 1);
		unlink(path);
		if (bind(s, (struct sockaddr *)&addr, sizeof(addr)) < 0)
			return 4;
		close(s);
	}
	if (td_control_bind(&a, path, &err) || stat(path, &st) < 0 || (st.st_mode & 0777) != 0600)
		return 5;
	if (td_control_bind(&b, path, &err) != TD_E_BUSY)
		return 6;
	td_control_close(&a);
	return 0;
}

static void paths(void **state)
{
	(void)state;
	assert_int_equal(status_of(child(bad_paths)), 0);
}

static int nobody(void)
{
	struct td_control c;
	struct td_error err = {0};
	char other[160];

	snprintf(other, sizeof(other), "%s/nobody", folder);
	return td_control_connect(&c, other, &err) == TD_E_CLOSED && c.sock == -1 ? 0 : 1;
}

static void nobody_answers(void **state)
{
	(void)state;
	assert_int_equal(status_of(child(nobody)), 0);
}

/* ---- descriptors ------------------------------------------------------------------------------------------------------------------- */

static void sockets(int s[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
}

static void descriptor_to_a_process(void **state)
{
	struct td_error err = {0};
	char name[32], text[6] = "";
	int s[2], fd, file;
	pid_t pid;

	(void)state;
	sockets(s);
	pid = fork();
	if (pid == 0) {
		close(s[0]);
		if (td_fd_recv(s[1], &fd, name, 5000, &err) || strcmp(name, "arena") || !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
			_exit(1);
		_exit(write(fd, "hello", 5) == 5 ? 0 : 2);
	}
	close(s[1]);
	file = open(folder, O_TMPFILE | O_RDWR, 0600);
	if (file < 0) {
		snprintf(path, sizeof(path), "%s/file", folder);
		file = open(path, O_CREAT | O_RDWR, 0600);
	}
	assert_true(file >= 0);
	assert_int_equal(td_fd_send(s[0], file, "arena", &err), 0);
	assert_int_equal(status_of(pid), 0);
	assert_int_equal(pread(file, text, 5, 0), 5);
	assert_string_equal(text, "hello");
	/* the peer has ended */
	assert_int_equal(td_fd_send(s[0], file, "arena", &err), TD_E_CLOSED);
	assert_int_equal(td_fd_recv(s[0], &fd, name, 5000, &err), TD_E_CLOSED);
	assert_int_equal(fd, -1);
	close(file);
	close(s[0]);
}

static void odd_datagrams(void **state)
{
	struct td_error err = {0};
	char name[32], block[33] = "name", longest[33];
	int s[2], fd, before, two[2];

	(void)state;
	sockets(s);
	assert_int_equal(td_fd_recv(s[1], &fd, name, 0, &err), TD_E_DEADLINE);
	assert_int_equal(td_fd_recv(s[1], &fd, name, 20, &err), TD_E_DEADLINE);
	memset(longest, 'n', sizeof(longest));
	longest[32] = '\0';
	assert_int_equal(td_fd_send(s[0], 0, longest, &err), TD_E_INVALID);
	assert_int_equal(td_fd_send(s[0], 0, "", &err), TD_E_INVALID);
	longest[31] = '\0';
	assert_int_equal(td_fd_send(s[0], 0, longest, &err), 0);
	assert_int_equal(td_fd_recv(s[1], &fd, name, 1000, &err), 0);
	assert_string_equal(name, longest);
	close(fd);
	assert_int_equal(td_fd_send(s[0], 9999, "closed", &err), TD_E_IO);
	assert_int_equal(td_fd_send(-1, 0, "nowhere", &err), TD_E_IO);
	/* without a descriptor, too long, too short, name not ended */
	for (int i = 0; i < 4; i++) {
		size_t n = i == 1 ? 33 : i == 2 ? 5 : 32;

		memset(block, i == 3 ? 'x' : 0, 32);
		block[0] = 'n';
		assert_int_equal(send(s[0], block, n, 0), n);
		assert_int_equal(td_fd_recv(s[1], &fd, name, 1000, &err), TD_E_PROTOCOL);
		assert_int_equal(fd, -1);
	}
	/* two descriptors in one datagram: refused, and both closed */
	assert_int_equal(pipe(two), 0);
	before = dup(0);
	close(before);
	{
		union {
			struct cmsghdr head;
			char room[CMSG_SPACE(2 * sizeof(int))];
		} control = {0};
		struct iovec iov = {.iov_base = block, .iov_len = 32};
		struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

		memset(block, 0, 32);
		block[0] = 'n';
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(2 * sizeof(int));
		memcpy(CMSG_DATA(&control.head), two, sizeof(two));
		assert_int_equal(sendmsg(s[0], &m, 0), 32);
	}
	assert_int_equal(td_fd_recv(s[1], &fd, name, 1000, &err), TD_E_PROTOCOL);
	fd = dup(0);
	assert_int_equal(fd, before);
	close(fd);
	close(two[0]);
	close(two[1]);
	close(s[0]);
	close(s[1]);
}

static void full_socket(void **state)
{
	struct td_error err = {0};
	int s[2], rc = 0, n = 0;

	(void)state;
	sockets(s);
	while (n < 100000 && !(rc = td_fd_send(s[0], 0, "flood", &err)))
		n++;
	assert_true(n > 0 && n < 100000);
	assert_true(rc == TD_E_BUSY || rc == TD_E_LIMIT);
	close(s[0]);
	close(s[1]);
}

static void out_of_descriptors(void **state)
{
	struct td_error err = {0};
	char name[32];
	int s[2], fd;
	pid_t pid;

	(void)state;
	sockets(s);
	assert_int_equal(td_fd_send(s[0], 0, "one", &err), 0);
	assert_int_equal(td_fd_send(s[0], 0, "two", &err), 0);
	pid = fork();
	if (pid == 0) {
		struct rlimit old, none;

		getrlimit(RLIMIT_NOFILE, &old);
		none = (struct rlimit){0, old.rlim_max};
		setrlimit(RLIMIT_NOFILE, &none);
		/* poll() refuses more entries than the limit, so what fails may be either step; never a descriptor, never a hang */
		if (td_fd_recv(s[1], &fd, name, 100, &err) >= 0 || fd != -1)
			_exit(1);
		setrlimit(RLIMIT_NOFILE, &old);
		_exit(td_fd_recv(s[1], &fd, name, 1000, &err) || fd < 0 || strcmp(name, "two") ? 2 : 0);
	}
	assert_int_equal(status_of(pid), 0);
	close(s[0]);
	close(s[1]);
}

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/control.sock", folder);
	return 0;
}

static int teardown(void **state)
{
	char cmd[200];

	(void)state;
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", folder);
	return system(cmd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_processes), cmocka_unit_test(flood_and_exit), cmocka_unit_test(deaf_peer), cmocka_unit_test(peer_dies),
		cmocka_unit_test(nonsense), cmocka_unit_test(paths), cmocka_unit_test(nobody_answers), cmocka_unit_test(descriptor_to_a_process),
		cmocka_unit_test(odd_datagrams), cmocka_unit_test(full_socket), cmocka_unit_test(out_of_descriptors),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
