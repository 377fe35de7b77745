/*
 * grammar_json.c: the parts that JSON is made of, as grammar code (grammar_build.h).
 *
 * White space is bounded, so that no answer can be filled with it, and numbers are, so that every reader takes them: up to 18 digits before the point,
 * 17 after it, an exponent of two digits. A string holds anything that JSON and UTF-8 allow, but for \u0000, which many readers refuse.
 */
#include <string.h>

#include "engine/grammar_build.h"

static void ascii_add(uint8_t set[16], int lo, int hi)
{
	for (int c = lo; c <= hi; c++)
		set[c / 8] |= (uint8_t)(1 << c % 8);
}

static void plain(uint8_t set[16])
{
	for (int c = 0; c < 128; c++)
		if (td_g_plain((uint8_t)c))
			ascii_add(set, c, c);
}

static void hexes(struct td_gbuild *b, uint32_t n)
{
	td_gb_repeat(b, td_gb_part(b, TD_GB_HEX), n, n);
}

/* What follows "\u": any code but 0000 and lone surrogates; a pair of them is one character. */
static void unicode(struct td_gbuild *b)
{
	static const char *const high[] = {"dD", "89abAB", NULL}, *const low[] = {"dD", "cdefCDEF", NULL};
	uint8_t set[16];
	struct td_galt alt, pair;

	td_gb_alt(&alt);
	td_gb_alt_next(b, &alt); /* first digit neither 0 nor d */
	memset(set, 0, sizeof(set));
	ascii_add(set, '1', '9');
	ascii_add(set, 'a', 'c');
	ascii_add(set, 'e', 'f');
	ascii_add(set, 'A', 'C');
	ascii_add(set, 'E', 'F');
	td_gb_char(b, set, 0);
	hexes(b, 3);
	for (uint32_t zeros = 1; zeros < 4; zeros++) { /* as many zeros, then something else */
		td_gb_alt_next(b, &alt);
		td_gb_text(b, "000", zeros);
		memset(set, 0, sizeof(set));
		ascii_add(set, '1', '9');
		ascii_add(set, 'a', 'f');
		ascii_add(set, 'A', 'F');
		td_gb_char(b, set, 0);
		if (zeros < 3)
			hexes(b, 3 - zeros);
	}
	td_gb_alt_next(b, &alt); /* d0 to d7, or a pair */
	memset(set, 0, sizeof(set));
	ascii_add(set, 'd', 'd');
	ascii_add(set, 'D', 'D');
	td_gb_char(b, set, 0);
	td_gb_alt(&pair);
	td_gb_alt_next(b, &pair);
	td_gb_byte(b, '0', '7');
	hexes(b, 2);
	td_gb_alt_next(b, &pair);
	memset(set, 0, sizeof(set));
	for (const char *p = high[1]; *p; p++)
		ascii_add(set, *p, *p);
	td_gb_char(b, set, 0);
	hexes(b, 2);
	td_gb_puts(b, "\\u");
	for (int i = 0; low[i]; i++) {
		memset(set, 0, sizeof(set));
		for (const char *p = low[i]; *p; p++)
			ascii_add(set, *p, *p);
		td_gb_char(b, set, 0);
	}
	hexes(b, 2);
	td_gb_alt_end(b, &pair);
	td_gb_alt_end(b, &alt);
}

/* The walk knows this form (is_string in grammar.c): a split, first to the plain characters, which return at once. */
static void strchar(struct td_gbuild *b)
{
	static const char escapes[] = "\"\\/bfnrt";
	uint8_t set[16] = {0};
	struct td_galt alt;

	td_gb_emit(b, TD_G_SPLIT, 0, 0, b->n_nodes + 1, b->n_nodes + 3);
	plain(set);
	td_gb_char(b, set, 1);
	td_gb_emit(b, TD_G_RET, 0, 0, 0, 0);
	td_gb_byte(b, '\\', '\\');
	memset(set, 0, sizeof(set));
	for (const char *p = escapes; *p; p++)
		ascii_add(set, *p, *p);
	td_gb_alt(&alt);
	td_gb_alt_next(b, &alt);
	td_gb_char(b, set, 0);
	td_gb_alt_next(b, &alt);
	td_gb_byte(b, 'u', 'u');
	unicode(b);
	td_gb_alt_end(b, &alt);
}

static void space(struct td_gbuild *b)
{
	uint8_t blank[16] = {0};
	struct td_galt alt;
	int over, rule = td_gb_rule(b, &over);

	ascii_add(blank, ' ', ' ');
	ascii_add(blank, '\t', '\t');
	td_gb_char(b, blank, 0);
	td_gb_rule_end(b, over);
	td_gb_alt(&alt);
	td_gb_alt_next(b, &alt);
	td_gb_alt_next(b, &alt);
	td_gb_byte(b, ' ', ' ');
	td_gb_alt_next(b, &alt);
	td_gb_byte(b, '\n', '\n');
	td_gb_repeat(b, rule, 0, TD_GB_INDENT);
	td_gb_alt_end(b, &alt);
}

/* open, nothing or items with commas between, close; what the item needs is there already. */
static void listed(struct td_gbuild *b, char open, char close, void (*item)(struct td_gbuild *b))
{
	struct td_galt alt;
	int over, more = td_gb_rule(b, &over);

	td_gb_byte(b, ',', ',');
	td_gb_space(b);
	item(b);
	td_gb_rule_end(b, over);
	td_gb_byte(b, open, open);
	td_gb_space(b);
	td_gb_alt(&alt);
	td_gb_alt_next(b, &alt);
	td_gb_byte(b, close, close);
	td_gb_alt_next(b, &alt);
	item(b);
	td_gb_repeat(b, more, 0, TD_G_FOREVER);
	td_gb_space(b);
	td_gb_byte(b, close, close);
	td_gb_alt_end(b, &alt);
}

static void any(struct td_gbuild *b)
{
	struct td_galt alt;

	td_gb_alt(&alt);
	td_gb_alt_next(b, &alt);
	td_gb_string(b, 0, TD_G_FOREVER);
	td_gb_alt_next(b, &alt);
	td_gb_number(b);
	td_gb_alt_next(b, &alt);
	td_gb_puts(b, "true");
	td_gb_alt_next(b, &alt);
	td_gb_puts(b, "false");
	td_gb_alt_next(b, &alt);
	td_gb_puts(b, "null");
	td_gb_alt_next(b, &alt);
	td_gb_object(b);
	td_gb_alt_next(b, &alt);
	listed(b, '[', ']', td_gb_any);
	td_gb_alt_end(b, &alt);
}

static void hex(struct td_gbuild *b)
{
	uint8_t set[16] = {0};

	ascii_add(set, '0', '9');
	ascii_add(set, 'a', 'f');
	ascii_add(set, 'A', 'F');
	td_gb_char(b, set, 0);
}

int td_gb_part(struct td_gbuild *b, enum td_gb_part part)
{
	int over;

	if (b->part[part])
		return b->part[part] - 1;
	b->part[part] = td_gb_rule(b, &over) + 1; /* known before it is written: a value may hold values */
	switch (part) {
	case TD_GB_WS:
		space(b);
		break;
	case TD_GB_STRCHAR:
		td_gb_part(b, TD_GB_HEX); /* the jump over a rule must not stand where strchar's split is looked for */
		b->part[part] = b->n_nodes + 1;
		strchar(b);
		break;
	case TD_GB_DIGIT:
		td_gb_byte(b, '0', '9');
		break;
	case TD_GB_HEX:
		hex(b);
		break;
	default:
		any(b);
		break;
	}
	td_gb_rule_end(b, over);
	return b->part[part] - 1;
}

void td_gb_space(struct td_gbuild *b)
{
	int rule = td_gb_part(b, TD_GB_WS);

	td_gb_call(b, rule);
}

/* Code that may be left out. */
static int maybe(struct td_gbuild *b)
{
	return td_gb_emit(b, TD_G_SPLIT, 0, 0, b->n_nodes + 1, 0);
}

static void maybe_end(struct td_gbuild *b, int split)
{
	b->node[split].b = (uint16_t)b->n_nodes;
}

void td_gb_colon(struct td_gbuild *b)
{
	int split;

	td_gb_byte(b, ':', ':');
	split = maybe(b);
	td_gb_byte(b, ' ', ' ');
	maybe_end(b, split);
}

void td_gb_string(struct td_gbuild *b, uint32_t least, uint32_t most)
{
	int rule = td_gb_part(b, TD_GB_STRCHAR);

	td_gb_byte(b, '"', '"');
	td_gb_repeat(b, rule, least, most);
	td_gb_byte(b, '"', '"');
}

void td_gb_any(struct td_gbuild *b)
{
	int rule = td_gb_part(b, TD_GB_ANY);

	td_gb_call(b, rule);
}

static void any_member(struct td_gbuild *b)
{
	td_gb_string(b, 0, TD_G_FOREVER);
	td_gb_colon(b);
	td_gb_any(b);
}

void td_gb_object(struct td_gbuild *b)
{
	td_gb_part(b, TD_GB_ANY);
	listed(b, '{', '}', any_member);
}

/* ---- numbers --------------------------------------------------------------------------------------------------------------------------------------- */

static void digits(struct td_gbuild *b, uint32_t least, uint32_t most)
{
	int rule = td_gb_part(b, TD_GB_DIGIT);

	if (most)
		td_gb_repeat(b, rule, least, most);
}

static void fraction(struct td_gbuild *b)
{
	int split = maybe(b);

	td_gb_byte(b, '.', '.');
	digits(b, 1, TD_GB_DIGITS - 1);
	maybe_end(b, split);
}

void td_gb_number(struct td_gbuild *b)
{
	static const uint8_t e[16] = {['e' / 8] = 1 << 'e' % 8, ['E' / 8] = 1 << 'E' % 8}, sign[16] = {['+' / 8] = 1 << '+' % 8 | 1 << '-' % 8};
	struct td_galt alt;
	int split = maybe(b), inner;

	td_gb_byte(b, '-', '-');
	maybe_end(b, split);
	td_gb_alt(&alt);
	td_gb_alt_next(b, &alt);
	td_gb_byte(b, '0', '0');
	td_gb_alt_next(b, &alt);
	td_gb_byte(b, '1', '9');
	digits(b, 0, TD_GB_DIGITS - 1);
	td_gb_alt_end(b, &alt);
	fraction(b);
	split = maybe(b);
	td_gb_char(b, e, 0);
	inner = maybe(b);
	td_gb_char(b, sign, 0);
	maybe_end(b, inner);
	digits(b, 1, 2);
	maybe_end(b, split);
}

static int all(const char *digit, int n, char what)
{
	for (int i = 0; i < n; i++)
		if (digit[i] != what)
			return 0;
	return 1;
}

/* n digits, from lo to hi. */
static void same_length(struct td_gbuild *b, const char *lo, const char *hi, int n)
{
	static const char nines[] = "999999999999999999", zeros[] = "000000000000000000";
	struct td_galt alt;
	int from, to;

	while (n > 0 && *lo == *hi) {
		td_gb_byte(b, *lo, *lo);
		lo++;
		hi++;
		n--;
	}
	if (n == 0)
		return;
	from = *lo + !all(lo + 1, n - 1, '0'); /* first digits that leave the others free */
	to = *hi - !all(hi + 1, n - 1, '9');
	td_gb_alt(&alt);
	if (from > *lo) {
		td_gb_alt_next(b, &alt);
		td_gb_byte(b, *lo, *lo);
		same_length(b, lo + 1, nines, n - 1);
	}
	if (from <= to) {
		td_gb_alt_next(b, &alt);
		td_gb_byte(b, from, to);
		digits(b, (uint32_t)n - 1, (uint32_t)n - 1);
	}
	if (to < *hi) {
		td_gb_alt_next(b, &alt);
		td_gb_byte(b, *hi, *hi);
		same_length(b, zeros, hi + 1, n - 1);
	}
	td_gb_alt_end(b, &alt);
}

static void write_digits(int64_t v, char *out, int n)
{
	for (int i = n - 1; i >= 0; i--, v /= 10)
		out[i] = (char)('0' + v % 10);
}

/* Whole numbers 0 <= lo <= hi. Lengths of which all numbers are in are one alternative, so that a plain integer is a few instructions. */
static void natural(struct td_gbuild *b, int64_t lo, int64_t hi)
{
	struct td_galt alt;
	int64_t power = 1;
	uint32_t first = 0, last = 0; /* lengths that are whole */

	td_gb_alt(&alt);
	if (lo == 0) {
		td_gb_alt_next(b, &alt);
		td_gb_byte(b, '0', '0');
	}
	for (int n = 1; n <= TD_GB_DIGITS; n++) {
		int64_t least = power, most = power * 10 - 1; /* of n digits, 0 apart */
		char from[TD_GB_DIGITS], to[TD_GB_DIGITS];

		power *= 10;
		if (lo > most || hi < least)
			continue;
		if (lo <= least && hi >= most) {
			first = first ? first : (uint32_t)n;
			last = (uint32_t)n;
			continue;
		}
		write_digits(lo > least ? lo : least, from, n);
		write_digits(hi < most ? hi : most, to, n);
		td_gb_alt_next(b, &alt);
		same_length(b, from, to, n);
	}
	if (first) {
		td_gb_alt_next(b, &alt);
		td_gb_byte(b, '1', '9');
		digits(b, first - 1, last - 1);
	}
	td_gb_alt_end(b, &alt);
}

/* 0 <= lo <= hi; with a fraction below hi, which itself may only have zeros there. */
static void positive(struct td_gbuild *b, int64_t lo, int64_t hi, int whole)
{
	struct td_galt alt;

	if (whole || hi == TD_GB_MOST) {
		natural(b, lo, hi);
		if (!whole)
			fraction(b);
		return;
	}
	td_gb_alt(&alt);
	if (lo < hi) {
		td_gb_alt_next(b, &alt);
		natural(b, lo, hi - 1);
		fraction(b);
	}
	td_gb_alt_next(b, &alt);
	natural(b, hi, hi);
	int split = maybe(b);

	td_gb_puts(b, ".0");
	maybe_end(b, split);
	td_gb_alt_end(b, &alt);
}

void td_gb_range(struct td_gbuild *b, int64_t lo, int64_t hi, int whole)
{
	struct td_galt alt;

	lo = lo < -TD_GB_MOST ? -TD_GB_MOST : lo;
	hi = hi > TD_GB_MOST ? TD_GB_MOST : hi;
	td_gb_alt(&alt);
	if (lo <= hi && hi >= 0) {
		td_gb_alt_next(b, &alt);
		positive(b, lo > 0 ? lo : 0, hi, whole);
	}
	if (lo <= hi && lo < 0) {
		int64_t least = hi < 0 ? -hi : whole;

		td_gb_alt_next(b, &alt);
		td_gb_byte(b, '-', '-');
		positive(b, least, -lo, whole);
	}
	td_gb_alt_end(b, &alt);
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------------------------------ */

/* The rest of a key that is like names [0, n) so far: it must leave them all. Where a name goes on with a character that is not ASCII, no such
 * character may come: a little less than what is allowed, and never more. */
static void other_key(struct td_gbuild *b, int rule, const struct td_gtext *t, size_t n, size_t k)
{
	uint8_t rest[16] = {0};
	struct td_galt alt;
	int others = 1, ended = 0;

	plain(rest);
	for (size_t i = 0; i < n; i++) {
		uint8_t c = t[i].n > k ? (uint8_t)t[i].s[k] : 0;

		ended |= t[i].n <= k;
		others &= c < 0x80;
		if (t[i].n > k && c < 0x80)
			rest[c / 8] &= (uint8_t)~(1 << c % 8);
	}
	td_gb_alt(&alt);
	if (!ended) {
		td_gb_alt_next(b, &alt);
		td_gb_byte(b, '"', '"');
	}
	td_gb_alt_next(b, &alt);
	td_gb_char(b, rest, others);
	td_gb_repeat(b, rule, 0, TD_G_FOREVER);
	td_gb_byte(b, '"', '"');
	for (size_t i = 0, j; i < n && !b->full; i = j) {
		uint8_t c = t[i].n > k ? (uint8_t)t[i].s[k] : 0;

		for (j = i + 1; j < n && (t[j].n > k ? (uint8_t)t[j].s[k] : 0) == c; j++)
			;
		if (!td_g_plain(c))
			continue;
		td_gb_alt_next(b, &alt);
		td_gb_byte(b, c, c);
		other_key(b, rule, t + i, j - i, k + 1);
	}
	td_gb_alt_end(b, &alt);
}

void td_gb_other_key(struct td_gbuild *b, struct td_gtext *name, size_t n)
{
	uint8_t set[16] = {0};
	int over, rule = td_gb_rule(b, &over);

	plain(set);
	td_gb_char(b, set, 1);
	td_gb_rule_end(b, over);
	td_gb_texts_sort(name, n);
	td_gb_byte(b, '"', '"');
	other_key(b, rule, name, n, 0);
}
