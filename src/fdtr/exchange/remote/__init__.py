"""Run a round over a network, independent of the library that carries the messages.

The hub keeps the study's folder. Every site keeps a private copy of it. A request brings a site the files that it
lacks. The site then acts as it would in a shared folder, and its answer carries the files that it wrote. So both
exchanges follow the same rules, and the same code handles a crash at either end.

    requests          what travels, and the checks before it is stored
    request_handler   a site's answers to the hub
    audit             a site's log of requests, checks and answers
    hub_rounds        all phases at the hub, up to the total and the policies: ask sites, store their parts
    jobs              the hub's job file and result file
"""
