/*
 * token_mask.c: see token_mask.h. The memfd: a head, n + 1 offsets, then the bytes of all tokens one behind the other.
 */
#include "engine/token_mask.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/clock.h"

enum { MAGIC = 0x62637674, KEPT = 512, WAYS = 4, TOKEN_MAX = 1024, GROUPS = 8, STRING = 1, NEWLINE = 2, ANGLE = 4 };

struct head {
	uint32_t magic, n;
};

/* ---- the memfd ------------------------------------------------------------------------------------------------------------------------------------- */

/* Control tokens are special, or look like it: "<|fim_pad|>" and its like are ordinary for a tokenizer, but never part of an answer. */
static size_t usable(const struct td_tokenizer *t, int id, const char **bytes)
{
	size_t n = 0;

	*bytes = td_tokenizer_is_special(t, id) ? NULL : td_token_bytes(t, id, &n);
	if (!*bytes || n > TOKEN_MAX || (n >= 4 && !memcmp(*bytes, "<|", 2) && !memcmp(*bytes + n - 2, "|>", 2)))
		return 0;
	return n;
}

static void write_vocab(const struct td_tokenizer *t, int n, uint8_t *out)
{
	struct head h = {MAGIC, (uint32_t)n};
	uint32_t at = 0, *offset = (uint32_t *)(out + sizeof(h));
	uint8_t *text = out + sizeof(h) + sizeof(*offset) * ((size_t)n + 1);
	const char *bytes;

	memcpy(out, &h, sizeof(h));
	for (int id = 0; id < n; id++) {
		size_t k = usable(t, id, &bytes);

		offset[id] = at;
		if (k)
			memcpy(text + at, bytes, k);
		at += (uint32_t)k;
	}
	offset[n] = at;
}

int td_vocab_make(const struct td_tokenizer *t, int n_ids, int *fd, struct td_error *err)
{
	size_t size = sizeof(struct head) + sizeof(uint32_t) * ((size_t)n_ids + 1);
	const char *bytes;
	void *map;

	for (int id = 0; id < n_ids; id++)
		size += usable(t, id, &bytes);
	*fd = memfd_create("tandem-vocab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0 || ftruncate(*fd, (off_t)size) < 0)
		goto failed;
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (map == MAP_FAILED)
		goto failed;
	write_vocab(t, n_ids, map);
	munmap(map, size);
	if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		goto failed;
	return 0;
failed:
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	return td_error_set(err, TD_E_NOMEM, "no memory for the vocabulary's bytes (%zu)", size);
}

/* ---- tries ----------------------------------------------------------------------------------------------------------------------------------------- */

/* A node stands before its children. `skip`: the first one that is not below it. */
struct node {
	uint32_t skip;
	int32_t token; /* -1: none ends here */
	uint8_t byte;
	uint16_t depth;
};

struct kept {
	uint64_t hash[2], used;
	int none; /* it took too much work */
};

struct td_token_mask {
	void *map;
	size_t map_size;
	int n, words, reach;
	const uint32_t *offset;
	const uint8_t *text;
	struct node *node; /* GROUPS tries, one behind the other */
	uint32_t group[GROUPS + 1]; /* where each begins */
	uint32_t *easy; /* (GROUPS, words): the tokens of each */
	uint16_t *characters; /* (n): of tokens of STRING groups */
	int most_characters;
	/* tokens with the same bytes as another one of a lower id: (other, id) pairs */
	struct twin {
		int32_t of, id;
	} *twin;
	int n_twins;
	struct td_gwalk *walk;
	struct td_gset set[TOKEN_MAX + 1]; /* by depth */
	struct loops {
		uint8_t byte[32]; /* bits: bytes that are known to lead from the set to itself, as within a repeat without a bound */
	} loops[TOKEN_MAX + 1];
	int loops_at[TOKEN_MAX + 1]; /* those of the set at this depth: of the least depth that has the same set */
	struct kept kept[KEPT];
	uint32_t *masks; /* (KEPT, words) */
	uint64_t clock;
	struct td_token_mask_counts counts;
};

/* What kind of token: of plain JSON string characters only; without a line feed; without '<'. Only whole characters count. */
static int group_of(const uint8_t *s, size_t n, uint16_t *characters)
{
	int kind = STRING | NEWLINE | ANGLE, state = 0;

	*characters = 0;
	for (size_t i = 0; i < n; i++) {
		state = td_g_utf8(state, s[i]);
		if (state < 0)
			return 0;
		*characters += state == 0;
		if (s[i] < 0x80 && !td_g_plain(s[i]))
			kind &= ~STRING;
		kind &= s[i] == '\n' ? ~NEWLINE : s[i] == '<' ? ~ANGLE : ~0;
	}
	return state == 0 ? kind : 0;
}

struct entry {
	const uint8_t *s;
	uint32_t n;
	int32_t id;
	int group;
};

static int entry_order(const void *x, const void *y)
{
	const struct entry *a = x, *b = y;
	int c = a->group != b->group ? a->group - b->group : memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);

	return c ? c : a->n != b->n ? (a->n > b->n) - (a->n < b->n) : a->id - b->id;
}

/* Entries, sorted, of one group -> nodes from `at` on; returns where they end. `path` holds the nodes from the root to the last one. */
static uint32_t build(struct td_token_mask *m, const struct entry *e, size_t n, uint32_t at)
{
	uint32_t path[TOKEN_MAX + 1], depth = 0;
	const uint8_t *last = NULL;

	for (size_t i = 0; i < n; i++) {
		uint32_t same = 0;

		while (same < depth && same < e[i].n && last[same] == e[i].s[same])
			same++;
		if (same == e[i].n && same == depth) {
			m->twin[m->n_twins++] = (struct twin){m->node[path[depth]].token, e[i].id};
			continue;
		}
		for (; depth > same; depth--)
			m->node[path[depth]].skip = at;
		for (; depth < e[i].n; depth++) {
			path[depth + 1] = at;
			m->node[at++] = (struct node){.token = -1, .byte = e[i].s[depth], .depth = (uint16_t)depth};
		}
		m->node[path[depth]].token = e[i].id;
		last = e[i].s;
	}
	for (; depth > 0; depth--)
		m->node[path[depth]].skip = at;
	return at;
}

static int sort_tokens(struct td_token_mask *m, struct td_error *err)
{
	struct entry *e = calloc((size_t)m->n + 1, sizeof(*e));
	size_t n = 0, from = 0;
	uint32_t at = 0;

	if (!e)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	for (int id = 0; id < m->n; id++) {
		struct entry *one = &e[n];

		*one = (struct entry){m->text + m->offset[id], m->offset[id + 1] - m->offset[id], id, 0};
		if (!one->n)
			continue;
		one->group = group_of(one->s, one->n, &m->characters[id]);
		m->easy[(size_t)one->group * (size_t)m->words + (size_t)id / 32] |= 1u << id % 32;
		if (one->group & STRING && m->characters[id] > m->most_characters)
			m->most_characters = m->characters[id];
		m->reach = (int)one->n > m->reach ? (int)one->n : m->reach;
		n++;
	}
	qsort(e, n, sizeof(*e), entry_order);
	for (int g = 0; g < GROUPS; g++) {
		size_t to = from;

		while (to < n && e[to].group == g)
			to++;
		m->group[g] = at;
		at = build(m, e + from, to - from, at);
		from = to;
	}
	m->group[GROUPS] = at;
	free(e);
	return 0;
}

/* Every offset is compared before anything is read by it. */
static int check(struct td_token_mask *m, struct td_error *err)
{
	struct head h;
	size_t room;

	if (m->map_size < sizeof(h) + sizeof(uint32_t))
		return td_error_set(err, TD_E_PROTOCOL, "the vocabulary's bytes: %zu are too few", m->map_size);
	memcpy(&h, m->map, sizeof(h));
	room = (m->map_size - sizeof(h)) / sizeof(uint32_t) - 1;
	if (h.magic != MAGIC || h.n > room || h.n > 32u * (uint32_t)m->words)
		return td_error_set(err, TD_E_PROTOCOL, "the vocabulary's bytes: a head of %u ids does not fit", h.n);
	m->n = (int)h.n;
	m->offset = (const uint32_t *)((const char *)m->map + sizeof(h));
	m->text = (const uint8_t *)(m->offset + m->n + 1);
	room = m->map_size - (size_t)(m->text - (const uint8_t *)m->map);
	for (int id = 0; id < m->n; id++)
		if (m->offset[id] > m->offset[id + 1] || m->offset[id + 1] - m->offset[id] > TOKEN_MAX)
			return td_error_set(err, TD_E_PROTOCOL, "the vocabulary's bytes: those of token %d are out of range", id);
	if (m->offset[0] != 0 || m->offset[m->n] > room)
		return td_error_set(err, TD_E_PROTOCOL, "the vocabulary's bytes: an end out of range");
	return 0;
}

static int map_vocab(struct td_token_mask *m, int fd, struct td_error *err)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (fstat(fd, &st) < 0 || st.st_size < 1 || seals < 0 || !(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_WRITE))
		return td_error_set(err, TD_E_PROTOCOL, "the vocabulary's bytes are no sealed memory");
	m->map_size = (size_t)st.st_size;
	m->map = mmap(NULL, m->map_size, PROT_READ, MAP_SHARED, fd, 0);
	if (m->map == MAP_FAILED) {
		m->map = NULL;
		return td_error_set(err, TD_E_NOMEM, "the vocabulary's bytes can't be mapped");
	}
	return check(m, err);
}

int td_token_mask_create(int fd, int words, struct td_token_mask **out, struct td_error *err)
{
	struct td_token_mask *m = calloc(1, sizeof(*m));
	int rc;

	*out = NULL;
	if (!m)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	m->words = words;
	if ((rc = map_vocab(m, fd, err)))
		goto failed;
	m->node = calloc((size_t)m->offset[m->n] + 1, sizeof(*m->node)); /* no more nodes than bytes */
	m->easy = calloc((size_t)GROUPS * (size_t)words, sizeof(*m->easy));
	m->masks = calloc((size_t)KEPT * (size_t)words, sizeof(*m->masks));
	m->characters = calloc((size_t)m->n + 1, sizeof(*m->characters));
	m->twin = calloc((size_t)m->n + 1, sizeof(*m->twin));
	m->walk = td_gwalk_create();
	if (!m->node || !m->easy || !m->masks || !m->characters || !m->twin || !m->walk) {
		rc = td_error_set(err, TD_E_NOMEM, "out of memory");
		goto failed;
	}
	if ((rc = sort_tokens(m, err)))
		goto failed;
	td_gwalk_reach(m->walk, m->reach);
	*out = m;
	return 0;
failed:
	td_token_mask_destroy(m);
	return rc;
}

void td_token_mask_destroy(struct td_token_mask *m)
{
	if (!m)
		return;
	if (m->map)
		munmap(m->map, m->map_size);
	td_gwalk_destroy(m->walk);
	free(m->twin);
	free(m->characters);
	free(m->masks);
	free(m->easy);
	free(m->node);
	free(m);
}

struct td_gwalk *td_token_mask_walk(struct td_token_mask *m)
{
	return m->walk;
}

const uint8_t *td_token_mask_bytes(const struct td_token_mask *m, int id, size_t *n)
{
	*n = id >= 0 && id < m->n ? m->offset[id + 1] - m->offset[id] : 0;
	return *n ? m->text + m->offset[id] : NULL;
}

struct td_token_mask_counts td_token_mask_counts(const struct td_token_mask *m)
{
	return m->counts;
}

/* ---- masks ----------------------------------------------------------------------------------------------------------------------------------------- */

/* The set behind this byte, at depth + 1; 0: it is dead. */
static int step(struct td_token_mask *m, int depth, uint8_t byte)
{
	struct td_gset *from = &m->set[depth], *to = &m->set[depth + 1];
	struct loops *loops = &m->loops[m->loops_at[depth]];

	if (!(loops->byte[byte / 8] >> byte % 8 & 1)) {
		td_gwalk_back(m->walk, *from);
		*to = td_gwalk_step(m->walk, *from, byte);
		if (!td_gwalk_same(m->walk, *from, *to)) {
			m->loops_at[depth + 1] = depth + 1;
			memset(&m->loops[depth + 1], 0, sizeof(*loops));
			return to->n > 0;
		}
		loops->byte[byte / 8] |= (uint8_t)(1 << byte % 8);
	}
	*to = *from;
	m->loops_at[depth + 1] = m->loops_at[depth];
	return 1;
}

/* 0, or -1 when the walk has worked up to `limit`. */
static int walk_group(struct td_token_mask *m, int g, struct td_gset set, uint64_t limit, uint32_t *bits)
{
	uint32_t i = m->group[g], end = m->group[g + 1];

	m->set[0] = set;
	m->loops_at[0] = 0;
	memset(&m->loops[0], 0, sizeof(m->loops[0]));
	while (i < end && td_gwalk_work(m->walk) < limit) {
		const struct node *n = &m->node[i];

		if (!step(m, n->depth, n->byte)) {
			i = n->skip;
			continue;
		}
		if (n->token >= 0)
			bits[n->token / 32] |= 1u << n->token % 32;
		i++;
	}
	td_gwalk_back(m->walk, set);
	return i < end ? -1 : 0;
}

static int find(struct td_token_mask *m, struct td_gset set, uint32_t *bits)
{
	uint64_t limit = td_gwalk_work(m->walk) + TD_TOKEN_MASK_WORK;
	int string, newline, angle;

	memset(bits, 0, sizeof(*bits) * (size_t)m->words);
	td_gwalk_easy(m->walk, set, m->most_characters, &string, &newline, &angle);
	for (int g = 0; g < GROUPS; g++) {
		const uint32_t *easy = m->easy + (size_t)g * (size_t)m->words;

		if ((g & STRING && string >= m->most_characters) || (g & NEWLINE && newline) || (g & ANGLE && angle)) {
			for (int i = 0; i < m->words; i++)
				bits[i] |= easy[i];
		} else if (g & STRING && string >= 0) { /* room for so many characters, and nothing else could take them */
			for (int id = 0; id < m->n; id++)
				if (m->characters[id] <= string && easy[id / 32] >> id % 32 & 1)
					bits[id / 32] |= 1u << id % 32;
		} else if (walk_group(m, g, set, limit, bits)) {
			return -1;
		}
	}
	for (int i = 0; i < m->n_twins; i++)
		if (bits[m->twin[i].of / 32] >> m->twin[i].of % 32 & 1)
			bits[m->twin[i].id / 32] |= 1u << m->twin[i].id % 32;
	return 0;
}

const uint32_t *td_token_mask_of(struct td_token_mask *m, struct td_gset set)
{
	uint64_t hash[2], began;
	struct kept *at, *oldest;
	uint32_t *bits;

	td_gwalk_hash(m->walk, set, hash);
	at = oldest = &m->kept[hash[1] % (KEPT / WAYS) * WAYS];
	m->counts.asked++;
	for (int i = 0; i < WAYS; i++, at++) {
		if (at->used && at->hash[0] == hash[0] && at->hash[1] == hash[1]) {
			at->used = ++m->clock;
			return at->none ? NULL : m->masks + (size_t)(at - m->kept) * (size_t)m->words;
		}
		if (at->used < oldest->used)
			oldest = at;
	}
	began = td_now_us();
	bits = m->masks + (size_t)(oldest - m->kept) * (size_t)m->words;
	*oldest = (struct kept){{hash[0], hash[1]}, ++m->clock, find(m, set, bits) != 0};
	m->counts.walked++;
	m->counts.given_up += (uint64_t)oldest->none;
	m->counts.us += td_now_us() - began;
	return oldest->none ? NULL : bits;
}
