"""Speculation over HTTP: the same answers with it and without, and its metrics."""
TEXT = ('Tom saw a red ball. Tom said, "I like the red ball." Tom saw a red ball. Tom said, "I like the red ball." '
        'Tom saw a red ball. Tom')
ASKS = [{}, {"do_sample": True, "seed": 4, "temperature": 0.4}, {"repetition_penalty": 1.02, "top_n_tokens": 2},
        {"grammar": {"type": "regex", "value": "( (saw|said|like|a|the|red|ball|Tom)){12}"}}, {"stop": ["ball"]}]


def answers(server):
    got = [server.generate(TEXT, max_new_tokens=40, details=True, **ask) for ask in ASKS]
    streamed = server.post("/v1/completions", {"prompt": TEXT, "max_tokens": 40, "temperature": 0, "stream": True}).text
    got.append([line.split('"text":')[1].split(',"')[0] for line in streamed.splitlines() if '"text":' in line])
    return got


def test_same_answers_in_fewer_steps(start):
    with start("--speculate", "off") as server:
        want = answers(server)
        assert server.metric("tandem_speculated_tokens_total") == 0
        steps = server.metric("tandem_steps_total")
    with start("--speculate", "on") as server:
        assert answers(server) == want
        proposed, accepted = (server.metric(f"tandem_speculated_tokens{n}_total") for n in ("", "_accepted"))
        assert 0 < accepted <= proposed
        assert server.metric("tandem_speculation_saved_steps_total") == accepted  # a request at a time
        assert server.metric("tandem_steps_total") < steps
