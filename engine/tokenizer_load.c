/*
 * tokenizer_load.c: tokenizer.json, checked field by field.
 *
 * A field that would change ids and is not implemented is an error that names it: a tokenizer that is nearly right makes a model quietly worse,
 * which nobody finds. Token texts are written in the byte alphabet (each byte is one printable character); a text with a character outside of it
 * stands for its own UTF-8 bytes, as the reference's decoder has it, and that holds for added tokens too.
 * The JSON tree is freed before return; the tokenizer owns copies of all it needs.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>
#include <unistd.h>

#include "engine/file.h"
#include "engine/tokenizer_impl.h"
#include "engine/utf8.h"

/* The pattern that a ByteLevel pre-tokenizer splits by when it is told to (use_regex): GPT-2's. */
#define BYTE_LEVEL_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

enum { ID_MAX = 1 << 24, ALPHABET = 0x180 };

struct load {
	struct td_tokenizer *t;
	int16_t byte_of[ALPHABET]; /* code point of the byte alphabet to its byte, -1 for the others */
	json_t *vocab; /* borrowed: model.vocab */
	struct td_error *err;
};

static int refuse(struct load *l, const char *field, const char *why)
{
	return td_error_set(l->err, TD_E_UNSUPPORTED, "%s: %s", field, why);
}

static int malformed(struct load *l, const char *what)
{
	return td_error_set(l->err, TD_E_FORMAT, "%s", what);
}

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static int is_type(const json_t *object, const char *type)
{
	return !strcmp(text_of(object, "type"), type);
}

/* Absent, null, false, 0, "" and []. */
static int is_nothing(const json_t *v)
{
	return !v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
	       (json_is_string(v) && !json_string_length(v)) || (json_is_array(v) && !json_array_size(v));
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------------ */

static void alphabet_init(struct load *l)
{
	int byte, next = 0x100, c;

	for (c = 0; c < ALPHABET; c++)
		l->byte_of[c] = -1;
	for (byte = 0; byte < 256; byte++) {
		int printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;

		l->byte_of[printable ? byte : next++] = (int16_t)byte;
	}
}

/* The bytes that a token's text stands for, in memory of their own. *mapped: the text is in the byte alphabet. */
static char *token_bytes(const struct load *l, const char *text, size_t n, size_t *bytes_n, int *mapped)
{
	char *bytes = malloc(n + 1);
	size_t i, used = 0;
	uint32_t c;

	if (!bytes)
		return NULL;
	*mapped = 1;
	for (i = 0; i < n && *mapped; used++) {
		i += (size_t)td__utf8_get(text + i, &c);
		*mapped = c < ALPHABET && l->byte_of[c] >= 0;
		if (*mapped)
			bytes[used] = (char)l->byte_of[c];
	}
	if (!*mapped) {
		memcpy(bytes, text, n);
		used = n;
	}
	bytes[used] = '\0';
	*bytes_n = used;
	return bytes;
}

static int token_set(struct load *l, int32_t id, const char *text, size_t n, uint32_t flags, int *mapped)
{
	struct td__token *t = &l->t->bpe.token[id];
	size_t bytes_n;

	if (t->bytes)
		return td_error_set(l->err, TD_E_FORMAT, "token id %d is given twice, once to \"%.100s\"", id, text);
	t->bytes = token_bytes(l, text, n, &bytes_n, mapped);
	if (!t->bytes)
		return td_error_set(l->err, TD_E_NOMEM, "out of memory for the vocabulary");
	t->n = (uint32_t)bytes_n;
	t->flags = flags | (*mapped ? 0 : TD__TOKEN_UNMAPPED);
	return 0;
}

static int32_t id_of(const json_t *v)
{
	json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

	return id >= 0 && id < ID_MAX ? (int32_t)id : -1;
}

/* The table's size: one more than the highest id of vocabulary and added tokens. */
static int read_size(struct load *l, const json_t *added)
{
	struct td__bpe *b = &l->t->bpe;
	int32_t id, highest = -1;
	const char *key;
	json_t *v;
	size_t i;

	json_object_foreach (l->vocab, key, v) {
		id = id_of(v);
		if (id < 0)
			return td_error_set(l->err, TD_E_FORMAT, "model.vocab: the id of \"%.100s\" is not a number from 0 to %d", key, ID_MAX - 1);
		if (id > highest)
			highest = id;
	}
	json_array_foreach (added, i, v) {
		id = id_of(json_object_get(v, "id"));
		if (id < 0)
			return td_error_set(l->err, TD_E_FORMAT, "added_tokens[%zu].id is not a number from 0 to %d", i, ID_MAX - 1);
		if (id > highest)
			highest = id;
	}
	if (highest < 0)
		return malformed(l, "model.vocab is empty");
	b->token = calloc((size_t)highest + 1, sizeof(*b->token));
	if (!b->token)
		return td_error_set(l->err, TD_E_NOMEM, "out of memory for %d tokens", highest + 1);
	b->n_tokens = highest + 1;
	return 0;
}

static int read_vocab(struct load *l)
{
	struct td__bpe *b = &l->t->bpe;
	const char *key;
	json_t *v;
	int byte, mapped, code;

	memset(b->byte_id, 0xff, sizeof(b->byte_id));
	json_object_foreach (l->vocab, key, v) {
		int32_t id = id_of(v);

		if ((code = token_set(l, id, key, strlen(key), 0, &mapped)))
			return code;
		if (mapped && b->token[id].n == 1)
			b->byte_id[(unsigned char)b->token[id].bytes[0]] = id;
	}
	for (byte = 0; byte < 0xf5; byte++)
		if (b->byte_id[byte] < 0 && byte != 0xc0 && byte != 0xc1)
			return td_error_set(l->err, TD_E_FORMAT, "model.vocab has no token for the byte 0x%02x: this is not a byte-level vocabulary", byte);
	return 0;
}

static int merge_parts(const json_t *v, const char **left, size_t *left_n, const char **right, size_t *right_n)
{
	const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
	const char *text, *space;

	if (json_is_array(v)) {
		*left = json_string_value(a);
		*right = json_string_value(b);
		*left_n = json_string_length(a);
		*right_n = json_string_length(b);
		return json_array_size(v) == 2 && *left && *right;
	}
	text = json_string_value(v);
	space = text ? strchr(text, ' ') : NULL;
	if (!space || strchr(space + 1, ' '))
		return 0;
	*left = text;
	*left_n = (size_t)(space - text);
	*right = space + 1;
	*right_n = json_string_length(v) - *left_n - 1;
	return 1;
}

static int read_merges(struct load *l, const json_t *merges)
{
	size_t i, left_n, right_n, size = 0;
	char *joined = NULL;
	const char *left, *right;
	json_t *v;
	int code = td__bpe_reserve(&l->t->bpe, json_array_size(merges), l->err);

	json_array_foreach (merges, i, v) {
		json_t *left_id, *right_id, *made_id;

		if (code)
			break;
		if (!merge_parts(v, &left, &left_n, &right, &right_n)) {
			code = td_error_set(l->err, TD_E_FORMAT, "model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", i);
			break;
		}
		if (left_n + right_n > size) {
			char *p = realloc(joined, size = 2 * (left_n + right_n));

			if (!p) {
				code = td_error_set(l->err, TD_E_NOMEM, "out of memory for the merges");
				break;
			}
			joined = p;
		}
		memcpy(joined, left, left_n);
		memcpy(joined + left_n, right, right_n);
		left_id = json_object_getn(l->vocab, left, left_n);
		right_id = json_object_getn(l->vocab, right, right_n);
		made_id = json_object_getn(l->vocab, joined, left_n + right_n);
		if (!left_id || !right_id || !made_id) {
			code = td_error_set(l->err, TD_E_FORMAT, "model.merges[%zu] (\"%.*s\" and \"%.*s\"): both parts and their union must be in model.vocab", i,
					    left_n > 60 ? 60 : (int)left_n, left, right_n > 60 ? 60 : (int)right_n, right);
			break;
		}
		td__bpe_merge_set(&l->t->bpe, id_of(left_id), id_of(right_id), (uint32_t)i, id_of(made_id));
	}
	free(joined);
	return code;
}

static int read_model(struct load *l, const json_t *model, const json_t *added)
{
	static const char *const must_be_nothing[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"};
	const json_t *merges = json_object_get(model, "merges");
	size_t i;
	int code;

	if (!is_type(model, "BPE"))
		return refuse(l, "model.type", "only BPE is supported");
	for (i = 0; i < sizeof(must_be_nothing) / sizeof(*must_be_nothing); i++)
		if (!is_nothing(json_object_get(model, must_be_nothing[i])))
			return td_error_set(l->err, TD_E_UNSUPPORTED, "model.%s: must be absent, null or empty", must_be_nothing[i]);
	l->vocab = json_object_get(model, "vocab");
	if (!json_is_object(l->vocab) || !json_is_array(merges))
		return malformed(l, "model.vocab must be an object and model.merges an array");
	if ((code = read_size(l, added)) || (code = read_vocab(l)))
		return code;
	return read_merges(l, merges);
}

static int read_added_token(struct load *l, const json_t *v, size_t i)
{
	static const char *const must_be_false[] = {"single_word", "lstrip", "rstrip", "normalized"};
	struct td_tokenizer *t = l->t;
	const json_t *content = json_object_get(v, "content");
	const json_t *in_vocab;
	int32_t id = id_of(json_object_get(v, "id"));
	uint32_t flags = TD__TOKEN_ADDED | (json_is_true(json_object_get(v, "special")) ? TD__TOKEN_SPECIAL : 0);
	size_t n = json_string_length(content), k;
	int mapped, code;

	if (!n)
		return td_error_set(l->err, TD_E_FORMAT, "added_tokens[%zu].content is missing or empty", i);
	for (k = 0; k < sizeof(must_be_false) / sizeof(*must_be_false); k++)
		if (!is_nothing(json_object_get(v, must_be_false[k])))
			return td_error_set(l->err, TD_E_UNSUPPORTED, "added_tokens[%zu].%s: must be false", i, must_be_false[k]);
	for (k = 0; k < t->added.n; k++)
		if (t->added.token[k].n == n && !memcmp(t->added.token[k].text, json_string_value(content), n))
			return td_error_set(l->err, TD_E_FORMAT, "added_tokens[%zu]: \"%.100s\" is there twice", i, json_string_value(content));
	in_vocab = json_object_getn(l->vocab, json_string_value(content), n);
	if (in_vocab && id_of(in_vocab) != id)
		return td_error_set(l->err, TD_E_FORMAT, "added_tokens[%zu]: \"%.100s\" has the id %d here and %d in model.vocab", i, json_string_value(content),
				    id, id_of(in_vocab));
	if (in_vocab)
		t->bpe.token[id].flags |= flags & TD__TOKEN_SPECIAL;
	else if ((code = token_set(l, id, json_string_value(content), n, flags, &mapped)))
		return code;
	t->added_text[t->added.n] = malloc(n);
	if (!t->added_text[t->added.n])
		return td_error_set(l->err, TD_E_NOMEM, "out of memory for added tokens");
	memcpy(t->added_text[t->added.n], json_string_value(content), n);
	code = td__added_push(&t->added, t->added_text[t->added.n], n, id, l->err);
	if (code)
		free(t->added_text[t->added.n]);
	return code;
}

static int read_added(struct load *l, const json_t *added)
{
	json_t *v;
	size_t i;
	int code;

	l->t->added_text = calloc(json_array_size(added) + 1, sizeof(*l->t->added_text));
	if (!l->t->added_text)
		return td_error_set(l->err, TD_E_NOMEM, "out of memory for added tokens");
	json_array_foreach (added, i, v)
		if ((code = read_added_token(l, v, i)))
			return code;
	td__added_sort(&l->t->added);
	return 0;
}

/* ---- pipeline ---------------------------------------------------------------------------------------------------------------------- */

static int read_normalizer(struct load *l, const json_t *normalizer)
{
	const json_t *list = json_object_get(normalizer, "normalizers");
	json_t *v;
	size_t i;

	if (is_nothing(normalizer))
		return 0;
	if (is_type(normalizer, "NFC")) {
		l->t->nfc = 1;
		return 0;
	}
	if (!is_type(normalizer, "Sequence") || !json_is_array(list))
		return refuse(l, "normalizer.type", "only NFC, alone or in a Sequence, is supported");
	json_array_foreach (list, i, v) {
		if (!is_type(v, "NFC"))
			return refuse(l, "normalizer.normalizers", "only NFC is supported");
		l->t->nfc = 1;
	}
	return 0;
}

static int read_split(struct load *l, const json_t *v)
{
	const json_t *regex = json_object_get(json_object_get(v, "pattern"), "Regex");

	if (strcmp(text_of(v, "behavior"), "Isolated"))
		return refuse(l, "pre_tokenizer.behavior", "only Isolated is supported");
	if (!is_nothing(json_object_get(v, "invert")))
		return refuse(l, "pre_tokenizer.invert", "must be false");
	if (!json_is_string(regex))
		return refuse(l, "pre_tokenizer.pattern", "only a Regex is supported");
	return td__split_create(json_string_value(regex), json_string_length(regex), 1, &l->t->split, l->err);
}

static int read_byte_level(struct load *l, const json_t *v)
{
	const json_t *use_regex = json_object_get(v, "use_regex");

	if (!is_nothing(json_object_get(v, "add_prefix_space")))
		return refuse(l, "pre_tokenizer.add_prefix_space", "must be false");
	if (json_is_false(use_regex)) /* absent means true */
		return 0;
	if (l->t->split)
		return refuse(l, "pre_tokenizer.use_regex", "must be false behind a Split");
	return td__split_create(BYTE_LEVEL_PATTERN, strlen(BYTE_LEVEL_PATTERN), 1, &l->t->split, l->err);
}

static int read_pre_tokenizer(struct load *l, const json_t *pre)
{
	const json_t *list = json_object_get(pre, "pretokenizers");
	const json_t *first = json_array_get(list, 0);
	int code;

	if (is_type(pre, "ByteLevel"))
		return read_byte_level(l, pre);
	if (!is_type(pre, "Sequence") || json_array_size(list) < 1 || json_array_size(list) > 2)
		return refuse(l, "pre_tokenizer", "only ByteLevel, or a Sequence of Split and ByteLevel, is supported");
	if (json_array_size(list) == 2) {
		if (!is_type(first, "Split"))
			return refuse(l, "pre_tokenizer.pretokenizers[0].type", "only Split is supported before ByteLevel");
		if ((code = read_split(l, first)))
			return code;
		first = json_array_get(list, 1);
	}
	if (!is_type(first, "ByteLevel"))
		return refuse(l, "pre_tokenizer.pretokenizers", "must end with ByteLevel");
	return read_byte_level(l, first);
}

static int read_root(struct load *l, const json_t *root)
{
	const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
	const json_t *post = json_object_get(root, "post_processor");
	int code;

	if (!json_is_object(model))
		return malformed(l, "there is no model object: this is not a tokenizer.json");
	if (added && !json_is_array(added))
		return malformed(l, "added_tokens must be an array");
	if (!is_nothing(json_object_get(root, "truncation")))
		return refuse(l, "truncation", "must be null");
	if (!is_nothing(json_object_get(root, "padding")))
		return refuse(l, "padding", "must be null");
	if (!is_nothing(post) && !is_type(post, "ByteLevel"))
		return refuse(l, "post_processor.type", "only ByteLevel (which adds no tokens) is supported");
	if (!is_type(json_object_get(root, "decoder"), "ByteLevel"))
		return refuse(l, "decoder.type", "only ByteLevel is supported");
	alphabet_init(l);
	if ((code = read_normalizer(l, json_object_get(root, "normalizer"))) || (code = read_pre_tokenizer(l, json_object_get(root, "pre_tokenizer"))) ||
	    (code = read_model(l, model, added)))
		return code;
	if ((code = td__bpe_index(&l->t->bpe, json_is_true(json_object_get(model, "ignore_merges")), l->err)))
		return code;
	return read_added(l, added);
}

/* ---- file -------------------------------------------------------------------------------------------------------------------------- */

int td_tokenizer_load(const char *path, struct td_tokenizer **t, struct td_error *err)
{
	struct load l = {.err = err};
	char file[4096];
	json_error_t parse;
	struct stat st;
	json_t *root;
	int code, fd;

	*t = NULL;
	if (stat(path, &st))
		return td_error_set(err, errno == ENOENT ? TD_E_NOT_FOUND : TD_E_IO, "tokenizer %s: %s", path, strerror(errno));
	if (snprintf(file, sizeof(file), "%s%s", path, S_ISDIR(st.st_mode) ? "/tokenizer.json" : "") >= (int)sizeof(file))
		return td_error_set(err, TD_E_INVALID, "tokenizer: the path is longer than %zu bytes", sizeof(file) - 1);
	if (S_ISDIR(st.st_mode) && stat(file, &st))
		return td_error_set(err, TD_E_NOT_FOUND, "%s has no tokenizer.json: %s", path, strerror(errno));
	if ((code = td__file_open(file, &fd, &st, err)))
		return td_error_prefix(err, "tokenizer");
	root = json_loadfd(fd, JSON_ALLOW_NUL, &parse);
	close(fd);
	if (!root && (json_error_code(&parse) == json_error_out_of_memory || parse.line < 0)) /* without a place: it had no memory to begin with */
		return td_error_set(err, TD_E_NOMEM, "tokenizer %s: out of memory", file);
	if (!root)
		return td_error_set(err, TD_E_FORMAT, "tokenizer %s, line %d, column %d: %s", file, parse.line, parse.column, parse.text);
	l.t = calloc(1, sizeof(*l.t));
	code = l.t ? read_root(&l, root) : td_error_set(err, TD_E_NOMEM, "out of memory");
	json_decref(root);
	if (code) {
		td_error_prefix(err, "tokenizer %s", file);
		td_tokenizer_free(l.t);
		return code;
	}
	*t = l.t;
	return 0;
}

void td_tokenizer_free(struct td_tokenizer *t)
{
	size_t i;

	if (!t)
		return;
	for (i = 0; i < t->added.n; i++)
		free(t->added_text[i]);
	free(t->added_text);
	td__added_finish(&t->added);
	td__bpe_finish(&t->bpe);
	td__split_destroy(t->split);
	free(t);
}
