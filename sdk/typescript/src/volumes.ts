/** Volumes: durable disks that outlive sandboxes. */

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

  /** A new, empty volume. Space is taken as it is written. */
  async create(name: string, sizeMb: number, options: { protected?: boolean } = {}): Promise<VolumeInfo> {
    return this.#volume(post("/volumes", given({ name, size_mb: sizeMb, ...options }), MACHINE_MS_MAX));
  }

  /** Volumes of the workspace, by name. */
  async list(): Promise<VolumeInfo[]> {
    return (await this.#transport.send(get("/volumes"))).records("volumes").map(volumeInfo);
  }

  /** One volume, and who has it. */
  async get(name: string): Promise<VolumeInfo> {
    return this.#volume(get(path(name)));
  }

  /** Make a volume larger; a running sandbox that has it has the room at once. */
  async grow(name: string, sizeMb: number): Promise<VolumeInfo> {
    return this.#volume(post(path(name, "/grow"), { size_mb: sizeMb }, MACHINE_MS_MAX));
  }

  /** Copy a volume as it is at one instant, also while a sandbox writes it. */
  async clone(name: string, copy: string): Promise<VolumeInfo> {
    return this.#volume(post(path(name, "/clone"), { name: copy }, MACHINE_MS_MAX));
  }

  /** Keep a volume as it is now: a copy that can be read and cloned, and never written. */
  async snapshot(name: string, snapshot?: string): Promise<VolumeInfo> {
    return this.#volume(post(path(name, "/snapshot"), given({ name: snapshot }), MACHINE_MS_MAX));
  }

  /** Change what protects a volume, or whether it is deleted with its sandbox. */
  async update(name: string, change: { protected?: boolean; deleteWithSandbox?: boolean }): Promise<VolumeInfo> {
    const body = given({ protected: change.protected, delete_with_sandbox: change.deleteWithSandbox });
    return this.#volume({ ...post(path(name), body), method: "PATCH" });
  }

  /** Delete a volume and what is in it. Refused while a sandbox has it. */
  async delete(name: string): Promise<void> {
    await this.#transport.send(del(path(name)));
  }

  async #volume(call: Call): Promise<VolumeInfo> {
    return volumeInfo((await this.#transport.send(call)).record());
  }
}

function path(name: string, rest = ""): string {
  return `/volumes/${segment(name, "volume name")}${rest}`;
}

function volumeInfo(record: JsonObject): VolumeInfo {
  return withCamelCase({ ...record, name: needText(record, "name", "a volume") });
}
