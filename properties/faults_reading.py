"""Fault models of reading: KV heads, requests, strides, channels."""

import math

import torch
from torch import Tensor

from kernelassay.properties.fault_answers import attend
from kernelassay.properties.fault_setting import Answer, Fault, Setting, Variants, scored, table
from kernelassay.properties.memory import place

FAULTS: list[Fault] = []
fault = table(FAULTS)


@fault("KV head mapping", "query heads read the wrong KV head")
def head_mapping(s: Setting) -> Variants:
    Hq, Hkv = s.shape[1], s.tensors.k.shape[1]
    if Hkv == 1:
        return
    heads = torch.arange(Hq, device=s.keys.device)
    for what, wrong in (("h % Hkv", heads % Hkv), ("KV head 0 for all", heads * 0)):
        k, v = s.tensors.k.double()[:, wrong], s.tensors.v.double()[:, wrong]
        scores = scored(s, s.scale * s.tensors.q.double() @ k.transpose(-1, -2))
        yield what, attend(s, scores=scores, v=v)
        yield f"{what}, in k alone", attend(s, scores=scores)
        yield f"{what}, in v alone", attend(s, v=v)


@fault("keys of request 0", "every request reads the keys and values of request 0")
def first_request(s: Setting) -> Variants:
    if s.shape[0] > 1:
        k, v = s.k[:1].expand_as(s.k), s.v[:1].expand_as(s.v)
        scores = scored(s, s.scale * s.tensors.q.double() @ k.transpose(-1, -2))
        yield "", attend(s, scores=scores, v=v)
        yield "k alone", attend(s, scores=scores)
        yield "v alone", attend(s, v=v)


@fault("strides ignored", "memory is read as if it were contiguous")
def strides_ignored(s: Setting) -> Variants:
    if s.view == "contiguous":
        return
    read = {}
    for name in ("q", "k", "v"):
        x: Tensor = getattr(s.tensors, name)
        held = place(name, x, s.layout, s.view, str(x.device)).view
        B, H, T, D = x.shape
        strides = (H * T * D, T * D, D, 1) if s.layout == "BHTD" else (T * H * D, D, H * D, 1)
        if held.storage_offset() + B * H * T * D <= held.untyped_storage().nbytes() // x.itemsize:
            read[name] = held.as_strided((B, H, T, D), strides).double()
    for what in ("qkv", "q", "k", "v", "kv"):
        q, k, v = (
            read.get(n, y) if n in what else y
            for n, y in zip("qkv", (s.tensors.q, s.tensors.k, s.tensors.v), strict=True)
        )
        k, v = k.double()[:, s.kv_heads], v.double()[:, s.kv_heads]
        scores = scored(s, s.scale * q.double() @ k.transpose(-1, -2))
        yield f"of {what}", attend(s, scores=scores, v=v)


@fault("value channels past D", "channels D.. of the output are not computed: Dv is taken to be D")
def channels_past_d(s: Setting) -> Variants:
    D, Dv = s.tensors.q.shape[-1], s.v.shape[-1]
    if Dv > D:
        right = attend(s)
        past = torch.arange(Dv, device=s.keys.device) >= D
        for what, left in (("left zero", 0.0), ("not written", math.nan)):
            yield what, Answer(torch.where(past, left, right.out), right.lse)
