import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort, until } from "../e2e/start.ts";
import { MissingError } from "./figure.ts";

/** nginx with one worker, which passes everything on to one address and holds nothing back. */
export class Nginx {
  readonly url: string;
  /** Of the one that does the work. */
  readonly workerPid: number;
  readonly #process: ChildProcess;
  readonly #dir: string;

  private constructor(url: string, workerPid: number, process: ChildProcess, dir: string) {
    this.url = url;
    this.workerPid = workerPid;
    this.#process = process;
    this.#dir = dir;
  }

  /** Throws MissingError when there is none here. */
  static async start(upstream: string): Promise<Nginx> {
    const program = process.env.AENV_BENCH_NGINX ?? "";
    if (program === "") throw new MissingError("no nginx");
    const dir = mkdtempSync(join(tmpdir(), "aenv-nginx-"));
    const port = await freePort();
    const file = join(dir, "nginx.conf");
    writeFileSync(file, configuration(dir, port, upstream));
    const child = spawn(program, ["-p", dir, "-e", join(dir, "error.log"), "-c", file], {
      stdio: ["ignore", "ignore", "inherit"],
    });
    await until("nginx", () => answers(port));
    const { pid = 0 } = child;
    const [worker = 0] = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim().split(" ").map(Number);
    return new Nginx(`http://127.0.0.1:${port}`, worker, child, dir);
  }

  async close(): Promise<void> {
    this.#process.kill("SIGTERM");
    if (this.#process.exitCode === null) await once(this.#process, "exit");
    rmSync(this.#dir, { recursive: true });
  }
}

function configuration(dir: string, port: number, upstream: string): string {
  const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    .map((name) => `${name}_temp_path ${join(dir, name)};`)
    .join(" ");
  // Sandboxes answer root of this machine alone, so the worker has to be root as well.
  return `daemon off; user root; worker_processes 1; pid ${join(dir, "pid")};
events { worker_connections 4096; }
http {
  access_log off; ${temporary}
  client_max_body_size 0; keepalive_requests 100000000;
  proxy_buffering off; proxy_request_buffering off; proxy_http_version 1.1; proxy_read_timeout 1h;
  map $http_upgrade $connection_to_send { default upgrade; '' ''; }
  upstream sandbox { server ${upstream}; keepalive 64; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:${port};
    location / {
      proxy_pass http://sandbox;
      proxy_set_header Connection $connection_to_send;
      proxy_set_header Upgrade $http_upgrade;
    }
  }
}
`;
}

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
    socket.once("connect", () => socket.destroy());
  });
}
