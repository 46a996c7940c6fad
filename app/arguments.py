"""What actions of a page take and give: `app/actions.py` checks arguments by these types, and refuses others by the description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from edge_hpcr.stream.region import WANTED

WHOLE, MOST_IDS = "a whole number", 5000
Id = Annotated[int, Field(gt=0, lt=2**53, description=WHOLE)]
ClassId = Annotated[int, Field(gt=0, lt=2**53, description=WHOLE, alias="class")]
Ids = Annotated[
    list[Annotated[int, Field(gt=0, lt=2**53)]],
    Field(max_length=MOST_IDS, description=f"a list of at most {MOST_IDS} whole numbers"),
]
Point = Annotated[int, Field(ge=0, lt=2**53, description=WHOLE)]
Seen = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**53)]],
    Field(max_length=MOST_IDS, description=f"a list of at most {MOST_IDS} whole numbers"),
]
Text = Annotated[str, Field(max_length=2000, description="a text")]
Flag = Annotated[bool, Field(description="true or false")]
Numbers = Annotated[list[float], Field(description=f"a list of four numbers: {WANTED}")]
Share = Annotated[float, Field(ge=0, le=0.5, description="a number from 0 to 0.5")]


@dataclass(frozen=True)
class Done:
    """An action that is on disk."""

    message: str
    seq: int | None = None  # of the journal, by which the learner's reply is found
    class_id: int | None = None
    samples: int = 0
