/** Lines that arrive live, with a limit on how many are shown. */

import { useEffect, useRef, useState } from "react";
import { reasonOf } from "../api";

/** Lines to keep; older ones are dropped. */
const LINES_MAX = 2_000;
const FLUSH_MS = 120;

export function LogView({
  source,
  id,
  onEnd,
}: {
  source: (signal: AbortSignal) => AsyncGenerator<string>;
  id: string;
  onEnd?: () => void;
}) {
  const [lines, setLines] = useState<string[]>([]);
  const [problem, setProblem] = useState<string>();
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    const stop = new AbortController();
    const waiting: string[] = [];
    setLines([]);
    setProblem(undefined);
    const flush = (): void => {
      if (waiting.length) setLines((all) => [...all, ...waiting.splice(0)].slice(-LINES_MAX));
    };
    const timer = setInterval(flush, FLUSH_MS);
    const lines = source(stop.signal);
    void (async () => {
      try {
        for await (const line of lines) {
          if (stop.signal.aborted) break;
          waiting.push(line);
        }
        if (!stop.signal.aborted) onEnd?.();
      } catch (error) {
        if (!stop.signal.aborted) setProblem(reasonOf(error));
      }
      flush();
    })();
    return () => {
      stop.abort();
      clearInterval(timer);
    };
    // Only a new id means a new log; the functions are created again with every render.
  }, [id]);
  useEffect(() => {
    if (atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const scrolled = (): void => {
    const at = box.current;
    if (at) atEnd.current = at.scrollHeight - at.scrollTop - at.clientHeight < 40;
  };
  return (
    <div className="log" ref={box} onScroll={scrolled} tabIndex={0} role="log" aria-label="Log">
      {lines.length ? lines.join("\n") : <span className="faint">{problem ?? "No output yet"}</span>}
      {problem && lines.length > 0 && `\n${problem}`}
    </div>
  );
}
