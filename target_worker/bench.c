/*
 * bench.c: what each operation takes at a model's shapes, next to what the machine can do (bench.h).
 *
 * Shapes come from the configuration alone, contents are random: an operation's time doesn't depend on them. Rows: 1 (plain decoding), TD_BLOCK_MAX
 * (a verify), a step of prefill. Maps, states and caches are taken in turn from several copies, so that no cache holds what memory would have to
 * deliver while serving. Times are medians of a few runs, each long enough for the clock.
 *
 * Two roofs are measured in the same run. Where the backend can measure them without our kernels (td_ops.roof_read, roof_dense), they are reading memory
 * and one large product of the vendor's library; beside them stands what streaming all weights in BF16 takes that library. Elsewhere bandwidth is
 * the best that was seen from memory (a copy, a large BF16 matrix past one row, the maps themselves), arithmetic the best of all products. An
 * operation's share is the time that the nearer roof would allow over the time that it took; it may exceed 1 where everything lies in a cache. Bytes are
 * those that must move (weights, state, cache, rows in and out), once.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "target_worker/bench.h"
#include "target_worker/bench_internal.h"

enum { CONTEXT_MIN = 256, CHUNK_GPU = 2048 /* rows of a step of prefill there */, ROOF_ROWS = 512, ROOF_SIDE = 2048, STREAM_OUT = 8192, STREAM_IN = 4096, DENSE_SIDE = 8192, MAPS_MAX = 5 * TD_LAYERS_MAX + 1 };
#define ROOM ((uint64_t)2 << 30) /* for everything but what a roof reads */

/* ---- roofs -------------------------------------------------------------------------------------------------------------------------- */

static void op_copy(struct td__bench *b, struct td__work *w)
{
	b->ops->copy(b->dev, w->x, w->y);
}

/* By our own operations. */
static void own_roofs(struct td__bench *b)
{
	double act = (double)td_dtype_size(b->ops->act);
	struct td__work w = {0};

	w.x = td__bench_tensor(b, &w, b->ops->act, 4096, 4096);
	w.y = td__bench_tensor(b, &w, b->ops->act, 4096, 4096);
	td__bench_batch(b, &w, 1, 0);
	td__bench_note(b, "roof: copy", 4096, "4096", 2 * act * 4096 * 4096, 0, td__bench_measure(b, op_copy, &w), 1);
	td__bench_release(b, &w);
	td__bench_pack(b, &w, &(struct td_linear){.kind = TD_W_BF16, .in = STREAM_IN, .out = STREAM_OUT});
	w.x = td__bench_tensor(b, &w, b->ops->act, 1, STREAM_IN);
	w.y = td__bench_tensor(b, &w, b->ops->act, 1, STREAM_OUT);
	td__bench_batch(b, &w, 1, 0);
	td__bench_note(b, "roof: stream", 1, "8192 x 4096 bf16", 2.0 * STREAM_IN * STREAM_OUT, 2.0 * STREAM_IN * STREAM_OUT,
		       td__bench_measure(b, td__bench_op_linear, &w), 1);
	td__bench_release(b, &w);
	w.turn = 0;
	td__bench_pack(b, &w, &(struct td_linear){.kind = TD_W_BF16, .in = ROOF_SIDE, .out = ROOF_SIDE});
	w.x = td__bench_tensor(b, &w, b->ops->act, ROOF_ROWS, ROOF_SIDE);
	w.y = td__bench_tensor(b, &w, b->ops->act, ROOF_ROWS, ROOF_SIDE);
	td__bench_batch(b, &w, ROOF_ROWS, 0);
	td__bench_note(b, "roof: product", ROOF_ROWS, "2048 x 2048 bf16", 2.0 * ROOF_SIDE * ROOF_SIDE + ROOF_ROWS * act * 2 * ROOF_SIDE,
		       2.0 * ROOF_ROWS * ROOF_SIDE * ROOF_SIDE, td__bench_measure(b, td__bench_op_linear, &w), 1);
	td__bench_release(b, &w);
}

/* All maps with BF16 weights, each once, past a few rows: what an engine would take that did nothing else. Left out where they don't fit. */
static void stream(struct td__bench *b, uint64_t free_bytes)
{
	static const int rows[] = {1, TD_BLOCK_MAX};
	struct td_linear shape[MAPS_MAX];
	int n = td__bench_shapes(b, shape, MAPS_MAX);
	double bytes = 0, us = 0;
	char text[48];

	for (int i = 0; i < n; i++)
		bytes += 2.0 * shape[i].in * shape[i].out;
	if (bytes + (double)ROOM > (double)free_bytes)
		return;
	snprintf(text, sizeof(text), "%d bf16 matrices, %.2f GB", n, bytes / 1e9);
	for (int i = 0; i < 2 && !b->err.code; i++)
		if (!b->ops->roof_dense(b->dev, shape, n, rows[i], &us, &b->err))
			td__bench_note(b, "roof: library", rows[i], text, bytes, bytes * rows[i], us, 1);
}

/* Without any kernel of ours. */
static void machine_roofs(struct td__bench *b)
{
	const struct td_linear square = {.kind = TD_W_BF16, .in = DENSE_SIDE, .out = DENSE_SIDE};
	double flops = 2.0 * DENSE_SIDE * DENSE_SIDE * DENSE_SIDE, us = 0;
	uint64_t free_bytes, total_bytes;
	size_t bytes = (size_t)4 << 30; /* of one GiB the 50 MB that a cache keeps from pass to pass make 8 %, measured on an H200 */
	char text[48];

	if (b->ops->memory(b->dev, &free_bytes, &total_bytes, &b->err))
		return;
	bytes = free_bytes / 32 < bytes ? (size_t)(free_bytes / 32) & ~(size_t)255 : bytes;
	if (b->ops->roof_read(b->dev, bytes, &us, &b->err))
		return;
	b->bandwidth = (double)bytes / us;
	snprintf(text, sizeof(text), "%zu MiB", bytes >> 20);
	td__bench_note(b, "roof: read", 1, text, (double)bytes, 0, us, 1);
	if (b->ops->roof_dense(b->dev, &square, 1, DENSE_SIDE, &us, &b->err))
		return;
	b->arithmetic = flops / us;
	snprintf(text, sizeof(text), "%d x %d bf16", DENSE_SIDE, DENSE_SIDE);
	td__bench_note(b, "roof: product", DENSE_SIDE, text, 3 * 2.0 * DENSE_SIDE * DENSE_SIDE, flops, us, 1);
	stream(b, free_bytes);
}

/* Bytes of the weights that each verify streams: of the layers, and of the head. */
static void weights(const struct td__bench *b, double *body, double *head)
{
	struct td_linear shape[MAPS_MAX];
	int n = td__bench_shapes(b, shape, MAPS_MAX);

	*body = *head = 0;
	for (int i = 0; i < n; i++)
		*(i + 1 < n ? body : head) += (double)b->ops->pack_bytes(shape[i].kind, shape[i].out, shape[i].in, shape[i].group);
}

/* ---- telling ------------------------------------------------------------------------------------------------------------------------ */

static json_t *report(const struct td__bench *b, const char *model)
{
	double bandwidth = b->bandwidth, arithmetic = b->arithmetic, rate, body, head; /* rates per microsecond */
	char device_text[256] = "";
	json_t *rows = json_array();
	int i;

	weights(b, &body, &head);
	for (i = 0; i < b->n && !b->bandwidth; i++) {
		rate = b->result[i].bytes / b->result[i].us;
		bandwidth = b->result[i].cold && rate > bandwidth ? rate : bandwidth;
		rate = b->result[i].flops / b->result[i].us;
		arithmetic = rate > arithmetic ? rate : arithmetic;
	}
	b->ops->describe(b->dev, device_text, sizeof(device_text));
	for (i = 0; i < b->n; i++) {
		const struct td__result *r = &b->result[i];
		double memory_us = r->bytes / bandwidth, arithmetic_us = r->flops / arithmetic, roof = fmax(memory_us, arithmetic_us);

		json_array_append_new(rows, json_pack("{s:s, s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:s, s:f, s:b}", "name", r->name, "rows", r->rows, "shape", r->shape,
						      "us", r->us, "bytes", r->bytes, "flop", r->flops, "gb_per_s", r->bytes / r->us / 1e3, "gflop_per_s",
						      r->flops / r->us / 1e3, "bound", memory_us >= arithmetic_us ? "memory" : "arithmetic", "roof_share", roof / r->us,
						      "from_memory", r->cold));
	}
	return json_pack("{s:s, s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:o}", "suite", "ops", "backend", b->ops->name, "device", device_text, "model", model, "context",
			 b->context, "roof_gb_per_s", bandwidth / 1e3, "roof_gflop_per_s", arithmetic / 1e3, "body_bytes", body, "head_bytes", head, "ops",
			 rows);
}

static int measure_all(struct td__bench *b)
{
	if (b->ops->roof_read)
		machine_roofs(b);
	else
		own_roofs(b);
	td__bench_target(b);
	if (b->draft.layers)
		td__bench_draft(b);
	if (!b->err.code)
		b->ops->sync(b->dev, &b->err);
	return b->err.code;
}

static int configure(struct td__bench *b, char **argv, struct td_error *err)
{
	char *target = NULL, *drafter = NULL;
	int rc = td_target_config_load(argv[2], &b->cfg, err);

	if (!rc && !strcmp(argv[3], "own") && td_synthetic(argv[2])) {
		rc = td_synthetic_pair(strchr(argv[2], ':') + 1, &target, &drafter, err);
		rc = rc ? rc : td_drafter_config_load(drafter, &b->draft, err);
	} else if (!rc && strcmp(argv[3], "own") && strcmp(argv[3], "none")) {
		rc = td_drafter_config_load(argv[3], &b->draft, err);
	}
	free(target);
	free(drafter);
	return rc;
}

int td_target_bench(int argc, char **argv)
{
	struct td_dev_options opt = {.slots = 1};
	struct td__bench b = {.random = 1};
	struct td_error err;
	json_t *j = NULL;
	int rc = -1;

	if (argc != 8) {
		fprintf(stderr, "usage: tandem-target bench-ops DEVICE MODEL DRAFTER CONTEXT MILLISECONDS THREADS ACTIVATIONS\n");
		return 2;
	}
	b.context = atoi(argv[4]);
	b.ms = atoi(argv[5]);
	opt.threads = atoi(argv[6]);
	if (b.context < CONTEXT_MIN || b.context > 1 << 20 || b.ms < 1 || opt.threads < 0)
		td_error_set(&err, TD_E_INVALID, "bench-ops: the context is a number from %d to 1048576, the time one from 1 on", CONTEXT_MIN);
	else if (!configure(&b, argv, &err) && (b.ops = td_ops_find(argv[1], &err)) && !b.ops->open(&b.dev, &opt, &err)) {
		b.act8 = (td_form_activations(argv[7], b.ops->name, 0) & TD_FORM_ACT8) != 0;
		b.chunk = !b.ops->roof_read || b.context < CHUNK_GPU ? CONTEXT_MIN : CHUNK_GPU;
		rc = measure_all(&b);
		err = b.err;
		j = rc ? NULL : report(&b, argv[2]);
	}
	if (j && !json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) && putchar('\n') != EOF && !fflush(stdout))
		rc = 0;
	else
		fprintf(stderr, "%s\n", rc ? err.text : "bench-ops: the result can't be written");
	json_decref(j);
	if (b.dev)
		b.ops->close(b.dev);
	return rc ? 1 : 0;
}
