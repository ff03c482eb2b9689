"""Attention of ONNX: NaN beyond nonpad_kv_seqlen, where no query looks, makes the output NaN.

A weight of 0 is multiplied by what an unused slot of the cache holds, in ONNX Runtime as in ONNX's
reference evaluator. MultiHeadAttention and its lengths do so too. Needs onnx and onnxruntime.
"""

import numpy as np
import onnxruntime
from onnx import parser
from onnx.reference import ReferenceEvaluator

MODEL = """
<ir_version: 11, opset_import: ["" : %d]>
attention (float[1,1,1,4] q, float[1,1,4,4] k, float[1,1,4,4] v, int64[1] used) => (float[] o)
{ o = Attention (q, k, v, , , , used) }
"""
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 1, t, 4), dtype=np.float32) for t in (1, 4, 4))
used = np.array([2])  # slots 2 and 3 are not in use
p = np.exp(q.astype(np.float64) @ k[:, :, :2].swapaxes(-1, -2) / 2)
print(f"{'float64':35} out[0,0,0] = {(p / p.sum() @ v[:, :, :2])[0, 0, 0]}")

np.seterr(all="ignore")
for opset in (24, 25):
    model = parser.parse_model(MODEL % opset)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for fill in (1000.0, np.inf, np.nan):
        v[:, :, 2:] = fill
        for name, run in (("ONNX Runtime", session), ("reference", ReferenceEvaluator(model))):
            out = run.run(None, {"q": q, "k": k, "v": v, "used": used})[0]
            print(f"opset {opset}, {name:13} slots of {fill:6} out[0,0,0] = {out[0, 0, 0]}")
