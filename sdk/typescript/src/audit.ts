/** The audit log, as the API returns it. */

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
