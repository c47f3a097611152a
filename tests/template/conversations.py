"""The conversations that every template is tested on, and short templates that try the language."""

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place, \"now\" & later <soon>",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Straße, Ort – 東京"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
        "ratio": {"type": "number", "default": 0.25}, "exact": {"type": "boolean", "default": False}},
        "required": ["place"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {
        "type": "object", "properties": {}, "required": []}}}]


def user(text, **more):
    return {"role": "user", "content": text, **more}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


def call(name, **arguments):
    return {"type": "function", "id": "call_1", "function": {"name": name, "arguments": arguments}}


THOUGHT = "<think>\nLet me see. 2 + 2\n\nis 4.\n</think>\n\nThe answer is 4."

# what doubles, or readers that keep doubles only, do not hold
NUMBERS = [123456789012345678, 9007199254740993, -123456789012345678901234567890, 2 ** 64, 1.0, -0.0, 0.5, 1e16, 1e-05, 100.0, 0]
COUNT = {"type": "function", "function": {"name": "count", "description": "Counts", "parameters": {
    "type": "object", "properties": {"exact": {"type": "array", "items": {"enum": NUMBERS}, "default": NUMBERS}}}}}

# name -> (messages, options); options: tools, extra variables
CONVERSATIONS = {
    "one question": ([user("Hello, who are you?")], {}),
    "question and answer": ([user("Hi"), assistant("Hello! How can I help?")], {}),
    "system": ([system("You are a pirate."), user("Hi"), assistant("Arr!")], {}),
    "several turns": ([user("One"), assistant("Two"), user("Three"), assistant("Four"), user("Five"), assistant("Six")], {}),
    "several turns, system": ([system("Count."), user("One"), assistant("Two"), user("Three"), assistant("Four"), user("?")], {}),
    "ends with the user": ([user("One"), assistant("Two"), user("Three")], {}),
    "blanks around": ([user("  \n Hi there \t\n"), assistant("\n\n  Yes.  \n")], {}),
    "empty texts": ([user(""), assistant("")], {}),
    "empty system": ([system(""), user("Hi"), assistant("Ho")], {}),
    "no messages": ([], {}),
    "Unicode": ([user("Grüße aus Zürich! 你好, नमस्ते 🙂👩‍👩‍👧 \u200b\u00a0x"), assistant("Ça va très bien. שלום \u2028 ἀρχή ʼn İ ß")], {}),
    "marks in the text": ([user("What does <|im_end|> or <|eot_id|> mean? {{ 7 * 7 }} {% if %}"), assistant("A mark.")], {}),
    "quotes and backslashes": ([user("Say \"hi\" and 'ho' \\n \\\\ \x07"), assistant("\"hi\" 'ho' \\n")], {}),
    "two users": ([user("A"), user("B"), assistant("C")], {}),
    "two assistants": ([user("A"), assistant("B"), assistant("C")], {}),
    "starts with the assistant": ([assistant("Welcome!"), user("Thanks"), assistant("Sure.")], {}),
    "system in the middle": ([user("A"), assistant("B"), system("Be short."), user("C"), assistant("D")], {}),
    "odd role": ([{"role": "critic", "content": "Bad."}, user("A"), assistant("B")], {}),
    "no role": ([{"content": "A"}], {}),
    "no content": ([user("A"), {"role": "assistant"}], {}),
    "content is none": ([user("A"), assistant(None)], {}),
    "content is a list": ([{"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}, assistant("C")], {}),
    "tools": ([user("How is the weather in Paris?")], {"tools": TOOLS}),
    "tools, system": ([system("Be brief."), user("Weather?"), assistant("Where?")], {"tools": TOOLS}),
    "no tools": ([user("Weather?"), assistant("Where?")], {"tools": []}),
    "tool call": ([user("Paris?"), assistant("", tool_calls=[call("get_weather", place="Paris", days=2, ratio=0.5, exact=True)])], {"tools": TOOLS}),
    "tool call and result": ([system("Use tools."), user("Paris?"), assistant("", tool_calls=[call("get_weather", place="Zürich <b>", days=3)]),
                              tool("{\"sun\": true, \"t\": [1, 2]}"), assistant("Sunny.")], {"tools": TOOLS}),
    "talk and tool call": ([user("Paris?"), assistant("I shall look.", tool_calls=[call("get_weather", place="Paris")]), tool("rain"),
                            assistant("Rain."), user("Thanks"), assistant("Welcome.")], {"tools": TOOLS}),
    "two tool calls": ([user("Paris and time?"), assistant("", tool_calls=[call("get_weather", place="Paris"), call("now")]),
                        tool("rain"), tool("noon"), assistant("Rain at noon.")], {"tools": TOOLS}),
    "arguments are text": ([user("Paris?"), assistant(None, tool_calls=[{"function": {"name": "now", "arguments": "{\"a\": 1}"}}]), tool("x")], {"tools": TOOLS}),
    "bare tool call": ([user("?"), assistant("", tool_calls=[{"name": "now", "arguments": {"nested": {"list": [1, 2.5, None, "é"]}}}]), tool("noon"), assistant("Noon.")], {}),
    "ipython role": ([user("1+1?"), assistant("x"), {"role": "ipython", "content": "2"}, assistant("2")], {}),
    "builtin tools": ([user("Search it"), assistant("", tool_calls=[call("brave_search", query="weather")]), tool("sun"), assistant("Sun.")],
                      {"extra": {"builtin_tools": ["brave_search", "code_interpreter"]}}),
    "tools beside the user": ([user("Paris?")], {"tools": TOOLS, "extra": {"tools_in_user_message": False}}),
    "a date": ([user("Today?"), assistant("Yes.")], {"extra": {"date_string": "01 Jan 2030"}}),
    "thinking in the text": ([user("2+2?"), assistant(THOUGHT), user("Sure?"), assistant(THOUGHT)], {}),
    "thinking beside the text": ([user("2+2?"), assistant("4", reasoning_content="\nEasy.\n"), user("Sure?"), assistant("Yes", reasoning_content="Still 4.")], {}),
    "thinking by its old name": ([user("2+2?"), assistant("4", thinking="Easy."), tool("x"), assistant("5", reasoning="Hm.")], {}),
    "thinking off": ([user("2+2?"), assistant("4"), user("Sure?"), assistant("Yes")], {"extra": {"enable_thinking": False}}),
    "thinking on": ([user("2+2?"), assistant("4"), user("Sure?")], {"extra": {"enable_thinking": True}}),
    "no_think in the system": ([system("Be quick. /no_think"), user("2+2?"), assistant("4")], {}),
    "think in the system": ([system("/think  "), user("2+2?"), assistant(THOUGHT)], {}),
    "tools and thinking": ([user("Weather?"), assistant("", reasoning_content="I need a tool.", tool_calls=[call("now")]), tool("noon"),
                            assistant("Noon.", reasoning_content="It said noon."), user("Thanks"), assistant("\n\nWelcome.")], {"tools": TOOLS}),
    "looks like a tool's answer": ([user("A"), assistant("B"), user("<tool_response>\nx\n</tool_response>"), assistant("C")], {}),
    "numbers": ([user("Count."), assistant("", tool_calls=[call("count", exact=NUMBERS, nested={"n": NUMBERS})]), tool("[1.0]"), assistant("Done.")],
                {"tools": [COUNT], "extra": {"date_string": "2030", "limit": 2 ** 70}}),
    "long": ([m for i in range(40) for m in (user(f"Question {i}: " + "why? " * i), assistant(f"Answer {i}. " + "Because. " * (i % 7)))], {}),
}
