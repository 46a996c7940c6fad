"""Faults of what comes in: another source in the midst of one, and clients that are slow or hang up."""

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import uvicorn
from starlette.applications import Starlette

from app.feeder import Feeder
from app.routes import routes
from app.studio import Studio
from benchmarks.endurance import ROOMY
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Taken, Workspace

Message = dict[str, Any]
CLASSES, FEWEST_FILES, MOST_FILES, SIDE = 3, 5, 60, 8  # of a folder: files of each class
WAIT_SECONDS = 240.0
BLOCKED_SECONDS = 60.0  # an answer that takes longer is none


def labelled_folders(folder: Path) -> list[Path]:
    """The sources of a workspace here."""
    return [folder.with_name(f"{folder.name}-source-{number}") for number in range(2)]


def _fill(folder: Path, files: int, rng: np.random.Generator) -> None:
    for number in range(CLASSES):
        place = folder / f"class {number}"
        place.mkdir(parents=True)
        for file in range(files):
            image = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            cv2.imwrite(str(place / f"{file}.png"), image)


def change_sources(order: Message, send: Callable[[Message], None]) -> None:
    """Choose sources at random moments while they are read; then let each of them be read to its end."""
    rng, folder = np.random.default_rng(order["seed"]), Path(order["folder"])
    sources = labelled_folders(folder)
    for source in sources:
        _fill(source, min(MOST_FILES, FEWEST_FILES + order["faults"]), rng)
    with Workspace.open(folder) as workspace:
        workspace.change_settings(**ROOMY)
        live = LiveLearner(workspace)
        live.start()
        feeder = Feeder(workspace, live)
        feeder.start()
        for _ in range(order["faults"]):
            feeder.choose(str(sources[rng.integers(len(sources))]), "folders")
            time.sleep(rng.uniform(0, 0.1))
        for source in sources:
            feeder.choose(str(source), "folders")
            _wait(lambda: feeder.ended, f"{source} was not read to its end")
        feeder.stop()
        _wait(lambda: live.caught_up, "the learner did not catch up")
        live.stop()
    send({"kind": "fed"})


def _wait(done: Callable[[], bool], refusal: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(refusal)
        time.sleep(0.01)


# Clients --------------------------------------------------------------------------------------------------------------


def serve_slow_clients(order: Message, send: Callable[[Message], None]) -> None:
    """Label over HTTP while others are slow, hang up in the midst, or never read their answer."""
    rng, count = np.random.default_rng(order["seed"]), order["faults"]
    with Workspace.open(order["folder"]) as workspace:
        workspace.change_settings(**ROOMY)
        studio = Studio(workspace)
        studio.live.start()
        images = rng.integers(0, 256, (2 * count, SIDE, SIDE, 3), np.uint8)
        ids = workspace.take_many([Taken(image, f"frame {n}") for n, image in enumerate(images)])
        class_id = studio.journal.create_class("part")
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=routes(studio)), log_level="critical", timeout_graceful_shutdown=1
            )
        )
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        address, open_connections = listening.getsockname(), []
        for number in range(count):
            slow, quick = ids[2 * number], ids[2 * number + 1]
            send({"kind": "cut", "sample": slow})
            open_connections.append(_be_slow(address, slow, class_id, rng))
            if _label(address, quick, class_id):
                send({"kind": "acknowledged", "sample": quick})
        for connection in open_connections:
            connection.close()
        server.should_exit = True
        thread.join()
        _wait(lambda: studio.live.caught_up, "the learner did not catch up")
        studio.live.stop()


def _request(sample_id: int, class_id: int) -> bytes:
    return json.dumps({"do": "label_samples", "samples": [sample_id], "class": class_id}).encode()


def _label(address: tuple[str, int], sample_id: int, class_id: int) -> bool:
    connection = http.client.HTTPConnection(*address, timeout=BLOCKED_SECONDS)
    try:
        connection.request("POST", "/edge/act", _request(sample_id, class_id))
        answer = connection.getresponse()
        return answer.status == 200 and bool(json.loads(answer.read())["seq"])
    finally:
        connection.close()


def _be_slow(
    address: tuple[str, int], sample_id: int, class_id: int, rng: np.random.Generator
) -> socket.socket:
    """Send a label in one of the ways that leave a server waiting; the connection may still be open."""
    body = _request(sample_id, class_id)
    head = (
        f"POST /edge/act HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    whole = head.encode() + body
    connection = socket.create_connection(address, timeout=BLOCKED_SECONDS)
    way = rng.integers(4)
    if way == 0:  # a part of it, and then nothing
        connection.sendall(whole[: rng.integers(1, len(whole))])
    elif way == 1:  # a part of it, and gone
        connection.sendall(whole[: rng.integers(1, len(whole))])
        _hang_up(connection)
    elif way == 2:  # all of it, and gone before the answer
        connection.sendall(whole)
        time.sleep(rng.uniform(0, 0.02))
        _hang_up(connection)
    else:  # all of it in small pieces, and the answer stays unread
        for start in range(0, len(whole), 16):
            connection.sendall(whole[start : start + 16])
    return connection


def _hang_up(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
    connection.close()
