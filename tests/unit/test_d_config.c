/*
 * test_d_config.c: where a setting's value comes from (default, file, option), its units, and that every default is one that the setting would take.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon.h"

static char file[] = "/tmp/test_d_config.XXXXXX";

static void write_file(const char *text)
{
	FILE *f = fopen(file, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int load(struct td_daemon_config *c, struct td_error *err, const char *const *args)
{
	char *argv[16] = {(char *)"tandemd", (char *)"--config", file};
	enum td_config_action action;
	int argc = 3;

	while (*args)
		argv[argc++] = (char *)*args++;
	memset(err, 0, sizeof(*err));
	return td_daemon_config_load(argc, argv, c, &action, err);
}
#define LOAD(...) load(&c, &err, (const char *const[]){__VA_ARGS__, NULL})

static void test_order(void **state)
{
	struct td_daemon_config c;
	struct td_error err;

	(void)state;
	write_file("# a comment\n[model]\ntarget = /t\ndrafter = none ; another\n[engine]\nslots = 8\ncontext = 128\n[limits]\nmax_frame = 2M\n");
	assert_int_equal(LOAD("--tandem.socket=/s"), 0);
	assert_string_equal(c.target, "/t");
	assert_string_equal(c.drafter, "none");
	assert_string_equal(c.socket, "/s");
	assert_int_equal(c.slots, 8);
	assert_int_equal(c.context, 128);
	assert_int_equal(c.kv_tokens, TD_AUTO);
	assert_int_equal(c.max_frame, 2 << 20);
	assert_int_equal(c.output_buffer, 4 << 20);
	assert_int_equal(c.socket_mode, 0660);
	assert_true(c.top_p == 1.0);
	td_daemon_config_finish(&c);
	td_daemon_config_finish(&c);
	assert_int_equal(LOAD("--engine.slots=3", "--engine.context", "auto", "--engine.slots", "5", "--tandem.socket_mode=0600"), 0);
	assert_int_equal(c.slots, 5);
	assert_int_equal(c.context, TD_AUTO);
	assert_int_equal(c.socket_mode, 0600);
	td_daemon_config_finish(&c);
}

static void test_units(void **state)
{
	struct td_daemon_config c;
	struct td_error err;

	(void)state;
	write_file("[model]\ntarget = /t\ndrafter = /d\n");
	assert_int_equal(LOAD("--limits.output_buffer=64k", "--limits.max_frame=1G", "--limits.resume_memory=0"), 0);
	assert_int_equal(c.output_buffer, 65536);
	assert_int_equal(c.max_frame, 1 << 30);
	assert_int_equal(c.input_memory, 1 << 30); /* holds one message */
	assert_int_equal(c.resume_memory, 0);
	td_daemon_config_finish(&c);
	assert_int_equal(LOAD("--limits.max_frame=1.5M"), 0);
	assert_int_equal(c.max_frame, 3 << 19);
	td_daemon_config_finish(&c);
	assert_int_equal(LOAD("--limits.max_frame=8KB"), TD_E_INVALID);
	assert_int_equal(LOAD("--limits.max_frame=2G"), TD_E_INVALID);
	assert_int_equal(LOAD("--limits.max_frame="), TD_E_INVALID);
	assert_int_equal(LOAD("--limits.max_frame=-1"), TD_E_INVALID);
	assert_int_equal(LOAD("--engine.slots=0x10"), 0); /* strtod reads it */
	assert_int_equal(c.slots, 16);
	td_daemon_config_finish(&c);
	assert_int_equal(LOAD("--engine.slots=inf"), TD_E_INVALID);
	assert_int_equal(LOAD("--engine.slots=auto"), TD_E_INVALID);
	assert_null(c.target); /* finished after a failure */
}

static void test_sentences(void **state)
{
	struct td_daemon_config c;
	struct td_error err;
	char want[256];

	(void)state;
	write_file("[model]\ntarget = /t\ndrafter = /d\n[engine]\nslots = none\n");
	assert_int_equal(LOAD("--engine.chunk=64"), TD_E_INVALID);
	snprintf(want, sizeof(want), "%s:5: engine.slots = none: must be a whole number from 1 to 64", file);
	assert_string_equal(err.text, want);
	write_file("target = /t\n");
	assert_int_equal(LOAD("--engine.chunk=64"), TD_E_INVALID);
	snprintf(want, sizeof(want), "%s:1: unknown setting .target; tandemd --help lists them", file);
	assert_string_equal(err.text, want);
	unlink(file);
	assert_int_equal(LOAD("--engine.chunk=64"), TD_E_NOT_FOUND);
}

static int make_file(void **state)
{
	int fd = mkstemp(file);

	(void)state;
	return fd < 0 ? -1 : close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_units), cmocka_unit_test(test_sentences)};

	setenv("XDG_RUNTIME_DIR", "/tmp", 1);
	return cmocka_run_group_tests(tests, make_file, NULL);
}
