"""ResNet-50 in plain torch, as torchvision has it: a GPU machine may have torch alone. Source: He et al. 2015, version 1.5."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

BLOCKS = {64: 3, 128: 4, 256: 6, 512: 3}
EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(given, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, width * EXPANSION, 1),
        )
        is_plain = given == width * EXPANSION and stride == 1
        self.shortcut = nn.Identity() if is_plain else nn.Sequential(*_convolution(given, width * EXPANSION, 1, stride))

    def forward(self, x: Any) -> Any:
        """Return the block's result."""
        return torch.relu_(self.body(x) + self.shortcut(x))


def _convolution(given: int, made: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(given, made, size, stride, size // 2, bias=False), nn.BatchNorm2d(made)


def resnet50(class_count: int) -> nn.Module:
    """Return the network, with random weights."""
    parts: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    given = 64
    for width, count in BLOCKS.items():
        for place in range(count):
            parts.append(Bottleneck(given, width, 2 if width > 64 and place == 0 else 1))
            given = width * EXPANSION
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, class_count))
