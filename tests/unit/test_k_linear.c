/*
 * test_k_linear.c: y = W x against double precision for BF16 and INT4, the latter also with activations in 8 bits, and row invariance: a row's bits do not
 * depend on the number of rows, its place, the leading dimensions, the threads, or where in a fused map its outputs stand.
 */
#include "k_common.h"

struct map {
	struct td_linear w;
	double *dense; /* (out, in) */
	uint32_t *words;
	uint16_t *scales, *bf16;
};

static void map_make(struct td_dev *dev, enum td_weight_kind kind, int out, int in, int group, struct map *m)
{
	struct td_error err = { 0 };
	struct td_linear_part part[2];
	size_t bytes = ops->pack_bytes(kind, out, in, group);
	int first = out / 3; /* two parts, unequal */

	memset(m, 0, sizeof(*m));
	m->dense = malloc((size_t)out * (size_t)in * sizeof(double));
	m->words = malloc((size_t)out * (size_t)in / 2 + 4);
	m->scales = malloc((size_t)out * (size_t)(in / (group ? group : in)) * 2);
	m->bf16 = malloc((size_t)out * (size_t)in * 2);
	for (int o = 0; o < out; o++)
		for (int k = 0; k < in; k++) {
			size_t at = (size_t)o * (size_t)in + (size_t)k;

			if (kind == TD_W_BF16) {
				m->bf16[at] = td_bf16(k_uniform(-1, 1));
				m->dense[at] = td_bf16_float(m->bf16[at]);
				continue;
			}
			if (k % 8 == 0)
				m->words[at / 8] = (uint32_t)k_random();
			if (k % group == 0)
				m->scales[at / (size_t)group] = td_bf16(k_uniform(-0.2f, 0.2f));
			m->dense[at] = ((int)(m->words[at / 8] >> 4 * (k % 8) & 15) - 8) * (double)td_bf16_float(m->scales[at / (size_t)group]);
		}
	m->w = (struct td_linear){ .kind = kind, .in = in, .out = out, .group = group, .data = ops->alloc(dev, bytes, &err) };
	assert_non_null(m->w.data);
	assert_true(bytes > 0);
	part[0] = (struct td_linear_part){ first, kind == TD_W_BF16 ? (void *)m->bf16 : (void *)m->words, m->scales };
	part[1] = part[0];
	part[1].out = out - first;
	if (kind == TD_W_BF16) {
		part[1].weight = m->bf16 + (size_t)first * (size_t)in;
	} else {
		part[1].weight = m->words + (size_t)first * (size_t)in / 8;
		part[1].scale = m->scales + (size_t)first * (size_t)(in / group);
	}
	if (ops->pack(dev, &m->w, part, 2, &err))
		fail_msg("pack: %s", err.text);
}

static void map_free(struct td_dev *dev, struct map *m)
{
	ops->free(dev, m->w.data);
	free(m->dense);
	free(m->words);
	free(m->scales);
	free(m->bf16);
}

/* A row as td_linear.act8 has it: whole numbers times a scale. */
static void rounded_row(const float *x, int n, double *to)
{
	for (int k = 0; k < n; k += TD_ACT8_GROUP) {
		int end = k + TD_ACT8_GROUP < n ? k + TD_ACT8_GROUP : n;
		float a = 0, r, scale;

		for (int i = k; i < end; i++)
			a = fmaxf(a, fabsf(x[i]));
		r = 127.0f * (1.0f / a);
		scale = a * (1.0f / 127.0f);
		for (int i = k; i < end; i++) {
			to[i] = a == 0 ? 0 : rint((double)x[i] * r); /* the product of two floats is exact in a double */
			assert_true(fabs(to[i]) <= 127);
			to[i] *= scale;
		}
	}
}

/* Rows that rounding could get wrong: ties, zeros, numbers that differ much, the largest alone in its group. */
static void hard_rows(struct td_tensor x)
{
	for (int r = 1; r < x.rows && r < 5; r++)
		for (int k = 0; k < x.cols; k++) {
			float *v = k_row(x, r) + k;

			*v = r == 1 ? (float)(k % 255 - 127) * 0.5f : r == 2 ? (k / TD_ACT8_GROUP % 2 ? 0 : *v) : r == 3 ? *v * (k % 97 ? 1e-3f : 1e3f) : -*v * 1e-20f;
		}
}

static void against_double(struct td_dev *dev, const struct map *m, int rows)
{
	double *row = malloc((size_t)m->w.in * sizeof(*row));
	struct td_tensor x = k_random_tensor(rows, m->w.in, 3), y = k_random_tensor(rows, m->w.out, 5), before = k_tensor(rows, m->w.out, 5);

	if (m->w.act8)
		hard_rows(x);
	memcpy(before.data, y.data, (size_t)rows * (size_t)y.ld * sizeof(float));
	for (int accumulate = 1; accumulate >= 0; accumulate--) {
		ops->linear(dev, x, &m->w, y, accumulate);
		for (int r = 0; r < rows; r++) {
			for (int k = 0; k < m->w.in; k++)
				row[k] = k_row(x, r)[k];
			if (m->w.act8)
				rounded_row(k_row(x, r), m->w.in, row);
			for (int o = 0; o < m->w.out; o++) {
				double sum = accumulate ? k_row(before, r)[o] : 0, size = 0;

				for (int k = 0; k < m->w.in; k++) {
					double p = m->dense[(size_t)o * (size_t)m->w.in + (size_t)k] * row[k];

					sum += p;
					size += fabs(p);
				}
				k_near("linear", (long)r * m->w.out + o, k_row(y, r)[o], sum, 1e-6 + 3e-7 * size);
			}
		}
		/* What lies between the rows is not ours. */
		for (int r = 0; r < rows; r++)
			k_same_bits("between rows", k_row(y, r) + m->w.out, k_row(before, r) + m->w.out, 5);
	}
	free(row);
	free(x.data);
	free(y.data);
	free(before.data);
}

static void values(void **state)
{
	static const struct { enum td_weight_kind kind; int out, in, group; } shape[] = {
		{ TD_W_INT4, 37, 512, 32 }, { TD_W_INT4, 131, 1024, 128 }, { TD_W_INT4, 1, 1536, 32 }, { TD_W_INT4, 67, 2560, 128 },
		{ TD_W_INT4, 33, 9216, 128 }, { TD_W_INT4, 5, 48, 24 }, { TD_W_INT4, 7, 8, 8 }, { TD_W_INT4, 9, 640, 640 },
		{ TD_W_INT4, 6, 1200, 24 }, { TD_W_INT4, 3, 1920, 640 }, /* groups that lie across the steps of the product */
		{ TD_W_BF16, 129, 512, 0 }, { TD_W_BF16, 16, 2560, 0 }, { TD_W_BF16, 3, 20, 0 }, { TD_W_BF16, 5, 517, 0 }, { TD_W_BF16, 2, 1, 0 },
	};
	struct td_dev *dev = k_open(2);

	(void)state;
	for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
		struct map m;

		map_make(dev, shape[i].kind, shape[i].out, shape[i].in, shape[i].group, &m);
		for (m.w.act8 = 0; m.w.act8 <= (m.w.kind == TD_W_INT4); m.w.act8++) {
			against_double(dev, &m, 1);
			against_double(dev, &m, 5);
			against_double(dev, &m, 50);
		}
		map_free(dev, &m);
	}
	k_close(dev);
}

/* Every row alone on one thread is the reference; then 1..40 rows on two threads, each row at a place that moves. */
static void one_shape(enum td_weight_kind kind, int out, int in, int group, int act8)
{
	enum { MAX = 40 };
	struct td_dev *one = k_open(1), *two = k_open(2);
	struct td_tensor x = k_random_tensor(MAX, in, 0), want = k_tensor(MAX, out, 0);
	struct map m;
	char what[96];

	map_make(one, kind, out, in, group, &m);
	m.w.act8 = act8;
	for (int r = 0; r < MAX; r++)
		ops->linear(one, td_rows(x, r, 1), &m.w, td_rows(want, r, 1), 0);
	for (int rows = 1; rows <= MAX; rows += in > 2000 ? 3 : 1) {
		struct td_tensor mixed = k_tensor(rows, in, 8), y = k_tensor(rows, out, 1);

		for (int r = 0; r < rows; r++)
			memcpy(k_row(mixed, r), k_row(x, (r * 7 + rows) % MAX), (size_t)in * sizeof(float));
		ops->linear(two, mixed, &m.w, y, 0);
		snprintf(what, sizeof(what), "%d x %d, group %d%s, in a batch of %d", out, in, group, act8 ? ", x in 8 bits" : "", rows);
		for (int r = 0; r < rows; r++)
			k_same_bits(what, k_row(y, r), k_row(want, (r * 7 + rows) % MAX), out);
		free(mixed.data);
		free(y.data);
	}
	/* A range of rows of the map is a map with the same results (drafter: k|v inside q|k|v). */
	if (out > 12) {
		struct td_linear part = m.w;
		struct td_tensor y = k_tensor(3, out - 11, 0);

		part.out = out - 11;
		part.data = (char *)m.w.data + ops->pack_bytes(kind, 11, in, group);
		ops->linear(two, td_rows(x, 0, 3), &part, y, 0);
		for (int r = 0; r < 3; r++)
			k_same_bits("row range of the map", k_row(y, r), k_row(want, r) + 11, out - 11);
		free(y.data);
	}
	map_free(one, &m);
	free(x.data);
	free(want.data);
	k_close(one);
	k_close(two);
}

static void row_invariance(void **state)
{
	static const int in[] = { 512, 1024, 1536, 2560, 9216 };

	(void)state;
	for (int i = 0; i < 5; i++) {
		one_shape(TD_W_INT4, 37, in[i], 32, 0);
		one_shape(TD_W_INT4, 67, in[i], 128, 0);
		one_shape(TD_W_INT4, 37, in[i], 32, 1);
		one_shape(TD_W_BF16, 35, in[i], 0, 0);
	}
	one_shape(TD_W_INT4, 67, 1536, 128, 1);
	one_shape(TD_W_INT4, 7, 584, 584, 1);
	one_shape(TD_W_BF16, 13, 517, 0, 0);
}

/* The calls that do several operations: the bits of the operations one by one. */
static void together(void **state)
{
	enum { ROWS = 5, HIDDEN = 64, INNER = 96 };
	struct td_dev *dev = k_open(2);
	struct map gate_up, few;
	struct td_tensor z = k_random_tensor(ROWS, HIDDEN, 0), both[2], inner[2], a[2], b[2];

	(void)state;
	map_make(dev, TD_W_INT4, 2 * INNER, HIDDEN, 32, &gate_up);
	map_make(dev, TD_W_BF16, 7, HIDDEN, 0, &few);
	gate_up.w.act8 = 1;
	for (int i = 0; i < 2; i++) {
		both[i] = k_tensor(ROWS, 2 * INNER, 0);
		inner[i] = k_tensor(ROWS, INNER, 0);
		a[i] = k_tensor(ROWS, 2 * INNER, 0);
		b[i] = k_tensor(ROWS, 7, 0);
	}
	ops->linear(dev, z, &gate_up.w, both[0], 0);
	ops->swiglu(dev, both[0], inner[0]);
	ops->linear_swiglu(dev, z, &gate_up.w, both[1], inner[1]);
	k_same_bits("linear_swiglu", inner[1].data, inner[0].data, ROWS * INNER);
	ops->linear(dev, z, &gate_up.w, a[0], 0);
	ops->linear(dev, z, &few.w, b[0], 0);
	ops->linear2(dev, z, &gate_up.w, a[1], &few.w, b[1]);
	k_same_bits("linear2, the first", a[1].data, a[0].data, ROWS * 2 * INNER);
	k_same_bits("linear2, the second", b[1].data, b[0].data, ROWS * 7);
	for (int i = 0; i < 2; i++) {
		free(both[i].data);
		free(inner[i].data);
		free(a[i].data);
		free(b[i].data);
	}
	free(z.data);
	map_free(dev, &gate_up);
	map_free(dev, &few);
	ops->close(dev);
}

static void bad_input(void **state)
{
	struct td_dev *dev = k_open(1);
	struct td_error err = { 0 };
	struct td_linear w = { .kind = TD_W_INT4, .in = 60, .out = 4, .group = 32 };
	struct td_linear_part part = { 4, NULL, NULL };
	struct td_tensor x = k_tensor(2, 64, 0), y = k_tensor(2, 4, 0);

	(void)state;
	assert_int_equal(ops->pack_bytes(TD_W_INT4, 4, 60, 32), 0); /* the group does not divide the columns */
	assert_int_equal(ops->pack_bytes(TD_W_INT4, 4, 64, 12), 0); /* groups of part words */
	assert_int_equal(ops->pack_bytes(TD_W_INT4, 0, 64, 32), 0);
	assert_int_equal(ops->pack(dev, &w, &part, 1, &err), TD_E_UNSUPPORTED);
	assert_non_null(strstr(err.text, "4 x 60"));
	w.in = 64;
	part.out = 3; /* parts do not add up */
	assert_int_equal(ops->pack(dev, &w, &part, 1, &err), TD_E_UNSUPPORTED);
	/* shapes that do not fit: nothing is written, sync tells */
	w.in = 32;
	k_row(y, 0)[0] = 7;
	ops->linear(dev, x, &w, y, 0);
	assert_true(k_row(y, 0)[0] == 7);
	assert_int_equal(ops->sync(dev, &err), TD_E_INTERNAL);
	assert_non_null(strstr(err.text, "linear"));
	ops->close(dev);
	free(x.data);
	free(y.data);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(values), cmocka_unit_test(row_invariance), cmocka_unit_test(together), cmocka_unit_test(bad_input) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
