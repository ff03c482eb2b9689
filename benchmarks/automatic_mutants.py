"""Every line of a kernel changed in small ways: which changes no law sees.

    python benchmarks/automatic_mutants.py torch_reference [torch_merge ...] --json NAME.json

The mutants of `kernelassay mutants` imitate public reports. Here nobody chooses: in the functions
of a kernel each comparison, sum, product, constant, branch, `where`, maximum and exponential is
changed in turn, and each assignment to what exists is left out. A change is *killed* if some law
fails, or the kernel hangs. What survives is either the same kernel written otherwise, or a gap.

Adapters' declarations, messages and annotations are left as they are. Each mutant has a process of
its own, so that one that hangs or spoils a global harms no other. Laws that killed go first.

Kernels of Triton run in its interpreter, or with --device cuda on a GPU. Of a module with several
adapters `torch_verify:padded` names one.
"""

import argparse
import ast
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from kernelassay.impls.variants import Variant, build_module
from kernelassay.properties.engine import Options, check
from kernelassay.properties.property import Property, select
from kernelassay.properties.subject import Subject

COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
OPERATED = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "%", ast.Mod: "//",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<", ast.MatMult: None,
}  # fmt: skip
RENAMED = {
    "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "amax": "amin",
    "exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log", "any": "all", "all": "any",
    "sum": "max", "argmax": "argmin", "argmin": "argmax", "cumsum": "cumprod", "floor": "ceil",
    "cdiv": "floordiv", "zeros": "ones", "new_zeros": "new_ones", "ones": "zeros",
}  # fmt: skip
SPARED = {"refuse_unsupported", "ValueError", "Unsupported", "TypeError", "cast", "Capabilities"}
"""Calls whose arguments are texts and declarations."""


@dataclass(frozen=True)
class Change:
    """One place of a source and what stands there instead."""

    line: int
    last: int
    old: str
    new: str
    start: int = field(repr=False)
    end: int = field(repr=False)


class Changes(ast.NodeVisitor):
    """All changes of the functions of a source."""

    def __init__(self, source: str) -> None:
        """Of the module *source*."""
        self.found: list[Change] = []
        self.source, self.encoded = source, source.encode()
        self.offsets = [0]
        for line in self.encoded.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))
        for node in ast.parse(source).body:
            self._functions(node)

    def _functions(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                self.visit(statement)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                self._functions(inner)

    def _at(self, node: Any) -> tuple[int, int]:
        start = self.offsets[node.lineno - 1] + node.col_offset
        return start, self.offsets[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: Any) -> str:
        start, end = self._at(node)
        return self.encoded[start:end].decode()

    def _add(self, node: Any, new: str) -> None:
        start, end = self._at(node)
        if (old := self._text(node)) != new:
            self.found.append(Change(node.lineno, node.end_lineno, old, new, start, end))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A function inside another one: its statements, not its annotations."""
        for statement in node.body:
            self.visit(statement)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Messages stay."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Messages stay."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The value, not its type."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        """The boundary of a comparison, or its sense."""
        if len(node.ops) == 1 and (new := COMPARED.get(type(node.ops[0]))):
            left, right = self._text(node.left), self._text(node.comparators[0])
            self._add(node, f"({left} {new} {right})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Another operation; and each of both sides alone."""
        left, right = self._text(node.left), self._text(node.right)
        if new := OPERATED.get(type(node.op)):
            self._add(node, f"(({left}) {new} ({right}))")
        if not isinstance(node.op, ast.MatMult):
            self._add(node, f"({left})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Without its sign or its not."""
        self._add(node, f"({self._text(node.operand)})")
        if not isinstance(node.operand, ast.Constant):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A number one larger; a truth turned round."""
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add(node, repr(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        """A branch always, or never, taken."""
        self._add(node.test, "True")
        self._add(node.test, "False")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """A branch always, or never, taken."""
        self._add(node, f"({self._text(node.body)})")
        self._add(node, f"({self._text(node.orelse)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """One of the conditions left out."""
        word = " and " if isinstance(node.op, ast.And) else " or "
        for n in range(len(node.values)):
            rest = [self._text(v) for i, v in enumerate(node.values) if i != n]
            self._add(node, f"({word.join(rest)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Another function of the kind, a `where` with its branches swapped, a mask left out."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in SPARED:
            return
        if name == "where" and len(node.args) == 3:
            head, (c, a, b) = self._text(node.func), map(self._text, node.args)
            self._add(node, f"{head}({c}, {b}, {a})")
            self._add(node, f"({a})")
        if new := RENAMED.get(name):
            func = self._text(node.func)
            self._add(node.func, func[: len(func) - len(name)] + new)
        if name in ("to", "float", "clamp", "contiguous", "flip", "transpose") and isinstance(
            node.func, ast.Attribute
        ):
            self._add(node, f"({self._text(node.func.value)})")
        for word in node.keywords:
            if word.arg == "mask":
                self._add(word.value, "None")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Left out."""
        self._add(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Left out, where what is assigned to exists: its name is in the value, or an element."""
        target, names = node.targets[0], {getattr(n, "id", "") for n in ast.walk(node.value)}
        if isinstance(target, ast.Subscript) or getattr(target, "id", None) in names:
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call for its effect, left out; documentation stays."""
        if isinstance(node.value, ast.Call):
            self._add(node, "pass")
            self.visit(node.value)


def changed(source: str, change: Change) -> str:
    """*source* with *change* made."""
    encoded = source.encode()
    return (encoded[: change.start] + change.new.encode() + encoded[change.end :]).decode()


def place_of(kernel: str) -> tuple[str, str]:
    """The module of *kernel* and the name of its adapter there."""
    module, _, attribute = kernel.partition(":")
    return f"kernelassay.impls.{module}", attribute or "adapter"


def loaded(kernel: str) -> tuple[Any, Any, str]:
    """The module of *kernel*, its adapter and its source."""
    base, attribute = place_of(kernel)
    module = import_module(base)
    return module, getattr(module, attribute), Path(str(module.__file__)).read_text("utf-8")


def judge(
    kernel: str, n: int, change: Change, laws: list[str], options: Options, device: str, to: Any
) -> None:
    """Send by *to* what became of one mutant: the law that killed it and what it said."""
    (base, attribute), (_, _, source) = place_of(kernel), loaded(kernel)
    edits = ((source, changed(source, change)),)
    try:
        built = build_module(Variant(name=f"change_{n}", base=base, edits=edits))
        adapter = getattr(built, attribute)
    except Exception as error:
        return to.send(("invalid", f"{type(error).__name__}: {error}", 0))
    cases, dtypes = 0, adapter.capabilities.dtypes
    device = device or ("cpu" if "cpu" in adapter.capabilities.devices else "interpreter")
    for dtype in dtypes:
        for law in laws:
            (prop,) = select(law)
            record = check(prop, Subject(adapter, dtype, device), options).record
            cases += record.cases
            if record.status not in ("passed", "declined", "not_applicable", "undeclared"):
                return to.send(
                    ("killed", f"{law} ({dtype}): {record.status}: {record.reason}", cases)
                )
    return to.send(("survived", "", cases))


def judged(kernel: str, n: int, change: Change, laws: list[str], args: Any) -> dict[str, Any]:
    """The record of one mutant, judged in a process of its own."""
    began, (here, there) = time.perf_counter(), multiprocessing.Pipe(duplex=False)
    options = Options(level=args.level, seed=args.seed, shrink=False, database=None)
    process = multiprocessing.get_context("fork").Process(
        target=judge, args=(kernel, n, change, laws, options, args.device, there), daemon=True
    )
    process.start()
    there.close()
    status, why, cases = "hung", "", 0
    if here.poll(args.timeout):
        try:
            status, why, cases = here.recv()
        except EOFError:
            status = "died"
    process.kill()
    process.join()
    here.close()
    seconds = round(time.perf_counter() - began, 2)
    place = {k: v for k, v in asdict(change).items() if k not in ("last", "start", "end")}
    return place | {"status": status, "why": why, "cases": cases, "seconds": seconds}


def reached(kernel: str, laws: list[str], options: Options) -> set[int]:
    """The lines of *kernel* that its laws run, with its first dtype, outside Triton's kernels."""
    module, adapter, _ = loaded(kernel)
    lines: set[int] = set()

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        lines.add(frame.f_lineno)
        return trace

    for law in laws:
        subject = Subject(adapter, adapter.capabilities.dtypes[0], adapter.capabilities.devices[0])
        sys.settrace(trace)
        try:
            check(select(law)[0], subject, options)
        finally:
            sys.settrace(None)
    return lines


def applicable(kernel: str) -> list[Property]:
    """The laws that *kernel* is judged by."""
    _, adapter, _ = loaded(kernel)
    subject = Subject(adapter, adapter.capabilities.dtypes[0], adapter.capabilities.devices[0])
    return [p for p in select() if not p.standing(subject)[0]]


def of_kernel(kernel: str, args: Any) -> list[dict[str, Any]]:
    """The records of all changes of *kernel*, a line printed for each survivor."""
    source = loaded(kernel)[2]
    killers: Counter[str] = Counter({p.name: 0 for p in applicable(kernel)})
    changes = Changes(source).found
    if "triton" not in source:  # whose kernels are run by an interpreter, from a text of its own
        run = reached(kernel, list(killers), Options(level=args.level, shrink=False))
        changes = [c for c in changes if run & set(range(c.line, c.last + 1))]
    found = changes[args.skip :: args.every]
    records = []

    def one(n: int) -> dict[str, Any]:
        laws = [name for name, _ in killers.most_common()]
        record = judged(kernel, n, found[n], laws, args)
        if record["status"] == "killed":
            killers[record["why"].split(" ", 1)[0]] += 1
        return record

    with ThreadPoolExecutor(args.workers) as pool:
        for record in pool.map(one, range(len(found))):
            records.append(record)
            if record["status"] in ("survived", "died", "invalid"):
                print(
                    f"{kernel}:{record['line']}: {record['old']!r} -> {record['new']!r}",
                    flush=True,
                )
    print(f"{kernel}: {dict(Counter(r['status'] for r in records))}", flush=True)
    return records


def main() -> None:
    """Print the survivors and a summary for each kernel, keep all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="+", help="modules of impls/, maybe with :adapter")
    parser.add_argument("--level", default="smoke")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600, help="seconds of a mutant")
    parser.add_argument("--every", type=int, default=1, help="of the changes only each N-th")
    parser.add_argument("--skip", type=int, default=0, help="the first of them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda", "interpreter"), default="")
    args = parser.parse_args()
    # A process that has looked for GPUs by CUDA cannot be forked into one that uses them.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    records = {kernel: of_kernel(kernel, args) for kernel in args.kernels}
    if args.json:
        args.json.write_text(
            json.dumps({"level": args.level, "kernels": records}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
