/*
 * config_read.h: reading JSON files of a model folder, for the loaders of this folder only.
 *
 * A `struct td__cfg` is one file being read. Its first error sticks: later calls do nothing and return their fallback, so that a loader reads
 * as the list of its fields and asks for `rc` once, at the end. Every message names the file and the field.
 */
#ifndef TD_CONFIG_READ_H
#define TD_CONFIG_READ_H

#include <jansson.h>

#include "engine/model.h"

struct td__cfg {
	char path[4096];
	json_t *root; /* an object */
	int rc;
	struct td_error *err;
};

/* Parses, refuses duplicate keys; NULL with a reason, and *code TD_E_FORMAT or TD_E_NOMEM. */
json_t *td__json_parse(const char *text, size_t size, json_error_t *why, int *code);

/* dir/name, at most `cap` bytes, one JSON object, no duplicate keys. TD_E_NOT_FOUND when there is no such file. */
int td__cfg_open(struct td__cfg *c, const char *dir, const char *name, size_t cap, struct td_error *err);
void td__cfg_close(struct td__cfg *c); /* zeroed memory is fine */
int td__cfg_fail(struct td__cfg *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Fields of object `o`; a JSON null counts as absent. An absent field without fallback is an error. */
enum { TD__REQUIRED = -0x7fffffff };
int td__cfg_int(struct td__cfg *c, const json_t *o, const char *key, int min, int max, int fallback);
double td__cfg_real(struct td__cfg *c, const json_t *o, const char *key, double min, double max, double fallback); /* NAN: required */
int td__cfg_bool(struct td__cfg *c, const json_t *o, const char *key, int fallback);
const char *td__cfg_text(struct td__cfg *c, const json_t *o, const char *key, const char *fallback); /* NULL fallback: may be NULL */
json_t *td__cfg_object(struct td__cfg *c, const json_t *o, const char *key); /* NULL when absent */
json_t *td__cfg_array(struct td__cfg *c, const json_t *o, const char *key); /* NULL when absent */
int td__cfg_item(struct td__cfg *c, const json_t *array, size_t i, const char *key, int min, int max); /* integer i of an array */

/* What both model kinds say in the same words. */
double td__cfg_rope(struct td__cfg *c, const json_t *o, double fallback_partial, double *partial); /* theta */
void td__cfg_plain(struct td__cfg *c, const json_t *o); /* refuses attention_bias, another activation */
/* dflash 1.2: n taps spread from layer 1 to the target's third last, halves rounded to even; of a single one, the middle. */
void td__taps_spread(int n, int layers, int *tap);
void td__cfg_quant(struct td__cfg *c, const json_t *o, struct td_quant *q); /* quantization_config of `o` */

#endif
