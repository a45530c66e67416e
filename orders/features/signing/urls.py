"""Which URLs messages may be sent to, so that nobody can make this service
call its own network. Pure.
"""

import re
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from orders.features.signing.errors import WebhookUrlNotAllowed

#: The only parser of these URLs: where two parsers disagree about a URL, checks can be bypassed.
URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,9}\.?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(:(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<target>[/?][!-\"$-~]*)?"
)
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_PORT = 2**16 - 1
#: Written out rather than asked of `ipaddress`, whose lists differ between versions of Python.
FORBIDDEN: tuple[IPv4Network | IPv6Network, ...] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carriers' NAT; metadata of Alibaba
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # metadata of Azure
            "169.254.0.0/16",  # link-local; metadata of most clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments; metadata of Oracle
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
            "2001::/23",  # Teredo, ORCHID and other assignments
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: holds an IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)
#: All the rest of IPv6 is loopback, mapped IPv4, NAT64, private, link-local, multicast or reserved.
GLOBAL_UNICAST = IPv6Network("2000::/3")


class Target(NamedTuple):
    """A URL in its parts."""

    scheme: str
    #: Without the brackets of an IPv6 address.
    host: str
    port: int
    #: Path and query.
    target: str
    #: For the Host header.
    authority: str


def is_public(address: str) -> bool:
    """Whether an IP address is public, on the internet."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and (found.scope_id or found not in GLOBAL_UNICAST):
        return False
    return not any(found in network for network in FORBIDDEN)


def parsed(url: str, *, allow_private: bool) -> Target:
    """The parts of a URL that messages may be sent to, as far as can be told without resolving its
    host.

    Raises WebhookUrlNotAllowed.
    """
    found = URL.fullmatch(url)
    if found is None:
        raise WebhookUrlNotAllowed(
            "It must begin with https:// or http://, and have an ASCII host name and no user, password or fragment."
        )
    scheme, host = found["scheme"], found["host"].strip("[]")
    port = int(found["port"] or DEFAULT_PORTS[scheme])
    if port > MAX_PORT:
        raise WebhookUrlNotAllowed("Its port must be 1 to 65535.")
    if not allow_private:
        if port not in DEFAULT_PORTS.values():
            raise WebhookUrlNotAllowed("Its port must be 443 or 80.")
        if _is_address(host) and not is_public(host):
            raise WebhookUrlNotAllowed("Its address is not public.")
        if host.lower().rstrip(".").rpartition(".")[2] == "localhost":
            raise WebhookUrlNotAllowed("Its host is not public.")
    target = found["target"] or "/"
    authority = found["host"] + (f":{found['port']}" if found["port"] else "")
    return Target(scheme, host, port, target if target[0] == "/" else f"/{target}", authority)


def _is_address(host: str) -> bool:
    """Whether a host is an address in any notation: also 127.1, 2130706433 and 0x7f.0.0.1."""
    last = host.rstrip(".").rpartition(".")[2]
    return ":" in host or re.fullmatch(r"[0-9]+|0[xX][0-9A-Fa-f]*", last) is not None
