"""A federation over the network, with Flower as the engine.

    hospital                                      hub
    fdtr site serve                               fdtr hub serve
      flower-supernode  --- HTTPS, outward --->     nginx: only what a supernode needs
      worker: this package's code                   flower-superlink, on loopback: control, runs

A site opens no port to the outside, and runs no code that comes from the hub: Flower's own worker would unpack and
import the app that the hub submits, so `worker` stands in its place. Only this package imports flwr.
"""
