"""The command line: `python -m export --workspace W` publishes. 0 is done, 2 wrong input in one line, 1 anything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option
from typer.core import TyperGroup

from edge_hpcr.commands.cli import Version, examples, new_commands, run
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.settings import Settings
from export.device.identity import DEFAULT_PORT, VARIABLE
from export.device.manifest import Manifest
from export.device.signing import PrivateKey, make_keys
from export.publish import serve as server
from export.publish.versions import (
    Refused,
    latest_version,
    pin,
    pinned,
    rollback,
    rollforward,
    sign_current,
    summary,
    unpin,
    versions,
)

EXAMPLES = """
examples:
  python -m export --workspace parts                     publish what has been learned so far
  python -m export list --workspace parts                the versions, and which one is current
  python -m export rollback --workspace parts            make the previous version current; `rollforward` undoes that
  python -m export pin 17 --workspace parts --devices cam-1,cam-2  keep these devices on version 17 until `unpin`
  python -m export keygen --private key.pem --public public.pem    keys to sign versions with (--sign key.pem)
  python -m export serve --workspace parts               give models to devices over HTTP
  python -m export.runtime --models parts/exports --source 0      classify on a device

Publishing takes the newest checkpoint, also while `learn` runs. Versions are folders
in parts/exports; devices change to a new one while they run. `python -m export COMMAND --help` says more.
"""

W = Annotated[Path, Option(metavar="W", help="the learner's folder")]
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


# Publishing -----------------------------------------------------------------------------------------------------------


@commands.command(short_help="publish the newest checkpoint (the default)")
def publish(
    workspace: W,
    as_json: AsJson = False,
    int8: Annotated[bool, Option("--int8", help="add a variant in 8 bits, if it is good enough")] = False,
    force: Annotated[
        bool, Option("--force", help="publish even if it is worse than the last one, or the same")
    ] = False,
    sign: Annotated[
        Path | None, Option(metavar="FILE", help="sign with this private key, now and from now on")
    ] = None,
) -> None:
    """Publish the newest checkpoint as an ONNX model that carries its own description.

    It is refused if its answers differ from the network's, or if it recognises clearly fewer held-out samples than the
    current version. The reason is printed. The first version takes a while, because the network is traced; later
    ones take about a second.
    """
    from export.publish import publish  # torch takes seconds, and nothing else needs it
    from export.publish.snapshot import snapshot_of_workspace

    exports, path = _exports(workspace), Layout(workspace).settings
    settings = Settings.load(path)
    if sign is not None:
        PrivateKey(sign)
        # Kept, so that a rollback or a running learner signs too.
        settings = settings.replace(publish_key=str(sign.resolve()))
        settings.save(path)
        sign_current(exports)
    if int8:
        settings = settings.replace(publish_int8=True)
    snapshot = snapshot_of_workspace(workspace)
    same = None if force else publish.unchanged(exports, snapshot)
    if same is not None:
        facts = {"published": False, "version": same, "notes": snapshot.notes}
        nothing = f"version {same} holds step {snapshot.step:,} already, so nothing is new (--force publishes it again)"
        return _say("; ".join([nothing, *snapshot.notes]), facts, as_json)
    try:
        done = publish.publish(exports, snapshot, settings, force=force)
    except Refused as error:
        raise Failed(f"not published: {error}") from None
    facts = {
        "published": True,
        "folder": str(done.folder),
        "traced": done.traced,
        "seconds": round(done.seconds, 3),
        "notes": done.notes,
        "manifest": done.manifest.facts,
    }
    _say(f"{done.text}; in {done.folder}", facts, as_json)


def _say(text: str, facts: Mapping[str, object], as_json: bool) -> None:
    print(json.dumps(facts, ensure_ascii=False) if as_json else text, flush=True)


# Versions -------------------------------------------------------------------------------------------------------------


@commands.command("list", short_help="list the published versions")
def list_versions(workspace: W, as_json: AsJson = False) -> None:
    """List the published versions."""
    exports = _exports(workspace)
    found, current, kept = versions(exports), latest_version(exports), pinned(exports)
    staying = {"version": kept.version, "devices": kept.devices} if kept else None
    lines = [] if found else [f"no version yet: `python -m export --workspace {workspace}` publishes one"]
    for each in found:
        mark = "*" if each.version == current else "+" if kept and each.version == kept.version else " "
        lines.append(f"{mark} {each.version:>6}  {each.created}  {summary(each)}")
    if kept:
        lines.append(f"+ {', '.join(kept.devices)} stay on version {kept.version}")
    facts = {"latest": current, "pinned": staying, "versions": [each.facts for each in found]}
    _say("\n".join(lines), facts, as_json)


@commands.command("rollback", short_help="make the previous version current again, or a named one")
def roll_back(
    workspace: W,
    version: Annotated[
        int | None, Argument(help="its number", show_default="the one before the current one")
    ] = None,
) -> None:
    """Make the previous version current again, or a named one."""
    _say_current(rollback(_exports(workspace), version))


@commands.command("rollforward", short_help="end a rollback: make the newest version current")
def roll_forward(workspace: W) -> None:
    """End a rollback: make the newest version current."""
    _say_current(rollforward(_exports(workspace)))


@commands.command("pin", short_help="keep some devices on a version")
def pin_devices(
    workspace: W,
    version: Annotated[int, Argument(help="its number")],
    devices: Annotated[str, Option(metavar="ID,ID", help="the devices that stay on it")],
) -> None:
    """Keep the named devices on a version until `unpin`. All others get the current version."""
    named = [each.strip() for each in devices.split(",") if each.strip()]
    manifest = pin(_exports(workspace), version, named)
    print(f"{', '.join(named)} stay on version {version}: {summary(manifest)}")


@commands.command("unpin", short_help="give all devices the current version again")
def unpin_devices(workspace: W) -> None:
    """Give all devices the current version again."""
    print(f"version {unpin(_exports(workspace))} is for all devices")


def _say_current(manifest: Manifest) -> None:
    print(f"version {manifest.version} is current: {summary(manifest)}")


# Signing --------------------------------------------------------------------------------------------------------------


@commands.command(short_help="make the keys that sign versions")
def keygen(
    private: Annotated[Path, Option(metavar="FILE", help="for the trainer; keep it secret, and back it up")],
    public: Annotated[Path, Option(metavar="FILE", help="for the devices (`--public-key FILE`)")],
) -> None:
    """Make a pair of keys (Ed25519). Devices that have the public one refuse what is not signed."""
    make_keys(private, public)
    print(f"{private} signs (`python -m export --workspace W --sign {private}`); {public} is for the devices")


# Serving --------------------------------------------------------------------------------------------------------------


@commands.command(short_help="give published models to devices over HTTP")
def serve(
    workspace: Annotated[Path, Option(metavar="W", help="the learner's folder")],
    host: Annotated[str, Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="port to listen on; 0: any free one")] = DEFAULT_PORT,
    token: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="answer only requests with this bearer token",
            show_default=f"${VARIABLE}",
        ),
    ] = None,
) -> None:
    """Give published models to devices over HTTP, for `python -m export.runtime --models URL`.

    Devices report what they run (`python -m edge_hpcr devices W`), and may send back frames that are worth a label.
    """
    server.serve(workspace, host, port, token)


def main(arguments: list[str] | None = None) -> int:
    return run(commands, "python -m export", arguments)


if __name__ == "__main__":
    sys.exit(main())
