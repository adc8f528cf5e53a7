"""From covariates and an action to φ(x, a): state bases, the feature map, and the states a policy acts on."""

from fdtr.features.mapping import FeatureMap, build_features

__all__ = ["FeatureMap", "build_features"]
