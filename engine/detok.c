/*
 * detok.c: ids to text.
 *
 * Tokens are bytes, and a character may be spread over several of them. Both the whole and the streaming decoder run the same machine, so that a
 * stream cut anywhere equals the whole: the bytes of a sequence that may still become valid are held (at most three); the byte that proves them
 * invalid turns what is held into one U+FFFD and is looked at afresh. That is one U+FFFD per maximal invalid part, as the reference does.
 * A skipped special token leaves what is held alone: the reference drops such tokens before it joins the bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer.h"
#include "engine/utf8.h"

static const char replacement[3] = {(char)0xef, (char)0xbf, (char)0xbd};

void td_detok_init(struct td_detok *d, const struct td_tokenizer *t, int skip_special)
{
	memset(d, 0, sizeof(*d));
	d->t = t;
	d->skip_special = skip_special;
}

static size_t replace_held(struct td_detok *d, char *out)
{
	if (!d->n_held)
		return 0;
	d->n_held = 0;
	memcpy(out, replacement, sizeof(replacement));
	return sizeof(replacement);
}

static size_t push_byte(struct td_detok *d, uint8_t byte, char *out)
{
	size_t used = 0, len;

	d->held[d->n_held] = byte;
	len = td__utf8_prefix(d->held, (size_t)d->n_held + 1);
	if (!len && d->n_held) {
		used = replace_held(d, out);
		d->held[0] = byte;
		len = td__utf8_prefix(d->held, 1);
	}
	d->n_held++;
	if (!len)
		return used + replace_held(d, out + used);
	if ((size_t)d->n_held < len)
		return used;
	memcpy(out + used, d->held, len);
	d->n_held = 0;
	return used + len;
}

size_t td_detok_push(struct td_detok *d, int32_t id, char *out)
{
	size_t n, i = 0, used = 0;
	const char *bytes = td_token_bytes(d->t, id, &n);

	if (!bytes || (d->skip_special && td_tokenizer_is_special(d->t, id)))
		return 0;
	while (i < n) {
		if (!d->n_held && (unsigned char)bytes[i] < 0x80)
			out[used++] = bytes[i];
		else
			used += push_byte(d, (uint8_t)bytes[i], out + used);
		i++;
	}
	return used;
}

size_t td_detok_flush(struct td_detok *d, char *out)
{
	return replace_held(d, out);
}

char *td_decode(const struct td_tokenizer *t, const int32_t *ids, size_t n, int skip_special, size_t *out_n)
{
	struct td_detok d;
	size_t i, len, bound = sizeof(replacement), used = 0;
	char *text, *fitted;

	*out_n = 0;
	for (i = 0; i < n; i++) {
		td_token_bytes(t, ids[i], &len);
		bound += len;
	}
	/* Every byte on its own may turn into three. */
	text = malloc(bound * sizeof(replacement) + 1);
	if (!text)
		return NULL;
	td_detok_init(&d, t, skip_special);
	for (i = 0; i < n; i++)
		used += td_detok_push(&d, ids[i], text + used);
	used += td_detok_flush(&d, text + used);
	text[used] = '\0';
	*out_n = used;
	fitted = realloc(text, used + 1);
	return fitted ? fitted : text;
}
