/*
 * linear_bf16.cu: y = W x for plain row-major bf16 weights and 1 to 64 rows, the same bits for a row in any company.
 *
 * The frame is linear_tile.cuh, the loads bf16_format.cuh. A length that is no multiple of 8, or data off 16 bytes, takes a plain kernel: one warp per
 * output.
 */
#include "kernels/cuda/bf16_format.cuh"

/* One warp per output and row. */
static __global__ void plain_kernel(const struct linear_args p)
{
	int o = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31, row = blockIdx.y;
	const bf16 *w = (const bf16 *)p.w + (size_t)o * p.in, *x = p.x + (size_t)row * p.ldx;
	float v = 0;

	if (o >= p.out)
		return;
	for (int k = lane; k < p.in; k += 32)
		v += __bfloat162float(w[k]) * __bfloat162float(x[k]);
	v = warp_sum(v);
	if (lane == 0)
		put(p, row, o, v);
}

void td__cuda_bf16_small(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate)
{
	struct linear_args p = {};
	struct linear_use use = {};

	if (w->in % 8 == 0 && x.ld % 8 == 0 && (uintptr_t)x.data % 16 == 0 && (uintptr_t)w->data % 16 == 0) {
		use.accumulate = accumulate;
		run<bf16_format>(dev, x, w, y, use);
		return;
	}
	p.w = w->data;
	p.in = w->in;
	p.out = w->out;
	p.x = (const bf16 *)x.data;
	p.ldx = x.ld;
	p.y = y.data;
	p.ldy = y.ld;
	p.y_f32 = y.dtype == TD_F32;
	p.accumulate = accumulate;
	plain_kernel<<<dim3(div_up(w->out, 8), x.rows), 256, 0, dev->stream>>>(p);
	td__cuda_launched(dev, "linear (plain)");
}
