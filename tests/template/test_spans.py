"""What is trained on, for templates of many shapes: the assistant's turns with their ends, and nothing else."""
import pytest

from conversations import assistant, call, system, tool as tool_says, user
from template_client import Refused, Tool

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [system("Be kind."), user("Hi"), assistant(" Hello. "), user("Bye"), assistant("Ciao")]
LOOP = "{% for m in messages %}"

# name -> (template, messages, generated parts)
SHAPES = {
    "no prompt, eos between": (LOOP + "{{ m.content }}{{ eos_token }}{% endfor %}", CHAT, [" Hello. </s>", "Ciao</s>"]),
    "instructions in brackets": (
        LOOP + "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
        "{% elif m.role == 'assistant' %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
        CHAT, [" Hello. </s>", " Ciao </s>"]),
    "system folded into the user": (
        "{% set s = messages[0].content %}{% for m in messages[1:] %}{% if m.role == 'user' %}"
        "{{ '<|u|>' + (s + ' ' if loop.first else '') + m.content + '<|end|>' }}{% else %}{{ '<|a|>' + m.content + '<|end|>' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}",
        CHAT, [" Hello. <|end|>", "Ciao<|end|>"]),
    "headings, prompt only after the user": (
        LOOP + "{% if m.role == 'user' %}{{ '### Q:\n' + m.content + '\n\n' }}{% elif m.role == 'assistant' %}"
        "{{ '### A:\n' + m.content.strip() + eos_token + '\n\n' }}{% endif %}"
        "{% if loop.last and m.role == 'user' and add_generation_prompt %}{{ '### A:\n' }}{% endif %}{% endfor %}",
        CHAT, ["Hello.</s>", "Ciao</s>"]),
    "names in capitals": (
        "{% for m in messages[1:] %}{% if m.role == 'user' %}{{ ' USER: ' + m.content }}{% else %}"
        "{{ ' ASSISTANT: ' + m.content.strip() + eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %} ASSISTANT:{% endif %}",
        CHAT, [" Hello.</s>", " Ciao</s>"]),
    "no marks at all": (
        LOOP + "{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
        CHAT, ["  Hello. \n", " Ciao\n"]),
    "eos ends the page": (
        LOOP + "{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}{{ eos_token }}",
        CHAT, ["<|assistant|>\n Hello. <|end|>", "<|assistant|>\nCiao<|end|>"]),
    "marks share a beginning": (
        LOOP + "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% else %}{{ '<|stop|>' }}{% endif %}",
        CHAT, [" Hello. <|end|>", "Ciao<|end|>"]),
    "generation blocks": (
        LOOP + "{{ '<' + m.role + '>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{{ '<end>' }}{% endgeneration %}"
        "{% else %}{{ m.content + '<end>' }}{% endif %}{% endfor %}",
        CHAT, ["Hello.<end>", "Ciao<end>"]),
    "changed on the way": (
        LOOP + "{% set c = m.content | replace('i', 'I!') | upper | trim %}{{ '[' + m.role + ']' + c + '[end]' }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        CHAT, ["HELLO.[end]", "CI!AO[end]"]),
    "through macros and blocks": (
        "{% macro say(m) %}{{ '[' + m.role + ']' }}{% filter trim %}{{ m.content }}{% endfilter %}[end]{% endmacro %}"
        + LOOP + "{% set page %}{{ say(m) }}{% endset %}{{ page }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        CHAT, ["Hello.[end]", "Ciao[end]"]),
    "collected in a namespace": (
        "{% set ns = namespace(t='') %}" + LOOP + "{% set ns.t = ns.t + '[%s]%s[end]' % (m.role, m.content) %}{% endfor %}{{ ns.t }}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        CHAT, [" Hello. [end]", "Ciao[end]"]),
    "formatted and joined": (
        LOOP + "{{ ['[', m.role, ']', '{}[end]'.format(m.content)] | join }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        CHAT, [" Hello. [end]", "Ciao[end]"]),
    "parts of a content": (
        LOOP + "{{ '[' + m.role + ']' }}{% for p in m.content %}{{ p.text }}{% endfor %}{{ '[end]' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        [{"role": r, "content": [{"type": "text", "text": t}, {"type": "text", "text": "."}]} for r, t in (("user", "a"), ("assistant", "b"))],
        ["b.[end]"]),
    "as JSON": (
        LOOP + "{{ '[' + m.role + ']' + m.content | tojson + '[end]' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        CHAT, ['" Hello. "[end]', '"Ciao"[end]']),
    "tool calls": (
        LOOP + "{{ '[' + m.role + ']' }}{{ m.content }}{% for c in m.tool_calls %}<call>{{ c.function.name }}({{ c.function.arguments | tojson }})</call>{% endfor %}"
        "{{ '[end]' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        [user("Weather?"), assistant("", tool_calls=[call("look", at="sky")]), tool_says("blue"), assistant("Fine.")],
        ['<call>look({"at": "sky"})</call>[end]', "Fine.[end]"]),
    "thoughts of the past are dropped": (
        LOOP + "{% set c = m.content.split('</t>')[-1] if not loop.last else m.content %}{{ '[' + m.role + ']' + c + '[end]' }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        [user("a"), assistant("<t>hm</t>b"), user("c"), assistant("<t>ha</t>d")], ["b[end]", "<t>ha</t>d[end]"]),
    "the same words everywhere": (
        LOOP + "{{ '[' + m.role + ']' + m.content + '[end]' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        [user("[assistant]x[end]"), assistant("[assistant]x[end]"), user("[assistant]x[end]"), assistant("x")],
        ["[assistant]x[end][end]", "x[end]"]),
    "a mark of its own for the last turn, and the tool named again": (
        "{% set last = namespace(name=none) %}" + LOOP + "{% if m.role == 'assistant' %}{% if m.tool_calls %}"
        "{{ '<|start|>assistant' }}{% if m.thinking %}{{ '<|think|>' + m.thinking + '<|end|><|start|>assistant' }}{% endif %}"
        "{% set c = m.tool_calls[0].function %}{{ ' to=' + c.name + '<|message|>' + c.arguments | tojson + '<|call|>' }}{% set last.name = c.name %}"
        "{% elif loop.last and not add_generation_prompt %}{{ '<|start|>assistant<|message|>' + m.content + '<|return|>' }}"
        "{% else %}{{ '<|start|>assistant<|message|>' + m.content + '<|end|>' }}{% endif %}"
        "{% elif m.role == 'tool' %}{{ '<|start|>' + last.name + '<|message|>' + m.content + '<|end|>' }}"
        "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        [user("Weather?"), assistant("", tool_calls=[call("look", at="sky")], thinking="Up?"), tool_says("blue"), assistant("Blue."), user("!"), assistant("?")],
        ["<|think|>Up?<|end|><|start|>assistant to=look<|message|>{\"at\": \"sky\"}<|call|>", "<|message|>Blue.<|end|>", "<|message|>?<|return|>"]),
    "texts that the template loses": (
        LOOP + "{{ '[' + m.role + ']' }}{% for p in m.content %}{{ p.text }}{% endfor %}{{ '[end]' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        CHAT, ["[end]", "[end]"]),
    "system before the last question, no prompt": (
        "{% set s = messages[0].content %}{{ bos_token }}{% for m in messages[1:] %}{% if m.role == 'user' %}"
        "{{ '[INST] ' + (s + ' ' if m == (messages | selectattr('role', '==', 'user') | list)[-1] else '') + m.content + '[/INST]' }}"
        "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
        CHAT, ["  Hello. </s>", " Ciao</s>"]),
    "turns have no end": (
        LOOP + "{{ '<|' + m.role + '|>' + m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}",
        CHAT, [" Hello. ", "Ciao</s>"]),
    "the prompt opens a thought that the past has closed": (
        LOOP + "{{ '[' + m.role + ']\n' }}{% if m.role == 'assistant' %}{{ '<t></t>' }}{% endif %}{{ m.content + '[end]\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]\n<t>\n' }}{% endif %}",
        CHAT, ["</t> Hello. [end]", "</t>Ciao[end]"]),
    "the prompt opens a thought in its only line": (
        LOOP + "{{ '[' + m.role + ']' + m.content + '[end]' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]<t>' }}{% endif %}",
        CHAT, [" Hello. [end]", "Ciao[end]"]),
    "an end that is generated apart": (
        LOOP + "{{ '[' + m.role + ']' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}{% generation %}{{ eos_token }}{% endgeneration %}",
        CHAT, [" Hello. ", "Ciao", "</s>"]),
    "nobody": (LOOP + "{{ m.content }}{% endfor %}", [user("a")], []),
    "the assistant is not printed": (LOOP + "{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", CHAT, []),
    "an empty turn": (
        LOOP + "{{ '[' + m.role + ']' }}{% if m.content %}{{ m.content }}{% endif %}{{ '[end]' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        [user("a"), assistant(""), user("b"), assistant("c")], ["[end]", "c[end]"]),
}


@pytest.fixture(scope="module")
def tool():
    t = Tool()
    yield t
    t.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_shape(tool, shape):
    template, messages, expected = SHAPES[shape]
    page, spans = tool.render(template, messages, extra=TOKENS, spans=True)
    assert [page[a:b].decode() for a, b, _ in spans] == expected
    said = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    assert [m for _, _, m in spans] == (said + said[-1:])[:len(expected)]


def test_plain_layout(tool):
    """Without a template: the same rules, so that what is trained is what serving prompts for."""
    page, spans = tool.ask(messages=CHAT, spans=True)
    assert page == b"system: Be kind.\nuser: Hi\nassistant:  Hello. \nuser: Bye\nassistant: Ciao\n"
    assert [page[a:b] for a, b, _ in spans] == [b"  Hello. \n", b" Ciao\n"]
    assert tool.ask(messages=CHAT[:2], prompt=True)[0] == b"system: Be kind.\nuser: Hi\nassistant:"
    assert tool.ask(messages=CHAT, **{"continue": True})[0].endswith(b"assistant: Ciao")


@pytest.mark.parametrize("template, says", [
    ("{% for m in messages | reverse %}{{ '[' + m.role + ']' + m.content + '[end]' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}", "does not print messages[4] after the turn before"),
    ("{{ messages[2].content }}" + LOOP + "{{ '[' + m.role + ']' + m.content + '[end]' }}{% endfor %}", "mixes the text of messages[2]"),
    (LOOP + "{{ m.content }}|{% endfor %}{% if add_generation_prompt %}{{ raise_exception('no') }}{% endif %}", "cannot tell where messages[2]"),
])
def test_cannot_tell(tool, template, says):
    with pytest.raises(Refused, match="messages") as e:
        tool.render(template, CHAT, extra=TOKENS, spans=True)
    assert says in str(e.value)
