"""The local platform's end-to-end cases, against a release of the chart: the same code, another address.

What is left out is named here with its reason; a case that is added to a module of MODULES runs here too, and a module that is
neither there nor among OTHER_MODULES fails them all.
"""
import importlib
import os
import pathlib
import sys

import cluster  # noqa: F401
import release
from cluster import harness

MODULES = ("test_rest", "test_cli", "test_explain", "test_faults", "test_mnist", "test_notebook",
           "test_shared_process", "test_text")

LOCAL = "it starts a platform of this machine"
OPTIONS = "it wants options of its own; the chart's are test_install's"
ARMED = "it arms places in the functions' code, which pods do not have; test_kills kills them"
NO_PLATFORM = "it asks no platform"
STORE = "kubeml run reads the local platform's store"
DEVICE = "the tests' own device is on this machine; test_gpu has GPUs of pods"
LONG = "minutes, of arithmetic that is the same in a pod; with KUBEML_TC_ALL=1 it runs"
OTHERWISE = {
    "test_rest.a_second_controller_is_refused": LOCAL, "test_rest.orphans_are_swept_at_start": LOCAL,
    "test_rest.options_are_taken_whole_or_refused": NO_PLATFORM,
    "test_rest.a_token": LOCAL + "; every request here carries a token",
    "test_rest.a_stopped_platform_goes_on": LOCAL + "; test_upgrade stops this one",
    "test_rest.a_running_job_keeps_the_version_it_began_with": "the controller says which, wherever its pods are",
    "test_rest.a_jobs_redis_from_outside": "a pod's listens on the pod's network; test_network has who reaches it",
    "test_rest.a_job_is_not_resumed_while_its_model_goes": LOCAL,
    "test_rest.what_still_stops_is_not_resumed_and_why_is_said": LOCAL + "; kubeml-ps is held by a signal",
    "test_rest.what_is_being_deleted_is_not_trained_with": ARMED,
    "test_rest.a_log_is_followed_of_a_job_that_ends_meanwhile": ARMED,
    "test_rest.an_empty_pool_starts_what_is_needed": OPTIONS,
    "test_rest.idle_connections_block_nobody": "a port-forward would be measured, not the server",
    "test_rest.an_upload_that_breaks_off_leaves_nothing": "a port-forward keeps the connection open",
    "test_rest.the_server_keeps_openapi": LONG,
    "test_rest.openapi_is_of_the_version_it_says": NO_PLATFORM,
    "test_rest.bodies_over_the_limit": "a port-forward cuts off what is refused before it is read",
    "test_rest.requests_for_jobs_leave_room_for_others": LOCAL,
    "test_rest.a_log_is_read_beside_all_else": LOCAL,
    "test_rest.an_elastic_job_gives_back_what_it_grew": OPTIONS,
    "test_rest.a_stream_too_many_is_refused_with_its_cause": "it takes all the streams that other cases of this release want too",
    "test_rest.logs_that_nobody_reads_have_a_limit": "a port-forward takes what nobody reads",
    "test_cli.up_status_down": LOCAL, "test_cli.up_that_cannot_start": LOCAL, "test_cli.a_token": LOCAL, "test_cli.users_have_tokens_of_their_own": LOCAL + "; test_tenants has two users",
    "test_cli.the_same_file_in_one_process": "it reads the local platform's store",
    "test_cli.the_same_when_nothing_is_said": STORE,
    "test_cli.a_home_is_relative_to_where_the_platform_is_started": LOCAL,
    "test_cli.what_was_uploaded_for_a_job_that_is_refused_goes_again": "it looks into the local platform's store",
    "test_cli.a_log_is_taken_from_the_platform_however_slowly_it_is_read":
        "kubelet drops what it has rotated, so that two reads of a long log differ; the program is the same",
    "test_cli.a_followed_log_goes_on_when_the_controller_is_back": LOCAL,
    "test_cli.a_large_upload_needs_little_memory": LOCAL + ", whose process it looks at",
    "test_cli.usage": NO_PLATFORM, "test_cli.completion": NO_PLATFORM, "test_cli.no_redis": OPTIONS,
    "test_cli.no_redis_for_the_pool": LOCAL, "test_cli.a_job_is_not_resumed_without_redis": LOCAL,
    "test_explain.pool_empty": OPTIONS, "test_explain.redis_missing": OPTIONS,
    "test_explain.redis_stays_away": LOCAL,
    "test_explain.a_refusal_outlives_the_controller": LOCAL,
    "test_explain.refusals_are_bounded": "the controller counts them, wherever its pods are",
    "test_explain.store_down": "it takes away the local platform's folder",
    "test_faults.the_controller_killed_in_every_state": "kubelet waits longer before each start; test_kills kills it",
    "test_faults.a_job_ends_while_no_controller_is_there": LOCAL,
    "test_faults.a_controller_that_comes_back_takes_no_earlier_end_for_this_one": LOCAL,
    "test_faults.a_ps_stopped_in_the_middle_of_a_write_holds_up_only_writes": LOCAL,
    "test_faults.an_end_while_a_runtime_does_not_answer": LOCAL,
    "test_shared_process.killed_at_every_phase": ARMED,
    "test_faults.a_job_given_up_leaves_no_segment": "segments are the pods' own and go with them",
    "test_faults.what_a_killed_controller_did_not_come_to_is_removed": "segments are the pods' own and go with them",
    **{f"test_faults.a_function_killed_{name}": ARMED for name in (
        "while_it_loads", "while_it_fetches", "while_it_trains", "half_way_through_a_publish", "while_it_waits",
        "while_it_validates", "under_a_server_merge")},
    "test_mnist.sorted_by_label": LONG, "test_mnist.every_k_trains": LONG,
    "test_mnist.an_elastic_job_says_how_many_trained": LONG,
    "test_mnist.one_function_is_kubeml_run": "it reads the local platform's store",
    "test_notebook.what_it_needs": NO_PLATFORM,
}
OTHER_MODULES = {
    "test_builder_remote": LOCAL + "; here every function is compiled elsewhere",
    "test_context": "its API server is a stand-in; test_controllers goes through the real one's proxy",
    "test_data": NO_PLATFORM, "test_make": NO_PLATFORM, "test_make_images": NO_PLATFORM, "test_gpu_run": NO_PLATFORM,
    "test_function_group": STORE, "test_function_run": STORE,
    "test_gpu_algorithms": DEVICE, "test_gpu_averaging": DEVICE, "test_gpu_bench": DEVICE, "test_gpu_nccl": DEVICE,
    "test_gpu_memory": DEVICE, "test_gpu_places": DEVICE,
    "test_gpu_pods": "its API server is a stand-in; test_gpu has a real one and pretended GPUs",
    "test_leader": LOCAL + ", and its Lease is a stand-in's; test_controllers has a real one",
    "test_silent_node": "its API server is a stand-in; test_nodes loses nodes of a real cluster",
    "test_records": LOCAL,
    "test_mongo": LOCAL + "; here every release is on MongoDB", "test_readme": LOCAL + "; test_pages has the clusters' pages",
}


def left_out(reason):
    def why():
        harness.skip(reason)
    why.case = {"limit": 30, "takes": "", "platform": False, "options": (), "env": None}
    return why


def cases():
    folder = pathlib.Path(harness.__file__).parent
    sys.path.insert(0, str(folder))
    there = {path.stem for path in folder.glob("test_*.py")}
    assert there == {*MODULES, *OTHER_MODULES} and not set(MODULES) & set(OTHER_MODULES), \
        f"neither run here nor left out for a reason, or both, or not there: {there ^ {*MODULES, *OTHER_MODULES}}"
    found = {}
    # Asked for one case it reads that module alone: the notebook's libraries take longer than many a case.
    named = {name.split(".")[0] for name in sys.argv[1:]} & set(MODULES)
    for module in named or MODULES:
        for name, function in vars(importlib.import_module(module)).items():
            if isinstance(getattr(function, "case", None), dict):
                name = f"{module}.{name}"
                reason = OTHERWISE.get(name)
                if reason == LONG and os.environ.get("KUBEML_TC_ALL"):
                    reason = None
                found[name] = left_out(reason) if reason else function
    unknown = set() if named else set(OTHERWISE) - set(found)
    assert not unknown, f"no such case is there to leave out: {unknown}"
    for function in found.values():
        # An installation may come first.
        function.case = {**function.case, "limit": function.case["limit"] + 180}
    return found


harness.another_platform = release.shared
harness.main(cases())
