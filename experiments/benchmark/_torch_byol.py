"""BYOL's step written plainly in PyTorch: `_torch_byol BATCH PIXELS WIDTH HIDDEN SECONDS`.

ResNet-18 with CIFAR stem, SGD with momentum, moving average of the target; channels_last, autocast
on a GPU, torch.compile, TF32 allowed. The images are resident; one view is the images, the other
their mirror images. Of two equal views the compiler would pass one alone.
"""

import copy
import json
import sys

import torch
from torch import nn
from torch.nn import functional

from experiments.benchmark import _measure

OUT, IMAGES, WARM_UP, ROUNDS = 256, 4_096, 10, 3


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[b, inputs, h, w] -> [b, outputs, h / stride, w / stride]`."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def backbone(width: int) -> nn.Module:
    """ResNet-18 with CIFAR stem."""
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for i in range(4):
        inputs, outputs, stride = width << max(i - 1, 0), width << i, 2 if i else 1
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def head(inputs: int, hidden: int) -> nn.Module:
    """Fully connected, BatchNorm, ReLU, fully connected."""
    first = nn.Linear(inputs, hidden, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, OUT))


def loss(
    online: nn.Module, target: nn.Module, predictor: nn.Module, x: torch.Tensor
) -> torch.Tensor:
    """BYOL's loss of images `[b, 3, h, w]` and their mirror images."""
    views = (x, x.flip(3))
    # Two forward passes each, as the two views are normalized apart.
    predictions = [predictor(online(view)) for view in views]
    with torch.no_grad():
        targets = [target(view) for view in views]
    pairs = zip(predictions, reversed(targets), strict=True)
    return sum(2 - 2 * functional.cosine_similarity(p.float(), t.float()).mean() for p, t in pairs)


def main() -> None:
    """Prints the figures as JSON."""
    batch, pixels, width, hidden = map(int, sys.argv[1:5])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    online = nn.Sequential(backbone(width), head(8 * width, hidden)).to(device)
    online = online.to(memory_format=torch.channels_last)
    target, predictor = copy.deepcopy(online), head(OUT, hidden).to(device)
    groups = [{"params": online.parameters()}, {"params": predictor.parameters(), "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
    shape = (IMAGES, 3, pixels, pixels)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)

    @torch.compile
    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return loss(online, target, predictor, x)

    def steps(count: int) -> None:
        for _ in range(count):
            index = torch.randint(0, IMAGES, (batch,), device=device)
            x = images[index].float().div_(255).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad(set_to_none=True)
            forward(x).backward()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 0.004)
        if device == "cuda":
            torch.cuda.synchronize()

    first = _measure.seconds(steps, 1)
    count = max(1, round(float(sys.argv[5]) * WARM_UP / _measure.seconds(steps, WARM_UP)))
    rates = [batch * count / _measure.seconds(steps, count) for _ in range(ROUNDS)]
    figures = {**_measure.spread(rates), "first_step_seconds": first, "torch": torch.__version__}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
