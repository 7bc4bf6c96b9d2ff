"""A training step of ResNet-50, as it is: where did the time go?"""

import torch
from torchvision.models import resnet50

import gpustreamlab as gsl

model = resnet50(num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.rand(64, 3, 64, 64).pin_memory(), torch.randint(0, 10, (64,)).pin_memory()


def step():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
    loss.backward()
    optimizer.step()


for _ in range(3):
    step()
with gsl.record() as run:
    step()
trace = run.trace
