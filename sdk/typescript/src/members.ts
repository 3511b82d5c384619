/** Members of a workspace and their sessions. */

import { checked } from "./check.js";
import { type JsonObject, needText, withCamelCase, type WireRecord } from "./models.js";
import type { Transport } from "./transport.js";
import { type Call, del, get, given, post, segment } from "./wire.js";

/** A person with a role in the workspace. */
export type Member = WireRecord<{
  id: string;
  email?: string;
  name?: string;
  /** The login provider's identifier of the person. */
  subject?: string;
  /** `viewer`, `developer` or `owner`. */
  role: string;
  /** Whether the role comes from groups of the login provider. */
  from_groups?: boolean;
  /** Whether the person may also manage the installation. */
  operator?: boolean;
  created_at?: string;
  last_sign_in_at?: string;
}>;

/** A sign-in of a member that has not ended. */
export type MemberSession = WireRecord<{
  id: string;
  /** ID of the member. */
  member: string;
  /** Email address or subject of the person. */
  label?: string;
  /** Browser or device. */
  client?: string;
  role?: string;
  created_at?: string;
  last_used_at?: string;
  expires_at?: string;
}>;

/** Who to add: `email`, `subject` or both. */
export interface AddMemberOptions {
  email?: string;
  /** The login provider's identifier of the person. */
  subject?: string;
  /** Default: `developer`. */
  role?: "viewer" | "developer" | "owner";
}

/** `client.members`: people who sign in through the login provider. Every call requires an owner key. */
export class MembersAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** List members, oldest first. */
  async list(): Promise<Member[]> {
    return (await this.#transport.send(get("/members"))).records("members").map(member);
  }

  /** Add a person to the workspace. */
  async add(options: AddMemberOptions): Promise<Member> {
    const { email, subject, role } = options;
    return this.#member(post("/members", given({ email, subject, role })));
  }

  /** Change a member's role. Applies to open sessions, too. */
  async setRole(id: string, role: "viewer" | "developer" | "owner"): Promise<Member> {
    return this.#member({ ...post(`/members/${segment(id, "member id")}`, { role }), method: "PATCH" });
  }

  /** Remove a member. Their sessions end; API keys that they created stay. */
  async remove(id: string): Promise<void> {
    await this.#transport.send(del(`/members/${segment(id, "member id")}`));
  }

  /** List sessions of members, newest first. */
  async sessions(): Promise<MemberSession[]> {
    const records = (await this.#transport.send(get("/members/sessions"))).records("sessions");
    return records.map((record) =>
      withCamelCase({
        ...record,
        id: needText(record, "id", "a session"),
        member: String(record.member ?? ""),
      }),
    );
  }

  /** Revoke a session. It ends immediately. */
  async revoke(sessionId: string): Promise<void> {
    await this.#transport.send(del(`/members/sessions/${segment(sessionId, "session id")}`));
  }

  async #member(call: Call): Promise<Member> {
    return member((await this.#transport.send(call)).record());
  }
}

checked({ MembersAPI });

function member(record: JsonObject): Member {
  const id = needText(record, "id", "a member");
  return withCamelCase({ ...record, id, role: String(record.role ?? "") });
}
