/*
 * k_common.h: what the tests of the kernels share: a CPU device, seeded numbers, tensors, one batch.
 */
#ifndef TD_TEST_K_COMMON_H
#define TD_TEST_K_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bf16.h"
#include "kernels/kernels.h"

#define UNUSED __attribute__((unused))

static const struct td_ops *const ops = &td_cpu_ops;

UNUSED static struct td_dev *k_open(int threads)
{
	struct td_dev_options opt = { .threads = threads, .slots = 8 };
	struct td_error err = { 0 };
	struct td_dev *dev = NULL;

	if (ops->open(&dev, &opt, &err))
		fail_msg("open: %s", err.text);
	return dev;
}

UNUSED static void k_close(struct td_dev *dev)
{
	struct td_error err = { 0 };

	if (ops->sync(dev, &err))
		fail_msg("sync: %s", err.text);
	ops->close(dev);
}

/* splitmix64 */
static uint64_t k_seed = 1;
UNUSED static uint64_t k_random(void)
{
	uint64_t z = k_seed += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}
UNUSED static float k_uniform(float low, float high)
{
	return low + (high - low) * (float)(k_random() >> 40) / 16777216.0f;
}
UNUSED static void k_fill(float *x, size_t n, float low, float high)
{
	for (size_t i = 0; i < n; i++)
		x[i] = k_uniform(low, high);
}

/* Zeroed F32 tensor with rows `pad` floats apart from each other; free .data with free(). */
UNUSED static struct td_tensor k_tensor(int rows, int cols, int pad)
{
	struct td_tensor t = { .dtype = TD_F32, .rows = rows, .cols = cols, .ld = cols + pad };

	t.data = calloc((size_t)rows * (size_t)t.ld + 1, sizeof(float));
	assert_non_null(t.data);
	return t;
}
UNUSED static float *k_row(struct td_tensor t, int r)
{
	return (float *)t.data + (size_t)r * (size_t)t.ld;
}
UNUSED static struct td_tensor k_random_tensor(int rows, int cols, int pad)
{
	struct td_tensor t = k_tensor(rows, cols, pad);

	k_fill(t.data, (size_t)rows * (size_t)t.ld, -1, 1);
	return t;
}

UNUSED static void k_near(const char *what, long at, double got, double want, double tolerance)
{
	if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
		fail_msg("%s at %ld: got %.9g, want %.9g", what, at, got, want);
}
UNUSED static void k_same_bits(const char *what, const float *got, const float *want, int n)
{
	for (int i = 0; i < n; i++)
		if (memcmp(&got[i], &want[i], sizeof(float)))
			fail_msg("%s: column %d: got %.9g, want %.9g, bit for bit", what, i, (double)got[i], (double)want[i]);
}

/* A batch over `seq`, already given to the device. */
UNUSED static struct td_batch k_batch(struct td_dev *dev, const struct td_seq *seq, int n)
{
	struct td_batch b = { .n_seq = n, .seq = seq };

	for (int i = 0; i < n; i++) {
		b.n_rows += seq[i].rows;
		b.max_rows = seq[i].rows > b.max_rows ? seq[i].rows : b.max_rows;
		b.max_ctx = seq[i].pos0 + seq[i].rows > b.max_ctx ? seq[i].pos0 + seq[i].rows : b.max_ctx;
	}
	ops->batch_set(dev, &b);
	return b;
}

#endif
