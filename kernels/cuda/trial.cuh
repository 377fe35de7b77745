/*
 * trial.cuh: what a trial of cuBLAS needs: numbers to multiply, and whether two results are the same. The module tries when a shape is first met
 * (linear_dense.cu), a table of its own shows what there is to choose from (tests/gpu/dense_times.cu); so nothing here may need the rest of the module.
 */
#ifndef TD_CUDA_TRIAL_CUH
#define TD_CUDA_TRIAL_CUH

#include <cuda_bf16.h>
#include <stdint.h>

/* Numbers in [-1, 1) with all bits of a bf16, the same in every run. */
static __global__ void fill_kernel(void *p, size_t n, int f32, uint32_t seed)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
		uint32_t v = ((uint32_t)i + seed * 0x6C8E9CF5u) * 0x9E3779B1u;
		float f;

		v = (v ^ v >> 15) * 0x85EBCA77u;
		f = (int)((v ^ v >> 13) >> 8) * 0x1p-23f - 1;
		if (f32)
			((float *)p)[i] = f;
		else
			((__nv_bfloat16 *)p)[i] = __float2bfloat16(f);
	}
}

/* Adds how many of n words differ. */
static __global__ void differ_kernel(const uint32_t *a, const uint32_t *b, size_t n, unsigned long long *sum)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
		if (a[i] != b[i])
			atomicAdd(sum, 1ull);
}

#endif
