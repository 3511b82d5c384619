from pandastack import PandaStack

client = PandaStack()
sandbox = client.sandboxes.create(template="code-interpreter", ttl_seconds=600, metadata={"task": "data-analysis"})
result = sandbox.exec("python -c 'print(2 ** 10)'", timeout_seconds=30)
print(result.stdout.strip())
sandbox.delete()
raise SystemExit(result.exit_code)
