"""Specs that can be tuned."""

from __future__ import annotations

from flexcomp.schedules.recurrent.spec import RecurrentSpec
from flexcomp.schedules.tiles.spec import Spec

TunedSpec = Spec | RecurrentSpec  # a layer with a choice of kernels, or one direction of a recurrent layer
