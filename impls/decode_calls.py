"""What a decode loop is asked for: malformed calls raise ValueError, unsupported `Unsupported`.

Shared by the bundled decoders. Laws and oracles do not use it.
"""

from kernelassay.impls.contract import Capabilities, Unsupported
from kernelassay.impls.decoding import DecodeCall

__all__ = ["check_decode", "decoding_used", "refuse_decode"]


def check_decode(call: DecodeCall) -> None:
    """A `ValueError` that names the field, unless *call* is well formed."""
    R, V = call.requests, call.vocabulary
    fields = {"stop": call.stop, "budget": call.budget, "minimum": call.minimum}
    fields |= {"greedy": call.greedy} | ({} if call.seeds is None else {"seeds": call.seeds})
    for name, given in fields.items():
        if len(given) != R:
            raise ValueError(f"{name}: got {len(given)} entries, expected one for {R} requests")
    if not R or not all(call.prompts):
        raise ValueError("prompts: got none, or an empty one, expected a token or more in each")
    if any(not 0 <= x < V for row in (*call.prompts, *call.stop) for x in row):
        raise ValueError(f"prompts, stop: got a token that is none of 0 to {V - 1}")
    if not call.schedule or min(call.schedule) < 0 or min(call.budget) < 0:
        raise ValueError("schedule, budget: got a negative number, or no schedule")
    if any(m > 0 and {*s} >= {*range(V)} for m, s in zip(call.minimum, call.stop, strict=True)):
        raise ValueError("minimum: got one above 0 where every token is a stop token")


def decoding_used(call: DecodeCall) -> frozenset[str]:
    """The features of the contract that *call* needs."""
    used = {
        "decode": True,
        "decode.requests": call.requests > 1,
        "decode.ragged": len({*map(len, call.prompts)}) > 1,
        "decode.model": call.drafts != "lookup",
        "decode.lookup": call.drafts == "lookup",
        "decode.schedule": len({*call.schedule}) > 1 or 0 in call.schedule,
        "decode.sampled": not all(call.greedy),
        "decode.greedy": any(call.greedy),
        "decode.stop": any(call.stop),
        "decode.budget": len({*call.budget}) > 1 or 0 in call.budget,
        "decode.minimum": any(call.minimum),
    }
    return frozenset(name for name, needed in used.items() if needed)


def refuse_decode(name: str, capabilities: Capabilities, call: DecodeCall) -> None:
    """An `Unsupported` if *call* needs a dtype or a feature that *capabilities* do not list."""
    if call.dtype not in capabilities.dtypes:
        raise Unsupported(f"{name}: dtype {call.dtype}; it takes {', '.join(capabilities.dtypes)}")
    if missing := decoding_used(call) - capabilities.supports:
        raise Unsupported(f"{name}: the call needs {', '.join(sorted(missing))}")
