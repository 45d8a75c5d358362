/* registry.h: functions: a name, its immutable versions by digest, and the object each was built
 * to.
 *
 * Records are JSON, as the API shows them. */
#ifndef KUBEML_CONTROLLER_REGISTRY_H
#define KUBEML_CONTROLLER_REGISTRY_H

#include "common/compile/builder.h"
#include "controller/controller.h"

typedef struct registry_upload {
    builder_source files[BUILDER_FILES_MAX];
    size_t count;
    const char *model; /* of the zoo, instead of files; with its options as zoo.h's text */
} registry_upload;

/* Compiles and stores; `update`: a new version of an existing one, otherwise ERR_EXISTS. A compile
 * error is kept (build_failure.h). *out is a new reference, and so is *said, what the compiler said
 * where it was called, well or not: members for an answer. */
int registry_put(controller *c, const char *name, const registry_upload *u, bool update,
                 json_t **out, json_t **said, err *e);
int registry_get(controller *c, const char *name, json_t **out, err *e);
/* `delete_unused` is job_delete_function, which knows what jobs use: ERR_CONFLICT while one uses
 * the function. ERR_NOT_FOUND. */
int registry_delete(controller *c, const char *name,
                    int (*delete_unused)(job_manager *o, const char *name, err *e), err *e);
/* The version in use, and why the last upload was refused. ERR_NOT_FOUND where there is neither. */
int registry_explain(controller *c, const char *name, json_t **out, err *e);

#endif
