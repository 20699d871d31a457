"""A script as users have it: nothing in it knows fanin but the backend's name. ``test_training`` runs it."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("fanin")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(20, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 20)).square().mean().backward()
    optimizer.step()
weights = [torch.empty(3, 20) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.detach())
assert all(torch.equal(weights[0], other) for other in weights)
print("equal weights")
dist.destroy_process_group()
