/*
 * hello.c: the smallest useful program with libtandem: asks one question and prints the answer as it comes.
 *
 *     cc hello.c $(pkg-config --cflags --libs libtandem) -o hello
 *     ./hello "How do I list the largest files?"
 */
#include <stdio.h>

#include <tandem.h>

static int print(void *ctx, const struct tandem_delta *d)
{
	(void)ctx;
	fputs(d->text, stdout);
	fflush(stdout);
	return 0; /* anything else would stop the answer */
}

int main(int argc, char **argv)
{
	struct tandem_message question = {.role = "user", .content = argc > 1 ? argv[1] : "How do I count the lines of a file?"};
	struct tandem_request request = {
		.prompt = {.message = &question, .n_messages = 1, .thinking = TANDEM_THINK_OFF},
		.sampling = {.set = TANDEM_MAX_TOKENS, .max_tokens = 128},
	};
	struct tandem_handler handler = {.delta = print};
	struct tandem_options options = {.client = "hello", .retry_ms = 5000};
	struct tandem_error err;
	struct tandem *t = tandem_connect(NULL, &options, &err);

	if (!t || tandem_generate(t, &request, &handler, &err)) {
		fprintf(stderr, "hello: %s\n", err.text);
		tandem_close(t);
		return 1;
	}
	putchar('\n');
	tandem_close(t);
	return 0;
}
