/*
 * linear_tile.cuh: the frame of both small linear kernels (linear_int4.cu, linear_bf16.cu): 1 to 64 rows, the same bits for a row in any company.
 *
 * A weight format F says how many bytes a unit takes (a unit: 32 outputs, a "strip", times 32 columns), how a lane fetches its share and how it
 * multiplies. A block takes a rectangle of strips times units, chosen so that every multiprocessor has about the same number of units:
 *
 *	columns		| slice 0: units 0 .. n-1 | slice 1 ...
 *	strips 0 .. k-1	|       block (0, 0)      |  block (0, 1)
 *	strips k .. 2k-1|       block (1, 0)      |  block (1, 1)
 *
 * Wide maps have one slice. Narrow ones (few strips, many columns) have several, and the last block of a row of the picture adds their sums.
 * In a block the warps take the units in turn, strip after strip; each lane streams its weights through its own ring of asynchronous copies, which
 * nobody else reads: no barrier but at the end of a strip, where the warps' sums are added, and the ring runs on across it. The activations of the
 * slice stay in shared memory, in fragment order, and serve all strips of the block.
 *
 * Row invariance: an output is the sum over slices of the sum over warps of the sum over units, each in one order that hangs on the weight's
 * shape and the GPU alone: the cut never looks at the number of rows.
 */
#ifndef TD_CUDA_LINEAR_TILE_CUH
#define TD_CUDA_LINEAR_TILE_CUH

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/pack.h"

enum { UNIT = TD_PACK_UNIT, STRIP = TD_PACK_STRIP, WARPS = 12, THREADS = WARPS * 32, PITCH = STRIP + 4 };

struct linear_args {
	const void *w, *scale;
	int in, out, units, strips; /* of the whole map */
	int block_units, block_strips; /* of a block */
	unsigned units_per_group, per_group; /* INT4; 2^32 / units_per_group, rounded up */
	const bf16 *x; /* (rows, ldx) */
	int ldx, rows;
	void *y; /* (rows, ldy) */
	int ldy, y_f32, accumulate;
	float *partial; /* (slices, rows, strips * STRIP) */
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

/* A lane's place in the line of units that its warp takes. */
struct cursor {
	int strip, u; /* of the block */
	unsigned l; /* of the map: strip * units + u */
};

static __device__ __forceinline__ void advance(struct cursor *c, int block_units, int units)
{
	c->u += WARPS;
	c->l += WARPS;
	while (c->u >= block_units) {
		c->u -= block_units;
		c->l += units - block_units;
		c->strip++;
	}
}

/* This lane's activations of one unit to x_sh (units, NT, 32) x 16 bytes; x: column 8t of row g of the block; k: first column that the lane reads. */
template <int NT>
static __device__ __forceinline__ void fetch_rows(const struct linear_args &p, uint32_t x_sh, const bf16 *x, int u, int k, int rows_left)
{
	int left = (p.in - k) * 2, bytes = left >= 16 ? 16 : left > 0 ? left : 0;

#pragma unroll
	for (int j = 0; j < NT; j++) {
		int there = bytes && j * 8 < rows_left;

		copy16_to(x_sh + (u * NT + j) * 512, there ? x + (size_t)(j * 8) * p.ldx + k : p.x, there ? bytes : 0);
	}
}

/* The sums of a strip, warps in order, ROUND * 8 rows at a time: to y, or to the slice's partial sums. */
template <int NT, int ROUND>
static __device__ __forceinline__ void finish(const struct linear_args &p, float *sh, int row0, int strip, const float acc[2][NT][4])
{
	int warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, o0 = strip * STRIP;
	float *mine = sh + warp * (ROUND * 8 * PITCH);

#pragma unroll
	for (int n0 = 0; n0 < NT; n0 += ROUND) {
		__syncthreads();
#pragma unroll
		for (int m = 0; m < 2; m++)
#pragma unroll
			for (int n = 0; n < ROUND && n0 + n < NT; n++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					mine[(n * 8 + 2 * t + (i & 1)) * PITCH + m * 16 + g + 8 * (i >> 1)] = acc[m][n0 + n][i];
		__syncthreads();
		for (int i = threadIdx.x; i < min((int)ROUND, NT - n0) * 8 * STRIP; i += THREADS) {
			int o = i % STRIP, r = i / STRIP, row = row0 + n0 * 8 + r;
			float v = 0;

#pragma unroll
			for (int k = 0; k < WARPS; k++)
				v += sh[(k * ROUND * 8 + r) * PITCH + o];
			if (row >= p.rows)
				continue;
			if (gridDim.y > 1)
				p.partial[((size_t)blockIdx.y * p.rows + row) * p.strips * STRIP + o0 + o] = v;
			else if (o0 + o < p.out)
				put(p, row, o0 + o, v);
		}
	}
}

/* By the last block of these strips: the slices in order. */
template <int NT> static __device__ void add_slices(const struct linear_args &p, int row0, int strip0, int strips)
{
	int wide = p.strips * STRIP, outs = min(strips * STRIP, p.out - strip0 * STRIP), rows = min(NT * 8, p.rows - row0);
	size_t step = (size_t)p.rows * wide;

	for (int i = threadIdx.x; i < outs * rows; i += THREADS) {
		int row = row0 + i / outs, o = strip0 * STRIP + i % outs;
		const float *from = p.partial + (size_t)row * wide + o;
		float v = 0;

#pragma unroll 8
		for (unsigned k = 0; k < gridDim.y; k++)
			v += __ldcg(from + k * step);
		put(p, row, o, v);
	}
}

template <class F, int NT, int STAGES> struct linear_shape {
	static constexpr int round = NT == 2 ? 2 : 1; /* rows summed at once at the end of a strip, in eights: what fits beside the rest */
	static constexpr size_t ring = (size_t)WARPS * STAGES * F::BYTES, sums = (size_t)WARPS * round * 8 * PITCH * 4, unit = NT * 512;
};

/*
 * grid (groups of strips, slices, groups of NT * 8 rows). While the block is in its first strip each warp fetches the activations of its own units
 * along with the weights; the barriers at the strip's end hand them to the other warps.
 */
template <class F, int NT, int STAGES> static __global__ void __launch_bounds__(THREADS, 1) linear_kernel(const struct linear_args p)
{
	extern __shared__ __align__(16) char linear_sh[]; /* ring (WARPS, STAGES, BYTES), sums, activations (units, NT, 32) x 16 bytes */
	typedef struct linear_shape<F, NT, STAGES> shape;
	enum { RING = F::BYTES * STAGES };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row0 = blockIdx.z * NT * 8, strip0 = blockIdx.x * p.block_strips,
	    u0 = blockIdx.y * p.block_units;
	int strips = min(p.block_strips, p.strips - strip0), units = min(p.block_units, p.units - u0), rows_left = p.rows - row0 - (lane >> 2);
	float *sums_sh = (float *)(linear_sh + shape::ring);
	uint32_t ring = shared_address(linear_sh) + warp * RING, x_sh = shared_address(linear_sh) + (uint32_t)(shape::ring + shape::sums) + lane * 16;
	const bf16 *x = p.x + (size_t)(row0 + (lane >> 2)) * p.ldx;
	int stage = 0, into = 0, column = u0 * UNIT + (lane & 3) * 8, u = warp;
	struct cursor ahead = {-1, warp - WARPS + units, (unsigned)(strip0 - 1) * p.units + u0 + warp - WARPS + units};
	typename F::lane weights(p, strip0, lane);

	for (int i = 0; i < STAGES - 1; i++) {
		advance(&ahead, units, p.units);
		if (ahead.strip < strips)
			weights.fetch(p, ring + into, ahead, u0);
		if (ahead.strip == 0)
			fetch_rows<NT>(p, x_sh, x, ahead.u, column + ahead.u * UNIT, rows_left);
		copy_commit();
		into += F::BYTES;
	}
	for (int strip = 0; strip < strips; strip++, u -= units) {
		float acc[2][NT][4] = {};

		for (; u < units; u += WARPS) {
			copy_wait<STAGES - 2>();
			advance(&ahead, units, p.units);
			if (ahead.strip < strips)
				weights.fetch(p, ring + into, ahead, u0);
			if (ahead.strip == 0)
				fetch_rows<NT>(p, x_sh, x, ahead.u, column + ahead.u * UNIT, rows_left);
			copy_commit();
			weights.template multiply<NT>(ring + stage, x_sh + u * (NT * 512), acc);
			stage = stage == RING - F::BYTES ? 0 : stage + F::BYTES;
			into = into == RING - F::BYTES ? 0 : into + F::BYTES;
		}
		finish<NT, shape::round>(p, sums_sh, row0, strip0 + strip, acc);
	}
	if (gridDim.y > 1 && last_to_arrive(p.counter + blockIdx.z * gridDim.x + blockIdx.x, gridDim.y))
		add_slices<NT>(p, row0, strip0, strips);
}

template <class F, int NT, int STAGES> static size_t shared_bytes(const struct linear_args &p)
{
	typedef struct linear_shape<F, NT, STAGES> shape;

	return shape::ring + shape::sums + p.block_units * shape::unit;
}

template <class F, int NT, int STAGES> static void launch(struct td_dev *dev, const struct linear_args &p, int groups, int slices)
{
	size_t shared = shared_bytes<F, NT, STAGES>(p);
	static size_t allowed; /* the most that this kernel was given so far */

	if (shared > allowed)
		td__cuda_shared(dev, linear_kernel<F, NT, STAGES>, allowed = shared);
	linear_kernel<F, NT, STAGES><<<dim3(groups, slices, div_up(p.rows, NT * 8)), THREADS, shared, dev->stream>>>(p);
	td__cuda_launched(dev, "linear");
}

/* The deeper ring where it fits: on GPUs with 99 KiB of shared memory it does not. Stages have no influence on results. */
template <class F, int NT> static void launch_deep(struct td_dev *dev, const struct linear_args &p, int groups, int slices)
{
	if (shared_bytes<F, NT, F::DEEP>(p) <= dev->shared_max)
		launch<F, NT, F::DEEP>(dev, p, groups, slices);
	else
		launch<F, NT, F::WIDE>(dev, p, groups, slices);
}

/*
 * The rectangle of a block: of all numbers of slices the one with the least work for the busiest multiprocessor, counted in units: its own, the end of
 * each strip (about 6 units' time), and what sharing costs. A slice is no wider than what the kernel for the most rows can hold.
 */
template <class F> static void cut(const struct td_dev *dev, struct linear_args *p, int *groups, int *slices)
{
	typedef struct linear_shape<F, 4, F::WIDE> widest;
	int most = (int)((dev->shared_max - widest::ring - widest::sums) / widest::unit), least = INT32_MAX;

	for (int s = div_up(p->units, most); s <= dev->sms && (s == div_up(p->units, most) || p->units / s >= WARPS); s++) {
		int units = div_up(p->units, s), used = div_up(p->units, units), rows = dev->sms / used > 0 ? dev->sms / used : 1;
		int strips = div_up(p->strips, rows), cost = strips * (units + 6) + (used > 1 ? 12 + used + strips * used / 4 : 0);

		if (cost >= least)
			continue;
		least = cost;
		p->block_units = units;
		p->block_strips = strips;
		*groups = div_up(p->strips, strips);
		*slices = used;
	}
}

template <class F>
static void run(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate, const void *scale)
{
	struct linear_args p;
	int groups = 1, slices = 1;
	size_t partial;

	p.w = w->data;
	p.scale = scale;
	p.in = w->in;
	p.out = w->out;
	p.units = div_up(w->in, UNIT);
	p.strips = div_up(w->out, STRIP);
	p.units_per_group = w->kind == TD_W_INT4 ? w->group / UNIT : 1;
	p.per_group = (unsigned)(((1ull << 32) + p.units_per_group - 1) / p.units_per_group);
	p.x = (const bf16 *)x.data;
	p.ldx = x.ld;
	p.rows = x.rows;
	p.y = y.data;
	p.ldy = y.ld;
	p.y_f32 = y.dtype == TD_F32;
	p.accumulate = accumulate;
	p.counter = dev->counters;
	cut<F>(dev, &p, &groups, &slices);
	partial = slices > 1 ? (size_t)slices * p.strips * STRIP * sizeof(float) : 0;
	if (partial * x.rows > td__cuda_scratch_size(dev) && x.rows > 8) { /* a row's bits don't depend on where the rows are cut */
		int half = div_up(x.rows / 2, 8) * 8;

		run<F>(dev, td_rows(x, 0, half), w, td_rows(y, 0, half), accumulate, scale);
		run<F>(dev, td_rows(x, half, x.rows - half), w, td_rows(y, half, x.rows - half), accumulate, scale);
		return;
	}
	p.partial = partial ? (float *)td__cuda_scratch(dev, partial * x.rows) : NULL;
	if (dev->error.code)
		return;
	if (x.rows <= 8)
		launch_deep<F, 1>(dev, p, groups, slices);
	else if (x.rows <= 16)
		launch_deep<F, 2>(dev, p, groups, slices);
	else if (x.rows <= 24)
		launch<F, 3, F::WIDE>(dev, p, groups, slices);
	else
		launch<F, 4, F::WIDE>(dev, p, groups, slices);
}

#endif
