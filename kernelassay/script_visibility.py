"""Visibility in scripts: what is given to the kernel, and who may see what, each as torch code."""

from collections.abc import Iterator

from kernelassay.properties.case import AttendCase


def visibility_lines(case: AttendCase) -> Iterator[str]:
    """Lines that make the visibility of the call."""
    given = [f"causal={case.causal!r}"] * (case.causal != "none")
    if case.window != (None, None):
        given.append(f"window={case.window!r}")
    if case.sinks:
        given.append(f"sinks={case.sinks}")
    if case.lengths is not None:
        yield f"lengths = torch.tensor({list(case.lengths)}, device=device)"
        given.append("lengths=lengths")
    if case.positions is not None:
        yield "positions = position_content(case.positions, case)"
        yield "q_positions, k_positions = (x.to(device) for x in positions)"
        given += ["q_positions=q_positions", "k_positions=k_positions"]
    if case.mask is not None:
        name, _, argument = case.mask.partition(":")
        keys = "torch.arange(Tk, device=device).view(1, 1, 1, Tk)"
        made = {
            "prefix": f"{keys} < {argument}",
            "suffix": f"{keys} >= {argument}",
            "nothing": f"{keys} < 0",
        }
        yield f"mask = {made.get(name, 'mask_content(case.mask, case).to(device)')}  # True keeps"
        yield 'keeps = kernel.capabilities.conventions.mask_polarity == "keep"'
        given.append("mask=mask if keeps else ~mask")
    yield f"visibility = Visibility({', '.join(given)})"


def places(case: AttendCase) -> tuple[str, str]:
    """The positions of a query and of a key, as torch code over i, j and L."""
    if case.positions is not None:
        return "q_positions[:, None, :, None]", "k_positions[:, None, None, :]"
    if case.causal == "top_left":
        return "i", "j"
    return f"(i + {'Tk' if case.lengths is None else 'L'} - Tq)", "j"


def seen_lines(case: AttendCase) -> Iterator[str]:
    """Lines that narrow `seen` to what each query may see."""
    at, key = places(case)
    if case.lengths is not None:
        yield "L = lengths.view(-1, 1, 1, 1)"
        yield "seen &= j < L"
    if case.causal != "none":
        yield f"seen &= {key} <= {at}"
    left, right = case.window
    if left is not None:
        sink = f" | (j < {case.sinks})" if case.sinks else ""
        yield f"seen &= ({key} >= {at} - {left}){sink}"
    if right is not None:
        yield f"seen &= {key} <= {at} + {right}"
    if case.mask is not None:
        yield "seen &= mask"
