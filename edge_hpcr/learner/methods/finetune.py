"""FINE-TUNE (eq. oclloss): no memory at all; the lower reference of the paper's tables."""

from edge_hpcr.learner.methods.er import ER


class FineTune(ER):
    name = "finetune"
    order = 90
    source = "the paper's lower reference"
    uses_memory = False
