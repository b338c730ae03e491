import asyncio, os
from e2b import AsyncSandbox

async def main():
    sandbox = await AsyncSandbox.create("base", timeout=60)
    assert sandbox.sandbox_domain == os.environ["E2B_DOMAIN"], sandbox.sandbox_domain
    results = await asyncio.gather(*(sandbox.commands.run(f"echo {at}") for at in range(40)))
    assert [int(result.stdout) for result in results] == list(range(40))
    large = "x" * (8 * 1024 * 1024)
    await sandbox.files.write("large", large)
    assert await sandbox.files.read("large") == large
    await sandbox.kill()
    assert not await sandbox.is_running()

asyncio.run(main())
print("done", flush=True)
# The SDK's HTTP library may crash while the interpreter is taken down, which is none of what is tested.
os._exit(0)
