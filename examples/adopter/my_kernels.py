"""A kernel of one's own and its adapter: softmax(scale q k^T) v, written out."""

import torch

from kernelassay import AttendCall, Capabilities, Numerics, Unsupported


class MyAttention:
    """Causal and plain attention, grouped heads included; nothing else."""

    name = "my_attention"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32",),
        head_sizes=(32, 64),
        supports={
            "attend", "lse", "causal.top_left", "unequal_lengths", "gqa", "scale", "strides",
            "value_size",
        },
        declines={
            "causal.bottom_right", "causal.positions", "more_queries", "no_keys", "no_queries",
            "window", "sink_tokens", "lengths", "mask", "softcap", "alibi", "bias",
            "bias.minus_infinity", "sink_logits",
        },
    )  # fmt: skip
    numerics = Numerics()

    def attend(self, call: AttendCall) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse."""
        see, (_, Hq, Tq, _), (_, Hkv, Tk, _) = call.visibility, call.q.shape, call.k.shape
        masked = see.mask is not None or see.lengths is not None or see.window != (None, None)
        if masked or see.causal not in ("none", "top_left") or not 0 < Tq <= Tk:
            raise Unsupported("plain and top-left causal attention only, with 0 < Tq <= Tk")
        if not call.scoring.plain:
            raise Unsupported("no soft cap, ALiBi, bias or sinks")
        k, v = (x.repeat_interleave(Hq // Hkv, dim=1) for x in (call.k, call.v))
        z = call.softmax_scale * call.q @ k.transpose(-1, -2)  # [B, Hq, Tq, Tk]
        if see.causal == "top_left":
            z = z.masked_fill(torch.ones(Tq, Tk, device=z.device).tril() == 0, -torch.inf)
        return z.softmax(-1) @ v, z.logsumexp(-1)


adapter = MyAttention()
