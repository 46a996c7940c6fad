"""Any model of timm as a backbone: `timm:NAME`, with the weights in a file or in timm's own cache.

The model is frozen, and an adapter of its pooled features is trainable. Of a vision transformer the blocks are frozen as
in the paper's section on pre-trained backbones, and a trainable residual term stands beside each.
"""

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.backbones.contract import Backbone


def named(name: str) -> type[Backbone]:
    raise UserError(f"backbone {name}: not yet")
