/* fs_program.c: fs_find_program of fs.h. */
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

bool fs_find_program(const char *name, char path[FS_PATH_BYTES])
{
    if (strchr(name, '/'))
        return fs_path(path, NULL, "%s", name) == 0 && is_program(path);
    const char *folders = getenv("PATH");
    for (const char *at = folders ? folders : "/bin:/usr/bin";; at++) {
        int len = (int)strcspn(at, ":"); /* 0: the current folder */
        if (fs_path(path, NULL, "%.*s%s%s", len, at, len ? "/" : "./", name) == 0 &&
            is_program(path))
            return true;
        at += len;
        if (!*at)
            return false;
    }
}
