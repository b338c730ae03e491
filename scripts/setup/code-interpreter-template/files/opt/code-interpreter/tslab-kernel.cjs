/**
 * The kernel of JavaScript and TypeScript: tslab, put together so that the value of a run is a result and a failure an error; by
 * itself it prints both. Arguments: `javascript` or `typescript`, and Jupyter's connection file.
 */
const { format, inspect } = require("node:util");
const { createConverter } = require("tslab/dist/converter.js");
const { createExecutor } = require("tslab/dist/executor.js");
const { JupyterHandlerImpl, ZmqServer } = require("tslab/dist/jupyter.js");
const { display } = require("tslab/dist/public.js");

/** What the server (interpreter/output.py) takes for the value of a run, and for its failure. */
const VALUE = "application/vnd.aenv.value";
const FAILURE = "application/vnd.aenv.failure";

const [, , language, connectionFile] = process.argv;
const isJS = language === "javascript";

const node = createConverter({ isJS, isBrowser: false });
let browser;
const converters = {
  node,
  /** For code that says it is for a browser; it takes seconds to make. */
  get browser() {
    browser ??= createConverter({ isJS, isBrowser: true });
    return browser;
  },
  close() {
    node.close();
    browser?.close();
  },
};

/** @param {unknown[]} said an exception, or a complaint of the compiler as a format and its values */
function fail(...said) {
  const [thrown] = said;
  const failure =
    thrown instanceof Error
      ? { name: thrown.name, value: thrown.message, traceback: thrown.stack ?? "" }
      : { name: said.length > 1 ? "CompileError" : "Error", value: format(...said), traceback: "" };
  display.raw(FAILURE, JSON.stringify(failure));
}

const executor = createExecutor(process.cwd(), converters, {
  log: (value) => display.raw(VALUE, typeof value === "string" ? value : inspect(value)),
  error: fail,
});

const handler = new JupyterHandlerImpl(
  {
    ...executor,
    async execute(source) {
      await executor.execute(source);
      // It has been said; after what it takes for a failure the handler would refuse runs for a while.
      return true;
    },
  },
  isJS,
);

process.on("SIGINT", () => executor.interrupt());
process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);
new ZmqServer(handler, connectionFile).init();
