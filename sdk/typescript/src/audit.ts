/** The audit log and outdated frozen states, as the API returns them. */

/** An entry of the audit log. */
export interface AuditEntry {
  id: number;
  at: string;
  token_prefix: string;
  token_label: string;
  method: string;
  route: string;
  path: string;
  sandbox_id?: string;
  status: number;
  request_id: string;
  took_ms: number;
  [field: string]: unknown;
}

/** The result of verifying the audit log. `problem` says how it was tampered with. */
export interface AuditVerification {
  checked: number;
  first?: number;
  since?: string;
  head: string;
  next?: number;
  problem?: string;
  [field: string]: unknown;
}

/** An outdated component of a frozen state. */
export interface OutdatedComponent {
  component: "kernel" | "guest" | "engine";
  /** Version in the state; absent if it is unknown. */
  found?: string;
  /** Version that the host uses now. */
  current?: string;
  /** Advisories of the operator that name the version in the state. */
  advisories: { id: string; severity?: string; note?: string }[];
}

/** A sleeping sandbox, snapshot or template with outdated components. */
export interface OutdatedState {
  kind: "sandbox" | "snapshot" | "template";
  /** ID of the sandbox or snapshot, or name of the template. */
  id: string;
  name?: string;
  workspace_id?: string;
  /** Host that holds the state; shown with `all`. */
  host_id?: string;
  /** Service that owns the state, such as `app:ID`. */
  owner?: string;
  components: OutdatedComponent[];
  /** Time at which the owner was notified of the coming action. */
  reported_at?: string;
  action: "keep" | "refuse" | "cold-restart";
  action_from?: string;
  /** Instruction for bringing the state up to date. */
  next_step: string;
}

/** Outdated states. `complete` is false if a host did not answer. */
export interface OutdatedList {
  items: OutdatedState[];
  complete: boolean;
}
