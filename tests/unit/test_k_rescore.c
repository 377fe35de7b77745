/*
 * test_k_rescore.c: the best logits of each row are computed again, the rest stays as it was, to the bit; ties, NaN, few ids, ids that don't exist; the same
 * bits for a row alone and among others.
 */
#include "k_common.h"

static double dot(const float *x, const uint16_t *w, int n)
{
	double s = 0;

	for (int i = 0; i < n; i++)
		s += (double)x[i] * td_bf16_float(w[i]);
	return s;
}

/* Is id among the best of the row, by sorting in words: fewer than TD_RESCORE ids are before it. */
static int among(const float *v, int n, int id)
{
	int before = 0;

	for (int i = 0; i < n; i++)
		before += !isnan(v[i]) && (v[i] > v[id] || (v[i] == v[id] && i < id));
	return id < n && !isnan(v[id]) && before < TD_RESCORE;
}

static struct td_dev *dev;

static void rows_are(int rows, int cols, int vocab, int real, int kind)
{
	size_t n = (size_t)rows * (size_t)vocab;
	float *x = malloc(sizeof(*x) * (size_t)(rows * cols)), *was = malloc(sizeof(*was) * n), *now = malloc(sizeof(*now) * n), *one = malloc(sizeof(*one) * (size_t)vocab);
	uint16_t *table = malloc(sizeof(*table) * (size_t)(vocab * cols));
	struct td_tensor xt = { x, TD_F32, rows, cols, cols, 0 }, wt = { table, TD_BF16, vocab, cols, cols, 0 }, lt = { now, TD_F32, rows, vocab, vocab, 0 };
	int changed = 0;

	assert_true(x && was && now && one && table);
	for (int i = 0; i < rows * cols; i++)
		x[i] = k_uniform(-3, 3);
	for (int i = 0; i < vocab * cols; i++)
		table[i] = td_bf16(k_uniform(-3, 3));
	for (size_t i = 0; i < n; i++)
		was[i] = kind == 1 ? (float)(i % 3) : kind == 2 && i % 5 ? NAN : kind == 3 ? -INFINITY : k_uniform(-3, 3);
	memcpy(now, was, sizeof(*now) * n);
	ops->rescore(dev, xt, wt, lt, NULL, real);
	for (int r = 0; r < rows; r++) {
		const float *v = was + (size_t)r * (size_t)vocab;

		for (int id = 0; id < vocab; id++) {
			float got = now[(size_t)r * (size_t)vocab + (size_t)id];
			double want = dot(x + r * cols, table + id * cols, cols);

			if (!among(v, real, id))
				assert_memory_equal(&got, &v[id], sizeof(got));
			else if (!(fabs(got - want) < 1e-4 * sqrt(cols)))
				fail_msg("row %d, id %d: %g, the table says %g", r, id, (double)got, want);
			else
				changed++;
		}
		memcpy(one, v, sizeof(*one) * (size_t)vocab);
		ops->rescore(dev, td_rows(xt, r, 1), wt, (struct td_tensor){ one, TD_F32, 1, vocab, vocab, 0 }, NULL, real);
		assert_memory_equal(one, now + (size_t)r * (size_t)vocab, sizeof(*one) * (size_t)vocab);
	}
	if (kind != 2)
		assert_int_equal(changed, rows * (real < TD_RESCORE ? real : TD_RESCORE));
	free(x);
	free(was);
	free(now);
	free(one);
	free(table);
}

static void best_logits_are_exact(void **state)
{
	(void)state;
	dev = k_open(2);
	for (int kind = 0; kind < 4; kind++) { /* normal; ties; NaN; nothing but -inf */
		rows_are(1, 64, 500, 500, kind);
		rows_are(5, 40, 300, 277, kind);
		rows_are(3, 13, 5, 5, kind);
		rows_are(2, 8, 9, 3, kind);
	}
	k_close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(best_logits_are_exact) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
