/*
 * test_weights_cpu.c: the models that ship with tandem, on the CPU backend: both load, their linear maps compute what the files' codes and scales say, those of
 * 4 bits take their input in 8 where that is asked for, a successor finds them through the arena's file descriptor, and a changed byte is noticed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model.h"
#include "engine/safetensors.h"
#include "tests/lib/unit.h"

#define TARGET "models/tiny/target-int4"
#define DRAFTER "models/tiny/drafter-int4"
#define BF16_TARGET "../shared/models/tiny/target-bf16"
#define BF16_DRAFTER "../shared/models/tiny/drafter-bf16"

enum { ALL_FORMS = TD_FORM_BF16 | TD_FORM_HEAD_INT4 | TD_FORM_HEAD_EXACT | TD_FORM_ACT8 };
static const struct td_ops *ops = &td_cpu_ops;
static struct td_dev *dev;
static struct td_error err;
static char print[256];
static int form; /* to load in */

static int setup(void **state)
{
	struct td_dev_options opt = { .threads = 1, .slots = 1 };

	(void)state;
	return ops->open(&dev, &opt, &err);
}

static int teardown(void **state)
{
	(void)state;
	ops->close(dev);
	return 0;
}

static float bf16(const void *data, size_t i)
{
	uint16_t h;
	uint32_t bits;
	float f;

	memcpy(&h, (const char *)data + 2 * i, 2);
	bits = (uint32_t)h << 16;
	memcpy(&f, &bits, 4);
	return f;
}

/* To BF16 and back, ties to even: by the library's arithmetic, not by bits as the loader does it. */
static float rounded(float f)
{
	int e;
	float m = frexpf(f, &e);

	return ldexpf(rintf(ldexpf(m, 8)), e - 8);
}

/* Element (row, col) of a module, from the file alone: BF16, or (nibble - 8) * scale. */
static float element(struct td_st *st, const char *module, int row, int col, int in)
{
	const struct td_st_tensor *w, *s;
	char name[160];
	uint32_t word;
	float v;

	snprintf(name, sizeof(name), "%s.weight", module);
	w = td_st_find(st, name);
	if (w)
		return bf16(w->data, (size_t)row * (size_t)in + (size_t)col);
	snprintf(name, sizeof(name), "%s.weight_packed", module);
	w = td_st_find(st, name);
	snprintf(name, sizeof(name), "%s.weight_scale", module);
	s = td_st_find(st, name);
	assert_true(w && s);
	memcpy(&word, (const char *)w->data + 4 * ((size_t)row * (size_t)w->dim[1] + (size_t)col / 8), 4);
	v = (float)((int)(word >> (4 * (col % 8)) & 15) - 8) * bf16(s->data, (size_t)row * (size_t)s->dim[1] + (size_t)col / (size_t)(in / s->dim[1]));
	return form & TD_FORM_BF16 ? rounded(v) : v;
}

/* W e_c for some columns c: every row of the map must be the file's column. */
static void map_is(struct td_st *st, const struct td_fused *f, int in, const char *const *module, const int *out, int n)
{
	float *x = ops->alloc(dev, (size_t)in * 4, &err), *y = ops->alloc(dev, (size_t)f->out * 4, &err);
	float *host = calloc((size_t)(in + f->out), 4);

	assert_true(x && y && host);
	for (int c = 1; c < in; c += in / 5) {
		memset(host, 0, (size_t)in * 4);
		host[c] = 1;
		ops->upload(dev, x, host, (size_t)in * 4);
		td_fused_apply(ops, dev, (struct td_tensor){ x, TD_F32, 1, in, in, 0 }, f, (struct td_tensor){ y, TD_F32, 1, f->out, f->out, 0 });
		OK(ops->download(dev, host + in, y, (size_t)f->out * 4, &err));
		for (int m = 0, row = 0; m < n; m++)
			for (int r = 0; r < out[m]; r++, row++) {
				float want = element(st, module[m], r, c, in), got = host[in + row];

				if (fabsf(got - want) > 1e-6f * fabsf(want))
					fail_msg("%s (%d, %d): %g, the file says %g", module[m], r, c, (double)got, (double)want);
			}
	}
	ops->free(dev, x);
	ops->free(dev, y);
	free(host);
}

#define MAP(st, f, in, ...) \
	do { \
		static const struct { \
			const char *name; \
			int out; \
		} list_[] = { __VA_ARGS__ }; \
		const char *names_[4]; \
		int outs_[4], n_ = (int)(sizeof(list_) / sizeof(*list_)); \
		for (int i_ = 0; i_ < n_; i_++) { \
			names_[i_] = list_[i_].name; \
			outs_[i_] = list_[i_].out; \
		} \
		map_is(st, f, in, names_, outs_, n_); \
	} while (0)

static struct td_fused single(struct td_linear w)
{
	return (struct td_fused){ .n = 1, .out = w.out, .part = { w } };
}

static void target_maps(const char *dir, int kind)
{
	struct td_target_weights *w;
	struct td_fused f;
	struct td_st *st;

	OK(td_st_open(dir, &st, &err));
	OK(td_target_weights_load(ops, dev, dir, &(struct td_load){ .form = form }, &w, print, &err));
	assert_int_equal(w->cfg.layers, 8);
	assert_true(w->layer[3].full && w->layer[7].full && !w->layer[0].full);
	assert_int_equal(w->layer[0].qkvz.part[0].kind, kind);
	assert_int_equal(w->layer[0].ba.part[0].kind, TD_W_BF16);
	assert_true(w->layer[0].qkvz.n == 1 && w->layer[0].qkvz.out == 3072 && w->layer[3].qkv.n == 1 && w->layer[3].qkv.out == 2560);
	assert_int_equal(w->layer[0].gate_up.out, 2048);
	assert_int_equal(w->layer[3].attn.rotary_dim, 64);
	assert_ptr_equal(w->head.data, w->embed.data);
	MAP(st, &w->layer[4].qkvz, 512, { "model.layers.4.linear_attn.in_proj_qkv", 2048 }, { "model.layers.4.linear_attn.in_proj_z", 1024 });
	MAP(st, &w->layer[4].ba, 512, { "model.layers.4.linear_attn.in_proj_b", 8 }, { "model.layers.4.linear_attn.in_proj_a", 8 });
	MAP(st, &w->layer[7].qkv, 512, { "model.layers.7.self_attn.q_proj", 2048 }, { "model.layers.7.self_attn.k_proj", 256 },
	    { "model.layers.7.self_attn.v_proj", 256 });
	MAP(st, &w->layer[7].gate_up, 512, { "model.layers.7.mlp.gate_proj", 1024 }, { "model.layers.7.mlp.up_proj", 1024 });
	f = single(w->layer[0].down);
	MAP(st, &f, 1024, { "model.layers.0.mlp.down_proj", 512 });
	f = single(w->layer[3].o);
	MAP(st, &f, 1024, { "model.layers.3.self_attn.o_proj", 512 });
	f = single(w->head);
	MAP(st, &f, 512, { "model.embed_tokens", 8192 });
	td_target_weights_free(ops, dev, w);
	td_st_close(st);
}

static void drafter_maps(const char *dir, int kind)
{
	struct td_drafter_weights *w;
	struct td_fused f;
	struct td_st *st;

	OK(td_st_open(dir, &st, &err));
	OK(td_drafter_weights_load(ops, dev, dir, &(struct td_load){ .form = form }, &w, print, &err));
	assert_true(w->cfg.layers == 3 && w->cfg.mask_id == 8185 && w->cfg.block == 16 && w->cfg.n_taps == 3);
	assert_int_equal(w->fc.kind, kind);
	assert_int_equal(w->layer[0].attn.causal, 0);
	f = single(w->fc);
	MAP(st, &f, 1536, { "fc", 512 });
	MAP(st, &w->layer[1].qkv, 512, { "layers.1.self_attn.q_proj", 512 }, { "layers.1.self_attn.k_proj", 256 }, { "layers.1.self_attn.v_proj", 256 });
	MAP(st, &w->layer[2].kv, 512, { "layers.2.self_attn.k_proj", 256 }, { "layers.2.self_attn.v_proj", 256 });
	td_drafter_weights_free(ops, dev, w);
	td_st_close(st);
}

static void test_shipped(void **state)
{
	struct td_target_config t;
	struct td_drafter_config d;

	(void)state;
	target_maps(TARGET, TD_W_INT4);
	drafter_maps(DRAFTER, TD_W_INT4);
	OK(td_target_config_load(TARGET, &t, &err));
	OK(td_drafter_config_load(DRAFTER, &d, &err));
	OK(td_pair_check(&t, &d, &err));
	assert_true(t.n_eos == 2 && t.eos[0] == 8184 && t.eos[1] == 8182);
	assert_true(t.quant.bits == 4 && t.quant.size[0] == 32 && d.quant.size[0] == 128);
}

/* Four bits expanded at load: BF16 maps of the rounded products, in an arena that is not taken for one of the packed form. */
static void test_expanded(void **state)
{
	char packed[256];

	(void)state;
	form = TD_FORM_BF16;
	target_maps(TARGET, TD_W_BF16);
	drafter_maps(DRAFTER, TD_W_BF16);
	form = 0;
	OK(td_weights_fingerprint(ops, DRAFTER, 0, packed, &err));
	assert_string_not_equal(print, packed);
	OK(td_weights_fingerprint(ops, DRAFTER, 1, packed, &err));
	assert_string_equal(print, packed);
}

static void test_bf16(void **state)
{
	(void)state;
	if (access(BF16_TARGET, R_OK) != 0 || access(BF16_DRAFTER, R_OK) != 0)
		skip();
	target_maps(BF16_TARGET, TD_W_BF16);
	drafter_maps(BF16_DRAFTER, TD_W_BF16);
}

struct count {
	int maps[2], act8[2]; /* by kind */
};

static void count_map(struct count *n, const struct td_linear *w)
{
	n->maps[w->kind]++;
	n->act8[w->kind] += w->act8 != 0;
}

static void count_fused(struct count *n, const struct td_fused *f)
{
	for (int i = 0; i < f->n; i++)
		count_map(n, &f->part[i]);
}

static void count_target(struct count *n, const struct td_target_weights *w)
{
	count_map(n, &w->head);
	for (int i = 0; i < w->cfg.layers; i++) {
		const struct td_target_layer *l = &w->layer[i];

		count_fused(n, &l->gate_up);
		count_map(n, &l->down);
		count_fused(n, l->full ? &l->qkv : &l->qkvz);
		count_map(n, l->full ? &l->o : &l->out);
		if (!l->full)
			count_fused(n, &l->ba);
	}
}

static void count_drafter(struct count *n, const struct td_drafter_weights *w)
{
	count_map(n, &w->fc);
	for (int i = 0; i < w->cfg.layers; i++) {
		const struct td_drafter_layer *l = &w->layer[i];

		count_fused(n, &l->qkv);
		count_fused(n, &l->kv);
		count_map(n, &l->o);
		count_fused(n, &l->gate_up);
		count_map(n, &l->down);
	}
}

/* Input in 8 bits: of all maps that have 4, of no other, in an arena that is not taken for one without. */
static void test_activations(void **state)
{
	static const struct { int form, int4; } of[] = { /* maps of 4 bits: 8 layers' 4, 3 layers' 5 and fc, the head */
		{ 0, 8 * 4 + 3 * 5 + 1 }, { TD_FORM_HEAD_INT4, 8 * 4 + 3 * 5 + 2 }, { TD_FORM_BF16, 0 }, { TD_FORM_BF16 | TD_FORM_HEAD_INT4 | TD_FORM_HEAD_EXACT, 1 },
	};
	struct td_target_weights *t;
	struct td_drafter_weights *d;
	char without[256];

	(void)state;
	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++)
		for (int act8 = 0; act8 < 2; act8++) {
			struct td_load how = { .form = of[i].form | (act8 ? TD_FORM_ACT8 : 0) };
			struct count n = { { 0 }, { 0 } };

			OK(td_target_weights_load(ops, dev, TARGET, &how, &t, print, &err));
			count_target(&n, t);
			td_target_weights_free(ops, dev, t);
			OK(td_drafter_weights_load(ops, dev, DRAFTER, &how, &d, print, &err));
			count_drafter(&n, d);
			td_drafter_weights_free(ops, dev, d);
			assert_int_equal(n.maps[TD_W_INT4], of[i].int4);
			assert_int_equal(n.act8[TD_W_INT4], act8 ? of[i].int4 : 0);
			assert_int_equal(n.act8[TD_W_BF16], 0);
			OK(td_weights_fingerprint(ops, DRAFTER, of[i].form, without, &err));
			assert_int_equal(strcmp(print, without) != 0, act8);
		}
}

/* Two structs whose arenas are the same memory at two addresses: each word that points into the first points to the same place of the second, and all
 * others are equal. So no pointer is forgotten on the way through the arena. */
static void same_elsewhere(const void *one, const struct td_arena *at, const void *two, const struct td_arena *other, size_t size)
{
	const uintptr_t *a = one, *b = two, base = (uintptr_t)at->base, there = (uintptr_t)other->base;
	size_t arena = (size_t)((const char *)at - (const char *)one) / sizeof(*a), moved = 0;

	assert_ptr_not_equal(at->base, other->base);
	for (size_t i = 0; i < size / sizeof(*a); i++) {
		if (i >= arena && i < arena + sizeof(*at) / sizeof(*a))
			continue;
		if (a[i] - base < at->size) {
			if (b[i] - there != a[i] - base)
				fail_msg("word %zu: offset %zu became %zx", i, (size_t)(a[i] - base), (size_t)b[i]);
			moved++;
		} else if (a[i] != b[i]) {
			fail_msg("word %zu: %zx became %zx", i, (size_t)a[i], (size_t)b[i]);
		}
	}
	assert_true(moved > 20);
}

/* What a supervisor does: keep the fd and the seal, hand both to a successor, which has nothing else. */
static void test_successor(void **state)
{
	struct td_drafter_weights *w, *next;
	struct td_target_weights *t, *t_next;
	struct td_arena_seal seal;
	struct td_arena kept, t_kept;
	char byte, first[256];

	(void)state;
	for (int i = 0; i <= ALL_FORMS / 2 + 1; i++) { /* activations in 8 bits are a flag in the maps: one form with it */
		form = i <= ALL_FORMS / 2 ? i : ALL_FORMS;
		OK(td_drafter_weights_load(ops, dev, DRAFTER, &(struct td_load){ .form = form }, &w, first, &err));
		OK(td_arena_seal_make(ops, dev, &w->arena, first, &seal, &err));
		OK(ops->arena_import(dev, dup(w->arena.fd), w->arena.size, 0, &kept, &err));
		OK(td_arena_seal_check(ops, dev, &kept, &seal, &err));
		OK(td_drafter_weights_take(ops, dev, &kept, form, &next, print, &err));
		assert_string_equal(print, first);
		same_elsewhere(w, &w->arena, next, &next->arena, sizeof(*w));
		td_drafter_weights_free(ops, dev, w);

		OK(ops->download(dev, &byte, next->fc.data, 1, &err));
		byte ^= 4;
		ops->upload(dev, next->fc.data, &byte, 1);
		assert_int_equal(td_arena_seal_check(ops, dev, &next->arena, &seal, &err), TD_E_FORMAT);
		byte ^= 4;
		ops->upload(dev, next->fc.data, &byte, 1);
		OK(td_arena_seal_check(ops, dev, &next->arena, &seal, &err));
		td_drafter_weights_free(ops, dev, next);
		td_arena_seal_finish(&seal);

		OK(td_target_weights_load(ops, dev, TARGET, &(struct td_load){ .form = form }, &t, first, &err));
		OK(ops->arena_import(dev, dup(t->arena.fd), t->arena.size, 1, &t_kept, &err)); /* as the drafter does */
		OK(td_target_weights_take(ops, dev, &t_kept, form, &t_next, print, &err));
		assert_string_equal(print, first);
		same_elsewhere(t, &t->arena, t_next, &t_next->arena, sizeof(*t));
		td_target_weights_free(ops, dev, t);
		td_target_weights_free(ops, dev, t_next);
	}
	form = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shipped),
		cmocka_unit_test(test_expanded),
		cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_activations),
		cmocka_unit_test(test_successor),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
