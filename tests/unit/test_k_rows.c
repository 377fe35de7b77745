/*
 * test_k_rows.c: norms, SwiGLU, embedding, copies, which rows go on, block ids, token counts; and the exponential that they are made of.
 */
#include "k_common.h"

#include "kernels/cpu/cpu.h"

static void exponential(void **state)
{
	double worst = 0;

	(void)state;
	for (double x = -86.9; x < 88; x += 0.00037) {
		float f = (float)x;
		double want = exp(f), e = fabs(td__exp(f) - want) / want;

		worst = e > worst ? e : worst;
	}
	printf("largest relative error of td__exp: %.3g\n", worst);
	assert_true(worst < 1.3e-7);
	assert_true(td__exp(0) == 1);
	assert_true(td__exp(-INFINITY) < 1e-37f && td__exp(-INFINITY) >= 0 && td__exp(-1e30f) < 1e-37f);
	assert_true(isfinite(td__exp(INFINITY)) && td__exp(1e30f) > 1e38f);
	assert_true(td__sigmoid(-INFINITY) < 1e-37f && td__sigmoid(INFINITY) == 1);
}

static void norms(void **state)
{
	static const int width[] = { 1, 7, 16, 128, 512, 2560 };
	struct td_dev *dev = k_open(2), *one = k_open(1);

	(void)state;
	for (int i = 0; i < 6; i++) {
		const int n = width[i], rows = 37;
		struct td_tensor x = k_random_tensor(rows, n, 3), y = k_tensor(rows, n, 1), alone = k_tensor(1, n, 0), up = k_random_tensor(rows, 2 * n, 5);
		float *w = malloc((size_t)n * sizeof(float));

		k_fill(w, (size_t)n, -1, 1);
		for (int zero_centred = 0; zero_centred < 2; zero_centred++) {
			ops->rms_norm(dev, x, w, 1e-5f, zero_centred, y);
			for (int r = 0; r < rows; r++) {
				double square = 0;

				for (int c = 0; c < n; c++)
					square += (double)k_row(x, r)[c] * k_row(x, r)[c];
				for (int c = 0; c < n; c++)
					k_near("rms_norm", r * n + c, k_row(y, r)[c],
					       k_row(x, r)[c] / sqrt(square / n + 1e-5f) * (zero_centred + (double)w[c]), 1e-6);
				ops->rms_norm(one, td_rows(x, r, 1), w, 1e-5f, zero_centred, alone);
				k_same_bits("rms_norm of a row alone", alone.data, k_row(y, r), n);
			}
		}
		k_row(up, 0)[0] = -200;
		k_row(up, 1)[0] = 200;
		ops->swiglu(dev, up, y);
		for (int r = 0; r < rows; r++) {
			for (int c = 0; c < n; c++) {
				double g = k_row(up, r)[c];

				k_near("swiglu", r * n + c, k_row(y, r)[c], g / (1 + exp(-g)) * k_row(up, r)[n + c], 1e-6);
			}
			ops->swiglu(one, td_rows(up, r, 1), alone);
			k_same_bits("swiglu of a row alone", alone.data, k_row(y, r), n);
		}
		ops->rms_norm(dev, y, w, 1e-5f, 1, y); /* in place */
		free(x.data);
		free(y.data);
		free(alone.data);
		free(up.data);
		free(w);
	}
	k_close(dev);
	k_close(one);
}

static void embedding(void **state)
{
	struct td_dev *dev = k_open(1);
	struct td_error err = { 0 };
	uint16_t table[4 * 5];
	const int32_t ids[3] = { 3, 0, 3 }, bad[3] = { 1, 4, -1 };
	struct td_tensor t = { table, TD_BF16, 4, 4, 5, 0 }, y = k_tensor(3, 4, 2);

	(void)state;
	for (int i = 0; i < 20; i++)
		table[i] = td_bf16((float)i / 2);
	ops->embed(dev, t, ids, y);
	for (int r = 0; r < 3; r++)
		for (int c = 0; c < 4; c++)
			assert_true(k_row(y, r)[c] == (float)(ids[r] * 5 + c) / 2);
	assert_int_equal(ops->sync(dev, &err), 0);
	ops->embed(dev, t, bad, y);
	assert_true(k_row(y, 0)[0] == 2.5f && k_row(y, 1)[0] == 0 && k_row(y, 2)[3] == 0);
	assert_int_equal(ops->sync(dev, &err), TD_E_INVALID);
	assert_non_null(strstr(err.text, "token id 4 at row 1"));
	ops->close(dev);
	free(y.data);
}

static void moving(void **state)
{
	struct td_dev *dev = k_open(2);
	struct td_tensor x = k_random_tensor(10, 6, 1), y = k_tensor(10, 6, 4), wide = k_tensor(10, 20, 0);
	struct td_seq seq[3] = { { .slot = 4, .row0 = 0, .rows = 3 }, { .slot = 0, .row0 = 3, .rows = 1 }, { .slot = 2, .row0 = 4, .rows = 6 } };
	struct td_batch b = k_batch(dev, seq, 3);
	static const int last[3] = { 2, 3, 9 }, tail[7] = { 1, 2, 5, 6, 7, 8, 9 };
	static struct td_draft draft[5];
	const int32_t anchor[5] = { 100, 101, 102, 103, 104 }, verify[10] = { 104, 40, 41, 100, 102, 20, 21, 22, 23, 24 };
	int32_t ids[10];

	(void)state;
	seq[0].rows = 1000; /* the device has its own copy */
	ops->rows_last(dev, &b, x, y);
	for (int i = 0; i < 3; i++)
		k_same_bits("rows_last", k_row(y, i), k_row(x, last[i]), 6);
	ops->rows_tail(dev, &b, x, y);
	for (int i = 0; i < 7; i++)
		k_same_bits("rows_tail", k_row(y, i), k_row(x, tail[i]), 6);
	ops->copy(dev, x, td_cols(wide, 7, 6));
	for (int i = 0; i < 10; i++) {
		k_same_bits("copy into columns", k_row(wide, i) + 7, k_row(x, i), 6);
		assert_true(k_row(wide, i)[6] == 0 && k_row(wide, i)[13] == 0);
	}
	for (int s = 0; s < 5; s++)
		for (int i = 0; i < TD_DRAFT_MAX; i++)
			draft[s].token[i] = s * 10 + i;
	ops->verify_ids(dev, &b, anchor, draft, ids);
	assert_memory_equal(ids, verify, sizeof(ids));
	ops->mask_ids(dev, &b, anchor, 77, ids);
	for (int i = 0; i < 10; i++)
		assert_int_equal(ids[i], i == 0 ? 104 : i == 3 ? 100 : i == 4 ? 102 : 77);
	free(x.data);
	free(y.data);
	free(wide.data);
	k_close(dev);
}

static void counting(void **state)
{
	struct td_dev *dev = k_open(1);
	struct td_error err = { 0 };
	uint16_t counts[10];
	const int32_t prompt[4] = { 1, 1, 9, 0 }, output[5] = { 1, 2, 2, 2, 9 }, bad[2] = { 10, -1 };

	(void)state;
	memset(counts, 0xff, sizeof(counts));
	ops->counts_reset(dev, counts, 10, prompt, 4);
	ops->counts_add(dev, counts, output, 5);
	assert_int_equal(counts[0], 0x8000);
	assert_int_equal(counts[1], 0x8001);
	assert_int_equal(counts[2], 3);
	assert_int_equal(counts[9], 0x8001);
	assert_int_equal(counts[5], 0);
	assert_int_equal(ops->sync(dev, &err), 0);
	ops->counts_reset(dev, counts, 10, bad, 2);
	assert_int_equal(ops->sync(dev, &err), TD_E_INVALID);
	ops->close(dev);
}

static void shapes_that_do_not_fit(void **state)
{
	struct td_tensor a = k_tensor(2, 4, 0), b = k_tensor(2, 5, 0);
	struct td_error err;

	(void)state;
	for (int op = 0; op < 4; op++) {
		struct td_dev *dev = k_open(1);
		struct td_seq seq = { .rows = 2 };
		struct td_batch batch = k_batch(dev, &seq, 1);

		if (op == 0)
			ops->rms_norm(dev, a, NULL, 1e-6f, 0, b);
		else if (op == 1)
			ops->swiglu(dev, a, b);
		else if (op == 2)
			ops->copy(dev, a, b);
		else
			ops->rows_last(dev, &batch, a, b);
		assert_int_equal(ops->sync(dev, &err), TD_E_INTERNAL);
		ops->close(dev);
	}
	free(a.data);
	free(b.data);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(exponential), cmocka_unit_test(norms), cmocka_unit_test(embedding), cmocka_unit_test(moving),
					    cmocka_unit_test(counting), cmocka_unit_test(shapes_that_do_not_fit) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
