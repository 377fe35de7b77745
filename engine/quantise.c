/*
 * quantise.c: BF16 rows to 4-bit codes at load (quantise.h).
 *
 * A group's values are code * scale, code -8..7. The scale is searched for: the largest magnitude divided by each of a few divisors, with both signs (the
 * side that reaches to 8 is one of them), each rounded to BF16 as it will be stored; the one with the least squared error is then fitted to its codes by
 * least squares, which is kept where it is better. Values that are code * scale already, the largest code being 7 or 8, come out exactly. The plain scale,
 * largest / 7, has half as much squared error again on a normal distribution, and several times as much where single values are far out.
 *
 * Rows are shared out over threads in runs; a row's result depends on that row alone. The arithmetic is in vectors of eight floats in a fixed order, without
 * fused multiply-adds (the Makefile forbids them for this file), so that every processor finds the same bytes: the sums of a kept arena must be those of one
 * that is made again.
 *
 * What must never happen: a value that is not finite. The loader has refused such a file before.
 */
#include "engine/quantise.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "engine/bf16.h"

enum { LANES = 8, THREADS_MAX = 16, RUN = 256 /* rows that a thread takes at a time */ };

typedef float v8 __attribute__((vector_size(4 * LANES)));
typedef int32_t i8 __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

/* Added and taken away again it rounds to whole numbers, ties to even, for magnitudes below 2^22. */
static const float ROUND = 12582912.0f;
/* A group of no larger values becomes zeros: its scale would leave the normal numbers. Others are brought to 1..2 by a power of two, which changes no digit, so
 * that no sum of squares leaves them either. */
static const float NOTHING = 0x1p-100f;
static const float DIVISOR[] = { 7, 7.5f, 8, 8.5f, 9.25f, 10, 11, 13 };
enum { DIVISORS = sizeof(DIVISOR) / sizeof(*DIVISOR) };

INLINE v8 pick(i8 mask, v8 a, v8 b)
{
	return (v8)((mask & (i8)a) | (~mask & (i8)b));
}

/* The code's value, -8..7, of v at a scale whose inverse is `inverse`. */
INLINE v8 code_of(v8 v, float inverse)
{
	v8 q = v * inverse;

	q = pick(q < -8, (v8){ 0 } - 8, q);
	q = pick(q > 7, (v8){ 0 } + 7, q);
	return q + ROUND - ROUND;
}

INLINE float sum(v8 v)
{
	return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

INLINE float error_of(const v8 *v, int n, float scale)
{
	float inverse = 1 / scale;
	v8 e = { 0 };

	for (int i = 0; i < n; i++) {
		v8 d = v[i] - code_of(v[i], inverse) * scale;

		e += d * d;
	}
	return sum(e);
}

/* The scale that fits the codes of `scale` best. */
INLINE float fitted(const v8 *v, int n, float scale)
{
	float inverse = 1 / scale;
	v8 up = { 0 }, down = { 0 };

	for (int i = 0; i < n; i++) {
		v8 q = code_of(v[i], inverse);

		up += v[i] * q;
		down += q * q;
	}
	return sum(up) / sum(down);
}

/* Takes `scale`, rounded, where its error is less. */
INLINE void try(const v8 *v, int n, float scale, float *best, float *least)
{
	float e;

	scale = td_bf16_float(td_bf16(scale));
	e = error_of(v, n, scale);
	if (e < *least) {
		*least = e;
		*best = scale;
	}
}

INLINE float largest(const v8 *v, int n)
{
	v8 m = { 0 };
	float most = 0;

	for (int i = 0; i < n; i++) {
		v8 a = pick(v[i] < 0, -v[i], v[i]);

		m = pick(a > m, a, m);
	}
	for (int i = 0; i < LANES; i++)
		most = m[i] > most ? m[i] : most;
	return most;
}

/* The scale for values whose largest magnitude is `most`, from 1 to 2. */
INLINE float choose(const v8 *v, int n, float most)
{
	float least = __builtin_inff(), best = 0;

	for (int i = 0; i < DIVISORS; i++) {
		try(v, n, most / DIVISOR[i], &best, &least);
		try(v, n, -most / DIVISOR[i], &best, &least);
	}
	if (least > 0)
		try(v, n, fitted(v, n, best), &best, &least);
	return best;
}

INLINE void row_body(const uint16_t *w, int groups, int group, uint32_t *codes, uint16_t *scale)
{
	v8 v[TD_QUANTISE_GROUP / LANES];
	int n = group / LANES;

	for (int g = 0; g < groups; g++, w += group) {
		float most, best = 0, down;
		int e = 0;

		for (int i = 0; i < group; i++)
			v[i / LANES][i % LANES] = td_bf16_float(w[i]);
		most = largest(v, n);
		if (most > NOTHING) {
			frexpf(most, &e);
			down = ldexpf(1, 1 - e);
			for (int i = 0; i < n; i++)
				v[i] *= down;
			best = choose(v, n, most * down);
		}
		scale[g] = td_bf16(ldexpf(best, e - 1));
		for (int i = 0; i < n; i++) {
			v8 q = most > NOTHING ? code_of(v[i], 1 / best) : (v8){ 0 };
			uint32_t word = 0;

			for (int j = 0; j < LANES; j++)
				word |= (uint32_t)((int)q[j] + 8) << (4 * j);
			*codes++ = word;
		}
	}
}

static void row_plain(const uint16_t *w, int groups, int group, uint32_t *codes, uint16_t *scale)
{
	row_body(w, groups, group, codes, scale);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void row_avx2(const uint16_t *w, int groups, int group, uint32_t *codes, uint16_t *scale)
{
	row_body(w, groups, group, codes, scale);
}
#endif

struct work {
	const uint16_t *w;
	int rows, cols, group;
	uint32_t *codes;
	uint16_t *scale;
	void (*row)(const uint16_t *, int, int, uint32_t *, uint16_t *);
	_Atomic int next;
};

static void *take_runs(void *arg)
{
	struct work *k = arg;
	int groups = k->cols / k->group;

	for (int from; (from = k->next++ * RUN) < k->rows;)
		for (int r = from; r < from + RUN && r < k->rows; r++)
			k->row(k->w + (size_t)r * (size_t)k->cols, groups, k->group, k->codes + (size_t)r * (size_t)(k->cols / 8), k->scale + (size_t)r * (size_t)groups);
	return NULL;
}

int td_quantise_group(int cols)
{
	for (int group = TD_QUANTISE_GROUP; group > 0; group -= TD_QUANTISE_STEP)
		if (cols > 0 && cols % group == 0)
			return group;
	return 0;
}

void td_quantise(const uint16_t *w, int rows, int cols, int group, uint32_t *codes, uint16_t *scale)
{
	struct work k = { .w = w, .rows = rows, .cols = cols, .group = group, .codes = codes, .scale = scale, .row = row_plain };
	int runs = (rows + RUN - 1) / RUN, n = 0, want;
	pthread_t thread[THREADS_MAX];
	cpu_set_t mine;

#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2"))
		k.row = row_avx2;
#endif
	want = sched_getaffinity(0, sizeof(mine), &mine) ? 1 : CPU_COUNT(&mine);
	want = want > THREADS_MAX ? THREADS_MAX : want;
	want = want > runs ? runs : want;
	while (n < want - 1 && !pthread_create(&thread[n], NULL, take_runs, &k)) /* those that there are do it */
		n++;
	take_runs(&k);
	while (n > 0)
		pthread_join(thread[--n], NULL);
}
