/*
 * form_check.c: what another form of the weights changes: a quantised head, activations in 8 bits, 4 bits instead of BF16.
 *
 *   form_check [OPTION ...] -- [OPTION ...] [--kl MOST] [--limit N] [--tokens M] [PROMPTS.json ...]
 *
 * Options (suite.h) before the -- are of the form that is compared with, whose head is bf16 unless they say otherwise, those behind it of the form that is
 * looked at. Greedy answers with the former, then over the same tokens the logits of both at every position: how often the likeliest token is the same, among
 * how many of the other form's best it is found, the KL divergence, its mean and the largest. Then answers with the other form: how many are equal to the
 * token, and the acceptance lengths of both, of all answers and of those that are equal: these compare drafts of the same tokens. Exits 1 when nothing was
 * compared, or with --kl when a file's mean divergence is larger than that.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

enum { CONTEXT = 2048, BEST = 6 };
static const int best[BEST] = { 1, 2, 4, 8, 16, 32 };

static struct pair exact, quick;
static struct suite exactly = { .head = "bf16" }, suite = { .tokens = 96 };

struct seen { /* logits of a prompt's rows */
	const struct td_ops *ops;
	struct td_dev *dev;
	float *logits;
	int on, rows, vocab;
};
static struct seen seen[2];

struct sums {
	long rows, among[BEST], prompts, equal, tokens;
	long cycles[2][2], accepted[2][2]; /* of both forms: of all answers, of those that are equal */
	double kl, kl_most;
};

static void probe(void *ctx, const char *what, int index, struct td_tensor t)
{
	struct seen *s = ctx;
	struct td_error err;

	(void)index;
	if (!s->on || strcmp(what, "logits") || s->rows + t.rows > CONTEXT)
		return;
	for (int r = 0; r < t.rows; r++)
		if (s->ops->download(s->dev, s->logits + (size_t)(s->rows + r) * (size_t)s->vocab, td_rows(t, r, 1).data, sizeof(float) * (size_t)s->vocab, &err)) {
			fprintf(stderr, "%s\n", err.text);
			exit(1);
		}
	s->rows += t.rows;
}

static void run(struct pair *p, struct pair_request *r, const int32_t *ids, int n, int more, int k)
{
	*r = (struct pair_request){ .ids = ids, .n_ids = n, .n_prompt = n, .max_total = n + more, .k = k, .stop_at_eos = 1 };
	pair_greedy(&r->sampling);
	r->out = calloc((size_t)more + TD_BLOCK_MAX, sizeof(*r->out));
	pair_run(p, r, 1, NULL);
}

static double log_sum(const float *x, int n)
{
	double most = x[0], s = 0;

	for (int i = 1; i < n; i++)
		most = x[i] > most ? x[i] : most;
	for (int i = 0; i < n; i++)
		s += exp(x[i] - most);
	return most + log(s);
}

static void compare(const float *a, const float *b, int n, struct sums *s)
{
	double za = log_sum(a, n), zb = log_sum(b, n), kl = 0;
	int top = 0, before = 0;

	for (int i = 1; i < n; i++)
		top = a[i] > a[top] ? i : top;
	for (int i = 0; i < n; i++) {
		before += b[i] > b[top];
		kl += exp(a[i] - za) * ((a[i] - za) - (b[i] - zb));
	}
	for (int i = 0; i < BEST; i++)
		s->among[i] += before < best[i];
	s->kl += kl;
	s->kl_most = kl > s->kl_most ? kl : s->kl_most;
	s->rows++;
}

static void prompt(const struct td_ids *ids, struct sums *s)
{
	struct pair_request a, b, again[2];
	int n, same;
	int32_t *all;

	run(&exact, &a, ids->id, (int)ids->n, suite.tokens, TD_DRAFT_MAX);
	run(&quick, &b, ids->id, (int)ids->n, suite.tokens, TD_DRAFT_MAX);
	same = a.n_out == b.n_out && !memcmp(a.out, b.out, sizeof(*a.out) * (size_t)a.n_out);
	s->prompts++;
	s->equal += same;
	s->tokens += a.n_out;
	for (int e = 0; e <= same; e++) {
		s->cycles[0][e] += a.cycles;
		s->cycles[1][e] += b.cycles;
		s->accepted[0][e] += a.accepted;
		s->accepted[1][e] += b.accepted;
	}
	n = (int)ids->n + a.n_out;
	all = malloc(sizeof(*all) * (size_t)n);
	memcpy(all, ids->id, sizeof(*all) * ids->n);
	memcpy(all + ids->n, a.out, sizeof(*all) * (size_t)a.n_out);
	for (int i = 0; i < 2; i++) {
		seen[i].on = 1;
		seen[i].rows = 0;
		run(i ? &quick : &exact, &again[i], all, n, 1, 0);
		seen[i].on = 0;
		free(again[i].out);
	}
	for (int r = (int)ids->n - 1; r < n - 1; r++)
		compare(seen[0].logits + (size_t)r * (size_t)seen[0].vocab, seen[1].logits + (size_t)r * (size_t)seen[1].vocab, seen[0].vocab, s);
	free(all);
	free(a.out);
	free(b.out);
}

static void open_pair(struct pair *p, struct pair_options *o, struct seen *s)
{
	o->slots = 1;
	o->context = CONTEXT;
	o->chunk = 1024;
	o->target_probe = probe;
	o->probe_ctx = s;
	pair_open(p, o);
	*s = (struct seen){ .ops = p->ops, .dev = p->dev, .vocab = p->tw->cfg.vocab };
	s->logits = malloc(sizeof(float) * CONTEXT * (size_t)s->vocab);
	if (!s->logits)
		exit(1);
}

static double acceptance(const struct sums *s, int form, int equal)
{
	long cycles = s->cycles[form][equal];

	return cycles ? (double)(s->accepted[form][equal] + cycles) / (double)cycles : 0;
}

static void report(const char *name, const struct sums *s)
{
	printf("%s: %ld prompts, %ld tokens; likeliest token the same %.2f %%", name, s->prompts, s->tokens, 100.0 * (double)s->among[0] / (double)s->rows);
	for (int i = 1; i < BEST; i++)
		printf(", in the best %d %.2f", best[i], 100.0 * (double)s->among[i] / (double)s->rows);
	printf("; KL %.5f (most %.3f); answers equal %ld; acceptance length %.3f, other form %.3f; of equal answers %.3f, %.3f\n", s->kl / (double)s->rows, s->kl_most,
	       s->equal, acceptance(s, 0, 0), acceptance(s, 1, 0), acceptance(s, 0, 1), acceptance(s, 1, 1));
	fflush(stdout);
}

static void prompt_file(void *ctx, const char *name, const struct prompts *p)
{
	struct sums s = { 0 };
	int *bad = ctx;

	for (int i = 0; i < p->n; i++)
		prompt(&p->ids[i], &s);
	report(name, &s);
	*bad |= !s.rows || (suite.kl && !(s.kl / (double)s.rows <= atof(suite.kl)));
}

int main(int argc, char **argv)
{
	int n = 1, bad = 0;

	while (n < argc && strcmp(argv[n], "--"))
		n++;
	if (n == argc) {
		fprintf(stderr, "form_check [OPTION ...] -- [OPTION ...] [PROMPTS.json ...]\n");
		return 2;
	}
	suite_open(&exactly, n, argv);
	suite_open(&suite, argc - n, argv + n);
	open_pair(&exact, &exactly.o, &seen[0]);
	open_pair(&quick, &suite.o, &seen[1]);
	suite_each(&suite, prompt_file, &bad);
	pair_close(&exact);
	pair_close(&quick);
	suite_close(&exactly);
	suite_close(&suite);
	return bad;
}
