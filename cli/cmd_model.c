/* cmd_model.c: kubeml model export, kubeml zoo list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "common/base/cleanup.h"
#include "common/base/fs.h"

typedef struct target {
    fs_output out;
    progress bar;
    err why; /* a write error */
} target;

static int write_file(void *context, const char *bytes, size_t len)
{
    target *t = context;
    return fs_output_write(&t->out, bytes, len, &t->why) ? 1 : 0;
}

static void show(void *context, uint64_t done, uint64_t total)
{
    progress_update(&((target *)context)->bar, done, total);
}

/* Downloads to a file. A broken download leaves no half model under the name. */
static int download(const cli *c, const char *path, const char *to, err *e)
{
    target t = {.why = ERR_INIT};
    if (fs_output_open(&t.out, to, e))
        return -1;
    progress_begin(&t.bar, to);
    http_call call = {.method = "GET",
                      .accept = "*/*",
                      .sink = write_file,
                      .progress = show,
                      .context = &t,
                      .idle_s = CLI_BUSY_S};
    http_reply reply;
    int status = cli_call_raw(c, &call, path, &reply, e);
    progress_end(&t.bar);
    http_reply_free(&reply);
    if (t.why.code != ERR_NONE) {
        *e = t.why;
        status = -1;
    }
    return fs_output_close(&t.out, status == 0, e) ? -1 : status;
}

int cmd_model_export(cli *c, int argc, char **argv)
{
    const char *id = NULL, *output = NULL;
    const cli_option more[] = {{"output", 'o', OPTION_TEXT, "FILE",
                                "safetensors file for PyTorch; .npz: for numpy; -: standard output",
                                &output, NULL, true, false},
                               {.name = NULL}};
    OBJECT_NAME(c, argc, argv, &object_job, more, &id);
    /* Writes to standard output, and does not replace its file, which may have contents already. */
    if (strcmp(output, "-") == 0 || strcmp(output, "/dev/stdout") == 0)
        return cli_print(c, cli_path("/model/", id, "?format=safetensors"), "*/*", false,
                         CLI_BUSY_S);
    size_t len = strlen(output);
    bool npz = len > 4 && strcmp(output + len - 4, ".npz") == 0;
    err e = ERR_INIT;
    if (download(c, cli_path("/model/", id, npz ? "?format=npz" : "?format=safetensors"), output,
                 &e))
        return cli_fail(&e);
    /* The message goes to stderr where standard output is, or may be, the model. */
    struct stat about;
    bool file = stat(output, &about) == 0 && S_ISREG(about.st_mode) && strncmp(output, "/dev/", 5);
    fprintf(file ? stdout : stderr, "model of job %s in %s\n", id, output);
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
