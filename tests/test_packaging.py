"""What a wheel says of itself: one version number, types, a licence; and the form of the changelog."""

import contextlib
import importlib.metadata
import re
import tomllib
from pathlib import Path

import packaging.requirements
import packaging.utils
import pytest

import agentkit
from agentkit.errors import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def versions_in(text: str) -> list[str]:
    """The numbers that are assigned to ``__version__`` in a file."""
    return re.findall(r'^__version__ = "(.+)"$', text, re.M)


def test_the_version_is_written_once():
    assert "version" not in PYPROJECT["project"] and PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["hatch"]["version"] == {"path": "agentkit/version.py"}
    assert versions_in((ROOT / "agentkit" / "version.py").read_text()) == [agentkit.__version__]
    others = [path for path in (ROOT / "agentkit").rglob("*.py") if versions_in(path.read_text())]
    assert others == [ROOT / "agentkit" / "version.py"]


def test_an_installed_agentkit_says_the_same_version():
    found = {distribution.version for distribution in importlib.metadata.distributions(name=DISTRIBUTION)}
    assert found <= {agentkit.__version__}, "Another version is installed: run pip install again."


def test_nobody_is_told_to_install_another_distribution():
    assert PYPROJECT["project"]["name"] == DISTRIBUTION
    folders = ("agentkit", "docs", "examples", "launch", "benchmarks", ".github", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    # An extra of the bare name, or the bare name behind pip's command.
    wrong = re.compile(r"agentkit\[|pip install[^\n&]*[ '\"]agentkit(?![\w-])")
    others = []
    for path in files:
        with contextlib.suppress(UnicodeDecodeError):
            others += [f"{path}: {found[0]}" for found in wrong.finditer(path.read_text())]
    assert not others


def test_type_checkers_find_the_types():
    assert (Path(agentkit.__file__).parent / "py.typed").is_file()


def test_the_licence_is_named_and_shipped():
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert [(ROOT / name).is_file() for name in PYPROJECT["project"]["license-files"]] == [True]


def test_one_version_number_is_in_every_file_that_names_a_release():
    for name in ("CITATION.cff", "launch/Dockerfile.newest", "launch/Dockerfile.reverb", "launch/kubernetes.yaml"):
        versions = re.findall(r"(?:^version: |[ /]agentkit:)(\d[\w.]*\w)", (ROOT / name).read_text(), re.M)
        assert versions and set(versions) == {agentkit.__version__}, name


# Lock files and images -------------------------------------------------------------------------------


def requirements_of(extras: list[str]) -> list[packaging.requirements.Requirement]:
    """What the package itself and some of its extras ask for, those of its own extras included."""
    own, optional = f"{DISTRIBUTION}[", PYPROJECT["project"]["optional-dependencies"]
    found = list(PYPROJECT["project"]["dependencies"])
    for text in (text for extra in extras for text in optional[extra]):
        found += [text] if not text.startswith(own) else []
        if text.startswith(own):
            found += map(str, requirements_of(text.removeprefix(own).rstrip("]").split(",")))
    return [packaging.requirements.Requirement(text) for text in found]


def unmet(lock: str, requirements: list[packaging.requirements.Requirement]) -> list[str]:
    """The requirements of which a lock file has no version, or one that does not fit."""
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    locked = [packaging.requirements.Requirement(line) for line in lines]
    versions = [(packaging.utils.canonicalize_name(one.name), next(iter(one.specifier)).version) for one in locked]
    missing = []
    for wanted in requirements:
        name = packaging.utils.canonicalize_name(wanted.name)
        found = [version for other, version in versions if other == name]
        if not found or not all(wanted.specifier.contains(version, prereleases=True) for version in found):
            missing.append(f"{wanted}: {found}")
    return missing


EXTRAS = set(PYPROJECT["project"]["optional-dependencies"])
# They want another mujoco than dm_control's or an older gymnasium than box2d's, and so environments of their own; pgx,
# which wants neither, is tried in one of these.
LOCKED = EXTRAS - {"metaworld", "gymnax", "jaxmarl", "pgx", "brax", "jumanji", "navix", "playground"}


@pytest.mark.parametrize(
    ("name", "extras"),
    [("newest", LOCKED - {"reverb", "rlds", "cuda13"}), ("reverb", LOCKED - {"cuda", "cuda13", "docs"})],
)
def test_lock_files_have_what_the_extras_ask_for(name, extras):
    lock = (ROOT / "requirements" / f"{name}.txt").read_text()
    system = {"python_version": "3.11", "sys_platform": "linux", "platform_machine": "x86_64"}
    wanted = [one for one in requirements_of(sorted(extras)) if one.marker is None or one.marker.evaluate(system)]
    assert len(wanted) > 30 and unmet(lock, wanted) == []


def test_extras_are_found_by_any_pip():
    """pip before 23.3 compares an extra's name as it is written with the wheel's, where it is normalised."""
    assert {packaging.utils.canonicalize_name(extra) for extra in EXTRAS} == EXTRAS
    sources = [path.read_text() for path in (ROOT / "agentkit").rglob("*.py")]
    named = {extra for text in sources for extra in re.findall(r'missing_extra\([^,]+, "([^"]+)"\)', text)}
    assert len(named) > 5 and named <= EXTRAS


def test_a_stale_lock_file_is_found():
    wanted = requirements_of(["planning"])
    lock = (ROOT / "requirements" / "newest.txt").read_text()
    old = re.sub(r"^mctx==.*$", "mctx==0.0.1", lock, flags=re.M)
    assert [text.split(">")[0] for text in unmet(old, wanted)] == ["mctx"]
    assert [text.split(">")[0] for text in unmet(lock.replace("mctx==", "other=="), wanted)] == ["mctx"]


def test_no_lock_file_names_a_host():
    assert not [path for path in (ROOT / "requirements").iterdir() if "://" in path.read_text()]


@pytest.mark.parametrize("name", ["newest", "reverb"])
def test_images_are_built_from_what_is_there(name):
    text = (ROOT / "launch" / f"Dockerfile.{name}").read_text()
    sources = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for word in line.split()]
    assert sources and all((ROOT / source).exists() for source in sources)
    sent = (ROOT / ".dockerignore").read_text().split()
    assert all(f"!{source}" in sent for source in sources)
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", text, re.M)
    assert set(extras.split(",")) <= EXTRAS
    (lock,) = re.findall(r"pip install --no-cache-dir -c (\S+) \"\.\[\$EXTRAS\]\"", text)
    assert lock == f"requirements/{name}.txt"
    assert re.search(r"^USER 1000:1000$", text, re.M)


def test_the_changelog_begins_with_what_is_unreleased():
    """As CONTRIBUTING's steps of a release need it; each later heading is a version and its day."""
    versions = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version) for version in versions[1:])


def test_no_folder_of_the_package_is_ignored():
    """The wheel leaves out what .gitignore names, such as a folder ``runs`` at any depth."""
    lines = (ROOT / ".gitignore").read_text().split()
    anywhere = {line.rstrip("/") for line in lines if line.endswith("/") and not line.startswith("/")}
    ours = {folder.name for folder in (ROOT / "agentkit").rglob("*") if folder.is_dir()} - {"__pycache__"}
    assert not anywhere & ours
