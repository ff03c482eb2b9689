"""The contract of prefix caches: what requests begin with that others computed before them.

A prefix cache holds keys [Hkv, D] and values [Hkv, Dv] of tokens in blocks of P. A request begins
with a prompt and is given the longest run of whole blocks that are there for its first tokens;
the rest it computes and appends. What it then commits, others may begin with, while it runs and
after. Drafts are appended like any other tokens; only what was emitted is ever committed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args, get_type_hints, runtime_checkable

import torch
from torch import Tensor

__all__ = [
    "PREFIXES", "BlockUse", "Hash", "PrefixSpec", "PrefixStore", "Prefixed", "Prefixes", "Scope",
]  # fmt: skip

PREFIXES: Mapping[str, str] = {
    "prefix": "a prefix cache: prefix(spec) -> store, which has begin, append, commit, read, end",
    "prefix.requests": "more than one request at a time",
    "prefix.salt": "a salt: requests of different salts never share",
    "prefix.adapter": "an adapter id: requests of different adapters never share",
    "prefix.truncate": "truncate(request, length): the last tokens go, as rejected drafts do",
    "prefix.hash": "a given hash names the blocks; it is not believed, since it may collide",
    "prefix.match": "match(tokens, scope) says what a request would begin with",
    "prefix.reset": "reset(): nothing is there any more",
    "prefix.value_size": "Dv differs from D",
    "prefix.accounting": "blocks() says which blocks each request holds",
}
"""What a prefix cache may support or decline, with what each name means."""


class Scope(NamedTuple):
    """Requests share within one salt and one adapter only; 0 is none. Two different things:
    salt 1 without an adapter is not adapter 1 without a salt."""

    salt: int = 0
    adapter: int = 0


Hash = Callable[[int | None, tuple[int, ...], Scope], int]
"""Of the hash of the block before (None for the first), the block's tokens, and the scope."""


@dataclass(frozen=True, kw_only=True)
class PrefixSpec:
    """What a prefix cache is opened with: *blocks* blocks of *block* tokens, all empty.

    *R* requests at most run at a time, numbered from 0; no request ever has more than *most*
    tokens. The pool is as large as the running requests need if none of them shares anything: a
    request of L tokens needs ceil(L / block) blocks, from `begin` on those of its prompt. *hash*
    is given where "prefix.hash" is supported, maybe.
    """

    R: int
    Hkv: int
    D: int
    Dv: int
    block: int
    blocks: int
    most: int
    dtype: torch.dtype
    device: torch.device
    hash: Hash | None = None


@dataclass(frozen=True)
class BlockUse:
    """Which blocks of 0..blocks - 1 each request holds, in the order of its tokens."""

    held: tuple[tuple[int, ...], ...]


class PrefixStore(Protocol):
    """An open prefix cache. Truncate, match, reset and blocks are there where supported.

    Blocks of a running request stay as they are until it ends; others may go to make room, in any
    order.
    """

    def begin(self, request: int, tokens: Sequence[int], scope: Scope) -> int:
        """The request, which does not run, begins with this prompt. Of how many leading tokens the
        entries are there: a multiple of the block size, see `Prefixed`. They are its own now."""

    def append(self, request: int, tokens: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Entries k [n, Hkv, D] and v [n, Hkv, Dv] of the next n tokens: of the prompt what
        `begin` did not find, then what was generated, or drafts. The caller reuses k and v."""

    def truncate(self, request: int, length: int) -> None:
        """The request keeps its first *length* tokens: its prompt, what it has committed, and
        maybe more."""

    def commit(self, request: int, length: int) -> None:
        """Its first *length* tokens are final. Requests that begin from now on may get the whole
        blocks among them, and nothing of what was never committed."""

    def end(self, request: int) -> None:
        """The request holds nothing any more; what it committed may be hit for as long as it is
        there."""

    def read(self, request: int) -> tuple[Tensor, Tensor]:
        """What attention would read: k [L, Hkv, D], v [L, Hkv, Dv] of all its tokens so far."""

    def match(self, tokens: Sequence[int], scope: Scope) -> int:
        """What `begin` would return; changes nothing that a request can see."""

    def reset(self) -> None:
        """Nothing is hit that was committed before, as after an update of the weights. No request
        runs."""

    def blocks(self) -> BlockUse:
        """Which blocks each request holds."""


@runtime_checkable
class Prefixes(Protocol):
    """An adapter that offers a prefix cache."""

    name: str

    def prefix(self, spec: PrefixSpec) -> PrefixStore:
        """An empty prefix cache; `Unsupported` refuses the spec."""


@dataclass(frozen=True, kw_only=True)
class Prefixed:
    """Where correct prefix caches differ."""

    last: Literal["computed", "hit"] = "computed"
    """computed: the last token of a prompt is never hit, as its logits are needed. hit: it is."""
    hits: Literal["all", "some"] = "all"
    """all: what was committed is hit for as long as the pool has room for everything that any
    request was ever given. some: it may be forgotten at any time."""

    def __post_init__(self) -> None:
        for name, known in get_type_hints(type(self)).items():
            if (got := getattr(self, name)) not in get_args(known):
                choices = " or ".join(get_args(known))
                raise ValueError(f"Prefixed.{name}: got {got!r}, expected {choices}")
