/* run.c: see run.h. Compiles with the machine's compiler, reads a dataset of the local platform or
 * ingests files into a temporary store, and trains with the training loop of jobs: one function
 * gives the losses of a job with one function. */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/parallel.h"
#include "common/compile/builder.h"
#include "common/contract/tensor_filter.h"
#include "common/contract/request.h"
#include "common/dataset/dataset.h"
#include "common/dataset/ingest.h"
#include "common/store/store.h"
#include "function-runtime/base/crash.h"
#include "function-runtime/base/model_file.h"
#include "function-runtime/base/scratch_folder.h"
#include "function-runtime/model/program.h"
#include "function-runtime/train/group.h"
#include <kubeml.h>

enum { DATA_FILES_MAX = 256 };

typedef struct data_file {
    const char *field, *path; /* as ingest_file takes them */
} data_file;

typedef struct options {
    const char *files[BUILDER_FILES_MAX];
    size_t file_count;
    const char *model, *dataset, *store, *save, *load, *backend;
    gpu_share gpu;
    gpu_precision precision;
    int functions, k, gpus;
    reduce_wish wish;
    data_file data[DATA_FILES_MAX];
    size_t data_count;
    int epochs, batch, threads;
    double lr, goal;
    uint64_t seed;
    bool json, regression;
    const char *layout_name; /* as given, or NULL */
    const char *without;     /* of --init-without: see tensor_filter.h */
    ingest_layout layout;
} options;

typedef struct session {
    options o;
    store *store; /* the platform's, or NULL */
    dataset *data;
    program *program;
    group *group;
    double lr;
    int unwritten; /* errno of the first line that could not be written to stdout; 0: none */
} session;

/* A format, for REQUEST_EPOCHS, _BATCH, _LR and _K. */
static const char usage[] =
    "usage: kubeml run FILE.c [MORE.c MORE.h] [options]\n"
    "       kubeml run --model NAME[,KEY=VALUE...] [options]\n"
    "Trains in this process, without the platform. `kubeml zoo list` shows the models, and\n"
    "its --help their options: --model resnet34,flip=on,crop=4\n\n"
    "data   --dataset NAME        of the local platform (kubeml dataset create)\n"
    "       --traindata F --trainlabels F --testdata F --testlabels F\n"
    "                             npy, npz, IDX (also .gz) or CIFAR binary; repeated for\n"
    "                             several files, such as CIFAR-10's five batches\n"
    "       --regression          the labels are numbers, not classes\n"
    "       --layout ORDER        order of an image's axes: auto, chw or hwc (auto)\n"
    "train  -e, --epochs N        %d\n"
    "       -b, --batch N         %d\n"
    "           --lr X            the code's own (kubeml train ignores that), else %g\n"
    "           --seed N          0\n"
    "           --goal-accuracy P end at P percent accuracy; not with targets\n"
    "           --threads N       of each function; its share of the cores, at most 8\n"
    "           --functions N     1 (a job: 4); averaged as those of a job\n"
    "           --k N             batches between two merges; -1: one merge an epoch (%d)\n"
    "           --gpus N          1; function i is on GPU i mod N\n"
    "           --merge WHERE     auto; nccl: between GPUs, in NCCL's own order\n"
    "           --device KIND     cpu or cuda; the fastest\n"
    "           --gpu-memory SIZE GPU memory it may take, such as 2Gi; only on a GPU\n"
    "           --precision KIND  fp32, tf32 or bf16; fp32\n"
    "           --backend NAME    cpu, reference, cuda; instead of --device\n"
    "result     --init F          start from the weights of a safetensors file\n"
    "           --init-without L  without these tensors and layers, with commas between: fc\n"
    "           --save F          write the weights as safetensors, after each epoch\n"
    "           --json            one JSON object a line instead of text\n"
    "           --store LOCATOR   of --dataset; lmdb:$KUBEML_HOME/store\n";

/* ---- options --------------------------------------------------------------------------------- */

static int take_int(const char *name, const char *text, long min, long max, int *out, err *e)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || *end || end == text || n < min || n > max)
        return err_set(e, ERR_INVALID, "%s: \"%.40s\" is not a number from %ld to %ld", name, text,
                       min, max);
    *out = (int)n;
    return 0;
}

static const double REAL_MAX = 1e6;

static int take_real(const char *name, const char *text, double *out, err *e)
{
    char *end;
    double x = strtod(text, &end);
    if (*end || end == text || !(x > 0) || x > REAL_MAX)
        return err_set(e, ERR_INVALID, "%s: \"%.40s\" is not a number above 0 and at most %g", name,
                       text, REAL_MAX);
    *out = x;
    return 0;
}

static int take_seed(const char *text, uint64_t *out, err *e)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || n > UINT64_C(1) << 53)
        return err_set(e, ERR_INVALID, "--seed: \"%.40s\" is not a number from 0 to 2^53", text);
    *out = n;
    return 0;
}

enum {
    O_LR = 256, O_SEED, O_GOAL, O_THREADS, O_BACKEND, O_SAVE, O_INIT, O_JSON, O_STORE, O_MODEL,
    O_XTRAIN, O_YTRAIN, O_XTEST, O_YTEST, O_REGRESSION, O_DEVICE, O_GPU_MEMORY, O_PRECISION,
    O_FUNCTIONS, O_K, O_GPUS, O_MERGE, O_LAYOUT, O_INIT_WITHOUT,
};

static const struct option long_options[] = {
    {"dataset", 1, NULL, 'd'},
    {"epochs", 1, NULL, 'e'},
    {"batch", 1, NULL, 'b'},
    {"lr", 1, NULL, O_LR},
    {"seed", 1, NULL, O_SEED},
    {"goal-accuracy", 1, NULL, O_GOAL},
    {"threads", 1, NULL, O_THREADS},
    {"backend", 1, NULL, O_BACKEND},
    {"save", 1, NULL, O_SAVE},
    {"init", 1, NULL, O_INIT},
    {"init-without", 1, NULL, O_INIT_WITHOUT},
    {"json", 0, NULL, O_JSON},
    {"store", 1, NULL, O_STORE},
    {"model", 1, NULL, O_MODEL},
    {"traindata", 1, NULL, O_XTRAIN},
    {"trainlabels", 1, NULL, O_YTRAIN},
    {"testdata", 1, NULL, O_XTEST},
    {"testlabels", 1, NULL, O_YTEST},
    {"regression", 0, NULL, O_REGRESSION},
    {"layout", 1, NULL, O_LAYOUT},
    {"functions", 1, NULL, O_FUNCTIONS},
    {"k", 1, NULL, O_K},
    {"gpus", 1, NULL, O_GPUS},
    {"merge", 1, NULL, O_MERGE},
    {"device", 1, NULL, O_DEVICE},
    {"gpu-memory", 1, NULL, O_GPU_MEMORY},
    {"precision", 1, NULL, O_PRECISION},
    {"help", 0, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int take_backend(options *o, const char *text, err *e)
{
    if (o->backend)
        return err_set(e, ERR_INVALID, "--device and --backend name one thing: give one of them");
    o->backend = text;
    return 0;
}

static int take_device(options *o, const char *text, err *e)
{
    if (strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0)
        return err_set(e, ERR_INVALID, "--device: \"%.40s\" is neither cpu nor cuda", text);
    return take_backend(o, text, e);
}

static int take_merge(const char *text, reduce_wish *out, err *e)
{
    if (strcmp(text, "auto") != 0 && strcmp(text, "nccl") != 0)
        return err_set(e, ERR_INVALID, "--merge: \"%.40s\" is neither auto nor nccl", text);
    *out = text[0] == 'n' ? REDUCE_NCCL_WANTED : REDUCE_ANY;
    return 0;
}

static int take_data(options *o, const char *field, const char *path, err *e)
{
    if (o->data_count == DATA_FILES_MAX)
        return err_set(e, ERR_LIMIT, "more than %d files of data", DATA_FILES_MAX);
    o->data[o->data_count++] = (data_file){field, path};
    return 0;
}

static int take_option(options *o, int which, const char *text, err *e)
{
    switch (which) {
    case 'd': o->dataset = text; return 0;
    case 'e': return take_int("--epochs", text, 1, REQUEST_EPOCHS_MAX, &o->epochs, e);
    case 'b': return take_int("--batch", text, 1, REQUEST_BATCH_MAX, &o->batch, e);
    case O_LR: return take_real("--lr", text, &o->lr, e);
    case O_SEED: return take_seed(text, &o->seed, e);
    case O_GOAL: return take_real("--goal-accuracy", text, &o->goal, e);
    case O_THREADS: return take_int("--threads", text, 1, ENGINE_THREADS_MAX, &o->threads, e);
    case O_BACKEND: return take_backend(o, text, e);
    case O_FUNCTIONS:
        return take_int("--functions", text, 1, GROUP_FUNCTIONS_MAX, &o->functions, e);
    case O_K: return take_int("--k", text, -1, REQUEST_K_MAX, &o->k, e);
    case O_GPUS: return take_int("--gpus", text, 1, GPU_COUNT_MAX, &o->gpus, e);
    case O_MERGE: return take_merge(text, &o->wish, e);
    case O_DEVICE: return take_device(o, text, e);
    case O_GPU_MEMORY:
        return gpu_memory_parse(text, &o->gpu.memory_bytes, e) ? err_wrap(e, "--gpu-memory") : 0;
    case O_PRECISION:
        return request_precision(text, &o->precision, e) ? err_wrap(e, "--precision") : 0;
    case O_SAVE: o->save = text; return 0;
    case O_INIT: o->load = text; return 0;
    case O_INIT_WITHOUT:
        o->without = text;
        return tensor_filter_check(text, e) ? err_wrap(e, "--init-without") : 0;
    case O_JSON: o->json = true; return 0;
    case O_STORE: o->store = text; return 0;
    case O_MODEL: o->model = text; return 0;
    case O_XTRAIN: return take_data(o, "x-train", text, e);
    case O_YTRAIN: return take_data(o, "y-train", text, e);
    case O_XTEST: return take_data(o, "x-test", text, e);
    case O_YTEST: return take_data(o, "y-test", text, e);
    case O_REGRESSION: o->regression = true; return 0;
    case O_LAYOUT:
        o->layout_name = text;
        return ingest_layout_parse(text, &o->layout, e) ? err_wrap(e, "--layout") : 0;
    default: return err_set(e, ERR_INVALID, "no such option");
    }
}

/* Refuses options about labels and layout with --dataset, whose upload had them, and --store
 * without --dataset. */
static int check_data(const options *o, err *e)
{
    if (o->dataset && o->data_count)
        return err_set(e, ERR_INVALID,
                       "--dataset and files of data (--traindata, ...) exclude each other");
    if (o->dataset && o->regression)
        return err_set(e, ERR_INVALID,
                       "--regression goes with --traindata; a data set knows what its labels are");
    if (o->dataset && o->layout_name)
        return err_set(e, ERR_INVALID,
                       "--layout goes with --traindata; a data set has its samples' order");
    if (o->store && !o->dataset)
        return err_set(e, ERR_INVALID, "--store goes with --dataset");
    for (size_t i = 0; i < o->data_count; i++)
        if (strcmp(o->data[i].field, "x-train") == 0)
            return 0;
    return o->dataset ? 0
                      : err_set(e, ERR_INVALID,
                                "no data: --dataset NAME, or --traindata and --trainlabels");
}

static int check_options(const options *o, err *e)
{
    if (!o->file_count == !o->model)
        return err_set(e, ERR_INVALID,
                       o->model ? "a FILE.c and --model exclude each other"
                                : "no FILE.c and no --model is given");
    if (o->gpu.memory_bytes && o->backend && strcmp(o->backend, "cuda") != 0)
        return err_set(e, ERR_INVALID, "--gpu-memory says nothing on the %.40s backend",
                       o->backend);
    if (o->without && !o->load)
        return err_set(e, ERR_INVALID, "--init-without goes with --init");
    if (o->k == 0)
        return err_set(e, ERR_INVALID, "--k: 1 or more, or -1 for once an epoch");
    return check_data(o, e);
}

/* The error for an option that getopt_long refuses; of several letters in a word, the wrong one. */
static int refuse(const char *word, err *e)
{
    if (optopt > ' ' && optopt < 127)
        return err_set(e, ERR_INVALID, "no option -%c", optopt);
    bool value = optopt && strchr(word, '=');
    return err_set(e, ERR_INVALID, value ? "%.80s: it takes no value" : "no option %.80s", word);
}

/* The threads of each function, all of which compute at the same time, as in a job. */
static int default_threads(int functions)
{
    int each = parallel_cores() / functions;
    return each < 1 ? 1 : each < 8 ? each : 8;
}

/* Parses the arguments. 1: --help was given. */
static int parse(int argc, char **argv, options *o, err *e)
{
    *o = (options){.epochs = REQUEST_EPOCHS,
                   .batch = REQUEST_BATCH,
                   .goal = 100,
                   .functions = 1,
                   .k = REQUEST_K,
                   .gpus = 1};
    int which;
    optind = 1;
    opterr = 0;
    while ((which = getopt_long(argc, argv, ":d:e:b:h", long_options, NULL)) != -1) {
        if (which == 'h')
            return 1;
        if (which == ':')
            return err_set(e, ERR_INVALID, "%.80s wants a value", argv[optind - 1]);
        if (which == '?')
            return refuse(argv[optind - 1], e);
        if (take_option(o, which, optarg, e) != 0)
            return -1;
    }
    for (; optind < argc; optind++) {
        if (o->file_count == BUILDER_FILES_MAX)
            return err_set(e, ERR_LIMIT, "more than %d files", BUILDER_FILES_MAX);
        o->files[o->file_count++] = argv[optind];
    }
    if (!o->threads)
        o->threads = default_threads(o->functions);
    return check_options(o, e);
}

/* ---- code ------------------------------------------------------------------------------------ */

/* Finds the folder of kubeml.h: KUBEML_INCLUDE, beside the installed program, or in the source tree
 * of the program. */
static int include_dir(char out[PATH_MAX], err *e)
{
    static const char *const places[] = {"../include/kubeml.h", "../include/kubeml/kubeml.h",
                                         "../../../function-runtime/include/kubeml.h"};
    char self[PATH_MAX];
    const char *given = getenv("KUBEML_INCLUDE");
    if (given && snprintf(out, PATH_MAX, "%s", given) < PATH_MAX)
        return 0;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    self[len > 0 ? len : 0] = '\0';
    char *slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        if (snprintf(out, PATH_MAX, "%.*s/%s", (int)(slash - self), self, places[i]) < PATH_MAX &&
            access(out, R_OK) == 0) {
            *strrchr(out, '/') = '\0';
            return 0;
        }
    }
    return err_set(e, ERR_NOT_FOUND, "kubeml.h is not found; set KUBEML_INCLUDE to its folder");
}

static int read_file(const char *path, builder_source *out, err *e)
{
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (fd < 0 || fstat(fd, &s) != 0)
        return err_set_errno(e, errno, "%s", path);
    if (!S_ISREG(s.st_mode) || s.st_size > BUILDER_SOURCE_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "%s is no file of at most %d bytes", path,
                       BUILDER_SOURCE_BYTES_MAX);
    char *text = malloc((size_t)s.st_size + 1);
    ssize_t got = text ? read(fd, text, (size_t)s.st_size) : -1;
    if (got < 0) {
        free(text);
        return err_set_errno(e, errno, "%s", path);
    }
    const char *slash = strrchr(path, '/');
    *out = (builder_source){slash ? slash + 1 : path, text, (size_t)got};
    return 0;
}

/* Loads the object through a nameless file. */
static int load_object(const builder_result *r, program **out, err *e)
{
    cleanup_close int fd = memfd_create("kubeml-object", MFD_CLOEXEC);
    char path[64];
    if (fd < 0)
        return err_set_errno(e, errno, "memfd");
    for (size_t done = 0; done < r->object_bytes;) {
        ssize_t got = write(fd, r->object + done, r->object_bytes - done);
        if (got < 0 && errno != EINTR)
            return err_set_errno(e, errno, "writing the object");
        done += got > 0 ? (size_t)got : 0;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return program_open_object(path, out, e) || program_check_options(*out, e) ? -1 : 0;
}

static int build(const builder_source *files, size_t n, program **out, err *e)
{
    char sdk[PATH_MAX];
    if (include_dir(sdk, e) != 0)
        return -1;
    scratch_folder folder; /* removed even if the process is interrupted, as by ^C */
    if (scratch_folder_open(&folder, "kubeml-run-", e) != 0)
        return -1;
    builder_config c = {.include_dir = sdk,
                        .sandbox = BUILDER_SANDBOX_NONE,
                        .abi = KUBEML_ABI,
                        .tmp_dir = folder.path};
    builder_result r;
    int rc = builder_compile(files, n, NULL, &c, &r, e);
    if (scratch_folder_close(&folder, rc == 0 ? e : NULL) != 0)
        rc = -1;
    if (r.text && r.text[0])
        fputs(r.text, stderr);
    if (rc == 0)
        rc = load_object(&r, out, e);
    builder_result_free(&r);
    return rc;
}

static int load_code(session *s, err *e)
{
    if (s->o.model)
        return program_open_zoo(s->o.model, &s->program, e);
    builder_source files[BUILDER_FILES_MAX];
    size_t n = 0;
    int rc = 0;
    while (rc == 0 && n < s->o.file_count) {
        rc = read_file(s->o.files[n], &files[n], e);
        n += rc == 0;
    }
    if (rc == 0)
        rc = build(files, n, &s->program, e);
    for (size_t i = 0; i < n; i++)
        free((char *)files[i].text);
    return rc;
}

/* ---- data ------------------------------------------------------------------------------------ */

static int open_platform_store(session *s, err *e)
{
    char locator[PATH_MAX];
    const char *home = getenv("KUBEML_HOME"), *user = getenv("HOME");
    if (s->o.store)
        snprintf(locator, sizeof locator, "%s", s->o.store);
    else if (home && *home)
        snprintf(locator, sizeof locator, "lmdb:%s/store", home);
    else
        snprintf(locator, sizeof locator, "lmdb:%s/.kubeml/store", user && *user ? user : "/root");
    if (!s->o.store && access(locator + 5, F_OK) != 0)
        return err_set(e, ERR_NOT_FOUND, "there is no local platform at %s", locator + 5);
    return (s->store = store_open(locator, e)) ? 0 : -1;
}

static int open_in(store *st, const dataset_info *info, dataset **out, err *e)
{
    char locator[STORE_LOCATOR_BYTES];
    return dataset_locator(st, info, locator, e) != 0 ? -1 : dataset_open(locator, out, e);
}

static int open_named(session *s, err *e)
{
    dataset_info info;
    if (open_platform_store(s, e) != 0 || dataset_find(s->store, s->o.dataset, &info, NULL, e) != 0)
        return -1;
    int rc = open_in(s->store, &info, &s->data, e);
    dataset_info_free(&info);
    return rc;
}

static int ingest_all(const options *o, store *st, dataset_info *out, err *e)
{
    const ingest_options how = {.regression = o->regression, .layout = o->layout};
    ingest *i;
    if (ingest_begin(st, "data", &how, &i, e) != 0)
        return -1;
    for (size_t k = 0; k < o->data_count; k++)
        if (ingest_file(i, o->data[k].field, o->data[k].path, e) != 0) {
            ingest_abort(i);
            return -1;
        }
    return ingest_end(i, out, e);
}

static int ingest_into(session *s, const char *folder, err *e)
{
    char locator[FS_PATH_BYTES + 8];
    dataset_info info = {0};
    snprintf(locator, sizeof locator, "lmdb:%s", folder);
    store *st = store_open(locator, e);
    if (!st)
        return -1;
    int rc = ingest_all(&s->o, st, &info, e);
    char note[INGEST_NOTE_BYTES];
    if (rc == 0 && ingest_note(&info, s->o.layout, note))
        fprintf(stderr, "note: %s\n", note);
    if (rc == 0)
        rc = open_in(st, &info, &s->data, e);
    dataset_info_free(&info);
    store_close(st);
    return rc;
}

/* Ingests the files into a temporary store, and removes the store while its dataset is open: the
 * user's code, which is loaded later, may end the process in any way. */
static int open_files(session *s, err *e)
{
    scratch_folder folder;
    if (scratch_folder_open(&folder, "kubeml-run-", e) != 0)
        return -1;
    int rc = ingest_into(s, folder.path, e);
    return scratch_folder_close(&folder, rc == 0 ? e : NULL) != 0 ? -1 : rc;
}

static int open_data(session *s, err *e)
{
    return s->o.dataset ? open_named(s, e) : open_files(s, e);
}

/* ---- training -------------------------------------------------------------------------------- */

/* Checks that the goal can be reached. 100, the default, is no goal. */
static int check_goal(const session *s, err *e)
{
    if (s->o.goal >= 100 || dataset_get_info(s->data)->classes)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "--goal-accuracy: %g %% is never reached: the data have targets and no classes, "
                   "and so no accuracy",
                   s->o.goal);
}

static int begin(session *s, err *e)
{
    if ((s->o.save && fs_output_check(s->o.save, e) != 0) || open_data(s, e) != 0 ||
        check_goal(s, e) != 0)
        return -1;
    crash_watch("the function's code");
    crash_tell_status();
    crash_phase("load the code", -1, -1);
    if (load_code(s, e) != 0)
        return -1;
    char reason[TRAINER_REASON_BYTES];
    trainer_config c = {.program = s->program,
                        .data = s->data,
                        .batch = s->o.batch,
                        .epochs = s->o.epochs,
                        .threads = s->o.threads,
                        .seed = s->o.seed,
                        .backend = s->o.gpu.memory_bytes ? "cuda" : s->o.backend,
                        .precision = (backend_precision)s->o.precision,
                        .device_memory = s->o.gpu.memory_bytes};
    /* The code's own step may have static state: then the functions train one after the other. */
    group_config all = {
        .trainer = c,      .functions = s->o.functions,
        .gpus = s->o.gpus, .k = s->o.k,
        .wish = s->o.wish, .together = program_has_step(s->program) ? 1 : s->o.functions};
    if (group_open(&all, &s->group, reason, e) != 0)
        return err_wrap(e, "%s", reason);
    if (program_needs_history(s->program) && dataset_get_info(s->data)->samples[DATASET_TEST] == 0)
        return err_set(e, ERR_UNSUPPORTED, PROGRAM_NO_HISTORY);
    s->lr = s->o.lr > 0 ? s->o.lr : program_default_lr(s->program);
    if (!s->o.load)
        return 0;
    cleanup_close int fd = open(s->o.load, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, errno, "%s", s->o.load);
    return model_file_load(trainer_engine(group_trainer(s->group)), fd, s->o.without, e) != 0
               ? err_wrap(e, "%s", s->o.load)
               : group_copy_first(s->group, e);
}

/* Flushes stdout after a line, and keeps the first error for the end. ferror shows an error of
 * stdout before this call, which has dropped the bytes. */
static void flush(session *s)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && s->unwritten == 0)
        s->unwritten = errno ? errno : EIO;
}

static void announce(session *s)
{
    const dataset_info *d = dataset_get_info(s->data);
    const engine *m = trainer_engine(group_trainer(s->group));
    if (s->o.json)
        return;
    const char *file = s->o.file_count ? s->o.files[0] : program_name(s->program),
               *slash = strrchr(file, '/');
    printf("%s: %zu parameters, %s backend, %d thread%s; %llu + %llu samples of (%u, %u, %u)\n",
           slash ? slash + 1 : file, engine_param_count(m), engine_backend(m), s->o.threads,
           s->o.threads == 1 ? "" : "s", (unsigned long long)d->samples[DATASET_TRAIN],
           (unsigned long long)d->samples[DATASET_TEST], d->channels, d->height, d->width);
    if (s->o.functions > 1)
        printf("%d functions; %s\n", s->o.functions, group_choice(s->group)->text);
    flush(s);
}

static void report(session *s, int epoch, const trainer_result *t, const trainer_result *v,
                   double seconds)
{
    double train_loss = t->loss_sum / (double)t->samples;
    double loss = v->samples ? v->loss_sum / (double)v->samples : (double)NAN;
    bool classes = dataset_get_info(s->data)->targets == 0;
    double accuracy = v->samples ? 100.0 * (double)v->correct / (double)v->samples : (double)NAN;
    if (s->o.json) {
        json_t *line =
            json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:f}", "epoch", epoch + 1, "train_loss", train_loss,
                      "seconds", seconds, "load", t->load_s, "convert", t->convert_s, "train",
                      t->train_s, "validate", v->load_s + v->convert_s + v->train_s);
        if (v->samples && line) {
            json_object_set_new(line, "validation_loss", json_real(loss));
            json_object_set_new(line, "accuracy", classes ? json_real(accuracy) : json_null());
        }
        if (s->o.functions > 1 && line) {
            json_object_set_new(line, "averaging", json_string(group_choice(s->group)->text));
            json_object_set_new(line, "exact", json_boolean(group_choice(s->group)->exact));
        }
        char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
        puts(text ? text : "{}");
        free(text);
        json_decref(line);
    } else {
        printf("epoch %*d/%d   train loss %8.4f   ", 3, epoch + 1, s->o.epochs, train_loss);
        if (v->samples)
            printf("validation loss %8.4f   ", loss);
        if (v->samples && classes)
            printf("accuracy %6.2f %%   ", accuracy);
        printf("%6.2f s\n", seconds);
    }
    flush(s);
}

/* Saves the weights after each epoch, so that a long training that is interrupted, or diverges,
 * leaves its last weights. A pipe or a device gets only the final weights. */
static int save(const session *s, bool last, err *e)
{
    struct stat st;
    if (!s->o.save || (!last && stat(s->o.save, &st) == 0 && !S_ISREG(st.st_mode)))
        return 0;
    return model_file_save(trainer_engine(group_trainer(s->group)), s->o.save, e);
}

static bool goal_reached(const session *s, const trainer_result *v)
{
    return s->o.goal < 100 && v->samples &&
           100.0 * (double)v->correct / (double)v->samples >= s->o.goal;
}

static int train(session *s, err *e)
{
    cleanup_free double *history = calloc((size_t)s->o.epochs, sizeof *history);
    if (!history)
        return err_set(e, ERR_NOMEM, "no memory for the history");
    bool last = false;
    for (int epoch = 0; !last; epoch++) {
        int64_t began_ns = clock_monotonic_ns();
        trainer_task task = {.epoch = (uint32_t)epoch,
                             .lr = s->lr,
                             .history = history,
                             .history_count = (size_t)epoch};
        trainer_result t, v;
        crash_phase("train", epoch, -1);
        if (group_train(s->group, &task, &t, e) != 0)
            return err_wrap(e, "%s", group_reason(s->group));
        crash_phase("validate", epoch, -1);
        if (group_validate(s->group, task.epoch, &v, e) != 0)
            return err_wrap(e, "%s", group_reason(s->group));
        history[epoch] = v.loss_sum / (double)v.samples;
        report(s, epoch, &t, &v, (double)(clock_monotonic_ns() - began_ns) * 1e-9);
        last = epoch + 1 == s->o.epochs || goal_reached(s, &v);
        if (save(s, last, e) != 0)
            return -1;
    }
    if (s->o.save && !s->o.json) {
        printf("saved %s\n", s->o.save);
        flush(s);
    }
    return 0;
}

static void end(session *s)
{
    group_close(s->group);
    program_close(s->program);
    dataset_close(s->data);
    store_close(s->store);
    crash_over();
}

/* Prints the options, for the shell's completion. */
static int describe(void)
{
    for (const struct option *o = long_options; o->name; o++)
        printf("--%s%s\n", o->name, o->has_arg ? "=" : "");
    return 0;
}

int run_command(int argc, char **argv)
{
    session s = {0};
    err e = ERR_INIT;
    if (argc == 2 && strcmp(argv[1], "__options") == 0)
        return describe();
    int rc = parse(argc, argv, &s.o, &e);
    if (rc == 1) {
        printf(usage, REQUEST_EPOCHS, REQUEST_BATCH, REQUEST_LR, REQUEST_K);
        return 0;
    }
    if (rc != 0) {
        fprintf(stderr, "kubeml run: %s\nSee kubeml run --help.\n", e.message);
        return 2;
    }
    rc = begin(&s, &e);
    if (rc == 0) {
        announce(&s);
        rc = train(&s, &e);
    }
    if (rc != 0)
        fprintf(stderr, "kubeml run: %s\n", e.message);
    end(&s);
    flush(&s);
    if (rc == 0 && s.unwritten) {
        fprintf(stderr, "kubeml run: standard output: %s\n", strerror(s.unwritten));
        rc = -1;
    }
    return rc == 0 ? 0 : 1;
}
