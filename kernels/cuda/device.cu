/*
 * device.cu: the GPU as one instance: context, stream, memory, arenas, copies, checksums, the batch.
 *
 * Arenas are made by the driver's virtual-memory calls with a POSIX fd, so that the memory outlives this process while anyone holds the fd;
 * an importer may map it read-only. Everything else is a plain allocation. The primary context of the device is used (what the runtime API
 * uses), so the driver and runtime calls here see the same memory.
 *
 * Errors of the GPU come late. The first one seen anywhere is kept in dev->error, with the operation where it surfaced; from then on the
 * operations do nothing and sync/download report it. The context is not repaired: a worker that sees an error exits.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/internal.cuh"

/* ---- errors ------------------------------------------------------------------------------------------------------------------------ */

void td__cuda_fail(struct td_dev *dev, int code, const char *fmt, ...)
{
	char text[sizeof(dev->error.text)];
	va_list ap;

	if (dev->error.code)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	td_error_set(&dev->error, code, "%s", text);
}

int td__cuda_check(struct td_dev *dev, cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return 0;
	td__cuda_fail(dev, e == cudaErrorMemoryAllocation ? TD_E_NOMEM : TD_E_DEVICE, "GPU %d: %s: %s", dev->ordinal, what, cudaGetErrorString(e));
	return -1;
}

static int driver_error(struct td_error *err, CUresult r, const char *what)
{
	const char *text = NULL;

	cuGetErrorString(r, &text);
	return td_error_set(err, r == CUDA_ERROR_OUT_OF_MEMORY ? TD_E_NOMEM : TD_E_DEVICE, "%s: %s", what,
			    text ? text : "unknown error of the GPU driver");
}

static int report(struct td_dev *dev, struct td_error *err)
{
	if (!dev->error.code)
		return 0;
	if (err)
		*err = dev->error;
	return dev->error.code;
}

/* ---- open, close ------------------------------------------------------------------------------------------------------------------- */

static int find_device(const struct td_dev_options *opt, struct cudaDeviceProp *p, struct td_error *err)
{
	int n = 0;
	cudaError_t e = cudaGetDeviceCount(&n);

	if (e != cudaSuccess || n == 0)
		return td_error_set(err, TD_E_DEVICE, "no usable NVIDIA GPU: %s; check `nvidia-smi`, or use --device cpu",
				    e != cudaSuccess ? cudaGetErrorString(e) : "the driver lists none");
	if (opt->ordinal < 0 || opt->ordinal >= n)
		return td_error_set(err, TD_E_INVALID, "GPU %d was asked for, but this machine has %d (numbered from 0)", opt->ordinal, n);
	e = cudaGetDeviceProperties(p, opt->ordinal);
	if (e == cudaSuccess && p->major < 8)
		return td_error_set(err, TD_E_UNSUPPORTED, "GPU %d (%s) has compute capability %d.%d; 8.0 or later is needed", opt->ordinal, p->name,
				    p->major, p->minor);
	if (e == cudaSuccess)
		e = cudaSetDevice(opt->ordinal);
	if (e == cudaSuccess)
		e = cudaFree(0); /* makes the context now, so that its failure is told here */
	if (e != cudaSuccess)
		return td_error_set(err, e == cudaErrorMemoryAllocation ? TD_E_NOMEM : TD_E_DEVICE,
				    "GPU %d (%s) can't be opened: %s; another program may hold its memory, or it is in exclusive mode", opt->ordinal,
				    p->name, cudaGetErrorString(e));
	return 0;
}

int td__cuda_open(struct td_dev **out, const struct td_dev_options *opt, struct td_error *err)
{
	struct cudaDeviceProp p;
	struct td_dev *dev;
	int rc = find_device(opt, &p, err);

	*out = NULL;
	if (rc)
		return rc;
	dev = (struct td_dev *)calloc(1, sizeof(*dev));
	if (!dev)
		return td_error_set(err, TD_E_NOMEM, "no memory for the device's own data");
	dev->ordinal = opt->ordinal;
	dev->slots = opt->slots > 0 ? opt->slots : 1;
	dev->large = (struct td_cuda_block *)calloc((size_t)dev->slots, sizeof(*dev->large));
	if (!dev->large) {
		free(dev);
		return td_error_set(err, TD_E_NOMEM, "no memory for the device's own data");
	}
	dev->sms = p.multiProcessorCount;
	dev->overlap = p.major >= 9;
	dev->groups = TD_CUDA_SM90A && p.major == 9 && p.minor == 0;
	dev->shared_max = p.sharedMemPerBlockOptin - 64; /* a few static words of the kernels */
	dev->batch_cap = dev->slots;
	snprintf(dev->name, sizeof(dev->name), "%.80s, %d multiprocessors, %.1f GiB, compute capability %d.%d", p.name, p.multiProcessorCount,
		 (double)p.totalGlobalMem / (1 << 30), p.major, p.minor);
	td__cuda_check(dev, cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking), "making a stream");
	td__cuda_check(dev, cudaMalloc(&dev->counters, TD_CUDA_COUNTERS * sizeof(unsigned)), "arrival counters");
	td__cuda_check(dev, cudaMalloc(&dev->sum, sizeof(*dev->sum)), "checksum word");
	if (!td__cuda_check(dev, cudaHostAlloc(&dev->fault, sizeof(*dev->fault), cudaHostAllocMapped), "fault word")) {
		memset((void *)dev->fault, 0, sizeof(*dev->fault));
		td__cuda_check(dev, cudaHostGetDevicePointer((void **)&dev->fault_dev, dev->fault, 0), "fault word");
	}
	for (int i = 0; i < TD_BATCHES; i++)
		td__cuda_check(dev, cudaMalloc(&dev->batch[i], (size_t)dev->batch_cap * sizeof(struct td_seq)), "batches");
	if (!dev->error.code) {
		td__cuda_check(dev, cudaMemsetAsync(dev->counters, 0, TD_CUDA_COUNTERS * sizeof(unsigned), dev->stream), "arrival counters");
		if (cublasLtCreate(&dev->blas) != CUBLAS_STATUS_SUCCESS)
			td__cuda_fail(dev, TD_E_DEVICE, "GPU %d: cuBLAS can't be started; its memory may be taken by another program", dev->ordinal);
		td__cuda_scratch(dev, (size_t)64 << 20);
		td__cuda_replay_open(dev);
	}
	rc = report(dev, err);
	if (rc) {
		td__cuda_close(dev);
		return rc;
	}
	*out = dev;
	return 0;
}

void td__cuda_close(struct td_dev *dev)
{
	if (!dev)
		return;
	if (dev->stream)
		cudaStreamSynchronize(dev->stream);
	td__cuda_dense_close(dev);
	if (dev->blas)
		cublasLtDestroy(dev->blas);
	td__cuda_replay_close(dev);
	for (int i = 0; i < TD_BATCHES; i++)
		cudaFree(dev->batch[i]);
	cudaFree(dev->scratch);
	cudaFree(dev->counters);
	cudaFree(dev->sum);
	cudaFreeHost(dev->fault);
	if (dev->stream)
		cudaStreamDestroy(dev->stream);
	free(dev->large);
	free(dev);
}

int td__cuda_settled(struct td_dev *dev, struct td_error *err)
{
	if (dev->fault->set)
		td__cuda_fail(dev, TD_E_INVALID, "token id %d at place %d is outside the vocabulary of %d", dev->fault->id, dev->fault->at,
			      dev->fault->limit);
	return report(dev, err);
}

/* Not 0, and the sticky error, for what a recorded step can't hold. */
static int not_recorded(struct td_dev *dev, const char *what)
{
	if (td__cuda_recording(dev))
		td__cuda_fail(dev, TD_E_INTERNAL, "%s inside a step that is being recorded", what);
	return td__cuda_recording(dev);
}

int td__cuda_sync(struct td_dev *dev, struct td_error *err)
{
	if (!not_recorded(dev, "sync"))
		td__cuda_check(dev, cudaStreamSynchronize(dev->stream), "waiting for the GPU");
	return td__cuda_settled(dev, err);
}

void td__cuda_describe(struct td_dev *dev, char *text, size_t size)
{
	snprintf(text, size, "GPU %d: %s", dev->ordinal, dev->name);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------ */

void *td__cuda_scratch(struct td_dev *dev, size_t bytes)
{
	if (dev->error.code)
		return NULL;
	if (bytes <= dev->lent_size)
		return dev->lent;
	if (bytes <= dev->scratch_size)
		return dev->scratch;
	if (not_recorded(dev, "growing scratch memory"))
		return NULL;
	/* At load, and in programs that lend nothing; kernels in flight may still use the old one. */
	td__cuda_replay_drop(dev);
	td__cuda_check(dev, cudaStreamSynchronize(dev->stream), "waiting before scratch memory grows");
	cudaFree(dev->scratch);
	dev->scratch = NULL;
	dev->scratch_size = 0;
	bytes = (bytes + bytes / 8 + ((size_t)2 << 20)) & ~(((size_t)2 << 20) - 1);
	if (td__cuda_check(dev, cudaMalloc(&dev->scratch, bytes), "scratch memory"))
		return NULL;
	dev->scratch_size = bytes;
	dev->allocations++;
	return dev->scratch;
}

/* What loading used is given back: the plan counts the loan, not both. */
void td__cuda_lend(struct td_dev *dev, void *mem, size_t bytes)
{
	if (!bytes) {
		if (mem && mem == dev->lent) {
			td__cuda_replay_drop(dev);
			dev->lent = NULL;
			dev->lent_size = 0;
		}
		return;
	}
	if (bytes <= dev->lent_size)
		return;
	td__cuda_replay_drop(dev);
	dev->lent = (char *)mem;
	dev->lent_size = bytes;
	td__cuda_check(dev, cudaStreamSynchronize(dev->stream), "waiting before scratch memory is given back");
	td__cuda_check(dev, cudaFree(dev->scratch), "giving scratch memory back");
	dev->scratch = NULL;
	dev->scratch_size = 0;
}

uint64_t td__cuda_allocations(struct td_dev *dev)
{
	return dev->allocations;
}

int td__cuda_memory(struct td_dev *dev, uint64_t *free_bytes, uint64_t *total_bytes, struct td_error *err)
{
	size_t left = 0, all = 0;
	cudaError_t e = cudaMemGetInfo(&left, &all);

	*free_bytes = left;
	*total_bytes = all;
	return e == cudaSuccess ? 0 : td_error_set(err, TD_E_DEVICE, "GPU %d: asking for its free memory: %s", dev->ordinal, cudaGetErrorString(e));
}

void *td__cuda_alloc(struct td_dev *dev, size_t bytes, struct td_error *err)
{
	void *p = NULL;
	cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);

	if (e != cudaSuccess) {
		size_t left = 0, all = 0;

		cudaGetLastError();
		cudaMemGetInfo(&left, &all);
		td_error_set(err, e == cudaErrorMemoryAllocation ? TD_E_NOMEM : TD_E_DEVICE,
			     "GPU %d: %zu MiB can't be had (%zu of %zu MiB are free): %s", dev->ordinal, bytes >> 20, left >> 20, all >> 20,
			     cudaGetErrorString(e));
		return NULL;
	}
	dev->allocations++;
	td__cuda_zero(dev, p, bytes);
	return p;
}

void td__cuda_free(struct td_dev *dev, void *p)
{
	if (!p)
		return;
	cudaStreamSynchronize(dev->stream);
	td__cuda_replay_drop(dev);
	td__cuda_check(dev, cudaFree(p), "freeing memory");
}

void *td__cuda_host_alloc(struct td_dev *dev, size_t bytes, struct td_error *err)
{
	void *p = NULL;
	cudaError_t e = cudaHostAlloc(&p, bytes, cudaHostAllocMapped); /* at one address for both */

	if (e != cudaSuccess) {
		cudaGetLastError();
		td_error_set(err, e == cudaErrorMemoryAllocation ? TD_E_NOMEM : TD_E_DEVICE, "GPU %d: %zu KiB of pinned host memory can't be had: %s", dev->ordinal,
			     bytes >> 10, cudaGetErrorString(e));
		return NULL;
	}
	memset(p, 0, bytes);
	return p;
}

void td__cuda_host_free(struct td_dev *dev, void *p)
{
	if (!p)
		return;
	cudaStreamSynchronize(dev->stream);
	td__cuda_replay_drop(dev);
	td__cuda_check(dev, cudaFreeHost(p), "freeing pinned memory");
}

void td__cuda_upload(struct td_dev *dev, void *dst, const void *src, size_t bytes)
{
	/* From pageable memory the copy returns once `src` was read. */
	if (!dev->error.code && bytes && !not_recorded(dev, "upload"))
		td__cuda_check(dev, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, dev->stream), "upload");
}

int td__cuda_download(struct td_dev *dev, void *dst, const void *src, size_t bytes, struct td_error *err)
{
	if (!dev->error.code && bytes)
		td__cuda_check(dev, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, dev->stream), "download");
	return td__cuda_sync(dev, err);
}

void td__cuda_zero(struct td_dev *dev, void *dst, size_t bytes)
{
	if (!dev->error.code && bytes)
		td__cuda_check(dev, cudaMemsetAsync(dst, 0, bytes, dev->stream), "zeroing memory");
}

void td__cuda_batch_set(struct td_dev *dev, struct td_batch *b)
{
	struct td_seq *d = dev->batch[dev->batch_next];

	dev->recurred = NULL;
	if (b->n_seq > dev->batch_cap) {
		td__cuda_fail(dev, TD_E_INTERNAL, "a batch of %d sequences on a device opened for %d slots", b->n_seq, dev->batch_cap);
		b->n_seq = b->n_rows = 0; /* nothing runs; sync tells */
		b->dev = d;
		return;
	}
	dev->batch_next = (dev->batch_next + 1) % TD_BATCHES;
	td__cuda_batch_rows(dev, b);
	td__cuda_upload(dev, d, b->seq, (size_t)b->n_seq * sizeof(*d));
	b->dev = d;
}

void td__cuda_batch_rows(struct td_dev *dev, const struct td_batch *b)
{
	dev->batch_rows = b->n_rows;
	dev->n_large = 0;
	for (int i = 0; i < b->n_seq; i++) {
		int skip = rows_to_block(b->seq[i].pos0), rows = b->seq[i].rows - skip, rest = rows % TD_CUDA_LARGE;

		if (b->seq[i].commit != TD_COMMIT_END || rest <= TD_CUDA_SMALL) /* of a prompt's end more than one product of few rows takes */
			rows -= rest;
		if (b->seq[i].commit && rows > 0)
			dev->large[dev->n_large++] = {b->seq[i].row0 + skip, rows};
	}
}

/* ---- exchange region ---------------------------------------------------------------------------------------------------------------- */

/* A handle names the whole allocation that an address lies in, and the driver serves small requests from shared pieces of 2 MiB: whole pieces only. */
int td__cuda_exchange_create(struct td_dev *dev, size_t bytes, void **base, uint8_t *handle, struct td_error *err)
{
	const size_t piece = (size_t)2 << 20;
	cudaIpcMemHandle_t h;
	cudaError_t e;
	int rc;

	static_assert(sizeof(h) == TD_HANDLE_BYTES, "a handle of the exchange region is CUDA's");
	*base = td__cuda_alloc(dev, (bytes + piece - 1) / piece * piece, err);
	if (!*base)
		return err ? err->code : TD_E_NOMEM;
	rc = td__cuda_sync(dev, err);
	if (!rc && (e = cudaIpcGetMemHandle(&h, *base)) != cudaSuccess)
		rc = td_error_set(err, TD_E_DEVICE, "GPU %d: the exchange region can't be shared with the drafter: %s", dev->ordinal, cudaGetErrorString(e));
	if (rc) {
		td__cuda_free(dev, *base);
		*base = NULL;
		return rc;
	}
	memcpy(handle, &h, sizeof(h));
	return 0;
}

int td__cuda_exchange_open(struct td_dev *dev, const uint8_t *handle, void **base, struct td_error *err)
{
	cudaIpcMemHandle_t h;
	cudaError_t e;

	memcpy(&h, handle, sizeof(h));
	*base = NULL;
	e = cudaIpcOpenMemHandle(base, h, cudaIpcMemLazyEnablePeerAccess);
	if (e == cudaSuccess)
		return 0;
	cudaGetLastError();
	return td_error_set(err, TD_E_DEVICE, "GPU %d: the target's exchange region can't be opened: %s; both workers must use the same GPU", dev->ordinal,
			    cudaGetErrorString(e));
}

void td__cuda_exchange_close(struct td_dev *dev, void *base, int owner)
{
	if (!base)
		return;
	cudaStreamSynchronize(dev->stream);
	td__cuda_replay_drop(dev);
	td__cuda_check(dev, owner ? cudaFree(base) : cudaIpcCloseMemHandle(base), "closing the exchange region");
}

static __global__ void fault_kernel(volatile int *nowhere)
{
	*nowhere = 1;
}

void td__cuda_fault(struct td_dev *dev)
{
	fault_kernel<<<1, 1, 0, dev->stream>>>((volatile int *)(uintptr_t)64);
	td__cuda_launched(dev, "fault");
}

/* ---- arenas ------------------------------------------------------------------------------------------------------------------------ */

static CUmemAllocationProp arena_prop(struct td_dev *dev)
{
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = dev->ordinal;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return prop;
}

static int arena_round(struct td_dev *dev, size_t size, size_t *rounded, struct td_error *err)
{
	CUmemAllocationProp prop = arena_prop(dev);
	size_t g = 0;
	CUresult r = cuMemGetAllocationGranularity(&g, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (r != CUDA_SUCCESS)
		return driver_error(err, r, "asking for the arena granularity");
	*rounded = (size + g - 1) / g * g;
	if (size == 0)
		return td_error_set(err, TD_E_INVALID, "an arena of 0 bytes");
	return 0;
}

/* Maps `handle` and drops it: the mapping and the fd keep the memory. */
static int arena_map(struct td_dev *dev, CUmemGenericAllocationHandle handle, size_t rounded, int read_only, void **base, struct td_error *err)
{
	CUmemAccessDesc access;
	CUdeviceptr at = 0;
	const char *what = "reserving addresses for an arena";
	CUresult r = cuMemAddressReserve(&at, rounded, 0, 0, 0);

	if (r == CUDA_SUCCESS) {
		what = "mapping an arena";
		r = cuMemMap(at, rounded, 0, handle, 0);
		if (r == CUDA_SUCCESS) {
			memset(&access, 0, sizeof(access));
			access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
			access.location.id = dev->ordinal;
			access.flags = read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
			what = read_only ? "mapping an arena read-only" : "setting access to an arena";
			r = cuMemSetAccess(at, rounded, &access, 1);
			if (r != CUDA_SUCCESS)
				cuMemUnmap(at, rounded);
		}
		if (r != CUDA_SUCCESS)
			cuMemAddressFree(at, rounded);
	}
	cuMemRelease(handle);
	if (r != CUDA_SUCCESS)
		return driver_error(err, r, what);
	*base = (void *)at;
	return 0;
}

int td__cuda_arena_create(struct td_dev *dev, size_t size, struct td_arena *out, struct td_error *err)
{
	CUmemAllocationProp prop = arena_prop(dev);
	CUmemGenericAllocationHandle handle;
	size_t rounded = 0;
	int fd = -1, rc = arena_round(dev, size, &rounded, err);
	CUresult r;

	memset(out, 0, sizeof(*out));
	out->fd = -1;
	if (rc)
		return rc;
	r = cuMemCreate(&handle, rounded, &prop, 0);
	if (r != CUDA_SUCCESS) {
		char what[128];
		size_t left = 0, all = 0;

		cudaMemGetInfo(&left, &all);
		snprintf(what, sizeof(what), "GPU %d: an arena of %zu MiB can't be had (%zu of %zu MiB are free)", dev->ordinal, rounded >> 20,
			 left >> 20, all >> 20);
		return driver_error(err, r, what);
	}
	r = cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (r != CUDA_SUCCESS) {
		cuMemRelease(handle);
		return driver_error(err, r, "exporting an arena as a file descriptor");
	}
	rc = arena_map(dev, handle, rounded, 0, &out->base, err);
	if (rc) {
		close(fd);
		return rc;
	}
	out->size = size;
	out->fd = fd;
	td__cuda_zero(dev, out->base, size);
	return 0;
}

int td__cuda_arena_import(struct td_dev *dev, int fd, size_t size, int read_only, struct td_arena *out, struct td_error *err)
{
	CUmemGenericAllocationHandle handle;
	size_t rounded = 0;
	int rc = arena_round(dev, size, &rounded, err);

	memset(out, 0, sizeof(*out));
	out->fd = -1;
	if (!rc) {
		CUresult r = cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

		rc = r == CUDA_SUCCESS ? arena_map(dev, handle, rounded, read_only, &out->base, err)
				       : driver_error(err, r, "importing an arena from its file descriptor");
	}
	if (rc) {
		close(fd);
		return rc;
	}
	out->size = size;
	out->fd = fd;
	out->read_only = read_only;
	return 0;
}

void td__cuda_arena_release(struct td_dev *dev, struct td_arena *a)
{
	size_t rounded = 0;

	if (a->base && !arena_round(dev, a->size, &rounded, NULL)) {
		cudaStreamSynchronize(dev->stream);
		td__cuda_replay_drop(dev);
		cuMemUnmap((CUdeviceptr)a->base, rounded);
		cuMemAddressFree((CUdeviceptr)a->base, rounded);
	}
	if (a->base && a->fd >= 0)
		close(a->fd);
	memset(a, 0, sizeof(*a));
	a->fd = -1;
}

/* ---- checksum ---------------------------------------------------------------------------------------------------------------------- */

/* A 64-bit finaliser: every input bit reaches every output bit. */
static __device__ uint64_t scramble(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x9E6C63D0876A9A35ull;
	x ^= x >> 29;
	x *= 0xD2B74407B1CE6E93ull;
	return x ^ x >> 32;
}

/* Sum of scrambled (word, place): any grid gives the same, a moved or changed word another. The tail is read byte by byte. */
static __global__ void checksum_kernel(const uint64_t *src, size_t bytes, unsigned long long *out)
{
	size_t n = bytes / 8, step = (size_t)gridDim.x * blockDim.x;
	uint64_t sum = 0;

	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step)
		sum += scramble(src[i] + scramble(i + 1));
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		uint64_t w = 0;

		for (size_t i = n * 8; i < bytes; i++)
			w = w << 8 | reinterpret_cast<const unsigned char *>(src)[i];
		sum += scramble(w + scramble(~(uint64_t)bytes));
	}
	for (int d = 16; d; d >>= 1)
		sum += __shfl_xor_sync(~0u, sum, d);
	if (threadIdx.x % 32 == 0)
		atomicAdd(out, (unsigned long long)sum);
}

int td__cuda_checksum(struct td_dev *dev, const void *src, size_t bytes, uint64_t *out, struct td_error *err)
{
	unsigned long long sum = 0;
	int rc;

	if (!dev->error.code) {
		td__cuda_zero(dev, dev->sum, sizeof(*dev->sum));
		checksum_kernel<<<dev->sms * 4, 256, 0, dev->stream>>>((const uint64_t *)src, bytes, dev->sum);
		td__cuda_launched(dev, "checksum");
	}
	rc = td__cuda_download(dev, &sum, dev->sum, sizeof(sum), err);
	*out = sum;
	return rc;
}
