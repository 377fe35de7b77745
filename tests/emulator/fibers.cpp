/*
 * fibers.cpp: a block of threads on one OS thread.
 *
 * Each thread is a fiber with a stack of its own. A warp's fibers run until they meet (a warp function) or wait at the block's barrier; when no fiber of a
 * warp can go on, the next warp runs. The blocks of a cluster take turns likewise, each with its own dynamic shared memory (static variables would be one
 * for all of them). Payloads of a meeting are kept twice over: a lane that runs ahead can reach the next meeting, never the one after.
 * An access to memory that is not there ends the launch and is the device's sticky error from then on, as on a GPU.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "runtime.h"

namespace emu
{
enum { STACK = 256 << 10, SHARED_MAX = 256 << 10 };

enum state { READY, MEETS, AT_BARRIER, AT_CLUSTER, ENDED };

struct copy {
	void *to;
	const void *from;
	int bytes, zeros;
	unsigned group;
};

/* Copies not yet made, oldest first, each with the number of its group. */
enum { COPIES_MAX = 256 };
struct copies {
	copy list[COPIES_MAX];
	int first, n;
	unsigned groups; /* closed so far */
};

struct block {
	dim3 index;
	unsigned rank;
	int waiting, ended;
	int any_slot[2]; /* of the barriers in turn */
	unsigned barriers;
};

struct thread {
	struct block *of;
	unsigned turn; /* of the cluster's barrier, when it arrived */
	void *sp;
	char *stack;
	state st;
	dim3 index;
	unsigned meetings; /* so far */
	struct copies copies;
};

struct warp {
	payload slot[2][WARP];
	unsigned arrived;
};

place here;
static block blocks[CLUSTER_MAX];
static thread pool[CLUSTER_MAX * THREADS_MAX]; /* THREADS_MAX for each block */
static warp warps[CLUSTER_MAX * THREADS_MAX / WARP];
static thread *self;
static int n_threads, n_blocks, arrived; /* threads of a block, blocks of the cluster, arrivals at its barrier */
static unsigned turn;
static void *main_sp;
static void (*body_now)(void *);
static void *arg_now;
static int faulted, in_kernel;
alignas(128) static char shared[CLUSTER_MAX][SHARED_MAX];

extern "C" void emu_switch(void **save, void *to);
__asm__(".text\n"
	".globl emu_switch\n"
	".hidden emu_switch\n"
	"emu_switch:\n"
	"	pushq %rbp\n	pushq %rbx\n	pushq %r12\n	pushq %r13\n	pushq %r14\n	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbx\n	popq %rbp\n"
	"	ret\n");

[[noreturn]] static void broken(const char *what)
{
	fprintf(stderr, "emulator: block (%u, %u, %u), thread %u: %s\n", here.block.x, here.block.y, here.block.z, self ? self->index.x : 0, what);
	abort();
}

#if defined(__SANITIZE_ADDRESS__)
static const void *main_bottom;
static size_t main_size;

/* The frames that never return leave their marks on the stack; its next thread would stumble over them. */
static void forget_frames(const thread *t)
{
	char *low = (char *)__builtin_frame_address(0) - 4096;

	if (low < t->stack || low > t->stack + STACK)
		low = t->stack;
	__asan_unpoison_memory_region(low, (size_t)(t->stack + STACK - low));
}
#endif

static void to_main(int for_good)
{
	thread *t = self;

#if defined(__SANITIZE_ADDRESS__)
	void *fake = NULL;

	if (for_good)
		forget_frames(t);
	__sanitizer_start_switch_fiber(for_good ? NULL : &fake, main_bottom, main_size);
	emu_switch(&t->sp, main_sp);
	__sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
	(void)for_good;
	emu_switch(&t->sp, main_sp);
#endif
}

static void enter()
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(NULL, &main_bottom, &main_size);
#endif
	body_now(arg_now);
	self->st = ENDED;
	self->of->ended++;
	to_main(1);
	broken("a thread that ended ran on");
}

static void resume(thread *t)
{
	self = t;
	here.thread = t->index;
	here.block = t->of->index;
#if defined(__SANITIZE_ADDRESS__)
	void *fake = NULL;

	__sanitizer_start_switch_fiber(&fake, t->stack, STACK);
	emu_switch(&main_sp, t->sp);
	__sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
	emu_switch(&main_sp, t->sp);
#endif
}

static void on_fault(int number)
{
	if (!in_kernel) {
		signal(number, SIG_DFL);
		return;
	}
	faulted = 1;
	to_main(1);
}

static void prepare(thread *t, int i, const launch_config &c)
{
	void **top;

	if (!t->stack) {
		t->stack = (char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (t->stack == (char *)MAP_FAILED)
			broken("no memory for its stack");
	}
	top = (void **)(t->stack + STACK) - 1; /* as after a call: 8 more than a multiple of 16 */
	*--top = (void *)enter;
	for (int r = 0; r < 6; r++)
		*--top = NULL;
	t->sp = top;
	t->st = READY;
	t->index = dim3(i % c.block.x, i / c.block.x % c.block.y, i / (c.block.x * c.block.y));
	t->meetings = 0;
	t->copies.n = t->copies.groups = 0;
}

/* Runs one warp until none of its lanes can go on. */
static void run_warp(int first, int last)
{
	int moved = 1;

	while (moved && !faulted) {
		moved = 0;
		for (int i = first; i < last && !faulted; i++) {
			if (pool[i].st != READY)
				continue;
			resume(&pool[i]);
			moved = 1;
		}
	}
}

/* Runs a block until none of its threads can go on; 0 when none could. */
static int run_block(block *b)
{
	int first = (int)(b - blocks) * THREADS_MAX, last = first + n_threads, moved = 0;

	for (int i = first; i < last; i++)
		moved |= pool[i].st == READY;
	for (int i = first; i < last; i += WARP)
		run_warp(i, i + WARP < last ? i + WARP : last);
	if (b->waiting && b->waiting + b->ended == n_threads) {
		b->waiting = 0;
		b->any_slot[++b->barriers & 1] = 0;
		for (int i = first; i < last; i++)
			if (pool[i].st == AT_BARRIER)
				pool[i].st = READY;
	}
	return moved;
}

static void run_cluster(const launch_config &c)
{
	int left = 1, moved = 1;

	n_threads = (int)(c.block.x * c.block.y * c.block.z);
	arrived = 0;
	for (block *b = blocks; b < blocks + n_blocks; b++) {
		b->waiting = b->ended = 0;
		b->rank = (unsigned)(b - blocks);
		memset(shared[b->rank], 0xff, c.shared);
		for (int i = 0; i < n_threads; i++) {
			thread *t = &pool[b->rank * THREADS_MAX + (unsigned)i];

			t->of = b;
			prepare(t, i, c);
		}
		for (int i = 0; i < THREADS_MAX / WARP; i++)
			warps[b->rank * (THREADS_MAX / WARP) + (unsigned)i].arrived = 0;
	}
	while (left && !faulted) {
		if (!moved)
			broken("some threads of the block wait for others that never come");
		left = moved = 0;
		for (block *b = blocks; b < blocks + n_blocks && !faulted; b++) {
			moved |= run_block(b);
			left += n_threads - b->ended;
		}
	}
}

void run(const launch_config &c, void (*body)(void *), void *arg)
{
	static int armed;

	if (sticky_error())
		return;
	if (c.block.x * c.block.y * c.block.z > THREADS_MAX || c.block.x * c.block.y * c.block.z == 0 || c.shared > SHARED_MAX || c.grid.x == 0 ||
	    c.grid.y == 0 || c.grid.z == 0 || c.grid.y > 65535 || c.grid.z > 65535 || c.cluster > CLUSTER_MAX || c.grid.x % c.cluster) {
		set_error(cudaErrorInvalidConfiguration);
		return;
	}
	if (!armed++) {
		struct sigaction sa = {};

		sa.sa_handler = on_fault;
		sa.sa_flags = SA_NODEFER;
		sigaction(SIGSEGV, &sa, NULL);
		sigaction(SIGBUS, &sa, NULL);
	}
	body_now = body;
	arg_now = arg;
	here.grid_dim = c.grid;
	here.block_dim = c.block;
	n_blocks = (int)c.cluster;
	in_kernel = 1;
	for (unsigned z = 0; z < c.grid.z && !faulted; z++)
		for (unsigned y = 0; y < c.grid.y && !faulted; y++)
			for (unsigned x = 0; x < c.grid.x && !faulted; x += c.cluster) {
				for (unsigned i = 0; i < c.cluster; i++)
					blocks[i].index = dim3(x + i, y, z);
				run_cluster(c);
			}
	in_kernel = 0;
	if (faulted)
		set_error(cudaErrorIllegalAddress);
}

/* ---- what threads do ---------------------------------------------------------------------------------------------------------------- */

void *dynamic_shared()
{
	return shared[self->of->rank];
}

/* Static shared variables lie somewhere in this module: addresses are told by their distance, which fits. */
uint32_t shared_address(const void *p)
{
	return (uint32_t)(int32_t)((const char *)p - shared[0]);
}

void *shared_pointer(uint32_t address)
{
	return shared[0] + (int32_t)address;
}

int lane()
{
	return (int)(self - pool) % WARP;
}

int block_barrier(int any)
{
	int *slot = &self->of->any_slot[self->of->barriers & 1];

	*slot |= any;
	self->st = AT_BARRIER;
	self->of->waiting++;
	to_main(0);
	return *slot;
}

void cluster_wake()
{
	for (int i = 0; i < n_blocks * THREADS_MAX; i++)
		if (pool[i].of && pool[i].st == AT_CLUSTER)
			pool[i].st = READY;
}

void cluster_sleep()
{
	self->st = AT_CLUSTER;
	to_main(0);
}

void cluster_arrive()
{
	self->turn = turn;
	if (++arrived < n_blocks * n_threads)
		return;
	arrived = 0;
	turn++;
	cluster_wake();
}

void cluster_wait()
{
	while (self->turn == turn)
		cluster_sleep();
}

/* The same place in the dynamic shared memory of another block. */
void *cluster_pointer(void *p, unsigned rank)
{
	if (rank >= (unsigned)n_blocks || (char *)p < shared[self->of->rank] || (char *)p >= shared[self->of->rank] + SHARED_MAX)
		broken("no shared memory of a block of the cluster");
	return (char *)p + ((ptrdiff_t)rank - (ptrdiff_t)self->of->rank) * SHARED_MAX;
}

payload *meet(const void *mine, size_t size, void (*all)(payload *))
{
	thread *t = self;
	int first = (int)(t - pool) / WARP * WARP, end = (int)t->of->rank * THREADS_MAX + n_threads, last = first + WARP < end ? first + WARP : end;
	warp *w = &warps[first / WARP];
	payload *p = w->slot[t->meetings++ & 1];

	if (size)
		memcpy(p[lane()], mine, size);
	if (++w->arrived < (unsigned)(last - first)) {
		t->st = MEETS;
		to_main(0);
		return p;
	}
	w->arrived = 0;
	if (all)
		all(p);
	for (int i = first; i < last; i++) {
		if (pool[i].st == ENDED || pool[i].meetings != t->meetings)
			broken("a warp function, and some lanes ended or are elsewhere");
		pool[i].st = READY;
	}
	return p;
}

void copy_later(void *to, const void *from, int bytes, int zeros)
{
	copies *c = &self->copies;

	if (c->n == COPIES_MAX)
		broken("more asynchronous copies than the emulator keeps");
	c->list[(c->first + c->n++) % COPIES_MAX] = {to, from, bytes, zeros, c->groups};
}

void copies_close()
{
	self->copies.groups++;
}

void copies_wait(int groups_left)
{
	copies *c = &self->copies;

	for (; c->n && (int)(c->groups - c->list[c->first].group) > groups_left; c->n--, c->first = (c->first + 1) % COPIES_MAX) {
		const copy *x = &c->list[c->first];

		memcpy(x->to, x->from, (size_t)x->bytes);
		memset((char *)x->to + x->bytes, 0, (size_t)x->zeros);
	}
}
} // namespace emu
