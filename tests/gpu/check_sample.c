/*
 * check_sample.c: proposals and verdicts on random logits with every kind of setting. Greedy must be equal; sampled tokens may differ only where a
 * uniform number falls on a boundary within rounding, which the allowed share of decisions says.
 */
#include "tests/gpu/check.h"

enum { SLOTS = 8 };

static struct td_sampling settings(int i)
{
	struct td_sampling s = {.temperature = 1, .top_p = 1, .repetition = 1, .logprobs = -1, .seed = rnd()};

	switch (i % 8) {
	case 0:
		s.temperature = 0;
		break;
	case 1:
		s.temperature = 0;
		s.repetition = 1.3f;
		s.presence = 0.5f;
		s.frequency = 0.25f;
		s.logprobs = 5;
		break;
	case 2:
		break;
	case 3:
		s.temperature = 0.7f;
		s.top_k = 20;
		s.top_p = 0.95f;
		break;
	case 4:
		s.temperature = 1.3f;
		s.top_p = 0.8f;
		s.logprobs = 20;
		break;
	case 5:
		s.min_p = 0.05f;
		s.repetition = 1.1f;
		s.frequency = 0.1f;
		break;
	case 6:
		s.temperature = 0.5f;
		s.top_k = 3;
		s.presence = 1;
		break;
	default:
		s.top_p = 0.3f;
		s.logprobs = 0;
		break;
	}
	if (i % 3 == 0) {
		s.n_bias = 40;
		for (int k = 0; k < s.n_bias; k++) {
			s.bias_id[k] = (int32_t)(rnd() % 1100) - 20;
			s.bias[k] = k % 5 ? rnd_normal() * 3 : -100;
		}
	}
	return s;
}

struct tally {
	int decisions, wrong, greedy_wrong;
	double q, logprob; /* largest differences */
};

static void compare_drafts(const struct td_draft *a, const struct td_draft *b, const struct td_sampling *s, const struct td_seq *seq, int n,
			   struct tally *t)
{
	for (int i = 0; i < n; i++) {
		const struct td_draft *x = &a[seq[i].slot], *y = &b[seq[i].slot];
		int greedy = !(s[seq[i].slot].temperature > 0);

		if (x->n != y->n)
			t->greedy_wrong++;
		for (int k = 0; k < y->n; k++) {
			int differs = x->token[k] != y->token[k] || x->n_cand[k] != y->n_cand[k];

			t->decisions++;
			t->wrong += differs && !greedy;
			t->greedy_wrong += differs && greedy;
			if (differs)
				break; /* with penalties the rest hangs on this token */
			for (int c = 0; c < y->n_cand[k] && c < TD_CAND_MAX; c++) {
				double d = x->cand[k][c] == y->cand[k][c] ? fabs(x->q[k][c] - y->q[k][c]) / y->q[k][c] : 1;

				t->q = d > t->q ? d : t->q;
			}
		}
	}
}

static void compare_verdicts(const struct td_verdict *a, const struct td_verdict *b, const struct td_sampling *s, const struct td_seq *seq, int n,
			     struct tally *t)
{
	for (int i = 0; i < n; i++) {
		const struct td_sampling *set = &s[seq[i].slot];
		int differs = a[i].n != b[i].n || a[i].n_top != b[i].n_top || memcmp(a[i].token, b[i].token, sizeof(int32_t) * (size_t)b[i].n);

		t->decisions += b[i].n;
		t->wrong += differs && set->temperature > 0;
		t->greedy_wrong += differs && !(set->temperature > 0);
		for (int k = 0; k < b[i].n && !differs && set->logprobs >= 0; k++) {
			double d = fabs(a[i].logprob[k] - b[i].logprob[k]);

			for (int c = 0; c < b[i].n_top; c++) {
				double e = a[i].top_id[k][c] == b[i].top_id[k][c] ? fabs(a[i].top_logprob[k][c] - b[i].top_logprob[k][c]) : 1;

				d = e > d ? e : d;
			}
			t->logprob = d > t->logprob ? d : t->logprob;
		}
	}
}

/* Logits of `rows` rows: normal, with ties among the best; verification sees those of the draft with some noise. */
static float *logits(int rows, int vocab, const float *near)
{
	float *l = host((size_t)rows * vocab * 4);

	for (size_t i = 0; i < (size_t)rows * vocab; i++)
		l[i] = near ? near[i] + 0.5f * rnd_normal() : rnd_normal() * 3;
	for (int r = 0; r < rows; r++) {
		float *row = l + (size_t)r * vocab;

		if (near && r % 4)
			continue;
		for (int k = 0; k < 3; k++)
			row[rnd() % (uint64_t)vocab] = near ? 14 : 12.5f;
		row[rnd() % (uint64_t)vocab] = NAN;
		row[rnd() % (uint64_t)vocab] = -INFINITY;
	}
	return l;
}

/* Some of the ids below `real`, on both sides, and what rows of logits say of them. */
static int some_ids(int real, int vocab, struct td_columns *r, struct td_columns *d)
{
	int32_t *id = host((size_t)real * 4);
	int k = 0;

	for (int i = 0; i < real; i++)
		if (rnd() % 3 == 0 || real - i == 1)
			id[k++] = i;
	*r = (struct td_columns){put(&ref, id, (size_t)k * 4), k, vocab};
	*d = (struct td_columns){put(&dut, id, (size_t)k * 4), k, vocab};
	return k;
}

static struct td_tensor put_columns(struct side *s, const float *l, int rows, int vocab, const struct td_columns *of)
{
	int32_t *id = host((size_t)of->n * 4);
	float *v = host((size_t)rows * of->n * 4);

	get(s, id, of->id, (size_t)of->n * 4);
	for (int r = 0; r < rows; r++)
		for (int c = 0; c < of->n; c++)
			v[(size_t)r * of->n + c] = l[(size_t)r * vocab + id[c]];
	return put_f32(s, v, rows, of->n, (of->n + 3) / 4 * 4 + (int)(rnd() % 2));
}

static void proposals(struct side *s, const struct td_batch *b, const float *near, int rows, int vocab, const struct td_columns *of, int real, const void *sampling,
		      const void *counts, void *drafts)
{
	s->ops->propose(s->dev, b, of ? put_columns(s, near, rows, vocab, of) : put_f32(s, near, rows, vocab, vocab), of, real, sampling, counts, drafts);
}

/* some: proposals are over some ids only. */
static void cycle(int vocab, int real, int n, int some, struct tally *t)
{
	struct td_columns of_r, of_d;
	struct td_seq seq[SLOTS];
	struct td_sampling *s = host(SLOTS * sizeof(*s));
	struct td_draft *dr = host(SLOTS * sizeof(*dr)), *dd = host(SLOTS * sizeof(*dd));
	struct td_verdict *vr = host(SLOTS * sizeof(*vr)), *vd = host(SLOTS * sizeof(*vd));
	uint16_t *counts = host((size_t)SLOTS * vocab * 2), *after = host((size_t)SLOTS * vocab * 2), *after_ref = host((size_t)SLOTS * vocab * 2);
	int32_t anchor[SLOTS] = {0}, anchor_ref[SLOTS] = {0};
	int rows = 0;
	float *near, *far;
	struct td_batch br, bd;
	void *sr, *sd, *cr, *cd, *pr, *pd, *ar, *ad, *wr, *wd;

	for (int i = 0; i < n; i++) {
		seq[i] = (struct td_seq){.slot = (i * 3 + 1) % SLOTS,
					 .row0 = rows,
					 .rows = i == 1	      ? 1
						 : i % 3 == 2 ? 5
						 : brief       ? 2
							      : 16,
					 .pos0 = (int)(rnd() % 5000)};
		rows += seq[i].rows;
	}
	for (int i = 0; i < SLOTS; i++)
		s[i] = settings(brief ? i : (int)(rnd() % 24));
	for (size_t i = 0; i < (size_t)SLOTS * vocab; i++)
		counts[i] = rnd() % 10 == 0 ? (uint16_t)(rnd() % 4 | (rnd() % 2) << 15) : 0;
	make_batch(&ref, &br, seq, n);
	make_batch(&dut, &bd, seq, n);
	near = logits(rows - n, vocab, NULL);
	far = host((size_t)rows * vocab * 4);
	for (int i = 0, at = 0; i < n; i++) { /* row j of a block verifies what row j of its proposals drafted; the last row stands alone */
		memcpy(far + (size_t)seq[i].row0 * vocab, near + (size_t)at * vocab, (size_t)(seq[i].rows - 1) * vocab * 4);
		at += seq[i].rows - 1;
	}
	far = logits(rows, vocab, far);
	sr = put(&ref, s, SLOTS * sizeof(*s));
	sd = put(&dut, s, SLOTS * sizeof(*s));
	cr = put(&ref, counts, (size_t)SLOTS * vocab * 2);
	cd = put(&dut, counts, (size_t)SLOTS * vocab * 2);
	pr = put(&ref, NULL, SLOTS * sizeof(*dr));
	pd = put(&dut, NULL, SLOTS * sizeof(*dd));
	if (some)
		some_ids(real, vocab, &of_r, &of_d);
	proposals(&ref, &br, near, rows - n, vocab, some ? &of_r : NULL, real, sr, cr, pr);
	proposals(&dut, &bd, near, rows - n, vocab, some ? &of_d : NULL, real, sd, cd, pd);
	get(&ref, dr, pr, SLOTS * sizeof(*dr));
	get(&dut, dd, pd, SLOTS * sizeof(*dd));
	compare_drafts(dd, dr, s, seq, n, t);
	/* both verify the reference's drafts; one sequence has them as a point mass */
	for (int k = 0; k < TD_DRAFT_MAX; k++)
		dr[seq[0].slot].n_cand[k] = 0;
	pr = put(&ref, dr, SLOTS * sizeof(*dr));
	pd = put(&dut, dr, SLOTS * sizeof(*dr));
	ar = put(&ref, anchor, sizeof(anchor));
	ad = put(&dut, anchor, sizeof(anchor));
	wr = put(&ref, NULL, SLOTS * sizeof(*vr));
	wd = put(&dut, NULL, SLOTS * sizeof(*vd));
	ref.ops->accept(ref.dev, &br, put_f32(&ref, far, rows, vocab, vocab), real, sr, pr, cr, ar, wr);
	dut.ops->accept(dut.dev, &bd, put_f32(&dut, far, rows, vocab, vocab), real, sd, pd, cd, ad, wd);
	get(&ref, vr, wr, SLOTS * sizeof(*vr));
	get(&dut, vd, wd, SLOTS * sizeof(*vd));
	compare_verdicts(vd, vr, s, seq, n, t);
	get(&ref, anchor_ref, ar, sizeof(anchor));
	get(&dut, anchor, ad, sizeof(anchor));
	get(&ref, after_ref, cr, (size_t)SLOTS * vocab * 2);
	get(&dut, after, cd, (size_t)SLOTS * vocab * 2);
	for (int i = 0; i < n; i++) {
		int slot = seq[i].slot, same = vd[i].n == vr[i].n && !memcmp(vd[i].token, vr[i].token, sizeof(int32_t) * (size_t)vr[i].n);

		if (same &&
		    (anchor[slot] != anchor_ref[slot] || memcmp(after + (size_t)slot * vocab, after_ref + (size_t)slot * vocab, (size_t)vocab * 2)))
			t->greedy_wrong++;
	}
	drop_all();
}

/* Every second cycle proposes from some ids. */
static void many(int vocab, int real, int n, int times)
{
	struct tally t = {0};
	char shape[96];

	for (int i = 0; i < times; i++)
		cycle(vocab, real, n, i % 2, &t);
	snprintf(shape, sizeof(shape), "%d of %d ids, %d cycles of %d: greedy, counts, anchors", real, vocab, times, n);
	line("sample", shape, t.greedy_wrong, 0);
	snprintf(shape, sizeof(shape), "%d of %d ids: sampled, share of %d that differ", real, vocab, t.decisions);
	line("sample", shape, (double)t.wrong / (t.decisions ? t.decisions : 1), self ? 0 : small ? 1e-2 /* one close draw of the few */ : 2e-3);
	snprintf(shape, sizeof(shape), "%d of %d ids: q, largest relative difference", real, vocab);
	line("sample", shape, t.q, 2e-5);
	snprintf(shape, sizeof(shape), "%d of %d ids: log-probabilities, largest difference", real, vocab);
	line("sample", shape, t.logprob, 2e-5);
}

/* Masks of some rows, one line of a row that is not there; the others stay as they were. */
static void masks(int vocab, int rows)
{
	int words = TD_MASK_WORDS(vocab), n = rows / 2 + 1, wrong = 0;
	uint32_t *bits = host((size_t)n * (words + 1) * 4);
	float *l = logits(rows, vocab, NULL), *a = host((size_t)rows * vocab * 4), *b = host((size_t)rows * vocab * 4);
	struct td_tensor lr = put_f32(&ref, l, rows, vocab, vocab), ld = put_f32(&dut, l, rows, vocab, vocab);
	char shape[64];

	for (int i = 0; i < n; i++) {
		for (int k = 0; k < words; k++)
			bits[(size_t)i * (words + 1) + k] = i % 3 ? (uint32_t)rnd() : i % 2 ? ~0u : 0;
		bits[(size_t)i * (words + 1) + words] = i + 1 < n ? (uint32_t)(2 * i) : (uint32_t)rows + 5;
	}
	ref.ops->mask(ref.dev, lr, put(&ref, bits, (size_t)n * (words + 1) * 4), n);
	dut.ops->mask(dut.dev, ld, put(&dut, bits, (size_t)n * (words + 1) * 4), n);
	get(&ref, a, lr.data, (size_t)rows * vocab * 4);
	get(&dut, b, ld.data, (size_t)rows * vocab * 4);
	for (int r = 0; r < rows; r++) {
		const uint32_t *line_bits = r % 2 == 0 && r / 2 + 1 < n ? bits + (size_t)(r / 2) * (words + 1) : NULL;

		for (int i = 0; i < vocab; i++) {
			float want = line_bits && !(line_bits[i / 32] >> i % 32 & 1) ? -INFINITY : l[(size_t)r * vocab + i];

			wrong += memcmp(&a[(size_t)r * vocab + i], &want, 4) != 0;
			wrong += memcmp(&b[(size_t)r * vocab + i], &want, 4) != 0;
		}
	}
	snprintf(shape, sizeof(shape), "%d ids, %d lines for %d rows", vocab, n, rows);
	line("mask", shape, wrong, 0);
	drop_all();
}

/* steps 0: normal logits; else so many different values, that is, ties. some: logits are about some ids. The same ones must have changed on both sides. */
static void rescore(int rows, int cols, int vocab, int real, int steps, int some)
{
	struct td_columns of_r, of_d;
	int wide = some ? some_ids(real, vocab, &of_r, &of_d) : vocab;
	size_t n = (size_t)rows * wide;
	float *x = random_values((size_t)rows * cols, 1), *w = random_values((size_t)vocab * cols, 1), *logits = random_values(n, 3), *a, *b, *one;
	uint16_t *bits = host((size_t)vocab * cols * 2);
	struct td_tensor xr = put_act(&ref, x, rows, cols, cols), xd = put_act(&dut, x, rows, cols, cols), tr, td, lr, ld;
	char shape[96];
	int same = 1;

	for (size_t i = 0; i < (size_t)vocab * cols; i++)
		bits[i] = td_bf16(w[i]);
	for (size_t i = 0; i < n; i++)
		logits[i] = steps ? (float)(rnd() % (uint64_t)steps) : i % 97 == 3 ? NAN : logits[i];
	tr = (struct td_tensor){put(&ref, bits, (size_t)vocab * cols * 2), TD_BF16, vocab, cols, cols, 0};
	td = (struct td_tensor){put(&dut, bits, (size_t)vocab * cols * 2), TD_BF16, vocab, cols, cols, 0};
	lr = put_f32(&ref, logits, rows, wide, wide);
	ld = put_f32(&dut, logits, rows, wide, wide);
	ref.ops->rescore(ref.dev, xr, tr, lr, some ? &of_r : NULL, real);
	dut.ops->rescore(dut.dev, xd, td, ld, some ? &of_d : NULL, real);
	a = get_values(&dut, ld);
	b = get_values(&ref, lr);
	for (size_t i = 0; i < n; i++) {
		same &= !memcmp(&a[i], &logits[i], sizeof(float)) == !memcmp(&b[i], &logits[i], sizeof(float));
		a[i] = isnan(a[i]) && isnan(b[i]) ? 0 : a[i];
		b[i] = isnan(b[i]) ? 0 : b[i];
	}
	snprintf(shape, sizeof(shape), "(%d, %d), table (%d, %d)%s%s", rows, cols, real, cols, steps ? ", ties" : ", NaN", some ? ", some ids" : "");
	line("rescore", shape, relative(a, b, n), TOL_FLOAT);
	verdict_bool("rescore", "the same ids", same);
	one = logits + (size_t)(rows - 1) * wide;
	ld = put_f32(&dut, one, 1, wide, wide);
	dut.ops->rescore(dut.dev, td_rows(xd, rows - 1, 1), td, ld, some ? &of_d : NULL, real);
	one = get_values(&dut, ld);
	for (int i = 0; i < wide; i++)
		one[i] = isnan(one[i]) ? 0 : one[i];
	verdict_bool("rescore", "row invariance, bits", same_bits(one, a + (size_t)(rows - 1) * wide, (size_t)wide));
	drop_all();
}

void check_sample(void)
{
	if (brief) {
		masks(300, 3);
		rescore(2, 72, 1100, 1099, 0, 1);
		many(4200, 4190, 8, 2);
		return;
	}
	rescore(5, 77, 1000, 990, 0, 0);
	rescore(3, 512, 8192, 8185, 40, 0);
	rescore(2, 40, 9, 5, 0, 0);
	rescore(2, 16, 9000, 8999, 0, 0);
	rescore(2, 16, 9000, 8999, 2, 0);
	rescore(5, 77, 1000, 990, 0, 1);
	rescore(3, 64, 9000, 8999, 40, 1);
	if (!self && !small) {
		rescore(16, 2560, 248320, 248077, 0, 0);
		rescore(3, 64, 300000, 300000, 100000, 0);
	}
	masks(1000, 9);
	masks(33, 1);
	masks(8192, 16);
	if (!self && !small)
		masks(248320, 32);
	many(1000, 990, 8, self || small ? 3 : 20);
	many(50, 50, 6, self || small ? 3 : 10);
	many(8192, 8185, 8, self || small ? 2 : 6);
	if (!self)
		many(66000, 65999, 3, small ? 2 : 6); /* lists of many pieces */
	if (!self && !small)
		many(248320, 248077, 4, 3);
}
