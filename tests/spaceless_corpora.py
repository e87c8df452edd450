"""English sentences with Japanese and Chinese translations, from a small grammar: text without spaces to train on."""

from itertools import product
from pathlib import Path
from random import Random

# English, Japanese, Chinese
TIMES = [
    ("today", "今日は", "今天"),
    ("yesterday", "昨日は", "昨天"),
    ("often", "よく", "经常"),
    ("here", "ここで", "在这里"),
]
ADJECTIVES = [
    ("red", "赤い", "红色的"),
    ("big", "大きい", "大的"),
    ("small", "小さい", "小的"),
    ("old", "古い", "旧的"),
    ("new", "新しい", "新的"),
    ("beautiful", "美しい", "美丽的"),
]
PEOPLE = [
    ("teacher", "先生", "老师"),
    ("student", "学生", "学生"),
    ("doctor", "医者", "医生"),
    ("child", "子供", "孩子"),
    ("friend", "友達", "朋友"),
    ("neighbour", "隣人", "邻居"),
]
THINGS = [
    ("book", "本", "书"),
    ("house", "家", "房子"),
    ("car", "車", "汽车"),
    ("picture", "絵", "画"),
    ("table", "机", "桌子"),
    ("garden", "庭", "花园"),
    ("letter", "手紙", "信"),
    ("city", "町", "城市"),
]
VERBS = [
    ("sees", "を見る", "看见"),
    ("likes", "が好きだ", "喜欢"),
    ("buys", "を買う", "买"),
    ("paints", "を描く", "画"),
    ("forgets", "を忘れる", "忘记"),
    ("sells", "を売る", "卖"),
]


def _translate(time, adjective, person, verb, other, thing) -> dict[str, str]:
    return {
        "en": f"{time[0].capitalize()} the {adjective[0]} {person[0]} {verb[0]} the {other[0]} {thing[0]}.",
        "ja": f"{time[1]}{adjective[1]}{person[1]}が{other[1]}{thing[1]}{verb[1]}。",
        "zh": f"{time[2]}{adjective[2]}{person[2]}{verb[2]}{other[2]}{thing[2]}。",
    }


def write_spaceless_corpus(folder: Path, language: str, num_pairs: int) -> tuple[Path, Path]:
    """Writes different sentences in English and in "ja" or "zh"; returns both files."""
    everything = list(product(TIMES, ADJECTIVES, PEOPLE, VERBS, ADJECTIVES, THINGS))
    sentences = [_translate(*words) for words in Random(1).sample(everything, num_pairs)]
    files = folder / "text.en", folder / f"text.{language}"
    for file, code in zip(files, ("en", language), strict=True):
        file.write_text("".join(f"{sentence[code]}\n" for sentence in sentences), encoding="utf-8")
    return files
