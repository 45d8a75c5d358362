#!/usr/bin/python3
"""`kubeml run` and GPUs: which device, and what is said where there is none."""
import pathlib

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


if __name__ == "__main__":
    harness.main(globals())
