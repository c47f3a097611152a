"""What the tests of the OpenAI routes share."""
import json

import openai


def client_of(server, **kw):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=300, **{"max_retries": 0, **kw})


def sse_chunks(response):
    """The JSON chunks of a streamed requests.Response; it must end with [DONE]."""
    lines = [line for line in response.content.decode().split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]", lines[-3:]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
