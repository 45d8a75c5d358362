/* redis_program.c: see redis_program.h. */
#include "redis_program.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs.h"

static bool is_program(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) && access(path, X_OK) == 0;
}

static bool is_in(const char *folders, const char *program)
{
    for (const char *at = folders;; at++) {
        char path[FS_PATH_BYTES];
        int len = (int)strcspn(at, ":"); /* none: the present folder */
        int whole = snprintf(path, sizeof path, "%.*s%s%s", len, at, len ? "/" : "./", program);
        if (whole < (int)sizeof path && is_program(path))
            return true;
        at += len;
        if (!*at)
            return false;
    }
}

int redis_program_find(const char *program, err *e)
{
    const char *folders = getenv("PATH");
    bool there = strchr(program, '/') ? is_program(program)
                                      : is_in(folders ? folders : "/bin:/usr/bin", program);
    if (there)
        return 0;
    return err_set(e, ERR_NOT_FOUND, "%s is not installed here; install the package redis-server",
                   program);
}
