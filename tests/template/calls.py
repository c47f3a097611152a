"""Templates that take tool calls in different forms, conversations as an API's client sends them, and model directories
with several templates.

A template's first two words say what users of transformers hand it, for transformers passes messages on as they are:
NULL, the content of a message with calls when there is none (None or ""); EMPTY, the same where the client sent "";
ARGUMENTS, "object" or "text". tandem is sent what the API's clients send, and has to find that form itself.
"""
import copy
import json

from conversations import TOOLS, assistant, system, tool, user

OBJECT, TEXT = "object", "text"

TURNS = """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}
{% elif m['role'] == 'system' %}<|system|>{{ m['content'] }}
{% elif m['role'] == 'tool' %}<|result|>{{ m['content'] }}
{% elif m['role'] == 'assistant' %}ASSISTANT{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
WITH_TOOLS = "{% if tools %}<|tools|>{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
KEYWORDS = """{% if limit is defined %}<|limit|>{{ limit }} {{ limit + 1 }} {{ limit | tojson }}
{% endif %}{% if numbers is defined %}<|numbers|>{{ numbers }} {{ numbers | tojson }}{% for n in numbers %} {{ n }}:{{ n is integer }}:{{ n is float }}{% endfor %}

{% endif %}"""


def template(assistant_turn, head=WITH_TOOLS):
    return head + KEYWORDS + TURNS.replace("ASSISTANT", assistant_turn)


# name -> (NULL, EMPTY, ARGUMENTS, source)
TEMPLATES = {
    # in the manner of DeepSeek-R1-Distill: calls only where the content is none, arguments appended to texts
    "none tested, text appended": (None, None, TEXT, template("""{% if m['content'] is none %}<|assistant|>{% for c in m['tool_calls'] %}
{{ '<|call|>' + c['type'] + '<|sep|>' + c['function']['name'] + '\\n```json\\n' + c['function']['arguments'] + '\\n```<|end|>' }}{% endfor %}
{{ eos_token }}
{% else %}{% set content = m['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{ '<|assistant|>' + content + eos_token }}
{% endif %}""")),
    "none tested, tojson": (None, None, OBJECT, template("""{% if m.content is none %}{% for c in m.tool_calls %}
<|call|>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}
{% else %}<|assistant|>{{ m.content + eos_token }}{% endif %}""")),
    # content concatenated: none is an error
    "content and text appended": ("", "", TEXT, template("""{{ '<|assistant|>' + m.content }}{% for c in m.tool_calls or [] %}
{{ '<call>{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments + '}</call>' }}{% endfor %}
{{ eos_token }}""")),
    "content appended, tojson": ("", "", OBJECT, template("""{{ '<|assistant|>' + m.content | trim }}{% for c in m.tool_calls or [] %}
<call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</call>{% endfor %}{{ eos_token }}""")),
    # content printed: none would stand there as "None"
    "content printed, tojson": ("", "", OBJECT, template("""<|assistant|>{{ m.content }}{% for c in m.tool_calls or [] %}
<call>{{ c.function | tojson }}</call>{% endfor %}{{ eos_token }}""")),
    "content guarded, tojson": (None, "", OBJECT, template("""<|assistant|>{% if m.content %}{{ m.content }}
{% endif %}{% for c in m.tool_calls or [] %}<call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</call>
{% endfor %}{{ eos_token }}""")),
    "none told from empty": (None, "", OBJECT, template("""<|assistant|>{% if m.content is not none %}[{{ m.content }}]{% endif %}
{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson(indent=2) }}</call>{% endfor %}""")),
    "items()": (None, "", OBJECT, template("""<|assistant|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}
<function={{ c.function.name }}>{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function>
{% endfor %}""")),
    # in the manner of Qwen3-Coder and GLM 4.5
    "items, tojson of what is no text": (None, "", OBJECT, template("""<|assistant|>{% if m.content is string and m.content | trim %}
{{ m.content | trim }}{% endif %}{% for c in m.tool_calls or [] %}{% set c = c.function if c.function is defined else c %}
<function={{ c.name }}>{% for k, v in c.arguments | items %}<parameter={{ k }}>
{{ v | tojson | safe if v is mapping or (v is sequence and v is not string) else v | string }}</parameter>{% endfor %}</function>{% endfor %}
""", head="{% for t in tools or [] %}<tool>{{ t.function.name }}{% for name, p in t.function.parameters.properties | items %}"
          "{% for k, v in p | items %} {{ k }}={{ v }}{% endfor %}\n{% endfor %}</tool>{% endfor %}")),
    "text or object": (None, "", OBJECT, template("""<|assistant|>{{ m.content if m.content else '' }}{% for c in m.tool_calls or [] %}
<call>{{ c.function.name }} {% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}
{{ c.function.arguments | tojson(ensure_ascii=False) }}{% endif %}</call>{% endfor %}""")),
    "text guarded, appended": (None, "", TEXT, template("""<|assistant|>{% if m.content %}{{ m.content }}{% endif %}
{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name + ' ' + c.function.arguments + '</call>' }}{% endfor %}""")),
    "extra fields": (None, "", OBJECT, template("""<|assistant|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}
{% if m.extra is defined %}{{ m.extra }}{{ m.extra | tojson }}{{ m.extra.n + 1 }}{% endif %}""")),
}

NUMBERS = [123456789012345678901234567890, -2 ** 64, 2 ** 63, 9007199254740993, -9007199254740993, 1.0, -0.0, 0.0, 0, 1e16, 5e-324,
           1.7976931348623157e308, 0.1, 1e-07, 123456.0, 1e22, 3]
COUNT = {"type": "function", "function": {"name": "count", "description": "Counts <exactly> & \"well\"", "parameters": {
    "type": "object", "properties": {"n": {"type": "number", "enum": NUMBERS, "minimum": -0.0, "maximum": 1e16, "default": 1.0},
                                     "k": {"type": "integer", "maximum": 2 ** 70, "multipleOf": 9007199254740993}}}}}


def call(name, arguments):
    """arguments: what it is as the API's text"""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made, **more):
    return {"role": "assistant", "tool_calls": list(made), **more}


# a text as a client may have kept it from an answer: blanks and the numbers' forms are the model's own
WRITTEN = '{"n":[1.0,-0.0,1E16,5e-324,9007199254740993,123456789012345678901234567890],"t":"é\\u00e9 \\"q\\"", "o":{"x":null,"y":true}}'
WEATHER = call("get_weather", json.dumps({"place": "Zürich <b>", "days": 2, "exact": False}, ensure_ascii=False))
COUNTED = call("count", json.dumps({"n": NUMBERS, "k": 2 ** 80, "one": 1.0, "zero": -0.0, "tiny": 5e-324, "large": 1e16}))

# name -> (messages as a client of the API sends them, content of the calls' message left out; tools; keywords)
CONVERSATIONS = {
    "a call": ([user("Zürich?"), calls(WEATHER), tool("rain", tool_call_id="call_1"), assistant("Rain.")], TOOLS, {}),
    "a call at the end": ([user("Zürich?"), calls(WEATHER)], TOOLS, {}),
    "two calls, twice": ([system("Be brief."), user("?"), calls(WEATHER, call("now", "{}")), tool("rain"), tool("noon"),
                          calls(call("now", "{}")), tool("one"), assistant("One.")], TOOLS, {}),
    "numbers": ([user("Count."), calls(COUNTED, extra={"n": 2 ** 90, "list": NUMBERS}), tool("1.0")], [COUNT],
                {"limit": 2 ** 70, "numbers": NUMBERS}),
    "numbers of other sizes": ([user("Count."), calls(call("count", '{"n": -0.0}'), extra={"n": 1.0})], [COUNT],
                               {"limit": 9007199254740993, "numbers": [1e16, -0.0, 5e-324]}),
    "a text of the model's own": ([user("Count."), calls(call("count", WRITTEN)), tool("1.0")], [COUNT], {"limit": 1.0}),
    "no tools": ([user("Zürich?"), calls(WEATHER), tool("rain")], None, {"limit": -0.0}),
}
VARIANTS = ("null", "absent", "empty", "text", "null, object")


def sent(messages, variant):
    """What the API's client sends."""
    messages = copy.deepcopy(messages)
    for m in messages:
        if "tool_calls" not in m:
            continue
        if variant != "absent":
            m["content"] = {"empty": "", "text": "I look."}.get(variant)
        if variant == "null, object":
            for c in m["tool_calls"]:
                c["function"]["arguments"] = json.loads(c["function"]["arguments"])
    return messages


def handed_over(messages, variant, form):
    """What a user of transformers makes of it for this template."""
    null, empty, arguments = form
    messages = sent(messages, variant)
    for m in messages:
        if "tool_calls" not in m:
            continue
        m["content"] = "I look." if variant == "text" else empty if variant == "empty" else null
        for c in m["tool_calls"]:
            f = c["function"]
            if arguments == OBJECT and isinstance(f["arguments"], str):
                f["arguments"] = json.loads(f["arguments"])
            if arguments == TEXT and not isinstance(f["arguments"], str):
                f["arguments"] = json.dumps(f["arguments"], ensure_ascii=False)
    return messages


def page(name):
    return name + " {{ messages | length }}{% if tools %} {{ tools[0].function.name }}{% endif %}"


MORE = "additional_chat_templates/"
LIST = [{"name": "default", "template": page("listed default")}, {"name": "tool_use", "template": page("listed tool_use")}]
# name -> files; a text is a template, anything else tokenizer_config.json's chat_template
DIRECTORIES = {
    "one file": {"chat_template.jinja": page("file")},
    "the configuration": {"tokenizer_config.json": page("config")},
    "the configuration's list": {"tokenizer_config.json": LIST},
    "default and tool_use": {MORE + "default.jinja": page("default"), MORE + "tool_use.jinja": page("tool_use")},
    "file and tool_use": {"chat_template.jinja": page("file"), MORE + "tool_use.jinja": page("tool_use")},
    "file, default and tool_use": {"chat_template.jinja": page("file"), MORE + "default.jinja": page("default"),
                                   MORE + "tool_use.jinja": page("tool_use")},
    "file and another": {"chat_template.jinja": page("file"), MORE + "rag.jinja": page("rag")},
    "file and a broken other": {"chat_template.jinja": page("file"), MORE + "rag.jinja": "{% is no template"},
    "default alone": {MORE + "default.jinja": page("default")},
    "tool_use alone": {MORE + "tool_use.jinja": page("tool_use")},
    "another alone": {MORE + "rag.jinja": page("rag")},
    "configuration and file": {"tokenizer_config.json": page("config"), "chat_template.jinja": page("file")},
    "configuration and tool_use": {"tokenizer_config.json": page("config"), MORE + "tool_use.jinja": page("tool_use")},
    "configuration and another": {"tokenizer_config.json": page("config"), MORE + "rag.jinja": page("rag")},
    "list and file": {"tokenizer_config.json": LIST, "chat_template.jinja": page("file")},
    "list and tool_use": {"tokenizer_config.json": LIST, MORE + "tool_use.jinja": page("tool_use")},
}


def write_directory(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": content})
                        if name.endswith(".json") else content)
