/** Live resource usage of a sandbox. */

import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useEffect, useState } from "react";
import { api } from "../api";
import { bytes } from "../format";
import { Card, Fields, Problem } from "../ui/basics";

const Chart = lazy(() => import("../ui/chart"));

/** Polling interval while the chart is visible: no event reports measurements. */
const SAMPLE_MS = 5_000;
const SAMPLES_MAX = 360;

interface Sample {
  at: number;
  cpu: number;
  memory: number;
  sent: number;
  received: number;
}

export default function Metrics({ id }: { id: string }) {
  const [samples, setSamples] = useState<Sample[]>([]);
  const metrics = useQuery({
    queryKey: ["metrics", id],
    refetchInterval: SAMPLE_MS,
    staleTime: 0,
    gcTime: 0,
    queryFn: async () => (await api.sandboxes.get(id)).metrics(),
  });
  const now = metrics.data;
  useEffect(() => {
    if (!now) return;
    const { cpu_used_percent = 0, memory_bytes = 0, sent_bytes = 0, received_bytes = 0 } = now.host;
    const sample = {
      at: Date.parse(now.at) / 1000,
      cpu: cpu_used_percent,
      memory: memory_bytes,
      sent: sent_bytes,
      received: received_bytes,
    };
    setSamples((all) => (all.at(-1)?.at === sample.at ? all : [...all, sample].slice(-SAMPLES_MAX)));
  }, [now]);
  const times = samples.map(({ at }) => at);
  const rate = (field: "sent" | "received"): (number | null)[] =>
    samples.map((sample, at) => {
      const before = samples[at - 1];
      return before && sample.at > before.at
        ? Math.max(0, (sample[field] - before[field]) / (sample.at - before.at))
        : null;
    });
  const percent = (value: number): string => `${value.toFixed(0)} %`;
  const perSecond = (value: number): string => `${bytes(value)}/s`;
  const guest = now?.guest;
  return (
    <>
      <Problem error={metrics.error} />
      <Suspense fallback={null}>
        <div className="grid">
          <Card title="CPU">
            <Chart
              title="CPU usage"
              times={times}
              values={[samples.map(({ cpu }) => cpu)]}
              series={[{ label: "CPU", colour: "--green", format: percent }]}
            />
          </Card>
          <Card title="Memory on the host">
            <Chart
              title="Memory on the host"
              times={times}
              values={[samples.map(({ memory }) => memory)]}
              series={[{ label: "Memory", colour: "--blue", format: bytes }]}
            />
          </Card>
          <Card title="Network">
            <Chart
              title="Network traffic"
              times={times}
              values={[rate("sent"), rate("received")]}
              series={[
                { label: "Sent", colour: "--green", format: perSecond },
                { label: "Received", colour: "--amber", format: perSecond },
              ]}
            />
          </Card>
          <Card title="Inside the machine">
            {guest ? (
              <Fields
                of={[
                  ["Memory used", `${bytes(guest.memory_used_bytes)} of ${bytes(guest.memory_total_bytes)}`],
                  ["Disk used", `${bytes(guest.disk_used_bytes)} of ${bytes(guest.disk_total_bytes)}`],
                  ["Load", (guest.load_1m ?? 0).toFixed(2)],
                  ["Processes", String(guest.processes_running ?? 0)],
                  ["Refused connections", String(now?.egress_denied ?? 0)],
                ]}
              />
            ) : (
              <p className="muted">The sandbox is not running.</p>
            )}
          </Card>
        </div>
      </Suspense>
    </>
  );
}
