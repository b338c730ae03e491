import type { Command } from "../command.ts";
import type { Context } from "../context.ts";
import { DEFAULT_URL, parseKey, readCredentials, saveCredentials } from "../credentials.ts";
import { CliError, EXIT } from "../errors.ts";
import { parseServerUrl } from "../http.ts";
import { Prompter } from "../prompt.ts";

export const auth: Command = {
  name: "auth",
  aliases: [],
  summary: "log in: save the server's URL and an API key",
  args: [],
  options: [],
  examples: [
    "aenv auth                                      ask for both",
    "aenv auth --url http://127.0.0.1:8000 --key K  ask nothing",
    "sudo cat /var/lib/aenv/api-key | aenv auth     the key from standard input, out of the process list",
  ],
  details: `The server is asked first; nothing is saved that it does not accept. The file is
$XDG_CONFIG_HOME/aenv/credentials (~/.config/aenv/credentials), readable by you alone.
AENV_URL and AENV_API_KEY take the place of the questions.`,
  async run(context) {
    const { url, key } = await answers(context);
    const api = await context.connectTo(url, key);
    await api.check();
    await saveCredentials(context.credentialsPath, { url, key });
    if (context.json) await context.out.json({ url, credentialsFile: context.credentialsPath });
    else await context.out.line(`Logged in to ${url} (saved in ${context.credentialsPath}).`);
    return EXIT.ok;
  },
};

async function answers(context: Context): Promise<{ url: string; key: string }> {
  const { io, globals } = context;
  const knownUrl = globals.url ?? (io.env.AENV_URL || undefined);
  const knownKey = globals.key ?? (io.env.AENV_API_KEY || undefined);
  // What is wrong already is said before anything is asked.
  if (knownUrl !== undefined) parseServerUrl(knownUrl);
  if (knownKey !== undefined) parseKey(knownKey);
  const suggested = async (): Promise<string> => (await readCredentials(context.credentialsPath)).url ?? DEFAULT_URL;
  const interactive = io.stdin.isTTY === true;
  await using prompter = new Prompter(io);
  const url = knownUrl ?? (interactive ? await prompter.ask("Server URL", await suggested()) : await suggested());
  const server = parseServerUrl(url);
  const key = knownKey ?? (interactive ? await prompter.askHidden("API key") : await prompter.readLine());
  if (key.trim() === "") {
    throw new CliError(EXIT.usage, "no API key was given", {
      hint: "use --key, AENV_API_KEY or standard input; on the server's machine it lies in /var/lib/aenv/api-key",
    });
  }
  return { url: server, key: parseKey(key) };
}
