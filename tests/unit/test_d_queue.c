/*
 * test_d_queue.c: the queue under random operations, its lists and counts checked after each; places and forecasts; what an operation costs.
 */
#include "tests/lib/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/sharing.h"

enum { REQUESTS = 400, US = 1000000 };
enum where { NOWHERE, WAITS, RUNS };
static struct sim s;
static struct td_entry entry[REQUESTS];
static enum where where[REQUESTS];
static int deaths[REQUESTS], idle_cuts;

static struct td_entry *any(enum where w)
{
	int from = (int)sim_random(&s, 0, REQUESTS - 1);

	for (int i = 0; i < REQUESTS; i++)
		if (where[(from + i) % REQUESTS] == w)
			return &entry[(from + i) % REQUESTS];
	return NULL;
}

static enum where *place_of(const struct td_entry *e)
{
	return &where[e - entry];
}

static int slot_of(const struct td_entry *e)
{
	for (int i = 0; i < s.q.slots; i++)
		if (s.q.stay[i].entry == e)
			return i;
	fail_msg("a request that runs is in no slot");
	return -1;
}

static void op_arrive(void)
{
	struct td_entry *e = any(NOWHERE);

	if (!e)
		return;
	*e = (struct td_entry){.flow = &s.flow[sim_random(&s, 0, (uint64_t)s.n_flows - 1)], .number = ++s.number, .pages = (int)sim_random(&s, 1, 16),
			       .band = sim_random(&s, 0, 2) ? TD_BAND_INTERACTIVE : TD_BAND_BATCH};
	if (!sim_random(&s, 0, 9))
		e->pages = s.q.pages;
	if (!sim_random(&s, 0, 9)) /* tokenised on another thread: younger ones are there already */
		e->number -= sim_random(&s, 1, 3) * 1000003 % (s.number + 1);
	for (int i = 0; i < REQUESTS; i++) /* numbers are unique */
		if (&entry[i] != e && where[i] != NOWHERE && entry[i].number == e->number)
			e->number = ++s.number;
	*place_of(e) = WAITS;
	deaths[e - entry] = 0;
	td_queue_add(&s.q, e, s.now_us);
}

static void op_cancel_waiting(void)
{
	struct td_entry *e = any(WAITS);

	if (!e)
		return;
	td_queue_remove(&s.q, e);
	*place_of(e) = NOWHERE;
}

/* Its client went: the slot is taken until the worker says so. */
static void op_cancel_running(void)
{
	struct td_entry *e = any(RUNS);

	if (!e)
		return;
	td_queue_leave(&s.q, slot_of(e));
	s.q.stay[slot_of(e)].entry = NULL;
	*place_of(e) = NOWHERE;
}

static void op_start(void)
{
	struct td_entry *e;

	while ((e = td_queue_next(&s.q, s.now_us))) {
		assert_int_equal(*place_of(e), WAITS);
		assert_true(!e->suspect || !s.q.used);
		td_queue_start(&s.q, e, td_queue_free_slot(&s.q));
		*place_of(e) = RUNS;
	}
}

static void op_cut(void)
{
	int slot = td_queue_cut(&s.q, s.now_us);

	if (slot < 0)
		return;
	assert_non_null(s.q.stay[slot].entry);
	assert_int_equal(s.q.stay[slot].entry->held, s.q.stay[slot].idle_us > 0);
	if (s.q.stay[slot].idle_us && s.now_us >= s.q.stay[slot].idle_us + US) {
		idle_cuts++;
		return;
	}
	assert_true(s.q.stay[slot].charged_us >= s.q.quantum_us);
	assert_true(s.q.stay[slot].commits > 0);
	s.cuts++;
}

static void op_work(void)
{
	for (int i = 0; i < s.q.slots; i++)
		if (s.q.stay[i].flow && sim_random(&s, 0, 3))
			td_queue_charge(&s.q, i, sim_random(&s, 0, s.q.stay[i].commits ? 200000 : 5000), sim_random(&s, 0, 3) > 0);
	s.now_us += sim_random(&s, 0, 400000);
}

/* A slot is free: at the request's end, after a cancel, after a cut. */
static void op_done(void)
{
	int i = (int)sim_random(&s, 0, (uint64_t)s.q.slots - 1);
	struct td_entry *e = s.q.stay[i].entry;
	int cut = s.q.stay[i].cut;

	if (!s.q.stay[i].flow || (!s.q.stay[i].leaving && sim_random(&s, 0, 3)))
		return;
	td_queue_free(&s.q, i, cut ? 0 : 1000000);
	if (e)
		*place_of(e) = cut ? WAITS : NOWHERE;
	if (e && cut)
		td_queue_add(&s.q, e, s.now_us);
}

static void op_death(void)
{
	int alone = s.q.used == 1;

	for (int i = 0; i < s.q.slots; i++) {
		struct td_entry *e = s.q.stay[i].entry;

		if (!s.q.stay[i].flow)
			continue;
		td_queue_free(&s.q, i, 0);
		if (!e)
			continue;
		e->lone += alone && e->suspect;
		e->suspect = ++deaths[e - entry] >= 2;
		*place_of(e) = e->lone < 2 ? WAITS : NOWHERE;
		if (e->lone < 2)
			td_queue_add(&s.q, e, s.now_us);
	}
}

/* Clients that don't read, or read again. */
static void op_idle(void)
{
	int i = (int)sim_random(&s, 0, (uint64_t)s.q.slots - 1);

	if (s.q.stay[i].flow)
		td_queue_idle(&s.q, i, sim_random(&s, 0, 1) ? s.now_us : 0);
	if (s.q.held && sim_random(&s, 0, 1))
		td_queue_release(&s.q, s.q.held, s.now_us);
}

static void op_configure(void)
{
	struct td_flow *f = &s.flow[sim_random(&s, 0, (uint64_t)s.n_flows - 1)];

	f->weight = (double)sim_random(&s, 1, 100) / 10;
	f->max_running = (int)sim_random(&s, 0, 4);
	f->memory_share = sim_random(&s, 0, 1) ? 0 : (double)sim_random(&s, 1, 100) / 100;
	s.q.quantum_us = sim_random(&s, 0, 4) ? US / 4 : 0;
	s.q.batch_age_us = sim_random(&s, 0, 60) * US;
}

static void check(int step)
{
	const char *wrong;
	int waits = 0;

	op_start();
	wrong = sim_check(&s);
	if (wrong)
		fail_msg("after %d operations: %s", step, wrong);
	for (int i = 0; i < REQUESTS; i++) {
		waits += where[i] == WAITS;
		assert_int_equal(entry[i].waiting, where[i] == WAITS);
		if (where[i] == RUNS)
			slot_of(&entry[i]);
	}
	assert_int_equal(waits, s.q.n);
}

static void random_run(uint64_t seed, int in_order)
{
	static void (*const op[])(void) = {op_arrive, op_arrive, op_arrive, op_work, op_work, op_work,
					   op_done, op_cut, op_idle, op_cancel_waiting, op_cancel_running};

	sim_init(&s, seed, 1 + (int)(seed % 6), 64);
	s.q.in_order = in_order;
	s.q.quantum_us = US / 4;
	memset(where, 0, sizeof(where));
	memset(entry, 0, sizeof(entry));
	for (int i = 0; i < 5; i++)
		sim_flow(&s, 1 + i);
	for (int step = 0; step < 4000; step++) {
		uint64_t x = sim_random(&s, 0, 999);

		if (x < 5)
			op_configure();
		else if (x < 15)
			op_death();
		else
			op[x % (sizeof(op) / sizeof(op[0]))]();
		check(step);
	}
	/* Everything that waits comes to its end once nothing new arrives and no limit is in the way. */
	for (int i = 0; i < s.n_flows; i++)
		s.flow[i].max_running = 0;
	for (int step = 0; s.q.n || s.q.used; step++) {
		assert_true(step < 100000);
		if (s.q.held)
			td_queue_release(&s.q, s.q.held, s.now_us);
		op_work();
		op_done();
		check(step);
	}
}

static void test_random(void **state)
{
	unsigned long cuts = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 30; seed++) {
		random_run(seed, seed % 10 == 0);
		cuts += s.cuts;
	}
	printf("30 runs of 4000 operations, %lu interruptions among them, and %d of those that did nothing\n", cuts, idle_cuts);
	assert_true(idle_cuts > 20);
	assert_true(cuts > 20);
}

static struct td_entry *put(int i, int flow, enum td_band band)
{
	entry[i] = (struct td_entry){.flow = &s.flow[flow], .number = (uint64_t)i + 1, .band = band, .pages = 1};
	td_queue_add(&s.q, &entry[i], s.now_us);
	return &entry[i];
}

/* The place that is told is the one in which requests of like cost start. */
static void test_places(void **state)
{
	int told[60], at = 0;

	(void)state;
	sim_init(&s, 1, 1, 64);
	for (int i = 0; i < 3; i++)
		sim_flow(&s, i == 2 ? 2 : 1);
	s.q.mean_us = 1000;
	for (int i = 0; i < 60; i++)
		put(i, i < 30 ? 0 : i < 50 ? 1 : 2, i % 3 ? TD_BAND_INTERACTIVE : TD_BAND_BATCH);
	for (int i = 0; i < 60; i++) {
		told[i] = td_queue_ahead(&s.q, &entry[i], -1);
		assert_in_range(told[i], 0, 59);
	}
	while (s.q.n) {
		struct td_entry *e = td_queue_next(&s.q, s.now_us);

		assert_non_null(e);
		if (abs(told[e - entry] - at) > 3)
			fail_msg("request %d was told place %d and started as number %d", (int)(e - entry), told[e - entry], at);
		at++;
		td_queue_start(&s.q, e, 0);
		td_queue_charge(&s.q, 0, 1000, 1);
		td_queue_free(&s.q, 0, 1000);
	}
	assert_int_equal(at, 60);
}

static void test_forecast(void **state)
{
	(void)state;
	sim_init(&s, 1, 2, 64);
	sim_flow(&s, 1);
	for (int i = 0; i < 9; i++) {
		assert_int_equal(td_queue_wait_us(&s.q, 5), i < 8 ? 0 : 4 * 1000000 / 2);
		td_queue_start(&s.q, put(i, 0, TD_BAND_INTERACTIVE), 0);
		td_queue_charge(&s.q, 0, 1000, 1);
		td_queue_free(&s.q, 0, 1000000);
	}
	assert_int_equal(td_queue_wait_us(&s.q, 0), 0); /* a slot is free */
	assert_int_equal(td_queue_wait_us(&s.q, 1), 0);
	assert_true(td_queue_wait_us(&s.q, 2) == 500000);
}

/* Ties go to the one that was served least recently; without a weight's difference flows take turns. */
static void test_turns(void **state)
{
	const int want[] = {0, 1, 2, 0, 1, 2};

	(void)state;
	sim_init(&s, 1, 6, 64);
	for (int i = 0; i < 3; i++)
		sim_flow(&s, 1);
	for (int i = 0; i < 9; i++)
		put(i, i / 3, TD_BAND_INTERACTIVE);
	for (int i = 0; i < 6; i++) {
		struct td_entry *e = td_queue_next(&s.q, 0);

		assert_int_equal(e->flow - s.flow, want[i]);
		td_queue_start(&s.q, e, i);
	}
	assert_null(td_queue_next(&s.q, 0)); /* no slot is left */
	td_queue_charge(&s.q, 0, 500, 1);
	assert_true(td_queue_turn(&s.q, 0) > td_queue_turn(&s.q, 1));
	assert_true(td_queue_turn(&s.q, 0) == td_queue_turn(&s.q, 3)); /* of one tenant */
	s.q.stay[1].band = TD_BAND_BATCH;
	assert_true(td_queue_turn(&s.q, 1) > td_queue_turn(&s.q, 0));
}

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* CPU time of an operation, in a queue of 64 tenants with 6 requests each; the median of many rounds. */
static void test_cost(void **state)
{
	enum { ROUNDS = 101, TIMES = 1000 };
	double cost[ROUNDS];

	(void)state;
	sim_init(&s, 1, 4, 256);
	for (int i = 0; i < 64; i++)
		sim_flow(&s, 1);
	for (int i = 0; i < 384; i++)
		put(i, i % 64, i % 5 ? TD_BAND_INTERACTIVE : TD_BAND_BATCH);
	for (int r = 0; r < ROUNDS; r++) {
		double from = now_us();

		for (int i = 0; i < TIMES; i++) {
			struct td_entry *e = td_queue_next(&s.q, 1);

			td_queue_start(&s.q, e, 0);
			td_queue_charge(&s.q, 0, 100, 1);
			td_queue_cut(&s.q, 1);
			td_queue_free(&s.q, 0, 0);
			td_queue_add(&s.q, e, 1);
		}
		cost[r] = (now_us() - from) / TIMES / 6;
	}
	qsort(cost, ROUNDS, sizeof(cost[0]), by_value);
	printf("an operation of the queue with 64 tenants waiting: %.2f us (median)\n", cost[ROUNDS / 2]);
	assert_true(cost[ROUNDS / 2] < 50); /* 5 are wanted; a sanitizer on a slow machine is allowed ten times as much */
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_places), cmocka_unit_test(test_forecast),
					   cmocka_unit_test(test_turns), cmocka_unit_test(test_cost)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
