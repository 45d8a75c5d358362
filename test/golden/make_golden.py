#!/usr/bin/env python3
"""Makes the golden files of this folder with PyTorch (any version 2; the CPU is enough).

    python make_golden.py [name ...]     names: lenet5 resnet20 optim schedule zoo checkpoint (default: all)

Weights and batches are not stored: both sides draw them from Philox (common/base/rng.c) as written in
`fill` and `batch` below and in test/unit/golden.h. A golden file is text, one "key number ..." a line.
"""
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
RNG_TEST = 8
SEED = 7


def words(a, b, count):
    """The first `count` 32-bit words of rng_init(SEED, RNG_TEST, a, b): Philox4x32-10."""
    n = (count + 3) // 4
    m32 = np.uint64(0xFFFFFFFF)
    c = [np.arange(n, dtype=np.uint64), np.full(n, b & 0xFFFFFFFF, np.uint64),
         np.full(n, b >> 32, np.uint64), np.full(n, RNG_TEST << 28 | a, np.uint64)]
    k0, k1 = SEED & 0xFFFFFFFF, SEED >> 32
    for _ in range(10):
        low, high = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(high >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), high & m32,
             (low >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), low & m32]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, 1).reshape(-1)[:count]


def uniform(a, b, count):
    """In [-1, 1), 24 bits."""
    return (words(a, b, count) >> np.uint64(8)).astype(np.float64) * 2.0 ** -23 - 1


def fill(model, gain=1.0):
    """Deterministic weights: variable i of the state_dict draws from stream (1, i)."""
    for i, (name, t) in enumerate(model.state_dict().items()):
        if name.endswith("num_batches_tracked"):
            continue
        u = uniform(1, i, t.numel())
        if t.dim() >= 2:
            v = u * gain / math.sqrt(t[0].numel())
        elif name.endswith("running_var") or (name.endswith("weight") and t.dim() == 1):
            v = 1 + 0.25 * u
        else:
            v = 0.1 * u
        with torch.no_grad():
            t.copy_(torch.from_numpy(v.astype(np.float32)).reshape(t.shape))


def batch(index, n, c, h, w, classes):
    """uint8 images as x * (1/64) - 2, and labels; streams (2, index) and (3, index)."""
    x = (words(2, index, n * c * h * w) >> np.uint64(24)).astype(np.float32) * np.float32(1 / 64) - 2
    y = words(3, index, n) % np.uint64(classes)
    return (torch.from_numpy(x.astype(np.float32)).reshape(n, c, h, w),
            torch.from_numpy(y.astype(np.int64)))


class Writer:
    def __init__(self, name):
        self.path = HERE / f"{name}.txt"
        self.lines = [f"# made by make_golden.py, PyTorch {torch.__version__.split('+')[0]}"]

    def line(self, key, *numbers):
        self.lines.append(" ".join([key] + [f"{float(x):.12g}" for x in numbers]))

    def close(self):
        self.path.write_text("\n".join(self.lines) + "\n")
        print(self.path.name, len(self.lines), "lines")


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.stride, self.pad = stride, (cout - cin) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1 or self.pad:
            x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x)


class ResNetCifar(nn.Module):
    """He et al. 2015, section 4.2, shortcut A."""

    def __init__(self, n):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        cin = 16
        for s in range(3):
            blocks = []
            for i in range(n):
                blocks.append(Block(cin, 16 << s, 2 if s and i == 0 else 1))
                cin = 16 << s
            setattr(self, f"layer{s + 1}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


def train(make, n, shape, lr, dtype):
    """50 steps of SGD with momentum over 4 batches in turn: losses, first gradients, what is left."""
    model = make()
    fill(model)
    model.to(dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    seen = []
    for step in range(50):
        x, y = batch(step % 4, n, *shape, 10)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(dtype)), y)
        loss.backward()
        if step == 0:
            seen += [("grad " + k, p.grad.double().norm().item()) for k, p in model.named_parameters()]
        optimizer.step()
        seen.append((f"loss {step}", loss.item()))
    seen += [("norm " + k, t.double().norm().item()) for k, t in model.state_dict().items()]
    model.eval()
    x, y = batch(4, n, *shape, 10)
    with torch.no_grad():
        seen.append(("eval", F.cross_entropy(model(x.to(dtype)), y).item()))
    return seen


def losses(name, make, n, shape, lr):
    """Each line: what PyTorch computes in fp32 and in fp64. How far the two are apart says how much
    rounding alone grows over the steps, which is what another fp32 engine may differ by."""
    torch.set_num_threads(1)
    out = Writer(name)
    for (key, single), (_, double) in zip(train(make, n, shape, lr, torch.float32),
                                          train(make, n, shape, lr, torch.float64)):
        out.line(key, single, double)
    out.close()


def make_lenet5():
    losses("lenet5", LeNet5, 32, (1, 28, 28), 0.01)


def make_resnet20():
    losses("resnet20", lambda: ResNetCifar(3), 4, (3, 32, 32), 0.001)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd-dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam-decay": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw-decay": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.99), weight_decay=0.2),
}


def make_optim():
    """8 weights, 20 steps, gradients from stream (4, step)."""
    out = Writer("optim")
    for name, make in OPTIMIZERS.items():
        w = torch.from_numpy(uniform(5, 0, 8).astype(np.float32)).requires_grad_()
        optimizer = make([w])
        for step in range(20):
            w.grad = torch.from_numpy(uniform(4, step, 8).astype(np.float32))
            optimizer.step()
            if step in (0, 1, 19):
                out.line(name, step, *w.detach().tolist())
    out.close()


def make_schedule():
    from torch.optim import lr_scheduler as s
    out = Writer("schedule")

    def run(name, make, epochs, metric=None):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = make(optimizer)
        rates = []
        for epoch in range(epochs):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step(*([metric[epoch]] if metric else []))
        out.line(name, *rates)

    run("step", lambda o: s.StepLR(o, 3, gamma=0.5), 12)
    run("milestones", lambda o: s.MultiStepLR(o, [2, 5, 9], gamma=0.1), 12)
    run("cosine", lambda o: s.CosineAnnealingLR(o, 12, eta_min=0.001), 12)
    metric = [1.0, 0.9, 0.9, 0.9, 0.9, 0.89995, 0.9, 0.7, 0.71, 0.72, 0.73, 0.74, 0.75, 0.76, 0.77, 0.6]
    out.line("metric", *metric)
    run("plateau", lambda o: s.ReduceLROnPlateau(o, factor=0.5, patience=2), 16, metric)
    run("plateau-cooldown",
        lambda o: s.ReduceLROnPlateau(o, factor=0.1, patience=1, cooldown=2, min_lr=0.0005), 16, metric)
    out.close()


ZOO = ["resnet18", "resnet34", "resnet50", "vgg11", "vgg11_bn", "squeezenet1_1",
       "mobilenet_v3_small", "densenet121"]


def torchvision_model(name, stem, channels=3, classes=10):
    """Without dropout; the stem for small images as kernels/zoo/ describes it."""
    import torchvision
    model = getattr(torchvision.models, name)(num_classes=classes)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if stem == "cifar":
        small_stem(name, model)
    if channels != 3:
        holder = model if name.startswith("resnet") else model.features
        key = next(k for k, m in holder.named_modules() if isinstance(m, nn.Conv2d))
        first = holder.get_submodule(key)
        place, _, last = key.rpartition(".")
        setattr(holder.get_submodule(place), last,
                nn.Conv2d(channels, first.out_channels, first.kernel_size, first.stride, first.padding,
                          bias=first.bias is not None))
    return model


class LastPool(nn.MaxPool2d):
    """VGG's fifth; a pixel that the fourth has left stays."""

    def forward(self, x):
        return x if x.shape[-2:] == (1, 1) else super().forward(x)


def small_stem(name, model):
    if name.startswith("resnet"):
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    elif name.startswith("vgg"):
        model.avgpool, model.classifier[0] = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 4096)
        model.features[-1] = LastPool(2)
    elif name.startswith("squeezenet"):
        model.features[0] = nn.Conv2d(3, 64, 3, 1, 1)
    elif name.startswith("mobilenet"):
        model.features[0][0].stride = (1, 1)
    elif name.startswith("densenet"):
        model.features.conv0 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.features.pool0 = nn.Identity()


def zoo_numbers(name, stem, size, dtype):
    model = torchvision_model(name, stem)
    fill(model, math.sqrt(6))
    model.to(dtype)
    x, y = batch(0, 2, 3, size, size, 10)
    model.eval()
    with torch.no_grad():
        logits = model(x.to(dtype))
    model.train()
    loss = F.cross_entropy(model(x.to(dtype)), y)
    loss.backward()
    return {"logits": logits.flatten().tolist(), "loss": [loss.item()],
            "grads": [p.grad.double().norm().item() for p in model.parameters()],
            "buffers": [b.double().norm().item() for k, b in model.named_buffers()
                        if not k.endswith("tracked")]}


def make_zoo():
    """Needs torchvision. Logits (not in training), the training loss, the norms of every gradient (in
    the order of named_parameters) and running statistic for 2 images, in fp64."""
    out = Writer("zoo")
    for name in ZOO:
        full = getattr(__import__("torchvision").models, name)()
        out.line(f"{name} params", sum(p.numel() for p in full.parameters()))
        out.lines.append(f"{name} tensors " + str(len(full.state_dict())))
        for stem, size in (("imagenet", 64), ("cifar", 32)):
            if (name.startswith("vgg"), stem) == (True, "imagenet"):
                continue  # 130 million parameters; the stem differs in one layer's width
            for key, numbers in zoo_numbers(name, stem, size, torch.float64).items():
                out.line(f"{name} {stem} {key}", *numbers)
    out.close()


class Small(nn.Module):
    """Layers with names of two levels, batch norm and its counter, in 3 KiB of weights."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(nn.Sequential())
        self.layer1[0].conv1, self.layer1[0].bn1 = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.layer1[0].bn1(self.layer1[0].conv1(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def make_checkpoint():
    """Needs safetensors: a model that PyTorch trained for 3 steps and saved, and its logits."""
    from safetensors.torch import save_file
    torch.manual_seed(SEED)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x, y = batch(step, 8, 1, 8, 8, 3)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    save_file(model.state_dict(), HERE / "checkpoint.safetensors", metadata={"format": "pt"})
    model.eval()
    out = Writer("checkpoint")
    with torch.no_grad():
        out.line("logits", *model(batch(9, 4, 1, 8, 8, 3)[0]).flatten().tolist())
    out.close()


MAKERS = {"zoo": make_zoo, "checkpoint": make_checkpoint, "lenet5": make_lenet5, "resnet20": make_resnet20, "optim": make_optim,
          "schedule": make_schedule}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or MAKERS:
        MAKERS[wanted]()
