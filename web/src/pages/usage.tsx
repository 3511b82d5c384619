/** Usage and quotas of the workspace. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { api } from "../api";
import { bytes, span } from "../format";
import { Button, Card, Empty, Loaded, PageHead, Table } from "../ui/basics";

const PERIODS: [string, number][] = [
  ["24 hours", 1],
  ["7 days", 7],
  ["30 days", 30],
];
const hours = (mbSeconds: unknown): string => `${(Number(mbSeconds ?? 0) / 1024 / 3600).toFixed(2)} GB h`;

export default function Usage() {
  const [days, setDays] = useState(7);
  const since = new Date(Math.floor(Date.now() / 3_600_000) * 3_600_000 - days * 86_400_000).toISOString();
  const usage = useQuery({ queryKey: ["usage", since], queryFn: () => api.usage({ since }) });
  const quota = useQuery({ queryKey: ["quota"], queryFn: () => api.quota() });
  const limits = (quota.data?.quota ?? {}) as Record<string, number | null>;
  const used = (quota.data?.used ?? {}) as Record<string, number>;
  return (
    <>
      <PageHead title="Usage">
        <div className="row" role="group" aria-label="Period">
          {PERIODS.map(([label, value]) => (
            <Button
              key={label}
              kind={`s ${value === days ? "" : "ghost"}`}
              aria-pressed={value === days}
              onClick={() => setDays(value)}
            >
              {label}
            </Button>
          ))}
        </div>
      </PageHead>
      <Loaded query={usage}>
        {({ total, sandboxes, truncated }) => (
          <>
            <div className="grid tiles">
              {(
                [
                  ["Sandboxes created", String(total.creates ?? 0)],
                  ["CPU time", span((total.cpu_ms ?? 0) / 1000)],
                  ["Memory", hours(total.memory_mb_seconds)],
                  ["Function calls", String(total.calls ?? 0)],
                  ["Sent", bytes(total.sent_bytes)],
                  ["Received", bytes(total.received_bytes)],
                ] as [string, string][]
              ).map(([label, value]) => (
                <div key={label} className="card tile">
                  <b className="num">{value}</b>
                  <span>{label}</span>
                </div>
              ))}
            </div>
            <Card title={`By sandbox${truncated ? ", the largest" : ""}`} flush>
              <Table
                head={["Sandbox", "CPU time", "Memory", "Asleep", "Sent", "Received"]}
                empty={<Empty title="No usage in this period" />}
                rows={sandboxes.slice(0, 100).map((row) => ({
                  key: String(row.sandbox_id),
                  cells: [
                    <Link className="mono link" to={`/sandboxes/${String(row.sandbox_id)}`}>
                      {String(row.sandbox_id)}
                    </Link>,
                    span(Number(row.cpu_ms ?? 0) / 1000),
                    hours(row.memory_mb_seconds),
                    span(Number(row.asleep_seconds ?? 0)),
                    bytes(Number(row.sent_bytes ?? 0)),
                    bytes(Number(row.received_bytes ?? 0)),
                  ],
                }))}
              />
            </Card>
          </>
        )}
      </Loaded>
      <Card title="Quotas">
        <dl className="kv">
          {Object.entries(used).map(([name, value]) => {
            const limit = limits[name];
            return [
              <dt key={`${name}t`}>{name.replaceAll("_", " ")}</dt>,
              <dd key={name} className="num">
                {value}
                {limit ? ` of ${limit}` : ""}
                {limit ? (
                  <div className="bar">
                    <i style={{ width: `${Math.min(100, (value / limit) * 100)}%` }} />
                  </div>
                ) : null}
              </dd>,
            ];
          })}
        </dl>
      </Card>
    </>
  );
}
