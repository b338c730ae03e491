import time

from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

from scenario import main, raises

sandbox = Sandbox.create(timeout=300, envs={"FROM_CREATE": "né"})
run = sandbox.run_code


def test_state_text_and_count():
    assert run("x = 1").text is None
    execution = run("x += 1; x")
    assert (execution.text, execution.execution_count, execution.error) == ("2", 2, None)
    assert run("'quoted'").text == "quoted"
    assert run("import os; os.environ['FROM_CREATE'] + os.environ['OWN']", envs={"OWN": "o"}).text == "néo"
    assert run("os.environ.get('OWN', 'none')").text == "none"


def test_callbacks_and_timestamps():
    heard = {"stdout": [], "stderr": [], "results": [], "errors": []}
    before_ns = time.time_ns()
    execution = run(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay(1)\n1/0",
        on_stdout=heard["stdout"].append,
        on_stderr=heard["stderr"].append,
        on_result=heard["results"].append,
        on_error=heard["errors"].append,
    )
    assert (execution.logs.stdout, execution.logs.stderr) == (["out\n"], ["err\n"])
    (out,), (err,) = heard["stdout"], heard["stderr"]
    assert (out.line, out.error, err.line, err.error) == ("out\n", False, "err\n", True)
    # Nanoseconds, as the SDK's type says.
    assert before_ns - 5e9 < out.timestamp <= err.timestamp < time.time_ns() + 5e9
    assert [result.text for result in heard["results"]] == ["1"]
    assert [error.name for error in heard["errors"]] == ["ZeroDivisionError"]


def test_forms_of_results():
    plot = run("import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [3, 4]); plt.title('T'); plt.show()")
    (figure,) = plot.results
    assert figure.png.startswith("iVBORw0KGgo")
    assert (figure.chart.type.value, figure.chart.title) == ("bar", "T")
    assert [(bar.label, float(bar.value)) for bar in figure.chart.elements] == [("a", 3.0), ("b", 4.0)]
    table = run("import pandas as pd; pd.DataFrame({'a': [1, 2]})")
    assert table.results[0].data == {"a": [1, 2]}
    assert set(table.results[0].formats()) == {"text", "html", "data"}
    pie = run("plt.pie([1, 3], labels=['p', 'q']); plt.show()")
    assert pie.results[0].chart.type.value == "pie"


def test_contexts():
    context = sandbox.create_code_context(cwd="/tmp")
    assert (context.language, context.cwd) == ("python", "/tmp")
    assert run("import os; os.getcwd()", context=context).text == "/tmp"
    assert context.id in [each.id for each in sandbox.list_code_contexts()]
    sandbox.restart_code_context(context)
    assert run("os", context=context).error.name == "NameError"
    sandbox.remove_code_context(context)
    with raises(NotFoundException):
        run("1", context=context)
    with raises(SandboxException) as caught:
        run("1", language="cobol")
    assert "there are: bash, javascript, python, typescript" in str(caught.error)


def test_timeout_keeps_the_state():
    run("kept = 5")
    with raises(TimeoutException):
        run("import time; time.sleep(300)", timeout=0.5)
    assert run("kept", timeout=20).text == "5"


async def test_async():
    sandbox = await AsyncSandbox.create(timeout=60)
    heard = []
    try:
        execution = await sandbox.run_code("print('a'); 1 + 1", on_stdout=heard.append)
        assert (execution.text, execution.execution_count) == ("2", 1)
        assert [message.line for message in heard] == ["a\n"]
        context = await sandbox.create_code_context(language="python")
        assert (await sandbox.run_code("6 * 7", context=context)).text == "42"
        with raises(TimeoutException):
            await sandbox.run_code("while True: pass", timeout=0.5)
        assert (await sandbox.run_code("1", timeout=20)).text == "1"
    finally:
        await sandbox.kill()


main(globals(), sandbox.kill)
