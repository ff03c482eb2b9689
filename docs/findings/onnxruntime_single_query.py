"""Attention of ONNX Runtime (opsets 23 and 24): is_causal does nothing for one query over a cache.

With past_key of P keys the standard lets query 0 see the keys j <= P. Where more than one new key
comes with one query, ONNX Runtime's kernels see them all. Needs onnx and onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import parser
from onnx.reference import ReferenceEvaluator

MODEL = """
<ir_version: 11, opset_import: ["" : %d]>
attention (float[1,1,1,5] q, float[1,1,3,5] k, float[1,1,3,5] v,
           float[1,1,2,5] past_k, float[1,1,2,5] past_v)
    => (float[] o, float[] keys, float[] values)
{ o, keys, values = Attention <is_causal = 1> (q, k, v, , past_k, past_v) }
"""
q, k = np.zeros((1, 1, 1, 5), np.float32), np.zeros((1, 1, 5, 5), np.float32)
v = np.eye(5, dtype=np.float32)[None, None]  # equal weights, and the output is the weights
given = {"q": q, "k": k[:, :, 2:], "v": v[:, :, 2:], "past_k": k[:, :, :2], "past_v": v[:, :, :2]}

for opset in (23, 24, 25):
    model = parser.parse_model(MODEL % opset)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for name, run in (("ONNX Runtime", session), ("reference", ReferenceEvaluator(model))):
        seen = (run.run(None, given)[0][0, 0, 0] > 0).astype(int).tolist()
        print(f"opset {opset} {name:13} keys seen: {seen}, right: [1, 1, 1, 0, 0]")
