"""Fragmentation: every parameter exactly once, balanced or by layer, and the flat vector of a fragment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_api.sync_policy import Fragmentation
from diloco_trainer.algorithm.fragments import Fragment, FragmentLayout, TensorSpec, gather, make_layout, scatter

BALANCED, LAYER = Fragmentation.BALANCED_TENSOR, Fragmentation.LAYER


def gpt(num_layers: int, width: int = 4) -> list[TensorSpec]:
    """Embedding, two tensors a layer, final norm; the head is tied."""
    specs = [TensorSpec("embedding", (64, width), True, None)]
    for layer in range(num_layers):
        specs.append(TensorSpec(f"layer{layer}.attention", (3 * width, width), False, layer))
        specs.append(TensorSpec(f"layer{layer}.mlp", (4 * width, width), False, layer))
    return [*specs, TensorSpec("norm", (width,), False, None)]


def layers_of(fragment: Fragment) -> list[int]:
    return sorted({tensor.layer for tensor in fragment.tensors if tensor.layer is not None})


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(min_value=0, max_value=1000), min_size=1, max_size=40),
    num_fragments=st.integers(min_value=1, max_value=40),
    rule=st.sampled_from([BALANCED, LAYER]),
)
def test_every_parameter_is_in_exactly_one_fragment_and_none_is_empty(
    sizes: list[int], num_fragments: int, rule: Fragmentation
) -> None:
    specs = [TensorSpec(f"t{place}", (size,), place % 7 == 0, place // 2) for place, size in enumerate(sizes)]
    most = len(specs) if rule is BALANCED else (len(specs) + 1) // 2
    if num_fragments > most:
        with pytest.raises(ValueError, match=f"fragments: {num_fragments} is more than the model's {most}"):
            make_layout(specs, num_fragments, rule)
        return
    layout = make_layout(specs, num_fragments, rule)
    assert [fragment.index for fragment in layout.fragments] == list(range(num_fragments))
    assert sorted(t.name for f in layout.fragments for t in f.tensors) == sorted(t.name for t in specs)
    assert all(fragment.tensors for fragment in layout.fragments)
    assert layout.numel == sum(sizes)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(min_value=1, max_value=1000), min_size=8, max_size=40))
def test_balanced_fragments_differ_by_no_more_than_one_tensor(sizes: list[int]) -> None:
    specs = [TensorSpec(f"t{place}", (size,), False, None) for place, size in enumerate(sizes)]
    loads = [fragment.numel for fragment in make_layout(specs, 8, BALANCED).fragments]
    assert max(loads) - min(loads) <= max(sizes)


def test_balanced_packing_takes_the_biggest_first_and_breaks_ties_by_name() -> None:
    specs = [TensorSpec(name, (size,), False, None) for name, size in [("d", 4), ("c", 4), ("a", 9), ("b", 4)]]
    layout = make_layout(specs, 2, BALANCED)
    assert [[t.name for t in f.tensors] for f in layout.fragments] == [["a"], ["d", "c", "b"]]
    layout = make_layout([*specs, TensorSpec("e", (3,), False, None)], 2, BALANCED)
    assert [[t.name for t in f.tensors] for f in layout.fragments] == [["a", "e"], ["d", "c", "b"]]


def test_tensors_of_one_size_are_packed_in_the_order_of_their_names() -> None:
    specs = [TensorSpec(name, (size,), False, None) for name, size in [("b", 5), ("a", 5), ("c", 3)]]
    layout = make_layout(specs, 2, BALANCED)
    assert [[t.name for t in f.tensors] for f in layout.fragments] == [["a", "c"], ["b"]]


def test_tensors_without_elements_leave_no_fragment_empty() -> None:
    specs = [TensorSpec(name, (size,), False, None) for name, size in [("a", 5), ("b", 0), ("c", 0)]]
    assert [len(fragment.tensors) for fragment in make_layout(specs, 3, BALANCED).fragments] == [1, 1, 1]


def test_layers_are_strided_and_the_rest_joins_fragment_zero() -> None:
    layout = make_layout(gpt(7), 3, LAYER)
    assert [layers_of(fragment) for fragment in layout.fragments] == [[0, 3, 6], [1, 4], [2, 5]]
    names = [tensor.name for tensor in layout.fragments[0].tensors]
    assert names[0] == "embedding"
    assert names[-1] == "norm"
    assert all(tensor.layer is not None for fragment in layout.fragments[1:] for tensor in fragment.tensors)


def test_numbers_of_layers_may_have_gaps() -> None:
    specs = [TensorSpec(f"l{layer}", (3,), False, layer) for layer in (2, 10, 7)]
    layout = make_layout(specs, 3, LAYER)
    assert [layers_of(fragment) for fragment in layout.fragments] == [[2], [7], [10]]


def test_model_without_layers_is_one_fragment_by_layer() -> None:
    specs = [TensorSpec("w", (3,), False, None)]
    assert make_layout(specs, 1, LAYER).fragments[0].tensors == tuple(specs)
    with pytest.raises(ValueError, match="0 layers"):
        make_layout(specs, 2, LAYER)


def test_one_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'norm' is listed more than once"):
        make_layout([*gpt(2), TensorSpec("norm", (4,), False, None)], 1, BALANCED)


def test_no_fragments_are_refused() -> None:
    with pytest.raises(ValueError, match="fragments: 0"):
        make_layout(gpt(2), 0, BALANCED)


def digest(specs: list[TensorSpec], num_fragments: int = 2, rule: Fragmentation = BALANCED) -> str:
    return make_layout(specs, num_fragments, rule).digest


def test_digest_changes_with_names_shapes_and_cut() -> None:
    other_name = [TensorSpec("other", (4,), False, None), *gpt(4)[:-1]]
    other_shape = [TensorSpec("embedding", (4, 64), True, None), *gpt(4)[1:]]
    digests = [digest(gpt(4)), digest(other_name), digest(other_shape), digest(gpt(4), 3), digest(gpt(4), 2, LAYER)]
    assert len(set(digests)) == len(digests)
    assert digest(gpt(4)) == digest(gpt(4))
    assert all(len(text) == 64 for text in digests)


def test_embedding_and_other_ranges_cover_the_flat_vector_without_overlap() -> None:
    tensors = (
        TensorSpec("a", (2, 3), False, 0),
        TensorSpec("b", (5,), False, 0),
        TensorSpec("e", (4, 2), True, None),
        TensorSpec("empty", (0, 7), False, None),
        TensorSpec("h", (3,), True, None),
        TensorSpec("scalar", (), False, None),
    )
    fragment = Fragment(0, tensors)
    assert fragment.numel == 23
    assert fragment.other_ranges == [(0, 11), (22, 23)]
    assert fragment.embedding_ranges == [(11, 22)]


def params(layout: FragmentLayout, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    specs = [tensor for fragment in layout.fragments for tensor in fragment.tensors]
    return {spec.name: torch.randn(spec.shape, generator=rng).to(dtype) for spec in specs}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scatter_brings_back_what_gather_took(dtype: torch.dtype) -> None:
    layout = make_layout(gpt(3), 2, LAYER)
    source = params(layout, dtype)
    target = {name: torch.nn.Parameter(torch.zeros_like(value)) for name, value in source.items()}
    for fragment in layout.fragments:
        flat = gather(fragment, source)
        assert flat.dtype == torch.float32
        scatter(fragment, flat, target)
    assert all(torch.equal(target[name], value) for name, value in source.items())


def test_gather_orders_tensors_as_the_fragment_does_and_copies() -> None:
    layout = make_layout(gpt(2), 1, LAYER)
    fragment, source = layout.fragments[0], params(layout)
    source["norm"] = torch.randn(8)[::2]  # not contiguous
    out = torch.empty(fragment.numel)
    assert gather(fragment, source, out) is out
    assert torch.equal(out, torch.cat([source[tensor.name].reshape(-1) for tensor in fragment.tensors]))
    source["embedding"].zero_()
    assert bool((out[:256] != 0).any())


def test_scatter_writes_into_tensors_that_are_not_contiguous() -> None:
    fragment = Fragment(0, (TensorSpec("w", (3, 2), False, None),))
    target = {"w": torch.zeros(2, 3).t()}
    scatter(fragment, torch.arange(6.0), target)
    assert torch.equal(target["w"], torch.arange(6.0).view(3, 2))


def test_mismatches_name_the_parameter() -> None:
    fragment = Fragment(3, (TensorSpec("w", (3, 2), False, None),))
    with pytest.raises(ValueError, match="'w' of the layout is missing"):
        gather(fragment, {})
    with pytest.raises(ValueError, match=r"'w' is \(2, 3\)"):
        gather(fragment, {"w": torch.zeros(2, 3)})
    for flat in (torch.zeros(5), torch.zeros(6, dtype=torch.float64), torch.zeros(3, 2)):
        with pytest.raises(ValueError, match="fragment 3 is a flat float32 vector of 6"):
            scatter(fragment, flat, {"w": torch.zeros(3, 2)})
