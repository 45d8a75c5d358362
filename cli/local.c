/* local.c: the home folder and the programs of the platform on this machine. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

const char *local_home(void)
{
    static char path[PATH_MAX];
    const char *given = getenv("KUBEML_HOME");
    const char *home = getenv("HOME");
    if (given && *given)
        snprintf(path, sizeof path, "%s", given);
    else
        snprintf(path, sizeof path, "%s/.kubeml", home && *home ? home : "/root");
    return path;
}

const char *local_program(const char *name)
{
    static char path[PATH_MAX + 64];
    char self[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len > 0) {
        self[len] = '\0';
        char *slash = strrchr(self, '/');
        *slash = '\0';
        snprintf(path, sizeof path, "%s/%s", self, name);
        if (access(path, X_OK) == 0)
            return path;
    }
    snprintf(path, sizeof path, "%s", name);
    return path;
}
