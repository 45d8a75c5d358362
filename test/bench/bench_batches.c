/* bench_batches.c: the samples of a run in the order in which it trains on them, flipped and
 * cropped as it does; bench_accuracy.py --same trains PyTorch on them.
 *
 *   bench_batches TRAIN TEST SEED EPOCHS BATCH
 *
 * TRAIN and TEST are files in CIFAR-10's binary form, which is also what is written: for each of
 * EPOCHS epochs all samples of TRAIN, as one process of `kubeml run --seed SEED -b BATCH` meets them
 * that flips and crops by CROP. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/fs.h"
#include "common/dataset/ingest.h"
#include "common/store/store.h"
#include "function-runtime/train/loader.h"

enum { CROP = 4 };

typedef struct source {
    store *store;
    dataset *data;
    loader *loader;
} source;

/* What kubeml-function run does with its --traindata. */
static int open_source(source *s, char *folder, const char *const *argv, err *e)
{
    static const transform moves = {.flip = true, .crop = CROP};
    char locator[STORE_LOCATOR_BYTES];
    const ingest_files files = {.x_train = argv[1], .x_test = argv[2]};
    const ingest_options options = {0};
    dataset_info info = {0};
    if (!mkdtemp(folder))
        return err_set_errno(e, errno, "%s", folder);
    snprintf(locator, sizeof locator, "lmdb:%s", folder);
    s->store = store_open(locator, e);
    if (!s->store || ingest_paths(s->store, "data", &options, &files, &info, e) != 0)
        return -1;
    int rc = dataset_locator(s->store, &info, locator, e);
    dataset_info_free(&info);
    if (rc != 0 || dataset_open(locator, &s->data, e) != 0)
        return -1;
    loader_config c = {.data = s->data, .transform = &moves, .seed = strtoull(argv[3], NULL, 10),
                       .batch = atoi(argv[5])};
    return loader_open(&c, &s->loader, e);
}

static int write_epoch(source *s, uint32_t epoch, err *e)
{
    uint32_t batches;
    uint64_t begin, end;
    size_t bytes = dataset_sample_bytes(dataset_get_info(s->data));
    engine_batch b;
    int rc;
    if (loader_batches(s->loader, epoch, 1, 0, &batches, e) != 0 ||
        loader_train(s->loader, epoch, 1, 0, 0, batches, &begin, &end, e) != 0)
        return -1;
    while ((rc = loader_next(s->loader, &b, e)) == 1)
        for (int i = 0; i < b.n; i++)
            if (putchar(b.labels[i]) == EOF || fwrite(b.rows[i], bytes, 1, stdout) != 1)
                return err_set_errno(e, errno, "standard output");
    loader_end(s->loader);
    return rc;
}

int main(int argc, char **argv)
{
    err e = ERR_INIT;
    source s = {0};
    char folder[] = "/tmp/kubeml-batches-XXXXXX";
    if (argc != 6) {
        fprintf(stderr, "usage: bench_batches TRAIN TEST SEED EPOCHS BATCH\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN); /* an error like another: the folder is removed */
    int rc = open_source(&s, folder, (const char *const *)argv, &e);
    for (int epoch = 0; rc == 0 && epoch < atoi(argv[4]); epoch++)
        rc = write_epoch(&s, (uint32_t)epoch, &e);
    if (rc == 0 && fflush(stdout) != 0)
        rc = err_set_errno(&e, errno, "standard output");
    if (rc != 0)
        fprintf(stderr, "bench_batches: %s\n", e.message);
    loader_close(s.loader);
    dataset_close(s.data);
    store_close(s.store);
    fs_remove_tree(folder, NULL);
    return rc != 0;
}
