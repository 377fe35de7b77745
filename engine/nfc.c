/*
 * nfc.c: Unicode normalization form C on top of utf8proc's tables.
 *
 * utf8proc_map would do in one call, but it puts combining marks in order by swapping neighbours, which takes quadratic time on a long run
 * of marks: a client could hold the daemon for minutes with one megabyte. So the ordering is done here (counting sort by class), and only
 * decomposition of one code point and composition are asked of the library.
 *
 * Most text is already in form C. A *boundary* is a code point that composes with nothing before it and does not decompose; between two
 * boundaries text can be normalized alone. Spans without anything else are copied, or not even that: unchanged text is returned as it came.
 * The caller owns the working memory; nothing here is shared between threads.
 */
#include "engine/nfc.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/utf8.h"

enum {
	DECOMPOSED_MAX = 8, /* code points one code point decomposes into (4 is the most today) */
	SMALL_RUN = 16,
	CLASSES = 256,
};
#define OPTIONS ((utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE))

void td__nfc_finish(struct td__nfc *w)
{
	free(w->text);
	free(w->code);
	free(w->sorted);
	memset(w, 0, sizeof(*w));
}

/*
 * Anything that may compose with what stands before it is a mark, a Hangul vowel or final consonant, or a Kirat Rai vowel (letters that
 * compose with one another, Unicode 16). A test holds this against the library's own table.
 */
static int is_boundary(uint32_t c)
{
	const utf8proc_property_t *p;
	int32_t d[DECOMPOSED_MAX];
	int class = 0;

	if (c < 0x300)
		return 1;
	if ((c >= 0x3400 && c <= 0x9fff) || (c >= 0xac00 && c <= 0xd7a3)) /* ideographs; Hangul syllables compose only forwards */
		return 1;
	if ((c >= 0x1160 && c <= 0x11ff) || (c >= 0x16d63 && c <= 0x16d6a))
		return 0;
	p = utf8proc_get_property((int32_t)c);
	if (p->combining_class || p->category == UTF8PROC_CATEGORY_MN || p->category == UTF8PROC_CATEGORY_MC || p->category == UTF8PROC_CATEGORY_ME)
		return 0;
	return utf8proc_decompose_char((int32_t)c, d, DECOMPOSED_MAX, OPTIONS, &class) == 1 && d[0] == (int32_t)c;
}

static int room(void **p, size_t *size, size_t need, size_t unit, struct td_error *err)
{
	size_t grown = need + need / 2 + 64;
	void *q;

	if (need <= *size)
		return 0;
	q = realloc(*p, grown * unit);
	if (!q)
		return td_error_set(err, TD_E_NOMEM, "out of memory while normalizing a text");
	*p = q;
	*size = grown;
	return 0;
}

static int class_of(int32_t c)
{
	return utf8proc_get_property(c)->combining_class;
}

/* Stable order by combining class of one run of marks. */
static void order_run(int32_t *run, size_t n, int32_t *spare)
{
	size_t count[CLASSES + 1] = {0}, i, j;

	if (n <= SMALL_RUN) {
		for (i = 1; i < n; i++) {
			int32_t c = run[i];
			int class = class_of(c);

			for (j = i; j && class_of(run[j - 1]) > class; j--)
				run[j] = run[j - 1];
			run[j] = c;
		}
		return;
	}
	for (i = 0; i < n; i++)
		count[class_of(run[i]) + 1]++;
	for (i = 0; i < CLASSES; i++)
		count[i + 1] += count[i];
	for (i = 0; i < n; i++)
		spare[count[class_of(run[i])]++] = run[i];
	memcpy(run, spare, n * sizeof(*run));
}

static void order(int32_t *code, size_t n, int32_t *spare)
{
	size_t i, start;

	for (i = 0; i < n; i++) {
		if (!class_of(code[i]))
			continue;
		for (start = i; i < n && class_of(code[i]); i++)
			;
		order_run(code + start, i - start, spare);
	}
}

static int append(struct td__nfc *w, const char *text, size_t n, struct td_error *err)
{
	if (!n)
		return 0;
	if (room((void **)&w->text, &w->text_size, w->n + n, 1, err))
		return TD_E_NOMEM;
	memcpy(w->text + w->n, text, n);
	w->n += n;
	return 0;
}

/* Normalizes one span and appends it. */
static int append_span(struct td__nfc *w, const char *text, size_t n, struct td_error *err)
{
	size_t used = 0, i = 0, size;
	ssize_t composed, k;

	while (i < n) {
		int32_t *grown;
		uint32_t c;
		int class = 0;

		size = w->code_size;
		if (room((void **)&w->code, &w->code_size, used + DECOMPOSED_MAX, sizeof(*w->code), err))
			return TD_E_NOMEM;
		if (w->code_size != size) {
			grown = realloc(w->sorted, w->code_size * sizeof(*grown));
			if (!grown) {
				w->code_size = size;
				return td_error_set(err, TD_E_NOMEM, "out of memory while normalizing a text");
			}
			w->sorted = grown;
		}
		i += (size_t)td__utf8_get(text + i, &c);
		k = utf8proc_decompose_char((int32_t)c, w->code + used, DECOMPOSED_MAX, OPTIONS, &class);
		if (k < 0 || k > DECOMPOSED_MAX)
			return td_error_set(err, TD_E_INTERNAL, "utf8proc can't decompose U+%04X: %s", c, utf8proc_errmsg(k));
		used += (size_t)k;
	}
	order(w->code, used, w->sorted);
	composed = utf8proc_normalize_utf32(w->code, (ssize_t)used, OPTIONS);
	if (composed < 0)
		return td_error_set(err, TD_E_INTERNAL, "utf8proc can't compose a text: %s", utf8proc_errmsg(composed));
	if (room((void **)&w->text, &w->text_size, w->n + 4 * (size_t)composed, 1, err))
		return TD_E_NOMEM;
	for (k = 0; k < composed; k++)
		w->n += (size_t)td__utf8_put((uint32_t)w->code[k], w->text + w->n);
	return 0;
}

int td__nfc_apply(struct td__nfc *w, const char *text, size_t n, const char **out, size_t *out_n, struct td_error *err)
{
	size_t i = 0, boundary = 0, copied = 0, end;
	uint32_t c;
	int len, code;

	w->n = 0;
	while (i < n) {
		len = td__utf8_get(text + i, &c);
		if (is_boundary(c)) {
			boundary = i;
			i += (size_t)len;
			continue;
		}
		for (end = i + (size_t)len; end < n; end += (size_t)len) {
			len = td__utf8_get(text + end, &c);
			if (is_boundary(c))
				break;
		}
		if ((code = append(w, text + copied, boundary - copied, err)) || (code = append_span(w, text + boundary, end - boundary, err)))
			return code;
		copied = i = end; /* a boundary stands there */
	}
	*out = text;
	*out_n = n;
	if (!copied) /* no span was touched: it came in form C */
		return 0;
	if ((code = append(w, text + copied, n - copied, err)))
		return code;
	*out = w->text;
	*out_n = w->n;
	return 0;
}
