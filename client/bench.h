/*
 * bench.h: inside `tandem bench`: asking, comparing, telling.
 *
 *   cmd_bench.c     options, prompt files, the order of things
 *   bench_ask.c     rounds of prompts over several connections, and what they cost
 *   bench_report.c  medians, tables, JSON
 *   bench_count.c   the answers' tokens, counted (--count)
 *   bench_daemon.c  a daemon of our own in a temporary folder (--model)
 *
 * A round is one prompt per connection, all at once. Each round is asked with speculation and without, in alternating order, so that whatever drifts
 * (clock, heat, other load) meets both. Token ids are compared, not text.
 */
#ifndef TD_BENCH_H
#define TD_BENCH_H

#include <signal.h>

#include "client/command.h"

struct td_bench_answer {
	int32_t *id;
	size_t n, size;
	struct tandem_finish finish;
	struct tandem_error error; /* code 0: it ended well */
	uint64_t asked_us, first_us, end_us; /* by our clock */
	int done;
};

/* Sums over rounds. The workers' times are differences of the daemon's status, so they are right only while nobody else uses it. */
struct td_bench_cost {
	uint64_t wall_us, tokens; /* of whole rounds */
	uint64_t window_us; /* from the first delta to the end, added up over answers */
	uint64_t cycles, steps; /* of requests; of the target (a step serves all slots) */
	uint64_t draft_us, verify_us, commit_us, wait_us, daemon_us; /* wait_us: the target's, for the drafter */
	uint64_t prefill_tokens, prefill_us;
};

struct td_bench_count { /* zeroed = empty */
	uint64_t *of; /* (size) by id */
	uint64_t all;
	size_t size, different;
};

enum { TD_BENCH_AUTO = -1 }; /* drafts: the daemon's choice */

struct td_bench {
	struct td_common common;
	int32_t max_tokens, draft_tokens;
	uint32_t clients, limit;
	enum tandem_thinking thinking;
	int assumes; /* the daemon is ours and obeys seeds: so many tenths of a token a step (kernels/assume.h) */
	struct tandem **t; /* (clients), for the prompts */
	struct tandem *control; /* for the status */
	char *server, *model;
	struct td_bench_count count;
	int code; /* exit code once something failed */
};

struct td_bench_file {
	const char *name;
	const char *const *prompt;
	size_t n;
	struct td_bench_answer *answer[2]; /* (n): with speculation, without; freed by td_bench_file_finish */
	struct td_bench_cost cost[2];
	int32_t drafts; /* asked for with speculation */
};

struct td_bench_difference {
	size_t count; /* prompts whose answers differ */
	size_t compared;
	size_t prompt, place; /* of the first */
	int32_t with, without; /* token ids there, -1 = the answer had ended */
};

/* bench_ask.c. Non-zero: stop, b->code says how (it has been told). */
int td_bench_open(struct td_bench *b);
void td_bench_close(struct td_bench *b);
int td_bench_round(struct td_bench *b, const struct td_bench_file *f, size_t from, size_t n, int without, struct td_bench_cost *cost);
int td_bench_file_start(struct td_bench *b, struct td_bench_file *f);
void td_bench_file_finish(struct td_bench_file *f);
const struct tandem_worker_status *td_bench_worker(const struct tandem_status *s, const char *role); /* zeros when there is none */
extern volatile sig_atomic_t td_bench_interrupted;
void td_bench_catch_interrupt(void);

/* bench_report.c */
void td_bench_compare(const struct td_bench_file *f, struct td_bench_difference *d);
void td_bench_report(const struct td_bench *b, const struct td_bench_file *f);
json_t *td_bench_report_json(const struct td_bench *b, const struct td_bench_file *f);
double td_bench_acceptance(const struct td_bench_file *f); /* of all prompts together */

/* bench_count.c */
int td_bench_count_add(struct td_bench_count *c, const struct td_bench_answer *a); /* -1: no memory */
/* The `want` most frequent (0: all that were seen), as a list for model.draft_vocabulary. 0, or -1 after telling why. */
int td_bench_count_write(const struct td_bench_count *c, const char *path, size_t want, const char *model);
void td_bench_count_finish(struct td_bench_count *c);

/* bench_daemon.c */
struct td_bench_daemon {
	int pid; /* 0 = none */
	char dir[64], socket[96];
};
struct td_bench_daemon_how {
	const char *model, *drafter, *device; /* model: a folder or synthetic:NAME, which brings its drafter along; drafter NULL = none, else its own */
	const char *weights; /* of model.weights; NULL = the daemon's choice */
	const char *widths; /* of engine.widths; NULL = the daemon's choice */
	const char *tokenizer; /* of model.tokenizer; NULL = the daemon's choice */
	const char *draft_vocabulary; /* of model.draft_vocabulary; NULL = the daemon's choice */
	const char *activations; /* of model.activations; NULL = the daemon's choice */
	uint32_t slots, context; /* context 0: the daemon's choice */
	uint32_t share; /* percent of a GPU's multiprocessors for each worker; 0: all */
	int assume; /* with the lever target.assume, which random weights alone may have */
};
int td_bench_synthetic(const char *model);
/* 0 once it is ready; else it has been told why not. Stop it in both cases. */
int td_bench_daemon_start(struct td_bench_daemon *d, const struct td_bench_daemon_how *how);
void td_bench_daemon_stop(struct td_bench_daemon *d);

#endif
