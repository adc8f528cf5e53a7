"""How messages travel: by files, through a shared folder, over a network; and what a site keeps of what it sent.

Everything about a site's patients leaves through one function, `carry_out` in `exchange/release.py`: it judges, asks
`confirm`, records in the site's ledger and writes. Its public callers are `release_message`, `release_values`,
`release_table` and `take_site_steps`; messages also keep a copy. Ledger and copies are in the site's state folder. Each
site has a state folder of its own: where one computer acts for several sites, `use_state_folder` names the site's.

A round by files: every site releases a message, the hub adds them up, and every site reads the total. Whoever reads a
file says which round it must belong to: signature, sender and round are checked only then.

>>> import tempfile
>>> from pathlib import Path
>>> import fdtr
>>> from fdtr import exchange
>>> from fdtr.signing import numbered_round
>>> from fdtr.simulation import WorldSpec
>>> temporary = tempfile.TemporaryDirectory()
>>> place = Path(temporary.name)
>>> study = fdtr.simulate(WorldSpec(n_sites=3, horizon=2, n_actions=2), place / "world", patients=120)
>>> sites = fdtr.read_trajectories(place / "world/table.csv", study).by_site()
>>> def ask(proposal):
...     print(proposal)
...     return True  # a notebook asks a person: input("Write this? ") == "yes"
>>> agreed = exchange.AGREED_BEFOREHAND
>>> with exchange.use_state_folder(place / "state-of-site-1"):
...     first = exchange.release_message(study, sites["site-1"], place / "site-1.fdtr", confirm=ask)
The message of site site-1 for the study linear-mdp:
  70 sums over 120 patients, 2 steps, 4 shared features.
  Nobody's leverage in them is more than 0.13.
>>> with exchange.use_state_folder(place / "state-of-site-2"):
...     exchange.release_message(study, sites["site-2"], place / "site-2.fdtr", confirm=lambda proposal: False)
Traceback (most recent call last):
fdtr.errors.FdtrError: Nothing was written.
>>> for site in ("site-2", "site-3"):
...     with exchange.use_state_folder(place / f"state-of-{site}"):
...         released = exchange.release_message(study, sites[site], place / f"{site}.fdtr", confirm=agreed)
>>> first_round = numbered_round(study.fingerprint, study.roster, 1)
>>> messages = [exchange.read_message(path, study, first_round) for path in sorted(place.glob("*.fdtr"))]
>>> exchange.write_total(fdtr.hub.combine_messages(study, messages), place / "total.fdtr", first_round)
>>> total = exchange.read_total(place / "total.fdtr", study, first_round)
>>> total
<Total of 'site-1', 'site-2', 'site-3': 360 patients, 2 steps, 4 shared features>
>>> fdtr.fit_federated(study, sites["site-1"], total, first.summary).policy
<Policy FDTR of site 'site-1': 2 steps, 8 features>

After learning, a site may release the values of its methods, and a Table 1 of its patients. A release that nobody else
ever had can be withdrawn.

>>> rows = sites["site-1"]
>>> evaluation = fdtr.site.evaluate_site(study, rows, total, first.summary)
>>> table = fdtr.site.summarize_table(study, rows, place / "world/table.csv")
>>> with exchange.use_state_folder(place / "state-of-site-1"):
...     values = exchange.release_values(study, rows, evaluation, place / "values.fdtr", confirm=agreed)
...     exchange.release_table(study, rows, table, place / "table1.csv", confirm=agreed)
...     (place / "table1.csv").unlink()
...     withdrawn = exchange.withdraw(table.digest)
>>> received = exchange.read_values(place / "values.fdtr", first_round)
>>> [value.method for value in received.values if value.over == "Clinicians" and value.verdict == "verified"]
['FDTR (verified)', 'FDTR']
>>> len(withdrawn)
1

A round through a shared folder: the hub opens it, sites join, and everybody takes the steps that are due.

>>> folder = place / "shared"
>>> with exchange.use_state_folder(place / "state-of-hub"):
...     opened = exchange.open_folder(folder, place / "world/study.toml")
>>> for site in sites:
...     with exchange.use_state_folder(place / f"state-of-{site}"):
...         joined = exchange.join(folder, site, data=place / "world/table.csv")
...         posted = exchange.take_site_steps(joined, confirm=agreed)
>>> with exchange.use_state_folder(place / "state-of-hub"):
...     added = exchange.take_hub_steps(folder, close=True)
>>> with exchange.use_state_folder(place / "state-of-site-1"):
...     finished = exchange.take_site_steps(exchange.find_joined(folder, "site-1"), confirm=agreed)
>>> with exchange.use_state_folder(place / "state-of-hub"):
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
