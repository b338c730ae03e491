import { type Agent, type IncomingMessage, request } from "node:http";
import { buffer } from "node:stream/consumers";
import { create, type DescMessage, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";

/**
 * Calls of blobd, by the Connect protocol. A call is one plain request, its answer one message: the library's way, which is
 * made for streams, takes Node three times as long, and a pause waits for four of them. What streams, or has limits of its
 * own, is left to the library.
 */
export function blobdTransport(socketPath: string, agent: Agent): Transport {
  const library = createConnectTransport({
    baseUrl: "http://blobd",
    httpVersion: "1.1",
    nodeOptions: { agent, socketPath },
    // The two are on one machine: to press an answer takes longer than to pass it on.
    acceptCompression: [],
  });
  return {
    stream: (...call) => library.stream(...call),
    unary: async (method, signal, timeoutMs, header, input, values) => {
      if (signal !== undefined || timeoutMs !== undefined || header !== undefined)
        return await library.unary(method, signal, timeoutMs, header, input, values);
      const path = `/${method.parent.typeName}/${method.name}`;
      const response = await post({ socketPath, agent, path }, encoded(method.input, input));
      const body = await buffer(response);
      if (response.statusCode !== 200) throw errorOf(response.statusCode ?? 0, body);
      const message = fromBinary(method.output, body);
      return {
        stream: false,
        service: method.parent,
        method,
        header: new Headers(),
        trailer: new Headers(),
        message,
      };
    },
  };
}

function encoded<I extends DescMessage>(schema: I, input: MessageInitShape<I>): Uint8Array {
  return toBinary(schema, create(schema, input));
}

function post(
  to: { readonly socketPath: string; readonly agent: Agent; readonly path: string },
  body: Uint8Array,
): Promise<IncomingMessage> {
  const headers = {
    "content-type": "application/proto",
    "content-length": body.byteLength,
    "connect-protocol-version": "1",
  };
  return new Promise((resolve, reject) => {
    const outgoing = request({ ...to, method: "POST", headers }, resolve);
    outgoing.once("error", reject);
    outgoing.end(body);
  });
}

/** What the protocol says of a call that failed: `{"code": "not_found", "message": "…"}`. */
function errorOf(status: number, body: Buffer): ConnectError {
  try {
    const { code, message } = JSON.parse(body.toString()) as { readonly code?: string; readonly message?: string };
    return new ConnectError(message ?? "", codeOf(code));
  } catch {
    return new ConnectError(`HTTP ${status}: ${body.toString().slice(0, 200)}`, Code.Unknown);
  }
}

/** `not_found` is the wire's name of `NotFound`. */
function codeOf(wire = ""): Code {
  const name = wire.replace(/(?:^|_)(\w)/g, (_, first: string) => first.toUpperCase());
  return Object.hasOwn(Code, name) ? Code[name as keyof typeof Code] : Code.Unknown;
}
