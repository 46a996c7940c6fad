"""`python -m edge_hpcr retrunk W NAME`: a workspace's memory made anew from its images, with another network.

The labels are learned again from the journal, as after a loss of all checkpoints. The old learner's checkpoints stay
beside the new ones until that is done.
"""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Argument

from edge_hpcr.commands.cli import W, examples, new_commands, say
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.common.text import many
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.settings import Settings
from edge_hpcr.workspace.workspace import Workspace

# Begins the names of the old learner's checkpoints until the new one has learned everything.
ASIDE = "before-"
TURN_SECONDS = 2.0
EXAMPLES = """
examples:
  python -m edge_hpcr weights get tiny_vit_5m            once per machine
  python -m edge_hpcr retrunk parts tiny_vit_5m_grid     stop what learns there first

A run that was stopped continues when the same command is given again. Pictures that the disk budget has dropped cannot be learned
again: their labels stay in the journal.
"""

commands = new_commands()


@commands.command(epilog=examples(EXAMPLES))
def retrunk(
    workspace: W,
    name: Annotated[str, Argument(metavar="NAME", help="the network, as the setting `backbone` names it")],
) -> int:
    """Learn a workspace's labels again with another network, from its images."""
    with Workspace.open(workspace, create=False) as opened:
        for sentence in opened.report:
            say(sentence)
        if not _begin(opened, name):
            print(f"{workspace} builds on {name}: there is nothing to learn again")
            return 0
        return _learn_again(opened)


def _begin(workspace: Workspace, name: str) -> bool:
    """Set the old learner aside, if that has not been done yet; whether there is anything to learn."""
    from edge_hpcr.learner.learner import Learner
    from edge_hpcr.live.live_learner import learner_config

    settings, layout = workspace.settings, workspace.layout
    if settings.backbone != name:
        changes = {"backbone": name, "image_size": Settings().image_size}
        Learner(learner_config(settings.replace(**changes)), "cpu")  # refused before anything is changed
        workspace.change_settings(**changes)
    for folder in layout.checkpoint_folders():
        if _backbone(folder) != name:
            folder.rename(folder.with_name(ASIDE + folder.name))
    for folder in _aside(layout):
        if _backbone(folder) == name:  # set aside by a run that was stopped, and wanted back now
            folder.rename(folder.with_name(folder.name.removeprefix(ASIDE)))
    return bool(_aside(layout))


def _backbone(folder: Path) -> str | None:
    """What the learner of a checkpoint builds on; None if that cannot be read."""
    with suppress(UserError):
        return str(checkpoint.facts(folder)["config"].get("backbone"))
    return None


def _aside(layout: Layout) -> list[Path]:
    return sorted(layout.checkpoints.glob(f"{ASIDE}*"))


def _learn_again(workspace: Workspace) -> int:
    from edge_hpcr.live.live_learner import LiveLearner

    live, journal = LiveLearner(workspace), workspace.journal
    live.hurries = True
    live.start()
    try:
        while not live.failed and (not live.wait_until_caught_up(TURN_SECONDS) or live.idle_steps_left):
            say(
                f"{live.follower.applied:,} of {journal.last_seq:,} events, {live.idle_steps_left} steps to rehearse"
            )
            time.sleep(0 if not live.caught_up else TURN_SECONDS)
    finally:
        live.stop()
    for problem in live.problems:
        say(problem)
    if live.failed:
        raise Failed("the labels could not be learned again; run the same command to continue")
    for folder in _aside(workspace.layout):
        checkpoint.remove(folder)
    lost = sum(row.class_id is not None for row in journal.all_samples(has_image=False))
    without = f"; {lost} of them could not be learned again, as their pictures are gone" if lost else ""
    print(
        f"{workspace.path} builds on {workspace.settings.backbone} now: {many(journal.counts().labels, 'label')}{without}"
    )
    return 0
