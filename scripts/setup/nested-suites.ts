import { globSync } from "node:fs";
import { root } from "./node.js";

/** Files of tests that have a machine to themselves. */
export interface Suite {
  readonly name: string;
  readonly files: readonly string[];
  /** Variables of the environment without which it is left out; those that others need are none of its inputs. */
  readonly needs: readonly string[];
  /** Beginnings of the names of the tests that are run, for a file of which most is too slow here. */
  readonly only?: readonly string[];
}

const FIRECRACKER = [
  ...["AENV_TEST_FIRECRACKER", "AENV_TEST_JAILER"],
  ...["AENV_TEST_GUEST_KERNEL", "AENV_TEST_GUEST_INITRD"],
];
/** The driver suite, and what meets the kernel's cgroups; the rest of gVisor's tests run on the host only. */
const GVISOR: Suite = {
  name: "gvisor",
  files: ["test/host/gvisor-driver.test.ts"],
  needs: ["AENV_TEST_RUNSC"],
  only: [
    "driver gvisor",
    "every process of a machine is inside its cgroup",
    "memory that no process holds ends the machine",
  ],
};
/** The longest one. The other files of `test/nested` share a machine: to start one, and Node in it, takes as much as some tests. */
const DRIVER_SUITE = "test/nested/firecracker.test.ts";

/** All of them, the one that takes longest first. */
export function suites(): Suite[] {
  const others = globSync("test/nested/**/*.test.ts", { cwd: root }).filter((file) => file !== DRIVER_SUITE);
  return [
    { name: "firecracker", files: [DRIVER_SUITE], needs: FIRECRACKER },
    GVISOR,
    { name: "guests", files: others.sort(), needs: FIRECRACKER },
  ];
}

/** Of Node, which runs the tests itself: starting another process costs seconds there. */
export function testOptions({ only = [] }: Suite, name: string | undefined): string[] {
  const patterns = name === undefined ? only.map((start) => `^${start}`) : [name];
  return ["--test-reporter=spec", ...patterns.map((pattern) => `--test-name-pattern=${pattern}`)];
}
