/*
 * ops.c: which backend: the CPU's, which is linked in, or the CUDA module, which is opened only where a driver and a device are there.
 *
 * The driver is asked through its own library, opened by name, so that no binary of ours needs it: a machine without NVIDIA runs the same files.
 * The module is looked for in TANDEM_CUDA_MODULE (then nowhere else), beside the executable (workers and module are installed in one folder), and
 * in ../lib (build tree, bundle): by relation, never at a path that was fixed when building, so that a tree can be moved. Once opened it stays
 * for the life of the process: its code may be on other threads' stacks.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"

/* 0 when at least one CUDA device can be used; otherwise what is missing. */
static int cuda_device_check(struct td_error *err)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(unsigned), (*count)(int *), (*say)(int, const char **);
	const char *text = NULL;
	int rc, n = 0;

	if (!driver)
		return td_error_set(err, TD_E_DEVICE, "no NVIDIA driver: libcuda.so.1 was not found; install the driver or use the CPU backend");
	*(void **)&init = dlsym(driver, "cuInit");
	*(void **)&count = dlsym(driver, "cuDeviceGetCount");
	*(void **)&say = dlsym(driver, "cuGetErrorString");
	if (!init || !count)
		return td_error_set(err, TD_E_DEVICE, "libcuda.so.1 is not an NVIDIA driver library; reinstall the driver or use the CPU backend");
	rc = init(0);
	if (!rc)
		rc = count(&n);
	if (rc == 100 /* CUDA_ERROR_NO_DEVICE */ || (!rc && !n))
		return td_error_set(err, TD_E_DEVICE, "the NVIDIA driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU backend");
	if (rc) {
		if (!say || say(rc, &text) || !text)
			text = "it does not say why";
		return td_error_set(err, TD_E_DEVICE, "the NVIDIA driver does not start: %s (code %d); check nvidia-smi, or use the CPU backend", text, rc);
	}
	return 0;
}

/* Where the module may lie: the i-th place, or 0 when there are no more. */
static int module_place(int i, char *path, size_t size)
{
	const char *set = getenv("TANDEM_CUDA_MODULE");
	char exe[2048];
	ssize_t n;
	char *slash;

	if (set && *set) {
		snprintf(path, size, "%s", set);
		return i == 0;
	}
	n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = 0;
	slash = strrchr(exe, '/');
	if (slash)
		*slash = 0;
	snprintf(path, size, i == 0 ? "%s/tandem-cuda.so" : "%s/../lib/tandem-cuda.so", exe);
	return i <= 1;
}

static const struct td_ops *cuda_find(struct td_error *err)
{
	char path[2200], looked[5000] = "";
	const struct td_ops *ops;
	void *module;

	if (cuda_device_check(err))
		return NULL;
	for (int i = 0; module_place(i, path, sizeof(path)); i++) {
		size_t used = strlen(looked);

		if (access(path, F_OK)) {
			snprintf(looked + used, sizeof(looked) - used, "%s%s", used ? ", " : "", path);
			continue;
		}
		module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!module) {
			td_error_set(err, TD_E_DEVICE, "the CUDA module can't be opened: %s", dlerror());
			return NULL;
		}
		ops = dlsym(module, "td_cuda_ops");
		if (!ops) {
			td_error_set(err, TD_E_DEVICE, "%s is not a CUDA module of tandem: it has no td_cuda_ops", path);
			dlclose(module);
		}
		return ops;
	}
	td_error_set(err, TD_E_NOT_FOUND, "the CUDA module was not found (%.300s): build it with nvcc, or set TANDEM_CUDA_MODULE to its path", looked);
	return NULL;
}

const struct td_ops *td_ops_find(const char *name, struct td_error *err)
{
	const struct td_ops *ops;

	if (!strcmp(name, "cpu"))
		return &td_cpu_ops;
	if (strcmp(name, "cuda") && strcmp(name, "auto")) {
		td_error_set(err, TD_E_INVALID, "unknown backend \"%.40s\": use cpu, cuda or auto", name);
		return NULL;
	}
	ops = cuda_find(err);
	if (ops || !strcmp(name, "cuda"))
		return ops;
	if (err)
		*err = (struct td_error){ 0 };
	return &td_cpu_ops;
}
