"""Parts of the state as pages know it: the source, the frame that is shown, and what the learner says."""

from __future__ import annotations

from typing import Any

from app.browser_camera import SPEC as BROWSER
from app.feeder import Feeder
from edge_hpcr.live.predictor import Answer
from edge_hpcr.live.teaching import Learned
from edge_hpcr.stream import DEMONSTRATION


def source_state(feeder: Feeder) -> dict[str, Any]:
    stream, camera = feeder.stream, feeder.browser_camera
    if stream is None:
        none = {
            "spec": "",
            "name": "no source",
            "phase": "closed",
            "browser": False,
            "owner": "",
            "region": None,
        }
        return {**none, "message": feeder.problem or ""}
    state = stream.state()
    phase, message = ("ended", "it has shown everything") if feeder.ended else (state.phase, state.message)
    return {
        # Any other may hold a password.
        "spec": feeder.spec if feeder.spec in (BROWSER, DEMONSTRATION) else "other",
        "name": stream.name,
        "phase": phase,
        "message": feeder.problem or message,
        "dropped": state.dropped,
        "bad": state.bad,
        "browser": camera is not None,
        "owner": camera.owner if camera else "",
        "region": feeder.region.to_list() if feeder.region else None,
    }


def frame_state(feeder: Feeder) -> dict[str, Any] | None:
    shown = feeder.newest()
    if shown is None:
        return None
    return {
        "number": shown.number,
        "held": feeder.held,
        "small": max(shown.image.shape[:2]) <= 64,
        "verdict": shown.verdict,
        **answer_state(shown.answer),
    }


def answer_state(answer: Answer) -> dict[str, Any]:
    return {
        "top": [[class_id, round(confidence, 4)] for class_id, confidence in answer.top],
        "unknown": answer.unknown,
        "calibrated": answer.calibrated,
        "similarity": round(answer.similarity, 3),
    }


def learned_state(reply: Learned) -> dict[str, Any]:
    return {
        "seq": reply.seq,
        "sample": reply.sample_id,
        "class": reply.class_id,
        "before": answer_state(reply.before),
        "after": answer_state(reply.after),
        "held_out": reply.held_out,
        "seconds": round(reply.seconds, 3),
    }
