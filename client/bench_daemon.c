/*
 * bench_daemon.c: a daemon of our own, so that one command measures a model folder: tandemd from beside this program (else from PATH), with its socket
 * and log in a temporary folder. It ends with us: by our stopping it, or by the kernel when we die.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/bench.h"

#define SYNTHETIC "synthetic:"
enum { READY_S = 600, PROBE_MS = 50, PATH_BYTES = 4096 };

int td_bench_synthetic(const char *model)
{
	return !strncmp(model, SYNTHETIC, strlen(SYNTHETIC));
}

static void beside_us(char path[PATH_BYTES + 16])
{
	char self[PATH_BYTES];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	strcpy(path, "tandemd");
	if (n <= 0)
		return;
	self[n] = '\0';
	snprintf(path, PATH_BYTES + 16, "%s/tandemd", dirname(self));
	if (access(path, X_OK))
		strcpy(path, "tandemd");
}

static void run_daemon(const struct td_bench_daemon *d, const struct td_bench_daemon_how *how, const char *model, const char *drafter)
{
	char exe[PATH_BYTES + 16], option[14][PATH_BYTES + 64], log[96], *argv[16] = {exe};
	int fd, n = 0;

#define OPTION(...) (snprintf(option[n], sizeof(option[n]), __VA_ARGS__), argv[n + 1] = option[n], n++)
	beside_us(exe);
	OPTION("--tandem.socket=%s", d->socket);
	OPTION("--tandem.runtime_dir=%s/run", d->dir);
	if (td_bench_synthetic(model))
		OPTION("--synthetic=%s", model + strlen(SYNTHETIC));
	else
		OPTION("--model.target=%s", model);
	if (*drafter)
		OPTION("--model.drafter=%s", drafter);
	OPTION("--engine.device=%s", how->device);
	OPTION("--engine.slots=%u", how->slots);
	if (how->context)
		OPTION("--engine.context=%u", how->context);
	if (how->weights)
		OPTION("--model.weights=%s", how->weights);
	if (how->activations)
		OPTION("--model.activations=%s", how->activations);
	if (how->tokenizer)
		OPTION("--model.tokenizer=%s", how->tokenizer);
	if (how->draft_vocabulary)
		OPTION("--model.draft_vocabulary=%s", how->draft_vocabulary);
	if (how->widths)
		OPTION("--engine.widths=%s", how->widths);
	if (how->share) {
		OPTION("--engine.mps=on");
		OPTION("--engine.mps_active_thread_percentage=%u", how->share);
	}
#undef OPTION
	if (how->assume)
		setenv("TANDEM_FAULT", "target.assume", 1);
	snprintf(log, sizeof(log), "%s/log", d->dir);
	fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0) {
		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	setsid(); /* Ctrl-C is ours: we stop the daemon after our own work */
	execvp(exe, argv);
	fprintf(stderr, "can't start %s: %s\n", exe, strerror(errno));
	_exit(127);
}

/* The last line that the daemon said. */
static void say_why(const struct td_bench_daemon *d)
{
	char path[96], line[600], last[600] = "it said nothing";
	FILE *f;

	snprintf(path, sizeof(path), "%s/log", d->dir);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		strcpy(last, line);
	}
	if (f)
		fclose(f);
	fprintf(stderr, "tandem bench: the daemon for the bench did not start: %s\n", last);
}

/* 1 ready, 0 not yet, -1 it never will be. */
static int probe(struct td_bench_daemon *d)
{
	struct tandem_error err;
	struct tandem *t;
	struct tandem_status *s;
	int status, rc = 0;

	if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
		d->pid = 0;
		return -1;
	}
	t = tandem_connect(d->socket, NULL, &err);
	s = t ? tandem_status(t, &err) : NULL;
	if (s)
		rc = !strcmp(s->state, "ready") ? 1 : !strcmp(s->state, "failed") ? -1 : 0;
	tandem_status_free(s);
	tandem_close(t);
	return rc;
}

static int start(struct td_bench_daemon *d, const struct td_bench_daemon_how *how, const char *model, const char *drafter)
{
	const char *tmp = getenv("TMPDIR");

	/* A socket's path has room for about a hundred bytes: a TMPDIR that is too deep doesn't do. */
	snprintf(d->dir, sizeof(d->dir), "%s/tandem-bench.XXXXXX", tmp && *tmp == '/' && strlen(tmp) < 40 ? tmp : "/tmp");
	if (!mkdtemp(d->dir)) {
		fprintf(stderr, "tandem bench: can't make a temporary folder %s: %s\n", d->dir, strerror(errno));
		d->dir[0] = '\0';
		return -1;
	}
	snprintf(d->socket, sizeof(d->socket), "%s/sock", d->dir);
	fflush(stdout);
	d->pid = fork();
	if (d->pid == 0)
		run_daemon(d, how, model, drafter);
	if (d->pid < 0) {
		d->pid = 0;
		fprintf(stderr, "tandem bench: can't start a process: %s\n", strerror(errno));
		return -1;
	}
	return 0;
}

static int resolve(const char *folder, char path[PATH_BYTES])
{
	if (td_bench_synthetic(folder) && strlen(folder) < PATH_BYTES) {
		strcpy(path, folder);
		return 0;
	}
	if (realpath(folder, path))
		return 0;
	fprintf(stderr, "tandem bench: %s: %s\n", folder, strerror(errno));
	return -1;
}

int td_bench_daemon_start(struct td_bench_daemon *d, const struct td_bench_daemon_how *how)
{
	char model[PATH_BYTES], drafter[PATH_BYTES] = "none";
	int rc = 0, tries;

	if (resolve(how->model, model) || (how->drafter && strcmp(how->drafter, "none") && resolve(how->drafter, drafter)))
		return -1;
	if (!how->drafter && td_bench_synthetic(model))
		drafter[0] = '\0'; /* its own */
	if (start(d, how, model, drafter))
		return -1;
	for (tries = 0; !rc && tries < READY_S * 1000 / PROBE_MS && !td_bench_interrupted; tries++) {
		poll(NULL, 0, PROBE_MS);
		rc = probe(d);
	}
	if (rc != 1 && !td_bench_interrupted)
		say_why(d);
	return rc == 1 ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	remove(path);
	return 0;
}

void td_bench_daemon_stop(struct td_bench_daemon *d)
{
	if (d->pid > 0) {
		kill(d->pid, SIGTERM);
		while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR)
			;
		d->pid = 0;
	}
	if (d->dir[0])
		nftw(d->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	d->dir[0] = '\0';
}
