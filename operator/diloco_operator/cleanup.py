"""`python -m diloco_operator.cleanup --orphan`: lets jobs go that no operator is left to tear down.

Jobs keep a finalizer until the operator has removed what they have at their sites. Where it is uninstalled already,
this takes the finalizer off and says what stays behind: nothing at a site is touched. Without `--orphan` it only lists.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from diloco_api import names
from diloco_operator.api import JSON_PATCH, Api, ApiError, Document, find, jobs_path, list_all
from diloco_operator.kube_api import KubeApi
from diloco_operator.lease import LEASE_NAME
from diloco_operator.sites.kubeconfig import (
    SERVICE_ACCOUNT_FOLDER,
    ClusterCredentials,
    KubeconfigRefused,
    from_kubeconfig_file,
    in_cluster_credentials,
)

_ATTEMPTS = 5


async def clean_up(api: Api, namespaces: Sequence[str], lease_namespace: str, now: datetime, *, orphan: bool) -> int:
    """The exit code: 0 when no job is held any more. An operator that is at work is left to do it properly."""
    holder = await holder_of_lease(api, lease_namespace, now)
    if holder and orphan:
        at_work = f"the operator {holder} is at work (Lease {lease_namespace}/{LEASE_NAME})"
        print(f"error: {at_work}: delete the jobs and it tears them down; where it cannot, stop it and try again after "
              "a minute", file=sys.stderr)  # fmt: skip
        return 1
    scopes: Sequence[str | None] = namespaces or [None]
    held = [job for scope in scopes for job in await list_all(api, jobs_path(scope)) if _is_held(job)]
    for job in held:
        print(f"{'let go' if orphan else 'held'}: {describe(job)}")
        if orphan:
            await _let_go(api, job)
    if not held:
        print("no job has the operator's finalizer")
    elif not orphan:
        print("with --orphan they are let go, and what they have at these sites stays there", file=sys.stderr)
    return 0 if orphan or not held else 1


async def holder_of_lease(api: Api, namespace: str, now: datetime) -> str:
    """Who acts at this moment; empty when nobody does."""
    lease = await find(api, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_NAME}")
    spec = lease.get("spec", {}) if lease is not None else {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return ""
    renewed = datetime.fromisoformat(spec["renewTime"].replace("Z", "+00:00"))
    is_fresh = (now - renewed).total_seconds() < float(spec.get("leaseDurationSeconds", 0))
    return str(spec["holderIdentity"]) if is_fresh else ""


def describe(job: Document) -> str:
    """Which job, and by which label what it leaves at which sites is found."""
    metadata = job["metadata"]
    rows = job.get("status", {}).get("sites") or []
    there = ", ".join(str(row.get("name")) for row in rows) or "no site"
    deleted = " (is being deleted)" if "deletionTimestamp" in metadata else ""
    label = f"{names.LABEL_JOB_UID}={metadata['uid']}"
    return (
        f"{metadata['namespace']}/{metadata['name']}{deleted}; at {there}: kubectl get all,secret,configmap -l {label}"
    )


def _is_held(job: Document) -> bool:
    return names.FINALIZER in (job["metadata"].get("finalizers") or [])


async def _let_go(api: Api, job: Document) -> None:
    """Other controllers' finalizers stay, also where one of them is changed at this moment."""
    metadata = job["metadata"]
    path = f"{jobs_path(metadata['namespace'])}/{metadata['name']}"
    for attempt in range(_ATTEMPTS):
        found = await find(api, path)
        if found is None or found["metadata"]["uid"] != metadata["uid"] or not _is_held(found):
            return
        index = found["metadata"]["finalizers"].index(names.FINALIZER)
        at = f"/metadata/finalizers/{index}"
        patch = [{"op": "test", "path": at, "value": names.FINALIZER}, {"op": "remove", "path": at}]
        try:
            await api.request("PATCH", path, patch, content_type=JSON_PATCH)
            return
        except ApiError as error:
            if error.status not in (404, 409, 422) or attempt == _ATTEMPTS - 1:
                raise


async def run(options: argparse.Namespace, credentials: ClusterCredentials) -> int:
    api = KubeApi(credentials)
    try:
        return await clean_up(
            api, options.namespace, options.lease_namespace, datetime.now(UTC), orphan=options.orphan
        )  # fmt: skip
    finally:
        await api.close()


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m diloco_operator.cleanup", description="Let jobs go that no operator is left to tear down."
    )
    pods = Path(SERVICE_ACCOUNT_FOLDER, "namespace")
    own = pods.read_text(encoding="utf-8").strip() if pods.exists() else "default"
    parser.add_argument("--orphan", action="store_true", help="take the finalizer off; what is at sites stays there")
    parser.add_argument("--namespace", action="append", default=[], help="of the jobs; may be repeated; default: all")
    parser.add_argument("--lease-namespace", default=own, help="of the operator; default: this pod's, else default")
    parser.add_argument("--kubeconfig", type=Path, default=None, help="default: the service account of this pod")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    try:
        kubeconfig = options.kubeconfig
        credentials = in_cluster_credentials() if kubeconfig is None else from_kubeconfig_file(kubeconfig)
        return asyncio.run(run(options, credentials))
    except (ApiError, KubeconfigRefused) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
