import torch


def make_record(**fields):
    return type("Record", (), fields)


def step(x):
    record = make_record(total=x.sum())
    return record.total * 2


torch.compile(step, fullgraph=True)(torch.arange(6.0))
