/*
 * test_k_accept.c: greedy proposing and accepting, ties, penalties inside a block, token counts, log-probabilities, and logits that are not numbers.
 */
#include "k_common.h"
#include "kernels/assume.h"

enum { V = 50, REAL = 48, STRIDE = 53 };

static struct td_sampling greedy(void)
{
	return (struct td_sampling){ .top_p = 1, .repetition = 1, .logprobs = -1 };
}

/* One block of n drafts on slot 2: accept's verdict, with logits whose best id per row is `best`. */
struct bench {
	struct td_dev *dev;
	struct td_tensor logits;
	struct td_sampling s[3];
	struct td_draft draft[3];
	struct td_verdict v;
	uint16_t counts[3][V];
	int32_t anchor[3];
};

static void bench_make(struct bench *t, int rows)
{
	memset(t, 0, sizeof(*t));
	t->dev = k_open(2);
	t->logits = k_random_tensor(rows, V, STRIDE - V);
	t->s[2] = greedy();
}

static void bench_free(struct bench *t)
{
	free(t->logits.data);
	k_close(t->dev);
}

static void go(struct bench *t, int rows)
{
	struct td_seq seq = { .slot = 2, .rows = rows, .pos0 = 7 };
	struct td_batch b = k_batch(t->dev, &seq, 1);

	ops->accept(t->dev, &b, t->logits, REAL, t->s, t->draft, &t->counts[0][0], t->anchor, &t->v);
}

static void longest_match(void **state)
{
	struct bench t;

	(void)state;
	for (int good = 0; good <= 15; good++) {
		bench_make(&t, 16);
		t.s[2].frequency = 1e-12f; /* too small to change a logit; without a penalty nobody would count */
		t.draft[2].n = 15;
		for (int r = 0; r < 16; r++) {
			k_row(t.logits, r)[10 + r] = 3;
			k_row(t.logits, r)[30] = 3; /* a tie: the lower id counts */
			k_row(t.logits, r)[REAL] = 9; /* not a real id */
			if (r < 15)
				t.draft[2].token[r] = r < good ? 10 + r : r == good ? 30 : 10 + r; /* right again after the first wrong one */
		}
		go(&t, 16);
		assert_int_equal(t.v.n, good + 1);
		for (int i = 0; i <= good; i++) {
			assert_int_equal(t.v.token[i], 10 + i);
			assert_int_equal(t.counts[2][10 + i], 1);
		}
		assert_int_equal(t.v.n_top, 0);
		assert_int_equal(t.anchor[2], 10 + good);
		assert_int_equal(t.anchor[0] | t.anchor[1] | t.counts[2][30] | t.counts[1][10] | t.counts[2][10 + good + 1], 0);
		bench_free(&t);
	}
}

static void greedy_proposal(void **state)
{
	struct td_dev *dev = k_open(2);
	struct td_tensor logits = k_random_tensor(2 + 15, V, 3);
	struct td_sampling s[3] = { greedy(), greedy(), greedy() };
	struct td_seq seq[3] = { { .slot = 2, .row0 = 0, .rows = 3, .pos0 = 4 },
				 { .slot = 1, .row0 = 3, .rows = 1, .pos0 = 4 },
				 { .slot = 0, .row0 = 4, .rows = 16, .pos0 = 9 } };
	struct td_batch b = k_batch(dev, seq, 3);
	static uint16_t counts[3][V];
	static struct td_draft d[3];

	(void)state;
	d[1].n = 5;
	for (int r = 0; r < 17; r++) {
		k_row(logits, r)[r + 1] = k_row(logits, r)[r + 20] = 4;
		k_row(logits, r)[V - 1] = 5;
	}
	ops->propose(dev, &b, logits, NULL, REAL, s, &counts[0][0], d);
	assert_int_equal(d[2].n, 2);
	assert_int_equal(d[1].n, 0);
	assert_int_equal(d[0].n, 15);
	for (int i = 0; i < 2; i++)
		assert_int_equal(d[2].token[i], i + 1);
	for (int i = 0; i < 15; i++) {
		assert_int_equal(d[0].token[i], i + 3);
		assert_int_equal(d[0].n_cand[i], 0);
	}
	free(logits.data);
	k_close(dev);
}

/* Row j sees drafts < j as committed: the same logits in each row, and a frequency penalty that makes each token's second use lose. */
static void penalties_inside_block(void **state)
{
	struct bench t;
	static const int32_t want[4] = { 5, 6, 5, 7 };
	struct td_draft proposed[3];

	(void)state;
	bench_make(&t, 4);
	t.s[2].frequency = 0.25f;
	t.s[2].presence = 0.25f;
	for (int r = 0; r < 4; r++) {
		for (int i = 0; i < V; i++)
			k_row(t.logits, r)[i] = -1;
		k_row(t.logits, r)[5] = 2; /* 2, 1.5, 1.25 */
		k_row(t.logits, r)[6] = 1.75f; /* 1.75, 1.25 */
		k_row(t.logits, r)[7] = 1.375f;
	}
	t.draft[2].n = 3;
	memcpy(t.draft[2].token, want, sizeof(want[0]) * 3);
	/* the drafter with the same logits and settings proposes just these */
	{
		struct td_seq seq = { .slot = 2, .rows = 4, .pos0 = 7 };
		struct td_batch b = k_batch(t.dev, &seq, 1);

		memset(proposed, 0, sizeof(proposed));
		ops->propose(t.dev, &b, t.logits, NULL, REAL, t.s, &t.counts[0][0], proposed);
		for (int i = 0; i < 3; i++)
			assert_int_equal(proposed[2].token[i], want[i]);
		assert_int_equal(t.counts[2][5], 0); /* proposing counts nothing */
	}
	go(&t, 4);
	assert_int_equal(t.v.n, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(t.v.token[i], want[i]);
	assert_int_equal(t.counts[2][5], 2);
	bench_free(&t);
	/* repetition counts the prompt too, and divides or multiplies by sign */
	bench_make(&t, 1);
	t.s[2].repetition = 2;
	for (int i = 0; i < V; i++)
		k_row(t.logits, 0)[i] = -1;
	k_row(t.logits, 0)[3] = 1;
	k_row(t.logits, 0)[4] = 0.625f;
	t.counts[2][3] = 0x8000;
	go(&t, 1);
	assert_int_equal(t.v.token[0], 4);
	assert_int_equal(t.counts[2][3], 0x8000);
	t.counts[2][4] = 0x7fff; /* stays at its largest value, the prompt's bit untouched */
	t.s[2].repetition = 1;
	k_row(t.logits, 0)[4] = 2;
	go(&t, 1);
	assert_int_equal(t.v.token[0], 4);
	assert_int_equal(t.counts[2][4], 0x7fff);
	bench_free(&t);
}

static void log_probabilities(void **state)
{
	struct bench t;
	double sum = 0;

	(void)state;
	bench_make(&t, 2);
	t.s[2].temperature = 0.5f; /* log-probabilities are of the raw logits whatever the settings */
	t.s[2].top_k = 1;
	t.s[2].n_bias = 1;
	t.s[2].bias_id[0] = 33;
	t.s[2].bias[0] = 100;
	t.s[2].logprobs = 7;
	t.draft[2].n = 1;
	t.draft[2].token[0] = 33;
	for (int r = 0; r < 2; r++) {
		k_row(t.logits, r)[12] = k_row(t.logits, r)[9] = 2; /* ties: lower id first */
		k_row(t.logits, r)[40] = 5;
		k_row(t.logits, r)[REAL + 1] = 80;
	}
	k_row(t.logits, 1)[33] = -INFINITY;
	go(&t, 2);
	assert_int_equal(t.v.n, 2);
	assert_int_equal(t.v.n_top, 7);
	for (int i = 0; i < REAL; i++)
		sum += exp(k_row(t.logits, 0)[i]);
	assert_int_equal(t.v.token[0], 33);
	k_near("log-probability", 0, t.v.logprob[0], k_row(t.logits, 0)[33] - log(sum), 1e-6);
	for (int r = 0; r < 2; r++) {
		assert_int_equal(t.v.top_id[r][0], 40);
		assert_int_equal(t.v.top_id[r][1], 9);
		assert_int_equal(t.v.top_id[r][2], 12);
	}
	for (int i = 0; i < 7; i++) {
		int better = 0;

		k_near("top", i, t.v.top_logprob[0][i], k_row(t.logits, 0)[t.v.top_id[0][i]] - log(sum), 1e-6);
		for (int j = 0; j < REAL; j++)
			better += k_row(t.logits, 0)[j] > k_row(t.logits, 0)[t.v.top_id[0][i]];
		assert_in_range(better, i == 2 ? 1 : i, i);
	}
	bench_free(&t);
	bench_make(&t, 1);
	k_row(t.logits, 0)[0] = -INFINITY; /* a chosen token of no probability: -9999, never -inf */
	t.s[2].n_bias = REAL - 1;
	for (int i = 1; i < REAL; i++) {
		t.s[2].bias_id[i - 1] = i;
		t.s[2].bias[i - 1] = -INFINITY;
	}
	t.s[2].logprobs = 0;
	go(&t, 1);
	assert_int_equal(t.v.token[0], 0);
	assert_true(t.v.logprob[0] == -9999);
	assert_int_equal(t.v.n_top, 0);
	bench_free(&t);
}

/* Whatever stands in the logits, the settings and the draft: tokens within the vocabulary, finite log-probabilities. */
static void not_numbers(void **state)
{
	static const float bad[7] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-40f, 0 };
	struct bench t;

	(void)state;
	bench_make(&t, 16);
	for (int trial = 0; trial < 3000; trial++) {
		int all = trial % 4; /* few, half, nearly all, all */
		struct td_seq seq = { .slot = 2, .rows = 16, .pos0 = trial };
		struct td_batch b = k_batch(t.dev, &seq, 1);

		for (int r = 0; r < 16; r++)
			for (int i = 0; i < V; i++)
				k_row(t.logits, r)[i] = (int)(k_random() % 8) >= all * 3 ? k_uniform(-3, 3) : trial % 5 ? bad[k_random() % 7] : bad[trial / 5 % 7];
		t.s[2] = greedy();
		t.s[2].logprobs = 20;
		t.s[2].seed = k_random();
		t.s[2].temperature = trial % 3 ? (const float[]){ 1, 1e-30f, 1e30f, 0.7f }[k_random() % 4] : 0;
		t.s[2].top_k = (int)(k_random() % 5) * 20 - 20;
		t.s[2].top_p = (const float[]){ 1, 0, 0.5f, -1 }[k_random() % 4];
		t.s[2].min_p = (const float[]){ 0, 1, 0.1f, 5 }[k_random() % 4];
		t.s[2].repetition = (const float[]){ 1, 1.5f, 0, 1e-30f }[k_random() % 4];
		t.s[2].frequency = (const float[]){ 0, 1e38f, -1e38f, 1 }[k_random() % 4];
		if (trial % 2) {
			ops->propose(t.dev, &b, td_rows(t.logits, 0, 15), NULL, REAL, t.s, &t.counts[0][0], t.draft);
			for (int i = 0; i < 15; i++) {
				assert_in_range(t.draft[2].token[i], 0, REAL - 1);
				assert_in_range(t.draft[2].n_cand[i], 0, TD_CAND_MAX);
			}
		} else {
			for (int i = 0; i < 15; i++) { /* a proposal from damaged memory */
				t.draft[2].token[i] = (int32_t)k_random();
				t.draft[2].n_cand[i] = (int32_t)k_random() % 3 * 100;
				for (int c = 0; c < TD_CAND_MAX; c++) {
					t.draft[2].cand[i][c] = (int32_t)k_random();
					t.draft[2].q[i][c] = bad[k_random() % 7];
				}
			}
		}
		ops->accept(t.dev, &b, t.logits, REAL, t.s, t.draft, &t.counts[0][0], t.anchor, &t.v);
		assert_in_range(t.v.n, 1, 16);
		for (int i = 0; i < t.v.n; i++) {
			assert_in_range(t.v.token[i], 0, REAL - 1);
			if (!isfinite(t.v.logprob[i]))
				fail_msg("trial %d: log-probability %g", trial, (double)t.v.logprob[i]);
			for (int k = 0; k < t.v.n_top; k++) {
				assert_in_range(t.v.top_id[i][k], 0, REAL - 1);
				assert_true(isfinite(t.v.top_logprob[i][k]));
			}
		}
	}
	/* fewer ids than places in the list */
	t.s[2].logprobs = 20;
	{
		struct td_seq seq = { .slot = 2, .rows = 1 };
		struct td_batch b = k_batch(t.dev, &seq, 1);

		ops->accept(t.dev, &b, t.logits, 3, t.s, NULL, &t.counts[0][0], t.anchor, &t.v);
		assert_int_equal(t.v.n_top, 3);
	}
	bench_free(&t);
}

/* The pieces of the positions have the mean that the seed tells, from wherever one starts; other seeds are left alone. */
static void assumed_lengths(void **state)
{
	static const struct {
		uint64_t seed;
		int least, most;
	} mean[] = {{10, 1, 1}, {33, 3, 4}, {50, 5, 5}, {60, 6, 6}, {160, 16, 16}};

	(void)state;
	for (size_t i = 0; i < sizeof(mean) / sizeof(*mean); i++)
		for (int start = 0; start < 40; start++) {
			int at = start, steps = 0;

			for (; steps < 1000; steps++) {
				int n = td_assumed(mean[i].seed, at, 16);

				assert_in_range(n, mean[i].least, mean[i].most);
				at += n;
			}
			if (abs(10 * (at - start) - 1000 * (int)mean[i].seed) > 20)
				fail_msg("seed %d from %d: %d tokens in 1000 steps", (int)mean[i].seed, start, at - start);
		}
	assert_int_equal(td_assumed(0, 5, 16) | td_assumed(9, 5, 16) | td_assumed(161, 5, 16) | td_assumed(UINT64_MAX, 5, 16) | td_assumed(33, -1, 16), 0);
	for (int tenths = 10; tenths <= 160; tenths++) { /* a shorter block commits less, down to one token, never more than it has rows */
		for (int rows = 1; rows < 16; rows++) {
			assert_in_range(td_assumed_mean(tenths, rows), 10, 10 * rows);
			assert_true(td_assumed_mean(tenths, rows) <= td_assumed_mean(tenths, rows + 1));
		}
		if (abs(td_assumed_mean(tenths, 15) - tenths) > 11)
			fail_msg("a mean of %d tenths becomes %d with a row less", tenths, td_assumed_mean(tenths, 15));
	}
	assert_int_equal(td_assumed_mean(50, 8), 42);
	assert_int_equal(td_assumed_mean(50, 4), 30);
}

/* So many tokens are committed, the drafts as they are and then one that is none; a block that is too short is committed whole. */
static void assumed_acceptance(void **state)
{
	static const int mean[] = {10, 33, 50, 160, 0};
	struct bench t;

	(void)state;
	for (size_t i = 0; i < sizeof(mean) / sizeof(*mean); i++)
		for (int rows = 1; rows <= 16; rows++) {
			struct td_seq seq = {.slot = 2, .rows = rows, .pos0 = 9};
			struct td_batch b;
			int want = td_assumed((uint64_t)mean[i], 9, rows);

			bench_make(&t, 16);
			b = k_batch(t.dev, &seq, 1);
			t.s[2].seed = (uint64_t)mean[i];
			t.draft[2].n = rows - 1;
			for (int r = 0; r < 15; r++)
				t.draft[2].token[r] = 20 + r;
			if (want && want < rows)
				k_row(t.logits, want - 1)[20 + want - 1] = 7; /* would be accepted */
			if (!want)
				k_row(t.logits, 0)[3] = 7;
			ops->assume(t.dev, &b, t.logits, t.draft, t.s);
			ops->accept(t.dev, &b, t.logits, REAL, t.s, t.draft, &t.counts[0][0], t.anchor, &t.v);
			want = want ? want < rows ? want : rows : 1;
			assert_int_equal(t.v.n, want);
			for (int k = 0; k + 1 < want; k++)
				assert_int_equal(t.v.token[k], 20 + k);
			if (want < rows)
				assert_int_not_equal(t.v.token[want - 1], 20 + want - 1);
			bench_free(&t);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(longest_match), cmocka_unit_test(greedy_proposal), cmocka_unit_test(penalties_inside_block),
					    cmocka_unit_test(log_probabilities), cmocka_unit_test(not_numbers), cmocka_unit_test(assumed_lengths),
					    cmocka_unit_test(assumed_acceptance) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
