/*
 * test_synthetic.c: models without files: their configurations are the published ones, their tensors are those that a loader asks for, their values
 * are sane and a function of the name, and a tiny pair of them generates on the CPU.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/safetensors.h"
#include "tests/lib/pair.h"
#include "tests/lib/unit.h"

static struct td_error err;

/* ---- configurations ----------------------------------------------------------------------------------------------------------------------- */

static void targets_are_the_published_ones(void **state)
{
	static const struct {
		const char *name;
		int layers, hidden, intermediate, heads, kv_heads, v_heads, vocab, tied, group;
	} want[] = {
		{ "synthetic:qwen3.5-0.8b", 24, 1024, 3584, 8, 2, 16, 248320, 1, 128 },
		{ "synthetic:qwen3.5-2b:g32", 24, 2048, 6144, 8, 2, 16, 248320, 1, 32 },
		{ "synthetic:qwen3.5-4b", 32, 2560, 9216, 16, 4, 32, 248320, 1, 128 },
		{ "synthetic:qwen3.5-9b:bf16:seed=7", 32, 4096, 12288, 16, 4, 32, 248320, 0, 0 },
		{ "synthetic:tiny:g32", 8, 512, 1024, 4, 1, 8, 8192, 1, 32 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
		struct td_target_config c;

		OK(td_target_config_load(want[i].name, &c, &err));
		assert_int_equal(c.layers, want[i].layers);
		assert_int_equal(c.hidden, want[i].hidden);
		assert_int_equal(c.intermediate, want[i].intermediate);
		assert_int_equal(c.heads, want[i].heads);
		assert_int_equal(c.kv_heads, want[i].kv_heads);
		assert_int_equal(c.v_heads, want[i].v_heads);
		assert_int_equal(c.vocab, want[i].vocab);
		assert_int_equal(c.tied, want[i].tied);
		assert_int_equal(c.quant.size[0], want[i].group);
		assert_int_equal(c.rotary_dim, 64);
		for (int j = 0; j < c.layers; j++)
			assert_int_equal(c.full_attention[j], (j + 1) % 4 == 0);
	}
}

static void drafters_are_the_published_ones(void **state)
{
	static const struct {
		const char *name, *target;
		int layers, intermediate, window, mask, n_taps, tap[8];
	} want[] = {
		{ "synthetic:dflash-4b", "synthetic:qwen3.5-4b", 6, 9216, 4096, 248077, 8, { 1, 5, 9, 13, 17, 21, 25, 29 } },
		{ "synthetic:dflash-4b-paper:bf16", "synthetic:qwen3.5-4b", 5, 9728, 0, 248070, 5, { 1, 8, 15, 22, 29 } },
		{ "synthetic:dflash-0.8b", "synthetic:qwen3.5-0.8b", 6, 3584, 4096, 248077, 8, { 1, 4, 7, 10, 12, 15, 18, 21 } },
		{ "synthetic:dflash-2b-paper", "synthetic:qwen3.5-2b", 5, 6144, 0, 248070, 5, { 1, 6, 11, 16, 21 } },
		{ "synthetic:dflash-9b", "synthetic:qwen3.5-9b", 6, 12288, 4096, 248077, 8, { 1, 5, 9, 13, 17, 21, 25, 29 } },
		{ "synthetic:dflash-tiny", "synthetic:tiny", 3, 1024, 0, 8185, 3, { 1, 3, 5 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
		struct td_target_config t;
		struct td_drafter_config c;

		OK(td_drafter_config_load(want[i].name, &c, &err));
		OK(td_target_config_load(want[i].target, &t, &err));
		OK(td_pair_check(&t, &c, &err));
		assert_int_equal(c.layers, want[i].layers);
		assert_int_equal(c.intermediate, want[i].intermediate);
		assert_int_equal(c.window, want[i].window);
		assert_int_equal(c.mask_id, want[i].mask);
		assert_int_equal(c.n_taps, want[i].n_taps);
		for (int j = 0; j < c.n_taps; j++)
			assert_int_equal(c.tap[j], want[i].tap[j]);
		for (int j = 0; j < c.layers; j++) {
			assert_int_equal(c.sliding[j], c.window && j < c.layers - 1);
			assert_int_equal(c.causal[j], c.sliding[j]);
		}
	}
}

static void wrong_names_are_refused(void **state)
{
	static const char *const bad[] = { "synthetic:", "synthetic:qwen3.5-5b", "synthetic:qwen3.5-4b:fast", "synthetic:qwen3.5-4b:", "synthetic:tiny:seed=",
					   "synthetic:tiny:seed=-1", "synthetic:tiny:seed=1x", "synthetic:dflash-tiny-paper", "synthetic:4b", "synthetic:-paper" };
	struct td_target_config t;
	struct td_drafter_config d;
	struct td_st *st;
	char *a = NULL, *b = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		err.text[0] = '\0';
		if (td_target_config_load(bad[i], &t, &err) == 0 || td_drafter_config_load(bad[i], &d, &err) == 0 || td_st_open(bad[i], &st, &err) == 0)
			fail_msg("%s was accepted", bad[i]);
		assert_non_null(strstr(err.text, bad[i]));
	}
	assert_int_equal(td_target_config_load("synthetic:dflash-4b", &t, &err), TD_E_UNSUPPORTED);
	assert_int_equal(td_drafter_config_load("synthetic:qwen3.5-4b", &d, &err), TD_E_UNSUPPORTED);
	assert_int_equal(td_synthetic_pair("dflash-4b", &a, &b, &err), TD_E_INVALID);
	assert_int_not_equal(td_synthetic_pair("qwen3.5-4b:x", &a, &b, &err), 0);
	assert_null(a);
	OK(td_synthetic_pair("qwen3.5-4b:bf16:seed=3", &a, &b, &err));
	assert_string_equal(a, "synthetic:qwen3.5-4b:bf16:seed=3");
	assert_string_equal(b, "synthetic:dflash-4b:bf16:seed=3");
	free(a);
	free(b);
}

/* ---- tensors ------------------------------------------------------------------------------------------------------------------------------ */

/* Bytes of the 4B pair: qwen35 2.1 for BF16, paper 3 for what is packed. */
static void tensors_have_the_published_sizes(void **state)
{
	static const struct {
		const char *name;
		size_t tensors;
		double parameters; /* a packed word is eight; scales and shapes are none */
		int packed;
	} want[] = {
		{ "synthetic:qwen3.5-4b:bf16", 426, 4205751296.0, 0 },
		{ "synthetic:qwen3.5-4b", 426 + 400, 4205751296.0, 200 },
		{ "synthetic:dflash-4b:bf16", 69, 634425856.0, 0 },
		{ "synthetic:dflash-4b", 69 + 86, 634425856.0, 43 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
		struct td_st *st;
		double parameters = 0;
		int packed = 0;

		OK(td_st_open(want[i].name, &st, &err));
		assert_int_equal(td_st_count(st), want[i].tensors);
		for (size_t j = 0; j < td_st_count(st); j++) {
			const struct td_st_tensor *t = td_st_at(st, j);
			double n = 1;

			for (int k = 0; k < t->n_dims; k++)
				n *= (double)t->dim[k];
			assert_true((double)t->bytes == n * (double)td_dtype_size(t->dtype));
			assert_int_equal((uintptr_t)t->data % 64, 0);
			packed += t->dtype == TD_I32;
			parameters += t->dtype == TD_I32 ? 8 * n : strstr(t->name, "_scale") || strstr(t->name, "_shape") ? 0 : n;
		}
		assert_int_equal(packed, want[i].packed);
		if (parameters != want[i].parameters)
			fail_msg("%s: %.0f parameters, %.0f are published", want[i].name, parameters, want[i].parameters);
		td_st_close(st);
	}
}

static void moments(const struct td_st_tensor *t, double *mean, double *sigma)
{
	size_t n = t->bytes / td_dtype_size(t->dtype);
	double sum = 0, square = 0;

	for (size_t i = 0; i < n; i++) {
		sum += (double)td_st_value(t, i);
		square += (double)td_st_value(t, i) * (double)td_st_value(t, i);
	}
	*mean = sum / (double)n;
	*sigma = sqrt(square / (double)n - *mean * *mean);
}

static void values_are_sane(void **state)
{
	struct td_st *st;
	const struct td_st_tensor *a, *b;
	double mean, sigma;
	int count[16] = { 0 };

	(void)state;
	OK(td_st_open("synthetic:tiny:bf16", &st, &err));
	td_st_fill(st);
	moments(td_st_find(st, "model.language_model.layers.0.mlp.down_proj.weight"), &mean, &sigma);
	assert_true(fabs(sigma * sqrt(1024) - 1) < 0.01 && fabs(mean) < 0.001);
	moments(td_st_find(st, "model.language_model.layers.3.self_attn.q_norm.weight"), &mean, &sigma);
	assert_true(sigma < 0.1 && fabs(mean) < 0.02);
	moments(td_st_find(st, "model.language_model.layers.1.linear_attn.norm.weight"), &mean, &sigma);
	assert_true(sigma < 0.1 && fabs(mean - 1) < 0.02);
	for (int l = 0; l < 8; l++) {
		char name[96];

		if (l % 4 == 3)
			continue;
		snprintf(name, sizeof(name), "model.language_model.layers.%d.linear_attn.A_log", l);
		a = td_st_find(st, name);
		snprintf(name, sizeof(name), "model.language_model.layers.%d.linear_attn.dt_bias", l);
		b = td_st_find(st, name);
		for (size_t h = 0; h < 8; h++) {
			double decay = exp(-exp((double)td_st_value(a, h)) * log1p(exp((double)td_st_value(b, h))));

			if (!(td_st_value(a, h) >= 0 && td_st_value(a, h) <= logf(16) && decay > 0.9 && decay < 0.999))
				fail_msg("%s[%zu]: A_log %g, decay %g", name, h, (double)td_st_value(a, h), decay);
		}
	}
	a = td_st_find(st, "model.language_model.layers.0.mlp.gate_proj.weight");
	b = td_st_find(st, "model.language_model.layers.0.mlp.up_proj.weight");
	assert_memory_not_equal(a->data, b->data, a->bytes);
	td_st_close(st);
	OK(td_st_open("synthetic:tiny", &st, &err));
	td_st_fill(st);
	a = td_st_find(st, "model.language_model.layers.0.mlp.gate_proj.weight_packed");
	for (size_t i = 0; i < 2 * a->bytes; i++)
		count[((const uint8_t *)a->data)[i / 2] >> (i % 2 * 4) & 15]++;
	assert_int_equal(count[0], 0);
	for (int i = 1; i < 16; i++)
		assert_true(count[i] > (int)a->bytes / 10);
	td_st_close(st);
}

/* ---- a pair ------------------------------------------------------------------------------------------------------------------------------- */

enum { PROMPT = 20, OUTPUT = 24 };

struct seen {
	int bad;
	double largest;
};

static void probe(void *ctx, const char *what, int index, struct td_tensor t)
{
	struct seen *seen = ctx;

	(void)index;
	if (strcmp(what, "hidden") && strcmp(what, "logits"))
		return;
	for (int r = 0; r < t.rows; r++)
		for (int c = 0; c < t.cols; c++) {
			float v = ((const float *)t.data)[(size_t)r * (size_t)t.ld + (size_t)c]; /* CPU: device memory is memory */

			seen->bad += !isfinite(v);
			seen->largest = fmax(seen->largest, fabs((double)v));
		}
}

static void generate(const char *target, const char *drafter, int k, int32_t out[PROMPT + OUTPUT])
{
	struct seen seen = { 0 };
	struct pair_options o = { .device = "cpu", .target_dir = target, .drafter_dir = drafter, .slots = 1, .context = 256, .chunk = 64, .threads = 1,
				  .target_probe = probe, .probe_ctx = &seen };
	int32_t ids[PROMPT];
	struct pair_request r = { .ids = ids, .n_ids = PROMPT, .n_prompt = PROMPT, .max_total = PROMPT + OUTPUT, .k = k, .out = out };
	struct pair p;

	for (int i = 0; i < PROMPT; i++)
		ids[i] = 100 * i + 7;
	pair_greedy(&r.sampling);
	pair_open(&p, &o);
	pair_run(&p, &r, 1, NULL);
	pair_close(&p);
	assert_int_equal(r.n_out, OUTPUT);
	if (seen.bad || seen.largest > 200 || seen.largest < 1)
		fail_msg("%s: %d values are not finite, the largest is %g", target, seen.bad, seen.largest);
}

static void pair_generates(const char *options)
{
	char target[64], drafter[64], other[64];
	int32_t a[PROMPT + OUTPUT], b[PROMPT + OUTPUT];
	int different = 0;

	snprintf(target, sizeof(target), "synthetic:tiny%s", options);
	snprintf(drafter, sizeof(drafter), "synthetic:dflash-tiny%s", options);
	snprintf(other, sizeof(other), "synthetic:tiny%s:seed=1", options);
	generate(target, drafter, 15, a);
	generate(target, NULL, 0, b); /* another process of the same name: the same weights; and speculation changes nothing */
	assert_memory_equal(a, b, OUTPUT * sizeof(*a));
	generate(other, NULL, 0, b);
	assert_memory_not_equal(a, b, OUTPUT * sizeof(*a));
	for (int i = 1; i < OUTPUT; i++)
		different += a[i] != a[i - 1];
	assert_true(different > OUTPUT / 2); /* no model that repeats one token */
}

static void int4_generates(void **state)
{
	(void)state;
	pair_generates("");
	pair_generates(":g32");
}

static void bf16_generates(void **state)
{
	(void)state;
	pair_generates(":bf16");
}

static void fingerprints_name_the_weights(void **state)
{
	static const char *const name[] = { "synthetic:tiny", "synthetic:tiny:seed=1", "synthetic:tiny:bf16", "synthetic:tiny:g32", "synthetic:dflash-tiny" };
	char a[256], b[256];

	(void)state;
	for (int i = 0; i < 5; i++)
		for (int j = 0; j < 5; j++) {
			OK(td_weights_fingerprint(&td_cpu_ops, name[i], 0, a, &err));
			OK(td_weights_fingerprint(&td_cpu_ops, name[j], 0, b, &err));
			assert_int_equal(!strcmp(a, b), i == j);
		}
	OK(td_weights_fingerprint(&td_cpu_ops, "synthetic:tiny", 0, a, &err));
	OK(td_weights_fingerprint(&td_cpu_ops, "synthetic:tiny:int4:g128:seed=0", 0, b, &err));
	assert_string_equal(a, b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(targets_are_the_published_ones),
		cmocka_unit_test(drafters_are_the_published_ones),
		cmocka_unit_test(wrong_names_are_refused),
		cmocka_unit_test(tensors_have_the_published_sizes),
		cmocka_unit_test(values_are_sane),
		cmocka_unit_test(int4_generates),
		cmocka_unit_test(bf16_generates),
		cmocka_unit_test(fingerprints_name_the_weights),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
