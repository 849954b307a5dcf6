"""The pages that a newcomer reads first say what the code has: the README, and the dependencies."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "dependencies.md").read_text()
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("[!.]*/**/*.md"))
    if "build" not in path.relative_to(ROOT).parts
)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PLUGINS = "pytest and its plugins "
INSTALLED_APART = {"torch", "triton"}  # the second comes with the first
OTHERS = {"operator", "deviceplugin", "runtime", "gateway", "dev"}
"""Extras of which a component has its own at most."""
HOMES = {"gateway": "runtime"}
"""Components that lie in another one's folder."""
GENERATOR = "generate.py"
"""Of the gRPC code: a developer's tool that lies beside what it makes."""


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares them, without the versions that are asked for."""
    return re.sub(r"[-_.]+", "-", re.split("[<>=!~]", name)[0]).lower()


def rows() -> list[tuple[tuple[str, ...], str]]:
    """The libraries of each row, and its extras as written."""
    found = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", PAGE, re.MULTILINE)
    return [(libraries(cell), extras) for cell, extras in found if cell not in {"library", "---"}]


def libraries(cell: str) -> tuple[str, ...]:
    if cell.startswith(PLUGINS):
        return ("pytest", *(f"pytest-{name}" for name in cell.removeprefix(PLUGINS).split(", ")))
    return tuple(normal(name) for name in cell.split(", "))


def covers(name: str, library: str) -> bool:
    return library.startswith(name.removesuffix("*")) if name.endswith("*") else library == name


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_library_of_an_extra_has_a_row_that_names_the_extra(extra: str) -> None:
    named = [name for names, extras in rows() if extra in extras.split(", ") for name in names]
    missing = [
        library
        for library in map(normal, EXTRAS[extra])
        if not any(covers(name, library) for name in named)
    ]
    assert not missing


def test_every_row_is_a_dependency() -> None:
    direct = {normal(library) for found in EXTRAS.values() for library in found}
    strange = [
        name
        for names, _ in rows()
        for name in names
        if name not in INSTALLED_APART and not any(covers(name, library) for library in direct)
    ]
    assert not strange


def test_every_direct_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    direct = {normal(library) for found in EXTRAS.values() for library in found}
    assert not (direct | INSTALLED_APART) - pinned


def imported(component: str) -> Iterator[str]:
    """Top-level names of what a component's product code imports, but for ours and Python's."""
    home = HOMES.get(component, component)
    files = (ROOT / home / f"sojourn_{component}").rglob("*.py")
    for path in (path for path in files if path.name != GENERATOR):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            roots = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
            yield from (root for root in roots if not root.startswith("sojourn_"))


@pytest.mark.parametrize("component", ["operator", "deviceplugin", "runtime", "gateway"])
def test_an_extra_has_what_its_component_imports_and_nothing_else(component: str) -> None:
    """Beside it there may be extras of parts that not everybody needs."""
    homes = {**packages_distributions(), "google": ["protobuf"]}  # a folder that many share
    needed = [
        {normal(home) for home in homes.get(name, [name])} for name in set(imported(component))
    ]
    declared = {
        normal(name)
        for extra in EXTRAS
        if extra not in OTHERS - {component}
        for name in EXTRAS[extra]
    }
    assert not [homes for homes in needed if not homes & (declared | INSTALLED_APART)]
    assert not set(map(normal, EXTRAS[component])) - set().union(*needed)


def test_every_debian_package_that_the_makefile_installs_is_named() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    wanted = re.findall(r"^DEBIAN := (.+)$", makefile, re.MULTILINE)[0].split()
    named = re.findall(r"[\w+-]+", PAGE.partition("Debian packages")[2])
    assert not set(wanted) - set(named)


def anchors(page: Path) -> set[str]:
    """What a link may name after `#`, as code hosts make it of a heading."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text()))
    for link in (link for link in links if "://" not in link):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    folders = "|".join(sorted(path.name for path in ROOT.iterdir() if path.is_dir()))
    named = re.findall(rf"(?<![\w/.-])(?:{folders})/[\w./-]*[\w/]", page.read_text())
    made = ("build/", "docs/deviceplugin")
    assert not [name for name in named if not name.startswith(made) and not (ROOT / name).exists()]


def test_the_readme_shows_the_columns_that_kubectl_prints() -> None:
    crd = yaml.safe_load((ROOT / "crds" / "llmsessions.yaml").read_text())
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    printed = ["NAME", *(one["name"].upper() for one in columns if not one.get("priority"))]
    header, line = re.findall(r"kubectl get llms .*\n(NAME .*)\n(.*)\n", README)[0]
    assert header.split() == printed
    begins = [match.start() for match in re.finditer(r"\S+", header)]
    assert all(line[at - 1 : at] in {"", " "} and line[at] != " " for at in begins)


def test_the_readme_shows_the_session_of_the_examples() -> None:
    shown = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)[0])
    assert shown == yaml.safe_load((ROOT / "examples" / "silver-session.yaml").read_text())
