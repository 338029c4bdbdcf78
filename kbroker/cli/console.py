"""`kbroker console`: pages for a browser about any Kafka cluster, kbroker's or Apache's."""

from __future__ import annotations

import re

import click

from kbroker.cli._cluster import DEFAULT_BOOTSTRAP, settings_given
from kbroker.usage import installed_by

MISSING = f"the console wants Starlette, uvicorn and Jinja: {installed_by('console')}"
ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z\-._]+):([0-9]{1,5})")
DEFAULT_LISTENER = "127.0.0.1:8080"


@click.command("console", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--bootstrap",
    "--bootstrap-server",
    "-b",
    metavar="HOST:PORT[,...]",
    default=DEFAULT_BOOTSTRAP,
    envvar="KBROKER_BOOTSTRAP_SERVER",
    show_default=True,
    show_envvar=True,
    help="Brokers to begin with.",
)
@click.option(
    "--command-config", type=click.Path(exists=True, dir_okay=False), help="A properties file of client settings."
)
@click.option("-X", "settings", metavar="KEY=VALUE", multiple=True, help="A client setting; may be repeated.")
@click.option(
    "--listener", metavar="HOST:PORT", default=DEFAULT_LISTENER, show_default=True, help="Where browsers come."
)
@click.option("--name", "names", metavar="HOST", multiple=True, help="A name by which browsers may ask for it, too.")
@click.option("--read-only", is_flag=True, help="Change nothing.")
@click.option("--registry", metavar="URL", default="", help="A schema registry, for values in Avro and Protobuf.")
def console(
    bootstrap: str,
    command_config: str | None,
    settings: tuple[str, ...],
    listener: str,
    names: tuple[str, ...],
    read_only: bool,
    registry: str,
) -> int:
    """Pages for a browser about a cluster, until Ctrl-C.

    Where the settings say SASL and no user, browsers log in; with a user, all of them are that user. What a broker
    knows of its own wire is shown by the console in it: kbroker start --console.
    """
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise click.ClickException(MISSING) from None
    from kbroker.console.app import Console, Options
    from kbroker.console.cluster import ConsoleError
    from kbroker.console.serve import hosts_for, is_loopback, listening, security_of, serve

    addresses = [_address("--bootstrap", each.strip()) for each in bootstrap.split(",")]
    host, port = _address("--listener", listener)
    try:
        security = security_of(settings_given(command_config, settings))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if security.login is not None and not is_loopback(host):
        raise click.ClickException(
            f"--listener {listener} is reached by others, who would all be {security.login.user!r}: leave user and "
            "password out of the settings, and browsers log in"
        )
    try:
        sock = listening(host, port)
    except ConsoleError as error:
        raise click.ClickException(f"{error}; --listener HOST:PORT names another") from None
    try:
        made = Console(Options(addresses, security, hosts_for(host, names), read_only, registry))
    except ConsoleError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"the console of {bootstrap} is at http://{host}:{sock.getsockname()[1]}/")
    serve(made, sock)
    return 0


def _address(option: str, text: str) -> tuple[str, int]:
    found = ADDRESS.fullmatch(text)
    if found is None or not 0 <= int(found[2]) <= 65535:
        raise click.UsageError(f"{option} {text}: write it as HOST:PORT")
    return found[1], int(found[2])
