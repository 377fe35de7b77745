/*
 * test_k_attention.c: the target's attention over the paged cache and the drafter's context rows and block attention, each against double precision;
 * a row's bits do not depend on how the rows were fed (whole, in chunks, one at a time, beside another sequence) or on the threads.
 */
#include "k_common.h"

enum { PAGES = 24, MAX_PAGES = 8, SLOTS = 3 };

struct layer {
	struct td_attn w;
	float *q_norm, *k_norm, *inv_freq;
};

struct cache {
	struct td_kv kv;
	int32_t table[SLOTS * MAX_PAGES];
	size_t floats;
};

static void layer_make(struct layer *l, int heads, int kv_heads, int dim, int rotary, int target)
{
	l->q_norm = malloc((size_t)dim * sizeof(float));
	l->k_norm = malloc((size_t)dim * sizeof(float));
	l->inv_freq = malloc((size_t)rotary / 2 * sizeof(float));
	k_fill(l->q_norm, (size_t)dim, -0.5f, 1.5f);
	k_fill(l->k_norm, (size_t)dim, -0.5f, 1.5f);
	for (int i = 0; i < rotary / 2; i++)
		l->inv_freq[i] = (float)pow(1e7, -2.0 * i / rotary);
	l->w = (struct td_attn){ .heads = heads, .kv_heads = kv_heads, .head_dim = dim, .rotary_dim = rotary, .eps = 1e-6f, .zero_centred = target,
				 .gated = target, .q_norm = l->q_norm, .k_norm = l->k_norm, .inv_freq = l->inv_freq };
}

static void layer_free(struct layer *l)
{
	free(l->q_norm);
	free(l->k_norm);
	free(l->inv_freq);
}

static void cache_make(struct cache *c, const struct layer *l)
{
	int page[PAGES];

	c->floats = (size_t)PAGES * (size_t)l->w.kv_heads * TD_PAGE * (size_t)l->w.head_dim;
	c->kv = (struct td_kv){ malloc(c->floats * sizeof(float)), malloc(c->floats * sizeof(float)), c->table, MAX_PAGES };
	for (size_t i = 0; i < c->floats; i++)
		((float *)c->kv.k)[i] = ((float *)c->kv.v)[i] = NAN; /* what was never written must never be read */
	for (int i = 0; i < PAGES; i++)
		page[i] = i;
	for (int i = PAGES - 1; i > 0; i--) {
		int j = (int)(k_random() % (unsigned)(i + 1)), t = page[i];

		page[i] = page[j];
		page[j] = t;
	}
	for (int i = 0; i < SLOTS * MAX_PAGES; i++)
		c->table[i] = page[i];
}

static void cache_free(struct cache *c)
{
	free(c->kv.k);
	free(c->kv.v);
}

/* Norm and rotary of one head in double, the angle rounded to float as the specification says. */
static void norm_rotate(const struct layer *l, const float *weight, const float *x, int pos, double *y)
{
	int dim = l->w.head_dim, half = l->w.rotary_dim / 2;
	double square = 0;

	for (int i = 0; i < dim; i++)
		square += (double)x[i] * x[i];
	for (int i = 0; i < dim; i++)
		y[i] = x[i] / sqrt(square / dim + l->w.eps) * ((l->w.zero_centred ? 1 : 0) + (double)weight[i]);
	for (int i = 0; i < half; i++) {
		float angle = (float)pos * l->inv_freq[i];
		double a = y[i], b = y[i + half];

		y[i] = a * cos(angle) - b * sin(angle);
		y[i + half] = b * cos(angle) + a * sin(angle);
	}
}

/* Softmax attention of one query over n keys (n, dim) and values. */
static void attend(const double *q, const double *k, const float *const *v, int n, int dim, double *out)
{
	double *p = malloc((size_t)n * sizeof(double)), max = -INFINITY, sum = 0;

	for (int i = 0; i < n; i++) {
		p[i] = 0;
		for (int c = 0; c < dim; c++)
			p[i] += q[c] * k[(size_t)i * (size_t)dim + (size_t)c];
		p[i] /= sqrt(dim);
		max = fmax(max, p[i]);
	}
	for (int i = 0; i < n; i++)
		sum += p[i] = exp(p[i] - max);
	for (int c = 0; c < dim; c++) {
		out[c] = 0;
		for (int i = 0; i < n; i++)
			out[c] += p[i] / sum * v[i][c];
	}
	free(p);
}

/* ---- target ----------------------------------------------------------------------------------------------------------------------- */

static void target_reference(const struct layer *l, struct td_tensor x, double *want)
{
	int dim = l->w.head_dim, group = l->w.heads / l->w.kv_heads, k0 = 2 * l->w.heads * dim, v0 = k0 + l->w.kv_heads * dim;
	double *k = malloc((size_t)x.rows * (size_t)dim * sizeof(double)), q[256], o[256];
	const float **v = malloc((size_t)x.rows * sizeof(*v));

	for (int h = 0; h < l->w.heads; h++) {
		for (int r = 0; r < x.rows; r++) {
			norm_rotate(l, l->k_norm, k_row(x, r) + k0 + h / group * dim, r, k + (size_t)r * (size_t)dim);
			v[r] = k_row(x, r) + v0 + h / group * dim;
		}
		for (int r = 0; r < x.rows; r++) {
			norm_rotate(l, l->q_norm, k_row(x, r) + 2 * h * dim, r, q);
			attend(q, k, v, r + 1, dim, o);
			for (int c = 0; c < dim; c++)
				want[(r * l->w.heads + h) * dim + c] = o[c] / (1 + exp(-(double)k_row(x, r)[(2 * h + 1) * dim + c]));
		}
	}
	free(k);
	free(v);
}

static void feed(struct td_dev *dev, const struct layer *l, struct cache *c, int slot, int r0, int n, struct td_tensor x, struct td_tensor out)
{
	struct td_seq seq = { .slot = slot, .row0 = 0, .rows = n, .pos0 = r0, .commit = 1 };
	struct td_batch b = k_batch(dev, &seq, 1);

	ops->attention(dev, &l->w, &c->kv, &b, td_rows(x, r0, n), td_rows(out, r0, n));
}

static void target_shape(int heads, int kv_heads, int dim, int rotary, int n)
{
	struct td_dev *one = k_open(1), *two = k_open(2);
	struct layer l;
	struct cache c;
	struct td_tensor x, a, b;
	double *want;
	int width = heads * dim, at = 0;

	layer_make(&l, heads, kv_heads, dim, rotary, 1);
	cache_make(&c, &l);
	x = k_random_tensor(n, 2 * width + 2 * kv_heads * dim, 3);
	a = k_tensor(n, width, 0);
	b = k_tensor(n, width, 2);
	want = malloc((size_t)n * (size_t)width * sizeof(double));
	target_reference(&l, x, want);
	feed(two, &l, &c, 0, 0, n, x, a);
	for (int r = 0; r < n; r++)
		for (int i = 0; i < width; i++)
			k_near("attention", (long)r * width + i, k_row(a, r)[i], want[(size_t)r * (size_t)width + (size_t)i], 2e-6);
	/* pieces of any size, one thread, another slot; then rows of two sequences in one batch, the first at another place */
	for (int piece = 1; at < n; piece = piece * 2 + 1) {
		int take = piece < n - at ? piece : n - at;

		feed(one, &l, &c, 2, at, take, x, b);
		at += take;
	}
	for (int r = 0; r < n; r++)
		k_same_bits("fed in pieces", k_row(b, r), k_row(a, r), width);
	if (n > 9) {
		struct td_seq seq[2] = { { .slot = 1, .row0 = 0, .rows = 5 }, { .slot = 2, .row0 = 5, .rows = 4, .pos0 = n - 4 } };
		struct td_tensor y = k_tensor(9, x.cols, 0), out = k_tensor(9, width, 0);
		struct td_batch batch = k_batch(two, seq, 2);

		for (int r = 0; r < 9; r++)
			memcpy(k_row(y, r), k_row(x, r < 5 ? r : n - 9 + r), (size_t)x.cols * sizeof(float));
		ops->attention(two, &l.w, &c.kv, &batch, y, out);
		for (int r = 0; r < 9; r++)
			k_same_bits("beside another sequence", k_row(out, r), k_row(a, r < 5 ? r : n - 9 + r), width);
		free(y.data);
		free(out.data);
	}
	free(x.data);
	free(a.data);
	free(b.data);
	free(want);
	layer_free(&l);
	cache_free(&c);
	k_close(one);
	k_close(two);
}

static void target(void **state)
{
	(void)state;
	target_shape(4, 1, 256, 64, 150);
	target_shape(4, 2, 64, 64, 300);
	target_shape(6, 2, 40, 10, 67);
	target_shape(2, 1, 77, 6, 130);
	target_shape(1, 1, 8, 2, 3);
}

/* ---- drafter ---------------------------------------------------------------------------------------------------------------------- */

/* Context of n rows, a block of `rows` at n: output against double precision with the visibility rule written out. */
static void drafter_shape(int heads, int kv_heads, int dim, int n, int rows, int window, int causal)
{
	struct td_dev *dev = k_open(2);
	struct layer l;
	struct cache c;
	struct td_tensor context, block, out, again;
	struct td_seq seq = { .slot = 1, .rows = n };
	struct td_batch b;
	int width = heads * dim, group = heads / kv_heads;
	double *k = malloc((size_t)(n + rows) * (size_t)dim * sizeof(double)), *seen = malloc((size_t)(n + rows) * (size_t)dim * sizeof(double)), q[256], o[256];
	const float **v = malloc((size_t)(n + rows) * sizeof(*v));
	char what[80];

	layer_make(&l, heads, kv_heads, dim, dim, 0);
	l.w.window = window;
	l.w.causal = causal;
	cache_make(&c, &l);
	context = k_random_tensor(n + 1, 2 * kv_heads * dim, 3);
	block = k_random_tensor(rows, width + 2 * kv_heads * dim, 1);
	out = k_tensor(rows, width, 0);
	again = k_tensor(rows, width, 0);
	for (int at = 0, piece; at < n; at += piece) { /* appended as commits do: a few rows at a time */
		piece = 1 + (int)(k_random() % 90);
		piece = piece < n - at ? piece : n - at;
		seq = (struct td_seq){ .slot = 1, .rows = piece, .pos0 = at };
		b = k_batch(dev, &seq, 1);
		ops->draft_context(dev, &l.w, &c.kv, &b, td_rows(context, at, piece));
	}
	seq = (struct td_seq){ .slot = 1, .rows = rows, .pos0 = n };
	b = k_batch(dev, &seq, 1);
	ops->draft_attention(dev, &l.w, &c.kv, &b, block, out);
	ops->draft_attention(dev, &l.w, &c.kv, &b, block, again); /* nothing was stored: the same again */
	snprintf(what, sizeof(what), "drafter: context %d, block %d, window %d, causal %d", n, rows, window, causal);
	k_same_bits(what, again.data, out.data, rows * width);
	for (int h = 0; h < heads; h++) {
		for (int p = 0; p < n + rows; p++) {
			const float *key = p < n ? k_row(context, p) + h / group * dim : k_row(block, p - n) + width + h / group * dim;

			norm_rotate(&l, l.k_norm, key, p, k + (size_t)p * (size_t)dim);
		}
		for (int i = 0; i < rows; i++) {
			int m = 0;

			for (int p = 0; p < n + rows; p++) {
				int visible = p < n ? !window || p >= n + i - (window - 1) : causal ? p - n <= i : !window || abs(p - n - i) < window;

				if (!visible)
					continue;
				memcpy(seen + (size_t)m * (size_t)dim, k + (size_t)p * (size_t)dim, (size_t)dim * sizeof(double));
				v[m++] = (p < n ? k_row(context, p) : k_row(block, p - n) + width) + (kv_heads + h / group) * dim;
			}
			norm_rotate(&l, l.q_norm, k_row(block, i) + h * dim, n + i, q);
			attend(q, seen, v, m, dim, o);
			for (int j = 0; j < dim; j++)
				k_near(what, (long)i * width + h * dim + j, k_row(out, i)[h * dim + j], o[j], 2e-6);
		}
	}
	free(k);
	free(seen);
	free(v);
	free(context.data);
	free(block.data);
	free(out.data);
	free(again.data);
	layer_free(&l);
	cache_free(&c);
	k_close(dev);
}

static void drafter(void **state)
{
	(void)state;
	for (int causal = 0; causal < 2; causal++) {
		drafter_shape(4, 2, 128, 200, 16, 0, causal);
		drafter_shape(4, 2, 64, 200, 16, 70, causal);
		drafter_shape(2, 1, 32, 130, 16, 5, causal); /* narrower than the block: late slots see no context */
		drafter_shape(2, 2, 32, 64, 7, 64, causal);
		drafter_shape(2, 1, 24, 1, 1, 1, causal);
		drafter_shape(2, 1, 24, 0, 4, 0, causal); /* no context yet */
	}
}

static void bad_input(void **state)
{
	struct td_dev *dev = k_open(1);
	struct td_error err = { 0 };
	struct layer l;
	struct cache c;
	struct td_tensor x = k_random_tensor(4, 4 * 16, 0), out = k_tensor(4, 16, 0);

	(void)state;
	layer_make(&l, 1, 1, 16, 16, 1);
	cache_make(&c, &l);
	/* past the last page of the table: nothing is written */
	feed(dev, &l, &c, 0, 0, 1, x, out);
	assert_int_equal(ops->sync(dev, &err), 0);
	{
		struct td_seq seq = { .rows = 4, .pos0 = MAX_PAGES * TD_PAGE - 3 };
		struct td_batch b = k_batch(dev, &seq, 1);

		ops->attention(dev, &l.w, &c.kv, &b, x, out);
	}
	assert_int_equal(ops->sync(dev, &err), TD_E_INTERNAL);
	assert_non_null(strstr(err.text, "8 pages"));
	ops->close(dev);
	free(x.data);
	free(out.data);
	layer_free(&l);
	cache_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(target), cmocka_unit_test(drafter), cmocka_unit_test(bad_input) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
