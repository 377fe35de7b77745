/*
 * bench_suite.h: inside `tandem bench SUITE...`: figures of the engine instead of answers to prompts.
 *
 *   bench_suite.c   which suites, on which daemon, in which order
 *   bench_ask_ids.c clients that ask prompts of ids one after the other, and what their clocks saw
 *   bench_ops.c     the suite ops: a worker's own measurement (tandem-target bench-ops), since this program links no kernel
 *   bench_serve.c   the suites cycle, latency and load, through a daemon's socket
 *   bench_summary.c the few figures that the suites come down to
 *   bench_tune.c    cycle times for the choice of drafts, into a file
 *   bench_text.c    tables for people, from the JSON that the suites give
 *   bench_html.c    the same as a page of its own, drawn
 *
 * A suite is a JSON object with its name in "suite"; text and page are made of that alone, so all three forms tell the same figures.
 */
#ifndef TD_BENCH_SUITE_H
#define TD_BENCH_SUITE_H

#include "client/bench.h"

struct td_bench_options {
	struct td_list files;
	const char *model, *drafter, *device, *html, *save, *widths, *tokenizer, *draft_vocabulary, *activations, *count;
	uint32_t runs, warmups, context, requests, max_clients, milliseconds, threads, share, keys, count_size;
	int json, lossless, tune;
};

struct td_bench_series { /* zeroed = empty */
	double *v;
	size_t n, size;
};
/* A sample that finds no memory is left out. */
void td_bench_series_add(struct td_bench_series *s, double v);
double td_bench_series_at(const struct td_bench_series *s, double part); /* 0.5 = the median; 0 when empty */
void td_bench_series_finish(struct td_bench_series *s);

/* `clients` connections, each asking `requests` prompts of `prompt` ids, one after the other; all prompts differ, so that no cache helps. */
struct td_bench_load {
	uint32_t clients, requests, prompt;
	int32_t tokens, drafts; /* TD_BENCH_AUTO: the daemon's choice */
	uint64_t tenths; /* of a token that each step shall commit, where the daemon obeys that; 0: whatever comes */
	struct td_bench_series first, gap, whole, prefill, client_rate; /* milliseconds: to the first token, between tokens, of a request, of its prefill; tokens/s */
	uint64_t cycles, accepted, decode_us, output, window_us; /* window: from the first question to the last end */
};
int td_bench_load_run(struct td_bench *b, struct td_bench_load *l); /* adds to what is there; non-zero: told, b->code says how */
void td_bench_load_finish(struct td_bench_load *l);

/* New references; NULL after telling why (b->code). */
json_t *td_bench_ops(struct td_bench *b, const struct td_bench_options *o, const struct td_bench_daemon *d); /* d: whose slice of the GPU; pid 0: the whole */
json_t *td_bench_cycle(struct td_bench *b, const struct td_bench_options *o);
json_t *td_bench_latency(struct td_bench *b, const struct td_bench_options *o);
json_t *td_bench_load_suite(struct td_bench *b, const struct td_bench_options *o);
void td_bench_latency_means(json_t *latency); /* of the cases' ratios, once all are there */
/* The plain figures of another daemon, beside those of *latency. */
int td_bench_latency_baseline(struct td_bench *b, const struct td_bench_options *o, json_t *latency);

int td_bench_suite_known(const char *name);
int td_bench_tune(struct td_bench *b, const struct td_bench_options *o); /* the exit code */
int td_bench_suites(struct td_bench *b, const struct td_bench_options *o, const struct td_list *words); /* the exit code */

double td_bench_number(const json_t *j, const char *key); /* 0 when not there */
const char *td_bench_string(const json_t *j, const char *key); /* "" when not there */
json_t *td_bench_summary(const json_t *suites); /* what the suites come down to, as one more of them */
void td_bench_text(const json_t *report);
int td_bench_html(const json_t *report, const char *path); /* 0, or -1 after telling why */

#endif
