/*
 * file.c: see file.h. O_NONBLOCK keeps the open of a FIFO from waiting for its writer; O_NOCTTY that of a terminal from taking it.
 */
#include "engine/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static int code_of(int why)
{
	switch (why) {
	case ENOENT:
	case ENOTDIR:
		return TD_E_NOT_FOUND;
	case EACCES:
	case EPERM:
		return TD_E_PERMISSION;
	case ENXIO: /* a socket, or a device that is not there */
	case ENODEV:
		return TD_E_INVALID;
	}
	return TD_E_IO;
}

int td__file_open(const char *path, int *fd, struct stat *st, struct td_error *err)
{
	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (*fd < 0)
		return td_error_set(err, code_of(errno), "%s: can't be opened: %s", path, strerror(errno));
	if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode))
		return 0;
	close(*fd);
	*fd = -1;
	return td_error_set(err, TD_E_INVALID, "%s: is not a regular file", path);
}
