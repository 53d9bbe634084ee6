"""A small training for `record_demo.py`: a classifier of scanned digits, one process or several, stopped at any time.

Covered: what outerloop.torch reports (loss, accuracy, memory, ranks, checkpoints). Not covered: getting good at it.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import outerloop.torch as olt

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--epochs", type=int, default=8)
options.add_argument("--lr", type=float, default=0.05)
options.add_argument("--save-every", type=int, default=60)
arguments = options.parse_args()

torch.manual_seed(11)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels))
held_out, learned = order[:300], order[300:]
data = torch.utils.data.TensorDataset(images[learned], labels[learned])
model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
model, optimizer, loader = olt.prepare(model, optimizer, loader)
step = olt.start_step()
for _epoch in range(arguments.epochs):
    for inputs, wanted in loader:
        loss = nn.functional.cross_entropy(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        olt.log_metrics({"loss": float(loss.detach()), "step": step})
        step += 1
        olt.checkpoint(model, optimizer, step=step, every=arguments.save_every)
    model.eval()
    with torch.no_grad():
        said = model(images[held_out]).argmax(1)
    model.train()
    olt.log_metrics({"accuracy": float((said == labels[held_out]).float().mean()), "step": step})
print(f"trained {step} steps")
