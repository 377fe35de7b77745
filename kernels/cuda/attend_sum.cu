/*
 * attend_sum.cu: adds what the spans of a pair of row and query head left (attend.cu), divides, applies the gate.
 *
 * A chain of one wait: every lane knows before the kernel before this one ends where all its loads lie, asks for them at once, and what lanes share goes
 * through shuffles. With barriers and shared memory between (a block for 16 pairs, factors made once) it took twice as long.
 *
 * What must never happen: a sum whose order depends on anything but the row's own spans; a line that is given up before all that it holds has been read.
 */
#include "kernels/cuda/attend.cuh"

enum { WARPS = 8, THREADS = WARPS * 32 };
enum { QUARTER = (SPANS + 3) / 4 }; /* spans of a lane */

/* acc += f times the eight halves of a piece */
static __device__ __forceinline__ void add_piece(float acc[8], float f, uint4 v)
{
	const uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		float2 x = __half22float2(*(const __half2 *)&w[i]);

		acc[2 * i] = fmaf(f, x.x, acc[2 * i]);
		acc[2 * i + 1] = fmaf(f, x.y, acc[2 * i + 1]);
	}
}

/*
 * A warp has 32 dims of two pairs: a lane every fourth span of one piece; all that it needs is asked for at once, and where it lies is known before the wait.
 * The four parts are added in an order that hangs on nothing, and each then ends two of the piece's dims.
 * MANY: what many sequences left need not reach memory: its lines, which no other warp reads, are given up after use.
 * grid (pairs times D / 64 by WARPS, kv_heads, work items of this pass)
 */
template <int D, bool MANY> static __global__ void __launch_bounds__(THREADS, MANY ? 4 : 2) merge_kernel(const struct attend_args p)
{
	int item = p.item0 + blockIdx.z, warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x & 31, part = lane >> 3;
	int m = warp / (D / 32) * 2 + (lane >> 2 & 1), g = row_of(p, m), r = item % p.groups * p.rows_per_group + g, n;
	int head = blockIdx.y * p.gqa + m - g * p.gqa, col = warp % (D / 32) * 32 + part * 8 + (lane & 3) * 2;
	size_t pairs = ((size_t)blockIdx.z * p.w.kv_heads + blockIdx.y) * PAIRS;
	const uint4 *from = p.o + pairs * p.spans * (D / 8) + ((m / 16 * (D / 32) + warp % (D / 32)) * 16 + m % 16) * 4 + (lane & 3);
	const float2 *ms = p.ms + (pairs + m) * p.spans;
	struct td_seq s;
	struct reach a;
	float f[QUARTER], acc[8] = {}, max = -INFINITY, sum = 0;
	float2 w[QUARTER];
	uint4 v[QUARTER];
	uint32_t gate = 0;
	const bf16 *x;
	bf16 *out;

	let_next_start();
	s = part_of(p.seq[item / p.groups], p.part);
	a = reach_of(p, s, r);
	n = g < p.rows_per_group && r < s.rows ? min(a.end - a.tile + p.draft, p.spans) : 0;
	x = p.x + (size_t)(s.row0 + r) * p.ldx + (2 * head + 1) * D + col;
	out = p.out + (size_t)(s.row0 + r) * p.ldo + head * D + col;
	make_now(from);
	make_now(ms);
	make_now(x);
	make_now(out);
	after_previous();
#pragma unroll
	for (int i = 0; i < QUARTER; i++) {
		w[i] = make_float2(-INFINITY, 0);
		if (4 * i + part < n)
			w[i] = __ldcg(ms + 4 * i + part);
	}
#pragma unroll
	for (int i = 0; i < QUARTER; i++) {
		v[i] = make_uint4(0, 0, 0, 0);
		if (4 * i + part < n)
			v[i] = __ldcg(from + (size_t)(4 * i + part) * (PAIRS * D / 8));
	}
	if (p.w.gated && n > 0)
		gate = __ldcg((const uint32_t *)x);
#pragma unroll
	for (int i = 0; i < QUARTER; i++)
		max = fmaxf(max, w[i].x);
	max = fmaxf(max, __shfl_xor_sync(~0u, max, 8));
	max = fmaxf(max, __shfl_xor_sync(~0u, max, 16));
#pragma unroll
	for (int i = 0; i < QUARTER; i++) {
		f[i] = fast_exp2(w[i].x - max) * w[i].y;
		sum += f[i];
	}
	sum += __shfl_xor_sync(~0u, sum, 8);
	sum += __shfl_xor_sync(~0u, sum, 16);
#pragma unroll
	for (int i = 0; i < QUARTER; i++)
		add_piece(acc, f[i], v[i]);
	/* parts 2 and 3 take the upper four, parts 1 and 3 of these the upper two */
#pragma unroll
	for (int i = 0; i < 4; i++)
		acc[i] = (part & 2 ? acc[i + 4] : acc[i]) + __shfl_xor_sync(~0u, part & 2 ? acc[i] : acc[i + 4], 16);
#pragma unroll
	for (int i = 0; i < 2; i++)
		acc[i] = ((part & 1 ? acc[i + 2] : acc[i]) + __shfl_xor_sync(~0u, part & 1 ? acc[i] : acc[i + 2], 8)) * fast_inverse(sum);
	if (p.w.gated) {
		acc[0] *= sigmoid(bf16_lo(gate));
		acc[1] *= sigmoid(bf16_hi(gate));
	}
	if (n > 0)
		*(uint32_t *)out = bf16_pair(acc[0], acc[1]);
	if (MANY && (lane & 7) == 0) /* two pairs of one span: a line; the sums above have passed between the lanes, so all of it has been read */
#pragma unroll
		for (int i = 0; i < QUARTER; i++)
			if (4 * i + part < n)
				discard_line(from + (size_t)(4 * i + part) * (PAIRS * D / 8));
}

template <int D> static void merge(struct td_dev *dev, const struct attend_args *p, dim3 grid)
{
	td__cuda_launch(dev, "sum of attention", p->strands < p->spans ? merge_kernel<D, true> : merge_kernel<D, false>, grid, THREADS, 0, *p);
}

void td__attend_sum(struct td_dev *dev, const struct attend_args *p, int rows, int n)
{
	int dim = p->w.head_dim, warps = div_up(rows * p->gqa, 2) * (dim / 32);
	dim3 grid(div_up(warps, WARPS), p->w.kv_heads, n);

	if (dim == 256)
		merge<256>(dev, p, grid);
	else if (dim == 128)
		merge<128>(dev, p, grid);
	else
		merge<64>(dev, p, grid);
}
