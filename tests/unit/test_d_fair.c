/*
 * test_d_fair.c: what the queue promises to tenants, in a simulation of thousands of seconds of the very code that the daemon runs: shares by weight, a bound
 * of the gap between two tenants, a victim's latency beside floods, no starvation of batch work, no throughput lost to fairness. Figures are printed.
 */
#include "tests/lib/unit.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/lib/sharing.h"

enum { S = 1000000 };
static struct sim s;

static void run(uint64_t seconds)
{
	const char *wrong = sim_run(&s, s.now_us + seconds * S);

	if (wrong)
		fail_msg("after %.1f s: %s", (double)s.now_us / S, wrong);
}

static double share(int flow)
{
	double sum = 0;

	for (int i = 0; i < s.n_flows; i++)
		sum += (double)s.flow[i].charged_us;
	return (double)s.flow[flow].charged_us / sum;
}

static double mean_window(void)
{
	double sum = 0;

	for (int i = 0; i < s.n_windows; i++)
		sum += s.window[i];
	return s.n_windows ? sum / s.n_windows : 0;
}

/* Two tenants that always have more waiting, one with long prompts and short answers, the other the other way round. A grant is what a tenant's slots of one
 * time are charged: with one slot that is one stay, and then the bound is that of the virtual token counter. */
static void two(double a, double b, int slots, int window)
{
	double want = a / (a + b), got;

	sim_init(&s, 7, slots, slots * 64);
	sim_flow(&s, a);
	sim_flow(&s, b);
	sim_clients(&s, 0, 3 * slots + 3, 500, 3000, 20, 100, 0, 100000);
	sim_clients(&s, 1, 3 * slots + 3, 20, 300, 100, 900, 0, 100000);
	s.gap_of[1] = 1;
	s.window_us = (uint64_t)window * S;
	run(600);
	got = share(0);
	printf("%g:%g, %2d slots: share of the first %.4f (%.4f), gap %.1f ms, dearest grant %.1f ms (one stay %.1f ms), Jain over %d s %.4f\n", a, b, slots, got,
	       want, s.gap_us / 1000, s.dearest_set_us / 1000, s.dearest_us / 1000, window, mean_window());
	assert_true(got > want * 0.95 && got < want * 1.05);
	assert_true(1 - got > (1 - want) * 0.95 && 1 - got < (1 - want) * 1.05);
	assert_true(s.gap_us <= 2 * s.dearest_set_us);
	assert_true(mean_window() > 0.98);
	assert_int_equal(s.idle_us < S, 1);
}

static void test_shares(void **state)
{
	(void)state;
	two(1, 1, 1, 10);
	two(3, 1, 1, 10);
	two(1, 1, 4, 1);
	two(1, 1, 4, 60);
	two(3, 1, 4, 10);
	two(1, 3, 4, 10);
	two(3, 1, 8, 10);
	two(1, 1, 16, 1);
}

/* A tenant that comes now and then, beside n floods: each of its own tenant, or all of one. */
static void victim(int n, int one_tenant, int in_order, double out[2])
{
	sim_init(&s, 11, 4, 256);
	s.q.in_order = in_order;
	s.watched = sim_flow(&s, 1);
	sim_clients(&s, 0, 1, 50, 200, 30, 60, 8 * S, S);
	for (int i = 0; i < n; i++)
		if (!i || !one_tenant)
			sim_flow(&s, 1);
	for (int i = 0; i < n; i++)
		sim_clients(&s, one_tenant ? 1 : 1 + i, 6, 50, 2000, 50, 500, 0, 100000);
	run(2000);
	out[0] = sim_percentile(&s.first_token, 0.99) / 1000.0;
	out[1] = sim_percentile(&s.inter_token, 0.99) / 1000.0;
	printf("a victim beside %2d floods%s%s: first token p50 %.1f p99 %.1f ms, between steps p99 %.2f ms, %d requests\n", n, one_tenant ? " of one tenant" : "",
	       in_order ? " in order of arrival" : "", sim_percentile(&s.first_token, 0.5) / 1000.0, out[0], out[1], s.first_token.n);
	assert_true(s.first_token.n > (in_order ? 20 : 200));
}

static void test_victim(void **state)
{
	(void)state;
	for (int one = 0; one < 2; one++) {
		double base[2], x[2];

		victim(1, one, 0, base);
		for (int n = 8; n <= 64; n *= 8) {
			victim(n, one, 0, x);
			assert_true(x[0] <= 1.5 * base[0]);
			assert_true(x[1] <= 1.5 * base[1]);
		}
		victim(64, one, 1, x); /* what it would be without all this */
		assert_true(x[0] > 10 * base[0]);
	}
}

/* The same requests in both orders, until all are answered: what fairness costs. */
static double makespan(int in_order, uint64_t seed, uint64_t *steps)
{
	sim_init(&s, seed, 4, 200);
	s.q.in_order = in_order;
	for (int i = 0; i < 6; i++)
		sim_flow(&s, 1 + i % 3);
	for (int i = 0; i < 6; i++)
		sim_clients(&s, i, 100, 20, 2500, 10, 2000, 0, 4 * S);
	for (int i = 0; i < s.n_clients; i++) {
		s.client[i].once = 1;
		s.client[i].band = i % 5 ? TD_BAND_INTERACTIVE : TD_BAND_BATCH;
	}
	run(100000);
	for (int i = 0; i < s.n_clients; i++) {
		assert_int_equal(s.client[i].ended, 1);
		assert_int_equal(s.client[i].tokens, s.client[i].out);
	}
	*steps = s.steps;
	return (double)s.now_us / S;
}

static void test_throughput(void **state)
{
	double fair = 0, order = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 5; seed++) {
		uint64_t steps, cuts;
		double a = makespan(0, seed, &steps);

		cuts = s.cuts;
		fair += a;
		order += makespan(1, seed, &steps);
		printf("600 requests: %.2f s, in order of arrival %.2f s; %llu interrupted\n", a, (double)s.now_us / S, (unsigned long long)cuts);
	}
	printf("throughput: %.2f %% of that in order of arrival\n", 100 * order / fair);
	assert_true(order / fair > 0.98);
}

/* Batch work beside a flood of interactive work: it waits, and not for ever. */
static void test_batch(void **state)
{
	(void)state;
	sim_init(&s, 3, 4, 256);
	sim_flow(&s, 1);
	sim_flow(&s, 1);
	sim_clients(&s, 0, 16, 50, 1000, 50, 300, 0, 100000);
	for (int i = 0; i < 8; i++)
		sim_clients(&s, 1, 1, 50, 1000, 50, 300, 0, 100000)->band = TD_BAND_BATCH;
	run(50);
	assert_true(s.flow[1].charged_us < S); /* it began before the flood did */
	run(550);
	printf("batch beside interactive: share %.3f, longest wait %.1f s\n", share(1), (double)s.max_wait_us / S);
	assert_true(s.max_wait_us < 65 * S);
	for (int i = 16; i < 24; i++)
		assert_true(s.client[i].ended > 6);
	/* Interactive work that comes while batch work runs need not wait for its end. */
	sim_init(&s, 3, 1, 256);
	s.watched = sim_flow(&s, 1);
	sim_flow(&s, 1);
	sim_clients(&s, 0, 1, 50, 100, 20, 40, 20 * S, S);
	sim_clients(&s, 1, 3, 100, 200, 12000, 12000, 0, 100000)->band = TD_BAND_BATCH;
	s.client[2].band = s.client[3].band = TD_BAND_BATCH;
	run(1000);
	printf("interactive beside long batch work: first token p99 %.1f ms, %llu interruptions\n", sim_percentile(&s.first_token, 0.99) / 1000.0,
	       (unsigned long long)s.cuts);
	assert_true(sim_percentile(&s.first_token, 0.99) < 1500 * 1000);
	assert_true(s.cuts > 10);
	assert_true(s.client[1].ended > 50);
}

/* Long answers of one tenant give way to another's, and both get their share although every one would hold its slot for long. */
static void test_interrupted(void **state)
{
	(void)state;
	for (int slots = 1; slots <= 4; slots += 3) {
		sim_init(&s, 5, slots, slots * 256);
		sim_flow(&s, 1);
		sim_flow(&s, 1);
		sim_clients(&s, 0, 8, 100, 200, 12000, 14000, 0, 1000);
		sim_clients(&s, 1, 8, 100, 200, 12000, 14000, 0, 1000);
		s.gap_of[1] = 1;
		run(600);
		printf("long answers, %d slots: share %.4f, gap %.1f ms, %llu interruptions, dearest stay %.1f ms\n", slots, share(0), s.gap_us / 1000,
		       (unsigned long long)s.cuts, s.dearest_us / 1000);
		assert_true(share(0) > 0.475 && share(0) < 0.525);
		assert_true(s.gap_us < 2 * (double)s.q.quantum_us + 1000000);
		assert_true(s.cuts < 600 * (unsigned)slots); /* each stay lasts a quantum */
		assert_true(s.client[0].tokens > 0);
	}
}

/* A request of many pages is not passed by small ones for ever. */
static void test_large(void **state)
{
	(void)state;
	sim_init(&s, 9, 8, 64);
	s.q.quantum_us = 0;
	sim_flow(&s, 1);
	sim_flow(&s, 1);
	sim_clients(&s, 0, 30, 50, 200, 50, 300, 0, 1000);
	sim_clients(&s, 1, 1, 3500, 3800, 200, 290, 0, 1000); /* nearly all pages */
	run(200);
	printf("a request that needs all pages beside small ones: %llu answered, longest wait %.2f s\n", (unsigned long long)s.client[30].ended,
	       (double)s.max_wait_us / S);
	assert_true(s.client[30].ended > 50);
}

/* A tenant that may hold a quarter of the pages while others wait. */
static void test_memory_share(void **state)
{
	uint64_t alone;

	(void)state;
	sim_init(&s, 9, 8, 128);
	sim_flow(&s, 1);
	sim_flow(&s, 1);
	s.flow[0].memory_share = 0.25;
	sim_clients(&s, 0, 20, 500, 700, 300, 320, 0, 1000);
	run(20);
	assert_int_equal(s.flow[0].running, 7); /* nobody else wants it */
	alone = s.flow[0].charged_us;
	sim_clients(&s, 1, 20, 500, 700, 300, 320, 0, 1000);
	run(5);
	for (int i = 0; i < 50; i++) {
		run(1);
		assert_true(s.flow[0].pages <= 32);
		assert_true(s.flow[1].pages >= 64);
	}
	assert_true(s.flow[0].charged_us > alone);
	/* A limit of its own on what runs: others pass. */
	sim_init(&s, 9, 8, 128);
	sim_flow(&s, 1);
	sim_flow(&s, 1);
	s.flow[0].max_running = 2;
	sim_clients(&s, 0, 20, 500, 700, 300, 320, 0, 1000);
	sim_clients(&s, 1, 20, 500, 700, 300, 320, 0, 1000);
	for (int i = 0; i < 50; i++) {
		run(1);
		assert_true(s.flow[0].running <= 2);
		assert_true(s.flow[1].running >= 4);
	}
}

/* Time in which a tenant wanted nothing is not saved up, nor is that in which its own limit held it back. */
static void test_no_savings(void **state)
{
	double before[2];

	(void)state;
	sim_init(&s, 13, 4, 256);
	sim_flow(&s, 1);
	sim_flow(&s, 1);
	sim_clients(&s, 0, 12, 50, 500, 50, 300, 0, 1000);
	run(100);
	sim_clients(&s, 1, 12, 50, 500, 50, 300, 0, 1000);
	before[0] = (double)s.flow[0].charged_us;
	run(20);
	printf("after 100 s alone: the first used %.2f s, the newcomer %.2f s of the next 20 s\n", ((double)s.flow[0].charged_us - before[0]) / S,
	       (double)s.flow[1].charged_us / S);
	assert_true((double)s.flow[1].charged_us < 1.1 * ((double)s.flow[0].charged_us - before[0]));
	assert_true((double)s.flow[1].charged_us > 0.9 * ((double)s.flow[0].charged_us - before[0]));
	s.flow[0].max_running = 1;
	run(100);
	s.flow[0].max_running = 0;
	before[0] = (double)s.flow[0].charged_us;
	before[1] = (double)s.flow[1].charged_us;
	run(20);
	assert_true((double)s.flow[0].charged_us - before[0] < 1.2 * ((double)s.flow[1].charged_us - before[1]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares),	   cmocka_unit_test(test_victim), cmocka_unit_test(test_throughput),
					   cmocka_unit_test(test_batch),	   cmocka_unit_test(test_interrupted), cmocka_unit_test(test_large),
					   cmocka_unit_test(test_memory_share), cmocka_unit_test(test_no_savings)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
