/*
 * device.c: GPU or CPU.
 *
 * Settled once, here, before a worker runs, because the exchange region lies in the shared memory on the CPU and on the device with a GPU: the workers
 * are told a plain word. What looks like a GPU may still not work (driver too old, no device): the target's start shows that. With engine.device = auto
 * and nothing served yet everything that depended on the choice is made anew for the CPU; with cuda it is an error that stays.
 * What must never happen: a change of the shared memory while a worker lives.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/fault.h"
#include "engine/log.h"

static int node_usable(void)
{
	char path[32];

	for (int i = 0; i < 64; i++) { /* in a container the only one may be any */
		snprintf(path, sizeof(path), "/dev/nvidia%d", i);
		if (access(path, R_OK | W_OK) == 0)
			return 1;
	}
	return 0;
}

/* Where the workers look for it. */
static int module_found(void)
{
	static const char *const place[] = {"tandem-cuda.so", "../lib/tandem-cuda.so", "../lib/tandem/tandem-cuda.so"};
	const char *set = getenv("TANDEM_CUDA_MODULE");
	int found = 0;

	if (set && *set)
		return access(set, R_OK) == 0;
	for (size_t i = 0; i < sizeof(place) / sizeof(*place) && !found; i++) {
		char *path = td_model_beside(place[i]);

		found = path && access(path, R_OK) == 0;
		free(path);
	}
	return found;
}

const char *td_device_choose(const char *wanted)
{
	if (strcmp(wanted, "auto"))
		return !strcmp(wanted, "cuda") ? "cuda" : "cpu";
	return td_fault("daemon.device.gpu") || (node_usable() && module_found()) ? "cuda" : "cpu";
}

/* ---- errors ------------------------------------------------------------------------------------------------------------------------ */

void td_device_advise(const struct td_daemon *d, char *text, size_t size)
{
	static const char update[] = "update the NVIDIA driver, or set engine.device = cpu";
	static const char memory[] = "other programs may hold the GPU's memory (nvidia-smi lists them): end them, or lower engine.slots, engine.context or "
				     "engine.kv_tokens";
	static const struct {
		const char *sign, *time_slices, *mps; /* what the runtime says; what to do, without MPS and with it */
	} table[] = {
		{"busy or unavailable", "another process holds the GPU and its compute mode is exclusive: set engine.mps = on, or the mode to default (nvidia-smi -c DEFAULT)",
		 "another program holds the GPU and its compute mode is exclusive: end that one, or set the mode to default (nvidia-smi -c DEFAULT)"},
		{"MPS", "its environment names an MPS daemon that does not answer: unset CUDA_MPS_PIPE_DIRECTORY, or set engine.mps = on",
		 "engine.mps = off does without MPS"},
		/* The driver is older than the toolkit: told by the runtime, by its compiler, by the loader of the module, or by the driver itself. */
		{"driver version is insufficient", update, NULL},
		{"unsupported toolchain", update, NULL},
		{"undefined symbol: cu", update, NULL},
		{"forward compatibility", update, NULL},
		{"display driver / cuda driver", "the parts of the NVIDIA driver are of two versions, as after an update: restart the machine or load the module again, or set "
		 "engine.device = cpu", NULL},
		{"no kernel image", "this build has no code for this GPU: build it with the GPU's architecture in CUDA_ARCHS, or set engine.device = cpu", NULL},
		{"not yet initialized", "the GPUs' fabric is not up: start nvidia-fabricmanager, or set engine.device = cpu", NULL},
		{"of memory", memory, NULL},
		{"can't be had", memory, NULL},
		{"GiB are free", "nvidia-smi lists the programs that hold the rest", NULL},
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		size_t n = strlen(text);

		if (!strstr(text, table[i].sign))
			continue;
		snprintf(text + n, size - n, "; %s", td_mps_used(d) && table[i].mps ? table[i].mps : table[i].time_slices);
		return;
	}
}

/* ---- the way back ------------------------------------------------------------------------------------------------------------------ */

int td_device_fall_back(struct td_daemon *d, const char *why)
{
	struct td_shm_config cfg = d->model.shm;
	struct td_shm *shm;
	struct td_error err;
	char how[sizeof(d->mps.how)];
	int fd;

	if (d->target.life || d->drafter.life)
		return 0;
	cfg.host_exchange = 1;
	if (td_shm_create(&cfg, &fd, &shm, &err)) {
		td_log(TD_LOG_ERROR, "the CPU cannot be used instead of the GPU: %s", err.text);
		return 0;
	}
	td_shm_unmap(d->shm);
	close(d->shm_fd);
	d->shm = shm;
	d->shm_fd = fd;
	d->model.shm = cfg;
	d->model.device = "cpu";
	atomic_store(&shm->epoch, d->epoch);
	td_supervisor_forget_arenas(d);
	snprintf(how, sizeof(how), "host memory: the GPU cannot be used: %.400s", why);
	td_mps_off(d, how);
	td_log(TD_LOG_WARN, "the GPU cannot be used (%s): going on with the CPU", why);
	if (td_model_plan_memory(&d->cfg, &d->model, &err))
		td_log(TD_LOG_WARN, "memory can't be planned: %s", err.text);
	td_model_tell_memory(&d->model);
	return 1;
}
