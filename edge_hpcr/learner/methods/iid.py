"""IID: one pass over the whole data, shuffled, without tasks and without a memory."""

from edge_hpcr.learner.methods.finetune import FineTune


class IID(FineTune):
    shuffled_passes = 1


METHOD = IID
