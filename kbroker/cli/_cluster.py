"""How the commands reach a cluster: a stock client's connection, its settings, and its failures in one line each.

The client is kafka-python's, so these commands work against any Kafka cluster, and the broker's own code has no part
in them; those that carry records have another (`_librdkafka.py`). Both are an extra (`pip install '.[cli]'`,
docs/decisions/0015-cli-client.md): a broker in a user's test environment must not decide which clients that has.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from kbroker.cli._broker import LAST_PORT
from kbroker.cli._client_security import TOKENAUTH, TOKENS, with_security
from kbroker.cli._elsewhere import Also
from kbroker.cli._numbers import whole
from kbroker.properties import parse_properties
from kbroker.security.client import KEY, PROTOCOLS, first_name
from kbroker.security.client import NAMES as SECURITY_NAMES
from kbroker.usage import installed_by
from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092  # of an address without one
BOOTSTRAP_TIMEOUT_MS = 5_000  # to find any broker; a person at a terminal does not wait for the client's 30 s
RECONNECT_BACKOFF_MAX_MS = 200  # the client draws an address each time, and waits that long for one that is down
COORDINATOR_WAIT_S, ASK_AGAIN_S = 15.0, 0.1
# what the client takes: PROTOCOL:// before it, an IPv6 address in brackets, or bare, where no port can follow
_ADDRESS = re.compile(
    r"(?:\w+://)?(?:\[[\w:.%]+\]|[^\s:/[\]]+)(?::([0-9]{1,5}))?"
    r"|[0-9a-fA-F:]*::[0-9a-fA-F:.]*|(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}"
)
KNOCK_S = 0.5
_OTHER_WORDS = "if it wants TLS or a login, --command-config FILE or -X security.protocol=... says so"
_NOBODY = "Unable to bootstrap"  # in a client's error
_SAID = {
    "KafkaTimeoutError": "the cluster at {bootstrap} does not answer in time",
    "KafkaConnectionError": "the connection to a broker of the cluster at {bootstrap} is lost: try again",
    "NodeNotReadyError": "a broker of the cluster at {bootstrap} cannot be reached: try again",
    "UnknownBrokerIdError": "a broker that the cluster at {bootstrap} named is gone: try again",
}
"""What is said of the client's own errors, by their names; of errors that a broker answers with Kafka has the words."""
MISSING = f"this command speaks to a cluster by client libraries: {installed_by('cli')}"
LIBRDKAFKA_NAMES = {
    "ssl.cafile": "ssl.ca.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.keyfile": "ssl.key.location",
    "ssl.password": "ssl.key.password",
    "ssl.crlfile": "ssl.crl.location",
    "sasl.plain.username": "sasl.username",
    "sasl.plain.password": "sasl.password",
    "sasl.kerberos.name": "sasl.kerberos.principal",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "max.request.size": "message.max.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    TOKENS: "oauth_cb",
}
"""Settings of kafka-python's, with dots, that librdkafka calls otherwise: either spelling serves all commands."""
_KAFKA_PYTHON_NAMES = {theirs: ours for ours, theirs in LIBRDKAFKA_NAMES.items()}


class Cluster(NamedTuple):
    """Where a cluster is and how to speak to it. settings: the clients' own, in either one's spelling."""

    bootstrap: str
    settings: Mapping[str, Any]

    def admin(self) -> KafkaAdminClient:
        """A connected admin client. Raises: ClickException where no broker answers."""
        from kafka.admin import KafkaAdminClient

        return KafkaAdminClient(**self.options(KafkaAdminClient.DEFAULT_CONFIG))

    def options(self, known: Mapping[str, Any], **own: Any) -> dict[str, Any]:
        """Arguments for one of the client's classes. known: its settings. own: what the command has decided.

        A setting of another of its classes is left out: one file of settings serves all commands.
        Raises: ClickException that names a setting which none of them has.
        """
        options = {
            "bootstrap_servers": self.bootstrap.split(","),
            "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
            "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
            **own,
        }
        for key, value in self.settings.items():
            name = _name(key)
            if key == TOKENAUTH:
                continue
            if name in known:
                options[name] = _typed(key, value, known[name])
            else:
                no_such_setting(key)
        if TOKENAUTH in self.settings:
            from kbroker.cli._token_login import token_id

            options["sasl_plain_username"] = token_id(options["sasl_plain_username"])
        return options


def no_such_setting(key: str) -> None:
    """Raises: ClickException where a setting that one client does not know is none of the others' either.

    Java's clients count: what only they have, they are told in the same file.
    """
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.admin import KafkaAdminClient

    from kbroker.pipeline.settings import NAMES

    name = _name(key)
    if key in NAMES or first_name(key) in SECURITY_NAMES or _is_librdkafkas(_dotted(key)):
        return
    everybody = {**KafkaConsumer.DEFAULT_CONFIG, **KafkaProducer.DEFAULT_CONFIG, **KafkaAdminClient.DEFAULT_CONFIG}
    if name not in everybody:
        near = difflib.get_close_matches(name, everybody, 1)
        hint = f"; did you mean {near[0].replace('_', '.')}?" if near else ""
        raise click.ClickException(f"{key}: no setting of kafka-python{hint}")


def _is_librdkafkas(name: str) -> bool:
    """Whether a setting is librdkafka's, which is asked for it: kcat's files have such."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({"log_level": 0, name: ""})
    except KafkaException as error:
        return "No such configuration property" not in error.args[0].str()
    except (TypeError, ValueError):  # it wants something else than text
        return True
    return True


def _dotted(key: str) -> str:
    return key.replace("_", ".").replace("-", ".")


def _name(key: str) -> str:
    """A setting as kafka-python spells it."""
    dotted = _dotted(key)
    return _KAFKA_PYTHON_NAMES.get(dotted, dotted).replace(".", "_")


def speaks_to_cluster(command: Command) -> Command:
    """Give a command the options that lead to a cluster; it is called with a Cluster, which it asks by kafka-python."""

    @functools.wraps(command)
    def called(cluster: Cluster, **arguments: Any) -> Any:
        try:
            import kafka.errors as client
        except ImportError:
            raise click.ClickException(MISSING) from None
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what goes wrong is said once, below
        refusals = _refusals()
        try:
            return command(cluster, **arguments)
        except (client.KafkaError, ValueError, AssertionError, RuntimeError) as error:  # ValueError: of its settings
            why = refusals[-1] if refusals and _NOBODY in str(error) else error
            raise click.ClickException(said_by_client(why, cluster.bootstrap)) from None
        except struct.error as error:  # the client packs what it is given, and looks at it no further
            raise click.ClickException(f"a number has no room in Kafka's protocol: {error}") from None

    return given_cluster(called)  # type: ignore[return-value]


def given_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that lead to a cluster; it is called with a Cluster as its first argument."""

    @click.option(
        "--bootstrap-server",
        "-b",
        cls=Also,
        also=("--broker-list",),
        metavar="HOST:PORT[,...]",
        default=DEFAULT_BOOTSTRAP,
        envvar="KBROKER_BOOTSTRAP_SERVER",
        show_default=True,
        show_envvar=True,
        help="Brokers to begin with.",
    )
    @click.option(
        "--command-config",
        cls=Also,
        also=("--producer.config", "--consumer.config", "--admin.config", "-F"),
        type=click.Path(exists=True, dir_okay=False),
        help="A properties file of client settings.",
    )
    @click.option(
        "-X",
        "settings",
        cls=Also,
        also=("--command-property", "--producer-property", "--consumer-property"),
        metavar="KEY=VALUE",
        multiple=True,
        help="A client setting; may be repeated.",
    )
    @functools.wraps(command)
    def called(
        *, bootstrap_server: str, command_config: str | None, settings: tuple[str, ...], **arguments: Any
    ) -> Any:
        _check_text(click.get_current_context())
        client_settings = with_security(settings_given(command_config, settings))
        bootstrap_server = _bootstrap(bootstrap_server, client_settings)
        _check_addresses(bootstrap_server)
        return command(Cluster(bootstrap_server, client_settings), **arguments)

    return called


def _check_addresses(bootstrap: str) -> None:
    """Raises: UsageError that names one which can be none: the client would look for a broker there."""
    for each in bootstrap.split(","):
        match = _ADDRESS.fullmatch(each.strip())
        if match is None or not 0 < int(match[1] or 1) <= LAST_PORT:
            shown = each if each.strip() else repr(each)
            raise click.UsageError(
                f"--bootstrap-server {shown}: write it as HOST:PORT, with a port of 1 to {LAST_PORT}"
            )


def _refusals() -> list[Exception]:
    """What brokers will have answered to logins: the client only logs it, and ends as if it had found no broker."""
    from kafka.errors import BrokerResponseError, RequestTimedOutError

    heard: list[Exception] = []

    def hear(record: logging.LogRecord) -> bool:
        refused = [each for each in record.args or () if isinstance(each, BrokerResponseError)]
        heard.extend(each for each in refused if not isinstance(each, RequestTimedOutError))  # the client's own
        return False  # no other handler is told

    log = logging.getLogger("kafka.net.manager")
    log.setLevel(logging.WARNING)
    log.filters[:] = [hear]
    return heard


def once_coordinated(ask: Callable[[], Result]) -> Result:
    """What `ask` returns, once the coordinator that it needs is there. Raises: whatever it then still raises.

    A cluster in which no group was used yet makes its offsets topic when it is first asked for a coordinator.
    """
    from kafka import errors

    begun, pause = time.monotonic(), threading.Event()
    while True:
        try:
            return ask()
        except (errors.CoordinatorNotAvailableError, errors.CoordinatorLoadInProgressError, errors.NotCoordinatorError):
            if time.monotonic() - begun > COORDINATOR_WAIT_S:
                raise
            pause.wait(ASK_AGAIN_S)


def said_by_client(error: Exception, bootstrap: str) -> str:
    """A client's error in one line, in Kafka's words and ours: the client's own name its functions and arguments."""
    from kafka import errors

    if _NOBODY in str(error):
        return no_answer(bootstrap)
    if isinstance(error, errors.IncompatibleBrokerVersion | errors.UnsupportedVersionError):
        return f"the broker at {bootstrap} does not serve what this needs: it is older, or is told not to"
    if isinstance(error, errors.BrokerResponseError) and error.errno is not None:
        return said_by_broker(error.errno)
    for kind, words in _SAID.items():
        if isinstance(error, getattr(errors, kind)):
            return words.format(bootstrap=bootstrap)
    if isinstance(error, RuntimeError):  # which it raises for want of a controller alone
        return f"the cluster at {bootstrap} has no controller now: try again"
    return f"the client refuses its settings: {_plain(error)}"


def no_answer(bootstrap: str) -> str:
    """That no broker answers; and where something listens, what it may want to hear instead: the clients do not say."""
    for each in map(str.strip, bootstrap.split(",")):
        found = _ADDRESS.fullmatch(each)
        port = found[1] if found is not None else None
        host = each.rpartition("://")[2].removesuffix(f":{port}").strip("[]")
        with suppress(OSError), socket.create_connection((host, int(port or DEFAULT_PORT)), KNOCK_S):
            return f"no broker answers at {bootstrap}, where something listens: {_OTHER_WORDS}"
    return f"no broker answers at {bootstrap}"


def said_by_broker(code: int, text: str | None = None) -> str:
    """An error code of an answer in one line. text: the broker's own, if it gave one."""
    found = ErrorCode.of(code)
    return f"{found.name}: {text or found.message}"


def said_in_text(text: str) -> str:
    """What a broker said, where the client gives it as `[Error 40] ItsOwnName: the broker's words`."""
    found = re.fullmatch(r"\[Error (-?\d+)\] \w+(?:: (.*))?", text, re.DOTALL)
    if found is None:
        return text
    return said_by_broker(int(found[1]), found[2] if found[2] not in ("", "None") else None)


def fault_of(kind: object) -> ErrorCode | None:
    """What went wrong, where the client gives a class of error, its name, or the word OK; None if all went well."""
    from kafka import errors

    code = getattr(getattr(errors, kind, None) if isinstance(kind, str) else kind, "errno", None)
    return None if kind is None or kind == "OK" or code == 0 else ErrorCode.of(-1 if code is None else code)


def properties_of(path: str) -> dict[str, str]:
    """What a file of properties says. Raises: OSError; ClickException, naming it, where it is none."""
    with open(path, encoding="utf-8-sig") as file:  # some editors begin a file with a mark of byte order
        try:
            return parse_properties(file.read())
        except UnicodeDecodeError:
            raise click.ClickException(f"{path}: allowed: text in UTF-8, other characters as \\uXXXX") from None
        except ValueError as error:
            raise click.ClickException(f"{path} {error}") from None


def _check_text(context: click.Context) -> None:
    """Raises: BadParameter for bytes that are no text: the client's own thread ends at them, and is waited for."""
    for param in context.command.params:
        given = None if isinstance(param.type, click.Path) else context.params.get(param.name or "")
        for each in given if isinstance(given, tuple) else (given,):
            try:
                str(each).encode()
            except UnicodeEncodeError:
                raise click.BadParameter(f"{each!r}; allowed: text in UTF-8", context, param) from None


def _plain(error: Exception) -> str:
    return str(error.args[0]) if error.args and error.args[0] else type(error).__name__


def settings_given(path: str | None, given: tuple[str, ...]) -> dict[str, str]:
    """Settings as a file and -X say them, the latter last. Raises: ClickException, OSError."""
    settings: dict[str, str] = {}
    if path is not None:
        settings.update(properties_of(path))
        if odd := next((key for key in settings if KEY.fullmatch(key) is None), None):
            raise click.ClickException(f"{path}: {odd!r} is no setting of a client; allowed: lines of key=value")
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise click.ClickException(f"-X {each}: write it as KEY=VALUE")
        settings[key] = value
    return settings


def _bootstrap(given: str, settings: dict[str, Any]) -> str:
    """Where to begin, and taken out of the settings if they say it, too: a -b of the command line goes before them."""
    named = [settings.pop(each) for each in ("bootstrap.servers", "bootstrap_servers") if each in settings]
    source = click.get_current_context().get_parameter_source("bootstrap_server")
    return named[-1] if named and source is not ParameterSource.COMMANDLINE else given


def _typed(key: str, value: str, default: object) -> Any:
    """A setting's text as the kind of thing that its default is."""
    if key.replace(".", "_") == "security_protocol":
        return _protocol(key, value)
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise click.ClickException(f"{key}={value}: true or false is allowed")
        return value.lower() == "true"
    for kind in (int, float):
        if isinstance(default, kind):
            try:
                return whole(value) if kind is int else kind(value)
            except ValueError:
                raise click.ClickException(f"{key}={value}: a number is allowed") from None
    if default is None and key.endswith("bytes"):  # of no default: sizes of buffers; all others are text, or passwords
        with suppress(ValueError):
            return whole(value)
    return value


def _protocol(key: str, value: str) -> str:
    """A security protocol in capitals: the client takes whatever it does not know, small letters too, for PLAINTEXT."""
    if value.upper() not in PROTOCOLS:
        raise click.ClickException(f"{key}={value}: allowed: {', '.join(PROTOCOLS)}")
    return value.upper()
