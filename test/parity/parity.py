#!/usr/bin/env python3
"""Every model of the zoo beside PyTorch's own (torchvision's, where it has the model).

    BUILD=build/release python3 test/parity/parity.py [--csv FILE] [MODEL ...]

MODEL is a model's name, for all of its cases, or one case ("resnet18:1x28x28"); none: all of them. FILE has a row
for each case, the last run's that had it, so that a run which was ended can go on with what it had not reached.

PyTorch initialises a model and saves it with safetensors; the engine loads that file and computes
logits, loss, every gradient, running statistics and STEPS steps of SGD; what it saves then is loaded
back into PyTorch's model. The truth is PyTorch in fp64. Two engines are held to it:

- the reference backend, which computes in fp64 and keeps fp32: every gradient within EXACT;
- the backend that trains, in fp32. Where an activation is so close to a ReLU's kink that rounding puts it
  on the other side, a gradient moves by up to a percent whoever computes it, and over the steps that grows
  until the paths part: ResNet-18's weights moved by 1e-7 of themselves bring PyTorch's loss 4 % away
  within 12 steps. How far is measured in the same run, on PyTorch's fp32 in the forms of PYTORCH: with two
  memory layouts, and with weights moved by as little as rounding does. The bounds are those of ROUNDED and,
  beyond, FACTOR times the furthest of these.

What such a bound would hide, an error that every step makes, is looked for apart: at STATES states of fp64's
own path, from where each computes one gradient. Kinks are crossed at some of them, which the layers before
feel and those after do not; each parameter's best must be within STEADY and FACTOR times what PyTorch's
forms reach.

Ends with status 1 and the list of what differs.
"""
import argparse
import csv
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
import make_golden  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("BUILD", "build/release")).resolve() / "parity/parity"
STEPS, BATCH, LR = 20, 8, 0.001
REFERENCE_BATCH = 2
LOGITS, EXACT, STEADY, FACTOR = 1e-4, 1e-5, 5e-5, 3.0
STATES = 4
# PyTorch's fp32: channels_last or not, and by how much of itself each weight is moved before each pass.
# 1e-6 of a weight moves logits by about as much as the rounding of any backend here does.
PYTORCH = [(False, 0), (True, 0), (False, 1e-6), (True, 1e-6)]
ROUNDED = {"logits": 1e-4, "losses": 1e-2, "gradients": 2e-2, "statistics": 1e-5, "trained": 5e-2}

# (model's text, channels, side, classes): each model with both of its stems, and with one channel.
CASES = [("lenet5", 1, 28, 10), ("mlp", 1, 28, 10)]
CASES += [(f"resnet{n}", 3, 32, 10) for n in (20, 32, 56)]
CASES += [(f"{name},stem={stem}", 3, side, 10) for name in make_golden.ZOO
          for stem, side in (("cifar", 32), ("imagenet", 64))]
CASES += [(name, 1, 28, 7) for name in ("resnet18", "vgg11", "squeezenet1_1", "mobilenet_v3_small", "densenet121")]


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 256), nn.Linear(256, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1))))))


def torch_model(text, channels, side, classes):
    name, _, option = text.partition(",stem=")
    own = {"lenet5": make_golden.LeNet5, "mlp": MLP}
    if name in own:
        return own[name]()
    if name in ("resnet20", "resnet32", "resnet56"):
        return make_golden.ResNetCifar((int(name[6:]) - 2) // 6)
    return make_golden.torchvision_model(name, option or ("cifar" if side < 64 else "imagenet"), channels, classes)


def layer_norms(grads):
    """Of each layer's weight and bias together: a bias before batch norm has a gradient of rounding alone."""
    norms = {}
    for name, g in grads.items():
        prefix = name.rpartition(".")[0]
        norms[prefix] = math.hypot(norms.get(prefix, 0), g.norm().item())
    return norms


def distance(a, b):
    return (a.double() - b.double()).norm().item()


def relative(a, b):
    """Of logits that are all 0 (SqueezeNet's end in a ReLU) any distance is too much."""
    apart, norm = distance(a, b), b.double().norm().item()
    return apart / norm if norm else float("inf") if apart else 0.0


def gradient_errors(grads, want):
    """Of each parameter, as a part of its layer's norm."""
    norms = layer_norms(want)
    return {k: distance(grads[k], g) / (norms[k.rpartition(".")[0]] or 1) for k, g in want.items()}


def best(states):
    """The least of each parameter."""
    return {k: min(errors[k] for errors in states) for k in states[0]}


class Torch:
    """One pass and a step for each batch, as parity.c does them. `states`: in fp64, of the first few steps,
    weights in fp32 as they were before, and the gradient there."""

    def __init__(self, model, init, x, y, dtype, steps, channels_last=False, noise=0.0):
        self.noise, self.random = noise, torch.Generator().manual_seed(2)
        self.form = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model.to(dtype).to(memory_format=self.form)
        self.start(init)
        x = [b.to(dtype).contiguous(memory_format=self.form) for b in x]
        self.logits = self.infer(x[0])
        self.losses = [self.loss(x[0], y[0])]
        self.grads = self.gradients()
        self.stats = {k: b.clone() for k, b in self.model.named_buffers()}
        self.start(init)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-4)
        self.states = []
        for step in range(steps):
            # Of fp64's path alone: of every form, ResNet-50's would be gigabytes.
            before = self.weights(torch.float32) if step < STATES and steps == STEPS and dtype == torch.float64 else None
            optimizer.zero_grad()
            self.losses.append(self.loss(x[step], y[step]))
            if before:
                self.states.append((before, self.gradients()))
            optimizer.step()
        self.trained = self.weights(dtype)
        self.model = self.random = None  # gradients and momentum go with it: of VGG's large stem, gigabytes

    def start(self, state):
        self.model.load_state_dict(state)
        self.model.train()

    def weights(self, dtype):
        return {k: (t.to(dtype) if t.is_floating_point() else t).clone(memory_format=torch.contiguous_format)
                for k, t in self.model.state_dict().items()}

    def gradients(self):
        return {k: p.grad.clone(memory_format=torch.contiguous_format) for k, p in self.model.named_parameters()}

    def loss(self, x, y):
        """With its gradients."""
        with torch.no_grad():
            for p in self.model.parameters() if self.noise else ():
                p.mul_(1 + self.noise * (2 * torch.rand(p.shape, generator=self.random, dtype=p.dtype) - 1))
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss.item()

    def infer(self, x):
        self.model.eval()
        with torch.no_grad():
            logits = self.model(x)
        self.model.train()
        return logits


def torch_best(model, states, x, y, channels_last, noise):
    """Of one of PyTorch's forms in fp32."""
    return best([gradient_errors(Torch(model, state, x[i:i + 1], y[i:i + 1], torch.float32, 0, channels_last,
                                       noise).grads, want) for i, (state, want) in enumerate(states)])


class Engine:
    def __init__(self, text, channels, side, classes, init, x, y, steps, backend, folder):
        # A list of its own for the file: safetensors refuses tensors that share memory.
        save_file({k: t.clone() for k, t in init.items()}, folder / "init.safetensors")
        x.numpy().tofile(folder / "x.f32")
        y.int().numpy().tofile(folder / "y.i32")
        numbers = map(str, (channels, side, classes, x.shape[1], len(x), steps, LR))
        out = subprocess.run([PROGRAM, "run", folder, text, *numbers, backend], check=True, stdout=subprocess.PIPE,
                             text=True).stdout
        self.losses = [float(line) for line in out.split()]
        self.vars = []
        for line in (folder / "names.txt").read_text().splitlines():
            name, kind, offset, *dims = line.split()
            self.vars.append((name, kind, int(offset), tuple(map(int, dims))))
        flat = self.read(folder / "grads.f32")
        self.grads = {n: flat[o:o + math.prod(d)].reshape(d) for n, k, o, d in self.vars if k == "param"}
        self.logits = self.read(folder / "logits.f32").reshape(-1, classes)
        self.logits_trained = self.read(folder / "logits_trained.f32").reshape(-1, classes)
        self.stats, self.trained = load_file(folder / "stats.safetensors"), load_file(folder / "trained.safetensors")

    @staticmethod
    def read(path):
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)


class Case:
    def __init__(self, text, channels, side, classes):
        self.label = f"{text} {channels}x{side}x{side}"
        self.failures, self.worst = [], {}
        torch.manual_seed(1)
        # 130 million parameters of VGG's large stem: two steps show what twenty would, and one form of PyTorch's;
        # each of them, and each state, takes gigabytes.
        steps = 2 if text.startswith("vgg") and side >= 64 else STEPS
        x, y = torch.randn(steps, BATCH, channels, side, side), torch.randint(0, classes, (steps, BATCH))
        make = lambda: torch_model(text, channels, side, classes)  # noqa: E731
        init = {k: t.clone() for k, t in make().state_dict().items()}
        shape = (text, channels, side, classes, init)
        with tempfile.TemporaryDirectory() as folder:
            few = x[:1, :REFERENCE_BATCH], y[:1, :REFERENCE_BATCH]
            self.compare_exact(Engine(*shape, *few, 0, "reference", pathlib.Path(folder)),
                               Torch(make(), init, *few, torch.float64, 0))
            self.ours = Engine(*shape, x, y, steps, "auto", pathlib.Path(folder))
        self.double = Torch(make(), init, x, y, torch.float64, steps)
        forms = PYTORCH if steps == STEPS else PYTORCH[:1]
        self.peers = [Torch(make(), init, x, y, torch.float32, steps, *form) for form in forms]
        self.compare(init)
        if self.double.states:
            self.compare_states(make, shape[:-1], x, y)
        self.check_back(make(), x[0])

    def fail(self, what):
        self.failures.append(f"{self.label}: {what}")

    def within(self, what, kind, got, peers, double, scale):
        """`got` beside PyTorch's: the distance, in units of `scale`, the norm that counts here."""
        apart, furthest = distance(got, double), max(distance(p, double) for p in peers)
        allowed = ROUNDED[kind] * scale + FACTOR * furthest
        self.worst[kind] = max(self.worst.get(kind, 0), apart / scale if scale else 0)
        if not apart <= allowed:
            self.fail(f"{what} is {apart:.3g} from fp64 PyTorch, {allowed:.3g} allowed (norm {scale:.3g})")

    def compare_states(self, make, shape, x, y):
        """The gradient at states of fp64's path."""
        states = self.double.states
        with tempfile.TemporaryDirectory() as folder:
            ours = best([gradient_errors(Engine(*shape, state, x[i:i + 1], y[i:i + 1], 0, "auto",
                                                pathlib.Path(folder)).grads, want)
                         for i, (state, want) in enumerate(states)])
        theirs = [torch_best(make(), states, x, y, *form) for form in PYTORCH]
        self.worst["steady"] = max(ours.values())
        for name, apart in ours.items():
            furthest = max(t[name] for t in theirs)
            if not apart <= STEADY + FACTOR * furthest:
                self.fail(f"gradient of {name} from fp64's path: {apart:.2g} from fp64's own at best, "
                          f"PyTorch's in fp32 {furthest:.2g}")

    def compare_exact(self, ours, double):
        self.worst["exact"] = 0
        layer = layer_norms(double.grads)
        for name, g in double.grads.items():
            scale = layer[name.rpartition(".")[0]]
            apart = distance(ours.grads[name], g)
            self.worst["exact"] = max(self.worst["exact"], apart / scale if scale else 0)
            if not apart <= EXACT * scale:
                self.fail(f"the reference's gradient of {name} is {apart:.3g} from fp64 PyTorch (norm {scale:.3g})")

    def compare(self, init):
        ours, peers, double = self.ours, self.peers, self.double
        names = [v[0] for v in ours.vars if not v[0].startswith("optimizer.")]
        if sorted(names) != sorted(init):
            self.fail(f"names differ: {sorted(set(names) ^ set(init))}")
            return
        shapes = {n: d for n, k, o, d in ours.vars}
        for name, t in init.items():
            if shapes[name] != tuple(t.shape):
                self.fail(f"{name} has shape {shapes[name]}, PyTorch's {tuple(t.shape)}")
        params = [v[0] for v in ours.vars if v[1] == "param"]
        if params != list(double.grads):
            self.fail("parameters stand in another order")
        error = relative(ours.logits, peers[0].logits)
        self.worst["logits"] = error
        if not error < LOGITS:
            self.fail(f"logits: relative error {error:.3g} against fp32 PyTorch")
        self.within("logits", "logits", ours.logits, [p.logits for p in peers], double.logits,
                    double.logits.norm().item())
        self.compare_losses()
        layer = layer_norms(double.grads)
        for name, g in double.grads.items():
            self.within(f"gradient of {name}", "gradients", ours.grads[name], [p.grads[name] for p in peers], g,
                        layer[name.rpartition(".")[0]])
        for name, t in double.stats.items():
            self.compare_count(ours.stats, name, t) or self.within(
                f"statistics {name}", "statistics", ours.stats[name], [p.stats[name] for p in peers], t,
                max(t.norm().item(), 1e-3 * math.sqrt(t.numel())))
        moved = [name for name, t in double.trained.items() if not self.compare_count(ours.trained, name, t)]
        flat = lambda of: torch.cat([of[name].double().flatten() for name in moved])  # noqa: E731
        self.within("the way the weights went", "trained", flat(ours.trained), [flat(p.trained) for p in peers],
                    flat(double.trained), distance(flat(double.trained), flat(init)))

    def compare_count(self, mine, name, want):
        """Counts are equal; whether it was one."""
        if want.is_floating_point():
            return False
        if mine[name].item() != want.item():
            self.fail(f"{name}: {mine[name].item()}, not {want.item()}")
        return True

    def compare_losses(self):
        spread = 0
        for step, (a, c) in enumerate(zip(self.ours.losses, self.double.losses)):
            theirs = [p.losses[step] for p in self.peers]
            spread = max([spread] + [abs(b - c) for b in theirs])
            apart = abs(a - c)
            self.worst["losses"] = max(self.worst.get("losses", 0), apart / c)
            if not apart <= (ROUNDED["losses"] if step else EXACT) * c + FACTOR * spread:
                self.fail(f"loss {step}: {a:.7g}, PyTorch {min(theirs):.7g} to {max(theirs):.7g} in fp32 and {c:.7g} "
                          "in fp64")

    def check_back(self, model, x):
        """What the engine saved, in PyTorch's model: the same logits there."""
        model.load_state_dict(self.ours.trained)
        model.eval()
        with torch.no_grad():
            error = relative(model(x), self.ours.logits_trained)
        self.worst["back"] = error
        if not error < LOGITS:
            self.fail(f"the trained model gives other logits in PyTorch: relative error {error:.3g}")


def check_counts():
    """The table of `kubeml zoo list` beside torchvision, with its own number of classes."""
    failures = []
    for line in subprocess.run([PROGRAM, "zoo"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        name, channels, height, _, classes, count = line.split()
        if name in make_golden.ZOO:
            with torch.device("meta"):
                model = getattr(torchvision.models, name)(num_classes=int(classes))
        else:
            model = torch_model(name, int(channels), int(height), int(classes))
        want = sum(p.numel() for p in model.parameters())
        if want != int(count):
            failures.append(f"{name}: {count} parameters, PyTorch has {want}")
    return failures


def name_of(text, channels, side, classes):
    return f"{text}:{channels}x{side}x{side}"


def keep(path, columns, case, worst):
    """That case's row of the file, in the order of CASES."""
    header = ["model", "sample", *columns]
    rows = list(csv.reader(open(path, newline=""))) if path.exists() else [header]
    if rows[0] != header:
        sys.exit(f"{path} has other columns than {','.join(header)}")
    found = {tuple(row[:2]): row for row in rows[1:]}
    order = [tuple(name_of(*c).replace(",", " ").split(":")) for c in CASES]
    key = tuple(case.replace(",", " ").split(":"))
    found[key] = [*key, *(f"{worst[k]:.1e}" if k in worst else "" for k in columns)]
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *(found[k] for k in order if k in found)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="*")
    parser.add_argument("--csv", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    failures, columns = check_counts(), ("exact", "logits", "losses", "gradients", "steady", "statistics", "trained",
                                         "back")
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}; largest relative errors against fp64")
    print(f"{'model':34}" + "".join(f"{c:>11}" for c in columns))
    done = 0
    for case in CASES:
        if options.model and not {case[0].partition(",")[0], name_of(*case)} & set(options.model):
            continue
        c = Case(*case)
        failures += c.failures
        done += 1
        if options.csv:
            keep(options.csv, columns, name_of(*case), c.worst)
        print(f"{c.label:34}" + "".join(f"{c.worst.get(k, float('nan')):11.1e}" for k in columns)
              + ("   FAILED" if c.failures else ""), flush=True)
    if not done:
        sys.exit(f"no such model: {' '.join(options.model)}")
    print("\n".join(failures) if failures else f"{done} cases agree")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
