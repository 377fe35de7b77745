/*
 * test_d_logpipe.c: what a child printed is in the log: whole lines, pieces, a line that is too long, and what lay in the pipe when it was reaped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/log.h"

static char path[] = "/tmp/test_d_logpipe.XXXXXX";
static struct td_daemon d;
static struct td_logpipe p;
static int far_end, closed;

static void on_closed(uv_handle_t *h)
{
	assert_ptr_equal(h->data, &closed);
	closed++;
}

static void start(void)
{
	struct td_error err;

	assert_int_equal(truncate(path, 0), 0);
	assert_int_equal(td_logpipe_open(&d, &p, "child", TD_LOG_INFO, &far_end, &err), 0);
	closed = 0;
}

static void print(const char *text)
{
	assert_int_equal(write(far_end, text, strlen(text)), strlen(text));
}

static void end(void)
{
	td_logpipe_close(&p, &closed, on_closed);
	close(far_end);
	uv_run(&d.loop, UV_RUN_DEFAULT);
	assert_int_equal(closed, 1);
}

/* The log without its heads: the texts, each ended by '|'. */
static const char *texts(void)
{
	static char all[1 << 17], out[1 << 17];
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, all, sizeof(all) - 1);

	assert_true(n >= 0);
	all[n] = out[0] = 0;
	close(fd);
	for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
		char *text = strstr(line, " info  child: ");

		assert_non_null(text);
		strcat(strcat(out, text + 14), "|");
	}
	return out;
}

static void lines_and_pieces(void **state)
{
	(void)state;
	start();
	print("one\ntwo\n\nthr");
	uv_run(&d.loop, UV_RUN_NOWAIT);
	assert_string_equal(texts(), "one|two|");
	print("ee\nfo");
	uv_run(&d.loop, UV_RUN_NOWAIT);
	assert_string_equal(texts(), "one|two|three|");
	end();
	assert_string_equal(texts(), "one|two|three|fo|");
}

static void last_words(void **state)
{
	(void)state;
	start();
	print("never seen by the loop\nnor this");
	end();
	assert_string_equal(texts(), "never seen by the loop|nor this|");
}

static void too_long(void **state)
{
	static char text[3 * TD_LOG_LINE + 2], want[3 * TD_LOG_LINE + 8];

	(void)state;
	memset(text, 'x', 2 * TD_LOG_LINE + 5);
	start();
	print(text);
	end();
	memset(want, 'x', 2 * TD_LOG_LINE + 7);
	want[TD_LOG_LINE] = want[2 * TD_LOG_LINE + 1] = '|';
	want[2 * TD_LOG_LINE + 7] = '|';
	assert_string_equal(texts(), want);
}

/* More than one turn reads; the child's end is not blocked for ever, and an end of file stops the poll. */
static void much(void **state)
{
	char block[1000];
	int n = 0, turns = 0;

	(void)state;
	memset(block, 'y', sizeof(block));
	block[sizeof(block) - 1] = '\n';
	start();
	fcntl(far_end, F_SETFL, O_NONBLOCK);
	while (turns < 10) {
		if (write(far_end, block, sizeof(block)) == (ssize_t)sizeof(block)) {
			n++;
			continue;
		}
		uv_run(&d.loop, UV_RUN_NOWAIT);
		turns++;
		assert_int_equal(truncate(path, 0), 0);
	}
	assert_true(n > 10 * 30);
	close(far_end);
	far_end = open("/dev/null", O_WRONLY);
	for (int i = 0; i < 100 && uv_is_active((uv_handle_t *)&p.poll); i++)
		uv_run(&d.loop, UV_RUN_NOWAIT);
	assert_false(uv_is_active((uv_handle_t *)&p.poll));
	end();
}

static int setup(void **state)
{
	struct td_error err;
	int fd = mkstemp(path);

	(void)state;
	if (fd < 0 || uv_loop_init(&d.loop))
		return -1;
	close(fd);
	td_log_open("tandemd", TD_LOG_INFO);
	return td_log_file(path, &err);
}

static int teardown(void **state)
{
	(void)state;
	unlink(path);
	return uv_loop_close(&d.loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(lines_and_pieces), cmocka_unit_test(last_words), cmocka_unit_test(too_long), cmocka_unit_test(much)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
