"""Values that travel as bytes come back with the rounding that their format allows, and no more."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dragoman.cluster.wire_formats import BLOCK, wire_format

FORMATS = ("fp32", "fp16", "bf16", "int8", "int4")
LARGEST = 3e38
ROUNDING = 2.0**-22
"""Two roundings of float32: division by the scale and multiplication with it."""
SMALLEST_STEP = 2.0**-149
"""Distance of the smallest values of float32."""
NOT_FINITE = (math.nan, math.inf, -math.inf)


def magnitudes() -> st.SearchStrategy[float]:
    """Draws sizes from below the smallest scale to the end of float32."""
    return st.floats(-38.0, math.log10(LARGEST)).map(lambda exponent: 10.0**exponent)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Draws values of one or of very different sizes, with zeros; their number may be odd or fill several blocks."""
    num_values = draw(st.one_of(st.integers(1, 9), st.integers(BLOCK - 2, BLOCK + 2), st.integers(1, 3 * BLOCK + 1)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.rand(num_values, generator=generator, dtype=torch.float64) * 2 - 1
    values *= draw(magnitudes())
    if draw(st.booleans()):
        values *= 10.0 ** (-40 * torch.rand(num_values, generator=generator, dtype=torch.float64))
    if draw(st.booleans()):
        values[torch.rand(num_values, generator=generator) < 0.3] = 0.0
    return values.to(torch.float32)


def travel(name: str, values: Tensor) -> Tensor:
    """Encodes and decodes, and checks the length of the payload."""
    wire = wire_format(name)
    payload = wire.encode(values)
    assert payload.dtype == torch.uint8
    assert payload.shape == (wire.num_bytes(values.numel()),)
    decoded = wire.decode(payload, values.numel())
    assert decoded.dtype == torch.float32
    assert decoded.shape == values.shape
    return decoded


def block_maxima(values: Tensor) -> Tensor:
    """Returns for each value the largest size in its block."""
    padded = torch.nn.functional.pad(values.abs(), (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    return padded.amax(1, keepdim=True).expand_as(padded).reshape(-1)[: values.numel()]


def largest_errors(name: str, values: Tensor) -> Tensor:
    """Returns the error that a format may make at each value, in double precision."""
    exact = values.abs().double()
    match name:
        case "fp32":
            return torch.zeros_like(exact)
        case "fp16":  # eleven bits, and below 2**-14 of the largest value steps of 2**-24 of it
            return exact * (2.0**-11 + ROUNDING) + exact.max().clamp_min(1e-30) * 2.0**-25
        case "bf16":  # eight bits, and below 2**-126 of the largest value steps of 2**-133 of it
            return exact * (2.0**-8 + ROUNDING) + exact.max().clamp_min(1e-30) * 2.0**-133
        case _:
            steps = {"int8": 127, "int4": 7}[name]
            return block_maxima(values).double().clamp_min(1e-30) * (0.5 / steps + 2 * ROUNDING)


@pytest.mark.parametrize("name", FORMATS)
@given(values=tensors())
def test_values_come_back_within_the_error_of_their_format(name, values):
    errors = (travel(name, values).double() - values.double()).abs()
    assert (errors <= largest_errors(name, values) + (name != "fp32") * SMALLEST_STEP).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("num_values", [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_zeros_stay_zeros(name, num_values):
    assert not travel(name, torch.zeros(num_values)).any()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 1.0, 1e-20])
def test_a_value_alone_comes_back_nearly_exactly(name, value):
    torch.testing.assert_close(travel(name, torch.tensor([value])), torch.tensor([value]), atol=0, rtol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", NOT_FINITE)
def test_a_value_that_is_not_finite_does_not_come_back_finite(name, bad):
    values = torch.ones(BLOCK + 5)
    values[3] = bad
    assert not travel(name, values)[3].isfinite()


@pytest.mark.parametrize("name", FORMATS)
def test_encoding_changes_no_value(name):
    values = torch.randn(2 * BLOCK + 7, generator=torch.Generator().manual_seed(1))
    before = values.clone()
    travel(name, values)
    assert torch.equal(values, before)


@pytest.mark.parametrize("name", FORMATS)
def test_payloads_can_be_read_as_rows_of_a_table(name):
    """As they arrive: a row begins anywhere in memory, and scales need an aligned place."""
    generator = torch.Generator().manual_seed(2)
    wire = wire_format(name)
    sent = [torch.randn(BLOCK + 3, generator=generator) for _ in range(3)]
    table = torch.stack([wire.encode(values) for values in sent])
    for row, values in zip(table, sent, strict=True):
        assert torch.equal(wire.decode(row, values.numel()), travel(name, values))


@pytest.mark.parametrize("name", FORMATS)
def test_a_part_of_a_larger_tensor_can_be_sent(name):
    whole = torch.randn(4 * BLOCK, generator=torch.Generator().manual_seed(3))
    part = whole[BLOCK : 2 * BLOCK + 11]
    assert torch.equal(travel(name, part), travel(name, part.clone()))


@pytest.mark.parametrize(
    ("name", "share"), [("fp32", 1.0), ("fp16", 0.5), ("bf16", 0.5), ("int8", 0.25), ("int4", 0.125)]
)
def test_a_large_payload_has_as_few_bytes_as_its_format_promises(name, share):
    num_values = 1_000_000
    assert wire_format(name).num_bytes(num_values) == pytest.approx(4 * num_values * share, rel=0.04)


@pytest.mark.parametrize("name", FORMATS)
def test_many_values_are_encoded_as_few_are(name):
    """Pieces of memory that are encoded one after the other have the same bytes as each of them alone."""
    values = torch.randn(1024 * BLOCK * 2 + 3 * BLOCK + 5, generator=torch.Generator().manual_seed(4))
    values[::BLOCK] = 9.0  # the largest of all in every block, so that formats with one scale for all agree too
    found = travel(name, values)
    for begin in (0, 1024 * BLOCK, 2048 * BLOCK, 2050 * BLOCK):
        part = slice(begin, begin + 2 * BLOCK)
        assert torch.equal(found[part], travel(name, values[part]))


def test_only_whole_numbers_need_what_they_lost_to_be_sent_later():
    assert [name for name in FORMATS if wire_format(name).loses_much] == ["int8", "int4"]


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="fp8"):
        wire_format("fp8")
