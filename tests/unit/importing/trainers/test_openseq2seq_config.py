from pprint import pformat

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.importing.trainers.openseq2seq_config import MAX_DEPTH, ConfigCollector, parse_printed_dict

PRINTED = """{'batch_size_per_gpu': 256,
 'data_layer': <class 'open_seq2seq.data.text2text.text2text.ParallelTextDataLayer'>,
 'data_layer_params': {'delimiter': ' ',
                       'shuffle': True,
                       'source_file': '/data/a {b} [c].tok'},
 'dtype': <dtype: 'float32'>,
 'initializer': <function <lambda> at 0x7f4899ef1ae8>,
 'lr_policy': <function transformer_policy at 0x7f4899ef1ae8>,
 'load_model': None,
 'optimizer_params': {'beta1': 0.9, 'epsilon': 1e-09},
 'shape': (2, -3),
 'weights': array([1., 2.])}"""


def test_a_dict_as_openseq2seq_prints_it():
    config = parse_printed_dict(PRINTED)
    assert config == {
        "batch_size_per_gpu": 256,
        "data_layer": "open_seq2seq.data.text2text.text2text.ParallelTextDataLayer",
        "data_layer_params": {"delimiter": " ", "shuffle": True, "source_file": "/data/a {b} [c].tok"},
        "dtype": "float32",
        "initializer": "<lambda>",
        "lr_policy": "transformer_policy",
        "load_model": None,
        "optimizer_params": {"beta1": 0.9, "epsilon": 1e-9},
        "shape": [2, -3],
        "weights": "array",
    }


def test_long_strings_in_parts_are_one_string():
    value = {"text": "a sentence that is too long for one line " * 5}
    assert "\n" in pformat(value, width=40)
    assert parse_printed_dict(pformat(value, width=40)) == value


def test_ordered_dicts_are_dicts():
    assert parse_printed_dict("{'a': OrderedDict([('b', 1), ('c', [2])])}") == {"a": {"b": 1, "c": [2]}}
    assert parse_printed_dict("{'a': defaultdict(<class 'int'>, {'b': 1})}") == {"a": {"b": 1}}


def test_text_that_is_cut_off_is_read_as_far_as_it_goes():
    cut = PRINTED[: PRINTED.index("'dtype'") + 3]
    assert parse_printed_dict(cut)["data_layer_params"]["shuffle"] is True


def test_numbers_that_are_none_stay_text():
    digits = "1" * 5000
    config = parse_printed_dict(f"{{'a': nan, 'b': 1e400, 'c': {digits}, 'd': -inf}}")
    assert config == {"a": "nan", "b": "1e400", "c": "1" * 300, "d": "-inf"}


def test_no_code_is_run_and_no_dict_is_no_error():
    assert parse_printed_dict("{'a': __import__('os').system('false')}")["a"] == "__import__"
    assert parse_printed_dict("nothing here") == parse_printed_dict("") == {}


def test_depth_is_bounded():
    deep = parse_printed_dict("{'a': " * 5000)
    for _ in range(MAX_DEPTH - 1):
        deep = deep["a"]
    assert deep == {"a": None}


def test_quotes_that_never_close_take_no_time():
    assert isinstance(parse_printed_dict("{'a': " + "'\\" * 100_000), dict)


def collect(lines):
    collector = ConfigCollector()
    for number, line in enumerate(lines):
        collector.add(line)
        if not collector.is_open:
            return collector.parse(), number
    return collector.parse(), None


def test_lines_are_gathered_up_to_the_closing_bracket():
    lines = [*PRINTED.splitlines(), "{'other': 1}"]
    config, last = collect(lines)
    assert config["shape"] == [2, -3]
    assert last == len(lines) - 2


def test_lines_of_other_processes_are_passed_over():
    lines = PRINTED.splitlines()
    lines[3:3] = ["*** Building graph in Horovod rank: 3", "v100a:1:2 [0] NCCL INFO Ring {"]
    assert collect(lines)[0] == parse_printed_dict(PRINTED)


def test_lines_that_lost_their_first_space_still_belong():
    lines = [line.removeprefix(" ") for line in PRINTED.splitlines()]
    assert collect(lines)[0] == parse_printed_dict(PRINTED)


def test_a_dict_that_never_comes_is_not_waited_for():
    collector = ConfigCollector()
    for _ in range(60):
        collector.add("something else")
    assert not collector.is_open
    assert collector.parse() == {}


numbers = st.integers(-(2**50), 2**50) | st.floats(
    allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15
)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text("abc xyz{}[]()<>:,'\"\n\\▁", max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), values, max_size=4))
def test_whatever_python_prints_is_read_back(config):
    assert parse_printed_dict(pformat(config)) == config


@settings(max_examples=100, deadline=None)
@given(st.text("{}[]()<>:,'\"\\ \nabTrue1.e-", max_size=200))
def test_no_text_makes_it_fail(text):
    assert isinstance(parse_printed_dict("{" + text), dict)
