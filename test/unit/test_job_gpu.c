/* test_job_gpu.c: the jobs machine's places on GPUs: of this host, and of the pods that show them.
 */
#include "job_fixture.h"

#define GIB ((uint64_t)1 << 30)

static void submit_shared(const char *id, int parallelism, gpu_share share)
{
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = 3,
                 .batch_size = 8,
                 .lr = 0.1,
                 .default_parallelism = parallelism,
                 .static_parallelism = true,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .process = PROCESS_SHARED,
                 .gpu = share};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(m, id, &r, false, 1, &e), e);
    step((job_event){.type = JOB_TICK});
}

static void submit_on_gpu(const char *id, int parallelism, bool is_static, train_device device,
                          gpu_share share)
{
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = 3,
                 .batch_size = 8,
                 .lr = 0.1,
                 .default_parallelism = parallelism,
                 .static_parallelism = is_static,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .device = device,
                 .gpu = share};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(m, id, &r, false, 1, &e), e);
    step((job_event){.type = JOB_TICK});
}

static void open_with_gpus(gpu_policy policy, bool threads, uint64_t first, uint64_t second)
{
    const uint64_t bytes[] = {first, second};
    open_machine(8);
    jobs_gpus(m, policy, threads, bytes, second ? 2 : first ? 1 : 0);
}

static void check_places(const char *id, const char *want)
{
    char got[64] = "";
    const job *j = jobs_find(m, id);
    for (int f = 0; f < j->gpu_functions; f++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%d", job_gpu(j, f));
    CHECK_STR(got, want);
}

TEST(functions_are_placed_on_gpus_by_policy)
{
    static const struct {
        gpu_policy policy;
        const char *places;
    } cases[] = {{GPU_BEST_FIT, "1100"}, {GPU_SPREAD, "0101"}, {GPU_PACK, "1100"}};
    for (size_t i = 0; i < 3; i++) {
        open_with_gpus(cases[i].policy, false, 16 * GIB, 8 * GIB);
        /* threads do not count here */
        submit_on_gpu("a", 4, true, DEVICE_AUTO, (gpu_share){3 * GIB, 50});
        check_places("a", cases[i].places);
        submit_on_gpu("c", 2, true, DEVICE_CPU, (gpu_share){0});
        CHECK_INT(jobs_find(m, "c")->state, JOB_STARTING);
        check_places("c", "");
        jobs_close(m);
    }
}

TEST(ranks_of_nccls_are_placed_apart_as_long_as_there_are_gpus)
{
    static const struct {
        int functions;
        uint64_t memory_bytes; /* of each */
        const char *places;
    } cases[] = {{2, 3 * GIB, "10"}, {4, 3 * GIB, "1010"}, {3, 6 * GIB, "100"}};
    for (size_t i = 0; i < 3; i++) {
        err e = ERR_INIT;
        request r = {.function_name = "f",
                     .dataset = "d",
                     .epochs = 3,
                     .batch_size = 8,
                     .lr = 0.1,
                     .default_parallelism = cases[i].functions,
                     .static_parallelism = true,
                     .k = -1,
                     .validate_every = 1,
                     .goal_accuracy = 100,
                     .device = DEVICE_CUDA,
                     .gpu = {cases[i].memory_bytes, 0},
                     .merge = MERGE_NCCL};
        open_with_gpus(GPU_BEST_FIT, false, 16 * GIB, 8 * GIB);
        CHECK_OK(jobs_submit(m, "a", &r, false, 1, &e), e);
        step((job_event){.type = JOB_TICK});
        check_places("a", cases[i].places);
        jobs_close(m);
    }
}

TEST(a_job_that_finds_no_gpu_memory_waits_until_another_has_ended)
{
    gpu_state gpus[GPU_COUNT_MAX];
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 0);
    submit_on_gpu("a", 2, true, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    function_joins("a", 1, 0);
    submit_on_gpu("b", 1, true, DEVICE_CUDA, (gpu_share){4 * GIB, 0});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    check_reason("b", "NoGpuMemory", "needs 4.0 GiB of GPU memory");
    check_reason("b", "NoGpuMemory", "2.0 of 8.0 GiB");
    check_reason("b", "NoGpuMemory", "a (2)");
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUCCEEDED, .value = 3});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED); /* its functions still hold what they hold */
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    check_places("b", "0");
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-1-0"});
    jobs_gpu_states(m, gpus);
    CHECK_INT(gpus[0].taken_bytes, 4 * GIB);
    CHECK_INT(gpus[0].functions, 1);
    jobs_close(m);
}

TEST(a_shared_process_holds_the_slots_of_all_its_functions_until_it_has_ended)
{
    open_machine(4);
    submit_shared("a", 3, (gpu_share){0});
    CHECK_INT(jobs_slots_free(m), 1);
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    submit("b", 2, 0, true);
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUCCEEDED, .value = 3});
    CHECK_INT(number_of(JOB_STOP), 2); /* one function's pod, and kubeml-ps */
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0"});
    CHECK_INT(jobs_slots_free(m), 1);
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    jobs_close(m);
}

TEST(the_functions_of_a_shared_process_have_one_gpu)
{
    gpu_state gpus[GPU_COUNT_MAX];
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 12 * GIB);
    submit_on_gpu("one", 1, true, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
    check_places("one", "0");
    /* 9 GiB: two of them would fit on GPU 0 better */
    submit_shared("a", 3, (gpu_share){3 * GIB, 0});
    check_places("a", "111");
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    submit_shared("b", 2, (gpu_share){3 * GIB, 0}); /* 5 and 3 GiB are free */
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    check_reason("b", "NoGpuMemory",
                 "its 2 functions share a process and need 6.0 GiB of GPU memory on one GPU");
    /* it was replaced */
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 0, .incarnation = 1});
    jobs_gpu_states(m, gpus);
    CHECK_INT(gpus[1].taken_bytes, 9 * GIB);
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUCCEEDED, .value = 3});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0"});
    jobs_gpu_states(m, gpus);
    CHECK_INT(gpus[1].taken_bytes, 9 * GIB); /* what it holds it still holds */
    step((job_event){.type = JOB_POD_FAILED,
                     .job = "a",
                     .function = 0,
                     .incarnation = 1,
                     .code = ERR_UNAVAILABLE});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    check_places("b", "11");
    jobs_close(m);
}

/* On the empty platform there would be no place for it: nobody waits for it. */
TEST(a_job_that_no_gpu_could_hold_holds_nobody_up)
{
    static const struct {
        uint64_t first, second; /* the GPUs */
        gpu_share share;
        int functions;
        bool shared;
        const char *reason, *message;
    } cases[] = {
        {0, 0, {0}, 1, false, "NoGpu", "knows none"},
        {8 * GIB, 8 * GIB, {9 * GIB, 0}, 1, false, "NoGpuMemory", "the largest GPU has 8.0 GiB"},
        {8 * GIB, 8 * GIB, {5 * GIB, 0}, 3, false, "NoGpuMemory", "and 2 find a place"},
        {8 * GIB, 0, {GIB, 40}, 3, false, "NoGpuThreads", "and 2 find a place"},
        {8 * GIB, 8 * GIB, {3 * GIB, 0}, 3, true, "NoGpuMemory", "9.0 GiB of GPU memory on one"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_with_gpus(GPU_BEST_FIT, true, cases[i].first, cases[i].second);
        submit_on_gpu("runs", 2, false, DEVICE_CPU, (gpu_share){0});
        ps_starts("runs", 0);
        if (cases[i].shared)
            submit_shared("never", cases[i].functions, cases[i].share);
        else
            submit_on_gpu("never", cases[i].functions, true, DEVICE_CUDA, cases[i].share);
        CHECK_INT(jobs_find(m, "never")->state, JOB_QUEUED);
        CHECK(!jobs_waiting(m));
        step((job_event){.type = JOB_PS_EPOCH, .job = "runs", .value = 2, .seconds = 4});
        step((job_event){.type = JOB_PS_ASK, .job = "runs", .value = 2, .seconds = 4});
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3); /* it may grow */
        submit_on_gpu("cpu", 1, true, DEVICE_CPU, (gpu_share){0});
        CHECK_INT(jobs_find(m, "cpu")->state, JOB_STARTING);
        submit_on_gpu("small", 1, true, DEVICE_AUTO, (gpu_share){GIB, 0});
        CHECK_INT(jobs_find(m, "small")->state, JOB_STARTING);
        submit_on_gpu("waits", 8, true, DEVICE_CPU, (gpu_share){0});
        check_reason("waits", "NoFreeSlot", "0 jobs are before it");
        check_reason("never", cases[i].reason, cases[i].message);
        jobs_close(m);
    }
}

TEST(who_waits_for_another_is_told_for_whom_and_why)
{
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 0);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){5 * GIB, 0});
    submit_on_gpu("never", 1, true, DEVICE_AUTO, (gpu_share){9 * GIB, 0});
    submit_on_gpu("b", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    submit_on_gpu("c", 1, true, DEVICE_CPU, (gpu_share){0});
    check_reason("b", "NoGpuMemory", "needs 6.0 GiB");
    check_reason("c", "NoFreeSlot",
                 "7 of 8 are free, 1 job is before it (first b: NoGpuMemory); held by: a (1)");
    jobs_close(m);
}

/* Of `at`, which waits, by one walk over all. */
static int count_before(size_t at)
{
    const job *j = jobs_at(m, at);
    int before = 0;
    for (size_t k = 0; k < jobs_count(m); k++) {
        const job *other = jobs_at(m, k);
        int priority = other->request.priority - j->request.priority;
        bool possible =
            other->request.default_parallelism <= 8 && other->request.gpu.memory_bytes < 9 * GIB;
        before +=
            other->state == JOB_QUEUED && possible && (priority > 0 || (priority == 0 && k < at));
    }
    return before;
}

TEST(all_that_wait_are_explained_in_one_look)
{
    char id[JOB_ID_BYTES], before[40];
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 0);
    submit_on_gpu("runs", 7, true, DEVICE_CPU, (gpu_share){0});
    for (int i = 0; i < 60; i++) {
        snprintf(id, sizeof id, "job%d", i);
        if (i % 7 == 3)
            submit_on_gpu(id, 1, true, DEVICE_AUTO, (gpu_share){9 * GIB, 0}); /* never */
        else
            submit(id, 2 + i * i % 8, i * 5 % 3 - 1, true); /* with 9 slots never */
    }
    step((job_event){.type = JOB_TICK});
    jobs_look look = {.machine = m, .now_ms = now};
    int in_line = 0;
    for (size_t i = 0; i < jobs_count(m); i++) {
        job_reason together, alone;
        jobs_explain_in(&look, jobs_at(m, i), &together);
        jobs_explain(m, jobs_at(m, i), now, &alone);
        CHECK_STR(together.reason, alone.reason);
        CHECK_STR(together.message, alone.message);
        if (!strstr(together.message, "before it"))
            continue;
        int wanted = count_before(i);
        snprintf(before, sizeof before, ", %d job%s before it", wanted,
                 wanted == 1 ? " is" : "s are");
        CHECK_CONTAINS(together.message, before);
        in_line++;
    }
    CHECK(in_line > 40);
    jobs_close(m);
}

TEST(why_there_is_no_gpu_for_a_job)
{
    open_with_gpus(GPU_BEST_FIT, true, 8 * GIB, 0);
    submit_on_gpu("large", 1, false, DEVICE_AUTO, (gpu_share){9 * GIB, 0});
    check_reason("large", "NoGpuMemory",
                 "needs 9.0 GiB of GPU memory, and the largest GPU has 8.0 GiB");
    jobs_close(m);
    open_with_gpus(GPU_BEST_FIT, true, 8 * GIB, 0);
    submit_on_gpu("threads", 3, true, DEVICE_AUTO, (gpu_share){GIB, 40});
    check_reason("threads", "NoGpuThreads", "40 % of a GPU's threads, and 2 find a place");
    jobs_close(m);
    open_with_gpus(GPU_BEST_FIT, true, 0, 0);
    submit_on_gpu("none", 1, true, DEVICE_CUDA, (gpu_share){0});
    check_reason("none", "NoGpu", "knows none");
    jobs_close(m);
    open_with_gpus(GPU_BEST_FIT, true, 0, 0);
    jobs_gpus_elsewhere(m, GPU_BEST_FIT); /* the pod has one, or is not scheduled */
    submit_on_gpu("pod", 1, true, DEVICE_CUDA, (gpu_share){0});
    CHECK_INT(jobs_find(m, "pod")->state, JOB_STARTING);
    jobs_close(m);
}

TEST(an_elastic_job_has_as_many_functions_as_its_gpus_hold)
{
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 8 * GIB);
    submit_on_gpu("all", 6, false, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
    CHECK_INT(jobs_find(m, "all")->parallelism, 4);
    check_places("all", "0011");
    jobs_close(m);
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 8 * GIB);
    submit_on_gpu("a", 3, false, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
    ps_starts("a", 0);
    static const struct {
        int functions;
        double seconds;
        int next;
    } epochs[] = {{3, 4, 4}, {4, 4, 4}, {4, 9, 3}}; /* there is a slot for a fifth, and no memory */
    for (int i = 0; i < 3; i++) {
        step((job_event){.type = JOB_PS_EPOCH,
                         .job = "a",
                         .epoch = i,
                         .value = epochs[i].functions,
                         .seconds = epochs[i].seconds});
        step((job_event){.type = JOB_PS_ASK,
                         .job = "a",
                         .epoch = i,
                         .value = epochs[i].functions,
                         .seconds = epochs[i].seconds});
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, epochs[i].next);
    }
    step((job_event){.type = JOB_TICK});
    check_places("a", "001");
    jobs_close(m);
}

TEST(a_replacement_takes_the_place_of_the_lost_one)
{
    err e = ERR_INIT;
    open_with_gpus(GPU_SPREAD, false, 8 * GIB, 8 * GIB);
    submit_on_gpu("a", 2, true, DEVICE_AUTO, (gpu_share){8 * GIB, 0});
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    function_joins("a", 1, 0);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-1-0"});
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    check_places("a", "01");
    /* The controller comes back, and with one GPU only: whom it had lost its place waits. */
    json_t *record = job_record(jobs_find(m, "a"));
    jobs_close(m);
    const uint64_t one = 8 * GIB;
    job_limits l;
    job_limits_default(&l);
    CHECK_OK(jobs_open(&l, 8, &m, &e), e);
    jobs_gpus(m, GPU_SPREAD, false, &one, 1);
    CHECK_OK(jobs_restore(m, record, &e), e);
    json_decref(record);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    step((job_event){.type = JOB_ADOPT});
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 2});
    CHECK(!find(JOB_TAKE));
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 0, .incarnation = 1});
    CHECK_INT(get(JOB_TAKE)->function, 0);
    jobs_close(m);
}

/* It began without function 1, and those after it are there: one more is one more slot. */
TEST(a_function_that_is_granted_is_counted_beside_those_that_are_there_without)
{
    open_machine(4);
    submit("a", 4, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    function_joins("a", 2, 0);
    function_joins("a", 3, 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1});
    step((job_event){.type = JOB_POD_WAITING,
                     .job = "a",
                     .function = 1,
                     .reason = "Unschedulable",
                     .message = "no room"});
    now += 5000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 1);
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 1});
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 1, .code = ERR_CANCELLED});
    submit("b", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    CHECK_INT(jobs_slots_free(m), 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    CHECK(!find(JOB_TAKE));
    CHECK_INT(jobs_slots_free(m), 0);
    CHECK_INT(jobs_find(m, "a")->parallelism, 1);
    jobs_close(m);
}

/* ---- GPUs of pods ---------------------------------------------------------------------------- */

static void open_elsewhere(gpu_policy policy)
{
    open_machine(8);
    jobs_gpus_elsewhere(m, policy);
}

/* Its pod comes, on that GPU. */
static void pod_comes(const char *id, int f, int incarnation, int gpu)
{
    char pod[JOB_POD_BYTES];
    snprintf(pod, sizeof pod, "%s-f-%d-%d", id, f, incarnation);
    CHECK(jobs_gpu_fits(m, id, f, gpu));
    jobs_gpu_book(m, id, f, incarnation, gpu);
    step((job_event){
        .type = JOB_POD_READY, .job = id, .function = f, .incarnation = incarnation, .pod = pod});
    step(
        (job_event){.type = JOB_SPECIALISED, .job = id, .function = f, .incarnation = incarnation});
}

static void function_needs(const char *id, int f, int incarnation)
{
    step((job_event){.type = JOB_PS_NEED, .job = id, .function = f, .incarnation = incarnation});
    CHECK_INT(get(JOB_TAKE)->function, f);
}

/* kubeml-ps has started, and function 0 comes on that GPU. */
static void first_pod_comes(const char *id, int gpu)
{
    ps_starts(id, 0);
    function_needs(id, 0, 0);
    pod_comes(id, 0, 0, gpu);
}

static void check_taken(int gpu, uint64_t bytes)
{
    gpu_state gpus[GPU_COUNT_MAX];
    jobs_gpu_states(m, gpus);
    CHECK_INT(gpus[gpu].taken_bytes, bytes);
}

TEST(a_function_gets_a_pod_by_policy_among_those_with_room)
{
    static const struct {
        gpu_policy policy;
        int gpu;
    } cases[] = {{GPU_BEST_FIT, 1}, {GPU_SPREAD, 2}, {GPU_PACK, 0}};
    for (size_t i = 0; i < 3; i++) {
        bool offered[GPU_COUNT_MAX] = {[0] = true, [1] = true, [2] = true};
        open_elsewhere(cases[i].policy);
        CHECK_INT(jobs_gpu_add(m, -1, 16 * GIB, false), 0);
        submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
        CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 1);
        CHECK_INT(jobs_gpu_add(m, -1, 24 * GIB, false), 2);
        submit_on_gpu("b", 1, true, DEVICE_CUDA, (gpu_share){4 * GIB, 0});
        ps_starts("b", 0);
        function_needs("b", 0, 0);
        CHECK_INT(jobs_gpu_choose(m, "b", 0, offered), cases[i].gpu);
        offered[cases[i].gpu] = false; /* no pod is there: another will do */
        CHECK(jobs_gpu_choose(m, "b", 0, offered) >= 0);
        CHECK(jobs_gpu_choose(m, "b", 0, offered) != cases[i].gpu);
        submit_on_gpu("c", 1, true, DEVICE_CPU, (gpu_share){40 * GIB, 0});
        CHECK(!jobs_gpu_places(m, "c"));
        CHECK(jobs_gpu_fits(m, "c", 0, 1));
        jobs_close(m);
    }
}

TEST(a_job_waits_while_the_known_gpus_have_no_room)
{
    int pods = 0;
    open_elsewhere(GPU_BEST_FIT);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){5 * GIB, 0});
    CHECK(!jobs_gpu_waiting(m, &pods));
    first_pod_comes("a", 0);
    submit_on_gpu("b", 2, true, DEVICE_AUTO, (gpu_share){4 * GIB, 0});
    check_reason("b", "NoGpuMemory", "and 0 find a place; free is 3.0 of 8.0 GiB on GPU 0");
    CHECK(jobs_gpu_waiting(m, &pods) == jobs_find(m, "b"));
    CHECK_INT(pods, 2);
    CHECK_INT(jobs_gpu_add(m, -1, 6 * GIB, false), 1);
    step((job_event){.type = JOB_TICK});
    check_reason("b", "NoGpuMemory", "1 find a place; free is 3.0 of 8.0 GiB on GPU 0, 6.0 of 6.0");
    CHECK_INT(jobs_gpu_add(m, -1, 5 * GIB, false), 2);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    CHECK(!jobs_gpu_waiting(m, &pods));
    jobs_close(m);
}

TEST(a_job_of_unlimited_functions_waits_for_larger_gpus)
{
    int pods = 0;
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("a", 4, false, DEVICE_CUDA, (gpu_share){9 * GIB, 0});
    check_reason("a", "NoGpuMemory", "needs 9.0 GiB of GPU memory, and the largest GPU has 8.0");
    CHECK(jobs_gpu_waiting(m, &pods));
    CHECK_INT(pods, 1); /* an elastic one begins with one */
    jobs_gpu_add(m, -1, 10 * GIB, false);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "a")->parallelism, 4); /* there may be more of them */
    jobs_close(m);
}

/* What no known GPU could hold holds nobody up, and pods are started to find one for it. */
TEST(a_job_waits_for_a_gpu_that_nobody_knows_of_and_the_others_do_not)
{
    int pods = 0;
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("large", 1, true, DEVICE_AUTO, (gpu_share){9 * GIB, 0});
    CHECK(jobs_gpu_waiting(m, &pods) == jobs_find(m, "large"));
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){5 * GIB, 0});
    first_pod_comes("a", 0);
    CHECK(jobs_gpu_waiting(m, &pods) == jobs_find(m, "large"));
    submit_on_gpu("b", 1, true, DEVICE_AUTO, (gpu_share){4 * GIB, 0});
    check_reason("b", "NoGpuMemory", "needs 4.0 GiB");
    CHECK(jobs_gpu_waiting(m, &pods) == jobs_find(m, "b"));
    jobs_gpu_add(m, -1, 10 * GIB, false);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "large")->state, JOB_STARTING);
    jobs_close(m);
}

/* Neither knew of a GPU as it began. */
TEST(a_job_whose_pod_came_where_no_room_is_goes_back_into_the_queue)
{
    open_elsewhere(GPU_BEST_FIT);
    for (int i = 0; i < 2; i++) {
        submit_on_gpu(i ? "b" : "a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
        ps_starts(i ? "b" : "a", 0);
        function_needs(i ? "b" : "a", 0, 0);
    }
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    pod_comes("a", 0, 0, 0);
    CHECK(!jobs_gpu_fits(m, "b", 0, 0));
    step((job_event){.type = JOB_POD_UNPLACED, .job = "b", .message = "no room"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    CHECK_STR(get(JOB_STOP)->pod, "b-ps-0");
    get(JOB_SAVE);
    check_reason("b", "NoGpuMemory", "2.0 of 8.0 GiB");
    check_taken(0, 6 * GIB);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 1);
    step((job_event){.type = JOB_POD_ENDED, .pod = "b-ps-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    ps_starts("b", 1);
    CHECK(actions[0].job || count == 0);
    jobs_close(m);
}

TEST(a_function_whose_pod_came_where_no_room_is_asks_for_another)
{
    int64_t waits[] = {5000, 10000, 20000, 40000, 80000, 80000};
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    first_pod_comes("a", 0);
    submit_on_gpu("b", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0}); /* booked on GPU 1 */
    ps_starts("b", 0);
    function_needs("b", 0, 0);
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        CHECK(!jobs_gpu_fits(m, "b", 0, 0));
        step((job_event){.type = JOB_POD_UNPLACED, .job = "b", .message = "it came on GPU x"});
        CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
        check_reason("b", "NoGpuMemory", "it came on GPU x");
        CHECK_INT(jobs_deadline(m), now + waits[i]);
        now += waits[i];
        step((job_event){.type = JOB_TICK});
        get(JOB_TAKE);
    }
    pod_comes("b", 0, 0, 1);
    check_reason("b", "Starting", "load their code");
    jobs_close(m);
}

/* It trains with the first of its functions, for which there is a GPU. */
static void first_one_trains(const char *id, int gpu)
{
    first_pod_comes(id, gpu);
    function_needs(id, 1, 0);
    step((job_event){.type = JOB_PS_PHASE, .job = id, .phase = "training"});
    CHECK_INT(jobs_find(m, id)->state, JOB_RUNNING);
}

static void second_one_finds_no_room(const char *id)
{
    now += 80000; /* when it is asked for again at the latest */
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_UNPLACED, .job = id, .function = 1, .message = "no room"});
}

/* Before any GPU was known both were started. */
TEST(of_jobs_that_hold_what_the_other_lacks_the_later_one_goes_back_into_the_queue)
{
    for (int elastic = 0; elastic < 2; elastic++) {
        open_elsewhere(GPU_BEST_FIT);
        submit_on_gpu("a", 2, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
        now++;
        submit_on_gpu("b", 2, !elastic, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
        for (int i = 0; i < 2; i++)
            jobs_gpu_add(m, -1, 8 * GIB, false);
        first_one_trains("a", 0);
        first_one_trains("b", 1);
        second_one_finds_no_room("b");
        CHECK_INT(jobs_find(m, "b")->state, JOB_RUNNING); /* the other one may end */
        second_one_finds_no_room("a");
        CHECK_INT(jobs_find(m, "a")->state, JOB_RUNNING); /* it was there before */
        second_one_finds_no_room("b");
        CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
        CHECK_INT(number_of(JOB_STOP), 2);
        check_reason("b", "NoGpuMemory", "");
        step((job_event){.type = JOB_POD_ENDED, .pod = "b-ps-0"});
        step((job_event){.type = JOB_POD_ENDED, .pod = "b-f-0-0"});
        now += 80000;
        step((job_event){.type = JOB_TICK});
        pod_comes("a", 1, 0, 1);
        jobs_close(m);
    }
}

TEST(a_job_keeps_what_it_holds_where_there_is_room_for_the_rest)
{
    open_elsewhere(GPU_BEST_FIT);
    submit_on_gpu("a", 2, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    now++;
    submit_on_gpu("b", 2, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    for (int i = 0; i < 4; i++)
        jobs_gpu_add(m, -1, 8 * GIB, false);
    first_one_trains("a", 0);
    first_one_trains("b", 1);
    second_one_finds_no_room("a");
    second_one_finds_no_room("b");
    CHECK_INT(jobs_find(m, "b")->state, JOB_RUNNING);
    jobs_close(m);
}

TEST(an_elastic_job_goes_on_without_a_function_whose_pod_came_where_no_room_is)
{
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("a", 2, false, DEVICE_AUTO, (gpu_share){5 * GIB, 0});
    CHECK_INT(jobs_find(m, "a")->parallelism, 2);
    first_pod_comes("a", 0);
    function_needs("a", 1, 0);
    CHECK(!jobs_gpu_fits(m, "a", 1, 0));
    step((job_event){.type = JOB_POD_UNPLACED, .job = "a", .function = 1, .message = "no room"});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 1);
    jobs_close(m);
}

TEST(an_additional_function_leaves_room_for_those_before_it)
{
    open_elsewhere(GPU_BEST_FIT);
    submit_on_gpu("a", 2, false, DEVICE_AUTO, (gpu_share){5 * GIB, 0});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    function_needs("a", 1, 0);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    CHECK(!jobs_gpu_fits(m, "a", 1, 0));
    pod_comes("a", 0, 0, 0);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    CHECK(jobs_gpu_fits(m, "a", 1, 1));
    jobs_close(m);
}

TEST(a_pod_is_booked_until_it_has_ended_also_where_the_next_one_is_elsewhere)
{
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    first_pod_comes("a", 0);
    function_needs("a", 0, 1); /* its pod is silent */
    pod_comes("a", 0, 1, 1);
    check_places("a", "1");
    check_taken(0, 6 * GIB);
    check_taken(1, 6 * GIB);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    check_taken(0, 0);
    check_taken(1, 6 * GIB);
    jobs_close(m);
}

TEST(the_functions_of_a_shared_process_are_where_its_pod_is)
{
    bool offered[GPU_COUNT_MAX] = {[0] = true};
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    jobs_gpu_add(m, -1, 12 * GIB, false);
    submit_shared("a", 3, (gpu_share){3 * GIB, 0});
    check_places("a", "111");
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    CHECK_INT(jobs_gpu_choose(m, "a", 0, offered), -1); /* 9 of 8 GiB */
    CHECK_INT(jobs_gpu_add(m, -1, 9 * GIB, false), 2);
    pod_comes("a", 0, 0, 2);
    check_places("a", "222");
    check_taken(1, 0);
    jobs_close(m);
}

TEST(ranks_of_nccls_wait_for_pods_on_gpus_of_their_own)
{
    bool offered[GPU_COUNT_MAX] = {[0] = true};
    err e = ERR_INIT;
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = 3,
                 .batch_size = 8,
                 .lr = 0.1,
                 .default_parallelism = 2,
                 .static_parallelism = true,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .merge = MERGE_NCCL,
                 .gpu = {.memory_bytes = GIB}};
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    CHECK_OK(jobs_submit(m, "a", &r, false, 1, &e), e);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    CHECK_INT(jobs_gpu_choose(m, "a", 0, offered), 0);
    pod_comes("a", 0, 0, 0);
    function_needs("a", 1, 0);
    CHECK_INT(jobs_gpu_choose(m, "a", 1, offered), -1); /* a new pod may come on GPU 1 */
    CHECK(jobs_gpu_fits(m, "a", 1, 0));                 /* and has to do where it comes */
    offered[1] = true;
    CHECK_INT(jobs_gpu_choose(m, "a", 1, offered), 1);
    jobs_close(m);
}

TEST(a_gpu_is_forgotten_and_its_place_given_away_when_nothing_is_there)
{
    open_elsewhere(GPU_BEST_FIT);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    first_pod_comes("a", 0);
    jobs_gpu_gone(m, 0);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false),
              1); /* the machine has not heard that the pod ended */
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0", .reason = "NodeLost"});
    function_needs("a", 0, 1);
    pod_comes("a", 0, 1, 1);
    CHECK_INT(jobs_gpu_add(m, -1, 4 * GIB, false), 0);
    check_taken(0, 0);
    check_taken(1, 6 * GIB);
    for (int i = 2; i < GPU_COUNT_MAX; i++)
        CHECK_INT(jobs_gpu_add(m, -1, GIB, false), i);
    CHECK_INT(jobs_gpu_add(m, -1, GIB, false), -1);
    jobs_close(m);
}

/* Nor is it given to others meanwhile, where it is to come back. */
TEST(a_place_on_a_gpu_that_no_pod_has_is_kept_until_there_is_another)
{
    int pods;
    open_elsewhere(GPU_BEST_FIT);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    first_pod_comes("a", 0);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    jobs_gpu_gone(m, 0);
    CHECK_INT(jobs_gpu_add(m, -1, 4 * GIB, false), 1);
    submit_on_gpu("b", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    check_reason("b", "NoGpuMemory", "the largest GPU has 4.0 GiB");
    CHECK_INT(jobs_gpu_add(m, 0, 8 * GIB, false), 0);
    check_taken(0, 6 * GIB);
    CHECK(jobs_gpu_waiting(m, &pods) == jobs_find(m, "b"));
    function_needs("a", 0, 1);
    pod_comes("a", 0, 1, 0);
    jobs_close(m);
}

TEST(threads_count_on_the_gpus_whose_pods_say_that_mps_runs)
{
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, true);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){GIB, 60});
    submit_on_gpu("b", 1, true, DEVICE_AUTO, (gpu_share){GIB, 60});
    check_reason("b", "NoGpuThreads", "needs 60 % of a GPU's threads, and 0 find a place");
    jobs_gpu_add(m, -1, 8 * GIB, false);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    submit_on_gpu("c", 1, true, DEVICE_AUTO, (gpu_share){GIB, 60});
    check_places("c", "1");
    jobs_close(m);
}

TEST(a_controller_that_comes_back_hears_where_pods_are)
{
    err e = ERR_INIT;
    open_elsewhere(GPU_BEST_FIT);
    for (int i = 0; i < 3; i++)
        CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), i);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    first_pod_comes("a", 2);
    function_needs("a", 0, 1);
    pod_comes("a", 0, 1, 1);
    json_t *record = job_record(jobs_find(m, "a"));
    jobs_close(m);
    open_elsewhere(GPU_BEST_FIT);
    CHECK_OK(jobs_restore(m, record, &e), e);
    json_decref(record);
    CHECK_INT(job_gpu(jobs_find(m, "a"), 0), -1); /* it is another table */
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 1);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    step((job_event){
        .type = JOB_POD_FOUND, .job = "a", .incarnation = 1, .pod = "a-f-0-1", .value = 1});
    step((job_event){.type = JOB_POD_FOUND, .job = "a", .pod = "a-f-0-0", .value = 2});
    step((job_event){.type = JOB_ADOPT});
    check_places("a", "0"); /* the younger one's */
    check_taken(0, 6 * GIB);
    check_taken(1, 6 * GIB);
    jobs_close(m);
}
