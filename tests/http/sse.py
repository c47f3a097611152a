"""Server-sent events as a strict reader sees them."""
import json


def events(response):
    """The JSON events of a streamed requests.Response; comments are dropped, anything else is an error."""
    for line in response.iter_lines():
        if not line or line.startswith(b":"):
            continue
        assert line.startswith(b"data: "), line
        yield json.loads(line[len("data: "):].decode("utf-8", "strict"))


def stream(server, inputs="Once upon a time", path="/generate_stream", session=None, **parameters):
    """All events of one streamed generation."""
    import requests
    with (session or requests).post(server.url + path, json={"inputs": inputs, "parameters": parameters, "stream": True},
                                    stream=True, timeout=300) as answer:
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(events(answer))


def text_of(received):
    return received[-1]["generated_text"]
