"""Docstrings begin with a verb in the third person ("Returns the mean."); where too few do, pytest warns."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import form

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "agentkit").rglob("*.py"))
SHARE = 0.95

# Words in "s" that are nouns as often (Values, Names, Weights, Tables, Batches, Steps) are left out on purpose.
VERBS = frozenset(
    re.findall(
        r"\w+",
        """
        Accepts Acts Adapts Adds Adjusts Advances Aggregates Allocates Allows Annotates Answers Appends Applies
        Asks Asserts Assigns Attaches Averages Becomes Begins Binds Blocks Bootstraps Bounds Broadcasts Builds
        Calculates Calls Caps Carries Casts Centres Changes Checks Chooses Claims Cleans Clears Clips Closes
        Collects Combines Compares Compiles Completes Composes Compresses Computes Concatenates Configures
        Confines Confirms Connects Constructs Consumes Contains Converts Copies Corrects Counts Creates Cuts
        Decays Decides Declares Decodes Defines Delays Deletes Delivers Derives Describes Detaches Determines
        Differentiates Disables Discards Discounts Disconnects Displays Distinguishes Divides Donates Doubles
        Downloads Draws Drives Drops Emits Enables Encodes Ends Enforces Ensures Enters Escapes Estimates
        Evaluates Evicts Excludes Executes Exits Expands Expects Explains Explores Exports Exposes Extends
        Extracts Feeds Fetches Fills Filters Finalizes Finds Finishes Fits Flattens Flushes Follows Forgets
        Formats Forwards Freezes Frees Gathers Generates Gets Gives Goes Groups Grows Guards Halves Handles
        Hands Has Hides Holds Identifies Ignores Imitates Implements Imports Improves Includes Increases Indexes
        Infers Initialises Initializes Inserts Installs Instruments Interpolates Interprets Interrupts
        Introduces Inverts Invokes Iterates Joins Keeps Kills Labels Launches Learns Leaves Lengthens Lets
        Limits Links Listens Loads Locates Locks Logs Looks Lowers Maintains Makes Maps Marks Masks Matches
        Maximises Measures Merges Minimises Mixes Modifies Monitors Moves Multiplies Normalises Normalizes Notes
        Notices Obeys Observes Occupies Offers Omits Opens Orders Organises Owns Packs Pads Pairs Parses Passes
        Pauses Performs Permutes Picks Places Plays Plots Polls Pops Predicts Prepares Prescribes Presents
        Prevents Prints Prioritises Produces Projects Protects Proves Provides Publishes Pulls Pushes Puts
        Queries Queues Raises Reaches Reads Rebuilds Receives Recomputes Reconnects Reconstructs Records
        Recreates Reduces Refers Refuses Registers Rejects Relabels Releases Reloads Remembers Removes Renames
        Renders Repeats Replaces Replays Reports Represents Requires Rescales Reseeds Reserves Resets Reshapes
        Resolves Restarts Restores Restricts Resumes Retrieves Retries Returns Reuses Reverses Rewards Rewrites
        Rolls Rotates Rounds Routes Runs Samples Satisfies Saves Says Scales Schedules Searches Seeds Selects
        Sends Separates Serialises Serializes Serves Sets Shards Shares Shifts Shortens Shows Shuffles Signals
        Simulates Skips Sleeps Smooths Solves Sorts Spawns Specifies Spells Splits Spreads Squashes Standardises
        Stands Starts Stops Stores Strips Subtracts Sums Supervises Supplies Supports Suppresses Switches
        Synchronises Takes Tells Terminates Tests Throws Tracks Trains Transfers Transforms Translates Traverses
        Trims Truncates Tries Tunes Turns Unflattens Unpacks Unrolls Updates Uploads Uses Validates Varies
        Verifies Visits Waits Walks Warms Warns Watches Weighs Widens Wires Withdraws Wraps Writes Yields
        """,
    )
)


def begins_with_a_verb(docstring: str) -> bool:
    """Whether the first word is a verb of the list, and no noun: "Samples the table", but not "Samples of the table".

    "See `Name`" is taken, too: it refers to the docstring of an interface.
    """
    first, second = [*(word.rstrip(".,:;") for word in docstring.split()[:2]), "", ""][:2]
    if first == "See":
        return second.startswith("`")
    return first in VERBS and second not in ("of", "per") and not second.startswith("``[")


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """The name and the docstring of each public class, function and method of a file."""

    def visit(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str]]:
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name[0] != "_":
                docstring = ast.get_docstring(child)
                if docstring:
                    yield f"{prefix}{child.name}", docstring
                if isinstance(child, ast.ClassDef):
                    yield from visit(child, f"{prefix}{child.name}.")

    return visit(ast.parse(source), "")


def test_docstrings_begin_with_a_verb():
    total, wrong = 0, []
    for path in FILES:
        for name, docstring in docstrings(path.read_text()):
            total += 1
            if not begins_with_a_verb(docstring):
                wrong.append((path.relative_to(ROOT).as_posix(), name, docstring.splitlines()[0]))
    share = 1 - len(wrong) / total
    shown = "".join(f"\n  {file}: {name}: {line}" for file, name, line in wrong[:40])
    form.ask_for(share >= SHARE, f"{share:.1%} of {total:,} docstrings begin with a verb; these do not:{shown}")
    assert total > 1_000


def test_nouns_and_verbs_are_told_apart():
    good = ["Returns x.", "Holds\nx.", "See `Experience`.", "Waits."]
    assert [text for text in good if not begins_with_a_verb(text)] == []
    bad = [
        "Settings of x.",
        "Parameters.",
        "The mean.",
        "Return x.",
        "`x` as y.",
        "What x is.",
        "See below.",
        "Samples of a table.",
        "Limits ``[2]``.",
        "",
    ]
    assert [text for text in bad if begins_with_a_verb(text)] == []


def test_public_names_of_a_file_are_found():
    source = 'class A:\n    """Holds."""\n    def f(self):\n        """Runs."""\n    def _g(self):\n        """No."""\n'
    assert list(docstrings(source)) == [("A", "Holds."), ("A.f", "Runs.")]


def test_form_is_warned_of_and_fails_nothing():
    form.ask_for(True, "kept")
    with pytest.warns(form.FormWarning, match="lost"):
        form.ask_for(False, "lost")
