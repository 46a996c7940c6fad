"""The command line: `python -m export --workspace W` publishes. 0 is done, 2 wrong input in one line, 1 anything else."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.workspace.layout import Layout
from export.device.errors import BadModel, OneLineParser
from export.device.manifest import Manifest
from export.publish import serve
from export.publish.policy import Policy, Refused
from export.publish.versions import latest_version, rollback, rollforward, versions

if TYPE_CHECKING:
    from export.publish.publish import Published

EXAMPLES = """\
examples:
  python -m export --workspace parts                     publish what has been learned so far
  python -m export --workspace parts --every 60          go on, whenever there is something new; Ctrl-C ends
  python -m export list --workspace parts                the versions, and which one counts
  python -m export rollback --workspace parts            let the version before it count; `rollforward` undoes that
  python -m export serve --workspace parts               give models to devices over HTTP
  python -m export.runtime --models parts/exports --source 0      classify on a device

Publishing works beside a running `learn`, from its newest checkpoint, and on a workspace at rest. Versions are folders
in parts/exports; devices change to a new one while they run. `python -m export COMMAND --help` says more.
"""
PUBLISH = """\
Publish the newest checkpoint as an ONNX model that describes itself. It is refused, with the reason, when it does not
answer as the network does, or when it recognises clearly fewer held-out samples than the current version.
The first version takes a while, because the network is traced; later ones take about a second.
"""
LONGEST_WAIT = 366 * 86_400.0  # seconds
COMMANDS = ("publish", "list", "rollback", "rollforward", "serve", "bench")


def make_parser(command: str) -> argparse.ArgumentParser:
    """With the options of this command, and the names of all."""
    parser = OneLineParser(
        prog="python -m export",
        description="Publish what a workspace has learned as ONNX models for devices. Without a command: publish.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"edge_hpcr {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_publish(commands)
    for name, summary, run in (
        ("list", "the published versions", list_command),
        ("rollback", "let an older version count", rollback_command),
        ("rollforward", "end a rollback", rollforward_command),
    ):
        added = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        _add_common(added)
        if name == "rollback":
            added.add_argument(
                "version", type=int, nargs="?", help="its number (default: the one before the current one)"
            )
        added.set_defaults(func=run)
    serve.add_parser(commands)
    if command == "bench":
        from benchmarks import latency  # torch takes seconds

        latency.add_parser(commands)
    else:
        commands.add_parser("bench", help="measure the latency of models on this machine")
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workspace", type=Path, required=True, metavar="W", help="the learner's folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _add_publish(commands: Any) -> None:
    parser = commands.add_parser(
        "publish", help="publish the newest checkpoint (the default)", description=PUBLISH
    )
    _add_common(parser)
    parser.add_argument("--int8", action="store_true", help="add a variant in 8 bits, if it is faster here")
    parser.add_argument("--fp16", action="store_true", help="add a variant in 16 bits, for CUDA")
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="go on publishing what is new; Ctrl-C ends"
    )
    parser.add_argument(
        "--most-drop",
        type=float,
        metavar="SHARE",
        help=f"of held-out accuracy that may be lost (default: {Policy.most_drop:g})",
    )
    parser.add_argument("--keep", type=int, metavar="N", help=f"versions to keep (default: {Policy.keep})")
    parser.add_argument(
        "--force",
        action="store_true",
        help="publish though it is worse than, or the same as, the last version",
    )
    parser.set_defaults(func=publish_command)


def _exports(arguments: argparse.Namespace) -> Path:
    layout = Layout(arguments.workspace)
    if not layout.is_workspace():
        raise UserError(
            f"no workspace at {layout.path}: `python -m edge_hpcr learn --workspace {layout.path}` makes one"
        )
    return layout.exports


# Publishing -----------------------------------------------------------------------------------------------------------


def publish_command(arguments: argparse.Namespace) -> int:
    exports = _exports(arguments)
    policy = _policy(arguments)
    if arguments.every is None:
        _publish_once(arguments, exports, policy)
        return 0
    if not 0 < arguments.every <= LONGEST_WAIT:
        raise UserError(
            f"--every {arguments.every:g}: give a number of seconds above 0, and at most a year's"
        )
    _publish_for_ever(arguments, exports, policy)
    return 0


def _policy(arguments: argparse.Namespace) -> Policy:
    given = {name: getattr(arguments, name, None) for name in (field.name for field in fields(Policy))}
    return Policy(**{name: value for name, value in given.items() if value is not None})


def _publish_once(arguments: argparse.Namespace, exports: Path, policy: Policy) -> None:
    from export.publish.publish import publish, unchanged  # torch takes seconds, and nothing else needs it
    from export.publish.snapshot import snapshot_of_workspace

    snapshot = snapshot_of_workspace(arguments.workspace)
    variants = [name for name in ("int8", "fp16") if getattr(arguments, name)]
    same = None if policy.force else unchanged(exports, snapshot)
    if same is not None:
        not_made = f", and so no {' and '.join(variants)} variant was made" if variants else ""
        if arguments.json:
            reason = f"nothing has changed{not_made}"
            print(json.dumps({"published": False, "version": same, "reason": reason}), flush=True)
        elif arguments.every is None:
            print(
                f"version {same} holds step {snapshot.step:,} already: nothing is new{not_made} "
                "(--force publishes it again)"
            )
        return
    by_hand = arguments.every is None
    _say(publish(exports, snapshot, policy, variants, by_hand), arguments.json)


def _publish_for_ever(arguments: argparse.Namespace, exports: Path, policy: Policy) -> None:
    stop = _until_asked_to_stop()
    said = None
    while True:
        try:
            _publish_once(arguments, exports, policy)
            said = None
        except (UserError, BadModel, Refused) as error:
            # Labels still come, and the next attempt may succeed. The same sentence every minute says nothing.
            if str(error) != said:
                said = str(error)
                print(f"export: not published: {said}", file=sys.stderr, flush=True)
        if stop.wait(arguments.every):
            return


def _until_asked_to_stop() -> threading.Event:
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler)  # a second Ctrl-C ends at once

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    return stop


def _say(published: Published, as_json: bool) -> None:
    manifest = published.manifest
    if as_json:
        facts = {
            "published": True,
            "folder": str(published.folder),
            "traced": published.traced,
            "seconds": round(published.seconds, 3),
            "notes": published.notes,
            "manifest": manifest.facts,
        }
        print(json.dumps(facts, ensure_ascii=False), flush=True)
        return
    how = "traced" if published.traced else "new weights in the known graph"
    print(
        f"published version {manifest.version} ({how}, {published.seconds:.1f} s): {_summary(manifest)} in {published.folder}"
    )
    for name, reason in manifest.missing_variants.items():
        print(f"no {name} variant: {reason}")
    for note in published.notes:
        print(note)
    sys.stdout.flush()


def _summary(manifest: Manifest) -> str:
    accuracy = manifest.facts.get("accuracy") or {}
    count = len(manifest.classes)
    parts = [
        f"step {manifest.step:,}",
        f"{count} class{'' if count == 1 else 'es'}",
        f"held-out: {accuracy_text(accuracy.get('held_out'), accuracy.get('samples', 0))}",
        format_bytes(manifest.model.bytes),
        *(f"{name} {format_bytes(file.bytes)}" for name, file in manifest.variants.items()),
    ]
    return ", ".join(parts)


# Versions -------------------------------------------------------------------------------------------------------------


def list_command(arguments: argparse.Namespace) -> int:
    exports = _exports(arguments)
    kept, counts = versions(exports), latest_version(exports)
    if arguments.json:
        print(json.dumps({"latest": counts, "versions": [each.facts for each in kept]}, ensure_ascii=False))
        return 0
    if not kept:
        print(f"no version yet: `python -m export --workspace {arguments.workspace}` publishes one")
    for each in kept:
        mark = "*" if each.version == counts else " "
        print(f"{mark} {each.version:>6}  {each.created}  {_summary(each)}")
    return 0


def rollback_command(arguments: argparse.Namespace) -> int:
    exports = _exports(arguments)
    return _moved(arguments, lambda: rollback(exports, arguments.version))


def rollforward_command(arguments: argparse.Namespace) -> int:
    exports = _exports(arguments)
    return _moved(arguments, lambda: rollforward(exports))


def _moved(arguments: argparse.Namespace, move: Callable[[], Manifest]) -> int:
    manifest = move()
    if arguments.json:
        print(json.dumps({"latest": manifest.version}))
    else:
        print(f"version {manifest.version} is current: {_summary(manifest)}")
    return 0


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in (*COMMANDS, "-h", "--help", "--version"):
        argv = ["publish", *argv]
    arguments = make_parser(argv[0]).parse_args(argv)
    try:
        return arguments.func(arguments)
    except UserError as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    except Refused as error:
        print(f"export: not published: {error}", file=sys.stderr)
    except BadModel as error:
        print(f"export: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
