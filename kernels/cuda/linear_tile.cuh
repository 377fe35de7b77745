/*
 * linear_tile.cuh: the frame of both small linear kernels (linear_int4.cu, linear_bf16.cu): 1 to 64 rows, the same bits for a row in any company.
 *
 * A weight format F says how many outputs a strip has (16 * F::TILES), how many 16-byte slots a lane's share of a unit takes (F::SLOTS), how to
 * fetch them and how to multiply them. A unit is 32 columns. The frame:
 *
 *	strip x rows  =  sum over slices ( sum over warps ( sum over the warp's units of its slice ))
 *
 * A block owns one strip and one slice of the units (gridDim.y slices); its 8 warps take the slice's units in turn. Each lane streams its
 * weights and activations through its own ring of asynchronous copies: nobody else reads them, so there is no barrier in the loop. Every sum
 * has one order, which depends on the weight's shape and the GPU alone; the last block of a strip to finish adds the slices.
 */
#ifndef TD_CUDA_LINEAR_TILE_CUH
#define TD_CUDA_LINEAR_TILE_CUH

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"

enum { UNIT = 32, WARPS = 8 };

struct linear_args {
	const void *w, *scale;
	int in, out, units, units_per_group;
	const bf16 *x; /* (rows, ldx) */
	int ldx, rows;
	void *y; /* (rows, ldy) */
	int ldy, y_f32, accumulate;
	float *partial; /* (slices, rows, strips * 16 * TILES) */
	unsigned *counter;
};

static __device__ __forceinline__ void put(const struct linear_args &p, int row, int o, float v)
{
	size_t at = (size_t)row * p.ldy + o;

	if (p.y_f32) {
		float *y = (float *)p.y;

		y[at] = p.accumulate ? y[at] + v : v;
	} else {
		bf16 *y = (bf16 *)p.y;

		y[at] = __float2bfloat16(p.accumulate ? __bfloat162float(y[at]) + v : v);
	}
}

/* Asks for one unit: the format's slots, then one slot per 8 rows of activations. A slot is 32 lanes x 16 bytes. */
template <class F, int NT> static __device__ __forceinline__ void fetch(const struct linear_args &p, uint4 *stage, int u, int row0, int lane)
{
	int g = lane >> 2, k = u * UNIT + (lane & 3) * 8, left = (p.in - k) * 2, bytes = left >= 16 ? 16 : left > 0 ? left : 0;

	k = left > 0 ? k : 0;
	F::fetch(p, stage, u, k, bytes, lane);
#pragma unroll
	for (int n = 0; n < NT; n++) {
		int row = row0 + n * 8 + g, there = row < p.rows;

		copy16(stage + (F::SLOTS + n) * 32 + lane, p.x + (size_t)(there ? row : 0) * p.ldx + k, there ? bytes : 0);
	}
}

/* Adds the warps in order, then, if the units are sliced, the slices in order. */
template <class F, int NT> static __device__ void finish(const struct linear_args &p, float *sh, int row0, const float acc[F::TILES][NT][4])
{
	enum { STRIP = 16 * F::TILES, PITCH = STRIP + 4 };
	int warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
	int wide = gridDim.x * STRIP;
	float *mine = sh + warp * (NT * 8 * PITCH);

	__syncthreads();
#pragma unroll
	for (int m = 0; m < F::TILES; m++)
#pragma unroll
		for (int n = 0; n < NT; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				mine[(n * 8 + 2 * t + (i & 1)) * PITCH + m * 16 + g + 8 * (i >> 1)] = acc[m][n][i];
	__syncthreads();
	for (int i = threadIdx.x; i < NT * 8 * STRIP; i += WARPS * 32) {
		int o = i % STRIP, r = i / STRIP, row = row0 + r;
		float v = 0;

		for (int k = 0; k < WARPS; k++)
			v += sh[(k * NT * 8 + r) * PITCH + o];
		if (row >= p.rows)
			continue;
		if (gridDim.y > 1)
			p.partial[((size_t)blockIdx.y * p.rows + row) * wide + blockIdx.x * STRIP + o] = v;
		else if ((int)blockIdx.x * STRIP + o < p.out)
			put(p, row, blockIdx.x * STRIP + o, v);
	}
	if (gridDim.y == 1 || !last_to_arrive(p.counter + blockIdx.z * gridDim.x + blockIdx.x, gridDim.y))
		return;
	for (int i = threadIdx.x; i < NT * 8 * STRIP; i += WARPS * 32) {
		int o = blockIdx.x * STRIP + i % STRIP, row = row0 + i / STRIP;
		float v = 0;

		if (row >= p.rows || o >= p.out)
			continue;
		for (unsigned k = 0; k < gridDim.y; k++)
			v += __ldcg(&p.partial[((size_t)k * p.rows + row) * wide + o]);
		put(p, row, o, v);
	}
}

/* grid (strips, slices, groups of NT * 8 rows) */
template <class F, int NT, int STAGES> static __global__ void __launch_bounds__(WARPS * 32, 2) linear_kernel(const struct linear_args p)
{
	extern __shared__ uint4 ring_sh[]; /* (WARPS, STAGES, SLOTS + NT, 32), later the warps' sums */
	enum { STAGE = (F::SLOTS + NT) * 32 };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row0 = blockIdx.z * NT * 8;
	int first = (int)((long long)p.units * blockIdx.y / gridDim.y) + warp, end = (int)((long long)p.units * (blockIdx.y + 1) / gridDim.y);
	uint4 *ring = ring_sh + warp * STAGES * STAGE;
	float acc[F::TILES][NT][4] = {};
	int stage = 0;

	for (int i = 0; i < STAGES - 1; i++) {
		if (first + i * WARPS < end)
			fetch<F, NT>(p, ring + i * STAGE, first + i * WARPS, row0, lane);
		copy_commit();
	}
	for (int u = first; u < end; u += WARPS) {
		int ahead = u + (STAGES - 1) * WARPS, into = stage ? stage - 1 : STAGES - 1;

		copy_wait<STAGES - 2>();
		if (ahead < end)
			fetch<F, NT>(p, ring + into * STAGE, ahead, row0, lane);
		copy_commit();
		F::template multiply<NT>(ring + stage * STAGE, lane, acc);
		stage = stage == STAGES - 1 ? 0 : stage + 1;
	}
	copy_wait<0>();
	finish<F, NT>(p, (float *)ring_sh, row0, acc);
}

template <class F, int NT, int STAGES> static void launch(struct td_dev *dev, const struct linear_args &p, int strips, int slices)
{
	size_t ring = (size_t)WARPS * STAGES * (F::SLOTS + NT) * 512, sums = (size_t)WARPS * NT * 8 * (16 * F::TILES + 4) * 4;
	size_t shared = ring > sums ? ring : sums;
	static int allowed; /* once per kernel */

	if (!allowed)
		td__cuda_shared(dev, linear_kernel<F, NT, STAGES>, shared);
	allowed = 1;
	linear_kernel<F, NT, STAGES><<<dim3(strips, slices, div_up(p.rows, NT * 8)), WARPS * 32, shared, dev->stream>>>(p);
	td__cuda_launched(dev, "linear");
}

/* The stages are as many as fit twice in a multiprocessor of the H200 and once in 99 KiB. */
template <class F> static void run(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate, const void *scale)
{
	int strips = div_up(w->out, 16 * F::TILES), units = div_up(w->in, UNIT), slices = td__cuda_ksplit(dev, strips, units, WARPS);
	struct linear_args p;

	p.w = w->data;
	p.scale = scale;
	p.in = w->in;
	p.out = w->out;
	p.units = units;
	p.units_per_group = w->kind == TD_W_INT4 ? w->group / UNIT : 1;
	p.x = (const bf16 *)x.data;
	p.ldx = x.ld;
	p.rows = x.rows;
	p.y = y.data;
	p.ldy = y.ld;
	p.y_f32 = y.dtype == TD_F32;
	p.accumulate = accumulate;
	p.counter = dev->counters;
	p.partial = slices > 1 ? (float *)td__cuda_scratch(dev, (size_t)slices * x.rows * strips * 16 * F::TILES * 4) : NULL;
	if (dev->error.code)
		return;
	if (x.rows <= 8)
		launch<F, 1, 5>(dev, p, strips, slices);
	else if (x.rows <= 16)
		launch<F, 2, 4>(dev, p, strips, slices);
	else if (x.rows <= 24)
		launch<F, 3, 3>(dev, p, strips, slices);
	else
		launch<F, 4, 3>(dev, p, strips, slices);
}

#endif
