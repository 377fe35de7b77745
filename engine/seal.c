/*
 * seal.c: checksums of an arena by blocks, so that a successor can tell whether what its predecessor left is intact.
 *
 * Blocks of 64 MiB: small enough that a mismatch says where, large enough that a 4B model has some forty. The sums are the backend's own and
 * mean nothing to another backend; the fingerprint, which names the backend, is compared by the caller before an arena is imported at all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"

static const uint64_t BLOCK = 64 << 20;

static uint64_t blocks_of(uint64_t size, uint64_t block)
{
	return (size + block - 1) / block;
}

static int sum(const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, uint64_t block, int i, uint64_t *out, struct td_error *err)
{
	uint64_t at = block * (uint64_t)i, left = arena->size - at;

	return ops->checksum(dev, (const void *)((uintptr_t)arena->base + at), left < block ? left : block, out, err);
}

void td_arena_seal_finish(struct td_arena_seal *seal)
{
	if (!seal)
		return;
	free(seal->checksum);
	memset(seal, 0, sizeof(*seal));
}

int td_arena_seal_make(const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, const char *fingerprint, struct td_arena_seal *seal,
		       struct td_error *err)
{
	int rc = 0;

	memset(seal, 0, sizeof(*seal));
	if (snprintf(seal->fingerprint, sizeof(seal->fingerprint), "%s", fingerprint) >= (int)sizeof(seal->fingerprint))
		return td_error_set(err, TD_E_INVALID, "arena seal: the fingerprint has more than %zu bytes", sizeof(seal->fingerprint) - 1);
	seal->block = BLOCK;
	seal->n = (int)blocks_of(arena->size, BLOCK);
	seal->checksum = calloc((size_t)seal->n + 1, sizeof(*seal->checksum));
	if (!seal->checksum)
		rc = td_error_set(err, TD_E_NOMEM, "arena seal: no memory for %d checksums", seal->n);
	for (int i = 0; i < seal->n && rc == 0; i++)
		rc = sum(ops, dev, arena, BLOCK, i, &seal->checksum[i], err);
	if (rc)
		td_arena_seal_finish(seal);
	return rc;
}

int td_arena_seal_check(const struct td_ops *ops, struct td_dev *dev, const struct td_arena *arena, const struct td_arena_seal *seal, struct td_error *err)
{
	/* The seal came back through another process: nothing in it is taken on trust. */
	if (seal->block == 0 || seal->n < 0 || (seal->n && !seal->checksum) || blocks_of(arena->size, seal->block) != (uint64_t)seal->n)
		return td_error_set(err, TD_E_FORMAT, "kept arena: %d checksums of %llu bytes each don't cover its %zu bytes", seal->n,
				    (unsigned long long)seal->block, arena->size);
	for (int i = 0; i < seal->n; i++) {
		uint64_t now;
		int rc = sum(ops, dev, arena, seal->block, i, &now, err);

		if (rc)
			return rc;
		if (now != seal->checksum[i])
			return td_error_set(err, TD_E_FORMAT, "kept arena: its content changed in block %d of %d (%llu bytes each); load the weights afresh",
					    i, seal->n, (unsigned long long)seal->block);
	}
	return 0;
}
