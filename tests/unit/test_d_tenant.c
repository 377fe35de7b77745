/*
 * test_d_tenant.c: the table of tenants: who a key and a peer belong to, what a new configuration changes and what it leaves, the bucket of tokens.
 */
#include "tests/lib/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/tenant.h"

static struct td_tenants t;
static struct td_error err;
static int pair[2];

static struct td_tenant_config *section(struct td_tenants_config *c, const char *name)
{
	struct td_tenant_config *x = td_tenant_config_get(c, name, strlen(name), &err);

	assert_non_null(x);
	return x;
}

static void apply(struct td_tenants_config *c)
{
	OK(td_tenants_apply(&t, c, &err));
	td_tenants_config_finish(c);
}

static int setup(void **state)
{
	(void)state;
	memset(&t, 0, sizeof(t));
	return socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
}

static int teardown(void **state)
{
	(void)state;
	td_tenants_finish(&t);
	close(pair[0]);
	close(pair[1]);
	return 0;
}

static void test_keys(void **state)
{
	struct td_tenants_config c = {0};
	struct td_tenant *x;

	(void)state;
	OK(td_tenant_config_keys(&c, section(&c, "a"), "first-key, second-key", &err));
	OK(td_tenant_config_keys(&c, section(&c, "a"), "third-key", &err)); /* lists add up */
	OK(td_tenant_config_keys(&c, section(&c, "b"), "first-key-longer", &err));
	assert_int_equal(td_tenant_config_keys(&c, section(&c, "b"), "third-key", &err), TD_E_INVALID);
	assert_int_equal(td_tenant_config_keys(&c, section(&c, "b"), "with\x7f" "delete", &err), TD_E_INVALID);
	apply(&c);
	x = td_tenant_by_key(&t, "third-key", &err);
	assert_string_equal(x->cfg.name, "a");
	assert_int_equal(x->refs, 1);
	td_tenant_drop(&t, x);
	x = td_tenant_by_key(&t, "first-key-longer", &err);
	assert_string_equal(x->cfg.name, "b");
	td_tenant_drop(&t, x);
	assert_null(td_tenant_by_key(&t, "first-ke", &err));
	assert_int_equal(err.code, TD_E_UNAUTHORIZED);
	assert_null(td_tenant_by_key(&t, "", &err));
	assert_null(td_tenant_by_key(&t, "first-key-longer-still", &err));
}

static void test_unknown(void **state)
{
	struct td_tenants_config c = {0};
	struct td_tenant *x, *again;

	(void)state;
	section(&c, "default")->weight = 0.5;
	section(&c, "default")->max_running = 3;
	apply(&c);
	x = td_tenant_by_peer(&t, pair[0], NULL, &err);
	assert_non_null(x);
	assert_true(x->own);
	assert_true(x->flow.weight == 0.5);
	assert_int_equal(x->flow.max_running, 3);
	again = td_tenant_by_peer(&t, pair[1], "default", &err); /* may not be chosen */
	assert_ptr_equal(again, x);
	td_tenant_drop(&t, again);
	td_tenant_drop(&t, x);
	assert_int_equal(t.n, 2); /* it stays: its clock and its part of the cache */
	/* The settings of [tenant default] reach those that are there already. */
	section(&c, "default")->weight = 2;
	c.unknown = strdup("refuse");
	apply(&c);
	assert_true(x->flow.weight == 2);
	assert_null(td_tenant_by_peer(&t, pair[0], NULL, &err));
	assert_int_equal(err.code, TD_E_PERMISSION);
	c.unknown = strdup("default");
	apply(&c);
	x = td_tenant_by_peer(&t, pair[0], NULL, &err);
	assert_string_equal(x->cfg.name, "default");
	td_tenant_drop(&t, x);
	/* A section that has the user's name, for others. */
	td_tenants_finish(&t);
	apply(&c);
	x = td_tenant_by_peer(&t, pair[0], NULL, &err);
	assert_true(strlen(x->cfg.name) > 0);
	OK(td_tenant_config_uids(section(&c, x->cfg.name), "424242", &err));
	td_tenant_drop(&t, x);
	td_tenants_finish(&t);
	apply(&c);
	x = td_tenant_by_peer(&t, pair[0], NULL, &err);
	assert_true(!strncmp(x->cfg.name, "uid-", 4));
	td_tenant_drop(&t, x);
}

static void test_reload(void **state)
{
	struct td_tenants_config c = {0};
	char me[16];
	struct td_tenant *a, *b;
	uint64_t number;

	(void)state;
	snprintf(me, sizeof(me), "%u", (unsigned)getuid());
	OK(td_tenant_config_uids(section(&c, "a"), me, &err));
	OK(td_tenant_config_uids(section(&c, "b"), me, &err));
	apply(&c);
	a = td_tenant_by_peer(&t, pair[0], NULL, &err);
	b = td_tenant_by_peer(&t, pair[0], "b", &err);
	assert_string_equal(a->cfg.name, "a");
	assert_string_equal(b->cfg.name, "b");
	a->flow.clock_us = 77;
	number = a->number;
	/* b vanishes while it is in use, a gets another weight and a limit */
	OK(td_tenant_config_uids(section(&c, "a"), me, &err));
	section(&c, "a")->weight = 5;
	section(&c, "a")->tokens_per_minute = 100;
	apply(&c);
	assert_int_equal(t.n, 2);
	assert_true(a->flow.weight == 5);
	assert_true(a->flow.clock_us == 77);
	assert_int_equal(a->number, number);
	assert_int_equal(b->configured, 0);
	assert_ptr_equal(td_tenant_by_peer(&t, pair[0], "b", &err), a);
	td_tenant_drop(&t, a);
	td_tenant_drop(&t, b); /* its last request is over */
	assert_int_equal(t.n, 1);
	/* it comes back: another number, since its part of the prefix cache is gone */
	section(&c, "b");
	OK(td_tenant_config_uids(section(&c, "a"), me, &err));
	apply(&c);
	assert_int_equal(t.n, 2);
	assert_int_equal(t.tenant[1]->number, 3);
	td_tenant_drop(&t, a);
}

/* More users than the table holds: idle ones make room, those in use don't. */
static void test_full(void **state)
{
	struct td_tenants_config c = {0};
	struct td_tenant *x;

	(void)state;
	apply(&c);
	for (int i = 0; i < TD_TENANTS_MAX; i++) {
		x = td_tenant_by_peer(&t, pair[0], NULL, &err);
		assert_non_null(x);
		x->own_uid = (uid_t)(1000000 + i); /* the next look-up finds another user */
		snprintf(x->cfg.name, sizeof(x->cfg.name), "u%d", i);
		x->used_us = (uint64_t)i + 10;
		if (i % 2)
			td_tenant_drop(&t, x);
	}
	assert_int_equal(t.n, TD_TENANTS_MAX);
	x = td_tenant_by_peer(&t, pair[0], NULL, &err);
	assert_non_null(x);
	assert_int_equal(t.n, TD_TENANTS_MAX);
	for (int i = 0; i < t.n; i++) {
		assert_string_not_equal(t.tenant[i]->cfg.name, "u1"); /* the one that was idle longest */
		t.tenant[i]->refs = 1;
	}
	x->own_uid = 5;
	snprintf(x->cfg.name, sizeof(x->cfg.name), "last");
	assert_null(td_tenant_by_peer(&t, pair[0], NULL, &err));
	assert_int_equal(err.code, TD_E_NOMEM);
	section(&c, "new");
	assert_int_equal(td_tenants_apply(&t, &c, &err), TD_E_LIMIT);
	assert_int_equal(c.n, 1); /* nothing was taken over */
	td_tenants_config_finish(&c);
}

static void test_bucket(void **state)
{
	struct td_tenants_config c = {0};
	struct td_tenant *x;
	const uint64_t s = 1000000, at = 5000 * s;

	(void)state;
	section(&c, "a")->tokens_per_minute = 600;
	apply(&c);
	x = t.tenant[0];
	assert_int_equal(td_tenant_rate_wait(x, at), 0);
	td_tenant_spend(x, 600, at);
	assert_in_range(td_tenant_rate_wait(x, at), 90, 110); /* the next token comes in 100 ms */
	td_tenant_spend(x, 99, at);
	assert_in_range(td_tenant_rate_wait(x, at), 9990, 10010);
	assert_int_equal(td_tenant_rate_wait(x, at + 11 * s), 0);
	assert_int_equal(td_tenant_rate_wait(x, at + 3600 * s), 0);
	td_tenant_spend(x, 601, at + 3600 * s); /* no more than a minute's worth is saved up */
	assert_in_range(td_tenant_rate_wait(x, at + 3600 * s), 100, 300);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_keys, setup, teardown),   cmocka_unit_test_setup_teardown(test_unknown, setup, teardown),
		cmocka_unit_test_setup_teardown(test_reload, setup, teardown), cmocka_unit_test_setup_teardown(test_full, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bucket, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
