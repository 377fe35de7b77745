/*
 * ops_check: every operation of kernels.h on the GPU against the CPU implementation, on random data.
 *
 *	ops_check [--self | --small | --tiny] [--time] [--only NAME] [--seed N]
 *
 * Prints a table: operation, shape, relative error, allowed, ok. Exits 1 when a line fails, 2 when there is no GPU to test. --self compares the
 * CPU with itself, which shows that the test program is sound; --small is for the emulated GPU (tests/emulator); --tiny launches every kernel, not
 * more, for compute-sanitizer, and leaves out what does not launch any; --time measures the GPU's operations instead (bench figures).
 */
#include "tests/gpu/check.h"

struct side ref, dut;
int self, small, brief;

static int lines, failed;
static uint64_t state = 0x9e3779b97f4a7c15ull;

void die(const char *what, const struct td_error *err)
{
	fprintf(stderr, "ops_check: %s: %s\n", what, err && err->code ? err->text : "failed");
	exit(2);
}

void line(const char *op, const char *shape, double error, double allowed)
{
	int ok = error <= allowed; /* false for NaN */

	lines++;
	failed += !ok;
	printf("%-16s %-58s %10.2e %9.1e %s\n", op, shape, error, allowed, ok ? "ok" : "FAIL");
	fflush(stdout);
}

void verdict_bool(const char *op, const char *shape, int ok)
{
	line(op, shape, ok ? 0 : 1, 0);
}

/* ---- random numbers ---------------------------------------------------------------------------------------------------------------- */

uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545f4914f6cdd1dull;
}

float rnd_uniform(void)
{
	return (float)(rnd() >> 40) / 16777216.0f;
}

float rnd_normal(void)
{
	float sum = -6;

	for (int i = 0; i < 3; i++) {
		uint64_t r = rnd();

		sum += (float)(r & 0xffff) / 65536.0f + (float)(r >> 16 & 0xffff) / 65536.0f + (float)(r >> 32 & 0xffff) / 65536.0f +
		       (float)(r >> 48) / 65536.0f;
	}
	return sum;
}

float to_bf16(float v)
{
	return td_bf16_float(td_bf16(v));
}

float *random_values(size_t n, float scale)
{
	float *v = host(n * sizeof(*v));

	for (size_t i = 0; i < n; i++)
		v[i] = to_bf16(rnd_normal() * scale);
	return v;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------ */

static struct {
	struct side *side; /* NULL: host */
	void *p;
} held[4096];
static int n_held;

static void *hold(struct side *side, void *p)
{
	if (n_held == (int)(sizeof(held) / sizeof(held[0])))
		die("too many allocations in a case", NULL);
	held[n_held].side = side;
	held[n_held++].p = p;
	return p;
}

void drop_all(void)
{
	struct td_error err = {0};

	if (dut.ops->sync(dut.dev, &err))
		die("the device under test", &err);
	while (n_held) {
		n_held--;
		if (held[n_held].side)
			held[n_held].side->ops->free(held[n_held].side->dev, held[n_held].p);
		else
			free(held[n_held].p);
	}
}

void *host(size_t bytes)
{
	void *p = calloc(1, bytes ? bytes : 1);

	if (!p)
		die("out of memory", NULL);
	return hold(NULL, p);
}

void *put(struct side *s, const void *data, size_t bytes)
{
	struct td_error err = {0};
	void *p = s->ops->alloc(s->dev, bytes, &err);

	if (!p)
		die("allocation", &err);
	if (data)
		s->ops->upload(s->dev, p, data, bytes);
	return hold(s, p);
}

void *poisoned(struct side *s, size_t bytes)
{
	void *ones = malloc(bytes ? bytes : 1), *p;

	if (!ones)
		die("out of memory", NULL);
	memset(ones, 0xff, bytes);
	p = put(s, ones, bytes);
	free(ones);
	return p;
}

static struct td_tensor tensor(void *p, enum td_dtype type, int rows, int cols, int ld)
{
	return (struct td_tensor){.data = p, .dtype = type, .rows = rows, .cols = cols, .ld = ld};
}

struct td_tensor put_f32(struct side *s, const float *v, int rows, int cols, int ld)
{
	float *wide = malloc((size_t)rows * ld * sizeof(*wide) + 1);
	struct td_tensor t;

	memset(wide, 0xff, (size_t)rows * ld * sizeof(*wide));
	for (int r = 0; r < rows; r++)
		memcpy(wide + (size_t)r * ld, v + (size_t)r * cols, (size_t)cols * sizeof(*wide));
	t = tensor(put(s, wide, (size_t)rows * ld * sizeof(*wide)), TD_F32, rows, cols, ld);
	free(wide);
	return t;
}

struct td_tensor put_act(struct side *s, const float *v, int rows, int cols, int ld)
{
	uint16_t *wide;
	struct td_tensor t;

	if (s->ops->act == TD_F32)
		return put_f32(s, v, rows, cols, ld);
	wide = malloc((size_t)rows * ld * sizeof(*wide) + 1);
	memset(wide, 0xff, (size_t)rows * ld * sizeof(*wide));
	for (int r = 0; r < rows; r++)
		for (int c = 0; c < cols; c++)
			wide[(size_t)r * ld + c] = td_bf16(v[(size_t)r * cols + c]);
	t = tensor(put(s, wide, (size_t)rows * ld * sizeof(*wide)), TD_BF16, rows, cols, ld);
	free(wide);
	return t;
}

struct td_tensor new_f32(struct side *s, int rows, int cols, int ld)
{
	return tensor(poisoned(s, (size_t)rows * ld * 4), TD_F32, rows, cols, ld);
}

struct td_tensor new_act(struct side *s, int rows, int cols, int ld)
{
	return tensor(poisoned(s, (size_t)rows * ld * td_dtype_size(s->ops->act)), s->ops->act, rows, cols, ld);
}

void get(struct side *s, void *to, const void *from, size_t bytes)
{
	struct td_error err = {0};

	if (s->ops->download(s->dev, to, from, bytes, &err))
		die("download", &err);
}

float *get_values(struct side *s, struct td_tensor t)
{
	size_t size = td_dtype_size(t.dtype), bytes = (size_t)t.rows * t.ld * size;
	char *raw = malloc(bytes + 1);
	float *v = host((size_t)t.rows * t.cols * sizeof(*v));

	get(s, raw, t.data, bytes - (size_t)(t.ld - t.cols) * size * (t.rows > 0));
	for (int r = 0; r < t.rows; r++)
		for (int c = 0; c < t.cols; c++) {
			size_t at = (size_t)r * t.ld + c;

			v[(size_t)r * t.cols + c] = t.dtype == TD_F32 ? ((float *)raw)[at] : td_bf16_float(((uint16_t *)raw)[at]);
		}
	free(raw);
	return v;
}

float *get_act_array(struct side *s, const void *p, size_t n)
{
	return get_values(s, tensor((void *)p, s->ops->act, 1, (int)n, (int)n));
}

/* ---- comparison -------------------------------------------------------------------------------------------------------------------- */

double relative(const float *a, const float *b, size_t n)
{
	double d = 0, all = 0;

	for (size_t i = 0; i < n; i++) {
		d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
		all += (double)b[i] * b[i];
	}
	return all > 0 ? sqrt(d / all) : sqrt(d);
}

int same_bits(const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (memcmp(&a[i], &b[i], 4) || isnan(a[i]))
			return 0;
	return 1;
}

void make_batch(struct side *s, struct td_batch *b, const struct td_seq *seq, int n)
{
	memset(b, 0, sizeof(*b));
	b->n_seq = n;
	b->seq = seq;
	for (int i = 0; i < n; i++) {
		b->n_rows = seq[i].row0 + seq[i].rows > b->n_rows ? seq[i].row0 + seq[i].rows : b->n_rows;
		b->max_rows = seq[i].rows > b->max_rows ? seq[i].rows : b->max_rows;
		b->max_ctx = seq[i].pos0 + seq[i].rows > b->max_ctx ? seq[i].pos0 + seq[i].rows : b->max_ctx;
	}
	s->ops->batch_set(s->dev, b);
}

/* ---- main -------------------------------------------------------------------------------------------------------------------------- */

static void open_sides(void)
{
	struct td_dev_options opt = {.threads = 0, .ordinal = 0, .slots = 16};
	struct td_error err = {0};
	char text[256];

	ref.ops = &td_cpu_ops;
	dut.ops = self ? &td_cpu_ops : td_ops_find("cuda", &err);
	if (!dut.ops)
		die("no CUDA backend", &err);
	if (ref.ops->open(&ref.dev, &opt, &err) || dut.ops->open(&dut.dev, &opt, &err))
		die("opening a device", &err);
	ref.ops->describe(ref.dev, text, sizeof(text));
	printf("reference:  %s\n", text);
	dut.ops->describe(dut.dev, text, sizeof(text));
	printf("under test: %s\n", text);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} part[] = {{"device", check_device}, {"replay", check_replay}, {"rows", check_rows},	{"linear", check_linear}, {"gdn", check_gdn},
		    {"attention", check_attention}, {"draft", check_draft}, {"sample", check_sample},	{"bench", check_bench}};
	const char *only = "";
	int timing = 0;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--self"))
			self = 1;
		else if (!strcmp(argv[i], "--small"))
			small = 1;
		else if (!strcmp(argv[i], "--tiny"))
			small = brief = 1;
		else if (!strcmp(argv[i], "--time"))
			timing = 1;
		else if (!strcmp(argv[i], "--only") && i + 1 < argc)
			only = argv[++i];
		else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
			state ^= strtoull(argv[++i], NULL, 0) * 0x9e3779b97f4a7c15ull;
		else {
			fprintf(stderr, "usage: ops_check [--self | --small | --tiny] [--time] [--only NAME] [--seed N]\n");
			return 2;
		}
	}
	open_sides();
	if (timing) {
		measure(only);
	} else {
		printf("%-16s %-58s %10s %9s\n", "operation", "shape", "error", "allowed");
		for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
			if (strstr(part[i].name, only) && !(brief && (part[i].run == check_device || part[i].run == check_bench))) {
				part[i].run();
				drop_all();
			}
		printf("%d lines, %d failed\n", lines, failed);
	}
	dut.ops->close(dut.dev);
	ref.ops->close(ref.dev);
	return failed || (!timing && lines == 0);
}
