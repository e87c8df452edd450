import threading
import time
from concurrent.futures import wait

import pytest

from dragoman.serving import batching
from dragoman.serving.batching import BatchKind, QueueIsFullError, TranslationQueue
from dragoman.serving.served_models import ServedModel
from dragoman.translation.search import SearchSettings
from dragoman.translation.translator import Translation


class GatedTranslator:
    """Notes its batches, and waits before each until the test lets it go on."""

    def __init__(self) -> None:
        self.settings = SearchSettings()
        self.batches: list[list[str]] = []
        self.num_best: list[int] = []
        self.has_begun, self.may_go_on = threading.Semaphore(0), threading.Semaphore(0)

    def translate_lines(self, lines, settings):
        self.batches.append([line.text for line in lines])
        self.num_best.append(settings.num_best)
        self.has_begun.release()
        assert self.may_go_on.acquire(timeout=20)
        if any(line.text == "bad" for line in lines):
            raise RuntimeError("this line cannot be translated")
        return [[Translation(line.text.upper(), 0.0)] * settings.num_best for line in lines]

    def let_go(self, num_batches: int = 1_000) -> None:
        self.may_go_on.release(num_batches)


@pytest.fixture
def translator():
    return GatedTranslator()


@pytest.fixture
def kind(translator):
    return BatchKind(ServedModel("en", "de", translator, tokens=None))


@pytest.fixture
def queue(translator):
    queue = TranslationQueue(1, max_waiting=100)
    yield queue
    translator.let_go()
    queue.close()


def texts(pending) -> list[str]:
    return [best[0].text for best in pending.result.result(timeout=20)]


def occupy(queue, kind, translator) -> None:
    queue.submit(kind, ["first"])
    assert translator.has_begun.acquire(timeout=20)


def test_what_waits_at_the_same_time_is_one_batch(queue, kind, translator):
    occupy(queue, kind, translator)
    pending = [queue.submit(kind, [f"line {number}", "x"]) for number in range(5)]
    translator.let_go()
    assert [texts(each)[0] for each in pending] == [f"LINE {number}" for number in range(5)]
    assert [len(batch) for batch in translator.batches] == [1, 10]


def test_a_batch_is_bounded_in_lines_and_characters(queue, kind, translator):
    occupy(queue, kind, translator)
    pending = queue.submit(kind, ["a"] * 90 + ["b" * 4_000] * 3 + ["c" * 50_000])
    translator.let_go()
    assert len(texts(pending)) == 94
    assert max(map(len, translator.batches)) == batching.MAX_BATCH_LINES
    assert all(len("".join(batch)) <= 6_000 or len(batch) == 1 for batch in translator.batches)


def test_long_lines_make_small_batches(queue, kind, translator):
    occupy(queue, kind, translator)
    pending = queue.submit(kind, ["a b " * 125] * 8 + ["a" * 250] * 2)
    translator.let_go()
    assert len(texts(pending)) == 10
    assert [len(batch) for batch in translator.batches] == [1, 4, 4, 1, 1]


def test_a_long_request_lets_others_go_first(queue, kind, translator):
    occupy(queue, kind, translator)
    long = queue.submit(kind, ["long"] * 99)
    short = queue.submit(kind, ["short"])
    translator.let_go(3)
    assert texts(short) == ["SHORT"]
    assert not long.result.done() or len(translator.batches) == 3
    translator.let_go()
    assert len(texts(long)) == 99


def test_other_numbers_of_alternatives_wait_for_one_batch_at_most(queue, kind, translator):
    occupy(queue, kind, translator)
    many = [queue.submit(kind, ["plain"] * 33) for _ in range(3)]
    other = queue.submit(BatchKind(kind.model, num_best=3), ["other"])
    translator.let_go()
    assert len(other.result.result(timeout=20)[0]) == 3
    wait([each.result for each in many], timeout=20)
    assert sorted(translator.num_best) == [1, 1, 1, 3]


def test_more_alternatives_than_the_beam_make_it_wider(kind):
    settings = BatchKind(kind.model, num_best=7).search_settings()
    assert (settings.num_best, settings.beam_size) == (7, 7)


def test_a_full_queue_refuses_and_says_when_to_come_again(queue, kind, translator):
    occupy(queue, kind, translator)
    queue.submit(kind, ["waits"] * 150)  # one request may be larger than the room that is left
    with pytest.raises(QueueIsFullError) as refusal:
        queue.submit(kind, ["too much"])
    assert refusal.value.retry_seconds >= 1
    assert queue.num_waiting == 150


def test_cancelled_lines_are_not_translated(queue, kind, translator):
    occupy(queue, kind, translator)
    gone = queue.submit(kind, ["gone"])
    stays = queue.submit(kind, ["stays"])
    queue.cancel(gone)
    translator.let_go()
    assert texts(stays) == ["STAYS"]
    assert ["gone"] not in translator.batches
    assert "gone" not in translator.batches[-1]


def test_one_bad_request_does_not_spoil_the_batch(queue, kind, translator):
    occupy(queue, kind, translator)
    good, bad, last = (queue.submit(kind, [text]) for text in ("good", "bad", "last"))
    translator.let_go()
    assert (texts(good), texts(last)) == (["GOOD"], ["LAST"])
    with pytest.raises(RuntimeError):
        bad.result.result(timeout=20)


def test_closing_finishes_what_was_accepted(kind, translator):
    queue = TranslationQueue(2, max_waiting=1_000)
    pending = [queue.submit(kind, [str(number)] * 20) for number in range(20)]
    translator.let_go()
    queue.close()
    assert all(each.result.done() for each in pending)


def test_nothing_to_translate_is_done_at_once(queue, kind):
    assert queue.submit(kind, []).result.result(timeout=0) == []


def test_a_lonely_line_waits_for_milliseconds_only(queue, kind, translator):
    translator.let_go()
    begin = time.monotonic()
    texts(queue.submit(kind, ["alone"]))
    assert time.monotonic() - begin < 5
