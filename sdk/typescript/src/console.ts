/** Sessions of the web console. */

import { checked } from "./check.js";
import type { JsonObject, MeInfo } from "./models.js";
import type { Transport } from "./transport.js";
import { del, get, post, segment } from "./wire.js";

/** A console session of one browser. */
export interface ConsoleSession extends JsonObject {
  id: string;
  token_prefix: string;
  browser: string;
  created_at: string;
  last_used_at: string;
  expires_at: string;
}

/** The login provider of a server. */
export interface LoginProvider extends JsonObject {
  /** Name to show. */
  name: string;
  /** Address at which a browser starts to sign in. */
  url: string;
}

/** `client.console`: for pages that the server itself serves, with a client made with `session: true`. */
export class ConsoleAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Sign in with an API key. The browser gets a cookie; the key is not stored. */
  async signIn(apiKey: string): Promise<MeInfo> {
    return (await this.#transport.send(post("/console/session", { api_key: apiKey }))).record();
  }

  /** The login provider; `undefined` if people sign in with API keys only. Needs no session. */
  async loginProvider(): Promise<LoginProvider | undefined> {
    const { provider } = (await this.#transport.send(get("/login"))).record();
    return provider as LoginProvider | undefined;
  }

  /** Sign out: the session ends. */
  async signOut(): Promise<void> {
    await this.#transport.send(del("/console/session"));
  }

  /** List the workspace's sessions, newest first. Requires an owner key. */
  async sessions(): Promise<ConsoleSession[]> {
    return (await this.#transport.send(get("/console/sessions"))).records("items") as ConsoleSession[];
  }

  /** Revoke a session; it ends immediately. Requires an owner key. */
  async revoke(id: string): Promise<void> {
    await this.#transport.send(del(`/console/sessions/${segment(id, "session id")}`));
  }
}

checked({ ConsoleAPI });
