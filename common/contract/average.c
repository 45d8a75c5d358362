/* average.c: see average.h. */
#include "average.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"

const char *average_path_name(average_path path)
{
    static const char *const names[] = {[AVERAGE_HOST] = "host",
                                        [AVERAGE_DEVICE] = "device",
                                        [AVERAGE_LENT] = "ipc",
                                        [AVERAGE_NCCL] = "nccl"};
    return names[path];
}

/* How many GPUs the functions are on; 0: one of them at least computes on a CPU. */
static int count_gpus(const average_facts *f)
{
    int count = 0;
    for (int i = 0; i < f->functions; i++) {
        bool seen = false;
        if (!f->device || f->device[i] < 0)
            return 0;
        for (int k = 0; k < i && !seen; k++)
            seen = f->device[k] == f->device[i];
        count += !seen;
    }
    return count;
}

static void choose(average_choice *out, average_path path, const char *text)
{
    out->path = path;
    out->exact = path != AVERAGE_NCCL;
    snprintf(out->text, sizeof out->text, "%s", text);
}

static void choose_host(const average_facts *f, average_choice *out)
{
    char text[AVERAGE_TEXT_BYTES];
    const char *on = !f->why_not                      ? ""
                     : f->wish == AVERAGE_NCCL_WANTED ? "; not by NCCL: "
                                                      : "; not on a GPU: ";
    text_print(text, sizeof text,
               "models are averaged on the host, in function order, through %s%s%.200s",
               f->carrier && strcmp(f->carrier, "shm") == 0 ? "shared memory" : "sockets", on,
               f->why_not ? f->why_not : "");
    choose(out, AVERAGE_HOST, text);
}

static int refuse_nccl(const average_facts *f, int gpus, err *e)
{
    if (f->weights_alone)
        return err_set(e, ERR_UNSUPPORTED,
                       "merge: nccl averages the optimizer's state with the weights");
    return gpus == 0 ? err_set(e, ERR_UNSUPPORTED,
                               "merge: nccl averages on GPUs, and not every function has one")
                     : 0;
}

static const char between_gpus[] =
    "models are averaged between their GPUs by NCCL, whose order of summation is its own";

int average_choose(const average_facts *f, average_choice *out, err *e)
{
    assert(f->functions >= 1 && f->functions <= AVERAGE_FUNCTIONS_MAX);
    int gpus = count_gpus(f);
    bool wanted = f->wish == AVERAGE_NCCL_WANTED;
    if (wanted && f->one_process && refuse_nccl(f, gpus, e) != 0)
        return -1;
    if (!f->one_process && f->lent)
        choose(out, AVERAGE_LENT,
               "models are averaged on their one GPU, in function order, by CUDA IPC");
    else if (!f->one_process && f->ranks)
        choose(out, AVERAGE_NCCL, between_gpus);
    else if (!f->one_process)
        choose_host(f, out);
    else if (gpus == 0)
        choose(out, AVERAGE_HOST,
               "models are averaged on the host, in function order: not every function has a GPU");
    else if (f->weights_alone)
        choose(out, AVERAGE_HOST,
               "models are averaged on the host, in function order: weights alone, without "
               "optimizer state");
    else if (gpus == 1)
        choose(out, AVERAGE_DEVICE, "models are averaged on their one GPU, in function order");
    else if (wanted)
        choose(out, AVERAGE_NCCL, between_gpus);
    else
        choose(out, AVERAGE_HOST,
               "models are averaged on the host, in function order: they are on several GPUs, and "
               "NCCL, whose order is its own, was not asked for");
    return 0;
}
