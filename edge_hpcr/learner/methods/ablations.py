"""The ablation rows of the paper's table, PCR among them: HPCR with parts switched off, each on top of the one before."""

from typing import Any, ClassVar

from edge_hpcr.learner.methods.hpcr import HPCR

NO_SCD: dict[str, Any] = {"beta": 0.0}
NO_DISTILLATION = NO_SCD | {"alpha": 0.0, "distillation": "pcd", "distil": "older", "distil_new": "none"}
NO_TEMPERATURE = NO_DISTILLATION | {"tau_high": 1.0, "tau_low": 1.0, "cycle": 1, "schedule": "constant"}


class WithoutSCD(HPCR):
    name = "pcr_ct_pcd"
    order = 20
    fixed = NO_SCD


class WithoutDistillation(WithoutSCD):
    name = "pcr_ct"
    order = 30
    fixed = NO_DISTILLATION


class Contrastive(WithoutDistillation):
    name = "pcr_c"
    order = 40
    fixed = NO_TEMPERATURE | {"smallest_batch": 0}  # sample pairs in every batch, however small
    earlier: ClassVar = {**HPCR.earlier, "pairs": "joined"}


class PCR(WithoutDistillation):
    name = "pcr"
    order = 50
    # No sample pairs: only proxies of the batch's classes compete.
    fixed = NO_TEMPERATURE | {"smallest_batch": 2**31, "pairs": "apart"}
