"""Writes what the docs take from the code: the reference, and the examples in the how-to pages.

`python docs/generate.py` (`make docs`) brings the pages up to date; a test fails when they are not.
An *inclusion* is a fenced block behind a line `<!-- file: PATH -->`: it holds that file, verbatim.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import click

from iscp_dagster import errors, settings
from iscp_dagster.cli.main import cli

DOCS = Path(__file__).parent
_LANGUAGES = {".py": "python", ".toml": "toml"}
_INCLUSION = re.compile(r"<!-- file: (?P<path>\S+) -->\n+(?:```.*?\n```\n+)?", re.DOTALL)
_SETTING = re.compile(r"`(?P<variable>[A-Z_]+)`: (?P<text>.+)", re.DOTALL)
_HEAD = """\
# Reference

Generated from the code by `make docs`; edits here are lost.

- [Commands](#commands)
- [Settings](#settings)
- [Error codes](#error-codes)
"""


def pages() -> dict[Path, str]:
    """Return each page that takes something from the code, as it has to be."""
    included = {page: _included(page) for page in sorted(DOCS.glob("*.md"))}
    return {**included, DOCS / "reference.md": reference()}


def reference() -> str:
    """Return the reference of commands, settings and error codes."""
    lines = [_HEAD, "## Commands\n", _command_help(cli)]
    for path, command in _commands(cli):
        lines += [f"### `iscp {' '.join(path)}`\n", *_command(path, command)]
    lines += ["## Settings\n", "Read from the environment, once, when a process starts.\n"]
    lines += _table(("variable", "what it is"), _settings())
    lines += ["## Error codes\n", _ERRORS_HEAD]
    lines += _table(("code", "name", "meaning", "what to do"), _errors())
    return "\n".join(lines).rstrip() + "\n"


_ERRORS_HEAD = (
    "1-9999 are temporary: tried again by themselves, after 5 s, doubling to 5 min. "
    f"{errors.PERMANENT_FROM} and above are permanent: the job stays in state `error` until "
    "`iscp repair`; as the answer to a command they mean that nothing was written.\n"
)


def _commands(
    group: click.Group, prefix: Sequence[str] = ()
) -> Iterator[tuple[list[str], click.Command]]:
    for name, command in sorted(group.commands.items()):
        path = [*prefix, name]
        if isinstance(command, click.Group):
            yield from _commands(command, path)
        else:
            yield path, command


def _command(path: Sequence[str], command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(("iscp", *path)))
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"```text\niscp {' '.join(path)} {pieces}\n```\n"
    yield _command_help(command)
    options = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        and "--help" not in parameter.opts
        and (record := parameter.get_help_record(context))
    ]
    if options:
        yield from _table(("option", "meaning"), [(f"`{name}`", text) for name, text in options])


def _command_help(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs) + "\n"


def _settings() -> Iterator[tuple[str, str]]:
    """Read the texts behind the fields of `Settings`; only the source has them."""
    tree = ast.parse(inspect.getsource(settings))
    (body,) = [
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == settings.Settings.__name__
    ]
    for field, text in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(text, ast.Expr):
            continue
        found = _SETTING.fullmatch(" ".join(str(ast.literal_eval(text.value)).split()))
        if found is None:
            raise ValueError(f"settings.py: line {text.lineno} does not begin with its variable")
        default = "" if field.value is None else _default(field.value)
        yield f"`{found['variable']}`", found["text"].removesuffix(".") + default + "."


def _default(value: ast.expr) -> str:
    """Say a default that the text itself does not tell: those that are plain values."""
    if isinstance(value, ast.Constant) and value.value not in (None, ""):
        return f"; default `{value.value}`"
    return ""


def _errors() -> list[tuple[str, str, str, str]]:
    bases = (errors.IscpError, errors.TemporaryError, errors.PermanentError)
    found = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.IscpError) and value not in bases
    ]
    return [
        (str(error.code), f"`{error.__name__}`", _first_paragraph(error), _cure(error))
        for error in sorted(found, key=lambda error: error.code)
    ]


def _cure(error: type[errors.IscpError]) -> str:
    """Return what to do; an error without a cure of its own says it in its message."""
    again = "" if error.code >= errors.PERMANENT_FROM else "wait: it is tried again by itself; "
    return error.cure or f"{again}see the message"


def _first_paragraph(error: type[errors.IscpError]) -> str:
    return " ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [_row(head), f"|{' --- |' * len(head)}", *map(_row, rows)]
    return ["\n".join(lines), ""]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _included(page: Path) -> str:
    def replaced(found: re.Match[str]) -> str:
        path = found["path"]
        text = (DOCS / path).read_text(encoding="utf-8").rstrip()
        return f"<!-- file: {path} -->\n\n```{_LANGUAGES[Path(path).suffix]}\n{text}\n```\n\n"

    return _INCLUSION.sub(replaced, page.read_text(encoding="utf-8"))


def main() -> None:
    """Write the pages that changed."""
    for page, text in pages().items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            click.echo(f"wrote {page.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
