/*
 * config_read.c: reading JSON files of a model folder: fields with a range, and what both model kinds say in the same words.
 *
 * Nothing in a config is trusted: each number has a range narrow enough that no product of sizes overflows later, and a setting that would
 * change the mathematics in a way the kernels don't know is refused, never ignored. The cfg owns the parsed tree until td__cfg_close.
 */
#include "engine/config_read.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/file.h"

int td__cfg_fail(struct td__cfg *c, int code, const char *fmt, ...)
{
	char text[360];
	va_list ap;

	if (c->rc)
		return c->rc;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	c->rc = td_error_set(c->err, code, "%s: %s", c->path, text);
	return c->rc;
}

static int read_all(struct td__cfg *c, int fd, char *buf, size_t size)
{
	size_t at = 0;

	while (at < size) {
		ssize_t n = read(fd, buf + at, size - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return td__cfg_fail(c, TD_E_IO, "can't be read: %s", strerror(errno));
		if (n == 0)
			return td__cfg_fail(c, TD_E_IO, "became shorter while it was read");
		at += (size_t)n;
	}
	return 0;
}

/* jansson's lexer doesn't look whether its buffer grew: when memory runs out inside a long string, the string loses a byte and parsing goes on.
 * A key that is misread so would count as absent. So its allocations go through here, and a failed one condemns the whole result. */
static _Thread_local int starved;

static void *json_malloc(size_t n)
{
	void *p = malloc(n);

	starved |= !p;
	return p;
}

static void hook(void)
{
	json_set_alloc_funcs(json_malloc, free);
}

json_t *td__json_parse(const char *text, size_t size, json_error_t *why, int *code)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	json_t *root;

	pthread_once(&once, hook);
	starved = 0;
	root = json_loadb(text, size, JSON_REJECT_DUPLICATES, why);
	if (starved) {
		json_decref(root);
		root = NULL;
		snprintf(why->text, sizeof(why->text), "out of memory");
	}
	*code = starved ? TD_E_NOMEM : TD_E_FORMAT;
	return root;
}

static int parse(struct td__cfg *c, const char *buf, size_t size)
{
	json_error_t why;
	int code;

	c->root = td__json_parse(buf, size, &why, &code);
	if (!c->root && code == TD_E_NOMEM)
		return td__cfg_fail(c, code, "no memory to read it");
	if (!c->root)
		return td__cfg_fail(c, TD_E_FORMAT, "is not valid JSON: line %d, column %d: %s", why.line, why.column, why.text);
	if (!json_is_object(c->root))
		return td__cfg_fail(c, TD_E_FORMAT, "holds no JSON object");
	return 0;
}

int td__cfg_open(struct td__cfg *c, const char *dir, const char *name, size_t cap, struct td_error *err)
{
	struct stat st;
	char *buf = NULL;
	int fd;

	memset(c, 0, sizeof(*c));
	c->err = err;
	if (snprintf(c->path, sizeof(c->path), "%s/%s", dir, name) >= (int)sizeof(c->path))
		return td__cfg_fail(c, TD_E_INVALID, "the path is too long");
	if ((c->rc = td__file_open(c->path, &fd, &st, err)))
		return c->rc;
	if ((uint64_t)st.st_size > cap)
		td__cfg_fail(c, TD_E_TOO_LARGE, "has %lld bytes; at most %zu are read", (long long)st.st_size, cap);
	else if (!(buf = malloc((size_t)st.st_size + 1)))
		td__cfg_fail(c, TD_E_NOMEM, "no memory for its %lld bytes", (long long)st.st_size);
	else if (read_all(c, fd, buf, (size_t)st.st_size) == 0)
		parse(c, buf, (size_t)st.st_size);
	free(buf);
	close(fd);
	return c->rc;
}

void td__cfg_close(struct td__cfg *c)
{
	json_decref(c->root);
	c->root = NULL;
}

static const json_t *get(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_null(v) ? NULL : v;
}

static int in_range(struct td__cfg *c, const json_t *v, const char *what, int min, int max)
{
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v))
		td__cfg_fail(c, TD_E_FORMAT, "%s is not an integer", what);
	else if (n < min || n > max)
		td__cfg_fail(c, TD_E_FORMAT, "%s is %lld; it must lie in %d..%d", what, (long long)n, min, max);
	return c->rc ? min : (int)n;
}

int td__cfg_int(struct td__cfg *c, const json_t *o, const char *key, int min, int max, int fallback)
{
	const json_t *v = get(o, key);

	if (c->rc)
		return min;
	if (!v) {
		if (fallback == TD__REQUIRED)
			td__cfg_fail(c, TD_E_FORMAT, "%s is missing", key);
		return fallback == TD__REQUIRED ? min : fallback;
	}
	return in_range(c, v, key, min, max);
}

int td__cfg_item(struct td__cfg *c, const json_t *array, size_t i, const char *key, int min, int max)
{
	char what[96];

	snprintf(what, sizeof(what), "%s[%zu]", key, i);
	return c->rc ? min : in_range(c, json_array_get(array, i), what, min, max);
}

double td__cfg_real(struct td__cfg *c, const json_t *o, const char *key, double min, double max, double fallback)
{
	const json_t *v = get(o, key);

	if (c->rc)
		return min;
	if (!v) {
		if (isnan(fallback))
			td__cfg_fail(c, TD_E_FORMAT, "%s is missing", key);
		return isnan(fallback) ? min : fallback;
	}
	if (!json_is_number(v))
		td__cfg_fail(c, TD_E_FORMAT, "%s is not a number", key);
	else if (!(json_number_value(v) >= min && json_number_value(v) <= max))
		td__cfg_fail(c, TD_E_FORMAT, "%s is %g; it must lie in %g..%g", key, json_number_value(v), min, max);
	return c->rc ? min : json_number_value(v);
}

int td__cfg_bool(struct td__cfg *c, const json_t *o, const char *key, int fallback)
{
	const json_t *v = get(o, key);

	if (!v)
		return fallback;
	if (!json_is_boolean(v))
		td__cfg_fail(c, TD_E_FORMAT, "%s is neither true nor false", key);
	return json_is_true(v);
}

const char *td__cfg_text(struct td__cfg *c, const json_t *o, const char *key, const char *fallback)
{
	const json_t *v = get(o, key);

	if (!v)
		return fallback;
	if (!json_is_string(v)) {
		td__cfg_fail(c, TD_E_FORMAT, "%s is not a string", key);
		return fallback;
	}
	return json_string_value(v);
}

json_t *td__cfg_object(struct td__cfg *c, const json_t *o, const char *key)
{
	const json_t *v = get(o, key);

	if (v && !json_is_object(v))
		td__cfg_fail(c, TD_E_FORMAT, "%s is not an object", key);
	return v && json_is_object(v) ? (json_t *)v : NULL;
}

json_t *td__cfg_array(struct td__cfg *c, const json_t *o, const char *key)
{
	const json_t *v = get(o, key);

	if (v && !json_is_array(v))
		td__cfg_fail(c, TD_E_FORMAT, "%s is not a list", key);
	return v && json_is_array(v) ? (json_t *)v : NULL;
}

/* Newer files nest the rotary settings in rope_parameters, older ones keep them flat beside rope_scaling. mrope_section needs no care: for
 * text its three positions are equal, which makes it the plain rotary (qwen35 3.2). */
double td__cfg_rope(struct td__cfg *c, const json_t *o, double fallback_partial, double *partial)
{
	const json_t *rope = td__cfg_object(c, o, "rope_parameters");
	const json_t *scaling = rope ? rope : td__cfg_object(c, o, "rope_scaling");
	const char *type = td__cfg_text(c, scaling, "rope_type", NULL);
	const json_t *at = get(rope, "rope_theta") ? rope : o;

	if (!type)
		type = td__cfg_text(c, scaling, "type", "default");
	if (strcmp(type, "default") != 0 && strcmp(type, "mrope") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "rotary scaling of type %.40s is not supported, only the default one", type);
	*partial = td__cfg_real(c, get(rope, "partial_rotary_factor") ? rope : o, "partial_rotary_factor", 1e-3, 1, fallback_partial);
	return td__cfg_real(c, at, "rope_theta", 1.001, 1e12, NAN);
}

void td__cfg_plain(struct td__cfg *c, const json_t *o)
{
	const char *act = td__cfg_text(c, o, "hidden_act", "silu");

	if (td__cfg_bool(c, o, "attention_bias", 0))
		td__cfg_fail(c, TD_E_UNSUPPORTED, "attention_bias is true; attention with biases is not supported");
	if (strcmp(act, "silu") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "hidden_act is %.40s; only silu is supported", act);
}

/* ---- quantization_config (qwen35 4.3) ------------------------------------------------------------------------------------------------- */

static int group_size(struct td__cfg *c, const json_t *w)
{
	const char *strategy = td__cfg_text(c, w, "strategy", "group");

	if (!strcmp(strategy, "channel"))
		return -1;
	if (strcmp(strategy, "group") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "quantization strategy %.40s is not supported, only group and channel", strategy);
	return td__cfg_int(c, w, "group_size", 1, 1 << 20, TD__REQUIRED);
}

static void quant_group(struct td__cfg *c, const json_t *group, const char *format, struct td_quant *q)
{
	const json_t *w = td__cfg_object(c, group, "weights");
	const char *type, *order;
	int size, i = 0;

	format = td__cfg_text(c, group, "format", format);
	if (!format || strcmp(format, "pack-quantized") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "compressed-tensors format %.40s is not supported, only pack-quantized", format ? format : "(none)");
	if (get(group, "input_activations") || get(group, "output_activations"))
		td__cfg_fail(c, TD_E_UNSUPPORTED, "quantised activations are not supported, only weights may be");
	if (!w) {
		td__cfg_fail(c, TD_E_FORMAT, "a quantization group has no weights entry");
		return;
	}
	q->bits = td__cfg_int(c, w, "num_bits", 1, 64, TD__REQUIRED);
	q->symmetric = td__cfg_bool(c, w, "symmetric", 1);
	type = td__cfg_text(c, w, "type", "int");
	order = td__cfg_text(c, w, "actorder", "static");
	if (q->bits != 4 || strcmp(type, "int") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "weights of %d bits and type %.20s are not supported, only 4-bit int", q->bits, type);
	if (!q->symmetric)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "asymmetric weights (symmetric: false) are not supported");
	if (strcmp(order, "static") != 0 && strcmp(order, "weight") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "activation order (actorder %.40s) is not supported", order);
	size = group_size(c, w);
	while (i < q->n_sizes && q->size[i] != size)
		i++;
	if (i == TD_QUANT_SIZES)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "quantization_config names more than %d group sizes", TD_QUANT_SIZES);
	else if (i == q->n_sizes)
		q->size[q->n_sizes++] = size;
}

void td__cfg_quant(struct td__cfg *c, const json_t *o, struct td_quant *q)
{
	const json_t *quant = td__cfg_object(c, o, "quantization_config"), *groups, *sparse;
	const char *method, *format, *name;
	json_t *group;

	memset(q, 0, sizeof(*q));
	if (!quant)
		return;
	method = td__cfg_text(c, quant, "quant_method", "compressed-tensors");
	if (strcmp(method, "compressed-tensors") != 0) {
		td__cfg_fail(c, TD_E_UNSUPPORTED, "weights quantised by %.40s are not supported, only BF16 and compressed-tensors pack-quantized", method);
		return;
	}
	sparse = td__cfg_object(c, quant, "sparsity_config");
	if (strcmp(td__cfg_text(c, sparse, "format", "dense"), "dense") != 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "sparse weights (sparsity_config) are not supported");
	if (json_object_size(td__cfg_object(c, quant, "transform_config")) > 0)
		td__cfg_fail(c, TD_E_UNSUPPORTED, "weights that need a rotation at run time (transform_config) are not supported");
	format = td__cfg_text(c, quant, "format", NULL);
	groups = td__cfg_object(c, quant, "config_groups");
	if (json_object_size(groups) == 0)
		td__cfg_fail(c, TD_E_FORMAT, "quantization_config has no config_groups");
	json_object_foreach((json_t *)groups, name, group) {
		if (!json_is_object(group))
			td__cfg_fail(c, TD_E_FORMAT, "config_groups.%.40s is not an object", name);
		else
			quant_group(c, group, format, q);
	}
}
