"""Corpora by name, against an HTTP server on this machine: recipes, interruptions, damage, and mtdata itself.

The real hosts are not asked. The index is in the form that `load_index` writes, with local addresses in it.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
from packing import pack_tgz, pack_zip
from program import dragoman_command, wait_until

from dragoman.corpus.recipes import FetchedDataset, get_recipe
from dragoman.corpus.recipes.fetching import cached_path
from dragoman.corpus.recipes.index import load_index, load_recipes
from dragoman.corpus.settings import PrepareSettings
from dragoman.run.errors import UserError
from dragoman.run.files import sha256

EUROPARL, CRAWL, NEWS, DEV, TEST = (dataset_id for _, dataset_id in load_recipes()["wmt16-en-de"].dataset_ids)


def text(language: str, what: str, num_lines: int) -> bytes:
    return "".join(f"{what} {number} auf {language} – grün\n" for number in range(num_lines)).encode()


def sgm(language: str, num_lines: int) -> bytes:
    segments = "".join(f'<seg id="{n}">R&amp;D  {n} {language}</seg>\n' for n in range(num_lines))
    return f'<srcset setid="newstest2014" srclang="any">\n<doc>\n<p>\n{segments}</p>\n</doc>\n</srcset>\n'.encode()


@dataclass
class Host:
    """The files of the server, its failures, and the requests it got."""

    address: str = ""
    contents: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """By path: after how many bytes the next responses end."""
    refused: set[str] = field(default_factory=set)
    held: dict[str, threading.Event] = field(default_factory=dict)
    """By path: half of the content is sent, and the rest after this event."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range header)"""

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"


def make_handler(host: Host) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, wanted = self.path[1:], self.headers.get("Range")
            host.requests.append((path, wanted))
            if path in host.refused or path not in host.contents:
                self.send_error(503 if path in host.refused else 404)
                return
            content, tag = host.contents[path], host.tags.get(path, '"1"')
            first = 0
            if wanted is not None and self.headers.get("If-Range") == tag:
                first = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if first else 200)
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - first))
            self.send_header("ETag", tag)
            self.end_headers()
            if path in host.held:
                self.wfile.write(content[first : len(content) // 2])
                host.held[path].wait(60)
                return
            cut = host.cuts[path].pop(0) if host.cuts.get(path) else None
            self.wfile.write(content[first:] if cut is None else content[first : first + cut])
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    with ThreadingHTTPServer(("127.0.0.1", 0), make_handler(host)) as server:
        host.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield host
        server.shutdown()
        thread.join(10)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTDATA", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


def entry(dataset_id: str, urls: list[str], filename: str, members: list[str], kind: str, columns=(0, 1)) -> dict:
    names = [filename] if len(urls) == 1 else [url.split("/")[-1] for url in urls]
    return {
        "id": dataset_id, "urls": urls, "filenames": names, "members": members, "format": kind, "columns": columns,
    }  # fmt: skip


def write_index(cache: Path, entries: list[dict]) -> None:
    """Puts the index where the program looks for it, so that it is not built from mtdata."""
    cache.mkdir(exist_ok=True)
    lines = [{"languages": {"en": "eng", "de": "deu", "bg": "bul"}}, *entries]
    path = cache / f"dragoman-index-1-of-mtdata-{version('mtdata')}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def wmt16(host: Host, cache: Path) -> Host:
    """The whole recipe as the real hosts serve it: two tgz, a Moses zip of OPUS, and one tgz for dev and test."""
    host.contents = {
        "europarl.tgz": pack_tgz(
            {
                "training/europarl-v7.cs-en.cs": text("cs", "Europarl", 10),
                "training/europarl-v7.de-en.de": text("de", "Europarl", 5_000),
                "training/europarl-v7.de-en.en": text("en", "Europarl", 5_000),
            }
        ),
        "crawl.tgz": pack_tgz(
            {"commoncrawl.de-en.de": text("de", "Web", 90), "commoncrawl.de-en.en": text("en", "Web", 90)}
        ),
        "de-en.txt.zip": pack_zip(
            {
                "README": b"Corpus",
                "LICENSE": b"",
                "News-Commentary.de-en.de": text("de", "News", 70),
                "News-Commentary.de-en.en": text("en", "News", 70),
                "News-Commentary.de-en.xml": b"<ids/>",
            }
        ),
        "dev.tgz": pack_tgz(
            {
                "dev/newstest2013.de": text("de", "Dev", 30),
                "dev/newstest2013.en": text("en", "Dev", 30),
                "dev/newstest2014-deen-src.de.sgm": sgm("de", 40),
                "dev/newstest2014-deen-ref.en.sgm": sgm("en", 40),
            }
        ),
    }
    members = {
        EUROPARL: ["training/europarl-v7.de-en.de", "training/europarl-v7.de-en.en"],
        CRAWL: ["commoncrawl.de-en.de", "commoncrawl.de-en.en"],
        DEV: ["dev/newstest2013.en", "dev/newstest2013.de"],
        TEST: ["dev/newstest2014-deen-src.de.sgm", "dev/newstest2014-deen-ref.en.sgm"],
    }
    write_index(
        cache,
        [
            entry(EUROPARL, [host.url("europarl.tgz")], "wmt13_europarl_v7.tgz", members[EUROPARL], "txt"),
            entry(CRAWL, [host.url("crawl.tgz")], "wmt13_parallel_commoncrawl.tgz", members[CRAWL], "txt"),
            entry(NEWS, [host.url("de-en.txt.zip")], "news_commentary.zip", ["*.de", "*.en"], "txt"),
            entry(DEV, [host.url("dev.tgz")], "wmt20dev.tgz", members[DEV], "txt"),
            entry(TEST, [host.url("dev.tgz")], "wmt20dev.tgz", members[TEST], "sgm"),
        ],
    )
    return host


def get(name: str, out: Path, **options: object) -> list[FetchedDataset]:
    return get_recipe(name, out, lambda _: None, lambda *_: None, **options)


def failure(name: str, out: Path) -> str:
    with pytest.raises(UserError) as caught:
        get(name, out)
    return str(caught.value)


def test_a_recipe_becomes_plain_text_and_a_config(wmt16: Host, tmp_path: Path):
    out, said, shown = tmp_path / "out", [], []
    parts = get_recipe("wmt16-en-de", out, said.append, lambda *progress: shown.append(progress))
    assert [(part.part, part.num_pairs) for part in parts] == [
        ("train", 5_000), ("train", 90), ("train", 70), ("dev", 30), ("test", 40)
    ]  # fmt: skip
    assert (out / "train.Statmt-europarl_wmt13-7.en").read_bytes() == text("en", "Europarl", 5_000)
    assert (out / "train.Statmt-europarl_wmt13-7.de").read_bytes() == text("de", "Europarl", 5_000)
    assert (out / "train.OPUS-news_commentary-v11.de").read_bytes() == text("de", "News", 70)
    assert (out / "dev.Statmt-newstest-2013.en").read_bytes() == text("en", "Dev", 30)
    assert (out / "test.Statmt-newstest_deen-2014.de").read_text().splitlines()[7] == "R&D 7 de"
    assert [path for path, _ in wmt16.requests] == ["europarl.tgz", "crawl.tgz", "de-en.txt.zip", "dev.tgz"]
    assert any(str(tmp_path / "cache") in line for line in said)
    size = len(wmt16.contents["europarl.tgz"]) // 1000
    assert ("europarl.tgz (kB)", size, size) in shown
    assert not list(out.glob(".*"))


def test_the_config_is_one_that_prepare_understands(wmt16: Host, tmp_path: Path):
    get("wmt16-en-de", tmp_path)
    settings = PrepareSettings.model_validate(tomllib.loads((tmp_path / "prepare.toml").read_text())["prepare"])
    assert settings.languages == "en-de"
    assert [corpus.name for corpus in settings.corpora] == [
        "Statmt-europarl_wmt13-7", "Statmt-commoncrawl_wmt13-1", "OPUS-news_commentary-v11"
    ]  # fmt: skip
    texts = [*settings.corpora, *settings.dev, *settings.test]
    assert len(texts) == 5
    assert all((tmp_path / path).is_file() and not path.is_absolute() for each in texts for path in each.paths)
    assert all(each.source.suffix == ".en" and each.target.suffix == ".de" for each in texts)


def test_the_record_holds_the_hash_of_every_file(wmt16: Host, tmp_path: Path, cache: Path):
    get("wmt16-en-de", tmp_path / "out")
    record = json.loads((tmp_path / "out" / "recipe.json").read_text())
    hashes = {file["name"]: file["sha256"] for part in record["parts"] for file in part["files"]}
    assert hashes == {path.name: sha256(path) for path in (tmp_path / "out").glob("*.*.*")}
    download = record["parts"][0]["downloads"][0]
    assert download["name"] == wmt16.url("europarl.tgz")
    assert download["num_bytes"] == len(wmt16.contents["europarl.tgz"])


def test_a_second_get_downloads_nothing_and_keeps_an_edited_config(wmt16: Host, tmp_path: Path):
    first = get("wmt16-en-de", tmp_path / "a")
    (tmp_path / "a" / "prepare.toml").write_text("# mine")
    wmt16.requests.clear()
    assert get("wmt16-en-de", tmp_path / "a") == first
    assert (tmp_path / "a" / "prepare.toml").read_text() == "# mine"
    get("wmt16-en-de", tmp_path / "b")  # from the cache
    assert wmt16.requests == []


def test_a_damaged_output_is_written_again_from_the_cache(wmt16: Host, tmp_path: Path):
    get("wmt16-en-de", tmp_path)
    wmt16.requests.clear()
    broken = tmp_path / "train.Statmt-commoncrawl_wmt13-1.de"
    broken.write_bytes(broken.read_bytes().replace(b"Web 5 ", b"Wob 5 "))
    get("wmt16-en-de", tmp_path)
    assert broken.read_bytes() == text("de", "Web", 90)
    assert wmt16.requests == []


def test_the_opposite_direction(wmt16: Host, tmp_path: Path):
    get("wmt16-en-de", tmp_path, languages=("deu", "eng"))
    settings = tomllib.loads((tmp_path / "prepare.toml").read_text())["prepare"]
    assert settings["languages"] == "de-en"
    assert settings["dev"] == [{"source": "dev.Statmt-newstest-2013.de", "target": "dev.Statmt-newstest-2013.en"}]
    assert (tmp_path / "dev.Statmt-newstest-2013.de").read_bytes() == text("de", "Dev", 30)


def test_a_folder_of_another_recipe_is_left_alone(wmt16: Host, tmp_path: Path):
    get("wmt16-en-de", tmp_path)
    assert "wmt16-en-de (en-de)" in failure(NEWS, tmp_path)


@pytest.mark.parametrize("record", ["", "[]", '{"name": "wmt16-en-de"}', '{"name": 1, "languages": 2, "parts": [{}]}'])
def test_a_record_of_another_program_is_left_alone(wmt16: Host, tmp_path: Path, record: str):
    (tmp_path / "recipe.json").write_text(record)
    assert "recipe.json was not written by dragoman" in failure("wmt16-en-de", tmp_path)
    assert wmt16.requests == []


def test_a_folder_that_cannot_be_written(wmt16: Host, tmp_path: Path):
    (tmp_path / "file").touch()
    assert "file/out cannot be written: a part of the path is a file" in failure(
        "wmt16-en-de", tmp_path / "file" / "out"
    )


def test_a_second_get_continues_an_interrupted_download(wmt16: Host, tmp_path: Path, cache: Path):
    wmt16.cuts = {"europarl.tgz": [4_000, 0]}  # the second connection brings nothing: we give up
    message = failure("wmt16-en-de", tmp_path / "out")
    assert EUROPARL in message
    assert wmt16.url("europarl.tgz") in message
    assert "run the same command again to continue" in message
    assert not list(cache.rglob("*._valid"))
    wmt16.requests.clear()
    get("wmt16-en-de", tmp_path / "out")
    assert wmt16.requests[0] == ("europarl.tgz", "bytes=4000-")
    assert (tmp_path / "out" / "train.Statmt-europarl_wmt13-7.en").read_bytes() == text("en", "Europarl", 5_000)
    assert not list(cache.rglob("*.partial*"))


def test_interruptions_are_retried_while_data_arrives(wmt16: Host, tmp_path: Path):
    wmt16.cuts = {"europarl.tgz": [1_000, 500, 2_500]}
    get("wmt16-en-de", tmp_path)
    ranges = [wanted for path, wanted in wmt16.requests if path == "europarl.tgz"]
    assert ranges == [None, "bytes=1000-", "bytes=1500-", "bytes=4000-"]


def test_a_changed_file_is_downloaded_from_its_beginning(wmt16: Host, tmp_path: Path):
    wmt16.cuts = {"crawl.tgz": [300, 0]}
    failure("wmt16-en-de", tmp_path)
    wmt16.contents["crawl.tgz"] = pack_tgz(
        {f"commoncrawl.de-en.{code}": text(code, "New", 95) for code in ("de", "en")}
    )
    wmt16.tags["crawl.tgz"] = '"2"'
    wmt16.requests.clear()
    get("wmt16-en-de", tmp_path)
    assert (tmp_path / "train.Statmt-commoncrawl_wmt13-1.de").read_bytes() == text("de", "New", 95)
    assert [path for path, _ in wmt16.requests] == ["crawl.tgz", "de-en.txt.zip", "dev.tgz"]  # Europarl was complete


def test_a_complete_download_that_was_not_yet_renamed_is_not_requested_again(wmt16: Host, tmp_path: Path, cache: Path):
    get("wmt16-en-de", tmp_path / "a")
    path = cached_path(cache, wmt16.url("crawl.tgz"), "wmt13_parallel_commoncrawl.tgz")
    path.with_name(f"{path.name}._valid").unlink()
    path.rename(f"{path}.partial")
    Path(f"{path}.partial.json").write_text(
        json.dumps({"version": '"1"', "num_bytes": len(wmt16.contents["crawl.tgz"])})
    )
    wmt16.requests.clear()
    get("wmt16-en-de", tmp_path / "b")
    assert wmt16.requests == []


def test_a_signal_ends_a_download_with_one_sentence_and_the_next_command_continues_it(
    wmt16: Host, tmp_path: Path, cache: Path
):
    host, out = wmt16, tmp_path / "out"
    host.held["europarl.tgz"] = threading.Event()
    out.mkdir()
    # As if killed before: nobody has this process number.
    (out / f".train.{2**22 + 1}.partial").write_bytes(b"half a file")
    command = dragoman_command("data", "get", "wmt16-en-de", "--out", out)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: partial_bytes(cache) > 0, "half of a download")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    host.held.pop("europarl.tgz").set()
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "dragoman: Stopped; run the same command again to continue where it stopped."
    assert "Traceback" not in errors
    assert not list(out.iterdir())
    get("wmt16-en-de", out)
    wanted = [ranges for path, ranges in host.requests if path == "europarl.tgz"]
    assert wanted[0] is None
    assert wanted[1] is not None
    assert wanted[1].startswith("bytes=")


def partial_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.rglob("*.tgz.partial"))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root to mount a small disk")
def test_a_download_that_does_not_fit_on_the_disk_is_not_begun(wmt16: Host, tmp_path: Path, cache: Path):
    host = wmt16
    host.contents["europarl.tgz"] = bytes(3 * 2**20)
    host_cache = cache / "127.0.0.1"
    host_cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(host_cache)], check=True)
    try:
        message = failure("wmt16-en-de", tmp_path / "out")
        num_bytes = partial_bytes(cache)
    finally:
        subprocess.run(["umount", "-l", str(host_cache)], check=True)
    assert "There is not enough space left for" in message
    assert "set MTDATA to a folder on another disk" in message
    assert num_bytes == 0


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def stored_zip(num_german_lines: int) -> bytes:
    return pack_zip({"N.de-en.de": text("de", "News", num_german_lines), "N.de-en.en": text("en", "News", 70)})


@pytest.mark.parametrize(
    ("path", "dataset", "damage"),
    [
        ("europarl.tgz", EUROPARL, flip),
        ("europarl.tgz", EUROPARL, lambda content: content[:-9]),
        ("europarl.tgz", EUROPARL, lambda _: b"<html>Please log in</html>"),
        ("crawl.tgz", CRAWL, lambda _: pack_tgz({"commoncrawl.de-en.de": b"one side only\n"})),
        ("de-en.txt.zip", NEWS, flip),
        ("de-en.txt.zip", NEWS, lambda content: content[:-30]),
        ("de-en.txt.zip", NEWS, lambda _: b""),
        ("de-en.txt.zip", NEWS, lambda _: stored_zip(num_german_lines=69)),
    ],
)
def test_a_damaged_download_is_refused_and_a_second_get_repairs_it(wmt16: Host, tmp_path: Path, path, dataset, damage):
    intact = wmt16.contents[path]
    wmt16.contents[path] = damage(intact)
    message = failure("wmt16-en-de", tmp_path)
    assert dataset in message
    assert wmt16.url(path) in message
    assert "damaged" in message
    assert not (tmp_path / "prepare.toml").exists()
    wmt16.contents[path] = intact
    get("wmt16-en-de", tmp_path)
    assert (tmp_path / "train.OPUS-news_commentary-v11.de").read_bytes() == text("de", "News", 70)


def test_unequal_sides_are_counted(wmt16: Host, tmp_path: Path):
    wmt16.contents["de-en.txt.zip"] = stored_zip(num_german_lines=69)
    assert "69 and 70 lines" in failure("wmt16-en-de", tmp_path)
    assert not list(tmp_path.glob("*news_commentary*"))


def test_a_host_that_refuses_or_does_not_exist(wmt16: Host, tmp_path: Path, cache: Path):
    wmt16.refused = {"dev.tgz"}
    message = failure("wmt16-en-de", tmp_path / "out")
    assert DEV in message
    assert "Service Unavailable" in message
    url = "http://127.0.0.1:9/x.zip"  # the discard port: nobody listens
    write_index(cache, [entry(NEWS, [url], "x.zip", ["*.de", "*.en"], "txt")])
    message = failure(NEWS, tmp_path / "other")
    assert NEWS in message
    assert url in message
    assert "refused" in message


def test_an_archive_cannot_write_outside(host: Host, tmp_path: Path, cache: Path):
    """Names outside the folder, links, and a name as a prefix of another are skipped, since nothing is unpacked."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, target in [("link", "/etc"), ("a.de", "/etc/passwd")]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
        for name in ("../../evil", "link/evil", f"{tmp_path}/evil", "a.de", "a.en"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"text\n"))
    host.contents["a.tgz"] = buffer.getvalue()
    write_index(cache, [entry("Any-a-1-deu-eng", [host.url("a.tgz")], "../../a.tgz", ["a.de", "a.en"], "txt")])
    get("Any-a-1-deu-eng", tmp_path / "out")
    assert (tmp_path / "out" / "train.Any-a-1.de").read_bytes() == b"text\n"
    assert not list(tmp_path.rglob("*evil*"))
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "out"}


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_a_table_by_its_id(host: Host, tmp_path: Path, cache: Path, ending, compress):
    host.contents["t"] = compress("x\tEins\tOne\nno columns\ny\tZw\u2028ei\tTwo \r\n".encode() + b"z\tDr\xe4\tThree")
    write_index(cache, [entry("Any-t-1-deu-eng", [host.url("t")], f"t.tsv.{ending}", [], "tsv", (1, 2))])
    (part,) = get("Any-t-1-deu-eng", tmp_path / "out")
    assert (part.num_pairs, part.num_skipped_rows, part.num_repaired_lines) == (3, 1, 1)
    assert (tmp_path / "out" / "train.Any-t-1.de").read_bytes() == "Eins\nZw\u2028ei\nDr\ufffd\n".encode()
    assert (tmp_path / "out" / "train.Any-t-1.en").read_bytes() == b"One\nTwo\nThree\n"
    assert tomllib.loads((tmp_path / "out" / "prepare.toml").read_text())["prepare"]["languages"] == "de-en"
    host.contents["t"] = compress(b"x" * 9_000)[:-1]
    assert "damaged" in failure_without_cache("Any-t-1-deu-eng", tmp_path, cache)


def failure_without_cache(name: str, folder: Path, cache: Path) -> str:
    for path in cache.rglob("*._valid"):
        path.unlink()
    return failure(name, folder / "again")


def test_translation_memories_are_copied_unchanged(host: Host, tmp_path: Path, cache: Path):
    host.contents["m.zip"] = pack_zip({"a/x.tmx": b"<tmx>1</tmx>", "a/y.tmx": b"<tmx>2</tmx>"})
    members = ["a/x.tmx", "a/y.tmx"]
    write_index(cache, [entry("Any-m-1-bul-deu", [host.url("m.zip")], "m.zip", members, "tmx")])
    get("Any-m-1-bul-deu", tmp_path / "out", languages=("de", "bg"))
    settings = PrepareSettings.model_validate(tomllib.loads((tmp_path / "out" / "prepare.toml").read_text())["prepare"])
    assert settings.languages == "de-bg"
    assert [(tmp_path / "out" / each.file).read_bytes() for each in settings.corpora] == [
        b"<tmx>1</tmx>", b"<tmx>2</tmx>"
    ]  # fmt: skip


def test_two_plain_files_by_their_addresses(host: Host, tmp_path: Path, cache: Path):
    host.contents = {"train.en": b"One\nTwo", "train.vi": b"M\xe1\xbb\x99t\nHai\n"}
    write_index(cache, [entry("Any-p-1-eng-vie", [host.url("train.en"), host.url("train.vi")], "", [], "txt")])
    (part,) = get("Any-p-1-eng-vie", tmp_path / "out")
    assert part.texts == (("train.Any-p-1.en", "train.Any-p-1.vie"),)
    assert (tmp_path / "out" / "train.Any-p-1.en").read_bytes() == b"One\nTwo\n"


# mtdata's cache without its index, which takes long to make and is not needed to download.
MTDATA_PROGRAM = """
import sys, types
import mtdata
from mtdata.entry import Entry
sys.modules["mtdata.index"] = types.SimpleNamespace(Entry=Entry)
from mtdata.cache import Cache
try:
    Cache(mtdata.cache_dir).get_local_path(sys.argv[1], filename=sys.argv[2])
except Exception as problem:
    sys.exit(type(problem).__name__)
"""


def run_mtdata(url: str, filename: str) -> int:
    command = [sys.executable, "-c", MTDATA_PROGRAM, url, filename]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def test_how_mtdata_itself_downloads(wmt16: Host, tmp_path: Path, cache: Path):
    """mtdata starts again after an interruption and accepts damage, so dragoman downloads files itself."""
    url = wmt16.url("europarl.tgz")
    wmt16.cuts = {"europarl.tgz": [4_000]}
    assert run_mtdata(url, "a.tgz") != 0
    wmt16.contents["europarl.tgz"] = flip(wmt16.contents["europarl.tgz"])
    assert run_mtdata(url, "a.tgz") == 0
    assert wmt16.requests == [("europarl.tgz", None)] * 2
    assert cached_path(cache, url, "a.tgz").with_name("a.tgz._valid").exists()
    wmt16.requests.clear()
    get(NEWS, tmp_path / "news")
    assert run_mtdata(wmt16.url("de-en.txt.zip"), "news_commentary.zip") == 0
    assert len(wmt16.requests) == 1


@pytest.mark.slow
def test_mtdata_knows_every_dataset_of_the_recipes(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch):
    (tmp_path / "mtdata_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    index = load_index(lambda _: None)
    ids = [dataset_id for recipe in load_recipes().values() for _, dataset_id in recipe.dataset_ids]
    assert [each for each in ids if (found := index.find(each)) is None or not found.is_readable] == []
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "ran").exists()  # mtdata runs such files of the current folder
    assert [path.suffix for path in index.path.parent.iterdir()] == [".jsonl"]  # no pickle
