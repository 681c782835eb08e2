"""docs/cli.md, the help, and every command line that documents or messages show, say the same."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_reference import MARK, PAGE, parameters, reference
from command_line import Tamis, commands

from tamis import cli

ROOT = Path(__file__).parents[2]

#: Where commands are named: documents, and the package's messages, docstrings and model cards.
TEXTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "src").rglob("*.md")),
]


def squeezed(text: str) -> str:
    """A text without its white space: help is wrapped where the terminal ends."""
    return re.sub(r"\s+", "", text)


def test_the_page_is_what_the_commands_declare() -> None:
    """`make docs` writes it anew."""
    _, mark, written = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark == MARK
    assert written == f"\n{reference()}"


def test_the_page_names_the_options_of_tamis_itself(tamis: Tamis) -> None:
    above = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", tamis("--help").out, re.MULTILINE))
    assert options == {"--verbose", "--version", "--help", "--install-completion", "--show-completion"}
    for option in options:
        assert re.search(rf"`tamis (COMMAND )?{option}", above), option


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_the_help_shows_what_the_page_shows_and_nothing_else(tamis: Tamis, command: str) -> None:
    done = tamis(*command.split(), "--help")
    assert (done.code, done.err) == (0, "")
    printed, shown = done.out, squeezed(done.out)
    about, _, example = (cli.COMMANDS[command].__doc__ or "").partition("Example: tamis ")
    assert squeezed(about) in shown
    assert example.startswith(command)  # the page shows it in a block, and that it is understood is tested below
    assert "Example: tamis" in printed
    declared = list(parameters(command))
    for one in declared:
        default = "[required]" if one.default == "required" else f"[default:{one.default}" if one.default else ""
        assert squeezed(one.about) + squeezed(default) in shown, one
        for name in one.names or (one.value,):
            assert re.search(rf"^  .*{re.escape(name)}(?![\w-])", printed, re.MULTILINE), one
    rows = re.findall(r"^  (?:-\w, )?(--[\w-]+)", printed, re.MULTILINE)
    assert sorted(rows) == sorted(["--help", *(one.names[0] for one in declared if one.names)])


@pytest.mark.parametrize("command", ["", *cli.GROUPS])
def test_a_groups_help_lists_its_commands_with_their_first_sentences_whole(tamis: Tamis, command: str) -> None:
    shown = squeezed(tamis(*command.split(), "--help").out)
    inside = [typed for typed in cli.COMMANDS if typed.rpartition(" ")[0] == command]
    assert inside != []
    for typed in inside:
        summary = (cli.COMMANDS[typed].__doc__ or "").partition("\n\n")[0]
        assert typed.rpartition(" ")[2] + squeezed(summary) in shown


def test_the_registry_is_what_can_be_typed() -> None:
    assert list(commands()) == list(cli.COMMANDS)
    assert {typed.partition(" ")[0] for typed in cli.COMMANDS if " " in typed} == set(cli.GROUPS)


def in_backticks(text: str) -> Iterator[str]:
    """What follows "tamis" in `tamis ...`, also over the end of a line, and where a message is put together."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r'"\n\s+f?"', "", text)
    text = re.sub(r"\n\s*(?:#:?)?\s*", " ", text)
    return (found[1] for found in re.finditer(r"`tamis ([a-z][^`]*)`", text))


def in_blocks(text: str) -> Iterator[str]:
    """What follows "tamis" in lines of code blocks."""
    for block in re.findall(r"^```(?:sh|bash|)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from re.findall(r"^tamis (.*)$", block, re.MULTILINE)


def named(line: str) -> str:
    """The command at the beginning of a line: "lab make-pool --pairs 9" names "lab make-pool"."""
    words = line.split()
    return next((name for name in (" ".join(words[:2]), words[0]) if name in cli.COMMANDS or name in cli.GROUPS), "")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_texts_name_exist_with_the_options_they_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for line in in_backticks(text):
        command = named(line)
        assert command in cli.COMMANDS or line in cli.GROUPS, f"{path.name}: there is no command `tamis {line}`"
        known = {name for one in commands()[command].params for name in one.opts} if command in cli.COMMANDS else set()
        assert set(re.findall(r"(?<!\S)--?[a-z][\w-]*", line)) <= known | {"--help"}, line


@pytest.mark.parametrize("path", [path for path in TEXTS if path.suffix == ".md"], ids=lambda path: path.name)
def test_command_lines_in_code_blocks_are_understood(path: Path) -> None:
    for line in in_blocks(path.read_text(encoding="utf-8")):
        command = named(line)
        assert command in cli.COMMANDS, f"{path.name}: there is no command `tamis {line}`"
        words = shlex.split(line)[len(command.split()) :]
        commands()[command].make_context(command, words)  # a wrong option or a missing argument raises
