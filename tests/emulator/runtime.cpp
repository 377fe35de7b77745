/*
 * runtime.cpp: the calls of the CUDA runtime, the driver and cuBLAS that the CUDA module makes, answered with the host's memory.
 *
 * Everything is done when the call returns, so streams need no state. Memory that other processes open (arenas, the exchange region) are memfds. A device
 * of 8 multiprocessors with the shared memory of an H200; EMULATOR_SMS, EMULATOR_SHARED (bytes of a block), EMULATOR_MEMORY
 * (MiB), EMULATOR_CLUSTERS (0: none fit) and EMULATOR_MINOR (not 0: not the one compute capability with products of warpgroups) make it another.
 */
#include <cblas.h>
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <vector>

#include "runtime.h"

namespace
{
enum { PIECE = 2 << 20 };
struct block {
	size_t size;
	int fd; /* -1: plain memory */
};
std::map<void *, block> blocks;
std::map<void *, size_t> opened;
size_t used;
cudaError_t sticky, last;
struct graph {
	std::vector<std::function<void()>> calls;
};
graph *recorded; /* by the stream now; NULL: nothing is */

size_t setting(const char *name, size_t otherwise)
{
	const char *v = getenv(name);

	return v ? (size_t)strtoull(v, NULL, 10) : otherwise;
}

size_t total()
{
	return setting("EMULATOR_MEMORY", 16384) << 20;
}

void *map_fd(int fd, size_t size, int prot)
{
	void *p = mmap(NULL, size, prot, MAP_SHARED, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}
} // namespace

namespace emu
{
int sticky_error()
{
	return sticky != cudaSuccess;
}

bool recording()
{
	return recorded != NULL;
}

void record(std::function<void()> f)
{
	recorded->calls.push_back(f);
}

void set_error(cudaError_t e)
{
	if (e == cudaErrorIllegalAddress)
		sticky = e;
	last = e;
}
} // namespace emu

static cudaError_t done(cudaError_t e = cudaSuccess)
{
	if (sticky != cudaSuccess)
		e = sticky;
	if (e != cudaSuccess)
		last = e;
	return e;
}

extern "C" {

/* ---- runtime: device, errors --------------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *n)
{
	*n = 1;
	return done();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
	memset(p, 0, sizeof(*p));
	snprintf(p->name, sizeof(p->name), "emulated GPU");
	p->major = 9;
	p->minor = (int)setting("EMULATOR_MINOR", 0);
	p->multiProcessorCount = (int)setting("EMULATOR_SMS", 8);
	p->sharedMemPerBlockOptin = setting("EMULATOR_SHARED", 232448);
	p->totalGlobalMem = total();
	return done();
}

cudaError_t cudaSetDevice(int)
{
	return done();
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
	*all = total();
	*left = *all > used ? *all - used : 0;
	return done();
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t e = sticky != cudaSuccess ? sticky : last;

	last = cudaSuccess;
	return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
	switch (e) {
	case cudaSuccess:
		return "no error";
	case cudaErrorMemoryAllocation:
		return "out of memory";
	case cudaErrorIllegalAddress:
		return "an illegal memory access was encountered";
	case cudaErrorInvalidConfiguration:
		return "invalid configuration argument";
	default:
		return "an error of the emulator";
	}
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
	return done(value <= (int)setting("EMULATOR_SHARED", 232448) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *, const cudaLaunchConfig_t *c)
{
	unsigned blocks = 1;

	for (unsigned i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
			blocks = c->attrs[i].val.clusterDim.x;
	*n = (int)(setting("EMULATOR_SMS", 8) / blocks * setting("EMULATOR_CLUSTERS", 1));
	return cudaSuccess;
}

/* ---- runtime: streams ---------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
	*s = (cudaStream_t)&blocks;
	return done();
}

cudaError_t cudaStreamDestroy(cudaStream_t)
{
	return done();
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
	return done(recorded ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t)
{
	return done(recorded ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

/* ---- runtime: graphs ----------------------------------------------------------------------------------------------------------------- */

/* A recorded call keeps its arguments as they were, and does nothing until the graph is launched. */
cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode)
{
	if (recorded)
		return done(cudaErrorIllegalState);
	recorded = new graph;
	return done();
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *g)
{
	*g = (cudaGraph_t)recorded;
	recorded = NULL;
	return done(*g ? cudaSuccess : cudaErrorIllegalState);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long)
{
	*exec = (cudaGraphExec_t) new graph(*(graph *)g);
	return done();
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
	if (recorded)
		return done(cudaErrorStreamCaptureUnsupported);
	for (const std::function<void()> &f : ((graph *)exec)->calls)
		f();
	return done(last);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	delete (graph *)g;
	return done();
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	delete (graph *)exec;
	return done();
}

/* ---- runtime: memory ----------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **p, size_t size)
{
	size_t n = (size + 255) / 256 * 256;
	block b = {n, -1};

	*p = NULL;
	if (recorded)
		return done(cudaErrorStreamCaptureUnsupported);
	if (sticky != cudaSuccess)
		return done();
	if (used + n > total())
		return done(cudaErrorMemoryAllocation);
	if (n && n % PIECE == 0) { /* perhaps to be shared by handle */
		b.fd = memfd_create("emulated device memory", MFD_CLOEXEC);
		if (b.fd >= 0 && ftruncate(b.fd, (off_t)n) == 0)
			*p = map_fd(b.fd, n, PROT_READ | PROT_WRITE);
	} else {
		*p = aligned_alloc(256, n ? n : 256);
		if (*p)
			memset(*p, 0xff, n);
	}
	if (!*p)
		return done(cudaErrorMemoryAllocation);
	blocks[*p] = b;
	used += n;
	return done();
}

cudaError_t cudaFree(void *p)
{
	std::map<void *, block>::iterator it = blocks.find(p);

	if (!p)
		return done();
	if (it == blocks.end())
		return done(cudaErrorInvalidValue);
	used -= it->second.size;
	if (it->second.fd >= 0) {
		munmap(p, it->second.size);
		close(it->second.fd);
	} else {
		free(p);
	}
	blocks.erase(it);
	return done();
}

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned)
{
	*p = calloc(1, size);
	return done(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p)
{
	free(p);
	return done();
}

cudaError_t cudaHostGetDevicePointer(void **dev, void *host, unsigned)
{
	*dev = host;
	return done();
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t)
{
	if (recorded && kind != cudaMemcpyDeviceToDevice) /* what the host holds now may be gone when the graph runs */
		return done(cudaErrorStreamCaptureUnsupported);
	if (recorded)
		emu::record([=]() { memmove(to, from, n); });
	else if (sticky == cudaSuccess)
		memmove(to, from, n);
	return done();
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind,
			      cudaStream_t s)
{
	if (recorded) {
		emu::record([=]() { cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, s); });
		return done();
	}
	for (size_t i = 0; i < height && sticky == cudaSuccess; i++)
		memmove((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
	return done();
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t)
{
	if (recorded)
		emu::record([=]() { memset(p, value, n); });
	else if (sticky == cudaSuccess)
		memset(p, value, n);
	return done();
}

/* A handle: the process and descriptor behind the allocation. */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p)
{
	std::map<void *, block>::iterator it = blocks.find(p);

	memset(h, 0, sizeof(*h));
	if (it == blocks.end() || it->second.fd < 0)
		return done(cudaErrorInvalidValue);
	snprintf(h->reserved, sizeof(h->reserved), "/proc/%d/fd/%d", (int)getpid(), it->second.fd);
	return done();
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned)
{
	char path[sizeof(h.reserved) + 1] = "";
	struct stat st;
	int fd;

	memcpy(path, h.reserved, sizeof(h.reserved));
	*p = NULL;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return done(cudaErrorInvalidValue);
	if (fstat(fd, &st) == 0)
		*p = map_fd(fd, (size_t)st.st_size, PROT_READ | PROT_WRITE);
	close(fd);
	if (!*p)
		return done(cudaErrorInvalidValue);
	opened[*p] = (size_t)st.st_size;
	return done();
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
	std::map<void *, size_t>::iterator it = opened.find(p);

	if (it == opened.end())
		return done(cudaErrorInvalidValue);
	munmap(p, it->second);
	opened.erase(it);
	return done();
}

/* ---- driver: memory by descriptor ------------------------------------------------------------------------------------------------------ */

CUresult cuGetErrorString(CUresult r, const char **text)
{
	*text = r == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the emulator";
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *g, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)
{
	*g = PIECE;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t size, const CUmemAllocationProp *, unsigned long long)
{
	int fd;

	if (used + size > total())
		return CUDA_ERROR_OUT_OF_MEMORY;
	fd = memfd_create("emulated arena", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*h = (CUmemGenericAllocationHandle)fd;
	return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType, unsigned long long)
{
	int fd = fcntl((int)h, F_DUPFD_CLOEXEC, 0);

	memcpy(out, &fd, sizeof(fd));
	return fd < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *os, CUmemAllocationHandleType)
{
	int fd = fcntl((int)(uintptr_t)os, F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*h = (CUmemGenericAllocationHandle)fd;
	return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
	return close((int)h) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t, CUdeviceptr, unsigned long long)
{
	void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	*at = (CUdeviceptr)p;
	return p == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t size)
{
	return munmap((void *)at, size) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t, CUmemGenericAllocationHandle h, unsigned long long)
{
	struct stat st;

	if (fstat((int)h, &st) || (size_t)st.st_size < size)
		return CUDA_ERROR_INVALID_VALUE;
	if (mmap((void *)at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h, 0) == MAP_FAILED)
		return CUDA_ERROR_INVALID_VALUE;
	used += size;
	return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
	used -= size;
	return mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE
															: CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t)
{
	int prot = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE;

	return mprotect((void *)at, size, prot) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- cuBLAS: cublasLt ------------------------------------------------------------------------------------------------------------------ */

/*
 * Algorithms that differ in their sums, as real ones may: STRAIGHT adds all columns in one order; SPLIT adds two halves; FICKLE does so for more than 256
 * rows only, so a row's bits depend on its company. The library offers the wrong ones first; EMULATOR_BLAS=fickle: nothing else.
 */
enum algorithm { STRAIGHT, SPLIT, FICKLE };

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
	*h = (cublasLtHandle_t)&blocks;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t)
{
	return "an error of the emulator";
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t, cublasComputeType_t compute, cudaDataType_t scale)
{
	d->data[0] = CUBLAS_OP_N;
	return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *v, size_t)
{
	if (a != CUBLASLT_MATMUL_DESC_TRANSA)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	d->data[0] = *(const cublasOperation_t *)v;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t l, size_t, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
	l->data[0] = type;
	l->data[1] = rows;
	l->data[2] = cols;
	l->data[3] = (uint64_t)ld;
	return ld >= (int64_t)rows && ld * (type == CUDA_R_32F ? 4 : 2) % 16 == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t)
{
	memset(p, 0, sizeof(*p));
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t x, cublasLtMatrixLayout_t,
					      cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int most, cublasLtMatmulHeuristicResult_t *found, int *n)
{
	const char *only = getenv("EMULATOR_BLAS");

	memset(found, 0, sizeof(*found) * (size_t)most);
	found[0].algo.data[0] = only || x->data[2] > 1024 ? FICKLE : SPLIT;
	found[1].algo.data[0] = STRAIGHT;
	*n = only || most < 2 ? 1 : 2;
	return CUBLAS_STATUS_SUCCESS;
}

static float *widen(const void *from, int rows, int cols, int ld)
{
	const __nv_bfloat16 *x = (const __nv_bfloat16 *)from;
	float *out = (float *)malloc(sizeof(float) * (size_t)rows * (size_t)cols);

	for (int r = 0; out && r < rows; r++)
		for (int c = 0; c < cols; c++)
			out[(size_t)r * cols + c] = __bfloat162float(x[(size_t)r * ld + c]);
	return out;
}

/* y (n, m) = x (n, k) * w (m, k)', by blocks of 256 rows, as the host's own library may add in other orders for other numbers of rows */
static void product(const float *x, const float *w, float *y, int n, int m, int k, int split)
{
	int first = split ? k / 2 : k;

	for (int r = 0; r < n; r += 256, x += (size_t)256 * k, y += (size_t)256 * m) {
		int rows = n - r < 256 ? n - r : 256;

		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, m, first, 1, x, k, w, k, 0, y, m);
		if (split)
			cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, m, k - first, 1, x + first, k, w + first, k, 1, y, m);
	}
}

/* Column-major c (m, n) = a (k, m)' * b (k, n) + beta * c of bf16 inputs, as both libraries are asked for it. */
static void multiply(int m, int n, int k, const void *a, int lda, const void *b, int ldb, float beta, void *c, size_t ldc, int f32, int split)
{
	float *w = widen(a, m, k, lda), *x = widen(b, n, k, ldb), *y = (float *)malloc(sizeof(float) * (size_t)m * (size_t)n);

	if (w && x && y) {
		product(x, w, y, n, m, k, split);
		for (int r = 0; r < n; r++)
			for (int i = 0; i < m; i++) {
				float v = y[(size_t)r * m + i];
				size_t to = (size_t)r * ldc + i;

				if (f32)
					((float *)c)[to] = v + (beta != 0 ? beta * ((float *)c)[to] : 0);
				else
					((__nv_bfloat16 *)c)[to] = __float2bfloat16(v + (beta != 0 ? beta * __bfloat162float(((__nv_bfloat16 *)c)[to]) : 0));
			}
	}
	free(w);
	free(x);
	free(y);
}

/* The one form that the module uses, transposed weights; never while a step is recorded. */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *a, cublasLtMatrixLayout_t al, const void *b,
			      cublasLtMatrixLayout_t bl, const void *beta, const void *, cublasLtMatrixLayout_t, void *c, cublasLtMatrixLayout_t cl,
			      const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t)
{
	int k = (int)al->data[1], m = (int)al->data[2], n = (int)bl->data[2];

	if (recorded || d->data[0] != CUBLAS_OP_T || al->data[0] != CUDA_R_16BF || bl->data[0] != CUDA_R_16BF || *(const float *)alpha != 1.0f)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (bl->data[1] != (uint64_t)k || cl->data[1] != (uint64_t)m || cl->data[2] != (uint64_t)n)
		return CUBLAS_STATUS_INVALID_VALUE;
	multiply(m, n, k, a, (int)al->data[3], b, (int)bl->data[3], *(const float *)beta, c, (size_t)cl->data[3], cl->data[0] == CUDA_R_32F,
		 algo->data[0] == SPLIT || (algo->data[0] == FICKLE && n > 256));
	return CUBLAS_STATUS_SUCCESS;
}

/* ---- cuBLAS itself: only the roofs of `tandem bench` use it ------------------------------------------------------------------------------- */

cublasStatus_t cublasCreate_v2(cublasHandle_t *h)
{
	*h = (cublasHandle_t)&blocks;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

/* The one form of it that they use; never while a step is recorded. */
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *alpha, const void *a, cudaDataType at,
			    int lda, const void *b, cudaDataType bt, int ldb, const void *beta, void *c, cudaDataType ct, int ldc, cublasComputeType_t, cublasGemmAlgo_t)
{
	if (recorded || ta != CUBLAS_OP_T || tb != CUBLAS_OP_N || at != CUDA_R_16BF || bt != CUDA_R_16BF || *(const float *)alpha != 1.0f)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	multiply(m, n, k, a, lda, b, ldb, *(const float *)beta, c, (size_t)ldc, ct == CUDA_R_32F, 0);
	return CUBLAS_STATUS_SUCCESS;
}
}
