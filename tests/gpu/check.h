/*
 * check.h: what the files of ops_check share: two sides (the CPU implementation, and the backend under test), random data, comparison.
 *
 * A case makes the same inputs for both sides (values that bf16 holds exactly), poisons the outputs, runs both, and prints one line with the relative
 * error ||a - b|| / ||b|| and what is allowed. NaN never passes. Device memory of a case is freed by drop_all.
 */
#ifndef TD_TESTS_GPU_CHECK_H
#define TD_TESTS_GPU_CHECK_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bf16.h"
#include "kernels/kernels.h"

struct side {
	const struct td_ops *ops;
	struct td_dev *dev;
};
extern struct side ref, dut; /* reference, device under test */
extern int self; /* both are the CPU: the test tests itself */
extern int small; /* a few sizes of each operation: the device is emulated, slow, and has done everything when a call returns */
extern int brief; /* with `small`: each kernel once or twice, for a checker that slows it down a thousand times */

/* Allowed errors when the output is rounded to bf16 (2^-9 at most, about 1.1e-3 in the mean), by kind of operation. */
#define TOL_ROUND (self ? 1e-5 : 3e-3)
#define TOL_CHAIN (self ? 1e-5 : 6e-3) /* several roundings in a row */
#define TOL_FLOAT (self ? 1e-5 : 2e-5) /* float32 output of exact inputs */
#define TOL_EIGHT (self ? 1e-5 : 1.2e-2) /* activations as they are against those in 8 bits */

void die(const char *what, const struct td_error *err) __attribute__((noreturn));
void line(const char *op, const char *shape, double error, double allowed);
void verdict_bool(const char *op, const char *shape, int ok); /* error 0 or 1 against 0 */

uint64_t rnd(void);
float rnd_uniform(void); /* [0, 1) */
float rnd_normal(void);
float to_bf16(float v); /* rounded to nearest even */
/* n random normal values times `scale`, rounded to bf16; freed by drop_all */
float *random_values(size_t n, float scale);
void *host(size_t bytes); /* zeroed; freed by drop_all */

void *put(struct side *s, const void *data, size_t bytes); /* NULL: zeroes */
void *poisoned(struct side *s, size_t bytes); /* all bits set: NaN */
struct td_tensor put_act(struct side *s, const float *v, int rows, int cols, int ld);
struct td_tensor put_f32(struct side *s, const float *v, int rows, int cols, int ld);
struct td_tensor new_act(struct side *s, int rows, int cols, int ld);
struct td_tensor new_f32(struct side *s, int rows, int cols, int ld);
void get(struct side *s, void *to, const void *from, size_t bytes);
float *get_values(struct side *s, struct td_tensor t); /* (rows, cols) as float; freed by drop_all */
float *get_act_array(struct side *s, const void *p, size_t n);
double relative(const float *a, const float *b, size_t n); /* ||a - b|| / ||b|| */
int same_bits(const float *a, const float *b, size_t n);
void drop_all(void);

void make_batch(struct side *s, struct td_batch *b, const struct td_seq *seq, int n); /* seq must live on; row0 as given */
/* Random weights of a map on both sides, `n_part` parts. */
void make_linear(enum td_weight_kind kind, int out, int in, int group, int n_part, struct td_linear *r, struct td_linear *d);

void check_linear(void);
void check_rows(void);
void check_gdn(void);
void check_attention(void);
void check_draft(void);
void check_sample(void);
void check_device(void);
void check_replay(void);
void check_bench(void);
void measure(const char *only);

#endif
