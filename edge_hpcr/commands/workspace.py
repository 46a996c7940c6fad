"""`python -m edge_hpcr status|label|classes|samples|undo|redo|verify|recover|backup|restore`: a workspace from the outside.

All of them work beside a process that learns in the workspace, except for `samples W import` and `recover`. None needs
PyTorch.
"""

import difflib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from edge_hpcr.commands.cli import at_most_one, examples, new_commands, table
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many
from edge_hpcr.common.units import format_bytes
from edge_hpcr.live.status import FIELDS, describe, gather
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.history import taken_back_text
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.label_queue import rank
from edge_hpcr.workspace.records import ClassRow, Event, SampleRow, clean_name, folded
from edge_hpcr.workspace.verify import verify_workspace, workspace_facts

SHOWN = 50  # samples in a table
CLASS_HELP = "its name, in any case, or id:N"

STATUS_EXAMPLES = f"""
examples:
  python -m edge_hpcr status parts            a few lines; works while it learns and while it does not
  python -m edge_hpcr status parts --json     one object, for scripts

Exit code 1: something wants somebody now (its `alarms`), such as a camera that is away or a disk that is nearly full.

The object's fields (null where nothing is known yet):
{FIELDS}"""
LABEL_EXAMPLES = """
examples:
  python -m edge_hpcr label parts 12 mug              sample 12 is a mug
  python -m edge_hpcr label parts 12,13,17 MUG        several at once; any case will do
  python -m edge_hpcr label parts 14 stapler --create a new class
  python -m edge_hpcr label parts 14 id:3             the class with id 3; also corrects an earlier label

`samples W list --queue` shows what waits for a label; `undo W` takes the last action back.
"""
CLASSES_EXAMPLES = """
examples:
  python -m edge_hpcr classes parts list
  python -m edge_hpcr classes parts add "hex nut" --colour "#1f77b4"
  python -m edge_hpcr classes parts rename mug "coffee mug"    the same class under another name
  python -m edge_hpcr classes parts recolour mug "#d62728"
  python -m edge_hpcr classes parts merge cup mug              every cup becomes a mug
  python -m edge_hpcr classes parts delete cup --yes           with all its labels; `undo parts` brings it back
"""
SAMPLES_EXAMPLES = """
examples:
  python -m edge_hpcr samples parts list --queue        what waits for a label, the most informative first
  python -m edge_hpcr samples parts list --class mug --json
  python -m edge_hpcr samples parts export parts.zip    all labelled images, a folder for each class, as one zip
  python -m edge_hpcr samples parts export photos       the same as a folder
  python -m edge_hpcr samples new import parts.zip      into another workspace, which is made if it is missing
  python -m edge_hpcr samples new import parts.zip --look   says what it would import, and does nothing

An import needs a folder or zip with a folder for each class. Folders called train and test are splits: train is
imported, unless --split says otherwise. It skips what is there already, so that an import which was stopped goes on
when the same command is given again. No other process may learn in the workspace meanwhile. `undo W --import` takes the
last import back.
"""
UNDO_EXAMPLES = """
examples:
  python -m edge_hpcr undo parts            takes back the last label, change of a class, or import
  python -m edge_hpcr redo parts            does again what was undone last
  python -m edge_hpcr undo parts --import   takes back the last import, and leaves what was done since; `undo parts` brings it back
"""
VERIFY_EXAMPLES = """
examples:
  python -m edge_hpcr verify parts          a line for each problem, with what to do
  python -m edge_hpcr verify parts --json   {"whole", "problems": [{"where", "what", "what_to_do", "serious"}]}

Exit code 0: the workspace is whole; 1: something is wrong. Nothing is changed.
"""
RECOVER_EXAMPLES = """
examples:
  python -m edge_hpcr recover parts         mends what `learn` mends when it starts, and says so

Where the journal and its backup are missing, `learn` refuses: put the journal back if there is a copy. If there is none,
`recover` begins a new journal with the images that are there, unlabelled in the queue, and sets the checkpoints aside.
"""
BACKUP_EXAMPLES = """
examples:
  python -m edge_hpcr backup parts parts-monday.zip     also while `learn` or the app has it: one moment, and nothing missing
  python -m edge_hpcr restore parts-monday.zip parts2   into a new or empty folder; every checksum is compared first

The file holds labels, images, settings, the newest checkpoint, published models and results of benchmarks. Settings may
hold the password of a camera: keep the file as safe as the workspace.
"""


W = Annotated[Path, Argument(metavar="W", help="the workspace's folder")]
AsJson = Annotated[bool, Option("--json", help="as JSON")]
ClassName = Annotated[str, Argument(metavar="CLASS", help=CLASS_HELP)]

commands = new_commands()
classes_commands = new_commands()
samples_commands = new_commands()
commands.add_typer(classes_commands, name="classes")
commands.add_typer(samples_commands, name="samples")


def _open(path: Path) -> Workspace:
    return Workspace.open(path, create=False, learning=False)


# Status and verify ------------------------------------------------------------------------------------------------


@commands.command(epilog=examples(STATUS_EXAMPLES))
def status(workspace: W, as_json: AsJson = False) -> int:
    """Say what a workspace does, holds and knows. 1 when something wants somebody: a camera away, a disk nearly full."""
    found = gather(workspace)
    print(json.dumps(found, indent=1) if as_json else describe(found))
    return 1 if found["alarms"] else 0


@commands.command(epilog=examples(VERIFY_EXAMPLES))
def verify(workspace: W, as_json: AsJson = False) -> int:
    """Check that a workspace is whole."""
    problems = verify_workspace(workspace)
    whole = not any(problem.serious for problem in problems)
    if as_json:
        print(json.dumps({"whole": whole, "problems": [asdict(p) for p in problems]}, indent=1))
        return 0 if whole else 1
    print(*problems, sep="\n", end="\n" if problems else "")
    if not whole:
        return 1
    facts = workspace_facts(workspace)
    print(
        f"{workspace} is whole: {_count(facts.counts.labels, 'label')} in {_count(facts.classes, 'class')}, "
        f"{_count(facts.counts.images, 'image')} ({format_bytes(facts.counts.image_bytes)}), {_count(facts.events, 'event')}, "
        f"{_count(facts.checkpoints, 'checkpoint')}"
    )
    return 0


@commands.command(epilog=examples(RECOVER_EXAMPLES))
def recover(workspace: W) -> None:
    """Mend a workspace; without a journal, begin a new one from its images."""
    with Workspace.open(workspace, create=False, anew=True) as opened:
        counts = opened.journal.counts()
        print(*opened.report, sep="\n", end="\n" if opened.report else "")
    print(
        f"{workspace} opens: {_count(counts.labels, 'label')}, {_count(counts.queued, 'image')} in the queue; `verify` checks it all"
    )


@commands.command(epilog=examples(BACKUP_EXAMPLES))
def backup(
    workspace: W, file: Annotated[Path, Argument(metavar="FILE", help="a new .zip, outside of the workspace")]
) -> int:
    """Copy a workspace to one file, also while it learns."""
    from edge_hpcr.workspace.backup import back_up

    held = back_up(workspace, file, _progress("copied"))
    print(f"backed up {workspace} to {file}: {_contents(held)}")
    return _say_missing(held.missing)


@commands.command(epilog=examples(BACKUP_EXAMPLES))
def restore(
    file: Annotated[Path, Argument(metavar="FILE", help="that `backup` has made")],
    workspace: Annotated[Path, Argument(metavar="W", help="a new or empty folder")],
) -> int:
    """Make a workspace from the file of a backup."""
    from edge_hpcr.workspace.backup import restore as unpack

    held = unpack(file, workspace, _progress("restored"))
    print(f"restored {file} to {workspace}: {_contents(held)}; every checksum is right")
    return _say_missing(held.missing)


def _contents(held: Any) -> str:
    saved = f"checkpoint {held.checkpoint}" if held.checkpoint else "no checkpoint yet"
    return (
        f"{_count(held.labels, 'label')}, {_count(held.images, 'image')}, {_count(held.events, 'event')}, {saved}, "
        f"{format_bytes(held.bytes)}"
    )


def _say_missing(missing: int) -> int:
    if missing:
        what = f"{_count(missing, 'image')} of the workspace itself missing or damaged: `verify` names them"
        print(f"edge_hpcr: {what}", file=sys.stderr)
    return 1 if missing else 0


# Labels -----------------------------------------------------------------------------------------------------------


@commands.command(epilog=examples(LABEL_EXAMPLES))
def label(
    workspace: W,
    samples: Annotated[str, Argument(metavar="SAMPLE[,SAMPLE…]", help="numbers of samples")],
    class_name: ClassName,
    create: Annotated[bool, Option("--create", help="make the class if there is none of that name")] = False,
) -> None:
    """Give samples of a workspace a class."""
    ids = _sample_ids(samples)
    with _open(workspace) as opened:
        journal = opened.journal
        for sample_id in ids:
            journal.sample(sample_id)  # before a class is made for a sample that does not exist
        if create and _as_id(class_name) is None and journal.class_id(class_name) is None:
            journal.create_class(class_name)
        chosen = _find_class(journal, class_name, "--create makes a new one")
        event = journal.label(ids, chosen.id)
        print(_labelled(event, chosen, {row.id: row.name for row in journal.classes()}))


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
        for row in rows:
            if row.id == class_id:
                return row
        raise UserError(f"no class has the id {class_id}: `classes W list` shows those there are")
    by_key = {folded(row.name): row for row in rows}
    key = folded(clean_name(text))
    if key in by_key:
        return by_key[key]
    close = [by_key[match].name for match in difflib.get_close_matches(key, by_key, n=5, cutoff=0.5)]
    hint = "there are no classes yet"
    if close:
        hint = f"close names are {', '.join(close)}"
    elif rows:
        names = ", ".join(row.name for row in rows[:10])
        hint = f"there are {names}{' and others' if len(rows) > 10 else ''}"
    raise UserError(f"unknown class {text!r}: {hint}; {otherwise}")


def _count(items: Sequence[Any] | int, noun: str) -> str:
    return many(items if isinstance(items, int) else len(items), noun)


# Classes ----------------------------------------------------------------------------------------------------------


def _pick(workspace: Workspace, text: str) -> ClassRow:
    return _find_class(workspace.journal, text, "`classes W add NAME` makes a new one")


@classes_commands.callback(epilog=examples(CLASSES_EXAMPLES))
def _classes(context: Context, workspace: W) -> None:
    """List and change the classes of a workspace."""
    context.obj = workspace


@classes_commands.command("list")
def list_classes(context: Context, as_json: AsJson = False) -> None:
    """id, name, colour and number of labels"""
    with _open(context.obj) as workspace:
        rows = workspace.journal.classes()
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    elif not rows:
        print("no classes yet: `classes W add NAME`, or `label W SAMPLE NAME --create`")
    else:
        cells = [[row.id, row.name, row.colour, row.labels, row.held_out] for row in rows]
        sides = ("right", "left", "left", "right", "right")
        print(table(["id", "name", "colour", "labels", "held out"], cells, sides))


@classes_commands.command("add")
def add_class(
    context: Context,
    name: Annotated[str, Argument(metavar="NAME", help="of the new class")],
    colour: Annotated[str | None, Option(metavar="#RRGGBB", help="for charts and the app")] = None,
) -> None:
    """a new class"""
    with _open(context.obj) as workspace:
        class_id = workspace.journal.create_class(name, colour)
    print(f"made class {class_id}: {clean_name(name)}")


@classes_commands.command()
def rename(
    context: Context,
    class_name: ClassName,
    name: Annotated[str, Argument(metavar="NAME", help="the new name")],
) -> None:
    """change only the name"""
    with _open(context.obj) as workspace:
        row = _pick(workspace, class_name)
        workspace.journal.rename_class(row.id, name)
    print(f"class {row.id}: {row.name} is now {clean_name(name)}")


@classes_commands.command()
def recolour(
    context: Context,
    class_name: ClassName,
    colour: Annotated[str, Argument(metavar="COLOUR", help="like #1f77b4")],
) -> None:
    """change the colour"""
    with _open(context.obj) as workspace:
        row = _pick(workspace, class_name)
        workspace.journal.recolour_class(row.id, colour)
    print(f"class {row.id}: {row.name} is now {colour}")


@classes_commands.command()
def merge(
    context: Context,
    source: Annotated[str, Argument(metavar="SOURCE", help=f"the class that ends: {CLASS_HELP}")],
    into: Annotated[str, Argument(metavar="INTO", help=f"the class that stays: {CLASS_HELP}")],
) -> None:
    """move every label of one class to another"""
    with _open(context.obj) as workspace:
        ends, stays = _pick(workspace, source), _pick(workspace, into)
        moved = workspace.journal.merge_classes(ends.id, stays.id)
    print(f"merged {ends.name} into {stays.name}: {_count(moved, 'label')} moved; `undo` takes it back")


@classes_commands.command()
def delete(
    context: Context,
    class_name: ClassName,
    yes: Annotated[bool, Option("--yes", help="without asking")] = False,
) -> int:
    """end a class, with its labels"""
    with _open(context.obj) as workspace:
        row = _pick(workspace, class_name)
        labels = f"{_count(row.labels, 'label')}, {row.held_out} of them held out"
        loss = f"{row.name} (class {row.id}) with {labels}"
        if not yes:
            if not sys.stdin.isatty():
                raise UserError(f"this would delete {loss}: say --yes if you mean it")
            print(f"This deletes {loss}. `undo` brings back what still has its image.")
            if not _agreed("Delete it? [y/N] "):
                print("nothing was deleted")
                return 1
        workspace.journal.delete_class(row.id)
    print(f"deleted {loss}; `undo` takes it back")
    return 0


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        return False


# Samples ----------------------------------------------------------------------------------------------------------


@samples_commands.callback(epilog=examples(SAMPLES_EXAMPLES))
def _samples(context: Context, workspace: W) -> None:
    """List, import and export samples."""
    context.obj = workspace


@samples_commands.command("list")
def list_samples(
    context: Context,
    queue: Annotated[bool, Option("--queue", help="those that wait, the most informative first")] = False,
    suspicious: Annotated[
        bool, Option("--suspicious", help="labels that the other samples contradict, strongest first")
    ] = False,
    class_name: Annotated[
        str | None, Option("--class", metavar="CLASS", help=f"those of a class: {CLASS_HELP}")
    ] = None,
    limit: Annotated[
        int | None, Option(min=1, metavar="N", help="at most", show_default=f"{SHOWN}; all with --json")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """samples that are labelled, queued or dismissed"""
    at_most_one(queue=queue, suspicious=suspicious, class_name=class_name)
    most = limit or (None if as_json else SHOWN)
    with _open(context.obj) as workspace:
        names = {row.id: row.name for row in workspace.journal.classes()}
        class_id = _pick(workspace, class_name).id if class_name is not None else None
        every = workspace.journal.all_samples(class_id=class_id)
        chosen: Iterator[SampleRow] = (row for row in every if row.state != "deleted")
        if queue:
            chosen = _queued_samples(workspace.journal)
        elif suspicious:
            chosen = _suspicious_samples(workspace)
        rows = list(itertools.islice(chosen, most))
        more = next(chosen, None) is not None
        authors = workspace.journal.authors_of(row.id for row in rows)
    if as_json:
        told = (
            asdict(row) | {"class": names.get(row.class_id or 0), "author": authors.get(row.id)}
            for row in rows
        )
        print(json.dumps([*told], indent=1))
        return
    if not rows:
        print("no such samples")
        return
    cells = []
    for row in rows:
        image = f"{row.width} x {row.height}" if row.has_image else "dropped"
        state = "held out" if row.held_out else row.state
        cells.append([row.id, state, names.get(row.class_id or 0), image, row.origin, authors.get(row.id)])
    heads = ["sample", "state", "class", "image", "origin", "by"]
    print(table(heads, cells, ("right", *["left"] * 5)))
    if more:
        print("and more: --limit N shows N of them, --json all")


def _queued_samples(journal: Journal) -> Iterator[SampleRow]:
    rows = {row.id: row for row in journal.queued(limit=journal.counts().queued)}
    ranked = rank(list(rows), [row.priority for row in rows.values()], [row.hash64 for row in rows.values()])
    yield from (rows[sample_id] for sample_id in ranked)


def _suspicious_samples(workspace: Workspace) -> Iterator[SampleRow]:
    for suspicion in gather(workspace.layout.path)["suspicious"]:
        row = workspace.journal.sample(suspicion["sample_id"])
        if row.class_id == suspicion["class_id"]:  # nobody has corrected it since
            yield row


@samples_commands.command("import")
def import_labelled(
    context: Context,
    path: Annotated[Path, Argument(metavar="PATH", help="folder or zip")],
    split: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="of folders like train and test, the one to import, or all",
            show_default="train",
        ),
    ] = None,
    look: Annotated[bool, Option("--look", help="say what would be imported, and change nothing")] = False,
) -> int:
    """label the images of a folder or zip, a folder for each class"""
    # What reads streams of images takes a moment to import, and the other commands do not need it.
    from edge_hpcr.workspace.transfer import import_samples, look_at

    found = look_at(context.obj, path, split=split)  # before a workspace is made for nothing
    if look:
        print(f"found {found}")
        for name, pictures in found.classes.items():
            print(f"  {name}: {_count(pictures, 'picture')}")
        return 0
    with Workspace.open(context.obj) as workspace:
        for sentence in workspace.report:
            print(f"edge_hpcr: {sentence}", file=sys.stderr)
        print(f"found {found}", file=sys.stderr)
        try:
            result = import_samples(workspace, path, _progress("imported"), split=split)
        except KeyboardInterrupt:
            print("\nstopped; what was imported is kept, the same command goes on", file=sys.stderr)
            return 1
        quarantine = workspace.layout.quarantine
    print(f"imported {_count(result.samples, 'sample')}, made {_count(result.classes, 'class')}")
    if result.samples:
        print(f"`undo {context.obj} --import` takes it back", file=sys.stderr)
    if result.known:
        deleted = f" ({result.deleted:,} deleted here earlier)" if result.deleted else ""
        print(f"left as it is what was here already: {_count(result.known, 'file')}{deleted}")
    for reason in result.reasons:
        print(f"edge_hpcr: {reason}", file=sys.stderr)
    if result.bad:
        print(f"edge_hpcr: {_count(result.bad, 'bad file')}: see {quarantine}", file=sys.stderr)
    return 0


@samples_commands.command("export")
def export_labelled(
    context: Context,
    path: Annotated[Path, Argument(metavar="PATH", help="a new .zip, or a new or empty folder")],
) -> None:
    """write all labelled images, a folder for each class"""
    from edge_hpcr.workspace.transfer import export_samples

    with _open(context.obj) as workspace:
        result = export_samples(workspace, path, _progress("exported"))
    missing = f"; {result.missing:,} more have no image any more" if result.missing else ""
    what = f"{_count(result.samples, 'sample')} of {_count(result.classes, 'class')}"
    print(f"exported {what} to {path}{missing}")


def _progress(done_word: str) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done_word} {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)

    return show


# Undo -------------------------------------------------------------------------------------------------------------


@commands.command(epilog=examples(UNDO_EXAMPLES))
def undo(
    workspace: W,
    whole_import: Annotated[
        bool, Option("--import", help="the last import as a whole, with the classes that it made")
    ] = False,
) -> None:
    """Take back the last action in a workspace."""
    if not whole_import:
        _move(workspace, "undone", Journal.undo)
        return
    with _open(workspace) as opened:
        number = opened.journal.last_import()
        if number is None:
            raise UserError(f"nothing to undo: no import into {workspace} is left that could be taken back")
        print(opened.journal.take_back_import(number))


@commands.command(epilog=examples(UNDO_EXAMPLES))
def redo(workspace: W) -> None:
    """Do again what was undone last."""
    _move(workspace, "done again", Journal.redo)


def _move(path: Path, done: str, move: Callable[[Journal], Event]) -> None:
    with _open(path) as workspace:
        event = move(workspace.journal)
        text = f"{done}: {taken_back_text(workspace.journal, event)}"
    if event.lost:
        text += f"; {_count(event.lost, 'sample')} could not come back, as the image is gone"
    print(text)
