/*
 * cmd_tokenize.c: `tandem tokenize`: text to token ids and back, by the daemon's tokenizer.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "client/command.h"

static const char usage[] = "tandem tokenize [options] [TEXT...]";
static const char about[] =
	"Shows the tokens of a text: one line per token, its id and its text. The words of TEXT are joined by spaces; \"-\", or no TEXT, is stdin.\n\n"
	"Exit codes: 0 done; 1 failed; 2 wrong usage; 3 no daemon.";

struct tokenize {
	struct td_common common;
	const char *system_option;
	char *system;
	int chat, ids, json, decode, thinking;
};

struct piece {
	struct piece_list *list;
	char *text;
};

struct piece_list {
	size_t left;
	struct tandem_error error;
	struct piece *piece;
};

static void piece_text(void *ctx, const char *text)
{
	struct piece *p = ctx;

	p->text = strdup(text);
	p->list->left--;
}

static void piece_error(void *ctx, const struct tandem_error *e)
{
	struct piece *p = ctx;

	p->list->error = *e;
	p->list->left--;
}

/* The text of each id by itself: all questions at once, so that it takes one round trip and not n. */
static int fetch_pieces(struct tandem *t, const struct tandem_ids *ids, struct piece_list *list, struct tandem_error *err)
{
	struct tandem_handler h = {.text = piece_text, .error = piece_error};
	size_t i;

	list->piece = calloc(ids->n + 1, sizeof(*list->piece));
	for (i = 0; list->piece && i < ids->n; i++) {
		list->piece[i].list = list;
		h.ctx = list->piece + i;
		if (!tandem_submit_detokenize(t, ids->id + i, 1, &h, err))
			return err->code;
		list->left++;
	}
	while (list->left) {
		struct pollfd p = {.fd = tandem_fd(t), .events = POLLIN | (tandem_want(t) & TANDEM_WRITE ? POLLOUT : 0)};

		if (tandem_process(t, err))
			return err->code;
		if (list->left)
			poll(&p, 1, tandem_timeout_ms(t));
	}
	*err = list->error;
	return err->code;
}

/* On one line whatever it holds. */
static void print_piece(int32_t id, const char *text)
{
	printf("%7d  ", id);
	for (; text && *text; text++)
		if (*text == '\n')
			fputs("\\n", stdout);
		else if (*text == '\t')
			fputs("\\t", stdout);
		else if ((unsigned char)*text < 0x20 || *text == 0x7f)
			printf("\\x%02x", (unsigned char)*text);
		else
			putchar(*text);
	putchar('\n');
}

static int encode(const struct tokenize *o, struct tandem *t, const struct td_list *words)
{
	char *text = td_prompt_text(words, "tokenize");
	struct tandem_message message[2] = {{.role = "system", .content = o->system}, {.role = "user", .content = text}};
	struct tandem_prompt prompt = {.thinking = (enum tandem_thinking)o->thinking};
	struct piece_list list = {0};
	struct tandem_ids ids = {0};
	struct tandem_error err;
	int code = TD_EXIT_FAILED;
	size_t i;

	if (!text)
		return code;
	if (o->chat) {
		prompt.message = o->system ? message : message + 1;
		prompt.n_messages = o->system ? 2 : 1;
	} else {
		prompt.text = text;
	}
	if (tandem_tokenize(t, &prompt, &ids, &err) || (!o->ids && !o->json && fetch_pieces(t, &ids, &list, &err))) {
		code = td_common_say_error(&o->common, "tokenize", &err);
		goto out;
	}
	if (o->json)
		td_json_print(json_pack("{s:I, s:o}", "n", (json_int_t)ids.n, "ids", td_json_ids(ids.id, ids.n)), JSON_COMPACT);
	for (i = 0; !o->json && i < ids.n; i++)
		if (o->ids)
			printf(i + 1 < ids.n ? "%d " : "%d\n", ids.id[i]);
		else
			print_piece(ids.id[i], list.piece[i].text);
	if (!o->json && !o->ids)
		fprintf(stderr, "%zu token%s\n", ids.n, ids.n == 1 ? "" : "s");
	code = TD_EXIT_OK;
out:
	for (i = 0; list.piece && i < ids.n; i++)
		free(list.piece[i].text);
	free(list.piece);
	tandem_ids_free(&ids);
	free(text);
	return code;
}

/* The ids in a text: numbers apart by anything that is no number, so that JSON arrays do too. 0, or -1 after telling. */
static int parse_ids(const char *text, struct tandem_ids *ids)
{
	ids->id = malloc((strlen(text) / 2 + 1) * sizeof(*ids->id));
	while (ids->id && *(text += strspn(text, " \t\r\n,[]"))) {
		size_t n = strcspn(text, " \t\r\n,[]");
		char word[16];

		snprintf(word, sizeof(word), "%.*s", (int)(n < 15 ? n : 15), text);
		if (n > 15 || !td_parse_int(word, ids->id + ids->n)) {
			fprintf(stderr, "tandem tokenize: '%s' is not a token id\n", word);
			return -1;
		}
		ids->n++;
		text += n;
	}
	return ids->id ? 0 : -1;
}

static int decode(const struct tokenize *o, struct tandem *t, const struct td_list *words)
{
	char *given = td_prompt_text(words, "tokenize"), *text = NULL;
	struct tandem_ids ids = {0};
	struct tandem_error err;
	int code = TD_EXIT_FAILED;

	if (!given)
		return code;
	if (parse_ids(given, &ids)) {
		code = TD_EXIT_USAGE;
	} else {
		text = tandem_detokenize(t, ids.id, ids.n, &err);
		if (text && o->json) {
			td_json_print(json_pack("{s:I, s:s}", "n", (json_int_t)ids.n, "text", text), JSON_COMPACT);
			code = TD_EXIT_OK;
		} else if (text) {
			fputs(text, stdout);
			if (*text && text[strlen(text) - 1] != '\n')
				putchar('\n');
			code = TD_EXIT_OK;
		} else {
			code = td_common_say_error(&o->common, "tokenize", &err);
		}
	}
	free(text);
	free(ids.id);
	free(given);
	return code;
}

int td_cmd_tokenize(int argc, char **argv)
{
	struct tokenize o = {0};
	struct td_option common[TD_COMMON_OPTIONS];
	const struct td_option own[] = {
		{TD_OPT_TITLE, .help = "Form:"},
		{TD_OPT_FLAG, "ids", 0, NULL, "only the ids, on one line", &o.ids, 1, NULL, 0},
		{TD_OPT_FLAG, "json", 0, NULL, "one JSON object: n, ids; with --decode: n, text", &o.json, 1, NULL, 0},
		{TD_OPT_FLAG, "decode", 'd', NULL, "the other way: TEXT is ids, the output their text", &o.decode, 1, NULL, 0},
		{TD_OPT_FLAG, "chat", 'c', NULL, "the text as a user's message through the chat template", &o.chat, 1, NULL, 0},
		{TD_OPT_TEXT, "system", 's', "TEXT", "with --chat: a system message before it; @FILE: what the file holds", &o.system_option, 0, NULL, 0},
		{TD_OPT_FLAG, "think", 0, NULL, "with --chat: as for an answer with thinking", &o.thinking, TANDEM_THINK_ON, NULL, 0},
		{TD_OPT_FLAG, "no-think", 0, NULL, "with --chat: as for an answer without", &o.thinking, TANDEM_THINK_OFF, NULL, 0},
		{TD_OPT_END},
	};
	const struct td_option *tables[] = {own, common, NULL};
	struct td_list words = {0};
	struct tandem *t;
	int code;

	td_common_options(&o.common, common);
	if (td_options_parse(argc, argv, usage, about, tables, &words, &code))
		goto out;
	code = TD_EXIT_USAGE;
	if (((o.system_option || o.thinking) && !o.chat) || (o.decode && (o.chat || o.ids))) {
		fprintf(stderr, "tandem tokenize: these options don't go together (see tandem tokenize --help)\n");
		goto out;
	}
	if (o.system_option && !(o.system = td_option_text(o.system_option, "system", "tokenize")))
		goto out;
	o.common.json = o.json;
	t = td_common_connect(&o.common, "tokenize", &code);
	if (!t)
		goto out;
	code = o.decode ? decode(&o, t, &words) : encode(&o, t, &words);
	tandem_close(t);
	if (td_flush_stdout("tokenize"))
		code = TD_EXIT_FAILED;
out:
	free(o.system);
	td_list_finish(&words);
	return code;
}
