/*
 * emulator.h: enough of a GPU on the CPU to run the CUDA module's own source: for tests on machines without one.
 *
 * translate.pl turns kernels/cuda into C++, this header gives the language (included before every file), mma.cuh stands in for the module's own header of
 * machine instructions, fibers.cpp runs blocks and runtime.cpp answers the calls of the CUDA runtime, the driver and cuBLAS. The result is a module
 * that is loaded in place of tandem-cuda.so.
 *
 * A block's threads are fibers of one OS thread, blocks run one after the other (those of a cluster in turns), a launch has ended when it returns. So what is shown here is that the
 * kernels compute what they should, index nothing that is not theirs (under ASan) and meet at their barriers; never that they are free of races
 * between blocks, nor anything about time. Stricter than a GPU where it can be: asynchronous copies happen at the last moment allowed, fresh memory is
 * full of NaN, a warp function with lanes that ended is an error.
 */
#ifndef TD_EMULATOR_H
#define TD_EMULATOR_H

#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <functional>

using std::max;
using std::min;

#undef __shared__
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __launch_bounds__
#undef __noinline__
#undef __grid_constant__
#define __shared__ static
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __grid_constant__

namespace emu
{
enum { WARP = 32, THREADS_MAX = 1024, CLUSTER_MAX = 8, PAYLOAD = 64 };

struct launch_config {
	dim3 grid, block;
	size_t shared;
	unsigned cluster; /* blocks side by side in x */
};
static inline launch_config config(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = 0, unsigned cluster = 1)
{
	return {grid, block, shared, cluster};
}

struct thread; /* fibers.cpp */
extern struct place {
	dim3 thread, block, block_dim, grid_dim;
} here;

void run(const launch_config &c, void (*body)(void *), void *arg);
bool recording(); /* runtime.cpp: the stream is being recorded */
void record(std::function<void()> f);
template <class F> void launch(const launch_config &c, F body)
{
	if (recording())
		record([=]() { run(c, [](void *f) { (*(const F *)f)(); }, (void *)&body); });
	else
		run(c, [](void *f) { (*(const F *)f)(); }, &body);
}
template <class... P, class... A> cudaError_t launch_with(const cudaLaunchConfig_t *c, void (*kernel)(P...), A... args)
{
	unsigned cluster = 1;

	for (unsigned i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
			cluster = c->attrs[i].val.clusterDim.x;
	launch(config(c->gridDim, c->blockDim, c->dynamicSmemBytes, 0, cluster), [=]() { kernel(args...); });
	return cudaSuccess;
}
void *dynamic_shared();
uint32_t shared_address(const void *p); /* as 32 bits, for what takes such addresses */
void *shared_pointer(uint32_t address);
void cluster_arrive();
void cluster_wait();
void cluster_sleep(); /* until another thread of the cluster wakes all */
void cluster_wake();
void *cluster_pointer(void *p, unsigned rank);
int block_barrier(int any = 0); /* 1 when a thread brought one */
/* All 32 lanes meet: each leaves `size` bytes of payload; the last one to come runs `all` (may be NULL) on the payloads. Returns them: [lane]. */
typedef unsigned char payload[PAYLOAD];
payload *meet(const void *mine, size_t size, void (*all)(payload *));
/* asynchronous copies of this thread */
void copy_later(void *to, const void *from, int bytes, int zeros);
void copies_close();
void copies_wait(int groups_left);

template <class T> T exchange(T v, int lane)
{
	T out;

	memcpy(&out, meet(&v, sizeof(v), NULL)[lane & (WARP - 1)], sizeof(out));
	return out;
}
int lane();
} // namespace emu

template <class K> static inline cudaError_t cudaFuncSetAttribute(K *kernel, enum cudaFuncAttribute what, int value)
{
	return cudaFuncSetAttribute((const void *)kernel, what, value);
}

#define cudaLaunchKernelEx emu::launch_with
#define threadIdx (emu::here.thread)
#define blockIdx (emu::here.block)
#define blockDim (emu::here.block_dim)
#define gridDim (emu::here.grid_dim)

static inline void __syncthreads()
{
	emu::block_barrier();
}
static inline int __syncthreads_or(int any)
{
	return emu::block_barrier(any != 0);
}
static inline void __syncwarp(unsigned = ~0u)
{
	emu::meet(NULL, 0, NULL);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask)
{
	return emu::exchange(v, emu::lane() ^ mask);
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane)
{
	return emu::exchange(v, lane);
}
template <class T> static inline T __shfl_up_sync(unsigned, T v, int d)
{
	int from = emu::lane() - d;

	return emu::exchange(v, from < 0 ? emu::lane() : from);
}
template <class T> static inline T __shfl_down_sync(unsigned, T v, int d)
{
	int from = emu::lane() + d;

	return emu::exchange(v, from >= emu::WARP ? emu::lane() : from);
}
static inline unsigned __ballot_sync(unsigned, int yes)
{
	unsigned out = 0;
	emu::payload *p = emu::meet(&yes, sizeof(yes), NULL);

	for (int i = 0; i < emu::WARP; i++) {
		int v;

		memcpy(&v, p[i], sizeof(v));
		out |= (unsigned)(v != 0) << i;
	}
	return out;
}
static inline int __any_sync(unsigned m, int yes)
{
	return __ballot_sync(m, yes) != 0;
}

static inline unsigned __reduce_max_sync(unsigned, unsigned v)
{
	unsigned out = 0;
	emu::payload *p = emu::meet(&v, sizeof(v), NULL);

	for (int i = 0; i < emu::WARP; i++) {
		memcpy(&v, p[i], sizeof(v));
		out = v > out ? v : out;
	}
	return out;
}
static inline unsigned __reduce_min_sync(unsigned m, unsigned v)
{
	return ~__reduce_max_sync(m, ~v);
}

/* One OS thread: what is atomic on a GPU is plain here. */
template <class T, class U> static inline T atomicAdd(T *p, U v)
{
	T old = *p;

	*p = old + (T)v;
	return old;
}
template <class T> static inline T atomicMax(T *p, T v)
{
	T old = *p;

	*p = old > v ? old : v;
	return old;
}
template <class T> static inline T atomicCAS(T *p, T seen, T next)
{
	T old = *p;

	if (old == seen)
		*p = next;
	return old;
}
static inline void __threadfence()
{
}
static inline void __threadfence_system()
{
}
static inline float rsqrtf(float x)
{
	return 1.0f / sqrtf(x);
}
static inline unsigned long long __float2ull_rn(float x)
{
	return (unsigned long long)llrintf(x);
}
template <class T> static inline T __ldcg(const T *p)
{
	return *p;
}
template <class T> static inline T __ldg(const T *p)
{
	return *p;
}
static inline int __popc(unsigned v)
{
	return __builtin_popcount(v);
}
static inline int __ffs(int v)
{
	return __builtin_ffs(v);
}
static inline int __clz(int v)
{
	return v ? __builtin_clz((unsigned)v) : 32;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
	return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, int by)
{
	return by & 31 ? lo >> (by & 31) | hi << (32 - (by & 31)) : lo;
}
static inline float __frcp_rn(float a)
{
	return 1 / a;
}
static inline float __fdividef(float a, float b)
{
	return a / b;
}
static inline float __uint_as_float(unsigned v)
{
	float f;

	memcpy(&f, &v, 4);
	return f;
}
static inline unsigned __float_as_uint(float f)
{
	unsigned v;

	memcpy(&v, &f, 4);
	return v;
}

#endif
