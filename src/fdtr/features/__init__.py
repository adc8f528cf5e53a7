"""From covariates and an action to φ(x, a): state bases, the map, and the states that a policy is given."""

from fdtr.features.mapping import FeatureMap, build_features

__all__ = ["FeatureMap", "build_features"]
