"""Prompts of the kinds that people ask, from two public repositories. It reads checkouts of

    openai/grade-school-math   at 3101c7d5072418e28b9008a6636bde82a006892c (MIT)
    yizhongw/self-instruct     at 0b26ccaa415992100fa32df62d41b994cf928e23 (Apache-2.0)

and writes, a prompt a line, instructions.jsonl: 427 tasks of the second; more.jsonl: 1,250 of arithmetic, summaries,
and questions with and without a passage, of the first one's training split and of the second's part of T0's. None of
Spec-Bench's prompts is among them: its arithmetic is of the test split, its articles and passages are other ones.

    python prompts.py --grade-school-math ./grade-school-math --self-instruct ./self-instruct --out .
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ARITHMETIC = 350
SHORTEST, LONGEST = 20, 4000  # characters of a prompt, both excluded
KINDS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (
        250,
        (
            *("cnn_dailymail_3_0_0_news_summary", "cnn_dailymail_3_0_0_sum_in_brief", "xsum_summarize_DOC"),
            *("multi_news_summarize", "samsum_Summarize_"),
        ),
    ),
    (
        300,
        (
            *("kilt_tasks_hotpotqa_straighforward_qa", "sciq_Direct_Question_Closed_Book_"),
            *("wiki_qa_automatic_system", "trec_fine_grained_open"),
        ),
    ),
    (
        250,
        (
            *("adversarial_qa_droberta_question_context_answer", "adversarial_qa_dbidaf_based_on"),
            *("quoref_Found_Context_Online", "quoref_Answer_Friend_Question"),
            *("duorc_SelfRC_question_answering", "ropes_plain_bottom_hint"),
        ),
    ),
    (
        100,
        (
            *("common_gen_topic_to_sentence", "gigaword_write_an_article", "wiki_bio_who"),
            *("cosmos_qa_only_question_answer", "duorc_SelfRC_build_story_around_qa"),
            *("glue_mrpc_generate_paraphrase", "social_i_qa_I_was_wondering"),
        ),
    ),
)
"""So many of each kind, from these templates."""


INSTRUCTIONS = "data/seed_tasks.jsonl", "human_eval/user_oriented_instructions.jsonl"


def objects(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def lines_of(file: Path, field: str) -> list[str]:
    return [each[field] for each in objects(file)]


def instructions(self_instruct: Path) -> list[dict[str, str]]:
    tasks = [task for name in INSTRUCTIONS for task in objects(self_instruct / name)]
    return [{"id": t["id"], "instruction": t["instruction"], "input": t["instances"][0]["input"]} for t in tasks]


def prompts(grade_school_math: Path, self_instruct: Path) -> list[str]:
    chance = random.Random(0)
    asked = lines_of(grade_school_math / "grade_school_math/data/train.jsonl", "question")
    found = chance.sample(asked, ARITHMETIC)
    for count, templates in KINDS:
        found += picked(self_instruct / "data/finetuning/t0_train_50k/data_per_template", templates, count, chance)
    return found


def picked(folder: Path, templates: Sequence[str], count: int, chance: random.Random) -> list[str]:
    pool = [prompt for name in templates for prompt in lines_of(folder / f"{name}.jsonl", "prompt")]
    pool = [prompt for prompt in dict.fromkeys(pool) if SHORTEST < len(prompt) < LONGEST]
    chance.shuffle(pool)
    return pool[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--grade-school-math", "--self-instruct", "--out"):
        parser.add_argument(name, type=Path, required=True)
    given = parser.parse_args()
    more = [json.dumps({"prompt": prompt}) for prompt in prompts(given.grade_school_math, given.self_instruct)]
    tasks = [json.dumps(task, ensure_ascii=False) for task in instructions(given.self_instruct)]
    for name, lines in (("instructions.jsonl", tasks), ("more.jsonl", more)):
        (given.out / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
