"""What is read from an API server's audit log."""

import json

import pytest

from clusters.audit import AuditTrail
from clusters.layout import Layout


@pytest.fixture
def site(tmp_path):
    site = Layout(tmp_path / "set").site("site-1")
    site.audit_log.parent.mkdir(parents=True)
    site.audit_log.touch()
    return site


def write(site, verb, name, *, subresource="", resource="pods", namespace="jobs", code=200):
    reference = {"resource": resource, "namespace": namespace, "name": name, "subresource": subresource}
    reference = {key: value for key, value in reference.items() if value}
    event = {"verb": verb, "objectRef": reference, "responseStatus": {"code": code}}
    with site.audit_log.open("a") as log:
        log.write(json.dumps(event) + "\n")


def test_pods_are_told_by_what_was_done_to_them(site):
    write(site, "delete", "earlier")
    trail = AuditTrail([site], "jobs")
    write(site, "create", "made", code=201)
    write(site, "create", "named-by-the-server", subresource="binding", code=201)
    write(site, "create", "", code=201)
    write(site, "delete", "deleted")
    write(site, "create", "evicted", subresource="eviction", code=201)
    write(site, "patch", "changed")
    write(site, "update", "grown", subresource="resize")
    write(site, "patch", "reported", subresource="status")
    write(site, "delete", "not-there", code=404)
    write(site, "delete", "of-others", namespace="others")
    write(site, "delete", "no-pod", resource="secrets")
    found = trail.pod_writes()
    assert found.created == {"made", "named-by-the-server"}
    assert found.deleted == {"deleted", "evicted"}
    assert found.changed == {"changed", "grown"}


def test_a_deletion_of_many_is_nobodys_in_particular(site):
    trail = AuditTrail([site], "jobs")
    write(site, "deletecollection", "")
    assert trail.pod_writes().deleted == {"(all of the namespace)"}
