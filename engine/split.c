/*
 * split.c: the split pattern by PCRE2, with the meaning that the reference gives it (the Oniguruma engine of the `tokenizers` package).
 *
 * The two engines differ in a few places, so the pattern is rewritten before it is compiled:
 *  - \s is Unicode's White_Space there; PCRE2's also holds U+180E (Mongolian vowel separator). It becomes an explicit class.
 *  - \w, \b, \h, ^, $, nested classes and && mean different things in the two. No known tokenizer needs them: they are refused with their name
 *    rather than mis-read, because wrong ids don't fail, they only make the model stupid.
 * \p{L} and its like follow the engines' versions of Unicode: letters newer than PCRE2's tables are split otherwise than by the reference.
 *
 * A long run must neither fail nor crash: PCRE2's machine code works on a small stack first, then on a large one, then the interpreter takes
 * over, whose memory is the heap; the match limit is lifted, since the patterns here don't nest repetitions.
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "engine/split.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <pcre2.h>

#include "engine/utf8.h"

#define SPACES "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

enum {
	PATTERN_MAX = 64 * 1024,
	GROWTH = 128, /* the longest replacement of two bytes of a pattern */
	JIT_STACK_START = 64 * 1024,
	JIT_STACK_MAX = 8 * 1024 * 1024,
};

struct td__split {
	pcre2_code *code;
	int jit;
};

/* One escape, at p[0] == '\\'. Returns the bytes read, 0 when it isn't one that both engines read alike. */
static size_t rewrite_escape(const char *p, size_t n, int in_class, char *out, size_t *used)
{
	const char *replaced = NULL;
	size_t len = 2;

	if (n < 2)
		return 0;
	if (p[1] == 's')
		replaced = in_class ? SPACES : "[" SPACES "]";
	else if (p[1] == 'S' && !in_class)
		replaced = "[^" SPACES "]";
	if (replaced) {
		memcpy(out + *used, replaced, strlen(replaced));
		*used += strlen(replaced);
		return 2;
	}
	if (strchr("pPx", p[1]) && n > 2 && p[2] == '{') {
		while (len < n && p[len] != '}')
			len++;
		len++;
		if (len > n || len > GROWTH)
			return 0;
	} else if (!strchr("rntdD", p[1]) && ((unsigned char)p[1] >= 0x80 || strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", p[1]))) {
		return 0;
	}
	memcpy(out + *used, p, len);
	*used += len;
	return len;
}

static int rewrite(const char *pattern, size_t n, char *out, size_t *out_n, struct td_error *err)
{
	size_t i = 0, used = 0, len, class_start = 0;
	int in_class = 0;

	while (i < n) {
		char c = pattern[i];

		if (c == '\\') {
			len = rewrite_escape(pattern + i, n - i, in_class, out, &used);
			if (!len)
				return td_error_set(err, TD_E_UNSUPPORTED, "split pattern: the escape %.*s at byte %zu is not supported", n - i < 2 ? 1 : 2,
						    pattern + i, i);
			i += len;
			continue;
		}
		if (in_class && (c == '[' || (c == '&' && i + 1 < n && pattern[i + 1] == '&')))
			return td_error_set(err, TD_E_UNSUPPORTED, "split pattern: a class inside a class, at byte %zu, is not supported", i);
		if (!in_class && (c == '^' || c == '$'))
			return td_error_set(err, TD_E_UNSUPPORTED, "split pattern: the anchor %c at byte %zu is not supported", c, i);
		if (!in_class && c == '[') {
			in_class = 1;
			class_start = i + 1 < n && pattern[i + 1] == '^' ? i + 2 : i + 1;
		} else if (in_class && c == ']' && i != class_start) {
			in_class = 0;
		}
		out[used++] = c;
		i++;
	}
	*out_n = used;
	return 0;
}

int td__split_create(const char *pattern, size_t n, int jit, struct td__split **split, struct td_error *err)
{
	struct td__split *s = NULL;
	char *text = NULL;
	PCRE2_UCHAR message[160];
	size_t text_n;
	PCRE2_SIZE at;
	int code, number;

	*split = NULL;
	if (n > PATTERN_MAX)
		return td_error_set(err, TD_E_UNSUPPORTED, "split pattern: %zu bytes are too long, %d are the limit", n, PATTERN_MAX);
	text = malloc(n * (GROWTH / 2) + GROWTH);
	s = calloc(1, sizeof(*s));
	if (!text || !s) {
		code = td_error_set(err, TD_E_NOMEM, "out of memory while compiling the split pattern");
		goto failed;
	}
	if ((code = rewrite(pattern, n, text, &text_n, err)))
		goto failed;
	s->code = pcre2_compile((PCRE2_SPTR)text, text_n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &number, &at, NULL);
	if (!s->code) {
		pcre2_get_error_message(number, message, sizeof(message));
		code = td_error_set(err, TD_E_UNSUPPORTED, "split pattern: %s, at byte %zu of %s", (char *)message, (size_t)at, "the pattern as PCRE2 gets it");
		goto failed;
	}
	/* No machine code where the system forbids writable code pages: the interpreter gives the same pieces. */
	s->jit = jit && !pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE);
	free(text);
	*split = s;
	return 0;
failed:
	free(text);
	free(s);
	return code;
}

void td__split_destroy(struct td__split *split)
{
	if (!split)
		return;
	pcre2_code_free(split->code);
	free(split);
}

int td__split_work_init(struct td__split_work *w, const struct td__split *split, struct td_error *err)
{
	memset(w, 0, sizeof(*w));
	if (!split)
		return 0;
	w->match = pcre2_match_data_create(1, NULL);
	w->context = pcre2_match_context_create(NULL);
	if (!w->match || !w->context) {
		td__split_work_finish(w);
		return td_error_set(err, TD_E_NOMEM, "out of memory while splitting a text");
	}
	pcre2_set_match_limit(w->context, UINT32_MAX);
	w->interpret = !split->jit;
	return 0;
}

void td__split_work_finish(struct td__split_work *w)
{
	pcre2_match_data_free(w->match);
	pcre2_match_context_free(w->context);
	pcre2_jit_stack_free(w->stack);
	memset(w, 0, sizeof(*w));
}

/* One search, by machine code first. Returns PCRE2's answer. */
static int search(const struct td__split_walk *walk)
{
	struct td__split_work *w = walk->work;
	PCRE2_SPTR text = (PCRE2_SPTR)walk->text;
	int answer;

	while (!w->interpret) {
		answer = pcre2_jit_match(walk->split->code, text, walk->n, walk->from, PCRE2_NO_UTF_CHECK, w->match, w->context);
		if (answer != PCRE2_ERROR_JIT_STACKLIMIT)
			return answer;
		if (!w->stack)
			w->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
		else
			w->interpret = 1;
		if (!w->stack)
			w->interpret = 1;
		else
			pcre2_jit_stack_assign(w->context, NULL, w->stack);
	}
	return pcre2_match(walk->split->code, text, walk->n, walk->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match, w->context);
}

/* Finds the next match as the reference walks: an empty match right behind a match doesn't count. 1 found, 0 none, negative error. */
static int find(struct td__split_walk *walk, struct td_error *err)
{
	PCRE2_UCHAR message[160];
	PCRE2_SIZE *v;
	uint32_t c;
	int answer;

	while (walk->from <= walk->n) {
		answer = search(walk);
		if (answer == PCRE2_ERROR_NOMATCH)
			return 0;
		if (answer == PCRE2_ERROR_NOMEMORY || answer == PCRE2_ERROR_HEAPLIMIT)
			return td_error_set(err, TD_E_NOMEM, "out of memory while splitting a text of %zu bytes", walk->n);
		if (answer < 0) {
			pcre2_get_error_message(answer, message, sizeof(message));
			return td_error_set(err, TD_E_INTERNAL, "the split pattern can't be matched at byte %zu: %s", walk->from, (char *)message);
		}
		v = pcre2_get_ovector_pointer(walk->work->match);
		if (v[0] != v[1] || !walk->matched || walk->last_end != v[1]) {
			walk->next = v[0];
			walk->next_end = walk->last_end = walk->from = v[1];
			walk->matched = 1;
			return 1;
		}
		walk->from += walk->from < walk->n ? (size_t)td__utf8_get(walk->text + walk->from, &c) : 1;
	}
	return 0;
}

int td__split_next(struct td__split_walk *walk, size_t *start, size_t *end, struct td_error *err)
{
	int found;

	for (;;) {
		if (!walk->waiting && !walk->done) {
			found = walk->split ? find(walk, err) : 0;
			if (found < 0)
				return found;
			walk->waiting = found;
			if (!found) {
				walk->done = 1;
				walk->next = walk->n;
			}
		}
		/* What no match covers is a piece too. */
		*start = walk->given;
		*end = walk->next;
		if (*start < *end) {
			walk->given = *end;
			return 1;
		}
		if (!walk->waiting)
			return 0;
		walk->waiting = 0;
		walk->given = walk->next_end;
		*start = walk->next;
		*end = walk->next_end;
		if (*start < *end)
			return 1;
	}
}
