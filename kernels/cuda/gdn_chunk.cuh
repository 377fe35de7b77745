/*
 * gdn_chunk.cuh: what the parts of the chunked delta rule share: gdn_chunk.cu, where it is explained, gdn_local.cu and gdn_scan.cu.
 */
#ifndef TD_CUDA_GDN_CHUNK_CUH
#define TD_CUDA_GDN_CHUNK_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/gdn.cuh"
#include "kernels/pack.h"

enum {
	N = TD_SCRATCH_CHUNK, /* tokens of a chunk */
	P_UNITS = 10, P_ROOM = 16, /* 16 x 16 blocks on and below the diagonal, and room for all */
};
static_assert(TD_CUDA_LARGE % N == 0, "a run is whole chunks");

struct chunk_args {
	struct gdn_args g;
	int groups; /* of 16 columns of a value head */
	int chunk0, count; /* this launch's chunks of each run */
	int ring; /* chunks that scratch memory holds at a time, of one sequence alone; 0: all of the batch's */
	int together; /* local: value heads at a time */
	int stages; /* scan: 1, or 2 where shared memory allows */
	int matrices; /* units as group_mma_halves wants them (mma.cuh), all of P's by columns; else 16 bytes of each lane, P's P_UNITS by rows */
	/* by chunk (first_place) and head; 32 lanes of 16 bytes make a unit */
	uint4 *q, *k; /* (chunks, k_heads, k_dim / 16 * 4 units): (dims, tokens); (tokens, dims) */
	uint4 *w; /* (chunks, v_heads, a unit of decays: exp(G), exp(G_last - G); k_dim / 16 * 4 units): (dims, tokens) */
	uint4 *p; /* (chunks, v_heads, P_ROOM units) */
	uint4 *u; /* (chunks, v_heads, groups * 4 units): (columns, tokens) */
};

/* Where this launch's first chunk of a run lies in scratch memory. */
static __device__ __forceinline__ size_t first_place(const struct chunk_args &c, const struct td_seq &run)
{
	return c.ring ? c.chunk0 % c.ring : run.row0 / N + c.chunk0;
}
/* Of a chunk and value head: its decays, its W. */
static __device__ __forceinline__ float *decays_of(const struct chunk_args &c, size_t at)
{
	return (float *)(c.w + at * (c.g.w.k_dim / 4 + 1) * 32);
}
static __device__ __forceinline__ uint4 *w_of(const struct chunk_args &c, size_t at)
{
	return c.w + (at * (c.g.w.k_dim / 4 + 1) + 1) * 32;
}
/* r = U - r, of 16 tokens and the columns of a lane, whose words of U are u. */
static __device__ __forceinline__ void take_from_u(uint4 u, float (*r)[4])
{
	const uint32_t word[4] = {u.x, u.y, u.z, u.w};

#pragma unroll
	for (int n = 0; n < 4; n++) {
		float2 v = __half22float2(*(const __half2 *)&word[n]);
		float *d = r[n >> 1] + (n & 1) * 2;

		d[0] = v.x - d[0];
		d[1] = v.y - d[1];
	}
}
static __device__ __forceinline__ int unit_block(int i, int j)
{
	return i * (i + 1) / 2 + j;
}
/* A lane's words of a unit, by the one who makes it. */
template <bool MATRICES> static __device__ __forceinline__ void put_unit(uint4 *unit, uint32_t a, uint32_t b, uint32_t d, uint32_t e)
{
	int lane = threadIdx.x & 31;

	if (MATRICES) {
		uint32_t *to = (uint32_t *)unit + lane;

		to[0] = a;
		to[32] = b;
		to[64] = d;
		to[96] = e;
	} else {
		unit[lane] = make_uint4(a, b, d, e);
	}
}

/* ---- what both scans do ------------------------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ void operand(uint32_t a[4], const float x[4], const float y[4])
{
	a[0] = half_pair(x[0], x[1]);
	a[1] = half_pair(x[2], x[3]);
	a[2] = half_pair(y[0], y[1]);
	a[3] = half_pair(y[2], y[3]);
}

/* This lane's words of U. */
static __device__ __forceinline__ void take_u(const struct chunk_args &c, size_t chunk, int head, int group, uint4 u[4])
{
	const uint4 *from = c.u + ((chunk * c.g.w.v_heads + head) * c.groups + group) * 4 * 32 + (threadIdx.x & 31);

#pragma unroll
	for (int j = 0; j < 4; j++)
		u[j] = __ldcg(from + j * 32);
}

/* The state between memory (k_dim, v_dim) and fragments of its transpose. */
template <int KD, bool STORE, bool WITHIN> static __device__ __forceinline__ void move_columns(float *kept, int v_dim, int col, float state[KD / 8][4])
{
	int lane = threadIdx.x & 31;

#pragma unroll
	for (int d = 0; d < KD / 8; d++)
#pragma unroll
		for (int n = 0; n < 4; n++) {
			int k = d * 8 + (lane & 3) * 2 + (n & 1), c = col + (lane >> 2) + (n >> 1) * 8;

			if (WITHIN || c < v_dim) {
				if (STORE)
					kept[(size_t)k * v_dim + c] = state[d][n];
				else
					state[d][n] = kept[(size_t)k * v_dim + c];
			} else if (!STORE) {
				state[d][n] = 0;
			}
		}
}
template <int KD, bool STORE> static __device__ __forceinline__ void move_state(float *kept, int v_dim, int col, float state[KD / 8][4])
{
	if (col + 16 <= v_dim)
		move_columns<KD, STORE, true>(kept, v_dim, col, state);
	else
		move_columns<KD, STORE, false>(kept, v_dim, col, state);
}

/* The run's last rows become the tail; the blocks of a sequence share the channels. */
static __device__ void keep_tail(const struct gdn_args &p, const struct td_seq &s)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < TD_CONV_TAIL * p.channels / 2; i += gridDim.x * blockDim.x) {
		int row = i / (p.channels / 2), word = i % (p.channels / 2);

		((uint32_t *)((bf16 *)p.st.tail + ((size_t)s.slot * TD_CONV_TAIL + row) * p.channels))[word] =
			((const uint32_t *)(p.qkvz + (size_t)(s.row0 + s.rows - TD_CONV_TAIL + row) * p.ld))[word];
	}
}

/* Where this lane's outputs of the first of a chunk's rows go, and a lane's words of them, as halves: r has two tokens of one column, of which it gives one
 * to its neighbour for the other token's next column. Word [n][h]: 8 n rows and 8 h columns further. */
static __device__ __forceinline__ bf16 *outputs_of(const struct gdn_args &p, int row, int head, int col)
{
	int lane = threadIdx.x & 31;

	return p.out + (size_t)(row + (lane & 3) * 2 + (lane >> 2 & 1)) * p.ld_out + head * p.w.v_dim + col + (lane >> 2 & 6);
}
static __device__ __forceinline__ void words_of_tokens(const float (*r)[4], uint32_t (*pair)[2])
{
	int odd = threadIdx.x >> 2 & 1;

#pragma unroll
	for (int n = 0; n < N / 8; n++)
#pragma unroll
		for (int h = 0; h < 2; h++)
			pair[n][h] = half_pair(r[n][2 * h], r[n][2 * h + 1]);
#pragma unroll
	for (int n = 0; n < N / 8; n++)
#pragma unroll
		for (int h = 0; h < 2; h++)
			pair[n][h] = pick_bytes(pair[n][h], __shfl_xor_sync(~0u, pair[n][h], 4), odd ? 0x3276 : 0x5410);
}

/* gdn_local.cu: shared memory of a block with c.together; most value heads of a key head; the launch. */
enum { GDN_LOCAL_GROUP = 8 };
size_t td__cuda_gdn_local_bytes(const struct chunk_args &c);
void td__cuda_gdn_local(struct td_dev *, const struct chunk_args &c, int n_seq);
/* gdn_scan.cu: can it be used, and the launch. */
int td__cuda_gdn_scans(const struct td_dev *, const struct gdn_args &);
void td__cuda_gdn_scan(struct td_dev *, const struct chunk_args &c, int n_seq);

#endif
