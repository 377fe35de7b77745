/*
 * test_fault.c: levers fire once, at their visit; misspelt ones are refused; a spot crashes or hangs its own process only.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/fault.h"
#include "kernels/kernels.h"

/* Wait status of a child that arms `spec` and runs through `spot`; SIGALRM means that it hung. */
static int child(const char *spec, const char *spot, int visits)
{
	struct rlimit no_core = {0, 0};
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &no_core);
		signal(SIGABRT, SIG_DFL);
		alarm(3);
		td_fault_arm(spec);
		for (int i = 0; i < visits; i++)
			td_fault_spot(spot);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void once_at_the_visit(void **state)
{
	(void)state;
	td_fault_arm("target.exit:3,log.full");
	assert_int_equal(td_fault("log.full"), 1);
	assert_int_equal(td_fault("log.full"), 0);
	assert_int_equal(td_fault("target.exit"), 0);
	assert_int_equal(td_fault("target.exit"), 0);
	assert_int_equal(td_fault("target.exit"), 1);
	for (int i = 0; i < 10; i++)
		assert_int_equal(td_fault("target.exit"), 0);
	assert_int_equal(td_fault("daemon.accept.emfile"), 0);
	td_fault_arm("target.exit");
	td_fault_arm("");
	assert_int_equal(td_fault("target.exit"), 0);
	assert_int_equal(td_fault("nothing is armed, so no name is looked up"), 0);
}

static void state_is_not_used_up(void **state)
{
	(void)state;
	td_fault_arm("target.exit,target.assume");
	for (int i = 0; i < 3; i++)
		assert_int_equal(td_fault_set("target.assume"), 1);
	assert_int_equal(td_fault("target.exit"), 1);
	assert_int_equal(td_fault_set("target.assume"), 1);
	td_fault_arm("log.full");
	assert_int_equal(td_fault_set("target.assume"), 0);
	td_fault_arm(NULL);
	assert_int_equal(td_fault_set("target.assume"), 0);
}

static void spots(void **state)
{
	(void)state;
	assert_int_equal(child(NULL, "target.step", 5), 0);
	assert_int_equal(child("drafter.step.crash", "target.step", 5), 0);
	assert_int_equal(child("target.step.crash", "target.step", 1), -SIGABRT);
	assert_int_equal(child("target.step.crash:6", "target.step", 5), 0);
	assert_int_equal(child("target.step.crash:5", "target.step", 5), -SIGABRT);
	assert_int_equal(child("target.commit.hang", "target.commit", 1), -SIGALRM);
}

static void misspelt(void **state)
{
	(void)state;
	assert_int_equal(child("target.stepp.crash", "target.step", 0), -SIGABRT);
	assert_int_equal(child("log.full:0", "target.step", 0), -SIGABRT);
	assert_int_equal(child("log.full:", "target.step", 0), -SIGABRT);
	assert_int_equal(child("log.full:2x", "target.step", 0), -SIGABRT);
	assert_int_equal(child("log.full,,", "target.step", 0), -SIGABRT);
	assert_int_equal(child("log.full", "target.stepp", 1), -SIGABRT);
}

static int gpu_faults;

static void gpu_fault(struct td_dev *dev)
{
	assert_null(dev);
	gpu_faults++;
}

static void of_the_device(void **state)
{
	static const struct td_ops can = {.name = "pretence", .fault = gpu_fault};
	int status;
	pid_t pid;

	(void)state;
	td_fault_arm("drafter.gpu.fault:2");
	for (int i = 0; i < 4; i++) {
		td_fault_gpu("target.gpu.fault", &can, NULL);
		td_fault_gpu("drafter.gpu.fault", &can, NULL);
		assert_int_equal(gpu_faults, i > 0);
	}
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) { /* a backend that can't must not let the test pass */
		static const struct td_ops cannot = {.name = "pretence"};
		struct rlimit no_core = {0, 0};

		setrlimit(RLIMIT_CORE, &no_core);
		signal(SIGABRT, SIG_DFL);
		td_fault_arm("target.gpu.fault");
		td_fault_gpu("target.gpu.fault", &cannot, NULL);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(once_at_the_visit), cmocka_unit_test(state_is_not_used_up), cmocka_unit_test(spots), cmocka_unit_test(misspelt),
					    cmocka_unit_test(of_the_device)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
