/*
 * cmd_bench.c: `tandem bench`: how fast the daemon is with speculation and without, and whether both say the same.
 */
#include <stdlib.h>
#include <string.h>

#include "client/bench_suite.h"

static const char usage[] = "tandem bench [options]\n       tandem bench SUITE... [options]\n       tandem bench --tune --model DIR [options]\n"
			    "       tandem bench --count FILE --prompts FILE... [options]";
static const char about[] =
	"Asks every prompt twice, greedily and without thinking: with speculation and without, in turn. Prints tokens per second, their ratio, the acceptance\n"
	"length, the time per cycle, and compares the answers token for token. Tokens per second count from the first token on.\n\n"
	"Per cycle: draft and verify are the workers' forwards, commit is accepting and recording, channel is what the target waited beyond the drafting\n"
	"itself, rest is what this client's clock saw beyond these (below zero when the processors are short). They come from the daemon's status, so\n"
	"nobody else should use it meanwhile; channel and rest need a single client.\n\n"
	"Prompt files are JSON arrays of strings; without one a few prompts of its own are used (shell commands, small arithmetic).\n"
	"With --model it starts a daemon of its own for the time of the bench.\n\n"
	"Suites measure the engine instead, on prompts of random ids:\n"
	"  ops      each operation at the model's shapes, next to roofs measured in the same run (--model says the shapes; no daemon)\n"
	"  cycle    where the time of a cycle goes: draft, verify, accept, hand-over, idle\n"
	"  latency  answers of 64 -> 128, 2048 -> 256 and 8192 -> 256 tokens, one at a time, with speculation and without, and what the measured cycle\n"
	"           would give at acceptance lengths of 3.3, 5 and 6 (random weights answer at these lengths); with --model also against BF16 weights\n"
	"           without speculation, in the same run\n"
	"  load     1, 2, 4, 8, 16 clients: tokens per second, time to the first token and between tokens, fairness\n\n"
	"With --tune it measures how long a cycle takes for 1 to 16 requests and 0 to 15 drafts of each, and keeps that where tandemd finds it at its next start:\n"
	"greedy requests that don't say how many drafts they want then get fewer where many share a step.\n\n"
	"With --count it asks every prompt once, as the daemon answers when nobody says how, and writes the tokens of the answers into a file, the most\n"
	"frequent first: what model.draft_vocabulary takes. Ask what will be asked, and enough of it: a token that is not listed is never drafted.\n\n"
	"Exit codes: 0 done, all answers equal; 1 answers differ, or it failed; 2 wrong usage; 3 no daemon; 4 not now; 130 stopped by Ctrl-C.";

static const char *const shell_prompts[] = {
	"How do I list the files of a directory, the largest first?",
	"How do I count the lines of all C files below this directory?",
	"Show me how to pack a directory into a compressed tar archive.",
	"How do I find out which process listens on port 8080?",
	"Give me a short guide to the grep command.",
	"How do I follow a log file while it grows?",
};
static const char *const sum_prompts[] = {
	"A box holds 12 eggs. How many eggs are in 7 boxes when 5 eggs are broken?",
	"Lena walks 3 km each day and twice as far on Sundays. How far does she walk in two weeks?",
	"A pump fills 45 litres in a minute. How long does it take to fill a tank of 720 litres?",
	"Tom had 60 coins. He gave a third to his sister and lost 4. How many are left?",
	"Five tickets cost 35 euros. What do eight tickets cost?",
	"A train leaves at 9:40 and travels for 2 hours and 35 minutes. When does it arrive?",
};

static const int32_t lossless_k[] = {1, 4, 7, 15};
enum { N_LOSSLESS = sizeof(lossless_k) / sizeof(lossless_k[0]) };

/* ---- prompt files ------------------------------------------------------------------------------------------------------------------ */

/* The strings belong to *json. */
static int load(const char *path, json_t **json, const char ***prompt, size_t *n)
{
	json_error_t e;
	size_t i;

	*json = json_load_file(path, 0, &e);
	if (!*json) {
		fprintf(stderr, "tandem bench: %s: %s (line %d)\n", path, e.text, e.line);
		return -1;
	}
	*n = json_array_size(*json);
	if (!json_is_array(*json) || !*n) {
		fprintf(stderr, "tandem bench: %s: not a JSON array of strings with at least one in it\n", path);
		return -1;
	}
	*prompt = calloc(*n, sizeof(**prompt));
	for (i = 0; *prompt && i < *n; i++) {
		(*prompt)[i] = json_string_value(json_array_get(*json, i));
		if (!(*prompt)[i]) {
			fprintf(stderr, "tandem bench: %s: entry %zu is not a string\n", path, i);
			return -1;
		}
	}
	return *prompt ? 0 : -1;
}

/* ---- one file ---------------------------------------------------------------------------------------------------------------------- */

/* All prompts in rounds; `only` -1: both ways in turn, else that way alone. */
static int ask_all(struct td_bench *b, struct td_bench_file *f, int only)
{
	size_t from, n, round = 0;
	int rc = 0, first;

	for (from = 0; !rc && from < f->n; from += n, round++) {
		n = f->n - from < b->clients ? f->n - from : b->clients;
		first = only >= 0 ? only : (int)(round % 2);
		rc = td_bench_round(b, f, from, n, first, &f->cost[first]);
		if (!rc && only < 0)
			rc = td_bench_round(b, f, from, n, !first, &f->cost[!first]);
	}
	return rc;
}

/* The first answer pays for cold caches: it is asked once before anything counts. */
static int warm_up(struct td_bench *b, struct td_bench_file *f)
{
	return td_bench_round(b, f, 0, 1, 0, NULL) || td_bench_round(b, f, 0, 1, 1, NULL) ? -1 : 0;
}

static int measure(struct td_bench *b, struct td_bench_file *f, const struct td_bench_options *o, json_t *out)
{
	struct td_bench_difference d;

	f->drafts = b->draft_tokens;
	if (warm_up(b, f) || ask_all(b, f, -1))
		return -1;
	td_bench_compare(f, &d);
	if (o->json)
		json_array_append_new(out, td_bench_report_json(b, f));
	else
		td_bench_report(b, f);
	if (d.count)
		b->code = TD_EXIT_FAILED;
	return 0;
}

static void lossless_row(const struct td_bench_file *f, const struct td_bench_options *o, const struct td_bench_difference *d, json_t *rows)
{
	if (o->json) {
		json_array_append_new(rows, json_pack("{s:i, s:I, s:I, s:f}", "draft_tokens", (int)f->drafts, "compared", (json_int_t)d->compared, "differing",
						      (json_int_t)d->count, "acceptance_length", td_bench_acceptance(f)));
		return;
	}
	printf("%4d  %8zu  %6zu  %9zu  %17.2f", (int)f->drafts, d->compared, d->compared - d->count, d->count, td_bench_acceptance(f));
	if (d->count)
		printf("   first: prompt %zu, token %zu, %d and not %d", d->prompt, d->place, d->with, d->without);
	printf("\n");
	fflush(stdout);
}

/* Without speculation once, then each K against it. */
static int lossless(struct td_bench *b, struct td_bench_file *f, const struct td_bench_options *o, json_t *out)
{
	json_t *rows = json_array();
	struct td_bench_difference d;
	int i, rc = ask_all(b, f, 1);

	if (!rc && !o->json)
		printf("%s: %zu prompts, answers of at most %d tokens, %u client%s\n   K  compared   equal  differing  acceptance length\n", f->name, f->n,
		       b->max_tokens, b->clients, b->clients == 1 ? "" : "s");
	for (i = 0; !rc && i < N_LOSSLESS; i++) {
		f->drafts = lossless_k[i];
		rc = ask_all(b, f, 0);
		if (rc)
			break;
		td_bench_compare(f, &d);
		lossless_row(f, o, &d, rows);
		if (d.count)
			b->code = TD_EXIT_FAILED;
	}
	if (!rc && !o->json)
		printf("\n");
	if (o->json)
		json_array_append_new(out, json_pack("{s:s, s:I, s:O}", "file", f->name, "prompts", (json_int_t)f->n, "lossless", rows));
	json_decref(rows);
	return rc;
}

/* Each prompt once; `b->count` gets what was answered. */
static int count(struct td_bench *b, struct td_bench_file *f)
{
	size_t i;
	int rc;

	f->drafts = b->draft_tokens;
	rc = ask_all(b, f, 0);
	for (i = 0; !rc && i < f->n; i++)
		rc = td_bench_count_add(&b->count, &f->answer[0][i]);
	if (rc && b->code == TD_EXIT_OK) {
		fprintf(stderr, "tandem bench: no memory\n");
		b->code = TD_EXIT_FAILED;
	}
	return rc;
}

static int bench_prompts(struct td_bench *b, const struct td_bench_options *o, const char *name, const char *const *prompt, size_t n, json_t *out)
{
	struct td_bench_file f = {.name = name, .prompt = prompt, .n = b->limit && b->limit < n ? b->limit : n};
	int rc = td_bench_file_start(b, &f);

	if (!rc && o->count)
		rc = count(b, &f);
	else if (!rc)
		rc = o->lossless ? lossless(b, &f, o, out) : measure(b, &f, o, out);
	td_bench_file_finish(&f);
	return rc;
}

static int bench_file(struct td_bench *b, const struct td_bench_options *o, const char *path, json_t *out)
{
	const char **prompt = NULL, *name = strrchr(path, '/');
	json_t *json = NULL;
	size_t n;
	int rc = load(path, &json, &prompt, &n);

	if (rc)
		b->code = TD_EXIT_FAILED;
	else
		rc = bench_prompts(b, o, name ? name + 1 : path, prompt, n, out);
	free(prompt);
	json_decref(json);
	return rc;
}

/* ---- the command ------------------------------------------------------------------------------------------------------------------- */

static int bench(struct td_bench *b, const struct td_bench_options *o)
{
	json_t *out = json_array(), *all;
	size_t i;
	int rc = td_bench_open(b);

	if (!rc && !o->json)
		printf("%s, model %s\n\n", b->server, b->model);
	for (i = 0; !rc && i < o->files.n; i++)
		rc = bench_file(b, o, o->files.item[i], out);
	if (!rc && o->count && td_bench_count_write(&b->count, o->count, o->count_size, b->model))
		b->code = TD_EXIT_FAILED;
	if (!rc && !o->files.n) {
		rc = bench_prompts(b, o, "built-in: shell", shell_prompts, sizeof(shell_prompts) / sizeof(shell_prompts[0]), out);
		if (!rc)
			rc = bench_prompts(b, o, "built-in: arithmetic", sum_prompts, sizeof(sum_prompts) / sizeof(sum_prompts[0]), out);
	}
	if (!rc && o->json) {
		all = json_pack("{s:s, s:s, s:s, s:i, s:i, s:O}", "server", b->server, "model", b->model, "client", "tandem " TD_VERSION, "clients",
				(int)b->clients, "max_tokens", (int)b->max_tokens, "files", out);
		td_json_print(all, JSON_INDENT(2));
	}
	json_decref(out);
	td_bench_count_finish(&b->count);
	td_bench_close(b);
	return b->code;
}

static int asks_for(const struct td_list *words, const char *suite)
{
	size_t i;

	for (i = 0; i < words->n && strcmp(words->item[i], suite); i++)
		;
	return i < words->n;
}

static int check(const struct td_bench *b, const struct td_bench_options *o, const struct td_list *words)
{
	const char *wrong = NULL;

	size_t i;

	for (i = 0; i < words->n; i++)
		if (!td_bench_suite_known(words->item[i]))
			wrong = "a suite is ops, cycle, latency or load; prompt files go with --prompts";
	if (wrong)
		;
	else if (words->n && (o->files.n || o->lossless))
		wrong = "--prompts and --lossless are not for suites";
	else if (!words->n && (o->html || o->save || (o->share && !o->tune)))
		wrong = "--html, --save and --sm-share are for suites";
	else if (o->tune && (words->n || o->files.n || o->lossless || o->json))
		wrong = "--tune is a measurement of its own";
	else if (o->count && (words->n || o->lossless || o->json || o->tune || !o->files.n))
		wrong = "--count is a measurement of its own, of prompts that --prompts names";
	else if (o->count_size && !o->count)
		wrong = "--count-size goes with --count";
	else if ((o->tune && !o->model) || (o->widths && !o->tune && !words->n))
		wrong = "--tune needs --model; --widths goes with it and with suites";
	else if (o->share > 100 || (o->share && !o->model))
		wrong = "--sm-share takes a number from 1 to 100, and --model";
	else if (words->n && !o->model && asks_for(words, "ops"))
		wrong = "the suite ops needs --model, for the shapes";
	else if (o->runs < 1 || o->requests < 1 || o->milliseconds < 1 || o->max_clients < 1 || o->max_clients > 256)
		wrong = "--runs, --requests, --ms take a number from 1 on, --max-clients one up to 256";
	else if (b->max_tokens < 1)
		wrong = "option --max-tokens takes a number from 1 on";
	else if (b->clients < 1 || b->clients > 256)
		wrong = "option --clients takes a number from 1 to 256";
	else if (b->draft_tokens != TD_BENCH_AUTO && b->draft_tokens < 1)
		wrong = "option --draft-tokens takes a number from 1 on (without speculation is measured anyway)";
	else if (o->lossless && b->draft_tokens != TD_BENCH_AUTO)
		wrong = "--lossless goes through the numbers of drafts by itself";
	else if (!o->model && (o->drafter || o->tokenizer || o->draft_vocabulary || o->activations))
		wrong = "--drafter, --tokenizer, --draft-vocabulary and --activations go with --model";
	else if (o->activations && strcmp(o->activations, "auto") && strcmp(o->activations, "bf16") && strcmp(o->activations, "int8"))
		wrong = "--activations takes auto, bf16 or int8";
	else if (o->model && b->common.socket)
		wrong = "--model starts a daemon of its own: --socket means nothing with it";
	if (wrong)
		fprintf(stderr, "tandem bench: %s (see tandem bench --help)\n", wrong);
	return wrong ? -1 : 0;
}

static int with_own_daemon(struct td_bench *b, const struct td_bench_options *o)
{
	struct td_bench_daemon_how how = {.model = o->model, .drafter = o->drafter, .tokenizer = o->tokenizer, .device = o->device, .slots = b->clients,
					  .context = o->context, .draft_vocabulary = o->draft_vocabulary, .activations = o->activations};
	struct td_bench_daemon d = {0};
	int code = TD_EXIT_FAILED;

	if (!td_bench_daemon_start(&d, &how)) {
		b->common.socket = d.socket;
		code = bench(b, o);
	} else if (td_bench_interrupted) {
		code = TD_EXIT_INTERRUPTED;
	}
	td_bench_daemon_stop(&d);
	return code;
}

int td_cmd_bench(int argc, char **argv)
{
	struct td_bench b = {.max_tokens = 128, .clients = 1, .draft_tokens = TD_BENCH_AUTO};
	struct td_bench_options o = {.device = "auto", .runs = 50, .warmups = 5, .requests = 4, .max_clients = 16, .milliseconds = 50};
	struct td_option common[TD_COMMON_OPTIONS];
	const struct td_option own[] = {
		{TD_OPT_TITLE, .help = "What to ask:"},
		{TD_OPT_LIST, "prompts", 'p', "FILE", "a JSON array of strings; may be repeated", &o.files, 0, NULL, 0},
		{TD_OPT_COUNT, "limit", 0, "N", "only the first N prompts of each file", &b.limit, 0, NULL, 0},
		{TD_OPT_INT, "max-tokens", 'n', "N", "longest answer (default: 128)", &b.max_tokens, 0, NULL, 0},
		{TD_OPT_INT, "draft-tokens", 'k', "K", "drafts per step (default: the daemon's choice)", &b.draft_tokens, 0, NULL, 0},
		{TD_OPT_COUNT, "clients", 'c', "N", "so many connections at once (default: 1)", &b.clients, 0, NULL, 0},
		{TD_OPT_FLAG, "lossless", 0, NULL, "only compare: 1, 4, 7 and 15 drafts per step against none", &o.lossless, 1, NULL, 0},
		{TD_OPT_FLAG, "json", 0, NULL, "one JSON object", &o.json, 1, NULL, 0},
		{TD_OPT_TEXT, "count", 0, "FILE", "write the tokens of the answers there, as model.draft_vocabulary takes them", &o.count, 0, NULL, 0},
		{TD_OPT_COUNT, "count-size", 0, "N", "so many of them; the lowest ids where fewer were seen (default: all that were seen)", &o.count_size, 0, NULL, 0},
		{TD_OPT_TITLE, .help = "Suites:"},
		{TD_OPT_COUNT, "runs", 0, "N", "latency: answers of each kind (default: 50)", &o.runs, 0, NULL, 0},
		{TD_OPT_COUNT, "warmups", 0, "N", "latency: answers of each kind before these (default: 5)", &o.warmups, 0, NULL, 0},
		{TD_OPT_COUNT, "requests", 0, "N", "load: answers for each client (default: 4)", &o.requests, 0, NULL, 0},
		{TD_OPT_COUNT, "max-clients", 0, "N", "load: stop at so many (default: 16)", &o.max_clients, 0, NULL, 0},
		{TD_OPT_COUNT, "ms", 0, "N", "ops: milliseconds for each (default: 50)", &o.milliseconds, 0, NULL, 0},
		{TD_OPT_COUNT, "keys", 0, "N", "ops: that attention sees (default: 2048, or --context where that is less)", &o.keys, 0, NULL, 0},
		{TD_OPT_COUNT, "threads", 0, "N", "ops: of the CPU (default: all)", &o.threads, 0, NULL, 0},
		{TD_OPT_COUNT, "sm-share", 0, "N", "all on N percent of a GPU's multiprocessors (needs MPS)", &o.share, 0, NULL, 0},
		{TD_OPT_TEXT, "save", 0, "FILE", "write the JSON object there, beside whatever is printed", &o.save, 0, NULL, 0},
		{TD_OPT_FLAG, "tune", 0, NULL, "measure cycles by requests and drafts, and keep them for tandemd (needs --model; up to --max-clients)", &o.tune, 1, NULL, 0},
		{TD_OPT_TEXT, "widths", 0, "DIR", "where --tune puts its file, or the suites' daemon looks for one (default: the state folder)", &o.widths, 0, NULL, 0},
		{TD_OPT_TEXT, "html", 0, "FILE", "write the figures as a page, drawn, that needs nothing else", &o.html, 0, NULL, 0},
		{TD_OPT_TITLE, .help = "A daemon of its own:"},
		{TD_OPT_TEXT, "model", 0, "DIR", "serve this model for the time of the bench (synthetic:NAME: random weights)", &o.model, 0, NULL, 0},
		{TD_OPT_TEXT, "drafter", 0, "DIR", "with this drafter (default: none)", &o.drafter, 0, NULL, 0},
		{TD_OPT_TEXT, "tokenizer", 0, "FILE", "with this tokenizer.json (default: the daemon's choice)", &o.tokenizer, 0, NULL, 0},
		{TD_OPT_TEXT, "draft-vocabulary", 0, "FILE", "with drafts from these tokens (default: from all)", &o.draft_vocabulary, 0, NULL, 0},
		{TD_OPT_TEXT, "activations", 0, "FORM", "with this model.activations (default: the daemon's choice)", &o.activations, 0, NULL, 0},
		{TD_OPT_TEXT, "device", 0, "NAME", "on auto (default), cpu or cuda", &o.device, 0, NULL, 0},
		{TD_OPT_COUNT, "context", 0, "N", "its engine.context (default: the daemon's choice)", &o.context, 0, NULL, 0},
		{TD_OPT_END},
	};
	const struct td_option *tables[] = {own, common, NULL};
	struct td_list words = {0};
	int code = TD_EXIT_USAGE;

	td_common_options(&b.common, common);
	if (!td_options_parse(argc, argv, usage, about, tables, &words, &code)) {
		code = TD_EXIT_USAGE;
		if (!check(&b, &o, &words)) {
			td_bench_catch_interrupt();
			b.thinking = o.count ? TANDEM_THINK_DEFAULT : TANDEM_THINK_OFF;
			code = o.tune ? td_bench_tune(&b, &o) : words.n ? td_bench_suites(&b, &o, &words) : o.model ? with_own_daemon(&b, &o) : bench(&b, &o);
			if (td_flush_stdout("bench"))
				code = TD_EXIT_FAILED;
		}
	}
	td_list_finish(&o.files);
	td_list_finish(&words);
	return code;
}
