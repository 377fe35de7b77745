/*
 * prefill_profile.c: where a prompt's time goes, by operation.
 *
 *	prefill_profile [tokens [chunk [device [target drafter]]]]		8192, 2048, cuda, the synthetic 4B pair
 *
 * The prompt is read three times by both engines in one process: to load what is loaded lazily; as ever, for the time of each engine; and with every
 * operation waited for by itself, for its share. Waiting costs some 10 us an operation, so shares of the last run add up to more than the second one took.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drafter_worker/internal.h"
#include "engine/clock.h"
#include "target_worker/internal.h"
#include "tests/lib/pair.h"

enum { LINES = 64 };

static struct line {
	char name[48];
	uint64_t us;
	int calls;
} line[LINES];
static int n_lines;
static const struct td_ops *real;
static uint64_t began;

static void before(struct td_dev *dev)
{
	struct td_error err;

	real->sync(dev, &err);
	began = td_now_us();
}

static void after(struct td_dev *dev, const char *name)
{
	struct td_error err;
	int i = 0;

	if (real->sync(dev, &err)) {
		fprintf(stderr, "%s: %s\n", name, err.text);
		exit(1);
	}
	while (i < n_lines && strcmp(line[i].name, name))
		i++;
	if (i == LINES)
		return;
	if (i == n_lines)
		snprintf(line[n_lines++].name, sizeof(line->name), "%s", name);
	line[i].us += td_now_us() - began;
	line[i].calls++;
}

static void embed(struct td_dev *d, struct td_tensor table, const int32_t *ids, struct td_tensor out)
{
	before(d);
	real->embed(d, table, ids, out);
	after(d, "embed");
}
static void rms_norm(struct td_dev *d, struct td_tensor x, const float *w, float eps, int zero_centred, struct td_tensor y)
{
	before(d);
	real->rms_norm(d, x, w, eps, zero_centred, y);
	after(d, "rms_norm");
}
static void linear(struct td_dev *d, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	char name[48];

	before(d);
	real->linear(d, x, w, y, accumulate);
	snprintf(name, sizeof(name), "linear %d x %d%s", w->out, w->in, x.rows > TD_BLOCK_MAX ? "" : ", few rows");
	after(d, name);
}
static void swiglu(struct td_dev *d, struct td_tensor x, struct td_tensor y)
{
	before(d);
	real->swiglu(d, x, y);
	after(d, "swiglu");
}
static void copy(struct td_dev *d, struct td_tensor src, struct td_tensor dst)
{
	before(d);
	real->copy(d, src, dst);
	after(d, "copy");
}
static void gdn(struct td_dev *d, const struct td_gdn *w, const struct td_gdn_state *st, const struct td_batch *b, struct td_tensor qkvz, struct td_tensor ba,
		struct td_tensor out)
{
	before(d);
	real->gdn(d, w, st, b, qkvz, ba, out);
	after(d, "gdn");
}
static void attention(struct td_dev *d, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv, struct td_tensor out)
{
	before(d);
	real->attention(d, w, kv, b, qkv, out);
	after(d, "attention");
}
static void draft_context(struct td_dev *d, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor kvrow)
{
	before(d);
	real->draft_context(d, w, kv, b, kvrow);
	after(d, "draft_context");
}

static void run(struct pair *p, struct pair_request *r, uint64_t *target_us, uint64_t *drafter_us)
{
	struct td_error err;

	pair_new_epoch(p);
	pair_submit(p, r, 0);
	*target_us = *drafter_us = 0;
	for (;;) {
		uint64_t t = td_now_us();
		int rc = td_target_work(p->target, &err);

		*target_us += td_now_us() - t;
		if (rc < 0 || p->target->slot[0].phase != TD__PREFILL)
			break;
		t = td_now_us();
		td_drafter_work(p->drafter, &err);
		*drafter_us += td_now_us() - t;
	}
}

int main(int argc, char **argv)
{
	int tokens = argc > 1 ? atoi(argv[1]) : 8192, chunk = argc > 2 ? atoi(argv[2]) : 2048;
	struct pair_options o = {.device = argc > 3 ? argv[3] : "cuda", .target_dir = argc > 5 ? argv[4] : "synthetic:qwen3.5-4b",
				 .drafter_dir = argc > 5 ? argv[5] : "synthetic:dflash-4b", .slots = 1, .context = (tokens + 64 + 255) / 256 * 256, .chunk = chunk,
				 .vocab_fd = -1};
	static struct pair p;
	struct td_ops timed;
	int32_t *ids = calloc((size_t)tokens, sizeof(*ids)), out[64];
	struct pair_request r = {.ids = ids, .n_ids = tokens, .n_prompt = tokens, .max_total = tokens + 32, .k = 15, .out = out};
	uint64_t target, drafter;

	for (int i = 0; i < tokens; i++)
		ids[i] = i * 7919 % 8000;
	pair_greedy(&r.sampling);
	pair_open(&p, &o);
	run(&p, &r, &target, &drafter);
	run(&p, &r, &target, &drafter);
	printf("%d tokens in chunks of %d: target %.2f ms, drafter %.2f ms\n", tokens, chunk, (double)target / 1e3, (double)drafter / 1e3);
	real = p.ops;
	timed = *real;
	timed.embed = embed;
	timed.rms_norm = rms_norm;
	timed.linear = linear;
	timed.swiglu = swiglu;
	timed.copy = copy;
	timed.gdn = gdn;
	timed.attention = attention;
	timed.draft_context = draft_context;
	for (int drafts = 0; drafts < 2; drafts++) {
		p.target->ops = drafts ? real : &timed;
		p.drafter->ops = drafts ? &timed : real;
		n_lines = 0;
		memset(line, 0, sizeof(line));
		run(&p, &r, &target, &drafter);
		for (int i = 0; i < n_lines; i++)
			printf("  %-8s %-32s %5d calls %9.2f ms %9.1f us each\n", drafts ? "drafter" : "target", line[i].name, line[i].calls, (double)line[i].us / 1e3,
			       (double)line[i].us / line[i].calls);
	}
	p.target->ops = p.drafter->ops = real;
	pair_close(&p);
	free(ids);
	return 0;
}
