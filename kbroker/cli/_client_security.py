"""Who a command is to a cluster and whom it trusts, from settings in Java's spelling or a library's, handed to both.

Called by `_cluster.py` for every command that speaks to a cluster. kafka-python is given a TLS context, librdkafka the
paths of the same files; keys and certificates that stand in the settings themselves never get into a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kbroker.security.client import (
    GSSAPI,
    NAMES,
    OAUTHBEARER,
    ClientSecurity,
    Login,
    client_security,
    first_name,
)

TOKENS = "sasl.oauth.token.provider"
CONTEXT = "ssl.context"
TOKENAUTH = "sasl.tokenauth"
"""A mark of ours in the settings: user and password are a delegation token's."""


def with_security(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings, those of security in kafka-python's names, with dots. Raises: ClickException for a wrong one."""
    given = {key: value for key, value in settings.items() if first_name(key) in NAMES}
    others: dict[str, Any] = {key: value for key, value in settings.items() if key not in given}
    try:
        security = client_security(settings)
        protocol = {"security.protocol": security.protocol} if given else {}
        return {**others, **protocol, **_login(security.login), **(_tls(security) if security.tls else {})}
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _login(login: Login | None) -> dict[str, Any]:
    if login is None:
        return {}
    found: dict[str, Any] = {"sasl.mechanism": login.mechanism}
    if login.is_token:
        found[TOKENAUTH] = "true"
    if login.mechanism == OAUTHBEARER:
        from kbroker.runtime.client_security import Tokens

        tokens = Tokens(login)
        tokens.token()  # what is wrong with it is told at once
        found[TOKENS] = tokens
    elif login.mechanism == GSSAPI:
        names = {"sasl.kerberos.name": login.user, "sasl.kerberos.keytab": login.keytab}
        found.update({key: value for key, value in names.items() if value})
        found["sasl.kerberos.service.name"] = login.service
    else:
        found.update({"sasl.plain.username": login.user, "sasl.plain.password": login.password})
    return found


def _tls(security: ClientSecurity) -> dict[str, Any]:
    from kbroker.runtime.client_security import context_of, shown, trusted
    from kbroker.runtime.platform import lasting_path

    found: dict[str, Any] = {CONTEXT: context_of(security), "ssl.check.hostname": str(security.checks_host).lower()}
    if security.authorities is not None:
        found["ssl.cafile"] = lasting_path(trusted(security.authorities).encode())
    if security.certificate is not None:
        pem, password = shown(security)
        found["ssl.certfile"] = found["ssl.keyfile"] = lasting_path(pem)
        if password:
            found["ssl.password"] = password
    if security.revoked is not None:
        found["ssl.crlfile"] = security.revoked.path
    if not security.checks_certificate:
        found["enable.ssl.certificate.verification"] = "false"
    return found
