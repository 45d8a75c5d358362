/* redis_program.c: see redis_program.h. */
#include "redis_program.h"

#include "common/base/fs.h"

int redis_program_find(const char *program, err *e)
{
    char path[FS_PATH_BYTES];
    return fs_find_program(program, path)
               ? 0
               : err_set(e, ERR_NOT_FOUND,
                         "%s is not installed here; install the package redis-server", program);
}
