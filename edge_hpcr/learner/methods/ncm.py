"""NCM, nearest class mean (SimpleCIL): the class whose mean direction has the largest cosine with the feature."""

from edge_hpcr.learner.methods.closed_form import ClosedForm


class NCM(ClosedForm):
    name = "ncm"
    order = 92
    source = "nearest class mean, as in SimpleCIL (Zhou et al. 2023); no row of the paper's tables"
