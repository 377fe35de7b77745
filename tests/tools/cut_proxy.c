/*
 * cut_proxy.c: stands between a client and tandemd and cuts connections, so that resuming is tried with the real ends.
 *
 *     cut_proxy LISTEN TARGET BYTES COUNT
 *
 * Passes bytes both ways, one connection at a time. Each of the first COUNT connections is cut after BYTES bytes from TARGET (in the middle of a frame as
 * well as between two); later ones are left alone. Prints "cut" for each. Ends with the process that started it.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int open_socket(const char *path, int listening)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	if (listening ? bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 8) : connect(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		perror(path);
		exit(1);
	}
	return fd;
}

static int pass_on(int to, const char *data, ssize_t n)
{
	ssize_t sent;

	for (; n > 0; data += sent, n -= sent)
		if ((sent = send(to, data, (size_t)n, MSG_NOSIGNAL)) <= 0)
			return -1;
	return 0;
}

/* Until either end closes, or `limit` bytes (0 = any) have come from the daemon: 1. */
static int relay(int client, int daemon, long limit)
{
	struct pollfd p[2] = {{.fd = client, .events = POLLIN}, {.fd = daemon, .events = POLLIN}};
	char buf[4096];
	long passed = 0;
	ssize_t n;

	for (;;) {
		poll(p, 2, -1);
		if (p[0].revents && ((n = read(client, buf, sizeof(buf))) <= 0 || pass_on(daemon, buf, n)))
			return 0;
		if (!p[1].revents)
			continue;
		n = read(daemon, buf, limit && limit - passed < (long)sizeof(buf) ? (size_t)(limit - passed) : sizeof(buf));
		if (n <= 0 || pass_on(client, buf, n))
			return 0;
		passed += n;
		if (limit && passed >= limit)
			return 1;
	}
}

int main(int argc, char **argv)
{
	int listener, left;
	long bytes;

	if (argc != 5) {
		fprintf(stderr, "usage: cut_proxy LISTEN TARGET BYTES COUNT\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	bytes = atol(argv[3]);
	left = atoi(argv[4]);
	listener = open_socket(argv[1], 1);
	for (;;) {
		int client = accept(listener, NULL, NULL), daemon;

		if (client < 0)
			return 1;
		daemon = open_socket(argv[2], 0);
		if (relay(client, daemon, left > 0 ? bytes : 0)) {
			left--;
			puts("cut");
			fflush(stdout);
		}
		close(client);
		close(daemon);
	}
}
