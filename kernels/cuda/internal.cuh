/*
 * internal.cuh: what the files of the CUDA module share: the device instance, its sticky error, its scratch memory, small device helpers.
 *
 * One `struct td_dev` is one stream on one GPU; every operation is enqueued there in the order of the calls, so one scratch buffer serves them
 * all: an operation may use it from its first kernel to its last and expects nothing of it. Host code that fails leaves the first error in
 * dev->error and later operations return at once; sync and download report it.
 *
 * What must never happen: a CUDA type in a header outside this folder; an allocation in an operation whose sizes were seen before; an operation whose
 * launches depend on the contents of td_seq rather than on the batch's numbers, since recorded steps come with others (graph.cu).
 */
#ifndef TD_CUDA_INTERNAL_CUH
#define TD_CUDA_INTERNAL_CUH

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/mma.cuh"

/* The contract is C11. C++ has no _Atomic; a plain word has the same layout, and this module touches those words by the __atomic builtins. */
#define _Atomic volatile
extern "C" {
#include "kernels/kernels.h"
}
#undef _Atomic
#include "kernels/philox.h"

typedef __nv_bfloat16 bf16;

enum { TD_CUDA_COUNTERS = 1 << 16 };

/* What a kernel found wrong in the numbers it was given: host memory that the GPU writes and sync reads. */
struct td_cuda_fault {
	volatile int set, id, at, limit; /* a token id outside [0, limit) at this place; limit < 0: a negative id */
};

/* Rows row0 .. row0 + rows of the batch: blocks of TD_CUDA_LARGE, and perhaps the rest of the prompt. */
struct td_cuda_block {
	int row0, rows;
};

struct td_dev {
	int ordinal, slots, sms;
	int clusters; /* of the delta rule: 1 they can run, -1 they can't, 0 nobody asked yet */
	int ranks[4]; /* of the products: clusters of 1 << [] blocks that run at once; -1 none, 0 nobody asked yet */
	int groups; /* products of warpgroups: compute capability 9.0 alone */
	int overlap; /* a kernel may start before the one before it has ended */
	size_t shared_max; /* bytes of shared memory that a block can have */
	cudaStream_t stream;
	cublasLtHandle_t blas;
	struct td_cuda_dense *dense; /* shapes met so far (linear_dense.cu) */
	char *scratch, *lent; /* its own; the engines' */
	size_t scratch_size, lent_size;
	uint64_t allocations;
	unsigned *counters; /* arrival counters of last-block reductions; zero between kernels */
	struct td_seq *batch[TD_BATCHES];
	int batch_next, batch_cap;
	struct td_cuda_block *large; /* (batch_cap): rows of the batch set last that go to the dense products */
	int n_large, batch_rows;
	const void *recurred; /* the state that the delta rule took last, of those since the batches were set */
	unsigned long long *sum; /* result of checksum */
	struct td_error error;
	struct td_cuda_fault *fault, *fault_dev;
	struct td_cuda_replay *replay; /* graph.cu */
	char name[160];
};

/* Remembers the first error; returns 0 when `e` is success. */
int td__cuda_check(struct td_dev *dev, cudaError_t e, const char *what);
void td__cuda_fail(struct td_dev *dev, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* At least `bytes`, 256-byte aligned; NULL after an error. */
void *td__cuda_scratch(struct td_dev *dev, size_t bytes);
/* What can be had without growing. */
static inline size_t td__cuda_scratch_size(const struct td_dev *dev)
{
	return dev->lent_size > dev->scratch_size ? dev->lent_size : dev->scratch_size;
}
static inline int td__cuda_launched(struct td_dev *dev, const char *what)
{
	return td__cuda_check(dev, cudaGetLastError(), what);
}
/*
 * The one way to launch a kernel of a step. Where the GPU can (dev->overlap) the kernel may start while the one before it ends; so each of its threads
 * calls after_previous() (mma.cuh) before it touches what other kernels write, and let_next_start() as early as it likes. `ranks` blocks that are
 * neighbours in x form a cluster.
 */
template <class... P, class... A>
static inline void td__cuda_launch_ranks(struct td_dev *dev, const char *what, void (*kernel)(P...), dim3 grid, int threads, size_t shared, int ranks, A... args)
{
	cudaLaunchAttribute attr[2];
	cudaLaunchConfig_t c = {grid, dim3((unsigned)threads), shared, dev->stream, attr, 0};

	if (dev->overlap) {
		attr[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
		attr[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
	}
	if (ranks > 1) {
		attr[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
		attr[c.numAttrs].val.clusterDim.x = (unsigned)ranks;
		attr[c.numAttrs].val.clusterDim.y = attr[c.numAttrs].val.clusterDim.z = 1;
		c.numAttrs++;
	}
	td__cuda_check(dev, cudaLaunchKernelEx(&c, kernel, args...), what);
}
template <class... P, class... A>
static inline void td__cuda_launch(struct td_dev *dev, const char *what, void (*kernel)(P...), dim3 grid, int threads, size_t shared, A... args)
{
	td__cuda_launch_ranks(dev, what, kernel, grid, threads, shared, 1, args...);
}
/* Allows a kernel this much dynamic shared memory; needed from a little below 48 KiB on, as its static words count too. */
template <class K> static inline void td__cuda_shared(struct td_dev *dev, K *kernel, size_t bytes)
{
	td__cuda_check(dev, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "shared memory");
}
/* Clusters of so many blocks of a kernel that can run at once; 0: none, as on a GPU without them or on a share of one that is too narrow (MPS). */
template <class K> static inline int td__cuda_clusters(struct td_dev *dev, K *kernel, dim3 grid, int threads, size_t shared, int ranks)
{
	cudaLaunchAttribute attr[1];
	cudaLaunchConfig_t c = {grid, dim3((unsigned)threads), shared, dev->stream, attr, 1};
	int n = 0;

	attr[0].id = cudaLaunchAttributeClusterDimension;
	attr[0].val.clusterDim.x = (unsigned)ranks;
	attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
	td__cuda_shared(dev, kernel, shared);
	if (!dev->overlap || cudaOccupancyMaxActiveClusters(&n, kernel, &c) != cudaSuccess)
		cudaGetLastError();
	return n;
}
/* 0 when the tensor has this type; otherwise a sticky error that names the operation. */
static inline int td__cuda_type(struct td_dev *dev, struct td_tensor t, enum td_dtype want, const char *what)
{
	if (t.dtype == want || t.rows == 0)
		return 0;
	td__cuda_fail(dev, TD_E_INTERNAL, "%s: element type %d where %d is needed", what, (int)t.dtype, (int)want);
	return -1;
}

static inline __host__ __device__ int div_up(int a, int b)
{
	return (a + b - 1) / b;
}
static inline size_t align256(size_t n)
{
	return (n + 255) & ~(size_t)255;
}

/* ---- device helpers ---------------------------------------------------------------------------------------------------------------- */

/* Sum over the warp, every lane gets it; the order is fixed. */
static inline __device__ float warp_sum(float v)
{
	for (int d = 16; d; d >>= 1)
		v += __shfl_xor_sync(~0u, v, d);
	return v;
}
/* The approximate division (2 ulp) has no slow path: a branch there would keep loads from being issued ahead of it. */
static inline __device__ float sigmoid(float x)
{
	return __fdividef(1.0f, 1.0f + expf(-x));
}
static inline __device__ float silu(float x)
{
	return __fdividef(x, 1.0f + expf(-x));
}
/* Two bf16 in a word -> float, exactly. */
static inline __device__ float bf16_lo(uint32_t w)
{
	return __uint_as_float(w << 16);
}
static inline __device__ float bf16_hi(uint32_t w)
{
	return __uint_as_float(w & 0xffff0000u);
}
static inline __device__ uint32_t bf16_pair(float lo, float hi)
{
	__nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);

	return *reinterpret_cast<uint32_t *>(&p);
}

/* The last of `n` blocks that call this for one counter gets 1, and sees what the others wrote before; the counter is zero again afterwards. */
static inline __device__ int last_to_arrive(unsigned *counter, unsigned n)
{
	__shared__ int last;

	/* One thread releases and acquires for the block: the barriers hand that on to the others, and nobody else waits for a fence. */
	__syncthreads();
	if (threadIdx.x == 0) {
		last = count_arrival(counter, n) == n - 1;
	}
	__syncthreads();
	return last;
}

/* ---- the operations, one file each; module.cu makes the table ----------------------------------------------------------------------- */

int td__cuda_open(struct td_dev **, const struct td_dev_options *, struct td_error *);
void td__cuda_close(struct td_dev *);
int td__cuda_sync(struct td_dev *, struct td_error *);
void td__cuda_describe(struct td_dev *, char *, size_t);
int td__cuda_arena_create(struct td_dev *, size_t, struct td_arena *, struct td_error *);
int td__cuda_arena_import(struct td_dev *, int, size_t, int, struct td_arena *, struct td_error *);
void td__cuda_arena_release(struct td_dev *, struct td_arena *);
void *td__cuda_alloc(struct td_dev *, size_t, struct td_error *);
void td__cuda_free(struct td_dev *, void *);
void td__cuda_upload(struct td_dev *, void *, const void *, size_t);
int td__cuda_download(struct td_dev *, void *, const void *, size_t, struct td_error *);
void td__cuda_zero(struct td_dev *, void *, size_t);
int td__cuda_checksum(struct td_dev *, const void *, size_t, uint64_t *, struct td_error *);
void td__cuda_batch_set(struct td_dev *, struct td_batch *);

size_t td__cuda_pack_bytes(enum td_weight_kind, int out, int in, int group);
int td__cuda_pack(struct td_dev *, const struct td_linear *, const struct td_linear_part *, int, struct td_error *);
void td__cuda_pack_rows(struct td_dev *, const struct td_linear *, const int32_t *, const struct td_linear *);
void td__cuda_linear(struct td_dev *, struct td_tensor, const struct td_linear *, struct td_tensor, int);
/* up to TD_CUDA_SMALL rows, row-invariant; above TD_CUDA_NARROW perhaps, and up to TD_CUDA_WIDE, by linear_wide.cu */
enum { TD_CUDA_NARROW = 32, TD_CUDA_SMALL = 64, TD_CUDA_WIDE = 512, TD_CUDA_LARGE = 256 };
/* Rows of a sequence before the next position that begins a block. */
static inline __host__ __device__ int rows_to_block(int pos0)
{
	return (TD_CUDA_LARGE - pos0 % TD_CUDA_LARGE) % TD_CUDA_LARGE;
}

/*
 * Which form a row takes is a matter of its position in the prompt alone: final rows that fill blocks of TD_CUDA_LARGE positions are the middle part of a
 * sequence, all others come before or after. Replayed rows belong to what comes first. A part of nothing has rows 0.
 */
enum { ROWS_ALL, ROWS_BEFORE, ROWS_BLOCKS, ROWS_AFTER };
static inline __host__ __device__ struct td_seq part_of(struct td_seq s, int part)
{
	int from = rows_to_block(s.pos0), end;

	if (part == ROWS_ALL)
		return s;
	if (!s.commit || s.rows < from + TD_CUDA_LARGE)
		from = s.rows;
	end = from + (s.rows - from) / TD_CUDA_LARGE * TD_CUDA_LARGE;
	if (part == ROWS_BEFORE) {
		s.rows = from;
		return s;
	}
	if (part == ROWS_AFTER)
		from = end;
	s.row0 += from;
	s.pos0 += from;
	s.rows = part == ROWS_AFTER ? s.rows - end : end - from;
	s.replay = 0;
	return s;
}
void td__cuda_int4_small(struct td_dev *, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate);
/* Both maps in one launch; 0 where their kinds or sizes don't allow that. */
int td__cuda_linear_pair(struct td_dev *, struct td_tensor x, const struct td_linear *w0, struct td_tensor y0, const struct td_linear *w1, struct td_tensor y1);
int td__cuda_paired(const struct td_linear *w); /* a map of gate|up that is packed by tiles of both */
void td__cuda_int4_gated(struct td_dev *dev, struct td_tensor x, const struct td_linear *w, struct td_tensor y); /* of a paired map: swiglu */
int td__cuda_int4_wide(struct td_dev *, struct td_tensor x, const struct td_linear *, struct td_tensor y, int accumulate, int paired);
/* Of maps with activations in 8 bits: more than TD_CUDA_NARROW rows, with the bits of few; what is td__cuda_dense's otherwise. 0 where that is not possible. */
int td__cuda_act8_wide(struct td_dev *, struct td_tensor x, const struct td_linear *, struct td_tensor y, int accumulate, int paired);
int td__cuda_act8_prompt(struct td_dev *, struct td_tensor x, const struct td_linear *, struct td_tensor y, int accumulate, int paired);
void td__cuda_int4_rows(struct td_dev *, const struct td_linear *from, const int32_t *id, const struct td_linear *w);
void td__cuda_int4_repack(struct td_dev *, const struct td_linear *w, int strip0, int rows, const uint32_t *weight, const bf16 *scale);
void td__cuda_int4_expand(struct td_dev *, const struct td_linear *w, int row0, int rows, bf16 *dense);
/* blocks of prompts and long rests of them */
void td__cuda_dense(struct td_dev *, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate);
void td__cuda_dense_close(struct td_dev *);
void td__cuda_bf16_small(struct td_dev *, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate);

void td__cuda_embed(struct td_dev *, struct td_tensor, const int32_t *, struct td_tensor);
void td__cuda_rms_norm(struct td_dev *, struct td_tensor, const float *, float, int, struct td_tensor);
void td__cuda_swiglu(struct td_dev *, struct td_tensor, struct td_tensor);
void td__cuda_swiglu_of(struct td_dev *, struct td_tensor, struct td_tensor, int paired);
void td__cuda_linear2(struct td_dev *, struct td_tensor, const struct td_linear *, struct td_tensor, const struct td_linear *, struct td_tensor);
void td__cuda_linear_swiglu(struct td_dev *, struct td_tensor, const struct td_linear *, struct td_tensor, struct td_tensor);
void td__cuda_copy(struct td_dev *, struct td_tensor, struct td_tensor);
void td__cuda_gdn(struct td_dev *, const struct td_gdn *, const struct td_gdn_state *, const struct td_batch *, struct td_tensor, struct td_tensor,
		  struct td_tensor);
void td__cuda_attention(struct td_dev *, const struct td_attn *, const struct td_kv *, const struct td_batch *, struct td_tensor, struct td_tensor);
void td__cuda_draft_context(struct td_dev *, const struct td_attn *, const struct td_kv *, const struct td_batch *, struct td_tensor);
void td__cuda_draft_attention(struct td_dev *, const struct td_attn *, const struct td_kv *, const struct td_batch *, struct td_tensor,
			      struct td_tensor);
void td__cuda_rows_last(struct td_dev *, const struct td_batch *, struct td_tensor, struct td_tensor);
void td__cuda_rows_tail(struct td_dev *, const struct td_batch *, struct td_tensor, struct td_tensor);
void td__cuda_verify_ids(struct td_dev *, const struct td_batch *, const int32_t *, const struct td_draft *, int32_t *);
void td__cuda_mask_ids(struct td_dev *, const struct td_batch *, const int32_t *, int32_t, int32_t *);
void td__cuda_counts_reset(struct td_dev *, uint16_t *, int, const int32_t *, int);
void td__cuda_counts_add(struct td_dev *, uint16_t *, const int32_t *, int);
void td__cuda_propose(struct td_dev *, const struct td_batch *, struct td_tensor, const struct td_columns *, int, const struct td_sampling *, const uint16_t *,
		      struct td_draft *);
void td__cuda_accept(struct td_dev *, const struct td_batch *, struct td_tensor, int, const struct td_sampling *, const struct td_draft *, uint16_t *,
		     int32_t *, struct td_verdict *);
void td__cuda_mask(struct td_dev *, struct td_tensor, const uint32_t *, int);
void td__cuda_rescore(struct td_dev *, struct td_tensor x, struct td_tensor table, struct td_tensor logits, const struct td_columns *of, int vocab);

int td__cuda_replay_open(struct td_dev *);
void td__cuda_replay_close(struct td_dev *);
void td__cuda_replay_drop(struct td_dev *); /* memory goes or moves: no recorded step may be launched any more */
int td__cuda_recording(const struct td_dev *);
int td__cuda_replay(struct td_dev *, const struct td_replay *);
void td__cuda_replay_end(struct td_dev *);
int td__cuda_replay_wait(struct td_dev *, struct td_error *);
void td__cuda_mark(struct td_dev *, int);
double td__cuda_elapsed_us(struct td_dev *, int, int);
void td__cuda_batch_rows(struct td_dev *, const struct td_batch *); /* what linear maps know of a batch */
int td__cuda_settled(struct td_dev *, struct td_error *); /* after a wait: what kernels found wrong, and the sticky error */
void *td__cuda_host_alloc(struct td_dev *, size_t, struct td_error *);
void td__cuda_host_free(struct td_dev *, void *);

int td__cuda_memory(struct td_dev *, uint64_t *, uint64_t *, struct td_error *);
int td__cuda_exchange_create(struct td_dev *, size_t, void **, uint8_t *, struct td_error *);
int td__cuda_exchange_open(struct td_dev *, const uint8_t *, void **, struct td_error *);
void td__cuda_exchange_close(struct td_dev *, void *, int);
void td__cuda_fault(struct td_dev *);
void td__cuda_lend(struct td_dev *, void *, size_t);
uint64_t td__cuda_allocations(struct td_dev *);

void td__cuda_assume(struct td_dev *, const struct td_batch *, struct td_tensor, const struct td_draft *, const struct td_sampling *);
int td__cuda_roof_read(struct td_dev *, size_t, double *, struct td_error *);
int td__cuda_roof_dense(struct td_dev *, const struct td_linear *, int, int, double *, struct td_error *);

#endif
