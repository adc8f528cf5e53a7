"""A site's worker: takes the hub's messages from the supernode and answers them with this package's own code.

Flower's worker unpacks and imports the app bundle that comes with a run, so the hub would decide which code reads the
table. This worker never opens the bundle. It does not send the text of an error either: it may quote paths or data.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import closing

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fdtr.exchange.flower.records import answer_record, read_request
from fdtr.exchange.remote.request_handler import RequestHandler

log = logging.getLogger("fdtr.exchange.flower")

POLL_SECONDS = 0.5
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class SiteApp(ClientApp):
    """A ClientApp that gives every message to the request handler, whatever its type. It raises nothing.

    Flower's own app chooses a function by the type of the message and fails on an unknown type: such a message would
    reach neither the request handler nor its audit.
    """

    def __init__(self, handler: RequestHandler) -> None:
        super().__init__()
        self._handler = handler

    def __call__(self, message: Message, context: Context) -> Message:  # noqa: ARG002  as Flower calls it
        """The handler's answer, as a reply to `message`."""
        return Message(answer_record(self._handler.answer(read_request(message))), reply_to=message)


class Worker:
    """Answers messages of the supernode at `address` on loopback, one after the other.

    `secret` authenticates the worker to the supernode; `answered` is called after every answer that was sent.
    """

    def __init__(self, address: str, secret: bytes, app: ClientApp, answered: Callable[[], None]) -> None:
        self._address = address
        self._secret = secret
        self._app = app
        self._answered = answered

    def run(self, stop: threading.Event) -> None:
        """Ask for work until `stop` is set. A supernode that does not answer is asked again."""
        protected = SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods={_ACQUIRE})
        with closing(self._client("SuperExec", protected)) as client:
            while not stop.wait(POLL_SECONDS):
                try:
                    reply = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
                except httpx.HTTPError:
                    continue
                if reply.HasField("task") and reply.token:
                    self._work(reply.token)

    def _client(self, component: str, proof: ProtobufClientInterceptor) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            self._address,
            insecure=True,  # on loopback the secret and the token authenticate
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name=component), proof],
        )

    def _work(self, token: str) -> None:
        with closing(self._client("flwr-clientapp", RuntimeTokenHttpInterceptor(token))) as client:
            heartbeat = HeartbeatSender(lambda: _beat(client))
            heartbeat.start()
            context, status = None, SubStatus.FAILED
            try:
                message, context, _, _ = pull_task_input(client)
                push_message(client, self._reply(message, context), context)
                status = SubStatus.COMPLETED
                self._answered()
            except Exception as error:
                log.error("A query could not be answered (%s).", type(error).__name__)
            finally:
                push_task_output(client, context, status, details="")
                if heartbeat.is_running:
                    heartbeat.stop()

    def _reply(self, message: Message, context: Context) -> Message:
        try:
            return self._app(message=message, context=context)
        except Exception as error:
            log.error("A query was refused (%s).", type(error).__name__)
            return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="failed"), reply_to=message)


def _beat(client: RuntimeHttpClient) -> bool:
    """Tell the supernode that the worker is alive. Flower's own heartbeat would interrupt the process on a refusal."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True
