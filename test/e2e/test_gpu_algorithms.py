#!/usr/bin/python3
"""What a function has measured on its GPU the platform keeps for those that come after, also for those of a controller that
was started again; what it does not know is measured. The GPU is the tests' (test/cuda), the programs are the platform's."""
import os
import pathlib
import tempfile

import harness
from fake_gpus import platform, prepare
from harness import case, until

TOLD = "what was measured on the GPU is told"


def logs_of(p, batch_size=16, **options):
    job = p.train("small", batch_size=batch_size, epochs=1,
                  **{"default_parallelism": 1, "static_parallelism": True, "device": "cuda", **options})
    p.succeed(job)
    return p.get(f"/tasks/{job}/logs").decode()


@case(limit=120, platform=False)
def what_one_function_measured_the_next_one_is_told():
    with platform() as p:
        prepare(p)
        assert TOLD in logs_of(p)
        assert TOLD not in logs_of(p), "it was measured again"
        assert TOLD not in logs_of(p, process="shared"), "it was measured again"
        assert TOLD in logs_of(p, batch_size=8), "another shape that nobody measured"
        assert TOLD not in logs_of(p, device="cpu")
        p.stop()
        p.start()
        assert TOLD not in logs_of(p), "another controller has forgotten it"


@case(limit=120, platform=False)
def functions_of_the_pool_run_what_is_known_while_they_wait():
    run = "what functions have measured was run on the GPU"
    with platform("--pool-functions", "2") as p:
        prepare(p)
        assert run not in logs_of(p), "nobody had measured anything"
        until(lambda: run in logs_of(p), 60, message="a function that waited was not told")


@case(limit=120, platform=False)
def of_functions_that_start_together_one_measures():
    with platform() as p:
        prepare(p)
        assert logs_of(p, default_parallelism=3).count(TOLD) == 1, "several have measured the same"
        assert logs_of(p, default_parallelism=3, batch_size=8).count(TOLD) == 1
        assert TOLD not in logs_of(p, default_parallelism=3)


@case(limit=120, platform=False)
def who_is_to_measure_may_end():
    """The others wait for it no longer: the next one measures."""
    marker = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP"))) / "fired"
    with platform(KUBEML_FAILPOINT="function.load", KUBEML_FAILPOINT_FILE=str(marker)) as p:
        prepare(p)
        assert logs_of(p, default_parallelism=3).count(TOLD) == 1
        assert marker.exists(), "no process was killed"


if __name__ == "__main__":
    harness.main(globals())
