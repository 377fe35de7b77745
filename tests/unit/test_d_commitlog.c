/*
 * test_d_commitlog.c: the log keeps what it was given, through every growth.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"

static void fill_verdict(struct td_verdict *v, int base, int n_top)
{
	v->n_top = n_top;
	for (int i = 0; i < TD_BLOCK_MAX; i++) {
		v->logprob[i] = (float)-(base + i);
		for (int j = 0; j < TD_TOP_MAX; j++) {
			v->top_id[i][j] = base + i + j;
			v->top_logprob[i][j] = (float)-(base + i + j);
		}
	}
}

static void check_log(int n_top, int verdict_top, int n)
{
	static struct td_verdict v;
	struct td_commitlog log;
	int32_t *prompt = malloc(3 * sizeof(*prompt));

	memcpy(prompt, (int32_t[]){7, 8, 9}, 3 * sizeof(*prompt));
	td_commitlog_init(&log, prompt, 3, n_top);
	for (int i = 0; i < n; i++) {
		fill_verdict(&v, i, verdict_top);
		assert_int_equal(td_commitlog_append(&log, 1000 + i, &v, 0), 0);
		log.shown[i] = (uint32_t)(2 * i);
	}
	assert_int_equal(td_commitlog_outputs(&log), n);
	assert_int_equal(log.ids[0], 7);
	assert_int_equal(log.ids[2], 9);
	for (int i = 0; i < n; i++) {
		assert_int_equal(log.ids[3 + i], 1000 + i);
		assert_int_equal(log.shown[i], 2 * i);
		if (n_top >= 0)
			assert_true(log.logprob[i] == (float)-i);
		for (int j = 0; j < n_top; j++)
			assert_int_equal(log.top_id[i * n_top + j], j < verdict_top ? i + j : -1);
	}
	assert_true(td_commitlog_bytes(&log) >= (size_t)n * 8);
	td_commitlog_finish(&log);
	assert_null(log.ids);
	td_commitlog_finish(&log); /* takes a finished one */
}

static void test_log(void **state)
{
	(void)state;
	check_log(-1, 0, 0);
	check_log(-1, 0, 5000);
	check_log(0, 0, 600);
	check_log(20, 20, 600);
	check_log(5, 3, 300); /* the target knew fewer than were asked for */
	check_log(5, 1000, 300); /* a count from shared memory that lies */
}

static void test_no_verdict(void **state)
{
	struct td_commitlog log;

	(void)state;
	td_commitlog_init(&log, calloc(1, sizeof(int32_t)), 1, 2);
	assert_int_equal(td_commitlog_append(&log, 5, NULL, 0), 0);
	assert_int_equal(log.top_id[0], -1);
	td_commitlog_finish(&log);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_log), cmocka_unit_test(test_no_verdict)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
