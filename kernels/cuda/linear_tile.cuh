/*
 * linear_tile.cuh: the frame of both small linear kernels (linear_int4.cu, linear_bf16.cu): 1 to 64 rows, the same bits for a row in any company.
 *
 * A weight format F says how many outputs a strip has (16 * F::TILES), how many 16-byte slots a lane's share of a unit takes (F::SLOTS), how to
 * fetch them and how to multiply them. A unit is 32 columns of a strip. All units of a map form one line, strip after strip, which is cut into equal
 * ranges, one per block and (where shared memory allows) one block per multiprocessor:
 *
 *	line	| strip 0: units 0 .. n-1 | strip 1: units 0 .. n-1 | strip 2 ...
 *	blocks	|--- block 0 ---|--- block 1 ---|--- block 2 ---|--- ...
 *
 * So every multiprocessor streams the same number of bytes whatever the shape. In a block the warps take the units of the range in turn; each lane
 * streams its weights through its own ring of asynchronous copies, which nobody else reads: no barrier but at the end of a strip, where the warps'
 * sums are added, and the ring runs on across it. The activations that the range needs are in shared memory from the start, in fragment order.
 * A strip that several blocks share is finished by the last of them, from partial sums.
 *
 * Row invariance: an output is the sum over blocks of the sum over warps of the sum over units, each in one order that hangs on the weight's
 * shape and the GPU alone: the cut never looks at the number of rows.
 */
#ifndef TD_CUDA_LINEAR_TILE_CUH
#define TD_CUDA_LINEAR_TILE_CUH

#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"

#ifndef TD_LINEAR_WARPS
#define TD_LINEAR_WARPS 12
#endif
enum { UNIT = 32, WARPS = TD_LINEAR_WARPS, THREADS = WARPS * 32 };

struct linear_args {
	const void *w, *scale;
	int in, out, units, strips;
	uint64_t per_group; /* INT4: 2^32 / units of a group, rounded up */
	int range; /* units of a block */
	int slots; /* units of activations in shared memory: min(units, range) */
	const bf16 *x; /* (rows, ldx) */
	int ldx, rows;
	void *y; /* (rows, ldy) */
	int ldy, y_f32, accumulate;
	float *partial; /* (row groups, blocks, 2, rows of a group, outputs of a strip): a block's first and last strip */
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

/* The activations of the block's range to shared memory: x_sh (slots, NT, 32) x 16 bytes; lane (g, t) of a slot has columns 8t .. 8t+7 of row g. */
template <int NT> static __device__ void fetch_rows(const struct linear_args &p, uint4 *x_sh, int first, int row0)
{
	for (int i = threadIdx.x; i < p.slots * NT * 32; i += THREADS) {
		int lane = i & 31, n = i / 32 % NT, u = (first + i / (32 * NT)) % p.units, row = row0 + n * 8 + (lane >> 2), k = u * UNIT + (lane & 3) * 8;
		int left = row < p.rows ? (p.in - k) * 2 : 0, bytes = left >= 16 ? 16 : left > 0 ? left : 0;

		copy16(x_sh + i, p.x + (bytes ? (size_t)row * p.ldx + k : 0), bytes);
	}
}

/* Where block b keeps its sums of a strip: 0 when the strip began before the block, 1 when it begins in it. */
template <int COLS, int STRIP> static __device__ __forceinline__ float *partial_of(const struct linear_args &p, int b, int strip)
{
	return p.partial + (((size_t)blockIdx.z * gridDim.x + b) * 2 + (b * p.range <= strip * p.units)) * COLS * STRIP;
}

/* The sums of a strip: warps in order; if the strip is shared, then blocks in order, by the last of them. ROUND * 8 rows at a time. */
template <class F, int NT, int ROUND> static __device__ void finish(const struct linear_args &p, float *sh, int row0, int strip, const float acc[F::TILES][NT][4])
{
	enum { STRIP = 16 * F::TILES, PITCH = STRIP + 4, COLS = NT * 8 };
	int warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, o0 = strip * STRIP;
	int from = strip * p.units / p.range, to = ((strip + 1) * p.units - 1) / p.range; /* blocks that share it */
	float *mine = sh + warp * (ROUND * 8 * PITCH), *partial = partial_of<COLS, STRIP>(p, blockIdx.x, strip);

#pragma unroll
	for (int n0 = 0; n0 < NT; n0 += ROUND) {
		__syncthreads();
#pragma unroll
		for (int m = 0; m < F::TILES; m++)
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
			if (from != to)
				partial[(n0 * 8 + r) * STRIP + o] = v;
			else if (o0 + o < p.out)
				put(p, row, o0 + o, v);
		}
	}
	if (from == to || !last_to_arrive(p.counter + blockIdx.z * p.strips + strip, to - from + 1))
		return;
	for (int i = threadIdx.x; i < COLS * STRIP; i += THREADS) {
		int o = o0 + i % STRIP, row = row0 + i / STRIP;
		float v = 0;

		if (row >= p.rows || o >= p.out)
			continue;
#pragma unroll 4
		for (int b = from; b <= to; b++)
			v += __ldcg(&partial_of<COLS, STRIP>(p, b, strip)[i]);
		put(p, row, o, v);
	}
}

template <class F, int NT, int STAGES> struct linear_shape {
	static constexpr int round = NT == 2 ? 2 : 1; /* rows summed at once at the end of a strip, in eights: what fits beside the rest */
	static constexpr size_t ring = (size_t)WARPS * STAGES * F::SLOTS * 512, sums = (size_t)WARPS * round * 8 * (16 * F::TILES + 4) * 4, slot = NT * 512;
};

/* grid (blocks, 1, groups of NT * 8 rows) */
template <class F, int NT, int STAGES> static __global__ void __launch_bounds__(THREADS, 1) linear_kernel(const struct linear_args p)
{
	extern __shared__ uint4 linear_sh[]; /* ring (WARPS, STAGES, SLOTS, 32), sums, activations (slots, NT, 32) */
	enum { STAGE = F::SLOTS * 32, STEP = STAGE * STAGES };
	int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row0 = blockIdx.z * NT * 8;
	int first = blockIdx.x * p.range, end = min(first + p.range, p.units * p.strips);
	uint4 *ring = linear_sh + warp * STEP + lane, *x_sh = linear_sh + (linear_shape<F, NT, STAGES>::ring + linear_shape<F, NT, STAGES>::sums) / 16;
	float *sums_sh = (float *)(linear_sh + linear_shape<F, NT, STAGES>::ring / 16);
	int l = first + warp, ahead = l, slot = warp % p.slots, stage = 0, into = 0;

	fetch_rows<NT>(p, x_sh, first, row0);
	copy_commit();
	for (int i = 0; i < STAGES - 1; i++, ahead += WARPS, into += STAGE) {
		if (ahead < end)
			F::fetch(p, ring + into, ahead, lane);
		copy_commit();
	}
	copy_wait<STAGES - 1>();
	__syncthreads();
	for (int strip = first / p.units; strip * p.units < end; strip++) {
		int stop = min(end, (strip + 1) * p.units);
		float acc[F::TILES][NT][4] = {};

		for (; l < stop; l += WARPS) {
			copy_wait<STAGES - 2>();
			if (ahead < end)
				F::fetch(p, ring + into, ahead, lane);
			copy_commit();
			F::template multiply<NT>(ring + stage, x_sh + slot * (NT * 32) + lane, acc);
			ahead += WARPS;
			stage = stage == STEP - STAGE ? 0 : stage + STAGE;
			into = into == STEP - STAGE ? 0 : into + STAGE;
			slot += WARPS;
			while (slot >= p.slots)
				slot -= p.slots;
		}
		finish<F, NT, linear_shape<F, NT, STAGES>::round>(p, sums_sh, row0, strip, acc);
	}
}

template <class F, int NT, int STAGES> static void launch(struct td_dev *dev, const struct linear_args &p, int blocks)
{
	size_t shared = linear_shape<F, NT, STAGES>::ring + linear_shape<F, NT, STAGES>::sums + p.slots * linear_shape<F, NT, STAGES>::slot;
	static size_t allowed; /* per kernel: the most it was given so far */

	if (shared > allowed)
		td__cuda_shared(dev, linear_kernel<F, NT, STAGES>, allowed = shared);
	linear_kernel<F, NT, STAGES><<<dim3(blocks, 1, div_up(p.rows, NT * 8)), THREADS, shared, dev->stream>>>(p);
	td__cuda_launched(dev, "linear");
}

/* Cuts the line of units: as many ranges as multiprocessors, or a multiple where the widest kernel's activations would not fit; at least a unit a warp. */
template <class F> static int cut(const struct td_dev *dev, struct linear_args *p)
{
	int total = p->units * p->strips, most = (int)((dev->shared_max - linear_shape<F, 4, 2>::ring - linear_shape<F, 4, 2>::sums) / linear_shape<F, 4, 2>::slot);
	int waves = 1;

	do
		p->range = div_up(total, dev->sms * waves++);
	while (p->range > most && p->units > most);
	p->range = p->range < WARPS ? WARPS : p->range;
	p->slots = p->units < p->range ? p->units : p->range;
	return div_up(total, p->range);
}

template <class F> static void run(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate, const void *scale)
{
	struct linear_args p;
	int blocks, groups = div_up(x.rows, 32);

	p.w = w->data;
	p.scale = scale;
	p.in = w->in;
	p.out = w->out;
	p.units = div_up(w->in, UNIT);
	p.strips = div_up(w->out, 16 * F::TILES);
	p.per_group = w->kind == TD_W_INT4 ? ((1ull << 32) + w->group / UNIT - 1) / (w->group / UNIT) : 0;
	p.x = (const bf16 *)x.data;
	p.ldx = x.ld;
	p.rows = x.rows;
	p.y = y.data;
	p.ldy = y.ld;
	p.y_f32 = y.dtype == TD_F32;
	p.accumulate = accumulate;
	p.counter = dev->counters;
	blocks = cut<F>(dev, &p);
	p.partial = (float *)td__cuda_scratch(dev, (size_t)groups * blocks * 2 * 32 * 16 * F::TILES * sizeof(float));
	if (dev->error.code)
		return;
	if (x.rows <= 8)
		launch<F, 1, 5>(dev, p, blocks);
	else if (x.rows <= 16)
		launch<F, 2, F::DEEP>(dev, p, blocks);
	else if (x.rows <= 24)
		launch<F, 3, 2>(dev, p, blocks);
	else
		launch<F, 4, 2>(dev, p, blocks);
}

#endif
