"""Certificates of a site: an authority of its own, one certificate a component, kubeconfigs with everything inline."""

import base64
import json
from pathlib import Path

from clusters.layout import KUBERNETES_SERVICE, WAN_ADDRESS, NodeLayout, SiteLayout
from clusters.network import run

_DAYS = "365"
_EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_COMPONENTS = {
    "admin": "/O=system:masters/CN=admin",
    "kubelet-client": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "coredns": "/CN=system:coredns",
}


def make_authority(site: SiteLayout) -> None:
    """The site's authority, its control plane's certificates and the administrator's kubeconfig."""
    if (site.pki / "sa.pub").exists():
        return
    site.pki.mkdir(parents=True, exist_ok=True)
    run(
        "openssl", "req", "-x509", *_EC_KEY, "-days", _DAYS, "-subj", f"/CN={site.name}-authority",
        "-keyout", f"{site.pki}/ca.key", "-out", f"{site.pki}/ca.crt",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
    )  # fmt: skip
    names = [f"DNS:{name}" for name in ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")]
    addresses = [f"IP:{address}" for address in ("127.0.0.1", KUBERNETES_SERVICE, site.address, WAN_ADDRESS)]
    _certificate(site, "apiserver", "/CN=kube-apiserver", ",".join(names + addresses))
    for name, subject in _COMPONENTS.items():
        _certificate(site, name, subject, f"DNS:{name}")
        write_kubeconfig(site, name)
    write_kubeconfig(site, "admin", site.kubeconfig)
    key = site.pki / "sa.key"
    run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", str(key))
    run("openssl", "pkey", "-in", str(key), "-pubout", "-out", str(site.pki / "sa.pub"))


def make_node(node: NodeLayout) -> None:
    """The node's certificate, of its kubelet as a server and as a client, and of its kube-proxy."""
    if (node.site.pki / f"{node.name}-proxy.kubeconfig").exists():
        return
    names = f"DNS:{node.name},IP:127.0.0.1,IP:{node.address}"
    _certificate(node.site, node.name, f"/O=system:nodes/CN=system:node:{node.name}", names)
    _certificate(node.site, f"{node.name}-proxy", "/CN=system:kube-proxy", "DNS:kube-proxy")
    for name in (node.name, f"{node.name}-proxy"):
        write_kubeconfig(node.site, name)


def write_kubeconfig(site: SiteLayout, name: str, path: Path | None = None, server: str = "") -> None:
    """JSON is YAML, so this needs no YAML library. `server` is another way to the API server (relay.py)."""

    def inline(file: str) -> str:
        return base64.b64encode((site.pki / file).read_bytes()).decode()

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": site.name,
                "cluster": {"server": server or site.server, "certificate-authority-data": inline("ca.crt")},
            }
        ],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": inline(f"{name}.crt"),
                    "client-key-data": inline(f"{name}.key"),
                },
            }
        ],
        "contexts": [{"name": site.name, "context": {"cluster": site.name, "user": name}}],
        "current-context": site.name,
    }
    target = path or site.pki / f"{name}.kubeconfig"
    target.write_text(json.dumps(config, indent=1))
    target.chmod(0o600)


def _certificate(site: SiteLayout, name: str, subject: str, alternative_names: str) -> None:
    key, request, certificate = (site.pki / f"{name}.{end}" for end in ("key", "csr", "crt"))
    run("openssl", "req", "-new", *_EC_KEY, "-subj", subject, "-keyout", str(key), "-out", str(request))
    extensions = site.pki / f"{name}.ext"
    extensions.write_text(
        f"subjectAltName={alternative_names}\nextendedKeyUsage=serverAuth,clientAuth\n"
        "keyUsage=critical,digitalSignature\nbasicConstraints=critical,CA:FALSE\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    run(
        "openssl", "x509", "-req", "-days", _DAYS, "-in", str(request), "-out", str(certificate),
        "-CA", f"{site.pki}/ca.crt", "-CAkey", f"{site.pki}/ca.key", "-CAcreateserial", "-extfile", str(extensions),
    )  # fmt: skip
    request.unlink()
    extensions.unlink()
