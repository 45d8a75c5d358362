/* program.h: the program that a job trains: an uploaded function's shared object, or a model of the
 * zoo. */
#ifndef KUBEML_PROGRAM_H
#define KUBEML_PROGRAM_H

#include "common/base/err.h"
#include "common/dataset/dataset.h"
#include "kernels/engine.h"
#include "kernels/schedule.h"
#include "transform.h"

typedef struct program program;

/* Loads the object at `path` and runs its constructors: user code, which runs from here on. The
 * object stays loaded until the process ends. ERR_UNSUPPORTED: it cannot be loaded, or is of
 * another ABI (both are named); ERR_INVALID: it is no function. */
int program_open_object(const char *path, program **out, err *e);
/* The same from a descriptor, which may be closed afterwards. Only once in a process: the loader
 * knows objects by their names, and takes a second descriptor of the same number for the first
 * object. */
int program_open_fd(int fd, program **out, err *e);
/* `text`: "resnet34", "resnet34,stem=cifar,flip=on,crop=4". ERR_NOT_FOUND with the nearest names,
 * ERR_INVALID naming the option. */
int program_open_zoo(const char *text, program **out, err *e);
void program_close(program *p); /* NULL is fine */
/* For the check before a job. ERR_INVALID names an option that its kind does not have. */
int program_check_options(const program *p, err *e);
/* Logs a warning about such options, which are ignored: the job may have begun with an older
 * version, which did not check them. */
void program_warn(const program *p);

const char *program_name(const program *p);
const transform *program_transform(const program *p);
/* Fills in the fields that engine_compile needs, except input, threads, batch and seed. The program
 * must outlive engine_compile. */
void program_config(program *p, const dataset_info *data, engine_config *out);
double program_default_lr(const program *p); /* of the code */
/* Whether its schedule needs the validation losses of the epochs before. */
bool program_needs_history(const program *p);
/* The message if it does, and there will be none. */
#define PROGRAM_NO_HISTORY                                                                         \
    "the function's schedule (kml_plateau) goes by the validation losses, and nothing is "         \
    "validated between epochs: validate_every is 0, or the dataset has no test samples"
/* The learning rate of a step, a pure function of the arguments. `lr`: of the request. */
double program_lr(const program *p, double lr, int epochs, const schedule_point *at);
bool program_has_step(const program *p);
/* Makes one update; by the code's own step if it has one. */
int program_step(const program *p, engine *m, const engine_batch *b, double lr, engine_result *r,
                 err *e);

#endif
