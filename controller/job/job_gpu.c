/* job_gpu.c: the GPU of each function of a job. See job.c for the whole machine.
 *
 * The functions of a shared process are on one GPU, or wait for a GPU that has room for all of
 * them. The functions of a job with `merge: nccl` have a GPU each, as far as there are enough.
 *
 * A function's place is booked from the grant of its slot until its last pod has ended, so that a
 * GPU never holds more than is booked on it. A replacement takes over the place.
 *
 * Where another program assigns GPUs, the known GPUs are those that pods have shown. There a job
 * waits for places before it starts, but a place is only a wish until the function has a pod: then
 * the pod's GPU is the place. A replacement may be on another GPU than the process before it; both
 * are booked while both pods are there. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mutation.h"
#include "job_internal.h"

void jobs_gpus(jobs *m, gpu_policy policy, bool limits_threads, const uint64_t *memory_bytes,
               int count)
{
    assert(count >= 0 && count <= GPU_COUNT_MAX);
    m->gpu_policy = policy;
    m->gpus = count;
    for (int i = 0; i < count; i++)
        m->gpu[i] = (gpu_state){.memory_bytes = memory_bytes[i], .time_sliced = !limits_threads};
}

void jobs_gpus_elsewhere(jobs *m, gpu_policy policy)
{
    m->gpus_elsewhere = true;
    m->gpu_policy = policy;
}

static bool is_known(const jobs *m, int gpu)
{
    return gpu >= 0 && gpu < m->gpus && m->gpu[gpu].memory_bytes > 0;
}

static int first_known(const jobs *m)
{
    for (int i = 0; i < m->gpus; i++)
        if (is_known(m, i))
            return i;
    return -1;
}

/* Without any GPU, a job with `device: cuda` waits here for one; where another program assigns
 * GPUs, the function in its pod finds out. */
bool job_on_gpu(const jobs *m, const job *j)
{
    bool some = first_known(m) >= 0;
    return j->request.device == DEVICE_CUDA ? some || !m->gpus_elsewhere
                                            : j->request.device == DEVICE_AUTO && some;
}

int job_gpu(const job *j, int function)
{
    return function >= 0 && function < REQUEST_PARALLELISM_MAX ? j->gpu[function] - 1 : -1;
}

static void read_empty(const jobs *m, gpu_state out[GPU_COUNT_MAX])
{
    for (int i = 0; i < m->gpus; i++)
        out[i] = m->gpu[i];
}

static bool counted_before(const job *j, int i)
{
    for (int k = 0; k < i; k++)
        if (j->pod[k].function == j->pod[i].function && j->pod[k].gpu == j->pod[i].gpu &&
            pod_exists(&j->pod[k]))
            return true;
    return false;
}

/* Books pods on a GPU other than their function's place: the replacement is elsewhere. */
static void book_left(const job *j, gpu_state gpus[GPU_COUNT_MAX])
{
    for (int i = 0; i < j->pods; i++) {
        const job_pod *p = &j->pod[i];
        if (p->gpu && p->gpu != j->gpu[p->function] && pod_exists(p) && !counted_before(j, i))
            for (int n = 0; n < pod_functions(j, p); n++)
                gpu_book(&gpus[p->gpu - 1], j->request.gpu);
    }
}

void jobs_gpu_states(const jobs *m, gpu_state out[GPU_COUNT_MAX])
{
    read_empty(m, out);
    for (size_t k = 0; k < m->count; k++) {
        const job *j = m->job[k];
        for (int f = 0; f < j->gpu_functions; f++)
            if (j->gpu[f])
                gpu_book(&out[j->gpu[f] - 1], j->request.gpu);
        if (MUTATE(27, m->gpus_elsewhere, false))
            book_left(j, out);
    }
}

bool job_gpu_fill(const job *j, gpu_state *gpu)
{
    gpu_state filled = *gpu;
    int functions = j->request.process == PROCESS_SHARED ? j->request.default_parallelism : 1;
    for (int n = 0; n < functions; n++) {
        if (gpu_place(GPU_PACK, &filled, 1, j->request.gpu) < 0)
            return false;
        gpu_book(&filled, j->request.gpu);
    }
    *gpu = filled;
    return true;
}

/* ---- placing --------------------------------------------------------------------------------- */

/* A GPU with room for all functions of a shared process; -1: there is none. */
static int place_shared(const jobs *m, const job *j, const gpu_state gpus[GPU_COUNT_MAX])
{
    gpu_state roomy[GPU_COUNT_MAX];
    int index[GPU_COUNT_MAX], count = 0;
    for (int i = 0; i < m->gpus; i++) {
        gpu_state filled = gpus[i];
        if (job_gpu_fill(j, &filled)) {
            roomy[count] = gpus[i];
            index[count++] = i;
        }
    }
    int at = gpu_place(m->gpu_policy, roomy, count, j->request.gpu);
    return at < 0 ? -1 : index[at];
}

/* Places the functions of a shared process: all on one GPU, or none. */
static int count_shared(const jobs *m, const job *j, gpu_state gpus[GPU_COUNT_MAX], uint8_t *places)
{
    int functions = j->request.default_parallelism;
    if (places[0])
        return functions;
    int at = place_shared(m, j, gpus);
    for (int f = 0; at >= 0 && f < functions; f++) {
        gpu_book(&gpus[at], j->request.gpu);
        places[f] = (uint8_t)(at + 1);
    }
    return at < 0 ? 0 : functions;
}

/* For a job whose functions are NCCL ranks: a GPU with room that no function of the job is on; -1:
 * there is none. */
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

/* Places the first `functions`, except those that have a place. Returns how many have one then. */
static int count_places(const jobs *m, const job *j, int functions, gpu_state gpus[GPU_COUNT_MAX],
                        uint8_t *places)
{
    gpu_share share = j->request.gpu;
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
        gpu_book(&gpus[at], share);
        places[f] = (uint8_t)(at + 1);
    }
    return functions;
}

/* Reads the job's places whose GPU is still known. */
static void read_places(const jobs *m, const job *j, uint8_t places[REQUEST_PARALLELISM_MAX])
{
    for (int f = 0; f < REQUEST_PARALLELISM_MAX; f++)
        places[f] = is_known(m, job_gpu(j, f)) ? j->gpu[f] : 0;
}

/* Whether a pod of the job came on a GPU without room, and the next pod has not come yet. */
static bool lacks_a_place(const job *j)
{
    for (int i = 0; i < j->pods; i++) {
        const job_pod *p = &j->pod[i];
        if (p->unplaced && p->phase <= JOB_POD_TAKING && !p->name[0] && !p->unwanted)
            return true;
    }
    return false;
}

/* Whether `a` lacks a place, and gets the next free place before `j`: a began before j, or j has
 * not started. */
static bool lacks_before(const job *a, const job *j)
{
    bool before = !j || !job_active(j) || a->begun_ms < j->begun_ms ||
                  (a->begun_ms == j->begun_ms && a->order < j->order);
    return a != j && before && job_active(a) && !a->verdict && lacks_a_place(a);
}

void jobs_gpu_wishes(const jobs *m, const job *j, gpu_state gpus[GPU_COUNT_MAX])
{
    uint8_t places[REQUEST_PARALLELISM_MAX];
    for (size_t k = 0; k < m->count; k++) {
        const job *a = m->job[k];
        if (!lacks_before(a, j))
            continue;
        read_places(m, a, places);
        count_places(m, a, a->parallelism, gpus, places);
    }
}

/* Whether the job may start though not all of its functions have a place: their pods may come on
 * GPUs that are not known. */
static bool goes_without(const jobs *m, const job *j, int placed)
{
    return m->gpus_elsewhere && !j->request.static_parallelism && placed > 0;
}

int job_place(jobs *m, job *j, int functions)
{
    gpu_state gpus[GPU_COUNT_MAX];
    if (!job_on_gpu(m, j) || (m->gpus_elsewhere && job_active(j)))
        return functions; /* the pods decide the places */
    jobs_gpu_states(m, gpus);
    jobs_gpu_wishes(m, j, gpus);
    int placed = count_places(m, j, functions, gpus, j->gpu);
    j->gpu_functions = placed > j->gpu_functions ? placed : j->gpu_functions;
    return goes_without(m, j, placed) ? functions : placed;
}

/* How many of the first `functions` have a place, or find one now. */
static int count_room(const jobs *m, const job *j, int functions)
{
    gpu_state gpus[GPU_COUNT_MAX];
    uint8_t places[REQUEST_PARALLELISM_MAX];
    if (!job_on_gpu(m, j))
        return functions;
    jobs_gpu_states(m, gpus);
    jobs_gpu_wishes(m, j, gpus);
    read_places(m, j, places);
    return count_places(m, j, functions, gpus, places);
}

bool job_finds_room(const jobs *m, const job *j, int functions)
{
    int placed = count_room(m, j, functions);
    return placed >= functions || goes_without(m, j, placed);
}

bool job_waits_behind(const jobs *m, const job *j)
{
    bool behind = false;
    for (size_t k = 0; k < m->count && !behind; k++)
        behind = job_active(j) && lacks_before(m->job[k], j);
    return behind && count_room(m, j, j->parallelism) < j->parallelism;
}

static int count_places_empty(const jobs *m, const job *j, int functions)
{
    gpu_state gpus[GPU_COUNT_MAX];
    uint8_t places[REQUEST_PARALLELISM_MAX] = {0};
    read_empty(m, gpus);
    return count_places(m, j, functions, gpus, places);
}

int job_gpu_room(const jobs *m, const job *j, int functions)
{
    if (!job_on_gpu(m, j) || m->gpus_elsewhere)
        return functions;
    return count_places_empty(m, j, functions);
}

bool job_gpus_hold(const jobs *m, const job *j, int functions)
{
    if (!job_on_gpu(m, j))
        return true;
    int placed = count_places_empty(m, j, functions);
    return placed >= functions || goes_without(m, j, placed);
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

/* ---- GPUs of pods ---------------------------------------------------------------------------- */

static bool is_named(const jobs *m, int gpu)
{
    for (size_t k = 0; k < m->count; k++) {
        const job *j = m->job[k];
        for (int f = 0; f < j->gpu_functions; f++)
            if (j->gpu[f] == gpu + 1)
                return true;
        for (int i = 0; i < j->pods; i++)
            if (j->pod[i].gpu == gpu + 1)
                return true;
    }
    return false;
}

int jobs_gpu_add(jobs *m, int was, uint64_t memory_bytes, bool limits_threads)
{
    int at = was < 0 ? 0 : was;
    assert(m->gpus_elsewhere && memory_bytes > 0 && was < m->gpus);
    while (was < 0 && at < m->gpus && (is_known(m, at) || is_named(m, at)))
        at++;
    if (at == GPU_COUNT_MAX)
        return -1;
    m->gpus = at == m->gpus ? at + 1 : m->gpus;
    m->gpu[at] = (gpu_state){.memory_bytes = memory_bytes, .time_sliced = !limits_threads};
    return at;
}

void jobs_gpu_gone(jobs *m, int gpu)
{
    m->gpu[gpu].memory_bytes = 0;
}

/* Chooses an offered GPU for the function; its booked place, if offered. NCCL ranks go on separate
 * GPUs as long as there are enough; `strictly`: also if that GPU is not offered, which gives -1. */
static int choose(const jobs *m, const job *j, int function, const bool offered[GPU_COUNT_MAX],
                  bool strictly)
{
    gpu_state gpus[GPU_COUNT_MAX];
    uint8_t places[REQUEST_PARALLELISM_MAX];
    int first = job_process(j, function), own = job_gpu(j, first);
    bool ranks = j->request.merge == MERGE_NCCL;
    if (is_known(m, own) && offered[own])
        return own;
    jobs_gpu_states(m, gpus);
    read_places(m, j, places);
    places[first] = 0;
    if (!j->request.static_parallelism && count_places(m, j, first, gpus, places) < first)
        return -1; /* functions before it have no place yet, and come first */
    strictly = strictly && ranks &&
               (is_known(m, own) || place_apart(m, gpus, places, j->request.gpu) >= 0);
    for (int i = 0; i < m->gpus; i++)
        if (!offered[i])
            gpus[i].memory_bytes = 0;
    if (j->request.process == PROCESS_SHARED)
        return place_shared(m, j, gpus);
    int at = ranks ? place_apart(m, gpus, places, j->request.gpu) : -1;
    return at >= 0 || strictly ? at : gpu_place(m->gpu_policy, gpus, m->gpus, j->request.gpu);
}

bool jobs_gpu_places(const jobs *m, const char *id)
{
    const job *j = jobs_find(m, id);
    return j && job_on_gpu(m, j);
}

int jobs_gpu_choose(const jobs *m, const char *id, int function, const bool offered[GPU_COUNT_MAX])
{
    const job *j = jobs_find(m, id);
    return j && job_on_gpu(m, j) ? choose(m, j, function, offered, true) : -1;
}

bool jobs_gpu_fits(const jobs *m, const char *id, int function, int gpu)
{
    const job *j = jobs_find(m, id);
    bool offered[GPU_COUNT_MAX] = {false};
    offered[gpu] = true;
    return !jobs_gpu_places(m, id) || MUTATE(28, choose(m, j, function, offered, false) >= 0, true);
}

void job_settle(job *j, const job_pod *p)
{
    int end = p->function + pod_functions(j, p);
    for (int f = p->function; f < end; f++)
        j->gpu[f] = p->gpu;
    j->gpu_functions = end > j->gpu_functions ? end : j->gpu_functions;
    j->unsaved = true;
}

void jobs_gpu_book(jobs *m, const char *id, int function, int incarnation, int gpu)
{
    for (size_t k = 0; k < m->count; k++) {
        job *j = m->job[k];
        job_pod *p = strcmp(j->id, id) == 0 && function >= 0 && job_on_gpu(m, j)
                         ? pod_of(j, function, incarnation)
                         : NULL;
        if (p && p->phase == JOB_POD_TAKING) {
            p->gpu = (uint8_t)(gpu + 1);
            job_settle(j, p);
        }
    }
}

static bool waits_for_gpu(const jobs *m, const job *j)
{
    int wants = j ? job_wants(m, j) : 0;
    return j && wants <= jobs_slots_free(m) && !job_finds_room(m, j, wants);
}

const job *jobs_gpu_waiting(const jobs *m, int *pods)
{
    if (!m->gpus_elsewhere)
        return NULL;
    const job *j = jobs_next(m);
    if (!waits_for_gpu(m, j))
        j = jobs_head(m);
    if (!waits_for_gpu(m, j))
        return NULL;
    bool one = j->request.process == PROCESS_SHARED || !j->request.static_parallelism;
    *pods = one ? 1 : job_wants(m, j);
    return j;
}

/* ---- why it waits ---------------------------------------------------------------------------- */

static void say_free(const jobs *m, const gpu_state *gpus, char *out, size_t bytes)
{
    size_t used = 0;
    char on[24];
    out[0] = '\0';
    for (int i = first_known(m); i >= 0 && i < m->gpus && used < bytes; i++) {
        if (!is_known(m, i))
            continue;
        uint64_t taken = gpus[i].taken_bytes;
        snprintf(on, sizeof on, " on GPU %d", i);
        used += (size_t)snprintf(
            out + used, bytes - used, "%s%.1f of %.1f GiB%s", used ? ", " : "",
            (double)(taken < gpus[i].memory_bytes ? gpus[i].memory_bytes - taken : 0) / 0x1p30,
            (double)gpus[i].memory_bytes / 0x1p30, used ? "" : on);
    }
}

static uint64_t largest(const jobs *m)
{
    uint64_t most = 0;
    for (int i = 0; i < m->gpus; i++)
        most = m->gpu[i].memory_bytes > most ? m->gpu[i].memory_bytes : most;
    return most;
}

/* Whether a GPU has the memory for the share, but not the threads. */
static bool lacks_threads(const jobs *m, const gpu_state *gpus, gpu_share share)
{
    gpu_share memory_alone = {.memory_bytes = share.memory_bytes};
    for (int i = 0; i < m->gpus; i++)
        if (!gpus[i].time_sliced && gpu_place(m->gpu_policy, &gpus[i], 1, memory_alone) == 0)
            return share.threads > 0;
    return false;
}

bool job_explain_gpu(const jobs *m, const job *j, int functions, const gpu_state *booked,
                     job_reason *out)
{
    gpu_state gpus[GPU_COUNT_MAX];
    uint8_t places[REQUEST_PARALLELISM_MAX];
    int first = first_known(m);
    if (!job_on_gpu(m, j))
        return false;
    if (first < 0) {
        snprintf(out->reason, sizeof out->reason, "NoGpu");
        snprintf(out->message, sizeof out->message,
                 "it wants a GPU, and this platform knows none that it could use");
        return true;
    }
    memcpy(gpus, booked, sizeof gpus);
    read_places(m, j, places);
    int placed = count_places(m, j, functions, gpus, places);
    if (placed >= functions || goes_without(m, j, placed))
        return false;
    gpu_share share = j->request.gpu;
    bool threads = lacks_threads(m, booked, share);
    char free_text[120];
    say_free(m, booked, free_text, sizeof free_text);
    snprintf(out->reason, sizeof out->reason, threads ? "NoGpuThreads" : "NoGpuMemory");
    bool shared = j->request.process == PROCESS_SHARED;
    if (shared)
        snprintf(out->message, sizeof out->message,
                 "its %d functions share a process and need %.1f GiB of GPU memory%s on one GPU; "
                 "free is %s",
                 functions, functions * (double)gpu_share_bytes(&booked[first], share) / 0x1p30,
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
            functions, (double)gpu_share_bytes(&booked[first], share) / 0x1p30, placed, free_text);
    return true;
}
