"""The sentences h3-micro is told: English and Chinese templates, and several wordings for every attribute.

A template or wording is held out when its place in its list says so (`held_out_index`): the transformer never trains on
those. The text encoder's own corpus has all of them, as a language model knows more words than one film model has seen.
Slots: {s} the subject, {v} what it does, {g} the same as a participle, {p} where, {c} what the camera does.
"""

from __future__ import annotations

import numpy as np

from h3core.micro.world import Film, Shot

SHAPES_EN = {
    "ball": ("ball", "sphere", "round ball", "orb", "circle", "globe", "disc"),
    "box": ("box", "cube", "square", "block", "square box", "crate", "square block"),
    "triangle": ("triangle", "three-sided shape", "triangular shape", "pyramid", "wedge", "triangular block", "triangle shape"),
    "star": ("star", "five-pointed star", "star shape", "star figure", "pointed star", "starlet", "star with five points"),
}
COLOURS_EN = {
    "red": ("red", "scarlet", "bright red", "crimson", "ruby", "red-coloured", "vivid red"),
    "green": ("green", "emerald", "bright green", "lime", "jade", "green-coloured", "vivid green"),
    "blue": ("blue", "azure", "bright blue", "cobalt", "sapphire", "blue-coloured", "vivid blue"),
    "yellow": ("yellow", "golden", "bright yellow", "lemon", "amber", "yellow-coloured", "vivid yellow"),
    "purple": ("purple", "violet", "bright purple", "lilac", "amethyst", "purple-coloured", "vivid purple"),
    "white": ("white", "snow-white", "bright white", "ivory", "pearl", "white-coloured", "pure white"),
}
SIZES_EN = {
    "small": ("small", "little", "tiny", "miniature", "mini", "petite", "rather small"),
    "large": ("large", "big", "huge", "giant", "massive", "great", "rather large"),
}
PLACES_EN = {
    "night sky": (
        "in front of a night sky", "under a starry sky", "at night under the stars", "against the dark night sky",
        "before a sky full of stars", "in the starry night", "in front of the stars at night",
    ),
    "desert": (
        "in a desert", "in front of a desert", "among sand dunes", "against desert dunes", "over the sandy desert",
        "in a sandy wasteland", "in front of sand dunes",
    ),
    "grass field": (
        "in a grass field", "in front of a grass field", "on a green meadow", "over the grass", "in a sunny meadow",
        "against a grassy hill", "in front of a meadow",
    ),
    "grey studio": (
        "in a grey studio", "in front of a grey wall", "in a plain studio", "against a grey studio backdrop",
        "in a photo studio", "in an empty grey room", "in front of a studio wall",
    ),
}
MOTIONS_EN = {
    "moves right": (
        ("moves right", "moving right"), ("glides to the right", "gliding to the right"),
        ("travels from left to right", "travelling from left to right"), ("slides rightwards", "sliding rightwards"),
        ("drifts toward the right side", "drifting toward the right side"), ("heads right", "heading right"),
        ("crosses the frame from left to right", "crossing the frame from left to right"),
        ("moves to the right", "moving to the right"), ("slides to the right side", "sliding to the right side"),
    ),
    "moves left": (
        ("moves left", "moving left"), ("glides to the left", "gliding to the left"),
        ("travels from right to left", "travelling from right to left"), ("slides leftwards", "sliding leftwards"),
        ("drifts toward the left side", "drifting toward the left side"), ("heads left", "heading left"),
        ("crosses the frame from right to left", "crossing the frame from right to left"),
        ("moves to the left", "moving to the left"), ("slides to the left side", "sliding to the left side"),
    ),
    "moves up": (
        ("moves up", "moving up"), ("rises", "rising"), ("floats upwards", "floating upwards"), ("climbs", "climbing"),
        ("travels from bottom to top", "travelling from bottom to top"), ("lifts toward the top", "lifting toward the top"),
        ("goes up", "going up"), ("ascends", "ascending"), ("rises to the top", "rising to the top"),
    ),
    "moves down": (
        ("moves down", "moving down"), ("sinks", "sinking"), ("falls downwards", "falling downwards"),
        ("descends", "descending"), ("travels from top to bottom", "travelling from top to bottom"),
        ("drops toward the bottom", "dropping toward the bottom"), ("goes down", "going down"),
        ("comes down", "coming down"), ("sinks to the bottom", "sinking to the bottom"),
    ),
    "bounces": (
        ("bounces", "bouncing"), ("bounces up and down", "bouncing up and down"), ("hops", "hopping"),
        ("jumps up and down", "jumping up and down"), ("bounces off the floor", "bouncing off the floor"),
        ("keeps bouncing", "bouncing again and again"), ("springs up and down", "springing up and down"),
        ("hops up and down", "hopping up and down"),
    ),
    "spins": (
        ("spins", "spinning"), ("rotates", "rotating"), ("turns around", "turning around"), ("whirls", "whirling"),
        ("spins in place", "spinning in place"), ("revolves", "revolving"), ("turns on its axis", "turning on its axis"),
        ("rotates in place", "rotating in place"),
    ),
    "grows": (
        ("grows", "growing"), ("gets bigger", "getting bigger"), ("expands", "expanding"), ("swells", "swelling"),
        ("becomes larger", "becoming larger"), ("inflates", "inflating"), ("increases in size", "increasing in size"),
        ("grows bigger", "growing bigger"),
    ),
    "stays still": (
        ("stays still", "staying still"), ("does not move", "not moving"), ("rests", "resting"),
        ("stands motionless", "standing motionless"), ("remains in place", "remaining in place"),
        ("holds still", "holding still"), ("sits quietly", "sitting quietly"), ("stands still", "standing still"),
    ),
}
CAMERAS_EN = {
    "static": (
        "static camera", "the camera does not move", "locked-off shot", "fixed camera", "the shot is static",
        "the camera is fixed", "static shot",
    ),
    "pans left": (
        "the camera pans left", "pan left", "camera panning to the left", "the view sweeps left", "a slow pan to the left",
        "the camera turns left", "the camera pans to the left",
    ),
    "pans right": (
        "the camera pans right", "pan right", "camera panning to the right", "the view sweeps right",
        "a slow pan to the right", "the camera turns right", "the camera pans to the right",
    ),
    "pushes in": (
        "the camera pushes in", "push in", "zoom in", "the camera moves closer", "a slow push-in", "the camera dollies in",
        "the camera zooms in",
    ),
    "pulls back": (
        "the camera pulls back", "pull back", "zoom out", "the camera moves away", "a slow pull-back",
        "the camera dollies out", "the camera zooms out",
    ),
}
TEMPLATES_EN = (
    "{s} {v} {p}", "{p}, {s} {v}", "{s} is {g} {p}", "{s} {g} {p}", "{p} {s} is {g}", "{g} {p}: {s}",
    "a video of {s} {g} {p}", "a clip of {s} {g} {p}", "we see {s} {g} {p}", "{s} {p} {v}", "{s} {p}, {g}",
    "there is {s} {p}; it {v}", "{p} there is {s}, and it {v}", "{s} that {v} {p}", "an animation of {s} {g} {p}",
    "{p}, {s} that {v}", "short film: {s} {v} {p}", "a scene {p} with {s} {g}", "show {s} {g} {p}",
    "show me {s} that {v} {p}", "{s}. it {v} {p}", "{p}. {s}. it {v}", "{s}, {g}, {p}", "{p}, {g}, {s}",
    "{g}, {s} {p}", "look: {s} {v} {p}", "once upon a time {s} was {g} {p}", "the scene: {s} {p}. the action: it {v}",
    "{s} slowly {v} {p}", "{s} {v} calmly {p}", "simple animation, {s} {g}, {p}", "picture {s} {p}: it {v}",
    "imagine {s} {g} {p}", "in this clip, {s} {v} {p}", "in the video {s} is {g} {p}", "{s} just {v} {p}",
    "here {s} {v} {p}", "{p} you can see {s} {g}", "what happens: {s} {v} {p}", "footage of {s} {g} {p}",
    "a shot of {s} {p}, {g}", "a shot {p}: {s} {v}", "cartoon of {s} {g} {p}", "{s} {p} is {g}",
    "generate {s} {g} {p}", "make a video where {s} {v} {p}", "please show {s} {g} {p}", "I want {s} that {v} {p}",
    "{s} which is {g} {p}", "watch {s} {g} {p}", "nothing but {s} {g} {p}", "only {s} {p}, and it {v}",
    "{p}: {s} {g}", "{p} - {s} - {g}", "{s} - {g} - {p}", "everything happens {p}: {s} {v}",
    "{s} appears {p} and {v}", "a film in which {s} {v} {p}", "close look at {s} {g} {p}", "minimal scene: {s}, {g}, {p}",
    "we watch as {s} {v} {p}", "the clip shows {s} {p}; it is {g}", "{s} can be seen {g} {p}", "all the while {s} {v} {p}",
)  # fmt: skip
WITH_CAMERA_EN = (
    "{t}. {c}", "{c}. {t}", "{t}, {c}", "{c}: {t}", "{t}; {c}", "{t} ({c})", "{c}, {t}", "{t} while {c}",
)  # fmt: skip

SHAPES_ZH = {
    "ball": ("球", "圆球", "球体", "小球体", "圆形", "皮球", "圆形的球"),
    "box": ("方块", "盒子", "立方体", "方形", "箱子", "正方形", "方盒子"),
    "triangle": ("三角形", "三角", "三角块", "金字塔形", "三角锥", "三角形物体", "三角形状"),
    "star": ("星星", "五角星", "星形", "星状物", "五角形星星", "星", "五角的星星"),
}
COLOURS_ZH = {
    "red": ("红色的", "红", "鲜红的", "大红的", "赤色的", "红色", "鲜红色的"),
    "green": ("绿色的", "绿", "翠绿的", "碧绿的", "草绿的", "绿色", "翠绿色的"),
    "blue": ("蓝色的", "蓝", "湛蓝的", "天蓝的", "宝蓝的", "蓝色", "湛蓝色的"),
    "yellow": ("黄色的", "黄", "金黄的", "明黄的", "柠檬黄的", "黄色", "金黄色的"),
    "purple": ("紫色的", "紫", "深紫的", "淡紫的", "紫罗兰色的", "紫色", "深紫色的"),
    "white": ("白色的", "白", "雪白的", "洁白的", "纯白的", "白色", "雪白色的"),
}
SIZES_ZH = {
    "small": ("小", "小小的", "很小的", "微小的", "小型的", "迷你的", "比较小的"),
    "large": ("大", "大大的", "很大的", "巨大的", "大型的", "庞大的", "比较大的"),
}
PLACES_ZH = {
    "night sky": ("在夜空前", "在星空下", "在夜晚的星空中", "在黑夜里", "在满天星星的夜空下", "在夜色中", "在夜晚的天空前"),
    "desert": ("在沙漠里", "在沙漠中", "在沙丘之间", "在沙地上", "在荒漠里", "在大漠中", "在沙丘前"),
    "grass field": ("在草地上", "在草原上", "在绿色的草坪上", "在田野里", "在青草地上", "在草场上", "在绿草地前"),
    "grey studio": ("在灰色的摄影棚里", "在灰色的墙前", "在摄影棚中", "在灰色的房间里", "在空荡的影棚里", "在灰色背景前", "在灰色影棚中"),
}
MOTIONS_ZH = {
    "moves right": ("向右移动", "往右滑动", "从左向右移动", "朝右边飘去", "向右侧前进", "从左到右穿过画面", "往右移动", "向右边滑动"),
    "moves left": ("向左移动", "往左滑动", "从右向左移动", "朝左边飘去", "向左侧前进", "从右到左穿过画面", "往左移动", "向左边滑动"),
    "moves up": ("向上移动", "上升", "往上飘", "从下向上移动", "缓缓升起", "朝上方飞去", "往上移动", "向上升起"),
    "moves down": ("向下移动", "下降", "往下落", "从上向下移动", "缓缓下沉", "朝下方落去", "往下移动", "向下落去"),
    "bounces": ("弹跳", "上下弹跳", "跳来跳去", "不停地弹起", "蹦蹦跳跳", "在地上弹跳", "一直弹跳", "不停地弹跳"),
    "spins": ("旋转", "转动", "原地旋转", "打转", "绕轴转动", "转圈", "不停地旋转", "原地转动"),
    "grows": ("变大", "逐渐变大", "膨胀", "越来越大", "慢慢长大", "不断放大", "慢慢变大", "逐渐膨胀"),
    "stays still": ("静止不动", "保持不动", "停在原地", "一动不动", "静静地待着", "没有移动", "原地不动", "静静地停在原地"),
}
CAMERAS_ZH = {
    "static": ("镜头静止", "固定镜头", "摄像机不动", "镜头不动", "机位固定", "定镜头", "镜头固定"),
    "pans left": ("镜头向左摇", "镜头左移", "向左摇镜", "摄像机向左转", "画面向左扫过", "镜头缓缓左摇", "镜头往左摇"),
    "pans right": ("镜头向右摇", "镜头右移", "向右摇镜", "摄像机向右转", "画面向右扫过", "镜头缓缓右摇", "镜头往右摇"),
    "pushes in": ("镜头推近", "镜头推进", "推镜头", "摄像机靠近", "镜头拉近", "镜头缓慢推进", "镜头慢慢推近"),
    "pulls back": ("镜头拉远", "镜头后退", "拉镜头", "摄像机远离", "镜头缓慢拉远", "镜头向后拉", "镜头慢慢拉远"),
}
TEMPLATES_ZH = (
    "{s}{p}{v}", "{p}，{s}{v}", "{p}{s}{v}", "{s}{v}，{p}", "一段视频：{s}{p}{v}", "一段{s}{p}{v}的视频", "画面中{s}{p}{v}",
    "我们看到{s}{p}{v}", "{p}有{s}，它{v}", "有{s}{p}{v}", "{s}正{p}{v}", "{s}正在{v}，{p}", "动画：{s}{p}{v}",
    "请生成{s}{p}{v}的画面", "请展示{s}{p}{v}", "镜头里{s}{p}{v}", "{v}的{s}，{p}", "{p}，{v}的{s}", "短片：{p}，{s}{v}",
    "看，{s}{p}{v}", "{s}慢慢地{p}{v}", "{p}，只有{s}{v}", "{s}，{p}，{v}", "{p}，{s}，{v}", "{v}，{s}，{p}",
    "场景：{p}；主体：{s}；动作：{v}", "主体是{s}，{p}，它{v}", "想象{s}{p}{v}", "{s}出现{p}，然后{v}", "{s}一直{p}{v}",
    "{p}可以看到{s}{v}", "{s}就这样{p}{v}", "一个简单的动画，{s}{p}{v}", "视频里，{s}{p}{v}", "{p}，我们看到{s}正在{v}",
    "展示{p}{v}的{s}", "卡通风格，{s}{p}{v}", "这里{s}{p}{v}", "{s}单独{p}{v}", "做一个视频，{s}{p}{v}", "我想看{s}{p}{v}",
    "{p}，那里{s}{v}", "从头到尾{s}{p}{v}", "{s}{p}不断{v}", "电影画面，{s}{p}{v}", "{p}的{s}正在{v}", "{p}的{s}{v}",
    "画面：{p}，{s}{v}", "影片展示了{s}{p}{v}", "一个镜头：{s}{p}{v}", "{s}独自{v}，{p}", "{p}，{s}正{v}", "在这个短片里，{s}{p}{v}",
    "内容：{s}{v}，{p}", "只见{s}{p}{v}", "现在{s}{p}{v}", "{s}处于画面中，{p}，{v}", "{p}，一切都很安静，{s}{v}",
    "拍摄{s}{p}{v}", "{s}安静地{p}{v}", "极简画面，{s}，{v}，{p}", "观看{s}{p}{v}", "{s}会{p}{v}", "镜头前{s}{v}，{p}",
)  # fmt: skip
WITH_CAMERA_ZH = ("{t}，{c}", "{c}，{t}", "{t}。{c}", "{c}。{t}", "{t}；{c}", "{c}：{t}", "{t}（{c}）", "{t}，同时{c}")

TIMBRE_EN = {"ball": "a soft round tone", "box": "a hollow reedy tone", "triangle": "a bright buzzing tone", "star": "a glassy bell"}
SOUND_EN = {"bounces": "knocks on the floor", "spins": "a fluttering hum", "grows": "a swelling hum", "stays still": "near silence"}
FIELDS = "integrated_multimodal_description: {t}\noverall_soundscape: {o}\nnon_diegetic_music: None."


def held_out_index(index: int, count: int) -> bool:
    """Whether item `index` of a list of `count` is held out: every eighth template, the last wording of an attribute."""
    return index % 8 == 5 if count > 12 else index == count - 1


def choose(items: tuple, rng: np.random.Generator, split: str):
    """One item of the split: "train", "held out", or "all"."""
    count = len(items)
    kept = [i for i in range(count) if split == "all" or held_out_index(i, count) == (split == "held out")]
    return items[kept[int(rng.integers(len(kept)))]]


def _subject_en(shot: Shot, rng: np.random.Generator, split: str, with_size: bool) -> str:
    words = [choose(COLOURS_EN[shot.colour], rng, split), choose(SHAPES_EN[shot.shape], rng, split)]
    if with_size:
        words.insert(0, choose(SIZES_EN[shot.size], rng, split))
    article = "the" if rng.random() < 0.15 else "an" if words[0][0] in "aeiou" else "a"
    return " ".join([article, *words])


def _sentence_en(shot: Shot, rng: np.random.Generator, split: str, with_size: bool, with_camera: bool) -> str:
    verb, participle = choose(MOTIONS_EN[shot.motion], rng, split)
    text = choose(TEMPLATES_EN, rng, split).format(
        s=_subject_en(shot, rng, split, with_size), v=verb, g=participle, p=choose(PLACES_EN[shot.place], rng, split)
    )
    if with_camera:
        text = choose(WITH_CAMERA_EN, rng, split).format(t=text, c=choose(CAMERAS_EN[shot.camera], rng, split))
    case = rng.random()
    if case < 0.55:
        return text[0].upper() + text[1:]
    return text.upper() if case > 0.98 else text


def _sentence_zh(shot: Shot, rng: np.random.Generator, split: str, with_size: bool, with_camera: bool) -> str:
    size = choose(SIZES_ZH[shot.size], rng, split) if with_size else ""
    colour = choose(COLOURS_ZH[shot.colour], rng, split)
    measure = ("一个", "一颗", "这个", "")[int(rng.choice(4, p=(0.6, 0.1, 0.15, 0.15)))]
    subject = measure + (size + colour if rng.random() < 0.7 else colour + size) + choose(SHAPES_ZH[shot.shape], rng, split)
    text = choose(TEMPLATES_ZH, rng, split).format(
        s=subject, v=choose(MOTIONS_ZH[shot.motion], rng, split), p=choose(PLACES_ZH[shot.place], rng, split)
    )
    if with_camera:
        text = choose(WITH_CAMERA_ZH, rng, split).format(t=text, c=choose(CAMERAS_ZH[shot.camera], rng, split))
    return text


def soundscape(shot: Shot) -> str:
    if shot.motion == "stays still":
        return "near silence."
    return f"{TIMBRE_EN[shot.shape]}, {SOUND_EN.get(shot.motion, 'gliding')}."


def describe(shot: Shot, rng: np.random.Generator, split: str = "train", language: str | None = None) -> str:
    """A prompt for one shot. split: "train", "held out" or "all"; language: "en", "zh" or None for either."""
    language = language or ("en" if rng.random() < 0.6 else "zh")
    with_size = rng.random() < 0.6
    with_camera = rng.random() < (0.2 if shot.camera == "static" else 1.0)
    if language == "zh":
        end = ("。", "", "！", ".")[int(rng.choice(4, p=(0.5, 0.4, 0.05, 0.05)))]
        return _sentence_zh(shot, rng, split, with_size, with_camera) + end
    text = _sentence_en(shot, rng, split, with_size, with_camera)
    if rng.random() < 0.08:
        return FIELDS.format(t=f"[Shot 1] {text}.", o=soundscape(shot))
    return text + (".", "", "!", "...")[int(rng.choice(4, p=(0.5, 0.42, 0.05, 0.03)))]


def describe_film(film: Film, rng: np.random.Generator, split: str = "train", language: str | None = None) -> str:
    """A prompt for a film; more than one shot takes the release's own form, with the time of every cut."""
    if len(film.shots) == 1:
        return describe(film.shots[0], rng, split, language)
    language = language or ("en" if rng.random() < 0.6 else "zh")
    sentence, stop = (_sentence_zh, "。") if language == "zh" else (_sentence_en, ".")
    parts, start = [], 0
    for i, shot in enumerate(film.shots):
        text = sentence(shot, rng, split, rng.random() < 0.6, shot.camera != "static") + stop
        minutes, seconds = divmod(start / 24, 60)
        parts.append(f"[Shot {i + 1}] " + (f"At {int(minutes):02d}:{seconds:06.3f}, " if i else "") + text)
        start += shot.frames
    text = " ".join(parts)
    if rng.random() < 0.3:
        return FIELDS.format(t=text, o=" ".join(soundscape(shot) for shot in film.shots))
    return text
