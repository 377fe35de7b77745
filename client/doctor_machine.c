/*
 * doctor_machine.c: what the machine has: processors, memory, limits, and the GPU with its driver (doctor.h).
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/doctor.h"

/* The daemon, two workers that spin while they wait for each other, and the client. */
enum { CORES_WANTED = 4, FILES_WANTED = 1024 };

/* First line of a file, without its newline; "" when it can't be read. */
static void first_line(const char *path, char *line, int size)
{
	FILE *f = fopen(path, "r");

	if (!f || !fgets(line, size, f))
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (f)
		fclose(f);
}

/* A field "Name:  value" of a file under /proc, "" when it isn't there. */
static void proc_field(const char *path, const char *name, char *value, size_t size)
{
	FILE *f = fopen(path, "r");
	size_t n = strlen(name);
	char line[512];

	value[0] = '\0';
	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, name, n) || (line[n] != ':' && line[n] != '\t' && line[n] != ' '))
			continue;
		line[strcspn(line, "\n")] = '\0';
		snprintf(value, size, "%s", line + n + strspn(line + n, ": \t"));
		break;
	}
	if (f)
		fclose(f);
}

static void check_cores(struct td_doctor *d)
{
	char model[200];
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);

	proc_field("/proc/cpuinfo", "model name", model, sizeof(model));
	if (n >= CORES_WANTED)
		td_found(d, TD_FOUND_OK, "processors", "%d usable (%s)", n, model);
	else
		td_advise(td_found(d, TD_FOUND_WARN, "processors", "%d usable (%s)", n, model),
			  "it works, but the daemon and two workers take turns: give it %d processors for steady times", CORES_WANTED);
}

static void check_vectors(struct td_doctor *d)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		td_found(d, TD_FOUND_OK, "vectors", "AVX2 and FMA");
	else
		td_advise(td_found(d, TD_FOUND_WARN, "vectors", "no AVX2 or no FMA"), "the CPU backend will be several times slower; a GPU doesn't need them");
#else
	td_advise(td_found(d, TD_FOUND_WARN, "vectors", "not an x86-64 processor"), "the CPU backend runs plain loops here");
#endif
}

static void check_memory(struct td_doctor *d)
{
	char total[64], available[64];
	double all, left;

	proc_field("/proc/meminfo", "MemTotal", total, sizeof(total));
	proc_field("/proc/meminfo", "MemAvailable", available, sizeof(available));
	all = atof(total) / (1024 * 1024);
	left = atof(available) / (1024 * 1024);
	if (left >= 1)
		td_found(d, TD_FOUND_OK, "memory", "%.1f of %.1f GiB available", left, all);
	else
		td_advise(td_found(d, TD_FOUND_WARN, "memory", "%.1f of %.1f GiB available", left, all), "enough for the tiny model only: free some");
}

static void check_limits(struct td_doctor *d)
{
	struct rlimit r = {0};
	int fd = memfd_create("tandem-doctor", MFD_CLOEXEC);
	struct td_finding *f;

	getrlimit(RLIMIT_NOFILE, &r);
	if (r.rlim_cur >= FILES_WANTED)
		td_found(d, TD_FOUND_OK, "open files", "up to %llu", (unsigned long long)r.rlim_cur);
	else
		td_advise(td_found(d, TD_FOUND_WARN, "open files", "only %llu", (unsigned long long)r.rlim_cur),
			  "each client takes one: raise it (ulimit -n %d, or LimitNOFILE in the unit)", FILES_WANTED);
	if (fd >= 0 && ftruncate(fd, 1 << 20) == 0) {
		td_found(d, TD_FOUND_OK, "shared memory", "memfd works");
	} else {
		f = td_found(d, TD_FOUND_MISSING, "shared memory", "no memfd: %s", strerror(errno));
		f->fatal = 1;
		td_advise(f, "daemon and workers talk through it: use a kernel from 3.17 on, and a sandbox that allows memfd_create");
	}
	if (fd >= 0)
		close(fd);
}

void td_doctor_machine(struct td_doctor *d)
{
	check_cores(d);
	check_vectors(d);
	check_memory(d);
	check_limits(d);
}

/* ---- GPU --------------------------------------------------------------------------------------------------------------------------- */

/* Device nodes /dev/nvidia0 and so on: how many there are, and how many of them this user may open. */
static void count_nodes(int *there, int *usable)
{
	DIR *dir = opendir("/dev");
	struct dirent *e;
	char path[300];

	*there = *usable = 0;
	while (dir && (e = readdir(dir))) {
		if (strncmp(e->d_name, "nvidia", 6) || !e->d_name[6] || strspn(e->d_name + 6, "0123456789") != strlen(e->d_name + 6))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", e->d_name);
		++*there;
		*usable += access(path, R_OK | W_OK) == 0;
	}
	if (dir)
		closedir(dir);
}

static void check_nodes(struct td_doctor *d)
{
	static const char *const shared[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
	int there, usable;
	size_t i;

	count_nodes(&there, &usable);
	d->gpu = usable > 0;
	if (!there) {
		td_advise(td_found(d, TD_FOUND_WARN, "GPU", "no NVIDIA device node (/dev/nvidia0)"),
			  "tandem runs on the CPU; in a container, pass the GPU in (--gpus all, or the device nodes)");
		return;
	}
	if (usable == there)
		td_found(d, TD_FOUND_OK, "GPU", "%d NVIDIA device%s", there, there == 1 ? "" : "s");
	else
		td_advise(td_found(d, TD_FOUND_WARN, "GPU", "%d of %d NVIDIA devices may be opened by this user", usable, there),
			  "add the user to the group that owns /dev/nvidia*, or fix their permissions");
	for (i = 0; i < sizeof(shared) / sizeof(shared[0]); i++) {
		if (access(shared[i], R_OK | W_OK) == 0)
			continue;
		d->gpu = 0;
		td_advise(td_found(d, TD_FOUND_MISSING, "GPU", "%s: %s", shared[i], strerror(errno)),
			  "CUDA needs it: load the module (nvidia-modprobe -u -c 0) or fix its permissions");
	}
}

static void check_driver(struct td_doctor *d)
{
	char line[300], *version;
	void *lib;

	first_line("/proc/driver/nvidia/version", line, sizeof(line));
	version = strstr(line, "Module  ");
	if (*line) {
		td_found(d, TD_FOUND_OK, "driver", "NVIDIA kernel module %.*s", version ? (int)strcspn(version + 8, " ") : (int)sizeof(line),
			 version ? version + 8 : line);
	} else {
		td_advise(td_found(d, TD_FOUND_WARN, "driver", "no NVIDIA kernel module is loaded"), "nothing to do for the CPU; for a GPU install its driver");
		d->gpu = 0;
	}
	lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
	if (lib) {
		td_found(d, TD_FOUND_OK, "driver", "libcuda.so.1 is there");
	} else {
		td_advise(td_found(d, d->gpu ? TD_FOUND_MISSING : TD_FOUND_WARN, "driver", "no libcuda.so.1"),
			  d->gpu ? "install the driver's user library (Debian: libcuda1)" : "only needed with a GPU");
		d->gpu = 0;
	}
	if (lib)
		dlclose(lib);
}

/* Where the daemon and the workers look for it, in their order; 0 when it is in none of these places. */
static int find_module(char *path, size_t size)
{
	static const char *const place[] = {"%s/../lib/tandem-cuda.so", "%s/../lib/tandem/tandem-cuda.so"};
	const char *set = getenv("TANDEM_CUDA_MODULE");
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;
	int i;

	if (set && *set) {
		snprintf(path, size, "%s", set);
		return access(path, R_OK) == 0;
	}
	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	for (i = 0; i < 2; i++) {
		snprintf(path, size, place[i], self);
		if (access(path, R_OK) == 0)
			return 1;
	}
	return 0;
}

static void check_module(struct td_doctor *d)
{
	char path[4200];

	if (find_module(path, sizeof(path))) {
		td_found(d, TD_FOUND_OK, "CUDA module", "%s", path);
		return;
	}
	td_advise(td_found(d, d->gpu ? TD_FOUND_MISSING : TD_FOUND_WARN, "CUDA module", "no tandem-cuda.so"),
		  d->gpu ? "build with nvcc on the PATH (make), or name the file with TANDEM_CUDA_MODULE" : "only needed with a GPU");
	d->gpu = 0;
}

static void check_mps(struct td_doctor *d)
{
	char path[4200];

	if (td_doctor_program("nvidia-cuda-mps-control", path, sizeof(path)) == 0)
		td_found(d, TD_FOUND_OK, "MPS", "%s", path);
	else
		td_advise(td_found(d, TD_FOUND_WARN, "MPS", "no nvidia-cuda-mps-control"),
			  d->gpu ? "the workers will take turns on the GPU, some 0.1 ms a hand-over: install it (part of the driver's utilities)" :
				   "only needed with a GPU");
}

void td_doctor_gpu(struct td_doctor *d)
{
	check_nodes(d);
	check_driver(d);
	check_module(d);
	check_mps(d);
}
