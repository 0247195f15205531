"""Adds to the site what is no page of docs/: the reference, examples, notebooks and the repository's own documents.

Links of pages lead to files of the repository, as they do where the pages are read there. This rewrites each to the
page that the site has for the file: the reference for a module, else a page that shows the file's text.
"""

from __future__ import annotations

import ast
import base64
import json
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
SHOWN = ("examples/**/*.py", "examples/**/*.ipynb", "launch/*", "benchmarks/**/*.py", "benchmarks/*.md", "*.md")
SHOWN += ("examples/**/*.toml", "examples/**/*.md", "agentkit/README.md", "requirements/*.sh")
SHOWN += ("tests/agents/test_composition.py",)
LANGUAGES = {".py": "python", ".sh": "bash", ".sbatch": "bash", ".toml": "toml", ".yaml": "yaml"}
HIDDEN = ("agentkit.cli", "agentkit.distributed.worker", "agentkit.distributed.guard")
_LINK = re.compile(r"(?<!\\)(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


# What there is ---------------------------------------------------------------------------------------


def modules() -> list[str]:
    """Returns the names of the package's public modules."""
    found = []
    for path in sorted((ROOT / "agentkit").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        if not any(part.startswith("_") for part in name.split(".")) and not name.startswith(HIDDEN):
            found.append(name)
    return found


def shown_files() -> dict[str, str]:
    """Returns the page of each file that is shown as text: from paths in the repository to paths in the site."""
    found = {path.relative_to(ROOT).as_posix() for pattern in SHOWN for path in ROOT.glob(pattern) if path.is_file()}
    return {name: f"files/{name.removesuffix('.md').removesuffix('.ipynb')}.md" for name in sorted(found)}


def folder_pages() -> dict[str, str]:
    """Returns the page that lists a folder of shown files, for each that has no README."""
    names = {str(PurePosixPath(name).parent) for name in shown_files()} - {"."}
    return {name: f"files/{name}/index.md" for name in sorted(names) if not (ROOT / name / "README.md").exists()}


def page_of(path: str) -> str | None:
    """Returns the site's page of a file or folder of the repository, both named from their roots; None without one."""
    full = ROOT / path
    if path.startswith("docs/") and full.is_file():
        return path.removeprefix("docs/")
    if full.is_dir() and (full / "README.md").is_file() and path not in ("agentkit", "."):
        return page_of(f"{path}/README.md")
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if module in modules():
        return f"reference/{module}.md"
    return shown_files().get(path) or folder_pages().get(path)


# Pages -----------------------------------------------------------------------------------------------


def text_of(name: str) -> str:
    """Returns the page that shows a file."""
    text = (ROOT / name).read_text()
    suffix = Path(name).suffix
    if suffix == ".md":
        return text
    if suffix == ".ipynb":
        return notebook_page(name, json.loads(text))
    return f"# {name}\n\n````{LANGUAGES.get(suffix, '')}\n{text}````\n"


def notebook_page(name: str, notebook: dict[str, Any]) -> str:
    """Returns a notebook as Markdown: its text, code, and the outputs that are stored in it."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                image = base64.b64encode(base64.b64decode("".join(data["image/png"]))).decode()
                parts.append(f'<img alt="Output of the cell above" src="data:image/png;base64,{image}">')
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    parts.append(f"*The notebook itself is `{name}` in the repository; a test runs it.*")
    return "\n\n".join(parts) + "\n"


def reference_page(name: str) -> str:
    """Returns the reference of a module; mkdocstrings fills it in. The package's own names are elsewhere at home."""
    if name != "agentkit":
        box = ".".join(name.split(".")[:2])
        above = "" if name == box else f" / [{box}]({box}.md)"
        return f"[Reference](index.md){above}\n\n# {name}\n\n::: {name}\n\n{_inside(name)}"
    text = f"# agentkit\n\n```text\n{docstring_of('agentkit')}\n```\n"
    for public, home in public_names().items():
        text += f"\n## {public}\n\n::: {home}\n    options:\n      heading_level: 3\n"
    return text


def public_names() -> dict[str, str]:
    """Returns where each function and class of the package's own names is defined, in their order."""
    tree = ast.parse((ROOT / "agentkit" / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    found = {alias.name: str(node.module) for node in imports for alias in node.names if node.module != "typing"}
    return {
        name: f"{_home(module, name)}.{name}"
        for name, module in found.items()
        if name not in ("presets", "__version__")
    }


def _home(module: str, name: str) -> str:
    """Returns the module that defines a name, which a package's __init__ may have imported."""
    path = ROOT / module.replace(".", "/") / "__init__.py"
    if path.is_file():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
                return _home(str(node.module), name)
    return module


def docstring_of(name: str) -> str:
    """Returns a module's docstring; imports nothing."""
    path = ROOT / name.replace(".", "/")
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    return ast.get_docstring(ast.parse(source)) or ""


def reference_index() -> str:
    """Returns the page of all modules, each with the first line of its docstring."""
    names = [name for name in modules() if name != "agentkit"]
    boxes = [name for name in names if name.count(".") == 1]
    text = "# Reference\n\nThe names that one calls most are in [agentkit](agentkit.md) itself. Its parts:\n"
    for box in boxes:
        text += f"\n## [{box.removeprefix('agentkit.')}]({box}.md)\n\n{_first_line(box)}\n\n{_inside(box)}"
    return text


def _inside(box: str) -> str:
    """Returns a list of the modules in a package, each with the first line of its docstring; of a module nothing."""
    names = [name for name in modules() if name.startswith(f"{box}.")]
    return "".join(f"- [{name.removeprefix(f'{box}.')}]({name}.md): {_first_line(name)}\n" for name in names)


def _first_line(name: str) -> str:
    return docstring_of(name).partition("\n")[0]


# Agents ----------------------------------------------------------------------------------------------


def with_settings_and_curves(markdown: str, agent: str) -> str:
    """Returns an agent's page with all of its settings after those that matter, and with the curves that show it."""
    from agentkit.agents import registry
    from agentkit.cli.looking.show import settings_of

    rows = [
        " | ".join((f"`{setting.name}`", f"`{setting.default}`", setting.meaning.replace("|", "\\|")))
        for setting in settings_of(registry.config_class(agent))
    ]
    table = "\n".join(f"| {row} |" for row in ("setting | default | meaning", "---|---|---", *rows))
    before, _, after = markdown.partition("\n## Metrics")
    curves = "".join(f'![{agent} among others]({picture}){{ width="480" }}\n' for picture in curves_of(agent))
    seen = f"\nMeans of three seeds, and their ranges; [how](../results/README.md).\n\n{curves}" if curves else ""
    return f"{before}\n### All settings\n\n{table}\n\n## Metrics{after.rstrip()}\n{seen}"


def curves_of(agent: str) -> list[str]:
    """Returns the pictures of results that show an agent, as links from the folder of the agents' pages."""
    found = []
    for path in sorted((ROOT / "docs" / "results").glob("*.json")):
        runs = json.loads(path.read_text())
        for key in runs if isinstance(runs, dict) else ():
            name, _, rest = key.partition("/")
            picture = f"{path.stem}-{rest.partition('/')[0]}.png"
            if name == agent and (path.parent / picture).is_file():
                found.append(f"../results/{picture}")
    return list(dict.fromkeys(found))


def reference_nav() -> list[Any]:
    """Returns the reference's part of the navigation: the boxes of the package, whose pages lead to their modules.

    Each page holds the navigation of its section: with all modules in it, that was 60 of the site's 97 MB.
    """
    boxes = [name for name in modules() if name.count(".") <= 1]
    return ["reference/index.md", *({name.removeprefix("agentkit."): f"reference/{name}.md"} for name in boxes)]


# Hooks of mkdocs -------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Fills in the navigation: the reference, the agents, and each page of docs/ that is not named."""
    sections = {name: pages for section in config.nav for name, pages in section.items()}
    sections["Reference"] += reference_nav()
    named = json.dumps(config.nav)
    folder = Path(config.docs_dir)
    sections["How to"] += [page.name for page in sorted(folder.glob("*.md")) if f'"{page.name}"' not in named]
    pages = sorted(page.name for page in (folder / "agents").glob("*.md"))
    sections["Agents"] += [{page.removesuffix(".md"): f"agents/{page}"} for page in pages if page != "README.md"]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    from mkdocs.structure.files import File

    for name in modules():
        files.append(File.generated(config, f"reference/{name}.md", content=reference_page(name)))
    files.append(File.generated(config, "reference/index.md", content=reference_index()))
    for name, page in shown_files().items():
        files.append(File.generated(config, page, content=text_of(name)))
    for folder, page in folder_pages().items():
        inside = [name for name in shown_files() if str(PurePosixPath(name).parent) == folder]
        rows = "".join(f"- [{PurePosixPath(name).name}]({PurePosixPath(name).name})\n" for name in inside)
        files.append(File.generated(config, page, content=f"# {folder}\n\n{rows}"))
    return files


def repository_path(page: str) -> str:
    """Returns the path, in the repository, of what a page of the site shows."""
    if not page.startswith("files/"):
        return f"docs/{page}"
    sources = {target: name for name, target in shown_files().items()}
    return sources.get(page) or page.removeprefix("files/")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links to files of the repository as links to the site's pages of them."""
    here = page.file.src_uri
    if here.startswith("reference/"):
        return markdown
    if here.startswith("agents/") and here != "agents/README.md":
        markdown = with_settings_and_curves(markdown, PurePosixPath(here).stem)
    source = posixpath.dirname(repository_path(here))

    def rewrite(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path or target.startswith("mailto:"):
            return found[0]
        name = posixpath.normpath(posixpath.join(source, path))
        to = page_of(name)
        if to is None:
            if (ROOT / name).exists():  # It has no page, as tests have none: its name must do.
                return label if label.startswith("`") else f"{label} (`{name}`)"
            return found[0]  # A dead link, which mkdocs reports.
        link = posixpath.relpath(to, posixpath.dirname(here) or ".")
        return f"{mark}[{label}]({link}{'#' + anchor if anchor else ''})"

    # Not in blocks of code, where brackets before parentheses are calls.
    parts = re.split(r"(^(`{3,})[^\n]*\n.*?^\2\s*$|`[^`\n]+`)", markdown, flags=re.M | re.S)
    return "".join(
        "" if index % 3 == 2 else part if index % 3 == 1 else _LINK.sub(rewrite, part or "")
        for index, part in enumerate(parts)
    )
