/*
 * test_draft_list.c: a list of tokens to draft from: what is read, what is always there, and what is refused in which words.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/draft_list.h"
#include "tests/lib/unit.h"

#define HEAD "tandem-draft-vocabulary 1\n"
enum { FIRST = 1000, ALWAYS_MOST = 300 };

static struct td_tokenizer *tok;
static struct td_error err;
static char path[] = "/tmp/tandem-draft-list.XXXXXX";
static int n_ids;

static int setup(void **state)
{
	int fd = mkstemp(path);

	(void)state;
	OK(td_tokenizer_load("models/tiny/tokenizer.json", &tok, &err));
	n_ids = td_tokenizer_size(tok);
	assert_true(fd >= 0);
	close(fd);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(path);
	td_tokenizer_free(tok);
	return 0;
}

/* The file: a beginning, n ids from FIRST on, an end. */
static void put(const char *before, int n, const char *after)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fputs(before, f);
	for (int i = 0; i < n; i++)
		fprintf(f, "%d\n", FIRST + n - 1 - i);
	fputs(after, f);
	fclose(f);
}

static int holds(const struct td_draft_list *l, int id)
{
	for (int i = 0; i < l->n; i++)
		if (l->id[i] == id)
			return 1;
	return 0;
}

static void a_list(void **state)
{
	static const char *const endings[] = {"", "\n# the end\n\n", "77", "12\r\n"};
	const int end[] = {4000, n_ids + 5};

	(void)state;
	for (size_t e = 0; e < sizeof(endings) / sizeof(*endings); e++) {
		struct td_draft_list l;
		int more = e >= 2, always = 0;

		put(HEAD "# a comment that is longer than a line of a list, so long that it does not fit where a token id fits: -----------------------------------\n",
		    100, endings[e]);
		OK(td_draft_list_read(path, tok, n_ids, end, 2, &l, &err));
		assert_int_equal(l.listed, 100 + more);
		assert_in_range(l.n, l.listed + 1, l.listed + ALWAYS_MOST);
		for (int i = 1; i < l.n; i++)
			assert_true(l.id[i] > l.id[i - 1]);
		for (int i = 0; i < 100; i++)
			assert_true(holds(&l, FIRST + i));
		assert_true(holds(&l, 4000));
		for (int id = 0; id < n_ids; id++) {
			size_t n;
			int must = td_tokenizer_is_special(tok, id) || (td_token_bytes(tok, id, &n) && n == 1);

			always += must;
			if (must != holds(&l, id) && (id < FIRST || id >= FIRST + 100) && id != 4000 && id != 77 && id != 12 && !td_tokenizer_is_added(tok, id))
				fail_msg("token %d is %s", id, must ? "missing" : "there");
		}
		assert_in_range(always, 256, ALWAYS_MOST);
		assert_true(holds(&l, td_tokenizer_added(tok, "<tool_call>"))); /* added, but not special */
		td_draft_list_finish(&l);
		assert_null(l.id);
	}
}

static void refused(void **state)
{
	const struct {
		const char *before;
		int n;
		const char *after;
		int code;
		const char *says;
	} bad[] = {
		{"", 0, "", TD_E_FORMAT, "0 tokens are too few"},
		{"", 100, "", TD_E_FORMAT, "is no list of tokens: its first line must be \"tandem-draft-vocabulary 1\""},
		{"tandem-draft-vocabulary 2\n", 100, "", TD_E_FORMAT, "first line"},
		{HEAD, 0, "", TD_E_FORMAT, "0 tokens are too few to draft from: 64 are the least"},
		{HEAD, 63, "", TD_E_FORMAT, "63 tokens are too few"},
		{HEAD, 100, "1007\n", TD_E_FORMAT, ":102: token 1007 stands there a second time"},
		{HEAD, 100, "-1\n", TD_E_FORMAT, ":102: \"-1\" is not a token id"},
		{HEAD, 100, "\n7 8\n", TD_E_FORMAT, ":103: \"7 8\" is not a token id"},
		{HEAD, 100, "twelve\n", TD_E_FORMAT, "\"twelve\" is not a token id"},
		{HEAD, 100, " 7\n", TD_E_FORMAT, "is not a token id"},
		{HEAD, 100, "99999999999999999999999\n", TD_E_MISMATCH, "the list belongs to another one"},
		{HEAD, 100, "8186\n", TD_E_MISMATCH, ":102: token 8186; ids of this model go from 0 to 8184: the list belongs to another one"},
	};
	struct td_draft_list l;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		put(bad[i].before, bad[i].n, bad[i].after);
		assert_int_equal(td_draft_list_read(path, tok, 8185, NULL, 0, &l, &err), bad[i].code);
		if (!strstr(err.text, bad[i].says) || strchr(err.text, '\n'))
			fail_msg("case %zu: %s", i, err.text);
		assert_null(l.id);
	}
	put(HEAD, 64, "");
	OK(td_draft_list_read(path, tok, 8185, NULL, 0, &l, &err));
	td_draft_list_finish(&l);
	assert_int_equal(td_draft_list_read("/nowhere/list", tok, 8185, NULL, 0, &l, &err), TD_E_NOT_FOUND);
	assert_int_equal(td_draft_list_read("/dev/null", tok, 8185, NULL, 0, &l, &err), TD_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_list), cmocka_unit_test(refused)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
