/*
 * worker.c: see worker.h. The main thread works; one more thread serves the control channel once the worker is ready.
 */
#include "engine/worker.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "engine/clock.h"
#include "engine/fault.h"
#include "engine/log.h"

enum {
	FD_SOCK = 3, /* inherited from tandemd */
	FD_WAIT_MS = 10000,
	SPIN_US = 2000, /* beside a GPU: longer than the other worker's half of a cycle */
};

static void send_body(struct td_worker *w, Tandem__Worker__Message *msg)
{
	for (int i = 0; i < 100; i++) /* the pair is not connected yet, or full: soon it is not */
		if (td_control_send(&w->control, msg, NULL) != TD_E_BUSY)
			return;
}

void td_worker_fail(struct td_worker *w, const struct td_error *err)
{
	Tandem__Worker__Failure f = TANDEM__WORKER__FAILURE__INIT;
	Tandem__Worker__Message msg = TANDEM__WORKER__MESSAGE__INIT;

	f.code = (char *)td_error_name(err->code);
	f.text = (char *)err->text;
	msg.body_case = TANDEM__WORKER__MESSAGE__BODY_FAILURE;
	msg.failure = &f;
	td_log(TD_LOG_ERROR, "%s", err->text);
	if (w->control.sock >= 0)
		send_body(w, &msg);
	_exit(1);
}

/* ---- start -------------------------------------------------------------------------------------------------------------------------- */

static void hello(struct td_worker *w)
{
	Tandem__Worker__Hello h = TANDEM__WORKER__HELLO__INIT;
	Tandem__Worker__Message msg = TANDEM__WORKER__MESSAGE__INIT;

	h.version = TD_SHM_VERSION;
	h.role = w->role;
	h.pid = (uint32_t)getpid();
	msg.body_case = TANDEM__WORKER__MESSAGE__BODY_HELLO;
	msg.hello = &h;
	send_body(w, &msg);
}

static void configure(struct td_worker *w)
{
	Tandem__Worker__Message *msg = NULL;
	struct td_error err = {0};
	int rc = td_control_recv(&w->control, &msg, FD_WAIT_MS, &err);

	if (rc != 1 || msg->body_case != TANDEM__WORKER__MESSAGE__BODY_CONFIGURE) {
		td_error_set(&err, TD_E_PROTOCOL, "%s: no Configure came from tandemd within %d s", w->name, FD_WAIT_MS / 1000);
		td_worker_fail(w, &err);
	}
	w->cfg = msg->configure;
	msg->configure = NULL;
	msg->body_case = TANDEM__WORKER__MESSAGE__BODY__NOT_SET;
	tandem__worker__message__free_unpacked(msg, NULL);
}

/* "shm" and "events" always; the arenas that Configure names. */
static void descriptors(struct td_worker *w)
{
	struct td_error err;
	int shm_fd = -1, wanted = 2 + (w->cfg->own ? 1 : 0) + (w->cfg->target ? 1 : 0) + (w->cfg->vocab ? 1 : 0);

	while (wanted-- > 0) {
		char name[32];
		int fd;

		if (td_fd_recv(w->fd_sock, &fd, name, FD_WAIT_MS, &err))
			td_worker_fail(w, &err);
		if (!strcmp(name, "shm")) {
			shm_fd = fd;
		} else if (!strcmp(name, "events")) {
			w->event_fd = fd;
		} else if (!strcmp(name, "peer")) {
			w->peer_fd = fd;
		} else if (!strcmp(name, "vocab")) {
			w->vocab_fd = fd;
		} else if (!strcmp(name, w->name)) {
			w->arena_fd = fd;
		} else {
			td_error_set(&err, TD_E_PROTOCOL, "%s: tandemd sent a descriptor named \"%s\", which nobody knows", w->name, name);
			td_worker_fail(w, &err);
		}
	}
	if (td_shm_map(shm_fd, &w->shm, &err))
		td_worker_fail(w, &err);
	close(shm_fd);
}

/* On the CPU a part of the shm; else device memory that the target makes and the drafter opens. */
static void open_exchange(struct td_worker *w)
{
	size_t bytes = td_exchange_bytes(&w->shm->cfg, w->ops->act);
	const ProtobufCBinaryData *given = &w->cfg->exchange;
	void *base = (char *)w->shm + w->shm->off_exchange;
	struct td_error err;
	int rc = 0;

	if (w->shm->cfg.host_exchange != !w->ops->exchange_create) {
		td_error_set(&err, TD_E_PROTOCOL, "%s: tandemd and device %s disagree on where the exchange region lies", w->name, w->ops->name);
		td_worker_fail(w, &err);
	}
	if (!w->shm->cfg.host_exchange) {
		if (w->role == TANDEM__WORKER__ROLE__TARGET)
			rc = w->ops->exchange_create(w->dev, bytes, &base, w->exchange_handle, &err);
		else if (w->cfg->has_exchange && given->len == TD_HANDLE_BYTES)
			rc = w->ops->exchange_open(w->dev, given->data, &base, &err);
		else
			rc = td_error_set(&err, TD_E_PROTOCOL, "%s: Configure came without the handle of the exchange region", w->name);
	}
	if (rc)
		td_worker_fail(w, &err);
	td_exchange_layout(&w->shm->cfg, w->ops->act, base, &w->exchange);
}

static void open_device(struct td_worker *w)
{
	struct td_dev_options opt = {.threads = (int)w->cfg->threads, .slots = w->shm->cfg.slots};
	struct td_error err;
	cpu_set_t mine;

	w->ops = td_ops_find(!strcmp(w->cfg->device, "auto") ? "cuda" : w->cfg->device, &err);
	if (!w->ops && !strcmp(w->cfg->device, "auto")) {
		td_log(TD_LOG_INFO, "the CPU is used: %s", err.text);
		w->ops = td_ops_find("cpu", &err);
	}
	if (!w->ops || w->ops->open(&w->dev, &opt, &err))
		td_worker_fail(w, &err);
	open_exchange(w);
	if (!w->shm->cfg.host_exchange && sched_getaffinity(0, sizeof(mine), &mine) == 0 && CPU_COUNT(&mine) > 2) /* the workers', and one for tandemd */
		td_bell_spin(SPIN_US);
}

/* A tandemd that died before the signal was asked for is known by its end of the socketpair: its successor must not find us at the control socket. */
static void end_with_tandemd(const struct td_worker *w)
{
	struct pollfd p = {.fd = w->fd_sock};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (poll(&p, 1, 0) > 0 && p.revents & POLLHUP)
		_exit(0);
}

void td_worker_start(struct td_worker *w, Tandem__Worker__Role role, int argc, char **argv)
{
	struct td_error err;

	memset(w, 0, sizeof(*w));
	w->role = role;
	w->name = role == TANDEM__WORKER__ROLE__TARGET ? "target" : "drafter";
	w->control = TD_CONTROL_CLOSED;
	w->fd_sock = FD_SOCK;
	w->event_fd = w->arena_fd = w->peer_fd = w->vocab_fd = -1;
	w->began_us = td_now_us();
	td_log_open(w->name, TD_LOG_INFO);
	if (argc != 3 || strcmp(argv[1], "--control")) {
		fprintf(stderr, "usage: tandem-%s --control PATH\n(started by tandemd; not meant to be run by hand)\n", w->name);
		exit(2);
	}
	end_with_tandemd(w);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGINT, SIG_IGN); /* Ctrl-C at tandemd's terminal: tandemd decides */
	if (td_control_connect(&w->control, argv[2], &err))
		td_worker_fail(w, &err);
	hello(w);
	configure(w);
	td_fault_arm(w->cfg->fault);
	descriptors(w);
	w->stats = role == TANDEM__WORKER__ROLE__TARGET ? &w->shm->stats_target : &w->shm->stats_drafter;
	w->bell = role == TANDEM__WORKER__ROLE__TARGET ? &w->shm->bell_target : &w->shm->bell_drafter;
	open_device(w);
}

/* ---- loading ------------------------------------------------------------------------------------------------------------------------ */

static void progress(void *ctx, const char *stage, uint64_t done, uint64_t total)
{
	struct td_worker *w = ctx;
	Tandem__Worker__Progress p = TANDEM__WORKER__PROGRESS__INIT;
	Tandem__Worker__Message msg = TANDEM__WORKER__MESSAGE__INIT;

	p.stage = (char *)stage;
	p.done = done;
	p.total = total;
	msg.body_case = TANDEM__WORKER__MESSAGE__BODY_PROGRESS;
	msg.progress = &p;
	td_control_send(&w->control, &msg, NULL); /* one lost is no harm */
	atomic_fetch_add(&w->stats->progress, 1);
}

struct td_load td_worker_how(struct td_worker *w)
{
	return (struct td_load){.form = (int)w->cfg->form, .progress = progress, .ctx = w};
}

int td_worker_kept(struct td_worker *w, struct td_arena *kept)
{
	const Tandem__Worker__Arena *a = w->cfg->own;
	struct td_arena_seal seal = {0};
	struct td_error err;
	int fd = w->arena_fd;

	memset(kept, 0, sizeof(*kept));
	if (!a || fd < 0)
		return 0;
	w->arena_fd = -1;
	seal.block = a->block;
	seal.n = (int)a->n_checksum;
	seal.checksum = a->checksum;
	if (w->ops->arena_import(w->dev, fd, a->size, 0, kept, &err) == 0 && td_arena_seal_check(w->ops, w->dev, kept, &seal, &err) == 0)
		return 1;
	td_worker_not_kept(w, kept, &err);
	return 0;
}

void td_worker_not_kept(struct td_worker *w, struct td_arena *kept, const struct td_error *why)
{
	char now[256];
	struct td_error err, other;

	w->ops->arena_release(w->dev, kept);
	td_error_set(&other, TD_E_MISMATCH, "the files there are others now");
	if (td_weights_fingerprint(w->ops, w->cfg->model_dir, (int)w->cfg->form, now, &other) == 0 && !strcmp(now, w->cfg->own->fingerprint)) {
		td_log(TD_LOG_WARN, "the weights in memory can't be used (%s); loading the same files again", why->text);
		return;
	}
	td_error_set(&err, TD_E_MISMATCH, "%s: the model changed: the weights in memory can't be used (%.140s), and %.100s can't replace them (%.140s); restart tandemd to serve what is there",
		     w->name, why->text, w->cfg->model_dir, other.text);
	td_worker_fail(w, &err);
}

void td_worker_fits(struct td_worker *w, const struct td_memplan_worker *plan)
{
	uint64_t free_bytes, total_bytes;
	struct td_error err;

	if (w->ops->memory(w->dev, &free_bytes, &total_bytes, &err) || td_memplan_check(w->name, plan, (int)w->cfg->form, free_bytes, total_bytes, &err))
		td_worker_fail(w, &err);
}

int td_worker_taps(struct td_worker *w, const struct td_target_config *target, int tap[TD_TAPS_MAX])
{
	const struct td_shm_config *s = &w->shm->cfg;
	size_t n = w->cfg->n_tap;
	struct td_error err;
	int fits = n <= TD_TAPS_MAX && target->vocab == s->vocab && (int)n * target->hidden == s->features;

	for (size_t i = 0; i < n && fits; i++) {
		tap[i] = (int)w->cfg->tap[i];
		fits = tap[i] >= 0 && tap[i] < target->layers;
	}
	if (!fits) {
		td_error_set(&err, TD_E_MISMATCH, "%s: the target has %d layers of %d and a vocabulary of %d, tandemd read another config.json (vocabulary %d, %zu taps, %d features); "
			     "the files changed while it started: restart it", w->name, target->layers, target->hidden, target->vocab, s->vocab, n, s->features);
		td_worker_fail(w, &err);
	}
	return (int)n;
}

static void share(const struct td_arena *arena, const struct td_linear *w, Tandem__Worker__SharedLinear *s)
{
	tandem__worker__shared_linear__init(s);
	s->kind = (uint32_t)w->kind;
	s->in = (uint32_t)w->in;
	s->out = (uint32_t)w->out;
	s->group = (uint32_t)w->group;
	s->has_act8 = 1;
	s->act8 = w->act8;
	s->offset = (uint64_t)((const char *)w->data - (const char *)arena->base);
}

static void share_table(const struct td_arena *arena, const struct td_tensor *t, Tandem__Worker__SharedLinear *s)
{
	share(arena, &(struct td_linear){.kind = TD_W_BF16, .in = t->cols, .out = t->rows, .data = t->data}, s);
}

void td_worker_keep(struct td_worker *w, const struct td_arena *arena, const char *fingerprint, const struct td_target_weights *of)
{
	Tandem__Worker__Arena a = TANDEM__WORKER__ARENA__INIT;
	Tandem__Worker__SharedLinear e, h, x;
	Tandem__Worker__Message msg = TANDEM__WORKER__MESSAGE__INIT;
	struct td_arena_seal seal;
	struct td_error err;

	if (w->cfg->own && strcmp(w->cfg->own->fingerprint, fingerprint)) { /* replaced between the comparison and the loading */
		td_error_set(&err, TD_E_MISMATCH, "%s: the model changed while it was loaded again: restart tandemd to serve what is there", w->name);
		td_worker_fail(w, &err);
	}
	if (td_arena_seal_make(w->ops, w->dev, arena, fingerprint, &seal, &err))
		td_worker_fail(w, &err);
	a.name = (char *)w->name;
	a.size = arena->size;
	a.fingerprint = seal.fingerprint;
	a.block = seal.block;
	a.n_checksum = (size_t)seal.n;
	a.checksum = seal.checksum;
	if (of) {
		share_table(arena, &of->embed, &e);
		share(arena, &of->head, &h);
		a.embed = &e;
		a.head = &h;
	}
	if (of && of->exact.data) {
		share_table(arena, &of->exact, &x);
		a.exact = &x;
	}
	msg.body_case = TANDEM__WORKER__MESSAGE__BODY_ARENA;
	msg.arena = &a;
	if (td_fd_send(w->fd_sock, arena->fd, w->name, &err))
		td_worker_fail(w, &err);
	send_body(w, &msg);
	td_arena_seal_finish(&seal);
}

/* ---- ready -------------------------------------------------------------------------------------------------------------------------- */

static void serve(struct td_worker *w, Tandem__Worker__Message *msg)
{
	if (msg->body_case == TANDEM__WORKER__MESSAGE__BODY_HEALTH) {
		send_body(w, msg);
	} else if (msg->body_case == TANDEM__WORKER__MESSAGE__BODY_DRAIN) {
		atomic_store(&w->draining, 1);
		td_bell_ring(w->bell);
	}
}

static void *control_thread(void *arg)
{
	struct td_worker *w = arg;

	for (;;) {
		struct pollfd p[2] = {{.fd = w->fd_sock, .events = POLLIN}, {.fd = w->control.rcvfd, .events = POLLIN}};
		Tandem__Worker__Message *msg;

		if (poll(p, 2, -1) < 0 && errno != EINTR)
			_exit(1);
		if (p[0].revents) /* tandemd sends nothing here any more: it is gone */
			_exit(0);
		while (td_control_recv(&w->control, &msg, 0, NULL) == 1) {
			serve(w, msg);
			tandem__worker__message__free_unpacked(msg, NULL);
		}
	}
	return NULL;
}

void td_worker_ready(struct td_worker *w, uint64_t weights_bytes, uint64_t cache_bytes, int imported)
{
	Tandem__Worker__Ready r = TANDEM__WORKER__READY__INIT;
	Tandem__Worker__Message msg = TANDEM__WORKER__MESSAGE__INIT;
	struct td_error err;
	char device[160];

	w->ops->describe(w->dev, device, sizeof(device));
	r.device = device;
	r.weights_bytes = weights_bytes;
	r.cache_bytes = cache_bytes;
	r.load_us = td_now_us() - w->began_us;
	r.imported = imported;
	if (!w->shm->cfg.host_exchange && w->role == TANDEM__WORKER__ROLE__TARGET) {
		r.has_exchange = 1;
		r.exchange = (ProtobufCBinaryData){TD_HANDLE_BYTES, w->exchange_handle};
	}
	msg.body_case = TANDEM__WORKER__MESSAGE__BODY_READY;
	msg.ready = &r;
	send_body(w, &msg);
	if (pthread_create(&w->thread, NULL, control_thread, w)) {
		td_error_set(&err, TD_E_NOMEM, "%s: can't start the control thread", w->name);
		td_worker_fail(w, &err);
	}
	pthread_detach(w->thread);
}

/* ---- work --------------------------------------------------------------------------------------------------------------------------- */

static void sleep_until_rung(struct td_worker *w, uint32_t seen, int idle)
{
	if (idle && atomic_load(&w->draining)) {
		td_log(TD_LOG_INFO, "drained");
		_exit(0);
	}
	atomic_store(&w->stats->busy, 0);
	td_bell_wait(w->bell, seen, 1000);
	atomic_store(&w->stats->busy, 1);
}

_Noreturn void td_worker_run(struct td_worker *w, void *engine, int (*step)(void *engine, struct td_error *err), int (*active)(const void *engine))
{
	struct td_error err;

	for (;;) {
		uint32_t seen = atomic_load(&w->bell->count); /* before the look at the work: what comes after it rings again */
		int rc = step(engine, &err);

		if (rc < 0)
			td_worker_fail(w, &err);
		if (rc == 0)
			sleep_until_rung(w, seen, !active(engine));
	}
}
