/*
 * cpu.h: what the files of the CPU backend share: the device, its pool of threads, per-thread scratch, and a few lines of arithmetic.
 *
 * Operations run at once, in the caller's thread and the pool's; when a call returns its result is in memory, so `sync` only reports the first
 * error. One device belongs to one thread: calls on it never overlap.
 *
 * Numbers. Everything is float32. Each row's sums run in an order that depends on nothing but the operation's shape (lanes k % 8, then a fixed
 * tree; pages and chunks cut at absolute positions), which makes every operation row-invariant by construction and not by luck. Hot loops are
 * written on vectors of eight floats and compiled twice, for plain x86-64 (or whatever the target is) and for AVX2 + FMA; a process uses one
 * of the two throughout.
 *
 * What must never happen: an index out of a caller's array because of a number in device memory (a NaN logit, a wrong token id).
 */
#ifndef TD_CPU_H
#define TD_CPU_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

/* ---- device ----------------------------------------------------------------------------------------------------------------------- */

enum {
	TD__CHUNK = 64, /* tokens of a chunk of the delta rule */
	TD__HEAD_MAX = 256, /* head_dim, k_dim, v_dim */
};

typedef void td__work(void *job, int item, int thread);

struct td__pool;
struct td__pool *td__pool_create(int threads); /* NULL: no memory or no threads */
void td__pool_destroy(struct td__pool *pool);
/* Calls work(job, i, thread) once for each i in [0, items), `grain` neighbours at a time; returns when all are done. */
void td__pool_run(struct td__pool *pool, int items, int grain, td__work *work, void *job);

struct td__scratch {
	void *mem;
	size_t size;
};

struct td_dev {
	int threads, slots;
	struct td__pool *pool;
	struct td__scratch *scratch; /* (threads) */
	struct td__scratch rounded; /* linear.c: the rows of a call, rounded, for all threads */
	struct td_seq *seqs; /* (TD_BATCHES, slots) */
	unsigned batches; /* calls of batch_set */
	uint64_t mark[TD_MARKS]; /* us */
	struct td_error sticky; /* first error */
};

/* Keeps the first error, for sync and download. */
void td__fail(struct td_dev *dev, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Room of at least `bytes`, kept from call to call: in one place, NULL after td__fail; for every thread, 0, or -1 after td__fail. */
void *td__room(struct td_dev *dev, struct td__scratch *s, size_t bytes);
int td__scratch_need(struct td_dev *dev, size_t bytes);
static inline void td__parallel(struct td_dev *dev, int items, int grain, td__work *work, void *job)
{
	td__pool_run(dev->pool, items, grain, work, job);
}
/* The sequence that owns row r of the batch; NULL when none does. */
static inline const struct td_seq *td__seq_of(const struct td_batch *b, int r)
{
	for (int i = 0; i < b->n_seq; i++)
		if (r >= b->dev[i].row0 && r < b->dev[i].row0 + b->dev[i].rows)
			return &b->dev[i];
	return NULL;
}
static inline float *td__row(const struct td_tensor *t, int r)
{
	return (float *)t->data + (size_t)r * (size_t)t->ld;
}

/* ---- operations ------------------------------------------------------------------------------------------------------------------- */

int td__device_open(struct td_dev **dev, const struct td_dev_options *opt, struct td_error *err);
void td__device_close(struct td_dev *dev);
int td__device_sync(struct td_dev *dev, struct td_error *err);
void td__device_describe(struct td_dev *dev, char *text, size_t size);
int td__arena_create(struct td_dev *, size_t size, struct td_arena *out, struct td_error *);
int td__arena_import(struct td_dev *, int fd, size_t size, int read_only, struct td_arena *out, struct td_error *);
void td__arena_release(struct td_dev *, struct td_arena *);
void *td__alloc(struct td_dev *, size_t bytes, struct td_error *);
void td__free(struct td_dev *, void *);
void td__upload(struct td_dev *, void *dst, const void *src, size_t bytes);
int td__download(struct td_dev *, void *dst, const void *src, size_t bytes, struct td_error *);
void td__zero(struct td_dev *, void *dst, size_t bytes);
int td__memory(struct td_dev *, uint64_t *free_bytes, uint64_t *total_bytes, struct td_error *);
int td__checksum(struct td_dev *, const void *src, size_t bytes, uint64_t *out, struct td_error *);
void td__batch_set(struct td_dev *, struct td_batch *b);
int td__replay(struct td_dev *, const struct td_replay *r);
void td__replay_end(struct td_dev *);
void td__mark(struct td_dev *, int i);
double td__elapsed_us(struct td_dev *, int from, int to);

size_t td__pack_bytes(enum td_weight_kind kind, int out, int in, int group);
int td__pack(struct td_dev *, const struct td_linear *w, const struct td_linear_part *part, int n_part, struct td_error *);
void td__pack_rows(struct td_dev *, const struct td_linear *from, const int32_t *id, const struct td_linear *w);
void td__linear(struct td_dev *, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate);

void td__rms_norm(struct td_dev *, struct td_tensor x, const float *w, float eps, int zero_centred, struct td_tensor y);
void td__swiglu(struct td_dev *, struct td_tensor x, struct td_tensor y);
void td__linear2(struct td_dev *, struct td_tensor x, const struct td_linear *w0, struct td_tensor y0, const struct td_linear *w1, struct td_tensor y1);
void td__linear_swiglu(struct td_dev *, struct td_tensor x, const struct td_linear *w, struct td_tensor both, struct td_tensor y);

void td__embed(struct td_dev *, struct td_tensor table, const int32_t *ids, struct td_tensor out);
void td__copy(struct td_dev *, struct td_tensor src, struct td_tensor dst);
void td__rows_last(struct td_dev *, const struct td_batch *b, struct td_tensor x, struct td_tensor y);
void td__rows_tail(struct td_dev *, const struct td_batch *b, struct td_tensor x, struct td_tensor y);
void td__verify_ids(struct td_dev *, const struct td_batch *b, const int32_t *anchor, const struct td_draft *draft, int32_t *ids);
void td__mask_ids(struct td_dev *, const struct td_batch *b, const int32_t *anchor, int32_t mask_id, int32_t *ids);
void td__counts_reset(struct td_dev *, uint16_t *counts, int vocab, const int32_t *ids, int n);
void td__counts_add(struct td_dev *, uint16_t *counts, const int32_t *ids, int n);
void td__count_token(uint16_t *count); /* one more time in the output; stays at its largest value */

void td__gdn(struct td_dev *, const struct td_gdn *w, const struct td_gdn_state *st, const struct td_batch *b, struct td_tensor qkvz, struct td_tensor ba,
	     struct td_tensor out);

void td__attention(struct td_dev *, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv, struct td_tensor out);
void td__draft_context(struct td_dev *, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor kvrow);
void td__draft_attention(struct td_dev *, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv, struct td_tensor out);

void td__propose(struct td_dev *, const struct td_batch *b, struct td_tensor logits, const struct td_columns *of, int vocab_real,
		 const struct td_sampling *sampling, const uint16_t *counts, struct td_draft *draft);
void td__accept(struct td_dev *, const struct td_batch *b, struct td_tensor logits, int vocab_real, const struct td_sampling *sampling,
		const struct td_draft *draft, uint16_t *counts, int32_t *anchor, struct td_verdict *verdict);
void td__mask(struct td_dev *, struct td_tensor logits, const uint32_t *line, int n);
void td__rescore(struct td_dev *, struct td_tensor x, struct td_tensor table, struct td_tensor logits, const struct td_columns *of, int vocab);
void td__assume(struct td_dev *, const struct td_batch *b, struct td_tensor logits, const struct td_draft *draft, const struct td_sampling *sampling);

/* ---- arithmetic ------------------------------------------------------------------------------------------------------------------- */

#define TD__INLINE static inline __attribute__((always_inline))

/*
 * TD__DISPATCH(name, (parameters), (arguments)) makes `name` from an always-inline `name##_body`: once for the plain target, once for AVX2 + FMA,
 * chosen by the processor at run time.
 */
#if defined(__x86_64__)
TD__INLINE int td__has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#define TD__DISPATCH(name, params, args) \
	__attribute__((target("avx2,fma"), noinline)) static void name##_avx2 params \
	{ \
		name##_body args; \
	} \
	static void name params \
	{ \
		if (td__has_avx2()) \
			name##_avx2 args; \
		else \
			name##_body args; \
	}
#else
#define TD__DISPATCH(name, params, args) \
	static void name params \
	{ \
		name##_body args; \
	}
#endif

typedef float td__v8 __attribute__((vector_size(32)));
typedef float td__v8_any __attribute__((vector_size(32), aligned(4), may_alias)); /* loads and stores at any address of floats */

/* Sum of the eight lanes, always in this order. */
TD__INLINE float td__lanes(const td__v8 *v)
{
	const float *s = (const float *)v;

	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* The same of four vectors side by side: halves added, then a transposition instead of four chains of single additions. */
TD__INLINE void td__lanes4(const td__v8 *v, float *sum)
{
	typedef float v4 __attribute__((vector_size(16), may_alias));
	v4 t[4], a, b, c, d;

	for (int i = 0; i < 4; i++)
		t[i] = ((const v4 *)&v[i])[0] + ((const v4 *)&v[i])[1];
	a = __builtin_shufflevector(t[0], t[1], 0, 4, 1, 5);
	b = __builtin_shufflevector(t[2], t[3], 0, 4, 1, 5);
	c = __builtin_shufflevector(t[0], t[1], 2, 6, 3, 7);
	d = __builtin_shufflevector(t[2], t[3], 2, 6, 3, 7);
	t[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 0, 1, 4, 5);
	t[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
	t[0] += t[1];
	memcpy(sum, &t[0], sizeof(t[0]));
}

TD__INLINE float td__dot(const float *a, const float *b, int n)
{
	td__v8 s0 = { 0 }, s1 = { 0 };
	float rest = 0;
	int i = 0;

	for (; i + 16 <= n; i += 16) {
		s0 += *(const td__v8_any *)(a + i) * *(const td__v8_any *)(b + i);
		s1 += *(const td__v8_any *)(a + i + 8) * *(const td__v8_any *)(b + i + 8);
	}
	for (; i < n; i++)
		rest += a[i] * b[i];
	s0 += s1;
	return td__lanes(&s0) + rest;
}

/* td__dot of a with four rows of b (4, n), bit for bit. */
TD__INLINE void td__dot4(const float *a, const float *b, int n, float *dot)
{
	td__v8 s0[4] = { 0 }, s1[4] = { 0 };
	float rest[4] = { 0 };
	int i = 0;

	for (; i + 16 <= n; i += 16) {
		td__v8 x0 = *(const td__v8_any *)(a + i), x1 = *(const td__v8_any *)(a + i + 8);

		for (int r = 0; r < 4; r++) {
			s0[r] += x0 * *(const td__v8_any *)(b + (size_t)r * (size_t)n + i);
			s1[r] += x1 * *(const td__v8_any *)(b + (size_t)r * (size_t)n + i + 8);
		}
	}
	for (; i < n; i++)
		for (int r = 0; r < 4; r++)
			rest[r] += a[i] * b[(size_t)r * (size_t)n + i];
	for (int r = 0; r < 4; r++)
		s0[r] += s1[r];
	td__lanes4(s0, dot);
	for (int r = 0; r < 4; r++)
		dot[r] += rest[r];
}

/*
 * e^x to about one unit in the last place, in plain arithmetic, so that loops over it become vector code (a libm call would not). Below -87 it
 * stays at e^-87 = 1e-38: no denormals, and nothing here can tell it from 0.
 */
TD__INLINE float td__exp(float x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
	union {
		float f;
		uint32_t u;
	} n, y;
	float k, r, p;

	x = x < -87.0f ? -87.0f : x;
	x = x > 88.0f ? 88.0f : x;
	n.f = x * 1.44269504f + magic;
	k = n.f - magic;
	r = x - k * 0.693145752f; /* ln 2 in two parts, the first exact in few bits */
	r = r - k * 1.42860677e-6f;
	p = 1.98412698e-4f;
	p = p * r + 1.38888889e-3f;
	p = p * r + 8.33333333e-3f;
	p = p * r + 4.16666667e-2f;
	p = p * r + 1.66666667e-1f;
	p = p * r + 0.5f;
	y.f = (p * r) * r + r + 1.0f;
	y.u += n.u << 23;
	return y.f;
}

TD__INLINE float td__sigmoid(float x)
{
	return 1.0f / (1.0f + td__exp(-x));
}

TD__INLINE float td__from_bf16(uint16_t h)
{
	union {
		uint32_t u;
		float f;
	} v = { .u = (uint32_t)h << 16 };

	return v.f;
}

#endif
