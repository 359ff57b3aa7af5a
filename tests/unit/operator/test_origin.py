"""The id of an installation is made once and never twice."""

import base64

import pytest

from diloco_operator.api import ApiError
from diloco_operator.hub import HubError
from diloco_operator.origin import read_origin
from fakes.kube_api import FakeApi

PATH = "/api/v1/namespaces/ops/secrets/diloco-operator-origin"


async def test_it_is_made_once_and_is_another_one_elsewhere() -> None:
    api = FakeApi()
    first = await read_origin(api, "ops")
    assert await read_origin(api, "ops") == first
    assert await read_origin(FakeApi(), "ops") != first
    assert len(api.writes) == 1
    assert len(first) <= 63


async def test_two_operators_that_make_it_at_once_have_the_same() -> None:
    api = FakeApi()
    theirs = base64.b64encode(b"0123456789abcdef").decode()

    async def quicker(*arguments: object, **options: object) -> dict:
        api.put(PATH, {"data": {"origin": theirs}})
        raise ApiError(409, "AlreadyExists", "exists")

    real = api.request

    async def request(method: str, *arguments: object, **options: object) -> dict:
        return await (quicker if method == "POST" else real)(method, *arguments, **options)

    api.request = request  # type: ignore[method-assign]
    assert await read_origin(api, "ops") == "0123456789abcdef"


@pytest.mark.parametrize("content", ["", "short", "has spaces in it"])
async def test_a_secret_without_an_id_is_not_given_a_new_one(content: str) -> None:
    api = FakeApi()
    api.put(PATH, {"data": {"origin": base64.b64encode(content.encode()).decode()}})
    with pytest.raises(HubError, match="holds no id"):
        await read_origin(api, "ops")
    assert api.writes == []
