/*
 * schema_gen.c: see schema_gen.h.
 */
#include "tests/lib/schema_gen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;

void schema_seed(uint64_t seed)
{
	state = seed * 2 + 1;
}

uint32_t schema_rnd(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % n;
}

/* ---- schemas --------------------------------------------------------------------------------------------------------------------------------------- */

static const char *const words[] = {"a", "ab", "abc", "b", "name", "na\"me", "é", "日本", "x y", "", "\\", "id", "tags", "\n", "😀"};
enum { WORDS = sizeof(words) / sizeof(words[0]) };

static json_t *random_text(int most)
{
	char text[200] = "";

	for (int n = (int)schema_rnd((uint32_t)most + 1); n > 0; n--) {
		const char *w = words[schema_rnd(WORDS)];

		if (strlen(text) + strlen(w) < sizeof(text))
			strcat(text, w);
	}
	return json_string(text);
}

static json_t *random_any(int depth)
{
	json_t *v;

	switch (schema_rnd(depth > 0 ? 8 : 6)) {
	case 0:
		return json_null();
	case 1:
		return json_boolean(schema_rnd(2));
	case 2:
		return json_integer((int)schema_rnd(2000) - 1000);
	case 3:
		return json_real(((int)schema_rnd(2000) - 1000) / 8.0);
	case 4:
	case 5:
		return random_text(4);
	case 6:
		v = json_array();
		for (uint32_t n = schema_rnd(4); n; n--)
			json_array_append_new(v, random_any(depth - 1));
		return v;
	}
	v = json_object();
	for (uint32_t n = schema_rnd(4); n; n--)
		json_object_set_new(v, words[schema_rnd(WORDS)], random_any(depth - 1));
	return v;
}

static void set_number(json_t *s, const char *name, int v)
{
	json_object_set_new(s, name, json_integer(v));
}

static json_t *random_object(int depth)
{
	json_t *s = json_pack("{s:s, s:{}}", "type", "object", "properties"), *p = json_object_get(s, "properties"), *required = json_array();

	for (uint32_t n = schema_rnd(5); n; n--) {
		const char *name = words[schema_rnd(WORDS)];

		json_object_set_new(p, name, schema_random(depth - 1));
		if (schema_rnd(2))
			json_array_append_new(required, json_string(name));
	}
	json_object_set_new(s, "required", required);
	if (schema_rnd(2))
		json_object_set_new(s, "additionalProperties", schema_rnd(2) ? json_false() : schema_rnd(2) ? json_true() : schema_random(depth - 1));
	return s;
}

static json_t *random_array(int depth)
{
	json_t *s = json_pack("{s:s}", "type", "array"), *prefix;
	int least = (int)schema_rnd(3);

	if (schema_rnd(3))
		json_object_set_new(s, "items", schema_random(depth - 1));
	if (schema_rnd(3) == 0) {
		prefix = json_array();
		for (uint32_t n = 1 + schema_rnd(3); n; n--)
			json_array_append_new(prefix, schema_random(depth - 1));
		json_object_set_new(s, "prefixItems", prefix);
	}
	if (schema_rnd(2))
		set_number(s, "minItems", least);
	if (schema_rnd(2))
		set_number(s, "maxItems", least + (int)schema_rnd(4));
	return s;
}

static json_t *random_number(void)
{
	int whole = (int)schema_rnd(2), lo = (int)schema_rnd(3000) - 1500;
	json_t *s = json_pack("{s:s}", "type", whole ? "integer" : "number");

	if (schema_rnd(2))
		set_number(s, "minimum", lo);
	else if (whole && schema_rnd(2))
		set_number(s, "exclusiveMinimum", lo);
	if (schema_rnd(2))
		set_number(s, "maximum", lo + 2 + (int)schema_rnd(schema_rnd(2) ? 5 : 3000));
	return s;
}

static json_t *random_string(void)
{
	json_t *s = json_pack("{s:s, s:s}", "type", "string", "description", "some text");
	int least = (int)schema_rnd(4);

	if (schema_rnd(2))
		set_number(s, "minLength", least);
	if (schema_rnd(2))
		set_number(s, "maxLength", least + (int)schema_rnd(6));
	return s;
}

json_t *schema_random(int depth)
{
	json_t *s, *list;

	switch (schema_rnd(depth > 0 ? 12 : 6)) {
	case 0:
		return json_pack("{s:s}", "type", schema_rnd(2) ? "boolean" : "null");
	case 1:
	case 2:
		return random_number();
	case 3:
		list = json_array();
		for (uint32_t n = 1 + schema_rnd(5); n; n--)
			json_array_append_new(list, random_any(1));
		return json_pack("{s:o}", "enum", list);
	case 4:
		return schema_rnd(2) ? random_string() : json_pack("{s:o}", "const", random_any(1));
	case 5:
		return schema_rnd(4) ? random_string() : json_object();
	case 6:
		list = json_array();
		for (uint32_t n = 1 + schema_rnd(3); n; n--)
			json_array_append_new(list, schema_random(depth - 1));
		return json_pack("{s:o}", schema_rnd(2) ? "anyOf" : "oneOf", list);
	case 7:
		s = random_string();
		json_object_set_new(s, "type", json_pack("[s,s]", "null", schema_rnd(2) ? "string" : "integer"));
		return s;
	case 8:
	case 9:
		return random_array(depth);
	}
	return random_object(depth);
}

/* ---- instances ------------------------------------------------------------------------------------------------------------------------------------- */

static int get_int(json_t *s, const char *name, int otherwise)
{
	json_t *v = json_object_get(s, name);

	return v ? (int)json_integer_value(v) : otherwise;
}

static json_t *make_string(json_t *s)
{
	static const char *const chars[] = {"a", "Z", "\"", "\\", "é", "日", "😀", " ", "\t", "/"};
	int least = get_int(s, "minLength", 0), most = get_int(s, "maxLength", least + 5);
	char text[400] = "";

	for (int n = least + (int)schema_rnd((uint32_t)(most - least) + 1); n > 0; n--)
		strcat(text, chars[schema_rnd(10)]);
	return json_string(text);
}

static json_t *make_number(json_t *s, int whole)
{
	int lo = json_object_get(s, "exclusiveMinimum") ? get_int(s, "exclusiveMinimum", 0) + 1 : get_int(s, "minimum", get_int(s, "maximum", 40) - 50);
	int hi = get_int(s, "maximum", lo + 50), v = lo + (int)schema_rnd((uint32_t)(hi - lo) + 1);

	if (!whole && v < hi && schema_rnd(2))
		return json_real(v + 0.25);
	return json_integer(v);
}

static json_t *make_array(json_t *s)
{
	json_t *v = json_array(), *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
	int least = get_int(s, "minItems", 0), most = get_int(s, "maxItems", least + 3);

	for (int i = 0, n = least + (int)schema_rnd((uint32_t)(most - least) + 1); i < n; i++) {
		json_t *of = i < (int)json_array_size(prefix) ? json_array_get(prefix, (size_t)i) : items;

		json_array_append_new(v, of ? schema_instance(of) : random_any(1));
	}
	return v;
}

static int contains(json_t *list, const char *name)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (!strcmp(json_string_value(json_array_get(list, i)), name))
			return 1;
	return 0;
}

static json_t *make_object(json_t *s)
{
	json_t *v = json_object(), *more = json_object_get(s, "additionalProperties"), *p;
	const char *name;

	json_object_foreach (json_object_get(s, "properties"), name, p)
		if (contains(json_object_get(s, "required"), name) || schema_rnd(2))
			json_object_set_new(v, name, schema_instance(p));
	if (more && !json_is_false(more))
		for (uint32_t n = schema_rnd(3); n; n--)
			json_object_set_new(v, n == 1 ? "extra" : "abd", json_is_true(more) ? random_any(1) : schema_instance(more));
	return v;
}

json_t *schema_instance(json_t *s)
{
	json_t *list = json_object_get(s, "enum"), *type = json_object_get(s, "type");
	const char *name;

	if (!list)
		list = json_object_get(s, "anyOf");
	if (!list)
		list = json_object_get(s, "oneOf");
	if (list) {
		json_t *one = json_array_get(list, schema_rnd((uint32_t)json_array_size(list)));

		return json_object_get(s, "enum") ? json_deep_copy(one) : schema_instance(one);
	}
	if (json_object_get(s, "const"))
		return json_deep_copy(json_object_get(s, "const"));
	if (!type)
		return random_any(2);
	if (json_is_array(type))
		type = json_array_get(type, schema_rnd((uint32_t)json_array_size(type)));
	name = json_string_value(type);
	return !strcmp(name, "null") ? json_null() : !strcmp(name, "boolean") ? json_boolean(schema_rnd(2)) : !strcmp(name, "integer") ? make_number(s, 1) :
	       !strcmp(name, "number") ? make_number(s, 0) : !strcmp(name, "string") ? make_string(s) : !strcmp(name, "array") ? make_array(s) : make_object(s);
}

json_t *schema_mutated(const json_t *v)
{
	json_t *out = json_deep_copy(v), *one = NULL;
	size_t n = json_array_size(out), i;
	const char *name;

	if (json_is_array(out) && n && schema_rnd(3)) {
		i = schema_rnd((uint32_t)n);
		json_array_set_new(out, i, schema_mutated(json_array_get(out, i)));
		return out;
	}
	if (json_is_object(out) && json_object_size(out) && schema_rnd(4)) {
		i = schema_rnd((uint32_t)json_object_size(out));
		json_object_foreach (out, name, one)
			if (!i--)
				break;
		if (schema_rnd(3))
			json_object_set_new(out, name, schema_mutated(one));
		else
			json_object_del(out, name);
		return out;
	}
	if (json_is_array(out)) {
		if (n && schema_rnd(2))
			json_array_remove(out, 0);
		else
			json_array_append_new(out, random_any(1));
		return out;
	}
	if (json_is_object(out)) {
		json_object_set_new(out, "zzz", random_any(1));
		return out;
	}
	json_decref(out);
	if (json_is_integer(v) && schema_rnd(2))
		return json_integer(json_integer_value(v) + (int)schema_rnd(4000) - 2000);
	return random_any(2);
}

/* ---- validator ------------------------------------------------------------------------------------------------------------------------------------- */

static int is_type(const char *t, json_t *v)
{
	return !strcmp(t, "null") ? json_is_null(v) : !strcmp(t, "boolean") ? json_is_boolean(v) : !strcmp(t, "object") ? json_is_object(v) :
	       !strcmp(t, "array") ? json_is_array(v) : !strcmp(t, "string") ? json_is_string(v) : !strcmp(t, "number") ? json_is_number(v) :
	       json_is_integer(v) || (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v));
}

static int code_points(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += (*s & 0xc0) != 0x80;
	return n;
}

static int bounds(json_t *s, json_t *v)
{
	json_t *b;
	double x = json_number_value(v);

	return !(json_is_number(v) && (((b = json_object_get(s, "minimum")) && x < json_number_value(b)) || ((b = json_object_get(s, "maximum")) && x > json_number_value(b)) ||
				       ((b = json_object_get(s, "exclusiveMinimum")) && x <= json_number_value(b)) ||
				       ((b = json_object_get(s, "exclusiveMaximum")) && x >= json_number_value(b))));
}

static int object_fits(json_t *root, json_t *s, json_t *v)
{
	json_t *properties = json_object_get(s, "properties"), *required = json_object_get(s, "required"), *more = json_object_get(s, "additionalProperties"), *one;
	const char *name;

	for (size_t i = 0; i < json_array_size(required); i++)
		if (!json_object_get(v, json_string_value(json_array_get(required, i))))
			return 0;
	json_object_foreach (v, name, one) {
		json_t *of = json_object_get(properties, name);

		if (of ? !schema_fits(root, of, one) : more && !schema_fits(root, more, one))
			return 0;
	}
	return 1;
}

static int array_fits(json_t *root, json_t *s, json_t *v)
{
	json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
	size_t n = json_array_size(v);

	if ((int)n < get_int(s, "minItems", 0) || (int)n > get_int(s, "maxItems", 1 << 30))
		return 0;
	for (size_t i = 0; i < n; i++) {
		json_t *of = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;

		if (of && !schema_fits(root, of, json_array_get(v, i)))
			return 0;
	}
	return 1;
}

static int list_has(json_t *root, json_t *list, json_t *v, int schemas)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *one = json_array_get(list, i);

		if (schemas ? schema_fits(root, one, v) : json_equal(one, v) || (json_is_number(one) && json_is_number(v) && json_number_value(one) == json_number_value(v)))
			return 1;
	}
	return 0;
}

static int type_fits(json_t *type, json_t *v)
{
	if (json_is_string(type))
		return is_type(json_string_value(type), v);
	for (size_t i = 0; i < json_array_size(type); i++)
		if (is_type(json_string_value(json_array_get(type, i)), v))
			return 1;
	return type == NULL;
}

int schema_fits(json_t *root, json_t *s, json_t *v)
{
	json_t *list;
	const char *ref = json_string_value(json_object_get(s, "$ref"));

	if (json_is_boolean(s))
		return json_is_true(s);
	if (ref)
		return schema_fits(root, !strcmp(ref, "#") ? root : json_object_get(json_object_get(root, "$defs"), strrchr(ref, '/') + 1), v);
	if (!type_fits(json_object_get(s, "type"), v) || !bounds(s, v))
		return 0;
	if (((list = json_object_get(s, "enum")) && !list_has(root, list, v, 0)) || ((list = json_object_get(s, "anyOf")) && !list_has(root, list, v, 1)) ||
	    ((list = json_object_get(s, "oneOf")) && !list_has(root, list, v, 1)) || ((list = json_object_get(s, "const")) && !json_equal(list, v)))
		return 0;
	if (json_is_string(v))
		return code_points(json_string_value(v)) >= get_int(s, "minLength", 0) && code_points(json_string_value(v)) <= get_int(s, "maxLength", 1 << 30);
	if (json_is_object(v))
		return object_fits(root, s, v);
	return json_is_array(v) ? array_fits(root, s, v) : 1;
}
