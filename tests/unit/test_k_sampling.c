/*
 * test_k_sampling.c: with temperature, what comes out is distributed as the target alone says, whatever was proposed: chi-square tests of the joint
 * distribution of three positions over 24,000 sequences for each way of proposing (none, point mass, the drafter's q, a bad q, the drafter's over some ids) and each kind of
 * setting. The processed distribution is computed here a second time, by sorting, in double precision. Seeds are fixed, so a pass stays a pass.
 */
#include "k_common.h"

enum { V = 8, REAL = 7, LENGTH = 3, CELLS = V * V * V, TRIALS = 24000, WIDTH = 8 };

enum source { PLAIN, POINT, PROPOSED, BAD_Q, LISTED, SOURCES };
static const char *const source_name[] = { "no speculation", "point mass", "proposed q", "bad q", "q over some ids" };
static const int32_t listed[] = { 0, 3, 4, 6 };
enum { N_LISTED = sizeof(listed) / sizeof(*listed) };

/* The target: next token's logits depend on the token before. The drafter knows nothing of it. */
static float target[V][V], drafter[LENGTH][V];
/* A constraint, as the target worker applies it: `target` holds -inf where an id may not follow another; the logits come from `whole` and are masked, and
 * rows behind a draft that is forbidden are left out. */
static int masked;
static float whole[V][V];

static int may_follow(int before, int id)
{
	return (id + 2 * before) % 3 != 0 && id < REAL;
}

struct setting {
	const char *name;
	float temperature, top_p, min_p, repetition, presence, frequency;
	int top_k, bias;
};

static const struct setting settings[] = {
	{ "temperature 1", 1, 1, 0, 1, 0, 0, 0, 0 },
	{ "temperature 0.6", 0.6f, 1, 0, 1, 0, 0, 0, 0 },
	{ "top_k 3", 1.3f, 1, 0, 1, 0, 0, 3, 0 },
	{ "top_p 0.7", 1, 0.7f, 0, 1, 0, 0, 0, 0 },
	{ "min_p 0.2", 1, 1, 0.2f, 1, 0, 0, 0, 0 },
	{ "penalties", 1, 1, 0, 1.4f, 0.6f, 0.3f, 0, 0 },
	{ "bias", 1, 1, 0, 1, 0, 0, 0, 1 },
	{ "all", 0.8f, 0.9f, 0.02f, 1.2f, 0.4f, 0.2f, 5, 1 },
};

static void sampling_make(const struct setting *s, uint64_t seed, struct td_sampling *out)
{
	memset(out, 0, sizeof(*out));
	out->temperature = s->temperature;
	out->top_p = s->top_p;
	out->min_p = s->min_p;
	out->repetition = s->repetition;
	out->presence = s->presence;
	out->frequency = s->frequency;
	out->top_k = s->top_k;
	out->logprobs = -1;
	out->seed = seed;
	if (s->bias) {
		out->n_bias = 3;
		out->bias_id[0] = 2;
		out->bias[0] = 1.5f;
		out->bias_id[1] = 4;
		out->bias[1] = -INFINITY;
		out->bias_id[2] = V + 100; /* no such id: ignored */
	}
}

/* ---- the distribution, the slow way ------------------------------------------------------------------------------------------------ */

static double sort_by[V];
static int compare(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return sort_by[x] > sort_by[y] ? -1 : sort_by[x] < sort_by[y] ? 1 : x - y;
}

static void process(const struct setting *s, const float *logits, const int *prompt, const int *output, double *p)
{
	double l[V], max = -INFINITY, sum = 0, mass = 0;
	int order[V], kept = 0;

	for (int i = 0; i < REAL; i++) {
		l[i] = logits[i];
		if (s->bias)
			l[i] += i == 2 ? 1.5 : i == 4 ? -INFINITY : 0;
		if (prompt[i] || output[i])
			l[i] = l[i] > 0 ? l[i] / s->repetition : l[i] * s->repetition;
		if (output[i])
			l[i] -= (double)s->presence + (double)s->frequency * output[i];
		l[i] /= s->temperature;
		max = fmax(max, l[i]);
		order[i] = i;
	}
	for (int i = 0; i < V; i++)
		p[i] = 0;
	for (int i = 0; i < REAL; i++) {
		p[i] = exp(l[i] - max);
		if (p[i] < (double)s->min_p)
			p[i] = 0;
		sort_by[i] = p[i];
	}
	qsort(order, REAL, sizeof(*order), compare);
	for (int i = s->top_k ? s->top_k : REAL; i < REAL; i++)
		p[order[i]] = 0;
	for (int i = 0; i < REAL; i++)
		sum += p[i];
	for (kept = 0; kept < REAL && (s->top_p >= 1 || mass < (double)s->top_p * sum); kept++)
		mass += p[order[kept]];
	for (int i = kept; i < REAL; i++)
		p[order[i]] = 0;
	sum = 0;
	for (int i = 0; i < REAL; i++)
		sum += p[i];
	for (int i = 0; i < REAL; i++)
		p[i] /= sum;
}

enum { ANCHOR = 1, PROMPT_ONLY = 5 };

static void joint(const struct setting *s, double *want)
{
	int prompt[V] = { 0 }, output[V] = { 0 };
	double a[V], b[V], c[V];

	prompt[PROMPT_ONLY] = 1;
	output[ANCHOR] = 1;
	process(s, target[ANCHOR], prompt, output, a);
	for (int x = 0; x < V; x++) {
		output[x]++;
		process(s, target[x], prompt, output, b);
		for (int y = 0; y < V; y++) {
			output[y]++;
			process(s, target[y], prompt, output, c);
			output[y]--;
			for (int z = 0; z < V; z++)
				want[(x * V + y) * V + z] = a[x] * b[y] * c[z];
		}
		output[x]--;
	}
}

/* ---- the engine's way -------------------------------------------------------------------------------------------------------------- */

/* The columns of a few ids alone, as a head over their rows gives them. */
static void propose_listed(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, const struct td_sampling *sampling, const uint16_t *counts,
			   struct td_draft *draft)
{
	const struct td_columns of = { .id = listed, .n = N_LISTED, .vocab = V };
	struct td_tensor some = k_tensor(logits.rows, N_LISTED, 3);

	for (int r = 0; r < logits.rows; r++)
		for (int c = 0; c < N_LISTED; c++)
			k_row(some, r)[c] = k_row(logits, r)[listed[c]];
	ops->propose(dev, b, some, &of, REAL, sampling, counts, draft);
	free(some.data);
}

static void propose(struct td_dev *dev, enum source source, const struct td_batch *b, const struct td_sampling *sampling,
		    const uint16_t *counts, struct td_draft *draft)
{
	struct td_tensor logits = k_tensor(WIDTH * LENGTH, V, 0);

	for (int i = 0; i < b->n_seq; i++)
		for (int j = 0; j < b->seq[i].rows - 1; j++)
			memcpy(k_row(logits, i * LENGTH + j), drafter[j], sizeof(drafter[j]));
	if (source == PROPOSED)
		ops->propose(dev, b, logits, NULL, REAL, sampling, counts, draft);
	if (source == LISTED)
		propose_listed(dev, b, logits, sampling, counts, draft);
	for (int i = 0; i < b->n_seq && source != PROPOSED && source != LISTED; i++) {
		struct td_draft *d = &draft[b->seq[i].slot];

		memset(d, 0, sizeof(*d));
		d->n = b->seq[i].rows - 1;
		for (int j = 0; j < d->n; j++) {
			d->token[j] = (int)(k_random() % REAL); /* any token, also impossible ones */
			if (source == BAD_Q) { /* q on three ids, unrelated to p; the draft is drawn from it */
				static const float q[3] = { 0.5f, 0.375f, 0.125f };
				float u = k_uniform(0, 1);

				d->n_cand[j] = 3;
				for (int c = 0; c < 3; c++) {
					d->cand[j][c] = (j * 2 + c * 3) % REAL;
					d->q[j][c] = q[c];
				}
				d->token[j] = d->cand[j][u < 0.5f ? 0 : u < 0.875f ? 1 : 2];
			}
		}
	}
	free(logits.data);
}

/* The constraint on one sequence: its rows up to what follows a forbidden draft, their masks. Returns lines added. */
static int constrain(struct td_seq *seq, const struct td_draft *d, int before, uint32_t (*line)[2])
{
	for (int r = 0; r < seq->rows; r++) {
		line[r][0] = 0;
		line[r][1] = (uint32_t)(seq->row0 + r);
		for (int id = 0; id < V; id++)
			line[r][0] |= (uint32_t)may_follow(before, id) << id;
		if (r + 1 == seq->rows)
			break;
		if (!may_follow(before, d->token[r])) {
			seq->rows = r + 2;
			return r + 1; /* the last row can't count */
		}
		before = d->token[r];
	}
	return seq->rows;
}

/* WIDTH sequences at once, until each has LENGTH tokens; adds them to `seen`. Returns drafts accepted. */
static long sequences(struct td_dev *dev, enum source source, const struct setting *s, uint64_t seed, long *seen)
{
	static struct td_draft draft[WIDTH];
	static struct td_verdict verdict[WIDTH];
	static struct td_sampling sampling[WIDTH];
	struct td_tensor logits = k_tensor(WIDTH * (LENGTH + 1), V, 0);
	uint16_t counts[WIDTH][V];
	int32_t anchor[WIDTH], got[WIDTH][2 * LENGTH + 2], n[WIDTH] = { 0 };
	const int32_t prompt = PROMPT_ONLY, output = ANCHOR;
	long accepted = 0;

	for (int i = 0; i < WIDTH; i++) {
		sampling_make(s, seed + (uint64_t)i, &sampling[i]);
		ops->counts_reset(dev, counts[i], V, &prompt, 1);
		ops->counts_add(dev, counts[i], &output, 1);
		anchor[i] = ANCHOR;
	}
	for (;;) {
		struct td_seq seq[WIDTH];
		struct td_batch b;
		uint32_t line[WIDTH * (LENGTH + 1)][2];
		int active = 0, row = 0, lines = 0;

		for (int i = 0; i < WIDTH; i++)
			if (n[i] < LENGTH) {
				seq[active++] = (struct td_seq){ .slot = i, .row0 = row, .rows = source == PLAIN ? 1 : LENGTH + 1, .pos0 = 10 + n[i] };
				row += seq[active - 1].rows;
			}
		if (!active)
			break;
		b = k_batch(dev, seq, active);
		if (source != PLAIN)
			propose(dev, source, &b, sampling, &counts[0][0], draft);
		for (int a = 0; a < active && masked; a++)
			lines += constrain(&seq[a], &draft[seq[a].slot], anchor[seq[a].slot], line + lines);
		if (masked)
			b = k_batch(dev, seq, active);
		for (int a = 0; a < active; a++)
			for (int r = 0; r < seq[a].rows; r++)
				memcpy(k_row(logits, seq[a].row0 + r), (masked ? whole : target)[r ? draft[seq[a].slot].token[r - 1] : anchor[seq[a].slot]], sizeof(target[0]));
		if (masked)
			ops->mask(dev, logits, &line[0][0], lines);
		ops->accept(dev, &b, logits, REAL, sampling, draft, &counts[0][0], anchor, verdict);
		for (int a = 0; a < active; a++) {
			int i = seq[a].slot;

			assert_in_range(verdict[a].n, 1, seq[a].rows);
			assert_int_equal(anchor[i], verdict[a].token[verdict[a].n - 1]);
			for (int t = 0; t < verdict[a].n; t++) {
				assert_in_range(verdict[a].token[t], 0, REAL - 1);
				got[i][n[i]++] = verdict[a].token[t];
			}
			accepted += verdict[a].n - 1;
		}
	}
	for (int i = 0; i < WIDTH; i++)
		seen[(got[i][0] * V + got[i][1]) * V + got[i][2]]++;
	free(logits.data);
	return accepted;
}

/* Statistic over (df, in units of its spread above its mean); cells that expect fewer than 5 are pooled; a hit in an impossible cell is a failure. */
static double chi_square(const char *what, const long *seen, const double *want, int cells, long total)
{
	double x = 0, rest_want = 0, rest_seen = 0;
	int df = -1;

	for (int i = 0; i < cells; i++) {
		double e = want[i] * (double)total;

		if (want[i] <= 0 && seen[i] && what)
			fail_msg("%s: cell %d is impossible, seen %ld times", what, i, seen[i]);
		if (e < 5) {
			rest_want += e;
			rest_seen += (double)seen[i];
			continue;
		}
		x += ((double)seen[i] - e) * ((double)seen[i] - e) / e;
		df++;
	}
	if (rest_want >= 5) {
		x += (rest_seen - rest_want) * (rest_seen - rest_want) / rest_want;
		df++;
	}
	return (x - df) / sqrt(2.0 * df);
}

static void compare_distributions(void)
{
	struct td_dev *dev = k_open(1);

	k_seed = 77;
	k_fill(&target[0][0], V * V, -2, 2);
	k_fill(&drafter[0][0], LENGTH * V, -2, 2);
	for (int i = 0; i < V; i++)
		target[i][REAL] = drafter[i % LENGTH][REAL] = 50; /* an id that is not real would win */
	memcpy(whole, target, sizeof(whole));
	for (int i = 0; i < V * V && masked; i++)
		if (!may_follow(i / V, i % V))
			target[i / V][i % V] = -INFINITY;
	for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
		if (masked && s != 0 && s != 5 && s != 7) /* the others do nothing that these do not */
			continue;
		double want[CELLS], off[CELLS];
		struct setting wrong = settings[s];

		joint(&settings[s], want);
		wrong.temperature *= 1.15f;
		joint(&wrong, off);
		for (int source = 0; source < SOURCES; source++) {
			long seen[CELLS] = { 0 }, accepted = 0;
			uint64_t seed = (uint64_t)(source * 1000 + (int)s) * 1000003u;
			double x, y;
			char what[80];

			snprintf(what, sizeof(what), "%s, %s", settings[s].name, source_name[source]);
			for (int t = 0; t < TRIALS / WIDTH; t++)
				accepted += sequences(dev, (enum source)source, &settings[s], seed + (uint64_t)t * WIDTH, seen);
			x = chi_square(what, seen, want, CELLS, TRIALS);
			y = chi_square(NULL, seen, off, CELLS, TRIALS);
			printf("%-36s chi-square %+5.2f sigma, against a temperature 15%% off %+6.1f; drafts accepted %ld\n", what, x, y, accepted);
			if (!(x < 4))
				fail_msg("%s: %.2f sigma from the target's distribution", what, x);
			if (!(y > 4))
				fail_msg("%s: the test would not see a temperature that is 15 %% off", what);
			assert_true((accepted > 0) == (source != PLAIN));
		}
	}
	k_close(dev);
}

static void distribution(void **state)
{
	(void)state;
	compare_distributions();
}

static void masked_distribution(void **state)
{
	(void)state;
	masked = 1;
	compare_distributions();
	masked = 0;
}

/* Drafts from some ids are those from all where the others' logits are -inf, to the bit: with any setting, for bias and counts speak of ids. */
static void some_ids(void **state)
{
	enum { WIDE = 1000, SOME = 137 };
	struct td_dev *dev = k_open(2);
	struct td_tensor all = k_tensor(15, WIDE, 4), some = k_tensor(15, SOME, 3);
	static uint16_t counts[WIDE + 4];
	static struct td_draft want, got;
	int32_t id[SOME];
	const struct td_columns of = { .id = id, .n = SOME, .vocab = all.cols };
	struct td_seq seq = { .rows = 16, .pos0 = 3 };
	struct td_batch b = k_batch(dev, &seq, 1);

	(void)state;
	for (int c = 0; c < SOME; c++)
		id[c] = c * 7 + c % 3;
	for (int trial = 0; trial < 200; trial++) {
		struct td_sampling s = { .temperature = trial % 3 ? 0.9f : 0, .top_p = trial % 2 ? 0.9f : 1, .top_k = trial % 5 ? 0 : 20, .repetition = 1,
					 .logprobs = -1, .seed = k_random() };

		for (int r = 0; r < 15; r++)
			for (int i = 0; i < WIDE; i++)
				k_row(all, r)[i] = -INFINITY;
		for (int r = 0; r < 15; r++)
			for (int c = 0; c < SOME; c++)
				k_row(all, r)[id[c]] = k_row(some, r)[c] = (float)(k_random() % 40) / 8; /* ties */
		for (int i = 0; i < WIDE; i++)
			counts[i] = k_random() % 4 ? 0 : (uint16_t)(k_random() % 3 | k_random() % 2 << 15);
		if (trial % 4 == 1) {
			s.repetition = 1.2f;
			s.presence = 0.3f;
			s.frequency = 0.2f;
		}
		if (trial % 4 < 2) {
			s.n_bias = 100;
			for (int i = 0; i < s.n_bias; i++) {
				s.bias_id[i] = (int32_t)(k_random() % (WIDE + 40)) - 20;
				s.bias[i] = k_uniform(-2, 4);
			}
		}
		memset(&want, 0, sizeof(want));
		memset(&got, 0, sizeof(got));
		ops->propose(dev, &b, all, NULL, WIDE, &s, counts, &want);
		ops->propose(dev, &b, some, &of, WIDE, &s, counts, &got);
		if (memcmp(&want, &got, sizeof(want)))
			fail_msg("trial %d: other drafts, the first ones are %d and %d", trial, got.token[0], want.token[0]);
	}
	free(all.data);
	free(some.data);
	k_close(dev);
}

/* A vocabulary larger than the list of candidates: q is cut to the best, sums to 1, holds its token. Radix cut against a sort. */
static void candidates(void **state)
{
	enum { WIDE = 1000 };
	struct td_dev *dev = k_open(2);
	struct td_tensor logits = k_random_tensor(15, WIDE, 4);
	static uint16_t counts[WIDE + 4];
	static struct td_draft draft;
	struct td_sampling s = { .temperature = 0.7f, .top_p = 1, .repetition = 1, .logprobs = -1, .seed = 5 };
	struct td_seq seq = { .rows = 16, .pos0 = 3 };
	struct td_batch b = k_batch(dev, &seq, 1);

	(void)state;
	for (int i = 0; i < 40; i++)
		k_row(logits, 1)[i * 20] = 2; /* ties at the top */
	for (int i = 0; i < 100; i++)
		k_row(logits, 2)[i * 10 + 3] = 2; /* more ties than places: the lower ids stay */
	ops->propose(dev, &b, logits, NULL, WIDE - 1, &s, counts, &draft);
	assert_int_equal(draft.n, 15);
	for (int j = 0; j < 15; j++) {
		double sum = 0, total = 0;
		float least = INFINITY;
		int better = 0, held = 0;

		assert_int_equal(draft.n_cand[j], TD_CAND_MAX);
		for (int c = 0; c < TD_CAND_MAX; c++) {
			total += exp(k_row(logits, j)[draft.cand[j][c]] / s.temperature);
			least = fminf(least, k_row(logits, j)[draft.cand[j][c]]);
		}
		for (int c = 0; c < TD_CAND_MAX; c++) {
			sum += draft.q[j][c];
			held += draft.cand[j][c] == draft.token[j];
			assert_in_range(draft.cand[j][c], 0, WIDE - 2);
			k_near("q", c, draft.q[j][c], exp(k_row(logits, j)[draft.cand[j][c]] / s.temperature) / total, 1e-6);
			if (j == 2)
				assert_int_equal(draft.cand[j][c], c * 10 + 3);
		}
		for (int i = 0; i < WIDE - 1; i++)
			better += k_row(logits, j)[i] > least;
		assert_int_equal(held, 1);
		assert_true(better < TD_CAND_MAX);
		k_near("sum of q", j, sum, 1, 1e-6);
	}
	free(logits.data);
	k_close(dev);
}

/* The same seed and position give the same token, beside any other sequence; another seed or position another. */
static void repeatable(void **state)
{
	struct td_dev *dev = k_open(2);
	struct td_tensor logits = k_tensor(3, 64, 0);
	struct td_sampling s[3] = { { .temperature = 1, .top_p = 1, .repetition = 1, .logprobs = -1, .seed = 9 } };
	static uint16_t counts[3][64];
	static struct td_verdict v[3];
	int32_t anchor[3], first[50];
	int same = 0;

	(void)state;
	s[1] = s[2] = s[0];
	s[2].seed = 10;
	for (int p = 0; p < 50; p++) {
		struct td_seq seq[3];
		struct td_batch b;

		for (int i = 0; i < 3; i++)
			seq[i] = (struct td_seq){ .slot = i, .row0 = i, .rows = 1, .pos0 = p };
		b = k_batch(dev, seq + 1, 2);
		ops->accept(dev, &b, logits, 64, s, NULL, &counts[0][0], anchor, v);
		first[p] = v[0].token[0];
		same += v[0].token[0] == v[1].token[0];
		b = k_batch(dev, seq, 1);
		ops->accept(dev, &b, logits, 64, s, NULL, &counts[0][0], anchor, v);
		assert_int_equal(v[0].token[0], first[p]);
		assert_true(p < 3 || first[p] != first[p - 1] || first[p] != first[p - 2] || first[p] != first[p - 3]);
	}
	assert_true(same < 8);
	free(logits.data);
	k_close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(distribution), cmocka_unit_test(masked_distribution), cmocka_unit_test(candidates),
		cmocka_unit_test(some_ids), cmocka_unit_test(repeatable) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
