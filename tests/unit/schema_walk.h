/*
 * schema_walk.h: for tests of compiled schemas: the grammar at hand, where a walk through it stands, and a group's setup and teardown.
 */
#ifndef TD_TESTS_SCHEMA_WALK_H
#define TD_TESTS_SCHEMA_WALK_H

#include "engine/grammar.h"

static struct td_gwalk *walk;
static struct td_grammar grammar;
static struct td_gstate state;
static struct td_error err;

static int open_walk(void **unused)
{
	(void)unused;
	walk = td_gwalk_create();
	return !walk;
}

static int close_walk(void **unused)
{
	(void)unused;
	td_gwalk_destroy(walk);
	return 0;
}

#endif
