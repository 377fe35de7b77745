/*
 * schema_pattern.c: "pattern" and "format": a subset of regular expressions as grammar code for a JSON string.
 *
 * Known: characters, escapes, classes, ".", groups, "|", "?", "*", "+", "{m,n}", and ^ and $ at the two ends. A pattern without ^ or $ may be found
 * anywhere, as JSON schema has it. Characters are written plainly where JSON allows it, else as their short escape; \u forms are not tried.
 * \S, \D, \W and classes that are negated: of characters beyond ASCII only the last two and the classes take any (there are blanks among them).
 * Reads the pattern once, left to right; an atom's end is looked for first, since a quantifier behind it makes it a rule.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/schema_internal.h"
#include "engine/tokenizer.h"

enum { GROUPS_MAX = 16, TIMES_MAX = 1000 };

struct reader {
	struct td__schema *c;
	const char *at;
	int level;
	const char *fault; /* why it can't be kept */
};

struct charset {
	uint8_t ascii[16];
	int others;
};

static void add(struct charset *s, int lo, int hi)
{
	for (int c = lo; c <= hi && c < 128; c++)
		s->ascii[c / 8] |= (uint8_t)(1 << c % 8);
}

static int has(const struct charset *s, int c)
{
	return s->ascii[c / 8] >> c % 8 & 1;
}

static void negate(struct charset *s, int others)
{
	for (int i = 0; i < 16; i++)
		s->ascii[i] = (uint8_t)~s->ascii[i];
	s->others = others;
}

/* ---- characters ------------------------------------------------------------------------------------------------------------------------------------ */

/* One of the set, in a JSON string. */
static void emit_set(struct td_gbuild *b, const struct charset *s)
{
	static const struct {
		char c;
		const char *text;
	} escapes[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}, {'\b', "\\b"}, {'\f', "\\f"}};
	uint8_t plain[16] = {0};
	struct td_galt alt;
	int some = s->others;

	for (int c = 0; c < 128; c++) {
		if (td_g_plain((uint8_t)c) && has(s, c)) {
			plain[c / 8] |= (uint8_t)(1 << c % 8);
			some = 1;
		}
	}
	td_gb_alt(&alt);
	if (some) {
		td_gb_alt_next(b, &alt);
		td_gb_char(b, plain, s->others);
	}
	for (size_t i = 0; i < sizeof(escapes) / sizeof(escapes[0]); i++) {
		if (!has(s, escapes[i].c))
			continue;
		td_gb_alt_next(b, &alt);
		td_gb_puts(b, escapes[i].text);
	}
	td_gb_alt_end(b, &alt);
}

static int hex(struct reader *r, int n)
{
	int v = 0;

	for (int i = 0; i < n; i++, r->at++) {
		const char *digits = "0123456789abcdef", *d = *r->at ? strchr(digits, *r->at | (*r->at > '9' ? 32 : 0)) : NULL;

		if (!d) {
			r->fault = "has a broken escape";
			return 0;
		}
		v = v * 16 + (int)(d - digits);
	}
	if (v >= 0x80)
		r->fault = "has a numbered escape beyond ASCII";
	return v & 0x7f;
}

/* After a backslash. 1: one character, in *one; 0: a class, added to *s. */
static int escape(struct reader *r, struct charset *s, int *one)
{
	static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
	struct charset class = {0};
	int c = (uint8_t)*r->at;
	const char *at = c ? strchr(from, c) : NULL;

	*one = 0;
	if (c == 0 || (c >= 'a' && c <= 'z' && !strchr("dwsxunrtfv", c)) || (c >= 'A' && c <= 'Z' && !strchr("DWS", c)) || (c >= '1' && c <= '9') || c >= 0x80) {
		r->fault = "has an escape that is not known";
		return 1;
	}
	r->at++;
	*one = at ? *at == '0' ? 0 : to[at - from] : c == 'x' ? hex(r, 2) : c == 'u' ? hex(r, 4) : c;
	switch (c) {
	case 'd':
	case 'D':
		add(&class, '0', '9');
		break;
	case 'w':
	case 'W':
		add(&class, '0', '9');
		add(&class, 'a', 'z');
		add(&class, 'A', 'Z');
		add(&class, '_', '_');
		break;
	case 's':
	case 'S':
		add(&class, '\t', '\r');
		add(&class, ' ', ' ');
		break;
	default:
		return 1;
	}
	if (c < 'a')
		negate(&class, c != 'S');
	for (int i = 0; i < 16; i++)
		s->ascii[i] |= class.ascii[i];
	s->others |= class.others;
	return 0;
}

/* A member of a class, or its first: 1 in *one, 0 when it was a class itself. */
static int member(struct reader *r, struct charset *s, int *one)
{
	*one = (uint8_t)*r->at;
	if (*one == '\\') {
		r->at++;
		if (*r->at == 'b') {
			r->at++;
			*one = '\b';
			return 1;
		}
		return *r->at == '-' ? (*one = *r->at++, 1) : escape(r, s, one);
	}
	if (*one >= 0x80)
		r->fault = "has a class with characters beyond ASCII";
	r->at++;
	return 1;
}

static void class(struct reader *r)
{
	struct charset s = {0};
	int negated = *r->at == '^', lo = 0, hi;

	r->at += negated;
	while (*r->at && *r->at != ']' && !r->fault) {
		if (!member(r, &s, &lo))
			continue;
		hi = lo;
		if (*r->at == '-' && r->at[1] && r->at[1] != ']') {
			r->at++;
			if (!member(r, &s, &hi) || hi < lo)
				r->fault = "has a broken range";
		}
		add(&s, lo, hi);
	}
	if (*r->at != ']')
		r->fault = r->fault ? r->fault : "has a class without an end";
	else
		r->at++;
	if (negated)
		negate(&s, 1);
	emit_set(r->c->b, &s);
}

/* ---- structure ------------------------------------------------------------------------------------------------------------------------------------- */

static void choice(struct reader *r);

/* Behind the atom that begins here. */
static const char *atom_end(const char *p)
{
	int depth = 0, in_class = 0;

	do {
		if (*p == '\\' && p[1]) {
			for (int more = p[1] == 'x' ? 3 : p[1] == 'u' ? 5 : 1; more > 0 && p[1]; more--)
				p++;
		} else if (*p == '[') {
			in_class = 1;
		} else if (*p == ']') {
			in_class = 0;
		} else if (!in_class) {
			depth += (*p == '(') - (*p == ')');
		}
		if (*p)
			p++;
	} while (*p && (depth > 0 || in_class));
	while ((*p & 0xc0) == 0x80)
		p++;
	return p;
}

static void atom(struct reader *r)
{
	struct charset s = {0};
	int c = (uint8_t)*r->at, one;
	const char *from = r->at++;

	switch (c) {
	case '(':
		if (*r->at == '?' && r->at[1] == ':')
			r->at += 2;
		else if (*r->at == '?')
			r->fault = "has a group of a kind that is not known";
		if (++r->level > GROUPS_MAX)
			r->fault = "has too many groups in each other";
		if (!r->fault)
			choice(r);
		r->level--;
		if (*r->at != ')')
			r->fault = r->fault ? r->fault : "has a group without an end";
		else
			r->at++;
		return;
	case '[':
		class(r);
		return;
	case '.':
		add(&s, '\n', '\n');
		add(&s, '\r', '\r');
		negate(&s, 1);
		emit_set(r->c->b, &s);
		return;
	case '\\':
		if (escape(r, &s, &one))
			add(&s, one, one);
		emit_set(r->c->b, &s);
		return;
	case '^':
	case '$':
		r->fault = "has an anchor elsewhere than at its ends";
		return;
	case '*':
	case '+':
	case '?':
	case '{':
		r->fault = "has a quantifier with nothing before it";
		return;
	}
	if (c < 0x80) {
		add(&s, c, c);
		emit_set(r->c->b, &s);
		return;
	}
	while ((*r->at & 0xc0) == 0x80)
		r->at++;
	td_gb_text(r->c->b, from, (size_t)(r->at - from));
}

static uint32_t number(const char **p)
{
	uint32_t v = 0;

	for (; **p >= '0' && **p <= '9'; ++*p)
		v = v < 100000 ? v * 10 + (uint32_t)(**p - '0') : v;
	return v;
}

/* A quantifier at *p: 1, and *p behind it. */
static int quantifier(struct reader *r, const char **p, uint32_t *least, uint32_t *most)
{
	switch (**p) {
	case '?':
		*least = 0;
		*most = 1;
		break;
	case '*':
	case '+':
		*least = **p == '+';
		*most = TD_G_FOREVER;
		break;
	case '{':
		++*p;
		*least = *most = number(p);
		if (**p == ',') {
			++*p;
			*most = **p == '}' ? TD_G_FOREVER : number(p);
		}
		if (**p != '}' || *least > *most || *least > TIMES_MAX || (*most > TIMES_MAX && *most != TD_G_FOREVER))
			r->fault = "has a repeat that is broken, or of more than 1000 times";
		break;
	default:
		return 0;
	}
	*p += **p != 0;
	*p += **p == '?'; /* lazy: the same set of texts */
	return 1;
}

static void sequence(struct reader *r)
{
	while (*r->at && *r->at != '|' && *r->at != ')' && !r->fault && !r->c->b->full) {
		const char *end = atom_end(r->at);
		uint32_t least, most;

		if (end[0] == '$' && !end[1] && r->level == 0)
			end++;
		if (*r->at == '$' && !r->at[1] && r->level == 0)
			return;
		if (!quantifier(r, &end, &least, &most)) {
			atom(r);
			continue;
		}
		int over, rule = td_gb_rule(r->c->b, &over);

		atom(r);
		td_gb_rule_end(r->c->b, over);
		if (most)
			td_gb_repeat(r->c->b, rule, least, most);
		r->at = end;
	}
}

static void choice(struct reader *r)
{
	struct td_galt alt;

	td_gb_alt(&alt);
	for (;;) {
		td_gb_alt_next(r->c->b, &alt);
		sequence(r);
		if (*r->at != '|' || r->fault)
			break;
		r->at++;
	}
	td_gb_alt_end(r->c->b, &alt);
}

/* 1 when there is a '|' outside of all groups. */
static int has_choice(const char *p)
{
	while (*p && *p != '|')
		p = atom_end(p);
	return *p == '|';
}

static void anything(struct td_gbuild *b)
{
	td_gb_repeat(b, td_gb_part(b, TD_GB_STRCHAR), 0, TD_G_FOREVER);
}

static const char *pattern(struct td__schema *c, const char *text)
{
	struct reader r = {.c = c, .at = text};
	size_t n = strlen(text);
	int from_start = *text == '^', to_end = n && text[n - 1] == '$' && (n < 2 || text[n - 2] != '\\');

	if (!td_utf8_check(text, n))
		return "is not valid UTF-8";
	if ((from_start || to_end) && has_choice(text + from_start))
		return "has anchors and a choice outside of a group: put the choice into ( )";
	r.at += from_start;
	td_gb_byte(c->b, '"', '"');
	if (!from_start)
		anything(c->b);
	choice(&r);
	if (!to_end)
		anything(c->b);
	td_gb_byte(c->b, '"', '"');
	if (!r.fault && r.at != text + n - to_end)
		r.fault = "has a ) without a (";
	return c->b->full ? NULL : r.fault; /* it was not read to its end then, and td_gb_finish says why */
}

int td__pattern(struct td__schema *c, const char *text)
{
	int began = c->b->n_nodes, rc;
	const char *fault = pattern(c, text);

	if (!fault)
		return 0;
	if ((rc = td__schema_refuse(c, "pattern", fault)))
		return rc;
	c->b->n_nodes = began;
	td_gb_string(c->b, 0, TD_G_FOREVER);
	return 0;
}

int td__format(struct td__schema *c, const char *format)
{
#define DATE "[0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE_NUMBER "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
	static const struct {
		const char *name, *pattern;
	} known[] = {
		{"date", "^" DATE "$"},
		{"time", "^" TIME "$"},
		{"date-time", "^" DATE "T" TIME "$"},
		{"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
		{"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32})?@([A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?\\.){1,4}[A-Za-z]{2,16}$"},
		{"ipv4", "^(" BYTE_NUMBER "\\.){3}" BYTE_NUMBER "$"},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(known[i].name, format))
			return !pattern(c, known[i].pattern);
	return 0;
}
