"""IID++ (Caccia et al.): shuffled data with a replay method's compute, 20 samples a step for as many steps.

A replay method takes one step for every 10 incoming samples; 20 samples in each of those steps are two passes.
"""

from edge_hpcr.learner.methods.finetune import FineTune


class IIDPlusPlus(FineTune):
    name = "iid_pp"
    order = 110
    source = "Caccia et al., ICLR 2022; their program (AML) was read"
    shuffled_passes = 2
    samples_per_step = 20
