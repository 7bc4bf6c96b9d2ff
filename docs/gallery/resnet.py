"""A training step of ResNet-50, as it is: where did the time go?

PyTorch and torchvision, with no stream selected and no line changed; the ranges are NVTX's.
"""

import torch
from torch.cuda.nvtx import range as part
from torchvision.models import resnet50

import gpustreamlab as gsl

model = resnet50(num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.rand(64, 3, 224, 224).pin_memory(), torch.randint(0, 10, (64,)).pin_memory()


def step():
    with part("upload"):
        x, y = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
    with part("forward"):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    with part("backward"):
        loss.backward()
    with part("update"):
        optimizer.step(), optimizer.zero_grad()


with gsl.record():  # warms up
    for _ in range(3):
        step()
with gsl.record(title="A training step of ResNet-50") as run:
    step()
trace = run.trace
