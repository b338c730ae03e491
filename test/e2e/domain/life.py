import os
from e2b import Sandbox

with Sandbox.create("base", timeout=60) as sandbox:
    assert sandbox.sandbox_domain == os.environ["E2B_DOMAIN"], sandbox.sandbox_domain
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    large = "x" * (8 * 1024 * 1024)
    sandbox.files.write("large", large)
    assert sandbox.files.read("large") == large
    assert sandbox.get_host(8000) == f"8000-{sandbox.sandbox_id}.{os.environ['E2B_DOMAIN']}"
    assert sandbox.is_running()
    sandbox.kill()
    assert not sandbox.is_running()
print("done", flush=True)
# The SDK's HTTP library may crash while the interpreter is taken down, which is none of what is tested.
os._exit(0)
