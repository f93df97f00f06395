"""What must hold of every model and every Mac, whatever their numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from node_agent.protocol.cards import ModelFacts, Price
from node_agent.protocol.shapes import Shape
from node_agent.sizing import memory, pods, ranks, speed
from node_agent.sizing.constants import speed_constants
from node_agent.sizing.sharding import why_not_tensor
from node_agent.sizing.weights import computed_bytes, layer_plans, weights_of
from node_agent.sizing.work import Machine, work_of

PRICE = Price(input_umlx_per_million=1, cached_input_umlx_per_million=1, output_umlx_per_million=1)
WIDTHS = (None, {"bits": 4, "group_size": 64}, {"bits": 8, "group_size": 32})


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Shapes of all kinds: plain, with experts, latent, with windows, hybrid."""
    head_dim, kv_heads = draw(st.sampled_from((64, 80, 128, 256))), draw(st.integers(1, 8))
    layers = draw(st.integers(1, 40))
    fields: dict[str, Any] = {
        "model_type": draw(st.sampled_from(("llama", "qwen3_moe", "gemma3_text", "qwen3_next"))),
        "layers": layers,
        "hidden": 64 * draw(st.integers(1, 64)),
        "intermediate": 64 * draw(st.integers(1, 128)),
        "heads": kv_heads * draw(st.integers(1, 8)),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab": draw(st.integers(100, 200_000)),
        "tied": draw(st.booleans()),
    }
    width = draw(st.sampled_from(WIDTHS))
    if width:
        fields["quantisation"] = width
    if draw(st.booleans()):
        count = draw(st.integers(1, 64))
        fields["experts"] = {
            "count": count,
            "per_token": draw(st.integers(1, count)),
            "intermediate": 64 * draw(st.integers(1, 32)),
            "shared_intermediate": 64 * draw(st.integers(0, 4)),
            "dense_layers": draw(st.integers(0, layers)),
        }
    match draw(st.sampled_from(("plain", "latent", "sliding", "recurrent"))):
        case "latent":
            fields["latent"] = {"kv_rank": 512, "rope_dim": 64, "nope_dim": 128, "value_dim": 128}
        case "sliding":
            fields["sliding"] = {
                "window": draw(st.integers(1, 4096)),
                "layers": draw(st.integers(1, layers)),
            }
        case "recurrent":
            fields["recurrent"] = {
                "layers": draw(st.integers(1, layers)),
                "in_columns": 512,
                "out_rows": 128,
                "conv_channels": 384,
                "conv_kernel": 4,
                "state_values": 4096,
            }
        case _:
            pass
    return Shape.model_validate(fields)


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """Models of those shapes, as large as these say or a little off."""
    shape = draw(shapes())
    return ModelFacts(
        id="m",
        name="m",
        kind="chat",
        licence="mit",
        context_tokens=131_072,
        weights_bytes=max(round(computed_bytes(shape) * draw(st.floats(0.97, 1.2))), 1),
        shape=shape,
        price=PRICE,
    )


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Macs from an M1 to an Ultra of the future."""
    return Machine(
        bandwidth_bytes_per_second=draw(st.floats(50e9, 2e12)),
        generation=draw(st.integers(0, 5)),
        gpu_cores=draw(st.integers(7, 160)),
        is_ultra=draw(st.booleans()),
        engine=draw(st.sampled_from(("mlx", "llama.cpp"))),
    )


TOKENS = st.integers(0, 100_000)
RATHER_MANY = settings(max_examples=60)


@RATHER_MANY
@given(models())
def test_parts_sum_to_the_stated_size(model: ModelFacts) -> None:
    found = weights_of(model)
    total = sum(found.layer_bytes) + found.outer_bytes
    assert abs(total - model.weights_bytes) <= 1e-6 * model.weights_bytes
    assert len(found.layer_bytes) == model.shape.layers == len(layer_plans(model.shape))
    held = zip(found.layer_split_bytes, found.layer_bytes, strict=True)
    assert all(0 <= cut <= whole * (1 + 1e-9) for cut, whole in held)
    assert found.parameters <= found.parameters_total


@RATHER_MANY
@given(models(), TOKENS, st.integers(0, 5000), st.integers(1, 8))
def test_more_context_or_company_never_needs_less(
    model: ModelFacts, tokens: int, more: int, width: int
) -> None:
    base = memory.needed_bytes(model, tokens, width)
    assert memory.needed_bytes(model, tokens + more, width) >= base
    assert memory.needed_bytes(model, tokens, width + 1) > base
    assert base > model.weights_bytes


@RATHER_MANY
@given(models(), TOKENS, st.integers(1, 8))
def test_a_batch_is_as_many_caches_as_sequences(model: ModelFacts, tokens: int, width: int) -> None:
    one, many = memory.kv_bytes(model, tokens, 1), memory.kv_bytes(model, tokens, width)
    assert abs(many - width * one) <= width


@RATHER_MANY
@given(models(), TOKENS)
def test_a_quantised_cache_is_smaller(model: ModelFacts, tokens: int) -> None:
    assert memory.kv_bytes(model, tokens, 1, kv_bits=4) <= memory.kv_bytes(model, tokens, 1)


@RATHER_MANY
@given(models(), machines(), st.integers(1, 16), TOKENS, st.floats(1.0, 4.0))
def test_a_mac_with_more_of_everything_is_never_slower(
    model: ModelFacts, machine: Machine, batch: int, tokens: int, times: float
) -> None:
    work = work_of(model)
    better = replace(
        machine,
        bandwidth_bytes_per_second=machine.bandwidth_bytes_per_second * times,
        gpu_cores=int(machine.gpu_cores * times),
    )
    slow = speed.step_seconds(work, machine, context_tokens=tokens, batch=batch)
    assert 0 < speed.step_seconds(work, better, context_tokens=tokens, batch=batch) <= slow
    slow = speed.prompt_seconds(work, machine, tokens)
    assert speed.prompt_seconds(work, better, tokens) <= slow


@RATHER_MANY
@given(models(), machines(), st.integers(1, 15), TOKENS)
def test_a_further_sequence_costs_time_and_less_than_a_turn_of_its_own(
    model: ModelFacts, machine: Machine, batch: int, tokens: int
) -> None:
    work = work_of(model)
    one = speed.step_seconds(work, machine, context_tokens=tokens)
    some = speed.step_seconds(work, machine, context_tokens=tokens, batch=batch)
    more = speed.step_seconds(work, machine, context_tokens=tokens, batch=batch + 1)
    assert one <= some < more


@RATHER_MANY
@given(models(), machines(), st.integers(1, 20_000), st.integers(1, 20_000))
def test_a_longer_prompt_takes_longer(model: ModelFacts, machine: Machine, tokens: int, more: int) -> None:
    work = work_of(model)
    assert speed.prompt_seconds(work, machine, tokens) < speed.prompt_seconds(work, machine, tokens + more)


@RATHER_MANY
@given(models(), machines(), st.floats(0.2, 5.0), TOKENS)
def test_a_self_test_is_found_back(model: ModelFacts, machine: Machine, times: float, tokens: int) -> None:
    work = work_of(model)
    slower = replace(machine, decode_factor=1 / times if times > 0.4 else 2.0)
    measured = speed.step_seconds(work, slower, context_tokens=tokens)
    # A model so small that starting its kernels is nearly all of a step says nothing of memory.
    starts = speed.launch_seconds(work, machine, speed_constants().decode)
    assume(measured - starts > 2 * speed.FACTOR_LEAST * measured)
    factor = speed.decode_factor(work, machine, measured, context_tokens=tokens)
    assert abs(factor - slower.decode_factor) <= 1e-6 * slower.decode_factor


@RATHER_MANY
@given(models(), st.integers(2, 8), st.integers(1, 20_000))
def test_ranks_hold_all_of_it_and_less_than_one_mac(model: ModelFacts, count: int, tokens: int) -> None:
    alone = memory.needed_parts(model, tokens, 1)
    each = ranks.tensor_parts(model, tokens, 1, count)
    assert each.weights_bytes <= alone.weights_bytes + 1
    assert count * each.weights_bytes >= alone.weights_bytes - count
    assert ranks.tensor_parts(model, tokens, 1, 1).total_bytes == alone.total_bytes
    if count <= model.shape.layers:
        split = ranks.even_split(model.shape.layers, count)
        parts = ranks.pipeline_parts(model, tokens, 1, split)
        assert sum(part.weights_bytes for part in parts) >= alone.weights_bytes - count
        assert abs(sum(part.kv_bytes for part in parts) - alone.kv_bytes) <= count


@RATHER_MANY
@given(models(), st.lists(st.integers(10**9, 10**12), min_size=1, max_size=6), st.integers(1, 8192))
def test_a_split_fits_every_mac_or_there_is_none(model: ModelFacts, usable: list[int], tokens: int) -> None:
    split = ranks.pipeline_split(model, tokens, 1, usable)
    if split is None:
        return
    parts = ranks.pipeline_parts(model, tokens, 1, split)
    assert all(part.total_bytes <= limit for part, limit in zip(parts, usable, strict=True))
    roomier = ranks.pipeline_split(model, tokens, 1, [limit * 2 for limit in usable])
    assert roomier is not None


@RATHER_MANY
@given(models(), machines(), st.integers(2, 8), st.floats(30e-6, 1e-3))
def test_an_all_reduce_only_costs(model: ModelFacts, machine: Machine, count: int, alpha: float) -> None:
    work = work_of(model)
    cheap, dear = pods.Link(alpha_seconds=alpha), pods.Link(alpha_seconds=2 * alpha)
    fast = pods.tensor_step_seconds(work, machine, count, cheap)
    assert fast < pods.tensor_step_seconds(work, machine, count, dear)
    assert abs(pods.alpha_of(work, machine, count, fast) - alpha) <= 1e-6 * alpha + 1e-12


@RATHER_MANY
@given(shapes(), st.integers(2, 16))
def test_what_is_allowed_divides(shape: Shape, count: int) -> None:
    if why_not_tensor(shape, count) is None:
        assert shape.heads % count == 0
        assert shape.latent is not None or shape.kv_heads % count == 0
