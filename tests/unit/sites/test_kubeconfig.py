"""Which kubeconfigs are used and which are refused, each by the name of what is wrong with it."""

import base64
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco_operator.sites.kubeconfig import (
    MAX_BYTES,
    ClusterCredentials,
    KubeconfigRefused,
    from_kubeconfig_file,
    in_cluster_credentials,
    parse_kubeconfig,
)
from fakes.authority import Authority

OURS = Authority("ours")
CERTIFICATE, KEY = OURS.client("somebody")
OTHER_KEY = OURS.client("another")[1]
LOCKED_KEY = OURS.client("somebody", password="secret")[1]
TOKEN = "the-token-itself"
Document = dict[str, Any]
Change = Callable[[Document, Path], None]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def document(**user: Any) -> Document:
    cluster = {"server": "https://192.0.2.10:6443", "certificate-authority-data": encoded(OURS.pem)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "ignored"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {"token": TOKEN}}],
    }


def cluster_of(found: Document) -> Document:
    return found["clusters"][0]["cluster"]


def user_of(found: Document) -> Document:
    return found["users"][0]["user"]


def parsed(found: Document) -> ClusterCredentials:
    return parse_kubeconfig(yaml.safe_dump(found))


def test_a_token_is_taken() -> None:
    found = parsed(document())
    assert (found.server, found.ca_pem, found.token) == ("https://192.0.2.10:6443", OURS.pem, TOKEN)
    assert not found.client_cert_pem


def test_a_client_certificate_with_its_key_is_taken() -> None:
    user = {"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY)}
    found = parsed(document(**user))
    assert (found.client_cert_pem, found.client_key_pem) == (CERTIFICATE, KEY)
    assert not found.token


def test_json_and_bytes_are_yaml_too() -> None:
    assert parse_kubeconfig(str(document()).encode()).token == TOKEN


def test_nothing_secret_shows() -> None:
    user = {"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY)}
    shown = repr(parsed(document())) + repr(parsed(document(**user)))
    assert "PEM" not in shown.replace("ca_pem", "")
    for secret in (TOKEN, "BEGIN", "MI"):
        assert secret not in shown


def test_one_context_needs_no_current_context() -> None:
    found = document()
    del found["current-context"]
    assert parsed(found).token == TOKEN


def test_what_the_current_context_does_not_select_is_not_judged() -> None:
    found = document()
    found["users"].append({"name": "other", "user": {"exec": {"command": "aws"}}})
    found["clusters"].append({"name": "other", "cluster": {"server": "http://x", "insecure-skip-tls-verify": True}})
    assert parsed(found).token == TOKEN


def test_refused_keys_that_say_nothing_are_nothing() -> None:
    found = document(token=TOKEN, exec=None, username="", password="")
    cluster_of(found)["insecure-skip-tls-verify"] = False
    found["preferences"] = {}
    cluster_of(found)["extensions"] = [{"name": "minikube"}]
    assert parsed(found).token == TOKEN


def in_user(**entries: Any) -> Change:
    return lambda found, canary: user_of(found).update(_filled(entries, canary))


def in_cluster(**entries: Any) -> Change:
    dashed = {key.replace("_", "-"): value for key, value in entries.items()}
    return lambda found, canary: cluster_of(found).update(_filled(dashed, canary))


def only_user(**entries: Any) -> Change:
    def change(found: Document, canary: Path) -> None:
        found["users"][0]["user"] = _filled({k.replace("_", "-"): v for k, v in entries.items()}, canary)

    return change


def _filled(value: Any, canary: Path) -> Any:
    """`@CANARY` is a file that must not be read, `@RUN` a command that must not run."""
    if isinstance(value, dict):
        return {key: _filled(item, canary) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, canary) for item in value]
    if not isinstance(value, str):
        return value
    return value.replace("@CANARY", str(canary)).replace("@RUN", str(canary.with_name("run.sh")))


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "@RUN", "args": [], "interactiveMode": "Never"}
GCP = {"name": "gcp", "config": {"cmd-path": "@RUN", "cmd-args": "x", "access-token": TOKEN}}

HOSTILE: dict[str, tuple[Change, str]] = {
    "exec plug-in": (only_user(exec=EXEC), "ExecPlugin"),
    "exec plug-in beside a token": (in_user(exec=EXEC), "ExecPlugin"),
    "auth provider": (in_user(**{"auth-provider": GCP}), "AuthProvider"),
    "token file": (only_user(tokenFile="@CANARY"), "TokenFile"),
    "token file beside a token": (in_user(tokenFile="@CANARY"), "TokenFile"),
    "client certificate file": (in_user(**{"client-certificate": "@CANARY"}), "ClientCertificateFile"),
    "client key file": (in_user(**{"client-key": "@CANARY"}), "ClientKeyFile"),
    "authority file": (in_cluster(certificate_authority="@CANARY"), "CertificateAuthorityFile"),
    "no verification": (in_cluster(insecure_skip_tls_verify=True), "InsecureTLS"),
    "proxy": (in_cluster(proxy_url="http://192.0.2.66:3128"), "ProxyURL"),
    "another server name": (in_cluster(tls_server_name="elsewhere"), "TLSServerName"),
    "password": (only_user(username="admin", password="admin"), "BasicAuth"),
    "impersonation": (in_user(**{"as": "system:admin"}), "Impersonation"),
    "impersonated groups": (in_user(**{"as-groups": ["system:masters"]}), "Impersonation"),
    "plain http": (in_cluster(server="http://192.0.2.10:6443"), "NotHTTPS"),
    "a file as server": (in_cluster(server="file://@CANARY"), "NotHTTPS"),
    "no authority": (in_cluster(certificate_authority_data=""), "CAMissing"),
    "unreadable authority": (in_cluster(certificate_authority_data=encoded("no certificate")), "InvalidCertificate"),
    "authority that is no base64": (in_cluster(certificate_authority_data="%%%"), "InvalidField"),
    "password in the server": (in_cluster(server="https://user:secret@192.0.2.10"), "InvalidServer"),
    "query in the server": (in_cluster(server="https://192.0.2.10/?x=y"), "InvalidServer"),
    "path out of the server": (in_cluster(server="https://192.0.2.10/../x"), "InvalidServer"),
    "line break in the server": (in_cluster(server="https://192.0.2.10\r\nX: y"), "InvalidServer"),
    "metadata service": (in_cluster(server="https://169.254.169.254"), "OddHostname"),
    "address in disguise": (in_cluster(server="https://2130706433"), "OddHostname"),
    "address in hex": (in_cluster(server="https://0x7f.0.0.0x1"), "OddHostname"),
    "no host": (in_cluster(server="https://:443"), "OddHostname"),
    "line break in the token": (only_user(token="x\r\nX-Evil: y"), "InvalidToken"),
    "endless token": (only_user(token="x" * 100_000), "InvalidToken"),
    "number as token": (only_user(token=12345), "InvalidField"),
    "two credentials": (
        in_user(**{"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY)}),
        "SeveralCredentials",
    ),
    "no credentials": (only_user(token=""), "NoCredentials"),
    "certificate without key": (only_user(client_certificate_data=encoded(CERTIFICATE)), "NoCredentials"),
    "key of another": (
        only_user(client_certificate_data=encoded(CERTIFICATE), client_key_data=encoded(OTHER_KEY)),
        "InvalidCertificate",
    ),
    "encrypted key": (
        only_user(client_certificate_data=encoded(CERTIFICATE), client_key_data=encoded(LOCKED_KEY)),
        "InvalidCertificate",
    ),
    "unknown key": (in_user(**{"token-command": "@RUN"}), "UnknownField"),
    "two users of one name": (lambda found, _: found["users"].append({"name": "u"}), "DuplicateName"),
    "no such user": (lambda found, _: found["users"].clear(), "MissingEntry"),
    "no such context": (lambda found, _: found.update({"current-context": "x"}), "MissingEntry"),
    "users that are no list": (lambda found, _: found.update(users="@CANARY"), "InvalidField"),
    "another kind": (lambda found, _: found.update(kind="Secret"), "NotAKubeconfig"),
    "no current context among two": (
        lambda found, _: (found.pop("current-context"), found["contexts"].append({"name": "x", "context": {}})),
        "NoCurrentContext",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_kubeconfigs_are_refused_by_name_and_nothing_is_run_or_read(
    change: Change, reason: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    (run := tmp_path / "run.sh").write_text(f"#!/bin/sh\ntouch {ran}\necho '{{}}'\n")
    run.chmod(0o755)
    (canary := tmp_path / "canary").write_text(CERTIFICATE + KEY)
    read_before = canary.stat().st_atime_ns
    hostile = document()
    change(hostile, canary)
    with pytest.raises(KubeconfigRefused) as caught:
        parsed(hostile)
    assert caught.value.reason == reason
    assert not ran.exists()
    assert canary.stat().st_atime_ns == read_before
    shown = "".join(traceback.format_exception(caught.value))
    for secret in (TOKEN, "secret@", "BEGIN", encoded(KEY)[:40]):
        assert secret not in str(caught.value) + shown


TEXTS = {
    "python object": ("!!python/object/apply:os.system ['touch {ran}']", "NotYAML"),
    "python module": ("!!python/module:antigravity", "NotYAML"),
    "aliases": ("a: &a [x, x]\nb: [*a, *a, *a]\n", "Aliases"),
    "not yaml": (f"a: [{TOKEN}", "NotYAML"),
    "nested without end": ("[" * 5_000, "TooDeep"),
    "blocks nested without end": ("- " * 5_000, "NotYAML"),
    "many small things": ("a: [" + "1," * 20_000 + "]", "TooLarge"),
    "endless": ("# " + "x" * MAX_BYTES, "TooLarge"),
    "a word": ("kubeconfig", "NotAKubeconfig"),
    "nothing": ("", "NotAKubeconfig"),
    "control characters": ("a: \x00", "NotYAML"),
}


@pytest.mark.parametrize(("text", "reason"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("as_bytes", [False, True], ids=["text", "bytes"])
def test_texts_that_are_no_kubeconfig_are_refused_by_name(
    text: str, reason: str, as_bytes: bool, tmp_path: Path
) -> None:
    text = text.replace("{ran}", str(tmp_path / "ran"))
    with pytest.raises(KubeconfigRefused) as caught:
        parse_kubeconfig(text.encode() if as_bytes else text)
    assert caught.value.reason == reason
    assert TOKEN not in "".join(traceback.format_exception(caught.value))
    assert not (tmp_path / "ran").exists()


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(KubeconfigRefused):
        parse_kubeconfig(b"\xff\xfe\xfa\xfa\xff")


@pytest.mark.parametrize(
    "server",
    ["https://kubernetes.example.com", "https://[2001:db8::1]:6443", "https://127.0.0.1:45123",
     "https://rancher.example.com/k8s/clusters/c-m-7x.y_z", "https://api.example.com:443/"],
)  # fmt: skip
def test_ordinary_servers_are_taken(server: str) -> None:
    found = document()
    cluster_of(found)["server"] = server
    assert parsed(found).server == server.rstrip("/")


def test_an_administrators_file_is_held_to_the_same_model(tmp_path: Path) -> None:
    (file := tmp_path / "config").write_text(yaml.safe_dump(document()))
    assert from_kubeconfig_file(file).token == TOKEN
    file.write_text(yaml.safe_dump(document(exec={"command": "aws"})))
    with pytest.raises(KubeconfigRefused, match=r"user\.exec is refused"):
        from_kubeconfig_file(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigRefused) as refused:
        from_kubeconfig_file(tmp_path / "nowhere")
    assert (refused.value.reason, str(refused.value)) == (
        "Unreadable", f"{tmp_path}/nowhere: No such file or directory",
    )  # fmt: skip


@pytest.mark.parametrize(("host", "server"), [("10.96.0.1", "10.96.0.1"), ("fd00::1", "[fd00::1]")])
def test_a_pod_finds_its_own_credentials(tmp_path: Path, host: str, server: str) -> None:
    (tmp_path / "ca.crt").write_text(OURS.pem)
    (tmp_path / "token").write_text(TOKEN)
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    found = in_cluster_credentials(str(tmp_path), environment)
    assert found == ClusterCredentials(f"https://{server}:443", OURS.pem, token_file=str(tmp_path / "token"))


@pytest.mark.parametrize("missing", ["ca.crt", "token", "KUBERNETES_SERVICE_HOST"])
def test_outside_of_a_pod_that_is_said(tmp_path: Path, missing: str) -> None:
    files = {"ca.crt": OURS.pem, "token": TOKEN}
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for name, text in files.items():
        if name != missing:
            (tmp_path / name).write_text(text)
    environment.pop(missing, None)
    with pytest.raises(KubeconfigRefused) as caught:
        in_cluster_credentials(str(tmp_path), environment)
    assert caught.value.reason == "NotInCluster"


@pytest.mark.parametrize(
    "who", [{}, {"token": "a", "token_file": "b"}, {"client_cert_pem": "a"}, {"token": "a", "client_key_pem": "b"}]
)
def test_credentials_are_exactly_one(who: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        ClusterCredentials("https://x", "pem", **who)
