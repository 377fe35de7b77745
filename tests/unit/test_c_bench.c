/*
 * test_c_bench.c: the bench sees answers that differ (in a token, in length), leaves out what could not be asked, and its medians are right.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/bench.h"

enum { N = 4 };

struct world {
	struct td_bench_answer with[N], without[N];
	int32_t ids[2 * N][3];
	const char *prompt[N];
	struct td_bench bench;
	struct td_bench_file file;
};

static void build(struct world *w)
{
	int i, m;

	memset(w, 0, sizeof(*w));
	w->bench = (struct td_bench){.max_tokens = 3, .clients = 1};
	w->file = (struct td_bench_file){.name = "test", .prompt = w->prompt, .n = N, .answer = {w->with, w->without}};
	for (i = 0; i < N; i++)
		for (m = 0; m < 2; m++) {
			struct td_bench_answer *a = w->file.answer[m] + i;

			a->id = w->ids[2 * i + m];
			a->id[0] = 10 * i;
			a->id[1] = 10 * i + 1;
			a->id[2] = 10 * i + 2;
			a->n = 3;
			/* 2 tokens after the first, in (i + 1) ms, and 2 ms more without speculation */
			a->finish = (struct tandem_finish){.output_tokens = 3, .cycles = 2, .accepted = (uint32_t)i, .decode_us = (uint64_t)(1000 * (i + 1 + 2 * m))};
		}
}

static struct td_bench_difference compare(const struct world *w)
{
	struct td_bench_difference d;

	td_bench_compare(&w->file, &d);
	return d;
}

static void test_compare(void **state)
{
	struct world w;
	struct td_bench_difference d;

	(void)state;
	build(&w);
	d = compare(&w);
	assert_int_equal(d.count, 0);
	assert_int_equal(d.compared, N);
	w.with[2].id[1] = 7;
	w.with[3].id[0] = 8;
	d = compare(&w);
	assert_int_equal(d.count, 2);
	assert_int_equal(d.prompt, 2);
	assert_int_equal(d.place, 1);
	assert_int_equal(d.with, 7);
	assert_int_equal(d.without, 21);
	/* An answer that is the other's beginning differs where it ends. */
	build(&w);
	w.without[1].n = 2;
	d = compare(&w);
	assert_int_equal(d.count, 1);
	assert_int_equal(d.place, 2);
	assert_int_equal(d.with, 12);
	assert_int_equal(d.without, -1);
	/* What could not be asked is not compared. */
	w.with[1].error.code = TANDEM_E_CONTEXT;
	d = compare(&w);
	assert_int_equal(d.count, 0);
	assert_int_equal(d.compared, N - 1);
}

static double number(const json_t *j, const char *object, const char *key)
{
	const json_t *v = object ? json_object_get(json_object_get(j, object), key) : json_object_get(j, key);

	assert_non_null(v);
	return json_number_value(v);
}

static void check_close(double got, double wanted)
{
	if (got < wanted * 0.999 || got > wanted * 1.001)
		fprintf(stderr, "got %g, wanted %g\n", got, wanted);
	assert_true(got >= wanted * 0.999 && got <= wanted * 1.001);
}

static const struct td_bench_cost cost = {.wall_us = 2000000, .tokens = 100, .window_us = 1000, .steps = 10, .draft_us = 200, .verify_us = 500,
					  .commit_us = 50, .wait_us = 230, .daemon_us = 70, .prefill_tokens = 30, .prefill_us = 1000};

static void test_figures(void **state)
{
	struct world w;
	json_t *j;

	(void)state;
	build(&w);
	w.file.cost[0] = cost;
	j = td_bench_report_json(&w.bench, &w.file);
	/* 2 / 1, 2, 3, 4 ms: 2000, 1000, 667, 500 per second */
	check_close(number(j, "tokens_per_s_with", "median"), (1000 + 2000. / 3) / 2);
	check_close(number(j, "tokens_per_s_with", "min"), 500);
	check_close(number(j, "tokens_per_s_with", "max"), 2000);
	check_close(number(j, "ratio", "max"), 3);
	check_close(number(j, "ratio", "min"), 1.5);
	check_close(number(j, "acceptance_length", "max"), 2.5);
	check_close(number(j, NULL, "acceptance_length_all"), 1.75);
	json_decref(j);
}

static void test_cycle(void **state)
{
	struct world w;
	json_t *j;

	(void)state;
	build(&w);
	w.file.cost[0] = cost;
	j = td_bench_report_json(&w.bench, &w.file);
	check_close(number(j, "cycle_with", "draft_us"), 20);
	check_close(number(j, "cycle_with", "verify_us"), 50);
	check_close(number(j, "cycle_with", "commit_us"), 5);
	check_close(number(j, "cycle_with", "channel_us"), 3);
	check_close(number(j, "cycle_with", "rest_us"), 22);
	check_close(number(j, "cycle_with", "daemon_cpu_us"), 7);
	check_close(number(j, NULL, "all_clients_tokens_per_s_with"), 50);
	check_close(number(j, NULL, "prefill_tokens_per_s"), 30000);
	json_decref(j);
	/* With several clients steps are shared: no channel is told. */
	w.bench.clients = 2;
	j = td_bench_report_json(&w.bench, &w.file);
	assert_null(json_object_get(json_object_get(j, "cycle_with"), "channel_us"));
	json_decref(j);
}

/* Nothing could be asked: no figure, no division by zero, still a report. */
static void test_all_left_out(void **state)
{
	struct world w;
	json_t *j;
	int i;

	(void)state;
	build(&w);
	for (i = 0; i < N; i++)
		w.with[i] = w.without[i] = (struct td_bench_answer){.error = {.code = TANDEM_E_CONTEXT}, .done = 1};
	j = td_bench_report_json(&w.bench, &w.file);
	assert_true(number(j, NULL, "left_out") == N);
	assert_true(number(j, "ratio", "prompts") == 0);
	assert_true(number(j, "ratio", "median") == 0);
	json_decref(j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_compare),
		cmocka_unit_test(test_figures),
		cmocka_unit_test(test_cycle),
		cmocka_unit_test(test_all_left_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
