/* test_model_blob.c: which blob is a job's model, on every store. */
#include "common/store/model_blob.h"

#include <pthread.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "stores.h"

static void put(store *s, const char *name)
{
    err e = ERR_INIT;
    CHECK_OK(store_blob_put(s, name, name, strlen(name), &e), e);
}

static void drop(store *s, const char *name)
{
    err e = ERR_INIT;
    CHECK_OK(store_blob_delete(s, name, &e), e);
}

static void check_model(store *s, const char *name)
{
    err e = ERR_INIT;
    blob *b;
    char text[STORE_KEY_BYTES] = "";
    CHECK_OK(model_blob_open(s, "a", &b, &e), e);
    CHECK_OK(blob_read_at(b, 0, text, (size_t)blob_size(b), &e), e);
    CHECK_STR(text, name);
    blob_close(b);
    CHECK_OK(model_blob_find(s, "a", text, &e), e);
    CHECK_STR(text, name);
}

ON_STORES(the_final_model_goes_before_the_newest_checkpoint)
{
    err e = ERR_INIT;
    blob *b;
    char name[STORE_KEY_BYTES];
    store *s = test_store("");
    put(s, "models/ab/final");
    put(s, "models/a/suspended-000001");
    CHECK_ERR(model_blob_open(s, "a", &b, &e), e, ERR_NOT_FOUND, "job a has no model");
    CHECK_INT(model_blob_open(s, "a", &b, NULL), -1);
    CHECK_ERR(model_blob_find(s, "a", name, &e), e, ERR_NOT_FOUND, "job a has no model");
    put(s, "models/a/epoch-000009");
    put(s, "models/a/epoch-000010");
    check_model(s, "models/a/epoch-000010");
    put(s, "models/a/final");
    check_model(s, "models/a/final");
    store_close(s);
}

static void *look(void *arg)
{
    check_model(arg, "models/a/final");
    return NULL;
}

/* The job ends behind the look that found no final model. */
ON_STORES(a_model_is_found_while_its_job_ends)
{
    char held[600];
    pthread_t thread;
    store *s = test_store("");
    put(s, "models/a/epoch-000001");
    snprintf(held, sizeof held, "%s/held", test_tmp());
    setenv("KUBEML_FAILPOINT", "open-model:1:wait", 1);
    setenv("KUBEML_FAILPOINT_FILE", held, 1);
    failpoint_open(NULL);
    CHECK_INT(pthread_create(&thread, NULL, look, s), 0);
    for (int64_t until = clock_deadline_ms(20000); access(held, F_OK) != 0; usleep(5000))
        CHECK(clock_left_ms(until) > 0);
    put(s, "models/a/final");
    drop(s, "models/a/epoch-000001");
    CHECK_INT(unlink(held), 0);
    pthread_join(thread, NULL);
    store_close(s);
}
