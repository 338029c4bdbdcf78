"""The measures of STYLE.md that a machine can take. What is over a measure today is listed, and may only shrink."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("kbroker", "protocol")
CHECKED = (*PACKAGES, "tests", "compat_tests", "benchmarks")

FUNCTION_LINES = 70

# The ratchet: name -> lines. An entry leaves when its subject fits; it never grows, and none is added.
LONG_FUNCTIONS: dict[str, int] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef
N = TypeVar("N", bound=ast.AST)


@pytest.fixture(autouse=True, scope="module")
def _without_collector() -> Iterator[None]:
    """The trees of all files are kept: to look for garbage among them again and again takes as long as the rest.

    They go with the last test here, for the collector is what later tests ask.
    """
    gc.disable()
    yield
    tree_of.cache_clear()
    _by_kind.cache_clear()
    gc.enable()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def modules(*folders: str) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path


def nodes(path: Path, *kinds: type[N]) -> Iterator[N]:
    """Those of some kinds in a file."""
    found = _by_kind(path)
    return (node for kind in kinds for node in cast("list[N]", found[kind]))


@cache
def _by_kind(path: Path) -> defaultdict[type[ast.AST], list[ast.AST]]:
    """A file's nodes, gone through once for all tests here."""
    found: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree_of(path)):
        found[type(node)].append(node)
    return found


def over(found: dict[str, int], measure: int, allowed: dict[str, int]) -> list[str]:
    return [f"{name}: {lines} lines" for name, lines in found.items() if lines > allowed.get(name, measure)]


def slack(found: dict[str, int], measure: int, allowed: dict[str, int]) -> list[str]:
    return [
        f"{name}: listed with {lines}, has {found.get(name, 0)}"
        for name, lines in allowed.items()
        if found.get(name, 0) < lines or lines <= measure
    ]


@cache
def function_lengths() -> dict[str, int]:
    return {
        f"{name}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, path in modules(*CHECKED)
        for node in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef)
    }


def test_no_function_is_over_its_measure() -> None:
    assert over(function_lengths(), FUNCTION_LINES, LONG_FUNCTIONS) == []


def test_the_list_of_exceptions_only_shrinks() -> None:
    assert slack(function_lengths(), FUNCTION_LINES, LONG_FUNCTIONS) == []


def undocumented(name: str, body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Public classes and functions without a docstring, methods included; overloads and properties' setters apart."""
    for node in body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
        if ast.get_docstring(node) is None and not decorators & {"overload", "setter", "override"}:
            yield f"{name}: {prefix}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from undocumented(name, node.body, f"{prefix}{node.name}.")


def test_every_public_name_has_a_docstring() -> None:
    assert [each for name, path in modules(*PACKAGES) for each in undocumented(name, tree_of(path).body)] == []


def test_every_file_opens_with_what_it_owns() -> None:
    assert [name for name, path in modules(*CHECKED) if path.read_text() and not ast.get_docstring(tree_of(path))] == []


def test_no_module_is_named_utils() -> None:
    shapeless = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert [name for name, path in modules(*CHECKED) if path.stem in shapeless or path.parent.name in shapeless] == []


def test_the_classes_of_a_broker_are_made_cheaply() -> None:
    """By `protocol/namedtuple.py`: two hundred of `typing.NamedTuple` would be a quarter of a start."""
    dear = [
        name
        for name, path in modules(*PACKAGES)
        for node in nodes(path, ast.ImportFrom)
        if node.module == "typing"
        if "NamedTuple" in [each.name for each in node.names]
    ]
    assert dear == ["protocol/namedtuple.py"]


def test_no_text_names_a_module_that_has_another_name_in_a_wheel() -> None:
    """In a wheel, protocol is kbroker.protocol, and only imports are rewritten: docs/decisions/0016."""
    named = [
        f"{name}:{node.lineno}: {node.value!r}"
        for name, path in modules(*PACKAGES)
        for node in nodes(path, ast.Constant)
        if isinstance(node.value, str)
        if re.fullmatch(r"protocol(\.\w+)+", node.value)
    ]
    assert named == []


def imports(path: Path, module: str, known: set[str]) -> Iterator[str]:
    """Modules of ours that importing this one imports; not those inside functions or under TYPE_CHECKING."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    pending: list[ast.AST] = list(tree_of(path).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], base]).rstrip(".")
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield from ((submodule,) if submodule in known else (base,) if base in known else ())
        elif not isinstance(node, Function | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def import_graph() -> dict[str, set[str]]:
    paths = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for name, path in modules(*PACKAGES)
    }
    known = set(paths)
    return {module: set(imports(path, module, known)) - {module} for module, path in paths.items()}


def a_cycle(graph: dict[str, set[str]]) -> list[str]:
    """One cycle of imports, or an empty list."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        for other in sorted(graph[module]):
            if found := visit(other):
                return found
        path.pop()
        done.add(module)
        return []

    for module in sorted(graph):
        if found := visit(module):
            return found
    return []


def test_no_imports_run_in_a_circle() -> None:
    assert a_cycle(import_graph()) == []


KNOWS_ROWS = re.compile(r"\b(Flat|FlatRequest|HeaderTuple|FactsTuple)\b")
ROWS = {"header", "facts", "request", "response", "topic", "partition", "part", "data", "answer", "asked", "span"}
LOOPS = {f"protocol/records/{each}.py" for each in ("_walker", "_converter", "_cleaner")}  # `data` is bytes there


def numbered(path: Path) -> Iterator[str]:
    """Where a row's field is read by its number, or a row is taken apart into blanks.

    A row is what has one of the names that rows have here. Two blanks and more, or a blank and a star, are
    counted fields; one blank in a pair or a triple is none of that.
    """
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2].lstrip("_") in ROWS:
            numbers = [each for each in ast.walk(node.slice) if isinstance(each, ast.Constant)]
            is_last = isinstance(node.slice, ast.UnaryOp)  # [-1], of bytes or a list
            if not is_last and any(isinstance(each.value, int) for each in numbers):
                yield f"{node.lineno}: {ast.unparse(node)}"
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Tuple):
                parts = list(ast.walk(target))
                blanks = sum(isinstance(each, ast.Name) and each.id == "_" for each in parts)
                if blanks > 1 or (blanks and any(isinstance(each, ast.Starred) for each in parts)):
                    yield f"{target.lineno}: {ast.unparse(target)}"


def test_fields_of_rows_are_read_by_their_names() -> None:
    """Of batch headers, of what the walker tells, of flat messages: `protocol/flat.py`, `protocol/records/batch.py`.

    The pipeline apart, which has its own small client.
    """
    found = [
        f"{name}:{each}"
        for name, path in modules(*PACKAGES)
        if not name.startswith("kbroker/pipeline/") and name not in LOOPS and KNOWS_ROWS.search(path.read_text())
        for each in numbered(path)
    ]
    assert found == []


def test_a_number_in_place_of_a_name_is_found(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(
        "header[9]\nself._answer[2:4]\n_, acks, _, topics = request\n_, end = pair\nlines[2]\n*_, last = row\n"
    )
    assert sorted(each.partition(":")[0] for each in numbered(path)) == ["1", "2", "3", "6"]


SPEAKS_TO_PEERS, ASKS_OTHERS = re.compile(r"peers\.send\("), re.compile(r"requester\.ask\(")


def test_the_map_names_everybody_who_speaks_to_other_brokers() -> None:
    texts = {name: path.read_text() for name, path in modules("kbroker")}
    assert [name for name, text in texts.items() if SPEAKS_TO_PEERS.search(text)] == ["kbroker/metadata/requester.py"]
    senders = {name for name, text in texts.items() if ASKS_OTHERS.search(text)}
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("## Between brokers")[2]
    rows = re.findall(r"^\| `.*$", table, re.MULTILINE)
    assert senders == {f"kbroker/{each}" for row in rows for each in re.findall(r"`([a-z_/]+\.py)`", row)}


MAY_SLEEP = {
    "kbroker/runtime/switched_disk.py",  # a slow disk is what a test has asked for
    "kbroker/testing/_helpers.py",  # asks other threads' brokers again and again until a test's wait is over
}


def test_nothing_sleeps() -> None:
    def calls(path: Path) -> list[int]:
        return [
            node.lineno
            for node in nodes(path, ast.Call)
            if "sleep" in (getattr(node.func, "attr", ""), getattr(node.func, "id", ""))
        ]

    found = [(name, line) for name, path in modules(*PACKAGES, "tests") for line in calls(path)]
    assert [f"{name}:{line}" for name, line in found if name not in MAY_SLEEP] == []


def test_the_map_names_nothing_that_is_gone() -> None:
    """Every file that ARCHITECTURE.md names in code marks, by its path or by its name alone, exists."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    there = {name for name, _ in modules(*CHECKED)}
    named = set(re.findall(r"[a-z_/]*[a-z_]+\.py\b", text))
    assert [name for name in sorted(named) if not any(f"/{each}".endswith(f"/{name}") for each in there)] == []


def test_the_glossary_finds_each_term_where_it_says() -> None:
    rows = re.findall(r"^\| (.*) \| `(.*)` \| (.*) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    lost = [
        f"{term}: {word} in {file}"
        for term, file, words in rows
        for word in re.findall(r"`(.*?)`", words)
        if not (ROOT / file).is_file() or word.lower() not in (ROOT / file).read_text().lower()
    ]
    assert rows
    assert lost == []


def test_the_pages_link_to_pages_that_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert dead == []


def test_the_pages_name_what_is_in_the_files_that_they_link() -> None:
    """[`Name`](file.py): a function, a class, or a method by its class, of that file."""
    gone = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for name, link in re.findall(r"\[`([\w.]+)`\]\(([^)#:]+\.py)\)", page.read_text()):
            body: list[ast.stmt] = tree_of(page.parent / link).body
            for part in name.split("."):
                found = [node for node in body if getattr(node, "name", "") == part]
                if not found:
                    gone.append(f"{page.relative_to(ROOT)}: {name} of {link}")
                    break
                body = getattr(found[0], "body", [])
    assert gone == []


def test_the_pages_name_files_that_are_there() -> None:
    """`file.py` in code marks, by its path or the end of it. Not in docs/decisions, which tell of what was."""
    there = [f"/{name}" for name, _ in modules(*CHECKED)]
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text())
        if not any(each.endswith(f"/{name}") for each in there)
    ]
    assert gone == ["docs/codecs.md: rle.py"]  # its example's


def test_the_pages_link_to_headings_that_are_there() -> None:
    dead = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            headings = re.findall(r"^#+ (.*)$", (page.parent / link if link else page).read_text(), re.MULTILINE)
            if anchor not in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]:
                dead.append(f"{page.relative_to(ROOT)}: {link}#{anchor}")
    assert dead == []


SURFACE = {
    "at_rest",
    "connection_wait_ms",
    "effects",
    "figures",
    "gathers",
    "health",
    "open",
    "receive",
    "step",
    "topic_name",
    "watch",
}
"""Of the core, for who drives it."""

OF_CHANNELS = {
    "busy", "closing", "full", "held_bytes", "login", "most_frame_bytes", "muted", "out", "pending", "sent",
    "session", "unsent_bytes", "written",
}  # fmt: skip
"""Likewise, of a connection."""


def drivers(*folders: str) -> Iterator[tuple[str, ast.Attribute, str]]:
    """Every attribute of a core or a channel that these use, and which of the two it is of."""
    for name, path in modules(*folders):
        for node in nodes(path, ast.Attribute):
            of = ast.unparse(node.value).rpartition(".")[2].removeprefix("_")
            if of in ("core", "channel", "within"):
                yield f"{name}:{node.lineno}: {ast.unparse(node)}", node, "core" if of == "core" else "channel"


def test_who_drives_the_core_knows_its_surface_alone() -> None:
    found = list(drivers("kbroker/runtime", "kbroker/sim", "kbroker/testing", "kbroker/cli", "kbroker/faults"))
    allowed = {"core": SURFACE, "channel": OF_CHANNELS}
    beyond = [where for where, node, of in found if node.attr not in allowed[of]]
    assert (beyond, len(found) > 50) == ([], True)


def test_no_core_is_made_of_another_core() -> None:
    heirs = [
        f"{name}: {node.name}"
        for name, path in modules("kbroker")
        for node in nodes(path, ast.ClassDef)
        if {"Core", "Effects"} & {ast.unparse(base) for base in node.bases}
    ]
    assert heirs == []
