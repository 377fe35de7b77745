/*
 * note.c: what a successor needs to know of an arena, in the arena itself.
 *
 * The weights' struct, its pointers turned into offsets, lies at the arena's end, and behind it a head that says of which kind, build and files it is. So
 * a successor finds configuration, formats and places where the weights are, under the same checksums, and never asks files that may have been
 * replaced meanwhile. Only the same build reads it: the struct has no other form than the compiler's.
 *
 * Offsets are kept plus 1, so that NULL stays NULL. What must never happen: an address outside of the arena, whatever the note holds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/loader.h"

enum { ALIGN = 256, HEAD_BYTES = 512 };

static const char MAGIC[8] = "tdnote1";

struct head { /* the arena's last HEAD_BYTES */
	char magic[8];
	char kind[16];
	uint64_t bytes, sum; /* of the struct before it */
	char fingerprint[256];
};

struct td__mover {
	uintptr_t base;
	size_t size;
	int out; /* addresses become offsets, else the way back */
	int bad;
};

void td__move(struct td__mover *m, void *at)
{
	uintptr_t p;

	memcpy(&p, at, sizeof(p));
	if (!p)
		return;
	p -= m->out ? m->base : 1;
	m->bad |= p >= m->size;
	p += m->out ? 1 : m->base;
	memcpy(at, &p, sizeof(p));
}

void td__move_linear(struct td__mover *m, struct td_linear *w)
{
	td__move(m, &w->data);
}

void td__move_fused(struct td__mover *m, struct td_fused *f)
{
	for (int i = 0; i < TD_FUSED_MAX; i++)
		td__move_linear(m, &f->part[i]);
}

void td__move_attn(struct td__mover *m, struct td_attn *a)
{
	td__move(m, &a->q_norm);
	td__move(m, &a->k_norm);
	td__move(m, &a->inv_freq);
}

size_t td__note_bytes(const struct td__weights_kind *kind)
{
	return (kind->size + ALIGN - 1) / ALIGN * ALIGN + HEAD_BYTES;
}

/* Of the byte `back` bytes before the arena's end. */
static void *from_end(const struct td_arena *arena, size_t back)
{
	return (void *)((uintptr_t)arena->base + arena->size - back);
}

int td__note_write(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, const void *weights, const struct td_arena *arena,
		   const char *fingerprint, struct td_error *err)
{
	struct td__mover m = { .base = (uintptr_t)arena->base, .size = arena->size, .out = 1 };
	struct head head = { .bytes = kind->size };
	char *copy = malloc(kind->size);

	if (!copy)
		return td_error_set(err, TD_E_NOMEM, "no memory for the note on %zu bytes of weights", arena->size);
	memcpy(copy, weights, kind->size);
	memset(copy + kind->arena, 0, sizeof(struct td_arena));
	kind->pointers(copy, &m);
	memcpy(head.magic, MAGIC, sizeof(head.magic));
	snprintf(head.kind, sizeof(head.kind), "%s", kind->name);
	snprintf(head.fingerprint, sizeof(head.fingerprint), "%s", fingerprint);
	head.sum = XXH3_64bits(copy, kind->size);
	if (!m.bad) {
		ops->upload(dev, from_end(arena, td__note_bytes(kind)), copy, kind->size);
		ops->upload(dev, from_end(arena, HEAD_BYTES), &head, sizeof(head));
	}
	free(copy);
	return m.bad ? td_error_set(err, TD_E_INTERNAL, "an address of the %s's weights lies outside of their arena", kind->name) : 0;
}

/* A head that this build can have written for this kind, backend and form. */
static int head_check(const struct td__weights_kind *kind, const struct td_ops *ops, int form, struct head *head, struct td_error *err)
{
	char ours[96];

	head->kind[sizeof(head->kind) - 1] = head->fingerprint[sizeof(head->fingerprint) - 1] = '\0';
	td__fingerprint_head(ops, form, ours);
	if (memcmp(head->magic, MAGIC, sizeof(head->magic)) != 0)
		return td_error_set(err, TD_E_FORMAT, "kept arena: there is no note at its end");
	if (strcmp(head->kind, kind->name) != 0)
		return td_error_set(err, TD_E_MISMATCH, "kept arena: it holds the weights of a %s, not of a %s", head->kind, kind->name);
	if (strncmp(head->fingerprint, ours, strlen(ours)) != 0 || head->bytes != kind->size)
		return td_error_set(err, TD_E_MISMATCH, "kept arena: it was filled by another build or in another form (%.96s), this is %s", head->fingerprint, ours);
	return 0;
}

int td__note_read(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, int form, void **weights,
		  char fingerprint[256], struct td_error *err)
{
	struct td__mover m = { .base = (uintptr_t)arena->base, .size = arena->size };
	struct head head;
	char *w;
	int rc;

	*weights = NULL;
	if (arena->size < td__note_bytes(kind))
		return td_error_set(err, TD_E_FORMAT, "kept arena: its %zu bytes have no room for a note", arena->size);
	if ((rc = ops->download(dev, &head, from_end(arena, HEAD_BYTES), sizeof(head), err)) || (rc = head_check(kind, ops, form, &head, err)))
		return rc;
	w = malloc(kind->size);
	if (!w)
		return td_error_set(err, TD_E_NOMEM, "no memory for the note on %zu bytes of weights", arena->size);
	rc = ops->download(dev, w, from_end(arena, td__note_bytes(kind)), kind->size, err);
	if (!rc && XXH3_64bits(w, kind->size) != head.sum)
		rc = td_error_set(err, TD_E_FORMAT, "kept arena: the note at its end is damaged");
	if (!rc) {
		kind->pointers(w, &m);
		if (m.bad)
			rc = td_error_set(err, TD_E_FORMAT, "kept arena: its note names a place outside of it");
	}
	if (rc) {
		free(w);
		return rc;
	}
	memcpy(fingerprint, head.fingerprint, sizeof(head.fingerprint));
	*weights = w;
	return 0;
}

int td__weights_take(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, struct td_arena *kept, int form, void **weights,
		     char fingerprint[256], struct td_error *err)
{
	int rc = td__note_read(kind, ops, dev, kept, form, weights, fingerprint, err);

	if (rc)
		return rc;
	memcpy((char *)*weights + kind->arena, kept, sizeof(*kept));
	memset(kept, 0, sizeof(*kept));
	return 0;
}
