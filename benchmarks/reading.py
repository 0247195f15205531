"""What one reads from script to gradient, agent by agent: files and lines; and what two agents' files share.

    python benchmarks/reading.py          # writes docs/agents/reading.md

Counted as read are: `experiment/local.py`, whose loop a script's `agentkit.run` starts, `learning/learner.py`, which
calls the update, the agent's own file, and of the package what the agent's file builds its update from, over any
number of imports: agents' shared files, `learning/` and `losses/`. Not counted: networks, adders, replay and actors, in
Acme's count neither. Lines are all lines of a file.
"""

from __future__ import annotations

import ast
import collections
import difflib
import itertools
import pathlib
from collections.abc import Iterator

from agentkit.agents import registry

PACKAGE = pathlib.Path(registry.__file__).parents[1]
DOCS = PACKAGE.parent / "docs" / "agents"
ALWAYS = ("experiment/local.py", "learning/learner.py")
# Small files that hold no part of the flow: checks of settings, re-exports, a rate, what a checkpoint holds.
NO_FLOW = {
    "agents/checks.py",
    "learning/__init__.py",
    "learning/replay_ratio.py",
    "learning/state_arrays.py",
    "losses/__init__.py",
}

_TEXT = """# What there is to read

Made by `benchmarks/reading.py`, which says what is counted. For comparison, DQN is 22 files and 4,541 lines in Acme,
2 files and 879 lines in CleanRL.

{rows}

## What two agents' files share

Equal lines in the same order, without imports, blank lines and lone brackets, and their share of both files' lines.
{over} of {num} pairs share a quarter or more; {beyond} do where the {form} lines are left out that at least a
quarter of all agents' files have (headings, signatures, and the like):

{pairs}"""


def defining_file(folder: str, name: str) -> str | None:
    """The file of `learning` or `losses` that defines a name."""
    for path in sorted((PACKAGE / folder).glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            targets = [t.id for t in node.targets if isinstance(t, ast.Name)] if isinstance(node, ast.Assign) else []
            if getattr(node, "name", None) == name or name in targets:
                return f"{folder}/{path.name}"
    return None


def reads(file: str) -> Iterator[str]:
    """The files of agents, learning and losses that a file uses names of."""
    tree = ast.parse((PACKAGE / file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[:2] == ["agentkit", "agents"]:
                names = [parts[2]] if len(parts) == 3 else [alias.name for alias in node.names]
                yield from (f"agents/{name}.py" for name in names)
            elif parts[0] == "agentkit" and parts[1:2] and parts[1] in ("learning", "losses"):
                for alias in node.names:
                    found = f"{parts[1]}/{parts[2]}.py" if len(parts) == 3 else defining_file(parts[1], alias.name)
                    if found:
                        yield found
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("losses", "learning")
        ):
            found = defining_file(node.value.id, node.attr)
            if found:
                yield found


def files_to_read(agent: str) -> list[str]:
    """All of them, the agent's own first."""
    found = [f"agents/{agent}.py"]
    for file in found:
        found += [other for other in dict.fromkeys(reads(file)) if other not in found and other not in NO_FLOW]
    return list(dict.fromkeys([*found, *ALWAYS]))


def num_lines(file: str) -> int:
    return len((PACKAGE / file).read_text().splitlines())


def code_lines(agent: str) -> list[str]:
    """An agent's lines without imports, blank lines and lone brackets."""
    source = registry.file(agent).read_text()
    imports = {
        number
        for node in ast.parse(source).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = [line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in imports]
    return [line for line in lines if line not in ("", ")", '"""')]


def common_form(lines: dict[str, list[str]]) -> set[str]:
    """Lines that at least a quarter of the agents' files have: headings, signatures, the interface they all keep to."""
    counts = collections.Counter(line for own in lines.values() for line in set(own))
    return {line for line, count in counts.items() if 4 * count >= len(lines)}


def share(one: list[str], other: list[str]) -> tuple[float, int]:
    """Equal lines as a share of both files' lines, and their number."""
    number = shared(one, other)
    return 2 * number / (len(one) + len(other)), number


def shared(one: list[str], other: list[str]) -> int:
    """Lines that are the same, in the same order."""
    blocks = difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)


def main() -> None:
    rows = ["| agent | files | lines | own file | which |", "|---|---|---|---|---|"]
    for agent in registry.names():
        files = files_to_read(agent)
        names = ", ".join(f"`{file}`" for file in files)
        rows.append(f"| {agent} | {len(files)} | {sum(map(num_lines, files)):,} | {num_lines(files[0])} | {names} |")
    lines = {agent: code_lines(agent) for agent in registry.names()}
    form = common_form(lines)
    own = {agent: [line for line in all_of_it if line not in form] for agent, all_of_it in lines.items()}
    pairs = []
    for one, other in itertools.combinations(lines, 2):
        pairs.append((*share(lines[one], lines[other]), *share(own[one], own[other]), one, other))
    pairs.sort(reverse=True)
    table = ["| agents | equal lines | share | beyond the common form | share |", "|---|---|---|---|---|"]
    table += [f"| {one}, {other} | {n} | {s:.2f} | {m} | {t:.2f} |" for s, n, t, m, one, other in pairs[:20]]
    over, beyond = (sum(pair[i] >= 0.25 for pair in pairs) for i in (0, 2))
    text = _TEXT.format(
        rows="\n".join(rows), over=over, beyond=beyond, form=len(form), num=len(pairs), pairs="\n".join(table)
    )
    (DOCS / "reading.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
