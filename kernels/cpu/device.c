/*
 * device.c: the CPU as a device: memory, arenas over memfd, batches, steps.
 *
 * Device memory is plain memory; an arena is a memfd mapped shared, so it outlives the worker as long as somebody keeps the fd. Its pages are
 * reserved when it is made (a machine without the room says so then, not by SIGBUS in the middle of a request) and its size is sealed, so no other
 * holder of the fd can cut it off under us.
 *
 * What must never happen: a kernel reading `struct td_batch.seq` after batch_set (the caller may reuse it).
 */
#include <cblas.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/clock.h"
#include "kernels/cpu/cpu.h"

enum { ALIGN = 256, THREADS_MAX = 256 };

/* ---- life ------------------------------------------------------------------------------------------------------------------------- */

static int processors(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);

	return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
}

int td__device_open(struct td_dev **out, const struct td_dev_options *opt, struct td_error *err)
{
	struct td_dev *dev = calloc(1, sizeof(*dev));

	*out = NULL;
	if (!dev)
		return td_error_set(err, TD_E_NOMEM, "no memory for the CPU device");
	if (opt->threads < 0 || opt->threads > THREADS_MAX) {
		free(dev);
		return td_error_set(err, TD_E_INVALID, "threads = %d: use 1 to %d, or 0 for all processors", opt->threads, THREADS_MAX);
	}
	/* The rows of one operation are spread over our own threads; the library's would fight with them. */
	openblas_set_num_threads(1);
	dev->threads = opt->threads ? opt->threads : processors();
	dev->slots = opt->slots > 0 ? opt->slots : 1;
	dev->pool = td__pool_create(dev->threads);
	dev->scratch = calloc((size_t)dev->threads, sizeof(*dev->scratch));
	dev->seqs = calloc((size_t)dev->slots * TD_BATCHES, sizeof(*dev->seqs));
	if (!dev->pool || !dev->scratch || !dev->seqs) {
		int threads = dev->threads;

		td__device_close(dev);
		return td_error_set(err, TD_E_NOMEM, "the CPU device with %d threads could not be made: out of memory or of threads", threads);
	}
	*out = dev;
	return 0;
}

void td__device_close(struct td_dev *dev)
{
	if (!dev)
		return;
	td__pool_destroy(dev->pool);
	for (int i = 0; dev->scratch && i < dev->threads; i++)
		free(dev->scratch[i].mem);
	free(dev->scratch);
	free(dev->rounded.mem);
	free(dev->seqs);
	free(dev);
}

int td__device_sync(struct td_dev *dev, struct td_error *err)
{
	if (dev->sticky.code && err)
		*err = dev->sticky;
	return dev->sticky.code;
}

void td__device_describe(struct td_dev *dev, char *text, size_t size)
{
	char model[96] = "unknown processor", line[256];
	FILE *f = fopen("/proc/cpuinfo", "r");
	const char *vectors = "plain";

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "model name", 10) && sscanf(line, "model name%*[ \t]: %95[^\n]", model) == 1)
			break;
	if (f)
		fclose(f);
#if defined(__x86_64__)
	if (td__has_avx2())
		vectors = "AVX2";
#endif
	snprintf(text, size, "cpu: %s, %d thread%s, %s vectors", model, dev->threads, dev->threads == 1 ? "" : "s", vectors);
}

void td__fail(struct td_dev *dev, int code, const char *fmt, ...)
{
	char text[sizeof(dev->sticky.text)];
	va_list ap;

	if (dev->sticky.code)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	td_error_set(&dev->sticky, code, "%s", text);
}

void *td__room(struct td_dev *dev, struct td__scratch *s, size_t bytes)
{
	bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	if (s->size >= bytes)
		return s->mem;
	free(s->mem);
	s->size = 0;
	s->mem = aligned_alloc(ALIGN, bytes);
	if (s->mem)
		s->size = bytes;
	else
		td__fail(dev, TD_E_NOMEM, "no memory for %zu bytes of scratch on the CPU", bytes);
	return s->mem;
}

int td__scratch_need(struct td_dev *dev, size_t bytes)
{
	for (int i = 0; i < dev->threads; i++)
		if (!td__room(dev, &dev->scratch[i], bytes))
			return -1;
	return 0;
}

/* ---- memory ----------------------------------------------------------------------------------------------------------------------- */

static int arena_map(int fd, size_t size, int read_only, struct td_arena *out, struct td_error *err)
{
	void *base = mmap(NULL, size, read_only ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (base == MAP_FAILED)
		return td_error_set(err, TD_E_NOMEM, "an arena of %zu bytes could not be mapped: %s", size, strerror(errno));
	*out = (struct td_arena){ .base = base, .size = size, .fd = fd, .read_only = read_only };
	return 0;
}

/* A line of /proc/meminfo in bytes, or the largest number when it is not there. */
static uint64_t meminfo(const char *format)
{
	unsigned long long kb = ~0ull >> 10;
	FILE *f = fopen("/proc/meminfo", "r");
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, format, &kb) == 1)
			break;
	if (f)
		fclose(f);
	return (uint64_t)kb << 10;
}

static unsigned long long available(void)
{
	return meminfo("MemAvailable: %llu kB");
}

int td__memory(struct td_dev *dev, uint64_t *free_bytes, uint64_t *total_bytes, struct td_error *err)
{
	(void)dev;
	(void)err;
	*free_bytes = available();
	*total_bytes = meminfo("MemTotal: %llu kB");
	return 0;
}

int td__arena_create(struct td_dev *dev, size_t size, struct td_arena *out, struct td_error *err)
{
	int fd, rc;

	(void)dev;
	memset(out, 0, sizeof(*out));
	if (!size)
		return td_error_set(err, TD_E_INVALID, "an arena of 0 bytes was asked for");
	/* Reserving more than there is does not fail on a memfd: it brings the system's out-of-memory killer. */
	if (size > available())
		return td_error_set(err, TD_E_NOMEM, "no room for an arena of %zu bytes: %llu are available", size, available());
	fd = memfd_create("tandem-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return td_error_set(err, TD_E_IO, "no memory file for an arena: %s", strerror(errno));
	do
		rc = fallocate(fd, 0, 0, (off_t)size);
	while (rc && errno == EINTR);
	if (rc) {
		rc = td_error_set(err, TD_E_NOMEM, "no room for an arena of %zu bytes: %s", size, strerror(errno));
	} else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
		rc = td_error_set(err, TD_E_IO, "an arena's size could not be sealed: %s", strerror(errno));
	} else {
		rc = arena_map(fd, size, 0, out, err);
	}
	if (rc)
		close(fd);
	return rc;
}

int td__arena_import(struct td_dev *dev, int fd, size_t size, int read_only, struct td_arena *out, struct td_error *err)
{
	struct stat st;
	int rc;

	(void)dev;
	memset(out, 0, sizeof(*out));
	if (fstat(fd, &st))
		rc = td_error_set(err, TD_E_IO, "the fd of an arena is not usable: %s", strerror(errno));
	else if (!size || st.st_size < 0 || (uint64_t)st.st_size != size)
		rc = td_error_set(err, TD_E_MISMATCH, "a kept arena has %lld bytes, %zu were expected", (long long)st.st_size, size);
	else
		rc = arena_map(fd, size, read_only, out, err);
	if (rc && fd >= 0)
		close(fd);
	return rc;
}

void td__arena_release(struct td_dev *dev, struct td_arena *a)
{
	(void)dev;
	if (!a || !a->base)
		return;
	munmap(a->base, a->size);
	close(a->fd);
	memset(a, 0, sizeof(*a));
}

void *td__alloc(struct td_dev *dev, size_t bytes, struct td_error *err)
{
	size_t size = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	void *p = NULL;

	(void)dev;
	if (size >= bytes)
		p = aligned_alloc(ALIGN, size ? size : ALIGN);
	if (!p) {
		td_error_set(err, TD_E_NOMEM, "no memory for %zu bytes on the CPU", bytes);
		return NULL;
	}
	memset(p, 0, size);
	return p;
}

void td__free(struct td_dev *dev, void *p)
{
	(void)dev;
	free(p);
}

void td__upload(struct td_dev *dev, void *dst, const void *src, size_t bytes)
{
	(void)dev;
	memcpy(dst, src, bytes);
}

int td__download(struct td_dev *dev, void *dst, const void *src, size_t bytes, struct td_error *err)
{
	memcpy(dst, src, bytes);
	return td__device_sync(dev, err);
}

void td__zero(struct td_dev *dev, void *dst, size_t bytes)
{
	(void)dev;
	memset(dst, 0, bytes);
}

int td__checksum(struct td_dev *dev, const void *src, size_t bytes, uint64_t *out, struct td_error *err)
{
	*out = XXH3_64bits(src, bytes);
	return td__device_sync(dev, err);
}

/* ---- batches and steps ------------------------------------------------------------------------------------------------------------ */

void td__batch_set(struct td_dev *dev, struct td_batch *b)
{
	struct td_seq *copy = dev->seqs + (size_t)(dev->batches++ % TD_BATCHES) * (size_t)dev->slots;

	b->dev = copy;
	if (b->n_seq < 0 || b->n_seq > dev->slots) {
		td__fail(dev, TD_E_INTERNAL, "a batch of %d sequences on a device opened for %d slots", b->n_seq, dev->slots);
		b->n_seq = b->n_rows = 0; /* nothing runs; sync tells */
		return;
	}
	memcpy(copy, b->seq, (size_t)b->n_seq * sizeof(*copy));
}

/* Nothing is kept: calls cost nothing here. Times are those of the calls, which return when all is done. */
int td__replay(struct td_dev *dev, const struct td_replay *r)
{
	for (int i = 0; i < r->n; i++)
		td__batch_set(dev, r->batch[i]);
	td__mark(dev, TD_MARK_BEGIN);
	return 0;
}

void td__replay_end(struct td_dev *dev)
{
	td__mark(dev, TD_MARK_END);
}

void td__mark(struct td_dev *dev, int i)
{
	dev->mark[i] = td_now_us();
}

double td__elapsed_us(struct td_dev *dev, int from, int to)
{
	return (double)dev->mark[to] - (double)dev->mark[from];
}
