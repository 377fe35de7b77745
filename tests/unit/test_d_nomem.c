/*
 * test_d_nomem.c: whichever allocation fails while a request is made or gets its tokens, the caller is told, and nothing is lost or freed twice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "failing_alloc.h"

#if FAILING_ALLOC

static struct td_daemon_config cfg;
static struct td_model model;

static int setup(void **state)
{
	char *argv[] = {(char *)"tandemd", (char *)"--config=/dev/null", (char *)"--model.target=models/tiny/target-int4", (char *)"--model.drafter=none",
			(char *)"--engine.target_worker=/bin/true", (char *)"--tandem.socket=/s", (char *)"--tandem.runtime_dir=/r"};
	enum td_config_action action;
	struct td_error err;

	(void)state;
	return td_daemon_config_load(7, argv, &cfg, &action, &err) || td_model_load(&cfg, &model, &err) ? -1 : 0;
}

static int teardown(void **state)
{
	(void)state;
	td_model_finish(&model);
	td_daemon_config_finish(&cfg);
	return 0;
}

/* A request by text with everything that takes memory, and 3000 tokens. 0, or the code that it failed with. */
static int live(struct td_error *err)
{
	static struct td_verdict v;
	char *stop[] = {(char *)"never there", (char *)"nor this"};
	Tandem__Sampling s = TANDEM__SAMPLING__INIT;
	Tandem__Generate g = TANDEM__GENERATE__INIT;
	struct td_request *r;
	int rc = 0, stopped;

	s.n_stop = 2;
	s.stop = stop;
	s.has_logprobs = 1;
	s.logprobs = 5;
	g.input_case = TANDEM__GENERATE__INPUT_TEXT;
	g.text = (char *)"how large is the largest file?";
	g.sampling = &s;
	r = td_request_create(&cfg, &model, &g, err);
	if (!r)
		return err->code;
	for (int i = 0; i < 3000 && !rc; i++)
		rc = td_request_commit(r, (int32_t[]){300 + i % 50}, 1, &v, &stopped, err);
	td_request_free(r);
	return rc;
}

static void test_each_allocation(void **state)
{
	long failed = 0;

	(void)state;
	for (long n = 1;; n++) {
		struct td_error err = {0};
		long before = alloc_alive, left;
		int rc;

		alloc_countdown = n;
		rc = live(&err);
		left = alloc_countdown;
		alloc_countdown = 0;
		assert_int_equal(alloc_alive, before);
		if (left) {
			assert_int_equal(rc, 0);
			break;
		}
		if (rc) { /* some are survived: a pattern without machine code is interpreted */
			assert_int_equal(rc, TD_E_NOMEM);
			assert_true(err.text[0] != 0);
			failed++;
		}
	}
	assert_in_range(failed, 15, 10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation)};

	return cmocka_run_group_tests(tests, setup, teardown);
}

#else
int main(void)
{
	return 0;
}
#endif
