/*
 * mma.cuh: the few instructions of sm_80 and later that the kernels are made of, under readable names: all inline assembly stands here.
 *
 * Lane l of a warp is (g, t) = (l / 4, l % 4) in all fragments of mma.m16n8k16: A holds rows g and g + 8, B column g, C rows g and g + 8 with
 * columns 2t and 2t + 1. The order of k inside a product is free as long as A and B agree; the linear kernels use that (linear_int4.cu).
 */
#ifndef TD_CUDA_MMA_CUH
#define TD_CUDA_MMA_CUH

#include <cuda.h>
#include <stdint.h>

/* c += A (16 x 16, bf16) * B (16 x 8, bf16), float32 sums */
static __device__ __forceinline__ void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* c = A * B on sums that start at from0 in even and from1 in odd columns */
static __device__ __forceinline__ void mma_bf16_on(float c[4], float from0, float from1, const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%10,%11};"
	    : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(from0), "f"(from1));
}

/* c = A (16 x 32, signed bytes) * B (32 x 8, signed bytes) + c, or what is in from */
static __device__ __forceinline__ void mma_bytes(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void mma_bytes_on(int32_t c[4], uint32_t from, const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
	    : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(from));
}

/* c += A (16 x 16, half) * B (16 x 8, half), float32 sums */
static __device__ __forceinline__ void mma_half(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Two values as halves in a word; what is too large becomes the largest half (65,504), never infinite. */
static __device__ __forceinline__ uint32_t half_pair(float lo, float hi)
{
	uint32_t v;

	asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
	return v;
}

/* Products of the halves of two words. */
static __device__ __forceinline__ uint32_t half_times(uint32_t a, uint32_t b)
{
	uint32_t v;

	asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
	return v;
}
/* 2^x and 1 / x to 22 bits in one instruction each: for what is rounded to a half or to bf16 afterwards. */
static __device__ __forceinline__ float fast_exp2(float x)
{
	float v;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
	return v;
}
static __device__ __forceinline__ float fast_inverse(float x)
{
	float v;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
	return v;
}

/* The larger of each half, unsigned. */
static __device__ __forceinline__ uint32_t most_of_halves(uint32_t a, uint32_t b)
{
	return __vmaxu2(a, b);
}

/* Four bytes of two words: a digit of `which`, lowest first, is 0 to 3 for a byte of a, 4 to 7 for one of b. */
static __device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
	uint32_t v;

	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(which));
	return v;
}

/* a & b | c, in one instruction */
static __device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t v;

	asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
	return v;
}
/* How many came to `counter` before, 0 .. n-1; the n-th sets it to 0 again. Releases what was written before, acquires what others released so. */
static __device__ __forceinline__ unsigned count_arrival(unsigned *counter, unsigned n)
{
	unsigned before;

	asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(n - 1) : "memory");
	return before;
}

/* The same for readers: the n-th may overwrite what all have read, as their loads had returned before they came. No fence, which would wait for writes. */
static __device__ __forceinline__ unsigned count_reader(unsigned *counter, unsigned n)
{
	unsigned before;

	asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(n - 1) : "memory");
	return before;
}

/* A flag in device memory between two warps of different blocks: who waited for it sees what the warp that set it wrote before. All lanes call these. */
static __device__ __forceinline__ void flag_set(unsigned *flag)
{
	__threadfence();
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		asm volatile("st.release.gpu.global.b32 [%0], 1;" ::"l"(flag) : "memory");
}
static __device__ __forceinline__ void flag_wait(const unsigned *flag)
{
	unsigned is;

	do
		asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(is) : "l"(flag) : "memory");
	while (!is);
	__syncwarp();
}
static __device__ __forceinline__ void flag_clear(unsigned *flag)
{
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		*flag = 0;
}

/*
 * Programmatic dependent launch (td__cuda_launch, compute capability 9.0 on; nothing before it): a kernel may start while the one before it still runs.
 * after_previous waits until all earlier kernels ended and their writes are seen: every thread of every kernel launched so calls it, before it touches
 * anything that another kernel writes, and never skips it. Before it only weights may be read, and what was written before
 * the step began, td_seq included (gdn.cu says why). let_next_start allows the next kernel's blocks to come as soon as every block of this one said so
 * and there is room; it promises nothing about memory.
 */
static __device__ __forceinline__ void after_previous()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void let_next_start()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* An address or number that the compiler has to have made here, not where it is first used: before a wait. */
template <class T> static __device__ __forceinline__ void make_now(T *&p)
{
	asm volatile("" : "+l"(p));
}
static __device__ __forceinline__ void make_now(int &i)
{
	asm volatile("" : "+r"(i));
}
/* The GPU's clock in nanoseconds; it steps by about a microsecond. */
static __device__ __forceinline__ unsigned long long device_ns()
{
	unsigned long long t;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
	return t;
}
/*
 * Clusters (compute capability 9.0 on): a few blocks that run side by side and reach each other's shared memory. cluster_arrive and cluster_wait are the
 * two halves of a barrier across them, which every thread of each of them calls; it orders nothing but inboxes made before. An inbox counts the bytes
 * that blocks of the cluster send here: made by one thread, written to only after the barrier, waited for once, by threads that then see what was sent.
 * A block must not end before its inbox is full. (A barrier that orders memory would also wait for all that was written to device memory before.)
 */
static __device__ __forceinline__ void cluster_arrive()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_wait()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void inbox_make(uint64_t *box, unsigned bytes)
{
#if __CUDA_ARCH__ >= 900
	uint32_t at = (uint32_t)__cvta_generic_to_shared(box);

	asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
}
/* v to the place of `sh` in the shared memory of block `rank` of the cluster, counted by the inbox there. */
static __device__ __forceinline__ void inbox_send(uint64_t *box, float *sh, unsigned rank, float v)
{
#if __CUDA_ARCH__ >= 900
	uint32_t to, count;

	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"((uint32_t)__cvta_generic_to_shared(sh)), "r"(rank));
	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(count) : "r"((uint32_t)__cvta_generic_to_shared(box)), "r"(rank));
	asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v), "r"(count) : "memory");
#endif
}
static __device__ __forceinline__ void inbox_wait(uint64_t *box)
{
#if __CUDA_ARCH__ >= 900
	uint32_t at = (uint32_t)__cvta_generic_to_shared(box), full = 0;

	while (!full)
		asm volatile("{\n"
			     ".reg .pred p;\n"
			     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
			     "selp.u32 %0, 1, 0, p;\n"
			     "}"
			     : "=r"(full)
			     : "r"(at)
			     : "memory");
#endif
}

/*
 * Ranks: the blocks of a cluster that work on one thing, 1 << bits of them; bits 0: a block alone, also where there are no clusters. rank_store4 writes to
 * the place of `sh` in the shared memory of that rank; after ranks_meet, which every thread of every rank calls, all see what was stored before it.
 * ranks_arrive and ranks_wait are the two halves of a barrier that orders reads before later stores alone.
 */
static __device__ __forceinline__ void ranks_arrive(int bits)
{
	if (bits)
		cluster_arrive();
}
static __device__ __forceinline__ void ranks_wait(int bits)
{
	if (bits)
		cluster_wait();
	else
		__syncthreads();
}
static __device__ __forceinline__ void ranks_meet(int bits)
{
	if (!bits) {
		__syncthreads();
		return;
	}
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
	cluster_wait();
#endif
}
static __device__ __forceinline__ void rank_store4(float4 *sh, unsigned rank, float4 v)
{
#if __CUDA_ARCH__ >= 900
	uint32_t to;

	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"((uint32_t)__cvta_generic_to_shared(sh)), "r"(rank));
	asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
#else
	*sh = v;
#endif
}

/* Loads that stand before stay before: the compiler likes to move them down to where they are used, and to wait there. */
static __device__ __forceinline__ void loads_before()
{
	asm volatile("" ::: "memory");
}

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}
/* 16 bytes from device to shared memory, asynchronously; only the first `bytes` are read, the rest becomes zero. */
static __device__ __forceinline__ void copy16_to(uint32_t sh, const void *gl, int bytes = 16)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sh), "l"(gl), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void copy16(void *sh, const void *gl, int bytes = 16)
{
	copy16_to(shared_address(sh), gl, bytes);
}
/*
 * The same for what is read once in a long while: the L2 cache gives up its lines before others. The number is what createpolicy makes of evict_first; from
 * there it would take registers.
 */
static __device__ __forceinline__ void copy16_once(uint32_t sh, const void *gl, int bytes = 16)
{
	asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(sh), "l"(gl), "r"(bytes), "l"(0x12f0000000000000ull) : "memory");
}
/* The 128 bytes from here on, written by an earlier kernel, are not needed any more: their line need not be written back. Afterwards they are anything. */
static __device__ __forceinline__ void discard_line(const void *gl)
{
	asm volatile("discard.global.L2 [%0], 128;" ::"l"(gl) : "memory");
}
/* 16 bytes that are read once and never written while a kernel runs. */
static __device__ __forceinline__ uint4 load_once(const void *gl)
{
	uint4 v;

	asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(gl));
	return v;
}
/* Loads from shared memory by its 32-bit address: the compiler would make a generic address anew each time. */
static __device__ __forceinline__ uint4 load16(uint32_t sh)
{
	uint4 v;

	asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(sh) : "memory");
	return v;
}
static __device__ __forceinline__ uint32_t load4(uint32_t sh)
{
	uint32_t v;

	asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(sh) : "memory");
	return v;
}
static __device__ __forceinline__ float2 load8(uint32_t sh)
{
	float2 v;

	asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(sh) : "memory");
	return v;
}
static __device__ __forceinline__ void store16(uint32_t sh, uint4 v)
{
	asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(sh), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
static __device__ __forceinline__ void store4(uint32_t sh, uint32_t v)
{
	asm volatile("st.shared.b32 [%0], %1;" ::"r"(sh), "r"(v) : "memory");
}
/* A word in shared memory by which warps take turns: who saw it set to v sees what the warp that set it wrote before. */
static __device__ __forceinline__ void word_wait(uint32_t sh, uint32_t v)
{
	uint32_t is;

	do
		asm volatile("ld.acquire.cta.shared.b32 %0, [%1];" : "=r"(is) : "r"(sh) : "memory");
	while (is != v);
	__syncwarp();
}
static __device__ __forceinline__ void word_set(uint32_t sh, uint32_t v)
{
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		asm volatile("st.release.cta.shared.b32 [%0], %1;" ::"r"(sh), "r"(v) : "memory");
}
static __device__ __forceinline__ void store8(uint32_t sh, float a, float b)
{
	asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(sh), "f"(a), "f"(b) : "memory");
}
/* The `threads` threads of part k of the block wait for each other; each part of a block does so once. */
static __device__ __forceinline__ void part_meets(int k, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(k + 1), "r"(threads) : "memory");
}
static __device__ __forceinline__ void copy_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void copy_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrix(uint32_t r[4], const void *sh)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(shared_address(sh))
		     : "memory");
}
static __device__ __forceinline__ void load_matrix_transposed(uint32_t r[4], const void *sh)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(shared_address(sh))
		     : "memory");
}

/* Turns 8 x 8 16-bit elements, of which lane (g, t) holds 2t and 2t + 1 of row g, round: it gets rows 2t and 2t + 1 of column g. */
static __device__ __forceinline__ uint32_t turn_matrix(uint32_t v)
{
	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(v));
	return v;
}

/* Device memory as rows of `dims` bf16, for tile_copy. 0, or the driver's error. How many rows there are is the caller's matter. */
struct tile_map {
	CUtensorMap map;
};
static inline int tile_map_make(struct tile_map *m, const void *gl, int dims)
{
	const cuuint64_t size[2] = {(cuuint64_t)dims, (cuuint64_t)1 << 31}, step[1] = {(cuuint64_t)dims * 2};
	const cuuint32_t box[2] = {64, 64}, each[2] = {1, 1};

	return (int)cuTensorMapEncodeTiled(&m->map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)gl, size, step, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
					   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/*
 * What compute capability 9.0 alone has, in code made for it (sm_90a): kernels that use it stand between #ifdef TD_CUDA_GROUPS, and the host launches them where
 * dev->groups says so.
 */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TD_CUDA_GROUPS

/*
 * Gates: a word of shared memory that opens once so many threads arrived and all bytes announced are there, and then closes for the next turn. gate_wait
 * waits for the end of turn 0, 1, 0, ...; before the first one, for that of turn 1 nobody waits. One thread makes gates, before a barrier of the block.
 */
static __device__ __forceinline__ void gate_make(uint64_t *gate, unsigned arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(gate)), "r"(arrivals) : "memory");
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void gate_arrive(uint64_t *gate)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(gate)) : "memory");
}
/* Arrives, and announces bytes of tile_copy or bulk_copy. */
static __device__ __forceinline__ void gate_expect(uint64_t *gate, unsigned bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes) : "memory");
}
/* The same and a copy of 16-byte pieces that counts there, by threads with `one`: a branch round them amid the products of a warpgroup would end these. */
static __device__ __forceinline__ void gate_expect_if(int one, uint64_t *gate, unsigned bytes)
{
	asm volatile("{\n.reg .pred one;\nsetp.ne.b32 one, %2, 0;\n@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n}" ::"r"(shared_address(gate)),
		     "r"(bytes), "r"(one)
		     : "memory");
}
static __device__ __forceinline__ void gate_copy_if(int one, uint64_t *gate, void *sh, const void *gl, int bytes)
{
	asm volatile("{\n.reg .pred one;\nsetp.ne.b32 one, %4, 0;\n"
		     "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n}" ::"r"(shared_address(sh)),
		     "l"(gl), "r"(bytes), "r"(shared_address(gate)), "r"(one)
		     : "memory");
}
static __device__ __forceinline__ void gate_wait(uint64_t *gate, unsigned turn)
{
	uint32_t at = shared_address(gate), open = 0;

	while (!open)
		asm volatile("{\n"
			     ".reg .pred p;\n"
			     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
			     "selp.u32 %0, 1, 0, p;\n"
			     "}"
			     : "=r"(open)
			     : "r"(at), "r"(turn)
			     : "memory");
}

/*
 * Tiles: 64 rows of 64 bf16 in 8 KiB of shared memory at a multiple of 1 KiB, each row 128 bytes whose 16-byte pieces are exchanged by the row's low 3 bits.
 * tile_copy, by one thread, leaves them so from device memory (dim and row: the first ones); its 8 KiB count at a gate.
 * Ordinary stores do as well, with tiles_written behind them in each thread and then a barrier.
 */
static __device__ __forceinline__ void tile_copy(const struct tile_map *m, uint64_t *gate, void *sh, int dim, int row)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(sh)),
		     "l"(m), "r"(dim), "r"(row), "r"(shared_address(gate))
		     : "memory");
}
/* `bytes` as they are, to count at a gate; addresses and bytes are multiples of 16. */
static __device__ __forceinline__ void bulk_copy(uint64_t *gate, uint32_t sh, const void *gl, int bytes)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(sh), "l"(gl), "r"(bytes),
		     "r"(shared_address(gate))
		     : "memory");
}
static __device__ __forceinline__ void tiles_written()
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/*
 * Products of a warpgroup: four warps, the first one's number a multiple of four; each holds 16 of 64 rows of sums, laid out as of mma.m16n8k16, eight columns
 * after eight. They run beside what follows: group_begin (after the registers they use were written), products, group_commit; group_wait<N> waits until at
 * most N such sets still run. Until then nothing may touch their registers: group_hold tells the compiler that they change here.
 */
/* How many registers a thread has from here on; each warpgroup of a block says so once, in a branch of its own. */
template <int N> static __device__ __forceinline__ void group_registers_less()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void group_registers_more()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
/* Operands of a few tiles in a row: by rows, a row is one of A or a column of B and its dims are summed over; by dims the other way round. */
static __device__ __forceinline__ uint64_t operand_by_rows(uint32_t sh)
{
	return (sh & 0x3ffff) >> 4 | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
static __device__ __forceinline__ uint64_t operand_by_rows(const void *sh)
{
	return operand_by_rows(shared_address(sh));
}
static __device__ __forceinline__ uint64_t operand_by_dims(const void *sh)
{
	return (shared_address(sh) & 0x3ffff) >> 4 | (uint64_t)(8192 >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
/* A number that all lanes of a warp have, so that the compiler knows: operands made of it need no moves. */
static __device__ __forceinline__ uint32_t of_the_warp(uint32_t v)
{
	return __reduce_or_sync(~0u, v);
}
static __device__ __forceinline__ uint64_t operand_at(uint64_t operand, int bytes)
{
	return operand + (bytes >> 4);
}
static __device__ __forceinline__ void group_begin()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void group_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void group_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N> static __device__ __forceinline__ void group_hold(float (&c)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(c[i])::"memory");
}
/* What makes v, which is never negative, stays before the wait that follows: the assembler moves a wait up as far as it can. So v's sign is looked at. */
static __device__ __forceinline__ void group_after(float v)
{
	asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.f32 [%1], %0;\n}" ::"f"(v), "r"(0) : "memory");
}
#define SUMS_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_16(c, i) SUMS_4(c, i), SUMS_4(c, i + 4), SUMS_4(c, i + 8), SUMS_4(c, i + 12)
#define SUMS_32(c, i) SUMS_16(c, i), SUMS_16(c, i + 16)
/* c (64 x 64) = A (64 x 16, by rows) * B (16 x 64, by rows), or += with ADD */
template <int ADD> static __device__ __forceinline__ void group_mma_64(float (&c)[32], uint64_t a, uint64_t b)
{
	asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
		     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
		     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"
		     "%31"
		     "}, %32, %33, add, 1, 1, 0, 0;\n}"
		     : SUMS_32(c, 0)
		     : "l"(a), "l"(b), "n"(ADD));
}
/* c (64 x 64) += A (64 x 16, in registers as of mma.m16n8k16) * B (16 x 64, by rows) */
static __device__ __forceinline__ void group_mma_in_64(float (&c)[32], const uint32_t a[4], uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
		     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"
		     "%31"
		     "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
		     : SUMS_32(c, 0)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/* c (64 x 256) += A (64 x 16, in registers as of mma.m16n8k16) * B (16 x 256, by dims) */
static __device__ __forceinline__ void group_mma_256(float (&c)[128], const uint32_t a[4], uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
		     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"
		     "%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"
		     "%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,"
		     "%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
		     "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
		     "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"
		     : SUMS_32(c, 0), SUMS_32(c, 32), SUMS_32(c, 64), SUMS_32(c, 96)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/*
 * c (64 x 8 NT) = A (64 x 16 halves, in registers as of mma_half) * B (16 x 8 NT), or += with ADD. B: matrices of 8 x 8 halves of 128 bytes, a lane's word at
 * its number: the first 8 columns with depth 0 to 7, then 8 to 15, then the next columns' two. operand: the lower half of what names it, of
 * operand_of_matrices, and bytes / 16 more for what lies further.
 */
static __device__ __forceinline__ uint32_t operand_of_matrices(const void *sh)
{
	return (shared_address(sh) & 0x3ffff) >> 4 | (128 >> 4) << 16;
}
#define TILES_4(c, i) SUMS_4(c[i], 0), SUMS_4(c[i + 1], 0), SUMS_4(c[i + 2], 0), SUMS_4(c[i + 3], 0)
#define WORDS_32 \
	"%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WORDS_64 \
	WORDS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define MMA_HALVES(columns, words, a0, a1, a2, a3, b, add, ...) \
	asm volatile("{\n.reg .pred add;\n.reg .b32 step;\n.reg .b64 b;\nsetp.ne.b32 add, %" add ", 0;\nmov.b32 step, 16;\nmov.b64 b, {%" b ", step};\n" \
		     "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.f16.f16 {" words "}, {%" a0 ",%" a1 ",%" a2 ",%" a3 "}, b, add, 1, 1, 0;\n}" \
		     : __VA_ARGS__ \
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(operand), "n"(ADD))
template <int ADD, int NT> static __device__ __forceinline__ void group_mma_halves(float (&c)[NT][4], const uint32_t a[4], uint32_t operand)
{
	static_assert(NT == 8 || NT == 16, "these are written out");
	if constexpr (NT == 8)
		MMA_HALVES("64", WORDS_32, "32", "33", "34", "35", "36", "37", TILES_4(c, 0), TILES_4(c, 4));
	else
		MMA_HALVES("128", WORDS_64, "64", "65", "66", "67", "68", "69", TILES_4(c, 0), TILES_4(c, 4), TILES_4(c, 8), TILES_4(c, 12));
}
template <int NT> static __device__ __forceinline__ void group_hold(float (&c)[NT][4])
{
#pragma unroll
	for (int i = 0; i < NT; i++)
		asm volatile("" : SUMS_4(c[i], 0)::"memory");
}
/* Operands in registers, too, are read until the products have ended. */
template <int NT> static __device__ __forceinline__ void group_hold(uint32_t (&a)[NT][4])
{
#pragma unroll
	for (int i = 0; i < NT; i++)
		asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}
/*
 * c (64 x 8 NT, int32) = A (64 x 32 bytes, in registers as of mma.m16n8k32) * B (32 bytes x 8 NT, by rows), or += with ADD. A row of B is 128 bytes of the pattern
 * of a tile, so a product's 32 bytes are a quarter of it.
 */
#define INTS_4(c, i) "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3])
#define INTS_16(c, i) INTS_4(c, i), INTS_4(c, i + 4), INTS_4(c, i + 8), INTS_4(c, i + 12)
#define INTS_32(c, i) INTS_16(c, i), INTS_16(c, i + 16)
#define MMA_BYTES(columns, words, a0, a1, a2, a3, b, add, ...) \
	asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add ", 0;\n" \
		     "wgmma.mma_async.sync.aligned.m64n" columns "k32.s32.s8.s8 {" words "}, {%" a0 ",%" a1 ",%" a2 ",%" a3 "}, %" b ", add;\n}" \
		     : __VA_ARGS__ \
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(operand), "n"(ADD))
template <int ADD> static __device__ __forceinline__ void group_mma_bytes(int (&c)[32], const uint32_t a[4], uint64_t operand)
{
	MMA_BYTES("64", WORDS_32, "32", "33", "34", "35", "36", "37", INTS_32(c, 0));
}
template <int ADD> static __device__ __forceinline__ void group_mma_bytes(int (&c)[64], const uint32_t a[4], uint64_t operand)
{
	MMA_BYTES("128", WORDS_64, "64", "65", "66", "67", "68", "69", INTS_32(c, 0), INTS_32(c, 32));
}
template <int N> static __device__ __forceinline__ void group_hold(int (&c)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(c[i])::"memory");
}
#undef MMA_BYTES
#undef INTS_4
#undef INTS_16
#undef INTS_32
#undef TILES_4
#undef WORDS_32
#undef WORDS_64
#undef MMA_HALVES
#undef SUMS_4
#undef SUMS_16
#undef SUMS_32
#endif

#endif
