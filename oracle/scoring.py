"""What is done to a score between q.k and the softmax: soft cap, ALiBi, bias; and the sink.

    z[b, h, i, j] = cap tanh(scale q.k / cap) - slope[h] |position(i) - position(j)| + bias

A sink logit s[h] adds exp(s) to the denominator of each row: a key that has no value (attention
sinks as in gpt-oss, OpenAI 2025). ALiBi: Press, Smith, Lewis 2022. Soft cap: Gemma 2, 2024.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.visibility import Visibility, fits, positions


@dataclass(frozen=True, kw_only=True, eq=False)
class Scoring:
    """How scores are changed; what is None is left out.

    The soft cap comes first, so that what is hidden stays hidden. Positions are those of the
    visibility. A bias of -inf hides its key; sink logits are natural logarithms and count in the
    log-sum-exp.
    """

    softcap: float | None = None
    alibi: Tensor | None = None  # [Hq] float32, slopes
    bias: Tensor | None = None  # the dtype of q, broadcastable to [B, Hq, Tq, Tk]
    sink_logits: Tensor | None = None  # [Hq] float32

    @property
    def plain(self) -> bool:
        """Whether scores are left as they are."""
        added = (self.softcap, self.alibi, self.bias, self.sink_logits)
        return all(x is None for x in added)


PLAIN = Scoring()
"""Scores as they are."""


def capped(z: Tensor, softcap: float | None) -> Tensor:
    """cap tanh(z / cap), or z."""
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def alibi_offsets(
    scoring: Scoring,
    vis: Visibility,
    shape: tuple[int, int, int, int],
    device: torch.device | str = "cpu",
    keys: range | None = None,
) -> Tensor | None:
    """-slope[h] |position(i) - position(j)|, float64 [B or 1, Hq, Tq, keys]; None without ALiBi.

    *shape* is (B, Hq, Tq, Tk), *keys* a run of keys (None: all).
    """
    if scoring.alibi is None:
        return None
    run = range(shape[3]) if keys is None else keys
    at_query, at_key = positions(vis, shape, device)
    gap = (at_query[:, :, None] - at_key[:, None, run.start : run.stop]).abs().double()
    return -scoring.alibi.to(device).double()[:, None, None] * gap[:, None]


def offsets(
    scoring: Scoring,
    vis: Visibility,
    shape: tuple[int, int, int, int],
    device: torch.device | str = "cpu",
    keys: range | None = None,
) -> Tensor | None:
    """What is added to each capped score: ALiBi and bias, float64, -inf where the bias hides.

    Arguments as of `alibi_offsets`. The result broadcasts to [B, Hq, Tq, keys]; None where nothing
    is added.
    """
    alibi = alibi_offsets(scoring, vis, shape, device, keys)
    if (bias := scoring.bias) is None:
        return alibi
    if keys is not None and bias.shape[-1] > 1:
        bias = bias[..., keys.start : keys.stop]
    bias = bias.to(device).double()
    return bias if alibi is None else alibi + bias


def check_scoring(scoring: Scoring, shape: tuple[int, int, int, int]) -> None:
    """*scoring* makes sense for (B, Hq, Tq, Tk), or a ValueError names field, got, expected."""
    if (cap := scoring.softcap) is not None and not 0 < cap < float("inf"):
        raise _malformed("softcap", repr(cap), "a finite number above 0, or None")
    for name in ("alibi", "sink_logits"):
        x = getattr(scoring, name)
        if x is not None and (tuple(x.shape) != shape[1:2] or x.dtype != torch.float32):
            raise _malformed(name, f"{x.dtype} {tuple(x.shape)}", f"torch.float32 {shape[1:2]}")
    if (bias := scoring.bias) is not None and not (
        bias.dtype.is_floating_point and fits(bias, shape)
    ):
        got = f"{bias.dtype} {tuple(bias.shape)}"
        raise _malformed("bias", got, f"floating point, broadcastable to {shape}")


def _malformed(field: str, got: str, expected: str) -> ValueError:
    return ValueError(f"Scoring.{field}: got {got}, expected {expected}")
