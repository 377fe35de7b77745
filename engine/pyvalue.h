/*
 * pyvalue.h: JSON values written as Python writes them, because the chat template was written for Python: str() and json.dumps of a value, and
 * str.strip(). Internal to engine/.
 */
#ifndef TD_PYVALUE_H
#define TD_PYVALUE_H

#include <jansson.h>

#include "engine/error.h"
#include "engine/text.h"

/* Parses one JSON object. `what` begins the error's sentence. The caller owns *v. */
int td__py_parse_object(const char *text, const char *what, json_t **v, struct td_error *err);

/* json.dumps(v, ensure_ascii=False): ", " and ": ", keys in their order. */
void td__py_json(struct td__text *out, const json_t *v);

/* The template's rule for an argument: objects and arrays as JSON, strings bare, the rest as str(). */
void td__py_argument(struct td__text *out, const json_t *v);

/* str.strip(): the part of valid UTF-8 text without white space at both ends. */
void td__py_strip(const char **text, size_t *n);

#endif
