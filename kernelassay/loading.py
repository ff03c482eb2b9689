"""Kernels by name: "module:attribute", "path/file.py:attribute", or an entry point's name."""

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

GROUP = "kernelassay.kernels"
"""The entry-point group in which packages publish their adapters."""


UNAVAILABLE = "Unavailable"
"""The kind of a `LoadError` that skips its kernel."""


class LoadError(Exception):
    """A kernel that cannot be used; names what was given, what went wrong and what to try.

    *kind* is "LoadError", "ContractError" where the object was found and is no adapter, or
    `UNAVAILABLE` where a library that it calls is not installed: that is no fault.
    """

    def __init__(self, spec: str, what: str, *, kind: str = "LoadError") -> None:
        super().__init__(f"kernel {spec!r}: {what}")
        self.spec, self.kind = spec, kind


@dataclass(frozen=True, eq=False)
class Loaded:
    """An adapter and the text that names it on a command line."""

    spec: str
    adapter: Any

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.adapter.name)


def load_kernel(spec: str) -> list[Loaded]:
    """The adapters that *spec* names: one, or several where the attribute is a list or tuple."""
    found = _attribute(spec)
    several = list(found) if isinstance(found, (list, tuple)) else [found]
    if not several:
        raise LoadError(spec, "the list is empty; expected at least one adapter in it")
    return [present(Loaded(spec, _checked(spec, adapter))) for adapter in several]


OWN_EXTRAS = ("flashinfer", "vllm", "sglang")
"""Libraries that an extra of their name installs; the other ones come with "targets"."""


def present(kernel: Loaded) -> Loaded:
    """*kernel* itself, if every module that its adapter's `needs` names can be imported here."""
    needs = getattr(kernel.adapter, "needs", ())
    missing = [n for n in needs if importlib.util.find_spec(n.partition(".")[0]) is None]
    if missing:
        bundled = type(kernel.adapter).__module__.startswith("kernelassay.")
        extra = next((name for name in missing if name in OWN_EXTRAS), "targets")
        where = f"; pip install 'kernelassay[{extra}]'" if bundled else ""
        what = f"skipped: needs {', '.join(missing)}, not installed here{where}"
        raise LoadError(kernel.spec, what, kind=UNAVAILABLE)
    return kernel


def published() -> dict[str, str]:
    """Entry-point name -> "module:attribute" of the kernels that installed packages publish."""
    return {e.name: e.value for e in sorted(entry_points(group=GROUP), key=lambda e: e.name)}


def _checked(spec: str, adapter: Any) -> Any:
    from kernelassay.impls.contract import ContractError, checked_adapter

    try:
        return checked_adapter(adapter, where=f"{type(adapter).__name__} object")
    except ContractError as error:
        raise LoadError(spec, f"no adapter: {error}", kind="ContractError") from None
    except Exception as error:
        raise LoadError(
            spec, f"reading its attributes raised {_last_line(error)}", kind="ContractError"
        ) from error


def _attribute(spec: str) -> Any:
    target, colon, attribute = spec.rpartition(":")
    if not colon:
        names = published()
        if spec not in names:
            raise LoadError(spec, _no_entry_point(spec, names))
        target, _, attribute = names[spec].partition(":")
    if not target or not attribute:
        raise LoadError(spec, "expected module:attribute or path/file.py:attribute")
    found: Any = _module(spec, target)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise LoadError(spec, _no_attribute(found, target, part))
        found = getattr(found, part)
    return found


def _no_entry_point(spec: str, names: dict[str, str]) -> str:
    close = difflib.get_close_matches(spec, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    if spec.endswith(".py") or "." in spec:
        return f"no attribute is named; write {spec}:attribute for the adapter object in it"
    return (
        f"no installed package publishes a kernel of this name{hint}; expected one of "
        f"{', '.join(names) or 'none'}, or module:attribute, or path/file.py:attribute"
    )


def _no_attribute(found: Any, target: str, part: str) -> str:
    public = [n for n in dir(found) if not n.startswith("_")]
    close = difflib.get_close_matches(part, public, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(public[:12])}"
    return f"{target} has no attribute {part!r}; {hint}"


def _module(spec: str, target: str) -> ModuleType:
    is_file = target.endswith(".py") or target.startswith(".") or os.sep in target
    if is_file and not Path(target).is_file():
        what = "a folder" if Path(target).is_dir() else "not there"
        raise LoadError(
            spec, f"the file {target} is {what} (looked in {Path.cwd()}); check the path"
        )
    try:
        return _from_file(Path(target)) if is_file else _by_name(target)
    except ModuleNotFoundError as error:
        if error.name and (target == error.name or target.startswith(f"{error.name}.")):
            raise LoadError(
                spec,
                f"no module named {error.name!r} can be found; install it, run where it can be "
                f"imported, or write path/file.py:attribute",
            ) from None
        raise LoadError(spec, _raised(target, error)) from error
    except (Exception, SystemExit) as error:
        raise LoadError(spec, _raised(target, error)) from error


def _by_name(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    """The module in a file; modules beside it can be imported, as for a script."""
    path = path.resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    name = path.stem
    if name in sys.modules or not name.isidentifier():
        name = f"kernel_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path} is no Python source file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _raised(target: str, error: BaseException) -> str:
    return f"importing {target} raised {_last_line(error)}; import it alone to see more"


def _last_line(error: BaseException) -> str:
    """The exception and file:line of the frame that raised it."""
    text = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
    if isinstance(error, SyntaxError):
        return f"{text} at {error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    return f"{text} at {outside[-1].filename}:{outside[-1].lineno}" if outside else text
