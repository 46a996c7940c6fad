"""`python -m edge_hpcr status|label|classes|samples|undo|redo|verify`: a workspace from the outside.

All of them work beside a process that learns in the workspace, except for `samples W import`. None needs PyTorch.
"""

import argparse
import difflib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes
from edge_hpcr.live.status_report import FIELDS, describe, gather
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.journal import ClassRow, Event, Journal, SampleRow
from edge_hpcr.workspace.label_queue import rank
from edge_hpcr.workspace.records import clean_name, folded
from edge_hpcr.workspace.verify import verify_workspace, workspace_facts

SHOWN = 50  # samples in a table
CLASS_HELP = "its name, in any case, or id:N"

STATUS_EXAMPLES = f"""\
examples:
  python -m edge_hpcr status parts            a few lines; works while it learns and while it does not
  python -m edge_hpcr status parts --json     one object, for scripts

The object's fields (null where nothing is known yet):
{FIELDS}"""
LABEL_EXAMPLES = """\
examples:
  python -m edge_hpcr label parts 12 mug              sample 12 is a mug
  python -m edge_hpcr label parts 12,13,17 MUG        several at once; any case will do
  python -m edge_hpcr label parts 14 stapler --create a new class
  python -m edge_hpcr label parts 14 id:3             the class with id 3; also corrects an earlier label

`samples W list --queue` shows what waits for a label; `undo W` takes the last action back.
"""
CLASSES_EXAMPLES = """\
examples:
  python -m edge_hpcr classes parts list
  python -m edge_hpcr classes parts add "hex nut" --colour "#1f77b4"
  python -m edge_hpcr classes parts rename mug "coffee mug"    the same class under another name
  python -m edge_hpcr classes parts recolour mug "#d62728"
  python -m edge_hpcr classes parts merge cup mug              every cup becomes a mug
  python -m edge_hpcr classes parts delete cup --yes           with all its labels; `undo parts` brings it back
"""
SAMPLES_EXAMPLES = """\
examples:
  python -m edge_hpcr samples parts list --queue        what waits for a label, the most informative first
  python -m edge_hpcr samples parts list --class mug --json
  python -m edge_hpcr samples parts export parts.zip    all labelled images, a folder for each class, as one zip
  python -m edge_hpcr samples parts export photos       the same as a folder
  python -m edge_hpcr samples new import parts.zip      into another workspace, which is made if it is missing

An import needs a folder or zip with a folder for each class. It skips what is there already, so that an import which
was stopped goes on when the same command is given again. No other process may learn in the workspace meanwhile.
"""
UNDO_EXAMPLES = """\
examples:
  python -m edge_hpcr undo parts      takes back the last label, or change of a class
  python -m edge_hpcr redo parts      does again what was undone last
"""
VERIFY_EXAMPLES = """\
examples:
  python -m edge_hpcr verify parts          a line for each problem, with what to do
  python -m edge_hpcr verify parts --json   {"whole", "problems": [{"where", "what", "what_to_do", "serious"}]}

Exit code 0: the workspace is whole; 1: something is wrong. Nothing is changed.
"""


def add_parser(commands: Any) -> None:
    status = _add(commands, "status", "say what a workspace does, holds and knows", STATUS_EXAMPLES, _status)
    status.add_argument("--json", action="store_true", help="as one JSON object")

    label = _add(commands, "label", "give samples of a workspace a class", LABEL_EXAMPLES, _label)
    label.add_argument("samples", metavar="SAMPLE[,SAMPLE…]", help="numbers of samples")
    label.add_argument("class_name", metavar="CLASS", help=CLASS_HELP)
    label.add_argument("--create", action="store_true", help="make the class if there is none of that name")

    _add_classes(commands)
    _add_samples(commands)

    _add(commands, "undo", "take back the last action in a workspace", UNDO_EXAMPLES, _go_back_or_forth)
    _add(commands, "redo", "do again what was undone last", UNDO_EXAMPLES, _go_back_or_forth)
    verify = _add(commands, "verify", "check that a workspace is whole", VERIFY_EXAMPLES, _verify)
    verify.add_argument("--json", action="store_true", help="as one JSON object")


def _add(
    commands: Any, name: str, help: str, examples: str, function: Callable[..., int] | None = None
) -> Any:
    parser = commands.add_parser(
        name,
        help=help,
        description=f"{help[0].upper()}{help[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workspace", type=Path, metavar="W", help="the workspace's folder")
    parser.set_defaults(func=function)  # of those with actions, each action sets its own
    return parser


def _add_classes(commands: Any) -> None:
    parser = _add(commands, "classes", "list and change the classes of a workspace", CLASSES_EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|add|rename|…")

    def add(name: str, help: str, function: Callable[..., int], *names: tuple[str, str]) -> Any:
        action = actions.add_parser(name, help=help)
        for argument, text in names:
            action.add_argument(argument, metavar=argument.removesuffix("_name").upper(), help=text)
        action.set_defaults(func=function)
        return action

    add("list", "id, name, colour and number of labels", _list_classes).add_argument(
        "--json", action="store_true", help="as a JSON list"
    )
    add("add", "a new class", _add_class, ("name", "of the new class")).add_argument(
        "--colour", metavar="#RRGGBB", help="for charts and the app"
    )
    add("rename", "change only the name", _change, ("class_name", CLASS_HELP), ("name", "the new name"))
    add("recolour", "change the colour", _change, ("class_name", CLASS_HELP), ("colour", "like #1f77b4"))
    add(
        "merge",
        "move every label of one class to another",
        _merge,
        ("source", f"the class that ends: {CLASS_HELP}"),
        ("into", f"the class that stays: {CLASS_HELP}"),
    )
    add("delete", "end a class, with its labels", _delete, ("class_name", CLASS_HELP)).add_argument(
        "--yes", action="store_true", help="without asking"
    )


def _add_samples(commands: Any) -> None:
    parser = _add(commands, "samples", "list, import and export samples", SAMPLES_EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|import|export")
    listing = actions.add_parser("list", help="samples that are labelled, queued or dismissed")
    which = listing.add_mutually_exclusive_group()
    which.add_argument("--queue", action="store_true", help="those that wait, the most informative first")
    which.add_argument(
        "--suspicious", action="store_true", help="labels that their neighbours contradict, strongest first"
    )
    which.add_argument("--class", dest="class_name", metavar="CLASS", help=f"those of a class: {CLASS_HELP}")
    listing.add_argument(
        "--limit", type=_positive, metavar="N", help=f"at most so many (default: {SHOWN}; all with --json)"
    )
    listing.add_argument("--json", action="store_true", help="as a JSON list")
    listing.set_defaults(func=_list_samples)
    taking = actions.add_parser("import", help="label the images of a folder or zip, a folder for each class")
    taking.add_argument("path", type=Path, metavar="PATH", help="folder or zip")
    taking.set_defaults(func=_import)
    giving = actions.add_parser("export", help="write all labelled images, a folder for each class")
    giving.add_argument("path", type=Path, metavar="PATH", help="a new .zip, or a new or empty folder")
    giving.set_defaults(func=_export)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _open(arguments: argparse.Namespace) -> Workspace:
    return Workspace.open(arguments.workspace, create=False, learning=False)


def _say(text: str) -> None:
    """Names hold any characters, and not every terminal can show them."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


# Status and verify ------------------------------------------------------------------------------------------------


def _status(arguments: argparse.Namespace) -> int:
    status = gather(arguments.workspace)
    _say(json.dumps(status, indent=1) if arguments.json else describe(status))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    problems = verify_workspace(arguments.workspace)
    wrong = [problem for problem in problems if problem.serious]
    if arguments.json:
        _say(json.dumps({"whole": not wrong, "problems": [asdict(p) for p in problems]}, indent=1))
        return 1 if wrong else 0
    for problem in problems:
        _say(str(problem))
    if wrong:
        return 1
    facts = workspace_facts(arguments.workspace)
    _say(
        f"{arguments.workspace} is whole: {facts.counts.labels:,} labels in {_count(facts.classes, 'class')}, "
        f"{facts.counts.images:,} images ({format_bytes(facts.counts.image_bytes)}), {facts.events:,} events, "
        f"{_count(facts.checkpoints, 'checkpoint')}"
    )
    return 0


# Labels -----------------------------------------------------------------------------------------------------------


def _label(arguments: argparse.Namespace) -> int:
    ids = _sample_ids(arguments.samples)
    with _open(arguments) as workspace:
        journal = workspace.journal
        for sample_id in ids:
            journal.sample(sample_id)  # before a class is made for a sample that does not exist
        name = arguments.class_name
        if arguments.create and _as_id(name) is None and journal.class_id(name) is None:
            journal.create_class(name)
        chosen = _find_class(journal, name, "--create makes a new one")
        event = journal.label(ids, chosen.id)
        _say(_labelled(event, chosen, {row.id: row.name for row in journal.classes()}))
    return 0


def _labelled(event: Event, chosen: ClassRow, names: dict[int, str]) -> str:
    if not event.moves:
        return f"nothing to change: labelled {chosen.name} already"
    text = f"labelled {_count(event.moves, 'sample')} as {chosen.name} (class {chosen.id})"
    corrected = [names.get(move.was, "another") for move in event.moves if move.was is not None]
    if corrected:
        text += f", {len(corrected)} of which had been {', '.join(sorted(set(corrected)))}"
    if any(move.held_out for move in event.moves):
        text += "; held out: used for measuring, not for training"
    return text


def _sample_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,18}", part):
            raise UserError(f"{part!r} is not a sample's number: write one like 12, or several as 12,13,17")
    return [int(part) for part in parts]


def _as_id(text: str) -> int | None:
    match = re.fullmatch(r"id:([0-9]{1,18})", text.strip())
    return int(match[1]) if match else None


def _find_class(journal: Journal, text: str, otherwise: str) -> ClassRow:
    """The live class of this name or id; the error lists names that are close."""
    rows = journal.classes()
    class_id = _as_id(text)
    if class_id is not None:
        found = [row for row in rows if row.id == class_id]
        if not found:
            raise UserError(f"no class has the id {class_id}: `classes W list` shows those there are")
        return found[0]
    by_key = {folded(row.name): row for row in rows}
    key = folded(clean_name(text))
    if key in by_key:
        return by_key[key]
    close = [by_key[match].name for match in difflib.get_close_matches(key, by_key, n=5, cutoff=0.5)]
    if close:
        hint = f"close names are {', '.join(close)}"
    elif rows:
        hint = (
            f"there are {', '.join([row.name for row in rows[:10]])}{' and others' if len(rows) > 10 else ''}"
        )
    else:
        hint = "there are no classes yet"
    raise UserError(f"unknown class {text!r}: {hint}; {otherwise}")


def _count(items: Sequence[Any] | int, noun: str) -> str:
    count = items if isinstance(items, int) else len(items)
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


# Classes ----------------------------------------------------------------------------------------------------------


def _pick(workspace: Workspace, text: str) -> ClassRow:
    return _find_class(workspace.journal, text, "`classes W add NAME` makes a new one")


def _list_classes(arguments: argparse.Namespace) -> int:
    with _open(arguments) as workspace:
        rows = workspace.journal.classes()
    if arguments.json:
        _say(json.dumps([asdict(row) for row in rows], indent=1))
    elif not rows:
        _say("no classes yet: `classes W add NAME`, or `label W SAMPLE NAME --create`")
    else:
        cells = [
            [str(row.id), row.name, row.colour or "", str(row.labels), str(row.held_out)] for row in rows
        ]
        _say(_table(["id", "name", "colour", "labels", "held out"], cells, right={0, 3, 4}))
    return 0


def _add_class(arguments: argparse.Namespace) -> int:
    with _open(arguments) as workspace:
        class_id = workspace.journal.create_class(arguments.name, arguments.colour)
    _say(f"made class {class_id}: {clean_name(arguments.name)}")
    return 0


def _change(arguments: argparse.Namespace) -> int:
    with _open(arguments) as workspace:
        row = _pick(workspace, arguments.class_name)
        if arguments.action == "rename":
            workspace.journal.rename_class(row.id, arguments.name)
        else:
            workspace.journal.recolour_class(row.id, arguments.colour)
        changed = next(after for after in workspace.journal.classes() if after.id == row.id)
    now = changed.name if arguments.action == "rename" else changed.colour
    _say(f"class {row.id}: {row.name} is now {now}")
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    with _open(arguments) as workspace:
        source, into = _pick(workspace, arguments.source), _pick(workspace, arguments.into)
        moved = workspace.journal.merge_classes(source.id, into.id)
    _say(f"merged {source.name} into {into.name}: {_count(moved, 'label')} moved; `undo` takes it back")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with _open(arguments) as workspace:
        row = _pick(workspace, arguments.class_name)
        loss = (
            f"{row.name} (class {row.id}) with {_count(row.labels, 'label')}, {row.held_out} of them held out"
        )
        if not arguments.yes:
            if not sys.stdin.isatty():
                raise UserError(f"this would delete {loss}: say --yes if you mean it")
            _say(f"This deletes {loss}. `undo` brings back what still has its image.")
            if not _agreed("Delete it? [y/N] "):
                _say("nothing was deleted")
                return 1
        workspace.journal.delete_class(row.id)
    _say(f"deleted {loss}; `undo` takes it back")
    return 0


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        return False


# Samples ----------------------------------------------------------------------------------------------------------


def _list_samples(arguments: argparse.Namespace) -> int:
    limit = arguments.limit or (None if arguments.json else SHOWN)
    with _open(arguments) as workspace:
        names = {row.id: row.name for row in workspace.journal.classes()}
        chosen = _chosen_samples(workspace, arguments)
        rows = list(itertools.islice(chosen, limit))
        more = next(chosen, None) is not None
    if arguments.json:
        _say(json.dumps([asdict(row) | {"class": names.get(row.class_id or 0)} for row in rows], indent=1))
        return 0
    if not rows:
        _say("no such samples")
        return 0
    cells = [
        [
            str(row.id),
            "held out" if row.held_out else row.state,
            names.get(row.class_id or 0, ""),
            f"{row.width} x {row.height}" if row.has_image else "dropped",
            row.origin,
        ]
        for row in rows
    ]
    _say(_table(["sample", "state", "class", "image", "origin"], cells, right={0}))
    if more:
        _say("and more: --limit N shows N of them, --json all")
    return 0


def _chosen_samples(workspace: Workspace, arguments: argparse.Namespace) -> Iterator[SampleRow]:
    journal = workspace.journal
    if arguments.queue:
        waiting = {row.id: row for row in journal.queued(limit=journal.counts().queued)}
        rows = list(waiting.values())
        ranked = rank([row.id for row in rows], [row.priority for row in rows], [row.hash64 for row in rows])
        yield from (waiting[sample_id] for sample_id in ranked)
        return
    if arguments.suspicious:
        for suspicion in gather(arguments.workspace)["suspicious"]:
            row = journal.sample(suspicion["sample_id"])
            if row.class_id == suspicion["class_id"]:  # nobody has corrected it since
                yield row
        return
    class_id = _pick(workspace, arguments.class_name).id if arguments.class_name is not None else None
    after = 0
    while page := journal.samples(class_id=class_id, after_id=after):
        yield from (row for row in page if row.state != "deleted")
        after = page[-1].id


def _import(arguments: argparse.Namespace) -> int:
    # What reads streams of images takes a moment to import, and the other commands do not need it.
    from edge_hpcr.workspace.labelled_files import check_source
    from edge_hpcr.workspace.transfer import import_samples

    check_source(arguments.path)  # before a workspace is made for nothing
    with Workspace.open(arguments.workspace) as workspace:
        for sentence in workspace.report:
            print(f"edge_hpcr: {sentence}", file=sys.stderr)
        try:
            result = import_samples(workspace, arguments.path, _progress("imported"))
        except KeyboardInterrupt:
            print("\nstopped; what was imported is kept, the same command goes on", file=sys.stderr)
            return 1
        quarantine = workspace.layout.quarantine
    _say(f"imported {_count(result.samples, 'sample')}, made {_count(result.classes, 'class')}")
    if result.known:
        deleted = f" ({result.deleted:,} deleted here earlier)" if result.deleted else ""
        _say(f"left as it is what was here already: {_count(result.known, 'file')}{deleted}")
    for reason in result.reasons:
        print(f"edge_hpcr: {reason}", file=sys.stderr)
    if result.bad:
        print(f"edge_hpcr: {_count(result.bad, 'bad file')}: see {quarantine}", file=sys.stderr)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from edge_hpcr.workspace.transfer import export_samples

    with _open(arguments) as workspace:
        result = export_samples(workspace, arguments.path, _progress("exported"))
    missing = f"; {result.missing:,} more have no image any more" if result.missing else ""
    _say(
        f"exported {_count(result.samples, 'sample')} of {_count(result.classes, 'class')} to {arguments.path}{missing}"
    )
    return 0


def _progress(done_word: str) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done_word} {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)

    return show


# Undo -------------------------------------------------------------------------------------------------------------


def _go_back_or_forth(arguments: argparse.Namespace) -> int:
    kind = arguments.command
    with _open(arguments) as workspace:
        journal = workspace.journal
        before = {row.id: row for row in journal.classes()}
        event = journal.undo() if kind == "undo" else journal.redo()
        after = {row.id: row for row in journal.classes()}
        (action,) = journal.events_after((event.of or 0) - 1, limit=1)
    text = f"{'undone' if kind == 'undo' else 'done again'}: {_action(action, event, before, after)}"
    if event.lost:
        text += f"; {_count(event.lost, 'sample')} could not come back, as the image is gone"
    _say(text)
    return 0


def _action(action: Event, event: Event, before: dict[int, ClassRow], after: dict[int, ClassRow]) -> str:
    """What an undo or redo was about, in words; its classes are live before it, after it, or both."""
    rows = before | after
    touched = [move.now if move.now is not None else move.was for move in action.moves]
    names = ", ".join(sorted({rows[i].name for i in touched if i in rows})) or "a class"
    old_facts, new_facts = (
        {(i, row.name, row.colour) for i, row in state.items()} for state in (before, after)
    )
    changed = [i for i, *_ in old_facts ^ new_facts]
    name = rows[changed[0]].name if changed else "a class"
    old = before[changed[0]].name if changed and changed[0] in before else name
    samples = _count(action.moves, "sample")
    return {
        "label": f"the label {names} of {samples}",
        "correct": f"the correction of {samples} to {names}",
        "dismiss": "dismissing samples from the queue",
        "delete": f"the deletion of {samples}",
        "create_class": f"making the class {name}",
        "rename_class": f"a renaming: {old} is {name} now",
        "recolour_class": f"the colour of {name}",
        "merge_classes": f"a merge of {name}, with {_count(action.moves, 'label')}",
        "delete_class": f"the deletion of the class {name}, with {_count(action.moves, 'label')}",
    }.get(action.kind, action.kind)


def _table(head: list[str], rows: list[list[str]], right: set[int]) -> str:
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    sides = [">" if place in right else "<" for place in range(len(head))]
    return "\n".join(
        "  ".join(f"{c:{side}{width}}" for c, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in [head, *rows]
    )
