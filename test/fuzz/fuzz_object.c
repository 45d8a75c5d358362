/* fuzz_object.c: an ELF object that a compiler made of somebody's code. */
#include "common/base/process.h"
#include "fuzz.h"

FUZZ(object)
{
    err e = ERR_INIT;
    int rc = builder_object_check(bytes, len, "kubeml_function", &e);
    FUZZ_CHECK((rc == 0) == (e.code == ERR_NONE) && (rc == 0 || e.code == ERR_INVALID));
    return 0;
}
