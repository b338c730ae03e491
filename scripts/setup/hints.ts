import type { Access } from "./prove.ts";

/** What to type next, with the real address and key. */
export function nextSteps({ url, key }: Access): string {
  return `
Ready at ${url}. What to type next:

  ./bin/aenv start base                 a sandbox, and a shell in it
  ./bin/aenv ls                         what there is
  ./bin/aenv exec ID python3 -V         a command in one
  ./bin/aenv pause ID                   and resume, fork, delete
  npm run status                        processes, ports, logs, disk
  npm run down                          pause all sandboxes and stop

With E2B's SDKs, unchanged:

  export E2B_API_URL=${url} E2B_SANDBOX_URL=${url} E2B_API_KEY=${key}

  pip install e2b                       # Python
  python3 -c 'from e2b import Sandbox; s = Sandbox.create(); print(s.commands.run("uname -a").stdout); s.kill()'

  npm install e2b                       # TypeScript
  node --input-type=module -e 'import { Sandbox } from "e2b"; const s = await Sandbox.create(); console.log((await s.commands.run("uname -a")).stdout); await s.kill()'
`;
}
