"""A process that the program starts compiles as well, and hands its result back."""

import multiprocessing

import torch


def work(queue):
    queue.put(torch.compile(lambda x: x.sin().sum())(torch.ones(3)).item().hex())


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    process.join()
    print(queue.get(), process.exitcode)
    print(torch.compile(lambda x: x.cos().sum())(torch.ones(3)).item().hex())
