/*
 * fault.c: the table of fault levers and how often each spot was passed.
 *
 * A lever fires once: at the visit it was armed for, never again in this process. That keeps a test's story simple (one crash, then the
 * successor lives) as long as tandemd hands the lever to the first life of a worker only. A misspelt name, in the environment or at a spot,
 * aborts: a lever that silently does nothing would make its test pass for the wrong reason.
 */
#include "engine/fault.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"

/* X(name): what happens there. */
#define TD_FAULTS(X) \
	X("target.start.crash") /* before the worker says hello */ \
	X("target.start.hang") \
	X("target.load.crash") /* while weights are read */ \
	X("target.load.hang") \
	X("target.step.crash") /* at the beginning of a prefill chunk or a verify */ \
	X("target.step.hang") \
	X("target.commit.crash") /* between verify and its commit record */ \
	X("target.commit.hang") \
	X("target.gpu.fault") /* an illegal access on the device in a step */ \
	X("target.exit") /* ends at start with exit code 0 */ \
	X("target.assume") /* stays set: requests say how many drafts are accepted (kernels/assume.h); synthetic models only */ \
	X("target.even") /* stays set: every step is charged the same device time, however long it took, so that turns can be counted */ \
	X("drafter.start.crash") \
	X("drafter.start.hang") \
	X("drafter.load.crash") \
	X("drafter.load.hang") \
	X("drafter.step.crash") /* at the beginning of a draft */ \
	X("drafter.step.hang") \
	X("drafter.gpu.fault") \
	X("log.full") /* the log file takes no byte */ \
	X("daemon.accept.emfile") /* accepting a connection finds no descriptor */ \
	X("daemon.device.gpu") /* engine.device = auto finds a GPU and the module, whatever is there */

static const char *const names[] = {
#define X(name) name,
	TD_FAULTS(X)
#undef X
};
enum { N_NAMES = sizeof(names) / sizeof(names[0]) };

static atomic_int armed; /* levers that are set: the one load of an idle spot */
static atomic_long left[N_NAMES]; /* visits until the lever is due; 0 or less = not set, or past */

static int find(const char *name, size_t n)
{
	for (int i = 0; i < N_NAMES; i++)
		if (strlen(names[i]) == n && !memcmp(names[i], name, n))
			return i;
	return -1;
}

static void refuse(const char *what, const char *name, size_t n)
{
	fprintf(stderr, "fault: %s '%.*s'; known levers:", what, (int)n, name);
	for (int i = 0; i < N_NAMES; i++)
		fprintf(stderr, " %s", names[i]);
	fputc('\n', stderr);
	abort();
}

void td_fault_arm(const char *spec)
{
	int n_armed = 0;

	for (int i = 0; i < N_NAMES; i++)
		atomic_store(&left[i], 0);
	while (spec && *spec) {
		size_t n = strcspn(spec, ","), name = strcspn(spec, ",:");
		int i = find(spec, name);
		long count = 1;

		if (i < 0)
			refuse("unknown lever", spec, n);
		if (name < n) {
			char *end;

			count = strtol(spec + name + 1, &end, 10);
			if (end != spec + n || end == spec + name + 1 || count < 1)
				refuse("the count after ':' must be 1 or more in", spec, n);
		}
		atomic_store(&left[i], count);
		n_armed++;
		spec += n + (spec[n] == ',');
	}
	atomic_store(&armed, n_armed);
}

static int due(int i)
{
	if (atomic_load(&left[i]) <= 0 || atomic_fetch_sub(&left[i], 1) != 1)
		return 0;
	fprintf(stderr, "fault: %s is due now\n", names[i]);
	return 1;
}

int td_fault(const char *name)
{
	int i;

	if (!atomic_load_explicit(&armed, memory_order_relaxed))
		return 0;
	i = find(name, strlen(name));
	if (i < 0)
		refuse("a spot asks for an unknown lever", name, strlen(name));
	return due(i);
}

int td_fault_set(const char *name)
{
	int i = find(name, strlen(name));

	if (i < 0)
		refuse("a spot asks for an unknown lever", name, strlen(name));
	return atomic_load(&left[i]) > 0;
}

void td_fault_spot(const char *where)
{
	char name[64];

	if (!atomic_load_explicit(&armed, memory_order_relaxed))
		return;
	snprintf(name, sizeof(name), "%s.crash", where);
	if (td_fault(name))
		abort();
	snprintf(name, sizeof(name), "%s.hang", where);
	if (td_fault(name))
		for (;;)
			pause();
}

void td_fault_gpu(const char *name, const struct td_ops *ops, struct td_dev *dev)
{
	if (!td_fault(name))
		return;
	if (!ops->fault) {
		fprintf(stderr, "fault: %s: the backend %s has no such thing\n", name, ops->name);
		abort();
	}
	ops->fault(dev);
}
