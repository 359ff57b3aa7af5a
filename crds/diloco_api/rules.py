"""The words of every rule between fields, and the CEL with which an API server enforces those it can express.

The same sentence is shown at admission, by the CLI and in the condition `Accepted`. What a rule needs of a model's size
or of defaults that depend on other fields is checked by `sync_policy` and `accept` alone.
"""

from typing import Any

BELOW_SYNC_EVERY = "must be below syncEvery, as a fragment has one open exchange at a time"
AT_MOST_SYNC_EVERY = "must not exceed syncEvery, as at most one fragment is staged in an inner step"
AT_MOST_TENSORS = "must not exceed the number of tensors of the model, as fragmentation BalancedTensor splits none"
AT_MOST_LAYERS = "must not exceed the layers of the model, as fragmentation Layer splits none"
BLEND_NEEDS_DELAY = "must be 0 where syncDelay is 0, as nothing is trained between stage and adoption"
STREAMING_NEEDS_DELAY = "must be at least 1 under StreamingDiLoCo; a blocking exchange is preset DiLoCo"
QUORUM_AT_MOST_LEARNERS = "must not exceed learners.max (learners.replicas where it is not set)"
ALL_NEEDS_SYNCHRONOUS = "needs preset DiLoCo or StreamingDiLoCo: DecoupledDiLoCo takes turns and waits for a number"
NUMBER_NEEDS_TURNS = "needs preset DecoupledDiLoCo: DiLoCo and StreamingDiLoCo expect All"
ADAPTIVE_NEEDS_TURNS = "needs preset DecoupledDiLoCo: with minLearners All nothing is waited for after the quorum"
DEADLINE_NEEDS_ALL = "needs preset DiLoCo or StreamingDiLoCo: turns wait for a quorum, not for everyone"
GAMMA_NEEDS_ADAPTIVE = "needs quorum.grace Adaptive"
FEEDBACK_NEEDS_LOSS = "must be false where encoding.up is fp32, as nothing is lost"
ONE_BUDGET = "takes at most one of tokens, innerSteps and outerRounds"
BUDGET_TOO_LARGE = "must not exceed 10^16 tokens in all"
REPLICAS_AT_LEAST_MIN = "must not be below learners.min"
REPLICAS_AT_MOST_MAX = "must not exceed learners.max"
REPLICAS_FIXED = "must not exceed learners.replicas at acceptance: DiLoCo and StreamingDiLoCo divide the work by it"
EVEN_HEAD = "must be a multiple of 2 * heads, as rotary positions turn pairs of values"
MICRO_BATCH_DIVIDES = "must divide batch.sequences"
PORTS_DIFFER = "must differ from the other ports of the Synchronizer"
JOB_NAME = "must be a DNS label: at most 63 of a-z, 0-9 and -, a letter first and no - at the end"
MIN_LEARNERS = "must be a whole number from 1 to 256, or All"
GRACE = "must be Adaptive, Deadline or whole seconds from 0 to 600"
IMMUTABLE = "is immutable"
SITE_MIN_AT_MOST_MAX = "must not exceed learners.max of the site"
SITE_MINIMA = "the sum of learners.min over sites must not exceed learners.max (learners.replicas where it is not set)"
SITE_MAXIMA = "must not exceed the sum of learners.max over sites"
SITE_NAMESPACE_FIXED = "cannot change: take the site out of the job, and add it again once its Learners have left"
NAMESPACE_NEEDS_KUBECONFIG = "needs kubeconfigSecretRef: at the hub it is always the job's"
HUB_HAS_NO_KUBECONFIG = "must be absent at the site called hub, which is the cluster the job is in"
ONE_HUB = "only one site can be without kubeconfigSecretRef: that is the hub"
ONE_NAME = "must not be there twice"
SAME_TARGET = "must not lead to the namespace of another site"
EXPOSURE_NEEDED = (
    "must be NodePort, LoadBalancer or Address: sites with a kubeconfig do not reach a ClusterIP, "
    "for example exposure: {type: NodePort}"
)
ADDRESSES_NEEDED = "needs at least one host:port where type is Address"
ADDRESSES_UNUSED = "goes with type Address or NodePort only"
ADDRESS = "must be host:port; a port may be left out where type is NodePort"
TEMPLATE_RESTRICTED = "breaks the restricted profile all pods keep to"
TEMPLATE_FIELD = "is not part of a template"
TEMPLATE_TYPE = "must be as in a pod"
TEMPLATE_CONTAINERS = "takes one container: the one that is there"
TEMPLATE_OURS = "is set by the operator"


def cel(*rules: dict[str, str]) -> dict[str, Any]:
    """Extra keys of a model's schema: the rules an API server checks there."""
    return {"x-kubernetes-validations": list(rules)}


def rule(expression: str, message: str, field: str = "") -> dict[str, str]:
    """One CEL rule; `field` is the path, below the object it stands on, that a breach is reported at."""
    return {"rule": expression, "message": message, **({"fieldPath": f".{field}"} if field else {})}


_RESERVED = {"namespace": "__namespace__"}
"""Words of CEL; a field of that name has its type, and so its bounds, only where it is written like this."""


def fixed(field: str, message: str = IMMUTABLE) -> dict[str, str]:
    """A field that can be neither changed nor added nor removed."""
    word = _RESERVED.get(field, field)
    same = f"has(self.{word}) == has(oldSelf.{word}) && (!has(self.{word}) || self.{word} == oldSelf.{word})"
    return rule(same, message, field)


NEVER_CHANGES = rule("self == oldSelf", IMMUTABLE)
"""For a field that is required or has a default: then it can be neither added nor removed later."""
