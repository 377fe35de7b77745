/*
 * flags.cu: the order between two workers: flags in host memory that both processes map.
 *
 * Set: a 64-bit stream memory operation on the registered page writes the value when everything enqueued before has finished, then a host
 * callback rings the peer's bell. When the stream is empty already the host does both itself: the same order, without the callback's latency.
 *
 * Wait: the host waits, spinning first, then asleep on its own bell, because what the flag guards includes records in host memory that the caller
 * reads next; what it enqueues afterwards is ordered by that. A wait inside the stream (or, under MPS, a spinning kernel of one thread inside a
 * graph: 2 us a hop) is for a cycle whose next step is enqueued before the flag is set; the host records stand in the way of that today.
 *
 * A page is registered once and stays so; registering fails when the memory is no mapping of ours, and then the error is sticky.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/internal.cuh"

enum { PAGE = 4096, SPIN_US = 100, NAP_MS = 2 };

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void ring(void *bell)
{
	struct td_bell *b = (struct td_bell *)bell;

	__atomic_fetch_add(&b->count, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&b->sleepers, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, &b->count, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* The device's address of a flag; 0 after an error. */
static CUdeviceptr flag_address(struct td_dev *dev, struct td_flag *flag)
{
	char *page = (char *)((uintptr_t)flag & ~(uintptr_t)(PAGE - 1));
	void *at = NULL;
	int i = 0;

	while (i < dev->n_page && dev->page[i] != page)
		i++;
	if (i == dev->n_page) {
		if (i == TD_CUDA_PAGES) {
			td__cuda_fail(dev, TD_E_INTERNAL, "flags on more than %d pages of shared memory", TD_CUDA_PAGES);
			return 0;
		}
		if (td__cuda_check(dev, cudaHostRegister(page, PAGE, cudaHostRegisterMapped | cudaHostRegisterPortable),
				   "registering the page of a flag"))
			return 0;
		if (td__cuda_check(dev, cudaHostGetDevicePointer(&at, page, 0), "mapping the page of a flag")) {
			cudaHostUnregister(page);
			return 0;
		}
		dev->page[i] = page;
		dev->page_dev[i] = at;
		dev->n_page++;
	}
	return (CUdeviceptr)dev->page_dev[i] + ((uintptr_t)flag & (PAGE - 1));
}

void td__cuda_flag_set(struct td_dev *dev, struct td_flag *flag, uint64_t value, struct td_bell *bell)
{
	CUdeviceptr at;
	CUresult r;

	if (dev->error.code)
		return;
	if (cudaStreamQuery(dev->stream) == cudaSuccess) {
		__atomic_store_n(&flag->value, value, __ATOMIC_RELEASE);
		ring(bell);
		return;
	}
	cudaGetLastError(); /* "not ready" is no error */
	at = flag_address(dev, flag);
	if (!at)
		return;
	r = cuStreamWriteValue64((CUstream)dev->stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT);
	if (r != CUDA_SUCCESS) {
		const char *text = NULL;

		cuGetErrorString(r, &text);
		td__cuda_fail(dev, TD_E_DEVICE, "GPU %d: stream memory operations are needed for the workers' flags: %s", dev->ordinal,
			      text ? text : "unknown error");
		return;
	}
	td__cuda_check(dev, cudaLaunchHostFunc(dev->stream, ring, bell), "ringing the other worker's bell");
}

/* Sleeps until the bell rang since `seen`, at most `us`; a nap is short enough that a lost wake-up costs little. */
static void nap(struct td_bell *bell, uint32_t seen, int64_t us)
{
	struct timespec t;

	if (us < 0 || us > NAP_MS * 1000)
		us = NAP_MS * 1000;
	t.tv_sec = 0;
	t.tv_nsec = us * 1000;
	__atomic_fetch_add(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&bell->count, __ATOMIC_SEQ_CST) == seen)
		syscall(SYS_futex, &bell->count, FUTEX_WAIT, seen, &t, NULL, 0);
	__atomic_fetch_sub(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
}

int td__cuda_flag_wait(struct td_dev *dev, struct td_flag *flag, uint64_t value, struct td_bell *own, int timeout_ms, struct td_error *err)
{
	int64_t start = now_us(), end = timeout_ms < 0 ? INT64_MAX : start + (int64_t)timeout_ms * 1000;

	if (dev->error.code) {
		if (err)
			*err = dev->error;
		return dev->error.code;
	}
	for (;;) {
		uint32_t seen = __atomic_load_n(&own->count, __ATOMIC_SEQ_CST);
		uint64_t v = __atomic_load_n(&flag->value, __ATOMIC_ACQUIRE);
		int64_t now = now_us();

		if (v >= value) {
			if (v >> 32 != value >> 32 || v == TD_FLAG_POISON(v >> 32))
				return td_error_set(err, TD_E_STALE, "epoch %u is over: the other worker was lost", (unsigned)(value >> 32));
			return 0;
		}
		if (now >= end)
			return td_error_set(err, TD_E_DEADLINE, "the other worker did not finish step %u within %d ms", (unsigned)value, timeout_ms);
		if (now - start > SPIN_US)
			nap(own, seen, end - now);
	}
}
