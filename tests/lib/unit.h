/*
 * unit.h: the head of a cmocka test of something that reports to a struct td_error.
 */
#ifndef TD_TESTS_UNIT_H
#define TD_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/error.h"

/* Must succeed; else the test fails with the error's own words. The call reports to a struct td_error `err`. */
#define OK(call) \
	do { \
		int rc_ = (call); \
		if (rc_) \
			fail_msg("%s: %s: %s", #call, td_error_name(rc_), err.text); \
	} while (0)

#endif
