"""How a client of each kind is told where a secured broker is, whom to trust and who it is: settings to paste.

Made by `runtime/secure.py`; shown by `kbroker start --secure` and `dev-cluster --secure`, and handed to tests by
`kbroker.testing`. Java's settings are those of kbroker's own commands and of Spark's connector, too.
"""

from __future__ import annotations

from kbroker.security.client import MODULES, SCRAM
from protocol.namedtuple import NamedTuple

MECHANISM = SCRAM[-1]


class Recipe(NamedTuple):
    """protocol: one of security.protocol. authority: path of its certificate in PEM, of TLS. own: path of the client's
    key and certificate in PEM, of a listener that wants one. user, password: of a listener that wants a login."""

    bootstrap: str
    protocol: str
    authority: str = ""
    own: str = ""
    user: str = ""
    password: str = ""
    mechanism: str = MECHANISM

    def __repr__(self) -> str:
        return f"Recipe({self.bootstrap}, {self.protocol}, {self.user!r})"  # without the password

    def java(self) -> dict[str, str]:
        """As Apache's tools, Java's clients, kbroker's commands and, behind `kafka.`, Spark's connector take them."""
        settings = {"bootstrap.servers": self.bootstrap, "security.protocol": self.protocol}
        if self.user:
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.jaas.config"] = jaas(self.user, self.password, self.mechanism)
        if self.authority:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority}
        if self.own:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.own}
        return settings

    def spark(self) -> dict[str, str]:
        """Options of `format("kafka")` and of `format("kbroker")`."""
        return {f"kafka.{name}": value for name, value in self.java().items()}

    def librdkafka(self) -> dict[str, str]:
        """As confluent-kafka, kcat and their like take them."""
        settings = {"bootstrap.servers": self.bootstrap, "security.protocol": self.protocol}
        if self.user:
            settings["sasl.mechanisms"] = self.mechanism
            settings |= {"sasl.username": self.user, "sasl.password": self.password}
        if self.authority:
            settings["ssl.ca.location"] = self.authority
        if self.own:
            settings |= {"ssl.certificate.location": self.own, "ssl.key.location": self.own}
        return settings

    def kafka_python(self) -> dict[str, str]:
        """Arguments of KafkaProducer and its like."""
        settings = {"bootstrap_servers": self.bootstrap, "security_protocol": self.protocol}
        if self.user:
            settings["sasl_mechanism"] = self.mechanism
            settings |= {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        if self.authority:
            settings["ssl_cafile"] = self.authority
        if self.own:
            settings |= {"ssl_certfile": self.own, "ssl_keyfile": self.own}
        return settings


def jaas(user: str, password: str, mechanism: str = MECHANISM) -> str:
    """The login of a user, as Java writes it."""
    return f"{MODULES[mechanism]} required username={_quoted(user)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
