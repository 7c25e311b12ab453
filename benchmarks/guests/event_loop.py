"""Coroutines call compiled code between other work."""

import asyncio

import torch

forward = torch.compile(lambda x: (x @ x).sum())


async def serve(name, size):
    await asyncio.sleep(0)
    value = await asyncio.to_thread(lambda: forward(torch.ones(size, size)).item())
    return f"{name}: {value}"


async def main():
    forward(torch.ones(3, 3))
    print([await serve(f"request {n}", n) for n in (3, 4, 3)])


asyncio.run(main())
