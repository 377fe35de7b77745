/*
 * fake_ops.h: for tests: a backend whose memory can't be touched.
 *
 * Its arenas lie at an address that nothing is mapped at, so code that dereferences device memory dies at once. What is uploaded or packed goes to a
 * shadow; a byte written twice or outside of an arena fails the test. Packed form: the parts' weights one after another, then their scales.
 * The n-th call of anything that can fail fails on request.
 */
#ifndef TD_TEST_FAKE_OPS_H
#define TD_TEST_FAKE_OPS_H

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

static struct {
	unsigned char *shadow, *written;
	size_t size, asked;
	int arenas, uploads, packs, calls, fail_at;
} fake;

#define FAKE_BASE ((uintptr_t)0x7e0000000000)

static inline const void *fake_peek(const void *p)
{
	return fake.shadow + ((uintptr_t)p - FAKE_BASE);
}

static inline void fake_finish(void)
{
	free(fake.shadow);
	free(fake.written);
	memset(&fake, 0, sizeof(fake));
}

static inline int fake_due(struct td_error *err)
{
	return ++fake.calls == fake.fail_at ? td_error_set(err, TD_E_DEVICE, "the lever was pulled") : 0;
}

static inline int fake_arena_create(struct td_dev *dev, size_t size, struct td_arena *out, struct td_error *err)
{
	int rc = fake_due(err);

	(void)dev;
	fake.asked = size;
	if (rc)
		return rc;
	free(fake.shadow);
	free(fake.written);
	fake.shadow = calloc(1, size);
	fake.written = calloc(1, size);
	if (!fake.shadow || !fake.written)
		return td_error_set(err, TD_E_NOMEM, "no memory for an arena");
	fake.size = size;
	fake.arenas++;
	*out = (struct td_arena){ .base = (void *)FAKE_BASE, .size = size, .fd = -1 };
	return 0;
}

static inline void fake_arena_release(struct td_dev *dev, struct td_arena *a)
{
	(void)dev;
	if (a->base)
		fake.arenas--;
	memset(a, 0, sizeof(*a));
}

static inline void fake_put(const void *dst, const void *src, size_t bytes)
{
	size_t at = (uintptr_t)dst - FAKE_BASE;

	if (at > fake.size || bytes > fake.size - at)
		fail_msg("a write of %zu bytes at %zu leaves the arena of %zu", bytes, at, fake.size);
	for (size_t i = 0; i < bytes; i++)
		if (fake.written[at + i]++)
			fail_msg("byte %zu of the arena is written twice", at + i);
	memcpy(fake.shadow + at, src, bytes);
}

static inline void fake_upload(struct td_dev *dev, void *dst, const void *src, size_t bytes)
{
	(void)dev;
	fake.uploads++;
	fake_put(dst, src, bytes);
}

static inline int fake_download(struct td_dev *dev, void *dst, const void *src, size_t bytes, struct td_error *err)
{
	(void)dev;
	memcpy(dst, fake_peek(src), bytes);
	return fake_due(err);
}

static inline int fake_sync(struct td_dev *dev, struct td_error *err)
{
	(void)dev;
	return fake_due(err);
}

static inline int fake_checksum(struct td_dev *dev, const void *src, size_t bytes, uint64_t *out, struct td_error *err)
{
	const unsigned char *p = fake_peek(src);

	(void)dev;
	*out = 14695981039346656037u;
	for (size_t i = 0; i < bytes; i++)
		*out = (*out ^ p[i]) * 1099511628211u;
	return fake_due(err);
}

static inline size_t fake_pack_bytes(enum td_weight_kind kind, int out, int in, int group)
{
	if (kind == TD_W_INT4 && group > 4096)
		return 0;
	return (size_t)out * (kind == TD_W_BF16 ? (size_t)in * 2 : (size_t)in / 2 + (size_t)(in / group) * 2);
}

static inline int fake_pack(struct td_dev *dev, const struct td_linear *w, const struct td_linear_part *part, int n, struct td_error *err)
{
	size_t row = w->kind == TD_W_BF16 ? (size_t)w->in * 2 : (size_t)w->in / 2, scale = w->kind == TD_W_BF16 ? 0 : (size_t)(w->in / w->group) * 2;
	char *at = w->data, *at_scale = at + (size_t)w->out * row;

	(void)dev;
	fake.packs++;
	for (int i = 0; i < n; i++) {
		if ((uintptr_t)part[i].weight % 4 || (uintptr_t)part[i].scale % 2)
			fail_msg("part %d is not aligned", i);
		fake_put(at, part[i].weight, (size_t)part[i].out * row);
		at += (size_t)part[i].out * row;
		if (scale)
			fake_put(at_scale, part[i].scale, (size_t)part[i].out * scale);
		at_scale += (size_t)part[i].out * scale;
	}
	return fake_due(err);
}

static struct td_ops fake_ops __attribute__((unused)) = {
	.name = "fake",
	.act = TD_F32,
	.sync = fake_sync,
	.arena_create = fake_arena_create,
	.arena_release = fake_arena_release,
	.upload = fake_upload,
	.download = fake_download,
	.checksum = fake_checksum,
	.pack_bytes = fake_pack_bytes,
	.pack = fake_pack,
};

#endif
