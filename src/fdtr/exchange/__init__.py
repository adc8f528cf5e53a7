"""How messages travel: by files, through a shared folder, over a network; and what a site keeps of what it sent.

`release_message`, `release_values` and `release_table` are the only ways by which numbers about a site's patients leave
it. Each judges, asks `confirm`, records in the site's ledger and writes. A site keeps its ledger and copies of what it
sent in a state folder; `use_state_folder` names another one than the user's own.

A round by files: every site releases a message, the hub adds them up, and every site reads the total.

>>> import tempfile
>>> from pathlib import Path
>>> import fdtr
>>> from fdtr import exchange
>>> from fdtr.simulation import WorldSpec
>>> temporary = tempfile.TemporaryDirectory()
>>> place = Path(temporary.name)
>>> study = fdtr.simulate(WorldSpec(n_sites=3, horizon=2, n_actions=2), place / "world", patients=120)
>>> sites = fdtr.read_trajectories(place / "world/table.csv", study).by_site()
>>> def ask(proposal):
...     print(proposal)
...     return True  # a notebook asks a person: input("Write this? ") == "yes"
>>> agreed = exchange.AGREED_BEFOREHAND
>>> with exchange.use_state_folder(place / "state"):
...     first = exchange.release_message(study, sites["site-1"], place / "site-1.fdtr", confirm=ask)
...     for site in ("site-2", "site-3"):
...         released = exchange.release_message(study, sites[site], place / f"{site}.fdtr", confirm=agreed)
The message of site site-1 for the study linear-mdp:
  70 sums over 120 patients, 2 steps, 4 shared features.
  Nobody's leverage in them is more than 0.13.
>>> messages = [exchange.read_message(path, study) for path in sorted(place.glob("*.fdtr"))]
>>> exchange.write_total(fdtr.hub.combine_messages(study, messages), place / "total.fdtr")
>>> total = exchange.read_total(place / "total.fdtr", study)
>>> total
<Total of 'site-1', 'site-2', 'site-3': 360 patients, 2 steps, 4 shared features>
>>> fdtr.fit_federated(study, sites["site-1"], total, first.summary).policy
<Policy FDTR of site 'site-1': 2 steps, 8 features>

After learning, a site may release the values of its methods, and a Table 1 of its patients. A release that nobody else
ever had can be withdrawn.

>>> rows = sites["site-1"]
>>> evaluation = fdtr.site.evaluate_site(study, rows, total, first.summary)
>>> table = fdtr.site.summarize_table(study, rows, place / "world/table.csv")
>>> with exchange.use_state_folder(place / "state"):
...     values = exchange.release_values(study, rows, evaluation, place / "values.fdtr", confirm=agreed)
...     exchange.release_table(study, rows, table, place / "table1.csv", confirm=agreed)
...     (place / "table1.csv").unlink()
...     withdrawn = exchange.withdraw(table.digest)
>>> [value.method for value in exchange.read_values(place / "values.fdtr").values if value.estimator == "wdr"]
['FDTR', 'LDTR', 'Q-learn (1)', 'Q-learn (H)', 'Clinicians', 'Always 0', 'Always 1']
>>> len(withdrawn)
1

A round through a shared folder: the hub opens it, sites join, and everybody takes the steps that are due.

>>> folder = place / "shared"
>>> with exchange.use_state_folder(place / "state"):
...     opened = exchange.open_folder(folder, place / "world/study.toml")
...     for site in sites:
...         joined = exchange.join(folder, site, data=place / "world/table.csv")
...         posted = exchange.take_site_steps(joined, confirm=agreed)
...     added = exchange.take_hub_steps(folder, close=True)
...     finished = exchange.take_site_steps(exchange.find_joined(folder, "site-1"), confirm=agreed)
...     status = exchange.status_of(exchange.read_round(folder))
...     second = exchange.new_round(folder)
>>> for sentence in (*posted.done, *added.done, status.next):
...     print(sentence)
Posted this site's message: sums over its patients, never a row.
Added the messages of site-1, site-2 and site-3 and posted the total.
The total is there: site-1, site-2 and site-3 finish their policies with `fdtr site next`.
>>> fdtr.Policy.load(finished.policy)
<Policy FDTR of site 'site-1': 2 steps, 8 features>
>>> second.number
2
>>> temporary.cleanup()
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
