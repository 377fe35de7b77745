/*
 * Variables and sockets of a service manager, well-formed and not: nothing of it blocks, ends the process, or stays in the environment.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/daemon.h"

static const char *const variables[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"};
static char folder[] = "/tmp/tandem-notify.XXXXXX";

static void us(const char *variable)
{
	char text[32];

	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv(variable, text, 1);
}

static void assert_forgotten(void)
{
	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		assert_null(getenv(variables[i]));
}

static int listening(int family)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int fd = socket(family, SOCK_STREAM, 0);

	assert_true(fd >= 0);
	if (family == AF_UNIX) /* named by the system */
		assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(sa_family_t)), 0);
	assert_int_equal(listen(fd, 4), 0);
	return fd;
}

/* Descriptors 3.. as a manager passes them: a Unix socket, a TCP one, one that is no socket, one that does not listen. */
static void pass(const char *names, const char *count)
{
	int fd[4] = {listening(AF_UNIX), listening(AF_INET), open("/dev/null", O_RDONLY), socket(AF_UNIX, SOCK_STREAM, 0)};

	for (int i = 0; i < 4; i++) {
		fd[i] = fcntl(fd[i], F_DUPFD, 100);
		assert_true(fd[i] >= 100);
	}
	for (int i = 3; i < 100; i++)
		close(i);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(dup2(fd[i], 3 + i), 3 + i);
		close(fd[i]);
	}
	us("LISTEN_PID");
	setenv("LISTEN_FDS", count, 1);
	if (names)
		setenv("LISTEN_FDNAMES", names, 1);
}

static void sockets_are_found_by_name_and_by_what_they_are(void **state)
{
	struct td_notify n;

	(void)state;
	pass("tandem:http-tcp:tandem-target:http", "4");
	td_notify_open(&n);
	assert_forgotten();
	assert_int_equal(n.n_passed, 4);
	assert_true(fcntl(4, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(td_notify_take_socket(&n, NULL, AF_UNIX), -1); /* all have names of ours */
	assert_int_equal(td_notify_take_socket(&n, "tandem", AF_INET), -1); /* of another family */
	assert_int_equal(td_notify_take_socket(&n, "tandem", AF_UNIX), 3);
	assert_int_equal(td_notify_take_socket(&n, "tandem", AF_UNIX), -1);
	assert_int_equal(td_notify_take_socket(&n, "http", AF_UNIX), -1); /* it does not listen */
	assert_int_equal(td_notify_take(&n, "tandem-target"), 5);
	assert_int_equal(td_notify_take(&n, "tandem-target"), -1);
	td_notify_close(&n);
	assert_int_equal(fcntl(4, F_GETFD), -1); /* nobody took it */
	assert_true(fcntl(3, F_GETFD) >= 0);

	pass("tandemd.socket", "4"); /* fewer names than descriptors */
	td_notify_open(&n);
	assert_int_equal(td_notify_take_socket(&n, NULL, AF_INET), 4);
	assert_int_equal(td_notify_take_socket(&n, NULL, AF_UNIX), 3);
	assert_int_equal(td_notify_take_socket(&n, NULL, AF_UNIX), -1);
	td_notify_close(&n);
}

static void wrong_numbers_pass_nothing(void **state)
{
	static const char *const count[] = {"-1", "", "x", "4x", "99999999999999999999999"};
	struct td_notify n;

	(void)state;
	for (size_t i = 0; i < sizeof(count) / sizeof(*count); i++) {
		pass(NULL, count[i]);
		td_notify_open(&n);
		assert_int_equal(n.n_passed, 0);
		assert_true(fcntl(3, F_GETFD) >= 0);
		assert_forgotten();
		td_notify_close(&n);
	}
	pass(NULL, "4");
	setenv("LISTEN_PID", "1", 1);
	td_notify_open(&n);
	assert_int_equal(n.n_passed, 0);
	assert_forgotten();
	td_notify_close(&n);
	pass("a:b:c:d:e:f", "900000"); /* more than there are */
	td_notify_open(&n);
	assert_int_equal(n.n_passed, 4);
	td_notify_close(&n);
}

static void a_long_name_is_cut(void **state)
{
	struct td_notify n;
	char names[400];

	(void)state;
	memset(names, 'n', sizeof(names));
	names[sizeof(names) - 1] = 0;
	pass(names, "4");
	td_notify_open(&n);
	assert_int_equal(strlen(n.passed[0].name), TD_PASSED_NAME - 1);
	assert_string_equal(n.passed[1].name, "");
	td_notify_close(&n);
}

static void wrong_addresses_are_nobody(void **state)
{
	char longer[200] = "/";
	const char *const address[] = {"", "relative", "@", "/", "vsock:2:1234", longer};
	struct td_notify n;

	(void)state;
	memset(longer + 1, 'x', sizeof(longer) - 2);
	for (size_t i = 0; i < sizeof(address) / sizeof(*address); i++) {
		setenv("NOTIFY_SOCKET", address[i], 1);
		td_notify_open(&n);
		assert_int_equal(n.fd, -1);
		assert_int_equal(td_notify_send(&n, NULL, 0, "READY=1"), 0);
		assert_int_equal(td_notify_barrier(&n, 1000), 0);
		assert_forgotten();
		td_notify_close(&n);
	}
}

/* A manager's socket that nobody reads. */
static int manager(const char *path)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + (path[0] == '/'));
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	if (path[0] == '@')
		sa.sun_path[0] = 0;
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, size), 0);
	setenv("NOTIFY_SOCKET", path, 1);
	return fd;
}

static void messages_come_by_path_and_by_abstract_name(void **state)
{
	char path[64], abstract[64], text[64];
	const char *const at[] = {path, abstract};
	struct td_notify n;

	(void)state;
	snprintf(path, sizeof(path), "%s/notify", folder);
	snprintf(abstract, sizeof(abstract), "@tandem-test-%d", (int)getpid());
	for (int i = 0; i < 2; i++) {
		int fd = manager(at[i]);
		ssize_t k;

		us("WATCHDOG_PID");
		setenv("WATCHDOG_USEC", "2000000", 1);
		td_notify_open(&n);
		assert_true(n.watchdog_us == 2000000);
		assert_int_equal(td_notify_send(&n, NULL, 0, "STATUS=%d%%", 7), 0);
		k = recv(fd, text, sizeof(text), MSG_DONTWAIT);
		assert_int_equal(k, 9);
		assert_memory_equal(text, "STATUS=7%", 9);
		assert_int_equal(td_notify_barrier(&n, 30), TD_E_DEADLINE); /* nobody closes it */
		close(fd);
		assert_int_equal(td_notify_send(&n, NULL, 0, "READY=1"), TD_E_IO); /* the manager is gone */
		td_notify_close(&n);
	}
	us("WATCHDOG_PID");
	setenv("WATCHDOG_USEC", "12 seconds", 1);
	td_notify_open(&n);
	assert_true(n.watchdog_us == 0);
	td_notify_close(&n);
	setenv("WATCHDOG_USEC", "1000", 1);
	setenv("WATCHDOG_PID", "1", 1); /* somebody else's */
	td_notify_open(&n);
	assert_true(n.watchdog_us == 0);
	td_notify_close(&n);
}

static void a_full_socket_does_not_block(void **state)
{
	char name[64];
	struct td_notify n;
	int fd, rc = 0, sent = 0;

	(void)state;
	snprintf(name, sizeof(name), "@tandem-test-full-%d", (int)getpid());
	fd = manager(name);
	td_notify_open(&n);
	while (!rc && sent < 1000000) {
		rc = td_notify_send(&n, NULL, 0, "WATCHDOG=1");
		sent += !rc;
	}
	assert_int_equal(rc, TD_E_BUSY);
	assert_true(sent > 0);
	td_notify_close(&n);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sockets_are_found_by_name_and_by_what_they_are),
		cmocka_unit_test(wrong_numbers_pass_nothing),
		cmocka_unit_test(a_long_name_is_cut),
		cmocka_unit_test(wrong_addresses_are_nobody),
		cmocka_unit_test(messages_come_by_path_and_by_abstract_name),
		cmocka_unit_test(a_full_socket_does_not_block),
	};
	char path[64];
	int rc;

	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		unsetenv(variables[i]);
	if (!mkdtemp(folder))
		return 2;
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(path, sizeof(path), "%s/notify", folder);
	unlink(path);
	rmdir(folder);
	return rc;
}
