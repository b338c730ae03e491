import type { Access } from "./prove.ts";
import type { Tls } from "./server.ts";

/** What to type next, with the real address and key. */
export function nextSteps({ url, key }: Access, tls: Tls | undefined): string {
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
${tls === undefined ? "" : byNames(tls, key)}`;
}

/** What SDKs need to find everything by names, `getHost()` and signed URLs too. */
function byNames({ domain, port, address, authority }: Tls, key: string): string {
  const trust =
    authority === undefined
      ? ""
      : `
  export NODE_EXTRA_CA_CERTS=${authority} SSL_CERT_FILE=${authority}`;
  return `
Or by names, over TLS, so that getHost(PORT) and signed URLs work as well:

  export E2B_DOMAIN=${domain}:${port} E2B_API_KEY=${key}${trust}

  Every name below ${domain} has to lead to ${address}. One of:
    systemd-resolved   ${resolvedHint(domain)}
    dnsmasq            address=/${domain}/${address}
`;
}

function resolvedHint(domain: string): string {
  if (domain.endsWith(".localhost")) return "does so by itself";
  return "cannot; use dnsmasq, or a wildcard record in your DNS";
}
