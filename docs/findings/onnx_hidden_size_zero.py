"""ONNX's shape inference: Attention over [B, T, H D], the last axis free, has an output of size 0.

Needs onnx alone.
"""

from onnx import parser, shape_inference

MODEL = """
<ir_version: 11, opset_import: ["" : %d]>
attention (float[B,T,%s] q, float[B,T,%s] k, float[B,T,%s] v) => (float[] o)
{ o = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v) }
"""
for opset in (23, 24, 25):
    for hidden in (32, "C"):
        model = parser.parse_model(MODEL % (opset, hidden, hidden, hidden))
        shape = shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
        axes = [axis.dim_param or axis.dim_value for axis in shape.dim]
        print(f"opset {opset}, inputs [B, T, {hidden}]: inferred output {axes}")
