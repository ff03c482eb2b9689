"""An example database of its own for each item, so that no two laws or kernels share entries."""

from collections.abc import Iterable

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase


class Namespaced(ExampleDatabase):
    """The directory database at *path*, every key prefixed by *prefix*."""

    def __init__(self, path: str, prefix: str) -> None:
        super().__init__()
        self._inner = DirectoryBasedExampleDatabase(path)
        self._prefix = prefix.encode() + b"\0"

    def save(self, key: bytes, value: bytes) -> None:
        self._inner.save(self._prefix + key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._inner.fetch(self._prefix + key)

    def delete(self, key: bytes, value: bytes) -> None:
        self._inner.delete(self._prefix + key, value)
