/*
 * worker.h: the process around a worker's engine: what target and drafter have in common.
 *
 * Start: arguments, death with the parent, Hello, the descriptors and Configure, the device. Then the worker takes its predecessor's weights over
 * (td_worker_kept) or loads, offers
 * its arena to be kept (td_worker_keep), says Ready, and a thread of its own answers control messages from then on. It ends the process when
 * tandemd is gone. A worker that can't go on calls td_worker_fail: Failure to tandemd, one line to the log, exit code 1.
 */
#ifndef TD_WORKER_H
#define TD_WORKER_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/control.h"
#include "engine/memplan.h"
#include "engine/model.h"
#include "engine/shm.h"

struct td_worker {
	const char *name; /* "target", "drafter" */
	Tandem__Worker__Role role;
	struct td_control control;
	int fd_sock; /* descriptor 3 */
	int event_fd;
	int arena_fd, peer_fd, vocab_fd; /* as told by Configure; -1 = none, or taken by the worker */
	struct td_shm *shm;
	struct td_worker_stats *stats;
	struct td_bell *bell;
	Tandem__Worker__Configure *cfg;
	const struct td_ops *ops;
	struct td_dev *dev;
	struct td_exchange exchange;
	uint8_t exchange_handle[TD_HANDLE_BYTES]; /* target, device memory: for the drafter */
	uint64_t began_us;
	_Atomic int draining;
	pthread_t thread;
};

/* argv: --control PATH. Returns with Configure received, shm mapped, device open; never returns on failure. */
void td_worker_start(struct td_worker *w, Tandem__Worker__Role role, int argc, char **argv);
_Noreturn void td_worker_fail(struct td_worker *w, const struct td_error *err);
/* How the worker loads from files: progress goes to tandemd. */
struct td_load td_worker_how(struct td_worker *w);
/* 1: *kept is a predecessor's arena, and its checksums say that it is intact. What it holds is served, whatever the files are by now. */
int td_worker_kept(struct td_worker *w, struct td_arena *kept);
/* *kept can't be used after all: it is released. Returns only when loading the files gives the same weights again; else running requests would go on
 * with another model, so the worker fails with TD_E_MISMATCH. */
void td_worker_not_kept(struct td_worker *w, struct td_arena *kept, const struct td_error *why);
/* Before anything is allocated: fails with what to lower when the worker's part of the plan is larger than what the device has free. */
void td_worker_fits(struct td_worker *w, const struct td_memplan_worker *plan);
/* The tapped layers as tandemd read them when it started, at most TD_TAPS_MAX; fails when they don't fit this target and the shared memory. */
int td_worker_taps(struct td_worker *w, const struct td_target_config *target, int tap[TD_TAPS_MAX]);
/* Offers the arena to tandemd. `of`: the target's weights, of which the drafter is told; NULL: there is nothing for others. */
void td_worker_keep(struct td_worker *w, const struct td_arena *arena, const char *fingerprint, const struct td_target_weights *of);
/* Ready, and starts the control thread. */
void td_worker_ready(struct td_worker *w, uint64_t weights_bytes, uint64_t cache_bytes, int imported);
/* Works until tandemd says Drain and nothing is active, then ends the process (exit 0). `step`: what was done (> 0), 0: nothing to do until the bell
 * rings, < 0: the error that the worker ends with. */
_Noreturn void td_worker_run(struct td_worker *w, void *engine, int (*step)(void *engine, struct td_error *err), int (*active)(const void *engine));

#endif
