"""How messages travel: by files, through a shared folder, over a network; and what a site keeps of what it sent.

`release_message`, `release_values` and `release_table` are the only ways by which numbers about a site's patients leave
it. `open_folder`, `join`, `take_site_steps` and `take_hub_steps` run a round through a shared folder.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
