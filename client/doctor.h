/*
 * doctor.h: inside `tandem doctor`: a list of findings, filled by the checks, printed by the command.
 *
 *   cmd_doctor.c      options, the list, text and JSON
 *   doctor_machine.c  processors, memory, limits; the GPU, its driver and what belongs to it
 *   doctor_tandem.c   our programs, model folders, the daemon's socket
 *
 * A check never changes anything and never waits long: it looks, and says what to do. Only a finding with `fatal` means that tandem can't run here.
 */
#ifndef TD_DOCTOR_H
#define TD_DOCTOR_H

#include "client/command.h"

enum td_finding_level { TD_FOUND_OK, TD_FOUND_WARN, TD_FOUND_MISSING };

struct td_finding {
	enum td_finding_level level;
	int fatal;
	const char *name; /* literal */
	char text[400]; /* what was found */
	char advice[400]; /* what to do; "" when nothing */
};

enum { TD_FINDINGS_MAX = 64 };

struct td_doctor {
	struct td_finding finding[TD_FINDINGS_MAX];
	int n;
	const char *model, *drafter; /* folders, NULL = not given */
	int32_t slots, context; /* of the memory plan; context 0: as tandemd chooses it */
	const char *socket; /* NULL: where a client looks */
	int gpu; /* set by the checks: a GPU can be used */
};

/* The finding that was added, so that advice can follow; never NULL. */
struct td_finding *td_found(struct td_doctor *d, enum td_finding_level level, const char *name, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void td_advise(struct td_finding *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void td_doctor_machine(struct td_doctor *d);
void td_doctor_gpu(struct td_doctor *d);
void td_doctor_programs(struct td_doctor *d);
void td_doctor_model(struct td_doctor *d);
void td_doctor_socket(struct td_doctor *d);
/* Path of a program: beside this one, where workers are installed, else in PATH. 0 when found. */
int td_doctor_program(const char *name, char *path, size_t size);

#endif
