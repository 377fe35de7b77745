/*
 * json_schema.c: values of a JSON schema as grammar code, and the two constraints that are JSON. See json_schema.h.
 *
 * A schema becomes alternatives: of its types, of anyOf, of an enum. Keywords that stand beside anyOf, oneOf or a single allOf are put into each
 * alternative where no two speak of the same; what else would need an intersection is refused. Properties, items and $ref are rules of their own, one
 * for each schema, so recursion is a call, and depth is bounded by the machine.
 */
#include "engine/json_load.h"
#include "engine/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/schema_internal.h"

enum type { T_NULL = 1, T_BOOLEAN = 2, T_OBJECT = 4, T_ARRAY = 8, T_NUMBER = 16, T_STRING = 32, T_INTEGER = 64, T_NUMBERS = T_NUMBER | T_INTEGER, T_ALL = 127 };

static const struct {
	const char *name;
	enum type type;
} types[] = {{"null", T_NULL}, {"boolean", T_BOOLEAN}, {"object", T_OBJECT}, {"array", T_ARRAY}, {"number", T_NUMBER}, {"string", T_STRING}, {"integer", T_INTEGER}};

/* Keywords that restrict, and the types that they speak of. Any other one is an annotation. `kept` 0: only refused. */
static const struct {
	const char *name;
	int type, kept;
} keywords[] = {
	{"type", T_ALL, 1}, {"enum", T_ALL, 1}, {"const", T_ALL, 1}, {"anyOf", T_ALL, 1}, {"oneOf", T_ALL, 1}, {"allOf", T_ALL, 1}, {"$ref", T_ALL, 1},
	{"properties", T_OBJECT, 1}, {"required", T_OBJECT, 1}, {"additionalProperties", T_OBJECT, 1},
	{"items", T_ARRAY, 1}, {"prefixItems", T_ARRAY, 1}, {"minItems", T_ARRAY, 1}, {"maxItems", T_ARRAY, 1},
	{"minLength", T_STRING, 1}, {"maxLength", T_STRING, 1}, {"pattern", T_STRING, 1}, {"format", T_STRING, 1},
	{"minimum", T_NUMBERS, 1}, {"maximum", T_NUMBERS, 1}, {"exclusiveMinimum", T_NUMBERS, 1}, {"exclusiveMaximum", T_NUMBERS, 1},
	{"multipleOf", T_NUMBERS, 0}, {"uniqueItems", T_ARRAY, 0}, {"contains", T_ARRAY, 0}, {"additionalItems", T_ARRAY, 0}, {"unevaluatedItems", T_ARRAY, 0},
	{"patternProperties", T_OBJECT, 0}, {"propertyNames", T_OBJECT, 0}, {"minProperties", T_OBJECT, 0}, {"maxProperties", T_OBJECT, 0},
	{"unevaluatedProperties", T_OBJECT, 0}, {"dependencies", T_OBJECT, 0}, {"dependentRequired", T_OBJECT, 0}, {"dependentSchemas", T_OBJECT, 0},
	{"not", T_ALL, 0}, {"if", T_ALL, 0}, {"$dynamicRef", T_ALL, 0}, {"$recursiveRef", T_ALL, 0},
};
enum { KEYWORDS = sizeof(keywords) / sizeof(keywords[0]) };

/* ---- the path, and refusing ------------------------------------------------------------------------------------------------------------------------ */

size_t td__schema_down(struct td__schema *c, const char *keyword, const char *name, size_t index)
{
	size_t before = strlen(c->path), room = sizeof(c->path) - before;

	if (name)
		snprintf(c->path + before, room, "/%s/%.80s", keyword, name);
	else if (index != (size_t)-1)
		snprintf(c->path + before, room, "/%s/%zu", keyword, index);
	else
		snprintf(c->path + before, room, "/%s", keyword);
	return before;
}

void td__schema_up(struct td__schema *c, size_t before)
{
	c->path[before] = 0;
}

int td__schema_refuse(struct td__schema *c, const char *keyword, const char *why)
{
	if (c->relaxed)
		return 0;
	return td_error_set(c->err, TD_E_SCHEMA, "%s: %s at #%.300s %s", c->what, keyword, c->path, why);
}

/* A schema that is not one: also for the relaxed an error. */
static int broken(struct td__schema *c, const char *keyword, const char *why)
{
	return td_error_set(c->err, TD_E_SCHEMA, "%s: %s at #%.300s %s", c->what, keyword, c->path, why);
}

int td__schema_count(struct td__schema *c, json_t *s, const char *keyword, uint32_t *out)
{
	const json_t *v = json_object_get(s, keyword);
	double number = json_number_value(v);

	if (!v)
		return 0;
	if (!json_is_number(v) || number < 0 || number != (double)(int64_t)number)
		return broken(c, keyword, "is no whole number from 0 on");
	if (number >= 1 << 24)
		return td__schema_refuse(c, keyword, "is not below 16777216");
	*out = (uint32_t)number;
	return 0;
}

/* Whether a keyword says nothing: "uniqueItems": false and the like. */
static int says_nothing(const char *name, const json_t *v)
{
	return (!strcmp(name, "uniqueItems") && json_is_false(v)) || (!strcmp(name, "minProperties") && json_is_integer(v) && json_integer_value(v) == 0) ||
	       (!strncmp(name, "unevaluated", 11) && json_is_true(v));
}

static int check_keywords(struct td__schema *c, json_t *s, int type)
{
	for (int i = 0; i < KEYWORDS; i++) {
		const json_t *v = json_object_get(s, keywords[i].name);
		int rc;

		if (v && !keywords[i].kept && keywords[i].type & type && !says_nothing(keywords[i].name, v) &&
		    (rc = td__schema_refuse(c, keywords[i].name, "can't be enforced")))
			return rc;
	}
	return 0;
}

/* ---- types ----------------------------------------------------------------------------------------------------------------------------------------- */

static int type_named(const char *name)
{
	for (size_t i = 0; name && i < sizeof(types) / sizeof(types[0]); i++)
		if (!strcmp(types[i].name, name))
			return types[i].type;
	return 0;
}

/* What a schema without a type speaks of: it would allow every other type as well, but nobody means that. */
static int type_meant(const json_t *s)
{
	int type = 0;

	for (int i = 0; i < KEYWORDS; i++)
		if (keywords[i].type != T_ALL && json_object_get(s, keywords[i].name))
			type |= keywords[i].type;
	return type ? type : T_ALL;
}

static int read_type(struct td__schema *c, const json_t *s, int *out)
{
	const json_t *v = json_object_get(s, "type"), *one;
	size_t i;

	*out = v ? 0 : type_meant(s);
	if (json_is_string(v) && !(*out = type_named(json_string_value(v))))
		return broken(c, "type", "is none of JSON's");
	if (v && !json_is_string(v) && !json_is_array(v))
		return broken(c, "type", "is neither a name nor a list of them");
	json_array_foreach (v, i, one) {
		int type = type_named(json_string_value(one));

		if (!type)
			return broken(c, "type", "holds a name that is none of JSON's");
		*out |= type;
	}
	if (*out & T_NUMBER)
		*out &= ~T_INTEGER;
	return *out ? 0 : broken(c, "type", "is empty");
}

static int type_of(const json_t *v)
{
	return json_is_null(v) ? T_NULL : json_is_boolean(v) ? T_BOOLEAN : json_is_object(v) ? T_OBJECT : json_is_array(v) ? T_ARRAY :
	       json_is_string(v) ? T_STRING : json_is_integer(v) || json_real_value(v) == (double)(int64_t)json_real_value(v) ? T_NUMBER | T_INTEGER : T_NUMBER;
}

/* A bound that is a whole number. *strict: the bound itself does not count. */
static int read_bound(struct td__schema *c, json_t *s, const char *with, const char *without, int whole, int up, int64_t *out)
{
	const json_t *v = json_object_get(s, with), *x = json_object_get(s, without);
	double number;
	int rc;

	for (int strict = 0; strict < 2; strict++) {
		const char *name = strict ? without : with;
		const json_t *b = strict ? x : v;

		if (!b)
			continue;
		if (!json_is_number(b))
			return broken(c, name, "is no number");
		number = json_number_value(b);
		if (up ? number <= -9e17 : number >= 9e17)
			return broken(c, name, "leaves only numbers of more than 18 digits");
		if (up ? number > 9e17 : number < -9e17) /* more than is written anyway */
			number = up ? 9e17 : -9e17;
		if (number != (double)(int64_t)number || (strict && !whole)) {
			if ((rc = td__schema_refuse(c, name, strict && !whole ? "can't be enforced of numbers that are not integers" : "is no whole number")))
				return rc;
			continue;
		}
		int64_t bound = json_is_integer(b) && number < 9e17 && number > -9e17 ? json_integer_value(b) : (int64_t)number;

		bound += strict ? up ? -1 : 1 : 0;
		*out = up ? bound < *out ? bound : *out : bound > *out ? bound : *out;
	}
	return 0;
}

static int number_value(struct td__schema *c, json_t *s, int whole)
{
	int64_t lo = -TD_GB_MOST, hi = TD_GB_MOST;
	int rc;

	if ((rc = read_bound(c, s, "minimum", "exclusiveMinimum", whole, 0, &lo)) || (rc = read_bound(c, s, "maximum", "exclusiveMaximum", whole, 1, &hi)))
		return rc;
	if (lo > hi)
		return broken(c, "minimum", "is above maximum: nothing fits");
	if (!whole && lo == -TD_GB_MOST && hi == TD_GB_MOST)
		td_gb_number(c->b);
	else
		td_gb_range(c->b, lo, hi, whole);
	return 0;
}

static int one_type(struct td__schema *c, json_t *s, enum type type)
{
	struct td_gtext truth[2] = {{"true", 4}, {"false", 5}};

	switch (type) {
	case T_NULL:
		td_gb_puts(c->b, "null");
		return 0;
	case T_BOOLEAN:
		td_gb_one_of(c->b, truth, 2);
		return 0;
	case T_OBJECT:
		return td__schema_object(c, s);
	case T_ARRAY:
		return td__schema_array(c, s);
	case T_STRING:
		return td__schema_string(c, s);
	default:
		return number_value(c, s, type == T_INTEGER);
	}
}

static int typed(struct td__schema *c, json_t *s)
{
	struct td_galt alt;
	int type, rc = read_type(c, s, &type);

	if (rc || (rc = check_keywords(c, s, type)))
		return rc;
	td_gb_alt(&alt);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]) && !rc; i++) {
		if (!(type & types[i].type))
			continue;
		td_gb_alt_next(c->b, &alt);
		rc = one_type(c, s, types[i].type);
	}
	td_gb_alt_end(c->b, &alt);
	return rc;
}

/* ---- enum, const ----------------------------------------------------------------------------------------------------------------------------------- */

/* Other keywords that restrict stand beside this one: what fits both is not computed. */
static int alone(struct td__schema *c, json_t *s, const char *keyword, int with_type)
{
	for (int i = 0; i < KEYWORDS; i++) {
		int rc;

		if (strcmp(keywords[i].name, keyword) && !(with_type && !strcmp(keywords[i].name, "type")) && json_object_get(s, keywords[i].name) &&
		    !says_nothing(keywords[i].name, json_object_get(s, keywords[i].name)) &&
		    (rc = td__schema_refuse(c, keywords[i].name, "can't be enforced beside enum, const or $ref")))
			return rc;
	}
	return 0;
}

static int listed(struct td__schema *c, json_t *s, json_t *list)
{
	size_t n = json_array_size(list), used = 0;
	struct td_gtext *text = calloc(n ? n : 1, sizeof(*text));
	int type, rc = read_type(c, s, &type);

	if (!text)
		return td_error_set(c->err, TD_E_NOMEM, "out of memory");
	for (size_t i = 0; i < n && !rc; i++) {
		json_t *v = json_array_get(list, i);
		char *json;

		if (json_object_get(s, "type") && !(type_of(v) & type))
			continue;
		json = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
		if (json)
			text[used++] = (struct td_gtext){json, strlen(json)};
		else
			rc = td_error_set(c->err, TD_E_NOMEM, "out of memory");
	}
	if (!rc && !used)
		rc = broken(c, "enum", "holds no value of the type: nothing fits");
	if (!rc)
		td_gb_one_of(c->b, text, used);
	for (size_t i = 0; i < used; i++)
		free((char *)text[i].s);
	free(text);
	return rc;
}

static int enumerated(struct td__schema *c, json_t *s)
{
	json_t *list = json_object_get(s, "enum"), *value = json_object_get(s, "const"), *one;
	int rc = alone(c, s, value ? "const" : "enum", 1);

	if (rc)
		return rc;
	if (!value)
		return json_is_array(list) ? listed(c, s, list) : broken(c, "enum", "is no list");
	one = json_pack("[O]", value);
	rc = one ? listed(c, s, one) : td_error_set(c->err, TD_E_NOMEM, "out of memory");
	json_decref(one);
	return rc;
}

/* ---- references and combinations ------------------------------------------------------------------------------------------------------------------- */

static json_t *child(json_t *at, const char *name, size_t n)
{
	char key[256], *out = key;
	long index;

	if (n >= sizeof(key))
		return NULL;
	for (size_t i = 0; i < n; i++) {
		int escape = name[i] == '~' && i + 1 < n && (name[i + 1] == '0' || name[i + 1] == '1');

		*out++ = escape ? name[i + 1] == '0' ? '~' : '/' : name[i];
		i += (size_t)escape;
	}
	*out = 0;
	if (json_is_object(at))
		return json_object_get(at, key);
	index = strtol(key, &out, 10);
	return json_is_array(at) && *key && !*out && index >= 0 ? json_array_get(at, (size_t)index) : NULL;
}

int td__schema_follow(struct td__schema *c, json_t *s, json_t **to)
{
	const char *ref = json_string_value(json_object_get(s, "$ref")), *end;
	json_t *at = c->root;

	if (!ref || *ref != '#' || (ref[1] && ref[1] != '/'))
		return broken(c, "$ref", "must be a pointer into this schema, as #/$defs/NAME");
	for (ref++; *ref && at; ref = end) {
		end = strchrnul(ref + 1, '/');
		at = child(at, ref + 1, (size_t)(end - ref - 1));
	}
	if (!json_is_object(at) && !json_is_boolean(at))
		return broken(c, "$ref", "leads to no schema");
	*to = at;
	return 0;
}

static json_t *keep(struct td__schema *c, json_t *made)
{
	if (!made || c->n_made == TD__MADE_MAX) {
		json_decref(made);
		return NULL;
	}
	return c->made[c->n_made++] = made;
}

/* What stands beside `keyword` and restricts goes into a copy of the alternative. */
static int combined(struct td__schema *c, json_t *s, const char *keyword, json_t *one, json_t **out)
{
	json_t *both = NULL, *to = one;
	int rc;

	*out = one;
	for (int i = 0; i < KEYWORDS; i++) {
		const char *name = keywords[i].name;
		json_t *v = json_object_get(s, name), *there;

		if (!v || !strcmp(name, keyword))
			continue;
		if (!both && json_object_get(to, "$ref")) { /* what it leads to gets the rest */
			if ((rc = alone(c, to, "$ref", 0)) || (rc = td__schema_follow(c, to, &to)))
				return rc;
		}
		there = json_object_get(to, name);
		if (!json_is_object(to) || (there && !json_equal(there, v))) {
			if ((rc = td__schema_refuse(c, name, "and its alternatives speak of the same: what fits both is not computed")))
				return rc;
			continue;
		}
		if (!both && !(both = keep(c, json_copy(to))))
			return td_error_set(c->err, TD_E_SCHEMA, "%s: too many alternatives with keywords beside them at #%.300s", c->what, c->path);
		json_object_set(both, name, v);
		*out = to = both;
	}
	return 0;
}

static int alternatives(struct td__schema *c, json_t *s, const char *keyword)
{
	json_t *list = json_object_get(s, keyword), *one;
	struct td_galt alt;
	size_t i;
	int rc = 0;

	if (!json_is_array(list) || !json_array_size(list))
		return broken(c, keyword, "is no list of schemas");
	if (!strcmp(keyword, "allOf") && json_array_size(list) > 1 && (rc = td__schema_refuse(c, keyword, "of more than one schema can't be enforced")))
		return rc;
	td_gb_alt(&alt);
	json_array_foreach (list, i, one) {
		size_t before = td__schema_down(c, keyword, NULL, i);

		td_gb_alt_next(c->b, &alt);
		rc = combined(c, s, keyword, one, &one);
		if (!rc)
			rc = td__schema_value(c, one);
		td__schema_up(c, before);
		if (rc || !strcmp(keyword, "allOf"))
			break;
	}
	td_gb_alt_end(c->b, &alt);
	return rc;
}

int td__schema_rule(struct td__schema *c, json_t *s, int *address)
{
	int over, rc;

	for (int i = 0; i < c->n_rules; i++) {
		if (c->rule[i].of == s) {
			*address = c->rule[i].address;
			return 0;
		}
	}
	if (c->n_rules == TD__RULES_MAX)
		return td_error_set(c->err, TD_E_SCHEMA, "%s: it has more than %d parts", c->what, TD__RULES_MAX);
	*address = td_gb_rule(c->b, &over);
	c->rule[c->n_rules].of = s;
	c->rule[c->n_rules++].address = *address; /* before its code: it may call itself */
	rc = td__schema_value(c, s);
	td_gb_rule_end(c->b, over);
	return rc;
}

static int value(struct td__schema *c, json_t *s)
{
	static const char *const several[] = {"anyOf", "oneOf", "allOf"};
	json_t *to;
	int rule, rc;

	if (json_object_get(s, "$ref")) {
		if ((rc = alone(c, s, "$ref", 0)) || (rc = td__schema_follow(c, s, &to)) || (rc = td__schema_rule(c, to, &rule)))
			return rc;
		td_gb_call(c->b, rule);
		return 0;
	}
	if (json_object_get(s, "enum") || json_object_get(s, "const"))
		return enumerated(c, s);
	for (int i = 0; i < 3; i++)
		if (json_object_get(s, several[i]))
			return alternatives(c, s, several[i]);
	return typed(c, s);
}

int td__schema_value(struct td__schema *c, json_t *s)
{
	int rc;

	if (json_is_true(s)) {
		td_gb_any(c->b);
		return 0;
	}
	if (json_is_false(s))
		return broken(c, "false", "allows nothing");
	if (!json_is_object(s))
		return broken(c, "what stands", "is no schema");
	if (++c->level > TD__LEVELS_MAX)
		return td_error_set(c->err, TD_E_SCHEMA, "%s: it is nested deeper than %d levels at #%.300s; use $ref", c->what, TD__LEVELS_MAX, c->path);
	rc = value(c, s);
	c->level--;
	return rc;
}

/* ---- constraints ----------------------------------------------------------------------------------------------------------------------------------- */

/* Compiled grammars are opened once here: one that nothing fits (endless recursion) is the schema's fault, and is told now. */
static int prove(const uint8_t *bytes, size_t n, struct td_error *err)
{
	struct td_grammar *g = malloc(sizeof(*g));
	struct td_error why;
	int rc = g ? td_grammar_open(g, bytes, n, &why) : TD_E_NOMEM;

	free(g);
	if (!rc)
		return 0;
	return g ? td_error_set(err, TD_E_SCHEMA, "no finite text fits the schema: %.300s", why.text) : td_error_set(err, rc, "out of memory");
}

int td__constraint_end(struct td_gbuild *b, uint8_t **bytes, size_t *n, struct td_error *err)
{
	int rc;

	td_gb_emit(b, TD_G_RET, 0, 0, 0, 0);
	rc = td_gb_finish(b, 0, bytes, n, err);
	if (!rc && (rc = prove(*bytes, *n, err))) {
		free(*bytes);
		*bytes = NULL;
	}
	return rc;
}

void td__constraint_begin(struct td_gbuild *b, int thinking)
{
	if (!thinking)
		return;
	td_gb_until(b, "</think>");
	td_gb_puts(b, "\n\n");
}

int td_constraint_object(int thinking, uint8_t **bytes, size_t *n, struct td_error *err)
{
	struct td_gbuild *b = td_gbuild_create();

	if (!b)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	td__constraint_begin(b, thinking);
	td_gb_object(b);
	return td__constraint_end(b, bytes, n, err);
}

struct td__schema *td__schema_create(const char *what, struct td_error *err)
{
	struct td__schema *c = calloc(1, sizeof(*c));

	if (!c || !(c->b = td_gbuild_create())) {
		free(c);
		td_error_set(err, TD_E_NOMEM, "out of memory");
		return NULL;
	}
	c->err = err;
	c->what = what;
	return c;
}

int td__schema_end(struct td__schema *c, int rc, uint8_t **bytes, size_t *n)
{
	for (int i = 0; i < c->n_made; i++)
		json_decref(c->made[i]);
	if (rc)
		free(c->b);
	else
		rc = td__constraint_end(c->b, bytes, n, c->err);
	free(c);
	return rc;
}

int td_constraint_schema(const char *schema, int thinking, uint8_t **bytes, size_t *n, struct td_error *err)
{
	struct td__schema *c = td__schema_create("the JSON schema", err);
	json_error_t why;
	json_t *root;
	int rc, no_memory;

	*bytes = NULL;
	*n = 0;
	if (!c)
		return TD_E_NOMEM;
	c->root = root = td_json_load(schema, strlen(schema), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why, &no_memory);
	if (no_memory) {
		rc = td_error_set(err, TD_E_NOMEM, "out of memory");
	} else if (root) {
		td__constraint_begin(c->b, thinking);
		rc = td__schema_value(c, root);
	} else {
		rc = td_error_set(err, TD_E_SCHEMA, "the JSON schema is no JSON: %.200s (line %d, column %d)", why.text, why.line, why.column);
	}
	rc = td__schema_end(c, rc, bytes, n);
	json_decref(root);
	return rc;
}
