/*
 * json_load.h: JSON of clients into a jansson tree, also when memory runs out. jansson's own reader goes on with a token that it could not store, up to an
 * assertion or past the token's end, so it must never meet a failed allocation.
 */
#ifndef TD_JSON_LOAD_H
#define TD_JSON_LOAD_H

#include <jansson.h>

/* As json_loadb. *no_memory: NULL was returned for that reason, and *why says nothing. From any thread. */
json_t *td_json_load(const char *text, size_t n, size_t flags, json_error_t *why, int *no_memory);

#endif
