import { connect } from "node:net";
import { commandLine, processIds } from "#lib/proc";

/** Jailer and Firecracker both have their jail's id on their command lines. */
export function isOf(pid: number, id: string): boolean {
  const args = commandLine(pid);
  const at = args.indexOf("--id");
  return at >= 0 && args[at + 1] === id;
}

export function processesOf(id: string): number[] {
  return processIds().filter((pid) => isOf(pid, id));
}

/** Whether somebody listens at a unix socket. */
export function accepts(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    socket.once("connect", () => {
      socket.destroy();
      resolve(true);
    });
    socket.once("error", () => resolve(false));
  });
}
