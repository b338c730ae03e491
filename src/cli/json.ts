/** From here on nothing is indented: the white space of a list in a list in a list, thousands deep, would outgrow all else. */
const INDENTED_LEVELS = 64;

interface Open {
  readonly members: readonly (readonly [name: string, value: unknown])[];
  readonly isList: boolean;
  at: number;
}

/** As `JSON.stringify` with an indent of two writes what came from JSON, but however deep it is: no call for each level. */
export function formatJson(root: unknown): string {
  const pieces: string[] = [];
  const open: Open[] = [];
  const begin = (value: unknown): void => {
    const members = membersOf(value);
    if (members.length === 0) pieces.push(JSON.stringify(value) ?? "null");
    else {
      const isList = Array.isArray(value);
      pieces.push(isList ? "[" : "{");
      open.push({ members, isList, at: 0 });
    }
  };
  begin(root);
  for (let inner = open.at(-1); inner !== undefined; inner = open.at(-1)) {
    const { members, isList, at } = inner;
    const member = members[at];
    if (member === undefined) {
      open.pop();
      pieces.push(lineBreak(open.length), isList ? "]" : "}");
      continue;
    }
    inner.at += 1;
    const [name, value] = member;
    pieces.push(at === 0 ? "" : ",", lineBreak(open.length));
    if (!isList) pieces.push(JSON.stringify(name), open.length > INDENTED_LEVELS ? ":" : ": ");
    begin(value);
  }
  return pieces.join("");
}

/** Empty: it is written at once. */
function membersOf(value: unknown): Open["members"] {
  if (typeof value !== "object" || value === null) return [];
  if (Array.isArray(value)) return value.map((member) => ["", member]);
  return Object.entries(value).filter(([, member]) => member !== undefined);
}

function lineBreak(level: number): string {
  return level > INDENTED_LEVELS ? "" : `\n${"  ".repeat(level)}`;
}
