/*
 * prompts.c: see prompts.h.
 */
#include "tests/lib/prompts.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat_template.h"

static const char *const own[] = {
	"How do I extract a tar archive?",
	"Show me examples of rsync.",
	"What does grep do?",
	"How do I list the files of a package?",
	"Which command shows the free space of all disks?",
	"How can I find files that are larger than 100 megabytes?",
	"Anna has 3 boxes with 12 pencils each. She gives away 7 pencils. How many pencils are left?",
	"A train goes 60 kilometres in one hour. How far does it go in 5 hours?",
};

static void fail(const struct td_error *err)
{
	fprintf(stderr, "%s\n", err->text);
	exit(1);
}

static void add(struct prompts *p, const struct td_tokenizer *tok, const char *text)
{
	const struct td_chat_message m = {.role = "user", .content = text};
	const struct td_chat chat = {.message = &m, .n_messages = 1, .add_generation_prompt = 1, .enable_thinking = 0, .thinking_default = 1};
	struct td_error err;
	char *prompt;
	size_t n;

	if (td_chat_render(&chat, &prompt, &n, NULL, &err) || td_encode(tok, prompt, n, 1, &p->ids[p->n++], &err))
		fail(&err);
	free(prompt);
}

void prompts_load(struct prompts *p, const struct td_tokenizer *tok, const char *file, int limit)
{
	json_error_t jerr;
	json_t *root = file ? json_load_file(file, 0, &jerr) : NULL;
	int n = file ? (int)json_array_size(root) : (int)(sizeof(own) / sizeof(*own));

	if (file && !json_is_array(root)) {
		fprintf(stderr, "%s: not a JSON array of strings\n", file);
		exit(1);
	}
	if (limit && n > limit)
		n = limit;
	p->n = 0;
	p->ids = calloc((size_t)n + 1, sizeof(*p->ids));
	for (int i = 0; i < n; i++)
		add(p, tok, file ? json_string_value(json_array_get(root, (size_t)i)) : own[i]);
	json_decref(root);
}

void prompts_long(struct td_ids *ids, const struct td_tokenizer *tok, int n)
{
	struct td_error err;

	memset(ids, 0, sizeof(*ids));
	for (int i = 0; (int)ids->n < n; i++) {
		char text[256];

		snprintf(text, sizeof(text), "%d. %s ", i + 1, own[i % (int)(sizeof(own) / sizeof(*own))]);
		if (td_encode(tok, text, strlen(text), 1, ids, &err))
			fail(&err);
	}
	ids->n = (size_t)n;
}

void prompts_finish(struct prompts *p)
{
	for (int i = 0; i < p->n; i++)
		td_ids_finish(&p->ids[i]);
	free(p->ids);
	memset(p, 0, sizeof(*p));
}
