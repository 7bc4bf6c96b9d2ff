"""Three programs of CuPy and torch as their users write them: nothing in them knows of sessions, or of what improves them.

Each prepares, and gives back what is measured.
"""

from __future__ import annotations

from typing import Any

REAL: dict[str, Any] = {}
"""The programs by their names."""


def real(program):
    REAL[program.__name__] = program
    return program


@real
def cupy_image_pipeline():
    """Find the edges of photographs: gray, blurred, the gradient, and what is above its mean."""
    import cupy
    import numpy as np

    rng = np.random.default_rng(11)
    photographs = [rng.integers(0, 256, (2160, 3840, 3), dtype=np.uint8) for _ in range(8)]
    luma = cupy.asarray([0.299, 0.587, 0.114], dtype=cupy.float32)

    def blur(image):
        padded = cupy.pad(image, 2, mode="edge")
        rows = (padded[:-4] + 4 * padded[1:-3] + 6 * padded[2:-2] + 4 * padded[3:-1] + padded[4:]) / 16
        return (rows[:, :-4] + 4 * rows[:, 1:-3] + 6 * rows[:, 2:-2] + 4 * rows[:, 3:-1] + rows[:, 4:]) / 16

    def find_edges():
        edges = []
        for photograph in photographs:
            pixels = cupy.asarray(photograph)
            gray = (pixels * luma).sum(axis=2)
            smooth = blur(gray)
            down, across = cupy.gradient(smooth)
            strength = cupy.sqrt(down * down + across * across)
            found = strength * (strength > strength.mean())
            edges.append(found.get())
        return edges

    return find_edges


@real
def torch_inference():
    """Segment images in batches, and collect the classes of all pixels on the host."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    device = torch.device("cuda")
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 8, 1),
    )
    model = model.to(device).eval()
    batches = [torch.rand(16, 3, 256, 256) for _ in range(8)]

    def predict():
        masks = []
        with torch.no_grad():
            for batch in batches:
                images = batch.to(device)
                scores = model(images)
                masks.append(scores.argmax(dim=1).cpu())
        return masks

    return predict


@real
def torch_training():
    """Train a classifier for an epoch, and add up its loss."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    device = "cuda"
    dataset = TensorDataset(torch.rand(4096, 3, 48, 48), torch.randint(0, 10, (4096,)))
    loader = DataLoader(dataset, batch_size=512, shuffle=True)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 48 * 48, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Linear(2048, 10),
    ).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train():
        model.train()
        total_loss = 0.0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)  # noqa: PLW2901 - as all do
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total_loss += loss.item() * images.size(0)
        return total_loss / len(dataset)

    return train
