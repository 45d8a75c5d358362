#!/usr/bin/python3
"""`kubeml run` and GPUs: which device, and what is said where there is none."""
import os
import pathlib
import tempfile

import numpy as np

import harness
from harness import case, skip
from test_function_run import epochs, files, run


@case(platform=False)
def a_device_is_asked_for_by_name():
    data = files()[1]
    on_cpu = epochs(run("--model", "mlp", *data, "-e", 1, "--device", "cpu", "--precision", "fp32", "--json")[0])
    assert on_cpu[0]["train_loss"] > 0
    for words, said in ((("--device", "tpu"), "neither cpu nor cuda"),
                        (("--device", "cpu", "--backend", "cpu"), "give one of them"),
                        (("--precision", "fp8"), "must be"),
                        (("--gpu-memory", "2GB"), "no size of memory"),
                        (("--device", "cpu", "--gpu-memory", "2Gi"), "says nothing on the cpu backend")):
        answer = run("--model", "mlp", *data, *words, status=2)[1]
        assert said in answer, (words, answer)


@case(platform=False)
def without_a_gpu_whoever_wants_one_hears_it():
    if pathlib.Path("/dev/nvidiactl").exists():
        skip("here is a GPU")
    data = files()[1]
    for words in (("--device", "cuda"), ("--gpu-memory", "2Gi")):
        answer = run("--model", "mlp", *data, "-e", 1, *words, status=1)[1]
        assert "backend cuda cannot run on this machine" in answer, answer


@case(platform=False)
def its_log_is_as_loud_as_asked():
    """On the tests' own GPU; on a CPU it has nothing to say."""
    fake = harness.BUILD / "fakegpu/bin"
    if not (fake / "kubeml-function").exists():
        skip("the function on the fake GPU is not built: make tests (not under ThreadSanitizer)")
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    np.save(folder / "x.npy", np.arange(256, dtype=np.uint8).reshape(16, 4, 4))
    np.save(folder / "y.npy", np.arange(16) % 2)
    data = [word for split in ("train", "test") for word in (f"--{split}data", folder / "x.npy", f"--{split}labels", folder / "y.npy")]
    for level, told in (("info", True), ("warn", False)):
        said = run("--model", "mlp", *data, "-e", 1, "--device", "cuda", folder=fake, env={"KUBEML_LOG": level})[1]
        assert (" info  kubeml-function " in said) == told, (level, said)


if __name__ == "__main__":
    harness.main(globals())
