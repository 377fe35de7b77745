/*
 * norm.cu: what happens to a row by itself: RMS norm, SwiGLU.
 *
 * RMS norm: one block per row, which a thread reads once, 8 neighbouring columns at a time, and keeps; a few such groups for rows of more than 8,192.
 * SwiGLU: a thread takes 8 columns of a row. Each thread takes the same columns whatever the batch, so the order of the sum is the shape's alone. Rows
 * that do not lie at multiples of 16 bytes are read one by one, by kernels of their own: nothing of the 4B model is. A normed row may be wanted in 8 bits,
 * too (td_tensor.eight), for products that would otherwise round it in each of their blocks.
 */
#include "kernels/cuda/act8.cuh"
#include "kernels/cuda/internal.cuh"

enum { GROUP = 8, THREADS_MAX = 1024, GROUPS_MAX = 4, SINGLE_THREADS = 256, SWIGLU_THREADS = 128 };

/* Sum over the block in one order; every thread gets it. */
static __device__ float block_sum(float v)
{
	__shared__ float part[THREADS_MAX / 32];
	float sum = 0;

	v = warp_sum(v);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = v;
	__syncthreads();
	for (int i = 0; i < (int)blockDim.x / 32; i++)
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
static __device__ __forceinline__ void group_at(const float *x, float v[GROUP])
{
	float4 a = ((const float4 *)x)[0], b = ((const float4 *)x)[1];

	v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
	v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
static __device__ __forceinline__ void group_at(const bf16 *x, float v[GROUP])
{
	uint4 a = *(const uint4 *)x;

	v[0] = bf16_lo(a.x), v[1] = bf16_hi(a.x), v[2] = bf16_lo(a.y), v[3] = bf16_hi(a.y);
	v[4] = bf16_lo(a.z), v[5] = bf16_hi(a.z), v[6] = bf16_lo(a.w), v[7] = bf16_hi(a.w);
}
static __device__ __forceinline__ uint4 packed(const float v[GROUP])
{
	return make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
}
static __device__ __forceinline__ void group_to(bf16 *y, const float v[GROUP])
{
	*(uint4 *)y = packed(v);
}

/* ---- RMS norm ------------------------------------------------------------------------------------------------------------------------ */

/* A thread's groups of a row's weights, from column c0 on. */
template <int GROUPS> static __device__ __forceinline__ void weights_at(const float *w, int c0, int step, int cols, float (&by)[GROUPS][GROUP])
{
#pragma unroll
	for (int i = 0; i < GROUPS; i++)
		if (c0 + i * step < cols)
			group_at(w + c0 + i * step, by[i]);
}

/* Its groups of the normed row; y: the row. eight: and in 8 bits behind its columns; a chunk's 16 groups lie with neighbouring lanes, all of which call it. */
template <int GROUPS>
static __device__ __forceinline__ void normed_to(bf16 *y, int c0, int step, int cols, float (&v)[GROUPS][GROUP], const float (&by)[GROUPS][GROUP], float scale,
						 float one, int eight)
{
	int chunks = (cols + TD_ACT8_GROUP - 1) / TD_ACT8_GROUP;
	char *behind = (char *)(y + cols);

#pragma unroll
	for (int i = 0; i < GROUPS; i++) {
		int c = c0 + i * step;
		uint4 w = make_uint4(0, 0, 0, 0);

		if (c < cols) {
#pragma unroll
			for (int k = 0; k < GROUP; k++)
				v[i][k] *= scale * (one + by[i][k]);
			w = packed(v[i]);
			*(uint4 *)(y + c) = w;
		}
		if (eight) {
			float largest = act8_largest<TD_ACT8_GROUP / GROUP>(act8_most(w));

			if (c < chunks * TD_ACT8_GROUP)
				*(uint2 *)(behind + c / TD_ACT8_GROUP * TD_ACT8_GROUP + act8_place(c % TD_ACT8_GROUP / GROUP)) = act8_eight(w, act8_factor(largest));
			if (c % TD_ACT8_GROUP == 0 && c < cols)
				((float *)(behind + chunks * TD_ACT8_GROUP))[c / TD_ACT8_GROUP] = act8_scale(largest);
		}
	}
}

/* Threads for rows of so many groups. */
static int threads_for(int groups)
{
	return div_up(groups < THREADS_MAX ? groups : div_up(groups, GROUPS_MAX), 32) * 32;
}

template <class T, int GROUPS>
static __global__ void rms_norm_kernel(const T *x, int ldx, const float *w, float eps, float one, bf16 *y, int ldy, int cols, int eight)
{
	float sum = 0, by[GROUPS][GROUP], v[GROUPS][GROUP];
	int c0 = threadIdx.x * GROUP, step = blockDim.x * GROUP;

	weights_at(w, c0, step, cols, by);
	let_next_start();
	after_previous();
	x += (size_t)blockIdx.x * ldx + c0;
	y += (size_t)blockIdx.x * ldy;
#pragma unroll
	for (int i = 0; i < GROUPS; i++)
		if (c0 + i * step < cols)
			group_at(x + i * step, v[i]);
#pragma unroll
	for (int i = 0; i < GROUPS; i++)
		if (c0 + i * step < cols)
#pragma unroll
			for (int k = 0; k < GROUP; k++)
				sum += v[i][k] * v[i][k];
	normed_to(y, c0, step, cols, v, by, 1.0f / sqrtf(block_sum(sum) / cols + eps), one, eight);
}

template <class T> static __global__ void rms_norm_single(const T *x, int ldx, const float *w, float eps, float one, bf16 *y, int ldy, int cols, int)
{
	float sum = 0, scale;

	let_next_start();
	after_previous();
	x += (size_t)blockIdx.x * ldx;
	y += (size_t)blockIdx.x * ldy;
	for (int c = threadIdx.x; c < cols; c += SINGLE_THREADS)
		sum += value(x + c) * value(x + c);
	scale = 1.0f / sqrtf(block_sum(sum) / cols + eps);
	for (int c = threadIdx.x; c < cols; c += SINGLE_THREADS)
		y[c] = __float2bfloat16(value(x + c) * scale * (one + w[c]));
}

/* Can groups be read or written at once? */
static int grouped(struct td_tensor t)
{
	return t.cols % GROUP == 0 && (size_t)t.ld * td_dtype_size(t.dtype) % 16 == 0 && (uintptr_t)t.data % 16 == 0;
}

template <class T> static void rms_norm(struct td_dev *dev, struct td_tensor x, const float *w, float eps, float one, struct td_tensor y)
{
	int groups = x.cols / GROUP, threads = threads_for(groups);
	void (*kernel)(const T *, int, const float *, float, float, bf16 *, int, int, int) = rms_norm_kernel<T, 1>;

	if (!grouped(x) || !grouped(y) || (uintptr_t)w % 16 || groups > THREADS_MAX * GROUPS_MAX) {
		if (y.eight)
			td__cuda_fail(dev, TD_E_INTERNAL, "rms_norm: rows of %d columns that don't lie at multiples of 16 bytes can't be made in 8 bits", y.cols);
		kernel = rms_norm_single<T>;
		threads = SINGLE_THREADS;
	} else if (groups > THREADS_MAX) {
		kernel = rms_norm_kernel<T, GROUPS_MAX>;
	}
	td__cuda_launch(dev, "rms_norm", kernel, x.rows, threads, 0, (const T *)x.data, x.ld, w, eps, one, (bf16 *)y.data, y.ld, x.cols, y.eight);
}

void td__cuda_rms_norm(struct td_dev *dev, struct td_tensor x, const float *w, float eps, int zero_centred, struct td_tensor y)
{
	float one = zero_centred ? 1.0f : 0.0f;

	if (dev->error.code || x.rows == 0 || td__cuda_type(dev, y, TD_BF16, "rms_norm"))
		return;
	if (x.dtype == TD_F32)
		rms_norm<float>(dev, x, w, eps, one, y);
	else if (!td__cuda_type(dev, x, TD_BF16, "rms_norm"))
		rms_norm<bf16>(dev, x, w, eps, one, y);
}

/* ---- SwiGLU -------------------------------------------------------------------------------------------------------------------------- */

/* paired: eight gates and their eight fellows in turn, as paired maps give them */
static __global__ void swiglu_kernel(const bf16 *x, int ldx, bf16 *y, int ldy, int cols, int paired)
{
	int c = (blockIdx.y * SWIGLU_THREADS + threadIdx.x) * GROUP;
	const bf16 *gate = x + (size_t)blockIdx.x * ldx + (paired ? 2 * c : c);
	float g[GROUP], u[GROUP];

	let_next_start();
	after_previous();
	if (c >= cols)
		return;
	group_at(gate, g);
	group_at(gate + (paired ? (int)GROUP : cols), u);
#pragma unroll
	for (int k = 0; k < GROUP; k++)
		g[k] = silu(g[k]) * u[k];
	group_to(y + (size_t)blockIdx.x * ldy + c, g);
}

static __global__ void swiglu_single(const bf16 *x, int ldx, bf16 *y, int ldy, int cols, int)
{
	int c = blockIdx.y * SWIGLU_THREADS + threadIdx.x;
	const bf16 *gate = x + (size_t)blockIdx.x * ldx;

	let_next_start();
	after_previous();
	if (c < cols)
		y[(size_t)blockIdx.x * ldy + c] = __float2bfloat16(silu(__bfloat162float(gate[c])) * __bfloat162float(gate[cols + c]));
}

void td__cuda_swiglu(struct td_dev *dev, struct td_tensor x, struct td_tensor y)
{
	td__cuda_swiglu_of(dev, x, y, 0);
}

void td__cuda_swiglu_of(struct td_dev *dev, struct td_tensor x, struct td_tensor y, int paired)
{
	int each = grouped(x) && grouped(y) ? GROUP : 1;

	if (paired && each == 1)
		td__cuda_fail(dev, TD_E_INTERNAL, "swiglu: pairs of %d columns in rows of %d values that are not aligned", x.cols, x.ld);

	if (dev->error.code || x.rows == 0 || td__cuda_type(dev, x, TD_BF16, "swiglu") || td__cuda_type(dev, y, TD_BF16, "swiglu"))
		return;
	td__cuda_launch(dev, "swiglu", each == GROUP ? swiglu_kernel : swiglu_single, dim3(y.rows, div_up(y.cols / each, SWIGLU_THREADS)), SWIGLU_THREADS, 0,
			(const bf16 *)x.data, x.ld, (bf16 *)y.data, y.ld, y.cols, paired);
}
