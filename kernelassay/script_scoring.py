"""Scoring in scripts: what is given to the kernel, and what is done to z, each as torch code."""

from collections.abc import Iterator

from kernelassay.oracle.formats import format_of
from kernelassay.properties.case import AttendCase
from kernelassay.properties.content_terms import alibi_content, sink_content
from kernelassay.script_visibility import places

KEYS = "torch.arange(Tk, device=device).view(1, 1, 1, Tk)"


def terms(case: AttendCase) -> list[str]:
    """The scoring terms of *case* that are tensors."""
    return [n for n in ("alibi", "bias", "sink_logits") if getattr(case, n) is not None]


def has_scoring(case: AttendCase) -> bool:
    """Whether anything is done to scores."""
    return case.softcap is not None or bool(terms(case))


def scoring_lines(case: AttendCase, dtype: str) -> Iterator[str]:
    """Lines that make the scoring of the call; nothing where there is none."""
    made = {"alibi": alibi_content, "sink_logits": sink_content}
    for name in terms(case):
        if name == "bias":
            yield from _bias(str(case.bias), dtype)
        else:
            numbers = made[name](getattr(case, name), case, dtype).tolist()
            shown = ", ".join(map(repr, numbers)).replace("inf", "torch.inf")
            yield f"{name} = torch.tensor([{shown}], device=device)"
    given = [f"softcap={case.softcap!r}"] * (case.softcap is not None)
    given += [f"{name}={name}" for name in terms(case)]
    if given:
        yield f"scoring = Scoring({', '.join(given)})"


def _bias(recipe: str, dtype: str) -> Iterator[str]:
    name, _, rest = recipe.partition(":")
    fill, _, mask = rest.partition(":")
    kind, _, n = mask.partition(":")
    hides = {"prefix": f"{KEYS} >= {n}", "suffix": f"{KEYS} < {n}", "nothing": f"{KEYS} >= 0"}
    number = "-torch.inf" if fill == "-inf" else fill
    simple = ";" not in recipe and (fill == "-inf" or _within(fill, dtype))
    if simple and name == "level":
        yield f"bias = torch.full((1, 1, 1, 1), {number}, dtype=dtype, device=device)"
    elif simple and name == "fill" and kind in hides:
        yield "bias = torch.zeros(1, 1, 1, Tk, dtype=dtype, device=device)"
        yield f"bias = bias.masked_fill({hides[kind]}, {number})"
    else:
        yield f"bias = bias_content(case.bias, case, {dtype!r}).to(device)"


def _within(text: str, dtype: str) -> bool:
    """Whether *text* is a number that *dtype* does not cut."""
    try:
        return abs(float(text)) <= format_of(dtype).max
    except ValueError:
        return False


def scored_lines(case: AttendCase) -> Iterator[str]:
    """Lines that make z, what the softmax is taken of, -inf for hidden keys."""
    if not has_scoring(case):
        yield "z = (scale * q.double() @ k64.mT).masked_fill(~seen, -torch.inf)"
        return
    yield "z = scale * q.double() @ k64.mT"
    if case.softcap is not None:
        yield f"z = {case.softcap!r} * torch.tanh(z / {case.softcap!r})"
    if case.alibi is not None:
        at, key = places(case)
        yield f"z = z - alibi.double()[:, None, None] * ({at} - {key}).abs()"
    if case.bias is not None:
        yield "z = z + bias.double()"
        if "-inf" in case.bias:
            yield "seen = seen & (bias > -torch.inf)"
    yield "z = z.masked_fill(~seen, -torch.inf)"


def lse_lines(case: AttendCase) -> Iterator[str]:
    """Lines that make the log-sum-exp of z, in base e, sink included."""
    lse = "torch.logsumexp(z, -1)"
    if case.sink_logits is not None:
        lse = f"torch.logaddexp({lse}, sink_logits.double()[:, None])"
    yield f"lse = {lse}"


def weight_lines(case: AttendCase) -> Iterator[str]:
    """Lines that make the weights p of z."""
    p = "torch.softmax(z, -1)"
    if case.sink_logits is not None:
        yield from lse_lines(case)
        p = "torch.exp(z - lse[..., None])"
    yield f"p = torch.where(seen, {p}, 0.0)  # rows that see no key: 0"
