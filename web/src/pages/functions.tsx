/** Functions: versions, calls, the queue, and a form to call one. */

import { useQuery } from "@tanstack/react-query";
import { Play, RotateCcw, Trash2 } from "lucide-react";
import { lazy, Suspense, useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, queries, useCan } from "../api";
import { ago, bytes, millis } from "../format";
import {
  Button,
  Card,
  Code,
  Empty,
  Fields,
  Loaded,
  PageHead,
  Problem,
  Status,
  Table,
  useAct,
} from "../ui/basics";
import { ConfirmByName } from "../ui/dialogs";
import { LogView } from "../ui/log";

const Editor = lazy(() => import("../ui/editor"));

export default function Functions() {
  const { name } = useParams();
  const list = useQuery({ queryKey: ["functions"], queryFn: () => api.functions.list() });
  if (name) return <FunctionPage key={name} name={name} />;
  return (
    <>
      <PageHead title="Functions" />
      <Loaded query={list}>
        {(all) => (
          <Card flush>
            <Table
              head={["Function", "Runtime", "State", "Changed"]}
              empty={
                <Empty title="No functions yet">
                  <code>pandastack function deploy NAME</code>
                </Empty>
              }
              rows={all.map((item) => ({
                key: item.id,
                cells: [
                  <Link to={`/functions/${item.name}`}>
                    <b>{item.name}</b>
                  </Link>,
                  item.runtime,
                  <Status value={String((item as { deploy_status?: string }).deploy_status ?? "ready")} />,
                  ago(item.updated_at),
                ],
              }))}
            />
          </Card>
        )}
      </Loaded>
    </>
  );
}

function FunctionPage({ name }: { name: string }) {
  const [input, setInput] = useState("{}");
  const [answer, setAnswer] = useState<string>();
  const [error, setError] = useState<unknown>();
  const [deleting, setDeleting] = useState(false);
  const metrics = useQuery({
    queryKey: ["functions", name, "metrics"],
    queryFn: () => api.functions.metrics(name),
  });
  const runs = useQuery({ queryKey: ["functions", name, "runs"], queryFn: () => api.functions.runs(name) });
  const dead = useQuery({
    queryKey: ["functions", name, "dead"],
    queryFn: () => api.functions.deadLetters(name),
  });
  const versions = useQuery({
    queryKey: ["functions", name, "versions"],
    queryFn: () => api.functions.versions(name),
  });
  const can = useCan();
  const act = useAct();
  const navigate = useNavigate();
  const invoke = async (): Promise<void> => {
    setError(undefined);
    try {
      const run = await api.functions.invoke(name, JSON.parse(input));
      setAnswer(JSON.stringify(run.output ?? run.error ?? null, null, 2));
    } catch (failed) {
      setError(failed);
    }
    void queries.invalidateQueries({ queryKey: ["functions", name] });
  };
  return (
    <>
      <PageHead title={name}>
        {can("sandboxes") && (
          <Button kind="danger" onClick={() => setDeleting(true)}>
            <Trash2 />
            Delete
          </Button>
        )}
      </PageHead>
      <div className="grid">
        {can("sandboxes") && (
          <Card
            title="Invoke"
            flush
            actions={
              <Button kind="s primary" onClick={() => void invoke()}>
                <Play />
                Invoke
              </Button>
            }
          >
            <Suspense fallback={null}>
              <Editor
                path="input.json"
                text="{}"
                label="Input"
                onChange={setInput}
                onSubmit={() => void invoke()}
              />
            </Suspense>
            <div className="body">
              <Problem error={error} />
              {answer !== undefined && <Code text={answer} />}
            </div>
          </Card>
        )}
        <Card title="Last 24 hours">
          <Loaded query={metrics}>
            {(now) => (
              <Fields
                of={[
                  ["Calls", `${now.total}, ${now.errors} failed`],
                  ["Median", millis(now.p50_ms)],
                  ["95th percentile", millis(now.p95_ms)],
                  ["Cold starts", `${(now.cold_start_rate * 100).toFixed(0)} %`],
                  ["Instances", `${now.instances}, ${now.waiting} calls wait`],
                ]}
              />
            )}
          </Loaded>
        </Card>
      </div>
      <Card title="Calls" flush>
        <Problem error={runs.error} />
        <Table
          head={["Call", "State", "Kind", "Duration", "Started"]}
          empty={<Empty title="No calls yet" />}
          rows={(runs.data ?? [])
            .slice(0, 50)
            .map((run) => ({
              key: run.id,
              cells: [
                <span className="mono">{run.id}</span>,
                <Status value={run.status} />,
                run.kind,
                millis(run.duration_ms),
                ago(run.started_at),
              ],
            }))}
        />
      </Card>
      {(dead.data ?? []).length > 0 && (
        <Card
          title="Dead letters"
          flush
          actions={
            can("sandboxes") && (
              <Button
                kind="s"
                onClick={() =>
                  void act(() => api.functions.redrive(name).then(() => dead.refetch()), "Queued again")
                }
              >
                Retry all
              </Button>
            )
          }
        >
          <Table
            head={["Call", "Error", "Started"]}
            rows={(dead.data ?? []).map((run) => ({
              key: run.id,
              cells: [
                <span className="mono">{run.id}</span>,
                <span className="cut">{run.error}</span>,
                ago(run.started_at),
              ],
            }))}
          />
        </Card>
      )}
      <Card title="Versions" flush>
        <Table
          head={["Version", "State", "Size", "Deployed", ""]}
          rows={(versions.data ?? []).map((version) => ({
            key: String(version.version),
            cells: [
              <b className="num">{version.version}</b>,
              <Status value={version.status} />,
              bytes(version.code_size),
              ago(version.created_at),
              can("sandboxes") && (
                <Button
                  kind="s ghost"
                  onClick={() =>
                    void act(
                      () =>
                        api.functions
                          .rollback(name, version.version)
                          .then(() => queries.invalidateQueries({ queryKey: ["functions"] })),
                      `Version ${version.version} serves`,
                    )
                  }
                >
                  <RotateCcw />
                  Use
                </Button>
              ),
            ],
          }))}
        />
      </Card>
      <Card title="Output" flush>
        <LogView id={name} source={() => output(name)} />
      </Card>
      <ConfirmByName
        title="Delete this function?"
        hint="All its versions are deleted."
        name={name}
        open={deleting}
        onClose={() => setDeleting(false)}
        onConfirm={async () => {
          await api.functions.delete(name);
          await queries.invalidateQueries({ queryKey: ["functions"] });
          void navigate("/functions");
        }}
      />
    </>
  );
}

async function* output(name: string): AsyncGenerator<string> {
  for await (const { text } of api.functions.followLogs(name)) yield text.replace(/\n$/, "");
}
