"""Learn treatment rules together with other hospitals; share sums, never patients.

A whole study, where one table holds the patients of all sites:

    study = fdtr.Study.load("study.toml")
    data = fdtr.read_trajectories("table.csv", study)
    results = fdtr.run(study, data)
    results.save("out")                          # policies, tables and report.html
    fdtr.plots.values(results)                   # a chart, for a notebook

Where every hospital keeps its own table, a site releases its message, the hub adds the messages up, and the site fits
its policy from the total; `help(fdtr.exchange)` shows a whole round:

    fdtr.exchange.release_message(study, data, "north.fdtr", confirm=ask)
    first_round = fdtr.signing.numbered_round(study.fingerprint, study.roster, 1)
    fdtr.fit_federated(study, data, fdtr.exchange.read_total("total.fdtr", study, first_round)).policy

Modules:

    plots                               the report's charts
    exchange, site, hub, signing        rounds between hospitals: what leaves a site, and what comes back
    evaluation, inference               what a policy is worth, and what the total says
    simulation, learners, tuning        worlds whose truth is known, and the parts of the method
    cohort                              from clinical databases to a table
    errors                              every error that a person can act on

docs/api.md lists the public names. A name is imported when it is first used, so `import fdtr` costs next to nothing.

Research software: not validated for clinical use.
"""

import logging

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = ["__version__", *_names]

logging.getLogger("fdtr").addHandler(logging.NullHandler())
