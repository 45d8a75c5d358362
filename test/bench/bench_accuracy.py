#!/usr/bin/env python3
"""How well the engine learns, on real CIFAR-10; long runs, whose numbers go into small CSV files.

    bench_accuracy.py platform   ResNet-20, 4 functions, through the platform until 70 % validation accuracy
    bench_accuracy.py curve      ResNet-20 in one process beside PyTorch, 3 seeds, 5 epochs
    bench_accuracy.py resnet34   ResNet-34 (CIFAR stem), batch 128, 3 seeds, 2 epochs beside PyTorch
    bench_accuracy.py bf16       ResNet-20 (--model NAME) in bf16 beside itself in fp32, 3 seeds, 5 epochs in which
                                 the learning rate falls to 0 by half a cosine: the last accuracy is what counts

SGD with lr 0.1, momentum 0.9, weight decay 1e-4; pad 4, random crop, flip, standardisation by the training
set's mean and deviation. --data FOLDER holds data_batch_1..5.bin and test_batch.bin (CIFAR-10's binary
version); --samples N takes the first N training images and N/5 test images, to try a script out, --lr another
rate than 0.1: such a run is no result, and its file has "try" in its name. Each epoch is a row of the CSV file as soon as it is over; a run
that is ended goes on, when it is started again with the same --out, with the seeds that it had not finished: PyTorch's
where it was, but for the last minutes (its state lies in a file beside the CSV file), ours from its beginning.
--side trains one of the two alone, so that both may run at once; the comparison is printed by the call that finds
every seed done. `platform` and `bf16` run under any Python; the others need PyTorch for its side.

By default the two sides of `curve` and `resnet34` share nothing but a number for a seed: each draws its own weights,
order, flips and crops, so that a fault in any of ours would show. With --same both begin with PyTorch's weights and
train on our batches, byte for byte: what is left between them is arithmetic, and how it grows. At a small rate (--lr 0.002 --samples 1000) it
does not grow, and the sides' losses stay beside each other over the ends of epochs too: what is lost there would show.

`curve` and `resnet34` exit with 1 where the mean of our seeds' accuracies after some epoch lies outside the range of
PyTorch's seeds widened by their own standard deviation on either side. Without it two runs of one and the same program
would fail often: the mean of three lies outside the range of three others 37 times in 100 at one epoch, at one or more
of five epochs 39 (what a seed gains it keeps) to 90 times (epochs independent); with it 17, and 18 to 59 times
(normally distributed accuracies, drawn 40,000 times). So a failure is a reason to look, at more seeds, rather than a
proof; ours worse by five times the seeds' deviation is always found. What lies in the widening is said. One seed has no
spread, nothing is judged, and the exit status is 1.
"""
import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ.get("BUILD", "build/release")
IMAGE = 3073
FUNCTION = """#include <kubeml.h>

static kml_tensor model(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "%s", kml_classes(g));
}

KUBEML_FUNCTION(.model = model, .optimizer = kml_sgd(.momentum = 0.9, .weight_decay = 1e-4),
                .transform = kml_transform(.standardise = true, .flip = true, .crop = 4),%s .lr = 0.1);
"""
COSINE = " .schedule = kml_cosine(.per_step = true),"


def cifar(options, folder):
    """Two files in `folder`: the training and the test images."""
    parts = {"train.bin": [f"data_batch_{i}.bin" for i in range(1, 6)], "test.bin": ["test_batch.bin"]}
    for name, sources in parts.items():
        raw = b"".join((options.data / source).read_bytes() for source in sources)
        keep = options.samples if name == "train.bin" else options.samples // 5
        (folder / name).write_bytes(raw[:keep * IMAGE] if options.samples else raw)
    return folder / "train.bin", folder / "test.bin"


class Log:
    """A CSV file and the same on stdout; rows that `keep` of an earlier run's file stay."""

    def __init__(self, options, name, columns, keep=lambda rows: []):
        self.path = options.out / f"{name}{'-try' if options.tried else ''}.csv"
        options.out.mkdir(parents=True, exist_ok=True)
        before = list(csv.reader(open(self.path, newline=""))) if self.path.exists() else []
        self.kept = keep(before[1:]) if before[:1] == [list(columns)] else []
        with open(self.path, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([columns, *self.kept])
        print(*columns, sep="\t", flush=True)
        self.file = open(self.path, "a", newline="")
        self.writer = csv.writer(self.file, lineterminator="\n")

    def write(self, *row):
        row = [f"{x:.4f}" if isinstance(x, float) else x for x in row]
        self.writer.writerow(row)
        self.file.flush()
        print(*row, sep="\t", flush=True)


# ---- through the platform ---------------------------------------------------------------------------

def follow(url, job, log, began):
    """A line an epoch until the job has ended; the last state."""
    seen = 0
    while True:
        with urllib.request.urlopen(f"{url}/tasks/{job}", timeout=60) as reply:
            state = json.load(reply)["state"]
        try:
            with urllib.request.urlopen(f"{url}/history/{job}", timeout=60) as reply:
                data = json.load(reply)["data"]
        except urllib.error.HTTPError:
            data = {"train_loss": []}
        for i in range(seen, len(data["train_loss"])):
            log.write(i + 1, data["parallelism"][i], data["train_loss"][i], data["validation_loss"][i],
                      data["accuracy"][i], data["epoch_duration"][i], time.time() - began)
        seen = len(data["train_loss"])
        if state in ("succeeded", "failed", "cancelled"):
            return state, max(data.get("accuracy", [0]) or [0])
        time.sleep(2)


def platform(options, folder):
    train, test = cifar(options, folder)
    (folder / "r20.c").write_text(FUNCTION % ("resnet20", ""))
    environment = {**os.environ, "KUBEML_HOME": str(folder / "home")}
    environment.pop("KUBEML_URL", None)

    def kubeml(*words):
        return subprocess.run([BUILD / "bin/kubeml", *map(str, words)], env=environment, check=True, text=True,
                              stdout=subprocess.PIPE).stdout

    url = kubeml("up", "--listen", "127.0.0.1:0").split(" at ")[1].split()[0]
    environment["KUBEML_URL"] = url
    try:
        kubeml("dataset", "create", "--name", "cifar", "--traindata", train, "--testdata", test)
        kubeml("function", "create", "--name", "r20", "--code", folder / "r20.c")
        log = Log(options, "resnet20-platform", ("epoch", "functions", "train_loss", "validation_loss", "accuracy",
                                                 "seconds", "elapsed"))
        began = time.time()
        job = kubeml("train", "-f", "r20", "-d", "cifar", "-e", options.epochs or 60, "-b", options.batch, "--lr", options.lr,
                     "-p", 4, "--static", "--K", options.k, "--goal-accuracy", 70).strip()
        state, best = follow(url, job, log, began)
    finally:
        kubeml("down")
    print(f"{state}: {best:.2f} % in {(time.time() - began) / 60:.1f} min")
    return state == "succeeded" and (best >= 70 or options.tried)


# ---- one process beside PyTorch ----------------------------------------------------------------------

def ours(options, model, epochs, seed, train, test, folder, log, side="kubeml", schedule="", precision="fp32"):
    code, init = folder / "model.c", []
    if options.same:
        init = ["--init", folder / "init.safetensors"]
        save_weights(seeded_model(model, seed), init[1])
    code.write_text(FUNCTION % (model, schedule))
    command = [BUILD / "bin/kubeml-function", "run", code, "--traindata", train, "--testdata", test, "-e", epochs, "-b",
               options.batch, "--lr", options.lr, "--seed", seed, "--threads", options.threads, "--json", "--backend", "cpu",
               "--precision", precision, *init]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            e = json.loads(line)
            log.write(side, seed, e["epoch"], e["train_loss"], e["validation_loss"], e["accuracy"], e["seconds"])
    if child.returncode:
        sys.exit(f"kubeml-function run ended with status {child.returncode}")


def torch_model(name):
    sys.path.insert(0, str(ROOT / "test/golden"))
    import make_golden
    return make_golden.ResNetCifar(3) if name == "resnet20" else make_golden.torchvision_model(name, "cifar")


def seeded_model(name, seed):
    import torch
    torch.manual_seed(seed)
    return torch_model(name)


def save_weights(model, path):
    from safetensors.torch import save_file
    save_file({k: t.clone() for k, t in model.state_dict().items()}, path)


def images(raw):
    import torch
    raw = torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(-1, IMAGE)
    return raw[:, 1:].reshape(-1, 3, 32, 32).float() / 255, raw[:, 0].long()


def augment(x, generator):
    """Pad 4, random crop, flip, each image by itself."""
    import torch
    n = len(x)
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    dy, dx = (torch.randint(0, 9, (n, 1, 1), generator=generator) for _ in range(2))
    rows, columns = torch.arange(32).view(1, 32, 1) + dy, torch.arange(32).view(1, 1, 32) + dx
    out = padded[torch.arange(n).view(n, 1, 1), :, rows, columns].permute(0, 3, 1, 2)
    flip = torch.rand(n, generator=generator) < 0.5
    return torch.where(flip.view(n, 1, 1, 1), out.flip(3), out)


def own_batches(options, x, y, epochs, seed, train, test):
    """PyTorch's order, flips and crops: an iterator of batches for each epoch."""
    import torch
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield ((augment(x[part], generator), y[part])
               for part in torch.randperm(len(x), generator=generator).split(options.batch))


def our_batches(options, x, y, epochs, seed, train, test):
    """The same of ours."""
    words = [BUILD / "bench/bench_batches", train, test, seed, epochs, options.batch]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE) as child:
        for _ in range(epochs):
            yield (images(child.stdout.read(min(options.batch, len(x) - at) * IMAGE))
                   for at in range(0, len(x), options.batch))
    if child.returncode:
        sys.exit(f"bench_batches ended with status {child.returncode}")


class Kept:
    """Where a run of PyTorch's stands, in a file beside the log: written every few minutes and after each epoch."""

    EVERY = 300  # seconds

    def __init__(self, log, seed, model, optimizer):
        import torch
        self.path, self.model, self.optimizer = log.path.with_name(f"{log.path.stem}-{seed}.pt"), model, optimizer
        self.rows, self.batches, self.total, self.seconds = [], 0, 0.0, 0.0  # whole epochs; and of the open one
        if self.path.exists():
            state = torch.load(self.path)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self.rows, self.batches, self.total, self.seconds = state["at"]
        for row in self.rows:
            log.write(*row)
        self.began = self.saved = time.time()

    def elapsed(self):
        """Seconds of the open epoch, those of earlier runs too."""
        return self.seconds + time.time() - self.began

    def save(self):
        import torch
        part = self.path.with_suffix(".part")
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "at": (self.rows, self.batches, self.total, self.elapsed())}, part)
        part.replace(self.path)
        self.saved = time.time()

    def trained(self, loss_sum):
        self.batches, self.total = self.batches + 1, self.total + loss_sum
        if time.time() - self.saved > self.EVERY:
            self.save()

    def over(self, row):
        """An epoch is."""
        self.rows.append(row)
        self.batches, self.total, self.seconds, self.began = 0, 0.0, 0.0, time.time()
        self.save()


def theirs(options, name, epochs, seed, train, test, log):
    import torch
    torch.set_num_threads(options.threads)
    (x, y), (tx, ty) = images(train.read_bytes()), images(test.read_bytes())
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True, correction=0)
    model = seeded_model(name, seed).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-4)
    batches = our_batches if options.same else own_batches
    kept = Kept(log, seed, model, optimizer)
    for epoch, of_epoch in enumerate(batches(options, x, y, epochs, seed, train, test)):
        model.train()
        for n, (images_of, labels) in enumerate(of_epoch):
            if epoch < len(kept.rows) or n < kept.batches:
                continue  # what is drawn depends on what was drawn before
            # The zeros of the padding are the image's, as the engine's are: standardised after it.
            b = (images_of - mean) / std
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(b.contiguous(memory_format=torch.channels_last)), labels)
            loss.backward()
            optimizer.step()
            kept.trained(loss.item() * len(labels))
        if epoch < len(kept.rows):
            continue
        model.eval()
        with torch.no_grad():
            logits = torch.cat([model((part - mean) / std) for part in tx.split(500)])
        accuracy = 100 * (logits.argmax(1) == ty).float().mean().item()
        row = ("pytorch", seed, epoch + 1, kept.total / len(x),
               torch.nn.functional.cross_entropy(logits, ty).item(), accuracy, kept.elapsed())
        log.write(*row)
        kept.over(row)
    kept.path.unlink()


def done(rows, side, seed, epochs):
    """The accuracies of a seed all of whose epochs are there, else []."""
    found = {int(r[2]): float(r[5]) for r in rows if r[0] == side and int(r[1]) == seed}
    return [found[n] for n in range(1, epochs + 1)] if set(range(1, epochs + 1)) <= set(found) else []


def run_seeds(options, name, sides, epochs, seeds):
    """Every seed on each of the two sides, {side: train(seed, log)}, but those that the file has; each side's
    accuracies, or None while a seed is missing."""
    def runs(side):
        return options.side in (None, side)

    def keep(before):
        """All of the other side, and of this one the seeds that are done."""
        return [r for r in before if not runs(r[0]) or done(before, r[0], int(r[1]), epochs)]

    log = Log(options, name, ("side", "seed", "epoch", "train_loss", "validation_loss", "accuracy", "seconds"), keep)
    for seed in range(seeds):
        for side, train in sides.items():
            if runs(side) and not done(log.kept, side, seed, epochs):
                train(seed, log)
    rows = list(csv.reader(open(log.path, newline="")))[1:]
    found = [[done(rows, side, seed, epochs) for seed in range(seeds)] for side in sides]
    if all(sum(found, [])):
        return found
    print("not every seed is done; no comparison")
    return None


def beside(options, folder, model, epochs, seeds):
    """The mean over the seeds must lie within PyTorch's spread, one deviation wider on either side (see above)."""
    train, test = cifar(options, folder)
    found = run_seeds(options, f"{model}-beside-pytorch{'-same' if options.same else ''}", {
        "kubeml": lambda seed, log: ours(options, model, epochs, seed, train, test, folder, log),
        "pytorch": lambda seed, log: theirs(options, model, epochs, seed, train, test, log)}, epochs, seeds)
    if not found:
        return options.side is not None
    a, b = found
    good = True
    for epoch in range(epochs):
        mine, other = [r[epoch] for r in a], [r[epoch] for r in b]
        mean, slack = statistics.mean(mine), statistics.pstdev(other)
        within = min(other) - slack <= mean <= max(other) + slack
        good = good and within
        place = "" if min(other) <= mean <= max(other) else "   outside, by less than a deviation" if within else "   outside"
        print(f"epoch {epoch + 1}: kubeml {mean:.2f} %, PyTorch {statistics.mean(other):.2f} % "
              f"({min(other):.2f} to {max(other):.2f}){place if seeds > 1 else ''}")
    if seeds == 1:
        print("one seed has no spread; nothing is judged")
    return good and seeds > 1 or options.tried


BF16_LOSES = 0.5  # points of final accuracy, at most


def halves(options, folder, model, epochs, seeds):
    """The mean of the seeds' last accuracies must not be less in bf16 by more than BF16_LOSES."""
    train, test = cifar(options, folder)
    sides = {precision: lambda seed, log, precision=precision: ours(
        options, model, epochs, seed, train, test, folder, log, precision, COSINE, precision) for precision in ("fp32", "bf16")}
    found = run_seeds(options, f"{model}-bf16", sides, epochs, seeds)
    if not found:
        return options.side is not None
    last = [[run[-1] for run in side] for side in found]
    for side, accuracies in zip(sides, last):
        print(f"{side}: {statistics.mean(accuracies):.2f} % ({min(accuracies):.2f} to {max(accuracies):.2f})")
    return statistics.mean(last[1]) >= statistics.mean(last[0]) - BF16_LOSES or options.tried


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("platform", "curve", "resnet34", "bf16"))
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("CIFAR10"))
    parser.add_argument("--out", type=pathlib.Path, default=BUILD / "accuracy")
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--side", choices=("kubeml", "pytorch", "fp32", "bf16"))
    parser.add_argument("--model", default="resnet20", help="of bf16")
    parser.add_argument("--same", action="store_true", help="curve, resnet34: both on the same weights and batches")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("-k", type=int, default=-1, help="local steps between two merges; -1: once an epoch")
    options = parser.parse_args()
    if not options.data or not (pathlib.Path(options.data) / "test_batch.bin").exists():
        sys.exit("--data FOLDER (or CIFAR10=FOLDER) must hold data_batch_1..5.bin and test_batch.bin")
    if options.same and options.what not in ("curve", "resnet34"):
        sys.exit("--same is for curve and resnet34")
    options.data = pathlib.Path(options.data)
    options.tried = options.samples > 0 or options.lr != 0.1
    with tempfile.TemporaryDirectory(prefix="kubeml-accuracy-") as name:
        folder = pathlib.Path(name)
        if options.what == "platform":
            good = platform(options, folder)
        elif options.what == "curve":
            good = beside(options, folder, "resnet20", options.epochs or 5, options.seeds or 3)
        elif options.what == "bf16":
            good = halves(options, folder, options.model, options.epochs or 5, options.seeds or 3)
        else:
            good = beside(options, folder, "resnet34", options.epochs or 2, options.seeds or 3)
    sys.exit(not good)


if __name__ == "__main__":
    main()
