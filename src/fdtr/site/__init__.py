"""A site's part: read its table, fit alone, make its message, finish its policy from the total, and evaluate it.

>>> import fdtr, numpy as np, pyarrow as pa
>>> from fdtr.simulation import WorldSpec, make_world
>>> from fdtr.site import evaluate_site, fit_q_learning, message_settings, others_in, score_together, summarize_table
>>> world = make_world(WorldSpec(n_sites=3, horizon=2, n_actions=2), np.random.default_rng(1))
>>> study = fdtr.Study.model_validate(world.study())
>>> table = pa.table(world.table(200, np.random.default_rng(2)))
>>> sites = fdtr.read_trajectories(table, study).by_site()
>>> summaries = {name: fdtr.fit_local(study, rows).summary for name, rows in sites.items()}
>>> total, own, rows = fdtr.combine(summaries.values()), summaries["site-1"], sites["site-1"]
>>> message_settings(study)
Settings(pessimism=0.0005, ridge=0.01, failure_probability=0.99, misspecification=0.0, own_penalty=False)
>>> others = others_in(study, total, own)
>>> others.n
400.0
>>> scores = score_together(study, rows, others)
>>> scores.error.shape  # candidates and folds
(21, 5)
>>> fit_q_learning(study, rows)["Q-learn (H)"]
<Policy Q-learn (H) of site 'site-1': 2 steps, 8 features>

What the disclosure rules would let out, where the hub reads each message and in a secure sum. Nothing is written, and
the weights come from the study's seed; `fdtr.exchange.release_message` releases a message.

>>> from fdtr.site import count_message, summarize
>>> content = world.study() | {"disclosure": {}}  # the default rules
>>> summarize(fdtr.Study.model_validate(content), rows).summary.mean_weight
0.85
>>> together = content | {"disclosure": {"secure_sum": True, "max_patients": 1000}}
>>> study = fdtr.Study.model_validate(together)
>>> common = study.combine_counts([count_message(study, each) for each in sites.values()])
>>> common.steps
()
>>> summarize(study, rows, common=common).summary.site
'site-1'
>>> study = fdtr.Study.model_validate(world.study())

Values of every method on patients that it was not fitted to, and a Table 1 of the patients:

>>> evaluation = evaluate_site(study, rows, total, own)
>>> list(evaluation.targets)[:6]
['FDTR', 'LDTR', 'Q-learn (1)', 'Q-learn (H)', 'FDTR (verified)', 'LDTR (verified)']
>>> evaluation.value("FDTR").believable, len(evaluation.folds)
(True, 200)
>>> for row in summarize_table(study, rows, table).rows[:3]:
...     print(row.cells)
['patients', '', '', '200', '', '', '']
['shared_1', '', 'measured', '200', '100', '0.483', '0.23']
['shared_1', '', 'missing', '0', '0', '', '']
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
