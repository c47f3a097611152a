"""Short templates that try the language, one behaviour each; make_fixtures.py asks jinja2 what they print."""

VARIABLES = {"name": "Ada", "items": [3, 1, 2]}
CASES = ["{{ name }}", "{{ items | sort | join(',') }}"]
