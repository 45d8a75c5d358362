"""A platform on GPUs of the tests' own: the programs are the platform's, but the function's engine computes on a device whose
memory is a file (test/cuda), and NVML's stand-in has two GPUs. Imported by the tests that run on one."""
import os
import pathlib
import tempfile

import harness
from harness import BUILD, ROOT, skip

NVML = BUILD / "testlib/fake-nvml.so"
harness.BIN = BUILD / "fakegpu/bin"
EPOCHS = 3
CODE = """#include <kubeml.h>

static kml_tensor model(kml_graph *g, kml_tensor x)
{
    x = kml_max_pool2d(g, x, .kernel = 4);
    x = kml_relu(g, kml_batch_norm2d(g, kml_conv2d(g, x, .filters = 2, .kernel = 3)));
    return kml_linear(g, kml_flatten(g, x), kml_classes(g));
}
KUBEML_FUNCTION(.model = model, .optimizer = kml_sgd(.momentum = 0.9), .lr = 0.01%s);
"""
PACED = """#define _POSIX_C_SOURCE 200809L
#include <time.h>
""" + CODE.replace("KUBEML_FUNCTION", """
static int paced(kml_step *s)
{
    nanosleep(&(struct timespec){.tv_nsec = 40000000}, NULL);
    return kml_gradients(s) ? -1 : kml_update(s, kml_learning_rate(s));
}
KUBEML_FUNCTION""")


def platform(*options, **env):
    if not (harness.BIN / "kubeml-function").exists() or not NVML.exists():
        skip("the function on the fake GPU is not built: make tests (not under ThreadSanitizer)")
    if pathlib.Path("/dev/nvidiactl").exists():
        skip("here is a real GPU, which the tests' NVML does not know")
    gpu = tempfile.mktemp(prefix="gpu", dir=os.environ.get("TEST_TMP"))
    return harness.Platform("--gpus", "all", "--slots", "8", "--pool-functions", "0", *options,
                            env={"KUBEML_NVML": str(NVML), "KUBEML_FAKE_GPU": gpu,
                                 "KUBEML_INCLUDE": str(ROOT / "function-runtime/include"), **env})


def prepare(p):
    p.dataset(files=harness.tiny_mnist(train=192, test=64))
    p.function("small", CODE % "")
    p.function("paced", PACED % ", .step = paced")


def evidence(p, job):
    return p.get(f"/tasks/{job}/explain")["evidence"]


def train(p, function="small", *, options, **others):
    return p.train(function, batch_size=16, **{"epochs": EPOCHS, **options, **others})
