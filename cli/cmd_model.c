/* cmd_model.c: kubeml model export, kubeml zoo list. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"

typedef struct target {
    FILE *file;
    progress bar;
} target;

static int write_file(void *context, const char *bytes, size_t len)
{
    return fwrite(bytes, 1, len, ((target *)context)->file) == len ? 0 : 1;
}

static void show(void *context, uint64_t done, uint64_t total)
{
    progress_update(&((target *)context)->bar, done, total);
}

/* Downloads into a temporary file beside the target, then renames: a broken download leaves no half
 * model under the name. */
static int download(const cli *c, const char *path, const char *to, err *e)
{
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.part-%d", to, (int)getpid()) >=
        sizeof temporary)
        return err_set(e, ERR_LIMIT, "the file's name has more than %zu bytes",
                       sizeof temporary - 16);
    target t = {.file = fopen(temporary, "wbx")};
    if (!t.file)
        return err_set_errno(e, errno, "%s", temporary);
    progress_begin(&t.bar, to);
    http_call call = {.method = "GET", .accept = "*/*", .sink = write_file, .progress = show,
                      .context = &t};
    http_reply reply;
    int status = cli_call_raw(c, &call, path, &reply, e);
    progress_end(&t.bar);
    http_reply_free(&reply);
    bool broken = ferror(t.file) != 0;
    if ((fclose(t.file) || broken) && status == 0)
        status = err_set_errno(e, errno ? errno : EIO, "%s", temporary);
    if (status == 0 && rename(temporary, to))
        status = err_set_errno(e, errno, "%s", to);
    if (status)
        unlink(temporary);
    return status;
}

int cmd_model_export(cli *c, int argc, char **argv)
{
    const char *id = NULL, *output = NULL;
    const cli_option more[] = {{"output", 'o', OPTION_TEXT, "FILE",
                                "where to: safetensors, as PyTorch loads it; .npz for numpy",
                                &output, NULL, true, false},
                               {NULL, 0, OPTION_FLAG, NULL, NULL, NULL, NULL, false, false}};
    OBJECT_ID(c, argc, argv, more, &id);
    size_t len = strlen(output);
    bool npz = len > 4 && strcmp(output + len - 4, ".npz") == 0;
    err e = ERR_INIT;
    if (download(c, cli_path("/model/", id, npz ? "?format=npz" : "?format=safetensors"), output,
                 &e))
        return cli_fail(&e);
    printf("model of job %s in %s\n", id, output);
    return CLI_OK;
}

int cmd_zoo_list(cli *c, int argc, char **argv)
{
    static const cli_column columns[] = {
        {"NAME", "name", false, NULL, false},
        {"PARAMETERS", "parameters", false, NULL, true},
        {"ABOUT", "summary", false, NULL, false},
        {NULL, NULL, false, NULL, false},
    };
    return object_list(c, argc, argv, "/zoo", columns, false, "the zoo is empty");
}
