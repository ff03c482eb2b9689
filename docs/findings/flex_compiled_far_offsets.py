"""Compiled FlexAttention: wrong results where requests lie 2**31 elements apart.

The same numbers are right when they lie close together. There is memory on both sides, so that an
offset that wraps reads zeros; without it the access is illegal. Needs torch, a CUDA device and
9 GiB of its memory; what the compiler prints of its own errors goes to stderr.
"""

import torch
from torch.nn.attention.flex_attention import flex_attention

B, D = 2, 64
memory = torch.zeros(2**32 + 2**16, device="cuda", dtype=torch.bfloat16)


def far_apart(x: torch.Tensor) -> torch.Tensor:
    """The same content, its requests 2**31 elements apart."""
    view = memory.as_strided(x.shape, (2**31, x.shape[2] * D, D, 1), 2**31)
    return view.copy_(x)


for T in (5, 200):  # 5: the decoding kernel
    torch.manual_seed(0)
    q, k, v = torch.randn(3, B, 1, T, D, device="cuda", dtype=torch.bfloat16).unbind(0)
    right = torch.softmax((q.double() @ k.double().mT) / D**0.5, -1) @ v.double()
    for dynamic in (False, True):
        for far in ("none", "q", "k", "v"):
            torch.compiler.reset()
            compiled = torch.compile(flex_attention, dynamic=dynamic)
            given = (far_apart(x) if n == far else x for n, x in (("q", q), ("k", k), ("v", v)))
            try:
                out = compiled(*given)
                got = (
                    f"largest error of each request {(out - right).abs().amax((1, 2, 3)).tolist()}"
                )
            except Exception as error:
                got = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            print(f"T={T:3}  dynamic={dynamic!s:5}  far: {far:4}  {got}")
