/*
 * test_weights.c: what lies in an arena is what the checkpoint says, in both formats and any mixture; a successor finds it at the same addresses
 * without reading a file; whatever does not fit is refused by name; a failure half-way leaks no arena; a seal notices a changed byte.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model.h"
#include "tests/lib/checkpoint.h"
#include "tests/lib/model_files.h"
#include "tests/lib/unit.h"
#include "fake_ops.h"

static struct td_error err;
static struct ck ck;
static char print[256];

static int setup(void **state)
{
	memset(&err, 0, sizeof(err));
	return scratch_setup(state);
}

static int teardown(void **state)
{
	(void)state;
	ck_finish(&ck);
	fake_finish();
	return scratch_teardown(state);
}

static int load_target(struct td_target_weights **w)
{
	return td_target_weights_load(&fake_ops, NULL, scratch, NULL, w, print, &err);
}

static int load_drafter(struct td_drafter_weights **w)
{
	return td_drafter_weights_load(&fake_ops, NULL, scratch, NULL, w, print, &err);
}

/* ---- what must lie where ----------------------------------------------------------------------------------------------------------------- */

/* A map's memory must hold these modules, in the packed form of fake_ops.h. */
static void linear_is(const struct td_linear *w, int kind, int group, const char *const *module, int n)
{
	const unsigned char *at = fake_peek(w->data);
	char name[160];
	long out = 0;

	assert_int_equal(w->kind, kind);
	assert_int_equal(w->group, group);
	assert_int_equal((uintptr_t)w->data % 256, 0);
	for (int pass = 0; pass < (kind == TD_W_INT4 ? 2 : 1); pass++)
		for (int i = 0; i < n; i++) {
			const struct ck_tensor *t;

			snprintf(name, sizeof(name), "%s%s", module[i], kind == TD_W_BF16 ? ".weight" : pass ? ".weight_scale" : ".weight_packed");
			t = ck_find(&ck, name);
			if (!t || memcmp(at, t->data, t->bytes) != 0)
				fail_msg("%s is not where it should be", name);
			at += t->bytes;
			out += pass ? 0 : t->dim[0];
		}
	assert_int_equal(w->out, out);
}

static float expected(const struct ck_tensor *t, size_t i)
{
	uint32_t bits;
	uint16_t h;
	float f;

	if (!strcmp(t->dtype, "F32")) {
		memcpy(&f, t->data + 4 * i, 4);
		return f;
	}
	memcpy(&h, t->data + 2 * i, 2);
	if (!strcmp(t->dtype, "F16"))
		return ldexpf((float)(1024 + (h & 1023)), ((h >> 10) & 31) - 25) * (h & 0x8000 ? -1.0f : 1.0f);
	bits = (uint32_t)h << 16;
	memcpy(&f, &bits, 4);
	return f;
}

static void small_is(const float *v, const char *name)
{
	const struct ck_tensor *t = ck_find(&ck, name);
	const float *got = fake_peek(v);
	size_t n;

	assert_non_null(t);
	n = t->bytes / (!strcmp(t->dtype, "F32") ? 4 : 2);
	for (size_t i = 0; i < n; i++)
		if (got[i] != expected(t, i))
			fail_msg("%s[%zu] is %g, not %g", name, i, (double)got[i], (double)expected(t, i));
}

static void name_in(char out[128], const char *prefix, int layer, const char *name)
{
	snprintf(out, 128, "%slayers.%d.%s", prefix, layer, name);
}

#define MODULES(...) (const char *const[]){ __VA_ARGS__ }

static void fused_is(const struct td_fused *f, int kind, int group, const char *prefix, int layer, const char *const *names, int n)
{
	char full[4][128];
	const char *list[4];

	for (int i = 0; i < n; i++) {
		name_in(full[i], prefix, layer, names[i]);
		list[i] = full[i];
	}
	assert_int_equal(f->n, 1);
	assert_int_equal(f->off[0], 0);
	assert_int_equal(f->out, f->part[0].out);
	linear_is(&f->part[0], kind, group, list, n);
}

static void one_is(const struct td_linear *w, int kind, int group, const char *prefix, int layer, const char *name)
{
	char full[128];
	const char *list = full;

	name_in(full, prefix, layer, name);
	linear_is(w, kind, group, &list, 1);
}

static void inv_freq_is(const float *v, int dim, double theta)
{
	const float *got = fake_peek(v);

	for (int j = 0; j < dim / 2; j++)
		if (fabs(got[j] - pow(theta, -2.0 * j / dim)) > 1e-6 * got[j])
			fail_msg("inv_freq[%d] is %g", j, (double)got[j]);
}

static void target_is(const struct td_target_weights *w, const char *prefix, int kind, int group)
{
	char name[128];

	snprintf(name, sizeof(name), "%snorm.weight", prefix);
	small_is(w->norm, name);
	snprintf(name, sizeof(name), "%sembed_tokens.weight", prefix);
	assert_memory_equal(fake_peek(w->embed.data), ck_find(&ck, name)->data, 320);
	assert_true(w->embed.rows == 10 && w->embed.cols == 16 && w->embed.ld == 16 && w->embed.dtype == TD_BF16);
	for (int i = 0; i < 3; i++) {
		const struct td_target_layer *l = &w->layer[i];

		assert_int_equal(l->full, i == 1);
		name_in(name, prefix, i, "input_layernorm.weight");
		small_is(l->input_norm, name);
		name_in(name, prefix, i, "post_attention_layernorm.weight");
		small_is(l->post_norm, name);
		fused_is(&l->gate_up, kind, group, prefix, i, MODULES("mlp.gate_proj", "mlp.up_proj"), 2);
		one_is(&l->down, kind, group, prefix, i, "mlp.down_proj");
		assert_true(l->down.in == 24 && l->down.out == 16);
		if (l->full) {
			fused_is(&l->qkv, kind, group, prefix, i, MODULES("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), 3);
			one_is(&l->o, kind, group, prefix, i, "self_attn.o_proj");
			name_in(name, prefix, i, "self_attn.q_norm.weight");
			small_is(l->attn.q_norm, name);
			name_in(name, prefix, i, "self_attn.k_norm.weight");
			small_is(l->attn.k_norm, name);
			inv_freq_is(l->attn.inv_freq, 2, 1e4);
			assert_true(l->attn.heads == 2 && l->attn.kv_heads == 1 && l->attn.head_dim == 8 && l->attn.rotary_dim == 2);
			assert_true(l->attn.zero_centred && l->attn.gated && l->attn.causal && l->attn.window == 0);
			continue;
		}
		fused_is(&l->qkvz, kind, group, prefix, i, MODULES("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"), 2);
		fused_is(&l->ba, TD_W_BF16, 0, prefix, i, MODULES("linear_attn.in_proj_b", "linear_attn.in_proj_a"), 2);
		one_is(&l->out, kind, group, prefix, i, "linear_attn.out_proj");
		name_in(name, prefix, i, "linear_attn.conv1d.weight");
		small_is(l->gdn.conv, name);
		name_in(name, prefix, i, "linear_attn.A_log");
		small_is(l->gdn.a_log, name);
		name_in(name, prefix, i, "linear_attn.dt_bias");
		small_is(l->gdn.dt_bias, name);
		name_in(name, prefix, i, "linear_attn.norm.weight");
		small_is(l->gdn.norm, name);
		assert_true(l->gdn.k_heads == 1 && l->gdn.v_heads == 2 && l->gdn.k_dim == 8 && l->gdn.v_dim == 8);
	}
}

static void test_target(void **state)
{
	static const char *const prefix[] = { "model.", "model.language_model." };
	struct td_target_weights *w;

	(void)state;
	for (int round = 0; round < 8; round++) {
		int group = round & 1 ? 8 : 0, odd = round & 4 ? 1 : 0; /* odd: the data begins at an odd address of the file */

		ck_target(&ck, prefix[(round >> 1) & 1], group);
		ck_add(&ck, "BF16", "mtp.fc.weight", 4, 4, 0);
		ck_add(&ck, "F32", "model.visual.patch_embed.proj.weight", 4, 4, 4);
		ck_write(&ck, scratch, "model.safetensors", odd);
		file_text(scratch, "config.json", group ? CK_TARGET_CONFIG(",\"tie_word_embeddings\":true" CK_QUANT("8")) : CK_TARGET_CONFIG(",\"tie_word_embeddings\":true"));
		OK(load_target(&w));
		target_is(w, prefix[(round >> 1) & 1], group ? TD_W_INT4 : TD_W_BF16, group);
		assert_ptr_equal(w->head.data, w->embed.data);
		assert_true(w->head.kind == TD_W_BF16 && w->head.in == 16 && w->head.out == 10);
		assert_int_equal(w->arena.size % (2 << 20), 0);
		td_target_weights_free(&fake_ops, NULL, w);
		assert_int_equal(fake.arenas, 0);
		ck_finish(&ck);
	}
	td_target_weights_free(&fake_ops, NULL, NULL);
}

static void test_head(void **state)
{
	struct td_target_weights *w;

	(void)state;
	for (int group = 0; group <= 16; group += 16) {
		ck_target(&ck, "model.", 0);
		ck_linear(&ck, "", "lm_head", 10, 16, group);
		ck_write(&ck, scratch, "model.safetensors", 0);
		file_text(scratch, "config.json", CK_TARGET_CONFIG(""));
		OK(load_target(&w));
		linear_is(&w->head, group ? TD_W_INT4 : TD_W_BF16, group, MODULES("lm_head"), 1);
		assert_ptr_not_equal(w->head.data, w->embed.data);
		td_target_weights_free(&fake_ops, NULL, w);
		/* tied: a second copy of the table is skipped, a quantised head is not mistaken for one */
		file_text(scratch, "config.json", CK_TARGET_CONFIG(",\"tie_word_embeddings\":true"));
		assert_int_equal(load_target(&w), group ? TD_E_FORMAT : 0);
		if (group) {
			assert_non_null(strstr(err.text, "lm_head.weight_packed"));
		} else {
			assert_ptr_equal(w->head.data, w->embed.data);
			td_target_weights_free(&fake_ops, NULL, w);
		}
		ck_finish(&ck);
	}
}

static void test_drafter(void **state)
{
	const char *const qkv[] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" };
	struct td_drafter_weights *w;

	(void)state;
	for (int group = 0; group <= 8; group += 8) {
		int kind = group ? TD_W_INT4 : TD_W_BF16;

		ck_drafter(&ck, group);
		ck_write(&ck, scratch, "model.safetensors", 0);
		file_text(scratch, "config.json", CK_DRAFTER_CONFIG(""));
		OK(load_drafter(&w));
		linear_is(&w->fc, kind, group, MODULES("fc"), 1);
		assert_true(w->fc.in == 32 && w->fc.out == 16);
		small_is(w->hidden_norm, "hidden_norm.weight");
		small_is(w->norm, "norm.weight");
		for (int i = 0; i < 2; i++) {
			const struct td_drafter_layer *l = &w->layer[i];

			fused_is(&l->qkv, kind, group, "", i, qkv, 3);
			fused_is(&l->kv, kind, group, "", i, qkv + 1, 2);
			if (!group)
				assert_ptr_equal(l->kv.part[0].data, (void *)((uintptr_t)l->qkv.part[0].data + 128 * 16 * 2));
			one_is(&l->o, kind, group, "", i, "self_attn.o_proj");
			fused_is(&l->gate_up, kind, group, "", i, MODULES("mlp.gate_proj", "mlp.up_proj"), 2);
			one_is(&l->down, kind, group, "", i, "mlp.down_proj");
			assert_int_equal(l->attn.window, i ? 0 : 5);
			assert_int_equal(l->attn.causal, !i);
			assert_true(!l->attn.zero_centred && !l->attn.gated && l->attn.rotary_dim == 64);
			inv_freq_is(l->attn.inv_freq, 64, 1e4);
		}
		td_drafter_weights_free(&fake_ops, NULL, w);
		ck_finish(&ck);
	}
}

#define QUANT_TWO(a, b) \
	",\"quantization_config\":{\"format\":\"pack-quantized\",\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":4," a "}},\"b\":{\"weights\":{\"num_bits\":4," b "}}}}"

/* Neighbours of one format are one map; a map for k|v alone is made of what is there. */
static void test_mixed(void **state)
{
	struct td_drafter_weights *w;
	const struct td_fused *f, *kv;

	(void)state;
	ck_drafter(&ck, 8);
	ck_reformat(&ck, "layers.0.self_attn.q_proj", 128, 16, 0); /* q apart, k|v packed together: kv is that part */
	ck_reformat(&ck, "layers.1.self_attn.v_proj", 64, 16, 0); /* q|k packed together, v apart: k must be packed again */
	ck_reformat(&ck, "layers.1.mlp.up_proj", 24, 16, 16); /* other group */
	ck_write(&ck, scratch, "model.safetensors", 0);
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(""));
	OK(load_drafter(&w));
	f = &w->layer[0].qkv;
	kv = &w->layer[0].kv;
	assert_true(f->n == 2 && f->off[1] == 128 && f->out == 256 && kv->n == 1 && kv->out == 128);
	linear_is(&f->part[0], TD_W_BF16, 0, MODULES("layers.0.self_attn.q_proj"), 1);
	linear_is(&f->part[1], TD_W_INT4, 8, MODULES("layers.0.self_attn.k_proj", "layers.0.self_attn.v_proj"), 2);
	assert_ptr_equal(kv->part[0].data, f->part[1].data);
	f = &w->layer[1].qkv;
	kv = &w->layer[1].kv;
	assert_true(f->n == 2 && f->off[1] == 192 && f->out == 256);
	assert_true(kv->n == 2 && kv->off[0] == 0 && kv->off[1] == 64 && kv->out == 128);
	linear_is(&kv->part[0], TD_W_INT4, 8, MODULES("layers.1.self_attn.k_proj"), 1);
	linear_is(&kv->part[1], TD_W_BF16, 0, MODULES("layers.1.self_attn.v_proj"), 1);
	f = &w->layer[1].gate_up;
	assert_true(f->n == 2 && f->off[1] == 24 && f->out == 48 && f->part[0].group == 8 && f->part[1].group == 16);
	td_drafter_weights_free(&fake_ops, NULL, w);
	/* the config's group size is not that of one module */
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(CK_QUANT("8")));
	assert_int_equal(load_drafter(&w), TD_E_FORMAT);
	assert_non_null(strstr(err.text, "layers.1.mlp.up_proj.weight_scale has groups of 16, quantization_config says 8"));
	assert_null(w);
	/* each size that the tensors have is named; a row of 16 is also a group of 16 */
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(QUANT_TWO("\"group_size\":8", "\"group_size\":16")));
	OK(load_drafter(&w));
	td_drafter_weights_free(&fake_ops, NULL, w);
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(QUANT_TWO("\"group_size\":8", "\"strategy\":\"channel\"")));
	OK(load_drafter(&w));
	td_drafter_weights_free(&fake_ops, NULL, w);
	/* one is not */
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(QUANT_TWO("\"group_size\":32", "\"strategy\":\"channel\"")));
	assert_int_equal(load_drafter(&w), TD_E_FORMAT);
	assert_non_null(strstr(err.text, "fc.weight_scale has groups of 8, quantization_config says 32 or 32 (a row)"));
}

static struct td_tensor seen[4];
static int n_seen;

static void record_linear(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	(void)dev, (void)x;
	assert_int_equal(accumulate, 0);
	assert_int_equal(w->out, y.cols);
	seen[n_seen++] = y;
}

static void test_fused_apply(void **state)
{
	struct td_fused f = { .n = 2, .out = 48, .off = { 0, 32 }, .part = { { .out = 32 }, { .out = 16 } } };
	struct td_tensor y = { .data = (void *)FAKE_BASE, .dtype = TD_F32, .rows = 3, .cols = 48, .ld = 50 };
	struct td_ops ops = { .linear = record_linear };

	(void)state;
	td_fused_apply(&ops, NULL, y, &f, y);
	assert_int_equal(n_seen, 2);
	assert_ptr_equal(seen[0].data, y.data);
	assert_int_equal((uintptr_t)seen[1].data - FAKE_BASE, 32 * 4);
	assert_true(seen[1].cols == 16 && seen[1].ld == 50 && seen[1].rows == 3);
}

/* ---- successor --------------------------------------------------------------------------------------------------------------------------- */

static uint64_t told, told_total;

static void progress(void *ctx, const char *stage, uint64_t done, uint64_t total)
{
	assert_ptr_equal(ctx, &told);
	assert_string_equal(stage, "weights");
	assert_true(done >= told && done <= total && (told_total == 0 || told_total == total));
	told = done;
	told_total = total;
}

/* No file is asked: there is none any more, and the arena says what it is. What is no such arena is refused, and stays the caller's. */
static void test_kept(void **state)
{
	struct td_ops other = fake_ops;
	struct td_target_weights *w, *again = NULL;
	struct td_drafter_weights *wrong = NULL;
	struct td_target_config cfg;
	char first[256], alone[256];
	struct td_arena arena;
	unsigned char *end;

	(void)state;
	ck_target(&ck, "model.", 8);
	ck_write(&ck, scratch, "model.safetensors", 0);
	file_text(scratch, "config.json", CK_TARGET_CONFIG(",\"tie_word_embeddings\":true" CK_QUANT("8")));
	OK(td_target_weights_load(&fake_ops, NULL, scratch, &(struct td_load){ .progress = progress, .ctx = &told }, &w, first, &err));
	assert_true(told == told_total && told > 5000);
	OK(td_weights_fingerprint(&fake_ops, scratch, 0, alone, &err));
	assert_string_equal(first, alone);
	scratch_remove(scratch);

	arena = w->arena;
	end = fake.shadow + fake.size;
	other.name = "other";
	assert_int_equal(td_target_weights_take(&other, NULL, &arena, 0, &again, print, &err), TD_E_MISMATCH);
	assert_non_null(strstr(err.text, "another build or in another form"));
	assert_int_equal(td_target_weights_take(&fake_ops, NULL, &arena, 1, &again, print, &err), TD_E_MISMATCH);
	assert_int_equal(td_drafter_weights_take(&fake_ops, NULL, &arena, 0, &wrong, print, &err), TD_E_MISMATCH);
	assert_non_null(strstr(err.text, "of a target, not of a drafter"));
	end[-512] ^= 1; /* the head's magic */
	assert_int_equal(td_target_weights_take(&fake_ops, NULL, &arena, 0, &again, print, &err), TD_E_FORMAT);
	end[-512] ^= 1;
	end[-1024] ^= 1; /* the struct */
	assert_int_equal(td_target_weights_take(&fake_ops, NULL, &arena, 0, &again, print, &err), TD_E_FORMAT);
	assert_non_null(strstr(err.text, "damaged"));
	end[-1024] ^= 1;
	arena.size = 4096;
	assert_int_equal(td_target_weights_take(&fake_ops, NULL, &arena, 0, &again, print, &err), TD_E_FORMAT);
	arena.size = w->arena.size;
	assert_true(!again && !wrong);
	assert_ptr_equal(arena.base, w->arena.base); /* still the caller's */

	OK(td_target_weights_config(&fake_ops, NULL, &arena, 0, &cfg, &err));
	assert_memory_equal(&cfg, &w->cfg, sizeof(cfg));
	OK(td_target_weights_take(&fake_ops, NULL, &arena, 0, &again, print, &err));
	assert_null(arena.base);
	assert_string_equal(print, first);
	assert_memory_equal(w, again, sizeof(*w));
	memset(&w->arena, 0, sizeof(w->arena));
	td_target_weights_free(&fake_ops, NULL, w);
	td_target_weights_free(&fake_ops, NULL, again);
	assert_int_equal(fake.arenas, 0);
}

static void test_fingerprint(void **state)
{
	struct td_ops other = fake_ops;
	char a[256], b[256];

	(void)state;
	ck_drafter(&ck, 0);
	ck_write(&ck, scratch, "model.safetensors", 0);
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(""));
	OK(td_weights_fingerprint(&fake_ops, scratch, 0, a, &err));
	OK(td_weights_fingerprint(&fake_ops, scratch, 0, b, &err));
	assert_string_equal(a, b);
	other.name = "other";
	OK(td_weights_fingerprint(&other, scratch, 0, b, &err));
	assert_string_not_equal(a, b);
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(",\"rms_norm_eps\":1e-5"));
	OK(td_weights_fingerprint(&fake_ops, scratch, 0, b, &err));
	assert_string_not_equal(a, b);
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(""));
	ck.t[0].data[0] ^= 1; /* other content, same size: the time tells */
	ck_write(&ck, scratch, "model.safetensors", 0);
	OK(td_weights_fingerprint(&fake_ops, scratch, 0, b, &err));
	assert_string_not_equal(a, b);
	assert_int_equal(td_weights_fingerprint(&fake_ops, "/nonexistent", 0, b, &err), TD_E_NOT_FOUND);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------------------------------- */

/* One change to a good checkpoint. dtype NULL: drop; bytes: overwrite the first ones. */
struct change {
	const char *name, *dtype;
	long a, b, c;
	const char *bytes;
	int code;
	const char *text;
};

static void apply(const struct change *x)
{
	struct ck_tensor *t = ck_find(&ck, x->name);

	if (x->bytes) {
		assert_non_null(t);
		memcpy(t->data + (x->a ? t->bytes : 0) - (x->a ? strlen(x->bytes) : 0), x->bytes, strlen(x->bytes));
		return;
	}
	if (t)
		ck_drop(&ck, x->name);
	if (x->dtype)
		ck_add(&ck, x->dtype, x->name, x->a, x->b, x->c);
}

#define Q "model.layers.1.self_attn.q_proj."
static const struct change target_changes[] = {
	{ "model.norm.weight", NULL, 0, 0, 0, NULL, TD_E_FORMAT, "tensor model.norm.weight is missing" },
	{ "model.embed_tokens.weight", NULL, 0, 0, 0, NULL, TD_E_FORMAT, "model.embed_tokens.weight is missing" },
	{ "model.layers.2.mlp.down_proj.weight_packed", NULL, 0, 0, 0, NULL, TD_E_FORMAT, "model.layers.2.mlp.down_proj.weight is missing" },
	{ Q "weight_scale", NULL, 0, 0, 0, NULL, TD_E_FORMAT, Q "weight_scale is missing" },
	{ Q "weight_shape", NULL, 0, 0, 0, NULL, TD_E_FORMAT, Q "weight_shape is missing" },
	{ "model.layers.0.linear_attn.A_log", NULL, 0, 0, 0, NULL, TD_E_FORMAT, "model.layers.0.linear_attn.A_log is missing" },
	{ "model.layers.3.mlp.down_proj.weight", "BF16", 16, 24, 0, NULL, TD_E_FORMAT, "tensor model.layers.3.mlp.down_proj.weight is not part of" },
	{ "extra", "F32", 1, 0, 0, NULL, TD_E_FORMAT, "tensor extra is not part of" },
	{ "lm_head.bias", "BF16", 10, 0, 0, NULL, TD_E_UNSUPPORTED, "lm_head.bias" },
	{ "model.layers.1.self_attn.q_proj.bias", "BF16", 32, 0, 0, NULL, TD_E_UNSUPPORTED, "biases" },
	{ Q "weight", "BF16", 32, 16, 0, NULL, TD_E_FORMAT, "both weight and weight_packed" },
	{ Q "weight_zero_point", "I32", 4, 2, 0, NULL, TD_E_UNSUPPORTED, "asymmetric" },
	{ Q "weight_g_idx", "I32", 16, 0, 0, NULL, TD_E_UNSUPPORTED, "activation order" },
	{ Q "qweight", "I32", 16, 4, 0, NULL, TD_E_UNSUPPORTED, "AWQ" },
	{ Q "qweight", "I32", 2, 32, 0, NULL, TD_E_UNSUPPORTED, "GPTQ" },
	{ Q "weight_packed", "I32", 32, 4, 0, NULL, TD_E_FORMAT, Q "weight_packed has shape [32, 4]; config.json asks for [32, 2]" },
	{ Q "weight_packed", "I32", 16, 2, 0, NULL, TD_E_FORMAT, "[16, 2]" },
	{ Q "weight_packed", "I8", 32, 8, 0, NULL, TD_E_UNSUPPORTED, Q "weight_packed is I8" },
	{ Q "weight_scale", "BF16", 32, 3, 0, NULL, TD_E_FORMAT, "don't divide 16 inputs" },
	{ Q "weight_scale", "BF16", 32, 4, 0, NULL, TD_E_FORMAT, "don't divide 16 inputs" },
	{ Q "weight_scale", "BF16", 31, 2, 0, NULL, TD_E_FORMAT, "[31, 2]" },
	{ Q "weight_scale", "BF16", 64, 0, 0, NULL, TD_E_FORMAT, Q "weight_scale" },
	{ Q "weight_scale", "F16", 32, 2, 0, NULL, TD_E_UNSUPPORTED, Q "weight_scale is F16" },
	{ Q "weight_scale", "BF16", 32, 1, 0, NULL, TD_E_FORMAT, "groups of 16, quantization_config says 8" },
	{ Q "weight_shape", "I64", 3, 0, 0, NULL, TD_E_FORMAT, "not a pair" },
	{ Q "weight_shape", "I64", 2, 0, 0, NULL, TD_E_FORMAT, Q "weight_shape says" },
	{ "model.embed_tokens.weight", "BF16", 11, 16, 0, NULL, TD_E_FORMAT, "model.embed_tokens.weight has shape [11, 16]" },
	{ "model.embed_tokens.weight", "F16", 10, 16, 0, NULL, TD_E_UNSUPPORTED, "model.embed_tokens.weight is F16" },
	{ "model.norm.weight", "BF16", 17, 0, 0, NULL, TD_E_FORMAT, "model.norm.weight has shape [17]" },
	{ "model.norm.weight", "BF16", 16, 1, 0, NULL, TD_E_FORMAT, "model.norm.weight has shape [16, 1]" },
	{ "model.norm.weight", "I32", 16, 0, 0, NULL, TD_E_UNSUPPORTED, "model.norm.weight is I32" },
	{ "model.layers.0.linear_attn.conv1d.weight", "BF16", 32, 4, 1, NULL, TD_E_FORMAT, "conv1d.weight has shape [32, 4, 1]" },
	{ "model.layers.0.linear_attn.conv1d.bias", "BF16", 32, 0, 0, NULL, TD_E_UNSUPPORTED, "biases" },
	{ "model.norm.weight", NULL, 0, 0, 0, "\xc0\x7f", TD_E_FORMAT, "model.norm.weight holds NaN" },
	{ "model.norm.weight", NULL, 1, 0, 0, "\x80\xff", TD_E_FORMAT, "model.norm.weight holds NaN or inf" },
	{ "model.layers.1.self_attn.k_norm.weight", NULL, 1, 0, 0, "\x01\x7c", TD_E_FORMAT, "k_norm.weight holds NaN" },
	{ "model.layers.2.linear_attn.A_log", NULL, 1, 0, 0, "\x80\xff", TD_E_FORMAT, "layers.2.linear_attn.A_log holds NaN" },
	{ Q "weight_scale", NULL, 1, 0, 0, "\xc0\xff", TD_E_FORMAT, Q "weight_scale holds NaN" },
	{ "model.layers.0.linear_attn.in_proj_a.weight", NULL, 1, 0, 0, "\xc0\xff", TD_E_FORMAT, "in_proj_a.weight holds NaN" },
	{ "model.embed_tokens.weight", NULL, 1, 0, 0, "\xc0\x7f", TD_E_FORMAT, "embed_tokens.weight holds NaN" },
};

static void test_target_refused(void **state)
{
	struct td_target_weights *w;

	(void)state;
	file_text(scratch, "config.json", CK_TARGET_CONFIG(",\"tie_word_embeddings\":true" CK_QUANT("8")));
	for (size_t i = 0; i < sizeof(target_changes) / sizeof(*target_changes); i++) {
		const struct change *x = &target_changes[i];
		int rc;

		ck_target(&ck, "model.", 8);
		apply(x);
		ck_write(&ck, scratch, "model.safetensors", 0);
		memset(&err, 0, sizeof(err));
		rc = load_target(&w);
		if (rc != x->code || err.code != rc || !strstr(err.text, x->text) || !strstr(err.text, scratch))
			fail_msg("change %zu of %s: %s \"%s\", expected %s with \"%s\"", i, x->name, td_error_name(rc), err.text, td_error_name(x->code), x->text);
		assert_null(w);
		assert_int_equal(fake.arenas, 0);
		ck_finish(&ck);
	}
}

static void test_drafter_refused(void **state)
{
	static const struct change changes[] = {
		{ "fc.weight", NULL, 0, 0, 0, NULL, TD_E_FORMAT, "tensor fc.weight is missing" },
		{ "fc.weight", "BF16", 16, 48, 0, NULL, TD_E_FORMAT, "fc.weight has shape [16, 48]; config.json asks for [16, 32]" },
		{ "layers.0.attention_conv.base_kernel", "BF16", 2, 2, 16, NULL, TD_E_UNSUPPORTED, "DFlash2" },
		{ "candidate_selector.predecessor_codebook", "BF16", 10, 4, 0, NULL, TD_E_UNSUPPORTED, "DFlash2" },
		{ "layers.1.self_attn.sinks", "BF16", 2, 0, 0, NULL, TD_E_UNSUPPORTED, "sinks" },
		{ "d2t", "I64", 10, 0, 0, NULL, TD_E_UNSUPPORTED, "draft vocabulary" },
		{ "embed_tokens.weight", "BF16", 10, 16, 0, NULL, TD_E_FORMAT, "embed_tokens.weight is not part of" },
		{ "mtp.fc.weight", "BF16", 10, 16, 0, NULL, 0, "" },
	};
	struct td_drafter_weights *w;

	(void)state;
	file_text(scratch, "config.json", CK_DRAFTER_CONFIG(""));
	for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
		int rc;

		ck_drafter(&ck, 0);
		apply(&changes[i]);
		ck_write(&ck, scratch, "model.safetensors", 0);
		memset(&err, 0, sizeof(err));
		rc = load_drafter(&w);
		if (rc != changes[i].code || !strstr(err.text, changes[i].text))
			fail_msg("change of %s: %s \"%s\"", changes[i].name, td_error_name(rc), err.text);
		td_drafter_weights_free(&fake_ops, NULL, w);
		ck_finish(&ck);
	}
}

/* Random damage to header or configuration: an error or a load, and never a write outside of the arena (fake_ops.h looks). */
static void test_damage(void **state)
{
	static const char config[] = CK_TARGET_CONFIG(",\"tie_word_embeddings\":true" CK_QUANT("8"));
	struct td_target_weights *w;
	uint32_t x = 7;
	int good = 0, bad = 0;
	char *file;
	size_t size;

	(void)state;
	ck_target(&ck, "model.", 8);
	ck_write(&ck, scratch, "model.safetensors", 0);
	file = file_read(scratch, "model.safetensors", &size);
	for (int round = 0; round < 600; round++) {
		size_t header = (size_t)(unsigned char)file[0] | (size_t)(unsigned char)file[1] << 8, length = round % 3 ? header : sizeof(config) - 1;
		char text[sizeof(config)], *at = round % 3 ? file + 8 : text, old;
		size_t spot;

		memcpy(text, config, sizeof(config));
		x = x * 1664525 + 1013904223;
		spot = (x >> 8) % length;
		old = at[spot];
		at[spot] = "0123456789"[x % 10];
		file_write(scratch, "model.safetensors", file, size);
		file_text(scratch, "config.json", text);
		if (load_target(&w) == 0)
			good++;
		else
			bad++;
		td_target_weights_free(&fake_ops, NULL, w);
		assert_int_equal(fake.arenas, 0);
		at[spot] = old;
	}
	free(file);
	if (good < 20 || bad < 200)
		fail_msg("%d loads succeeded, %d failed: the test has lost its point", good, bad);
}

/* Each call of the backend that can fail, failing once: the message comes through and no arena is left. */
static void test_backend_fails(void **state)
{
	struct td_target_weights *w;
	int n = 1;

	(void)state;
	ck_target(&ck, "model.", 8);
	ck_write(&ck, scratch, "model.safetensors", 0);
	file_text(scratch, "config.json", CK_TARGET_CONFIG(",\"tie_word_embeddings\":true"));
	for (;; n++) {
		fake.calls = 0;
		fake.fail_at = n;
		memset(&err, 0, sizeof(err));
		if (load_target(&w) == 0)
			break;
		assert_int_equal(err.code, TD_E_DEVICE);
		if (!strstr(err.text, "lever") || !strstr(err.text, scratch))
			fail_msg("call %d: %s", n, err.text);
		assert_null(w);
		assert_int_equal(fake.arenas, 0);
	}
	assert_int_equal(n, fake.calls + 1);
	assert_true(n > 15);
	td_target_weights_free(&fake_ops, NULL, w);
}

/* ---- sizes of the real thing: a sparse file of the 4B model's tensors, of which a successor reads nothing ----------------------------------- */

static size_t big_at(char *h, size_t at, size_t *offset, const char *name, const char *dtype, size_t size, long a, long b, const char *mid)
{
	size_t bytes = (size_t)a * (size_t)(b ? b : 1) * size;

	at += (size_t)sprintf(h + at, "%s\"model.%s\":{\"dtype\":\"%s\",\"shape\":[%ld%s", at > 8 ? "," : "", name, dtype, a, mid);
	if (b)
		at += (size_t)sprintf(h + at, ",%ld", b);
	at += (size_t)sprintf(h + at, "],\"data_offsets\":[%zu,%zu]}", *offset, *offset + bytes);
	*offset += bytes;
	return at;
}

static size_t big_write(void)
{
	static const struct {
		const char *name;
		long a, b;
		const char *mid;
		int full;
	} t[] = {
		{ "input_layernorm.weight", 2560, 0, "", -1 },		{ "post_attention_layernorm.weight", 2560, 0, "", -1 },
		{ "mlp.gate_proj.weight", 9216, 2560, "", -1 },		{ "mlp.up_proj.weight", 9216, 2560, "", -1 },
		{ "mlp.down_proj.weight", 2560, 9216, "", -1 },		{ "linear_attn.in_proj_qkv.weight", 8192, 2560, "", 0 },
		{ "linear_attn.in_proj_z.weight", 4096, 2560, "", 0 },	{ "linear_attn.in_proj_b.weight", 32, 2560, "", 0 },
		{ "linear_attn.in_proj_a.weight", 32, 2560, "", 0 },	{ "linear_attn.conv1d.weight", 8192, 4, ",1", 0 },
		{ "linear_attn.dt_bias", 32, 0, "", 0 },		{ "linear_attn.A_log", 32, 0, "", 0 },
		{ "linear_attn.norm.weight", 128, 0, "", 0 },		{ "linear_attn.out_proj.weight", 2560, 4096, "", 0 },
		{ "self_attn.q_proj.weight", 8192, 2560, "", 1 },	{ "self_attn.k_proj.weight", 1024, 2560, "", 1 },
		{ "self_attn.v_proj.weight", 1024, 2560, "", 1 },	{ "self_attn.o_proj.weight", 2560, 4096, "", 1 },
		{ "self_attn.q_norm.weight", 256, 0, "", 1 },		{ "self_attn.k_norm.weight", 256, 0, "", 1 },
	};
	char *h = calloc(1, 1 << 20), name[128], path[128];
	size_t at = 8, offset = 0, n;

	h[at++] = '{';
	at = big_at(h, at, &offset, "embed_tokens.weight", "BF16", 2, 248320, 2560, "") ;
	at = big_at(h, at, &offset, "norm.weight", "BF16", 2, 2560, 0, "");
	for (int i = 0; i < 32; i++)
		for (size_t k = 0; k < sizeof(t) / sizeof(*t); k++) {
			if (t[k].full >= 0 && t[k].full != (i % 4 == 3))
				continue;
			snprintf(name, sizeof(name), "layers.%d.%s", i, t[k].name);
			at = big_at(h, at, &offset, name, "BF16", 2, t[k].a, t[k].b, t[k].mid);
		}
	h[9] = ' '; /* the comma before the first */
	h[at++] = '}';
	n = at - 8;
	memcpy(h, &n, 8);
	file_write(scratch, "model.safetensors", h, at);
	free(h);
	snprintf(path, sizeof(path), "%s/model.safetensors", scratch);
	must(truncate(path, (off_t)(at + offset)) == 0, path);
	return offset;
}

static void test_big(void **state)
{
	struct td_target_weights *w;
	size_t bytes = big_write();

	(void)state;
	file_text(scratch, "config.json",
		  "{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":32,\"hidden_size\":2560,\"intermediate_size\":9216,\"vocab_size\":248320,"
		  "\"num_attention_heads\":16,\"num_key_value_heads\":4,\"head_dim\":256,\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,"
		  "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"max_position_embeddings\":262144,\"rope_theta\":1e7,"
		  "\"tie_word_embeddings\":true}");
	fake.fail_at = 1; /* the arena: only its size is of interest */
	assert_int_equal(load_target(&w), TD_E_DEVICE);
	/* 4.206 billion parameters of 2 bytes; constants take 4 in the arena */
	if (bytes < 8410000000u || bytes > 8415000000u || fake.asked < bytes || fake.asked > bytes + (8 << 20))
		fail_msg("%zu bytes of tensors, an arena of %zu", bytes, fake.asked);
	assert_null(w);
}

/* ---- seal --------------------------------------------------------------------------------------------------------------------------------- */

static void test_seal(void **state)
{
	struct td_arena_seal seal, bad;
	struct td_arena arena;

	(void)state;
	OK(fake_arena_create(NULL, (130 << 20) + 4096, &arena, &err));
	OK(td_arena_seal_make(&fake_ops, NULL, &arena, "who", &seal, &err));
	assert_string_equal(seal.fingerprint, "who");
	assert_int_equal(seal.block, 64 << 20);
	assert_int_equal(seal.n, 3);
	OK(td_arena_seal_check(&fake_ops, NULL, &arena, &seal, &err));
	static const size_t spot[] = { 0, (64 << 20) - 1, 64 << 20, (130 << 20) + 4095 };
	static const char *const where[] = { "block 0 of 3", "block 0 of 3", "block 1 of 3", "block 2 of 3" };
	for (int i = 0; i < 4; i++) {
		fake.shadow[spot[i]] ^= 0x10;
		assert_int_equal(td_arena_seal_check(&fake_ops, NULL, &arena, &seal, &err), TD_E_FORMAT);
		assert_non_null(strstr(err.text, where[i]));
		fake.shadow[spot[i]] ^= 0x10;
	}
	bad = seal;
	bad.n = 2;
	assert_int_equal(td_arena_seal_check(&fake_ops, NULL, &arena, &bad, &err), TD_E_FORMAT);
	bad = seal;
	bad.block = 0;
	assert_int_equal(td_arena_seal_check(&fake_ops, NULL, &arena, &bad, &err), TD_E_FORMAT);
	bad = seal;
	bad.checksum = NULL;
	assert_int_equal(td_arena_seal_check(&fake_ops, NULL, &arena, &bad, &err), TD_E_FORMAT);
	fake.calls = 0;
	fake.fail_at = 2;
	assert_int_equal(td_arena_seal_check(&fake_ops, NULL, &arena, &seal, &err), TD_E_DEVICE);
	td_arena_seal_finish(&seal);
	assert_null(seal.checksum);
	fake.calls = 0;
	assert_int_equal(td_arena_seal_make(&fake_ops, NULL, &arena, "who", &seal, &err), TD_E_DEVICE);
	assert_null(seal.checksum);
	char longer[300];
	memset(longer, 'x', 299);
	longer[299] = '\0';
	assert_int_equal(td_arena_seal_make(&fake_ops, NULL, &arena, longer, &seal, &err), TD_E_INVALID);
	td_arena_seal_finish(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_target, setup, teardown),
		cmocka_unit_test_setup_teardown(test_head, setup, teardown),
		cmocka_unit_test_setup_teardown(test_drafter, setup, teardown),
		cmocka_unit_test_setup_teardown(test_mixed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_fused_apply, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_fingerprint, setup, teardown),
		cmocka_unit_test_setup_teardown(test_target_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_drafter_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
		cmocka_unit_test_setup_teardown(test_backend_fails, setup, teardown),
		cmocka_unit_test_setup_teardown(test_big, setup, teardown),
		cmocka_unit_test_setup_teardown(test_seal, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
