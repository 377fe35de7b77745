/*
 * test_lossless.c: what speculation, batching, chunking and a crash must not change: the output, token for token.
 *
 *   test_lossless [--device D] [--target DIR --drafter DIR --tokenizer FILE] [--weights file|bf16] [--head int4|bf16|rescored]
 *                 [--activations int8] [--limit N] [--tokens M] [PROMPTS.json ...]
 *
 * Without arguments: the tiny pair and our own prompts. Properties, each against plain decoding of the same prompt alone (K = 0):
 * speculation with K of 1, 4, 7, 15; eight requests in one batch; prefill in chunks of 64 (on a GPU 256); a second life that is fed what a first one committed;
 * drafts from some tokens only; and, with sampling, that a seed gives the same tokens again. No memory is taken from the device meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

enum { SLOTS = 8, CONTEXT = 2048 };

static struct pair pair, chunked;
static struct suite suite = {.tokens = 48};
static int failures, checks, chunk;

static void differ(const char *what, int prompt, const struct pair_request *want, const struct pair_request *got)
{
	int i = 0;

	checks++;
	while (i < want->n_out && i < got->n_out && want->out[i] == got->out[i])
		i++;
	if (want->n_out == got->n_out && i == want->n_out && want->finish == got->finish)
		return;
	failures++;
	printf("%s: prompt %d differs at output token %d of %d/%d: %d, plain decoding has %d (finish %d, %d)\n", what, prompt, i, got->n_out, want->n_out,
	       i < got->n_out ? got->out[i] : -1, i < want->n_out ? want->out[i] : -1, got->finish, want->finish);
}

static void request(struct pair_request *r, const struct td_ids *ids, int k)
{
	memset(r, 0, sizeof(*r));
	r->ids = ids->id;
	r->n_ids = r->n_prompt = (int)ids->n;
	r->max_total = r->n_ids + suite.tokens;
	r->k = k;
	r->stop_at_eos = 1;
	pair_greedy(&r->sampling);
	r->out = calloc((size_t)suite.tokens + TD_BLOCK_MAX, sizeof(*r->out));
}

static void run_one(struct pair *p, struct pair_request *r, const struct td_ids *ids, int k)
{
	request(r, ids, k);
	pair_run(p, r, 1, NULL);
}

static void speculation(const struct prompts *p, const struct pair_request *plain)
{
	static const int widths[] = {1, 4, 7, 15};

	for (int w = 0; w < 4; w++) {
		long drafted = 0, accepted = 0, cycles = 0;
		char what[32];

		snprintf(what, sizeof(what), "speculation K=%d", widths[w]);
		for (int i = 0; i < p->n; i++) {
			struct pair_request r;

			run_one(&pair, &r, &p->ids[i], widths[w]);
			differ(what, i, &plain[i], &r);
			drafted += r.drafted;
			accepted += r.accepted;
			cycles += r.cycles;
			free(r.out);
		}
		printf("K=%-2d acceptance length %.3f over %ld cycles, %.1f %% of drafts accepted\n", widths[w], (double)(accepted + cycles) / (double)cycles, cycles,
		       100.0 * (double)accepted / (double)drafted);
	}
}

/* Returns drafts accepted. */
static long batch(struct pair *of, const char *what, const struct prompts *p, const struct pair_request *plain, const struct pair_hooks *hooks)
{
	static const int widths[SLOTS] = {15, 0, 7, 4, 15, 1, 15, 3};
	long accepted = 0;

	for (int first = 0; first < p->n; first += SLOTS) {
		int n = p->n - first < SLOTS ? p->n - first : SLOTS;
		struct pair_request r[SLOTS];

		for (int i = 0; i < n; i++)
			request(&r[i], &p->ids[first + i], widths[i]);
		pair_run(of, r, n, hooks);
		for (int i = 0; i < n; i++) {
			differ(what, first + i, &plain[first + i], &r[i]);
			accepted += r[i].accepted;
			free(r[i].out);
		}
	}
	return accepted;
}

/* Feeds the prompt and the first `cut` committed tokens, as tandemd does after a crash. */
static void second_life(const struct prompts *p, const struct pair_request *plain)
{
	for (int i = 0; i < p->n; i++) {
		int cut = 1 + i * 7 % (plain[i].n_out > 1 ? plain[i].n_out - 1 : 1);
		struct td_ids ids = {0};
		struct pair_request r, rest = plain[i];

		if (plain[i].n_out < 2)
			continue;
		ids.id = calloc(p->ids[i].n + (size_t)cut, sizeof(*ids.id));
		memcpy(ids.id, p->ids[i].id, sizeof(*ids.id) * p->ids[i].n);
		memcpy(ids.id + p->ids[i].n, plain[i].out, sizeof(*ids.id) * (size_t)cut);
		ids.n = p->ids[i].n + (size_t)cut;
		request(&r, &ids, i % 2 ? 15 : 4);
		r.n_prompt = (int)p->ids[i].n;
		r.max_total = plain[i].max_total;
		pair_run(&pair, &r, 1, NULL);
		rest.out += cut;
		rest.n_out -= cut;
		differ("second life", i, &rest, &r);
		free(r.out);
		td_ids_finish(&ids);
	}
}

static void chunks(const struct td_tokenizer *tok)
{
	for (int n = 60; n <= 700; n += 160) {
		struct td_ids ids;
		struct pair_request whole, parts;
		char what[32];

		prompts_long(&ids, tok, n + 5);
		run_one(&pair, &whole, &ids, 0);
		run_one(&chunked, &parts, &ids, 15);
		snprintf(what, sizeof(what), "chunks of %d", chunk);
		differ(what, n, &whole, &parts);
		free(whole.out);
		free(parts.out);
		td_ids_finish(&ids);
	}
}

/* Long prompts that are prefilled together, in chunks, each against itself alone. */
static void company(const struct td_tokenizer *tok)
{
	static const int length[] = {301, 63, 520, 700, 256};
	enum { N = sizeof(length) / sizeof(length[0]) };
	struct pair_request alone[N], all[N];
	struct td_ids ids[N];

	for (int i = 0; i < N; i++) {
		prompts_long(&ids[i], tok, length[i]);
		run_one(&pair, &alone[i], &ids[i], 0);
		request(&all[i], &ids[i], i % 2 ? 0 : 15);
	}
	for (int p = 0; p < 2; p++) {
		pair_run(p ? &chunked : &pair, all, N, NULL);
		for (int i = 0; i < N; i++)
			differ(p ? "prefilled together, in small chunks" : "prefilled together", i, &alone[i], &all[i]);
	}
	for (int i = 0; i < N; i++) {
		free(alone[i].out);
		free(all[i].out);
		td_ids_finish(&ids[i]);
	}
}

static void seeds(const struct prompts *p)
{
	for (int i = 0; i < p->n && i < 8; i++) {
		struct pair_request a, b;

		request(&a, &p->ids[i], 15);
		a.sampling.temperature = 0.8f;
		a.sampling.seed = 1234u + (unsigned)i;
		b = a;
		b.out = calloc((size_t)suite.tokens + TD_BLOCK_MAX, sizeof(*b.out));
		pair_run(&pair, &a, 1, NULL);
		pair_run(&pair, &b, 1, NULL);
		differ("same seed", i, &a, &b);
		free(a.out);
		free(b.out);
	}
}

struct list {
	int32_t id[1000];
	int n;
	long drafts, off; /* off: that are not listed */
};

static int on_list(const struct list *l, int32_t id)
{
	for (int i = 0; i < l->n; i++)
		if (l->id[i] == id)
			return 1;
	return 0;
}

static void look_at_draft(void *ctx, int slot, const struct td_draft *draft)
{
	struct list *l = ctx;

	(void)slot;
	for (int i = 0; i < draft->n; i++) {
		l->drafts++;
		l->off += !on_list(l, draft->token[i]);
		for (int c = 0; c < draft->n_cand[i]; c++)
			l->off += !on_list(l, draft->cand[i][c]);
	}
}

static int ascending(const void *a, const void *b)
{
	return *(const int32_t *)a - *(const int32_t *)b;
}

/* The answers' first tokens, so that some drafts are right, and others up to n. */
static void make_list(struct list *l, const struct prompts *p, const struct pair_request *plain, int n)
{
	l->n = 0;
	for (int t = 0; t < suite.tokens; t++)
		for (int i = 0; i < p->n; i++)
			if (t < plain[i].n_out && l->n < n * 3 / 4 && !on_list(l, plain[i].out[t]))
				l->id[l->n++] = plain[i].out[t];
	for (int32_t id = 5; l->n < n; id += 7)
		if (!on_list(l, id))
			l->id[l->n++] = id;
	qsort(l->id, (size_t)l->n, sizeof(*l->id), ascending);
}

/* A sampled answer from a list, and again with its seed. */
static void sampled(struct pair *of, const struct td_ids *ids, const struct pair_hooks *hooks)
{
	struct pair_request r, again;

	request(&r, ids, 15);
	r.sampling = (struct td_sampling){.temperature = 0.8f, .top_p = 0.95f, .repetition = 1.1f, .logprobs = -1, .seed = 77};
	again = r;
	again.out = calloc((size_t)suite.tokens + TD_BLOCK_MAX, sizeof(*again.out));
	pair_run(of, &r, 1, hooks);
	pair_run(of, &again, 1, NULL);
	differ("drafts from a list, same seed", 0, &r, &again);
	free(r.out);
	free(again.out);
}

/* Drafts from a list: the same answers; every draft and every candidate of a sampled one is listed. */
static void lists(struct pair_options o, const struct prompts *p, const struct pair_request *plain)
{
	static const int sizes[] = {1000, 64};
	static struct list l;
	const struct pair_hooks look = {.ctx = &l, .draft = look_at_draft};

	for (int k = 0; k < 2; k++) {
		struct pair some;
		long accepted;
		char what[48];

		make_list(&l, p, plain, sizes[k]);
		o.draft_id = l.id;
		o.n_draft_ids = l.n;
		pair_open(&some, &o);
		snprintf(what, sizeof(what), "drafts from %d tokens", l.n);
		l.drafts = l.off = 0;
		accepted = batch(&some, what, p, plain, &look);
		sampled(&some, &p->ids[0], &look);
		checks++;
		failures += l.off || !l.drafts || !accepted;
		printf("%s: of %ld drafts and their candidates %ld are not listed, %ld were accepted\n", what, l.drafts, l.off, accepted);
		pair_close(&some);
	}
}

/* Whatever the sizes, nothing is taken from the device while serving. Called again at the end. */
static void allocations(int end)
{
	static uint64_t before[2];
	struct pair *p[2] = {&pair, &chunked};

	for (int i = 0; i < 2; i++) {
		uint64_t now = pair_allocations(p[i]);

		if (end) {
			checks++;
			failures += now != before[i];
			if (now != before[i])
				printf("%llu allocations on the device while serving\n", (unsigned long long)(now - before[i]));
		}
		before[i] = now;
	}
}

static void prompt_file(void *ctx, const char *name, const struct prompts *p)
{
	const struct pair_options *whole = ctx;
	struct pair_request *plain = calloc((size_t)p->n + 1, sizeof(*plain));

	printf("%s: %d prompts\n", name, p->n);
	for (int i = 0; i < p->n; i++)
		run_one(&pair, &plain[i], &p->ids[i], 0);
	speculation(p, plain);
	batch(&pair, "batch of eight", p, plain, NULL);
	lists(*whole, p, plain);
	second_life(p, plain);
	seeds(p);
	for (int i = 0; i < p->n; i++)
		free(plain[i].out);
	free(plain);
}

int main(int argc, char **argv)
{
	struct pair_options *o = &suite.o, whole;

	suite_open(&suite, argc, argv);
	o->slots = SLOTS;
	o->context = CONTEXT;
	o->chunk = 1024;
	pair_open(&pair, o);
	whole = *o;
	o->chunk = strcmp(o->device, "cpu") ? 256 : 64; /* the least that keeps the bits: CUDA multiplies prompts by blocks of 256 (kernels/cuda/linear.cu) */
	chunk = o->chunk;
	pair_open(&chunked, o);
	allocations(0);
	suite_each(&suite, prompt_file, &whole);
	chunks(suite.tok);
	company(suite.tok);
	allocations(1);
	pair_close(&pair);
	pair_close(&chunked);
	suite_close(&suite);
	printf("%d comparisons, %d differ\n", checks, failures);
	return failures || !checks;
}
