/*
 * supervisor.c: keeps both workers alive, one way or another.
 *
 * The target comes first; the drafter needs the target's arena. A worker that ends, fails, or makes no progress is replaced, sooner at first, later
 * when that does not help; when it can't be had at all the daemon says so to clients, and goes on trying.
 * After the death of a worker that had been ready a new epoch begins: what lies in rings and flags is void, the survivor drops its requests and
 * answers RESET_DONE, and the running requests wait in the queue, with what they have committed, until both are ready.
 * On a GPU the exchange region is the target's memory: when the target dies, the drafter is ended too, and starts with the handle of the new one.
 * When a drafter dies alone the target goes on.
 * What must never happen: a successor before its predecessor was reaped; a request started between an epoch's beginning and the survivor's answer.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/log.h"

enum {
	S = 1000000,
	RETRY_FAILED_US = 30 * S,
	FAILURES_WINDOW_US = 60 * S,
	FAILURES_MAX = 5,
	AT_WORK_MAX = 20, /* deaths in a row, the last one over a request: these are charged to requests first (scheduler.c), which ends most such rows */
	AT_WORK_STEPS = 2, /* of the growing delay */
	PAUSE_US = 2 * S, /* a longer time between two checks means that we stood still ourselves */
	STUCK_US = 60 * S, /* a process that was killed is gone by then, unless the system itself holds it */
	REAP_US = 5 * S, /* a worker that said Failure ends by itself within this */
};

static struct td_child *other(struct td_daemon *d, const struct td_child *c)
{
	return c == &d->target ? &d->drafter : &d->target;
}

int td_supervisor_serving(const struct td_daemon *d)
{
	const struct td_child *t = &d->target, *r = &d->drafter;

	return t->state == TD_CHILD_READY && !t->reset_wait && (r->state == TD_CHILD_OFF || (r->state == TD_CHILD_READY && !r->reset_wait));
}

const struct td_child *td_supervisor_failed(const struct td_daemon *d)
{
	if (d->target.failed)
		return &d->target;
	return d->drafter.failed ? &d->drafter : NULL;
}

void td_supervisor_progress(struct td_daemon *d)
{
	d->target.failures = d->drafter.failures = 0;
}

/* ---- epochs ------------------------------------------------------------------------------------------------------------------------ */

static void raise_epoch(struct td_daemon *d)
{
	struct td_shm *shm = d->shm;
	uint32_t old = d->epoch++;

	if (d->drafter.state != TD_CHILD_READY)
		atomic_store(&shm->drafter_present, 0);
	atomic_store(&shm->epoch, d->epoch);
	atomic_store(&shm->target.value, TD_FLAG_POISON(old));
	atomic_store(&shm->drafter.value, TD_FLAG_POISON(old));
	td_bell_ring(&shm->bell_target);
	td_bell_ring(&shm->bell_drafter);
	for (struct td_child *c = &d->target; c; c = c == &d->target ? &d->drafter : NULL) {
		if (c->state != TD_CHILD_READY)
			continue;
		c->reset_wait = 1;
		c->reset_us = td_now_us();
	}
	td_scheduler_reset(d);
}

void td_supervisor_reset_done(struct td_daemon *d, struct td_child *c, uint32_t epoch)
{
	if (epoch == d->epoch)
		c->reset_wait = 0;
}

/* ---- failures ---------------------------------------------------------------------------------------------------------------------- */

int td_is_lasting(int code)
{
	switch (code) {
	case TD_E_NOT_FOUND:
	case TD_E_INVALID:
	case TD_E_FORMAT:
	case TD_E_UNSUPPORTED:
	case TD_E_MISMATCH:
	case TD_E_PERMISSION:
		return 1;
	}
	return 0;
}

/* A GPU that no life of this worker could open, twice in a row: it is not there, or not for us. */
static int is_no_gpu(const struct td_child *c)
{
	return td_device_is_gpu(&c->d->model) && !c->ever_ready && (c->why == TD_E_UNSUPPORTED || (c->why == TD_E_DEVICE && c->failures > 1));
}

/* What can be done without, is, as long as nothing was served: MPS, then the GPU. */
static void do_without(struct td_child *c)
{
	struct td_daemon *d = c->d;
	char how[sizeof(d->mps.how)];

	if (c->why == TD_E_DEVICE && !c->ever_ready && td_mps_used(d) && !strcmp(d->cfg.mps, "auto")) {
		snprintf(how, sizeof(how), "time slices: under MPS the %s does not start: %.400s", c->name, c->why_text);
		td_mps_off(d, how);
	} else if (c == &d->target && is_no_gpu(c) && !strcmp(d->cfg.device, "auto") && td_device_fall_back(d, c->why_text)) {
		c->why = TD_E_STALE;
		c->failures = 0;
		c->retry_us = td_now_us();
	}
}

static void give_up(struct td_child *c)
{
	struct td_daemon *d = c->d;
	struct td_request *r, *next;

	if (!c->failed)
		td_log(TD_LOG_ERROR, "the %s worker cannot be had; requests are refused, it is tried again every %d s", c->name, RETRY_FAILED_US / S);
	c->failed = 1;
	c->retry_us = td_now_us() + RETRY_FAILED_US;
	HASH_ITER(hh, d->requests, r, next)
		if (r->state == TD_REQ_QUEUED)
			td_request_fail(d, r, c->why == TD_E_MISMATCH ? TD_E_MISMATCH : TD_E_WORKER, "the %s worker cannot be had: %s; it is tried again every %d s",
					c->name, c->why_text, RETRY_FAILED_US / S);
}

/* When the next life begins. `at_work`: it was ready and had a request. */
static void note_failure(struct td_child *c, int at_work)
{
	static const int delay_ms[] = {0, 500, 1000, 2000, 4000, 8000, 16000, 30000};
	int last = (int)(sizeof(delay_ms) / sizeof(*delay_ms)) - 1, step = c->failures < last ? c->failures : last;
	uint64_t now = td_now_us(), fifth_last;
	int often;

	if (at_work && step > AT_WORK_STEPS)
		step = AT_WORK_STEPS;
	td_log(TD_LOG_ERROR, "the %s worker is gone: %s", c->name, c->why_text);
	snprintf(c->d->last_error, sizeof(c->d->last_error), "%s: %.400s", c->name, c->why_text);
	fifth_last = c->failed_at_us[c->failures % FAILURES_MAX];
	c->failed_at_us[c->failures % FAILURES_MAX] = now;
	c->failures++;
	c->retry_us = now + (uint64_t)delay_ms[step] * 1000;
	do_without(c);
	often = at_work ? c->failures > AT_WORK_MAX : c->failures > FAILURES_MAX && now - fifth_last < FAILURES_WINDOW_US;
	if (c->failed || td_is_lasting(c->why) || is_no_gpu(c) || often)
		give_up(c);
}

/* Nobody is at the other end of the dead worker's rings: what a broken head or tail left in them must not stay for its successor. */
static void clear_rings(struct td_child *c)
{
	struct td_shm *shm = c->d->shm;
	struct td_ring *from = c == &c->d->target ? &shm->from_target : &shm->from_drafter;

	atomic_store(&from->tail, atomic_load(&from->head));
	if (c == &c->d->target)
		atomic_store(&shm->to_target.tail, atomic_load(&shm->to_target.head));
}

/* What ends with it although it is well. */
static void take_along(struct td_child *c)
{
	struct td_daemon *d = c->d;
	struct td_child *o = other(d, c);

	if (!td_device_is_gpu(&d->model) || !o->life || o->state == TD_CHILD_ENDING)
		return;
	if (c == &d->target)
		td_child_kill(o, TD_E_STALE, "the target's memory is gone, and the exchange region with it");
	else if (c->why == TD_E_DEVICE && td_mps_used(d))
		td_child_kill(o, TD_E_STALE, "under MPS a fault of the GPU is both workers'");
}

static void arena_forget(struct td_child *c)
{
	if (c->arena_fd >= 0)
		close(c->arena_fd);
	if (c->arena)
		tandem__worker__arena__free_unpacked(c->arena, NULL);
	c->arena = NULL;
	c->arena_fd = -1;
}

/* What came from the service manager gets one try: a worker that failed with it might fail with it for ever, for want of memory beside it, for example. The files are
 * those that it was held against when tandemd started. */
static void give_up_kept(struct td_child *c)
{
	if (!c->arena || c->ever_ready || c->why == TD_E_STALE)
		return;
	td_log(TD_LOG_WARN, "the %s did not get ready with the weights that are in memory: they are given up", c->name);
	arena_forget(c);
	td_fdstore_drop(c);
}

void td_child_gone(struct td_child *c)
{
	struct td_daemon *d = c->d;
	int was_ready = c->was_ready, at_work = was_ready && td_scheduler_used(d) > 0;

	if (c == &d->target && c->state == TD_CHILD_READY)
		td_scheduler_read_target(d); /* it died between two records: those that are whole count */
	clear_rings(c);
	c->state = TD_CHILD_DOWN;
	c->pid = 0;
	c->was_ready = 0;
	c->retry_us = td_now_us();
	if (d->draining == 2)
		return;
	if (c == &d->drafter && td_device_is_gpu(&d->model) && d->target.state != TD_CHILD_READY && c->why == TD_E_DEVICE)
		c->why = TD_E_STALE; /* what it opened was the target's, whose death is known, or will be soon */
	take_along(c);
	if (was_ready)
		raise_epoch(d);
	give_up_kept(c);
	if (c->why != TD_E_STALE)
		note_failure(c, at_work);
	td_supervisor_check(d, td_now_us());
}

void td_child_ready(struct td_child *c)
{
	struct td_daemon *d = c->d;
	struct td_child *o = other(d, c);

	td_log(TD_LOG_INFO, "the %s worker is ready: %s, %.1f MiB of weights%s, %.1f MiB of cache, %.2f s", c->name, c->device,
	       (double)c->weights_bytes / (1 << 20), c->imported ? " (taken over)" : "", (double)c->cache_bytes / (1 << 20), (double)c->load_us / S);
	c->failed = 0;
	c->progress_us = td_now_us();
	td_fdstore_keep(c);
	if (c == &d->target)
		td_width_load(d);
	if (c == &d->drafter)
		atomic_store(&d->shm->drafter_present, 1);
	/* A target that could not take over its arena made a new one: a drafter that still reads the old one must not go on. */
	else if (!c->imported && o->life && o->state != TD_CHILD_ENDING)
		td_child_kill(o, TD_E_STALE, "the target has new memory");
	td_supervisor_check(d, td_now_us());
}

/* ---- time -------------------------------------------------------------------------------------------------------------------------- */

/* A step of this epoch waits for the drafter. Of an older one none does: there the flags are poisoned, and a survivor may have set its own once more. */
static int drafter_owes(const struct td_daemon *d)
{
	uint64_t target = atomic_load(&d->shm->target.value);

	return d->drafter.state == TD_CHILD_READY && target >> 32 == d->epoch && atomic_load(&d->shm->drafter.value) < target;
}

/* Somebody's answer waits for the target: a slot is occupied and not paused, a command has not been taken, or it says so itself. What it says is not
 * enough: one that was stopped while it waited for the drafter says that it has nothing to do. */
static int target_has_work(const struct td_daemon *d)
{
	const struct td_ring *ring = &d->shm->to_target;

	for (int i = 0; i < d->model.shm.slots; i++)
		if (d->queue.stay[i].flow && (d->slot[i].cancel || !d->slot[i].pause_told))
			return 1;
	return atomic_load(&d->shm->stats_target.busy) != 0 || atomic_load(&ring->head) != atomic_load(&ring->tail);
}

/* 1 when the worker got nothing done for watchdog_s although it was its turn, `turn` being how it is now. */
static int is_stalled(struct td_child *c, const struct td_worker_stats *st, int turn, uint64_t now)
{
	uint64_t progress = atomic_load(&st->progress);

	if (!turn || progress != c->progress || c->progress_us == 0) {
		c->progress = progress;
		c->progress_us = now;
	}
	return c->state == TD_CHILD_READY && !c->reset_wait && now > c->progress_us + (uint64_t)c->d->cfg.watchdog_s * S;
}

/* Each waits for the other inside a cycle, so both stand still when one hangs. The flags tell who owes the next step: as long as that is the drafter its
 * timer runs and the target's does not; else it is the target's turn whenever there is work. So a standstill always ends with somebody replaced. */
static void watchdog(struct td_daemon *d, uint64_t now)
{
	int limit = d->cfg.watchdog_s, owes = drafter_owes(d);

	if (is_stalled(&d->drafter, &d->shm->stats_drafter, owes, now))
		td_child_kill(&d->drafter, TD_E_DEADLINE, "it has had work and made no progress for %d s", limit);
	if (is_stalled(&d->target, &d->shm->stats_target, !owes && target_has_work(d), now))
		td_child_kill(&d->target, TD_E_DEADLINE, "it has had work and made no progress for %d s", limit);
}

void td_supervisor_no_mps(struct td_daemon *d, int lasting, const char *why)
{
	struct td_child *t = &d->target;

	td_child_kill(t, TD_E_STALE, "MPS is gone");
	td_child_kill(&d->drafter, TD_E_STALE, "MPS is gone");
	snprintf(d->last_error, sizeof(d->last_error), "MPS: %.400s", why);
	if (!lasting)
		return;
	if (!t->failed)
		td_log(TD_LOG_ERROR, "%s", why);
	snprintf(t->why_text, sizeof(t->why_text), "%s", why);
	give_up(t);
}

/* Neither can come about as long as the checks above do their work and processes can be killed. */
static int is_stuck(const struct td_child *c, uint64_t now)
{
	if (c->state == TD_CHILD_ENDING)
		return c->killed_us && now > c->killed_us + STUCK_US;
	return c->state == TD_CHILD_READY && now > c->progress_us + 2 * (uint64_t)c->d->cfg.watchdog_s * S + REAP_US;
}

int td_supervisor_stuck(const struct td_daemon *d, uint64_t now_us)
{
	return is_stuck(&d->target, now_us) || is_stuck(&d->drafter, now_us);
}

/* Its place is free: MPS is there, or is not wanted; and what a GPU's memory was shared with is gone. */
static int may_start(const struct td_child *c)
{
	const struct td_daemon *d = c->d;

	if (d->draining >= 2 || !td_mps_settled(d))
		return 0;
	if (c == &d->drafter)
		return d->target.state == TD_CHILD_READY;
	return !td_device_is_gpu(&d->model) || !d->drafter.life;
}

static void spawn(struct td_child *c)
{
	struct td_error err;

	if (td_child_spawn(c, &err) == 0) {
		td_log(TD_LOG_INFO, "the %s worker starts as process %d%s", c->name, (int)c->pid, c->restarts ? " (again)" : "");
		return;
	}
	c->why = err.code;
	snprintf(c->why_text, sizeof(c->why_text), "%s", err.text);
	note_failure(c, 0);
}

static void check(struct td_child *c, uint64_t now)
{
	struct td_daemon *d = c->d;

	switch (c->state) {
	case TD_CHILD_OFF:
		return;
	case TD_CHILD_DOWN:
		if (now >= c->retry_us && may_start(c))
			spawn(c);
		return;
	case TD_CHILD_STARTING:
	case TD_CHILD_LOADING:
		if (now > c->since_us + (uint64_t)d->cfg.load_timeout_s * S)
			td_child_kill(c, TD_E_DEADLINE, "it made no progress for %d s while %s", d->cfg.load_timeout_s,
				      c->state == TD_CHILD_STARTING ? "starting" : "loading");
		return;
	case TD_CHILD_READY:
		if (c->reset_wait && now > c->reset_us + (uint64_t)d->cfg.watchdog_s * S)
			td_child_kill(c, TD_E_DEADLINE, "it has not dropped its requests %d s after the other worker ended", d->cfg.watchdog_s);
		return;
	case TD_CHILD_ENDING:
		if (now > c->since_us + REAP_US)
			td_child_kill(c, TD_E_DEADLINE, "it does not end");
		return;
	}
}

/* The machine or this process was stopped for a while; the workers probably too. That time is nobody's fault. */
static void forgive(struct td_child *c, uint64_t us)
{
	c->progress_us += us;
	c->since_us += us;
	c->reset_us += us;
}

void td_supervisor_check(struct td_daemon *d, uint64_t now_us)
{
	uint64_t gap = d->checked_us ? now_us - d->checked_us : 0;

	d->checked_us = now_us;
	if (gap > PAUSE_US) {
		td_log(TD_LOG_WARN, "tandemd stood still for %.1f s", (double)gap / S);
		forgive(&d->target, gap);
		forgive(&d->drafter, gap);
	}
	td_mps_check(d, now_us);
	check(&d->target, now_us);
	check(&d->drafter, now_us);
	watchdog(d, now_us);
}

/* ---- open, close ------------------------------------------------------------------------------------------------------------------- */

static void on_events(uv_poll_t *poll, int status, int events)
{
	struct td_child *c = poll->data;
	uint64_t n;

	(void)events;
	if (status < 0 || read(c->events_fd, &n, sizeof(n)) < 0) {
		/* nothing there after all: the ring is looked at anyway */
	}
	if (c == &c->d->target)
		td_scheduler_read_target(c->d);
	else
		td_scheduler_read_drafter(c->d);
}

static int child_open(struct td_daemon *d, struct td_child *c, Tandem__Worker__Role role, const char *name, struct td_error *err)
{
	c->d = d;
	c->role = role;
	c->name = name;
	c->state = TD_CHILD_DOWN;
	c->arena_fd = -1;
	c->events_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->events_fd < 0)
		return td_error_set(err, TD_E_LIMIT, "cannot make an eventfd: %s", strerror(errno));
	uv_poll_init(&d->loop, &c->events, c->events_fd);
	c->events.data = c;
	uv_poll_start(&c->events, UV_READABLE, on_events);
	return 0;
}

int td_supervisor_open(struct td_daemon *d, struct td_error *err)
{
	int rc = td_mps_open(d, err);

	if (!rc)
		rc = child_open(d, &d->target, TANDEM__WORKER__ROLE__TARGET, "target", err);

	d->drafter.arena_fd = d->drafter.events_fd = -1;
	d->drafter.d = d;
	d->drafter.name = "drafter";
	if (!rc && d->model.has_drafter)
		rc = child_open(d, &d->drafter, TANDEM__WORKER__ROLE__DRAFTER, "drafter", err);
	if (rc)
		return rc;
	d->epoch = 1;
	atomic_store(&d->shm->epoch, d->epoch);
	return 0;
}

void td_supervisor_forget_arenas(struct td_daemon *d)
{
	arena_forget(&d->target);
	arena_forget(&d->drafter);
	td_fdstore_drop(&d->target);
	td_fdstore_drop(&d->drafter);
}

static void child_close(struct td_child *c)
{
	char path[4096];

	if (c->events.data)
		uv_close((uv_handle_t *)&c->events, NULL);
	if (c->events_fd >= 0)
		close(c->events_fd);
	arena_forget(c);
	c->events_fd = -1;
	snprintf(path, sizeof(path), "%s/%s.ipc", c->d->cfg.runtime_dir, c->name);
	unlink(path);
}

void td_supervisor_close(struct td_daemon *d)
{
	if (d->target.d)
		child_close(&d->target);
	if (d->drafter.d)
		child_close(&d->drafter);
}
