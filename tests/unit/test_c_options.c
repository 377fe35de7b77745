/*
 * test_c_options.c: the option parser: every kind of value, every form of writing, every mistake.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/options.h"

struct values {
	int flag;
	int32_t whole;
	uint32_t count, ms, perhaps, set;
	uint64_t seed;
	float real;
	const char *text;
	struct td_list list, rest;
	int code;
};

/* argv from words; td_options_parse's result. What it prints is thrown away. */
static int parse(struct values *v, const char *const *words)
{
	const struct td_option table[] = {
		{TD_OPT_TITLE, .help = "Title:"},
		{TD_OPT_FLAG, "flag", 'f', NULL, "help", &v->flag, 7, NULL, 0},
		{TD_OPT_INT, "whole", 'w', "N", "help", &v->whole, 0, &v->set, 1},
		{TD_OPT_COUNT, "count", 0, "N", "help", &v->count, 0, &v->set, 2},
		{TD_OPT_SEED, "seed", 0, "N", "help", &v->seed, 0, NULL, 0},
		{TD_OPT_FLOAT, "real", 'r', "X", "help", &v->real, 0, NULL, 0},
		{TD_OPT_SECONDS, "seconds", 0, "S", "help", &v->ms, 0, NULL, 0},
		{TD_OPT_SECONDS, "perhaps", 'p', "[S]", "help", &v->perhaps, 1, &v->set, 4},
		{TD_OPT_TEXT, "text", 't', "T", "help", &v->text, 0, NULL, 0},
		{TD_OPT_LIST, "list", 'l', "T", "help", &v->list, 0, NULL, 0},
		{TD_OPT_END},
	};
	const struct td_option *tables[] = {table, NULL};
	char *argv[20] = {(char *)"test"};
	int argc = 1, out = dup(1), err = dup(2), nowhere = open("/dev/null", O_WRONLY), rc;

	*v = (struct values){.code = -5};
	while (words[argc - 1]) {
		argv[argc] = (char *)words[argc - 1];
		argc++;
	}
	fflush(stdout);
	dup2(nowhere, 1);
	dup2(nowhere, 2);
	rc = td_options_parse(argc, argv, "test", "about", tables, &v->rest, &v->code);
	fflush(stdout);
	dup2(out, 1);
	dup2(err, 2);
	close(out);
	close(err);
	close(nowhere);
	return rc;
}

#define PARSE(v, ...) parse(v, (const char *const[]){__VA_ARGS__, NULL})

static void done(struct values *v)
{
	td_list_finish(&v->list);
	td_list_finish(&v->rest);
}

static void test_forms(void **state)
{
	struct values v;

	(void)state;
	assert_int_equal(PARSE(&v, "--flag", "--whole", "-3", "--count=4", "--seed=18446744073709551615", "-r", "0.5", "--seconds", "1.5", "-tabc", "-lone", "-l",
			       "two", "--list=three"),
			 0);
	assert_int_equal(v.flag, 7);
	assert_int_equal(v.whole, -3);
	assert_int_equal(v.count, 4);
	assert_true(v.seed == UINT64_MAX);
	assert_true(v.real == 0.5f);
	assert_int_equal(v.ms, 1500);
	assert_string_equal(v.text, "abc");
	assert_int_equal(v.list.n, 3);
	assert_string_equal(v.list.item[0], "one");
	assert_string_equal(v.list.item[2], "three");
	assert_int_equal(v.set, 3);
	assert_int_equal(v.rest.n, 0);
	done(&v);
	/* Words stay in order, wherever options stand; "-" is a word; after "--" everything is. */
	assert_int_equal(PARSE(&v, "a", "-f", "-", "b", "--", "--flag", "-x"), 0);
	assert_int_equal(v.rest.n, 5);
	assert_string_equal(v.rest.item[1], "-");
	assert_string_equal(v.rest.item[3], "--flag");
	assert_int_equal(v.set, 0);
	done(&v);
	/* An empty value is a value; the last one counts. */
	assert_int_equal(PARSE(&v, "--text=", "-w1", "-w2"), 0);
	assert_string_equal(v.text, "");
	assert_int_equal(v.whole, 2);
	done(&v);
	/* Seconds that may be left out: what follows is theirs only when it is a number. */
	assert_int_equal(PARSE(&v, "--perhaps", "2", "word"), 0);
	assert_int_equal(v.perhaps, 2000);
	assert_int_equal(v.rest.n, 1);
	done(&v);
	assert_int_equal(PARSE(&v, "-p", "word", "--perhaps"), 0);
	assert_true(v.perhaps == UINT32_MAX);
	assert_int_equal(v.rest.n, 1);
	assert_int_equal(v.set, 4);
	done(&v);
	assert_int_equal(PARSE(&v, "--perhaps", "--flag"), 0);
	assert_true(v.perhaps == UINT32_MAX);
	assert_int_equal(v.flag, 7);
	done(&v);
	assert_int_equal(PARSE(&v, "--perhaps=0.5", "-f"), 0);
	assert_int_equal(v.perhaps, 500);
	done(&v);
	assert_int_equal(PARSE(&v, "--real", "nan"), 0); /* a number, if not a sensible one */
	assert_true(v.real != v.real);
	done(&v);
}

static void mistake(const char *a, const char *b)
{
	struct values v;

	if (PARSE(&v, a, b) != -1 || v.code != TD_EXIT_USAGE)
		fprintf(stderr, "%s %s was taken\n", a, b ? b : "");
	assert_int_equal(v.code, TD_EXIT_USAGE);
	done(&v);
}

static void test_mistakes(void **state)
{
	(void)state;
	mistake("--nothing", "x");
	mistake("--fla", "x");
	mistake("-x", "x");
	mistake("--flag=1", "x");
	mistake("-f1", "x");
	mistake("--whole", NULL);
	mistake("--perhaps=", NULL);
	mistake("--perhaps=soon", NULL);
	mistake("-w", NULL);
	mistake("--whole", "");
	mistake("--whole", "1.5");
	mistake("--whole", "2147483648");
	mistake("--whole", "-2147483649");
	mistake("--whole", "7x");
	mistake("--count", "-1");
	mistake("--count", "4294967296");
	mistake("--seed", "18446744073709551616");
	mistake("--seed", "-1");
	mistake("--seed", " 1");
	mistake("--real", "x");
	mistake("--real", "");
	mistake("--seconds", "-1");
	mistake("--seconds", "nan");
	mistake("--seconds", "inf");
	mistake("--seconds", "1e9");
}

static void test_help(void **state)
{
	struct values v;

	(void)state;
	assert_int_equal(PARSE(&v, "--help"), -1);
	assert_int_equal(v.code, TD_EXIT_OK);
	done(&v);
	assert_int_equal(PARSE(&v, "word", "-h", "--nonsense"), -1);
	assert_int_equal(v.code, TD_EXIT_OK);
	done(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_mistakes), cmocka_unit_test(test_help)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
