/* member_open.c: from the message `specialise` to a compiled model. See member.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "function-runtime/base/crash.h"
#include "function-runtime/base/fetch.h"
#include "function-runtime/base/function_gpu.h"
#include "function-runtime/sandbox/sandbox.h"
#include "kernels/backend.h"
#include "kernels/zoo/zoo.h"
#include "member_internal.h"

enum { OPEN_FILES_MAX = 256 };
static const uint64_t log_bytes_max = UINT64_C(1) << 30;

/* ---- the order ------------------------------------------------------------------------------- */

static int take_text(const json_t *from, const char *field, char *out, size_t room, err *e)
{
    const char *text = json_string_value(json_object_get(from, field));
    if (!text || strlen(text) >= room)
        return err_set(e, ERR_INVALID, "specialise: field %s is %s", field,
                       text ? "too long" : "not a text");
    strcpy(out, text); /* the length was just checked */
    return 0;
}

static int take_int(const json_t *from, const char *field, int min, int max, int *out, err *e)
{
    const json_t *v = json_object_get(from, field);
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < min || n > max)
        return err_set(e, ERR_INVALID, "specialise: field %s is not a number from %d to %d", field,
                       min, max);
    *out = (int)n;
    return 0;
}

/* Reads the GPU memory that is booked for the function; without a place it is the job's request. */
static int read_gpu_share(const json_t *order, member *m, err *e)
{
    const json_t *booked = json_object_get(order, "gpu_memory");
    json_int_t bytes = json_integer_value(booked);
    if (booked && (!json_is_integer(booked) || bytes < 0 || bytes >= (json_int_t)1 << 53))
        return err_set(e, ERR_INVALID, "specialise: field gpu_memory is no number of bytes");
    m->gpu_bytes = booked ? (uint64_t)bytes : m->request.gpu.memory_bytes;
    return 0;
}

static int read_places(const json_t *order, member *m, err *e)
{
    const json_t *access = json_object_get(order, "access");
    if (take_text(access, "address", m->address, sizeof m->address, e) != 0 ||
        modelstore_access_parse(json_object_get(access, "model"), &m->access, e) != 0 ||
        take_text(json_object_get(order, "dataset"), "locator", m->locator, sizeof m->locator, e) !=
            0 ||
        take_text(order, "object", m->object, sizeof m->object, e) != 0)
        return -1;
    m->access.carried = &m->carried;
    const json_t *path = json_object_get(order, "object_path");
    if (json_is_string(path) &&
        take_text(order, "object_path", m->object_path, sizeof m->object_path, e) != 0)
        return -1;
    return 0;
}

int member_read_order(const json_t *order, member *m, err *e)
{
    if (take_text(order, "job", m->job, sizeof m->job, e) != 0 ||
        take_text(order, "secret", m->secret, sizeof m->secret, e) != 0 ||
        take_int(order, "function", 0, REQUEST_PARALLELISM_MAX - 1, &m->function, e) != 0 ||
        take_int(order, "incarnation", 0, 1 << 30, &m->incarnation, e) != 0 ||
        take_int(order, "threads", 0, ENGINE_THREADS_MAX, &m->threads, e) != 0 ||
        read_places(order, m, e) != 0 ||
        request_parse(json_object_get(order, "request"), &m->request, e) != 0 ||
        read_gpu_share(order, m, e) != 0)
        return -1;
    m->functions = 1;
    if (m->request.process == PROCESS_SHARED) {
        if (take_int(order, "functions", 1, GROUP_FUNCTIONS_MAX, &m->functions, e) != 0)
            return -1;
        /* the process's share is the sum of its functions' shares */
        m->gpu_bytes *= (uint64_t)m->functions;
        m->request.gpu.memory_bytes *= (uint64_t)m->functions;
        m->request.gpu.threads *= m->functions;
        if (m->request.gpu.threads > 100)
            m->request.gpu.threads = 100; /* percent: all threads */
    }
    if (json_is_string(json_object_get(order, "backend")) &&
        take_text(order, "backend", m->backend, sizeof m->backend, e) != 0)
        return -1;
    if (json_is_string(json_object_get(order, "gpu")) &&
        take_text(order, "gpu", m->gpu, sizeof m->gpu, e) != 0)
        return -1;
    return 0;
}

const char *member_cpu(void)
{
    static char name[80];
    struct utsname u;
    uname(&u);
    const char *level = "";
#if defined(__x86_64__)
    level = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? "-v4"
            : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")       ? "-v3"
                                                                                    : "-v2";
#endif
    snprintf(name, sizeof name, "%s%s", u.machine, level);
    return name;
}

/* ---- the sandbox ----------------------------------------------------------------------------- */

static void add_port(sandbox *s, uint16_t port)
{
    for (int i = 0; i < SANDBOX_PORTS_MAX; i++)
        if (s->tcp_ports[i] == 0 || s->tcp_ports[i] == port) {
            s->tcp_ports[i] = port;
            return;
        }
}

static void add_address(sandbox *s, const char *address)
{
    const char *colon = strrchr(address, ':');
    if (strncmp(address, "tcp:", 4) == 0 && colon)
        add_port(s, (uint16_t)strtoul(colon + 1, NULL, 10));
}

/* Allows the store's files and ports: chunks are read during training, and the store's driver makes
 * connections as it needs them. */
static void add_store(sandbox *s, int reads, const store_reach *reach)
{
    for (int i = 0; reach->files[i]; i++)
        s->read_folders[reads++] = reach->files[i];
    for (int i = 0; reach->tcp_ports[i]; i++)
        add_port(s, reach->tcp_ports[i]);
}

/* Whether the function dials a Unix socket again after a connection breaks. */
static bool dials_unix_sockets(const member *m)
{
    return strncmp(m->address, "unix:", 5) == 0 || strncmp(m->access.address, "unix:", 5) == 0;
}

static int enter_sandbox(member *m, bool on_gpu, err *e)
{
    /* The kernel has one limit for all files: the larger of the log's and the dataset's scratch
     * file's. */
    uint64_t kept = dataset_scratch_bytes(m->data);
    sandbox s = {.file_bytes = kept > log_bytes_max ? kept : log_bytes_max,
                 .open_files = OPEN_FILES_MAX};
    char report[SANDBOX_REPORT_BYTES], marker[256], libraries[256];
    char devices[FUNCTION_GPU_DEVICES_MAX][FUNCTION_GPU_DEVICE_BYTES];
    int reads = 0, writes = 0;
    store_reach reach;
    dataset_reach(m->data, &reach);
    if (strcmp(m->access.tensor_path, "shm") == 0)
        s.write_folders[writes++] = m->access.segment_dir[0] ? m->access.segment_dir : "/dev/shm";
    int devices_count = function_gpu_devices(devices);
    for (int i = 0; i < devices_count; i++)
        s.write_folders[writes++] = devices[i];
    /* NCCL and CUDA make sockets, and so does MPS under CUDA. */
    s.listens = m->unsandboxed_thread || on_gpu || devices_count > 0;
    s.unix_sockets = s.listens || reach.unix_sockets || dials_unix_sockets(m);
    if (m->object_path[0])
        s.read_folders[reads++] = m->object_path;
    /* the backends read the sizes of the caches */
    s.read_folders[reads++] = "/sys/devices/system/cpu";
    if (function_gpu_libraries(libraries))
        /* cuDNN loads parts of itself when they are first used */
        s.read_folders[reads++] = libraries;
    const char *file = getenv("KUBEML_FAILPOINT_FILE");
    if (file && strlen(file) < sizeof marker && strrchr(file, '/')) {
        snprintf(marker, sizeof marker, "%s", file);
        *strrchr(marker, '/') = '\0';
        s.create_folder = marker;
    }
    add_address(&s, m->address);
    add_address(&s, m->access.address);
    add_store(&s, reads, &reach);
    if (sandbox_enter(&s, report, e) != 0)
        return err_wrap(e, "sandbox");
    log_info("sandbox: %s", report);
    return 0;
}

/* ---- the code -------------------------------------------------------------------------------- */

static int load_program(member *m, err *e)
{
    failpoint("function.load");
    if (strncmp(m->object, "zoo:", 4) == 0)
        return program_open_zoo(m->object + 4, &m->program, e);
    if (m->object_path[0])
        return program_open_object(m->object_path, &m->program, e);
    if (m->object_fd < 0)
        return err_set(e, ERR_INVALID, "specialise: there is neither object_path nor object_bytes");
    return program_open_fd(m->object_fd, &m->program, e);
}

int member_make_trainer(member *m, char reason[TRAINER_REASON_BYTES], err *e)
{
    trainer_config c = {.program = m->program,
                        .data = m->data,
                        .batch = m->request.batch_size,
                        .epochs = m->request.epochs,
                        .threads = m->threads,
                        .seed = m->request.seed,
                        .backend = m->backend[0] ? m->backend : NULL,
                        .reset_optimizer = m->request.optimizer_state == STATE_RESET,
                        .blank = true, /* function 0 alone draws the first model, on `init` */
                        .precision = (backend_precision)m->request.precision,
                        .device_memory = m->engine_bytes,
                        .begun = member_begun,
                        .begun_of = m};
    if (m->request.process != PROCESS_SHARED)
        return trainer_open(&c, &m->trainer, reason, e);
    /* A user's own step may have static state: then the functions train one after the other. */
    group_config all = {.trainer = c,
                        .functions = m->functions,
                        .gpus = 1,
                        .k = 1,
                        .together = program_has_step(m->program) ? 1 : m->functions};
    if (group_open(&all, &m->group, reason, e) != 0)
        return -1;
    m->trainer = group_trainer(m->group);
    return 0;
}

static int load(member *m, char *reason, err *e)
{
    snprintf(reason, TRAINER_REASON_BYTES, "LoadFailed");
    if (load_program(m, e) != 0)
        return -1;
    program_warn(m->program);
    return member_make_trainer(m, reason, e);
}

static void note_no_gpu(member *m, const char *why)
{
    text_print(m->no_gpu, sizeof m->no_gpu, "placed on GPU %s, and computing on the %s backend: %s",
               m->gpu[0] ? m->gpu : "0 of its pod", engine_backend(trainer_engine(m->trainer)),
               why);
    log_warn("%s", m->no_gpu);
}

int member_open(const json_t *order, member **out, char reason[TRAINER_REASON_BYTES], err *e)
{
    snprintf(reason, TRAINER_REASON_BYTES, "LoadFailed");
    member *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the member");
    m->object_fd = -1;
    m->mean.version = -1;
    if (member_read_order(order, m, e) != 0) {
        member_close(m);
        return -1;
    }
    *out = m;
    log_context(m->job, -1, -1);
    char who[96];
    snprintf(who, sizeof who, "function %d of job %.40s", m->function, m->job);
    crash_watch(who);
    crash_phase("load the code", -1, -1);
    snprintf(reason, TRAINER_REASON_BYTES, "DataError");
    /* set where this pod does not see the controller's files */
    const json_t *bytes = json_object_get(order, "object_bytes");
    int rc = dataset_open(m->locator, &m->data, e);
    if (rc != 0)
        err_wrap(e, "dataset");
    else if (json_is_string(bytes) && !m->object_path[0])
        rc = fetch_given(json_string_value(bytes), &m->object_fd, e);
    err no_gpu = ERR_INIT;
    if (rc == 0 && (rc = function_gpu_open(m->backend, m->gpu, m->request.gpu, &no_gpu, e)) != 0)
        snprintf(reason, TRAINER_REASON_BYTES, "%s",
                 e->code == ERR_NOMEM         ? "GpuMemory"
                 : e->code == ERR_UNAVAILABLE ? "GpuFailed"
                                              : "NoGpu");
    const char *known = json_string_value(json_object_get(order, "algorithms"));
    if (rc == 0 && known && strcmp(m->backend, "cpu") != 0)
        backend_autotune_load("cuda", known);
    m->usage = usage_open();
    /* CUDA has started by now, or never will */
    if (rc == 0 && (rc = gpu_engine_bytes(m->gpu_bytes, usage_gpu_own_bytes(m->usage),
                                          &m->engine_bytes, e)) != 0)
        snprintf(reason, TRAINER_REASON_BYTES, "GpuMemory");
    if (rc == 0 && m->request.merge == MERGE_NCCL)
        rc = unsandboxed_thread_open(&m->unsandboxed_thread, e);
    bool on_gpu = strcmp(m->backend, "cuda") == 0 ||
                  (strcmp(m->backend, "auto") == 0 && no_gpu.code == ERR_NONE);
    if (rc == 0 && (rc = enter_sandbox(m, on_gpu, e)) == 0)
        rc = load(m, reason, e);
    if (rc == 0) {
        member_lend(m);
        member_offer_rank(m);
        bool cuda = strcmp(engine_backend(trainer_engine(m->trainer)), "cuda") == 0;
        if (!cuda)
            usage_without_gpu(m->usage);
        else if (m->gpu_bytes)
            log_info("the engine may take %.1f MiB of GPU memory, of a share of %.1f MiB",
                     (double)m->engine_bytes / 0x1p20, (double)m->gpu_bytes / 0x1p20);
        /* an order has "auto" only for a function with a place on a GPU */
        if (!cuda && strcmp(m->backend, "auto") == 0)
            note_no_gpu(m, no_gpu.message);
        return 0;
    }
    m->failed = json_pack("{s:s,s:s,s:s,s:s}", "type", "failed", "code", err_name(e->code),
                          "reason", reason, "message", e->message);
    return -1;
}
