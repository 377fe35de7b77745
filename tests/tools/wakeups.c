/*
 * wakeups.c: a yardstick for what a daemon costs. Prints the CPU time, in nanoseconds a round, that a loop needs which does with the kernel what
 * tandemd does for a commit record, and nothing else: sleep in epoll, be woken through an eventfd, read it, write a small message to a Unix socket.
 *
 *     wakeups ROUNDS PAUSE_US
 *
 * Two children play the worker (rings every PAUSE_US) and the client (reads what comes). On a machine that is slow or busy the loop is dearer in the
 * same measure as the daemon, so a test compares the two and no absolute time.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 64 };

static double cpu_ns(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return 1e9 * (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) + 1e3 * (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec);
}

static void ring(int bell, long rounds, long pause_us)
{
	struct timespec pause = {.tv_sec = pause_us / 1000000, .tv_nsec = pause_us % 1000000 * 1000};
	uint64_t one = 1;

	while (rounds-- > 0) {
		nanosleep(&pause, NULL);
		if (write(bell, &one, sizeof(one)) != sizeof(one))
			_exit(1);
	}
	_exit(0);
}

static void swallow(int fd)
{
	char buf[4096];

	while (read(fd, buf, sizeof(buf)) > 0)
		;
	_exit(0);
}

int main(int argc, char **argv)
{
	long rounds = argc > 2 ? atol(argv[1]) : 0, done = 0;
	int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), poll = epoll_create1(EPOLL_CLOEXEC), pair[2];
	struct epoll_event event = {.events = EPOLLIN};
	char message[MESSAGE] = "";
	uint64_t rang;
	double before;

	if (rounds <= 0 || bell < 0 || poll < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || epoll_ctl(poll, EPOLL_CTL_ADD, bell, &event)) {
		fprintf(stderr, "usage: wakeups ROUNDS PAUSE_US\n");
		return 2;
	}
	if (fork() == 0) {
		close(pair[0]);
		swallow(pair[1]);
	}
	close(pair[1]);
	if (fork() == 0)
		ring(bell, rounds, atol(argv[2]));
	before = cpu_ns();
	while (done < rounds) {
		if (epoll_wait(poll, &event, 1, 10000) < 1 || read(bell, &rang, sizeof(rang)) != sizeof(rang))
			return 1;
		for (done += (long)rang; rang > 0; rang--) /* as many messages as rings, also when the loop comes late */
			if (write(pair[0], message, sizeof(message)) != sizeof(message))
				return 1;
	}
	printf("%.0f\n", (cpu_ns() - before) / (double)rounds);
	close(pair[0]);
	while (wait(NULL) > 0)
		;
	return 0;
}
