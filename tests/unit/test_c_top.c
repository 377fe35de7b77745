/*
 * test_c_top.c: the lines of tandem top: rates are differences over the daemon's clock, nothing is wider than the screen, and no name of a tenant or model
 * reaches the terminal as anything but letters.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/top.h"

static struct td_top_screen screen;

static const char *line_with(const char *text)
{
	for (int i = 0; i < screen.n; i++)
		if (strstr(screen.line[i].text, text))
			return screen.line[i].text;
	fail_msg("no line with '%s'", text);
	return NULL;
}

static void view(const struct tandem_status *before, const struct tandem_status *now, enum td_top_sort by, int width)
{
	screen.n = 0;
	screen.width = width;
	td_top_view(&screen, before, now, by);
}

static int letters(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

static void rates(void **state)
{
	struct tandem_worker_status w0[] = {{.role = "target", .state = "ready", .steps = 100, .step_us = 1000000, .wait_us = 400000, .commit_us = 100000},
					    {.role = "drafter", .state = "ready", .steps = 100, .step_us = 300000}};
	struct tandem_worker_status w1[] = {{.role = "target", .state = "ready", .steps = 120, .step_us = 1160000, .wait_us = 460000, .commit_us = 120000},
					    {.role = "drafter", .state = "ready", .steps = 120, .step_us = 340000}};
	struct tandem_tenant_status t0[] = {{.name = "alice", .output_tokens = 50, .gpu_us = 100, .cycles = 10, .accepted = 10}};
	struct tandem_tenant_status t1[] = {{.name = "bob", .output_tokens = 20, .gpu_us = 250, .wasted_us = 100, .cycles = 4, .accepted = 8},
					    {.name = "alice", .output_tokens = 90, .gpu_us = 850, .wasted_us = 75, .cycles = 20, .accepted = 30, .running = 3}};
	uint64_t drafted0[] = {10, 10, 0}, accepted0[] = {5, 1, 0}, drafted1[] = {30, 20, 0}, accepted1[] = {20, 2, 0};
	struct tandem_status before = {.server = "s", .model = "m", .state = "ready", .uptime_us = 10000000, .output_tokens = 100, .drafted = 20, .accepted = 6,
				       .cycles = 100, .worker = w0, .n_workers = 2, .tenant = t0, .n_tenants = 1, .drafted_at = drafted0, .n_drafted_at = 3,
				       .accepted_at = accepted0, .n_accepted_at = 3};
	struct tandem_status now = {.server = "s", .model = "m", .state = "ready", .uptime_us = 12000000, .output_tokens = 150, .drafted = 50, .accepted = 22,
				    .cycles = 120, .worker = w1, .n_workers = 2, .tenant = t1, .n_tenants = 2, .drafted_at = drafted1, .n_drafted_at = 3,
				    .accepted_at = accepted1, .n_accepted_at = 3, .kv_pages = 10, .kv_pages_used = 5};

	(void)state;
	view(&before, &now, TD_TOP_BY_DEVICE, 200);
	line_with("written 25.0/s");
	line_with("KV pages 5/10 (50 %)");
	line_with("10.0/s   12.00 ms   draft 2.00   wait 3.00   verify 8.00   commit 1.00");
	line_with("length 1.80   accepted 53 %   1: 75 %   2: 10 %");
	assert_null(strstr(line_with("length 1.80"), "3:")); /* never drafted */
	/* alice: 40 tokens in 2 s, 750 of 1000 us, 10 cycles with 20 accepted drafts, a tenth wasted */
	assert_non_null(strstr(line_with("alice"), "         3         0      20.0      75.0      3.00      10.0"));
	assert_non_null(strstr(line_with("bob"), "      10.0      25.0      3.00      40.0"));
	assert_true(line_with("alice") < line_with("bob"));
	view(&before, &now, TD_TOP_BY_WASTED, 200);
	assert_true(line_with("bob") < line_with("alice"));
	view(&before, &now, TD_TOP_BY_NAME, 200);
	assert_true(line_with("alice") < line_with("bob"));
	/* Without a first answer, or with one of another life: since the start. */
	view(NULL, &now, TD_TOP_BY_NAME, 200);
	line_with("written 12.5/s");
	view(&now, &before, TD_TOP_BY_NAME, 200);
	line_with("written 10.0/s");
	/* A counter that fell began anew. */
	now.output_tokens = 40;
	view(&before, &now, TD_TOP_BY_NAME, 200);
	line_with("written 20.0/s");
}

/* Nothing there, everything there, every width: no crash, no line too wide, no control character. */
static void hostile(void **state)
{
	char name[200][64];
	struct tandem_tenant_status tenant[200] = {{0}};
	struct tandem_worker_status w[] = {{.role = "target", .state = "loading", .stage = "we\033[2Jights", .done = 7, .total = 3, .device = "\xff\xfe GPU"}};
	uint64_t huge[15];
	struct tandem_prefix_status prefix = {.lookups = UINT64_MAX, .states = UINT32_MAX};
	struct tandem_status empty = {.server = "", .model = "", .state = ""};
	struct tandem_status full = {.server = "s\r\n\x7f\xc2\x9b", .model = "\033]0;title\007", .state = "failed", .last_error = "a\tb\nc", .uptime_us = UINT64_MAX,
				     .slots = UINT32_MAX, .drafted = UINT64_MAX, .accepted = UINT64_MAX, .tenant = tenant, .n_tenants = 200, .worker = w, .n_workers = 1,
				     .prefix = &prefix, .kv_pages = 1, .kv_pages_used = UINT32_MAX, .accepted_at = huge, .n_accepted_at = 15};

	(void)state;
	memset(huge, 0xff, sizeof(huge));
	for (int i = 0; i < 200; i++) {
		snprintf(name[i], sizeof(name[i]), i % 2 ? "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 a rather long name of a tenant %d" : "\033[31m\n%d", i);
		tenant[i] = (struct tandem_tenant_status){.name = name[i], .gpu_us = UINT64_MAX, .wasted_us = UINT64_MAX, .running = UINT32_MAX};
	}
	for (int width = 1; width <= TD_TOP_WIDTH; width += width < 120 ? 1 : 40)
		for (int by = 0; by < TD_TOP_SORT_COUNT; by++) {
			view(&empty, by % 2 ? &full : &empty, (enum td_top_sort)by, width);
			assert_true(screen.n > 0 && screen.n <= TD_TOP_LINES);
			for (int i = 0; i < screen.n; i++) {
				const char *s = screen.line[i].text;

				if (letters(s) > width)
					fail_msg("%d letters on %d columns: %s", letters(s), width, s);
				for (; *s; s++)
					assert_false((unsigned char)*s < 0x20 || *s == 0x7f || (*s == '\xc2' && ((unsigned char)s[1] & 0xe0) == 0x80));
			}
		}
}

static void bar(void **state)
{
	char out[16];

	(void)state;
	td_progress_bar(out, 4, 0, 0);
	assert_string_equal(out, "[....]");
	td_progress_bar(out, 4, 1, 2);
	assert_string_equal(out, "[##..]");
	td_progress_bar(out, 4, 9, 2);
	assert_string_equal(out, "[####]");
	td_progress_bar(out, 4, UINT64_MAX / 2, UINT64_MAX);
	assert_string_equal(out, "[##..]");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rates),
		cmocka_unit_test(hostile),
		cmocka_unit_test(bar),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
