"""The engine is read in one sitting: its size is bounded, file by file and in all."""

import ast
import io
import tokenize
from pathlib import Path

import sojourn_runtime

ROOT = Path(sojourn_runtime.__file__).parent
PARTS = (
    *("detokenize", "hooks", "keeper", "mover", "pulse", "session", "account", "stats", "stream"),
    "worker",
)
"""What plans, steps, moves and lives, beside `engine/`; not the models and their kernels, the
server, the formats of the store, or the commands."""
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


def engine_files() -> list[Path]:
    return [*sorted((ROOT / "engine").glob("*.py")), *(ROOT / f"{part}.py" for part in PARTS)]


def code_lines(text: str) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_the_engine_has_at_most_2500_lines_of_code() -> None:
    assert sum(code_lines(path.read_text()) for path in engine_files()) <= 2500


def test_each_file_of_the_pure_core_has_about_300_lines_at_most() -> None:
    sizes = {
        path.name: len(path.read_text().splitlines())
        for path in (ROOT / "engine").iterdir()
        if path.suffix == ".py"
    }
    assert max(sizes.values()) <= 310, sizes


def test_lines_are_counted_without_words() -> None:
    assert code_lines('"""Words."""\n\n# more\na = (\n    1\n)\n') == 3
