/* test_ingest_processes.c: an upload that dies leaves nothing, a full disk is said, large uploads
 * need little memory. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arrays.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/rng.h"
#include "common/dataset/ingest.h"
#include "common/dataset/npz.h"
#include "small_disk.h"
#include "stores.h"

static store *open_store(void)
{
    return test_store("");
}

/* Samples are made as they go; the test split has one. Sample k is nothing but the byte mark(k),
 * which makes a small float32, too. */
enum { IMAGE = 8192, BLOCK = 128 };

static uint8_t mark(uint64_t sample)
{
    return (uint8_t)(sample / BLOCK % 64);
}

/* An npy array of elements of `len` bytes: their type and shape are `descr` and `shape`. */
static int feed_array(ingest *i, const char *field, const char *descr, const char *shape,
                      size_t len, uint64_t samples, err *e)
{
    static uint8_t block[BLOCK * IMAGE];
    char dict[100];
    snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%llu, %s), }",
             descr, (unsigned long long)samples, shape);
    cleanup_bytes bytes head = make_npy_raw(dict, "", 0);
    if (ingest_part(i, field, NULL, e) != 0 || ingest_bytes(i, field, head.at, head.len, e) != 0)
        return -1;
    for (uint64_t done = 0; done < samples; done += BLOCK) {
        memset(block, mark(done), sizeof block);
        size_t n = samples - done < BLOCK ? (size_t)(samples - done) : BLOCK;
        if (ingest_bytes(i, field, block, n * len, e) != 0)
            return -1;
    }
    return 0;
}

static int feed_images(ingest *i, const char *field, uint64_t samples, err *e)
{
    return feed_array(i, field, "|u1", "8, 32, 32", IMAGE, samples, e);
}

static int feed_labels(ingest *i, const char *field, uint64_t samples, err *e)
{
    return feed_array(i, field, "|u1", "1", 1, samples, e);
}

static int upload(store *s, uint64_t samples, dataset_info *out, err *e)
{
    ingest *i;
    if (ingest_begin(s, "d", NULL, &i, e) != 0)
        return -1;
    if (feed_images(i, "x-train", samples, e) != 0 || feed_labels(i, "y-train", samples, e) != 0 ||
        feed_images(i, "x-test", 1, e) != 0 || feed_labels(i, "y-test", 1, e) != 0) {
        ingest_abort(i);
        return -1;
    }
    return ingest_end(i, out, e);
}

/* Every chunk matches its checksum, and each image its label. */
static void check_dataset(store *s)
{
    err e = ERR_INIT;
    dataset_info info;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    CHECK_OK(dataset_find(s, "d", &info, NULL, &e), e);
    CHECK_OK(dataset_locator(s, &info, locator, &e), e);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    for (uint32_t c = 0; c < info.chunks[DATASET_TRAIN]; c++) {
        dataset_chunk chunk;
        CHECK_OK(dataset_view(d, DATASET_TRAIN, c, &chunk, &e), e);
        for (uint32_t k = 0; k < chunk.samples; k++)
            CHECK_INT(((const uint8_t *)chunk.data)[k * IMAGE], chunk.labels[k]);
    }
    dataset_close(d);
    dataset_info_free(&info);
}

static int files_left(void)
{
    char command[700];
    snprintf(command, sizeof command, "find '%s/store' -mindepth 2 | wc -l", test_tmp());
    FILE *f = popen(command, "r");
    int files = -1;
    CHECK(f && fscanf(f, "%d", &files) == 1);
    pclose(f);
    return files;
}

/* Sweeps until the one upload that is left over is gone. In MongoDB that is when its owner's lease,
 * or the time that deleted ones are kept, is over. */
static void sweep_all(store *s)
{
    err e = ERR_INIT;
    size_t removed = 0;
    int64_t deadline = clock_deadline_ms(20000);
    CHECK_OK(store_sweep(s, &removed, &e), e);
    if (test_store_now() != ON_MONGO) {
        CHECK_INT(files_left(), 0);
        return;
    }
    while (removed == 0) {
        CHECK(clock_left_ms(deadline) > 0);
        CHECK_OK(store_sweep(s, &removed, &e), e);
    }
    CHECK_INT(removed, 1);
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0);
}

/* What a process sees that comes after the dead one. */
static bool check_after_death(void)
{
    err e = ERR_INIT;
    store *s = open_store();
    dataset_info info;
    if (test_store_now() != ON_MONGO)
        CHECK_OK(store_sweep(s, NULL, &e), e);
    bool published = dataset_find(s, "d", &info, NULL, &e) == 0;
    if (published) {
        dataset_info_free(&info);
        check_dataset(s);
        CHECK_OK(dataset_delete(s, "d", &e), e);
    }
    sweep_all(s);
    CHECK_OK(upload(s, 200, NULL, &e), e); /* the name is free */
    check_dataset(s);
    CHECK_OK(dataset_delete(s, "d", &e), e);
    sweep_all(s);
    store_close(s);
    return published;
}

static pid_t spawn_upload(const char *where)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        err e = ERR_INIT;
        if (where) {
            setenv("KUBEML_FAILPOINT", where, 1);
            failpoint_open(NULL);
        }
        store *s = open_store();
        CHECK_OK(upload(s, 1000, NULL, &e), e);
        store_close(s);
        _exit(0);
    }
    return pid;
}

ON_DURABLE_STORES(an_upload_killed_at_each_step_leaves_nothing)
{
    test_store_mongo_option("kubeml.lease_ms=400");
    test_store_mongo_option("kubeml.keep_ms=400");
    const struct {
        const char *where;
        bool published;
    } steps[] = {{"ingest-chunk:1", false}, {"ingest-chunk:9", false}, {"ingest-chunk:16", false},
                 {"ingest-seal", false},    {"ingest-sealed", false},  {"ingest-published", true}};
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        int status;
        pid_t pid = spawn_upload(steps[k].where);
        CHECK_INT(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it did fire */
        if (check_after_death() != steps[k].published)
            test_fail(__FILE__, __LINE__, "%s: published is not %d", steps[k].where,
                      steps[k].published);
    }
}

/* Before its folder was its own. */
TEST(an_upload_killed_as_it_begins_leaves_nothing)
{
    int status;
    pid_t pid = spawn_upload("store-made");
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK(files_left() > 0);
    CHECK(!check_after_death());
}

TEST_LIMIT(an_upload_killed_at_any_time_leaves_nothing, 120)
{
    rng r;
    rng_init(&r, 5, RNG_TEST, 0, 0);
    int killed = 0;
    for (int k = 0; k < 25; k++) {
        int status;
        pid_t pid = spawn_upload(NULL);
        usleep((useconds_t)rng_below(&r, 60000)); /* the fault's time is what is random here */
        kill(pid, SIGKILL);
        CHECK_INT(waitpid(pid, &status, 0), pid);
        killed += WIFSIGNALED(status);
        check_after_death();
    }
    CHECK(killed > 0);
}

/* A limit on file sizes stands for a full disk. */
static void limit_files(rlim_t most)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit;
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = most;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(a_full_disk_leaves_nothing)
{
    err e = ERR_INIT;
    store *s = open_store();
    limit_files(1 << 20); /* the spool */
    CHECK_ERR(upload(s, 1000, NULL, &e), e, ERR_IO,
              "x-train: cannot write upload's spool file: File too large");
    CHECK_INT(files_left(), 0);
    limit_files(1000 * IMAGE + 4096); /* the chunks, which are a little larger */
    CHECK_ERR(upload(s, 1000, NULL, &e), e, ERR_IO, "data.mdb: ");
    CHECK_INT(files_left(), 0);
    limit_files(RLIM_INFINITY);
    CHECK_OK(upload(s, 1000, NULL, &e), e);
    check_dataset(s);
    store_close(s);
}

/* Zeros pass for CIFAR-10, whose files do not say how long they are: as a gz, and in an npz. */
static bytes zeros_gz(size_t mib)
{
    bytes zeros = {calloc(mib, 1 << 20), mib << 20};
    CHECK(zeros.at);
    bytes gz = make_gz(zeros);
    bytes_free(&zeros);
    return gz;
}

TEST(a_bomb_ends_before_the_disk_is_full)
{
    err e = ERR_INIT;
    spool *s;
    spool_quota quota = {.bytes = UINT64_C(1) << 40};
    uint64_t left;
    cleanup_bytes bytes bomb = zeros_gz(64);
    small_disk_mount(test_tmp(), "32m");
    CHECK_OK(spool_new(test_tmp(), &quota, &s, &e), e);
    CHECK_ERR(spool_feed(s, bomb.at, bomb.len, &e), e, ERR_LIMIT, "it does not fit");
    CHECK_OK(fs_free_bytes(test_tmp(), &left, NULL, &e), e);
    CHECK(left > 0 && left < 16 << 20);
    spool_free(s);
}

/* Of a disk that others need too a share stays free: one upload with a length in its header, one
 * without. */
TEST(a_share_of_the_disk_stays_free)
{
    spool_disk disk = {.bytes_max = UINT64_MAX, .kept_percent = 50};
    spool_quota quota = {.bytes = UINT64_C(1) << 40, .disk = &disk};
    uint64_t left;
    cleanup_bytes bytes bomb = zeros_gz(64);
    small_disk_mount(test_tmp(), "32m");
    for (int with_length = 0; with_length < 2; with_length++) {
        err e = ERR_INIT;
        spool *s;
        cleanup_bytes bytes head =
            make_npy_raw("{'descr': '|u1', 'fortran_order': False, 'shape': (20000000,), }", "", 0);
        const bytes *sent = with_length ? &head : &bomb;
        CHECK_OK(spool_new(test_tmp(), &quota, &s, &e), e);
        CHECK_ERR(spool_feed(s, sent->at, sent->len, &e), e, ERR_LIMIT, "fit");
        CHECK_OK(fs_free_bytes(test_tmp(), &left, NULL, &e), e);
        CHECK(left >= 16 << 20);
        spool_free(s);
        CHECK_INT(atomic_load(&disk.bytes), 0);
    }
}

/* Of uploads that come at the same time the second one does not fit beside the first. */
TEST(uploads_share_what_they_may_have_of_the_disk)
{
    err e = ERR_INIT;
    spool_disk disk = {.bytes_max = 100000};
    spool_quota first = {.bytes = 1 << 20, .disk = &disk}, second = first;
    spool *a, *b;
    char half[60000] = "";
    cleanup_bytes bytes head =
        make_npy_raw("{'descr': '|u1', 'fortran_order': False, 'shape': (60000,), }", "", 0);
    CHECK_OK(spool_new(test_tmp(), &first, &a, &e), e);
    CHECK_OK(spool_new(test_tmp(), &second, &b, &e), e);
    CHECK_OK(spool_feed(a, head.at, head.len, &e), e);
    CHECK_OK(spool_feed(b, head.at, head.len, &e), e);
    CHECK_OK(spool_feed(a, half, sizeof half, &e), e);
    CHECK_ERR(spool_feed(b, half, sizeof half, &e), e, ERR_UNAVAILABLE,
              "uploads may have 100000 together, and others have 60");
    spool_free(b);
    CHECK_OK(spool_end(a, &e), e);
    spool_free(a);
    CHECK_INT(atomic_load(&disk.bytes), 0);
    second.taken = 0;
    CHECK_OK(spool_new(test_tmp(), &second, &b, &e), e);
    CHECK_OK(spool_feed(b, head.at, head.len, &e), e);
    CHECK_OK(spool_feed(b, half, sizeof half, &e), e);
    spool_free(b);
    /* What is too large by itself never fits. */
    cleanup_bytes bytes larger =
        make_npy_raw("{'descr': '|u1', 'fortran_order': False, 'shape': (100001,), }", "", 0);
    spool_quota third = {.bytes = 1 << 20, .disk = &disk};
    e = (err)ERR_INIT;
    CHECK_OK(spool_new(test_tmp(), &third, &b, &e), e);
    CHECK_ERR(spool_feed(b, larger.at, larger.len, &e), e, ERR_LIMIT, "controller.homeSize");
    spool_free(b);
}

/* What is no npy file is not unpacked to its end. */
TEST(a_bomb_in_an_npz_ends_where_it_is_no_array)
{
    err e = ERR_INIT;
    const char *names[] = {"x"};
    char path[600];
    npz *z;
    spool *s = NULL;
    spool_quota quota = {.bytes = UINT64_C(1) << 40};
    uint64_t before = quota.bytes;
    bytes zeros = {calloc(64, 1 << 20), 64 << 20};
    cleanup_bytes bytes gz = zeros_gz(64);
    CHECK(zeros.at);
    for (int packed = 0; packed < 2; packed++) {
        cleanup_bytes bytes bomb = make_npz(names, packed ? &gz : &zeros, 1, true);
        snprintf(path, sizeof path, "%s/bomb.npz", test_tmp());
        write_bytes(path, bomb);
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
        e = (err)ERR_INIT;
        CHECK_OK(npz_open(fd, &z, &e), e);
        CHECK_ERR(npz_extract(z, 0, test_tmp(), &quota, &s, &e), e, ERR_CORRUPT,
                  "array \"x\": is no npy array");
        npz_close(z);
    }
    bytes_free(&zeros);
    CHECK(before - quota.bytes < 32 << 20);
}

static long peak_kib(void)
{
    long kib = -1;
    char line[200];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LARGE_MIB = 64, MEASURED = 0 }; /* the sanitizers' own memory would be measured */
#else
enum { LARGE_MIB = 256, MEASURED = 1 };
#endif

TEST_LIMIT(a_large_upload_needs_little_memory, 120)
{
    err e = ERR_INIT;
    store *s = open_store();
    long before = peak_kib();
    dataset_info info;
    CHECK_OK(upload(s, (uint64_t)LARGE_MIB << 20 >> 13, &info, &e), e);
    long after = peak_kib();
    CHECK(info.bytes >= (uint64_t)LARGE_MIB << 20);
    CHECK(before > 0 && after > 0);
    printf("%d MiB: %ld MiB of memory\n", LARGE_MIB, (after - before) >> 10);
    if (MEASURED)
        CHECK(after - before < 48 << 10);
    dataset_info_free(&info);
    check_dataset(s);
    store_close(s);
}

enum { TARGETS = 1024 };

/* Each sample is a byte, and its targets are float32 that are made of it. */
static int upload_targets(store *s, uint64_t samples, dataset_info *out, err *e)
{
    static const ingest_options regression = {.regression = true};
    const struct {
        const char *x, *y;
        uint64_t samples;
    } splits[] = {{"x-train", "y-train", samples}, {"x-test", "y-test", 1}};
    ingest *i;
    CHECK_OK(ingest_begin(s, "d", &regression, &i, e), *e);
    for (size_t k = 0; k < 2; k++) {
        CHECK_OK(feed_array(i, splits[k].x, "|u1", "1", 1, splits[k].samples, e), *e);
        CHECK_OK(feed_array(i, splits[k].y, "<f4", "1024", TARGETS * 4, splits[k].samples, e), *e);
    }
    return ingest_end(i, out, e);
}

static void check_targets(store *s, const dataset_info *info)
{
    err e = ERR_INIT;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    CHECK_OK(dataset_locator(s, info, locator, &e), e);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    for (uint32_t c = 0; c < info->chunks[DATASET_TRAIN]; c++) {
        dataset_chunk chunk;
        CHECK_OK(dataset_view(d, DATASET_TRAIN, c, &chunk, &e), e);
        for (uint32_t k = 0; k < chunk.samples; k++) {
            uint8_t want[TARGETS * 4];
            memset(want, mark(chunk.index[k]), sizeof want);
            CHECK_INT(((const uint8_t *)chunk.data)[k], want[0]);
            CHECK(memcmp(chunk.targets + (size_t)k * TARGETS, want, sizeof want) == 0);
        }
    }
    dataset_close(d);
}

TEST_LIMIT(many_targets_need_little_memory, 120)
{
    err e = ERR_INIT;
    store *s = open_store();
    long before = peak_kib();
    dataset_info info;
    CHECK_OK(upload_targets(s, (uint64_t)LARGE_MIB << 20 >> 12, &info, &e), e);
    long after = peak_kib();
    CHECK(before > 0 && after > 0);
    CHECK_INT(info.targets, TARGETS);
    if (MEASURED)
        CHECK(after - before < 48 << 10);
    check_targets(s, &info);
    dataset_info_free(&info);
    store_close(s);
}

static void put_number(uint8_t *at, uint64_t value, size_t len)
{
    for (size_t i = 0; i < len; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

/* A zip file that is nothing but its directory, of `count` entries "a.npy"; the end of the file
 * says how many in 16 bits, which overflow, or in 64. */
static int make_directory(uint64_t count, bool zip64)
{
    enum { ENTRY = 46 + 5, ENTRIES = 1024 };
    static uint8_t entries[ENTRIES * ENTRY];
    err e = ERR_INIT;
    int fd;
    uint8_t end[56 + 20 + 22] = {0}, *p = end;
    CHECK_OK(fs_scratch_file(test_tmp(), &fd, &e), e);
    for (size_t i = 0; i < ENTRIES; i++) {
        memcpy(entries + i * ENTRY, "PK\1\2", 4);
        entries[i * ENTRY + 28] = 5; /* the name's length */
        memcpy(entries + i * ENTRY + 46, "a.npy", 5);
    }
    uint64_t len = count * ENTRY;
    for (uint64_t at = 0; at < len; at += sizeof entries)
        CHECK_OK(fs_pwrite_all(fd, entries,
                               len - at < sizeof entries ? (size_t)(len - at) : sizeof entries, at,
                               "zip", &e),
                 e);
    if (zip64) {
        memcpy(p, "PK\6\6", 4);
        put_number(p + 4, 44, 8);
        put_number(p + 24, count, 8);
        put_number(p + 32, count, 8);
        put_number(p + 40, len, 8);
        memcpy(p + 56, "PK\6\7", 4);
        put_number(p + 64, len, 8); /* where the record is */
        put_number(p + 72, 1, 4);
        p += 56 + 20;
    }
    memcpy(p, "PK\5\6", 4);
    put_number(p + 8, zip64 ? 0xFFFF : count & 0xFFFF, 2);
    put_number(p + 10, zip64 ? 0xFFFF : count & 0xFFFF, 2);
    put_number(p + 12, zip64 ? 0xFFFFFFFF : len, 4);
    put_number(p + 16, zip64 ? 0xFFFFFFFF : 0, 4);
    CHECK_OK(fs_pwrite_all(fd, end, (size_t)(p - end) + 22, len, "zip", &e), e);
    return fd;
}

/* What a zip file says that it has is looked at before it is read. */
TEST(a_long_directory_needs_little_memory)
{
    for (int zip64 = 0; zip64 < 2; zip64++) {
        err e = ERR_INIT;
        npz *z;
        long before = peak_kib();
        cleanup_close int fd = make_directory(4 * 65536 + 3, zip64);
        CHECK_ERR(npz_open(fd, &z, &e), e, ERR_LIMIT,
                  zip64 ? "has 262147 entries, more than 1024" : "directory has 13369497 bytes");
        if (MEASURED)
            CHECK(peak_kib() - before < 4 << 10);
        /* As many as there may be are read as ever. */
        cleanup_close int fine = make_directory(NPZ_ARRAYS_MAX, zip64);
        e = (err)ERR_INIT;
        CHECK_OK(npz_open(fine, &z, &e), e);
        CHECK_INT(npz_count(z), NPZ_ARRAYS_MAX);
        npz_close(z);
    }
}
