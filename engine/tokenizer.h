/*
 * tokenizer.h: byte-level BPE from a Hugging Face tokenizer.json, and a streaming detokenizer.
 *
 * Pipeline: split on added tokens (leftmost-longest) -> NFC -> split pattern (PCRE2) -> byte-level mapping -> BPE by lowest merge rank.
 * Supported: model BPE without dropout/unk/prefix, normalizer NFC (alone or in a Sequence) or none, pre_tokenizer ByteLevel with or without a
 * Split of behaviour Isolated. Anything else is TD_E_UNSUPPORTED with the field's name. Immutable after load: one instance may serve many streams.
 * Input must be valid UTF-8 (td_utf8_check), NUL bytes allowed.
 */
#ifndef TD_TOKENIZER_H
#define TD_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"

struct td_tokenizer;

/* `path`: a tokenizer.json, or a folder that holds one. */
int td_tokenizer_load(const char *path, struct td_tokenizer **t, struct td_error *err);
void td_tokenizer_free(struct td_tokenizer *t);
int td_tokenizer_size(const struct td_tokenizer *t); /* highest id + 1 */
/* id of an added token by its exact text, or -1 */
int td_tokenizer_added(const struct td_tokenizer *t, const char *text);
int td_tokenizer_is_special(const struct td_tokenizer *t, int id);
int td_tokenizer_is_added(const struct td_tokenizer *t, int id);

struct td_ids {
	int32_t *id;
	size_t n, size;
};
void td_ids_finish(struct td_ids *ids);

/* Appends the ids of `text`. parse_added 0: added tokens in the text are ordinary text (user content that must not forge turns). */
int td_encode(const struct td_tokenizer *t, const char *text, size_t n, int parse_added, struct td_ids *out, struct td_error *err);

/* Byte ranges of a text, ascending, apart from each other. */
struct td_span {
	size_t from, to;
};
struct td_spans {
	struct td_span *span;
	size_t n, size;
};
void td_spans_finish(struct td_spans *s);
/* As with parse_added 1, but an added token counts only where it lies between the ranges: what touches one is ordinary text. The text is not cut at their
 * borders, so ordinary text gets the ids that it always gets. */
int td_encode_guarded(const struct td_tokenizer *t, const char *text, size_t n, const struct td_spans *guarded, struct td_ids *out, struct td_error *err);

/* Bytes of one token (for added tokens their text, read by the byte alphabet where it fits, as the reference decodes). NULL when id is out of
 * range or unused. Owned by the tokenizer. */
const char *td_token_bytes(const struct td_tokenizer *t, int id, size_t *n);

/* Whole decode: bytes of all ids, special tokens left out when skip_special. Invalid UTF-8 becomes U+FFFD as `tokenizers` does (one per maximal
 * invalid part, errors="replace"). malloc'd, NUL-terminated. */
char *td_decode(const struct td_tokenizer *t, const int32_t *ids, size_t n, int skip_special, size_t *out_n);

/* Streaming: push ids one by one, take complete UTF-8. An incomplete sequence is held back until it is complete or proved invalid. */
struct td_detok {
	const struct td_tokenizer *t;
	int skip_special;
	uint8_t held[8];
	int n_held;
};
void td_detok_init(struct td_detok *d, const struct td_tokenizer *t, int skip_special);
/* Writes to out (room for at least 3 * (token bytes + 8)); returns bytes written. td_token_bytes tells the token's size. */
size_t td_detok_push(struct td_detok *d, int32_t id, char *out);
size_t td_detok_flush(struct td_detok *d, char *out); /* the end: what is held becomes U+FFFD */

/* 1 if the n bytes are valid UTF-8 (no surrogates, no overlong forms, up to U+10FFFF). */
int td_utf8_check(const char *text, size_t n);

#endif
