/*
 * test_d_device.c: GPU or CPU by setting, lever and what is there; what a person is told to do about an error of the CUDA runtime.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "engine/fault.h"

static void choice(void **state)
{
	(void)state;
	assert_string_equal(td_device_choose("cpu"), "cpu");
	assert_string_equal(td_device_choose("cuda"), "cuda");
	setenv("TANDEM_CUDA_MODULE", "/nowhere/tandem-cuda.so", 1); /* without the module a device is no use */
	assert_string_equal(td_device_choose("auto"), "cpu");
	td_fault_arm("daemon.device.gpu");
	assert_string_equal(td_device_choose("auto"), "cuda");
	assert_string_equal(td_device_choose("auto"), "cpu");
}

static const char *advise(enum td_mps_state mps, const char *text, size_t size)
{
	static struct td_daemon d;
	static char line[400];

	d.mps.state = mps;
	snprintf(line, sizeof(line), "%s", text);
	td_device_advise(&d, line, size);
	return line;
}

static void advice(void **state)
{
	static const char busy[] = "GPU 0: context: CUDA-capable device(s) is/are busy or unavailable";

	(void)state;
	assert_non_null(strstr(advise(TD_MPS_OFF, busy, 400), "unavailable; another process holds the GPU and its compute mode is exclusive: set engine.mps = on"));
	assert_non_null(strstr(advise(TD_MPS_UP, busy, 400), "unavailable; another program holds the GPU"));
	assert_null(strstr(advise(TD_MPS_UP, busy, 400), "engine.mps = on"));
	assert_non_null(strstr(advise(TD_MPS_UP, "MPS client failed to connect to the MPS control daemon", 400), "daemon; engine.mps = off"));
	assert_non_null(strstr(advise(TD_MPS_OFF, "CUDA driver version is insufficient for CUDA runtime version", 400), "version; update the NVIDIA driver"));
	assert_non_null(strstr(advise(TD_MPS_UP, "the provided PTX was compiled with an unsupported toolchain.", 400), "; update the NVIDIA driver"));
	assert_non_null(strstr(advise(TD_MPS_UP, "the CUDA module can't be opened: tandem-cuda.so: undefined symbol: cuStreamWaitValue64_v2", 400), "; update the NVIDIA"));
	assert_non_null(strstr(advise(TD_MPS_OFF, "the NVIDIA driver does not start: system has unsupported display driver / cuda driver combination (code 803)", 400),
			       "two versions, as after an update"));
	assert_non_null(strstr(advise(TD_MPS_OFF, "no kernel image is available for execution on the device", 400), "in CUDA_ARCHS"));
	assert_non_null(strstr(advise(TD_MPS_OFF, "GPU 0: arrival counters: out of memory", 400), "memory; other programs may hold the GPU's memory (nvidia-smi"));
	assert_non_null(strstr(advise(TD_MPS_UP, "GPU 0: 2048 MiB can't be had (311 of 22731 MiB are free): out of memory", 400), "; other programs may hold"));
	assert_non_null(strstr(advise(TD_MPS_UP, "target: needs 9.00 GiB on the device, but 1.00 of its 22.00 GiB are free: lower engine.slots", 400), "; nvidia-smi lists"));
	assert_string_equal(advise(TD_MPS_UP, "an illegal memory access was encountered", 400), "an illegal memory access was encountered");
	assert_string_equal(advise(TD_MPS_OFF, busy, sizeof(busy) + 3), "GPU 0: context: CUDA-capable device(s) is/are busy or unavailable; a"); /* cut, not over */
}

static void sharing(void **state)
{
	static struct td_daemon d;
	char text[100];

	(void)state;
	td_mps_sharing(&d, text, sizeof(text));
	assert_string_equal(text, "MPS, not up");
	d.mps.state = TD_MPS_UP;
	td_mps_sharing(&d, text, sizeof(text));
	assert_string_equal(text, "MPS");
	d.mps.state = TD_MPS_OFF;
	strcpy(d.mps.how, "time slices: engine.mps = off");
	td_mps_sharing(&d, text, sizeof(text));
	assert_string_equal(text, "time slices: engine.mps = off");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(choice), cmocka_unit_test(advice), cmocka_unit_test(sharing)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
