/*
 * bench.cu: what only `tandem bench` uses: assumed acceptance, and what the GPU gives without kernels of ours.
 *
 *	assume	one warp per sequence, one lane per draft: raises or bars that draft in its row of logits (kernels/assume.h)
 *	read	all multiprocessors full of threads, 16-byte loads, four in flight each: the rate at which memory can be read
 *	dense	a list of BF16 products by cuBLAS, one behind another, each with weights of its own: what streaming them takes in the best known library
 *
 * The roofs take memory and give it back; nothing of this runs while serving, but for assume under its lever.
 */
#include <cublas_v2.h>
#include <time.h>

#include "kernels/assume.h"
#include "kernels/cuda/internal.cuh"

enum { WARP = 32, THREADS = 256, BLOCKS_PER_SM = 8, SAMPLES = 5, SAMPLE_US = 20000 };

static __global__ void assume_kernel(const struct td_seq *seq, const struct td_draft *draft, const struct td_sampling *sampling, float *logits, int ld,
				     int rows, int cols)
{
	struct td_seq s;
	int n, id, r = threadIdx.x;

	let_next_start();
	after_previous();
	s = seq[blockIdx.x];
	n = td_assumed(sampling[s.slot].seed, s.pos0, s.rows);
	if (r >= n || r >= s.rows - 1 || r >= TD_DRAFT_MAX || s.row0 + r >= rows)
		return;
	id = draft[s.slot].token[r];
	if (id >= 0 && id < cols)
		logits[(size_t)(s.row0 + r) * ld + id] = r < n - 1 ? 1e30f : -INFINITY;
}

void td__cuda_assume(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, const struct td_draft *draft, const struct td_sampling *sampling)
{
	if (dev->error.code || b->n_seq == 0 || td__cuda_type(dev, logits, TD_F32, "assume"))
		return;
	td__cuda_launch(dev, "assume", assume_kernel, b->n_seq, WARP, 0, b->dev, draft, sampling, (float *)logits.data, logits.ld, logits.rows, logits.cols);
}

/* ---- roofs --------------------------------------------------------------------------------------------------------------------------- */

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

/* BF16 of magnitude about 0.01 and either sign: zeros would cost the GPU less power, and so time. */
static __global__ void fill_kernel(uint32_t *p, size_t n)
{
	for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
		uint32_t x = (uint32_t)i * 2654435761u;

		x ^= x >> 15;
		x *= 2246822519u;
		p[i] = (x & 0x80ff80ffu) | 0x3c003c00u;
	}
}

/* Each thread's sum is stored only where it is a number that never comes, so that the loads can't be left out. */
static __global__ void __launch_bounds__(THREADS) read_kernel(const uint4 *p, size_t n, uint32_t *out)
{
	size_t step = (size_t)gridDim.x * THREADS, i = (size_t)blockIdx.x * THREADS + threadIdx.x;
	uint32_t sum = 0;

	for (; i + 3 * step < n; i += 4 * step) {
		uint4 a = p[i], b = p[i + step], c = p[i + 2 * step], d = p[i + 3 * step];

		sum += (a.x ^ a.y ^ a.z ^ a.w) + (b.x ^ b.y ^ b.z ^ b.w) + (c.x ^ c.y ^ c.z ^ c.w) + (d.x ^ d.y ^ d.z ^ d.w);
	}
	for (; i < n; i += step)
		sum += p[i].x ^ p[i].y ^ p[i].z ^ p[i].w;
	if (sum == 0x9e3779b9u)
		*out = sum;
}

struct roof {
	struct td_dev *dev;
	cublasHandle_t blas; /* the whole library: the module's own products take cublasLt alone */
	char *mem, *x, *y; /* weights, or what is read; rows in and out */
	size_t bytes;
	const struct td_linear *shape;
	int n, rows;
};

static void once_read(struct roof *r)
{
	read_kernel<<<r->dev->sms * BLOCKS_PER_SM, THREADS, 0, r->dev->stream>>>((const uint4 *)r->mem, r->bytes / sizeof(uint4), r->dev->counters);
	td__cuda_launched(r->dev, "reading memory");
}

static void once_dense(struct roof *r)
{
	const char *w = r->mem;
	float one = 1, zero = 0;

	for (int i = 0; i < r->n && !r->dev->error.code; i++) {
		int in = r->shape[i].in, out = r->shape[i].out;

		if (cublasGemmEx(r->blas, CUBLAS_OP_T, CUBLAS_OP_N, out, r->rows, in, &one, w, CUDA_R_16BF, in, r->x, CUDA_R_16BF, in, &zero, r->y,
				 CUDA_R_16BF, out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS)
			td__cuda_fail(r->dev, TD_E_DEVICE, "GPU %d: cuBLAS can't multiply %d x %d with %d rows", r->dev->ordinal, out, in, r->rows);
		w += align256((size_t)in * out * sizeof(bf16));
	}
}

static double run_us(struct roof *r, void (*once)(struct roof *), int times, struct td_error *err)
{
	double from;

	td__cuda_sync(r->dev, err);
	from = now_us();
	for (int i = 0; i < times; i++)
		once(r);
	td__cuda_sync(r->dev, err);
	return (now_us() - from) / times;
}

/* The median of a few runs of some 20 ms each. */
static int median(struct roof *r, void (*once)(struct roof *), double *us, struct td_error *err)
{
	double sample[SAMPLES], first;
	int times;

	run_us(r, once, 1, err);
	first = run_us(r, once, 1, err);
	times = first > 0 && first < SAMPLE_US ? (int)(SAMPLE_US / first) : 1;
	for (int i = 0; i < SAMPLES && !r->dev->error.code; i++) {
		int k = i;
		double t = run_us(r, once, times, err);

		for (; k > 0 && t < sample[k - 1]; k--)
			sample[k] = sample[k - 1];
		sample[k] = t;
	}
	*us = sample[SAMPLES / 2];
	return td__cuda_sync(r->dev, err);
}

static char *filled(struct td_dev *dev, size_t bytes, struct td_error *err)
{
	char *p = (char *)td__cuda_alloc(dev, bytes, err);

	if (p) {
		fill_kernel<<<dev->sms * BLOCKS_PER_SM, THREADS, 0, dev->stream>>>((uint32_t *)p, bytes / sizeof(uint32_t));
		td__cuda_launched(dev, "filling memory");
	}
	return p;
}

int td__cuda_roof_read(struct td_dev *dev, size_t bytes, double *us, struct td_error *err)
{
	struct roof r = {};
	int rc;

	r.dev = dev;
	r.bytes = bytes;
	r.mem = filled(dev, bytes, err);
	rc = r.mem ? median(&r, once_read, us, err) : TD_E_NOMEM;
	td__cuda_free(dev, r.mem);
	return rc;
}

int td__cuda_roof_dense(struct td_dev *dev, const struct td_linear *shape, int n, int rows, double *us, struct td_error *err)
{
	struct roof r = {};
	size_t in = 0, out = 0;
	int rc;

	r.dev = dev;
	r.shape = shape;
	r.n = n;
	r.rows = rows;
	for (int i = 0; i < n; i++) {
		r.bytes += align256((size_t)shape[i].in * shape[i].out * sizeof(bf16));
		in = (size_t)shape[i].in > in ? (size_t)shape[i].in : in;
		out = (size_t)shape[i].out > out ? (size_t)shape[i].out : out;
	}
	r.mem = filled(dev, r.bytes, err);
	r.x = r.mem ? filled(dev, in * rows * sizeof(bf16), err) : NULL;
	r.y = r.x ? filled(dev, out * rows * sizeof(bf16), err) : NULL;
	if (r.y && (cublasCreate(&r.blas) != CUBLAS_STATUS_SUCCESS || cublasSetStream(r.blas, dev->stream) != CUBLAS_STATUS_SUCCESS))
		td__cuda_fail(dev, TD_E_DEVICE, "GPU %d: cuBLAS can't be started; its memory may be taken by another program", dev->ordinal);
	rc = r.y ? median(&r, once_dense, us, err) : TD_E_NOMEM;
	if (r.blas)
		cublasDestroy(r.blas);
	td__cuda_free(dev, r.y);
	td__cuda_free(dev, r.x);
	td__cuda_free(dev, r.mem);
	return rc;
}
