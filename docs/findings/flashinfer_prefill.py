"""FlashInfer 0.6.1, prefills of FlashAttention-3: q.k below -5e4 loses the row, and an empty
request has an LSE of -5e4.

What a tile holds past the last key, or past a query's corner, has q.k = -5e4: below that it
outweighs the keys. Query 0 is shown; key j has the value 1 + 6 j. Needs a Hopper GPU.
"""

import flashinfer
import torch

print("flashinfer", flashinfer.__version__, torch.cuda.get_device_name())
half, D, page = torch.float16, 128, 16
space = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "NHD")


def ints(*x: int) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.int32)


calls = ((1, 1, -100.0), (1, 1, -48e3), (1, 1, -52e3), (2, 2, -60e3), (1, 0, 0.0), (2, 1, 0.0))
for queries, keys, score in calls:
    q, k, v = (torch.zeros(n, 1, D, device="cuda", dtype=half) for n in (queries, page, page))
    q[..., 0], k[..., 0] = 1.0, score
    v += 1 + 6 * torch.arange(page, device="cuda", dtype=half)[:, None, None]
    given = {"causal": queries > 1, "sm_scale": 1.0}
    pages = int(keys > 0)
    lists = ints(0, queries), ints(0, pages), ints(*range(pages)), ints(keys)
    wrapper.plan(*lists, 1, 1, D, page, q_data_type=half, **given)
    found = {"paged": wrapper.run(q, (k[None], v[None]), return_lse=True)}
    right = "out 0, LSE -inf"
    if queries <= keys:
        right = f"out 1, LSE {score / 0.6931471805599453:.1f}"
        prefill = flashinfer.single_prefill_with_kv_cache
        found["single"] = prefill(q, k[:keys], v[:keys], return_lse=True, **given)
    for kind, (out, lse) in found.items():
        got = f"out {float(out[0, 0, 0]):.4f}, LSE {float(lse[0, 0]):.1f}"
        print(f"{kind}, {queries} queries, {keys} keys of score {score}: {got}; right: {right}")
