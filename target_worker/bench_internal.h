/*
 * bench_internal.h: what the files of `tandem-target bench-ops` share (bench.h).
 *
 *   bench.c          roofs, order, the report
 *   bench_measure.c  memory of random contents, and the time of a call
 *   bench_target.c   the target's operations at its shapes
 *   bench_draft.c    the drafter's
 *
 * An operation is measured by filling a struct bench__work with what it works on and handing a function that makes one call. The first error stays in
 * `err`; nothing is measured after it, so that callers need not look after every line.
 */
#ifndef TD_TARGET_BENCH_INTERNAL_H
#define TD_TARGET_BENCH_INTERNAL_H

#include "engine/model.h"

enum { TD__COPIES_MAX = 32, TD__STATES_MAX = 96, TD__CACHES_MAX = 24, TD__REPLAYED = 6, TD__RESULTS_MAX = 128 };
#define TD__COLD_BYTES ((size_t)192 << 20) /* what comes in turn: more than a cache holds */

struct td__result {
	char name[32], shape[48];
	int rows, cold; /* cold: what moved came from memory for sure, not from a cache */
	double bytes, flops, us;
};

struct td__bench {
	const struct td_ops *ops;
	struct td_dev *dev;
	struct td_target_config cfg;
	struct td_drafter_config draft;
	int context, ms, chunk; /* chunk: rows of a prefill step */
	int act8; /* of maps in 4 bits */
	uint32_t random, steps; /* steps: numbers of recorded ones */
	struct td__result result[TD__RESULTS_MAX];
	int n;
	double bandwidth, arithmetic; /* roofs measured without our kernels, per microsecond; 0: none was */
	struct td_error err;
};

/* What an operation works on; each uses some of it. */
struct td__work {
	struct td_linear w[TD__COPIES_MAX];
	int copies, turn;
	struct td_tensor x, y, z, table;
	struct td_batch batch;
	struct td_seq seq;
	struct td_attn attn;
	struct td_kv kv[TD__CACHES_MAX];
	struct td_gdn gdn;
	struct td_gdn_state state[TD__STATES_MAX];
	const float *norm;
	int32_t *ids, *anchor;
	uint16_t *counts;
	struct td_sampling *sampling;
	struct td_draft *draft;
	struct td_verdict *verdict;
	void *held[96]; /* freed at the end */
	int n_held;
};

typedef void td__bench_op(struct td__bench *b, struct td__work *w);

/* bench_measure.c */
void *td__bench_device(struct td__bench *b, struct td__work *w, size_t bytes); /* zeroed */
void td__bench_release(struct td__bench *b, struct td__work *w);
struct td_tensor td__bench_tensor(struct td__bench *b, struct td__work *w, enum td_dtype type, int rows, int cols);
struct td_tensor td__bench_rows(struct td__bench *b, struct td__work *w, enum td_dtype type, int rows, int cols); /* memory of a whole block at least */
const float *td__bench_floats(struct td__bench *b, struct td__work *w, int n);
/* One sequence whose last row is at the end of the context. */
void td__bench_batch(struct td__bench *b, struct td__work *w, int rows, int replay);
/* Keys and values of the whole context, pages in no order; several of them in turn (copies). */
void td__bench_cache(struct td__bench *b, struct td__work *w, int kv_cols);
double td__bench_measure(struct td__bench *b, td__bench_op *op, struct td__work *w); /* microseconds; 0 after a failure */
void td__bench_note(struct td__bench *b, const char *name, int rows, const char *shape, double bytes, double flops, double us, int cold);
/* Several copies of one map of random weights, which td__bench_op_linear takes in turn. */
void td__bench_pack(struct td__bench *b, struct td__work *w, const struct td_linear *shape);
void td__bench_op_linear(struct td__bench *b, struct td__work *w);
/* A map of these shapes for each number of rows that is not 0. */
void td__bench_linear(struct td__bench *b, const char *name, const struct td_linear *shape, const int rows[3], int logits);

/* Of every map of the target as it is loaded, one layer after the other, the head last; kind, in, out, group, act8. Returns how many, at most `max`. */
int td__bench_shapes(const struct td__bench *b, struct td_linear *shape, int max);
/* bench_target.c, bench_draft.c */
void td__bench_target(struct td__bench *b);
void td__bench_draft(struct td__bench *b);

#endif
