import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { OutputMessage, Result, Sandbox } from "@e2b/code-interpreter";
import { interpreterServer, makeInterpreter, newInterpreter } from "./interpreter.ts";
import { comeBackToWhatWasLeftAlone } from "./left-alone.ts";
import { runScenario } from "./scenario.ts";
import { output } from "./sdk.ts";
import { until } from "./server.ts";

/** From an answered create to the answer of the first `1+1`: the promise is 300 ms, this machine may be busy. */
const FIRST_RUN_MS = 1_500;
const PNG = /^iVBORw0KGgo/;
/** Goes on after the first interrupt, and always prints. */
const STUBBORN = `import time
def chatter():
    while True: print('x'); time.sleep(0.01)
try: chatter()
except KeyboardInterrupt: chatter()`;

/** The longest wait of all takes no processor, and about as long as this file's tests: it is beside them. */
describe("what takes minutes", { concurrency: true }, () => {
  it(
    "lists, attaches to and kills a command that was left alone (PROC-05)",
    { timeout: 240_000 },
    comeBackToWhatWasLeftAlone,
  );

  describe("the code interpreter", { concurrency: 1 }, () => {
    describe("the stock code interpreter SDK", { timeout: 240_000 }, () => {
      let sandbox: Sandbox & AsyncDisposable;
      before(async () => {
        sandbox = await newInterpreter({ FROM_CREATE: "né" });
      });
      after(async () => {
        await sandbox[Symbol.asyncDispose]();
      });

      it("comes from a command that may be repeated", async () => {
        assert.match(
          await makeInterpreter(await interpreterServer()),
          /The template code-interpreter-v1 is there already/,
        );
      });

      it("finds the kernel running, with the sandbox's environment, and keeps state and count from run to run", async () => {
        await using fresh = await newInterpreter();
        const startedMs = performance.now();
        const first = await fresh.runCode("1+1");
        const tookMs = performance.now() - startedMs;
        assert.equal(first.text, "2");
        assert.equal(first.executionCount, 1);
        assert.ok(tookMs < FIRST_RUN_MS, `the first run took ${tookMs.toFixed(0)} ms`);
        await fresh.runCode("x = 1");
        const third = await fresh.runCode("x += 1; x");
        assert.deepEqual([third.text, third.executionCount], ["2", 3]);
        const who = await fresh.runCode("import os; os.environ['E2B_SANDBOX_ID'], os.getcwd(), os.getuid()");
        assert.equal(who.text, `('${fresh.sandboxId}', '/home/user', 0)`);
      });

      it("gives variables to one run, over those of the sandbox, and takes them back", async () => {
        const ask = "import os; [os.environ.get(name) for name in ('FROM_CREATE', 'OWN')]";
        const envs = { FROM_CREATE: "other", OWN: `it's "quoted" \\ $x` };
        const during = await sandbox.runCode(ask, { envs });
        assert.deepEqual(during.results[0]?.json, Object.values(envs));
        const later = await sandbox.runCode(ask);
        assert.deepEqual(later.results[0]?.json, ["né", null]);
      });

      it("brings results in all their forms", async () => {
        const { results, text, error } = await sandbox.runCode(`
from IPython.display import display, HTML, Markdown, Latex, SVG, Javascript
for shown in (HTML("<b>h</b>"), Markdown("# m"), Latex("$x^2$"), SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'), Javascript("1")):
    display(shown)
display({"text/latex": "own"}, raw=True)
display({"application/vnd.own": 5}, raw=True)
{"a": [1, 2], 3: None}`);
        assert.equal(error, undefined);
        const [html, markdown, latex, svg, javascript, raw, own, value] = results as Result[];
        assert.equal(html?.html, "<b>h</b>");
        assert.equal(markdown?.markdown, "# m");
        assert.equal(latex?.latex, "$x^2$");
        assert.match(svg?.svg ?? "", /^<svg/);
        assert.equal(javascript?.javascript, "1");
        assert.deepEqual(raw?.formats(), ["latex"]);
        assert.deepEqual((own as Result).raw.extra, { "application/vnd.own": 5 });
        assert.deepEqual([value?.isMainResult, value?.json], [true, { a: [1, 2], "3": null }]);
        assert.equal(text, "{'a': [1, 2], 3: None}");
      });

      it("brings plots as PNG and as numbers, tables as data", async () => {
        const plot = await sandbox.runCode(
          "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='l'); plt.xlabel('t (s)'); plt.title('T'); plt.show()\n5",
        );
        assert.equal(plot.error, undefined);
        const [figure, five] = plot.results;
        assert.match(figure?.png ?? "", PNG);
        assert.equal(figure?.isMainResult, false);
        const { chart } = figure ?? {};
        assert.deepEqual([chart?.type, chart?.title], ["line", "T"]);
        assert.deepEqual(chart?.elements[0], {
          label: "l",
          points: [
            [1, 3],
            [2, 4],
          ],
        });
        assert.equal((chart as { x_unit?: string } | undefined)?.x_unit, "s");
        assert.equal(five?.text, "5");

        const table = await sandbox.runCode(
          "import pandas as pd; pd.DataFrame({'a': [1, 2], 't': pd.to_datetime(['2020-01-01', '2020-01-02'])})",
        );
        const [frame] = table.results;
        assert.deepEqual(frame?.data, { a: [1, 2], t: ["2020-01-01T00:00:00", "2020-01-02T00:00:00"] });
        assert.match(frame?.html ?? "", /<table/);
        const image = await sandbox.runCode("from PIL import Image; Image.new('RGB', (4, 4)).show()");
        assert.match(image.results[0]?.png ?? "", PNG);
      });

      it("brings errors with name, value and traceback, and goes on", async () => {
        const { error, results } = await sandbox.runCode("def f(): return 1/0\nf()");
        assert.deepEqual([error?.name, error?.value, results.length], ["ZeroDivisionError", "division by zero", 0]);
        assert.match(error?.traceback ?? "", /line 2[\s\S]*f\(\)[\s\S]*ZeroDivisionError: division by zero/);
        assert.ok(!error?.traceback.includes("\u001b"), "no colours");
        assert.match((await sandbox.runCode("if:")).error?.name ?? "", /^SyntaxError$/);
        assert.match((await sandbox.runCode("input()")).error?.name ?? "", /StdinNotImplementedError/);
        assert.equal((await sandbox.runCode("1")).text, "1");
      });

      it("streams output while it comes, in order, and loses none of much", async () => {
        const seen: OutputMessage[] = [];
        const atMs: number[] = [];
        const note = (message: OutputMessage): void => {
          seen.push(message);
          atMs.push(performance.now());
        };
        const code = "import sys, time\nprint('a', flush=True); time.sleep(1); print('b', file=sys.stderr)";
        const { logs } = await sandbox.runCode(code, { onStdout: note, onStderr: note });
        assert.deepEqual([logs.stdout, logs.stderr], [["a\n"], ["b\n"]]);
        assert.deepEqual(
          seen.map(({ line, error }) => [line, error]),
          [
            ["a\n", false],
            ["b\n", true],
          ],
        );
        assert.ok((atMs[1] ?? 0) - (atMs[0] ?? 0) > 500, "came together");
        const many = await sandbox.runCode("for i in range(300): display(i)\nprint('x' * 5_000_000)");
        assert.deepEqual(
          many.results.map(({ text }) => Number(text)),
          Array.from({ length: 300 }, (_, at) => at),
        );
        assert.equal(many.logs.stdout.join("").length, 5_000_001);
      });

      it("interrupts what nobody listens to any more, and keeps the state", async () => {
        await sandbox.runCode("kept = 5");
        await assert.rejects(
          sandbox.runCode("import time; time.sleep(300)", { timeoutMs: 500 }),
          /Execution timed out/,
        );
        const after = await sandbox.runCode("kept", { timeoutMs: 20_000 });
        assert.equal(after.text, "5");
        await assert.rejects(sandbox.runCode(STUBBORN, { timeoutMs: 300 }), /Execution timed out/);
        assert.equal((await sandbox.runCode("kept", { timeoutMs: 20_000 })).text, "5");
        // One that only waits for its turn is not run at all.
        const begun = Promise.withResolvers<void>();
        const long = sandbox.runCode("print('begun', flush=True); time.sleep(0.6); 'long'", {
          onStdout: () => begun.resolve(),
        });
        await begun.promise;
        await assert.rejects(sandbox.runCode("kept = 6", { timeoutMs: 300 }), /Execution timed out/);
        assert.equal((await long).text, "long");
        assert.equal((await sandbox.runCode("kept")).text, "5");
      });

      it("keeps contexts apart: made, listed, restarted, removed", async () => {
        const names = (await sandbox.listCodeContexts()).map(({ language }) => language);
        assert.deepEqual(names.slice(0, 2), ["python", "javascript"]);
        const context = await sandbox.createCodeContext({ cwd: "/usr/lib" });
        assert.deepEqual([context.language, context.cwd], ["python", "/usr/lib"]);
        assert.deepEqual((await sandbox.listCodeContexts()).at(-1), context);
        await sandbox.runCode("apart = 1", { context });
        const here = await sandbox.runCode("import os; os.getcwd()", { context });
        assert.deepEqual([here.text, here.executionCount], ["/usr/lib", 2]);
        assert.equal((await sandbox.runCode("apart")).error?.value, "name 'apart' is not defined");
        const both = [context, undefined].map((each) =>
          sandbox.runCode("import time; time.sleep(1)", each && { context: each }),
        );
        const startedMs = performance.now();
        await Promise.all(both);
        assert.ok(performance.now() - startedMs < 1_900, "contexts run side by side");

        await sandbox.restartCodeContext(context.id);
        const anew = await sandbox.runCode("apart", { context });
        assert.deepEqual([anew.error?.name, anew.executionCount], ["NameError", 1]);
        await sandbox.removeCodeContext(context);
        assert.ok(!(await sandbox.listCodeContexts()).some(({ id }) => id === context.id));
        await assert.rejects(sandbox.runCode("1", { context }), new RegExp(`Context ${context.id} not found`));
        await assert.rejects(sandbox.removeCodeContext("nope"), { name: "NotFoundError" });
        await assert.rejects(sandbox.createCodeContext({ cwd: "/nope" }), /400/);
      });

      it("removes and restarts contexts whatever their kernels are doing, and leaves no kernel", async () => {
        const kernels = async (): Promise<string> => await output(sandbox, "pgrep -fc '[a]env_kernel'");
        const before = await kernels();
        const known = new Set((await sandbox.listCodeContexts()).map(({ id }) => id));
        const made = async (): Promise<string | undefined> =>
          (await sandbox.listCodeContexts()).find(({ id }) => !known.has(id))?.id;

        // While it starts: it is listed before its kernel answers.
        const starting = assert.rejects(sandbox.createCodeContext(), { name: "NotFoundError" });
        await until("the context that starts", async () => (await made()) !== undefined);
        await sandbox.removeCodeContext((await made()) ?? "");
        await starting;

        // While it runs what does not end by itself, with variables to take back afterwards and another run behind it.
        const context = await sandbox.createCodeContext();
        const restarts = [context.id, context.id].map((id) => sandbox.restartCodeContext(id));
        await Promise.all(restarts);
        const printed = Promise.withResolvers<void>();
        const onStdout = () => printed.resolve();
        const running = sandbox.runCode(STUBBORN, { context, envs: { OWN: "o" }, onStdout });
        await printed.promise;
        const waiting = sandbox.runCode("1", { context }).then(
          (run) => run.error?.name,
          (refused: Error) => refused.name,
        );
        await sandbox.removeCodeContext(context);
        const { error } = await running;
        assert.deepEqual([error?.name, error?.value], ["ContextRemoved", `context ${context.id} was removed`]);
        // It had come to wait there, or came too late for that.
        assert.match((await waiting) ?? "", /^(ContextRemoved|NotFoundError)$/);
        assert.equal(await kernels(), before);
      });

      it("runs Bash, JavaScript and TypeScript, and says what there is when asked for another", async () => {
        const bash = { language: "bash" };
        // Their kernels start side by side.
        const typed = sandbox.runCode("const message: string = 'typed'; message", { language: "ts" });
        const first = sandbox.runCode("const a = 5; console.log('hi'); await Promise.resolve(a + 1)", {
          language: "js",
        });
        const said = await sandbox.runCode("cd /usr; echo $FROM_CREATE $OWN", { ...bash, envs: { OWN: "it's" } });
        assert.deepEqual(said.logs.stdout, ["né it's\n"]);
        assert.deepEqual((await sandbox.runCode("pwd; printenv OWN || echo none", bash)).logs.stdout, [
          "/usr\n",
          "none\n",
        ]);
        assert.equal((await sandbox.runCode("false", bash)).error?.value, "1");

        const js = { language: "js" };
        const { text, logs, error } = await first;
        assert.deepEqual([text, logs.stdout, error], ["6", ["hi\n"], undefined]);
        assert.equal(
          (await sandbox.runCode("process.cwd() + a + process.env.OWN", { ...js, envs: { OWN: "o" } })).text,
          "/home/user5o",
        );
        const thrown = await sandbox.runCode("throw new TypeError('no')", js);
        assert.deepEqual([thrown.error?.name, thrown.error?.value], ["TypeError", "no"]);
        assert.equal((await sandbox.runCode("a")).error?.name, "NameError");
        assert.equal((await typed).text, "typed");
        // The SDK does not show bodies of other errors than 404 and 502.
        await assert.rejects(sandbox.runCode("1", { language: "cobol" }), /400 Bad Request/);
        const body = await sandbox.commands.run(
          `curl -s localhost:49999/execute -H "X-Access-Token: $TOKEN" -d '{"code": "1", "language": "cobol"}'`,
          { envs: { TOKEN: (sandbox as unknown as { envdAccessToken: string }).envdAccessToken } },
        );
        assert.equal(
          body.stdout,
          "language 'cobol' has no kernel in this sandbox; there are: bash, javascript, python, typescript",
        );
      });

      it("refuses code without the sandbox's token, before it has read it, and long bodies without code", async () => {
        // The body never comes.
        assert.equal(
          await output(sandbox, "curl -sm 5 -w ' %{http_code}' localhost:49999/execute -H 'Content-Length: 9999' -d x"),
          "unauthorized: the X-Access-Token header is missing or wrong 401",
        );
        const long = "head -c 99999 /dev/zero | curl -s -w ' %{http_code}' --data-binary @- localhost:49999/contexts";
        assert.match(await output(sandbox, long), / 413$/);
      });

      it("says that a kernel ended and starts another; comes back when the server itself is killed", async () => {
        const ended = await sandbox.runCode("import os; os._exit(3)");
        assert.equal(ended.error?.name, "KernelEnded");
        assert.match(ended.error?.value ?? "", /ended with status 3 and its state is lost/);
        assert.deepEqual([(await sandbox.runCode("1+1")).text, (await sandbox.runCode("2")).executionCount], ["2", 2]);
        const running = "pgrep -fc 'm interpreter$'; pgrep -fc '[a]env_kernel'";
        await sandbox.commands.run("pkill -9 -f 'm interpreter$'", { user: "root" });
        const isHealthy = async () => (await sandbox.runCode("1+1").catch(() => undefined))?.text === "2";
        await until("the server again", isHealthy, 60_000);
        // Nothing of the old one is left: its kernels ended with it.
        assert.equal((await sandbox.commands.run(running, { user: "root" })).stdout, "1\n1\n");
      });

      it("SNAP-01: copies of one moment do not repeat each other's random numbers, and keep the state", async () => {
        const ask =
          "import random, numpy.random; kept, random.random(), numpy.random.rand(), os.environ['E2B_SANDBOX_ID']";
        await using one = await newInterpreter();
        await using two = await newInterpreter();
        const draw = "import random; random.random()";
        assert.notEqual((await one.runCode(draw)).text, (await two.runCode(draw)).text);

        await one.runCode("import os, numpy; kept = 7");
        const [fork] = await one.fork();
        if (fork === undefined || fork instanceof Error) throw new Error("no fork", { cause: fork });
        try {
          const values = [await one.runCode(ask), await fork.runCode(ask)].map((run) =>
            run.text?.slice(1, -1).split(", "),
          );
          const [[kept, random, numpy, id] = [], [kept2, random2, numpy2, id2] = []] = values;
          assert.deepEqual([kept, kept2], ["7", "7"]);
          assert.notEqual(random, random2);
          assert.notEqual(numpy, numpy2);
          assert.deepEqual([id, id2], [`'${one.sandboxId}'`, `'${fork.sandboxId}'`]);
        } finally {
          await fork.kill();
        }
      });

      it("goes on after a pause where it was", async () => {
        await using paused = await newInterpreter();
        await paused.runCode("x = 41");
        await paused.pause();
        await paused.connect();
        const { text, executionCount } = await paused.runCode("x + 1");
        assert.deepEqual([text, executionCount], ["42", 2]);
      });
    });

    describe("the stock Python code interpreter SDK", { timeout: 120_000 }, () => {
      it("passes interpreter.py", async (t) => {
        await runScenario(await interpreterServer(), "interpreter.py", 6, t);
      });
    });
  });
});
