/*
 * schema_object.c: objects, arrays and strings of a JSON schema as grammar code.
 *
 * Properties come in the schema's order. The code of an object is one row of them, see row().
 */
#include <stdlib.h>
#include <string.h>

#include "engine/schema_internal.h"

struct property {
	const char *name;
	json_t *schema;
	int required, rule;
	int end; /* the way from behind it to the end of the object; -1: there is none */
};

/* ---- objects --------------------------------------------------------------------------------------------------------------------------------------- */

/* The names as keys, so that thousands of them are not searched through for each property; NULL: no memory. */
static json_t *name_set(json_t *names)
{
	json_t *set = json_object(), *one;
	size_t i;

	json_array_foreach (names, i, one) {
		if (set && json_is_string(one) && json_object_set_new(set, json_string_value(one), json_true())) {
			json_decref(set);
			set = NULL;
		}
	}
	return set;
}

/* The declared properties, then those that are required without being declared. */
static int list_properties(struct td__schema *c, json_t *s, json_t *more, struct property **out, size_t *n)
{
	json_t *properties = json_object_get(s, "properties"), *required = json_object_get(s, "required"), *one, *missing;
	size_t most = json_object_size(properties) + json_array_size(required), i;
	const char *name;
	int rc = 0;

	*n = 0;
	if ((properties && !json_is_object(properties)) || (required && !json_is_array(required)))
		return td_error_set(c->err, TD_E_SCHEMA, "%s: properties or required at #%.300s is not what it should be", c->what, c->path);
	*out = calloc(most ? most : 1, sizeof(**out));
	missing = name_set(required);
	if (!*out || !missing) {
		rc = td_error_set(c->err, TD_E_NOMEM, "out of memory");
		goto done;
	}
	json_object_foreach (properties, name, one)
		(*out)[(*n)++] = (struct property){.name = name, .schema = one, .required = !json_object_del(missing, name)};
	json_array_foreach (required, i, one) {
		name = json_string_value(one);
		if (!name || json_object_del(missing, name)) /* declared, or named before */
			continue;
		if (json_is_false(more) && (rc = td__schema_refuse(c, "required", "names a property that additionalProperties forbids")))
			goto done;
		(*out)[(*n)++] = (struct property){.name = name, .schema = json_is_object(more) ? more : json_true(), .required = 1};
	}
done:
	json_decref(missing);
	return rc;
}

/* "name": value, as a rule. */
static int property_rule(struct td__schema *c, struct property *p)
{
	json_t *name = json_string(p->name);
	char *key = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
	size_t before = td__schema_down(c, "properties", p->name, 0);
	int over, rc = 0;

	if (key) {
		p->rule = td_gb_rule(c->b, &over);
		td_gb_puts(c->b, key);
		td_gb_colon(c->b);
		rc = td__schema_value(c, p->schema);
		td_gb_rule_end(c->b, over);
	} else {
		rc = td_error_set(c->err, TD_E_NOMEM, "out of memory");
	}
	free(key);
	json_decref(name);
	td__schema_up(c, before);
	return rc;
}

/* A property that is not declared, as a rule; *rule -1: there are none. */
static int other_rule(struct td__schema *c, json_t *more, const struct property *p, size_t n, int *rule)
{
	struct td_gtext *name = calloc(n ? n : 1, sizeof(*name));
	size_t before = td__schema_down(c, "additionalProperties", NULL, (size_t)-1);
	int over, rc;

	if (!name)
		return td_error_set(c->err, TD_E_NOMEM, "out of memory");
	for (size_t i = 0; i < n; i++)
		name[i] = (struct td_gtext){p[i].name, strlen(p[i].name)};
	*rule = td_gb_rule(c->b, &over);
	if (n)
		td_gb_other_key(c->b, name, n);
	else
		td_gb_string(c->b, 0, TD_G_FOREVER);
	td_gb_colon(c->b);
	rc = td__schema_value(c, more);
	td_gb_rule_end(c->b, over);
	free(name);
	td__schema_up(c, before);
	return rc;
}

/* An optional part of a row: code that may be passed by. */
static int skip(struct td__schema *c)
{
	return td_gb_emit(c->b, TD_G_SPLIT, 0, 0, c->b->n_nodes + 1, 0);
}

static void skip_end(struct td__schema *c, int at)
{
	c->b->node[at].b = (uint16_t)c->b->n_nodes;
}

/* From the first property on: each may be passed by as far as the next required one, and behind each comes the end, or a comma and what follows.
 * All ways to a property lead through one place, so a state has one item for each that may come next, however the blanks before it are. */
static void row(struct td__schema *c, struct property *p, size_t n, int other)
{
	struct td_gbuild *b = c->b;
	size_t last = 0; /* behind the last required one */
	int empty = -1, pass = -1, comma, over;

	td_gb_byte(b, '{', '{');
	td_gb_space(b);
	for (size_t i = 0; i < n; i++)
		last = p[i].required ? i + 1 : last;
	if (!last && (n || other >= 0))
		empty = skip(c);
	for (size_t i = 0; i < n; i++) {
		int more = i + 1 < n || other >= 0;

		if (pass >= 0)
			skip_end(c, pass);
		pass = p[i].required || !more ? -1 : skip(c);
		td_gb_call(b, p[i].rule);
		p[i].end = more && i + 1 >= last ? skip(c) : -1;
		if (more) {
			td_gb_byte(b, ',', ',');
			td_gb_space(b);
		}
	}
	if (pass >= 0)
		skip_end(c, pass);
	if (other >= 0) {
		td_gb_call(b, other);
		comma = td_gb_rule(b, &over);
		td_gb_byte(b, ',', ',');
		td_gb_space(b);
		td_gb_call(b, other);
		td_gb_rule_end(b, over);
		td_gb_repeat(b, comma, 0, TD_G_FOREVER);
	}
	for (size_t i = 0; i < n; i++)
		if (p[i].end >= 0)
			skip_end(c, p[i].end);
	td_gb_space(b);
	if (empty >= 0)
		skip_end(c, empty);
	td_gb_byte(b, '}', '}');
}

int td__schema_object(struct td__schema *c, json_t *s)
{
	json_t *more = json_object_get(s, "additionalProperties");
	struct property *p = NULL;
	size_t n = 0;
	int other = -1, rc;

	if (!more && !json_object_get(s, "properties") && !json_object_get(s, "required")) {
		td_gb_object(c->b);
		return 0;
	}
	rc = list_properties(c, s, more, &p, &n);
	for (size_t i = 0; i < n && !rc; i++)
		rc = property_rule(c, &p[i]);
	if (!rc && more && !json_is_false(more))
		rc = other_rule(c, more, p, n, &other);
	if (!rc)
		row(c, p, n, other);
	free(p);
	return rc;
}

/* ---- arrays ---------------------------------------------------------------------------------------------------------------------------------------- */

/* "," and an item, as a rule; the item alone in *item. */
static int item_rules(struct td__schema *c, json_t *s, int *item, int *after)
{
	json_t *items = json_object_get(s, "items");
	size_t before = td__schema_down(c, "items", NULL, (size_t)-1);
	int over, rc;

	if (!items)
		items = json_true();
	rc = td__schema_rule(c, items, item);
	*after = td_gb_rule(c->b, &over);
	td_gb_byte(c->b, ',', ',');
	td_gb_space(c->b);
	td_gb_call(c->b, *item);
	td_gb_rule_end(c->b, over);
	td__schema_up(c, before);
	return rc;
}

/* The items that have a schema each; `end` collects the ways out after enough of them. */
static int prefix(struct td__schema *c, json_t *list, uint32_t least, uint32_t most, struct td_galt *out)
{
	json_t *one;
	size_t i;

	json_array_foreach (list, i, one) {
		size_t before = td__schema_down(c, "prefixItems", NULL, i);
		int rule, rc = td__schema_rule(c, one, &rule);

		td__schema_up(c, before);
		if (rc || i >= most)
			return rc;
		if (i >= least) { /* it may end before this one */
			int jump;

			td_gb_emit(c->b, TD_G_SPLIT, 0, 0, c->b->n_nodes + 1, c->b->n_nodes + 2);
			jump = td_gb_emit(c->b, TD_G_JUMP, 0, 0, out->chain < 0 ? TD_G_END : out->chain, 0);
			out->chain = jump;
		}
		if (i) {
			td_gb_byte(c->b, ',', ',');
			td_gb_space(c->b);
		}
		td_gb_call(c->b, rule);
	}
	return 0;
}

int td__schema_array(struct td__schema *c, json_t *s)
{
	json_t *list = json_object_get(s, "prefixItems");
	uint32_t least = 0, most = TD_G_FOREVER, n = (uint32_t)json_array_size(list);
	struct td_galt out;
	int item = 0, after = 0, rc;

	if ((rc = td__schema_count(c, s, "minItems", &least)) || (rc = td__schema_count(c, s, "maxItems", &most)))
		return rc;
	if (list && !json_is_array(list))
		return td_error_set(c->err, TD_E_SCHEMA, "%s: prefixItems at #%.300s is no list", c->what, c->path);
	if (json_is_false(json_object_get(s, "items")) && most > n)
		most = n;
	if (least > most)
		return td_error_set(c->err, TD_E_SCHEMA, "%s: minItems at #%.300s is more than may come: nothing fits", c->what, c->path);
	if (most > n && (rc = item_rules(c, s, &item, &after)))
		return rc;
	td_gb_byte(c->b, '[', '[');
	td_gb_space(c->b);
	td_gb_alt(&out);
	if ((rc = prefix(c, list, least, most, &out)))
		return rc;
	if (most > n && n) {
		td_gb_repeat(c->b, after, least > n ? least - n : 0, most == TD_G_FOREVER ? most : most - n);
	} else if (most > n) {
		int pass = least ? -1 : skip(c);

		td_gb_call(c->b, item);
		td_gb_repeat(c->b, after, least ? least - 1 : 0, most == TD_G_FOREVER ? most : most - 1);
		if (pass >= 0)
			skip_end(c, pass);
	}
	for (int at = out.chain < 0 ? TD_G_END : out.chain; at != TD_G_END && !c->b->full;) {
		int before = c->b->node[at].a;

		c->b->node[at].a = (uint16_t)c->b->n_nodes;
		at = before;
	}
	td_gb_space(c->b);
	td_gb_byte(c->b, ']', ']');
	return 0;
}

/* ---- strings --------------------------------------------------------------------------------------------------------------------------------------- */

int td__schema_string(struct td__schema *c, json_t *s)
{
	json_t *pattern = json_object_get(s, "pattern"), *format = json_object_get(s, "format");
	int sized = json_object_get(s, "minLength") || json_object_get(s, "maxLength"), rc;
	uint32_t least = 0, most = TD_G_FOREVER;

	if (pattern) {
		if (!json_is_string(pattern))
			return td_error_set(c->err, TD_E_SCHEMA, "%s: pattern at #%.300s is no string", c->what, c->path);
		if (sized && (rc = td__schema_refuse(c, "pattern", "can't be enforced together with minLength or maxLength")))
			return rc;
		return td__pattern(c, json_string_value(pattern));
	}
	if ((rc = td__schema_count(c, s, "minLength", &least)) || (rc = td__schema_count(c, s, "maxLength", &most)))
		return rc;
	if (least > most)
		return td_error_set(c->err, TD_E_SCHEMA, "%s: minLength at #%.300s is above maxLength: nothing fits", c->what, c->path);
	if (!sized && json_is_string(format) && td__format(c, json_string_value(format)))
		return 0;
	td_gb_string(c->b, least, most);
	return 0;
}
