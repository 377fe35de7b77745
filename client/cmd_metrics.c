/*
 * cmd_metrics.c: `tandem metrics`: the daemon's figures in Prometheus' text format, for those who collect them without HTTP.
 */
#include <stdlib.h>

#include "client/command.h"

static const char usage[] = "tandem metrics [options]";
static const char about[] =
	"Writes the daemon's figures in Prometheus' text format, the same as GET /metrics gives; docs/metrics.md tells what each means.\n"
	"For a textfile collector: tandem metrics >tandem.prom.new && mv tandem.prom.new tandem.prom\n\n"
	"Exit codes: 0 done; 1 failed; 2 wrong usage; 3 no daemon.";

int td_cmd_metrics(int argc, char **argv)
{
	struct td_common c = {0};
	struct td_option common[TD_COMMON_OPTIONS];
	const struct td_option *tables[] = {common, NULL};
	struct td_list words = {0};
	struct tandem_error err;
	struct tandem *t = NULL;
	char *text = NULL;
	int code;

	td_common_options(&c, common);
	if (td_options_parse(argc, argv, usage, about, tables, &words, &code))
		goto out;
	code = TD_EXIT_USAGE;
	if (words.n) {
		fprintf(stderr, "tandem metrics: '%s' is not an option (see tandem metrics --help)\n", words.item[0]);
		goto out;
	}
	t = td_common_connect(&c, "metrics", &code);
	if (!t)
		goto out;
	text = tandem_metrics(t, &err);
	if (text) {
		fputs(text, stdout);
		code = td_flush_stdout("metrics") ? TD_EXIT_FAILED : TD_EXIT_OK;
	} else {
		code = td_say_error("metrics", &err);
	}
out:
	free(text);
	tandem_close(t);
	td_list_finish(&words);
	return code;
}
