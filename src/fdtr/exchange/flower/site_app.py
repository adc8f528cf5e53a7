"""A site's ClientApp: it hands every query to the desk, whatever its phase."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fdtr.exchange.flower.records import answer_record, read_request
from fdtr.exchange.remote import Desk, Phase


def make_app(desk: Desk) -> ClientApp:
    """The app that answers for a desk. It takes part in nothing but queries, and raises nothing."""
    app = ClientApp()

    def reply(message: Message, _context: Context) -> Message:
        return Message(answer_record(desk.answer(read_request(message))), reply_to=message)

    for phase in Phase:
        app.query(phase.value)(reply)
    return app
