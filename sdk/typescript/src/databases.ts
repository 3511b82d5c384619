/** Managed databases. */

import { checked } from "./check.js";
import { RequestTimeout, ServerError } from "./errors.js";
import { type JsonObject, needText, type WireRecord, withCamelCase } from "./models.js";
import { withSecrets } from "./printed.js";
import type { Transport } from "./transport.js";
import { create, del, get, given, MACHINE_MS_MAX, post, segment } from "./wire.js";

/** A query's own limit ends it before this does. */
const QUERY_MS_MAX = 660_000;
/** Longest wait for a restore, a base backup or a drill. */
const RESTORE_MS_MAX = 4 * 3_600_000;
/** Between two looks at a restore. */
const RESTORE_LOOK_MS = 1000;

/** Fields that do not print. */
const SECRETS = ["password", "connection_url", "pooled_url", "broker_token"];

/** Connection details of a database. */
export type DatabaseConnection = WireRecord<{
  host: string;
  port: number;
  database: string;
  username: string;
  password: string;
  connection_url: string;
  /** Through the pooler, for many short connections. */
  pooled_url: string;
  broker_url: string;
  broker_token: string;
}>;

/** A managed database; in lists without credentials. */
export type Database = WireRecord<{
  id: string;
  /** `provisioning`, `running`, `read_only` (its disk is full: see `error`), `hibernated`, `recovering`, `failed` or `deleting`. */
  status: string;
  /** Unique in the workspace; can be used instead of the ID. */
  name?: string;
  label?: string;
  size?: string;
  always_on?: boolean;
  protected?: boolean;
  created_at?: string;
  sandbox_id?: string;
  cloned_from?: string;
  /** Current step while the database is being restored. */
  step?: string;
  error?: string;
  /** Engine and version. */
  template?: string;
  /** Whether another copy could take over. */
  failover_available?: boolean;
  host?: string;
  port?: number;
  database?: string;
  username?: string;
  password?: string;
  connection_url?: string;
  pooled_url?: string;
  broker_url?: string;
  broker_token?: string;
}>;

/** Rows of a result. `int8` and `numeric` are strings, because numbers lose digits. */
export type DatabaseRows = WireRecord<{
  columns: { name: string; type: string }[];
  rows: unknown[][];
  count: number;
  command: string;
  truncated: boolean;
  duration_ms: number;
}>;

/** Options for a new database. */
export interface CreateDatabaseOptions {
  /** Unique in the workspace; can be used instead of the ID. */
  name?: string;
  label?: string;
  /** Memory, such as `4g`. */
  size?: string;
  cpu?: number;
  /** Whether the database never sleeps. */
  alwaysOn?: boolean;
  /** Whether the database is protected from deletion. */
  protected?: boolean;
}

/** Options for a copy of a database. */
export interface BranchDatabaseOptions {
  /** Unique in the workspace; can be used instead of the ID. */
  name?: string;
  label?: string;
}

/** Options of `restore`. */
export interface RestoreDatabaseOptions extends BranchDatabaseOptions {
  /** Longest wait for the restore. Default: 4 hours. */
  timeoutSeconds?: number;
}

/** Statistics of a database. */
export type DatabaseStats = WireRecord<{
  version: string;
  size_bytes: number;
  connections: number;
  connections_max: number;
  active: number;
  commits: number;
  rollbacks: number;
  cache_hit_percent: number;
  /** Room for data. */
  storage_bytes: number;
  /** Bytes of it on the host's disk; a branch shares with its original until either is written. */
  storage_used_bytes: number;
}>;

/** A base backup: a copy of all files, from which WAL is replayed. */
export type DatabaseBaseBackup = WireRecord<{
  name: string;
  started_at: string;
  finished_at: string;
  size_bytes: number;
  version: string;
}>;

/** The result of a backup test. If `ok` is false, `error` says why. */
export type DatabaseDrill = WireRecord<{ at: string; ok: boolean; took_ms: number; error?: string }>;

/** The restorable period and the state of a database's backups. */
export type DatabaseBackups = WireRecord<{
  healthy: boolean;
  /** The log is being followed right now; that of a sleeping database is not. */
  following: boolean;
  last_archived_wal?: string;
  last_archived_at?: string;
  lag_bytes: number;
  failing_since?: string;
  error?: string;
  earliest_restorable?: string;
  latest_restorable?: string;
  restorable: { from: string; to: string }[];
  base_backups: DatabaseBaseBackup[];
  retention_days: number;
  last_drill?: DatabaseDrill;
}>;

/** `client.databases`: PostgreSQL, each in its own machine. */
export class DatabasesAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Create a database. It accepts queries at `connection_url` when this resolves. */
  async create(options: CreateDatabaseOptions = {}): Promise<Database> {
    const { alwaysOn, ...rest } = options;
    const body = given({ ...rest, always_on: alwaysOn });
    return databaseOf((await this.#transport.send(create("/databases", body, MACHINE_MS_MAX))).record());
  }

  /** List databases, oldest first, without credentials. */
  async list(): Promise<Database[]> {
    return (await this.#transport.send(get("/databases"))).records("items").map(databaseOf);
  }

  /** Get a database by ID or name, with its connection details. Does not wake it. */
  async get(id: string): Promise<Database> {
    return databaseOf((await this.#transport.send(get(path(id)))).record());
  }

  /** Get the connection details. */
  async connection(id: string): Promise<DatabaseConnection> {
    const record = (await this.#transport.send(get(path(id, "/connection")))).record();
    return withSecrets(withCamelCase(record) as unknown as DatabaseConnection, SECRETS);
  }

  /** Run one statement with `params` for `$1`, `$2`, ... Wakes the database. */
  async query(
    id: string,
    sql: string,
    params: readonly unknown[] = [],
    options: { database?: string; timeoutMs?: number; maxRows?: number } = {},
  ): Promise<DatabaseRows> {
    const { database, timeoutMs, maxRows } = options;
    const body = given({ sql, params: [...params], database, timeout_ms: timeoutMs, max_rows: maxRows });
    const record = (await this.#transport.send(post(path(id, "/query"), body, QUERY_MS_MAX))).record();
    return withCamelCase(record) as unknown as DatabaseRows;
  }

  /** Update a database. Options that are left out stay unchanged. */
  async update(
    id: string,
    options: { label?: string; alwaysOn?: boolean; protected?: boolean; storageMb?: number; size?: string },
  ): Promise<Database> {
    const { alwaysOn, storageMb, ...rest } = options;
    const call = post(path(id), given({ ...rest, always_on: alwaysOn, storage_mb: storageMb }), MACHINE_MS_MAX);
    return databaseOf((await this.#transport.send({ ...call, method: "PATCH" })).record());
  }

  /** Copy a running database. The copy has its own credentials. */
  async branch(id: string, options: BranchDatabaseOptions = {}): Promise<Database> {
    const call = create(path(id, "/clone"), given({ ...options }), MACHINE_MS_MAX);
    return databaseOf((await this.#transport.send(call)).record());
  }

  /**
   * Restore a database from its backups to the time `at` (RFC 3339, or a `Date`), or to `latest`, as a new
   * database. It accepts queries when this resolves. `latest` is everything that was committed.
   */
  async restore(id: string, at: string | Date, options: RestoreDatabaseOptions = {}): Promise<Database> {
    const { name, label, timeoutSeconds = RESTORE_MS_MAX / 1000 } = options;
    const body = given({ name, label, target_time: typeof at === "string" ? at : at.toISOString() });
    let database = databaseOf((await this.#transport.send(create(path(id, "/clone"), body, MACHINE_MS_MAX))).record());
    const deadline = Date.now() + timeoutSeconds * 1000;
    while (database.status === "provisioning") {
      if (Date.now() > deadline) {
        throw new RequestTimeout(`database ${database.id} was not restored within ${timeoutSeconds} s`);
      }
      await new Promise((resolve) => setTimeout(resolve, RESTORE_LOOK_MS));
      database = await this.get(database.id);
    }
    if (database.status === "failed") {
      throw new ServerError(database.error ?? "the restore failed", { hint: "look at client.databases.backups()" });
    }
    return database;
  }

  /** Get the restorable period and the state of a database's backups. Does not wake it. */
  async backups(id: string): Promise<DatabaseBackups> {
    return withCamelCase((await this.#transport.send(get(path(id, "/backups")))).record()) as unknown as DatabaseBackups;
  }

  /** Take a base backup now. Daily ones are automatic. */
  async backUp(id: string): Promise<DatabaseBaseBackup> {
    const call = post(path(id, "/backups"), undefined, RESTORE_MS_MAX);
    return withCamelCase((await this.#transport.send(call)).record()) as unknown as DatabaseBaseBackup;
  }

  /** Test the backups: restore the latest state, check every table and index, and delete it. */
  async drill(id: string): Promise<DatabaseDrill> {
    const call = post(path(id, "/backups/drill"), undefined, RESTORE_MS_MAX);
    return withCamelCase((await this.#transport.send(call)).record()) as unknown as DatabaseDrill;
  }

  /** Fail over a database whose host does not respond to a copy restored from its backups. */
  async failover(id: string): Promise<Database> {
    return databaseOf((await this.#transport.send(post(path(id, "/failover"), undefined, RESTORE_MS_MAX))).record());
  }

  /** Set a new password. The old one stops working. */
  async resetCredentials(id: string): Promise<Database> {
    return this.#act(id, "/reset-credentials");
  }

  /** Put a database to sleep. The next connection wakes it. */
  async pause(id: string): Promise<Database> {
    return this.#act(id, "/pause");
  }

  /** Wake a database; it is awake when this resolves. */
  async wake(id: string): Promise<Database> {
    return this.#act(id, "/wake");
  }

  /** Get a database's statistics. Wakes it. */
  async stats(id: string): Promise<DatabaseStats> {
    return withCamelCase((await this.#transport.send(get(path(id, "/stats")))).record()) as unknown as DatabaseStats;
  }

  /** Get the end of the server's log. Wakes the database. */
  async logs(id: string): Promise<string> {
    return (await this.#transport.send({ ...get(path(id, "/logs")), accept: "text/plain", msMax: MACHINE_MS_MAX })).text();
  }

  /** Delete a database and its data. Fails if it is protected. */
  async delete(id: string): Promise<void> {
    await this.#transport.send(del(path(id)));
  }

  async #act(id: string, action: string): Promise<Database> {
    return databaseOf((await this.#transport.send(post(path(id, action), undefined, MACHINE_MS_MAX))).record());
  }
}

checked({ DatabasesAPI });

function path(id: string, action = ""): string {
  return `/databases/${segment(id, "database id")}${action}`;
}

function databaseOf(record: JsonObject): Database {
  const id = needText(record, "id", "a database");
  const database = { ...record, id, status: needText(record, "status", "a database") };
  return withSecrets(withCamelCase(database), SECRETS);
}
