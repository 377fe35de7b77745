/*
 * json_schema.h: what a client asks of an output, compiled to a grammar (grammar.h). docs/json-schema.md names the subset and its bounds.
 *
 * Whatever the compiled grammar accepts fits the schema; not everything that fits is accepted (the order of properties, spelling, white space and
 * lengths of numbers are narrowed). What cannot be kept is refused with TD_E_SCHEMA, which names the keyword and where it stands.
 * `thinking`: the prompt leaves the model inside <think>: any text up to </think> and an empty line come first.
 * The result belongs to the caller (free). No shared state: any thread may compile.
 */
#ifndef TD_JSON_SCHEMA_H
#define TD_JSON_SCHEMA_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"

int td_constraint_object(int thinking, uint8_t **bytes, size_t *n, struct td_error *err);
int td_constraint_schema(const char *schema, int thinking, uint8_t **bytes, size_t *n, struct td_error *err);
/* `tool`: JSON objects in OpenAI's form; `choice`: "required" for one or more calls of any of them, or a function's name for exactly one call of it.
 * The text is the template's own form of a call (chat_template.c). What a tool's parameters ask beyond the subset is not enforced. */
int td_constraint_tools(const char *const *tool, size_t n_tools, const char *choice, int thinking, uint8_t **bytes, size_t *n, struct td_error *err);

#endif
