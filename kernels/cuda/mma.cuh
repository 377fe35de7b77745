/*
 * mma.cuh: the few instructions of sm_80 and later that the kernels are made of, under readable names: all inline assembly stands here.
 *
 * Lane l of a warp is (g, t) = (l / 4, l % 4) in all fragments of mma.m16n8k16: A holds rows g and g + 8, B column g, C rows g and g + 8 with
 * columns 2t and 2t + 1. The order of k inside a product is free as long as A and B agree; the linear kernels use that (linear_int4.cu).
 */
#ifndef TD_CUDA_MMA_CUH
#define TD_CUDA_MMA_CUH

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
static __device__ __forceinline__ float2 load8(uint32_t sh)
{
	float2 v;

	asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(sh) : "memory");
	return v;
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

/*
 * Rows of device memory into shared memory by the bulk copy engine of compute capability 9.0 (rows_by_engine; on other GPUs asynchronous copies are the
 * callers' matter). One thread calls rows_init for each barrier before a barrier of the block; then one warp calls rows_copy once for each, and any thread
 * that was in rows_wait sees its rows. Addresses and `bytes` are multiples of 16; `pitch` and `step`: from row to row there and here.
 */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
static __device__ __forceinline__ bool rows_by_engine()
{
	return true;
}
static __device__ __forceinline__ void rows_init(uint32_t bar)
{
	asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar) : "memory");
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void rows_copy(uint32_t bar, uint32_t sh, uint32_t pitch, const char *gl, size_t step, int rows, int bytes)
{
	int lane = threadIdx.x & 31;

	if (lane == 0)
		asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(rows * bytes) : "memory");
	__syncwarp();
	for (int r = lane; r < rows; r += 32)
		asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(sh + r * pitch),
			     "l"(gl + r * step), "r"(bytes), "r"(bar)
			     : "memory");
}
static __device__ __forceinline__ void rows_wait(uint32_t bar)
{
	asm volatile("{\n.reg .pred there;\nagain:\nmbarrier.try_wait.parity.shared.b64 there, [%0], 0;\n@!there bra again;\n}" ::"r"(bar) : "memory");
}
#else
static __device__ __forceinline__ bool rows_by_engine()
{
	return false;
}
static __device__ __forceinline__ void rows_init(uint32_t)
{
}
static __device__ __forceinline__ void rows_copy(uint32_t, uint32_t, uint32_t, const char *, size_t, int, int)
{
}
static __device__ __forceinline__ void rows_wait(uint32_t)
{
}
#endif

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

#endif
