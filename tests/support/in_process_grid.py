"""Flower without a network: a Grid that hands each message to the ClientApp of its node, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

HUB_NODE = 1


class InProcessGrid(Grid):
    """`apps` are the nodes' by their ids; `lose` says what a message ends as instead: an error code, or 0 for silence.

    Messages and replies pass through bytes and back, as over a network.
    """

    def __init__(self, apps: dict[int, ClientApp], lose: Callable[[Message], int | None] = lambda _: None) -> None:
        self.apps, self.lose = apps, lose
        self.duplicates = False
        self.timeouts: list[
            tuple[float | None, float]
        ] = []  # of each message: the hub's own, and what the message says
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, HUB_NODE, 1

    def set_run(self, run) -> None:
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def push_messages(self, messages) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            self.timeouts.append((timeout, message.metadata.ttl))
            message.metadata.__dict__["_message_id"] = message.object_id
            lost = self.lose(message)
            if lost is None:
                replies.append(self._answered(message))
            elif lost:
                replies.append(self._lost(message, lost))
        return replies * 2 if self.duplicates else replies

    def _answered(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        reply = self.apps[node](_through_bytes(message), context)
        return _through_bytes(reply)

    def _lost(self, message: Message, code: int) -> Message:
        reply = Message(Error(code, "the node is gone"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = HUB_NODE
        return reply


def _through_bytes(message: Message) -> Message:
    content = message.content
    records = {name: type(record).inflate(record.deflate()) for name, record in content.items()}
    message.content = RecordDict(records)
    return message
