"""`python -m edge_hpcr status|verify|backup|restore|devices|label|undo|redo|classes|samples`: a workspace from the outside.

All of them work beside a process that learns in the workspace, except for `samples W import`. None needs PyTorch.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from edge_hpcr.commands.cli import AsJson, W, new_commands, say, table
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many
from edge_hpcr.common.units import format_bytes, format_duration
from edge_hpcr.live.status import describe, gather
from edge_hpcr.workspace.devices import Device
from edge_hpcr.workspace.devices import devices as read_devices
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import taken_back_text
from edge_hpcr.workspace.records import ClassRow, clean_name, folded
from edge_hpcr.workspace.recover import verify_workspace
from edge_hpcr.workspace.selection import rank
from edge_hpcr.workspace.workspace import Workspace

CLASS_HELP = "its name, in upper or lower case"

ClassName = Annotated[str, Argument(metavar="CLASS", help=CLASS_HELP)]

commands = new_commands()
classes_commands = new_commands()
samples_commands = new_commands()
commands.add_typer(classes_commands, name="classes")
commands.add_typer(samples_commands, name="samples")


def _open(path: Path) -> Workspace:
    return Workspace.open(path, create=False, learning=False)


def _print_json(found: object) -> None:
    print(json.dumps(found, indent=1))


# The whole --------------------------------------------------------------------------------------------------------


@commands.command()
def status(workspace: W, as_json: AsJson = False) -> int:
    """Show what a workspace is doing, what it holds and how good it is.

    The exit code is 1 when something needs attention: a camera that is away, a disk that is nearly full.
    """
    found = gather(workspace)
    if as_json:
        _print_json(found)
    else:
        print(describe(found))
    return 1 if found["alarms"] else 0


@commands.command()
def verify(workspace: W, as_json: AsJson = False) -> int:
    """Check that a workspace is whole. Prints one line per problem, with what to do; changes nothing."""
    problems = verify_workspace(workspace)
    if as_json:
        _print_json({"whole": not problems, "problems": [problem._asdict() for problem in problems]})
        return 1 if problems else 0
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{workspace} is whole")
    return 1 if problems else 0


@commands.command()
def backup(
    workspace: W, file: Annotated[Path, Argument(metavar="FILE", help="a new .zip, outside of the workspace")]
) -> int:
    """Copy a workspace to one file, even while it learns. Settings may hold a camera's password: keep the file safe."""
    from edge_hpcr.workspace.backup import back_up

    held = back_up(workspace, file, _progress("copied"))
    return _say_contents(f"backed up {workspace} to {file}", held)


@commands.command()
def restore(
    file: Annotated[Path, Argument(metavar="FILE", help="a file made by `backup`")],
    workspace: Annotated[Path, Argument(metavar="W", help="a new or empty folder")],
) -> int:
    """Make a workspace from the file of a backup."""
    from edge_hpcr.workspace.backup import restore as unpack

    held = unpack(file, workspace, _progress("restored"))
    return _say_contents(f"restored {file} to {workspace}, every checksum is right", held)


def _say_contents(done: str, held: Any) -> int:
    saved = f"checkpoint {held.checkpoint}" if held.checkpoint else "no checkpoint yet"
    counts = f"{many(held.labels, 'label')}, {many(held.images, 'image')}, {many(held.events, 'event')}"
    print(f"{done}: {counts}, {saved}, {format_bytes(held.bytes)}")
    if held.missing:
        lost = many(held.missing, "image")
        say(f"{lost} of the workspace itself missing or damaged: `verify` names them")
    return 1 if held.missing else 0


@commands.command()
def devices(workspace: W, as_json: AsJson = False) -> None:
    """List the devices that use a workspace's models, as they report to `export serve`."""
    layout = Layout(workspace)
    layout.check_exists()
    found, now = read_devices(layout.devices), time.time()
    if as_json:
        _print_json([each.model_dump() | {"silent": each.is_silent(now)} for each in found])
    elif found:
        rows = [device_cells(each, now) for each in found]
        print(table([*rows[0]], [[*row.values()] for row in rows], ["left"] * len(rows[0])))
    else:
        print("no device has reported yet")


def device_cells(device: Device, now: float) -> dict[str, str]:
    """What a table shows of a device; the app's is made of the same."""
    share = device.unknown_share
    seen = f"{format_duration(device.silent_for(now))} ago"
    dropped = f", {device.unsure_dropped:,} lost" if device.unsure_dropped else ""
    return {
        "Device": device.id,
        "Version": "none" if device.version is None else f"v{device.version}",
        "For": format_duration(max(0.0, now - device.since)),
        "Frames": f"{device.frames:,}",
        "Unknown": "" if share is None else f"{share:.1%}",
        "Frames waiting": f"{device.unsure_waiting:,}{dropped}",
        "Last sign of life": f"{seen}, silent" if device.is_silent(now) else seen,
        "Problem": device.problem or "",
    }


# Labels -----------------------------------------------------------------------------------------------------------


@commands.command()
def label(
    workspace: W,
    samples: Annotated[str, Argument(metavar="SAMPLE[,SAMPLE…]", help="sample numbers, like 12,13")],
    class_name: ClassName,
    create: Annotated[bool, Option("--create", help="make the class if it does not exist")] = False,
) -> None:
    """Give samples of a workspace a class."""
    try:
        ids = [int(number) for number in samples.split(",")]
    except ValueError:
        raise UserError(
            f"{samples!r}: write the number of a sample like 12, or several as 12,13,17"
        ) from None
    with _open(workspace) as opened:
        journal = opened.journal
        journal.rows_of(ids)  # before a class is made for a sample that does not exist
        if create:
            journal.class_named(class_name)
        chosen = _find_class(journal, class_name, "--create makes a new one")
        event = journal.label(ids, chosen.id)
        names = {row.id: row.name for row in journal.classes()}
    if not event.moves:
        print(f"nothing to change: labelled {chosen.name} already")
        return
    text = f"labelled {many(len(event.moves), 'sample')} as {chosen.name} (class {chosen.id})"
    corrected = [names.get(move.was, "another") for move in event.moves if move.was is not None]
    if corrected:
        text += f", {len(corrected)} of which had been {', '.join(sorted(set(corrected)))}"
    print(text)


def _find_class(
    journal: Journal, text: str, otherwise: str = "`classes W add NAME` makes a new one"
) -> ClassRow:
    """The live class of this name."""
    key = folded(clean_name(text))
    for row in journal.classes():
        if folded(row.name) == key:
            return row
    raise UserError(f"unknown class {text!r}: `classes W list` lists them; {otherwise}")


@commands.command()
def undo(workspace: W) -> None:
    """Take back the last label, change of a class, or import."""
    _move(workspace, "undone")


@commands.command()
def redo(workspace: W) -> None:
    """Redo what was undone last."""
    _move(workspace, "done again")


def _move(path: Path, done: str) -> None:
    with _open(path) as workspace:
        journal = workspace.journal
        event = journal.undo() if done == "undone" else journal.redo()
        text = f"{done}: {taken_back_text(journal, event)}"
    if event.body.lost:
        text += f"; {many(len(event.body.lost), 'sample')} could not come back, as the image is gone"
    print(text)


# Classes ----------------------------------------------------------------------------------------------------------


@classes_commands.callback()
def _classes(context: Context, workspace: W) -> None:
    """List and change the classes of a workspace."""
    context.obj = workspace


@classes_commands.command("list")
def list_classes(context: Context, as_json: AsJson = False) -> None:
    """list id, name and number of labels"""
    with _open(context.obj) as workspace:
        rows = workspace.journal.classes()
    if as_json:
        _print_json([row._asdict() for row in rows])
    else:
        cells = [[row.id, row.name, row.labels, row.held_out] for row in rows]
        print(table(["id", "name", "labels", "held out"], cells, ("right", "left", "right", "right")))


@classes_commands.command("add")
def add_class(context: Context, name: Annotated[str, Argument(metavar="NAME", help="the new class")]) -> None:
    """add a class"""
    with _open(context.obj) as workspace:
        class_id = workspace.journal.create_class(name)
    print(f"made class {class_id}: {clean_name(name)}")


@classes_commands.command()
def rename(
    context: Context,
    class_name: ClassName,
    name: Annotated[str, Argument(metavar="NAME", help="the new name")],
) -> None:
    """rename a class"""
    with _open(context.obj) as workspace:
        row = _find_class(workspace.journal, class_name)
        workspace.journal.rename_class(row.id, name)
    print(f"class {row.id}: {row.name} is now {clean_name(name)}")


@classes_commands.command()
def merge(
    context: Context,
    source: Annotated[str, Argument(metavar="SOURCE", help=f"the class to merge: {CLASS_HELP}")],
    into: Annotated[str, Argument(metavar="INTO", help=f"the class that keeps the labels: {CLASS_HELP}")],
) -> None:
    """move every label of one class to another"""
    with _open(context.obj) as workspace:
        ends, stays = _find_class(workspace.journal, source), _find_class(workspace.journal, into)
        moved = workspace.journal.merge_classes(ends.id, stays.id)
    print(f"merged {ends.name} into {stays.name}: {many(moved, 'label')} moved; `undo` takes it back")


@classes_commands.command()
def delete(context: Context, class_name: ClassName) -> None:
    """delete a class and its labels"""
    with _open(context.obj) as workspace:
        row = _find_class(workspace.journal, class_name)
        lost = workspace.journal.delete_class(row.id)
    print(
        f"deleted {row.name} (class {row.id}) with {many(lost, 'label')}; `undo` restores those whose image is kept"
    )


# Samples ----------------------------------------------------------------------------------------------------------


@samples_commands.callback()
def _samples(context: Context, workspace: W) -> None:
    """List, import and export samples."""
    context.obj = workspace


@samples_commands.command("list")
def list_samples(
    context: Context,
    queue: Annotated[bool, Option("--queue", help="only the queue, the most informative first")] = False,
    as_json: AsJson = False,
) -> None:
    """list samples that are labelled, queued or dismissed"""
    with _open(context.obj) as workspace:
        journal = workspace.journal
        names = {row.id: row.name for row in journal.classes()}
        if queue:
            waiting = journal.queued()
            ids, priorities = [row.id for row in waiting], [row.priority for row in waiting]
            chosen = journal.rows_of(rank(ids, priorities, [row.hash64 for row in waiting]))
        else:
            chosen = [row for row in journal.all_samples() if row.state != "deleted"]
    if as_json:
        _print_json([asdict(row) | {"class": names.get(row.class_id or 0)} for row in chosen])
        return
    cells = [[row.id, row.state, names.get(row.class_id or 0), row.origin] for row in chosen]
    print(table(["sample", "state", "class", "origin"], cells, ("right", *["left"] * 3)))


@samples_commands.command("import")
def import_labelled(
    context: Context,
    path: Annotated[Path, Argument(metavar="PATH", help="folder or zip")],
    look: Annotated[bool, Option("--look", help="say what would be imported, and change nothing")] = False,
) -> int:
    """label the images of a folder or zip, one folder per class; known images are skipped"""
    # What reads streams of images takes a moment to import, and the other commands do not need it.
    from edge_hpcr.workspace.transfer import import_samples, look_at

    found = look_at(context.obj, path)  # before a workspace is made for nothing
    if look:
        print(f"found {found}")
        for name, pictures in found.classes.items():
            print(f"  {name}: {many(pictures, 'picture')}")
        return 0
    with Workspace.open(context.obj) as workspace:
        for sentence in workspace.report:
            say(sentence)
        print(f"found {found}", file=sys.stderr)
        try:
            result = import_samples(workspace, path, _progress("imported"))
        except KeyboardInterrupt:
            print("\nstopped; what was imported is kept; run the same command to continue", file=sys.stderr)
            return 1
    print(result)
    if result.samples:
        say(f"`undo {context.obj}` takes it back")
    return 0


@samples_commands.command("export")
def export_labelled(
    context: Context,
    path: Annotated[Path, Argument(metavar="PATH", help="a new .zip, outside of the workspace")],
) -> None:
    """write all labelled images to a zip, one folder per class"""
    from edge_hpcr.workspace.transfer import export_samples

    with _open(context.obj) as workspace:
        result = export_samples(workspace, path, _progress("exported"))
    print(f"{path}: {result}")


def _progress(done_word: str) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done_word} {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)

    return show
