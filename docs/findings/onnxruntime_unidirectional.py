"""MultiHeadAttention of ONNX Runtime: unidirectional=1 with fewer queries than keys, no cache.

All queries but the last see the keys j <= i; the last sees every key. Neither corner has that.
Needs onnx and onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import parser

MODEL = """
<ir_version: 11, opset_import: ["" : 24, "com.microsoft" : 1]>
attention (float[1,3,6] q, float[1,6,6] k, float[1,6,6] v) => (float[] o)
{ o = com.microsoft.MultiHeadAttention <num_heads = 1, unidirectional = 1> (q, k, v) }
"""
session = onnxruntime.InferenceSession(parser.parse_model(MODEL).SerializeToString())
q, k = np.zeros((1, 3, 6), np.float32), np.zeros((1, 6, 6), np.float32)
v = np.eye(6, dtype=np.float32)[None]  # all weights are equal, and the output is the weights
out = session.run(None, {"q": q, "k": k, "v": v})[0][0]

for name, seen in (
    ("ONNX Runtime", out > 0),
    ("top-left", np.tri(3, 6)),
    ("bottom-right", np.tri(3, 6, 3)),
):
    print(f"{name:13} keys seen by queries 0, 1, 2: {seen.astype(int).tolist()}")
