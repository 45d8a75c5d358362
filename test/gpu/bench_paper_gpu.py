#!/usr/bin/env python3
"""make bench-paper-gpu: time to accuracy beside PyTorch DDP, as in Figures 3 and 4 of the KubeML paper (Petrescu et al.,
"Toward Competitive Serverless Deep Learning", 2023): LeNet on MNIST to 99 %, ResNet-34 on CIFAR-10 to 70 %.

The paper's settings: local batches of 16 to 256; SGD with momentum 0.9, weight decay 1e-4, learning rate 0.01 (LeNet)
and 0.1 (ResNet-34); samples standardised, nothing else; k infinite. Ours is `kubeml run --functions P`, P functions in
one process, spread over the GPUs that are seen, for every P of --functions; as in the paper the best P counts. The peer
is PyTorch with one process a GPU, DDP between several, and the whole training set on each, in whichever of its memory layouts
is the faster in that precision (a row says which); the local batch is a process's.

What counts: seconds of training and validating from the first epoch's begin to the end of the epoch whose validation
accuracy reaches the goal. Not counted, on either side: starting, reading the data, compiling the model, choosing
algorithms (ours is run once before for an epoch, so that they are in the cache; PyTorch runs a batch of every size before),
and for PyTorch standardising, which ours does with every sample. A run that does not reach the goal within --epochs has no
time. Sides alternate; the middle of --seeds runs is taken. The paper's 2.75 and 1.41 (LeNet, batches 16 and 32), 3.98
(ResNet-34, batch 32) and 2.02 (ResNet-34, each side's best batch) are to be passed: a row says so where it is "ahead" or
"missed", and the exit status is then 1. What has such a number comes first. A run is a row as soon as it has ended; the
middles and the best of the rows so far stand behind them. Exit status 75: --seconds are over, the same command goes on.

Needs: a GPU, make CUDA=1 (lib/kubeml-cuda.so), MNIST's four files and CIFAR-10's six binary files below --data, and for
the peer a Python with PyTorch and CUDA (--python). What is missing is said at once (exit status 77); without the peer's
our side is measured alone. A figure without its data is left out where the other has its own. --device cpu --samples N
tries the script out on a machine without a GPU: such numbers are no result, and the file's name says "try".
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import results
from results import Clock, Failed, OutOfTime

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
PAPER = {figure: paper for figure, *_, paper in FIGURES}
BEST_OF_EACH = {4: 2.02}  # the best batch of one side against the best of the other
CHECKED = 500  # samples of PyTorch's validation at once
RUN_S = 1500  # what a run may take
KEY = "gpu kernels precision figure model goal local_batch side functions_or_gpus seed".split()
COLUMNS = KEY + "seconds epochs layout times_ddp paper words".split()


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


def peer_layout(torch, steps, count):
    """The faster of the memory layouts, by steps[layout], as rank 0 finds it: it is every rank's."""
    import time

    def seconds(layout):
        begin = time.perf_counter()
        for _ in range(count):
            steps[layout]()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter() - begin
    for layout in steps:  # cudnn.benchmark looks for the fastest ways
        seconds(layout)
    chosen = [min(steps, key=lambda layout: min(seconds(layout) for _ in range(3)))]
    torch.distributed.broadcast_object_list(chosen)
    return chosen[0]


def peer_worker(rank, work):
    import copy
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
    y, vy = y.long(), vy.long()
    mean = torch.stack([x[:, c].float().mean() for c in range(x.shape[1])])[None, :, None, None] / 255
    std = torch.stack([x[:, c].float().std() for c in range(x.shape[1])])[None, :, None, None] / 255
    loss_of = torch.nn.CrossEntropyLoss()
    batch, n = work["batch"], len(x)
    bf16 = torch.autocast(where.type, torch.bfloat16, enabled=work["precision"] == "bf16")
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

    def images(bytes_, layout):
        return ((bytes_.float() / 255 - mean) / std).contiguous(memory_format=formats[layout])

    model = peer_model(torch, work["model"]).to(where)

    def tried(layout):
        same, some = copy.deepcopy(model).to(memory_format=formats[layout]), images(x[:batch], layout)

        def step():
            with bf16:
                loss = loss_of(same(some), y[:batch])
            loss.backward()
        return step
    layout = peer_layout(torch, {layout: tried(layout) for layout in formats}, 10 if cuda else 1)
    if rank == 0:
        print(json.dumps({"layout": layout}), flush=True)
    model = model.to(memory_format=formats[layout])
    bare = model
    if world > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank] if cuda else None, broadcast_buffers=False,
                                                          gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=work["lr"], momentum=0.9, weight_decay=1e-4, fused=cuda)
    x, vx = images(x, layout), images(vx, layout)

    def step(rows, update=True):
        optimizer.zero_grad(set_to_none=True)
        with bf16:
            loss = loss_of(model(x[rows]), y[rows])
        loss.backward()
        if update:
            optimizer.step()

    def right(at):
        with torch.no_grad(), bf16:
            return (bare(vx[at:at + CHECKED]).argmax(1) == vy[at:at + CHECKED]).sum()

    # Every size once, for which cudnn.benchmark looks for the fastest ways.
    for size in {min(batch, n // world), n // world % batch} - {0}:
        step(torch.arange(size, device=where), update=False)
    model.eval()
    for at in {0, (len(vx) - 1) // CHECKED * CHECKED}:
        right(at)
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
        for at in range(rank * CHECKED, len(vx), world * CHECKED):
            correct += right(at)
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


def run(words, clock, **environment):
    """What it writes."""
    status, out, error = results.run(words, RUN_S, clock, **environment)
    if status != 0:
        lines = error.strip().splitlines()
        raise Failed(f"no end within {RUN_S} s" if status is None else lines[-1] if lines else f"status {status}")
    return out


def ours(o, clock, folder, files, model, zoo, goal, lr, batch, functions, seed, epochs):
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
    out = run(words, clock, KUBEML_INCLUDE=str(ROOT / "function-runtime/include"))
    lines, elapsed = [json.loads(line) for line in out.splitlines()], 0
    for line in lines:
        elapsed += line["seconds"]
        line["elapsed"] = elapsed
    return reached(lines, goal)


def theirs(o, clock, files, model, goal, lr, batch, seed, epochs):
    """As reached, and the memory layout."""
    with tempfile.TemporaryDirectory() as meet:
        work = {"files": files, "model": model, "goal": goal, "lr": lr, "batch": batch, "seed": seed, "epochs": epochs,
                "device": o.device, "precision": o.precision, "meet": f"file://{meet}/meet"}
        out = run([o.python, __file__, "peer", json.dumps(work)], clock)
    layout, *epochs = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return *reached(epochs, goal), layout["layout"]


# ---- what is needed --------------------------------------------------------------------------------------------------

def count_gpus():
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0, ""
    names = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (len([v for v in visible.split(",") if v]) if visible is not None else len(names)), "; ".join(names)


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


# ---- what the runs say -----------------------------------------------------------------------------------------------

def seconds_of(row):
    """A run that never came there is the longest."""
    return float(row["seconds"]) if row["seconds"] else float("inf")


def middle(rows):
    return sorted(rows, key=seconds_of)[(len(rows) - 1) // 2]


def grouped(rows, *names):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def compared(mine, peer, paper):
    """The columns that say how many times as fast; inf where only the peer never came there."""
    if not peer:
        return {"times_ddp": "", "paper": paper or "", "words": ""}
    mine_s, peer_s = seconds_of(mine), seconds_of(peer)
    times = 0 if mine_s == float("inf") else peer_s / mine_s
    return {"times_ddp": f"{times:.2f}", "paper": paper or "",
            "words": "" if not paper else "ahead" if times > paper else "missed"}


def sums(rows):
    """The middle of every setting's runs, ours beside the peer's where it is the best of ours at its batch; and, of a figure,
    each side's best batch."""
    out, whole = [], [row for row in rows if not row["words"].startswith("failed")]
    for key, of_figure in grouped(whole, *KEY[:6]).items():
        best = {}
        for (batch,), of_batch in grouped(of_figure, "local_batch").items():
            middles = []
            for of_side in grouped(of_batch, "side", "functions_or_gpus").values():
                middles.append({**middle(of_side), "seed": f"middle of {len(of_side)}"})
            kubeml = [row for row in middles if row["side"] == "kubeml"]
            peer = next((row for row in middles if row["side"] == "ddp"), None)
            if kubeml:
                mine = min(kubeml, key=seconds_of)
                mine.update(compared(mine, peer, PAPER[int(key[3])].get(int(batch))))
            for row in middles:
                best[row["side"]] = min(best.get(row["side"], row), row, key=seconds_of)
            out += middles
        if {"kubeml", "ddp"} <= set(best):
            mine, peer = best["kubeml"], best["ddp"]
            out.append({**mine, "seed": "best", "local_batch": f"{mine['local_batch']} and {peer['local_batch']}",
                        **compared(mine, peer, BEST_OF_EACH.get(int(key[3])))})
    return out


# ---- all -------------------------------------------------------------------------------------------------------------

class Bench:
    def __init__(self, o, clock, gpu, names):
        self.o, self.clock = o, clock
        what = "paper" + ("-try" if o.samples or o.device == "cpu" else "")
        self.table = results.Results(results.csv_path(o.out, gpu, what), COLUMNS, KEY, "kernels", sums)
        self.about = [names, kernels(o.build), o.precision]
        self.table.rows = [row for row in self.table.rows if row["seed"].isdigit()]  # the others follow from these
        self.table.know(lambda row: o.seconds and [row[name] for name in KEY[:3]] == self.about and
                        not (o.again and row["words"].startswith("failed")))
        self.chosen = set()

    def choose_algorithms(self, figure, batch, begin):
        """Which is no part of it: once for a batch, whose functions compute alike."""
        if self.o.device == "cuda" and (figure, batch) not in self.chosen:
            begin(101, self.o.functions[0], 0, 1)
        self.chosen.add((figure, batch))

    def run(self, figure, model, zoo, goal, lr, batch, functions, seed, folder, files):
        """One run, and its row, unless there is one; functions None: the peer's."""
        o = self.o
        side = ("kubeml", functions) if functions else ("ddp", o.gpus)
        what = (*self.about, figure, model, goal, batch, *side, seed)
        if self.table.find(*what):
            return

        def begin(wanted, functions, seed, epochs):
            return ours(o, self.clock, folder, files, model, zoo, wanted, lr, batch, functions, seed, epochs)
        try:
            if functions:
                self.choose_algorithms(figure, batch, begin)
                seconds, epochs, layout = *begin(goal, functions, seed, o.epochs), ""
            else:
                seconds, epochs, layout = theirs(o, self.clock, files, model, goal, lr, batch, seed, o.epochs)
            row = ("" if seconds is None else f"{seconds:.2f}", epochs, layout, "", "", "")
        except Failed as why:
            row = ("", "", "", "", "", f"failed: {why}")
        self.table.add(*what, *row)
        print(*what[3:], *row, sep="\t", flush=True)

    def all(self, prepared):
        """Every setting once, then every one with the next seed."""
        o = self.o
        for seed in range(1, o.seeds + 1):
            for figure, model, zoo, goal, lr, paper in FIGURES:
                if figure not in prepared:
                    continue
                for batch in sorted(o.batches or paper, key=lambda batch: paper.get(batch) is None):
                    for functions in [*o.functions, *([None] if o.peer else [])]:
                        self.run(figure, model, zoo, o.goal or goal, lr, batch, functions, seed, *prepared[figure])


def kernels(build):
    """Which kernels of ours there are; nothing where that file is not."""
    header = build / "cuda_kernels_version.h"
    return header.read_text().split('"')[1] if header.exists() else ""


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
    results.add_options(parser)
    o = parser.parse_args()
    clock = Clock(o.seconds)
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
    o.peer = o.peer and results.has_torch(o.python, "bench-paper-gpu", clock, o.device)
    gpu = re.sub(r"^GPU \d+: | \(UUID.*", "", names.split("; ")[0]) if o.device == "cuda" else "none"
    bench = Bench(o, clock, gpu, re.sub(r" \(UUID[^)]*\)", "", names))
    unfinished = False
    with contextlib.ExitStack() as stack:
        stack.enter_context(results.new_cache(bench.table.path, o.seconds))
        prepared = {}
        for figure in o.figures:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            prepared[figure] = (folder, data_files(o, figure, folder))
        try:
            bench.all(prepared)
        except OutOfTime:
            unfinished = True
    told = sums(bench.table.now)
    for row in told:
        print(*list(row.values())[3:], sep="\t")
    bench.table.end(bench.about[1])
    failed = sum(row["words"].startswith("failed") for row in bench.table.now)
    missed = sum(row["words"] == "missed" for row in told)
    if failed or missed or unfinished:
        print(f"bench-paper-gpu: {failed} failed, {missed} missed their goal" +
              ("; the time was over: the same command goes on" if unfinished else ""), file=sys.stderr)
    sys.exit(results.UNFINISHED if unfinished else 1 if failed or missed or o.peer is None else 0)


if __name__ == "__main__":
    main()
