/*
 * schema_internal.h: what the files of the schema compiler share: json_schema.c (values), schema_object.c (objects, arrays), schema_pattern.c
 * (patterns and formats), tool_grammar.c (tool calls). See json_schema.h for the boundary.
 */
#ifndef TD_SCHEMA_INTERNAL_H
#define TD_SCHEMA_INTERNAL_H

#include <jansson.h>

#include "engine/grammar_build.h"

enum { TD__RULES_MAX = 2048, TD__PATH_MAX = 400, TD__LEVELS_MAX = 48, TD__MADE_MAX = 512 };

struct td__schema {
	struct td_gbuild *b;
	struct td_error *err;
	json_t *root; /* borrowed; what a $ref is looked up in */
	const char *what; /* begins an error's sentence */
	int relaxed; /* what cannot be kept is left out instead of refused */
	int level;
	char path[TD__PATH_MAX]; /* JSON pointer of the schema at work */
	int n_rules, n_made;
	struct {
		const json_t *of;
		int address;
	} rule[TD__RULES_MAX];
	json_t *made[TD__MADE_MAX]; /* schemas that were put together: kept until the end, since rules are known by them */
};

/* A compiler, NULL with the error set when there is no memory; its end: rc is told on when it isn't 0, else the program is finished as by td__constraint_end. */
struct td__schema *td__schema_create(const char *what, struct td_error *err);
int td__schema_end(struct td__schema *c, int rc, uint8_t **bytes, size_t *n);
/* Appends code for a value of this schema. */
int td__schema_value(struct td__schema *c, json_t *s);
/* The same as a rule, once for each schema. */
int td__schema_rule(struct td__schema *c, json_t *s, int *address);
int td__schema_object(struct td__schema *c, json_t *s);
int td__schema_array(struct td__schema *c, json_t *s);
int td__schema_string(struct td__schema *c, json_t *s);
/* The schema that a $ref leads to; follows it once. */
int td__schema_follow(struct td__schema *c, json_t *s, json_t **to);
/* A string as JSON that matches the pattern. `where` NULL: of our own formats, always sound. */
int td__pattern(struct td__schema *c, const char *pattern);
int td__format(struct td__schema *c, const char *format); /* 1: it is one that is kept, and its code was appended */
/* The sentence; names keyword and place. 0 when the compiler is relaxed. */
int td__schema_refuse(struct td__schema *c, const char *keyword, const char *why);
/* A count from 0 on. 0, and *out as it was when it is absent. */
int td__schema_count(struct td__schema *c, json_t *s, const char *keyword, uint32_t *out);
/* The path goes on by a name or a number; `before` is given back to td__schema_up. */
size_t td__schema_down(struct td__schema *c, const char *keyword, const char *name, size_t index);
void td__schema_up(struct td__schema *c, size_t before);
/* Before and after a constraint's own code: thinking; the end, compiled, proved to be open to something. The builder is freed by the end. */
void td__constraint_begin(struct td_gbuild *b, int thinking);
int td__constraint_end(struct td_gbuild *b, uint8_t **bytes, size_t *n, struct td_error *err);

#endif
