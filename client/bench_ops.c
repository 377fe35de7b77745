/*
 * bench_ops.c: the suite ops, measured by the target worker's program from beside this one (bench_suite.h).
 */
#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "client/bench_suite.h"

enum { PATH_BYTES = 4096, KEYS = 2048 };

/* Built: beside us; installed: in lib/tandem. */
static int find_worker(char path[PATH_BYTES + 40])
{
	static const char *const place[] = {"tandem-target", "../lib/tandem/tandem-target"};
	char self[PATH_BYTES], *folder;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	size_t i;

	if (n <= 0)
		return -1;
	self[n] = '\0';
	folder = dirname(self);
	for (i = 0; i < sizeof(place) / sizeof(*place); i++) {
		snprintf(path, PATH_BYTES + 40, "%s/%s", folder, place[i]);
		if (!access(path, X_OK))
			return 0;
	}
	return -1;
}

/* A client of the daemon's MPS (daemon/mps.c), with as many multiprocessors as its workers have. */
static void join_slice(const struct td_bench_daemon *d, uint32_t share)
{
	char pipe_dir[sizeof(d->dir) + 16], percent[16];

	snprintf(pipe_dir, sizeof(pipe_dir), "%s/run/mps", d->dir);
	snprintf(percent, sizeof(percent), "%u", share);
	setenv("CUDA_MPS_PIPE_DIRECTORY", pipe_dir, 1);
	setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent, 1);
}

static void run_worker(const char *path, const struct td_bench_options *o, int out)
{
	char keys[16], ms[16], threads[16];
	char *argv[] = {(char *)path, (char *)"bench-ops", (char *)o->device, (char *)o->model, (char *)(o->drafter ? o->drafter : "own"), keys, ms, threads,
			(char *)(o->activations ? o->activations : "auto"), NULL};

	snprintf(keys, sizeof(keys), "%u", o->keys ? o->keys : o->context && o->context < KEYS ? o->context : KEYS);
	snprintf(ms, sizeof(ms), "%u", o->milliseconds);
	snprintf(threads, sizeof(threads), "%u", o->threads);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	dup2(out, STDOUT_FILENO);
	execv(path, argv);
	fprintf(stderr, "tandem bench: can't start %s: %s\n", path, strerror(errno));
	_exit(127);
}

json_t *td_bench_ops(struct td_bench *b, const struct td_bench_options *o, const struct td_bench_daemon *d)
{
	char path[PATH_BYTES + 40];
	json_t *j = NULL;
	int to[2], status = 0;
	pid_t pid;

	b->code = TD_EXIT_FAILED;
	if (find_worker(path)) {
		fprintf(stderr, "tandem bench: tandem-target is not beside this program, nor in ../lib/tandem\n");
		return NULL;
	}
	fflush(stdout);
	if (pipe(to) || (pid = fork()) < 0) {
		fprintf(stderr, "tandem bench: can't start a process: %s\n", strerror(errno));
		return NULL;
	}
	if (pid == 0) {
		close(to[0]);
		if (d->pid)
			join_slice(d, o->share);
		run_worker(path, o, to[1]);
	}
	close(to[1]);
	j = json_loadfd(to[0], 0, NULL);
	close(to[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (td_bench_interrupted)
		b->code = TD_EXIT_INTERRUPTED;
	else if (WIFSIGNALED(status))
		fprintf(stderr, "tandem bench: %s was ended by signal %d\n", path, WTERMSIG(status));
	if (status || !j || td_bench_interrupted) {
		json_decref(j);
		return NULL;
	}
	b->code = TD_EXIT_OK;
	return j;
}
