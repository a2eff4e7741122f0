"""`python -m experiments.benchmark._torch_byol`: the BYOL step written plainly in PyTorch.

ResNet-18 with CIFAR stem, heads of 4096 and 256, SGD with momentum, moving average of the target;
channels_last, autocast, torch.compile, TF32 allowed. The images are resident; one view is the
images, the other their mirror images, so the peer to compare with is our step with `views` "flips".
Of two equal views the compiler would pass one alone.
"""

import argparse
import copy
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

HIDDEN, OUT, IMAGES, PREDICTOR_RATE = 4096, 256, 50_000, 10.0
WARM_UP, ROUNDS, ROUND_SECONDS = 10, 3, 2.0


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


def backbone() -> nn.Module:
    """ResNet-18 with CIFAR stem."""
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def head(inputs: int) -> nn.Module:
    """Fully connected, BatchNorm, ReLU, fully connected."""
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN, bias=False),
        nn.BatchNorm1d(HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, OUT),
    )


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
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark._torch_byol")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), required=True)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    online = nn.Sequential(backbone(), head(512)).cuda().to(memory_format=torch.channels_last)
    target = copy.deepcopy(online)
    predictor = head(OUT).cuda()
    groups = [
        {"params": online.parameters(), "lr": 0.05},
        {"params": predictor.parameters(), "lr": 0.05 * PREDICTOR_RATE},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4, fused=True)
    images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, device="cuda")
    half = arguments.dtype == "bfloat16"

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return loss(online, target, predictor, x)

    compiled = torch.compile(forward)

    def step() -> None:
        index = torch.randint(0, IMAGES, (arguments.batch,), device="cuda")
        x = images[index].float().div_(255).contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        compiled(x).backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 0.004)

    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    count = max(3, round(ROUND_SECONDS * WARM_UP / (time.perf_counter() - start)))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / count)
    figures = {
        "images_per_second": arguments.batch / statistics.median(rounds),
        "images_per_second_range": [arguments.batch / max(rounds), arguments.batch / min(rounds)],
        "milliseconds": 1e3 * statistics.median(rounds),
        "first_step_seconds": first,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
