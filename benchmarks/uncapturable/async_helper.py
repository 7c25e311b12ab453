import asyncio

import torch


async def fetch(x):
    await asyncio.sleep(0)
    return x + 1


def step(x):
    loop = asyncio.new_event_loop()
    y = loop.run_until_complete(fetch(x))
    loop.close()
    return y * 2


torch.compile(step, fullgraph=True)(torch.ones(2))
