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

static __device__ __forceinline__ float value(const bf16 *x)
{
	return __bfloat162float(*x);
}
static __device__ __forceinline__ float value(const float *x)
{
	return *x;
}
static __device__ __forceinline__ float2 pair_at(const bf16 *x, int c)
{
	uint32_t v = ((const uint32_t *)x)[c];

	return make_float2(bf16_lo(v), bf16_hi(v));
}
static __device__ __forceinline__ float2 pair_at(const float *x, int c)
{
	return ((const float2 *)x)[c];
}

/* Pairs of columns; one by one where rows do not lie so. */
template <class T>
static __global__ void rms_norm_kernel(const T *x, int ldx, const float *w, float eps, float one, bf16 *y, int ldy, int cols, int paired)
{
	float sum = 0, scale;

	let_next_start();
	after_previous();
	x += (size_t)blockIdx.x * ldx;
	y += (size_t)blockIdx.x * ldy;
	if (!paired) {
		for (int c = threadIdx.x; c < cols; c += THREADS)
			sum += value(x + c) * value(x + c);
		scale = 1.0f / sqrtf(block_sum(sum) / cols + eps);
		for (int c = threadIdx.x; c < cols; c += THREADS)
			y[c] = __float2bfloat16(value(x + c) * scale * (one + w[c]));
		return;
	}
	for (int c = threadIdx.x; c < cols / 2; c += THREADS) {
		float2 v = pair_at(x, c);

		sum += v.x * v.x + v.y * v.y;
	}
	scale = 1.0f / sqrtf(block_sum(sum) / cols + eps);
	for (int c = threadIdx.x; c < cols / 2; c += THREADS) {
		float2 v = pair_at(x, c);

		((uint32_t *)y)[c] = bf16_pair(v.x * scale * (one + w[2 * c]), v.y * scale * (one + w[2 * c + 1]));
	}
}

/* May two neighbours be read or written at once? */
static int paired(struct td_tensor t)
{
	return t.ld % 2 == 0 && t.cols % 2 == 0 && (uintptr_t)t.data % (2 * td_dtype_size(t.dtype)) == 0;
}

void td__cuda_rms_norm(struct td_dev *dev, struct td_tensor x, const float *w, float eps, int zero_centred, struct td_tensor y)
{
	float one = zero_centred ? 1.0f : 0.0f;
	int both = paired(x) && paired(y);

	if (dev->error.code || x.rows == 0 || td__cuda_type(dev, y, TD_BF16, "rms_norm"))
		return;
	if (x.dtype == TD_F32)
		td__cuda_launch(dev, "rms_norm", rms_norm_kernel<float>, x.rows, THREADS, 0, (const float *)x.data, x.ld, w, eps, one, (bf16 *)y.data, y.ld,
				x.cols, both);
	else if (!td__cuda_type(dev, x, TD_BF16, "rms_norm"))
		td__cuda_launch(dev, "rms_norm", rms_norm_kernel<bf16>, x.rows, THREADS, 0, (const bf16 *)x.data, x.ld, w, eps, one, (bf16 *)y.data, y.ld,
				x.cols, both);
}

static __global__ void swiglu_kernel(const bf16 *x, int ldx, bf16 *y, int ldy, int cols)
{
	int c = blockIdx.x * THREADS + threadIdx.x;
	const bf16 *gate = x + (size_t)blockIdx.y * ldx;

	let_next_start();
	after_previous();
	if (c < cols)
		y[(size_t)blockIdx.y * ldy + c] = __float2bfloat16(silu(__bfloat162float(gate[c])) * __bfloat162float(gate[cols + c]));
}

void td__cuda_swiglu(struct td_dev *dev, struct td_tensor x, struct td_tensor y)
{
	if (dev->error.code || x.rows == 0 || td__cuda_type(dev, x, TD_BF16, "swiglu") || td__cuda_type(dev, y, TD_BF16, "swiglu"))
		return;
	td__cuda_launch(dev, "swiglu", swiglu_kernel, dim3(div_up(y.cols, THREADS), y.rows), THREADS, 0, (const bf16 *)x.data, x.ld, (bf16 *)y.data, y.ld,
			y.cols);
}
