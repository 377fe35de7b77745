/*
 * cmd_run.c: `tandem run`: one prompt, its answer on stdout as it comes.
 *
 * Three ways out: text (streamed), --json (one object at the end), --stream-json (one object a line per event). In the JSON forms errors are objects
 * too, so that a reader of stdout never has to look at stderr.
 */
#include <stdlib.h>
#include <string.h>

#include "client/command.h"

static const char usage[] = "tandem run [options] [PROMPT...]";
static const char about[] =
	"Sends one prompt and writes the answer to stdout as it comes. The words of PROMPT are joined by spaces; a word \"-\", or no PROMPT at all,\n"
	"stands for the text on stdin. Ctrl-C stops the answer.\n\n"
	"Exit codes: 0 answered; 1 the request failed; 2 wrong usage; 3 no daemon, or it went away; 4 not now (loading, queue full, deadline): try\n"
	"again later; 130 stopped by Ctrl-C.";

struct run {
	struct td_common common;
	struct td_generation gen;
	const char *system_option;
	char *system;
	int raw, json, stream_json, stats, json_object;
	const char *schema_option;
	char *schema; /* what the answer must fit */
	/* the answer so far */
	char last; /* of the text on stdout */
	int finished;
	json_t *ids, *logprobs;
	struct td_text text; /* for --json */
	struct tandem_accepted accepted;
	struct tandem_finish finish;
	char stop[260]; /* finish.stop outlives its callback here */
};

static void event(json_t *j)
{
	td_json_print(j, JSON_COMPACT);
	fflush(stdout);
}

static void on_accepted(void *ctx, const struct tandem_accepted *a)
{
	struct run *r = ctx;

	r->accepted = *a;
	if (r->stream_json)
		event(json_pack("{s:s, s:I, s:i, s:i}", "event", "accepted", "request", (json_int_t)a->request, "prompt_tokens", (int)a->prompt_tokens,
				"queue_position", (int)a->queue_position));
}

static int on_delta(void *ctx, const struct tandem_delta *d)
{
	struct run *r = ctx;
	json_t *j;

	if (r->stream_json) {
		j = json_pack("{s:s, s:i, s:s, s:o}", "event", "delta", "position", (int)d->position, "text", d->text, "ids", td_json_ids(d->id, d->n_ids));
		if (d->logprob)
			json_object_set_new(j, "logprobs", td_json_logprobs(d));
		event(j);
	} else if (r->json) {
		json_t *more = td_json_ids(d->id, d->n_ids);

		json_array_extend(r->ids, more);
		json_decref(more);
		if (d->logprob) {
			more = td_json_logprobs(d);
			json_array_extend(r->logprobs, more);
			json_decref(more);
		}
		return td_text_add(&r->text, d->text);
	} else if (*d->text) {
		fputs(d->text, stdout);
		r->last = d->text[strlen(d->text) - 1];
		fflush(stdout);
	}
	return ferror(stdout);
}

static void on_finish(void *ctx, const struct tandem_finish *f)
{
	struct run *r = ctx;

	r->finish = *f;
	if (f->stop) {
		snprintf(r->stop, sizeof(r->stop), "%s", f->stop);
		r->finish.stop = r->stop;
	}
	r->finished = 1;
}

/* The last words on stdout, after the answer or the error. */
static void conclude(struct run *r, const struct tandem_error *err)
{
	json_t *j;

	if (r->stream_json) {
		j = r->finished ? td_json_finish(&r->finish) : td_json_error(err);
		json_object_set_new(j, "event", json_string(r->finished ? "finish" : "error"));
		event(j);
	} else if (r->json && r->finished) {
		j = json_pack("{s:s, s:O, s:I}", "text", r->text.data ? r->text.data : "", "ids", r->ids, "request", (json_int_t)r->accepted.request);
		json_object_update_missing_new(j, td_json_finish(&r->finish));
		if (json_array_size(r->logprobs))
			json_object_set(j, "logprobs", r->logprobs);
		td_json_print(j, JSON_COMPACT);
	} else if (r->json) {
		td_json_print(json_pack("{s:o}", "error", td_json_error(err)), JSON_COMPACT);
	} else if (r->last && r->last != '\n') {
		putchar('\n');
	}
}

static int ask(struct run *r, const char *prompt)
{
	struct tandem_message message[2] = {{.role = "system", .content = r->system}, {.role = "user", .content = prompt}};
	struct tandem_request request = {.sampling = r->gen.sampling, .deadline_ms = r->gen.deadline_ms, .band = r->gen.band, .no_cache = r->gen.no_cache,
					  .json_object = r->json_object, .json_schema = r->schema};
	struct tandem_handler handler = {.ctx = r, .accepted = on_accepted, .delta = on_delta, .finish = on_finish};
	struct td_progress progress = {.command = "run", .quiet = r->gen.quiet || r->json || r->stream_json};
	struct tandem_error err = {0};
	struct tandem *t;
	int code = TD_EXIT_OK;

	if (r->raw) {
		request.prompt.text = prompt;
	} else {
		request.prompt.message = r->system ? message : message + 1;
		request.prompt.n_messages = r->system ? 2 : 1;
		request.prompt.thinking = (enum tandem_thinking)r->gen.thinking;
	}
	r->common.json = r->stream_json ? 2 : r->json;
	t = td_common_connect(&r->common, "run", &code);
	if (!t)
		return code;
	r->ids = json_array();
	r->logprobs = json_array();
	td_call_generate(&t, &request, &handler, &progress, &err);
	tandem_close(t);
	conclude(r, &err);
	if (!r->finished)
		code = td_say_error("run", &err);
	else if (r->finish.reason == TANDEM_CANCELLED)
		code = TD_EXIT_INTERRUPTED;
	else if (r->finish.reason == TANDEM_FAILED)
		code = TD_EXIT_FAILED;
	if (r->finished && r->stats)
		td_say_stats(&r->finish);
	if (td_flush_stdout("run"))
		code = TD_EXIT_FAILED;
	json_decref(r->ids);
	json_decref(r->logprobs);
	free(r->text.data);
	return code;
}

/* The schema itself, or the file that holds it. */
static char *schema_text(const char *option)
{
	char *at = NULL, *text;

	if (*option == '{')
		return td_option_text(option, "json-schema", "run");
	if (asprintf(&at, "@%s", option) < 0)
		return NULL;
	text = td_option_text(at, "json-schema", "run");
	free(at);
	return text;
}

int td_cmd_run(int argc, char **argv)
{
	struct run r = {0};
	struct td_option common[TD_COMMON_OPTIONS], gen[TD_GENERATION_OPTIONS];
	const struct td_option own[] = {
		{TD_OPT_TITLE, .help = "Prompt and form:"},
		{TD_OPT_TEXT, "system", 's', "TEXT", "a system message before the prompt; @FILE: what the file holds", &r.system_option, 0, NULL, 0},
		{TD_OPT_FLAG, "raw", 0, NULL, "the prompt as it is, without the chat template", &r.raw, 1, NULL, 0},
		{TD_OPT_FLAG, "json", 0, NULL, "one JSON object at the end: text, ids, figures, or an error", &r.json, 1, NULL, 0},
		{TD_OPT_FLAG, "json-object", 0, NULL, "the answer must be a JSON object", &r.json_object, 1, NULL, 0},
		{TD_OPT_TEXT, "json-schema", 0, "FILE", "the answer must be JSON that fits the schema in FILE, or this schema where it begins with {",
		 &r.schema_option, 0, NULL, 0},
		{TD_OPT_FLAG, "stream-json", 0, NULL, "one JSON object a line, per event", &r.stream_json, 1, NULL, 0},
		{TD_OPT_FLAG, "show-stats", 0, NULL, "at the end one line of figures on stderr", &r.stats, 1, NULL, 0},
		{TD_OPT_END},
	};
	const struct td_option *tables[] = {own, gen, common, NULL};
	struct td_list words = {0};
	char *prompt = NULL;
	int code = TD_EXIT_USAGE;

	td_common_options(&r.common, common);
	td_generation_options(&r.gen, gen);
	if (td_options_parse(argc, argv, usage, about, tables, &words, &code))
		goto out;
	if (r.raw && (r.system_option || r.gen.thinking)) {
		fprintf(stderr, "tandem run: --raw leaves the chat template out, so --system, --think and --no-think mean nothing with it\n");
		goto out;
	}
	if (r.json_object && r.schema_option) {
		fprintf(stderr, "tandem run: --json-schema says more than --json-object: give one of them\n");
		goto out;
	}
	if (td_generation_ready(&r.gen, "run"))
		goto out;
	if (r.schema_option && !(r.schema = schema_text(r.schema_option)))
		goto out;
	if (r.system_option && !(r.system = td_option_text(r.system_option, "system", "run")))
		goto out;
	prompt = td_prompt_text(&words, "run");
	if (!prompt)
		code = TD_EXIT_FAILED;
	else if (r.raw ? *prompt : prompt[strspn(prompt, " \t\r\n\v\f")])
		code = ask(&r, prompt);
	else
		fprintf(stderr, "tandem run: the prompt is empty\n");
out:
	free(r.schema);
	free(prompt);
	free(r.system);
	td_list_finish(&words);
	td_generation_finish(&r.gen);
	return code;
}
