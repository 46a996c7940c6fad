"""`python -m benchmarks`: what the product does on this machine, each part against its bar; about three hours."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from benchmarks import app, devices, endurance
from benchmarks.runner import Facts, Out, check_writable, circumstances, keep
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError, one_of

# The facts of a part say whether it `passed`.
PARTS: dict[str, Callable[[Path], Facts]] = {
    "first_page": app.measure_first_page,
    "use": app.measure_use,
    "installation": devices.measure_installation,
    "away": devices.measure_away,
    "polls": devices.measure_polls,
    "label": devices.measure_label,
    "restart": endurance.measure_restart,
    "classes": endurance.measure_classes,
    "soak": endurance.measure_soak,
}

commands = cli.new_commands()


@commands.command()
def measure(
    part: Annotated[str, Argument(help=f"all, or one of {', '.join(PARTS)}")] = "all",
    seconds: Annotated[
        int | None, Option(min=1, metavar="N", help="that the soak takes, or the trainer is away")
    ] = None,
    out: Out = Path("results/machine/product.json"),
) -> int:
    """What the app, devices and years of labels cost here. 1 when a part misses its bar."""
    one_of("part", part, (*PARTS, "all"))
    check_writable(out)
    try:
        kept = dict(json.loads(out.read_text())) if out.exists() else {}
    except ValueError:
        raise UserError(f"{out} is no result of this command: move it away, or give another file") from None
    names = list(PARTS) if part == "all" else [part]
    for name in names:
        measured = PARTS[name]
        if seconds is not None and name in ("soak", "away"):
            measured = partial(measured, seconds=seconds)
        kept[name] = _measured(name, measured)
        keep(out, kept)
    print(f"kept in {out}")
    return 0 if all(kept[name]["passed"] for name in names) else 1


def _measured(name: str, measured: Callable[[Path], Facts]) -> Facts:
    folder, facts = Path(tempfile.mkdtemp(prefix=f"edge-hpcr-{name}-")), Facts()
    try:
        with circumstances() as machine:
            facts = measured(folder)
    finally:
        # What went wrong can be looked at; what went well, or never began, leaves nothing.
        if facts.get("passed") or not any(folder.iterdir()):
            shutil.rmtree(folder)
        else:
            print(f"the files of {name} are kept in {folder}", file=sys.stderr)
    print(f"{name:<12} {'pass' if facts['passed'] else 'MISSED'}\n  {json.dumps(facts)}", flush=True)
    return {**facts, **machine}


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks"))
