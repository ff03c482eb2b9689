"""jax.jit(jax.nn.dot_product_attention) on the CPU: raises for fp16, and for bf16 in tiny shapes.

Not compiled, the same calls are right: the function falls back to the default precision when a dot
raises, but under jit the dot raises later, when the whole is lowered. Needs jax.
"""

import jax
import jax.numpy as jnp

compiled = jax.jit(jax.nn.dot_product_attention)
cpu = jax.devices("cpu")[0]

with jax.default_device(cpu):
    for dtype, Tq, Tk, D in (
        (jnp.float16, 4, 4, 64),
        (jnp.bfloat16, 1, 1, 64),
        (jnp.bfloat16, 1, 3, 1),
        (jnp.bfloat16, 1, 2, 64),
        (jnp.float32, 1, 1, 64),
    ):
        q, k = jnp.ones((1, Tq, 1, D), dtype), jnp.ones((1, Tk, 1, D), dtype)
        right = float(jax.nn.dot_product_attention(q, k, k)[0, 0, 0, 0])
        try:
            got = str(float(compiled(q, k, k)[0, 0, 0, 0]))
        except Exception as error:
            got = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
        print(f"{dtype.__name__:8}  Tq {Tq}  Tk {Tk}  D {D:2}  right {right}  got {got}")
