"""Every text of the page, by language. Data only: a word that is missing in a language falls back to English."""

from __future__ import annotations

import os
from typing import Any

TEXT: dict[str, dict[str, str]] = {
    "en": {
        "title": "H3 Studio",
        "prompt": "Prompt",
        "prompt_hint": "What should the film show, and what should it sound like?",
        "try": "Try",
        "size": "Size",
        "frames": "Frames",
        "steps": "Steps",
        "seed": "Seed",
        "seed_hint": "random",
        "more": "More settings",
        "model": "Model",
        "precision": "Precision",
        "precision_help": "exact is slowest, int8 fastest.",
        "residency": "Weights",
        "residency_help": "Kept in memory, streamed from disk, or whatever is best here.",
        "threads": "Threads",
        "threads_hint": "every physical core",
        "guidance": "Guidance",
        "guidance_help": "How strongly the film follows the prompt. Doubles the time.",
        "guidance_hint": "off",
        "negative_prompt": "Not in the film",
        "negative_prompt_help": "Only with guidance.",
        "generate": "Generate",
        "cancel": "Cancel",
        "stopping": "Stopping …",
        "save": "Save film",
        "plan": "{seconds} of film in about {time}, {memory} of memory. It fits.",
        "plan_guess": "{seconds} of film in about {time} (a guess until the first run), {memory} of memory. It fits.",
        "added": "Added to the queue.",
        "empty_title": "No film yet",
        "empty_text": "Describe one and press Generate. Films appear here and in {folder}.",
        "queue": "Queue",
        "films": "Films",
        "waiting": "Waiting",
        "waiting_elsewhere": "Another h3 command is using the engine; it goes on here afterwards.",
        "starting": "Starting",
        "phase_load": "Loading the weights",
        "phase_text": "Reading the prompt",
        "phase_adaln": "Preparing the time table",
        "phase_denoise": "Denoising",
        "phase_audio": "Decoding the sound",
        "phase_video": "Decoding the pictures",
        "phase_mux": "Writing the film",
        "step": "step {step} of {steps}",
        "left": "{time} left",
        "failed": "It failed",
        "interrupted": "It was interrupted",
        "gone": "The file is no longer there: {path}",
        "facts": "{size} · {seconds} · {steps} steps · {precision} · seed {seed}",
        "made_in": "made in {time}",
        "open": "Show",
        "machine": "{cpu}, {isa}, {threads} threads, version {version}",
        "engine_starting": "engine starting",
        "recipe": "Keep the recipe",
        "recipe_help": "The film, and a file beside it, says how it was made.",
        "recall": "Settings from a film …",
        "recalled": "The settings of that file are in the form.",
        "tab_text": "Create",
        "tab_gallery": "Gallery",
        "retry": "Try again",
        "pause": "Pause",
        "go_on": "Go on",
        "paused": "Paused: no waiting film starts until you go on.",
        "sooner": "Sooner",
        "gallery_empty": "Finished films are kept here.",
        "again": "Same again",
        "new_seed": "New seed",
        "use": "Use its settings",
        "compare": "Compare with …",
        "compare_stop": "Do not compare",
        "compare_pick": "Choose the film to compare with.",
        "compare_end": "Back to one film",
        "delete": "Delete",
        "delete_sure": "Delete for good?",
        "close": "Close",
        "more_films": "Show {count} more",
        "added_as": "Added to the queue as job {job}.",
        "file": "File",
        "time_spent": "Made in {time}",
        "peak": "{memory} of memory",
        "step_only": "Step {step}",
        "units": "s|min|h",
    },
    "zh": {
        "title": "H3 工作室",
        "prompt": "描述",
        "prompt_hint": "影片里有什么画面？听起来怎样？",
        "try": "试试",
        "size": "尺寸",
        "frames": "帧数",
        "steps": "步数",
        "seed": "种子",
        "seed_hint": "随机",
        "more": "更多设置",
        "model": "模型",
        "precision": "精度",
        "precision_help": "exact 最慢，int8 最快。",
        "residency": "权重",
        "residency_help": "常驻内存、从磁盘读取，或自动选择。",
        "threads": "线程",
        "threads_hint": "全部物理核心",
        "guidance": "引导",
        "guidance_help": "影片贴合描述的程度。开启后耗时加倍。",
        "guidance_hint": "关闭",
        "negative_prompt": "不要出现",
        "negative_prompt_help": "仅在开启引导时有效。",
        "generate": "生成",
        "cancel": "取消",
        "stopping": "正在停止…",
        "save": "保存影片",
        "plan": "{seconds}影片，约需{time}，内存 {memory}，可以运行。",
        "plan_guess": "{seconds}影片，约需{time}（首次运行前为估计），内存 {memory}，可以运行。",
        "added": "已加入队列。",
        "empty_title": "还没有影片",
        "empty_text": "写下描述，按“生成”。影片会出现在这里和 {folder}。",
        "queue": "队列",
        "films": "影片",
        "waiting": "等待中",
        "waiting_elsewhere": "另一个 h3 命令正在使用引擎，结束后在这里继续。",
        "starting": "正在启动",
        "phase_load": "读取权重",
        "phase_text": "理解描述",
        "phase_adaln": "准备时间表",
        "phase_denoise": "去噪",
        "phase_audio": "解码声音",
        "phase_video": "解码画面",
        "phase_mux": "写入影片",
        "step": "第 {step} / {steps} 步",
        "left": "还需{time}",
        "failed": "失败了",
        "interrupted": "被中断了",
        "gone": "文件已不在：{path}",
        "facts": "{size} · {seconds} · {steps} 步 · {precision} · 种子 {seed}",
        "made_in": "用时{time}",
        "open": "查看",
        "machine": "{cpu}，{isa}，{threads} 线程，版本 {version}",
        "engine_starting": "引擎启动中",
        "recipe": "保留配方",
        "recipe_help": "影片和旁边的文件记录它是怎样做的。",
        "recall": "从影片读取设置…",
        "recalled": "已填入该文件的设置。",
        "tab_text": "创作",
        "tab_gallery": "影片库",
        "retry": "再试一次",
        "pause": "暂停",
        "go_on": "继续",
        "paused": "已暂停：在继续之前不会开始新的影片。",
        "sooner": "提前",
        "gallery_empty": "完成的影片会保存在这里。",
        "again": "再做一次",
        "new_seed": "换种子",
        "use": "使用它的设置",
        "compare": "对比…",
        "compare_stop": "不对比",
        "compare_pick": "请选择要对比的影片。",
        "compare_end": "只看一部",
        "delete": "删除",
        "delete_sure": "永久删除？",
        "close": "关闭",
        "more_films": "再显示 {count} 部",
        "added_as": "已加入队列，编号 {job}。",
        "file": "文件",
        "time_spent": "用时 {time}",
        "peak": "内存 {memory}",
        "step_only": "第 {step} 步",
        "units": "秒|分|小时",
    },
}


class Words:
    """The texts of one language: words("step", step=3, steps=20)."""

    def __init__(self, language: str | None = None):
        system = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
        self.language = language or ("zh" if system.startswith("zh") else "en")

    def __call__(self, name: str, **values: Any) -> str:
        text = TEXT[self.language].get(name, TEXT["en"][name])
        return text.format(**values) if values else text

    def has(self, name: str) -> bool:
        return name in TEXT["en"]

    def duration(self, seconds: float) -> str:
        """A time as people say it; page.js says it the same way while it counts down."""
        s, m, h = self("units").split("|")
        seconds = max(1, round(seconds))
        if seconds < 60:
            return f"{seconds} {s}"
        if seconds < 3600:
            return f"{seconds // 60} {m} {seconds % 60:02} {s}" if seconds < 600 else f"{round(seconds / 60)} {m}"
        return f"{seconds // 3600} {h} {seconds % 3600 // 60:02} {m}"

    def short(self, seconds: float) -> str:
        """A time that may be less than a second."""
        return f"{seconds:.1f} {self('units').split('|')[0]}" if seconds < 10 else self.duration(seconds)

    def film_seconds(self, frames: int) -> str:
        return f"{frames / 24:.1f} {self('units').split('|')[0]}"

    def memory(self, size_bytes: float) -> str:
        return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
