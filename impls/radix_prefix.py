"""A prefix cache as a tree: an edge is a block of tokens, a node the block that holds them.

Requests walk from the root of their scope as far as edges lead; nothing is hashed, so that
nothing collides. A node that no request holds and that has no children is a leaf to evict: the
one that has been left for longest goes first. Blocks of running requests that the tree does not
have are the request's own; `commit` hangs them into the tree, or returns them where the same
prefix hangs there already.

Shapes: pools k [blocks, block, Hkv, D] and v [blocks, block, Hkv, Dv].
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from kernelassay.impls.contract import (
    PREFIXES,
    Capabilities,
    Conventions,
    Prefixed,
    PrefixSpec,
    Scope,
    Unsupported,
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


@dataclass(eq=False)
class Node:
    """A block behind another one. *holders*: requests that run on it."""

    block: int
    above: "Node | None"
    edge: Tokens = ()
    below: dict[Tokens, "Node"] = field(default_factory=dict)
    holders: int = 0
    left: int = 0


@dataclass(eq=False)
class Request:
    """A running request: its nodes in the tree, the blocks behind them, its tokens."""

    prompt: int
    nodes: list[Node]
    root: Node
    own: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    committed: int = 0


class TreeStore:
    """`kernelassay.impls.prefixes.PrefixStore` says what the methods do."""

    def __init__(self, spec: PrefixSpec, last: int) -> None:
        self.spec, self.last, self.clock = spec, last, count(1)
        self.roots: dict[Scope, Node] = {}
        self.free = list(range(spec.blocks))
        self.requests: list[Request | None] = [None] * spec.R
        shape = (spec.blocks, spec.block, spec.Hkv)
        self.k, self.v = (
            torch.empty(*shape, size, dtype=spec.dtype, device=spec.device)
            for size in (spec.D, spec.Dv)
        )

    def begin(self, request: int, tokens: Sequence[int], scope: Scope) -> int:
        """The request holds the nodes on its way."""
        check_begin(self.spec, [own is not None for own in self.requests], request, tokens)
        root = self.roots.setdefault(scope, Node(-1, None))
        nodes = self.way(root, tokens)
        for node in nodes:
            node.holders += 1
        n = len(nodes) * self.spec.block
        self.requests[request] = Request(len(tokens), nodes, root, tokens=[*tokens[:n]])
        return n

    def way(self, node: Node, tokens: Sequence[int]) -> list[Node]:
        """The nodes that whole blocks of a prompt lead to."""
        size, found = self.spec.block, list[Node]()
        for end in range(size, len(tokens) - self.last + 1, size):
            part = tuple(tokens[end - size : end])
            if part not in node.below:
                break
            node = node.below[part]
            found.append(node)
        return found

    def append(self, request: int, tokens: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Entries go to the end of the request."""
        own = self.running(request)
        L, size = len(own.tokens), self.spec.block
        check_append(self.spec, L, tokens, k, v)
        more = -(-(L + len(tokens)) // size) - len(own.nodes) - len(own.own)
        while len(self.free) < more and self.evict():
            pass
        room = len(self.free)
        expect(more <= room, "pool", f"{room} free blocks", f"{more}: requests hold too much")
        own.tokens += tokens
        own.own += [self.free.pop() for _ in range(more)]
        at = self.slots(own)[L:]
        for pool, rows in ((self.k, k), (self.v, v)):
            pool.flatten(0, 1)[at] = rows

    def evict(self) -> bool:
        """The leaf that was left first goes; whether there was one."""
        leaves = [n for n in self.nodes() if not n.below and not n.holders]
        if not leaves:
            return False
        leaf = min(leaves, key=lambda node: node.left)
        assert leaf.above is not None
        del leaf.above.below[leaf.edge]
        self.free.append(leaf.block)
        return True

    def nodes(self) -> list[Node]:
        """All but the roots."""
        found, some = list[Node](), [*self.roots.values()]
        while some:
            below = [*some.pop().below.values()]
            found += below
            some += below
        return found

    def truncate(self, request: int, length: int) -> None:
        """The last tokens go, and the blocks that only they were in."""
        own = self.running(request)
        check_length(max(own.committed, own.prompt), len(own.tokens), length)
        del own.tokens[length:]
        kept = -(-length // self.spec.block) - len(own.nodes)
        self.free += own.own[kept:]
        del own.own[kept:]

    def commit(self, request: int, length: int) -> None:
        """Whole blocks among the first *length* tokens hang in the tree."""
        own, size = self.running(request), self.spec.block
        check_length(own.committed, len(own.tokens), length)
        own.committed = length
        for end in range((len(own.nodes) + 1) * size, length + 1, size):
            part, block = tuple(own.tokens[end - size : end]), own.own.pop(0)
            above = own.nodes[-1] if own.nodes else own.root
            if part in above.below:
                self.free.append(block)
            else:
                above.below[part] = Node(block, above, part)
            node = above.below[part]
            node.holders += 1
            own.nodes.append(node)

    def end(self, request: int) -> None:
        """Its nodes are left, its own blocks are free."""
        own = self.running(request)
        for node in own.nodes:
            node.holders -= 1
            node.left = next(self.clock)
        self.free += own.own
        self.requests[request] = None

    def read(self, request: int) -> tuple[Tensor, Tensor]:
        """The entries of the request, one after the other."""
        at = self.slots(self.running(request))
        return self.k.flatten(0, 1)[at], self.v.flatten(0, 1)[at]

    def match(self, tokens: Sequence[int], scope: Scope) -> int:
        """What a request would begin with."""
        return len(self.way(self.roots.get(scope, Node(-1, None)), tokens)) * self.spec.block

    def reset(self) -> None:
        """The tree is empty."""
        running = any(own is not None for own in self.requests)
        expect(not running, "reset", "a running request", "none")
        self.free += [node.block for node in self.nodes()]
        self.roots.clear()

    def running(self, request: int) -> Request:
        """The request, which runs."""
        check_running(self.spec, [own is not None for own in self.requests], request)
        own = self.requests[request]
        assert own is not None
        return own

    def slots(self, own: Request) -> Tensor:
        """Where the entries of a request lie, int64 [L]."""
        size, blocks = self.spec.block, [*(node.block for node in own.nodes), *own.own]
        at = [blocks[j // size] * size + j % size for j in range(len(own.tokens))]
        return torch.tensor(at, dtype=torch.int64, device=self.spec.device)


class RadixPrefix:
    """The store above; the last token of a prompt may be hit."""

    name = "radix_prefix"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32", "bf16", "fp16"),
        head_sizes=(16, 8, 32, 64, 80, 128),
        pages=(1, 2, 3, 4),
        supports=frozenset(PREFIXES) - {"prefix.hash", "prefix.accounting"},
        declines=frozenset({"prefix.hash"}),
        conventions=Conventions(deterministic=True, validates_calls=True),
        prefixing=Prefixed(last="hit"),
    )

    def prefix(self, spec: PrefixSpec) -> TreeStore:
        """An empty cache; malformed specs raise ValueError, a hash `Unsupported`."""
        check_spec(spec)
        if spec.hash is not None:
            raise Unsupported(f"{self.name}: nothing is hashed; got a hash")
        convention = self.capabilities.prefixing or Prefixed()
        return TreeStore(spec, int(convention.last == "computed"))


adapter = RadixPrefix()
