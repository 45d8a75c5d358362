/* job_gpu.c: on which GPU each function of a job is. See job.c for the whole machine.
 *
 * The functions of a shared process have one GPU, or wait for one that has room for all of them.
 * Those of a job with `merge: nccl` have GPUs of their own as far as there are any.
 *
 * A function's place is booked from the grant of its slot until its last pod has ended, so that
 * what stands in a GPU's books is never less than what is there. A replacement takes the place of
 * the one before it. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "job_internal.h"
#include "mutation.h"

void jobs_gpus(jobs *m, gpu_policy policy, bool limits_threads, const uint64_t *memory_bytes,
               int count)
{
    assert(count >= 0 && count <= GPU_COUNT_MAX);
    m->gpu_policy = policy;
    m->gpu_threads = limits_threads;
    m->gpus = count;
    for (int i = 0; i < count; i++)
        m->gpu_bytes[i] = memory_bytes[i];
}

bool job_on_gpu(const jobs *m, const job *j)
{
    return j->request.device == DEVICE_CUDA ? !m->gpus_elsewhere
                                            : j->request.device == DEVICE_AUTO && m->gpus > 0;
}

void jobs_gpus_elsewhere(jobs *m)
{
    m->gpus_elsewhere = true;
}

int job_gpu(const job *j, int function)
{
    return function >= 0 && function < REQUEST_PARALLELISM_MAX ? j->gpu[function] - 1 : -1;
}

/* What one function of the job is counted with. Threads are nothing that anybody holds to without
 * MPS. */
static gpu_share share_of(const jobs *m, const job *j)
{
    gpu_share share = j->request.gpu;
    if (!m->gpu_threads)
        share.threads = 0;
    return share;
}

static void book(gpu_state *g, gpu_share share)
{
    g->taken_bytes += gpu_share_bytes(g, share);
    g->threads_taken += share.threads;
    g->functions++;
}

static void read_empty(const jobs *m, gpu_state out[GPU_COUNT_MAX])
{
    for (int i = 0; i < m->gpus; i++)
        out[i] = (gpu_state){.memory_bytes = m->gpu_bytes[i]};
}

void jobs_gpu_states(const jobs *m, gpu_state out[GPU_COUNT_MAX])
{
    read_empty(m, out);
    for (size_t k = 0; k < m->count; k++) {
        const job *j = m->job[k];
        for (int f = 0; f < j->gpu_functions; f++)
            if (j->gpu[f])
                book(&out[j->gpu[f] - 1], share_of(m, j));
    }
}

/* The functions of a shared process: all on one GPU, or none anywhere. */
static int count_shared(const jobs *m, const job *j, gpu_state gpus[GPU_COUNT_MAX], uint8_t *places)
{
    int functions = j->request.default_parallelism, count = 0, index[GPU_COUNT_MAX];
    gpu_share share = share_of(m, j);
    gpu_state roomy[GPU_COUNT_MAX];
    if (places[0])
        return functions;
    for (int i = 0; i < m->gpus; i++) {
        gpu_state filled = gpus[i];
        int n = 0;
        for (; n < functions && gpu_place(m->gpu_policy, &filled, 1, share) == 0; n++)
            book(&filled, share);
        if (n == functions) {
            roomy[count] = gpus[i];
            index[count++] = i;
        }
    }
    int at = gpu_place(m->gpu_policy, roomy, count, share);
    for (int f = 0; at >= 0 && f < functions; f++) {
        book(&gpus[index[at]], share);
        places[f] = (uint8_t)(index[at] + 1);
    }
    return at < 0 ? 0 : functions;
}

/* Of a job whose functions are to be ranks of NCCL's: a GPU on which none of it is, as long as
 * there is one with room. */
static int place_apart(const jobs *m, const gpu_state gpus[GPU_COUNT_MAX], const uint8_t *places,
                       gpu_share share)
{
    gpu_state untouched[GPU_COUNT_MAX];
    int index[GPU_COUNT_MAX], count = 0;
    for (int i = 0; i < m->gpus; i++) {
        bool taken = false;
        for (int f = 0; f < REQUEST_PARALLELISM_MAX && !taken; f++)
            taken = places[f] == i + 1;
        if (!taken) {
            untouched[count] = gpus[i];
            index[count++] = i;
        }
    }
    int at = gpu_place(m->gpu_policy, untouched, count, share);
    return at < 0 ? -1 : index[at];
}

/* How many of the first `functions` can have a place, beside those that have one. */
static int count_places(const jobs *m, const job *j, int functions, gpu_state gpus[GPU_COUNT_MAX],
                        uint8_t *places)
{
    gpu_share share = share_of(m, j);
    if (j->request.process == PROCESS_SHARED)
        return count_shared(m, j, gpus, places);
    for (int f = 0; f < functions; f++) {
        if (places[f])
            continue;
        int at = MUTATE(26, j->request.merge == MERGE_NCCL, false)
                     ? place_apart(m, gpus, places, share)
                     : -1;
        if (at < 0)
            at = gpu_place(m->gpu_policy, gpus, m->gpus, share);
        if (at < 0)
            return f;
        book(&gpus[at], share);
        places[f] = (uint8_t)(at + 1);
    }
    return functions;
}

int job_place(jobs *m, job *j, int functions)
{
    gpu_state gpus[GPU_COUNT_MAX];
    if (!job_on_gpu(m, j))
        return functions;
    jobs_gpu_states(m, gpus);
    int placed = count_places(m, j, functions, gpus, j->gpu);
    j->gpu_functions = placed > j->gpu_functions ? placed : j->gpu_functions;
    return placed;
}

int job_gpu_room(const jobs *m, const job *j, int functions)
{
    gpu_state gpus[GPU_COUNT_MAX];
    uint8_t places[REQUEST_PARALLELISM_MAX] = {0};
    if (!job_on_gpu(m, j))
        return functions;
    read_empty(m, gpus);
    return count_places(m, j, functions, gpus, places);
}

void job_unplace(job *j)
{
    int granted = job_active(j) ? j->parallelism : 0, last = 0;
    for (int f = 0; f < j->gpu_functions; f++) {
        if (f >= granted && MUTATE(23, !job_function_exists(j, f), true))
            j->gpu[f] = 0;
        if (j->gpu[f])
            last = f + 1;
    }
    j->gpu_functions = last;
}

void jobs_unplace(jobs *m)
{
    for (size_t k = 0; k < m->count; k++)
        if (m->job[k]->gpu_functions)
            job_unplace(m->job[k]);
}

/* ---- why it waits ---------------------------------------------------------------------------- */

static void say_free(const jobs *m, const gpu_state *gpus, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < m->gpus && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%.1f of %.1f GiB%s", i ? ", " : "",
                                 (double)(gpus[i].memory_bytes - gpus[i].taken_bytes) / 0x1p30,
                                 (double)gpus[i].memory_bytes / 0x1p30, i ? "" : " on GPU 0");
}

static uint64_t largest(const jobs *m)
{
    uint64_t most = 0;
    for (int i = 0; i < m->gpus; i++)
        most = m->gpu_bytes[i] > most ? m->gpu_bytes[i] : most;
    return most;
}

bool job_explain_gpu(const jobs *m, const job *j, int functions, job_reason *out)
{
    gpu_state gpus[GPU_COUNT_MAX];
    uint8_t places[REQUEST_PARALLELISM_MAX];
    if (!job_on_gpu(m, j))
        return false;
    if (m->gpus == 0) {
        snprintf(out->reason, sizeof out->reason, "NoGpu");
        snprintf(out->message, sizeof out->message,
                 "it wants a GPU, and this platform knows none that it could use");
        return true;
    }
    jobs_gpu_states(m, gpus);
    memcpy(places, j->gpu, sizeof places);
    int placed = count_places(m, j, functions, gpus, places);
    if (placed >= functions)
        return false;
    jobs_gpu_states(m, gpus);
    gpu_share share = share_of(m, j), memory_alone = {.memory_bytes = share.memory_bytes};
    bool threads = share.threads && gpu_place(m->gpu_policy, gpus, m->gpus, memory_alone) >= 0;
    char free_text[120];
    say_free(m, gpus, free_text, sizeof free_text);
    snprintf(out->reason, sizeof out->reason, threads ? "NoGpuThreads" : "NoGpuMemory");
    bool shared = j->request.process == PROCESS_SHARED;
    if (shared)
        snprintf(out->message, sizeof out->message,
                 "its %d functions share a process and need %.1f GiB of GPU memory%s on one GPU; "
                 "free is %s",
                 functions, functions * (double)gpu_share_bytes(&gpus[0], share) / 0x1p30,
                 threads ? " and the threads" : "", free_text);
    else if (share.memory_bytes > largest(m))
        snprintf(out->message, sizeof out->message,
                 "a function of it needs %.1f GiB of GPU memory, and the largest GPU has %.1f GiB",
                 (double)share.memory_bytes / 0x1p30, (double)largest(m) / 0x1p30);
    else if (threads)
        snprintf(
            out->message, sizeof out->message,
            "each of its %d functions needs %d %% of a GPU's threads, and %d find a place; free is %s",
            functions, share.threads, placed, free_text);
    else
        snprintf(
            out->message, sizeof out->message,
            "each of its %d functions needs %.1f GiB of GPU memory, and %d find a place; free is %s",
            functions, (double)gpu_share_bytes(&gpus[0], share) / 0x1p30, placed, free_text);
    return true;
}
