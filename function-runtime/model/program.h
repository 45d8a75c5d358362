/* program.h: what a job trains: an uploaded function's shared object, or a model of the zoo. */
#ifndef KUBEML_PROGRAM_H
#define KUBEML_PROGRAM_H

#include "common/base/err.h"
#include "common/dataset/dataset.h"
#include "kernels/engine.h"
#include "kernels/schedule.h"
#include "transform.h"

typedef struct program program;

/* Loads the object at `path` and runs its constructors: somebody else's code from here on. The
 * object stays loaded until the process ends. ERR_INVALID: not an object of this SDK (its ABI is
 * named). */
int program_open_object(const char *path, program **out, err *e);
/* The same from a descriptor, which may be closed afterwards. One in the life of a process: the
 * loader knows objects by their names, and a number that comes again would be the object that had
 * it before. */
int program_open_fd(int fd, program **out, err *e);
/* "resnet34", "resnet34,stem=cifar,flip=on,crop=4". ERR_NOT_FOUND with the nearest names,
 * ERR_INVALID: an option. */
int program_open_zoo(const char *text, program **out, err *e);
void program_close(program *p); /* NULL is fine */
/* Before there is a job: ERR_INVALID: an option that its kind does not have, named. */
int program_check_options(const program *p, err *e);
/* In a job, which may have begun when nothing was said of them: a warning, and they are passed
 * over. */
void program_warn(const program *p);

const char *program_name(const program *p);
const transform *program_transform(const program *p);
/* Everything engine_compile needs but input, threads, batch and seed. The program must outlive
 * it. */
void program_config(program *p, const dataset_info *data, engine_config *out);
double program_default_lr(const program *p); /* the code's own */
/* Does its schedule look at the validation losses of the epochs before? */
bool program_needs_history(const program *p);
/* Told of one that does, where there will be none. */
#define PROGRAM_NO_HISTORY                                                                         \
    "the function's schedule (kml_plateau) goes by the validation losses, and nothing is "         \
    "validated between epochs: validate_every is 0, or the dataset has no test samples"
/* The learning rate of a step: a pure function of its place. `lr` is what the request asks for. */
double program_lr(const program *p, double lr, int epochs, const schedule_point *at);
bool program_has_step(const program *p);
/* One update; by the code's own step where it has one. */
int program_step(const program *p, engine *m, const engine_batch *b, double lr, engine_result *r,
                 err *e);

#endif
