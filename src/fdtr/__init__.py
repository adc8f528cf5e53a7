"""Learn treatment rules together with other hospitals; share sums, never patients.

A whole study, where one table holds the patients of all sites; here they are simulated:

>>> import tempfile
>>> import fdtr
>>> world = fdtr.simulation.WorldSpec(n_sites=2, horizon=2, n_actions=2)
>>> with tempfile.TemporaryDirectory() as folder:
...     study = fdtr.simulate(world, folder, patients=100)
...     data = fdtr.read_trajectories(f"{folder}/table.csv", study)
>>> results = fdtr.run(study, data)
>>> results  # results.save("out") writes policies, tables and report.html
<Results of 'linear-mdp': 2 sites, methods FDTR, FDTR (as allowed), LDTR, LDTR (MV), ...>
>>> results.methods["FDTR"]["site-1"]
<Policy FDTR of site 'site-1': 2 steps, 8 features>
>>> value = results.evaluations["site-1"].value("FDTR")
>>> value.low < value.value < value.high
True
>>> results.evaluations["site-1"].assess("FDTR", over="Clinicians").verdict  # how far to believe the gain
<Evidence.VERIFIED: 'verified'>
>>> chart = fdtr.plots.values(results)  # for a notebook

The baselines by themselves, and how each site's held-out patients judge the settings:

>>> baselines = fdtr.fit_baselines(study, data.by_site())
>>> baselines["LDTR"]["site-1"]
<Policy LDTR of site 'site-1': 2 steps, 8 features>
>>> choice = fdtr.tune(study, data)["site-1"]
>>> choice.candidate
Candidate(ridge=0.01, sharing=1.0, share='reward')
>>> print(choice.in_words("site-1"))
site-1 shares effects on rewards alone: its held-out patients speak against sharing more.
>>> alone = choice.rungs[-1]  # without the other sites
>>> print(f"held-out error: {alone.excess:.2f} more than the best way to share; {alone.tolerance:.2f} is tolerated")
held-out error: 1.97 more than the best way to share; 0.60 is tolerated

Where every hospital keeps its own table, a site releases its message, the hub adds the messages up, and the site fits
its policy from the total; `help(fdtr.exchange)` shows a whole round:

    sent = fdtr.exchange.release_message(study, data, "north.fdtr", confirm=ask).summary
    first_round = fdtr.signing.numbered_round(study.fingerprint, study.roster, 1)
    fdtr.fit_federated(study, data, fdtr.exchange.read_total("total.fdtr", study, first_round), sent).policy

The same in pieces, on a world whose truth is known:

>>> import numpy as np, pyarrow as pa
>>> from fdtr.simulation import WorldSpec, make_world
>>> known = make_world(WorldSpec(n_sites=3, horizon=2, n_actions=2), np.random.default_rng(0))
>>> study = fdtr.Study.model_validate(known.study(ridge=1.0, sharing=1.0, share="value"))
>>> sites = fdtr.read_trajectories(pa.table(known.table(200, np.random.default_rng(1))), study).by_site()
>>> checked = fdtr.check(study, sites["site-1"])
>>> checked.n_patients, [verdict.sentence for verdict in checked.verdicts if verdict.refuses]
(200, [])
>>> local = {site: fdtr.fit_local(study, rows) for site, rows in sites.items()}
>>> local["site-1"].policy
<Policy LDTR of site 'site-1': 2 steps, 8 features>
>>> local["site-1"].summary
<SiteSummary of 'site-1': 200 patients, 2 steps, 4 shared features>
>>> total = fdtr.combine(fit.summary for fit in local.values())
>>> fdtr.fit_federated(study, sites["site-1"], total).shared_coefficients.shape
(2, 4)
>>> part = fdtr.verify(study, sites["site-1"], local["site-1"])  # advice that the site's data can check
>>> part.advises(np.full((1, 4), 0.5), step=0)
array([ True])
>>> estimate = fdtr.evaluate(study, sites["site-2"], local["site-1"].policy, "wdr")
>>> 0 < estimate.value < study.horizon
True

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
