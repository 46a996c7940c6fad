"""The command line: `python -m export --workspace W` publishes. 0 is done, 2 wrong input in one line, 1 anything else."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option
from typer.core import TyperGroup

from edge_hpcr.commands.cli import Version, examples, new_commands, run
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.common.units import format_bytes
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.settings import Settings
from export.device.access_token import VARIABLE
from export.device.manifest import Manifest
from export.publish import serve as server
from export.publish.keys import PrivateKey, make_keys
from export.publish.policy import Policy, Refused
from export.publish.staging import check_devices, staged
from export.publish.versions import (
    latest_version,
    release,
    rollback,
    rollforward,
    sign_versions,
    stage,
    versions,
)

if TYPE_CHECKING:
    from export.publish.publish import Published

EXAMPLES = """
examples:
  python -m export --workspace parts                     publish what has been learned so far
  python -m export --workspace parts --every 60          go on, whenever there is something new; Ctrl-C ends
  python -m export list --workspace parts                the versions, and which one is current
  python -m export rollback --workspace parts            make the version before it current; `rollforward` undoes that
  python -m export stage --workspace parts --devices cam-1,cam-2   publish for these devices only
  python -m export release --workspace parts             give that version to all; `rollback` takes it back instead
  python -m export keygen --private key.pem --public public.pem    keys to sign versions with (--sign key.pem)
  python -m export serve --workspace parts               give models to devices over HTTP
  python -m export.runtime --models parts/exports --source 0      classify on a device

Publishing works beside a running `learn`, from its newest checkpoint, and on a workspace at rest. Versions are folders
in parts/exports; devices change to a new one while they run. `python -m export COMMAND --help` says more.
"""
LONGEST_WAIT = 366 * 86_400.0  # seconds

W = Annotated[Path, Option(metavar="W", help="the learner's folder")]
Sign = Annotated[
    Path | None,
    Option(
        "--sign",
        metavar="FILE",
        help="sign with this private key, now and from now on (the setting publish_key)",
    ),
]
AsJson = Annotated[bool, Option("--json", help="print JSON instead of text")]


class _PublishByDefault(TyperGroup):
    """Publishes when no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help", "--version"):
            args = ["publish", *args]
        return super().parse_args(ctx, args)


commands = new_commands(cls=_PublishByDefault)


@commands.callback(epilog=examples(EXAMPLES))
def _export(version: Version = False) -> None:
    """Publish what a workspace has learned as ONNX models for devices. Without a command: publish."""


def _exports(workspace: Path) -> Path:
    layout = Layout(workspace)
    if not layout.is_workspace():
        raise UserError(
            f"no workspace at {layout.path}: `python -m edge_hpcr learn --workspace {layout.path}` makes one"
        )
    return layout.exports


def _sign_with(workspace: Path, key: Path | None) -> None:
    """Keep in the settings which key signs, so that a rollback or a running learner signs too."""
    if key is not None:
        PrivateKey(key)
        path = Layout(workspace).settings
        Settings.load(path).replace(publish_key=str(key.resolve())).save(path)


# Publishing -----------------------------------------------------------------------------------------------------------


@commands.command(short_help="publish the newest checkpoint (the default)")
def publish(
    workspace: W,
    as_json: AsJson = False,
    int8: Annotated[bool, Option("--int8", help="add a variant in 8 bits, if it is faster here")] = False,
    fp16: Annotated[bool, Option("--fp16", help="add a variant in 16 bits, for CUDA")] = False,
    every: Annotated[
        float | None, Option(metavar="SECONDS", help="go on publishing what is new; Ctrl-C ends")
    ] = None,
    most_drop: Annotated[
        float, Option(metavar="SHARE", help="of held-out accuracy that may be lost")
    ] = Policy.most_drop,
    keep: Annotated[int, Option(metavar="N", help="versions to keep")] = Policy.keep,
    force: Annotated[
        bool, Option("--force", help="publish though it is worse than, or the same as, the last version")
    ] = False,
    sign: Sign = None,
) -> None:
    """Publish the newest checkpoint as an ONNX model that describes itself.

    It is refused, with the reason, when it does not answer as the network does, or when it recognises clearly fewer
    held-out samples than the current version. The first version takes a while, because the network is traced; later
    ones take about a second.
    """
    exports = _exports(workspace)
    _sign_with(workspace, sign)
    policy = Policy(most_drop=most_drop, keep=keep, force=force)
    variants = [name for name, asked in (("int8", int8), ("fp16", fp16)) if asked]
    once = partial(_publish_once, workspace, exports, policy, variants, as_json)
    if every is None:
        try:
            once(by_hand=True)
        except Refused as error:
            raise Failed(f"not published: {error}") from None
    elif 0 < every <= LONGEST_WAIT:
        _publish_periodically(partial(once, by_hand=False), every)
    else:
        raise UserError(f"--every {every:g}: give a number of seconds above 0, and at most a year's")


def _publish_once(
    workspace: Path,
    exports: Path,
    policy: Policy,
    variants: list[str],
    as_json: bool,
    by_hand: bool,
    devices: tuple[str, ...] = (),
) -> int | None:
    """Publish, or say that nothing is new and return the version that holds it already."""
    from export.publish import publish  # torch takes seconds, and nothing else needs it
    from export.publish.snapshot import snapshot_of_workspace

    snapshot = snapshot_of_workspace(workspace)
    same = None if policy.force else publish.unchanged(exports, snapshot)
    if same is None:
        _say(publish.publish(exports, snapshot, policy, variants, by_hand, devices), as_json)
        return None
    not_made = f", and so no {' and '.join(variants)} variant was made" if variants else ""
    if as_json:
        reason = f"nothing has changed{not_made}"
        print(json.dumps({"published": False, "version": same, "reason": reason}), flush=True)
    elif by_hand:
        print(
            f"version {same} holds step {snapshot.step:,} already: nothing is new{not_made} "
            "(--force publishes it again)"
        )
    return same


def _publish_periodically(once: Callable[[], object], seconds: float) -> None:
    stop = _until_asked_to_stop()
    said = None
    while True:
        try:
            once()
            said = None
        except (UserError, Failed, Refused) as error:
            # Labels still come, and the next attempt may succeed. The same sentence every minute says nothing.
            if str(error) != said:
                said = str(error)
                print(f"export: not published: {said}", file=sys.stderr, flush=True)
        if stop.wait(seconds):
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


@commands.command("list")
def list_versions(workspace: W, as_json: AsJson = False) -> None:
    """The published versions."""
    exports = _exports(workspace)
    kept, current, tried = versions(exports), latest_version(exports), staged(exports)
    if as_json:
        trial = {"version": tried.version, "devices": tried.devices, "since": tried.since} if tried else None
        facts = {"latest": current, "staged": trial, "versions": [each.facts for each in kept]}
        print(json.dumps(facts, ensure_ascii=False))
        return
    if not kept:
        print(f"no version yet: `python -m export --workspace {workspace}` publishes one")
    for each in kept:
        mark = "*" if each.version == current else "+" if tried and each.version == tried.version else " "
        print(f"{mark} {each.version:>6}  {each.created}  {_summary(each)}")
    if tried:
        print(f"+ version {tried.version} is on trial on {', '.join(tried.devices)}")


@commands.command("rollback")
def roll_back(
    workspace: W,
    version: Annotated[
        int | None, Argument(help="its number", show_default="the one before the current one")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an older version current for all devices; a trial that `stage` began ends."""
    _say_current(rollback(_exports(workspace), version), as_json)


@commands.command("rollforward")
def roll_forward(workspace: W, as_json: AsJson = False) -> None:
    """End a rollback."""
    _say_current(rollforward(_exports(workspace)), as_json)


@commands.command("stage", short_help="give a version to some devices first")
def stage_version(
    workspace: W,
    devices: Annotated[str, Option(metavar="ID,ID", help="who gets it; all others keep the current version")],
    version: Annotated[
        int | None, Argument(help="its number", show_default="a new one, from the newest checkpoint")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a version to named devices only, and to all of them with `release`.

    Publishing by itself waits until the trial ends: by `release`, by `rollback`, or by publishing by hand.
    """
    exports, named = _exports(workspace), check_devices(devices)
    if version is None:
        settings = Settings.load(Layout(workspace).settings)
        variants = ["int8"] if settings.publish_int8 else []
        try:
            version = _publish_once(workspace, exports, Policy.of(settings), variants, as_json, True, named)
        except Refused as error:
            raise Failed(f"not published: {error}") from None
    if version is None:
        if not as_json:
            print(f"on trial on {', '.join(named)}: `release` gives it to all, `rollback` takes it back")
        return
    manifest = stage(exports, version, named)
    if as_json:
        print(json.dumps({"latest": latest_version(exports), "staged": manifest.version, "devices": named}))
    else:
        print(f"version {manifest.version} is on trial on {', '.join(named)}: {_summary(manifest)}")


@commands.command("release")
def release_version(workspace: W, as_json: AsJson = False) -> None:
    """Make the version on trial the current one for all devices."""
    _say_current(release(_exports(workspace)), as_json)


def _say_current(manifest: Manifest, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"latest": manifest.version}))
    else:
        print(f"version {manifest.version} is current: {_summary(manifest)}")


# Signing --------------------------------------------------------------------------------------------------------------


@commands.command(short_help="make the keys that sign versions")
def keygen(
    private: Annotated[
        Path, Option(metavar="FILE", help="for the trainer; keep it secret, and a copy of it")
    ],
    public: Annotated[Path, Option(metavar="FILE", help="for the devices (`--public-key FILE`)")],
) -> None:
    """Make a pair of keys (Ed25519): devices that are given the public one take nothing that is not signed."""
    make_keys(private, public)
    print(f"{private} signs (`python -m export --workspace W --sign {private}`); {public} is for the devices")


@commands.command(short_help="sign the versions that are there already")
def sign(workspace: W, sign: Sign = None) -> None:
    """Sign every kept version, and which of them is current."""
    exports = _exports(workspace)
    _sign_with(workspace, sign)
    print(f"{sign_versions(exports)} versions are signed")


# Serving --------------------------------------------------------------------------------------------------------------


@commands.command(short_help="give published models to devices over HTTP")
def serve(
    workspace: Annotated[Path, Option(metavar="W", help="whose exports to serve")],
    host: Annotated[str, Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one")] = server.DEFAULT_PORT,
    token: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="only for who sends one of its bearer tokens, a line each; or `device: token`",
            show_default=f"${VARIABLE}",
        ),
    ] = None,
    with_parent: Annotated[
        bool, Option("--with-parent", hidden=True, help="end when standard input ends")
    ] = False,
) -> None:
    """Give published models to devices over HTTP, for `python -m export.runtime --models URL`.

    Devices report what they run (`python -m edge_hpcr devices W`), and may send back frames that are worth a label.
    """
    server.serve(workspace, host, port, token, with_parent)


def main(arguments: list[str] | None = None) -> int:
    return run(commands, "python -m export", arguments)


if __name__ == "__main__":
    sys.exit(main())
