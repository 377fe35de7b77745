/*
 * child.c: one life of one worker process: spawning, the control channel, descriptors, reaping.
 *
 * A life has its own handles, control socket and socketpair, made at spawn and closed when the process was reaped, so that nothing that a dead worker
 * said can be taken for its successor's. What outlives it is in struct td_child: the arena's fd and description, and the eventfd.
 * The arena's description comes by message, its fd by the socketpair, in any order: it counts once both are here.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/log.h"

enum { FD_SOCK = 3 /* in the worker */, CHECKSUMS_MAX = 1 << 20 };

struct td_child_life {
	struct td_child *child; /* NULL once over */
	uv_process_t process;
	uv_poll_t control_poll, fd_poll;
	struct td_control control;
	int fd_sock;
	struct td_logpipe printed;
	int open; /* handles that are not closed yet */
	int new_fd; /* arena: came by the socketpair, not yet described */
	Tandem__Worker__Arena *new_arena; /* described, fd not here yet */
};

/* ---- closing ----------------------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
	struct td_child_life *l = h->data;

	if (--l->open == 0)
		free(l);
}

static void life_close(struct td_child_life *l)
{
	l->child->life = NULL;
	l->child = NULL;
	uv_close((uv_handle_t *)&l->control_poll, on_closed);
	uv_close((uv_handle_t *)&l->fd_poll, on_closed);
	uv_close((uv_handle_t *)&l->process, on_closed);
	td_logpipe_close(&l->printed, l, on_closed);
	td_control_close(&l->control);
	close(l->fd_sock);
	if (l->new_fd >= 0)
		close(l->new_fd);
	if (l->new_arena)
		tandem__worker__arena__free_unpacked(l->new_arena, NULL);
}

void td_child_kill(struct td_child *c, int code, const char *fmt, ...)
{
	va_list ap;

	if (!c->life)
		return;
	if (!c->why) {
		c->why = code;
		va_start(ap, fmt);
		vsnprintf(c->why_text, sizeof(c->why_text), fmt, ap);
		va_end(ap);
	}
	c->state = TD_CHILD_ENDING;
	c->since_us = td_now_us();
	if (!c->killed_us)
		c->killed_us = c->since_us;
	kill(-c->pid, SIGKILL); /* it leads a group of its own */
	kill(c->pid, SIGKILL);
}

/* ---- arena ------------------------------------------------------------------------------------------------------------------------- */

static void arena_take(struct td_child *c)
{
	struct td_child_life *l = c->life;

	if (l->new_fd < 0 || !l->new_arena)
		return;
	if (c->arena_fd >= 0)
		close(c->arena_fd);
	if (c->arena)
		tandem__worker__arena__free_unpacked(c->arena, NULL);
	c->arena_fd = l->new_fd;
	c->arena = l->new_arena;
	l->new_fd = -1;
	l->new_arena = NULL;
}

static void on_fd(uv_poll_t *poll, int status, int events)
{
	struct td_child_life *l = poll->data;
	struct td_error err;
	char name[32];
	int fd, rc;

	(void)events;
	if (!l->child)
		return;
	rc = status < 0 ? TD_E_CLOSED : td_fd_recv(l->fd_sock, &fd, name, 0, &err);
	if (rc == TD_E_DEADLINE)
		return;
	if (rc) { /* its end: the exit follows */
		uv_poll_stop(&l->fd_poll);
		return;
	}
	if (strcmp(name, l->child->name) || l->new_fd >= 0) {
		close(fd);
		td_child_kill(l->child, TD_E_PROTOCOL, "it sent a descriptor \"%s\" that nobody expects", name);
		return;
	}
	l->new_fd = fd;
	arena_take(l->child);
}

/* ---- what we say ------------------------------------------------------------------------------------------------------------------- */

static int send_fds(struct td_child *c, const struct td_child *target, struct td_error *err)
{
	int sock = c->life->fd_sock, rc;

	if ((rc = td_fd_send(sock, c->d->shm_fd, "shm", err)) || (rc = td_fd_send(sock, c->events_fd, "events", err)))
		return rc;
	if (c->arena && (rc = td_fd_send(sock, c->arena_fd, c->name, err)))
		return rc;
	if (c->role == TANDEM__WORKER__ROLE__TARGET && c->d->model.vocab_fd > 0)
		return td_fd_send(sock, c->d->model.vocab_fd, "vocab", err);
	return target ? td_fd_send(sock, target->arena_fd, "peer", err) : 0;
}

static void configure(struct td_child *c)
{
	struct td_daemon *d = c->d;
	int is_target = c->role == TANDEM__WORKER__ROLE__TARGET;
	const struct td_child *target = !is_target && d->target.arena ? &d->target : NULL;
	Tandem__Worker__Configure o = TANDEM__WORKER__CONFIGURE__INIT;
	Tandem__Worker__Message m = TANDEM__WORKER__MESSAGE__INIT;
	struct td_error err;

	o.device = (char *)d->model.device;
	o.epoch = d->epoch;
	o.model_dir = is_target ? d->cfg.target : d->cfg.drafter;
	o.n_tap = d->model.has_drafter ? (size_t)d->model.drafter.n_taps : 0;
	o.tap = d->model.drafter.tap;
	o.kv_pages = (uint32_t)d->model.kv_pages;
	o.has_prefix_states = o.has_prefix_auto = o.has_reserve = 1;
	o.prefix_states = (uint32_t)d->model.prefix_states;
	o.prefix_auto = d->cfg.prefix_states == TD_AUTO;
	o.reserve = d->drafter.pid > 0 ? 0 : td_model_drafter_bytes(&d->model, d->drafter.arena != NULL);
	o.threads = (uint32_t)d->cfg.threads;
	o.own = c->arena;
	o.target = target ? target->arena : NULL;
	o.fault = c->lives == 1 ? getenv("TANDEM_FAULT") : NULL; /* a lever is for one life, so that the successor lives */
	o.has_form = 1;
	if (!is_target && td_device_is_gpu(&d->model)) {
		o.has_exchange = 1;
		o.exchange = (ProtobufCBinaryData){sizeof(d->target.exchange), d->target.exchange};
	}
	o.form = (uint32_t)d->model.form;
	o.has_vocab = 1;
	o.vocab = is_target && d->model.vocab_fd > 0;
	o.vocab_real = (uint32_t)d->model.vocab_real;
	o.n_draft_id = is_target ? 0 : (size_t)d->model.draft.n;
	o.draft_id = d->model.draft.id;
	m.body_case = TANDEM__WORKER__MESSAGE__BODY_CONFIGURE;
	m.configure = &o;
	if (send_fds(c, target, &err) || td_control_send(&c->life->control, &m, &err))
		td_child_kill(c, err.code, "it cannot be configured: %s", err.text);
}

int td_child_drain(struct td_child *c)
{
	static Tandem__Worker__Drain drain = TANDEM__WORKER__DRAIN__INIT;
	Tandem__Worker__Message m = TANDEM__WORKER__MESSAGE__INIT;

	m.body_case = TANDEM__WORKER__MESSAGE__BODY_DRAIN;
	m.drain = &drain;
	return c->life ? td_control_send(&c->life->control, &m, NULL) : TD_E_CLOSED;
}

/* ---- what it says ------------------------------------------------------------------------------------------------------------------ */

static void hello(struct td_child *c, const Tandem__Worker__Hello *h)
{
	if (h->version != TD_SHM_VERSION || h->role != c->role) {
		td_child_kill(c, TD_E_MISMATCH, "it says version %u, role %d; expected were version %d, role %d: install tandemd and its workers from one build",
			      h->version, (int)h->role, TD_SHM_VERSION, (int)c->role);
		return;
	}
	if ((pid_t)h->pid != c->pid) { /* of a daemon that was killed; it ends by itself */
		td_child_kill(c, TD_E_BUSY, "process %u, another worker, took its place at the control socket", h->pid);
		return;
	}
	c->state = TD_CHILD_LOADING;
	configure(c);
}

static void progress(struct td_child *c, const Tandem__Worker__Progress *p)
{
	snprintf(c->stage, sizeof(c->stage), "%s", p->stage);
	if (!td_utf8_check(c->stage, strlen(c->stage)))
		c->stage[0] = 0;
	c->stage_done = p->done;
	c->stage_total = p->total;
}

static void arena(struct td_child *c, Tandem__Worker__Message *m)
{
	struct td_child_life *l = c->life;

	if (strcmp(m->arena->name, c->name) || l->new_arena || m->arena->n_checksum > CHECKSUMS_MAX) {
		td_child_kill(c, TD_E_PROTOCOL, "it offers an arena that nobody expects");
		return;
	}
	if (!td_model_is_of(&c->d->model, c == &c->d->target, m->arena->fingerprint)) {
		td_child_kill(c, TD_E_MISMATCH, "the model changed: the files in %s are others than those that tandemd read when it started, or the "
			      "worker's program is another; restart tandemd to serve what is there", c == &c->d->target ? c->d->cfg.target : c->d->cfg.drafter);
		return;
	}
	l->new_arena = m->arena;
	m->arena = NULL;
	m->body_case = TANDEM__WORKER__MESSAGE__BODY__NOT_SET;
	arena_take(c);
}

static void ready(struct td_child *c, const Tandem__Worker__Ready *r)
{
	if (c->life->new_arena) {
		/* The message overtook the descriptor: it was sent before, so it is there. */
		on_fd(&c->life->fd_poll, 0, 0);
		if (c->state != TD_CHILD_LOADING)
			return;
	}
	if (c == &c->d->target && td_device_is_gpu(&c->d->model)) {
		if (!r->has_exchange || r->exchange.len != sizeof(c->exchange)) {
			td_child_kill(c, TD_E_PROTOCOL, "it says Ready without the handle of the exchange region");
			return;
		}
		memcpy(c->exchange, r->exchange.data, sizeof(c->exchange));
	}
	snprintf(c->device, sizeof(c->device), "%s", r->device);
	if (!td_utf8_check(c->device, strlen(c->device)))
		c->device[0] = 0;
	c->weights_bytes = r->weights_bytes;
	c->cache_bytes = r->cache_bytes;
	c->load_us = r->load_us;
	c->imported = r->imported;
	c->state = TD_CHILD_READY;
	c->was_ready = c->ever_ready = 1;
	td_child_ready(c);
}

static void take_message(struct td_child *c, Tandem__Worker__Message *m)
{
	int loading = c->state == TD_CHILD_LOADING;

	c->since_us = td_now_us();
	switch (m->body_case) {
	case TANDEM__WORKER__MESSAGE__BODY_FAILURE:
		c->why = td_error_code(m->failure->code, TD_E_WORKER);
		snprintf(c->why_text, sizeof(c->why_text), "%s", m->failure->text);
		if (c->d->model.shm.host_exchange == 0 && (c->why == TD_E_DEVICE || c->why == TD_E_NOMEM || c->why == TD_E_UNSUPPORTED))
			td_device_advise(c->d, c->why_text, sizeof(c->why_text));
		c->state = TD_CHILD_ENDING; /* it ends by itself, or is killed after a while */
		return;
	case TANDEM__WORKER__MESSAGE__BODY_HEALTH:
		return;
	case TANDEM__WORKER__MESSAGE__BODY_HELLO:
		if (c->state != TD_CHILD_STARTING)
			break;
		hello(c, m->hello);
		return;
	case TANDEM__WORKER__MESSAGE__BODY_PROGRESS:
		if (!loading)
			break;
		progress(c, m->progress);
		return;
	case TANDEM__WORKER__MESSAGE__BODY_ARENA:
		if (!loading)
			break;
		arena(c, m);
		return;
	case TANDEM__WORKER__MESSAGE__BODY_READY:
		if (!loading)
			break;
		ready(c, m->ready);
		return;
	default:
		break;
	}
	td_child_kill(c, TD_E_PROTOCOL, "it sent control message %d out of turn", (int)m->body_case);
}

static void read_control(struct td_child_life *l)
{
	struct td_error err;

	while (l->child) {
		Tandem__Worker__Message *m;
		int rc = td_control_recv(&l->control, &m, 0, &err);

		if (rc == 0)
			return;
		if (rc < 0) {
			td_child_kill(l->child, rc, "%s", err.text);
			return;
		}
		if (l->child->state != TD_CHILD_ENDING)
			take_message(l->child, m);
		tandem__worker__message__free_unpacked(m, NULL);
	}
}

static void on_control(uv_poll_t *poll, int status, int events)
{
	struct td_child_life *l = poll->data;

	(void)events;
	if (status == 0)
		read_control(l);
}

static void on_process_exit(uv_process_t *p, int64_t status, int signal_number)
{
	struct td_child_life *l = p->data;
	struct td_child *c = l->child;

	read_control(l); /* its last words; what it printed is read by life_close */
	if (!c->why && signal_number) {
		c->why = TD_E_WORKER;
		snprintf(c->why_text, sizeof(c->why_text), "it was ended by signal %d (%s)", signal_number, strsignal(signal_number));
	} else if (!c->why) {
		c->why = TD_E_WORKER;
		snprintf(c->why_text, sizeof(c->why_text), "it ended with exit code %d", (int)status);
	}
	life_close(l);
	td_child_gone(c);
}

/* ---- spawning ---------------------------------------------------------------------------------------------------------------------- */

static int run(struct td_child *c, struct td_child_life *l, char *path, int far_end, int printed, struct td_error *err)
{
	char *executable = c->role == TANDEM__WORKER__ROLE__TARGET ? c->d->model.target_worker : c->d->model.drafter_worker;
	char *argv[] = {executable, (char *)"--control", path, NULL};
	uv_stdio_container_t stdio[FD_SOCK + 1] = {
		{.flags = UV_IGNORE},
		{.flags = UV_INHERIT_FD, .data.fd = printed},
		{.flags = UV_INHERIT_FD, .data.fd = printed},
		{.flags = UV_INHERIT_FD, .data.fd = far_end},
	};
	uv_process_options_t o = {.exit_cb = on_process_exit, .file = executable, .args = argv, .stdio = stdio, .stdio_count = FD_SOCK + 1,
				  .flags = UV_PROCESS_DETACHED /* a group of its own: a terminal's Ctrl-C is for tandemd */};
	int rc;

	if (td_mps_used(c->d) && !(o.env = td_mps_env(c->d, 1)))
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	rc = uv_spawn(&c->d->loop, &l->process, &o);
	free(o.env);
	l->open++;
	l->process.data = l;
	return rc == 0 ? 0 : td_error_set(err, TD_E_WORKER, "cannot run %s: %s", executable, uv_strerror(rc));
}

/* Everything that a life needs, then the process. On failure the caller closes what is there. */
static int begin(struct td_child *c, struct td_child_life *l, struct td_error *err)
{
	int pair[2], printed, rc;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s.ipc", c->d->cfg.runtime_dir, c->name);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return td_error_set(err, TD_E_LIMIT, "cannot make a socketpair: %s", strerror(errno));
	l->fd_sock = pair[0];
	if ((rc = td_listener_keep_folder(c->d, err)) == 0 && (rc = td_control_bind(&l->control, path, err)) == 0 &&
	    (rc = td_logpipe_open(c->d, &l->printed, c->name, TD_LOG_WARN, &printed, err)) == 0) {
		l->open = 1;
		rc = run(c, l, path, pair[1], printed, err);
		close(printed);
	}
	close(pair[1]);
	return rc;
}

static void begin_undo(struct td_child_life *l)
{
	int open = l->open;

	if (l->fd_sock >= 0)
		close(l->fd_sock);
	td_control_close(&l->control);
	if (open > 1) /* also after a failure a handle must be closed */
		uv_close((uv_handle_t *)&l->process, on_closed);
	if (open > 0)
		td_logpipe_close(&l->printed, l, on_closed);
	if (!open)
		free(l);
}

int td_child_spawn(struct td_child *c, struct td_error *err)
{
	struct td_child_life *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	l->new_fd = l->fd_sock = -1;
	l->control = TD_CONTROL_CLOSED;
	if ((rc = begin(c, l, err))) {
		begin_undo(l);
		return rc;
	}
	l->child = c;
	l->open += 2;
	uv_poll_init(&c->d->loop, &l->control_poll, l->control.rcvfd);
	uv_poll_init(&c->d->loop, &l->fd_poll, l->fd_sock);
	l->control_poll.data = l->fd_poll.data = l;
	uv_poll_start(&l->control_poll, UV_READABLE, on_control);
	uv_poll_start(&l->fd_poll, UV_READABLE, on_fd);
	c->life = l;
	c->pid = (pid_t)l->process.pid;
	c->state = TD_CHILD_STARTING;
	c->since_us = td_now_us();
	c->was_ready = c->why = c->reset_wait = 0;
	c->killed_us = 0;
	c->why_text[0] = c->stage[0] = 0;
	c->stage_done = c->stage_total = 0;
	if (c->lives++)
		c->restarts++;
	return 0;
}
