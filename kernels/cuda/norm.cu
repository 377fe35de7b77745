/*
 * norm.cu: what happens to a row by itself: RMS norm, SwiGLU.
 *
 * One block per row; each thread takes the same columns whatever the batch, so the order of the sum is the shape's alone.
 */
#include "kernels/cuda/internal.cuh"

enum { THREADS = 256 };

/* Sum over the block in one order; every thread gets it. */
static __device__ float block_sum(float v)
{
	__shared__ float part[THREADS / 32];
	float sum = 0;

	v = warp_sum(v);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = v;
	__syncthreads();
	for (int i = 0; i < THREADS / 32; i++)
		sum += part[i];
	return sum;
}

/* Pairs of columns; the odd last column is thread 0's. */
static __global__ void rms_norm_kernel(const bf16 *x, int ldx, const float *w, float eps, float one, bf16 *y, int ldy, int cols, int paired)
{
	float sum = 0, scale;

	x += (size_t)blockIdx.x * ldx;
	y += (size_t)blockIdx.x * ldy;
	if (!paired) {
		for (int c = threadIdx.x; c < cols; c += THREADS)
			sum += __bfloat162float(x[c]) * __bfloat162float(x[c]);
		scale = 1.0f / sqrtf(block_sum(sum) / cols + eps);
		for (int c = threadIdx.x; c < cols; c += THREADS)
			y[c] = __float2bfloat16(__bfloat162float(x[c]) * scale * (one + w[c]));
		return;
	}
	for (int c = threadIdx.x; c < cols / 2; c += THREADS) {
		uint32_t v = ((const uint32_t *)x)[c];

		sum += bf16_lo(v) * bf16_lo(v) + bf16_hi(v) * bf16_hi(v);
	}
	scale = 1.0f / sqrtf(block_sum(sum) / cols + eps);
	for (int c = threadIdx.x; c < cols / 2; c += THREADS) {
		uint32_t v = ((const uint32_t *)x)[c];

		((uint32_t *)y)[c] = bf16_pair(bf16_lo(v) * scale * (one + w[2 * c]), bf16_hi(v) * scale * (one + w[2 * c + 1]));
	}
}

static int paired(struct td_tensor t)
{
	return t.ld % 2 == 0 && t.cols % 2 == 0 && (uintptr_t)t.data % 4 == 0;
}

void td__cuda_rms_norm(struct td_dev *dev, struct td_tensor x, const float *w, float eps, int zero_centred, struct td_tensor y)
{
	if (dev->error.code || x.rows == 0 || td__cuda_type(dev, x, TD_BF16, "rms_norm") || td__cuda_type(dev, y, TD_BF16, "rms_norm"))
		return;
	rms_norm_kernel<<<x.rows, THREADS, 0, dev->stream>>>((const bf16 *)x.data, x.ld, w, eps, zero_centred ? 1.0f : 0.0f, (bf16 *)y.data, y.ld,
							     x.cols, paired(x) && paired(y));
	td__cuda_launched(dev, "rms_norm");
}

static __global__ void swiglu_kernel(const bf16 *x, int ldx, bf16 *y, int ldy, int cols)
{
	int c = blockIdx.x * THREADS + threadIdx.x;
	const bf16 *gate = x + (size_t)blockIdx.y * ldx;

	if (c < cols)
		y[(size_t)blockIdx.y * ldy + c] = __float2bfloat16(silu(__bfloat162float(gate[c])) * __bfloat162float(gate[cols + c]));
}

void td__cuda_swiglu(struct td_dev *dev, struct td_tensor x, struct td_tensor y)
{
	if (dev->error.code || x.rows == 0 || td__cuda_type(dev, x, TD_BF16, "swiglu") || td__cuda_type(dev, y, TD_BF16, "swiglu"))
		return;
	swiglu_kernel<<<dim3(div_up(y.cols, THREADS), y.rows), THREADS, 0, dev->stream>>>((const bf16 *)x.data, x.ld, (bf16 *)y.data, y.ld, y.cols);
	td__cuda_launched(dev, "swiglu");
}
