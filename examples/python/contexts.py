"""An interpreter that remembers."""

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="code-interpreter", ttl_seconds=600) as sandbox:
    context = sandbox.create_code_context()
    context.run_code("import numpy; numbers = numpy.arange(5)")
    print(context.run_code("int(numbers.sum())").results[0].text)  # 10
