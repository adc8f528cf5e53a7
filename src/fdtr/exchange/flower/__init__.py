"""Run a federation over the network. Flower carries the messages.

    hospital                                      hub
    fdtr site serve                               fdtr hub serve
      flower-supernode  --- HTTPS, outward --->     nginx: forwards only what a supernode needs
      worker: this package's code                   flower-superlink, on loopback: control, runs

A site opens no port to the outside and runs no code from the hub. Flower's own worker would unpack and import the app
that the hub submits; `site_worker` replaces it. Only this package imports flwr.
"""
