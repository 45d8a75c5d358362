"""The models of bench_engine.py in PyTorch: LeNet's kin, CIFAR's ResNets, torchvision's networks with the
stem that kernels/zoo gives 32x32 images, and chains of like convolutions. All have 10 outputs."""
import re

import torch
from torch import nn

CIFAR_RESNETS = {"resnet20": 3, "resnet32": 5, "resnet56": 9}


def lenet(c, size, first, second, kernel, pad):
    side = ((size + 2 * pad - kernel + 1) // 2 - kernel + 1) // 2
    return nn.Sequential(
        nn.Conv2d(c, first, kernel, padding=pad), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, kernel), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(second * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


class Block(nn.Module):
    """He et al. 2015, section 4.2: the shortcut of a narrower input is strided pixels with zero channels."""

    def __init__(self, c, k, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k)
        self.conv2, self.bn2 = nn.Conv2d(k, k, 3, 1, 1, bias=False), nn.BatchNorm2d(k)
        self.extra = (k - c) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.extra:
            x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra))
        return torch.relu(y + x)


def resnet_cifar(blocks):
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    c = 16
    for stage, k in enumerate((16, 32, 64)):
        for i in range(blocks):
            layers.append(Block(c, k, 2 if stage and not i else 1))
            c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))


def torchvision_model(name):
    import torchvision
    model = getattr(torchvision.models, name)(num_classes=10)
    if name.startswith("resnet"):
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    elif name.startswith("vgg"):
        model.avgpool, model.classifier[0] = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 4096)
    elif name.startswith("squeezenet"):
        model.features[0] = nn.Conv2d(3, 64, 3, 1, 1)
    elif name.startswith("mobilenet"):
        model.features[0][0].stride = (1, 1)
    elif name.startswith("densenet"):
        model.features.conv0, model.features.pool0 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return model


FORMS = "lenet:CHANNELS:SIDE:KERNEL:FIRST:SECOND, conv:CHANNELS:SIDE:KERNEL:LAYERS"


def numbers_of(name):
    """Of a name in one of FORMS; else None."""
    if not re.fullmatch(r"(lenet(:[1-9]\d*){5})|(conv(:[1-9]\d*){4})", name):
        return None
    return [int(n) for n in name.split(":")[1:]]


def chain(channels, kernel, layers):
    convolutions = [nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False) for _ in range(layers)]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def model_of(name):
    """The model and its input's shape."""
    numbers = numbers_of(name)
    if numbers and name.startswith("conv"):
        channels, side, kernel, layers = numbers
        return chain(channels, kernel, layers), (channels, side, side)
    if numbers:
        c, size, kernel, first, second = numbers
        return lenet(c, size, first, second, kernel, kernel // 2), (c, size, size)
    if name.startswith("lenet"):
        c, size = (3, 32) if "rgb32" in name else (1, 28)
        return lenet(c, size, *((8, 20, 3, 1) if "3x3" in name else (6, 16, 5, 2))), (c, size, size)
    if name in CIFAR_RESNETS:
        return resnet_cifar(CIFAR_RESNETS[name]), (3, 32, 32)
    return torchvision_model(name), (3, 32, 32)


def flops_of(name, train):
    """Of one sample: what convolutions and linear layers cost when computed directly, two for a
    multiplication and its addition; training three times that, less the first layer's input gradient."""
    model, shape = model_of(name)
    costs = []

    def count(module, inputs, output):
        costs.append(2 * module.weight[0].numel() * output[0].numel())

    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    with torch.inference_mode():
        model.eval()(torch.zeros(1, *shape))
    return 3 * sum(costs) - costs[0] if train else sum(costs)
