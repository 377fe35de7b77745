/*
 * test_weights_nomem.c: whichever allocation fails while a sharded checkpoint is opened and loaded, the call says so, leaves no arena, no weights and
 * no memory behind; or it does without (the C library's sort can) and the weights are the same as ever.
 */
#include <stdio.h>
#include <string.h>

#include "engine/model.h"
#include "tests/lib/checkpoint.h"
#include "tests/lib/model_files.h"
#include "tests/lib/unit.h"
#include "fake_ops.h"
#include "failing_alloc.h"

#if FAILING_ALLOC

/* Two shards at odd addresses, so that the aligned copies are made too. */
static void write_model(const char *dir)
{
	struct ck all, half = { 0 };
	char map[16384] = "{\"weight_map\":{";
	size_t at = strlen(map);

	ck_target(&all, "model.", 8);
	for (int i = 0; i < all.n; i++)
		at += (size_t)sprintf(map + at, "%s\"%s\":\"%s\"", i ? "," : "", all.t[i].name, i < all.n / 2 ? "one" : "two");
	strcpy(map + at, "}}");
	file_text(dir, "model.safetensors.index.json", map);
	half.n = all.n / 2;
	memcpy(half.t, all.t, sizeof(*half.t) * (size_t)half.n);
	ck_write(&half, dir, "one", 1);
	half.n = all.n - all.n / 2;
	memcpy(half.t, all.t + all.n / 2, sizeof(*half.t) * (size_t)half.n);
	ck_write(&half, dir, "two", 1);
	ck_finish(&all);
	file_text(dir, "config.json", CK_TARGET_CONFIG(",\"tie_word_embeddings\":true" CK_QUANT("8")));
	file_text(dir, "generation_config.json", "{\"eos_token_id\":[3,4]}");
}

static void test_nomem(void **state)
{
	static struct td_target_weights first;
	struct td_target_weights *w = NULL;
	struct td_error err;
	char dir[64], print[256];
	long before = 0, wrong_code = 0, spared = 0;
	int n, rc;

	(void)state;
	write_model(scratch_make(dir));
	for (n = 0;; n++) { /* n = 0 lets all succeed and settles what libraries keep for themselves */
		fake_finish();
		before = alloc_alive;
		memset(&err, 0, sizeof(err));
		alloc_countdown = n;
		rc = td_target_weights_load(&fake_ops, NULL, dir, NULL, &w, print, &err);
		if (n && alloc_countdown) /* fewer allocations than that: all have had their turn */
			break;
		alloc_countdown = 0;
		if (n == 0) {
			assert_int_equal(rc, 0);
			first = *w;
		}
		if (rc == 0) {
			spared++;
			assert_memory_equal(w, &first, sizeof(first));
			td_target_weights_free(&fake_ops, NULL, w);
			continue;
		}
		assert_null(w);
		assert_int_equal(fake.arenas, 0);
		assert_int_equal(err.code, rc);
		wrong_code += rc != TD_E_NOMEM;
		fake_finish();
		if (alloc_alive != before)
			fail_msg("allocation %d failed: %ld blocks leaked (%s)", n, alloc_alive - before, err.text);
	}
	alloc_countdown = 0;
	assert_int_equal(rc, 0);
	td_target_weights_free(&fake_ops, NULL, w);
	fake_finish();
	scratch_remove(dir);
	if (n < 500 || wrong_code || spared > 10)
		fail_msg("%d allocations: %ld ended in another code than out_of_memory, %ld in nothing", n, wrong_code, spared);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_nomem) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
	return 0;
}

#endif
