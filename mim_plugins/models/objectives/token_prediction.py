"""Prediction of a frozen tokenizer's tokens at masked positions."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor

from ..selfsup.outputs import Outputs
from .masked import MaskedObjective


@MODELS.register_module()
class TokenPrediction(MaskedObjective):
    """Masked tokens predict what a frozen tokenizer says of the full view.

    Args:
        tokenizer (dict): ``DALLETokenizer`` (ids) or ``FrozenTokenizer``
            (distributions).
        loss, weight: as in :class:`MaskedObjective`.

    Source: iBOT, Table 4 (a standalone DINO or DALL-E as the tokenizer; DINO
    and BEiT as two tasks), after BEiT's masked image modelling.
    """

    def __init__(
        self,
        tokenizer: dict,
        loss: dict | None = None,
        weight: float = 1.0,
    ):
        super().__init__(loss, weight)
        self.tokenizer = MODELS.build(tokenizer)

    def teacher_groups(self, groups: list[str], masked: list[str]) -> set[str]:
        return set()

    @torch.no_grad()
    def target(self, outputs: Outputs, group: str) -> Tensor:
        """``(M, K)``; ids become one-hot."""
        mask = outputs.masks[group]
        tokens = self.tokenizer(
            outputs.views[group], outputs.student[group].grid, mask['index']
        )
        if tokens.dim() > 1:
            return tokens
        one_hot = torch.zeros(
            len(tokens), self.tokenizer.num_tokens, device=tokens.device
        )
        return one_hot.scatter_(1, tokens[:, None], 1.0)
