/*
 * linear_dense.cu: products of whole blocks of a prompt's rows and of its rest, by cuBLAS (its part cublasLt, which lets the algorithm be named).
 *
 * INT4 weights are expanded to bf16 first, once for all rows of the call: whole where they stay in the L2 cache, else in a few equal pieces of the
 * outputs that do. On an H200 expanding 94 MB takes 38 us at once (as fast as memory can be written), 47 MB within the cache less than 10.
 *
 * A position's bits must not depend on the number of rows in its call: a prompt may be fed in any chunks of 256 (kernels.h), its rest with the last. Algorithms that split no
 * sum add the columns in one order, so many of them give the same bits, and each gives a row the same in any call; but nothing written promises it.
 * So it is tried, on this very device and library, when the worker meets a shape for the first time (which is while it warms up): rows of random numbers
 * in one call and in several, for the library's own choices one after the other. The first whose bits hold is the shape's, and what other choices must
 * equal to be taken for fewer rows, where smaller tiles are faster. Where none holds, each call has exactly 256 rows, or the rest. Nothing is chosen by time: a
 * worker that starts again must come to the same.
 */
#include <stdlib.h>

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/trial.cuh"
#include "kernels/pack.h"

enum {
	ROUND = 64, /* outputs of a piece: a multiple */
	LEAST_OUT = 1280, /* and no fewer, where there is room */
	SIZES = 4,
	CHOICES = 8, /* of the library, that are tried for a number of rows */
	TRY_OUT = 512, /* outputs in a trial */
	TRY_ROWS = 2048, /* rows of it, where the columns leave room for so many */
	ODD = 73, /* rows more in some calls, so that the trial ends with another odd number of them */
};
static const int size_rows[SIZES] = {256, 512, 1024, 2048};
static const size_t whole_bytes = (size_t)50 << 20, piece_bytes = (size_t)32 << 20, room = (size_t)64 << 20;

struct td_cuda_dense {
	struct td_cuda_dense *next;
	int in, out, f32, accumulate;
	int most; /* rows of a call */
	cublasLtMatmulAlgo_t algo[SIZES]; /* for as many rows and more */
};

/* ---- one call ------------------------------------------------------------------------------------------------------------------------ */

/* y (+)= x * w', w row-major (out, in), rows of x and y at distances of ldx and ldy elements. In cuBLAS's words: all of it column-major, w transposed. */
struct product {
	cublasLtMatmulDescOpaque_t op;
	cublasLtMatrixLayoutOpaque_t w, x, y;
};

static cublasStatus_t product_init(struct product *p, const struct td_cuda_dense *d, int out, int rows, int ldx, int ldy)
{
	const cublasOperation_t transposed = CUBLAS_OP_T;
	cublasStatus_t s = cublasLtMatmulDescInit(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);

	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&p->w, CUDA_R_16BF, d->in, out, d->in);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&p->x, CUDA_R_16BF, d->in, rows, ldx);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&p->y, d->f32 ? CUDA_R_32F : CUDA_R_16BF, out, rows, ldy);
	return s;
}

static cublasStatus_t multiply(struct td_dev *dev, const struct td_cuda_dense *d, const cublasLtMatmulAlgo_t *algo, const bf16 *w, int out,
			       struct td_tensor x, struct td_tensor y)
{
	float one = 1, beta = d->accumulate ? 1 : 0;
	struct product p;
	cublasStatus_t s = product_init(&p, d, out, x.rows, x.ld, y.ld);

	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmul(dev->blas, &p.op, &one, w, &p.w, x.data, &p.x, &beta, y.data, &p.y, y.data, &p.y, algo, NULL, 0, dev->stream);
	return s;
}

/* The library's choices for so many rows, best first by its own reckoning: no sum is split, so none needs a workspace. Returns how many. */
static int choices(struct td_dev *dev, const struct td_cuda_dense *d, int out, int rows, cublasLtMatmulAlgo_t algo[CHOICES])
{
	const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE, align = 16;
	const uint64_t workspace = 0;
	const cublasLtMatmulPreferenceAttributes_t aligned[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
								CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	cublasLtMatmulPreferenceOpaque_t pref;
	cublasLtMatmulHeuristicResult_t found[CHOICES];
	struct product p;
	cublasStatus_t s = product_init(&p, d, out, rows, d->in, (out + 7) / 8 * 8);
	int n = 0, kept = 0;

	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulPreferenceInit(&pref);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
	for (int i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++)
		s = cublasLtMatmulPreferenceSetAttribute(&pref, aligned[i], &align, sizeof(align));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulAlgoGetHeuristic(dev->blas, &p.op, &p.w, &p.x, &p.y, &p.y, &pref, CHOICES, found, &n);
	for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < n; i++)
		if (found[i].state == CUBLAS_STATUS_SUCCESS)
			algo[kept++] = found[i].algo;
	return kept;
}

/* ---- the choice for a shape ---------------------------------------------------------------------------------------------------------- */

/* A product of random numbers in the scratch memory: what it gives in one call is `whole`. */
struct trial {
	int rows, out;
	size_t bytes; /* of an output */
	bf16 *w; /* (out, in) */
	struct td_tensor x, whole, part;
};

static void fill(struct td_dev *dev, void *p, size_t n, int f32, uint32_t seed)
{
	fill_kernel<<<dev->sms * 8, 256, 0, dev->stream>>>(p, n, f32, seed);
	td__cuda_launched(dev, "numbers for a trial of cuBLAS");
}

/* As many rows as fit; 0: not even two calls of the least size. */
static int trial_init(struct td_dev *dev, const struct td_cuda_dense *d, struct trial *t)
{
	size_t size = d->f32 ? 4 : 2, in = (size_t)d->in, ld;
	char *base = (char *)td__cuda_scratch(dev, room);

	if (!base)
		return 0;
	t->out = d->out < TRY_OUT ? d->out : TRY_OUT;
	ld = ((size_t)t->out + 7) / 8 * 8;
	for (t->rows = TRY_ROWS; t->rows > TD_CUDA_LARGE; t->rows /= 2) {
		t->bytes = (size_t)t->rows * ld * size;
		if (align256((size_t)t->out * in * 2) + align256((size_t)t->rows * in * 2) + 2 * align256(t->bytes) <= room)
			break;
	}
	if (t->rows == TD_CUDA_LARGE)
		return 0;
	t->w = (bf16 *)base;
	base += align256((size_t)t->out * in * 2);
	t->x = {base, TD_BF16, t->rows, d->in, d->in};
	base += align256((size_t)t->rows * in * 2);
	t->whole = {base, d->f32 ? TD_F32 : TD_BF16, t->rows, t->out, (int)ld};
	t->part = t->whole;
	t->part.data = base + align256(t->bytes);
	fill(dev, t->w, (size_t)t->out * in, 0, 1);
	fill(dev, t->x.data, (size_t)t->rows * in, 0, 2);
	return 1;
}

/* The trial's product into y in calls of `rows` rows, the last one of what is left. */
static cublasStatus_t trial_run(struct td_dev *dev, const struct td_cuda_dense *d, const struct trial *t, const cublasLtMatmulAlgo_t *algo, int rows,
				struct td_tensor y)
{
	cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

	fill(dev, y.data, t->bytes / td_dtype_size(y.dtype), d->f32, 3); /* to add to, and between rows */
	for (int row0 = 0; row0 < t->rows && s == CUBLAS_STATUS_SUCCESS; row0 += rows) {
		int n = t->rows - row0 < rows ? t->rows - row0 : rows;

		s = multiply(dev, d, algo, t->w, t->out, td_rows(t->x, row0, n), td_rows(y, row0, n));
	}
	return s;
}

/* Does the algorithm give the bits of `whole` in calls of so many rows? */
static int trial_equal(struct td_dev *dev, const struct td_cuda_dense *d, const struct trial *t, const cublasLtMatmulAlgo_t *algo, int rows)
{
	size_t words = t->bytes / 4;
	unsigned long long differ = 1;

	if (trial_run(dev, d, t, algo, rows, t->part) != CUBLAS_STATUS_SUCCESS)
		return 0;
	td__cuda_zero(dev, dev->sum, sizeof(*dev->sum));
	differ_kernel<<<dev->sms * 8, 256, 0, dev->stream>>>((const uint32_t *)t->whole.data, (const uint32_t *)t->part.data, words, dev->sum);
	td__cuda_launched(dev, "a trial of cuBLAS");
	td__cuda_download(dev, &differ, dev->sum, sizeof(differ), NULL);
	return !dev->error.code && !differ;
}

/* Fills d->most and d->algo. 0, or -1 when the library knows no way at all. */
static int choose(struct td_dev *dev, struct td_cuda_dense *d, int out)
{
	cublasLtMatmulAlgo_t algo[CHOICES];
	struct trial t;
	int n = choices(dev, d, out, size_rows[SIZES - 1], algo), able = trial_init(dev, d, &t), held = 0;

	d->most = 1 << 20;
	for (int i = 0; able && i < n && !held; i++) {
		held = trial_run(dev, d, &t, &algo[i], t.rows, t.whole) == CUBLAS_STATUS_SUCCESS && trial_equal(dev, d, &t, &algo[i], TD_CUDA_LARGE) &&
		       trial_equal(dev, d, &t, &algo[i], 3 * TD_CUDA_LARGE + ODD);
		d->algo[SIZES - 1] = algo[i];
	}
	if (!held) {
		d->most = TD_CUDA_LARGE;
		n = choices(dev, d, out, TD_CUDA_LARGE, algo);
		d->algo[0] = algo[0];
		return n ? 0 : -1;
	}
	for (int size = 0; size < SIZES - 1; size++) {
		d->algo[size] = d->algo[SIZES - 1];
		n = choices(dev, d, out, size_rows[size], algo);
		for (int i = 0; i < n; i++)
			if (trial_equal(dev, d, &t, &algo[i], size_rows[size]) && trial_equal(dev, d, &t, &algo[i], size_rows[size] + ODD)) {
				d->algo[size] = algo[i];
				break;
			}
	}
	return 0;
}

/* ---- shapes, pieces, calls ----------------------------------------------------------------------------------------------------------- */

/* Outputs of a piece of the weights: all of them, unless they are expanded and would not stay in the L2 cache; of long rows not so few that the
 * multiprocessors have nothing to do. */
static int piece(const struct td_linear *w)
{
	size_t row = (size_t)w->in * 2, bytes = row * LEAST_OUT < piece_bytes ? piece_bytes : row * LEAST_OUT < room ? row * LEAST_OUT : room;
	int most = (int)(bytes / row) / ROUND * ROUND, pieces = div_up(w->out, most > ROUND ? most : ROUND);

	return w->kind == TD_W_BF16 || row * w->out <= whole_bytes ? w->out : div_up(div_up(w->out, pieces), ROUND) * ROUND;
}

static struct td_cuda_dense *find(struct td_dev *dev, const struct td_linear *w, int f32, int accumulate)
{
	struct td_cuda_dense *d = dev->dense;

	while (d && (d->in != w->in || d->out != w->out || d->f32 != f32 || d->accumulate != accumulate))
		d = d->next;
	if (d)
		return d;
	d = (struct td_cuda_dense *)calloc(1, sizeof(*d));
	if (!d) {
		td__cuda_fail(dev, TD_E_NOMEM, "no memory for the shape of a linear map");
		return NULL;
	}
	*d = {dev->dense, w->in, w->out, f32, accumulate};
	dev->dense = d;
	if (choose(dev, d, piece(w)))
		td__cuda_fail(dev, TD_E_DEVICE, "GPU %d: cuBLAS knows no way to multiply by a linear map %d x %d", dev->ordinal, w->out, w->in);
	return d;
}

void td__cuda_dense_close(struct td_dev *dev)
{
	while (dev->dense) {
		struct td_cuda_dense *d = dev->dense;

		dev->dense = d->next;
		free(d);
	}
}

static void rows_by(struct td_dev *dev, const struct td_cuda_dense *d, const bf16 *w, int out, struct td_tensor x, struct td_tensor y)
{
	for (int row0 = 0; row0 < x.rows && !dev->error.code; row0 += d->most) {
		int rows = x.rows - row0 < d->most ? x.rows - row0 : d->most, size = SIZES - 1;
		cublasStatus_t s;

		while (size > 0 && rows < size_rows[size])
			size--;
		s = multiply(dev, d, &d->algo[size], w, out, td_rows(x, row0, rows), td_rows(y, row0, rows));
		if (s != CUBLAS_STATUS_SUCCESS)
			td__cuda_fail(dev, TD_E_DEVICE, "GPU %d: linear map %d x %d with %d rows: cuBLAS says %s", dev->ordinal, out, d->in, rows,
				      cublasLtGetStatusString(s));
	}
}

void td__cuda_dense(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	int step = piece(w);
	struct td_cuda_dense *d = find(dev, w, y.dtype == TD_F32, accumulate);
	bf16 *expanded = NULL;

	if (w->kind == TD_W_INT4)
		expanded = (bf16 *)td__cuda_scratch(dev, (size_t)step * w->in * 2);
	for (int out0 = 0; out0 < w->out && !dev->error.code; out0 += step) {
		int out = w->out - out0 < step ? w->out - out0 : step;

		if (expanded)
			td__cuda_int4_expand(dev, w, out0, out, expanded);
		rows_by(dev, d, expanded ? expanded : (const bf16 *)w->data + (size_t)out0 * w->in, out, x, td_cols(y, out0, out));
	}
}
