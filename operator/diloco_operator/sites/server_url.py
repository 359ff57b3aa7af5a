"""Which addresses of API servers are accepted: https, and a host that means the same to everybody."""

import ipaddress
import re
from urllib.parse import urlsplit

_DNS_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)*[a-z]([-a-z0-9]{0,61}[a-z0-9])?", re.I)
"""The last label begins with a letter: 2130706433 and 0x7f.1 are addresses to some resolvers."""
_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?")
"""Gateways serve clusters below a path."""


def check_server(server: str) -> tuple[str, str] | None:
    """(reason, message) why this URL is not used; None when it is."""
    try:
        url = urlsplit(server)
        host, port = url.hostname or "", url.port
    except ValueError:
        return "InvalidServer", "cluster.server is not a URL"
    if url.scheme != "https":
        return "NotHTTPS", "cluster.server must begin with https://"
    if "@" in url.netloc or url.query or url.fragment or "?" in server or "#" in server:
        return "InvalidServer", "cluster.server must hold no user, query or fragment"
    if not server.isascii() or not server.isprintable() or " " in server or not _PATH.fullmatch(url.path) or port == 0:
        return "InvalidServer", "cluster.server has an odd port, path or character"
    return _check_host(host)


def _check_host(host: str) -> tuple[str, str] | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if _DNS_NAME.fullmatch(host):
            return None
        return "OddHostname", "the host of cluster.server is neither a DNS name nor an IP address"
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return "OddHostname", "the host of cluster.server is an address no API server has"
    return None
