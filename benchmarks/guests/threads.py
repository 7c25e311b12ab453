"""Two threads compile and call functions of their own, one after the other, and a pool calls one together."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

results = {}


def work(number):
    results[number] = torch.compile(lambda x: (x * number).sin().sum())(torch.ones(4)).item().hex()


for number in (1, 2):
    thread = threading.Thread(target=work, args=(number,))
    thread.start()
    thread.join()
shared = torch.compile(lambda x: x.cos().sum())
shared(torch.ones(4))
with ThreadPoolExecutor(3) as pool:
    results["pool"] = {value.item().hex() for value in pool.map(shared, [torch.ones(4)] * 6)}
print(results)
