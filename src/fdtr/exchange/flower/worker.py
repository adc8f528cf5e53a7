"""A site's worker: takes the hub's queries from the supernode and answers them with this package's own code.

Flower's worker unpacks the app bundle that comes with a run and imports it: the hub would decide which code reads the
table. This one leaves the bundle where it is. Nor does the text of an error travel: it may quote paths or data.
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

log = logging.getLogger("fdtr.exchange.flower")

POLL_SECONDS = 0.5
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class Worker:
    """Answers queries of the supernode at `address` on loopback, one after the other.

    `secret` proves to it that we are its worker; `answered` is told of every answer that went out.
    """

    def __init__(self, address: str, secret: bytes, app: ClientApp, answered: Callable[[], None]) -> None:
        self._address = address
        self._secret = secret
        self._app = app
        self._answered = answered

    def run(self, stop: threading.Event) -> None:
        """Ask for work until `stop`; a supernode that is not there yet, or no more, is asked again."""
        protected = SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods={_ACQUIRE})
        with closing(self._client("SuperExec", protected)) as client:
            while not stop.wait(POLL_SECONDS):
                try:
                    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
                except httpx.HTTPError:
                    continue
                if found.HasField("task") and found.token:
                    self._work(found.token)

    def _client(self, component: str, proof: ProtobufClientInterceptor) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            self._address,
            insecure=True,  # loopback; the secret and the token are what counts there
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name=component), proof],
        )

    def _work(self, token: str) -> None:
        with closing(self._client("flwr-clientapp", RuntimeTokenHttpInterceptor(token))) as client:
            heart = HeartbeatSender(lambda: _beat(client))
            heart.start()
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
                if heart.is_running:
                    heart.stop()

    def _reply(self, message: Message, context: Context) -> Message:
        try:
            return self._app(message=message, context=context)
        except Exception as error:
            log.error("A query was refused (%s).", type(error).__name__)
            return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="failed"), reply_to=message)


def _beat(client: RuntimeHttpClient) -> bool:
    """Tell the supernode that we are at work. Flower's own heartbeat would interrupt the whole process on a refusal."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True
