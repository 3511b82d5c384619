"""Commands, streamed and not."""

from __future__ import annotations

import asyncio

import pytest

from pandastack import AsyncPandaStack, CommandFailed, PandaStack, Sandbox, SandboxTimeout

from conftest import RUN, wait_for


def test_result(shared: Sandbox) -> None:
    result = shared.exec("echo out; echo err >&2; exit 3", timeout_seconds=30)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    with pytest.raises(CommandFailed):
        shared.exec("exit 3", check=True)


def test_signal_becomes_an_exit_code(shared: Sandbox) -> None:
    assert shared.exec("kill -9 $$").exit_code == 137


def test_argument_list_and_options(shared: Sandbox) -> None:
    assert shared.exec(["printf", "%s|", "a b", "$HOME", "it's"]).stdout == "a b|$HOME|it's|"
    assert shared.exec("pwd; echo $FLAVOUR", cwd="/usr", env={"FLAVOUR": "sweet"}).stdout == "/usr\nsweet\n"
    assert shared.exec("id -u").stdout == "0\n"
    assert shared.exec("id -un", user="user").stdout == "user\n"


def test_text_that_is_not_ascii(shared: Sandbox) -> None:
    assert shared.exec("printf 'grüße 🐼\\n'").stdout == "grüße 🐼\n"
    assert shared.exec(r"printf 'a\377b'").stdout == "a\ufffdb"


def test_a_megabyte_of_output_is_not_truncated(shared: Sandbox) -> None:
    result = shared.exec("head -c 1048576 /dev/zero | tr '\\0' x", timeout_seconds=60)
    assert len(result.stdout) == 1048576 and set(result.stdout) == {"x"} and not result.truncated


def test_timeout_kills_the_whole_tree(own: Sandbox) -> None:
    with pytest.raises(SandboxTimeout) as caught:
        own.exec("sleep 1234 & sleep 1234", timeout_seconds=1)
    assert caught.value.status == 504 and caught.value.code == "exec_timeout"
    assert _gone(own, "sleep 1234")


def test_environment_of_the_sandbox(client: PandaStack) -> None:
    with client.sandboxes.create("base", metadata=RUN, env={"GREETING": "hi"}) as sandbox:
        assert sandbox.exec("echo $GREETING").stdout == "hi\n"


def test_stream_by_iteration(shared: Sandbox) -> None:
    stream = shared.exec_stream("echo one; echo two >&2; exit 4", timeout_seconds=30)
    chunks = list(stream)
    for name, text in (("stdout", "one\n"), ("stderr", "two\n")):
        assert "".join(chunk.text for chunk in chunks if chunk.stream == name) == text
    assert stream.exit_code == 4


def test_stream_by_callbacks(shared: Sandbox) -> None:
    out, err = [], []
    assert shared.exec_stream("echo one; echo two >&2", on_stdout=out.append, on_stderr=err.append) == 0
    assert ("".join(out), "".join(err)) == ("one\n", "two\n")


def test_stream_arrives_while_the_command_runs(own: Sandbox) -> None:
    # The command ends only after this side has seen its first line and answered with a file.
    command = "echo ready; until [ -e /run/go ]; do sleep 0.05; done; echo done"
    stream = own.exec_stream(command, timeout_seconds=60)
    seen = ""
    for chunk in stream:
        if "ready\n" not in seen and "ready\n" in seen + chunk.text:
            own.filesystem.write("/run/go", "")
        seen += chunk.text
    assert seen == "ready\ndone\n" and stream.exit_code == 0


def test_stream_timeout(shared: Sandbox) -> None:
    with pytest.raises(SandboxTimeout):
        list(shared.exec_stream("echo first; sleep 1234", timeout_seconds=1))


def test_stream_keeps_characters_whole(shared: Sandbox) -> None:
    program = "yes 'grüße 🐼' | head -n 20000"
    chunks = [chunk.text for chunk in shared.exec_stream(program, timeout_seconds=60)]
    assert "".join(chunks) == "grüße 🐼\n" * 20000


def _gone(sandbox: Sandbox, command: str) -> bool:
    """Whether none of these processes is left within some seconds."""
    look = f"for i in $(seq 100); do pgrep -fx '{command}' || exit 0; sleep 0.1; done; exit 1"
    return sandbox.exec(look, timeout_seconds=30).ok


def _cancelled(sandbox: Sandbox, command: str, **options: bool) -> None:
    """Run a command and cancel the call once it runs."""

    async def main() -> None:
        async with AsyncPandaStack() as client:
            handle = await client.sandboxes.get(sandbox.id)
            run = handle.exec(f"touch /run/begun; {command} & {command}", **options)
            task = asyncio.ensure_future(run)
            await handle.exec("until [ -e /run/begun ]; do sleep 0.05; done", timeout_seconds=30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_a_cancelled_exec_kills_its_command(own: Sandbox) -> None:
    _cancelled(own, "sleep 4321")
    assert _gone(own, "sleep 4321")


def test_a_cancelled_exec_can_keep_its_command_running(own: Sandbox) -> None:
    _cancelled(own, "sleep 4322", kill_on_cancel=False)
    wait_for("both run", lambda: own.exec("pgrep -fxc 'sleep 4322'").stdout == "2\n")


def test_a_cancelled_reader_of_a_stream_kills_its_command(own: Sandbox) -> None:
    async def main() -> None:
        async with AsyncPandaStack() as client:
            handle = await client.sandboxes.get(own.id)
            async with await handle.exec_stream("echo begun; sleep 4323") as stream:
                async for _ in stream:
                    raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert _gone(own, "sleep 4323")


def test_a_stream_has_its_tag_in_process_lists(own: Sandbox) -> None:
    """By it, a call that is cancelled before its headers finds the command to kill."""
    with own.exec_stream("echo begun; sleep 4324") as stream:
        assert next(iter(stream)).text == "begun\n"
        assert any((process.info.tag or "").startswith("exec-") for process in own.processes())


def test_many_streams_from_one_async_client(shared: Sandbox) -> None:
    async def main() -> None:
        async with AsyncPandaStack() as client:
            sandbox = await client.sandboxes.get(shared.id)

            async def one(number: int) -> str:
                stream = await sandbox.exec_stream(f"seq {number} {number + 200}", timeout_seconds=120)
                return "".join([chunk.text async for chunk in stream])

            outputs = await asyncio.gather(*(one(number) for number in range(20)))
        for number, output in enumerate(outputs):
            assert output == "".join(f"{line}\n" for line in range(number, number + 201))

    asyncio.run(main())


def test_run_deletes_its_sandbox(client: PandaStack) -> None:
    result = client.run("echo $((6 * 7)); exit 5", template="base", timeout_seconds=60)
    assert (result.stdout, result.exit_code) == ("42\n", 5)
    assert result.sandbox_id is not None
    assert result.sandbox_id not in {sandbox.id for sandbox in client.sandboxes.list()}
