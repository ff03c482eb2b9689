"""jax.nn.dot_product_attention: NaN beyond key_value_seq_lengths reaches the output.

Keys beyond a length get the weight 0, and 0 x NaN is NaN. A cache that was allocated and never
written may hold NaN there. Needs jax and numpy.
"""

import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, n, 1, 8), dtype=np.float32) for n in (1, 4, 4))  # B T H D
lengths = jnp.array([2], dtype=jnp.int32)

for label, beyond in (("7.0", 7.0), ("NaN", np.nan)):
    for name, x in (("k", k), ("v", v)):
        x[:, 2:] = beyond
        out = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths)
        print(f"{name} beyond the length {label}: got {np.asarray(out)[0, 0, 0, :3]}")
        x[:, 2:] = 0.0

scores = (q[0, :, 0].astype(np.float64) @ k[0, :2, 0].T) / np.sqrt(8)
weights = np.exp(scores) / np.exp(scores).sum()
print(f"right: {(weights @ v[0, :2, 0])[0, :3]}")
