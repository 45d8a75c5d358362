#!/usr/bin/env python3
"""make bench-paper-gpu: time to accuracy beside PyTorch DDP, as in Figures 3 and 4 of the KubeML paper (Petrescu et al.,
"Toward Competitive Serverless Deep Learning", 2023): LeNet on MNIST to 99 %, ResNet-34 on CIFAR-10 to 70 %.

The paper's settings: local batches of 16 to 256; SGD with momentum 0.9, weight decay 1e-4, learning rate 0.01 (LeNet)
and 0.1 (ResNet-34); samples standardised, nothing else; k infinite. Ours is `kubeml run --functions P`, P functions in
one process, spread over the GPUs that are seen, for every P of --functions; as in the paper the best P counts. The peer
is PyTorch DDP with one process a GPU and the whole training set on each; the local batch is a process's.

What counts: seconds of training and validating from the first epoch's begin to the end of the epoch whose validation
accuracy reaches the goal. Not counted, on either side: starting, reading the data, compiling the model, choosing
algorithms (ours is run once before for an epoch, so that they are in the cache; PyTorch trains a batch before). A run
that does not reach the goal within --epochs has no time. Sides alternate; the middle of --seeds runs is taken.

Needs: a GPU, make CUDA=1 (lib/kubeml-cuda.so), MNIST's four files and CIFAR-10's six binary files below --data, and for
the peer a Python with PyTorch and CUDA (--python). What is missing is said at once (exit status 77); without the peer's
our side is measured alone. A figure without its data is left out where the other has its own. --device cpu --samples N
tries the script out on a machine without a GPU: such numbers are no result, and the file's name says "try".
"""
import argparse
import csv
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from bench_gpu import csv_path

ROOT = pathlib.Path(__file__).resolve().parents[2]
FUNCTION = """#include <kubeml.h>
static kml_tensor model(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "%s", kml_classes(g));
}
KUBEML_FUNCTION(.model = model, .optimizer = kml_sgd(.momentum = 0.9, .weight_decay = 1e-4),
                .transform = kml_transform(.standardise = true));
"""
# figure, model, its zoo name, goal in percent, learning rate, the paper's speed-up by batch
FIGURES = [
    (3, "lenet", "lenet5", 99, 0.01, {16: 2.75, 32: 1.41, 64: None, 128: None, 256: None}),
    (4, "resnet34", "resnet34", 70, 0.1, {16: None, 32: 3.98, 64: None, 128: None, 256: None}),
]
BEST_OF_EACH = {4: 2.02}  # the best batch of one side against the best of the other


# ---- the peer: run by --python as `bench_paper_gpu.py peer JSON` ------------------------------------------------------

def read_idx(path):
    import gzip
    import numpy
    raw = gzip.open(path).read() if path.endswith(".gz") else open(path, "rb").read()
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(raw[3])]
    return numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def read_arrays(files):
    """(x, y) of the training and of the test set: (N, C, H, W) bytes and labels."""
    import numpy
    if "y_train" in files:
        pairs = [(read_idx(files[f"x_{s}"])[:, None], read_idx(files[f"y_{s}"])) for s in ("train", "test")]
    else:
        raw = [numpy.frombuffer(open(files[f"x_{s}"], "rb").read(), numpy.uint8).reshape(-1, 3073)
               for s in ("train", "test")]
        pairs = [(r[:, 1:].reshape(-1, 3, 32, 32), r[:, 0]) for r in raw]
    return pairs


def peer_model(torch, name):
    import bench_gpu
    return {"lenet": bench_gpu.lenet5, "resnet34": bench_gpu.resnet34}[name](torch)[0]


def peer_worker(rank, work):
    import time
    import torch
    torch.manual_seed(work["seed"])
    cuda = work["device"] == "cuda"
    world = work["world"]
    where = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if not cuda:
        torch.set_num_threads(1)  # as ours
    else:
        torch.cuda.set_device(rank)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = work["precision"] == "tf32"
        torch.backends.cudnn.benchmark = True
    torch.distributed.init_process_group("nccl" if cuda else "gloo", init_method=work["meet"], rank=rank,
                                         world_size=world)
    (x, y), (vx, vy) = read_arrays(work["files"])
    x, y, vx, vy = (torch.from_numpy(a.copy()).to(where) for a in (x, y, vx, vy))
    mean = torch.stack([x[:, c].float().mean() for c in range(x.shape[1])])[None, :, None, None] / 255
    std = torch.stack([x[:, c].float().std() for c in range(x.shape[1])])[None, :, None, None] / 255
    model = peer_model(torch, work["model"]).to(where).to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank] if cuda else None)
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=work["lr"], momentum=0.9, weight_decay=1e-4)
    batch, n = work["batch"], len(x)
    bf16 = torch.autocast(where.type, torch.bfloat16, enabled=work["precision"] == "bf16")

    def images(bytes_):
        return ((bytes_.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)

    def step(rows, update=True):
        optimizer.zero_grad(set_to_none=True)
        with bf16:
            loss = loss_of(model(images(x[rows])), y[rows].long())
        loss.backward()
        if update:
            optimizer.step()

    step(torch.arange(min(batch, n), device=where), update=False)
    if cuda:
        torch.cuda.synchronize()
    torch.distributed.barrier()
    began = time.perf_counter()
    for epoch in range(work["epochs"]):
        model.train()
        order = torch.randperm(n, generator=torch.Generator().manual_seed(1000 * work["seed"] + epoch)).to(where)
        own = order[rank::world][:n // world]
        for at in range(0, len(own), batch):
            step(own[at:at + batch])
        model.eval()
        correct = torch.zeros((), device=where)
        with torch.no_grad(), bf16:
            for at in range(rank * 500, len(vx), world * 500):
                correct += (model.module(images(vx[at:at + 500])).argmax(1) == vy[at:at + 500]).sum()
        torch.distributed.all_reduce(correct)
        accuracy = 100 * correct.item() / len(vx)
        if rank == 0:
            print(json.dumps({"epoch": epoch + 1, "accuracy": accuracy, "elapsed": time.perf_counter() - began}), flush=True)
        if accuracy >= work["goal"]:
            break
    torch.distributed.destroy_process_group()


def peer(work):
    import torch
    work["world"] = torch.cuda.device_count() if work["device"] == "cuda" else 1
    torch.multiprocessing.spawn(peer_worker, (work,), nprocs=work["world"])


# ---- one run ---------------------------------------------------------------------------------------------------------

def reached(lines, goal):
    """(seconds, epochs) to the goal, or (None, epochs)."""
    for line in lines:
        if line["accuracy"] >= goal:
            return line["elapsed"], line["epoch"]
    return None, len(lines)


def ours(o, folder, files, model, zoo, goal, lr, batch, functions, seed, epochs):
    code = folder / f"{model}.c"
    code.write_text(FUNCTION % zoo)
    words = [o.build / "bin/kubeml-function", "run", code, "-e", epochs, "-b", batch, "--lr", lr, "--seed", seed,
             "--device", o.device, "--functions", functions, "--gpus", min(o.gpus, functions), "--goal-accuracy", goal,
             "--precision", o.precision, "--json", "--traindata", files["x_train"], "--testdata", files["x_test"]]
    if o.device == "cuda" and o.gpus > 1 and functions > 1:
        words += ["--merge", "nccl"]
    if "y_train" in files:
        words += ["--trainlabels", files["y_train"], "--testlabels", files["y_test"]]
    if o.device == "cpu":
        words += ["--threads", 1]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True,
                          env={**os.environ, "KUBEML_INCLUDE": str(ROOT / "function-runtime/include"),
                               "KUBEML_CUDA_CACHE": str(o.build / "gpu/algorithms")})
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    lines, elapsed = [json.loads(line) for line in done.stdout.splitlines()], 0
    for line in lines:
        elapsed += line["seconds"]
        line["elapsed"] = elapsed
    return reached(lines, goal)


def theirs(o, files, model, goal, lr, batch, seed, epochs):
    with tempfile.TemporaryDirectory() as meet:
        work = {"files": files, "model": model, "goal": goal, "lr": lr, "batch": batch, "seed": seed, "epochs": epochs,
                "device": o.device, "precision": o.precision, "meet": f"file://{meet}/meet"}
        done = subprocess.run([o.python, __file__, "peer", json.dumps(work)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-2000:])
    return reached([json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], goal)


# ---- what is needed --------------------------------------------------------------------------------------------------

def count_gpus():
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0, ""
    names = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (len([v for v in visible.split(",") if v]) if visible is not None else len(names)), "; ".join(names)


def has_peer(o):
    check = "import torch, sys; sys.exit(0 if torch.cuda.is_available() or sys.argv[1] == 'cpu' else 1)"
    try:
        return subprocess.run([o.python, "-c", check, o.device], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


MNIST = {"x_train": "train-images-idx3-ubyte", "y_train": "train-labels-idx1-ubyte", "x_test": "t10k-images-idx3-ubyte",
         "y_test": "t10k-labels-idx1-ubyte"}
CIFAR = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def find_file(folder, name):
    return next((p for p in (folder / name, folder / (name + ".gz")) if p.exists()), None)


def missing(o):
    out = []
    if o.device == "cuda" and not o.gpus:
        out.append("a GPU that nvidia-smi knows")
    if o.device == "cuda" and not (o.build / "lib/kubeml-cuda.so").exists():
        out.append(f"{o.build}/lib/kubeml-cuda.so: make CUDA=1 (and make cuda-toolkit before, without a toolkit)")
    if not (o.build / "bin/kubeml-function").exists():
        out.append(f"{o.build}/bin/kubeml-function: make")
    lacking = {3: [f"{o.data}/mnist/{n}[.gz]" for n in MNIST.values() if not find_file(o.data / "mnist", n)],
               4: [f"{o.data}/cifar10/{n} (to-binary.py there makes it)" for n in CIFAR if not (o.data / "cifar10" / n).exists()]}
    o.left_out = {f: lacking[f] for f in o.figures if lacking[f]}
    if set(o.left_out) == set(o.figures):
        out += [what for lacks in o.left_out.values() for what in lacks]
    return out


def cut_idx(source, to, samples):
    """The first samples of an IDX file."""
    import gzip
    raw = gzip.open(source).read() if source.suffix == ".gz" else source.read_bytes()
    each = 1
    for i in range(1, raw[3]):
        each *= int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big")
    head = 4 + 4 * raw[3]
    to.write_bytes(raw[:4] + samples.to_bytes(4, "big") + raw[8:head] + raw[head:head + samples * each])


def data_files(o, figure, folder):
    if figure == 3:
        found = {key: find_file(o.data / "mnist", name) for key, name in MNIST.items()}
        for key, path in found.items():
            if o.samples:
                cut_idx(path, folder / key, o.samples if "train" in key else o.samples // 5)
                found[key] = folder / key
        return {key: str(path) for key, path in found.items()}
    out = {}
    for key, names in (("x_train", CIFAR[:5]), ("x_test", CIFAR[5:])):
        raw = b"".join((o.data / "cifar10" / n).read_bytes() for n in names)
        keep = (o.samples if key == "x_train" else o.samples // 5) * 3073 if o.samples else len(raw)
        (folder / f"{key}.bin").write_bytes(raw[:keep])
        out[key] = str(folder / f"{key}.bin")
    return out


# ---- all -------------------------------------------------------------------------------------------------------------

def middle(times):
    """The middle one; a run that never came there is the longest."""
    ordered = sorted(times, key=lambda t: float("inf") if t[0] is None else t[0])
    return ordered[(len(ordered) - 1) // 2]


def bench(o, writer):
    best = {}
    for figure, model, zoo, goal, lr, paper in FIGURES:
        if figure not in o.figures:
            continue
        goal = o.goal or goal
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            files = data_files(o, figure, folder)
            for batch in o.batches or paper:
                times = {("kubeml", f): [] for f in o.functions}
                if o.peer:
                    times["ddp", None] = []
                for f in o.functions:  # the choice of algorithms is no part of it
                    if o.device == "cuda":
                        ours(o, folder, files, model, zoo, 101, lr, batch, f, 0, 1)
                for seed in range(1, o.seeds + 1):
                    for side, f in times:
                        times[side, f].append(theirs(o, files, model, goal, lr, batch, seed, o.epochs) if side == "ddp"
                                              else ours(o, folder, files, model, zoo, goal, lr, batch, f, seed, o.epochs))
                result = {key: middle(list_) for key, list_ in times.items()}
                for (side, f), (seconds, epochs) in result.items():
                    if seconds is not None and seconds < best.get((figure, side), (float("inf"),))[0]:
                        best[figure, side] = (seconds, batch, f)
                mine = min((r[0] for (s, _), r in result.items() if s == "kubeml" and r[0] is not None), default=None)
                peer_s = result.get(("ddp", None), (None, 0))[0]
                for (side, f), (seconds, epochs) in result.items():
                    row = [figure, model, goal, batch, side, f or o.gpus, "" if seconds is None else f"{seconds:.2f}",
                           epochs, f"{peer_s / mine:.2f}" if mine and peer_s and seconds == mine else "", paper.get(batch) or ""]
                    writer(row)
    for figure in o.figures:
        mine, peer_s = best.get((figure, "kubeml")), best.get((figure, "ddp"))
        if mine:
            writer([figure, "best of all batches", "", f"{mine[1]}" + (f" and {peer_s[1]}" if peer_s else ""), "kubeml",
                    mine[2], f"{mine[0]:.2f}", "", f"{peer_s[0] / mine[0]:.2f}" if peer_s else "", BEST_OF_EACH.get(figure, "")])


def main():
    if sys.argv[1:2] == ["peer"]:
        return peer(json.loads(sys.argv[2]))
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / os.environ.get("BUILD", "build/release"))
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(os.environ.get("DATA", ROOT.parent / "shared/data")))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable, help="with PyTorch, for the peer")
    parser.add_argument("--figures", type=numbers, default=[3, 4])
    parser.add_argument("--batches", type=numbers, help="16,32,64,128,256")
    parser.add_argument("--functions", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--goal", type=float, help="percent; the paper's")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32", help="of both sides")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--samples", type=int, default=0, help="of the training set, to try the script out")
    o = parser.parse_args()
    o.build = o.build if o.build.is_absolute() else ROOT / o.build
    o.out = o.out or ROOT / "docs/measurements"
    o.gpus, names = count_gpus() if o.device == "cuda" else (1, "none: the CPU")
    lacks = missing(o)
    if lacks:
        print("bench-paper-gpu cannot run here. It needs:\n" + "\n".join(f"  - {what}" for what in lacks), file=sys.stderr)
        sys.exit(77)
    for figure, files in o.left_out.items():
        print(f"bench-paper-gpu: figure {figure} is left out for want of {', '.join(files)}", flush=True)
        o.figures.remove(figure)
    if o.peer and not has_peer(o):
        print(f"bench-paper-gpu: {o.python} has no PyTorch" + (" with CUDA" if o.device == "cuda" else "") +
              " (GPU_PYTHON=...): our side alone is measured", flush=True)
        o.peer = False
    o.out.mkdir(parents=True, exist_ok=True)
    (o.build / "gpu").mkdir(parents=True, exist_ok=True)
    gpu = re.sub(r"^GPU \d+: | \(UUID.*", "", names.split("; ")[0]) if o.device == "cuda" else "none"
    path = csv_path(o.out, gpu, "paper" + ("-try" if o.samples or o.device == "cpu" else ""))
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["# " + names, o.precision, f"{o.seeds} seeds"])

        def row(values):
            out.writerow(values)
            file.flush()
            print(*values, sep="\t", flush=True)
        row(["figure", "model", "goal", "local_batch", "side", "functions_or_gpus", "seconds", "epochs", "times_ddp", "paper"])
        bench(o, row)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
