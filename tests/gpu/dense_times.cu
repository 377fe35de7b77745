/*
 * dense_times.cu: what cublasLt offers for the products of a prompt (kernels/cuda/linear_dense.cu): a table by itself, without the module.
 *
 *	dense_times [choices]
 *
 * Per shape and number of rows one line: the library's choices in its own order, each with its time, and "=" where it gives the bits of the choice that
 * is first for 2,048 rows when that one is asked for 256 rows at a time; then the best such rate. So it says what a choice by time would gain over the
 * first one, and whether the bits of different tiles are one set.
 */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/trial.cuh"

enum { CHOICES = 16, ROWS = 8192, BASE = 256, RUNS = 10 };

#define OK(call) \
	do { \
		int code_ = (int)(call); \
		if (code_) { \
			fprintf(stderr, "dense_times: %s says %d\n", #call, code_); \
			exit(1); \
		} \
	} while (0)

static cublasLtHandle_t blas;
static cudaStream_t stream;
static cudaEvent_t from, to;

struct map {
	const char *name;
	int out, in, f32; /* f32: added to float32 rows */
};

struct call {
	cublasLtMatmulDescOpaque_t op;
	cublasLtMatrixLayoutOpaque_t w, x, y;
	const __nv_bfloat16 *wd, *xd;
	char *yd;
	int f32;
};

static struct call call_of(const struct map *m, int rows, const void *w, const void *x, void *y)
{
	const cublasOperation_t transposed = CUBLAS_OP_T;
	struct call c;

	OK(cublasLtMatmulDescInit(&c.op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	OK(cublasLtMatmulDescSetAttribute(&c.op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
	OK(cublasLtMatrixLayoutInit(&c.w, CUDA_R_16BF, m->in, m->out, m->in));
	OK(cublasLtMatrixLayoutInit(&c.x, CUDA_R_16BF, m->in, rows, m->in));
	OK(cublasLtMatrixLayoutInit(&c.y, m->f32 ? CUDA_R_32F : CUDA_R_16BF, m->out, rows, m->out));
	c.wd = (const __nv_bfloat16 *)w;
	c.xd = (const __nv_bfloat16 *)x;
	c.yd = (char *)y;
	c.f32 = m->f32;
	return c;
}

static int choices(struct call *c, cublasLtMatmulHeuristicResult_t found[CHOICES], int most)
{
	const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE, align = 16;
	const uint64_t workspace = 0;
	cublasLtMatmulPreferenceOpaque_t pref;
	int n = 0;

	OK(cublasLtMatmulPreferenceInit(&pref));
	OK(cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction)));
	OK(cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
	OK(cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof(align)));
	OK(cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof(align)));
	OK(cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof(align)));
	OK(cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof(align)));
	OK(cublasLtMatmulAlgoGetHeuristic(blas, &c->op, &c->w, &c->x, &c->y, &c->y, &pref, most, found, &n));
	return n;
}

static int multiply(struct call *c, const cublasLtMatmulAlgo_t *algo)
{
	float one = 1, beta = c->f32 ? 1 : 0;

	return cublasLtMatmul(blas, &c->op, &one, c->wd, &c->w, c->xd, &c->x, &beta, c->yd, &c->y, c->yd, &c->y, algo, NULL, 0, stream) !=
	       CUBLAS_STATUS_SUCCESS;
}

/* us of a call; -1: the algorithm does not take it */
static double time_of(struct call *c, const cublasLtMatmulAlgo_t *algo)
{
	float ms;

	if (multiply(c, algo))
		return -1;
	OK(cudaEventRecord(from, stream));
	for (int i = 0; i < RUNS; i++)
		multiply(c, algo);
	OK(cudaEventRecord(to, stream));
	OK(cudaEventSynchronize(to));
	OK(cudaEventElapsedTime(&ms, from, to));
	return ms * 1e3 / RUNS;
}

static void shape(const struct map *m, int most, char *w, char *x, char *y, char *base, unsigned long long *sum)
{
	static const int rows[] = {256, 512, 1024, 2048, 4096, 8192};
	cublasLtMatmulHeuristicResult_t found[CHOICES];
	size_t size = m->f32 ? 4 : 2;
	struct call c = call_of(m, 2048, w, x, y);
	cublasLtMatmulAlgo_t first;

	fill_kernel<<<1024, 256, 0, stream>>>(w, (size_t)m->out * m->in, 0, 1);
	fill_kernel<<<1024, 256, 0, stream>>>(x, (size_t)ROWS * m->in, 0, 2);
	fill_kernel<<<1024, 256, 0, stream>>>(base, (size_t)ROWS * m->out, m->f32, 3);
	if (!choices(&c, found, most))
		return;
	first = found[0].algo;
	for (int r = 0; r < ROWS; r += BASE) {
		struct call part = call_of(m, BASE, w, x + (size_t)r * m->in * 2, base + (size_t)r * m->out * size);

		if (multiply(&part, &first))
			return;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		double best = 0, flops = 2.0 * m->out * m->in * rows[i];
		int n;

		c = call_of(m, rows[i], w, x, y);
		n = choices(&c, found, most);
		printf("%-8s %5d x %5d, %4d rows:", m->name, m->out, m->in, rows[i]);
		for (int k = -1; k < n; k++) {
			const cublasLtMatmulAlgo_t *algo = k < 0 ? &first : &found[k].algo;
			double us = time_of(&c, algo);
			unsigned long long d = 0;

			fill_kernel<<<1024, 256, 0, stream>>>(y, (size_t)rows[i] * m->out, m->f32, 3);
			multiply(&c, algo);
			OK(cudaMemsetAsync(sum, 0, sizeof(*sum), stream));
			differ_kernel<<<1024, 256, 0, stream>>>((const uint32_t *)y, (const uint32_t *)base, (size_t)rows[i] * m->out * size / 4, sum);
			OK(cudaMemcpyAsync(&d, sum, sizeof(d), cudaMemcpyDeviceToHost, stream));
			OK(cudaStreamSynchronize(stream));
			printf(k < 0 ? " first %.0f%s |" : " %.0f%s", us, d ? "x" : "=");
			if (us > 0 && !d && flops / us * 1e-6 > best)
				best = flops / us * 1e-6;
		}
		printf(" us; best = %.0f TFLOP/s\n", best);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	static const struct map maps[] = {{"qkvz", 12288, 2560, 0}, {"qkv", 10240, 2560, 0}, {"out", 2560, 4096, 1},
					  {"gate_up", 18432, 2560, 0}, {"half", 9216, 2560, 0}, {"third", 6144, 2560, 0}, {"down", 2560, 9216, 1}, {"ba", 64, 2560, 1}};
	int most = argc > 1 ? atoi(argv[1]) : 8;
	unsigned long long *sum;
	char *w, *x, *y, *base;

	OK(cudaStreamCreate(&stream));
	OK(cudaEventCreate(&from));
	OK(cudaEventCreate(&to));
	OK(cublasLtCreate(&blas));
	OK(cudaMalloc(&w, (size_t)18432 * 2560 * 2));
	OK(cudaMalloc(&x, (size_t)ROWS * 9216 * 2));
	OK(cudaMalloc(&y, (size_t)ROWS * 18432 * 2));
	OK(cudaMalloc(&base, (size_t)ROWS * 18432 * 2));
	OK(cudaMalloc(&sum, sizeof(*sum)));
	for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++)
		shape(&maps[i], most > 0 && most < CHOICES ? most : CHOICES, w, x, y, base, sum);
	return 0;
}
