"""The demo's data: the documentation of the Python standard library, by introspection.

Nothing is bundled or downloaded; the rows are what this machine's own Python says of itself.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

# Modules that do something when imported (open a browser, print a poem), need a screen, or are
# tests and tools rather than library.
_LEFT_OUT = frozenset(
    {"antigravity", "this", "idlelib", "turtle", "turtledemo", "tkinter", "lib2to3"}
    | {"pydoc_data", "test", "ensurepip", "venv", "distutils", "msilib", "nt", "winreg"}
)


@dataclass(frozen=True, slots=True)
class Doc:
    """One documented thing of the standard library."""

    name: str
    """Its qualified name: the key."""
    module: str
    kind: str
    signature: str
    doc: str


def standard_library() -> list[Doc]:
    """Return what the standard library documents, ordered by name."""
    found: dict[str, Doc] = {}
    # Looking at what is deprecated is no use of it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
            if not name.startswith("_") and (module := _import(name)) is not None:
                for doc in _documented(module):
                    found.setdefault(doc.name, doc)
    return [found[name] for name in sorted(found)]


def _import(name: str) -> ModuleType | None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return importlib.import_module(name)
        except (ImportError, OSError):
            # Optional parts of the library that this Python was built without.
            return None


def _documented(module: ModuleType) -> Iterator[Doc]:
    if module.__doc__:
        yield Doc(module.__name__, module.__name__, "module", "", inspect.cleandoc(module.__doc__))
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            yield from _entry(module, f"{module.__name__}.{name}", "class", value)
            for method, function in sorted(vars(value).items()):
                if not method.startswith("_") and callable(function):
                    qualified = f"{module.__name__}.{name}.{method}"
                    yield from _entry(module, qualified, "method", function)
        elif callable(value):
            yield from _entry(module, f"{module.__name__}.{name}", "function", value)


def _entry(module: ModuleType, name: str, kind: str, value: object) -> Iterator[Doc]:
    doc = getattr(value, "__doc__", None)
    if isinstance(doc, str) and doc.strip():
        yield Doc(name, module.__name__, kind, _signature(value), inspect.cleandoc(doc))


def _signature(value: object) -> str:
    try:
        return str(inspect.signature(value))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return ""
