/*
 * schema_gen.h: for tests of constrained output: random JSON schemas of the subset, random documents that fit them, documents that do not, and a
 * validator of its own, written for clarity and sharing nothing with the compiler.
 */
#ifndef TD_TESTS_SCHEMA_GEN_H
#define TD_TESTS_SCHEMA_GEN_H

#include <jansson.h>
#include <stdint.h>

void schema_seed(uint64_t seed);
uint32_t schema_rnd(uint32_t n); /* [0, n) */
json_t *schema_random(int depth);
json_t *schema_instance(json_t *schema); /* a document that fits */
/* The document with one thing changed; it may still fit. */
json_t *schema_mutated(const json_t *v);
/* 1 when v fits the schema (all keywords of the subset; properties in any order). `root` resolves $ref. */
int schema_fits(json_t *root, json_t *schema, json_t *v);

#endif
