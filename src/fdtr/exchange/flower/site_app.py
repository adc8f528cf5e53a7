"""A site's ClientApp: it hands every message to the desk, whatever it asks for."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fdtr.exchange.flower.records import answer_record, read_request
from fdtr.exchange.remote import Desk


class SiteApp(ClientApp):
    """The app that answers for a desk; it raises nothing.

    Flower's own would choose a function by the message's type, and fail on a type that it does not know: the desk
    would never hear of it, nor its log.
    """

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk

    def __call__(self, message: Message, context: Context) -> Message:  # noqa: ARG002  as Flower calls it
        """The desk's answer, in a message that replies to this one."""
        return Message(answer_record(self._desk.answer(read_request(message))), reply_to=message)
