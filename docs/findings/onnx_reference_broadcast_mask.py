"""ONNX's reference evaluator: is_causal with a mask that is broadcast over the queries.

Every query gets the causal corner of the first, key 0 alone. ONNX Runtime, which runs the graph
that the standard gives for the operator, is right. Needs onnx and onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import parser
from onnx.reference import ReferenceEvaluator

MODEL = """
<ir_version: 11, opset_import: ["" : 25]>
attention (float[1,1,3,8] q, float[1,1,3,8] k, float[1,1,3,8] v, bool[1,1,N,3] mask) => (float[] o)
{ o = Attention <is_causal = 1> (q, k, v, mask) }
"""
model = parser.parse_model(MODEL)
session = onnxruntime.InferenceSession(model.SerializeToString())
evaluator = ReferenceEvaluator(model)

q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 3, 8), dtype=np.float32)
row = np.array([True, True, False]).reshape(1, 1, 1, 3)  # no query sees key 2
given = {"q": q, "k": k, "v": v, "mask": row}
z = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(8)
p = np.where(row & np.tri(3, dtype=bool), np.exp(z), 0)

for name, out in (
    ("reference, mask of 1 row", evaluator.run(None, given)[0]),
    ("reference, of 3 rows", evaluator.run(None, given | {"mask": row.repeat(3, 2)})[0]),
    ("ONNX Runtime, of 1 row", session.run(None, given)[0]),
    ("float64", p / p.sum(-1, keepdims=True) @ v),
):
    print(f"{name:25} out[0,0,:,0] = {out[0, 0, :, 0]}")
