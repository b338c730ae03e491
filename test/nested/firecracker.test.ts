import { driverSuite } from "../../src/driver/testing.ts";
import { openLinuxBench } from "./linux-bench.ts";

driverSuite("firecracker", openLinuxBench);
