/*
 * safetensors.c: read-only access to a checkpoint's tensors.
 *
 * A file is: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data. The header is untrusted:
 * lengths are checked against the file's size, each tensor's bytes against its shape, and the tensors together must cover the data exactly,
 * without overlap, gap or tail. After td_st_open returned 0, every (data, bytes) lies inside a mapping that lives until td_st_close.
 *
 * The set owns the shards' mappings and the tensors' names. Nothing is written to, and no tensor data is read, but by td_st_value.
 */
#include "engine/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/bf16.h"
#include "engine/config_read.h"
#include "engine/file.h"
#include "engine/synthetic.h"

enum { HEADER_CAP = 100 << 20, NAME_CAP = 200, DIMS_CAP = 8, SHARDS_CAP = 4096, PATH_CAP = 4096 };

struct shard {
	char *path;
	char *base; /* the mapping */
	size_t size;
	size_t data0; /* where the data begins */
	uint64_t identity;
	size_t first, count; /* its tensors, while the set is not sorted by name yet */
};

struct entry {
	struct td_st_tensor t; /* first: a pointer to it is one to the entry */
	size_t shard;
};

struct td_st {
	struct shard *shard;
	size_t n_shards;
	struct entry *entry;
	size_t n, room;
	struct td__synthetic *synthetic; /* NULL: files */
};

/* dtypes of the format with their size in bits; 127 = not ours */
static const struct {
	const char *name;
	int bits;
	enum td_dtype dtype;
} dtypes[] = {
	{ "F32", 32, TD_F32 },	   { "BF16", 16, TD_BF16 },	   { "F16", 16, TD_F16 },	 { "I32", 32, TD_I32 },	     { "I64", 64, TD_I64 },
	{ "U8", 8, TD_U8 },	   { "I8", 8, TD_I8 },		   { "BOOL", 8, TD_ST_OTHER },	 { "I16", 16, TD_ST_OTHER }, { "U16", 16, TD_ST_OTHER },
	{ "U32", 32, TD_ST_OTHER }, { "U64", 64, TD_ST_OTHER },	   { "F64", 64, TD_ST_OTHER },	 { "C64", 64, TD_ST_OTHER }, { "F4", 4, TD_ST_OTHER },
	{ "F6_E2M3", 6, TD_ST_OTHER }, { "F6_E3M2", 6, TD_ST_OTHER }, { "F8_E5M2", 8, TD_ST_OTHER }, { "F8_E4M3", 8, TD_ST_OTHER }, { "F8_E8M0", 8, TD_ST_OTHER },
	{ "F8_E5M2FNUZ", 8, TD_ST_OTHER }, { "F8_E4M3FNUZ", 8, TD_ST_OTHER },
};

/* ---- one tensor's entry ----------------------------------------------------------------------------------------------------------------- */

static int shape_read(const struct shard *s, struct td_st_tensor *t, const json_t *shape, uint64_t *elements, struct td_error *err)
{
	size_t n = json_array_size(shape);

	if (!json_is_array(shape))
		return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: shape is missing or no list", s->path, t->name);
	if (n > DIMS_CAP)
		return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: %zu dimensions; at most %d are read", s->path, t->name, n, DIMS_CAP);
	*elements = 1;
	t->n_dims = (int)n;
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(shape, i);
		json_int_t d = json_integer_value(v);

		if (!json_is_integer(v) || d < 0)
			return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: shape[%zu] is not a size", s->path, t->name, i);
		if (__builtin_mul_overflow(*elements, (uint64_t)d, elements))
			return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: its shape overflows", s->path, t->name);
		t->dim[i] = d;
	}
	return 0;
}

static int dtype_read(const struct shard *s, struct td_st_tensor *t, const json_t *dtype, int *bits, struct td_error *err)
{
	const char *name = json_string_value(dtype);

	for (size_t i = 0; name && i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (!strcmp(name, dtypes[i].name)) {
			t->dtype = dtypes[i].dtype;
			snprintf(t->dtype_name, sizeof(t->dtype_name), "%s", name);
			*bits = dtypes[i].bits;
			return 0;
		}
	return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: unknown dtype %.20s", s->path, t->name, name ? name : "(not a string)");
}

static int offsets_read(const struct shard *s, struct td_st_tensor *t, const json_t *o, struct td_error *err)
{
	json_int_t begin = json_integer_value(json_array_get(o, 0)), end = json_integer_value(json_array_get(o, 1));
	size_t data = s->size - s->data0;

	if (json_array_size(o) != 2 || !json_is_integer(json_array_get(o, 0)) || !json_is_integer(json_array_get(o, 1)))
		return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: data_offsets is not a pair of integers", s->path, t->name);
	if (begin < 0 || end < begin || (uint64_t)end > data)
		return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: data_offsets [%lld, %lld] lie outside of the file's %zu bytes of data (truncated?)",
				    s->path, t->name, (long long)begin, (long long)end, data);
	t->data = s->base + s->data0 + begin;
	t->bytes = (size_t)(end - begin);
	return 0;
}

static int tensor_read(const struct shard *s, struct td_st_tensor *t, const json_t *entry, struct td_error *err)
{
	uint64_t elements = 0, total;
	int bits = 0, rc;

	if (!json_is_object(entry))
		return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: its entry is no object", s->path, t->name);
	if ((rc = dtype_read(s, t, json_object_get(entry, "dtype"), &bits, err)) != 0)
		return rc;
	if ((rc = shape_read(s, t, json_object_get(entry, "shape"), &elements, err)) != 0)
		return rc;
	if ((rc = offsets_read(s, t, json_object_get(entry, "data_offsets"), err)) != 0)
		return rc;
	if (__builtin_mul_overflow(elements, (uint64_t)bits, &total) || total % 8)
		return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: its shape overflows or ends inside a byte", s->path, t->name);
	if (total / 8 != t->bytes)
		return td_error_set(err, TD_E_FORMAT, "%s: tensor %s: dtype and shape ask for %llu bytes, data_offsets give %zu", s->path, t->name,
				    (unsigned long long)(total / 8), t->bytes);
	return 0;
}

/* ---- one file --------------------------------------------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
	const struct td_st_tensor *x = &((const struct entry *)a)->t, *y = &((const struct entry *)b)->t;
	const char *p = x->data, *q = y->data;

	if (p != q)
		return p < q ? -1 : 1;
	return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : strcmp(x->name, y->name);
}

/* The tensors must cover the data without overlap, gap or tail: whatever else is in a file was not meant by its writer. */
static int coverage_check(struct td_st *st, const struct shard *s, struct td_error *err)
{
	struct entry *e = st->entry + s->first;
	const char *at = s->base + s->data0;

	if (s->count)
		qsort(e, s->count, sizeof(*e), by_place);
	for (size_t i = 0; i < s->count; i++) {
		const struct td_st_tensor *t = &e[i].t;

		if ((const char *)t->data < at)
			return td_error_set(err, TD_E_FORMAT, "%s: tensor %s overlaps with %s", s->path, t->name, e[i - 1].t.name);
		if ((const char *)t->data > at)
			return td_error_set(err, TD_E_FORMAT, "%s: %zu bytes before tensor %s belong to no tensor", s->path,
					    (size_t)((const char *)t->data - at), t->name);
		at += t->bytes;
	}
	if (at != s->base + s->size)
		return td_error_set(err, TD_E_FORMAT, "%s: %zu bytes at its end belong to no tensor", s->path, (size_t)(s->base + s->size - at));
	return 0;
}

static int metadata_check(const struct shard *s, const json_t *meta, struct td_error *err)
{
	const char *key;
	json_t *v;

	if (!json_is_object(meta))
		return td_error_set(err, TD_E_FORMAT, "%s: __metadata__ is no object", s->path);
	json_object_foreach((json_t *)meta, key, v)
		if (!json_is_string(v))
			return td_error_set(err, TD_E_FORMAT, "%s: __metadata__ holds something else than strings (%.40s)", s->path, key);
	return 0;
}

static int name_add(struct td_st *st, const struct shard *s, const char *name, struct td_error *err)
{
	size_t length = strlen(name);
	struct entry *e;

	if (length == 0 || length > NAME_CAP)
		return td_error_set(err, TD_E_FORMAT, "%s: a tensor's name has %zu bytes; 1..%d are read", s->path, length, NAME_CAP);
	if (st->n == st->room) {
		size_t room = st->room ? 2 * st->room : 256;
		struct entry *grown = realloc(st->entry, room * sizeof(*grown));

		if (!grown)
			return td_error_set(err, TD_E_NOMEM, "%s: no memory for %zu tensors", s->path, room);
		st->entry = grown;
		st->room = room;
	}
	e = &st->entry[st->n];
	memset(e, 0, sizeof(*e));
	e->shard = (size_t)(s - st->shard);
	if (!(e->t.name = strdup(name)))
		return td_error_set(err, TD_E_NOMEM, "%s: no memory for tensor names", s->path);
	st->n++;
	return 0;
}

static int header_read(struct td_st *st, struct shard *s, const json_t *header, struct td_error *err)
{
	const char *name;
	json_t *entry;
	int rc = 0;

	if (!json_is_object(header))
		return td_error_set(err, TD_E_FORMAT, "%s: its header is no JSON object", s->path);
	s->first = st->n;
	json_object_foreach((json_t *)header, name, entry) {
		if (!strcmp(name, "__metadata__"))
			rc = metadata_check(s, entry, err);
		else if ((rc = name_add(st, s, name, err)) == 0)
			rc = tensor_read(s, &st->entry[st->n - 1].t, entry, err);
		if (rc)
			return rc;
	}
	s->count = st->n - s->first;
	return coverage_check(st, s, err);
}

static int shard_parse(struct td_st *st, struct shard *s, struct td_error *err)
{
	const unsigned char *p = (const unsigned char *)s->base;
	uint64_t length = 0;
	json_error_t why;
	json_t *header;
	int rc;

	for (int i = 7; i >= 0; i--)
		length = length << 8 | p[i];
	if (length > HEADER_CAP)
		return td_error_set(err, TD_E_FORMAT, "%s: is no safetensors file: its header would have %llu bytes, more than the format's 100 MB", s->path,
				    (unsigned long long)length);
	if (length < 2 || length > s->size - 8)
		return td_error_set(err, TD_E_FORMAT, "%s: its header would have %llu bytes, the file has %zu (truncated?)", s->path,
				    (unsigned long long)length, s->size);
	if (p[8] != '{')
		return td_error_set(err, TD_E_FORMAT, "%s: is no safetensors file: its header does not begin with {", s->path);
	s->data0 = 8 + (size_t)length;
	s->identity = XXH3_64bits_withSeed(p, s->data0, s->identity);
	header = td__json_parse(s->base + 8, (size_t)length, &why, &rc);
	if (!header && rc == TD_E_NOMEM)
		return td_error_set(err, rc, "%s: no memory to read its header of %llu bytes", s->path, (unsigned long long)length);
	if (!header)
		return td_error_set(err, TD_E_FORMAT, "%s: its header is not valid JSON: byte %d: %.200s", s->path, why.position, why.text);
	rc = header_read(st, s, header, err);
	json_decref(header);
	return rc;
}

/* Maps `path`. The identity starts as a hash of the file's name (not its folder: a moved checkpoint is the same), size and time. */
static int shard_map(struct shard *s, const char *path, struct td_error *err)
{
	const char *name = strrchr(path, '/');
	char text[PATH_CAP + 64];
	struct stat st;
	int fd, rc;

	if (!(s->path = strdup(path)))
		return td_error_set(err, TD_E_NOMEM, "%s: no memory", path);
	if ((rc = td__file_open(path, &fd, &st, err)))
		return rc;
	if (st.st_size < 10)
		rc = td_error_set(err, TD_E_FORMAT, "%s: has %lld bytes, too few for a safetensors file (truncated?)", path, (long long)st.st_size);
	else if ((s->base = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED) {
		s->base = NULL;
		rc = td_error_set(err, TD_E_IO, "%s: can't be mapped: %s", path, strerror(errno));
	} else {
		s->size = (size_t)st.st_size;
		snprintf(text, sizeof(text), "%s:%lld:%lld.%09ld", name ? name + 1 : path, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
			 st.st_mtim.tv_nsec);
		s->identity = XXH3_64bits(text, strlen(text));
	}
	close(fd);
	return rc;
}

/* The shard array has room; a shard that fails half-way stays in the set, which td_st_close then cleans up. */
static int shard_open(struct td_st *st, const char *path, struct td_error *err)
{
	struct shard *s = &st->shard[st->n_shards++];
	int rc = shard_map(s, path, err);

	return rc ? rc : shard_parse(st, s, err);
}

/* ---- the set ---------------------------------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->t.name, ((const struct entry *)b)->t.name);
}

static struct entry *find(const struct td_st *st, const char *name)
{
	struct entry key = { .t.name = name };

	return st->n ? bsearch(&key, st->entry, st->n, sizeof(key), by_name) : NULL;
}

static int sort(struct td_st *st, const char *dir, struct td_error *err)
{
	if (st->n)
		qsort(st->entry, st->n, sizeof(*st->entry), by_name);
	for (size_t i = 1; i < st->n; i++)
		if (!strcmp(st->entry[i].t.name, st->entry[i - 1].t.name))
			return td_error_set(err, TD_E_FORMAT, "%s: tensor %s is in more than one shard", dir, st->entry[i].t.name);
	return 0;
}

/* A shard's name is a plain file name: an index must not make us read outside of its folder. */
static int shard_name_ok(const char *name)
{
	return name && name[0] && name[0] != '.' && !strchr(name, '/') && strlen(name) <= NAME_CAP;
}

static int cmp_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Opens each shard that the map names, once, in the order of their names. */
static int shards_open(struct td_st *st, const char *dir, const struct td__cfg *index, const json_t *map, struct td_error *err)
{
	size_t n = json_object_size(map), k = 0, unique = 0;
	const char **names = calloc(n + 1, sizeof(*names)), *tensor;
	char path[PATH_CAP];
	int rc = 0;
	json_t *v;

	if (!names)
		return td_error_set(err, TD_E_NOMEM, "%s: no memory for %zu names", index->path, n);
	json_object_foreach((json_t *)map, tensor, v) {
		if (!shard_name_ok(json_string_value(v))) {
			rc = td_error_set(err, TD_E_FORMAT, "%s: tensor %.100s: shard name %.100s is not a plain file name", index->path, tensor,
					  json_is_string(v) ? json_string_value(v) : "(not a string)");
			goto out;
		}
		names[k++] = json_string_value(v);
	}
	qsort(names, k, sizeof(*names), cmp_text);
	for (size_t i = 0; i < k; i++)
		if (i == 0 || strcmp(names[i], names[unique - 1]) != 0)
			names[unique++] = names[i];
	if (unique > SHARDS_CAP)
		rc = td_error_set(err, TD_E_FORMAT, "%s: names %zu shards; at most %d are opened", index->path, unique, SHARDS_CAP);
	else if (!(st->shard = calloc(unique, sizeof(*st->shard))))
		rc = td_error_set(err, TD_E_NOMEM, "%s: no memory for %zu shards", index->path, unique);
	for (size_t i = 0; i < unique && rc == 0; i++) {
		if (snprintf(path, sizeof(path), "%s/%s", dir, names[i]) >= (int)sizeof(path))
			rc = td_error_set(err, TD_E_INVALID, "%s: the path is too long", index->path);
		else
			rc = shard_open(st, path, err);
	}
out:
	free(names);
	return rc;
}

/* Index and shards must agree both ways: a tensor that only one of them knows means that files of two versions are mixed. */
static int index_check(struct td_st *st, const struct td__cfg *index, const json_t *map, struct td_error *err)
{
	const char *name;
	json_t *v;

	json_object_foreach((json_t *)map, name, v) {
		const struct entry *e = find(st, name);
		const char *file = e ? strrchr(st->shard[e->shard].path, '/') + 1 : "";

		if (strcmp(file, json_string_value(v)) != 0)
			return td_error_set(err, TD_E_FORMAT, "%s: tensor %.200s is listed in %s but is not there", index->path, name,
					    json_string_value(v));
	}
	for (size_t i = 0; i < st->n; i++)
		if (!json_object_get(map, st->entry[i].t.name))
			return td_error_set(err, TD_E_FORMAT, "%s: does not list tensor %s, which a shard holds", index->path, st->entry[i].t.name);
	return 0;
}

static int open_sharded(struct td_st *st, const char *dir, struct td_error *err)
{
	struct td__cfg index;
	const json_t *map;
	int rc = td__cfg_open(&index, dir, "model.safetensors.index.json", HEADER_CAP, err);

	if (rc == TD_E_NOT_FOUND)
		rc = td_error_set(err, TD_E_NOT_FOUND, "%s: holds neither model.safetensors nor model.safetensors.index.json", dir);
	if (rc)
		goto out;
	map = json_object_get(index.root, "weight_map");
	if (!json_is_object(map) || json_object_size(map) == 0) {
		rc = td_error_set(err, TD_E_FORMAT, "%s: has no weight_map", index.path);
		goto out;
	}
	if ((rc = shards_open(st, dir, &index, map, err)) != 0)
		goto out;
	if ((rc = sort(st, dir, err)) == 0)
		rc = index_check(st, &index, map, err);
out:
	td__cfg_close(&index);
	return rc;
}

static int open_single(struct td_st *st, const char *path, struct td_error *err)
{
	int rc;

	st->shard = calloc(1, sizeof(*st->shard));
	if (!st->shard)
		return td_error_set(err, TD_E_NOMEM, "%s: no memory", path);
	rc = shard_open(st, path, err);
	return rc ? rc : sort(st, path, err);
}

/* A set without files: one shard that stands for the identity. The contents are synthetic.c's. */
static int open_synthetic(struct td_st *st, const char *name, struct td_error *err)
{
	int rc;

	st->shard = calloc(1, sizeof(*st->shard));
	if (!st->shard || !(st->shard[0].path = strdup(name)))
		return td_error_set(err, TD_E_NOMEM, "%.100s: no memory", name);
	st->n_shards = 1;
	if ((rc = td__synthetic_identity(name, &st->shard[0].identity, err)) != 0 || (rc = td__synthetic_list(name, st, &st->synthetic, err)) != 0)
		return rc;
	return sort(st, name, err);
}

int td__st_add(struct td_st *st, const char *name, enum td_dtype dtype, const int64_t *dim, int n_dims, struct td_error *err)
{
	int rc = name_add(st, &st->shard[0], name, err);
	struct td_st_tensor *t;

	if (rc)
		return rc;
	t = &st->entry[st->n - 1].t;
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (dtypes[i].dtype == dtype)
			snprintf(t->dtype_name, sizeof(t->dtype_name), "%s", dtypes[i].name);
	t->dtype = dtype;
	t->n_dims = n_dims;
	memcpy(t->dim, dim, sizeof(*dim) * (size_t)n_dims);
	return 0;
}

void td_st_fill(struct td_st *st)
{
	if (st->synthetic)
		td__synthetic_fill(st->synthetic);
}

int td_st_open(const char *dir, struct td_st **out, struct td_error *err)
{
	struct td_st *st = calloc(1, sizeof(*st));
	char path[PATH_CAP];
	struct stat s;
	int rc;

	*out = NULL;
	if (!st)
		return td_error_set(err, TD_E_NOMEM, "%s: no memory", dir);
	if (td_synthetic(dir))
		rc = open_synthetic(st, dir, err);
	else if (snprintf(path, sizeof(path), "%s/model.safetensors", dir) >= (int)sizeof(path))
		rc = td_error_set(err, TD_E_INVALID, "%.100s...: the path is too long", dir);
	else if (stat(dir, &s) != 0)
		rc = td_error_set(err, errno == ENOENT || errno == ENOTDIR ? TD_E_NOT_FOUND : TD_E_IO, "%s: can't be opened: %s", dir, strerror(errno));
	else if (!S_ISDIR(s.st_mode))
		rc = open_single(st, dir, err);
	else
		rc = access(path, F_OK) == 0 ? open_single(st, path, err) : open_sharded(st, dir, err);
	if (rc) {
		td_st_close(st);
		return rc;
	}
	*out = st;
	return 0;
}

void td_st_close(struct td_st *st)
{
	if (!st)
		return;
	for (size_t i = 0; i < st->n_shards; i++) {
		if (st->shard[i].base)
			munmap(st->shard[i].base, st->shard[i].size);
		free(st->shard[i].path);
	}
	for (size_t i = 0; i < st->n; i++)
		free((char *)st->entry[i].t.name);
	td__synthetic_free(st->synthetic);
	free(st->entry);
	free(st->shard);
	free(st);
}

struct td_st_tensor *td_st_find(struct td_st *st, const char *name)
{
	struct entry *e = find(st, name);

	if (e)
		e->t.used = 1;
	return e ? &e->t : NULL;
}

size_t td_st_count(const struct td_st *st)
{
	return st->n;
}

struct td_st_tensor *td_st_at(struct td_st *st, size_t i)
{
	return i < st->n ? &st->entry[i].t : NULL;
}

float td_st_value(const struct td_st_tensor *t, size_t i)
{
	uint16_t half;
	_Float16 h;
	float f;

	if (t->dtype == TD_F32) {
		memcpy(&f, (const char *)t->data + 4 * i, 4);
		return f;
	}
	memcpy(&half, (const char *)t->data + 2 * i, 2);
	if (t->dtype == TD_F16) {
		memcpy(&h, &half, 2);
		return (float)h;
	}
	return td_bf16_float(half);
}

void td_st_identity(const struct td_st *st, char *text, size_t size)
{
	size_t at = strnlen(text, size);
	uint64_t id = 0, bytes = 0;

	for (size_t i = 0; i < st->n_shards; i++) {
		id = XXH3_64bits_withSeed(&st->shard[i].identity, sizeof(id), id);
		bytes += st->shard[i].size;
	}
	snprintf(text + at, size - at, "files=%zu bytes=%llu id=%016llx", st->n_shards, (unsigned long long)bytes, (unsigned long long)id);
}
