"""A prefix cache in plain PyTorch: blocks are named by a chain of hashes, and checked when hit.

    name_j = hash(name_{j-1}, tokens of block j, scope),   name_{-1} = None

A block that was committed has a label: its tokens and scope, a serial number, that of the label
of the block before it, and its name. A request hits block j if a label of that name says the same
tokens, the same scope and, as the one before, the serial that block j - 1 has: serials are never
used twice, so that a label whose predecessor was evicted is never reached again. A hash that
collides costs a comparison.

A block is idle where no request holds it. When a block is taken the one that has been idle for
longest loses its label; a request that ends lets its last block go first, so that the ends of
prefixes are evicted before their beginnings.

Shapes: pools k [blocks, block, Hkv, D] and v [blocks, block, Hkv, Dv].
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from kernelassay.impls.contract import (
    PREFIXES,
    BlockUse,
    Capabilities,
    Conventions,
    Prefixed,
    PrefixSpec,
    Scope,
)
from kernelassay.impls.prefix_calls import (
    check_append,
    check_begin,
    check_length,
    check_running,
    check_spec,
    expect,
)

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Label:
    """What a block is known to hold."""

    name: int
    serial: int
    before: int | None
    tokens: Tokens
    scope: Scope


@dataclass(eq=False)
class Request:
    """A running request: the length of its prompt, its tokens so far, its blocks, and the labels
    of those that it hit or committed."""

    scope: Scope
    prompt: int
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    committed: int = 0


def own_hash(before: int | None, tokens: Tokens, scope: Scope) -> int:
    """64 bits of a block, of all before it and of the scope."""
    text = repr((before, tokens, tuple(scope)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Pool:
    """Which blocks are held, how often, and which are idle, the first to be taken in front."""

    def __init__(self, blocks: int) -> None:
        self.references = [0] * blocks
        self.idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self.labels: dict[int, Label] = {}
        self.named: dict[int, list[int]] = {}

    def hold(self, block: int) -> None:
        """One request more holds *block*."""
        self.idle.pop(block, None)
        self.references[block] += 1

    def drop(self, block: int) -> None:
        """One request fewer holds *block*."""
        self.references[block] -= 1
        if self.references[block] == 0:
            self.idle[block] = None
            if block not in self.labels:
                self.idle.move_to_end(block, last=False)

    def take(self) -> int:
        """An idle block, held, without a label."""
        block = self.idle.popitem(last=False)[0]
        self.forget(block)
        self.references[block] = 1
        return block

    def forget(self, block: int) -> None:
        """What *block* holds is not known any more."""
        if (label := self.labels.pop(block, None)) is not None:
            self.named[label.name].remove(block)

    def put(self, block: int, label: Label) -> None:
        """*block* holds what *label* says."""
        self.labels[block] = label
        self.named.setdefault(label.name, []).append(block)

    def find(self, name: int, before: int | None, tokens: Tokens, scope: Scope) -> int | None:
        """The block of that name with these tokens, behind that serial, or None."""
        for block in self.named.get(name, ()):
            label = self.labels[block]
            if (label.before, label.tokens, label.scope) == (before, tokens, scope):
                return block
        return None


class HashedStore:
    """`kernelassay.impls.prefixes.PrefixStore` says what the methods do."""

    def __init__(self, spec: PrefixSpec, convention: Prefixed) -> None:
        self.spec, self.convention = spec, convention
        self.pool, self.serials = Pool(spec.blocks), count()
        self.requests: list[Request | None] = [None] * spec.R
        shape = (spec.blocks, spec.block, spec.Hkv)
        self.k, self.v = (
            torch.empty(*shape, size, dtype=spec.dtype, device=spec.device)
            for size in (spec.D, spec.Dv)
        )

    def begin(self, request: int, tokens: Sequence[int], scope: Scope) -> int:
        """The request holds the blocks that are found."""
        check_begin(self.spec, self.runs(), request, tokens)
        found = self.found(tokens, scope)
        for block in found:
            self.pool.hold(block)
        n = len(found) * self.spec.block
        labels = [self.pool.labels[block] for block in found]
        self.requests[request] = Request(scope, len(tokens), [*tokens[:n]], found, labels)
        return n

    def found(self, tokens: Sequence[int], scope: Scope) -> list[int]:
        """The blocks that are there for the first tokens of a prompt."""
        size, blocks, name, serial = self.spec.block, list[int](), None, None
        limit = len(tokens) - (self.convention.last == "computed")
        for end in range(size, limit + 1, size):
            part = tuple(tokens[end - size : end])
            name = self.name_of(name, part, scope)
            block = self.pool.find(name, serial, part, scope)
            if block is None:
                break
            serial = self.pool.labels[block].serial
            blocks.append(block)
        return blocks

    def name_of(self, before: int | None, tokens: Tokens, scope: Scope) -> int:
        """The hash of a block."""
        return (self.spec.hash or own_hash)(before, tokens, scope)

    def append(self, request: int, tokens: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Entries go to the end of the request."""
        own = self.running(request)
        L, size = len(own.tokens), self.spec.block
        check_append(self.spec, L, tokens, k, v)
        more = -(-(L + len(tokens)) // size) - len(own.blocks)
        idle = len(self.pool.idle)
        expect(more <= idle, "pool", f"{idle} idle blocks", f"{more}: requests hold too much")
        own.tokens += tokens
        own.blocks += [self.pool.take() for _ in range(more)]
        at = self.slots(own)[L:]
        for pool, rows in ((self.k, k), (self.v, v)):
            pool.flatten(0, 1)[at] = rows

    def truncate(self, request: int, length: int) -> None:
        """The last tokens go, and the blocks that only they were in."""
        own = self.running(request)
        check_length(max(own.committed, own.prompt), len(own.tokens), length)
        del own.tokens[length:]
        columns = -(-length // self.spec.block)
        for block in own.blocks[columns:]:
            self.pool.drop(block)
        del own.blocks[columns:]

    def commit(self, request: int, length: int) -> None:
        """Whole blocks among the first *length* tokens get labels."""
        own, size = self.running(request), self.spec.block
        check_length(own.committed, len(own.tokens), length)
        own.committed = length
        for j in range(len(own.labels), length // size):
            before = own.labels[-1] if own.labels else None
            part = tuple(own.tokens[j * size : (j + 1) * size])
            own.labels.append(self.labelled(own.blocks[j], before, part, own.scope))

    def labelled(self, block: int, before: Label | None, tokens: Tokens, scope: Scope) -> Label:
        """The label of a committed block: that of another one, if it holds the same."""
        name = self.name_of(before.name if before else None, tokens, scope)
        serial = before.serial if before else None
        if (same := self.pool.find(name, serial, tokens, scope)) is not None:
            return self.pool.labels[same]
        label = Label(name, next(self.serials), serial, tokens, scope)
        self.pool.put(block, label)
        return label

    def end(self, request: int) -> None:
        """Its blocks go, the last one first."""
        own = self.running(request)
        for block in own.blocks[::-1]:
            self.pool.drop(block)
        self.requests[request] = None

    def read(self, request: int) -> tuple[Tensor, Tensor]:
        """The entries of the request, one after the other."""
        at = self.slots(self.running(request))
        return self.k.flatten(0, 1)[at], self.v.flatten(0, 1)[at]

    def match(self, tokens: Sequence[int], scope: Scope) -> int:
        """What a request would begin with."""
        return len(self.found(tokens, scope)) * self.spec.block

    def reset(self) -> None:
        """No block has a label."""
        expect(not any(self.runs()), "reset", "a running request", "none")
        for block in [*self.pool.labels]:
            self.pool.forget(block)

    def blocks(self) -> BlockUse:
        """Which blocks are held."""
        return BlockUse(tuple(tuple(own.blocks) if own else () for own in self.requests))

    def runs(self) -> list[bool]:
        """Which requests run."""
        return [own is not None for own in self.requests]

    def running(self, request: int) -> Request:
        """The request, which runs."""
        check_running(self.spec, self.runs(), request)
        own = self.requests[request]
        assert own is not None
        return own

    def slots(self, own: Request) -> Tensor:
        """Where the entries of a request lie, int64 [L]."""
        size = self.spec.block
        at = [own.blocks[j // size] * size + j % size for j in range(len(own.tokens))]
        return torch.tensor(at, dtype=torch.int64, device=self.spec.device)


class TorchPrefix:
    """The store above."""

    name = "torch_prefix"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32", "bf16", "fp16"),
        head_sizes=(16, 8, 32, 64, 80, 128),
        pages=(2, 1, 3, 4, 16),
        supports=frozenset(PREFIXES),
        conventions=Conventions(deterministic=True, validates_calls=True),
        prefixing=Prefixed(),
    )

    def prefix(self, spec: PrefixSpec) -> HashedStore:
        """An empty cache; malformed specs raise ValueError."""
        check_spec(spec)
        return HashedStore(spec, self.capabilities.prefixing or Prefixed())


adapter = TorchPrefix()
