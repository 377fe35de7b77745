/*
 * test_log.c: lines are whole, one per event; a full disk, a closed pipe and a sleeping reader stop nobody, and what was lost is told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/fault.h"
#include "engine/log.h"

static char folder[] = "/tmp/tandem-log-XXXXXX";
static char path[64], moved[64];

static char *content(const char *name)
{
	static char text[1 << 20];
	int fd = open(name, O_RDONLY);
	ssize_t n;

	assert_true(fd >= 0);
	n = read(fd, text, sizeof(text) - 1);
	assert_true(n >= 0);
	text[n] = '\0';
	close(fd);
	return text;
}

static int lines(const char *text)
{
	int n = 0;

	for (; (text = strchr(text, '\n')); text++)
		n++;
	return n;
}

static void one_line_per_event(void **state)
{
	struct td_error err = {0};
	char *text, longest[5000];
	unsigned y;

	(void)state;
	unlink(path);
	td_log_open("tandemd", TD_LOG_INFO);
	assert_int_equal(td_log_file(path, &err), 0);
	td_log(TD_LOG_DEBUG, "not wanted");
	td_log(TD_LOG_WARN, "two\nlines %d", 7);
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	td_log(TD_LOG_ERROR, "%s", longest);
	text = content(path);
	assert_int_equal(lines(text), 2);
	assert_null(strstr(text, "not wanted"));
	assert_non_null(strstr(text, " warn  tandemd: two lines 7\n"));
	assert_int_equal(sscanf(text, "%4u-", &y), 1);
	assert_true(y >= 2024);
	assert_int_equal(td_log_dropped(), 0);
}

static void rotation(void **state)
{
	struct td_error err = {0};

	(void)state;
	td_log(TD_LOG_INFO, "before");
	assert_int_equal(rename(path, moved), 0);
	td_log(TD_LOG_INFO, "between");
	assert_int_equal(td_log_reopen(&err), 0);
	td_log(TD_LOG_INFO, "after");
	assert_non_null(strstr(content(moved), "between"));
	assert_int_equal(lines(content(path)), 1);
	assert_non_null(strstr(content(path), "after"));
	unlink(moved);
}

/* /dev/full takes no byte. */
static void disk_full(void **state)
{
	struct td_error err = {0};
	unsigned long before = td_log_dropped();

	(void)state;
	assert_int_equal(td_log_file("/dev/full", &err), 0);
	for (int i = 0; i < 5; i++)
		td_log(TD_LOG_INFO, "lost %d", i);
	assert_int_equal(td_log_dropped() - before, 5);
	unlink(path);
	assert_int_equal(td_log_file(path, &err), 0); /* there is room again */
	td_log(TD_LOG_INFO, "found");
	td_log(TD_LOG_INFO, "calm");
	assert_int_equal(lines(content(path)), 3);
	assert_non_null(strstr(content(path), "5 log lines were lost here: No space left on device\n"));
	assert_int_equal(td_log_dropped() - before, 5);
}

/* A limit on the file's size cuts a line in its middle: the next one begins on a line of its own. */
static void line_cut(void **state)
{
	struct rlimit old, limit;
	struct td_error err = {0};

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	unlink(path);
	assert_int_equal(td_log_file(path, &err), 0);
	getrlimit(RLIMIT_FSIZE, &old);
	limit = (struct rlimit){40, old.rlim_max};
	setrlimit(RLIMIT_FSIZE, &limit);
	td_log(TD_LOG_INFO, "a line that is longer than the room there is");
	td_log(TD_LOG_INFO, "another");
	setrlimit(RLIMIT_FSIZE, &old);
	td_log(TD_LOG_INFO, "whole");
	assert_int_equal(lines(content(path)), 3); /* the stump, the count, the line */
	assert_non_null(strstr(content(path), "2 log lines were lost here"));
	assert_non_null(strstr(content(path), ": whole\n"));
}

static void lever(void **state)
{
	struct td_error err = {0};

	(void)state;
	unlink(path);
	assert_int_equal(td_log_file(path, &err), 0);
	td_fault_arm("log.full:2");
	for (int i = 0; i < 4; i++)
		td_log(TD_LOG_INFO, "line %d", i);
	td_fault_arm(NULL);
	assert_null(strstr(content(path), "line 1"));
	assert_non_null(strstr(content(path), "1 log lines were lost here"));
	assert_non_null(strstr(content(path), "line 3"));
}

static void bad_paths(void **state)
{
	struct td_error err = {0};
	char longest[3000];

	(void)state;
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	assert_int_equal(td_log_file(longest, &err), TD_E_INVALID);
	assert_int_equal(td_log_file("/nowhere/at/all", &err), TD_E_IO);
	assert_non_null(strstr(err.text, "/nowhere/at/all"));
	td_log(TD_LOG_INFO, "the old file is still open");
	assert_non_null(strstr(content(path), "still open"));
}

/* stderr is a pipe: first its reader sleeps, then it is gone. 1 s would be a hang. */
static void stderr_is_a_pipe(void **state)
{
	int p[2], status;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(p), 0);
	pid = fork();
	if (pid == 0) {
		alarm(60);
		close(p[1] == STDERR_FILENO ? -1 : STDERR_FILENO);
		dup2(p[1], STDERR_FILENO);
		close(p[1]);
		for (int i = 0; i < 5000; i++)
			td_log(TD_LOG_INFO, "to a reader that sleeps %d", i);
		if (td_log_dropped() < 1000)
			_exit(1);
		close(p[0]);
		for (int i = 0; i < 100; i++)
			td_log(TD_LOG_INFO, "to nobody");
		_exit(0);
	}
	close(p[0]); /* the child holds the only other end */
	close(p[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void *write_many(void *arg)
{
	for (int i = 0; i < 500; i++)
		td_log(TD_LOG_INFO, "thread %d line %d end", *(int *)arg, i);
	return NULL;
}

static void many_threads(void **state)
{
	struct td_error err = {0};
	pthread_t t[4];
	int id[4], null = open("/dev/null", O_WRONLY), keep = dup(STDERR_FILENO);
	char *line, *rest;

	(void)state;
	unlink(path);
	assert_int_equal(td_log_file(path, &err), 0);
	dup2(null, STDERR_FILENO);
	for (int i = 0; i < 4; i++) {
		id[i] = i;
		pthread_create(&t[i], NULL, write_many, &id[i]);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	dup2(keep, STDERR_FILENO);
	rest = content(path);
	assert_int_equal(lines(rest), 2000);
	while ((line = strsep(&rest, "\n")) && *line)
		assert_string_equal(line + strlen(line) - 4, " end");
	close(null);
	close(keep);
}

static void levels(void **state)
{
	(void)state;
	assert_int_equal(td_log_level_parse("debug"), TD_LOG_DEBUG);
	assert_int_equal(td_log_level_parse("ERROR"), TD_LOG_ERROR);
	assert_int_equal(td_log_level_parse("loud"), -1);
	assert_int_equal(td_log_level_parse(""), -1);
}

static void relay(const char *text)
{
	td_log_relay("target", TD_LOG_WARN, text, strlen(text));
}

static void lines_of_others(void **state)
{
	static const char own[] = "2026-01-02T03:04:05.678Z info  target: from its log";
	char longest[5000], *text, *at;
	struct td_error err = {0};

	(void)state;
	unlink(path);
	td_log_open("tandemd", TD_LOG_INFO);
	assert_int_equal(td_log_file(path, &err), 0);
	relay(own);
	relay("bare \x1b[31mtext");
	relay("2026-01-02T03:04:05.678Z debug target: below the level");
	relay("2026-01-02T03:04:05.678Z loud  target: no such level");
	relay("2026-01-02T03:04:05.678Z");
	relay("");
	memset(longest, 'x', sizeof(longest));
	td_log_relay("target", TD_LOG_WARN, longest, sizeof(longest));
	td_log_relay("target", TD_LOG_DEBUG, "bare, below the level", 21);
	text = content(path);
	assert_int_equal(lines(text), 6);
	assert_memory_equal(text, own, sizeof(own) - 1);
	assert_int_equal(text[sizeof(own) - 1], '\n');
	assert_non_null(strstr(text, " warn  target: bare  [31mtext\n"));
	assert_non_null(strstr(text, " warn  target: 2026-01-02T03:04:05.678Z loud  target: no such level\n"));
	assert_non_null(strstr(text, " warn  target: 2026-01-02T03:04:05.678Z\n"));
	assert_null(strstr(text, "below"));
	at = strstr(text, "target: xxx");
	assert_non_null(at);
	assert_int_equal(strspn(at + 8, "x"), TD_LOG_LINE);
	assert_int_equal(td_log_dropped(), 0);
}

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/log", folder);
	snprintf(moved, sizeof(moved), "%s/log.1", folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(path);
	unlink(moved);
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_of_others), cmocka_unit_test(one_line_per_event), cmocka_unit_test(rotation), cmocka_unit_test(disk_full), cmocka_unit_test(line_cut),
		cmocka_unit_test(lever), cmocka_unit_test(bad_paths), cmocka_unit_test(stderr_is_a_pipe), cmocka_unit_test(many_threads),
		cmocka_unit_test(levels),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
