/*
 * fibers.cpp: a block of threads on one OS thread.
 *
 * Each thread is a fiber with a stack of its own. A warp's fibers run until they meet (a warp function) or wait at the block's barrier; when no fiber of a
 * warp can go on, the next warp runs. Payloads of a meeting are kept twice over: a lane that runs ahead can reach the next meeting, never the one after.
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

enum state { READY, MEETS, AT_BARRIER, ENDED };

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

struct thread {
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
static thread pool[THREADS_MAX];
static warp warps[THREADS_MAX / WARP];
static thread *self;
static int n_threads, waiting, ended;
static int any_slot[2]; /* of the barriers in turn */
static unsigned barriers;
static void *main_sp;
static void (*body_now)(void *);
static void *arg_now;
static int faulted, in_kernel;
alignas(128) static char shared[SHARED_MAX];

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
	ended++;
	to_main(1);
	broken("a thread that ended ran on");
}

static void resume(thread *t)
{
	self = t;
	here.thread = t->index;
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
static void run_warp(int w)
{
	int last = (w + 1) * WARP < n_threads ? (w + 1) * WARP : n_threads, moved = 1;

	while (moved && !faulted) {
		moved = 0;
		for (int i = w * WARP; i < last && !faulted; i++) {
			if (pool[i].st != READY)
				continue;
			resume(&pool[i]);
			moved = 1;
		}
	}
}

static void run_block(const launch_config &c)
{
	n_threads = (int)(c.block.x * c.block.y * c.block.z);
	waiting = ended = 0;
	memset(shared, 0xff, c.shared);
	for (int i = 0; i < n_threads; i++)
		prepare(&pool[i], i, c);
	for (int w = 0; w * WARP < n_threads; w++)
		warps[w].arrived = 0;
	while (ended < n_threads && !faulted) {
		int before = ended + waiting;

		for (int w = 0; w * WARP < n_threads; w++)
			run_warp(w);
		if (waiting && waiting + ended == n_threads) {
			waiting = 0;
			any_slot[++barriers & 1] = 0;
			for (int i = 0; i < n_threads; i++)
				if (pool[i].st == AT_BARRIER)
					pool[i].st = READY;
		} else if (ended < n_threads && ended + waiting == before && !faulted) {
			broken("some threads of the block wait for others that never come");
		}
	}
}

void run(const launch_config &c, void (*body)(void *), void *arg)
{
	static int armed;

	if (sticky_error())
		return;
	if (c.block.x * c.block.y * c.block.z > THREADS_MAX || c.block.x * c.block.y * c.block.z == 0 || c.shared > SHARED_MAX || c.grid.x == 0 ||
	    c.grid.y == 0 || c.grid.z == 0 || c.grid.y > 65535 || c.grid.z > 65535) {
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
	in_kernel = 1;
	for (unsigned z = 0; z < c.grid.z && !faulted; z++)
		for (unsigned y = 0; y < c.grid.y && !faulted; y++)
			for (unsigned x = 0; x < c.grid.x && !faulted; x++) {
				here.block = dim3(x, y, z);
				run_block(c);
			}
	in_kernel = 0;
	if (faulted)
		set_error(cudaErrorIllegalAddress);
}

/* ---- what threads do ---------------------------------------------------------------------------------------------------------------- */

void *dynamic_shared()
{
	return shared;
}

/* Static shared variables lie somewhere in this module: addresses are told by their distance, which fits. */
uint32_t shared_address(const void *p)
{
	return (uint32_t)(int32_t)((const char *)p - shared);
}

void *shared_pointer(uint32_t address)
{
	return shared + (int32_t)address;
}

int lane()
{
	return (int)(self - pool) % WARP;
}

int block_barrier(int any)
{
	int *slot = &any_slot[barriers & 1];

	*slot |= any;
	self->st = AT_BARRIER;
	waiting++;
	to_main(0);
	return *slot;
}

payload *meet(const void *mine, size_t size, void (*all)(payload *))
{
	thread *t = self;
	int first = (int)(t - pool) / WARP * WARP, last = first + WARP < n_threads ? first + WARP : n_threads;
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
