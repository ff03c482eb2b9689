"""vLLM 0.33.0: the rejection sampler accepts p = 0 at u = 0, and emits token 0 out of no residual.

A draft x is accepted where p(x) / q(x) >= u, also at p(x) = 0 and u = 0. Where it is rejected and
no [p - q]+ is above 0, which rounding can bring about, the argmax of nothing but zeros is token 0,
whatever its probability. Uniforms are fp64, so that a 0 has a probability of 2^-53 a draw. The
uniforms are set here. Needs vllm and a GPU.
"""

from types import SimpleNamespace
from unittest.mock import patch

import torch
import vllm.v1.sample.rejection_sampler as vllm

place = "cuda" if torch.cuda.is_available() else "cpu"
SAMPLED = SimpleNamespace(
    all_greedy=False, all_random=True, generators={}, temperature=torch.ones(1, device=place)
)


def emitted(p: list[float], q: list[float], draft: int, u: float) -> list[int]:
    """The tokens of a request with one draft; the bonus token is 2."""
    uniform = torch.tensor([u], dtype=torch.float64, device=place)
    with patch.object(vllm, "generate_uniform_probs", lambda *_: uniform):
        tokens = vllm.rejection_sample(
            torch.tensor([draft], dtype=torch.int32, device=place), [1], 1,
            torch.tensor([1], dtype=torch.int32, device=place), torch.tensor([q], device=place),
            torch.tensor([p], device=place).log(), torch.tensor([[2]], device=place), SAMPLED,
        )  # fmt: skip
    return tokens[0].tolist()


forbidden = emitted([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], 1, 0.0)
print(f"p(1) = 0, u = 0: emits {forbidden}; right is [0, -1]")
ulp = 2.0**-23
alike = emitted([0.0, 0.5, 0.5], [0.0, 0.5 + ulp, 0.5], 1, 1 - ulp / 4)
print(f"p = q up to rounding, p(0) = 0: emits {alike}; right are 1 or 2 first, never 0")
