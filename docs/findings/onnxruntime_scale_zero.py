"""GroupQueryAttention and MultiHeadAttention of ONNX Runtime: scale=0.0 is read as none given.

A scale of 0 makes all weights equal, so that the output is the mean of the values; it is that of
the default 1/sqrt(D). Attention, the standard's operator, refuses it. Needs onnx, onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import parser

MODEL = """
<ir_version: 11, opset_import: ["" : 24, "com.microsoft" : 1]>
attention (float[1,2,8] q, float[1,2,8] k, float[1,2,8] v, int32[1] last, int32 total)
    => (float[] multi, float[] group, float[] keys, float[] values)
{
    multi = com.microsoft.MultiHeadAttention <num_heads = 1 SCALE> (q, k, v)
    group, keys, values = com.microsoft.GroupQueryAttention
        <num_heads = 1, kv_num_heads = 1, causal = 0 SCALE> (q, k, v, , , last, total)
}
"""
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 8), dtype=np.float32)
given = {"q": q, "k": k, "v": v, "last": np.array([1], np.int32), "total": np.array(2, np.int32)}

for scale in ("", ", scale = 1e-30", ", scale = 0.0"):
    model = parser.parse_model(MODEL.replace("SCALE", scale))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    multi, group, *_ = session.run(None, given)
    print(f"{scale or ', none':15} MultiHead {multi[0, 1, :3]}  GroupQuery {group[0, 1, :3]}")
print(f"mean of the values        {v[0].mean(0)[:3]}")
