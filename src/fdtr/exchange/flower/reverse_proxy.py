"""The hub's reverse proxy: nginx forwards the requests that a supernode needs, and nothing else.

Flower's server offers all its interfaces on one port. Whoever reaches the control interface can register keys and
submit runs. So the server listens on loopback, and sites reach only this proxy.
"""

from dataclasses import dataclass
from pathlib import Path

from fdtr.errors import InvalidSettings
from fdtr.exchange.flower.processes import LOOPBACK, find_program

INSTALL_NGINX = "apt-get install nginx-light"
FORWARDED = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""The requests of a supernode, without register-node and unregister-node: only the hub's settings name the nodes."""
_CONNECTIONS_PER_ADDRESS = 64
# A supernode polls every three seconds and sends some fifteen requests per message; all sites may share one address.
_REQUESTS_PER_SECOND = 50
_REQUEST_BURST = 1000

_CONFIGURATION = """\
# Written by `fdtr hub serve` at every start; changes are lost.
daemon off;
worker_processes 1;
pid "{state}/nginx.pid";
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path "{state}/body";
    proxy_temp_path "{state}/proxy";
    fastcgi_temp_path "{state}/unused";
    uwsgi_temp_path "{state}/unused";
    scgi_temp_path "{state}/unused";
    client_max_body_size {longest};
    client_header_timeout 20s;
    client_body_timeout 60s;
    send_timeout 60s;
    keepalive_timeout 75s;
    limit_conn_zone $binary_remote_addr zone=peers:1m;
    limit_conn peers {connections};
    limit_conn_log_level info;
    limit_req_zone $binary_remote_addr zone=requests:1m rate={rate}r/s;
    limit_req zone=requests burst={burst} nodelay;
    limit_req_status 429;
    limit_req_log_level info;
    proxy_http_version 1.1;
    proxy_request_buffering off;
    proxy_buffering off;
    proxy_read_timeout 120s;
    proxy_ssl_trusted_certificate "{authority}";
    proxy_ssl_verify on;
    proxy_ssl_name localhost;
    server {{
        listen {listen} ssl;
        ssl_certificate "{certificate}";
        ssl_certificate_key "{key}";
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_tickets off;
        location = /health {{
            limit_except GET {{ deny all; }}
            proxy_pass https://{loopback}:{port};
        }}
        location ~ ^/v1/fleet/({forwarded})$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://{loopback}:{port};
        }}
        location / {{ return 404; }}
    }}
}}
"""


@dataclass(frozen=True)
class ReverseProxy:
    """Where sites connect (`listen`), and the server on loopback (`port`) to which their requests are forwarded.

    Sites see `certificate`, whose private key is `key`. The certificate of the server at `port` is signed by
    `authority`. A request of more than `longest` bytes is refused.
    """

    listen: str
    certificate: Path
    key: Path
    port: int
    authority: Path
    longest: int


def write_configuration(state: Path, proxy: ReverseProxy) -> list[str]:
    """Write nginx's configuration into `state`. Returns the command that runs nginx."""
    program = find_program("nginx", INSTALL_NGINX)
    for path in (state, proxy.certificate, proxy.key, proxy.authority):
        if set(str(path)) & set('"\\$\n{}'):
            raise InvalidSettings(f"{path} has a character that nginx's configuration cannot hold. Use another name.")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = _CONFIGURATION.format(
        state=state,
        connections=_CONNECTIONS_PER_ADDRESS,
        rate=_REQUESTS_PER_SECOND,
        burst=_REQUEST_BURST,
        loopback=LOOPBACK,
        forwarded="|".join(FORWARDED),
        **vars(proxy),
    )
    path = state / "nginx.conf"
    path.write_text(text)
    return [program, "-e", "stderr", "-p", str(state), "-c", str(path)]
