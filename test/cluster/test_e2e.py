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

MODULES = ("test_rest", "test_rest_jobs", "test_rest_logs", "test_rest_platform", "test_cli", "test_cli_follow", "test_cli_models",
           "test_cli_refused", "test_explain", "test_faults", "test_mnist", "test_notebook", "test_shared_process", "test_text")

OWN = "it starts a platform of this machine, or asks none"  # so do all with platform=False
OPTIONS = "it wants options of its own; the chart's are test_install's"
WHEREVER = "the controller decides it, wherever its pods are"
CLIENT = "kubeml and the API are the same here; test_controllers has the way from one to the other"
KILLED = "test_kills kills it, and compares the weights"
STORE = "kubeml run reads the local platform's store"
DEVICE = "the tests' own device is on this machine; test_gpu has GPUs of pods"
LONG = "minutes, of arithmetic that is the same in a pod; with KUBEML_TC_ALL=1 it runs"
OTHERWISE = {
    "test_rest_jobs.a_start_ends_with_the_first_trained_batch": "kubeml-ps says when; test_training looks at the phases",
    "test_rest.the_id_alone_for_clients_without_accept": WHEREVER,
    "test_rest_jobs.the_model_that_a_job_begins_with_stays": WHEREVER,
    "test_rest_jobs.a_job_goes_on_with_its_own_dataset_or_not_at_all": WHEREVER,
    "test_rest_jobs.bounds_of_a_job": "test_trainjob has a deadline",
    "test_rest_platform.a_stopped_platform_goes_on": "test_upgrade stops this one",
    "test_rest_platform.a_running_job_keeps_the_version_it_began_with": WHEREVER,
    "test_rest_platform.a_killed_controller_adopts": KILLED, "test_rest_platform.a_killed_ps_is_replaced": KILLED,
    "test_rest_platform.a_jobs_redis_from_outside": "a pod's listens on the pod's network; test_network has who reaches it",
    "test_rest_jobs.what_still_stops_is_not_resumed_and_why_is_said": "kubeml-ps is held by a signal",
    "test_rest_jobs.a_stopped_job_goes_on_or_goes_as_soon_as_it_has_ended": "kubeml-ps is held by a signal",
    "test_rest_platform.an_empty_pool_starts_what_is_needed": OPTIONS,
    "test_rest_platform.idle_connections_block_nobody": "a port-forward would be measured, not the server",
    "test_rest.an_upload_that_breaks_off_leaves_nothing": "a port-forward keeps the connection open",
    "test_rest.the_server_keeps_openapi": LONG,
    "test_rest.bodies_over_the_limit": "a port-forward cuts off what is refused before it is read",
    "test_rest_logs.a_stream_too_many_is_refused_with_its_cause": "it takes all the streams that other cases of this release want too",
    "test_rest_logs.logs_that_nobody_reads_have_a_limit": "a port-forward takes what nobody reads",
    "test_cli_models.epochs_are_shown_while_the_job_runs": CLIENT, "test_cli_models.weights_from_pytorch_and_back": CLIENT,
    "test_cli.formats": CLIENT, "test_cli_models.the_lines_that_convert_a_pickle_do": CLIENT,
    "test_cli_models.one_file_may_be_a_whole_dataset": CLIENT, "test_cli_refused.bad_datasets": CLIENT,
    "test_cli_models.what_is_long_shows_a_bar_on_a_terminal": CLIENT, "test_cli_follow.what_is_followed_ends_with_who_reads_it": CLIENT,
    "test_cli_models.the_same_file_in_one_process": "it reads the local platform's store",
    "test_cli_models.the_same_when_nothing_is_said": STORE,
    "test_cli_models.what_was_uploaded_for_a_job_that_is_refused_goes_again": "it looks into the local platform's store",
    "test_cli_follow.a_log_is_taken_from_the_platform_however_slowly_it_is_read":
        "kubelet drops what it has rotated, so that two reads of a long log differ; the program is the same",
    "test_cli_models.a_large_upload_needs_little_memory": "it looks at the local platform's process",
    "test_cli_refused.no_redis": OPTIONS, "test_cli_refused.no_redis_for_the_pool": OPTIONS,
    "test_explain.no_free_slot": WHEREVER, "test_explain.cancelled": WHEREVER,
    "test_explain.not_a_number": "test_trainjob has one that fails so",
    "test_explain.a_refusal_outlives_the_controller": "it starts the local platform again",
    "test_explain.refusals_are_bounded": WHEREVER,
    "test_explain.store_down": "it takes away the local platform's folder",
    "test_explain.not_exact_while_it_waits": OPTIONS,
    "test_faults.a_function_that_a_job_grows_by_computes_as_the_others": OPTIONS,
    "test_faults.every_process_of_a_job_killed_at_random_places": KILLED, "test_faults.redis_killed": KILLED,
    "test_faults.what_stands_still_for_good_is_replaced": "test_kills.py:redis_and_ps_stand_still; in a pod another asks Redis, and waits longer",
    "test_faults.the_controller_killed_in_every_state": "kubelet waits longer before each start; test_kills kills it",
    "test_faults.a_job_ends_while_no_controller_is_there": "it starts the local platform again",
    "test_faults.epochs_that_are_trained_while_no_controller_is_there_are_counted": "it starts the local platform again",
    "test_faults.a_job_given_up_leaves_no_segment": "segments are the pods' own and go with them",
    "test_faults.json_of_too_many_values_takes_no_memory": "it looks at the local platform's process",
    "test_rest_platform.without_tokens_other_users_are_refused": "the chart's has tokens",
    "test_rest_platform.a_controller_that_takes_over_shows_what_a_job_has_done": "it starts the local platform again",
    "test_faults.two_jobs_at_once_do_not_disturb_each_other": "test_tenants has two users' jobs",
    "test_shared_process.the_weights_of_functions_with_a_process_each":
        "arithmetic that is the same in a pod; every_process_killed compares the weights here",
    "test_mnist.sorted_by_label": LONG, "test_mnist.every_k_trains": LONG,
    "test_mnist.an_elastic_job_says_how_many_trained": LONG,
    "test_mnist.one_seed_one_model": "test_training trains one seed three times",
    "test_mnist.one_function_is_kubeml_run": "it reads the local platform's store",
}
OTHER_MODULES = {
    "test_builder_remote": OWN + "; here every function is compiled elsewhere",
    "test_context": "its API server is a stand-in; test_controllers goes through the real one's proxy",
    "test_data": OWN, "test_docs": OWN, "test_file_names": OWN, "test_includes": OWN, "test_job_options": OWN, "test_make": OWN,
    "test_make_images": OWN, "test_gpu_run": OWN,
    "test_function_group": STORE, "test_function_run": STORE,
    "test_gpu_algorithms": DEVICE, "test_gpu_averaging": DEVICE, "test_gpu_bench": DEVICE, "test_gpu_nccl": DEVICE,
    "test_gpu_memory": DEVICE, "test_gpu_places": DEVICE, "test_gpu_failed": DEVICE, "test_gpu_platform": DEVICE, "test_gpu_start": DEVICE,
    "test_gpu_pods": "its API server is a stand-in; test_gpu has a real one and pretended GPUs",
    "test_leader": OWN + ", and its Lease is a stand-in's; test_controllers has a real one",
    "test_silent_node": "its API server is a stand-in; test_nodes loses nodes of a real cluster",
    "test_records": OWN,
    "test_mongo": OWN + "; here every release is on MongoDB", "test_readme": OWN + "; test_pages has the clusters' pages",
}


def left_out(reason):
    def why():
        harness.skip(reason)
    why.case = {"limit": 30, "takes": "", "platform": False, "options": (), "env": None, "left_out": reason}
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
                reason = OTHERWISE.get(name) if function.case["platform"] else OWN
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
