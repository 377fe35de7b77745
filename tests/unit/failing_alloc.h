/*
 * failing_alloc.h: an allocator for one test program that fails when it is told to, and counts what is alive. Include it in one file. Not under ASan,
 * which has an allocator of its own: FAILING_ALLOC is 0 there.
 */
#ifndef FAILING_ALLOC_H
#define FAILING_ALLOC_H

#include <errno.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#define FAILING_ALLOC 0
#else
#define FAILING_ALLOC 1

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);

/* Volatile: the compiler thinks that it knows what malloc touches. */
static volatile long alloc_countdown; /* the allocation that brings it to 0 fails; 0: none does */
static volatile long alloc_alive; /* blocks */
/* Set in a thread whose allocations are none of the test's: they never fail and are not counted. */
static __thread int alloc_spared __attribute__((unused));

static int alloc_refuses(void)
{
	if (alloc_countdown == 0 || alloc_spared)
		return 0;
	alloc_countdown = alloc_countdown - 1;
	if (alloc_countdown == 0)
		errno = ENOMEM;
	return alloc_countdown == 0;
}

static void alloc_count(int blocks)
{
	if (!alloc_spared)
		alloc_alive = alloc_alive + blocks;
}

void *malloc(size_t n)
{
	void *p = alloc_refuses() ? NULL : __libc_malloc(n);

	alloc_count(p != NULL);
	return p;
}

void *calloc(size_t n, size_t size)
{
	void *p = alloc_refuses() ? NULL : __libc_calloc(n, size);

	alloc_count(p != NULL);
	return p;
}

void *realloc(void *old, size_t n)
{
	void *p = alloc_refuses() ? NULL : __libc_realloc(old, n);

	alloc_count(p && !old);
	return p;
}

void free(void *p)
{
	alloc_count(-(p != NULL));
	__libc_free(p);
}
#endif

#endif
