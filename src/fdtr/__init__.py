"""Learn treatment rules together with other hospitals; share sums, never patients.

    study = fdtr.Study.load("study.toml")
    data = fdtr.read_trajectories("table.csv", study)
    results = fdtr.run(study, data)

`__init__.pyi` lists the public names and the module of each; docs/api.md says what they do. A name is imported when it
is first used, so `import fdtr` costs next to nothing.

Research software: not validated for clinical use.
"""

import logging

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = ["__version__", *_names]

logging.getLogger("fdtr").addHandler(logging.NullHandler())
