/** Processes of a sandbox: running ones, and ones that ended recently. */

import { useQuery } from "@tanstack/react-query";
import { RefreshCw, Square, SquareTerminal } from "lucide-react";
import { useState } from "react";
import { api, useCan } from "../api";
import { bytes, span } from "../format";
import { Button, Card, Empty, Problem, Status, Table, useAct } from "../ui/basics";
import { LogView } from "../ui/log";

/** Polling interval of the list while it is visible: no event reports its changes. */
const LOOK_MS = 10_000;

export default function Processes({ id }: { id: string }) {
  const list = useQuery({
    queryKey: ["processes", id],
    refetchInterval: LOOK_MS,
    queryFn: async () => (await (await api.sandboxes.get(id)).processes()).map(({ info }) => info),
  });
  const [followed, setFollowed] = useState<number>();
  const [line, setLine] = useState("");
  const act = useAct();
  const can = useCan();
  const start = async (): Promise<void> => {
    const started = await act(async () => setFollowed((await (await api.sandboxes.get(id)).start(line)).id));
    if (started) setLine("");
    void list.refetch();
  };
  const kill = (process: number): Promise<boolean> =>
    act(async () => {
      await (await (await api.sandboxes.get(id)).process(process)).kill();
      await list.refetch();
    }, "Killed");
  return (
    <>
      <Problem error={list.error} />
      <Card
        title="Processes"
        flush
        actions={
          <Button kind="ghost icon s" aria-label="Refresh" onClick={() => void list.refetch()}>
            <RefreshCw />
          </Button>
        }
      >
        <Table
          head={["Id", "Command", "State", "Running for", "Output", ""]}
          empty={<Empty title="No processes">Processes started over the API are listed here.</Empty>}
          rows={(list.data ?? []).map((process) => ({
            key: String(process.id),
            cells: [
              <span className="num">{process.id}</span>,
              <code className="cut" style={{ display: "block", maxWidth: 360 }}>
                {process.command || "shell"}
              </code>,
              <Status
                value={process.state === "exited" ? (process.exit_code ? "failed" : "succeeded") : "running"}
              />,
              span(process.duration_ms / 1000),
              bytes(process.stdout_end + process.stderr_end),
              <span className="row" style={{ justifyContent: "flex-end" }}>
                <Button kind="s ghost" onClick={() => setFollowed(process.id)}>
                  <SquareTerminal />
                  Output
                </Button>
                {process.state === "running" && can("sandboxes") && (
                  <Button kind="s ghost danger" onClick={() => void kill(process.id)}>
                    <Square />
                    Kill
                  </Button>
                )}
              </span>,
            ],
          }))}
        />
      </Card>
      {can("sandboxes") && (
        <form
          className="row"
          onSubmit={(event) => {
            event.preventDefault();
            void start();
          }}
        >
          <input
            className="input mono"
            aria-label="Command"
            placeholder="python3 -m http.server 8000"
            value={line}
            onChange={(event) => setLine(event.target.value)}
          />
          <Button kind="primary" type="submit" disabled={!line.trim()}>
            Start
          </Button>
        </form>
      )}
      {followed !== undefined && (
        <Card title={`Output of process ${followed}`} flush>
          <LogView
            id={`${id}-${followed}`}
            source={(signal) => output(id, followed, signal)}
            onEnd={() => void list.refetch()}
          />
        </Card>
      )}
    </>
  );
}

async function* output(id: string, process: number, signal: AbortSignal): AsyncGenerator<string> {
  const stream = await (await (await api.sandboxes.get(id)).process(process)).output();
  signal.addEventListener("abort", () => stream.close());
  for await (const { text } of stream) yield text.replace(/\n$/, "");
}
