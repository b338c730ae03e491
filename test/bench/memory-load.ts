import { GuestClient } from "./guest.ts";

/** Has a process in a sandbox hold so much memory, no two pages of which are alike; returns once it does. */
export async function holdMemory(
  agentUrl: string,
  residentMib: number,
  headers: Readonly<Record<string, string>>,
): Promise<void> {
  const guest = new GuestClient(agentUrl, headers);
  await guest.spawn(`exec python3 -u -c '
import os, time
held = bytearray(${residentMib} << 20)
for at in range(0, len(held), 1 << 20):
    held[at : at + (1 << 20)] = os.urandom(1 << 20)
print("held")
time.sleep(3600)
'`);
  guest.close();
}
