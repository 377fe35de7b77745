/*
 * main.c: the command `tandem`: finds the sub-command and hands over.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/command.h"

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *about;
} commands[] = {
	{"run", td_cmd_run, "answer one prompt"},
	{"chat", td_cmd_chat, "a conversation"},
	{"status", td_cmd_status, "what the daemon is doing"},
	{"top", td_cmd_top, "the same, live"},
	{"metrics", td_cmd_metrics, "its figures in Prometheus' format"},
	{"tokenize", td_cmd_tokenize, "text to token ids and back"},
	{"doctor", td_cmd_doctor, "what this machine has and lacks"},
	{"bench", td_cmd_bench, "measure, and compare with and without speculation"},
};
enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void print_help(FILE *f)
{
	size_t i;

	fprintf(f, "usage: tandem COMMAND [options]\n\nTalks to tandemd, which serves a language model to the programs of this machine.\n\n");
	for (i = 0; i < N_COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].about);
	fprintf(f, "\ntandem COMMAND --help tells the options of a command; tandem --version its version.\n");
}

/* Whoever closed them for us: the connection would get the number of stdout, and the daemon the answer. What stands in their place fails as they would. */
static void take_standard_fds(void)
{
	for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
		if (fcntl(i, F_GETFD) < 0 && open("/dev/null", i == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
			exit(TD_EXIT_FAILED);
}

static int run(int argc, char **argv)
{
	static char help_option[] = "--help";
	char *help[] = {argc > 2 ? argv[2] : NULL, help_option, NULL};
	size_t i;

	if (argc < 2) {
		print_help(stderr);
		return TD_EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		printf("tandem %s (libtandem %s)\n", TD_VERSION, tandem_version());
		return TD_EXIT_OK;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || (!strcmp(argv[1], "help") && argc == 2)) {
		print_help(stdout);
		return TD_EXIT_OK;
	}
	for (i = 0; i < N_COMMANDS; i++) {
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
		if (!strcmp(argv[1], "help") && !strcmp(argv[2], commands[i].name))
			return commands[i].run(2, help);
	}
	fprintf(stderr, "tandem: there is no command '%s' (see tandem --help)\n", !strcmp(argv[1], "help") ? argv[2] : argv[1]);
	return TD_EXIT_USAGE;
}

int main(int argc, char **argv)
{
	int code;

	take_standard_fds();
	code = run(argc, argv);
	if (code == TD_EXIT_OK && (fflush(stdout) || ferror(stdout))) { /* help; commands look after their own answers */
		fprintf(stderr, "tandem: can't write the answer: %s\n", strerror(errno));
		code = TD_EXIT_FAILED;
	}
	return code;
}
