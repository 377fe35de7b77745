/*
 * When the supervision of workers has failed, so that the service manager is to act: standing still far past the limit, or killed and not gone. Nothing else
 * withholds the watchdog's pings.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/daemon.h"

enum { S = 1000000, NOW_S = 10000 };

static struct td_daemon d;

static int stuck_after(struct td_child *c, enum td_child_state state, uint64_t progress_s, uint64_t killed_s)
{
	d.cfg.watchdog_s = 20;
	d.target = (struct td_child){.d = &d, .state = TD_CHILD_READY, .progress_us = (uint64_t)NOW_S * S};
	d.drafter = (struct td_child){.d = &d, .state = TD_CHILD_OFF};
	c->d = &d;
	c->state = state;
	c->progress_us = (NOW_S - progress_s) * S;
	c->killed_us = killed_s ? (NOW_S - killed_s) * S : 0;
	return td_supervisor_stuck(&d, (uint64_t)NOW_S * S);
}

static void standing_still_counts_past_twice_the_limit(void **state)
{
	(void)state;
	assert_int_equal(stuck_after(&d.target, TD_CHILD_READY, 0, 0), 0);
	assert_int_equal(stuck_after(&d.target, TD_CHILD_READY, 21, 0), 0); /* the supervisor's own turn */
	assert_int_equal(stuck_after(&d.target, TD_CHILD_READY, 40, 0), 0);
	assert_int_equal(stuck_after(&d.target, TD_CHILD_READY, 60, 0), 1);
	assert_int_equal(stuck_after(&d.drafter, TD_CHILD_READY, 60, 0), 1);
}

static void a_killed_process_has_a_minute(void **state)
{
	(void)state;
	assert_int_equal(stuck_after(&d.target, TD_CHILD_ENDING, 500, 0), 0); /* ends by itself */
	assert_int_equal(stuck_after(&d.target, TD_CHILD_ENDING, 500, 30), 0);
	assert_int_equal(stuck_after(&d.target, TD_CHILD_ENDING, 500, 90), 1);
	assert_int_equal(stuck_after(&d.drafter, TD_CHILD_ENDING, 500, 90), 1);
}

static void what_tandemd_deals_with_itself_does_not_count(void **state)
{
	static const enum td_child_state other[] = {TD_CHILD_OFF, TD_CHILD_DOWN, TD_CHILD_STARTING, TD_CHILD_LOADING};

	(void)state;
	for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++) {
		assert_int_equal(stuck_after(&d.target, other[i], 5000, 5000), 0);
		assert_int_equal(stuck_after(&d.drafter, other[i], 5000, 5000), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(standing_still_counts_past_twice_the_limit),
		cmocka_unit_test(a_killed_process_has_a_minute),
		cmocka_unit_test(what_tandemd_deals_with_itself_does_not_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
