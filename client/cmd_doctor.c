/*
 * cmd_doctor.c: `tandem doctor`: what this machine has and lacks for tandem, a line each, with what to do.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/doctor.h"
#include "engine/shm.h"

static const char usage[] = "tandem doctor [options]";
static const char about[] =
	"Looks at this machine: processors, memory, the GPU and its driver, tandem's programs, model folders, the daemon's socket. Each line is ok, warn\n"
	"(works, but) or missing, with what to do about it. Nothing is changed.\n\n"
	"Exit codes: 0 tandem can run here; 1 it can't; 2 wrong usage.";

static const char *const level_name[] = {"ok", "warn", "missing"};

struct td_finding *td_found(struct td_doctor *d, enum td_finding_level level, const char *name, const char *fmt, ...)
{
	struct td_finding *f = &d->finding[d->n < TD_FINDINGS_MAX ? d->n++ : TD_FINDINGS_MAX - 1];
	va_list ap;

	*f = (struct td_finding){.level = level, .name = name};
	va_start(ap, fmt);
	vsnprintf(f->text, sizeof(f->text), fmt, ap);
	va_end(ap);
	return f;
}

void td_advise(struct td_finding *f, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(f->advice, sizeof(f->advice), fmt, ap);
	va_end(ap);
}

static int fatal(const struct td_doctor *d)
{
	int i, n = 0;

	for (i = 0; i < d->n; i++)
		n += d->finding[i].fatal;
	return n;
}

static void print_text(const struct td_doctor *d)
{
	static const char *const colour[] = {"\033[32m", "\033[33m", "\033[31m"};
	int terminal = isatty(STDOUT_FILENO), n = fatal(d), i;

	for (i = 0; i < d->n; i++) {
		const struct td_finding *f = d->finding + i;

		printf("%s%-7s%s  %-14s  %s\n", terminal ? colour[f->level] : "", level_name[f->level], terminal ? "\033[0m" : "", f->name, f->text);
		if (f->advice[0])
			printf("%25s> %s\n", "", f->advice);
	}
	if (n)
		printf("\ntandem can't run here: %d thing%s missing.\n", n, n == 1 ? " is" : "s are");
	else
		printf("\ntandem can run here, on the %s.\n", d->gpu ? "GPU" : "CPU");
}

static void print_json(const struct td_doctor *d)
{
	json_t *list = json_array(), *one;
	int i;

	for (i = 0; i < d->n; i++) {
		const struct td_finding *f = d->finding + i;

		one = json_pack("{s:s, s:s, s:s, s:b}", "level", level_name[f->level], "name", f->name, "text", f->text, "fatal", f->fatal);
		if (f->advice[0])
			json_object_set_new(one, "advice", json_string(f->advice));
		json_array_append_new(list, one);
	}
	td_json_print(json_pack("{s:b, s:s, s:o}", "can_run", !fatal(d), "device", d->gpu ? "cuda" : "cpu", "findings", list), JSON_INDENT(2));
}

int td_cmd_doctor(int argc, char **argv)
{
	struct td_doctor *d = calloc(1, sizeof(*d));
	const char *model = NULL, *drafter = NULL, *socket = NULL;
	int32_t slots = 4, context = 0;
	int json = 0, code = TD_EXIT_USAGE;
	const struct td_option own[] = {
		{TD_OPT_TITLE, .help = "Options:"},
		{TD_OPT_TEXT, "model", 'm', "DIR", "look at this model's folder too", &model, 0, NULL, 0},
		{TD_OPT_TEXT, "drafter", 'd', "DIR", "and at this drafter's, and whether it fits", &drafter, 0, NULL, 0},
		{TD_OPT_INT, "slots", 0, "N", "plan memory for so many requests at once (4)", &slots, 0, NULL, 0},
		{TD_OPT_INT, "context", 0, "N", "of so many tokens each (the model's, at most 4096)", &context, 0, NULL, 0},
		{TD_OPT_TEXT, "socket", 0, "PATH", "the daemon's socket (see tandem run --help)", &socket, 0, NULL, 0},
		{TD_OPT_FLAG, "json", 0, NULL, "one JSON object", &json, 1, NULL, 0},
		{TD_OPT_END},
	};
	const struct td_option *tables[] = {own, NULL};
	struct td_list words = {0};

	if (!d) {
		fprintf(stderr, "tandem doctor: no memory\n");
		return TD_EXIT_FAILED;
	}
	if (td_options_parse(argc, argv, usage, about, tables, &words, &code))
		goto out;
	code = TD_EXIT_USAGE;
	if (words.n || (drafter && !model)) {
		fprintf(stderr, "tandem doctor: it takes options only, and --drafter goes with --model (see tandem doctor --help)\n");
		goto out;
	}
	if (slots < 1 || slots > TD_SLOTS_MAX || context < 0 || context > 1 << 22 || context % TD_PAGE) {
		fprintf(stderr, "tandem doctor: --slots is 1 to %d, --context a multiple of %d\n", TD_SLOTS_MAX, TD_PAGE);
		goto out;
	}
	d->slots = slots;
	d->context = context;
	d->model = model;
	d->drafter = drafter;
	d->socket = socket;
	td_doctor_machine(d);
	td_doctor_gpu(d);
	td_doctor_programs(d);
	td_doctor_model(d);
	td_doctor_socket(d);
	if (json)
		print_json(d);
	else
		print_text(d);
	code = fatal(d) ? TD_EXIT_FAILED : TD_EXIT_OK;
	if (td_flush_stdout("doctor"))
		code = TD_EXIT_FAILED;
out:
	free(d);
	td_list_finish(&words);
	return code;
}
