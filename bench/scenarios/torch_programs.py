#!/usr/bin/env python3
"""PyTorch programs for the benchmarks of layer G (never run on a GPU, only on the simulated one): two that train, and a server that answers requests one at a
time. Random data; nothing is read and nothing is kept.

    torch_programs.py train --model resnet --seconds 20
    torch_programs.py train --model transformer --seconds 20
    torch_programs.py serve --every-ms 40 --seconds 20

Prints {"event": "ready"} when it has run a few times, waits until the file of --wait-for exists, works, and prints
one line of JSON: {"steps", "seconds", "steps_per_s"}, or of the server {"count", "p50_ms", "p99_ms", "most_ms"},
each latency from when the request was due. --small: models for a simulated GPU, on which kernels compute nothing.
"""
import argparse
import json
import math
import pathlib
import random
import time
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

# pylint: disable=wrong-import-position
import torch
from torch import nn


class Residual(nn.Module):
    """A block of ResNet: two convolutions, and the input added."""

    def __init__(self, channels, wider=1):
        super().__init__()
        out, stride = channels * wider, 2 if wider > 1 else 1
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.beside = nn.Conv2d(channels, out, 1, stride) if wider > 1 else nn.Identity()

    def forward(self, data):
        return torch.relu(self.body(data) + self.beside(data))


def resnet(small):
    """As deep as ResNet-18; (model, one input)."""
    width, side = (8, 32) if small else (64, 224)
    layers = [nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for stage in range(4):
        channels = width * 2 ** max(0, stage - 1)
        layers += [Residual(channels, 1 if stage == 0 else 2), Residual(channels * (1 if stage == 0 else 2))]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width * 8, 10 if small else 1000)]
    return nn.Sequential(*layers), (3, side, side)


class Transformer(nn.Module):
    def __init__(self, small):
        super().__init__()
        self.width, heads, layers = (64, 4, 2) if small else (768, 12, 12)
        layer = nn.TransformerEncoderLayer(self.width, heads, 4 * self.width, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, data):
        return self.body(data)


def make(model, small):
    if model == "resnet":
        return resnet(small)
    made = Transformer(small)
    return made, (32 if small else 512, made.width)


def wait_for(path):
    print(json.dumps({"event": "ready"}), flush=True)
    while path and not path.exists():
        time.sleep(0.005)


def train(options):
    model, shape = make(options.model, options.small)
    model = model.to(options.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    data = torch.randn(options.batch, *shape).to(options.device)

    def step():
        optimizer.zero_grad()
        loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()  # as training loops do: waits for the device
    for _ in range(3):
        step()
    wait_for(options.wait_for)
    begin, steps = time.monotonic(), 0
    while time.monotonic() - begin < options.seconds:
        step()
        steps += 1
    seconds = time.monotonic() - begin
    return {"steps": steps, "seconds": round(seconds, 3), "steps_per_s": round(steps / seconds, 3)}


def spread(sample_s):
    """By nearest rank, in milliseconds."""
    sample = sorted(sample_s)
    if not sample:
        return {"count": 0}

    def rank(part):
        return round(1000 * sample[max(1, math.ceil(part * len(sample))) - 1], 3)
    return {"count": len(sample), "p50_ms": rank(0.5), "p99_ms": rank(0.99), "most_ms": rank(1)}


@torch.no_grad()
def serve(options):
    model, shape = make(options.model, options.small)
    model = model.to(options.device).eval()
    request = torch.randn(1, *shape)

    def answer():
        return model(request.to(options.device)).float().sum().item()
    for _ in range(3):
        answer()
    gap = random.Random(options.seed)
    wait_for(options.wait_for)
    latencies, begin = [], time.monotonic()
    due = begin
    while due - begin < options.seconds:
        time.sleep(max(0, due - time.monotonic()))
        answer()
        latencies.append(time.monotonic() - due)
        due += options.every_ms / 1000 * gap.expovariate(1)  # whether the last is done or not
    return spread(latencies)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "serve"))
    parser.add_argument("--model", choices=("resnet", "transformer"), default="resnet")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--every-ms", type=float, default=40, help="of the server, in the mean; at random (40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wait-for", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    print(json.dumps((train if options.what == "train" else serve)(options)), flush=True)


if __name__ == "__main__":
    main()
