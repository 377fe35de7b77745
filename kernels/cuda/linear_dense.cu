/*
 * linear_dense.cu: products of whole blocks of a prompt's rows, by cuBLAS.
 *
 * INT4 weights are expanded to bf16 first, a piece of the outputs at a time so that the piece stays in the L2 cache. A product of one fixed shape takes
 * one kernel, so a position's bits depend neither on the chunk (of 256 or more) nor on other prompts in it.
 */
#include "kernels/cuda/internal.cuh"
#include "kernels/pack.h"

enum { TILE = TD_PACK_TILE };
static const size_t expanded_bytes = (size_t)32 << 20;

/* y[:, out0 .. out0 + out) (+)= x * w', w row-major (out, in), in one cuBLAS call of TD_CUDA_LARGE rows. */
static void dense(struct td_dev *dev, struct td_tensor x, const bf16 *w, int in, int out, struct td_tensor y, int accumulate)
{
	float one = 1, beta = accumulate ? 1 : 0;
	cublasStatus_t s = cublasGemmEx(dev->blas, CUBLAS_OP_T, CUBLAS_OP_N, out, x.rows, in, &one, w, CUDA_R_16BF, in, x.data, CUDA_R_16BF, x.ld,
					&beta, y.data, y.dtype == TD_F32 ? CUDA_R_32F : CUDA_R_16BF, y.ld, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);

	if (s != CUBLAS_STATUS_SUCCESS)
		td__cuda_fail(dev, TD_E_DEVICE, "GPU %d: linear map %d x %d with %d rows: cuBLAS says %s", dev->ordinal, out, in, x.rows,
			      cublasGetStatusString(s));
}

void td__cuda_dense(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	int step = w->out;
	bf16 *expanded = NULL;

	if (w->kind == TD_W_INT4) {
		step = (int)(expanded_bytes / ((size_t)w->in * 2)) / TILE * TILE;
		step = step < TILE ? TILE : step;
		expanded = (bf16 *)td__cuda_scratch(dev, (size_t)step * w->in * 2);
	}
	for (int out0 = 0; out0 < w->out && !dev->error.code; out0 += step) {
		int out = w->out - out0 < step ? w->out - out0 : step;

		if (expanded)
			td__cuda_int4_expand(dev, w, out0, out, expanded);
		for (int row0 = 0; row0 < x.rows; row0 += TD_CUDA_LARGE)
			dense(dev, td_rows(x, row0, TD_CUDA_LARGE), expanded ? expanded : (const bf16 *)w->data + (size_t)out0 * w->in, w->in, out,
			      td_cols(td_rows(y, row0, TD_CUDA_LARGE), out0, out), accumulate);
	}
}
