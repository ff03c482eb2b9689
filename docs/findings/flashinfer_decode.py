"""FlashInfer 0.6.1, paged decode: scores below -5e4 (base 2) lose the row, and an empty row has an
LSE of about -5e4.

One request with one page; the right output is its only value, 1. Needs flashinfer and a GPU.
"""

import flashinfer
import torch

print("flashinfer", flashinfer.__version__, torch.cuda.get_device_name())
half, D = torch.float16, 64
space = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD")
for keys, score in ((1, -100.0), (1, -34000.0), (1, -35000.0), (1, -60000.0), (0, 0.0)):
    pages = int(keys > 0)
    wrapper.plan(
        torch.tensor([0, pages], dtype=torch.int32), torch.zeros(pages, dtype=torch.int32),
        torch.tensor([keys], dtype=torch.int32), 1, 1, D, 16, sm_scale=1.0, q_data_type=half,
    )  # fmt: skip
    q, k = torch.zeros(1, 1, D, device="cuda", dtype=half), torch.zeros(1, 16, 1, D)
    q[..., 0], k[..., 0] = 1.0, score
    v = torch.ones(1, 16, 1, D)
    cache = (k.to("cuda", half), v.to("cuda", half))
    out, lse = wrapper.run(q, cache, return_lse=True)
    right = f"out 1, LSE {score / 0.6931471805599453:.1f}" if keys else "out 0, LSE -inf"
    print(f"{keys} key of score {score}: out {float(out[0, 0, 0])}, LSE {float(lse):.1f}; {right}")
