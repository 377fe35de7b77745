/*
 * test_d_metrics.c: events land in the right counter and bucket, labels are bounded and escaped, and the text is what Prometheus reads, however full
 * the tables are. The reader that says so is shown to refuse what is wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "failing_alloc.h"
#include "tests/lib/promtext.h"

static struct td_daemon d;

static int setup(void **state)
{
	(void)state;
	memset(&d, 0, sizeof(d));
	d.shm = calloc(1, sizeof(*d.shm));
	d.model.device = "cpu";
	d.model.k_max = 3;
	d.model.shm.slots = 2;
	d.model.kv_pages = 32;
	d.model.has_drafter = 1;
	snprintf(d.model.name, sizeof(d.model.name), "a \"model\"\\with\nall");
	d.target.name = "target";
	d.drafter.name = "drafter";
	d.started_us = td_now_us();
	return d.shm ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	free(d.shm);
	return 0;
}

static void render(struct td_promtext *p)
{
	size_t n = 0;
	char *text = td_metrics_render(&d, &n);

	assert_non_null(text);
	assert_int_equal(n, strlen(text));
	if (td_promtext_read(p, text))
		fail_msg("%s", p->why);
	free(text);
}

static void expect(const struct td_promtext *p, const char *name, const char *labels, double value)
{
	double is = td_promtext_value(p, name, labels, -1);

	if (is < value - 1e-9 || is > value + 1e-9)
		fail_msg("%s{%s} is %g and not %g", name, labels, is, value);
}

static void histogram_edges(void **state)
{
	const uint64_t *lists[] = {td_bounds_wait, td_bounds_token, td_bounds_request};

	(void)state;
	for (int k = 0; k < 3; k++)
		for (int i = 0; i < TD_METRICS_BOUNDS; i++) {
			struct td_histogram h = {0};

			assert_true(!i || lists[k][i] > lists[k][i - 1]);
			td_histogram_add(&h, lists[k], lists[k][i], 3);
			assert_int_equal(h.bucket[i], 3);
			td_histogram_add(&h, lists[k], lists[k][i] + 1, 1);
			assert_int_equal(h.bucket[i + 1], 1);
			assert_int_equal(h.count, 4);
			assert_int_equal(h.sum_us, 4 * lists[k][i] + 1);
		}
}

static void names_are_bounded(void **state)
{
	char name[TD_METRICS_TENANTS + 20][32];
	struct td_meter *first = td_metrics_meter(&d.metrics, "t0"), *other;
	struct td_promtext p;

	(void)state;
	for (int i = 0; i < TD_METRICS_TENANTS + 20; i++) {
		snprintf(name[i], sizeof(name[i]), "t%d", i);
		td_metrics_refuse(&d, name[i], TD_E_QUEUE_FULL);
	}
	other = td_metrics_meter(&d.metrics, "late");
	assert_ptr_equal(td_metrics_meter(&d.metrics, "t0"), first);
	assert_ptr_equal(td_metrics_meter(&d.metrics, "later"), other);
	assert_ptr_not_equal(td_metrics_meter(&d.metrics, name[TD_METRICS_TENANTS - 1]), other);
	render(&p);
	expect(&p, "tandem_requests_refused_total", "tenant=\"t0\",code=\"queue_full\"", 1);
	expect(&p, "tandem_requests_refused_total", "tenant=\"other\",code=\"queue_full\"", 20);
	expect(&p, "tandem_requests_refused_total", "tenant=\"t64\",code=\"queue_full\"", -1);
	td_promtext_finish(&p);
}

/* Every name, code and outcome that there can be: still well formed, and no larger than a scrape may be. */
static void full_tables(void **state)
{
	char name[32];
	struct td_promtext p;
	size_t n;
	char *text;

	(void)state;
	for (int i = 0; i <= TD_METRICS_TENANTS; i++) {
		struct td_meter *m;

		snprintf(name, sizeof(name), "\"\\\n%d", i);
		m = td_metrics_meter(&d.metrics, name);
		for (int code = 5; code > -2 * TD_METRICS_CODES; code--) {
			struct td_request r = {.meter = m, .state = TD_REQ_ENDED, .error.code = code};

			td_metrics_end(&d, &r);
			td_metrics_refuse(&d, name, code);
			td_metrics_error(&d, code);
		}
		td_histogram_add(&m->queue_wait, td_bounds_wait, 1 << 20, 7);
	}
	text = td_metrics_render(&d, &n);
	assert_non_null(text);
	assert_true(n < 2 << 20);
	free(text);
	render(&p);
	expect(&p, "tandem_queue_wait_seconds_sum", "tenant=\"\\\"\\\\\\n5\"", 7 * 1.048576);
	expect(&p, "tandem_build_info", "version=\"" TD_VERSION "\",model=\"a \\\"model\\\"\\\\with\\nall\",device=\"cpu\"", 1);
	td_promtext_finish(&p);
}

/* A request from acceptance to its end; three tokens at once 30 ms after the first. */
static void way_of_a_request(void **state)
{
	struct td_request r = {.log = {.n_prompt = 11}, .arrived_us = td_now_us() - 2000000, .slot = -1};
	struct td_record first = {.kind = TD_REC_COMMIT, .n = 1};
	struct td_record more = {.kind = TD_REC_COMMIT, .n = 3, .reason = 1, .drafted = 3, .accepted = 2, .us_step = 700};
	struct td_promtext p, later;

	(void)state;
	td_metrics_accept(&d, &r, "alice");
	td_metrics_start(&r, 4000);
	r.started_us = r.arrived_us + 4000;
	td_metrics_start(&r, 9000000); /* again, after a worker's death */
	td_metrics_cached(&r, 8);
	r.cached_tokens = 8;
	td_metrics_cached(&r, 8);
	td_metrics_charge(r.meter, 1500, 500);
	td_metrics_commit(&d, &r, &first, 1, 0, r.arrived_us + 20000);
	r.first_us = r.last_us = r.arrived_us + 20000;
	render(&p);
	td_metrics_commit(&d, &r, &more, 3, 2, r.last_us + 30000);
	r.state = TD_REQ_ENDED;
	r.finish = TANDEM__FINISH_REASON__LENGTH;
	td_metrics_end(&d, &r);
	render(&later);
	assert_int_equal(td_promtext_grows(&p, &later), 0);
	td_promtext_finish(&p);

	expect(&later, "tandem_requests_total", "tenant=\"alice\"", 1);
	expect(&later, "tandem_prompt_tokens_total", "tenant=\"alice\"", 11);
	expect(&later, "tandem_cached_tokens_total", "tenant=\"alice\"", 8);
	expect(&later, "tandem_output_tokens_total", "tenant=\"alice\"", 4);
	expect(&later, "tandem_device_seconds_total", "tenant=\"alice\"", 0.0015);
	expect(&later, "tandem_device_wasted_seconds_total", "tenant=\"alice\"", 0.0005);
	expect(&later, "tandem_drafted_tokens_total", "tenant=\"alice\"", 3);
	expect(&later, "tandem_accepted_tokens_total", "tenant=\"alice\"", 2);
	expect(&later, "tandem_draft_position_drafted_total", "position=\"3\"", 1);
	expect(&later, "tandem_queue_wait_seconds_count", "tenant=\"alice\"", 1);
	expect(&later, "tandem_queue_wait_seconds_sum", "tenant=\"alice\"", 0.004);
	expect(&later, "tandem_time_to_first_token_seconds_bucket", "tenant=\"alice\",le=\"0.01\"", 0);
	expect(&later, "tandem_time_to_first_token_seconds_bucket", "tenant=\"alice\",le=\"0.025\"", 1);
	expect(&later, "tandem_inter_token_seconds_count", "tenant=\"alice\"", 3);
	expect(&later, "tandem_inter_token_seconds_bucket", "tenant=\"alice\",le=\"0.0075\"", 0);
	expect(&later, "tandem_inter_token_seconds_bucket", "tenant=\"alice\",le=\"0.01\"", 3);
	expect(&later, "tandem_commit_gap_seconds_sum", "", 0.03);
	expect(&later, "tandem_verify_step_seconds_bucket", "le=\"0.0005\"", 0);
	expect(&later, "tandem_verify_step_seconds_bucket", "le=\"0.001\"", 1);
	expect(&later, "tandem_requests_ended_total", "tenant=\"alice\",outcome=\"length\"", 1);
	expect(&later, "tandem_requests_ended_total", "tenant=\"alice\",outcome=\"stop\"", 0);
	expect(&later, "tandem_request_duration_seconds_count", "", 1);
	td_promtext_finish(&later);
}

static void ends(void **state)
{
	struct td_request r = {.log = {.n_prompt = 1}, .arrived_us = td_now_us(), .slot = -1};
	struct td_promtext p;

	(void)state;
	td_metrics_end(&d, &r); /* before it was accepted: nobody's */
	td_metrics_start(&r, 1);
	td_metrics_accept(&d, &r, "bob");
	r.state = TD_REQ_LOST;
	td_metrics_end(&d, &r);
	r.state = TD_REQ_ENDED;
	r.error.code = TD_E_DEADLINE;
	td_metrics_end(&d, &r);
	r.error.code = -1000;
	td_metrics_end(&d, &r);
	td_metrics_error(&d, TD_E_PROTOCOL);
	td_metrics_error(&d, TD_E_INTERNAL);
	td_metrics_error(&d, 5);
	td_metrics_connect(&d, TD_PROTOCOL_HTTP);
	render(&p);
	expect(&p, "tandem_requests_ended_total", "tenant=\"bob\",outcome=\"lost\"", 1);
	expect(&p, "tandem_requests_ended_total", "tenant=\"bob\",outcome=\"deadline_exceeded\"", 1);
	expect(&p, "tandem_requests_ended_total", "tenant=\"bob\",outcome=\"internal\"", 1);
	expect(&p, "tandem_errors_total", "code=\"protocol\"", 1);
	expect(&p, "tandem_errors_total", "code=\"internal\"", 2);
	expect(&p, "tandem_connections_opened_total", "protocol=\"http\"", 1);
	expect(&p, "tandem_request_duration_seconds_count", "", 3);
	td_promtext_finish(&p);
}

/* Between two scrapes that are close nothing is made anew; after a while it is. */
static void kept(void **state)
{
	const char *first, *text;
	size_t n = 0, again = 0;

	(void)state;
	first = td_metrics_text(&d, 5000000, &n);
	assert_non_null(first);
	assert_int_equal(n, strlen(first));
	assert_null(strstr(first, "connections_opened_total{protocol=\"http\"} 77\n"));
	d.metrics.opened[TD_PROTOCOL_HTTP] = 77;
#if FAILING_ALLOC
	alloc_countdown = 1;
#endif
	text = td_metrics_text(&d, 5000000 + TD_METRICS_KEEP_US - 1, &again);
#if FAILING_ALLOC
	assert_int_equal(alloc_countdown, 1); /* a copy is all that it costs */
	alloc_countdown = 0;
#endif
	assert_ptr_equal(text, first);
	assert_int_equal(again, n);
	text = td_metrics_text(&d, 5000000 + TD_METRICS_KEEP_US, &again);
	assert_non_null(text);
	assert_int_equal(again, strlen(text));
	assert_non_null(strstr(text, "connections_opened_total{protocol=\"http\"} 77\n"));
#if FAILING_ALLOC
	/* No memory: told once, and not for as long as a text is kept. */
	alloc_countdown = 1;
	assert_null(td_metrics_text(&d, 9000000, &n));
	alloc_countdown = 0;
	assert_non_null(td_metrics_text(&d, 9000001, &n));
#endif
	td_metrics_finish(&d.metrics);
}

#if FAILING_ALLOC
/* Whichever allocation fails: NULL and nothing lost, or the whole text. */
static void no_memory(void **state)
{
	long alive, failed = 0;
	struct td_promtext p;
	size_t n = 0;
	char *text = NULL;

	(void)state;
	for (int i = 0; i < 60; i++)
		td_metrics_meter(&d.metrics, (char[]){(char)('A' + i), 0});
	alive = alloc_alive;
	for (long i = 1; i < 1000; i++) {
		alloc_countdown = i;
		text = td_metrics_render(&d, &n);
		failed += alloc_countdown == 0;
		if (alloc_countdown)
			break;
		assert_int_equal(alloc_alive, alive + (text != NULL));
		free(text);
	}
	alloc_countdown = 0;
	assert_true(failed > 2);
	assert_non_null(text);
	assert_int_equal(td_promtext_read(&p, text), 0);
	td_promtext_finish(&p);
	free(text);
}
#endif

static void reader_refuses(void **state)
{
#define GAUGE "# HELP a b\n# TYPE a gauge\n"
#define HISTOGRAM "# HELP a b\n# TYPE a histogram\n"
	static const char *const good[] = {
		GAUGE "a 1\n",
		GAUGE "a{x=\"\\\"\\\\\\n\"} -1.5\n",
		HISTOGRAM "a_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 2\n",
	};
	static const char *const bad[] = {
		"", "a 1\n", GAUGE, GAUGE "a 1", GAUGE "b 1\n", GAUGE "a 1\na 2\n", GAUGE "a  1\n", GAUGE "a x\n", GAUGE "1a 1\n",
		GAUGE "a{x=\"\\t\"} 1\n", GAUGE "a{x=\"1} 1\n", GAUGE "a{1=\"x\"} 1\n", GAUGE "a{} 1\n", GAUGE "a{x=\"\xff\"} 1\n", GAUGE "a 1\n" GAUGE,
		"# TYPE a gauge\na 1\n", "# HELP a b\na 1\n", "# HELP a b\n# TYPE a counter\na 1\n", "# HELP a_total b\n# TYPE a_total gauge\na_total 1\n",
		"# HELP a_total b\n# TYPE a_total counter\na_total -1\n", "# HELP a b\n# TYPE a thing\na 1\n", "# nothing\n" GAUGE "a 1\n",
		HISTOGRAM "a_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
		HISTOGRAM "a_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 3\n",
		HISTOGRAM "a_bucket{le=\"2\"} 1\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 2\n",
		HISTOGRAM "a_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n", HISTOGRAM "a_bucket{le=\"+Inf\"} 1\na_count 1\n", HISTOGRAM "a_bucket{le=\"+Inf\"} 1\n",
	};
	struct td_promtext p, q;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		if (td_promtext_read(&p, good[i]))
			fail_msg("refused: %s: %s", good[i], p.why);
		td_promtext_finish(&p);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (!td_promtext_read(&p, bad[i]))
			fail_msg("taken: %s", bad[i]);
		td_promtext_finish(&p);
	}
	td_promtext_read(&p, "# HELP a_total b\n# TYPE a_total counter\na_total 2\n");
	td_promtext_read(&q, "# HELP a_total b\n# TYPE a_total counter\na_total 1\n");
	assert_int_equal(td_promtext_grows(&q, &p), 0);
	assert_int_equal(td_promtext_grows(&p, &q), -1);
	td_promtext_finish(&p);
	td_promtext_finish(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(histogram_edges),
		cmocka_unit_test_setup_teardown(names_are_bounded, setup, teardown),
		cmocka_unit_test_setup_teardown(full_tables, setup, teardown),
		cmocka_unit_test_setup_teardown(way_of_a_request, setup, teardown),
		cmocka_unit_test_setup_teardown(ends, setup, teardown),
		cmocka_unit_test_setup_teardown(kept, setup, teardown),
#if FAILING_ALLOC
		cmocka_unit_test_setup_teardown(no_memory, setup, teardown),
#endif
		cmocka_unit_test(reader_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
