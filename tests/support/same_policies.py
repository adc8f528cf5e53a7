"""Compares what a federation over the network learnt with the same study in a shared folder."""

from pathlib import Path

import numpy as np

from fdtr.study import Study
from folder_parties import SITES, Parties
from network_parties import Network


def through_a_folder(root: Path, study: Study) -> Parties:
    """The same study as hub and sites run it in a shared folder."""
    parties = Parties(root).set_up(study)
    parties.open()
    parties.join_all().play()
    return parties


def same_policies(network: Network, parties: Parties) -> None:
    """Bit for bit."""
    for site in SITES:
        policy, expected = network.policy(site), parties.policy(site)
        np.testing.assert_array_equal(policy.theta, expected.theta)
        np.testing.assert_array_equal(policy.precision, expected.precision)
