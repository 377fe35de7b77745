/*
 * suite.c: see suite.h.
 */
#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop(const char *text)
{
	fprintf(stderr, "%s\n", text);
	exit(2);
}

static void set(const char **to, const char *unless_said)
{
	*to = *to ? *to : unless_said;
}

void suite_open(struct suite *s, int argc, char **argv)
{
	const struct {
		const char *name, **text;
		int *number;
	} known[] = { { "--device", &s->o.device, NULL },      { "--target", &s->o.target_dir, NULL }, { "--drafter", &s->o.drafter_dir, NULL },
		      { "--tokenizer", &s->tokenizer, NULL }, { "--weights", &s->weights, NULL },     { "--head", &s->head, NULL },
		      { "--activations", &s->activations, NULL },
		      { "--kl", &s->kl, NULL },
		      { "--limit", NULL, &s->limit },	       { "--tokens", NULL, &s->tokens } };
	const int n = (int)(sizeof(known) / sizeof(*known));
	struct td_error err;

	for (int i = 1; i < argc; i++) {
		int k = 0;

		while (k < n && strcmp(argv[i], known[k].name))
			k++;
		if (k < n ? i + 1 == argc : argv[i][0] == '-' || s->n_files == SUITE_FILES)
			stop(k < n ? "an option lacks its value" : argv[i][0] == '-' ? "there is no such option" : "too many files");
		if (k == n)
			s->file[s->n_files++] = argv[i];
		else if (known[k].text)
			*known[k].text = argv[++i];
		else
			*known[k].number = atoi(argv[++i]);
	}
	s->n_files += !s->n_files;
	set(&s->o.device, "cpu");
	set(&s->o.target_dir, "models/tiny/target-int4");
	set(&s->o.drafter_dir, "models/tiny/drafter-int4");
	set(&s->tokenizer, "models/tiny/tokenizer.json");
	set(&s->weights, "file");
	set(&s->head, "rescored");
	set(&s->activations, "bf16");
	s->o.form = td_form_head(s->head, NULL, strcmp(s->weights, "bf16") ? 0 : TD_FORM_BF16);
	s->o.form = td_form_activations(strcmp(s->activations, "bf16") ? "int8" : "bf16", s->o.device, s->o.form);
	s->o.not_target = strcmp(s->activations, "drafter") ? 0 : TD_FORM_ACT8;
	s->o.not_drafter = strcmp(s->activations, "target") ? 0 : TD_FORM_ACT8;
	if (td_tokenizer_load(s->tokenizer, &s->tok, &err))
		stop(err.text);
}

void suite_each(const struct suite *s, void (*run)(void *ctx, const char *name, const struct prompts *p), void *ctx)
{
	for (int i = 0; i < s->n_files; i++) {
		struct prompts p;

		prompts_load(&p, s->tok, s->file[i], s->limit);
		run(ctx, s->file[i] ? s->file[i] : "own prompts", &p);
		prompts_finish(&p);
	}
}

void suite_close(struct suite *s)
{
	td_tokenizer_free(s->tok);
}
