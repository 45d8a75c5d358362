/* registry.h: functions: a name, immutable versions by digest, and each version's compiled object.
 *
 * Records are JSON, as the API shows them. */
#ifndef KUBEML_CONTROLLER_REGISTRY_H
#define KUBEML_CONTROLLER_REGISTRY_H

#include "common/compile/builder.h"
#include "controller/controller.h"

typedef struct registry_upload {
    builder_source files[BUILDER_FILES_MAX];
    size_t count;
    const char *model; /* of the zoo, instead of files; with its options, in zoo.h's form */
} registry_upload;

/* Compiles and stores an upload. `update` makes a new version of an existing function; without it
 * an existing name is ERR_EXISTS. A compile error is kept (build_failure.h). *out is a new
 * reference. So is *said, the compiler's output as members of the response, on success and on
 * failure, where the compiler ran. */
int registry_put(controller *c, const char *name, const registry_upload *u, bool update,
                 json_t **out, json_t **said, err *e);
int registry_get(controller *c, const char *name, json_t **out, err *e);
/* `delete_unused` is job_delete_function, which knows what jobs use: ERR_CONFLICT while a job uses
 * the function. ERR_NOT_FOUND. */
int registry_delete(controller *c, const char *name,
                    int (*delete_unused)(job_manager *o, const char *name, err *e), err *e);
/* The version in use, and why the last upload failed. ERR_NOT_FOUND where there is neither. */
int registry_explain(controller *c, const char *name, json_t **out, err *e);

#endif
