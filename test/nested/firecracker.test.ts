import { driverSuite } from "../../src/driver/testing.ts";
import { openLinuxBench } from "./linux-bench.ts";

// Its guests start a dozen times; one of firecracker-guest.test.ts has all modules.
driverSuite("firecracker", () => openLinuxBench("needed"));
