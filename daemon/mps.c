/*
 * mps.c: NVIDIA's control daemon for MPS: two processes compute on one GPU at the same time instead of by turns.
 *
 * A daemon of our own, in the runtime folder: nobody else's clients, nobody else's faults. It runs in the foreground as a child that leads a group of its own;
 * the server that it starts for the first client is in that group, so one signal reaches both. It is up when its socket is there. SIGTERM ends both
 * within some 0.1 s (measured with a 580 driver; "quit" on its standard input does nothing); after a while the group is killed.
 * Workers start only when it is settled whether they are clients, and when it ends they end: their memory was in its server. A worker that
 * dies by a fault of the GPU takes its neighbour along, and the server takes no new client until the last old one left (supervisor.c waits for that).
 * With mps = auto whatever goes wrong means time slices, said in the log and in Status; with on it is an error.
 * What a killed tandemd left behind is found by its environment and ended before a new one starts: two on one folder do not work.
 * What must never happen: waiting for it in the loop; a control daemon or server that outlives us after a regular end.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/log.h"

enum {
	S = 1000000,
	START_US = 5 * S,
	END_US = 2 * S,
	SWEPT_US = S / 5,
	WELL_US = 60 * S, /* up for so long: earlier failures do not count */
	RETRY_US = 30 * S,
	FAILURES_MAX = 3,
};
#define PROGRAM "nvidia-cuda-mps-control"
#define PIPE_VAR "CUDA_MPS_PIPE_DIRECTORY="
#define LOG_VAR "CUDA_MPS_LOG_DIRECTORY="
#define SHARE_VAR "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="

extern char **environ;

struct td_mps_life {
	struct td_daemon *d; /* NULL once over */
	uv_process_t process;
	struct td_logpipe printed;
	int open; /* handles that are not closed yet */
};

static const char *pipe_dir(const struct td_mps *m)
{
	return m->pipe_var + strlen(PIPE_VAR);
}

/* ---- environment, folders ---------------------------------------------------------------------------------------------------------- */

static int is_var(const char *entry, const char *name)
{
	return !strncmp(entry, name, strlen(name));
}

char **td_mps_env(struct td_daemon *d, int client)
{
	struct td_mps *m = &d->mps;
	size_t n = 0, k = 0;
	char **env;

	while (environ[n])
		n++;
	env = calloc(n + 4, sizeof(*env));
	if (!env)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		/* The server numbers devices after its own CUDA_VISIBLE_DEVICES, the clients after theirs: only one of them may have it. */
		if (is_var(environ[i], PIPE_VAR) || is_var(environ[i], LOG_VAR) || (!client && is_var(environ[i], "CUDA_VISIBLE_DEVICES=")))
			continue;
		if (!(m->share_var[0] && is_var(environ[i], SHARE_VAR)))
			env[k++] = environ[i];
	}
	env[k++] = m->pipe_var;
	env[k++] = m->log_var;
	if (client && m->share_var[0])
		env[k++] = m->share_var;
	return env;
}

/* An own folder that nobody else may enter. */
static int folder_make(const char *path, struct td_error *err)
{
	struct stat st;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return td_error_set(err, TD_E_IO, "cannot make the folder %.300s: %s", path, strerror(errno));
	if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
		return td_error_set(err, TD_E_PERMISSION, "%.300s is not a folder of this user's", path);
	if (chmod(path, 0700) < 0)
		return td_error_set(err, TD_E_PERMISSION, "cannot change the rights of %.300s: %s", path, strerror(errno));
	return 0;
}

static void files_remove(const struct td_mps *m)
{
	static const char *const name[] = {"control", "control_lock", "control_privileged", "log", PROGRAM ".pid"};
	char path[PATH_MAX + 64];

	for (size_t i = 0; i < sizeof(name) / sizeof(*name); i++) {
		snprintf(path, sizeof(path), "%s/%s", pipe_dir(m), name[i]);
		unlink(path);
	}
}

/* The lock of the runtime folder is ours, so whoever has this folder in its environment was left behind by a predecessor. How many there were. */
static int sweep(const struct td_mps *m)
{
	static char env[1 << 16];
	char path[300], comm[32];
	DIR *proc = opendir("/proc");
	const struct dirent *e;
	int found = 0;

	while (proc && (e = readdir(proc))) {
		ssize_t n;
		int fd;

		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/comm", e->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		n = fd < 0 ? 0 : read(fd, comm, sizeof(comm) - 1);
		if (fd >= 0)
			close(fd);
		if (n < 15 || memcmp(comm, PROGRAM, 15)) /* the kernel keeps 15 bytes, which control and server have in common */
			continue;
		snprintf(path, sizeof(path), "/proc/%s/environ", e->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		n = fd < 0 ? 0 : read(fd, env, sizeof(env) - 1);
		if (fd >= 0)
			close(fd);
		env[n > 0 ? n : 0] = 0;
		for (ssize_t at = 0; at < n; at += (ssize_t)strlen(env + at) + 1)
			if (!strcmp(env + at, m->pipe_var) && kill((pid_t)atoi(e->d_name), SIGKILL) == 0)
				found++;
	}
	if (proc)
		closedir(proc);
	return found;
}

/* ---- one life ---------------------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
	struct td_mps_life *l = h->data;

	if (--l->open == 0)
		free(l);
}

/* It is not there and will not be by waiting: with auto that is all, with on it is an error until it works. */
static void cannot(struct td_daemon *d, const char *why)
{
	struct td_mps *m = &d->mps;
	char how[sizeof(m->how)];

	if (!strcmp(d->cfg.mps, "auto")) {
		snprintf(how, sizeof(how), "time slices: MPS cannot be had: %.400s", why);
		td_mps_off(d, how);
		return;
	}
	m->state = TD_MPS_DOWN;
	m->retry_us = td_now_us() + RETRY_US;
	snprintf(how, sizeof(how), "MPS cannot be had: %.300s; set engine.mps = auto to go on without", why);
	td_supervisor_no_mps(d, 1, how);
}

static void died(struct td_daemon *d, int was_up, const char *why)
{
	struct td_mps *m = &d->mps;
	uint64_t now = td_now_us();

	if (now - m->since_us > WELL_US)
		m->failures = 0;
	if (!was_up || ++m->failures > FAILURES_MAX) {
		cannot(d, why);
		return;
	}
	td_log(TD_LOG_ERROR, "MPS is gone: %s; it is started again, and the workers with it", why);
	m->state = TD_MPS_DOWN;
	m->retry_us = now;
	td_supervisor_no_mps(d, 0, why);
}

static void on_exit_of(uv_process_t *p, int64_t status, int signal_number)
{
	struct td_mps_life *l = p->data;
	struct td_daemon *d = l->d;
	struct td_mps *m = &d->mps;
	enum td_mps_state was = m->state;
	char why[200];

	if (was == TD_MPS_STARTING && td_now_us() > m->since_us + START_US)
		snprintf(why, sizeof(why), "%.100s did not come up within %d s", m->program, START_US / S);
	else if (signal_number)
		snprintf(why, sizeof(why), "%.100s was ended by signal %d", m->program, signal_number);
	else
		snprintf(why, sizeof(why), "%.100s ended with exit code %d", m->program, (int)status);
	kill(-m->pid, SIGKILL); /* its server */
	m->life = NULL;
	m->pid = 0;
	l->d = NULL;
	uv_close((uv_handle_t *)&l->process, on_closed);
	td_logpipe_close(&l->printed, l, on_closed);
	files_remove(m);
	if (was == TD_MPS_ENDING) {
		m->state = m->after;
		td_log(TD_LOG_INFO, "MPS ended");
	} else {
		died(d, was == TD_MPS_UP, why);
	}
}

static int spawn(struct td_daemon *d, struct td_mps_life *l, struct td_error *err)
{
	char *argv[] = {d->mps.program, (char *)"-f", NULL};
	char **env = td_mps_env(d, 0);
	int printed, rc;

	if (!env)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	if ((rc = td_logpipe_open(d, &l->printed, "mps", TD_LOG_INFO, &printed, err)) == 0) {
		uv_stdio_container_t stdio[3] = {
			{.flags = UV_IGNORE},
			{.flags = UV_INHERIT_FD, .data.fd = printed}, /* its log: in the foreground it writes no file */
			{.flags = UV_INHERIT_FD, .data.fd = printed},
		};
		uv_process_options_t o = {.exit_cb = on_exit_of, .file = d->mps.program, .args = argv, .env = env, .stdio = stdio, .stdio_count = 3,
					  .flags = UV_PROCESS_DETACHED};

		l->open = 2;
		l->process.data = l;
		rc = uv_spawn(&d->loop, &l->process, &o);
		close(printed);
		if (rc) {
			td_error_set(err, TD_E_WORKER, "cannot run %s: %s", d->mps.program, uv_strerror(rc));
			uv_close((uv_handle_t *)&l->process, on_closed);
			td_logpipe_close(&l->printed, l, on_closed);
		}
	} else {
		free(l);
	}
	free(env);
	return rc;
}

static void start(struct td_daemon *d, uint64_t now)
{
	struct td_mps *m = &d->mps;
	struct td_mps_life *l;
	struct td_error err;

	if (sweep(m)) {
		td_log(TD_LOG_WARN, "what is left of an earlier MPS daemon in this runtime folder is ended");
		m->retry_us = now + SWEPT_US;
		return;
	}
	files_remove(m);
	l = calloc(1, sizeof(*l));
	if (!l) {
		cannot(d, "out of memory");
		return;
	}
	l->d = d;
	if (folder_make(pipe_dir(m), &err) || folder_make(m->log_var + strlen(LOG_VAR), &err)) {
		free(l);
		cannot(d, err.text);
		return;
	}
	if (spawn(d, l, &err)) {
		cannot(d, err.text);
		return;
	}
	m->life = l;
	m->pid = (pid_t)l->process.pid;
	m->state = TD_MPS_STARTING;
	m->since_us = now;
}

/* ---- for others -------------------------------------------------------------------------------------------------------------------- */

static int find_program(const struct td_daemon_config *c, char *path, size_t size)
{
	const char *list = getenv("PATH");

	if (c->mps_control[0]) {
		snprintf(path, size, "%s", c->mps_control);
		return access(path, X_OK) == 0;
	}
	for (size_t n; list && *list; list += n + (list[n] == ':')) {
		n = strcspn(list, ":");
		if (n && (size_t)snprintf(path, size, "%.*s/" PROGRAM, (int)n, list) < size && access(path, X_OK) == 0)
			return 1;
	}
	snprintf(path, size, PROGRAM);
	return 0;
}

/* Names for its folders; 0 when a socket's path would be too long for the system. */
static int name_folders(struct td_daemon *d)
{
	struct td_mps *m = &d->mps;
	char base[PATH_MAX];

	if (!realpath(d->cfg.runtime_dir, base))
		return 0;
	snprintf(m->pipe_var, sizeof(m->pipe_var), PIPE_VAR "%s/mps", base);
	snprintf(m->log_var, sizeof(m->log_var), LOG_VAR "%s/mps-log", base);
	if (d->cfg.mps_active_thread_percentage < 100)
		snprintf(m->share_var, sizeof(m->share_var), SHARE_VAR "%d", d->cfg.mps_active_thread_percentage);
	return strlen(pipe_dir(m)) + sizeof("/control_privileged") <= sizeof(((struct sockaddr_un *)0)->sun_path);
}

int td_mps_find(struct td_daemon *d, struct td_error *err)
{
	const char *wanted = d->cfg.mps;
	struct td_mps *m = &d->mps;
	int must = !strcmp(wanted, "on");

	m->state = TD_MPS_OFF;
	if (!td_device_is_gpu(&d->model))
		snprintf(m->how, sizeof(m->how), "host memory");
	else if (!must && !d->model.has_drafter)
		snprintf(m->how, sizeof(m->how), "nothing: one worker has the GPU");
	else if (!strcmp(wanted, "off"))
		snprintf(m->how, sizeof(m->how), "time slices: engine.mps = off");
	else if (find_program(&d->cfg, m->program, sizeof(m->program)))
		m->state = TD_MPS_DOWN;
	else if (must)
		return td_error_set(err, TD_E_INVALID,
				    "engine.mps = on: cannot run %.200s: install it (part of the NVIDIA driver), name it by engine.mps_control, or set engine.mps = auto", m->program);
	else
		snprintf(m->how, sizeof(m->how), "time slices: %.200s cannot be run", m->program);
	return 0;
}

int td_mps_open(struct td_daemon *d, struct td_error *err)
{
	struct td_mps *m = &d->mps;
	int rc = td_mps_find(d, err);

	if (rc)
		return rc;
	if (m->state == TD_MPS_DOWN && !name_folders(d)) {
		if (!strcmp(d->cfg.mps, "on"))
			return td_error_set(err, TD_E_INVALID, "engine.mps = on: the path of tandem.runtime_dir is too long for its sockets");
		m->state = TD_MPS_OFF;
		snprintf(m->how, sizeof(m->how), "time slices: the path of tandem.runtime_dir is too long for the sockets of MPS");
	}
	return 0;
}

void td_mps_check(struct td_daemon *d, uint64_t now)
{
	struct td_mps *m = &d->mps;
	char path[PATH_MAX + 64];

	switch (m->state) {
	case TD_MPS_OFF:
		return;
	case TD_MPS_DOWN:
		if (now >= m->retry_us && d->draining < 2)
			start(d, now);
		return;
	case TD_MPS_STARTING:
		snprintf(path, sizeof(path), "%s/control", pipe_dir(m));
		if (access(path, F_OK) == 0) {
			m->state = TD_MPS_UP;
			m->since_us = now;
			td_log(TD_LOG_INFO, "MPS is up: %s as process %d", m->program, (int)m->pid);
		} else if (now > m->since_us + START_US) {
			kill(-m->pid, SIGKILL);
		}
		return;
	case TD_MPS_UP:
		return;
	case TD_MPS_ENDING:
		if (now > m->since_us + END_US)
			kill(-m->pid, SIGKILL);
		return;
	}
}

int td_mps_settled(const struct td_daemon *d)
{
	return d->mps.state == TD_MPS_OFF || d->mps.state == TD_MPS_UP;
}

int td_mps_used(const struct td_daemon *d)
{
	return d->mps.state == TD_MPS_UP;
}

void td_mps_stop(struct td_daemon *d, int at_once)
{
	struct td_mps *m = &d->mps;

	if (!m->life) {
		m->state = TD_MPS_OFF;
		return;
	}
	m->after = TD_MPS_OFF;
	if (at_once)
		kill(-m->pid, SIGKILL);
	if (m->state == TD_MPS_ENDING)
		return;
	kill(m->pid, SIGTERM);
	m->state = TD_MPS_ENDING;
	m->since_us = td_now_us();
}

void td_mps_off(struct td_daemon *d, const char *how)
{
	snprintf(d->mps.how, sizeof(d->mps.how), "%s", how);
	td_log(TD_LOG_WARN, "the workers share by %s", how);
	td_mps_stop(d, 0);
}

void td_mps_close(struct td_daemon *d)
{
	struct td_mps *m = &d->mps;

	if (!m->pipe_var[0])
		return;
	files_remove(m);
	rmdir(pipe_dir(m));
}

void td_mps_sharing(const struct td_daemon *d, char *text, size_t size)
{
	const struct td_mps *m = &d->mps;

	if (m->state == TD_MPS_UP && m->share_var[0])
		snprintf(text, size, "MPS, each worker with %d %% of the GPU's threads", d->cfg.mps_active_thread_percentage);
	else if (m->state == TD_MPS_UP)
		snprintf(text, size, "MPS");
	else if (m->how[0])
		snprintf(text, size, "%s", m->how);
	else
		snprintf(text, size, "MPS, not up");
}
