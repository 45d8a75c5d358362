/* test_gpu.c: sizes, placing on GPUs, MPS's environment. */
#include <stdlib.h>
#include <sys/stat.h>

#include "common/contract/gpu.h"
#include "test.h"

#define GIB ((uint64_t)1 << 30)

TEST(sizes_of_memory_are_read_and_written)
{
    static const struct {
        const char *text;
        uint64_t bytes;
        const char *back;
    } good[] = {{"2Gi", 2 * GIB, "2Gi"},
                {"512Mi", GIB / 2, "512Mi"},
                {"1.5Gi", 3 * GIB / 2, "1536Mi"},
                {"4096", 4096, "4Ki"},
                {"4097", 4097, "4097"}};
    static const char *const bad[] = {"",   "Gi",  "2Gb", "-1",   "inf", "0x10", "1e9",
                                      "0",  ".5Gi", "2 Gi", "9000000Ti", "nan", "1.2.3"};
    err e = ERR_INIT;
    uint64_t bytes;
    char text[GPU_MEMORY_TEXT_BYTES];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK_OK(gpu_memory_parse(good[i].text, &bytes, &e), e);
        CHECK_INT(bytes, good[i].bytes);
        gpu_memory_text(bytes, text);
        CHECK_STR(text, good[i].back);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERR(gpu_memory_parse(bad[i], &bytes, &e), e, ERR_INVALID, "no size of memory");
}

TEST(policies_choose_among_gpus_with_room)
{
    const gpu_state gpus[] = {{80 * GIB, 10 * GIB, 25, 1, false},
                              {80 * GIB, 70 * GIB, 50, 4, false},
                              {40 * GIB, 0, 0, 0, false},
                              {80 * GIB, 20 * GIB, 90, 2, false}};
    gpu_share small = {.memory_bytes = 2 * GIB, .threads = 25};
    CHECK_INT(gpu_place(GPU_BEST_FIT, gpus, 4, small), 1);
    CHECK_INT(gpu_place(GPU_SPREAD, gpus, 4, small), 2);
    CHECK_INT(gpu_place(GPU_PACK, gpus, 4, small), 1);
    gpu_share large = {.memory_bytes = 50 * GIB, .threads = 5};
    CHECK_INT(gpu_place(GPU_BEST_FIT, gpus, 4, large), 3);
    CHECK_INT(gpu_place(GPU_PACK, gpus, 4, large), 3);
    large.threads = 25; /* the third has no threads left */
    CHECK_INT(gpu_place(GPU_BEST_FIT, gpus, 4, large), 0);
    large.memory_bytes = 71 * GIB;
    CHECK_INT(gpu_place(GPU_BEST_FIT, gpus, 4, large), -1);
    CHECK_INT(gpu_place(GPU_SPREAD, gpus, 0, small), -1);
}

TEST(functions_without_a_limit_share_a_gpu_equally)
{
    gpu_state gpu = {.memory_bytes = 80 * GIB};
    gpu_share any = {0};
    int placed = 0;
    while (gpu_place(GPU_PACK, &gpu, 1, any) == 0) {
        gpu.taken_bytes += gpu_share_bytes(&gpu, any);
        gpu.functions++;
        CHECK(++placed <= GPU_UNCAPPED_PARTS);
    }
    CHECK_INT(placed, GPU_UNCAPPED_PARTS);
}

TEST(a_gpu_that_is_not_there_takes_nothing_and_a_time_sliced_one_no_threads)
{
    gpu_share any = {0}, threads = {.memory_bytes = GIB, .threads = 60};
    gpu_state gone = {0}, gpu = {.memory_bytes = 8 * GIB}, sliced = {8 * GIB, .time_sliced = true};
    CHECK_INT(gpu_place(GPU_PACK, &gone, 1, any), -1);
    gpu_book(&gpu, threads);
    gpu_book(&sliced, threads);
    CHECK_INT(gpu.taken_bytes, GIB);
    CHECK_INT(gpu.threads_taken, 60);
    CHECK_INT(sliced.threads_taken, 0);
    CHECK_INT(sliced.functions, 1);
    CHECK_INT(gpu_place(GPU_PACK, &gpu, 1, threads), -1);
    CHECK_INT(gpu_place(GPU_PACK, &sliced, 1, threads), 0);
}

static uint64_t engine_bytes(uint64_t share, uint64_t context)
{
    err e = ERR_INIT;
    uint64_t out;
    CHECK_OK(gpu_engine_bytes(share, context, &out, &e), e);
    return out;
}

/* What is booked is all that a process takes: its engine leaves room for CUDA's context. */
TEST(an_engine_has_its_share_without_the_context)
{
    const uint64_t mib = 1 << 20;
    CHECK_INT(engine_bytes(0, 0), 0); /* no limit */
    CHECK_INT(engine_bytes(0, 500 * mib), 0);
    CHECK_INT(engine_bytes(10 * GIB, 0), 10 * GIB - GPU_CONTEXT_BYTES);
    CHECK_INT(engine_bytes(2 * GPU_CONTEXT_BYTES, 0), GPU_CONTEXT_BYTES);
    CHECK_INT(engine_bytes(GIB, 0), GIB / 2);
    CHECK_INT(engine_bytes(64 << 20, 0), 32 << 20);
    CHECK_INT(engine_bytes(1, 0), 1);
    CHECK_INT(engine_bytes(GIB, 500 * mib), GIB - 500 * mib - GPU_LATER_BYTES);
    err e = ERR_INIT;
    uint64_t out, least = 1100 * mib + GPU_LATER_BYTES + GPU_ENGINE_LEAST;
    CHECK_INT(engine_bytes(least, 1100 * mib), GPU_ENGINE_LEAST);
    CHECK_ERR(gpu_engine_bytes(least - 1, 1100 * mib, &out, &e), e, ERR_LIMIT,
              "CUDA's context takes 1100 MiB of it, and more than 1244 MiB are needed");
}

TEST(policies_have_names)
{
    err e = ERR_INIT;
    gpu_policy p;
    CHECK_OK(gpu_policy_parse("spread", &p, &e), e);
    CHECK_INT(p, GPU_SPREAD);
    CHECK_ERR(gpu_policy_parse("random", &p, &e), e, ERR_INVALID, "best-fit");
}

TEST(mps_is_told_the_limits_where_it_runs)
{
    err e = ERR_INIT;
    gpu_share share = {.memory_bytes = 3 * GIB / 2 + 1, .threads = 25};
    char path[512];
    setenv("CUDA_MPS_PIPE_DIRECTORY", test_tmp(), 1);
    CHECK(!gpu_mps_runs());
    CHECK_OK(gpu_mps_limit(share, 0, &e), e);
    CHECK(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == NULL);
    snprintf(path, sizeof path, "%s/control", test_tmp());
    CHECK(mkfifo(path, 0600) == 0);
    CHECK(gpu_mps_runs());
    CHECK_OK(gpu_mps_limit(share, 1, &e), e);
    CHECK_STR(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "25");
    CHECK_STR(getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "1=1537M");
}
