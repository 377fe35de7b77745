/*
 * test_quantise.c: BF16 rows as 4-bit codes: exact where the values are code * scale, near the best scale otherwise, the same for a row in any company, and
 * heads at load in every case of a tied or separate one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/bf16.h"
#include "engine/loader.h"
#include "engine/quantise.h"
#include "tests/lib/checkpoint.h"
#include "tests/lib/model_files.h"
#include "tests/lib/unit.h"
#include "fake_ops.h"

static struct td_error err;
static uint64_t seed;

static double uniform(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(seed >> 40) / 16777216.0;
}

static float normal(void)
{
	double s = -6;

	for (int i = 0; i < 12; i++)
		s += uniform();
	return (float)s;
}

struct rows {
	int rows, cols, group;
	uint16_t *w, *scale;
	uint32_t *codes;
};

static struct rows make(int rows, int cols)
{
	struct rows r = { .rows = rows, .cols = cols, .group = td_quantise_group(cols) };
	size_t n = (size_t)rows * (size_t)cols;

	r.w = calloc(n, sizeof(*r.w));
	r.codes = malloc(n / 2);
	r.scale = malloc(n / (size_t)r.group * sizeof(*r.scale));
	assert_true(r.w && r.codes && r.scale);
	return r;
}

static void quantise(struct rows *r)
{
	td_quantise(r->w, r->rows, r->cols, r->group, r->codes, r->scale);
}

static void finish(struct rows *r)
{
	free(r->w);
	free(r->codes);
	free(r->scale);
}

static int code(const struct rows *r, size_t i)
{
	return (int)(r->codes[i / 8] >> (4 * (i % 8)) & 15) - 8;
}

static double value(const struct rows *r, size_t i)
{
	return code(r, i) * (double)td_bf16_float(r->scale[i / (size_t)r->group]);
}

/* Squared error of group g at a scale, each value at its nearest code: by the library's rounding, in double precision. */
static double error_at(const struct rows *r, size_t g, double scale)
{
	double e = 0;

	for (size_t i = g * (size_t)r->group; i < (g + 1) * (size_t)r->group; i++) {
		double v = td_bf16_float(r->w[i]), q = fmin(7, fmax(-8, rint(v / scale)));

		e += (v - q * scale) * (v - q * scale);
	}
	return e;
}

static void groups_divide_the_columns(void **state)
{
	static const int want[][2] = { { 2560, 128 }, { 1024, 128 }, { 512, 128 }, { 128, 128 }, { 96, 96 }, { 64, 64 }, { 32, 32 }, { 160, 32 }, { 192, 96 },
				       { 320, 64 }, { 8, 0 }, { 48, 0 }, { 100, 0 }, { 0, 0 }, { -128, 0 } };

	(void)state;
	for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
		assert_int_equal(td_quantise_group(want[i][0]), want[i][1]);
}

/* Scales of a power of two (any code times it fits BF16), and of more digits where only codes of one bit occur; either side may hold the largest. */
static void values_of_the_form_are_exact(void **state)
{
	(void)state;
	seed = 7;
	for (int cols = 32; cols <= 640; cols += 32) {
		struct rows r = make(9, cols);

		for (size_t i = 0; i < (size_t)(r.rows * cols); i++) {
			size_t g = i / (size_t)r.group;
			int q = i % (size_t)r.group == 3 ? (g % 2 ? 7 : -8) : (int)(uniform() * 15.99) - 8;
			double s = ldexp(g % 4 < 2 ? 1 : -1, (int)(g % 40) - 30);

			if (i % (size_t)r.group != 3 && q == -8 && g % 2)
				q = 7;
			r.w[i] = td_bf16((float)(q * s));
		}
		quantise(&r);
		for (size_t i = 0; i < (size_t)(r.rows * cols); i++)
			if (value(&r, i) != (double)td_bf16_float(r.w[i]))
				fail_msg("%d columns, value %zu: %g became %g", cols, i, (double)td_bf16_float(r.w[i]), value(&r, i));
		finish(&r);
	}
}

/* Against a search over 400 scales in double precision; codes are the nearest ones. */
static void scales_are_near_the_best(void **state)
{
	double all = 0, best_all = 0, plain_all = 0, power = 0;

	(void)state;
	seed = 11;
	for (int kind = 0; kind < 3; kind++) {
		struct rows r = make(40, 640);

		for (size_t i = 0; i < (size_t)(r.rows * r.cols); i++) { /* normal; with outliers; uniform */
			r.w[i] = td_bf16(kind == 2 ? (float)uniform() - 0.5f : normal() * (kind == 1 && uniform() < 0.01 ? 5.0f : 1.0f));
			power += pow((double)td_bf16_float(r.w[i]), 2);
		}
		quantise(&r);
		for (size_t g = 0; g < (size_t)(r.rows * r.cols / r.group); g++) {
			double most = 0, best = INFINITY, ours = error_at(&r, g, td_bf16_float(r.scale[g])), stored = 0;

			for (size_t i = g * (size_t)r.group; i < (g + 1) * (size_t)r.group; i++) {
				double v = td_bf16_float(r.w[i]);

				most = fmax(most, fabs(v));
				stored += (v - value(&r, i)) * (v - value(&r, i));
			}
			if (fabs(stored - ours) > 1e-5 * ours)
				fail_msg("group %zu: the codes' error is %g, of the nearest codes %g", g, stored, ours);
			for (int k = 0; k < 200; k++) {
				best = fmin(best, error_at(&r, g, most / (6 + k * 0.05)));
				best = fmin(best, error_at(&r, g, -most / (6 + k * 0.05)));
			}
			if (ours > 1.25 * best)
				fail_msg("kind %d, group %zu: error %g, the best scale's is %g", kind, g, ours, best);
			all += ours;
			best_all += best;
			plain_all += error_at(&r, g, most / 7);
		}
		finish(&r);
	}
	printf("relative error %.4f, best scales %.4f, largest / 7 %.4f\n", sqrt(all / power), sqrt(best_all / power), sqrt(plain_all / power));
	assert_true(all < 1.04 * best_all);
}

static void zeros_and_the_smallest_values(void **state)
{
	static const float v[] = { 0, 1e-40f, -1e-38f, 1e-28f, 3e38f, -1e38f };
	struct rows r = make(6, 256);

	(void)state;
	for (int row = 0; row < 6; row++)
		for (int c = 0; c < 256; c++)
			r.w[row * 256 + c] = td_bf16(c % 3 ? v[row] : -v[row]);
	quantise(&r);
	for (size_t i = 0; i < 6 * 256; i++) {
		double v0 = td_bf16_float(r.w[i]), off = fabs(value(&r, i) - v0);

		if (!(off <= fmax(1e-30, 0.02 * fabs(v0))))
			fail_msg("%g became %g", v0, value(&r, i));
	}
	finish(&r);
}

/* A row's codes and scales are the same alone and among others, whatever thread it falls to. */
static void rows_do_not_depend_on_others(void **state)
{
	struct rows r = make(3001, 192), one = make(1, 192);

	(void)state;
	seed = 5;
	for (size_t i = 0; i < (size_t)(r.rows * r.cols); i++)
		r.w[i] = td_bf16(normal());
	quantise(&r);
	for (int row = 0; row < r.rows; row += 7) {
		memcpy(one.w, r.w + row * 192, 192 * sizeof(*one.w));
		quantise(&one);
		assert_memory_equal(one.codes, r.codes + row * 24, 96);
		assert_memory_equal(one.scale, r.scale + row * 2, 4);
	}
	finish(&r);
	finish(&one);
}

/* ---- the head -------------------------------------------------------------------------------------------------------------------------------- */

static void auto_is_as_the_other_maps(void **state)
{
	struct td_target_config c = { .hidden = 2560, .quant = { .bits = 4 } };

	(void)state;
	assert_int_equal(td_form_head("auto", &c, 0), TD_FORM_HEAD_INT4 | TD_FORM_HEAD_EXACT);
	assert_int_equal(td_form_head("auto", &c, TD_FORM_BF16), TD_FORM_BF16); /* expanded maps: the BF16 baseline */
	c.hidden = 2568;
	assert_int_equal(td_form_head("auto", &c, 0), 0);
	c = (struct td_target_config){ .hidden = 2560 };
	assert_int_equal(td_form_head("auto", &c, 0), 0);
	assert_int_equal(td_form_head("bf16", NULL, TD_FORM_HEAD_INT4 | TD_FORM_HEAD_EXACT), 0);
	assert_int_equal(td_form_head("int4", NULL, TD_FORM_BF16), TD_FORM_BF16 | TD_FORM_HEAD_INT4);
	assert_int_equal(td_form_head("rescored", NULL, 0), TD_FORM_HEAD_INT4 | TD_FORM_HEAD_EXACT);
}

static void activations_are_what_is_said(void **state)
{
	static const char *const device[] = { "cpu", "cuda" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(td_form_activations("int8", device[i], TD_FORM_HEAD_INT4), TD_FORM_HEAD_INT4 | TD_FORM_ACT8);
		assert_int_equal(td_form_activations("bf16", device[i], TD_FORM_HEAD_INT4 | TD_FORM_ACT8), TD_FORM_HEAD_INT4);
		assert_int_equal(td_form_activations("auto", device[i], i ? 0 : TD_FORM_ACT8), i ? TD_FORM_ACT8 : 0); /* what a GPU does faster */
	}
	assert_int_equal(td_form_head("auto", &(struct td_target_config){ .hidden = 2568 }, TD_FORM_ACT8), TD_FORM_ACT8);
}

/* Largest error of y = W x for the rows of two heads, relative to the largest value, over a few x. */
static double apart(const struct td_ops *ops, struct td_dev *dev, const struct td_linear *a, const struct td_linear *b)
{
	int in = a->in, out = a->out;
	float *host = malloc(sizeof(float) * (size_t)(in + 2 * out)), *x = ops->alloc(dev, sizeof(float) * (size_t)in, &err);
	float *y = ops->alloc(dev, sizeof(float) * (size_t)out, &err);
	double power = 0, error = 0;

	assert_true(host && x && y);
	for (int i = 0; i < in; i++)
		host[i] = normal();
	ops->upload(dev, x, host, sizeof(float) * (size_t)in);
	for (int k = 0; k < 2; k++) {
		ops->linear(dev, (struct td_tensor){ x, TD_F32, 1, in, in, 0 }, k ? b : a, (struct td_tensor){ y, TD_F32, 1, out, out, 0 }, 0);
		OK(ops->download(dev, host + in + k * out, y, sizeof(float) * (size_t)out, &err));
	}
	for (int i = 0; i < out; i++) {
		power += pow(host[in + i], 2);
		error += pow(host[in + i] - host[in + out + i], 2);
	}
	free(host);
	ops->free(dev, x);
	ops->free(dev, y);
	return sqrt(error / power);
}

/* Tied (files and synthetic): the table stays; the head is a copy of 4 bits whose logits differ by what 4 bits differ. */
static void a_quantised_head_is_the_head(void **state)
{
	static const char *const dir[] = { "models/tiny/target-int4", "synthetic:tiny" };
	struct td_dev_options opt = { .threads = 1, .slots = 1 };
	const struct td_ops *ops = &td_cpu_ops;
	struct td_target_weights *a, *b;
	struct td_dev *dev;
	char print[2][256];

	(void)state;
	OK(ops->open(&dev, &opt, &err));
	for (int i = 0; i < 2; i++) {
		double off;

		OK(td_target_weights_load(ops, dev, dir[i], NULL, &a, print[0], &err));
		OK(td_target_weights_load(ops, dev, dir[i], &(struct td_load){ .form = TD_FORM_HEAD_INT4 }, &b, print[1], &err));
		assert_string_not_equal(print[0], print[1]);
		assert_int_equal(a->head.kind, TD_W_BF16);
		assert_ptr_equal(a->head.data, a->embed.data);
		assert_int_equal(b->head.kind, TD_W_INT4);
		assert_int_equal(b->head.group, 128);
		assert_ptr_not_equal(b->head.data, b->embed.data);
		assert_memory_equal(a->embed.data, b->embed.data, (size_t)a->embed.rows * (size_t)a->embed.cols * 2);
		off = apart(ops, dev, &a->head, &b->head);
		printf("%s: logits of a random state differ by %.4f\n", dir[i], off);
		assert_true(off > 0.01 && off < 0.13);
		td_target_weights_free(ops, dev, a);
		td_target_weights_free(ops, dev, b);
	}
	ops->close(dev);
}

/* The tiny model with a head of its own: its folder's file and one of the head, under an index. */
static void untie(void)
{
	char text[2048], here[1024], *config, *tied;
	struct ck ck = { 0 };
	struct td_st *st;
	FILE *f;

	assert_non_null(getcwd(here, sizeof(here)));
	snprintf(text, sizeof(text), "%s/tiny.safetensors", scratch);
	snprintf(here + strlen(here), 64, "/models/tiny/target-int4/model.safetensors");
	assert_int_equal(symlink(here, text), 0);
	ck_add(&ck, "BF16", "lm_head.weight", 8192, 512, 0);
	ck_write(&ck, scratch, "head.safetensors", 0);
	ck_finish(&ck);
	OK(td_st_open("models/tiny/target-int4", &st, &err));
	snprintf(text, sizeof(text), "%s/model.safetensors.index.json", scratch);
	f = fopen(text, "w");
	assert_non_null(f);
	fprintf(f, "{\"weight_map\":{\"lm_head.weight\":\"head.safetensors\"");
	for (size_t i = 0; i < td_st_count(st); i++)
		fprintf(f, ",\"%s\":\"tiny.safetensors\"", td_st_at(st, i)->name);
	fprintf(f, "}}");
	assert_int_equal(fclose(f), 0);
	td_st_close(st);
	config = file_read("models/tiny/target-int4", "config.json", NULL);
	for (tied = config; (tied = strstr(tied, "\"tie_word_embeddings\": true")); tied += 28)
		memcpy(tied, "\"tie_word_embeddings\":false", 27);
	file_text(scratch, "config.json", config);
	free(config);
}

/* A head apart from the table: in 4 bits it takes its table's place; only rescoring keeps that, too. */
static void a_separate_head(void **state)
{
	static const char *const head[] = { "bf16", "int4", "rescored" };
	const size_t table = 8192 * 512 * 2, packed = 8192 * (512 / 2 + 4 * 2);
	struct td_dev_options opt = { .threads = 1, .slots = 1 };
	const struct td_ops *ops = &td_cpu_ops;
	struct td_target_weights *w[3];
	struct td_dev *dev;
	char print[256];
	size_t plan[3];

	(void)state;
	untie();
	OK(ops->open(&dev, &opt, &err));
	for (int i = 0; i < 3; i++) {
		int form = td_form_head(head[i], NULL, 0);

		OK(td_target_weights_load(ops, dev, scratch, &(struct td_load){ .form = form }, &w[i], print, &err));
		OK(td_target_weights_plan(ops, scratch, form, &plan[i], NULL, &err));
		assert_int_equal(w[i]->arena.size, plan[i]);
		assert_int_equal(w[i]->head.kind, i ? TD_W_INT4 : TD_W_BF16);
		assert_true((w[i]->exact.data != NULL) == (i == 2));
	}
	assert_ptr_not_equal(w[0]->head.data, w[0]->embed.data);
	assert_ptr_not_equal(w[2]->exact.data, w[2]->embed.data);
	assert_memory_equal(w[2]->exact.data, w[0]->head.data, table);
	assert_memory_equal(w[2]->head.data, w[1]->head.data, packed);
	assert_true(apart(ops, dev, &w[0]->head, &w[1]->head) < 0.13);
	/* whole arenas are multiples of 2 MiB */
	assert_true(plan[0] - plan[1] > table - packed - (2 << 20) && plan[0] - plan[1] < table - packed + (2 << 20));
	assert_true(plan[2] - plan[0] < packed + (2 << 20) && plan[2] - plan[0] >= packed - (2 << 20));
	for (int i = 0; i < 3; i++)
		td_target_weights_free(ops, dev, w[i]);
	ops->close(dev);
}

/* The loader on a file of one table: at an odd address too; what can't be quantised is refused with what to do, and nothing is written before that. */
static int load_one(int rows, int cols, int odd, size_t bad, struct td_linear *w)
{
	struct td__loader l = { .ops = &fake_ops, .dir = scratch, .prefix = "", .err = &err };
	struct td_arena arena;
	struct ck ck = { 0 };
	int rc;

	ck_add(&ck, "BF16", "lm_head.weight", rows, cols, 0);
	for (size_t i = 0; i < (size_t)(rows * cols); i++) {
		uint16_t v = i + 1 == bad ? 0xff80 : td_bf16(normal());

		memcpy(ck.t[0].data + 2 * i, &v, 2);
	}
	ck_write(&ck, scratch, "model.safetensors", odd);
	OK(td_st_open(scratch, &l.st, &err));
	td__load_quantised(&l, "lm_head.weight", rows, cols, w);
	rc = l.rc;
	if (!rc) {
		OK(fake_ops.arena_create(NULL, l.at, &arena, &err));
		l.base = (uintptr_t)arena.base;
		l.at = 0;
		l.pass = TD__FILL;
		td__load_quantised(&l, "lm_head.weight", rows, cols, w);
		rc = l.rc;
		if (!rc) {
			struct rows r = make(rows, cols);

			memcpy(r.w, ck.t[0].data, (size_t)(rows * cols) * 2);
			quantise(&r);
			assert_memory_equal(fake_peek(w->data), r.codes, (size_t)(rows * cols) / 2);
			assert_memory_equal((const char *)fake_peek(w->data) + (size_t)(rows * cols) / 2, r.scale, (size_t)(rows * cols / r.group) * 2);
			assert_int_equal(l.done, l.total);
			finish(&r);
		}
		fake_ops.arena_release(NULL, &arena);
	}
	td_st_close(l.st);
	ck_finish(&ck);
	return rc;
}

static void the_loader_quantises_or_refuses(void **state)
{
	struct td_linear w;

	(void)state;
	seed = 3;
	OK(load_one(10, 64, 0, 0, &w));
	assert_true(w.kind == TD_W_INT4 && w.group == 64 && w.in == 64 && w.out == 10);
	OK(load_one(5, 192, 1, 0, &w));
	assert_int_equal(w.group, 96);
	fake.packs = 0;
	assert_int_equal(load_one(10, 64, 0, 640, &w), TD_E_FORMAT);
	assert_non_null(strstr(err.text, "tensor lm_head.weight holds NaN or infinity"));
	assert_int_equal(fake.packs, 0);
	assert_int_equal(load_one(10, 40, 0, 0, &w), TD_E_UNSUPPORTED);
	assert_non_null(strstr(err.text, "rows of 40 values can't be quantised in groups that are a multiple of 32; set model.head = bf16"));
	fake_finish();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(groups_divide_the_columns),
		cmocka_unit_test(values_of_the_form_are_exact),
		cmocka_unit_test(scales_are_near_the_best),
		cmocka_unit_test(zeros_and_the_smallest_values),
		cmocka_unit_test(rows_do_not_depend_on_others),
		cmocka_unit_test(auto_is_as_the_other_maps), cmocka_unit_test(activations_are_what_is_said),
		cmocka_unit_test(a_quantised_head_is_the_head),
		cmocka_unit_test_setup_teardown(a_separate_head, scratch_setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(the_loader_quantises_or_refuses, scratch_setup, scratch_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
