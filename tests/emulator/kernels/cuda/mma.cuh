/*
 * mma.cuh: stands in for kernels/cuda/mma.cuh: the machine instructions under the same names, in plain C++.
 *
 * Fragments as the PTX manual lays them out for mma.m16n8k16 and ldmatrix; products are summed in float32, in the order of k.
 */
#ifndef TD_CUDA_MMA_CUH
#define TD_CUDA_MMA_CUH

#include <stdint.h>
#include <time.h>

struct emu_mma {
	uint32_t a[4], b[2];
	float c[4];
};
static_assert(sizeof(emu_mma) <= emu::PAYLOAD, "fits");

static inline void emu_halves(uint32_t w, float *lo, float *hi)
{
	*lo = __uint_as_float(w << 16);
	*hi = __uint_as_float(w & 0xffff0000u);
}

static inline void emu_half_halves(uint32_t w, float *lo, float *hi)
{
	__half2_raw h = {(uint16_t)w, (uint16_t)(w >> 16)};
	float2 f = __half22float2(h);

	*lo = f.x;
	*hi = f.y;
}

template <void (*TAKE)(uint32_t, float *, float *)>
__attribute__((target_clones("avx2", "default"), optimize("O3"))) static void emu_mma_all(emu::payload *p)
{
	static float a[16][16], b[16][8], c[16][8];

	for (int l = 0; l < 32; l++) {
		const emu_mma *m = (const emu_mma *)p[l];
		int g = l / 4, t = l % 4;

		for (int r = 0; r < 4; r++)
			TAKE(m->a[r], &a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1)], &a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1) + 1]);
		for (int r = 0; r < 2; r++)
			TAKE(m->b[r], &b[2 * t + 8 * r][g], &b[2 * t + 8 * r + 1][g]);
		for (int r = 0; r < 4; r++)
			c[g + 8 * (r >> 1)][2 * t + (r & 1)] = m->c[r];
	}
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 16; k++)
			for (int j = 0; j < 8; j++)
				c[i][j] += a[i][k] * b[k][j];
	for (int l = 0; l < 32; l++)
		for (int r = 0; r < 4; r++)
			((emu_mma *)p[l])->c[r] = c[l / 4 + 8 * (r >> 1)][2 * (l % 4) + (r & 1)];
}

static inline void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	emu_mma m = {{a0, a1, a2, a3}, {b0, b1}, {c[0], c[1], c[2], c[3]}};

	memcpy(c, ((emu_mma *)emu::meet(&m, sizeof(m), emu_mma_all<emu_halves>)[emu::lane()])->c, sizeof(m.c));
}

static inline void mma_bf16_on(float c[4], float from0, float from1, const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	c[0] = c[2] = from0;
	c[1] = c[3] = from1;
	mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
}

struct emu_mma_bytes {
	uint32_t a[4], b[2];
	int32_t c[4];
};

__attribute__((target_clones("avx2", "default"), optimize("O3"))) static void emu_mma_bytes_all(emu::payload *p)
{
	static int32_t a[16][32], b[32][8], c[16][8];

	for (int l = 0; l < 32; l++) {
		const emu_mma_bytes *m = (const emu_mma_bytes *)p[l];
		int g = l / 4, t = l % 4;

		for (int r = 0; r < 4; r++)
			for (int j = 0; j < 4; j++)
				a[g + 8 * (r & 1)][4 * t + 16 * (r >> 1) + j] = (int8_t)(m->a[r] >> 8 * j);
		for (int r = 0; r < 2; r++)
			for (int j = 0; j < 4; j++)
				b[4 * t + 16 * r + j][g] = (int8_t)(m->b[r] >> 8 * j);
		for (int r = 0; r < 4; r++)
			c[g + 8 * (r >> 1)][2 * t + (r & 1)] = m->c[r];
	}
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 32; k++)
			for (int j = 0; j < 8; j++)
				c[i][j] += a[i][k] * b[k][j];
	for (int l = 0; l < 32; l++)
		for (int r = 0; r < 4; r++)
			((emu_mma_bytes *)p[l])->c[r] = c[l / 4 + 8 * (r >> 1)][2 * (l % 4) + (r & 1)];
}

static inline void mma_bytes(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	emu_mma_bytes m = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};

	memcpy(c, ((emu_mma_bytes *)emu::meet(&m, sizeof(m), emu_mma_bytes_all)[emu::lane()])->c, sizeof(m.c));
}
static inline void mma_bytes_on(int32_t c[4], uint32_t from, const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	c[0] = c[1] = c[2] = c[3] = (int32_t)from;
	mma_bytes(c, a, b0, b1);
}

static inline void mma_half(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	emu_mma m = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};

	memcpy(c, ((emu_mma *)emu::meet(&m, sizeof(m), emu_mma_all<emu_half_halves>)[emu::lane()])->c, sizeof(m.c));
}
static inline uint32_t half_pair(float lo, float hi)
{
	const float most = 65504;
	__half2_raw h = __floats2half2_rn(max(-most, min(most, lo)), max(-most, min(most, hi)));

	return h.x | (uint32_t)h.y << 16;
}

static inline uint32_t half_times(uint32_t a, uint32_t b)
{
	float x[2], y[2];

	emu_half_halves(a, &x[0], &x[1]);
	emu_half_halves(b, &y[0], &y[1]);
	return half_pair(x[0] * y[0], x[1] * y[1]);
}
static inline uint32_t most_of_halves(uint32_t a, uint32_t b)
{
	return (a >> 16 > b >> 16 ? a : b) >> 16 << 16 | ((a & 0xffff) > (b & 0xffff) ? a & 0xffff : b & 0xffff);
}
static inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
	uint64_t all = (uint64_t)b << 32 | a;
	uint32_t v = 0;

	for (int i = 0; i < 4; i++)
		v |= (uint32_t)(all >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
	return v;
}
static inline float fast_exp2(float x)
{
	return exp2f(x);
}
static inline float fast_inverse(float x)
{
	return 1.0f / x;
}

/* A kernel has ended when its launch returns. */
static inline void after_previous()
{
}
static inline void let_next_start()
{
}
template <class T> static inline void make_now(T &)
{
}
static inline unsigned long long device_ns()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
}
static inline void loads_before()
{
}
static inline void cluster_arrive()
{
	emu::cluster_arrive();
}
static inline void cluster_wait()
{
	emu::cluster_wait();
}
static inline void inbox_make(uint64_t *box, unsigned bytes)
{
	*box = bytes;
}
static inline void inbox_send(uint64_t *box, float *sh, unsigned rank, float v)
{
	*(float *)emu::cluster_pointer(sh, rank) = v;
	*(uint64_t *)emu::cluster_pointer(box, rank) -= sizeof(v);
	emu::cluster_wake();
}
static inline void inbox_wait(uint64_t *box)
{
	while (*(volatile uint64_t *)box)
		emu::cluster_sleep();
}

static inline void ranks_arrive(int bits)
{
	if (bits)
		emu::cluster_arrive();
}
static inline void ranks_wait(int bits)
{
	if (bits)
		emu::cluster_wait();
	else
		emu::block_barrier();
}
static inline void ranks_meet(int bits)
{
	ranks_arrive(bits);
	ranks_wait(bits);
}
static inline void rank_store4(float4 *sh, unsigned rank, float4 v)
{
	*(float4 *)emu::cluster_pointer(sh, rank) = v;
}

static inline uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
	return (a & b) | c;
}
static inline unsigned count_arrival(unsigned *counter, unsigned n)
{
	unsigned before = *counter;

	*counter = before + 1 == n ? 0 : before + 1;
	return before;
}

static inline unsigned count_reader(unsigned *counter, unsigned n)
{
	return count_arrival(counter, n);
}

/* Who sets a flag is in a block before. */
static inline void flag_set(unsigned *flag)
{
	__syncwarp();
	*flag = 1;
}
static inline void flag_wait(const unsigned *flag)
{
	if (!*flag)
		abort();
	__syncwarp();
}
static inline void flag_clear(unsigned *flag)
{
	__syncwarp();
	*flag = 0;
}

static inline uint32_t shared_address(const void *p)
{
	return emu::shared_address(p);
}
static inline void copy16_to(uint32_t sh, const void *gl, int bytes = 16)
{
	emu::copy_later(emu::shared_pointer(sh), gl, bytes, 16 - bytes);
}
static inline void copy16_once(uint32_t sh, const void *gl, int bytes = 16)
{
	copy16_to(sh, gl, bytes);
}
static inline void copy16(void *sh, const void *gl, int bytes = 16)
{
	emu::copy_later(sh, gl, bytes, 16 - bytes);
}
static inline void discard_line(const void *gl)
{
	memset((void *)gl, 0xff, 128);
}
static inline uint4 load_once(const void *gl)
{
	return *(const uint4 *)gl;
}
static inline uint4 load16(uint32_t sh)
{
	return *(const uint4 *)emu::shared_pointer(sh);
}
static inline uint32_t load4(uint32_t sh)
{
	return *(const uint32_t *)emu::shared_pointer(sh);
}
static inline float2 load8(uint32_t sh)
{
	return *(const float2 *)emu::shared_pointer(sh);
}
static inline void store16(uint32_t sh, uint4 v)
{
	*(uint4 *)emu::shared_pointer(sh) = v;
}
static inline void store4(uint32_t sh, uint32_t v)
{
	*(uint32_t *)emu::shared_pointer(sh) = v;
}
static inline void word_wait(uint32_t sh, uint32_t v)
{
	while (*(volatile uint32_t *)emu::shared_pointer(sh) != v)
		emu::cluster_sleep();
}
static inline void word_set(uint32_t sh, uint32_t v)
{
	__syncwarp();
	if (emu::lane() == 0)
		store4(sh, v);
	emu::cluster_wake();
}
static inline void store8(uint32_t sh, float a, float b)
{
	*(float2 *)emu::shared_pointer(sh) = make_float2(a, b);
}
/* All parts of a block come here once. */
static inline void part_meets(int, int)
{
	emu::block_barrier();
}
static inline void copy_commit()
{
	emu::copies_close();
}
template <int N> static inline void copy_wait()
{
	emu::copies_wait(N);
}

static inline void load_matrix(uint32_t r[4], const void *sh)
{
	emu::payload *p = emu::meet(&sh, sizeof(sh), NULL);
	int l = emu::lane();

	for (int i = 0; i < 4; i++) {
		const uint32_t *row;

		memcpy(&row, p[8 * i + l / 4], sizeof(row));
		r[i] = row[l % 4];
	}
}
static inline void load_matrix_transposed(uint32_t r[4], const void *sh)
{
	emu::payload *p = emu::meet(&sh, sizeof(sh), NULL);
	int l = emu::lane();

	for (int i = 0; i < 4; i++) {
		const uint16_t *even, *odd;

		memcpy(&even, p[8 * i + 2 * (l % 4)], sizeof(even));
		memcpy(&odd, p[8 * i + 2 * (l % 4) + 1], sizeof(odd));
		r[i] = even[l / 4] | (uint32_t)odd[l / 4] << 16;
	}
}

static inline uint32_t turn_matrix(uint32_t v)
{
	emu::payload *p = emu::meet(&v, sizeof(v), NULL);
	int l = emu::lane();
	uint32_t even, odd;

	memcpy(&even, p[8 * (l % 4) + l / 8], sizeof(even));
	memcpy(&odd, p[8 * (l % 4) + 4 + l / 8], sizeof(odd));
	return (even >> l / 4 % 2 * 16 & 0xffff) | (odd >> l / 4 % 2 * 16) << 16;
}

/* What compute capability 9.0 alone has. */
#define TD_CUDA_GROUPS

/* A gate: how many arrivals it waits for, how many and how many bytes are missing, and the turn. */
struct emu_gate {
	int32_t bytes;
	int16_t missing;
	uint8_t all, turn;
};
static_assert(sizeof(emu_gate) == sizeof(uint64_t), "fits");

static inline void emu_gate_count(void *gate, int arrivals, int bytes)
{
	emu_gate *g = (emu_gate *)gate;

	g->missing = (int16_t)(g->missing - arrivals);
	g->bytes += bytes;
	if (g->missing || g->bytes)
		return;
	g->missing = g->all;
	g->turn ^= 1;
	emu::cluster_wake();
}
static inline void gate_make(uint64_t *gate, unsigned arrivals)
{
	*(emu_gate *)gate = {0, (int16_t)arrivals, (uint8_t)arrivals, 0};
}
static inline void gate_arrive(uint64_t *gate)
{
	emu_gate_count(gate, 1, 0);
}
static inline void gate_expect(uint64_t *gate, unsigned bytes)
{
	emu_gate_count(gate, 1, (int)bytes);
}
static inline void gate_expect_if(int one, uint64_t *gate, unsigned bytes)
{
	if (one)
		gate_expect(gate, bytes);
}
static inline void gate_copy_if(int one, uint64_t *gate, void *sh, const void *gl, int bytes)
{
	if (!one)
		return;
	memcpy(sh, gl, (size_t)bytes);
	emu_gate_count(gate, 0, -bytes);
}
static inline void gate_wait(uint64_t *gate, unsigned turn)
{
	while (((volatile emu_gate *)gate)->turn == turn)
		emu::cluster_sleep();
}

/* Tiles of 64 x 64 in shared memory, and products of warpgroups, which are made at once, each warp's 16 rows. */
struct tile_map {
	const char *gl;
	int dims;
};
static inline int tile_map_make(struct tile_map *m, const void *gl, int dims)
{
	*m = {(const char *)gl, dims};
	return 0;
}
static inline void tile_copy(const struct tile_map *m, uint64_t *gate, void *sh, int dim, int row)
{
	for (int r = 0; r < 64; r++)
		for (int c = 0; c < 8; c++)
			memcpy((char *)sh + r * 128 + (c ^ (r & 7)) * 16, m->gl + (((size_t)row + r) * m->dims + dim + c * 8) * 2, 16);
	emu_gate_count(gate, 0, -64 * 128);
}
static inline void bulk_copy(uint64_t *gate, uint32_t sh, const void *gl, int bytes)
{
	memcpy(emu::shared_pointer(sh), gl, (size_t)bytes);
	emu_gate_count(gate, 0, -bytes);
}
static inline void tiles_written()
{
}
template <int N> static inline void group_registers_less()
{
}
template <int N> static inline void group_registers_more()
{
}
static inline uint32_t of_the_warp(uint32_t v)
{
	return v;
}
static inline uint64_t operand_by_rows(uint32_t sh)
{
	return sh;
}
static inline uint64_t operand_by_rows(const void *sh)
{
	return emu::shared_address(sh);
}
static inline uint64_t operand_by_dims(const void *sh)
{
	return emu::shared_address(sh);
}
static inline uint64_t operand_at(uint64_t operand, int bytes)
{
	return operand + bytes;
}
static inline void group_begin()
{
}
static inline void group_commit()
{
}
template <int N> static inline void group_wait()
{
}
template <int N> static inline void group_hold(float (&)[N])
{
}
static inline void group_after(float)
{
}

struct emu_group {
	float *c;
	uint64_t a, b;
	uint32_t in[4]; /* A where it is in registers */
	int add;
};
static_assert(sizeof(emu_group) <= emu::PAYLOAD, "fits");

static inline float emu_group_get(uint64_t at)
{
	return __uint_as_float((uint32_t)*(const uint16_t *)emu::shared_pointer((uint32_t)(at ^ (at >> 3 & 0x70))) << 16);
}
template <int N, bool IN, bool DIMS> __attribute__((target_clones("avx2", "default"), optimize("O3"))) static void emu_group_all(emu::payload *p)
{
	static float a[16][16], b[16][N], c[16][N];
	const emu_group *first = (const emu_group *)p[0];

	for (int l = 0; l < 32; l++) {
		const emu_group *m = (const emu_group *)p[l];
		int g = l / 4, t = l % 4;

		for (int r = 0; IN && r < 4; r++)
			emu_halves(m->in[r], &a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1)], &a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1) + 1]);
		for (int r = 0; r < N / 2; r++)
			c[g + 8 * (r >> 1 & 1)][r / 4 * 8 + 2 * t + (r & 1)] = m->add ? m->c[r] : 0;
	}
	for (int k = 0; k < 16; k++) {
		for (int i = 0; !IN && i < 16; i++)
			a[i][k] = emu_group_get(first->a + (uint64_t)(emu::here.thread.x / 32 % 4 * 16 + i) * 128 + k * 2);
		for (int j = 0; j < N; j++)
			b[k][j] = emu_group_get(DIMS ? first->b + (uint64_t)k * 128 + j / 64 * 8192 + j % 64 * 2 : first->b + (uint64_t)j * 128 + k * 2);
	}
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 16; k++)
			for (int j = 0; j < N; j++)
				c[i][j] += a[i][k] * b[k][j];
	for (int l = 0; l < 32; l++)
		for (int r = 0; r < N / 2; r++)
			((emu_group *)p[l])->c[r] = c[l / 4 + 8 * (r >> 1 & 1)][r / 4 * 8 + 2 * (l % 4) + (r & 1)];
}
template <int ADD> static inline void group_mma_64(float (&c)[32], uint64_t a, uint64_t b)
{
	emu_group m = {c, a, b, {}, ADD};

	emu::meet(&m, sizeof(m), emu_group_all<64, false, false>);
}
static inline void group_mma_in_64(float (&c)[32], const uint32_t a[4], uint64_t b)
{
	emu_group m = {c, 0, b, {a[0], a[1], a[2], a[3]}, 1};

	emu::meet(&m, sizeof(m), emu_group_all<64, true, false>);
}
static inline void group_mma_256(float (&c)[128], const uint32_t a[4], uint64_t b)
{
	emu_group m = {c, 0, b, {a[0], a[1], a[2], a[3]}, 1};

	emu::meet(&m, sizeof(m), emu_group_all<256, true, true>);
}

static inline uint32_t operand_of_matrices(const void *sh)
{
	return emu::shared_address(sh) / 16;
}
template <int ADD, int NT> static inline void group_mma_halves(float (&c)[NT][4], const uint32_t a[4], uint32_t operand)
{
	const uint32_t *b = (const uint32_t *)emu::shared_pointer(operand * 16) + emu::lane();

	for (int i = 0; i < NT; i++, b += 64) {
		if (!ADD)
			c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
		mma_half(c[i], a, b[0], b[32]);
	}
}
template <class T, int NT> static inline void group_hold(T (&)[NT][4])
{
}

struct emu_group_bytes {
	int *c;
	uint64_t b;
	uint32_t a[4];
	int add;
};
static_assert(sizeof(emu_group_bytes) <= emu::PAYLOAD, "fits");

template <int N> __attribute__((target_clones("avx2", "default"), optimize("O3"))) static void emu_group_bytes_all(emu::payload *p)
{
	static int a[16][32], b[32][N], c[16][N];
	const emu_group_bytes *first = (const emu_group_bytes *)p[0];

	for (int l = 0; l < 32; l++) {
		const emu_group_bytes *m = (const emu_group_bytes *)p[l];
		int g = l / 4, t = l % 4;

		for (int r = 0; r < 4; r++)
			for (int j = 0; j < 4; j++)
				a[g + 8 * (r & 1)][4 * t + 16 * (r >> 1) + j] = (int8_t)(m->a[r] >> 8 * j);
		for (int r = 0; r < N / 2; r++)
			c[g + 8 * (r >> 1 & 1)][r / 4 * 8 + 2 * t + (r & 1)] = m->add ? m->c[r] : 0;
	}
	for (int j = 0; j < N; j++)
		for (int k = 0; k < 32; k++) {
			uint64_t at = first->b + (uint64_t)j * 128 + k;

			b[k][j] = *(const int8_t *)emu::shared_pointer((uint32_t)(at ^ (at >> 3 & 0x70)));
		}
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 32; k++)
			for (int j = 0; j < N; j++)
				c[i][j] += a[i][k] * b[k][j];
	for (int l = 0; l < 32; l++)
		for (int r = 0; r < N / 2; r++)
			((emu_group_bytes *)p[l])->c[r] = c[l / 4 + 8 * (r >> 1 & 1)][r / 4 * 8 + 2 * (l % 4) + (r & 1)];
}
template <int ADD, int N> static inline void group_mma_bytes(int (&c)[N], const uint32_t a[4], uint64_t b)
{
	emu_group_bytes m = {c, b, {a[0], a[1], a[2], a[3]}, ADD};

	emu::meet(&m, sizeof(m), emu_group_bytes_all<N * 2>);
}
template <int N> static inline void group_hold(int (&)[N])
{
}

#endif
