/*
 * chat_file.c: a conversation as a file: a JSON array of {"role", "content"}, the form that chat APIs take; {"messages": [...]} is read as well.
 *
 * A file is written beside its place and moved there, so that a full disk never costs the conversation that was saved before. It is its owner's alone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/command.h"

/* NULL, or what is wrong with the message at place i. */
static const char *fault(const json_t *m, size_t i)
{
	const char *role = json_string_value(json_object_get(m, "role"));

	if (!role || !json_is_string(json_object_get(m, "content")))
		return "it needs \"role\" and \"content\", both texts";
	if (!strcmp(role, "system"))
		return i ? "a system message comes first or not at all" : NULL;
	return strcmp(role, "user") && strcmp(role, "assistant") ? "its role is none of system, user, assistant" : NULL;
}

json_t *td_chat_file_read(const char *path)
{
	json_error_t e;
	json_t *all = json_load_file(path, 0, &e), *list;
	const char *wrong;
	size_t i;

	if (!all) {
		fprintf(stderr, e.line > 0 ? "tandem chat: %s: %s (line %d)\n" : "tandem chat: %s: %s\n", path, e.text, e.line);
		return NULL;
	}
	list = json_incref(json_is_object(all) ? json_object_get(all, "messages") : all);
	json_decref(all);
	if (!json_is_array(list)) {
		fprintf(stderr, "tandem chat: %s: not a JSON array of messages\n", path);
		json_decref(list);
		return NULL;
	}
	for (i = 0; i < json_array_size(list); i++) {
		wrong = fault(json_array_get(list, i), i);
		if (wrong) {
			fprintf(stderr, "tandem chat: %s: message %zu: %s\n", path, i + 1, wrong);
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

int td_chat_file_write(const char *path, const json_t *messages)
{
	size_t size = strlen(path) + 16;
	char *beside = malloc(size);
	mode_t mask = umask(077);
	int rc = -1;

	errno = ENOMEM;
	if (beside) {
		snprintf(beside, size, "%s.new", path);
		errno = 0;
		rc = json_dump_file(messages, beside, JSON_INDENT(2)) || rename(beside, path);
	}
	if (rc) {
		fprintf(stderr, "tandem chat: can't write %s: %s\n", path, errno ? strerror(errno) : "it failed");
		if (beside)
			unlink(beside);
	}
	umask(mask);
	free(beside);
	return rc ? -1 : 0;
}
