/*
 * test_widths.c: the table of cycle times: what was written is read back, another device's or a damaged file is refused; the choice follows times and rates.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/widths.h"

static const struct td_target_config target = {.layers = 8, .hidden = 512, .quant = {.bits = 4, .size = {128}}};
static const struct td_drafter_config drafter = {.layers = 3, .hidden = 512, .block = 16};

/* A cycle that takes `fixed` and `per_row` for each row of each request. */
static struct td_widths table(double fixed, double per_row)
{
	struct td_widths w;

	for (int r = 0; r < TD_WIDTH_COUNTS; r++)
		for (int k = 0; k < TD_WIDTH_CHOICES; k++)
			w.us[r][k] = fixed + per_row * td_width_requests[r] * (td_width_drafts[k] + 1);
	return w;
}

static void spoil(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void file(void **state)
{
	char folder[] = "/tmp/td-widths.XXXXXX", sub[64], key[512], other[512], path[TD_WIDTH_PATH], elsewhere[TD_WIDTH_PATH];
	struct td_widths w = table(1000, 10), got;
	struct td_error err;

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(sub, sizeof(sub), "%s/made", folder);
	td_widths_key("GPU 3: A Name, 8 multiprocessors", &target, &drafter, "file, auto", key);
	td_widths_key("GPU 0: A Name, 8 multiprocessors", &target, &drafter, "file, auto", other);
	assert_string_equal(key, other); /* its number is none of the device's properties */
	td_widths_key("GPU 0: Another, 8 multiprocessors", &target, &drafter, "file, auto", other);
	assert_int_equal(td_widths_path(sub, key, path) | td_widths_path(sub, other, elsewhere), 0);
	assert_string_not_equal(path, elsewhere);
	assert_int_equal(td_widths_read(path, key, &got, &err), TD_E_NOT_FOUND);
	w.us[4][6] = 0; /* not measured */
	assert_int_equal(td_widths_write(path, key, &w, &err), 0);
	assert_int_equal(td_widths_read(path, key, &got, &err), 0);
	for (int r = 0; r < TD_WIDTH_COUNTS; r++)
		for (int k = 0; k < TD_WIDTH_CHOICES; k++)
			assert_true(got.us[r][k] > 0.9999 * w.us[r][k] - 1e-9 && got.us[r][k] < 1.0001 * w.us[r][k] + 1e-9);
	assert_int_equal(td_widths_read(path, other, &got, &err), TD_E_FORMAT);
	spoil(path, "{\"of\": 5}");
	assert_int_equal(td_widths_read(path, key, &got, &err), TD_E_FORMAT);
	spoil(path, "");
	assert_int_equal(td_widths_read(path, key, &got, &err), TD_E_FORMAT);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0); /* read in the daemon's loop, which must not wait for a writer */
	assert_int_equal(td_widths_read(path, key, &got, &err), TD_E_INVALID);
	assert_int_equal(td_widths_write("/proc/none/x", key, &w, &err), TD_E_IO);
	unlink(path);
	rmdir(sub);
	rmdir(folder);
}

static void state_folder(void **state)
{
	char path[TD_WIDTH_PATH];

	(void)state;
	setenv("STATE_DIRECTORY", "/a/b:/c", 1);
	assert_int_equal(td_widths_path("auto", "key", path), 0);
	assert_int_equal(strncmp(path, "/a/b/widths-", 12), 0);
	unsetenv("STATE_DIRECTORY");
}

static void choice(void **state)
{
	double rate[TD_DRAFT_MAX];
	uint64_t drafted[TD_DRAFT_MAX], never[TD_DRAFT_MAX] = {0};
	struct td_widths free_rows = table(1000, 0), dear_rows = table(0, 1000), mixed = table(1000, 20), none = {0};
	int last = TD_DRAFT_MAX;

	(void)state;
	td_widths_rates(NULL, NULL, 0, 50, rate);
	for (int i = 0; i < TD_DRAFT_MAX; i++)
		assert_true(rate[i] > 0 && rate[i] < 1 && (i == 0 || rate[i] < rate[i - 1]));
	assert_int_equal(td_widths_choose(&free_rows, 1, 15, rate), 15);
	assert_int_equal(td_widths_choose(&free_rows, 1, 8, rate), 7); /* the most that may be asked for */
	assert_int_equal(td_widths_choose(&dear_rows, 1, 15, rate), 0);
	assert_int_equal(td_widths_choose(&none, 1, 15, rate), -1);
	for (int n = 1; n <= 64; n++) { /* more requests never have more drafts, where rows cost */
		int k = td_widths_choose(&mixed, n, 15, rate);

		assert_in_range(k, 0, last);
		last = k;
	}
	assert_true(last < td_widths_choose(&mixed, 1, 15, rate));
	assert_int_equal(td_widths_choose(&mixed, 3, 15, rate), td_widths_choose(&mixed, 4, 15, rate));
	for (int i = 0; i < TD_DRAFT_MAX; i++)
		drafted[i] = 1000000;
	td_widths_rates(never, drafted, TD_DRAFT_MAX, 50, rate); /* nothing was ever right */
	assert_int_equal(td_widths_choose(&mixed, 1, 15, rate), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(file), cmocka_unit_test(state_folder), cmocka_unit_test(choice)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
