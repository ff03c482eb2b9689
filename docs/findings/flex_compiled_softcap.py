"""Compiled FlexAttention: a soft cap that is a Python number does not compile with dynamic shapes.

As a tensor it does. Needs torch and a CUDA device.
"""

import torch
from torch.nn.attention.flex_attention import flex_attention

q, k, v = torch.randn(3, 1, 1, 256, 64, device="cuda", dtype=torch.bfloat16).unbind(0)


def capped(cap):
    return lambda score, b, h, i, j: cap * torch.tanh(score / cap)


for dynamic in (False, True):
    for cap in (5.0, torch.tensor(5.0, device="cuda")):
        torch.compiler.reset()
        try:
            torch.compile(flex_attention, dynamic=dynamic)(q, k, v, score_mod=capped(cap))
            got = "compiled"
        except Exception as error:
            got = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        print(f"dynamic={dynamic!s:5}  cap {type(cap).__name__:6}  {got}")
