"""Source text of tiny adapters, right and wrong in one way each, for tests of the front door."""

HEAD = '''
import ctypes, os, signal, sys, time
import torch
from kernelassay import AttendCall, Capabilities, Numerics, Unsupported


class Tiny:
    """Attention over all keys; what subclasses do to the output is their fault."""

    capabilities = Capabilities(
        devices=("cpu",), dtypes=("fp32",), head_sizes=(16,), supports={"attend"}
    )
    numerics = Numerics()

    def __init__(self):
        self.name = type(self).__name__.lower()

    def attend(self, call):
        z = call.softmax_scale * call.q @ call.k.transpose(-1, -2)
        return self.after(call, z.softmax(-1) @ call.v)

    def after(self, call, out):
        return out
'''


def kernel(name: str, body: str = "return out") -> str:
    """A subclass of Tiny with this `after(self, call, out)`, and an adapter of its name."""
    lines = "\n".join("        " + line for line in body.splitlines())
    head = f"class {name.capitalize()}(Tiny):\n    def after(self, call, out):"
    return f"\n\n{head}\n{lines}\n\n{name} = {name.capitalize()}()\n"


def source(**bodies: str) -> str:
    """A module of adapters by name."""
    return HEAD + "".join(kernel(name, body) for name, body in bodies.items())
