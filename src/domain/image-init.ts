import type { ImageConfig } from "./image.ts";

/** Programs that run a whole system as its first process, by where images put them: sysvinit's and systemd's own path and
 *  those of systemd, s6-overlay, OpenRC, runit and s6. Wrappers of one command (tini, dumb-init) are none. */
const INITS = new Set([
  "/init",
  "/sbin/init",
  "/usr/sbin/init",
  "/bin/init",
  "/bin/systemd",
  "/usr/bin/systemd",
  "/lib/systemd/systemd",
  "/usr/lib/systemd/systemd",
  "/sbin/openrc-init",
  "/usr/sbin/openrc-init",
  "/sbin/runit",
  "/sbin/runit-init",
  "/usr/sbin/runit-init",
  "/bin/s6-svscan",
  "/usr/bin/s6-svscan",
]);

/** The command line of an image whose command is an init of its own, which has to be process 1; else undefined. */
export function ownInit({ entrypoint, cmd }: Pick<ImageConfig, "entrypoint" | "cmd">): readonly string[] | undefined {
  const argv = [...entrypoint, ...cmd];
  return INITS.has(argv[0] ?? "") ? argv : undefined;
}
