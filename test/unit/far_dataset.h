/* far_dataset.h: a dataset whose store seems to be far away, as MongoDB's is: it is told which
 * chunks will be viewed. Behind it is any store. It counts, and fails where a test wants it. */
#ifndef KUBEML_FAR_DATASET_H
#define KUBEML_FAR_DATASET_H

#include "common/dataset/dataset.h"
#include "common/store/store_driver.h"
#include "test.h"

enum { FAR_CHUNKS_MAX = 64 };

/* Of the training set; lives as long as the dataset. */
typedef struct far_reader {
    chunk_reader base;
    chunk_reader *near;
    bool told[FAR_CHUNKS_MAX];
    int viewed[FAR_CHUNKS_MAX];
    int views, held, held_most;
    int fails; /* the view that fails, from 1 on */
} far_reader;

static inline void far_close(chunk_reader *base)
{
    far_reader *r = (far_reader *)base;
    CHECK_INT(r->held, 0);
    chunk_reader_close(r->near);
    free(r);
}

static inline int far_view(chunk_reader *base, uint32_t split, uint32_t index, const void **bytes,
                           size_t *len, err *e)
{
    far_reader *r = (far_reader *)base;
    if (split != DATASET_TRAIN)
        return chunk_view(r->near, split, index, bytes, len, e);
    CHECK(index < FAR_CHUNKS_MAX);
    if (++r->views == r->fails)
        return err_set(e, ERR_UNAVAILABLE, "dataset GPU-set: the line is cut");
    r->viewed[index]++;
    r->held++;
    r->held_most = r->held > r->held_most ? r->held : r->held_most;
    return chunk_view(r->near, split, index, bytes, len, e);
}

static inline void far_release(chunk_reader *base, uint32_t split, uint32_t index)
{
    far_reader *r = (far_reader *)base;
    r->held -= split == DATASET_TRAIN;
    chunk_view_release(r->near, split, index);
}

static inline int far_info(chunk_reader *base, const char **text, size_t *len, err *e)
{
    return chunk_reader_info(((far_reader *)base)->near, text, len, e);
}

static inline void far_prefetch(chunk_reader *base, uint32_t split, const uint32_t *indices,
                                size_t count)
{
    far_reader *r = (far_reader *)base;
    for (size_t i = 0; split == DATASET_TRAIN && i < count; i++)
        r->told[indices[i]] = true;
}

static inline dataset *open_far(const char *locator, far_reader **out)
{
    static const store_driver driver = {.scheme = "far:",
                                        .reader_close = far_close,
                                        .reader_view = far_view,
                                        .reader_release = far_release,
                                        .reader_info = far_info,
                                        .reader_prefetch = far_prefetch};
    far_reader *r = calloc(1, sizeof *r);
    dataset *d;
    err e = ERR_INIT;
    CHECK(r);
    r->base.driver = &driver;
    CHECK_OK(chunk_reader_open(locator, &r->near, &e), e);
    CHECK_OK(dataset_open_on(&r->base, &d, &e), e);
    CHECK(dataset_prefetches(d));
    *out = r;
    return d;
}

#endif
