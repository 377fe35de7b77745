/*
 * bench_measure.c: memory of random contents, and the time of a call (bench_internal.h).
 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "engine/clock.h"
#include "target_worker/bench_internal.h"

enum { SAMPLES = 5, RECORDED = 24, REPLAYS = 9 };

/* ---- memory ------------------------------------------------------------------------------------------------------------------------- */

static uint32_t next(struct td__bench *b)
{
	b->random = b->random * 1664525u + 1013904223u;
	return b->random >> 8;
}

void *td__bench_device(struct td__bench *b, struct td__work *w, size_t bytes)
{
	void *p = b->err.code ? NULL : b->ops->alloc(b->dev, bytes, &b->err);

	if (p && w->n_held < (int)(sizeof(w->held) / sizeof(*w->held)))
		w->held[w->n_held++] = p;
	return p;
}

void td__bench_release(struct td__bench *b, struct td__work *w)
{
	b->ops->sync(b->dev, NULL);
	while (w->n_held > 0)
		b->ops->free(b->dev, w->held[--w->n_held]);
}

/* BF16 words of magnitude about 0.01, of either sign; as float32 words they are as small. */
static void *random_host(struct td__bench *b, size_t bytes, int packed)
{
	uint32_t *p = malloc(bytes + 4);
	size_t i;

	if (!p) {
		td_error_set(&b->err, TD_E_NOMEM, "bench-ops: no memory for %zu MiB of random weights", bytes >> 20);
		return NULL;
	}
	for (i = 0; i <= bytes / 4; i++)
		p[i] = packed ? next(b) * 2654435761u : (next(b) & 0x80ff80ffu) | 0x3c003c00u;
	return p;
}

struct td_tensor td__bench_tensor(struct td__bench *b, struct td__work *w, enum td_dtype type, int rows, int cols)
{
	size_t bytes = (size_t)rows * (size_t)cols * td_dtype_size(type);
	struct td_tensor t = {td__bench_device(b, w, bytes), type, rows, cols, cols, 0};
	void *host = t.data ? random_host(b, bytes, 0) : NULL;

	if (host) {
		b->ops->upload(b->dev, t.data, host, bytes);
		b->ops->sync(b->dev, &b->err);
	}
	free(host);
	return t;
}

struct td_tensor td__bench_rows(struct td__bench *b, struct td__work *w, enum td_dtype type, int rows, int cols)
{
	return td_rows(td__bench_tensor(b, w, type, rows < TD_BLOCK_MAX ? TD_BLOCK_MAX : rows, cols), 0, rows);
}

const float *td__bench_floats(struct td__bench *b, struct td__work *w, int n)
{
	return td__bench_tensor(b, w, TD_F32, 1, n).data;
}

void td__bench_batch(struct td__bench *b, struct td__work *w, int rows, int replay)
{
	w->seq = (struct td_seq){.rows = rows, .pos0 = b->context - rows, .replay = replay, .commit = rows > TD_BLOCK_MAX};
	w->batch = (struct td_batch){.n_seq = 1, .n_rows = rows, .max_rows = rows, .max_ctx = b->context, .seq = &w->seq};
	if (!b->err.code)
		b->ops->batch_set(b->dev, &w->batch);
}

void td__bench_cache(struct td__bench *b, struct td__work *w, int kv_cols)
{
	int pages = (b->context + TD_PAGE - 1) / TD_PAGE;
	size_t half = (size_t)pages * TD_PAGE * (size_t)kv_cols * td_dtype_size(b->ops->act), bytes = (size_t)pages * sizeof(int32_t);
	int32_t *table = malloc(bytes);
	char *device_table = td__bench_device(b, w, bytes), *p;

	for (int i = 0; table && i < pages; i++)
		table[i] = pages - 1 - i;
	if (!table)
		td_error_set(&b->err, TD_E_NOMEM, "bench-ops: no memory for a table of %d pages", pages);
	if (!b->err.code)
		b->ops->upload(b->dev, device_table, table, bytes);
	w->copies = TD__COLD_BYTES / half < TD__CACHES_MAX ? (int)(TD__COLD_BYTES / half) + 1 : TD__CACHES_MAX;
	p = td__bench_tensor(b, w, b->ops->act, 2 * w->copies, (int)(half / td_dtype_size(b->ops->act))).data;
	for (int i = 0; p && i < w->copies; i++, p += 2 * half)
		w->kv[i] = (struct td_kv){.k = p, .v = p + half, .table = (const int32_t *)device_table, .max_pages = pages};
	b->ops->sync(b->dev, &b->err);
	free(table);
}

/* ---- measuring ---------------------------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double run_us(struct td__bench *b, void (*op)(struct td__bench *, struct td__work *), struct td__work *w, long times)
{
	uint64_t from;
	long i;

	b->ops->sync(b->dev, &b->err);
	from = td_now_us();
	for (i = 0; i < times; i++)
		op(b, w);
	b->ops->sync(b->dev, &b->err);
	return (double)(td_now_us() - from) / (double)times;
}

/*
 * Calls of a decode step as they come in life: recorded one behind another where the backend does that (td_ops.replay), timed by its own clock, so
 * that nothing of the host's launching is in the figure. The first time they are made plainly, the second recorded.
 */
static double replay_us(struct td__bench *b, td__bench_op *op, struct td__work *w, uint32_t what)
{
	struct td_replay step = {.who = b, .what = what, .ctx_max = b->context, .n = 1, .batch = {&w->batch}};

	if (!b->ops->replay(b->dev, &step)) {
		for (int i = 0; i < RECORDED; i++)
			op(b, w);
		b->ops->replay_end(b->dev);
	}
	b->ops->replay_wait(b->dev, &b->err);
	return b->ops->elapsed_us(b->dev, TD_MARK_BEGIN, TD_MARK_END) / RECORDED;
}

static double measure_step(struct td__bench *b, td__bench_op *op, struct td__work *w)
{
	uint32_t what = ++b->steps;
	double sample[REPLAYS];

	replay_us(b, op, w, what);
	replay_us(b, op, w, what);
	for (int i = 0; i < REPLAYS && !b->err.code; i++)
		sample[i] = replay_us(b, op, w, what);
	if (b->err.code)
		return 0;
	qsort(sample, REPLAYS, sizeof(*sample), compare);
	return sample[REPLAYS / 2] > 1e-3 ? sample[REPLAYS / 2] : 1e-3;
}

/* Median time of one call in microseconds, 0 after a failure. */
double td__bench_measure(struct td__bench *b, void (*op)(struct td__bench *, struct td__work *), struct td__work *w)
{
	double sample[SAMPLES], once;
	long times;
	int i;

	if (b->err.code)
		return 0;
	if (b->ops->roof_read && w->batch.n_rows > 0 && !w->seq.commit)
		return measure_step(b, op, w);
	run_us(b, op, w, 1);
	once = run_us(b, op, w, 2);
	times = (long)(b->ms * 1000.0 / SAMPLES / (once > 0.2 ? once : 0.2));
	times = times < 1 ? 1 : times > 100000 ? 100000 : times;
	for (i = 0; i < SAMPLES && !b->err.code; i++)
		sample[i] = run_us(b, op, w, times);
	if (b->err.code)
		return 0;
	qsort(sample, SAMPLES, sizeof(*sample), compare);
	return sample[SAMPLES / 2] > 1e-3 ? sample[SAMPLES / 2] : 1e-3;
}

void td__bench_note(struct td__bench *b, const char *name, int rows, const char *shape, double bytes, double flops, double us, int cold)
{
	struct td__result *r = &b->result[b->n];

	if (b->err.code || b->n == TD__RESULTS_MAX)
		return;
	*r = (struct td__result){.rows = rows, .cold = cold, .bytes = bytes, .flops = flops, .us = us};
	snprintf(r->name, sizeof(r->name), "%s", name);
	snprintf(r->shape, sizeof(r->shape), "%s", shape);
	b->n++;
}


void td__bench_op_linear(struct td__bench *b, struct td__work *w)
{
	b->ops->linear(b->dev, w->x, &w->w[w->turn++ % w->copies], w->y, 0);
}

void td__bench_pack(struct td__bench *b, struct td__work *w, const struct td_linear *s)
{
	size_t bytes = b->ops->pack_bytes(s->kind, s->out, s->in, s->group), values = (size_t)s->out * (size_t)s->in, n;
	void *weight, *scale = NULL;
	struct td_linear_part part = {.out = s->out};

	n = bytes ? TD__COLD_BYTES / bytes + 1 : 1;
	weight = random_host(b, s->kind == TD_W_INT4 ? values / 2 : values * 2, s->kind == TD_W_INT4);
	if (s->kind == TD_W_INT4)
		scale = random_host(b, values / (size_t)s->group * 2, 0);
	part.weight = weight;
	part.scale = scale;
	for (w->copies = 0; !b->err.code && w->copies < TD__COPIES_MAX && (size_t)w->copies < n;) {
		struct td_linear *l = &w->w[w->copies];

		*l = *s;
		l->data = td__bench_device(b, w, bytes);
		if (!b->err.code && !b->ops->pack(b->dev, l, &part, 1, &b->err))
			w->copies++;
	}
	b->ops->sync(b->dev, &b->err);
	free(weight);
	free(scale);
}

