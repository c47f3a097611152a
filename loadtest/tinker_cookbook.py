#!/usr/bin/env python3
"""The training loops of tinker-cookbook, unmodified, against a daemon of the demo model: supervised, rewards, DPO, distillation.

    python3 -m venv .venv && .venv/bin/pip install tinker-cookbook torch
    .venv/bin/python loadtest/tinker_cookbook.py

For each type of the base's weights it starts build/server/tandem, runs the loop of rewards in two runs of rank 4 and 16 side by
side, and prints the reward at the begin and at the end, the least and the greatest ratio of the first step's texts, and how many
sampled tokens had other log-probabilities in training than in sampling.  Then it runs the other three loops once.  Data are stories
that this file makes, and the tokenizer is the model's directory: nothing is fetched.
"""
import argparse
import asyncio
import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import runner

sys.path = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]  # this file's name is the package's

MODEL = runner.ROOT / "models/demo"
RENDERER = "role_colon"
NAMES, THINGS = ["Tom", "Lily", "Ben", "Sue", "Max", "Anna", "Sam", "Mia"], ["ball", "cat", "dog", "tree", "boat", "hat", "kite", "bird"]
QUESTIONS = [f"A story of {name} and a {thing}." for name in NAMES for thing in THINGS]


def story(question):
    name, thing = question.split()[3], question.split()[-1].rstrip(".")
    return f"{name} had a red {thing}. {name} was happy."


# ---- the loops: each runs in a process of its own, since they are made for one ---------------------------------------------------

def common(a):
    return {"model_name": str(MODEL), "recipe_name": "tandem", "log_path": str(a.log), "base_url": a.url, "lora_rank": a.rank, "renderer_name": RENDERER,
            "eval_every": 0}


def chat(batch):
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
    return ChatDatasetBuilderCommonConfig(model_name_for_tokenizer=str(MODEL), renderer_name=RENDERER, max_length=256, batch_size=batch)


def supervised(a):
    from tinker_cookbook.supervised import train
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    file = Path(a.log).with_suffix(".jsonl")
    file.write_text("".join(json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": story(q)}]}) + "\n" for q in QUESTIONS))
    data = FromConversationFileBuilder(file_path=str(file), common_config=chat(8))
    asyncio.run(train.main(train.Config(**common(a), dataset_builder=data, learning_rate=1e-3, num_epochs=1, save_every=0)))
    return "train_mean_nll"


def rewards_data(question_env, groups, group):
    """A dataset of the questions, as the builder that the loop wants."""
    import chz
    from tinker_cookbook import renderers
    from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
    from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    class Data(RLDataset):
        def __init__(self, renderer):
            self.renderer = renderer

        def get_batch(self, index):
            some = [QUESTIONS[(index * groups + i) * 5 % len(QUESTIONS)] for i in range(groups)]
            return [ProblemGroupBuilder(env_thunk=partial(question_env, q, self.renderer), num_envs=group) for q in some]

        def __len__(self):
            return 1000

    @chz.chz
    class Builder(RLDatasetBuilder):
        async def __call__(self):
            return Data(renderers.get_renderer(RENDERER, get_tokenizer(str(MODEL)))), None

    return Builder()


def rewards(a):
    """GRPO's: advantages centred within groups, importance sampling.  A text that speaks of something red is rewarded."""
    from tinker_cookbook.rl import train
    from tinker_cookbook.rl.problem_env import ProblemEnv

    class Story(ProblemEnv):
        def __init__(self, question, renderer):
            super().__init__(renderer, format_coef=0.0)
            self.question = question

        def get_question(self):
            return self.question

        def check_answer(self, text):
            return "red" in text or "happy" in text

        def check_format(self, text):
            return True

        def get_reference_answer(self):
            return "red or happy"

    config = train.Config(**common(a), dataset_builder=rewards_data(Story, 8, 8), learning_rate=3e-3, max_tokens=32, max_steps=a.steps,
                          save_every=0, remove_constant_reward_groups=True)
    asyncio.run(train.main(config))
    return "env/all/reward/total"


def dpo(a):
    import datasets
    import chz
    from tinker_cookbook.preference import train_dpo
    from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
    from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
    from tinker_cookbook.preference.types import Comparison, LabeledComparison

    @chz.chz
    class Pairs(ComparisonDatasetBuilder):
        def get_train_and_test_datasets(self):
            return datasets.Dataset.from_list([{"question": q} for q in QUESTIONS]), None

        def example_to_labeled_comparison(self, row):
            def said(text):
                return [{"role": "assistant", "content": text}]

            q = row["question"]
            pair = Comparison(prompt_conversation=[{"role": "user", "content": q}], completion_A=said(story(q)), completion_B=said("It was a big day."))
            return LabeledComparison(comparison=pair, label="A")

    data = DPODatasetBuilderFromComparisons(comparison_builder=Pairs(), common_config=chat(8))
    train_dpo.main(train_dpo.Config(**common(a), dataset_builder=data, learning_rate=1e-3, num_epochs=2, dpo_beta=0.1, save_every=0))
    return "dpo_loss"


def distillation(a):
    """The teacher is the base with the weights that the supervised loop saved; the figure is its divergence."""
    from tinker_cookbook.distillation import train_on_policy
    from tinker_cookbook.distillation.datasets import DistillationDatasetConfig, PromptOnlyEnv, TeacherConfig
    data = DistillationDatasetConfig(dataset_builder=rewards_data(PromptOnlyEnv, 8, 4), groups_per_batch=8,
                                     teacher_config=TeacherConfig(base_model=str(MODEL), load_checkpoint_path=a.teacher))
    config = train_on_policy.Config(**common(a), dataset_configs=[data], learning_rate=1e-3, max_tokens=32, max_steps=2 * a.steps, save_every=0)
    asyncio.run(train_on_policy.main(config))
    return "teacher_kl"


LOOPS = {f.__name__: f for f in (supervised, rewards, dpo, distillation)}


def watch():
    """Notes the metrics of each forward_backward, which the loops do not log; they see what they would without."""
    import tinker
    outputs, plain = [], tinker.TrainingClient.forward_backward_async

    async def noted(self, *args, **kw):
        future = await plain(self, *args, **kw)
        result = future.result_async

        async def result_async(*args, **kw):
            output = await result(*args, **kw)
            outputs.append(dict(output.metrics))
            return output
        future.result_async = result_async
        return future

    tinker.TrainingClient.forward_backward_async = noted
    return outputs


def work(a):
    logging.disable(logging.WARNING)
    os.environ.setdefault("TINKER_API_KEY", "tml-any")
    outputs = watch()
    name = LOOPS[a.loop](a)
    rows = [json.loads(line) for line in (Path(a.log) / "metrics.jsonl").read_text().splitlines()]
    values = [row[name] for row in rows if name in row]
    saved = [json.loads(line) for line in (Path(a.log) / "checkpoints.jsonl").read_text().splitlines()]
    answer = {"figure": name, "values": values, "saved": saved[-1].get("sampler_path") if saved else None}
    if outputs and "ratio:min" in outputs[0]:
        answer["first"] = [outputs[0]["ratio:min"], outputs[0]["ratio:max"]]
    Path(a.answer).write_text(json.dumps(answer))


# ---- the daemon, and what is printed ---------------------------------------------------------------------------------------------

def begin(a, url, loop, rank, folder, teacher=None):
    log, answer = folder / f"{loop}-{rank}", folder / f"{loop}-{rank}.json"
    command = [sys.executable, __file__, "--url", url, "--loop", loop, "--rank", rank, "--steps", a.steps, "--log", log, "--answer", answer]
    out = open(folder / f"{loop}-{rank}.out", "w")
    process = subprocess.Popen([*map(str, command), *(["--teacher", teacher] if teacher else [])], stdout=out, stderr=subprocess.STDOUT,
                               env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TINKER_TELEMETRY": "0"})
    return process, answer, Path(out.name)


def end(started):
    process, answer, out = started
    if process.wait():
        runner.fail(f"{out.stem} failed:\n" + "".join(out.read_text().splitlines(keepends=True)[-40:]))
    return json.loads(answer.read_text())


def counts(url):
    text = runner.get(url + "/metrics")[1].splitlines()
    return [sum(float(line.split()[-1]) for line in text if line.startswith(f"tandem_train_sampled_{name}_total")) for name in ("tokens", "mismatches")]


def mean(values):
    return sum(values) / len(values)


def ends(answer):
    """Of the first step, and of the last three."""
    return answer["values"][0], mean(answer["values"][-3:])


@contextlib.contextmanager
def serve(a, flags, model=MODEL):
    """A daemon whose model has the name that the loops take for the tokenizer's directory, and a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if model is None:
            model = wide(folder / "f32")
        daemon = runner.Process([runner.BUILD / "server/tandem", "serve", "--model", model, "--served-model-name", MODEL, "--port", "0",
                                 "--threads", a.threads, "--data-dir", folder / "data", *flags])
        try:
            yield daemon.url, folder
        finally:
            daemon.stop()


def wide(folder):
    """The model with weights of f32."""
    from safetensors.torch import load_file, save_file
    shutil.copytree(MODEL, folder)
    save_file({k: v.float() for k, v in load_file(MODEL / "model.safetensors").items()}, folder / "model.safetensors")
    return folder


BASES = {"f32": ([], None), "bf16": ([], MODEL), "int8": (["--quantize", "int8"], MODEL), "int4": (["--quantize", "int4"], MODEL)}


def measure(a, base):
    with serve(a, *BASES[base]) as (url, folder):
        started = [begin(a, url, "rewards", rank, folder) for rank in (4, 16)]
        for rank, answer in zip((4, 16), [end(s) for s in started]):
            first, last = ends(answer)
            low, high = answer["first"]
            print(f"{base:5} rank {rank:2}  reward {first:.3f} -> {last:.3f}  first ratio {low!r} to {high!r}", flush=True)
        tokens, wrong = counts(url)
        print(f"{base:5} {tokens:.0f} sampled tokens, {wrong:.0f} with other log-probabilities", flush=True)


def others(a):
    with serve(a, []) as (url, folder):
        teacher = None
        for loop in "supervised", "dpo", "distillation":
            answer = end(begin(a, url, loop, 16, folder, teacher))
            teacher = teacher or answer["saved"]
            first, last = ends(answer)
            print(f"{loop:12} {answer['figure']} {first:.4f} -> {last:.4f} in {len(answer['values'])} steps", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--bases", default=",".join(BASES), help="types of the base's weights, separated by commas")
    p.add_argument("--steps", type=int, default=15, help="of the loop of rewards; that of distillation makes twice as many")
    p.add_argument("--threads", type=int, default=2)
    for hidden in "url", "loop", "log", "answer", "teacher":
        p.add_argument("--" + hidden, help=argparse.SUPPRESS)
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.loop:
        work(a)
        return
    for base in filter(None, a.bases.split(",")):
        measure(a, base)
    others(a)


if __name__ == "__main__":
    main()
