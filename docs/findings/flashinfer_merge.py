"""FlashInfer 0.6.1: merges of empty parts, of very small log-sum-exps, of one empty part.

merge_state gives NaN where both parts are empty. merge_states starts its maximum at -5e4: parts
below that count for nothing, and of empty parts alone the log-sum-exp is finite. LSEs are in base
2; a part that saw no key has -inf. Needs flashinfer and a GPU.
"""

import flashinfer
import torch

print("flashinfer", flashinfer.__version__, torch.cuda.get_device_name())
nothing, some = float("-inf"), 1.0
ones = torch.ones(1, 1, 64, device="cuda", dtype=torch.float16)  # [rows, heads, D]


def lse(value: float) -> torch.Tensor:
    return torch.full((1, 1), value, device="cuda")


for a, b in ((nothing, some), (some, nothing), (nothing, nothing), (-86424.0, -86425.0)):
    out, s = flashinfer.merge_state(ones, lse(a), ones, lse(b))
    print(f"merge_state   LSEs {a}, {b}: out {float(out[0, 0, 0])}, LSE {float(s)}")
for given in ((nothing, some), (nothing, nothing), (-86424.0, -86425.0), (nothing,)):
    v = torch.stack([ones] * len(given), 1)  # [rows, parts, heads, D]
    out, s = flashinfer.merge_states(v, torch.stack([lse(x) for x in given], 1))
    print(f"merge_states  LSEs {given}: out {float(out[0, 0, 0])}, LSE {float(s)}")
print("right: out 1 and an LSE near the larger; where all are empty out 0 and LSE -inf")
