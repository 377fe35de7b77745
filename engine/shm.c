/*
 * shm.c: creating, checking and mapping the shared memory; rings, bells and flags.
 *
 * Layout: struct td_shm, slot areas, token ids, grammars, pages beside the step records, exchange region (CPU backend), each at a multiple of a
 * page. It follows from the configuration alone, so whoever maps the memory computes it again and compares: a header that lies is refused, not
 * trusted. The memfd is sealed against shrinking and growing, since a page that vanishes under a mapping kills its reader with SIGBUS, tandemd included.
 * Sizes of mappings are kept in private memory: a header that is overwritten later cannot make td_shm_unmap unmap something else.
 */
#include "engine/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/clock.h"

enum {
	MAGIC = 0x6d646e74, /* "tndm" */
	ALIGN = 4096,
	CONTEXT_MAX = 1 << 22,
	VOCAB_MAX = 1 << 22,
	FEATURES_MAX = 1 << 18,
	ROWS_MAX = 1 << 20,
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- layout ------------------------------------------------------------------------------------------------------------------------ */

/* Parts of the exchange region in order; returns its size. */
static size_t exchange_plan(const struct td_shm_config *cfg, enum td_dtype act, size_t off[TD_FEATURE_BUFS + 3])
{
	size_t at = 0, slots = (size_t)cfg->slots;

	for (int i = 0; i < TD_FEATURE_BUFS; i++) {
		off[i] = at;
		at = round_up(at + (size_t)cfg->feature_rows * (size_t)cfg->features * td_dtype_size(act), 256);
	}
	off[TD_FEATURE_BUFS] = at;
	at = round_up(at + slots * sizeof(struct td_draft), 256);
	off[TD_FEATURE_BUFS + 1] = at;
	at = round_up(at + slots * sizeof(int32_t), 256);
	off[TD_FEATURE_BUFS + 2] = at;
	return round_up(at + slots * (size_t)cfg->vocab * sizeof(uint16_t), ALIGN);
}

size_t td_exchange_bytes(const struct td_shm_config *cfg, enum td_dtype act)
{
	size_t off[TD_FEATURE_BUFS + 3];

	return exchange_plan(cfg, act, off);
}

void td_exchange_layout(const struct td_shm_config *cfg, enum td_dtype act, void *base, struct td_exchange *out)
{
	size_t off[TD_FEATURE_BUFS + 3];

	exchange_plan(cfg, act, off);
	for (int i = 0; i < TD_FEATURE_BUFS; i++)
		out->features[i] = (char *)base + off[i];
	out->draft = (struct td_draft *)((char *)base + off[TD_FEATURE_BUFS]);
	out->anchor = (int32_t *)((char *)base + off[TD_FEATURE_BUFS + 1]);
	out->counts = (uint16_t *)((char *)base + off[TD_FEATURE_BUFS + 2]);
}

static int in_range(const char *name, int64_t value, int64_t lo, int64_t hi, struct td_error *err)
{
	if (value >= lo && value <= hi)
		return 0;
	return td_error_set(err, TD_E_INVALID, "shared memory: %s is %lld, must be %lld to %lld", name, (long long)value, (long long)lo, (long long)hi);
}

static int config_check(const struct td_shm_config *c, struct td_error *err)
{
	int need, rc;

	if ((rc = in_range("slots", c->slots, 1, TD_SLOTS_MAX, err)) || (rc = in_range("context", c->context, TD_PAGE, CONTEXT_MAX, err)) ||
	    (rc = in_range("vocab", c->vocab, 1, VOCAB_MAX, err)) || (rc = in_range("features", c->features, 0, FEATURES_MAX, err)) ||
	    (rc = in_range("chunk", c->chunk, 64, ROWS_MAX, err)) || (rc = in_range("host_exchange", c->host_exchange, 0, 1, err)))
		return rc;
	if (c->context % TD_PAGE || c->chunk % 64)
		return td_error_set(err, TD_E_INVALID, "shared memory: context (%d) and chunk (%d) must be multiples of 64", c->context, c->chunk);
	need = c->chunk > c->slots * TD_BLOCK_MAX ? c->chunk : c->slots * TD_BLOCK_MAX;
	return in_range("feature_rows", c->feature_rows, need, ROWS_MAX, err);
}

/* The fixed beginning of struct td_shm; the whole, with its rings, is too large for a stack. */
struct head {
	uint32_t magic, version;
	uint64_t size;
	struct td_shm_config cfg;
	uint64_t off_slots, off_ids, off_grammar, off_table, off_exchange;
};
_Static_assert(offsetof(struct td_shm, off_exchange) == offsetof(struct head, off_exchange) && offsetof(struct td_shm, cfg) == offsetof(struct head, cfg),
	       "struct head is the beginning of struct td_shm");

static struct head layout(const struct td_shm_config *cfg)
{
	uint64_t slots = (uint64_t)cfg->slots;
	struct head h;

	memset(&h, 0, sizeof(h));
	h.magic = MAGIC;
	h.version = TD_SHM_VERSION;
	h.cfg = *cfg;
	h.off_slots = round_up(sizeof(struct td_shm), ALIGN);
	h.off_ids = round_up(h.off_slots + slots * sizeof(struct td_slot_area), ALIGN);
	h.off_grammar = round_up(h.off_ids + slots * (uint64_t)cfg->context * sizeof(int32_t), ALIGN);
	h.off_table = h.off_grammar + slots * TD_GRAMMAR_MAX;
	h.off_exchange = round_up(h.off_table + TD_STEPS * slots * (uint64_t)(cfg->context / TD_PAGE) * sizeof(int32_t), ALIGN);
	h.size = h.off_exchange + (cfg->host_exchange ? td_exchange_bytes(cfg, TD_F32) : 0);
	return h;
}

/* ---- mappings ---------------------------------------------------------------------------------------------------------------------- */

struct mapping {
	struct mapping *next;
	void *at;
	size_t size;
};
static struct mapping *mappings;
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;

static int map(int fd, size_t size, struct td_shm **shm, struct td_error *err)
{
	struct mapping *m = malloc(sizeof(*m));
	void *at;

	if (!m)
		return td_error_set(err, TD_E_NOMEM, "shared memory: out of memory");
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		free(m);
		return td_error_set(err, errno == ENOMEM ? TD_E_NOMEM : TD_E_IO, "shared memory: cannot map %zu bytes: %s", size, strerror(errno));
	}
	*m = (struct mapping){.at = at, .size = size};
	pthread_mutex_lock(&mappings_lock);
	m->next = mappings;
	mappings = m;
	pthread_mutex_unlock(&mappings_lock);
	*shm = at;
	return 0;
}

void td_shm_unmap(struct td_shm *shm)
{
	struct mapping **p, *m;

	pthread_mutex_lock(&mappings_lock);
	for (p = &mappings; *p && (*p)->at != (void *)shm; p = &(*p)->next)
		;
	m = *p;
	if (m)
		*p = m->next;
	pthread_mutex_unlock(&mappings_lock);
	if (m)
		munmap(m->at, m->size);
	free(m);
}

int td_shm_create(const struct td_shm_config *cfg, int *fd, struct td_shm **shm, struct td_error *err)
{
	struct head head;
	int rc, f;

	*fd = -1;
	*shm = NULL;
	rc = config_check(cfg, err);
	if (rc)
		return rc;
	head = layout(cfg);
	f = memfd_create("tandem-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (f < 0)
		return td_error_set(err, errno == EMFILE || errno == ENFILE ? TD_E_LIMIT : TD_E_IO, "shared memory: memfd_create: %s", strerror(errno));
	if (ftruncate(f, (off_t)head.size) < 0 || fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		rc = td_error_set(err, errno == EFBIG ? TD_E_LIMIT : TD_E_IO, "shared memory: cannot size it to %llu bytes: %s%s",
				  (unsigned long long)head.size, strerror(errno), errno == EFBIG ? " (ulimit -f, LimitFSIZE)" : "");
		goto failed;
	}
	rc = map(f, head.size, shm, err);
	if (rc)
		goto failed;
	memcpy(*shm, &head, sizeof(head));
	*fd = f;
	return 0;
failed:
	close(f);
	return rc;
}

int td_shm_map(int fd, struct td_shm **shm, struct td_error *err)
{
	struct head head, want;
	struct stat st;
	int rc;

	*shm = NULL;
	if (fstat(fd, &st) < 0)
		return td_error_set(err, TD_E_IO, "shared memory: fd %d: %s", fd, strerror(errno));
	if ((uint64_t)st.st_size < sizeof(struct td_shm) || pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
		return td_error_set(err, TD_E_FORMAT, "shared memory: it has %lld bytes, its header alone needs %zu", (long long)st.st_size,
				    sizeof(struct td_shm));
	if (head.magic != MAGIC)
		return td_error_set(err, TD_E_FORMAT, "shared memory: fd %d is something else (magic %08x)", fd, head.magic);
	if (head.version != TD_SHM_VERSION)
		return td_error_set(err, TD_E_MISMATCH, "shared memory: version %u, this program speaks %d; install tandemd and its workers from one build",
				    head.version, TD_SHM_VERSION);
	rc = config_check(&head.cfg, err);
	if (rc)
		return rc;
	want = layout(&head.cfg);
	if (head.size != want.size || head.off_slots != want.off_slots || head.off_ids != want.off_ids || head.off_grammar != want.off_grammar ||
	    head.off_table != want.off_table || head.off_exchange != want.off_exchange)
		return td_error_set(err, TD_E_FORMAT, "shared memory: offsets or size do not follow from its configuration");
	if ((uint64_t)st.st_size != want.size)
		return td_error_set(err, TD_E_FORMAT, "shared memory: it has %lld bytes, its header says %llu", (long long)st.st_size,
				    (unsigned long long)want.size);
	return map(fd, want.size, shm, err);
}

/* ---- rings ------------------------------------------------------------------------------------------------------------------------- */

/* Head is the producer's, tail the consumer's. A distance that cannot be (the other side wrote nonsense) reads as full and as empty: nothing
 * outside the ring is touched, and the watchdog finds the silence. A producer that dies between the record and the head loses that record only:
 * its successor goes on from the head that is there. */
int td_ring_push(struct td_ring *ring, struct td_record *rec)
{
	uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

	if (head - atomic_load_explicit(&ring->tail, memory_order_acquire) >= TD_RING_RECORDS)
		return 0;
	rec->sequence = head + 1;
	ring->record[head % TD_RING_RECORDS] = *rec;
	atomic_store_explicit(&ring->head, head + 1, memory_order_release);
	return 1;
}

int td_ring_pop(struct td_ring *ring, struct td_record *rec)
{
	uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	uint64_t n = atomic_load_explicit(&ring->head, memory_order_acquire) - tail;

	if (n == 0 || n > TD_RING_RECORDS)
		return 0;
	*rec = ring->record[tail % TD_RING_RECORDS];
	atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
	return 1;
}

/* ---- bells ------------------------------------------------------------------------------------------------------------------------- */

/*
 * No wake-up is lost. The ringer writes `count`, then reads `sleepers`; the sleeper writes `sleepers`, then reads `count` (the kernel reads it
 * once more, under the lock that a wake takes). All four are seq_cst, so they have one order, and at least one of the two sees what the other
 * wrote: either the ringer makes the system call, or the sleeper does not sleep. Acquire and release would not do: they allow both to read old.
 * Whatever the caller wrote before ringing (a record, a flag) is visible to who returns from the wait, since that one has read `count`.
 * A sleeper that is killed leaves `sleepers` raised: each later ring costs a system call it could save, nothing else.
 * The futex is not a private one: the two sides are different processes.
 */
static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, (uint32_t *)word, op, value, timeout, NULL, 0);
}

void td_bell_ring(struct td_bell *bell)
{
	atomic_fetch_add(&bell->count, 1);
	if (atomic_load(&bell->sleepers))
		futex(&bell->count, FUTEX_WAKE, INT_MAX, NULL);
}

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Spinning pays for itself only while the other side runs on another processor, and a hop between two that do takes well under 20 us; beyond
 * that the sleeper's processor is worth more to others, unless a GPU is idle until this one wakes: a sleeper comes back after some 50 us. */
static int spin_us = 20;

void td_bell_spin(int us)
{
	spin_us = us;
}

void td_bell_wait(struct td_bell *bell, uint32_t seen, int timeout_ms)
{
	int64_t start, end;

	if (atomic_load(&bell->count) != seen || timeout_ms == 0)
		return;
	start = (int64_t)td_now_us();
	end = timeout_ms < 0 ? INT64_MAX : start + (int64_t)timeout_ms * 1000;
	do
		for (int i = 0; i < 32; i++) {
			if (atomic_load_explicit(&bell->count, memory_order_acquire) != seen)
				return;
			relax();
		}
	while ((int64_t)td_now_us() - start < spin_us && (int64_t)td_now_us() < end);
	atomic_fetch_add(&bell->sleepers, 1);
	while (atomic_load(&bell->count) == seen) {
		int64_t left = end - (int64_t)td_now_us();
		struct timespec t = {.tv_sec = left / 1000000, .tv_nsec = left % 1000000 * 1000};

		if (left <= 0)
			break;
		futex(&bell->count, FUTEX_WAIT, seen, timeout_ms < 0 ? NULL : &t);
	}
	atomic_fetch_sub(&bell->sleepers, 1);
}

/* ---- flags ------------------------------------------------------------------------------------------------------------------------- */

void td_flag_set(struct td_flag *flag, uint64_t value, struct td_bell *bell)
{
	atomic_store_explicit(&flag->value, value, memory_order_release);
	td_bell_ring(bell);
}

int td_flag_wait(struct td_flag *flag, uint64_t value, struct td_bell *own, int timeout_ms, struct td_error *err)
{
	int64_t end = timeout_ms < 0 ? INT64_MAX : (int64_t)td_now_us() + (int64_t)timeout_ms * 1000, left;

	for (;;) {
		uint32_t seen = atomic_load(&own->count);
		uint64_t v = atomic_load_explicit(&flag->value, memory_order_acquire);

		if (v >= value) {
			if (v >> 32 != value >> 32 || v == TD_FLAG_POISON(v >> 32))
				return td_error_set(err, TD_E_STALE, "epoch %u is over: the other worker was lost", (unsigned)(value >> 32));
			return 0;
		}
		left = end - (int64_t)td_now_us();
		if (left <= 0)
			return td_error_set(err, TD_E_DEADLINE, "the other worker did not finish step %u within %d ms", (unsigned)value, timeout_ms);
		td_bell_wait(own, seen, left > 1000000 ? 1000 : (int)(left / 1000) + 1);
	}
}
