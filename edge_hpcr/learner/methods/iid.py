"""IID: one pass over the whole data, shuffled, without tasks and without a memory."""

from edge_hpcr.learner.methods.finetune import FineTune


class IID(FineTune):
    name = "iid"
    order = 100
    source = "the paper's reference without tasks"
    shuffled_passes = 1
