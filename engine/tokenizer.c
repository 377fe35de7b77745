/*
 * tokenizer.c: text to ids, and what may be asked of a loaded tokenizer.
 *
 * A tokenizer is read-only after load; each td_encode makes its own working memory, so that one instance serves any number of threads. On an
 * error nothing is appended. Text that isn't valid UTF-8 is refused here once, because everything below trusts it.
 */
#include "engine/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/nfc.h"
#include "engine/tokenizer_impl.h"

enum { TEXT_MAX = 256 * 1024 * 1024 }; /* sizes below are 32-bit; normalization can triple a text */

struct work {
	struct td__nfc nfc;
	struct td__split_work split;
	struct td__bpe_work bpe;
};

void td_spans_finish(struct td_spans *s)
{
	free(s->span);
	memset(s, 0, sizeof(*s));
}

int td_tokenizer_size(const struct td_tokenizer *t)
{
	return t->bpe.n_tokens;
}

int td_tokenizer_added(const struct td_tokenizer *t, const char *text)
{
	const struct td__added_token *found = td__added_exact(&t->added, text, strlen(text));

	return found ? found->id : -1;
}

int td_tokenizer_is_special(const struct td_tokenizer *t, int id)
{
	return id >= 0 && id < t->bpe.n_tokens && (t->bpe.token[id].flags & TD__TOKEN_SPECIAL);
}

int td_tokenizer_is_added(const struct td_tokenizer *t, int id)
{
	return id >= 0 && id < t->bpe.n_tokens && (t->bpe.token[id].flags & TD__TOKEN_ADDED);
}

const char *td_token_bytes(const struct td_tokenizer *t, int id, size_t *n)
{
	*n = 0;
	if (id < 0 || id >= t->bpe.n_tokens || !t->bpe.token[id].bytes)
		return NULL;
	*n = t->bpe.token[id].n;
	return t->bpe.token[id].bytes;
}

/* Text between added tokens. */
static int encode_plain(const struct td_tokenizer *t, struct work *w, const char *text, size_t n, struct td_ids *out, struct td_error *err)
{
	struct td__split_walk walk = {.split = t->split, .work = &w->split};
	size_t start, end;
	int more, code;

	if (!n)
		return 0;
	if (t->nfc && (code = td__nfc_apply(&w->nfc, text, n, &text, &n, err)))
		return code;
	walk.text = text;
	walk.n = n;
	while ((more = td__split_next(&walk, &start, &end, err)) > 0)
		if ((code = td__bpe_piece(&t->bpe, &w->bpe, text + start, end - start, out, err)))
			return code;
	return more;
}

/* Added tokens are looked for in the gaps between the guarded ranges only; what lies between two found ones is one text. */
static int encode_all(const struct td_tokenizer *t, struct work *w, const char *text, size_t n, const struct td_spans *guarded, struct td_ids *out,
		      struct td_error *err)
{
	const struct td__added_token *found;
	size_t from = 0, at = 0, start;
	int code;

	for (size_t i = 0; i <= guarded->n; i++) {
		size_t end = i < guarded->n ? guarded->span[i].from : n;

		while ((found = td__added_find(&t->added, text, end, at, &start))) {
			if ((code = encode_plain(t, w, text + from, start - from, out, err)) || (code = td__ids_push(out, found->id, err)))
				return code;
			from = at = start + found->n;
		}
		if (i < guarded->n)
			at = guarded->span[i].to;
	}
	return encode_plain(t, w, text + from, n - from, out, err);
}

int td_encode(const struct td_tokenizer *t, const char *text, size_t n, int parse_added, struct td_ids *out, struct td_error *err)
{
	struct td_span all = {0, n};
	const struct td_spans guarded = {.span = &all, .n = parse_added ? 0 : 1};

	return td_encode_guarded(t, text, n, &guarded, out, err);
}

int td_encode_guarded(const struct td_tokenizer *t, const char *text, size_t n, const struct td_spans *guarded, struct td_ids *out, struct td_error *err)
{
	struct work w = {0};
	size_t before = out->n;
	int code;

	if (!n)
		return 0;
	if (n > TEXT_MAX)
		return td_error_set(err, TD_E_TOO_LARGE, "the text has %zu bytes, %d are the most that can be tokenized at once", n, TEXT_MAX);
	if (!td_utf8_check(text, n))
		return td_error_set(err, TD_E_INVALID, "the text is not valid UTF-8: send it as UTF-8, or as token ids");
	code = td__split_work_init(&w.split, t->split, err);
	if (!code)
		code = encode_all(t, &w, text, n, guarded, out, err);
	if (code)
		out->n = before;
	td__nfc_finish(&w.nfc);
	td__split_work_finish(&w.split);
	td__bpe_work_finish(&w.bpe);
	return code;
}
