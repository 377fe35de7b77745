/*
 * main.c: tandemd: from the command line to the loop, and the way out.
 *
 * Ending has three stages. `draining` 1: nothing new is taken, the socket file goes away, what waits is refused, what runs may finish (drain_s). 2: what
 * still runs is cancelled, the workers are asked to end, and killed soon after. Then everything is closed and the loop runs dry. A second signal
 * goes to stage 2 at once and does not ask.
 * What must never happen: an end that leaves a worker, a socket file or a control socket behind.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/fault.h"
#include "engine/log.h"

enum { TICK_MS = 100, S = 1000000, LAST_WORDS_US = 1 * S, WORKERS_END_US = 2 * S, TRIM_US = 1 * S, LARGE_BLOCK = 256 << 10 };
enum { EXIT_RUNTIME = 1, EXIT_CONFIG = 2 };
/* What tandemd itself has open at most, standard descriptors left out: 31 were counted with both workers and a log file while one starts, and MPS; two more
 * are the sockets of HTTP. */
enum { FDS_OWN = 38 };

/* ---- ending ------------------------------------------------------------------------------------------------------------------------ */

static void each_request(struct td_daemon *d, enum td_request_state state, void (*end)(struct td_daemon *, struct td_request *))
{
	struct td_request *r, *next;

	HASH_ITER(hh, d->requests, r, next)
		if (r->state == state)
			end(d, r);
}

static void refuse(struct td_daemon *d, struct td_request *r)
{
	td_request_fail(d, r, TD_E_DRAINING, "tandemd is ending");
}

/* Its answer is under way: it was interrupted, or is one of several choices and others have begun. */
static int has_begun(const struct td_request *r)
{
	const struct td_request *o = r->session && r->session->protocol->one_call ? r->session->requests : NULL;

	for (; o; o = o->session_next)
		if (o->state == TD_REQ_RUNNING || td_commitlog_outputs(&o->log))
			return 1;
	return td_commitlog_outputs(&r->log) > 0;
}

static void refuse_new(struct td_daemon *d, struct td_request *r)
{
	if (!has_begun(r))
		refuse(d, r);
}

static void cancel(struct td_daemon *d, struct td_request *r)
{
	td_request_end(d, r, TANDEM__FINISH_REASON__CANCELLED);
}

static int anything_left(const struct td_daemon *d)
{
	const struct td_request *r;

	for (r = d->requests; r; r = r->hh.next)
		if (r->state == TD_REQ_RUNNING || r->state == TD_REQ_QUEUED)
			return 1;
	for (const struct td_session *s = d->sessions; s; s = s->next)
		if (td_session_pending(s))
			return 1;
	return 0;
}

static void stop_workers(struct td_daemon *d, int at_once)
{
	for (struct td_child *c = &d->target; c; c = c == &d->target ? &d->drafter : NULL) {
		if (!c->life)
			continue;
		if (at_once || c->state != TD_CHILD_READY || td_child_drain(c))
			td_child_kill(c, TD_E_DRAINING, "tandemd ends");
	}
}

static void close_all(struct td_daemon *d)
{
	while (d->sessions)
		td_session_close(d->sessions);
	td_listener_close(d);
	td_supervisor_close(d);
	td_mps_close(d);
	uv_close((uv_handle_t *)&d->tick, NULL);
	uv_close((uv_handle_t *)&d->prepare, NULL);
	uv_close((uv_handle_t *)&d->sig_term, NULL);
	uv_close((uv_handle_t *)&d->sig_int, NULL);
	uv_close((uv_handle_t *)&d->sig_hup, NULL);
}

static void drain_begin(struct td_daemon *d)
{
	d->draining = 1;
	d->drain_us = td_now_us();
	td_log(TD_LOG_INFO, "ending: running requests have %d s", d->cfg.drain_s);
	td_notify_stopping(d);
	td_listener_close(d);
	each_request(d, TD_REQ_QUEUED, refuse_new);
}

static void drain_finish(struct td_daemon *d, int at_once)
{
	each_request(d, TD_REQ_QUEUED, refuse);
	each_request(d, TD_REQ_RUNNING, cancel);
	td_sessions_flush(d);
	d->draining = 2;
	d->end_at_once = at_once;
	d->drain_us = td_now_us();
	stop_workers(d, at_once);
}

/* The stages of ending that follow by time. */
static void drain_check(struct td_daemon *d, uint64_t now)
{
	uint64_t limit = d->drain_us + (uint64_t)d->cfg.drain_s * S;

	if (d->draining == 1) {
		if (now > limit)
			each_request(d, TD_REQ_RUNNING, cancel);
		if (!anything_left(d) || now > limit + LAST_WORDS_US)
			drain_finish(d, 0);
	} else if (d->draining == 2) {
		if (now > d->drain_us + WORKERS_END_US)
			stop_workers(d, 1);
		if (d->target.life || d->drafter.life)
			return;
		td_mps_stop(d, d->end_at_once);
		if (!d->mps.life) {
			d->draining = 3;
			close_all(d);
		}
	}
}

static void on_end_signal(uv_signal_t *h, int number)
{
	struct td_daemon *d = h->data;

	(void)number;
	if (d->draining == 0)
		drain_begin(d);
	else if (d->draining == 1)
		drain_finish(d, 1);
	else
		stop_workers(d, d->end_at_once = 1);
}

static void on_reload_signal(uv_signal_t *h, int number)
{
	(void)number;
	td_reload(h->data);
}

/* ---- turns ------------------------------------------------------------------------------------------------------------------------- */

static void on_turn(uv_prepare_t *h)
{
	struct td_daemon *d = h->data;

	td_scheduler_run(d);
	td_sessions_flush(d);
}

/* What long messages took goes back to the system: large blocks at once (mallopt), pieces of the heaps when nothing has been asked for a while. */
static void trim_memory(struct td_daemon *d, uint64_t now)
{
	if (!d->asked_us || now < d->asked_us + TRIM_US || anything_left(d))
		return;
	d->asked_us = 0;
	malloc_trim(0);
}

static void on_tick(uv_timer_t *h)
{
	struct td_daemon *d = h->data;
	uint64_t now = td_now_us();

	if (d->draining == 0)
		td_listener_check(d);
	td_sessions_check(d, now);
	td_requests_expire(d, now);
	td_admission_tell(d, now);
	td_supervisor_check(d, now);
	trim_memory(d, now);
	td_notify_check(d, now);
	if (d->draining)
		drain_check(d, now);
}

/* ---- start ------------------------------------------------------------------------------------------------------------------------- */

static void open_loop(struct td_daemon *d)
{
	uv_loop_init(&d->loop);
	uv_timer_init(&d->loop, &d->tick);
	uv_prepare_init(&d->loop, &d->prepare);
	uv_signal_init(&d->loop, &d->sig_term);
	uv_signal_init(&d->loop, &d->sig_int);
	uv_signal_init(&d->loop, &d->sig_hup);
	d->tick.data = d->prepare.data = d->sig_term.data = d->sig_int.data = d->sig_hup.data = d;
}

static void start_loop(struct td_daemon *d)
{
	uv_timer_start(&d->tick, on_tick, 0, TICK_MS);
	uv_prepare_start(&d->prepare, on_turn);
	uv_signal_start(&d->sig_term, on_end_signal, SIGTERM);
	uv_signal_start(&d->sig_int, on_end_signal, SIGINT);
	uv_signal_start(&d->sig_hup, on_reload_signal, SIGHUP);
}

/* As much as the administrator allows, not as much as a shell's default does. */
static rlim_t raise_limit(__rlimit_resource_t what)
{
	struct rlimit rl;

	if (getrlimit(what, &rl))
		return RLIM_INFINITY;
	if (rl.rlim_cur < rl.rlim_max) {
		rlim_t soft = rl.rlim_cur;

		rl.rlim_cur = rl.rlim_max;
		if (setrlimit(what, &rl))
			rl.rlim_cur = soft;
	}
	return rl.rlim_cur;
}

/* Descriptors that are open already, whoever left them to us; `most` when they cannot be counted. */
static int open_fds(int most)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = -3; /* ".", "..", and the folder's own */

	if (!dir)
		return most;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* libuv and nanomsg end the process when they find no descriptor, so what they may need is known to be there before they are asked for anything. */
static int take_limits(struct td_daemon *d, struct td_error *err)
{
	rlim_t most = raise_limit(RLIMIT_NOFILE);
	int limit = most > INT_MAX ? INT_MAX : (int)most, rest = limit - open_fds(limit) - FDS_OWN;

	raise_limit(RLIMIT_FSIZE);
	if (rest < 1)
		return td_error_set(err, TD_E_LIMIT, "the limit of %d open files is too low: %d are needed for one connection (ulimit -n, LimitNOFILE)", limit,
				    limit - rest + 1);
	d->fds_room = rest;
	d->fds_short = rest < d->cfg.max_connections;
	if (d->fds_short)
		d->cfg.max_connections = rest;
	return 0;
}

/* Whoever closed them for us: a socket under the number of stderr would get the log. */
static void open_standard_fds(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* Who may write there may put a socket of his own in the place of a worker's. */
static void look_at_folder(const char *dir)
{
	struct stat st;

	if (stat(dir, &st) < 0)
		return;
	if ((st.st_uid && st.st_uid != geteuid()) || ((st.st_mode & (S_IWGRP | S_IWOTH)) && !(st.st_mode & S_ISVTX)))
		td_log(TD_LOG_WARN, "tandem.runtime_dir = %s: others than tandemd may change it (owner %u, mode %03o), and so take the place of its workers", dir,
		       (unsigned)st.st_uid, (unsigned)st.st_mode & 0777);
}

static void log_plan(const struct td_daemon *d)
{
	const struct td_model *m = &d->model;

	look_at_folder(d->cfg.runtime_dir);

	td_log(TD_LOG_INFO, "tandemd " TD_VERSION ", process %d: model %s on %s, %d slots of %d tokens, %d KV pages, %s, socket %s", (int)getpid(), m->name, m->device,
	       m->shm.slots, m->shm.context, m->kv_pages, m->has_drafter ? "with a drafter" : "without a drafter", d->cfg.socket);
	if (d->cfg.http_socket[0] || d->cfg.http_listen[0])
		td_log(TD_LOG_INFO, "HTTP on %s%s%s", d->cfg.http_socket, d->cfg.http_socket[0] && d->cfg.http_listen[0] ? " and " : "", d->cfg.http_listen);
	if (d->fds_short)
		td_log(TD_LOG_WARN, "the limit of open files leaves room for %d connections (ulimit -n, LimitNOFILE)", d->cfg.max_connections);
	if (d->cfg.tenants.exposed)
		td_log(TD_LOG_WARN, "%s holds API keys and everybody on this machine may read it (chmod o-r)", d->cfg.tenants.exposed);
	td_model_tell_memory(m);
	if (td_device_is_gpu(m) && d->mps.how[0])
		td_log(TD_LOG_WARN, "the workers share the GPU by %s", d->mps.how);
}

static int serve(struct td_daemon *d, struct td_error *err)
{
	int rc;

	open_loop(d);
	d->scratch = malloc(sizeof(*d->scratch));
	if (!d->scratch)
		rc = td_error_set(err, TD_E_NOMEM, "out of memory");
	else if ((rc = td_admission_configure(d, &d->cfg, err)) == 0 && (rc = td_listener_lock(d, err)) == 0 && (rc = td_shm_create(&d->model.shm, &d->shm_fd, &d->shm, err)) == 0 &&
		 (rc = td_supervisor_open(d, err)) == 0 && (rc = td_listener_open(d, err)) == 0) {
		td_fdstore_take(d);
		start_loop(d);
		log_plan(d); /* whoever reads it may send signals: they are seen from now on */
		d->start_cpu_us = td_status_cpu_us();
	} else {
		close_all(d);
	}
	uv_run(&d->loop, UV_RUN_DEFAULT);
	uv_loop_close(&d->loop);
	td_requests_finish(d);
	td_tenants_finish(&d->tenants);
	td_metrics_finish(&d->metrics);
	td_shm_unmap(d->shm);
	if (d->shm_fd >= 0)
		close(d->shm_fd);
	if (d->listener.spare_fd >= 0)
		close(d->listener.spare_fd);
	if (d->listener.lock_fd >= 0)
		close(d->listener.lock_fd);
	free(d->scratch);
	if (!rc)
		td_log(TD_LOG_INFO, "ended");
	return rc;
}

static int complain(const struct td_error *err, int code)
{
	fprintf(stderr, "tandemd: %s\n", err->text);
	return code;
}

/* What was asked for went to stdout: did it get there? */
static int told(void)
{
	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	fprintf(stderr, "tandemd: can't write to stdout: %s\n", strerror(errno));
	return EXIT_RUNTIME;
}

/* One rule: 2 when the command line, the settings, the files or the limits must change before another start can help; 1 when it may help as it is. */
static int exit_code(const struct td_error *err)
{
	return td_is_lasting(err->code) || err->code == TD_E_LIMIT ? EXIT_CONFIG : EXIT_RUNTIME;
}

int main(int argc, char **argv)
{
	static struct td_daemon d;
	enum td_config_action action;
	struct td_error err;
	int rc;

	td_notify_open(&d.notify);
	open_standard_fds();
	mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
	mallopt(M_TRIM_THRESHOLD, LARGE_BLOCK);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN); /* until the loop listens to it */
	if (td_daemon_config_load(argc, argv, &d.cfg, &action, &err))
		return complain(&err, EXIT_CONFIG);
	if (action == TD_HELP || action == TD_VERSION_ACTION || action == TD_SETTINGS) {
		if (action == TD_HELP)
			td_daemon_config_help(stdout);
		else if (action == TD_SETTINGS)
			td_daemon_config_list(stdout);
		else
			puts("tandemd " TD_VERSION);
		td_daemon_config_finish(&d.cfg);
		return told();
	}
	td_log_open("tandemd", (enum td_log_level)d.cfg.log_level);
	td_fault_arm(getenv("TANDEM_FAULT"));
	td_notify_starting(&d.notify);
	d.started_us = td_now_us();
	d.argc = argc;
	d.argv = argv;
	d.shm_fd = d.listener.lock_fd = d.listener.spare_fd = -1;
	rc = take_limits(&d, &err) || td_model_load(&d.cfg, &d.model, &err) || td_model_plan_memory(&d.cfg, &d.model, &err) ? complain(&err, EXIT_CONFIG) : 0;
	if (!rc && action == TD_CHECK && td_mps_find(&d, &err)) {
		rc = complain(&err, EXIT_CONFIG);
	} else if (!rc && action == TD_CHECK) {
		td_model_tell_memory(&d.model);
		puts("the configuration is fine");
		rc = told();
	} else if (!rc && d.cfg.log_file[0] && td_log_file(d.cfg.log_file, &err)) {
		rc = complain(&err, EXIT_CONFIG);
	} else if (!rc && serve(&d, &err)) {
		rc = complain(&err, exit_code(&err));
	}
	td_model_finish(&d.model);
	td_daemon_config_finish(&d.cfg);
	return rc;
}
