import { driverSuite } from "../../src/driver/testing.ts";
import { openLinuxBench } from "./linux-bench.ts";

// Its guests start a dozen times; those of firecracker-guest.test.ts have all modules.
driverSuite("firecracker", () => openLinuxBench("needed"));
