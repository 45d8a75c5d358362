/* reduce_placement.c: see reduce_placement.h. */
#include "reduce_placement.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"

const char *reduce_path_name(reduce_path path)
{
    static const char *const names[] = {[REDUCE_HOST] = "host",
                                        [REDUCE_DEVICE] = "device",
                                        [REDUCE_IPC] = "ipc",
                                        [REDUCE_NCCL] = "nccl"};
    return names[path];
}

/* The number of GPUs that the functions use; 0: at least one function computes on a CPU. */
static int count_gpus(const reduce_facts *f)
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

static void choose(reduce_placement *out, reduce_path path, const char *text)
{
    out->path = path;
    out->exact = path != REDUCE_NCCL;
    snprintf(out->text, sizeof out->text, "%s", text);
}

static void choose_host(const reduce_facts *f, reduce_placement *out)
{
    char text[REDUCE_TEXT_BYTES];
    const char *on = !f->why_not                     ? ""
                     : f->wish == REDUCE_NCCL_WANTED ? "; not by NCCL: "
                                                     : "; not on a GPU: ";
    text_print(text, sizeof text,
               "models are averaged on the host, in function order, through %s%s%.200s",
               f->tensor_path && strcmp(f->tensor_path, "shm") == 0 ? "shared memory" : "sockets",
               on, f->why_not ? f->why_not : "");
    choose(out, REDUCE_HOST, text);
}

static int refuse_nccl(const reduce_facts *f, int gpus, err *e)
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

int reduce_placement_choose(const reduce_facts *f, reduce_placement *out, err *e)
{
    assert(f->functions >= 1 && f->functions <= REDUCE_FUNCTIONS_MAX);
    int gpus = count_gpus(f);
    bool wanted = f->wish == REDUCE_NCCL_WANTED;
    if (wanted && f->one_process && refuse_nccl(f, gpus, e) != 0)
        return -1;
    if (!f->one_process && f->ipc)
        choose(out, REDUCE_IPC,
               "models are averaged on their one GPU, in function order, by CUDA IPC");
    else if (!f->one_process && f->ranks)
        choose(out, REDUCE_NCCL, between_gpus);
    else if (!f->one_process)
        choose_host(f, out);
    else if (gpus == 0)
        choose(out, REDUCE_HOST,
               "models are averaged on the host, in function order: not every function has a GPU");
    else if (f->weights_alone)
        choose(out, REDUCE_HOST,
               "models are averaged on the host, in function order: weights alone, without "
               "optimizer state");
    else if (gpus == 1)
        choose(out, REDUCE_DEVICE, "models are averaged on their one GPU, in function order");
    else if (wanted)
        choose(out, REDUCE_NCCL, between_gpus);
    else
        choose(out, REDUCE_HOST,
               "models are averaged on the host, in function order: they are on several GPUs, and "
               "NCCL, whose order is its own, was not asked for");
    return 0;
}
