"""House style that no linter knows, checked on the source itself.

Every finding is one line, ``file:line: what is wrong``.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
SHIPPED = ("ledger", "processors", "collectors", "schemas")
FIRST_PARTY = (*SHIPPED, "bench", "deploy", "tests")

#: Longest module and function, in lines. Tests are tables, so their modules may be longer.
MAX_MODULE = 400
MAX_TEST_MODULE = 800
MAX_FUNCTION = 70

#: What `ledger.core` may import; a module of the standard library that is not here has
#: a clock, randomness, I/O or the environment in it, or was not needed so far.
CORE_IMPORTS = frozenset(
    {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "math",
        "operator",
        "orjson",
        "pydantic",
        "re",
        "schemas",
        "string",
        "types",
        "typing",
    }
)

#: Calls that the core may not make: built-ins by name, others by the end of the dotted name.
CORE_BUILTINS = frozenset(
    {"__import__", "breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"}
)
CORE_CALLS = re.compile(
    r"(?:^|\.)(?:datetime\.(?:now|utcnow|today)|date\.today|time\.\w+|uuid\.\w+|uuid[1-8]"
    r"|random\.\w+|secrets\.\w+|os\.\w+)$"
)

# Put together from parts, so that this file does not find itself.
MARKERS = re.compile(
    r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b"
)
HOSTS = re.compile(
    "|".join(
        (
            r"py" + r"pi\.",
            r"python" + r"hosted\.",
            r"repo1?\." + r"maven\.",
            r"maven" + r"\.org",
            r"registry\." + r"npmjs",
            r"reg" + r"istry-1\.docker",
            r"proxy\." + r"golang",
        )
    )
)
MACHINE_PATHS = re.compile(r"(?<![\w.$}~-])/(?:work|root|home|Users)/" + r"\w")


def tracked() -> list[Path]:
    """Return the files that are or would be committed, as git sees them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError):
        # Not a checkout (a source archive): what is there, without what tools leave behind.
        return [
            path
            for path in ROOT.rglob("*")
            if path.is_file()
            and not any(
                part.startswith(".") or part == "__pycache__"
                for part in path.relative_to(ROOT).parts
            )
        ]
    names = listed.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def modules(*packages: str) -> list[Path]:
    """Return the Python files of packages, in order."""
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """Return the parsed module."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def at(path: Path, line: int, what: str) -> str:
    """Return one finding."""
    return f"{path.relative_to(ROOT)}:{line}: {what}"


def report(findings: list[str]) -> None:
    """Fail with all findings, one a line."""
    if findings:
        pytest.fail("\n" + "\n".join(findings), pytrace=False)


def imported(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of everything a module imports."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for an attribute chain; an empty string for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def test_the_core_imports_only_what_is_pure() -> None:
    """`ledger.core` sees the pure part of the standard library, pydantic, orjson and schemas."""
    report(
        [
            at(path, line, f"ledger.core may not import {name}")
            for path in modules("ledger/core")
            for line, name in imported(tree(path))
            if name.split(".")[0] not in CORE_IMPORTS and not name.startswith("ledger.core")
        ]
    )


def loaded(module: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what a module imports when it runs, wherever that stands: module and name in it."""
    for node in ast.iter_child_nodes(module):
        if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", one.name) for one in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names)
        yield from loaded(node)


def test_modules_import_one_another_in_one_direction() -> None:
    """Of two modules one rests on the other: neither needs the other to be read."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in modules("ledger", "collectors", "schemas")
    }
    graph = {
        name: {
            f"{module}.{one}" if f"{module}.{one}" in names else module
            for module, one in loaded(tree(path))
        }
        - {name}
        for name, path in names.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        report([" is imported by ".join(error.args[1])])


def test_the_core_reads_no_clock_and_nothing_else_from_outside() -> None:
    """No clock, randomness, environment, file or terminal, under whatever name."""
    findings = []
    for path in modules("ledger/core"):
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.Attribute, ast.Name)) and CORE_CALLS.search(dotted(node)):
                findings.append(at(path, node.lineno, f"ledger.core may not use {dotted(node)}"))
            if isinstance(node, ast.Call) and dotted(node.func) in CORE_BUILTINS:
                called = f"ledger.core may not call {dotted(node.func)}()"
                findings.append(at(path, node.lineno, called))
    report(findings)


def test_functions_fit_on_a_page() -> None:
    """No function has more than `MAX_FUNCTION` lines, decorators and docstring included."""
    findings = []
    for path in modules(*FIRST_PARTY):
        for node in ast.walk(tree(path)):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            length = (node.end_lineno or node.lineno) - first + 1
            if length > MAX_FUNCTION:
                findings.append(
                    at(path, first, f"{node.name}() has {length} lines, not {MAX_FUNCTION}")
                )
    report(findings)


def test_modules_hold_one_idea() -> None:
    """No module is longer than `MAX_MODULE` lines."""
    findings = []
    for path in modules(*FIRST_PARTY):
        limit = MAX_TEST_MODULE if path.is_relative_to(ROOT / "tests") else MAX_MODULE
        length = len(path.read_text(encoding="utf-8").splitlines())
        if length > limit:
            findings.append(at(path, length, f"the module has {length} lines, not {limit}"))
    report(findings)


def undocumented(path: Path) -> Iterator[str]:
    """Yield what is public in a module, on any level of classes, and has no docstring."""
    pending: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree(path))]
    if ast.get_docstring(tree(path)) is None:
        yield at(path, 1, "the module has no docstring")
    while pending:
        prefix, parent = pending.pop()
        for node in parent.body:
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            stands_for_another = any(
                dotted(each).endswith(("overload", "override", ".setter"))
                for each in node.decorator_list
            )
            if node.name.startswith("_") or stands_for_another:
                continue
            if ast.get_docstring(node) is None:
                yield at(path, node.lineno, f"{prefix}{node.name} has no docstring")
            if isinstance(node, ast.ClassDef):
                pending.append((f"{prefix}{node.name}.", node))


def test_everything_public_is_documented() -> None:
    """Every public module, class, method and function says what it means; every test too."""
    report([finding for path in modules(*FIRST_PARTY) for finding in undocumented(path)])


def test_modules_say_what_they_offer() -> None:
    """Every shipped module has `__all__`; packages and private modules need none."""
    findings = []
    for path in modules(*SHIPPED):
        if path.name.startswith("_"):
            continue
        names = {
            target.id
            for node in tree(path).body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        if "__all__" not in names:
            findings.append(at(path, 1, "the module has no __all__"))
    report(findings)


def test_faust_is_imported_in_one_module() -> None:
    """Only `processors.faust_app` knows Faust, so it can be replaced there."""
    home = ROOT / "processors" / "faust_app.py"
    report(
        [
            at(path, line, f"{name} is imported outside processors/faust_app.py")
            for path in modules(*SHIPPED)
            for line, name in imported(tree(path))
            if name.split(".")[0] in {"faust", "mode"} and path != home
        ]
    )


def test_no_file_holds_leftovers_or_knows_a_machine() -> None:
    """No leftover marker, no host of a package registry, no path of somebody's machine."""
    rules = {
        "a leftover marker": MARKERS,
        "a package registry's host": HOSTS,
        "an absolute path of one machine": MACHINE_PATHS,
    }
    findings = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an archive or an image
        for what, pattern in rules.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                findings.append(at(path, line, f"{what}: {match[0]!r}"))
    report(findings)
