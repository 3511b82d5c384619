/** A SQL console: results as a table, and as a chart where there are numbers. */

import type { DatabaseRows } from "@pandastack/sdk";
import { Play } from "lucide-react";
import { lazy, Suspense, useState } from "react";
import { api, useCan } from "../api";
import { millis } from "../format";
import { Button, Card, Problem } from "../ui/basics";

const Editor = lazy(() => import("../ui/editor"));
const Chart = lazy(() => import("../ui/chart"));

const ROWS_MAX = 1_000;
const FIRST = "SELECT now(), version();";
const NUMBERS = new Set(["int2", "int4", "int8", "float4", "float8", "numeric"]);
const TIMES = new Set(["timestamp", "timestamptz", "date"]);

export default function Sql({ id }: { id: string }) {
  const [text, setText] = useState(FIRST);
  const [result, setResult] = useState<DatabaseRows>();
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const can = useCan();
  const run = async (): Promise<void> => {
    setBusy(true);
    setError(undefined);
    try {
      setResult(await api.databases.query(id, text, [], { maxRows: ROWS_MAX }));
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  };
  return (
    <div className="stack sql">
      <Card
        title="Query"
        flush
        actions={
          <>
            <span className="faint wide-only">Ctrl Enter</span>
            <Button kind="s primary" disabled={busy || !can("sandboxes")} onClick={() => void run()}>
              <Play />
              {busy ? "Running" : "Run"}
            </Button>
          </>
        }
      >
        <Suspense fallback={null}>
          <Editor path="query.sql" text={FIRST} label="SQL" onChange={setText} onSubmit={() => void run()} />
        </Suspense>
      </Card>
      <Problem error={error} />
      {result && <Result result={result} />}
    </div>
  );
}

function Result({ result }: { result: DatabaseRows }) {
  const [drawn, setDrawn] = useState(false);
  const numbers = result.columns
    .map((column, at) => ({ ...column, at }))
    .filter(({ type }) => NUMBERS.has(type));
  const time = result.columns.findIndex(({ type }) => TIMES.has(type));
  const canDraw = numbers.length > 0 && result.rows.length > 1;
  const times = result.rows.map((row, at) => (time >= 0 ? Date.parse(String(row[time])) / 1000 : at));
  return (
    <Card
      flush
      title={
        <span>
          {result.command}{" "}
          <span className="faint num">
            {result.count} {result.count === 1 ? "row" : "rows"} · {millis(result.duration_ms)}
            {result.truncated ? ` · first ${ROWS_MAX}` : ""}
          </span>
        </span>
      }
      actions={
        canDraw && (
          <Button kind="s" aria-pressed={drawn} onClick={() => setDrawn(!drawn)}>
            {drawn ? "Table" : "Chart"}
          </Button>
        )
      }
    >
      {drawn && canDraw ? (
        <div className="body">
          <Suspense fallback={null}>
            <Chart
              title={numbers.map(({ name }) => name).join(", ")}
              times={times}
              values={numbers.map(({ at }) =>
                result.rows.map((row) => (row[at] === null ? null : Number(row[at]))),
              )}
              series={numbers.map(({ name }, at) => ({
                label: name,
                colour: ["--green", "--blue", "--amber", "--red"][at % 4] ?? "--green",
                format: String,
              }))}
            />
          </Suspense>
        </div>
      ) : (
        <div className="result" tabIndex={0} role="region" aria-label="Result">
          <table>
            <thead>
              <tr>
                {result.columns.map(({ name, type }, at) => (
                  <th key={at} scope="col">
                    {name} <span className="faint">{type}</span>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {result.rows.map((row, at) => (
                <tr key={at}>
                  {row.map((value, column) => (
                    <td key={column} title={show(value)}>
                      {value === null ? <span className="faint">NULL</span> : show(value)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}

function show(value: unknown): string {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
