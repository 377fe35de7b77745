/*
 * test_memplan.c: the plan is what is allocated, byte for byte, for files, synthetic models and expanded weights; the 4B pair fits where it must;
 * what does not fit is refused with what to lower.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "drafter_worker/drafter.h"
#include "engine/memplan.h"
#include "kernels/pack.h"
#include "target_worker/target.h"
#include "tests/lib/unit.h"

#define GIB ((uint64_t)1 << 30)

static struct td_error err;
static struct td_ops ops; /* the CPU's, counting */
static struct td_dev *dev;
static uint64_t allocated;

static void *count_alloc(struct td_dev *d, size_t bytes, struct td_error *e)
{
	allocated += bytes;
	return td_cpu_ops.alloc(d, bytes, e);
}

static int setup(void **state)
{
	struct td_dev_options opt = { .threads = 1, .slots = 8 };

	(void)state;
	ops = td_cpu_ops;
	ops.alloc = count_alloc;
	return ops.open(&dev, &opt, &err);
}

static int teardown(void **state)
{
	(void)state;
	ops.close(dev);
	return 0;
}

static struct td_memplan_of of(const char *target, const char *drafter, const char *device, int slots, int context)
{
	struct td_memplan_of o = { .target_dir = target, .drafter_dir = drafter, .device = device, .pool = { slots * (context / TD_PAGE), 3 } };
	struct td_target_config t;
	struct td_drafter_config d = { 0 };

	OK(td_target_config_load(target, &t, &err));
	if (drafter)
		OK(td_drafter_config_load(drafter, &d, &err));
	o.shm = (struct td_shm_config){ .slots = slots, .context = context, .vocab = t.vocab, .features = d.n_taps * t.hidden, .chunk = td_chunk_auto(device, slots, context) };
	o.shm.feature_rows = slots * TD_BLOCK_MAX > o.shm.chunk ? slots * TD_BLOCK_MAX : o.shm.chunk;
	return o;
}

/* ---- plan and allocation ------------------------------------------------------------------------------------------------------------------ */

static void equal(const char *what, uint64_t got, uint64_t want)
{
	if (got != want)
		fail_msg("%s: %llu bytes were taken, %llu planned", what, (unsigned long long)got, (unsigned long long)want);
}

static void pair_takes_what_is_planned(const struct td_memplan_of *o)
{
	struct td_load how = { .form = o->form };
	struct td_target_weights *tw;
	struct td_drafter_weights *dw;
	struct td_memplan p;
	struct td_target *target;
	struct td_drafter *drafter;
	struct td_shm *shm;
	char print[256];
	int32_t list[131];
	int fd;

	for (int i = 0; i < 131; i++)
		list[i] = i * 50 + 7;

	OK(td_memplan_make(o, &p, &err));
	OK(td_target_weights_load(&ops, dev, o->target_dir, &how, &tw, print, &err));
	OK(td_drafter_weights_load(&ops, dev, o->drafter_dir, &how, &dw, print, &err));
	equal("weights of the target", tw->arena.size, p.target.weights);
	equal("weights of the drafter", dw->arena.size, p.drafter.weights);
	OK(td_shm_create(&o->shm, &fd, &shm, &err));
	struct td_target_options to = { .ops = &ops, .dev = dev, .shm = shm, .event_fd = -1, .weights = tw, .n_taps = dw->cfg.n_taps, .tap = dw->cfg.tap,
					.pool = o->pool, .vocab_real = 8192 };
	struct td_drafter_options dr = { .ops = &ops, .dev = dev, .shm = shm, .event_fd = -1, .weights = dw, .embed = tw->embed, .head = tw->head,
					 .kv_pages = o->pool.kv_pages, .vocab_real = 8192, .draft_id = list, .n_draft_ids = o->draft_ids };

	allocated = 0;
	OK(td_target_create(&to, &target, &err));
	equal("the target", allocated, p.target.kv + p.target.state + p.target.prefix + p.target.buffers);
	equal("cache of the target", td_target_cache_bytes(&to), p.target.kv + p.target.state + p.target.prefix);
	allocated = 0;
	OK(td_drafter_create(&dr, &drafter, &err));
	equal("the drafter", allocated, p.drafter.kv + p.drafter.state + p.drafter.buffers);
	equal("cache of the drafter", td_drafter_cache_bytes(&dr), p.drafter.kv);
	equal("exchange region", td_exchange_bytes(&o->shm, ops.act), p.exchange);
	equal("all", tw->arena.size + dw->arena.size + p.target.kv + p.target.state + p.target.prefix + p.target.buffers + p.drafter.kv + p.drafter.buffers + p.exchange, p.all);
	td_drafter_destroy(drafter);
	td_target_destroy(target);
	td_shm_unmap(shm);
	close(fd);
	td_drafter_weights_free(&ops, dev, dw);
	td_target_weights_free(&ops, dev, tw);
}

static void plan_is_what_is_taken(void **state)
{
	static const struct {
		const char *target, *drafter;
		int slots, context;
	} pair[] = {
		{ "models/tiny/target-int4", "models/tiny/drafter-int4", 4, 1024 },
		{ "models/tiny/target-int4", "models/tiny/drafter-int4", 3, 320 },
		{ "synthetic:tiny", "synthetic:dflash-tiny", 1, 64 },
		{ "synthetic:tiny:bf16", "synthetic:dflash-tiny:g32", 2, 128 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(pair) / sizeof(*pair); i++)
		for (int form = 0; form <= (TD_FORM_BF16 | TD_FORM_HEAD_INT4 | TD_FORM_HEAD_EXACT); form++) {
			struct td_memplan_of o = of(pair[i].target, pair[i].drafter, "cpu", pair[i].slots, pair[i].context);

			o.form = form;
			o.draft_ids = i % 2 ? 131 : 0;
			o.pool.kv_pages = i == 1 ? 7 : o.pool.kv_pages; /* a pool smaller than slots * context */
			pair_takes_what_is_planned(&o);
		}
}

/* Activations in 8 bits take no memory. */
static void activations_cost_nothing(void **state)
{
	static const char *const device[] = { "cpu", "cuda" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct td_memplan_of o = of("synthetic:qwen3.5-4b", "synthetic:dflash-4b", device[i], 4, 512);
		struct td_memplan p, q;

		o.form = TD_FORM_HEAD_INT4;
		OK(td_memplan_make(&o, &p, &err));
		o.form |= TD_FORM_ACT8;
		OK(td_memplan_make(&o, &q, &err));
		assert_memory_equal(&p, &q, sizeof(p));
	}
}

/* The next slot costs what is told. */
static void per_slot_is_the_next_slot(void **state)
{
	struct td_memplan_of a = of("synthetic:tiny", "synthetic:dflash-tiny", "cuda", 4, 512), b = of("synthetic:tiny", "synthetic:dflash-tiny", "cuda", 5, 512);
	struct td_memplan p, q;

	(void)state;
	OK(td_memplan_make(&a, &p, &err));
	OK(td_memplan_make(&b, &q, &err));
	assert_int_equal(q.all - p.all, p.per_slot);
}

static void packing_is_the_backends_own(void **state)
{
	(void)state;
	for (int out = 1; out < 600; out += 37)
		for (int in = 8; in < 600; in += 8)
			for (int group = 8; group <= 128; group *= 2)
				for (int kind = TD_W_BF16; kind <= TD_W_INT4; kind++)
					assert_int_equal(td_pack_bytes_cpu((enum td_weight_kind)kind, out, in, group),
							 td_cpu_ops.pack_bytes((enum td_weight_kind)kind, out, in, group));
	/* whole tiles take what their codes and scales are; the last one is filled up */
	assert_int_equal(td_pack_bytes_cuda(TD_W_INT4, 128, 256, 128), 128 * 256 / 2 + 128 * 2 * 2);
	assert_int_equal(td_pack_bytes_cuda(TD_W_INT4, 128, 128, 32), 128 * 128 / 2 + 128 * 4 * 2);
	assert_int_equal(td_pack_bytes_cuda(TD_W_INT4, 129, 64, 32), (128 + TD_PACK_TILE) * TD_PACK_CHUNK / 2 + (128 + TD_PACK_TILE) * 4 * 2);
	assert_int_equal(td_pack_bytes_cuda(TD_W_BF16, 65, 64, 0), 65 * 64 * 2);
}

/* ---- the promised sizes ------------------------------------------------------------------------------------------------------------------- */

static void plan_4b(const char *drafter, int slots, int form, struct td_memplan *p)
{
	struct td_memplan_of o = of("synthetic:qwen3.5-4b", drafter, "cuda", slots, 8192);
	char line[TD_MEMPLAN_LINES][TD_MEMPLAN_TEXT];

	o.form = form;
	OK(td_memplan_make(&o, p, &err));
	td_memplan_text(p, line);
	printf("4B, %s, %d slots of 8192%s\n  %s\n  %s\n  %s\n", drafter ? drafter : "no drafter", slots, form & TD_FORM_BF16 ? ", bf16" : form ? ", head int4" : "", line[0], line[1], line[2]);
}

static void the_4b_pair_fits(void **state)
{
	struct td_memplan p;
	uint64_t weights;

	(void)state;
	plan_4b("synthetic:dflash-4b", 8, 0, &p);
	assert_true(p.all <= 14 * GIB);
	/* arithmetic of the specification: 32 KiB of KV a token, 50.3 MB of state a slot without its ring, INT4 weights of 3.1 GB, 0.33 GB */
	assert_int_equal(p.target.kv, (uint64_t)8 * 8192 * 32768);
	assert_int_equal(p.drafter.kv, (uint64_t)8 * 8192 * 6 * 2 * 1024 * 2);
	assert_true(p.target.state > 8 * 50300000ull && p.target.state < 8 * 60000000ull);
	assert_true(p.target.weights > 3000000000ull && p.target.weights < 3250000000ull);
	assert_true(p.drafter.weights > 320000000ull && p.drafter.weights < 360000000ull);
	weights = p.target.weights;
	plan_4b("synthetic:dflash-4b", 8, TD_FORM_HEAD_INT4, &p);
	assert_true(p.all <= 14 * GIB);
	/* the head once more: 4 bits a value and two bytes for 128; the arena is filled up to 2 MiB */
	assert_true(p.target.weights - weights > 325000000ull && p.target.weights - weights < 330000000ull);
	plan_4b("synthetic:dflash-4b-paper", 8, TD_FORM_HEAD_INT4, &p);
	assert_true(p.all <= 14 * GIB);
	plan_4b("synthetic:dflash-4b", 1, TD_FORM_HEAD_INT4, &p);
	assert_true(p.all <= 6 * GIB);
	plan_4b(NULL, 1, 0, &p);
	assert_int_equal(p.drafter.weights + p.drafter.kv + p.drafter.buffers + p.drafter.context, 0);
	plan_4b("synthetic:dflash-4b", 8, 1, &p);
	assert_true(p.target.weights > 8400000000ull && p.target.weights < 8500000000ull); /* 4.206e9 BF16 values */
}

static void what_does_not_fit_is_refused(void **state)
{
	struct td_memplan_worker w = { .weights = 3 * GIB, .kv = 2 * GIB, .state = GIB / 2, .buffers = GIB / 4 };

	(void)state;
	OK(td_memplan_check("target", &w, 0, 23 * GIB / 4, 8 * GIB, &err));
	assert_int_equal(td_memplan_check("target", &w, 0, 23 * GIB / 4 - 1, 8 * GIB, &err), TD_E_NOMEM);
	assert_non_null(strstr(err.text, "needs 5.75 GiB"));
	assert_non_null(strstr(err.text, "5.75 of its 8.00 GiB are free"));
	assert_non_null(strstr(err.text, "engine.slots, engine.context or engine.kv_tokens"));
	assert_int_equal(td_memplan_check("target", &w, 1, 2 * GIB, 8 * GIB, &err), TD_E_NOMEM);
	assert_non_null(strstr(err.text, "model.weights = file"));
	assert_int_equal(td_memplan_check("target", &w, 0, 2 * GIB, 8 * GIB, &err), TD_E_NOMEM);
	assert_null(strstr(err.text, "engine."));
	assert_non_null(strstr(err.text, "smaller model"));
}

/* A prefix cache that may be smaller takes what the rest and the other worker leave. */
static void checkpoints_take_what_is_left(void **state)
{
	struct td_memplan_worker w = { .weights = 3 * GIB, .kv = 2 * GIB, .state = GIB / 2, .buffers = GIB / 2, .prefix = 16 * GIB / 16 };
	struct td_memplan p, q;
	struct td_memplan_of o = of("synthetic:qwen3.5-4b", "synthetic:dflash-4b", "cuda", 4, 4096);

	(void)state;
	assert_int_equal(td_memplan_states(&w, 16, 8 * GIB, GIB), 16);
	assert_int_equal(td_memplan_states(&w, 16, 8 * GIB - 1, GIB), 15);
	assert_int_equal(td_memplan_states(&w, 16, 7 * GIB + GIB / 8, GIB), 2);
	assert_int_equal(td_memplan_states(&w, 16, 7 * GIB, GIB), 0);
	assert_int_equal(td_memplan_states(&w, 16, 0, GIB), 0);
	w.prefix = 0;
	assert_int_equal(td_memplan_states(&w, 0, 0, GIB), 0);
	o.pool.prefix_states = 0;
	OK(td_memplan_make(&o, &p, &err));
	assert_int_equal(p.target.prefix, 0);
	o.pool.prefix_states = TD_PREFIX_STATES;
	OK(td_memplan_make(&o, &q, &err));
	assert_int_equal(q.target.prefix, q.all - p.all);
	/* of 24 layers: 32 matrices of 128 x 128, and 3 rows of 8192 */
	assert_int_equal(q.target.prefix, (uint64_t)16 * 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2));
	assert_int_equal(q.per_slot, p.per_slot);
}

static void bad_folders_are_named(void **state)
{
	struct td_memplan_of o = of("models/tiny/target-int4", NULL, "cpu", 1, 64);
	struct td_memplan p;

	(void)state;
	o.target_dir = "/nonexistent";
	assert_int_equal(td_memplan_make(&o, &p, &err), TD_E_NOT_FOUND);
	o.target_dir = "models/tiny/target-int4";
	o.drafter_dir = o.target_dir;
	assert_int_not_equal(td_memplan_make(&o, &p, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plan_is_what_is_taken),
		cmocka_unit_test(activations_cost_nothing), cmocka_unit_test(per_slot_is_the_next_slot),
		cmocka_unit_test(packing_is_the_backends_own),
		cmocka_unit_test(the_4b_pair_fits),
		cmocka_unit_test(what_does_not_fit_is_refused),
		cmocka_unit_test(checkpoints_take_what_is_left),
		cmocka_unit_test(bad_folders_are_named),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
