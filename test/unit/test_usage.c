/* What a function's process uses: of the processor and memory, and of a GPU by NVML (test/nvml);
 * and what kubeml-ps makes of it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/contract/nvml.h"
#include "test.h"
#include "function-runtime/base/usage.h"
#include "ps/job/job_usage.h"

static void use_fake(const char *visible)
{
    char path[600];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/testlib/fake-nvml.so", build ? build : "build/release");
    setenv("KUBEML_NVML", path, 1);
    if (visible)
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(a_gpu_says_what_it_does)
{
    err e = ERR_INIT;
    nvml *n;
    nvml_sample s;
    use_fake(NULL);
    CHECK_OK(nvml_open(&n, &e), e);
    CHECK_OK(nvml_read(n, &s, &e), e);
    CHECK_STR(s.name, "Fake GPU-0");
    CHECK_INT(s.busy_percent, 40);
    CHECK_INT(s.memory_bytes, 1 << 30);
    CHECK_INT(s.own_bytes, 7 << 20);
    CHECK_NEAR(s.own_percent, 12, 0); /* of the newest of its samples */
    CHECK_INT(s.memory_total >> 30, 8);
    CHECK(fabs(s.watts - 123.4) < 1e-9);
    CHECK_OK(nvml_read(n, &s, &e), e);
    CHECK_NEAR(s.own_percent, 12, 0); /* there is no newer one yet */
    nvml_close(n);
}

TEST(a_gpu_that_tells_no_processes_apart_says_so)
{
    err e = ERR_INIT;
    nvml *n;
    nvml_sample s;
    use_fake(NULL);
    setenv("FAKE_NVML", "alone", 1);
    CHECK_OK(nvml_open(&n, &e), e);
    CHECK_OK(nvml_read(n, &s, &e), e);
    CHECK_NEAR(s.own_percent, -1, 0);
    CHECK_INT(s.busy_percent, 40);
    nvml_close(n);
    usage *u = usage_open();
    json_t *m = usage_json(u);
    CHECK(!json_object_get(json_object_get(m, "gpu"), "own_percent"));
    json_decref(m);
    usage_close(u);
}

TEST(the_gpu_is_the_one_that_cuda_sees_first)
{
    static const char *const seconds[] = {"1", "1,0", "GPU-1", "GPU-1,GPU-0"};
    err e = ERR_INIT;
    nvml *n;
    nvml_sample s;
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        use_fake(seconds[i]);
        CHECK_OK(nvml_open(&n, &e), e);
        CHECK_OK(nvml_read(n, &s, &e), e);
        CHECK_STR(s.name, "Fake GPU-1");
        CHECK_INT(s.own_bytes, 0); /* ours is on the other */
        CHECK_NEAR(s.own_percent, -1, 0);
        nvml_close(n);
    }
    use_fake("7");
    CHECK_ERR(nvml_open(&n, &e), e, ERR_UNAVAILABLE, "no GPU \"7\"");
    use_fake("");
    CHECK_ERR(nvml_open(&n, &e), e, ERR_UNAVAILABLE, "no GPU \"\"");
}

/* As CUDA takes it. */
TEST(a_gpu_may_be_named_by_the_begin_of_its_uuid)
{
    static const char *const none[] = {"GPU-", "GPU-1-8932f9371", "1-89"};
    err e = ERR_INIT;
    nvml_gpu gpus[2];
    int count;
    use_fake("GPU-1-89,GPU-0");
    setenv("FAKE_NVML", "long", 1);
    CHECK_OK(nvml_list(true, gpus, 2, &count, &e), e);
    CHECK_INT(count, 2);
    CHECK_STR(gpus[0].uuid, "GPU-1-8932f937");
    CHECK_STR(gpus[1].uuid, "GPU-0-8932f937");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        use_fake(none[i]);
        CHECK_ERR(nvml_list(true, gpus, 2, &count, &e), e, ERR_UNAVAILABLE, "NVML knows no GPU");
    }
}

TEST(the_gpus_of_a_machine_are_listed)
{
    err e = ERR_INIT;
    nvml_gpu gpus[4];
    int count = 0;
    use_fake(NULL);
    CHECK_OK(nvml_list(true, gpus, 4, &count, &e), e);
    CHECK_INT(count, 2);
    CHECK_STR(gpus[1].uuid, "GPU-1");
    CHECK_INT(gpus[1].memory_bytes >> 30, 8);
    setenv("FAKE_NVML", "reserve", 1);
    CHECK_OK(nvml_list(true, gpus, 1, &count, &e), e);
    CHECK_INT(count, 1);
    CHECK_INT(gpus[0].memory_bytes >> 20, 8192 - 600); /* nobody gets the driver's */
    unsetenv("FAKE_NVML");
    use_fake("1,GPU-0");
    CHECK_OK(nvml_list(true, gpus, 4, &count, &e), e);
    CHECK_INT(count, 2);
    CHECK_STR(gpus[0].uuid, "GPU-1");
    CHECK_STR(gpus[1].uuid, "GPU-0");
    use_fake("");
    CHECK_OK(nvml_list(true, gpus, 4, &count, &e), e);
    CHECK_INT(count, 0);
    use_fake("0,7");
    CHECK_ERR(nvml_list(true, gpus, 4, &count, &e), e, ERR_UNAVAILABLE, "no GPU \"7\"");
    use_fake(NULL);
    setenv("FAKE_NVML", "broken", 1);
    e = (err)ERR_INIT;
    CHECK_ERR(nvml_list(true, gpus, 4, &count, &e), e, ERR_UNAVAILABLE, "does not say what it is");
    unsetenv("FAKE_NVML");
}

TEST(a_gpu_that_cannot_be_used_takes_no_other_along)
{
    static const char *const ways[] = {"lost", "old", "empty"};
    err e = ERR_INIT;
    nvml_gpu gpus[4];
    int count;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        use_fake(NULL);
        setenv("FAKE_NVML", ways[i], 1);
        CHECK_OK(nvml_list(false, gpus, 4, &count, &e), e);
        CHECK_INT(count, 1);
        CHECK_STR(gpus[0].uuid, "GPU-1");
    }
    use_fake("7,1");
    CHECK_OK(nvml_list(false, gpus, 4, &count, &e), e);
    CHECK_INT(count, 1);
    CHECK_STR(gpus[0].uuid, "GPU-1");
    use_fake(NULL);
    setenv("FAKE_NVML", "lost", 1);
    CHECK_ERR(nvml_list(true, gpus, 4, &count, &e), e, ERR_UNAVAILABLE,
              "GPU \"0\" does not answer");
    setenv("NVIDIA_VISIBLE_DEVICES", "GPU-0", 1);
    setenv("FAKE_NVML", "old", 1);
    e = (err)ERR_INIT;
    CHECK_ERR(nvml_given(gpus, &e), e, ERR_UNAVAILABLE, "there is no GPU");
}

/* What is written to stderr from here on goes to that file. */
static void redirect_log(char path[512])
{
    snprintf(path, 512, "%s/log", getenv("TEST_TMP"));
    CHECK(freopen(path, "w", stderr));
}

TEST(a_driver_that_is_older_than_the_engines_cuda_is_named)
{
    err e = ERR_INIT;
    nvml_gpu gpus[2];
    char path[512], log[4096];
    int count;
    use_fake(NULL);
    setenv("FAKE_NVML", "behind", 1);
    for (nvml_cuda_major = 0; nvml_cuda_major <= 12;
         nvml_cuda_major += 12) { /* none, and its own */
        CHECK_OK(nvml_list(true, gpus, 2, &count, &e), e);
        CHECK_INT(count, 2);
    }
    nvml_cuda_major = 13;
    redirect_log(path);
    CHECK_OK(nvml_list(true, gpus, 2, &count, &e), e);
    CHECK_INT(count, 0);
    fflush(stderr);
    FILE *f = fopen(path, "r");
    log[fread(log, 1, sizeof log - 1, f)] = '\0';
    fclose(f);
    CHECK_CONTAINS(log,
                   "GPU 1 is left out: the driver 570.86.15 is of CUDA 12.8, and the engine of "
                   "CUDA 13: driver 580 or later is needed");
    CHECK_ERR(nvml_given(gpus, &e), e, ERR_UNAVAILABLE, "there is no GPU");
}

TEST(memory_that_is_the_hosts_counts_as_a_gpus)
{
    err e = ERR_INIT;
    nvml_gpu gpus[2];
    nvml *n;
    nvml_sample s;
    int count;
    use_fake(NULL);
    setenv("FAKE_NVML", "host", 1);
    CHECK_OK(nvml_list(true, gpus, 2, &count, &e), e);
    CHECK_INT(count, 2);
    CHECK_INT(gpus[0].memory_bytes, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    CHECK_OK(nvml_open(&n, &e), e);
    CHECK_OK(nvml_read(n, &s, &e), e);
    CHECK_INT(s.memory_total, 0);
    CHECK_INT(s.own_bytes, 7 << 20);
    nvml_close(n);
    usage *u = usage_open();
    json_t *m = usage_json(u), *gpu = json_object_get(m, "gpu");
    CHECK(gpu && !json_object_get(gpu, "memory_bytes"));
    CHECK_INT(json_integer_value(json_object_get(gpu, "percent")), 40);
    json_decref(m);
    usage_close(u);
}

TEST(a_client_of_mps_finds_itself)
{
    err e = ERR_INIT;
    nvml *n;
    nvml_sample s;
    use_fake(NULL);
    setenv("FAKE_NVML", "mps", 1);
    CHECK_OK(nvml_open(&n, &e), e);
    CHECK_OK(nvml_read(n, &s, &e), e);
    CHECK_INT(s.own_bytes, 9 << 20);
    nvml_close(n);
}

/* By its name, or as what CUDA takes of the GPU. */
TEST(a_part_of_a_gpu_is_one_of_its_own)
{
    static const char *const told[] = {"MIG-2", "void", "GPU-0"};
    err e = ERR_INIT;
    nvml_gpu gpus[4];
    nvml *n;
    nvml_sample s;
    int count;
    setenv("FAKE_NVML", "mig", 1);
    use_fake(NULL);
    CHECK_OK(nvml_list(true, gpus, 4, &count, &e), e);
    CHECK_INT(count, 2);
    CHECK_STR(gpus[0].uuid, "MIG-2");
    CHECK_INT(gpus[0].memory_bytes >> 30, 2);
    CHECK_STR(gpus[1].uuid, "GPU-1");
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        setenv("NVIDIA_VISIBLE_DEVICES", told[i], 1);
        use_fake(NULL);
        CHECK_OK(nvml_open(&n, &e), e);
        CHECK_OK(nvml_read(n, &s, &e), e);
        CHECK_STR(s.name, "Fake MIG-2");
        CHECK_INT(s.memory_total >> 30, 2);
        CHECK_INT(s.busy_percent, -1);
        CHECK_NEAR(s.watts, -1, 0);
        nvml_close(n);
        use_fake("0"); /* nothing else is there */
        CHECK_OK(nvml_given(gpus, &e), e);
        CHECK_STR(gpus[0].uuid, "MIG-2");
        CHECK_INT(gpus[0].memory_bytes >> 30, 2);
    }
    use_fake("MIG-2");
    usage *u = usage_open();
    json_t *m = usage_json(u), *gpu = json_object_get(m, "gpu");
    CHECK_INT(json_integer_value(json_object_get(gpu, "memory_bytes")), 1 << 28);
    CHECK(!json_object_get(gpu, "percent") && !json_object_get(gpu, "watts"));
    json_decref(m);
    usage_close(u);
}

/* What a container's runtime was told, as NVIDIA's device plugin names a GPU that several share. */
TEST(a_container_knows_which_gpu_it_was_given)
{
    err e = ERR_INIT;
    nvml_gpu gpu;
    static const char *const several[] = {"all", "void", "", "GPU-0,GPU-1", "/var/run/devices",
                                          NULL};
    use_fake(NULL);
    setenv("NVIDIA_VISIBLE_DEVICES", "GPU-1", 1);
    CHECK_OK(nvml_given(&gpu, &e), e);
    CHECK_STR(gpu.uuid, "GPU-1");
    CHECK_INT(gpu.memory_bytes >> 30, 8);
    setenv("NVIDIA_VISIBLE_DEVICES", "GPU-1::3", 1);
    CHECK_OK(nvml_given(&gpu, &e), e);
    CHECK_STR(gpu.uuid, "GPU-1");
    setenv("NVIDIA_VISIBLE_DEVICES", "GPU-7", 1);
    CHECK_ERR(nvml_given(&gpu, &e), e, ERR_UNAVAILABLE, "no GPU \"GPU-7\"");
    for (size_t i = 0; i < sizeof several / sizeof *several; i++) {
        use_fake(NULL);
        if (several[i])
            setenv("NVIDIA_VISIBLE_DEVICES", several[i], 1);
        else
            unsetenv("NVIDIA_VISIBLE_DEVICES");
        CHECK_ERR(nvml_given(&gpu, &e), e, ERR_UNAVAILABLE, "more than one GPU");
        use_fake("GPU-1"); /* nothing else is there */
        CHECK_OK(nvml_given(&gpu, &e), e);
        CHECK_STR(gpu.uuid, "GPU-1");
    }
}

TEST(without_a_library_there_is_none)
{
    err e = ERR_INIT;
    nvml *n;
    setenv("KUBEML_NVML", "/nowhere/libnvidia-ml.so", 1);
    CHECK_ERR(nvml_open(&n, &e), e, ERR_NOT_FOUND, "there is no NVML");
    setenv("KUBEML_NVML", "libm.so.6", 1);
    CHECK_ERR(nvml_open(&n, &e), e, ERR_UNAVAILABLE, "NVML has no nvml");
}

TEST(a_process_says_what_it_uses)
{
    use_fake(NULL);
    usage *u = usage_open();
    CHECK(u);
    for (int64_t until = clock_monotonic_ns() + 50000000; clock_monotonic_ns() < until;)
        ;
    json_t *m = usage_json(u), *gpu = json_object_get(m, "gpu");
    CHECK(json_number_value(json_object_get(m, "cpu_percent")) > 0);
    CHECK(json_integer_value(json_object_get(m, "memory_bytes")) > 1 << 20);
    CHECK_INT(json_integer_value(json_object_get(gpu, "percent")), 40);
    CHECK_INT(json_integer_value(json_object_get(gpu, "own_bytes")), 7 << 20);
    CHECK_NEAR(json_number_value(json_object_get(gpu, "own_percent")), 12, 0);
    json_decref(m);
    setenv("FAKE_NVML", "broken", 1);
    m = usage_json(u);
    CHECK(m && !json_object_get(m, "gpu"));
    json_decref(m);
    unsetenv("FAKE_NVML");
    usage_without_gpu(u);
    m = usage_json(u);
    CHECK(m && !json_object_get(m, "gpu"));
    json_decref(m);
    usage_close(u);
}

/* ---- in kubeml-ps ---------------------------------------------------------------------------- */

static job_usage board;

static void take(int function, double cpu, int memory, int gpu_percent, int64_t now_ms)
{
    err e = ERR_INIT;
    json_t *m = json_pack("{s:f,s:i}", "cpu_percent", cpu, "memory_bytes", memory);
    if (gpu_percent >= 0)
        json_object_set_new(m, "gpu",
                            json_pack("{s:s,s:i,s:i,s:i,s:f,s:f}", "name", "g", "percent",
                                      gpu_percent, "memory_bytes", memory * 2, "own_bytes", 1,
                                      "watts", 100.0, "own_percent", 7.0));
    CHECK_OK(job_usage_take(&board, function, 3, m, now_ms, &e), e);
    json_decref(m);
}

TEST(controllers_are_told_now_and_then_of_those_that_live)
{
    take(0, 50, 1000, -1, 10000);
    take(2, 150, 2000, 60, 10000);
    json_t *m = job_usage_message(&board, 10000);
    json_t *rows = json_object_get(m, "functions");
    CHECK_STR(json_string_value(json_object_get(m, "type")), "usage");
    CHECK_INT(json_array_size(rows), 2);
    CHECK_INT(json_integer_value(json_object_get(json_array_get(rows, 1), "function")), 2);
    CHECK_INT(json_integer_value(json_object_get(json_array_get(rows, 1), "incarnation")), 3);
    json_decref(m);
    CHECK(!job_usage_message(&board, 10000 + JOB_USAGE_TELL_MS - 1));
    take(2, 150, 2000, 60, 14000);
    m = job_usage_message(&board, 10000 + JOB_USAGE_STALE_MS);
    CHECK_INT(json_array_size(json_object_get(m, "functions")), 1); /* the other is silent */
    json_decref(m);
    take(2, 150, 2000, 60, 15001);
    CHECK(!job_usage_message(&board, 15001));
    take(1, 50, 1000, -1, 15002); /* it is new */
    m = job_usage_message(&board, 15002);
    CHECK_INT(json_array_size(json_object_get(m, "functions")), 2);
    json_decref(m);
    job_usage_clear(&board);
}

TEST(an_epoch_has_its_means_and_its_most)
{
    epoch_result r;
    job_usage_epoch(&board, &r);
    CHECK(isnan(r.cpu_percent) && isnan(r.gpu_percent) && isnan(r.gpu_watts));
    CHECK(r.memory_bytes == UINT64_MAX && r.gpu_memory_bytes == UINT64_MAX);
    take(0, 50, 1000, 20, 1);
    take(1, 100, 3000, 40, 2);
    take(0, 60, 2000, 60, 3);
    job_usage_epoch(&board, &r);
    CHECK(fabs(r.cpu_percent - 70) < 1e-9 && fabs(r.gpu_percent - 40) < 1e-9 &&
          fabs(r.gpu_watts - 100) < 1e-9);
    CHECK_INT(r.memory_bytes, 3000);
    CHECK_INT(r.gpu_memory_bytes, 6000);
    job_usage_epoch(&board, &r); /* shorter than a heartbeat: the last ones' */
    CHECK(fabs(r.cpu_percent - 80) < 1e-9);
    CHECK_INT(r.memory_bytes, 3000);
    job_usage_clear(&board);
}

TEST(what_a_gpu_does_not_tell_is_in_no_mean)
{
    epoch_result r;
    err e = ERR_INIT;
    json_t *m = json_pack("{s:f,s:i,s:{s:s,s:i}}", "cpu_percent", 1.0, "memory_bytes", 1, "gpu",
                          "name", "a part", "own_bytes", 0);
    CHECK_OK(job_usage_take(&board, 1, 0, m, 1, &e), e);
    job_usage_epoch(&board, &r);
    CHECK(isnan(r.gpu_percent) && isnan(r.gpu_watts));
    CHECK(r.gpu_memory_bytes == UINT64_MAX);
    take(0, 50, 1000, 40, 1);
    CHECK_OK(job_usage_take(&board, 1, 0, m, 2, &e), e);
    job_usage_epoch(&board, &r);
    CHECK(fabs(r.gpu_percent - 40) < 1e-9 && fabs(r.gpu_watts - 100) < 1e-9);
    CHECK_INT(r.gpu_memory_bytes, 2000);
    json_decref(m);
    job_usage_clear(&board);
}

TEST(a_heartbeat_that_says_nonsense_is_refused)
{
    static const char *const wrong[] = {
        "{}",
        "{\"cpu_percent\":1}",
        "{\"cpu_percent\":\"1\",\"memory_bytes\":1}",
        "{\"cpu_percent\":1,\"memory_bytes\":-1}",
        "{\"cpu_percent\":1,\"memory_bytes\":1,\"more\":1}",
        "{\"cpu_percent\":1,\"memory_bytes\":1,\"gpu\":{\"name\":\"x\"}}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err e = ERR_INIT;
        json_t *m = json_loads(wrong[i], 0, NULL);
        CHECK_ERR(job_usage_take(&board, 0, 0, m, 1, &e), e, ERR_INVALID, "usage");
        json_decref(m);
    }
    CHECK(!board.rows[0].last);
}

/* What is told again for every function every two seconds is no longer than NVML makes it. */
TEST(a_gpus_name_has_its_length)
{
    char name[NVML_NAME_BYTES + 1];
    err e = ERR_INIT;
    memset(name, 'x', sizeof name);
    for (size_t len = NVML_NAME_BYTES - 1; len <= NVML_NAME_BYTES; len++) {
        name[len] = '\0';
        json_t *m = json_pack("{s:f,s:i,s:{s:s,s:f,s:i,s:i,s:f}}", "cpu_percent", 1.0,
                              "memory_bytes", 1, "gpu", "name", name, "percent", 1.0,
                              "memory_bytes", 1, "own_bytes", 1, "watts", 1.0);
        if (len < NVML_NAME_BYTES)
            CHECK_OK(job_usage_take(&board, 0, 0, m, 1, &e), e);
        else
            CHECK_ERR(job_usage_take(&board, 0, 0, m, 1, &e), e, ERR_INVALID, "name of 96 bytes");
        json_decref(m);
        name[len] = 'x';
    }
    job_usage_clear(&board);
}
