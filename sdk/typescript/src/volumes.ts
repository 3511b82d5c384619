/** Volumes: durable disks that outlive sandboxes. */

import { checked } from "./check.js";
import { type JsonObject, needText, type VolumeInfo, withCamelCase } from "./models.js";
import type { Transport } from "./transport.js";
import { type Call, del, get, given, MACHINE_MS_MAX, post, segment } from "./wire.js";

/** `client.volumes`. Attach one with `sandboxes.create({ volumes: [{ name, path }] })`. */
export class VolumesAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Create an empty volume. Space is allocated as data is written. */
  async create(name: string, sizeMb: number, options: { protected?: boolean } = {}): Promise<VolumeInfo> {
    return this.#volume(post("/volumes", given({ name, size_mb: sizeMb, ...options }), MACHINE_MS_MAX));
  }

  /** List volumes by name. */
  async list(): Promise<VolumeInfo[]> {
    return (await this.#transport.send(get("/volumes"))).records("volumes").map(volumeInfo);
  }

  /** Get a volume and the sandbox that uses it. */
  async get(name: string): Promise<VolumeInfo> {
    return this.#volume(get(path(name)));
  }

  /** Grow a volume. A running sandbox that uses it sees the new size immediately. */
  async grow(name: string, sizeMb: number): Promise<VolumeInfo> {
    return this.#volume(post(path(name, "/grow"), { size_mb: sizeMb }, MACHINE_MS_MAX));
  }

  /** Clone a volume at one point in time, even while a sandbox writes to it. */
  async clone(name: string, copy: string): Promise<VolumeInfo> {
    return this.#volume(post(path(name, "/clone"), { name: copy }, MACHINE_MS_MAX));
  }

  /** Take a snapshot of a volume: a read-only copy that can be cloned. */
  async snapshot(name: string, snapshot?: string): Promise<VolumeInfo> {
    return this.#volume(post(path(name, "/snapshot"), given({ name: snapshot }), MACHINE_MS_MAX));
  }

  /** Change a volume's deletion protection, or whether it is deleted with its sandbox. */
  async update(name: string, change: { protected?: boolean; deleteWithSandbox?: boolean }): Promise<VolumeInfo> {
    const body = given({ protected: change.protected, delete_with_sandbox: change.deleteWithSandbox });
    return this.#volume({ ...post(path(name), body), method: "PATCH" });
  }

  /** Delete a volume and its data. Fails while a sandbox uses it. */
  async delete(name: string): Promise<void> {
    await this.#transport.send(del(path(name)));
  }

  async #volume(call: Call): Promise<VolumeInfo> {
    return volumeInfo((await this.#transport.send(call)).record());
  }
}

checked({ VolumesAPI });

function path(name: string, rest = ""): string {
  return `/volumes/${segment(name, "volume name")}${rest}`;
}

function volumeInfo(record: JsonObject): VolumeInfo {
  return withCamelCase({ ...record, name: needText(record, "name", "a volume") });
}
