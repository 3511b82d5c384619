/** A shell in the browser. Leaving the page disconnects; coming back attaches to the same shell. */

import type { Terminal as Connection } from "@pandastack/sdk";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef, useState } from "react";
import { api, reasonOf, useCan } from "../api";
import { Button, Card, Empty } from "../ui/basics";

/** The shell of each sandbox that this page opened. */
const shells = new Map<string, number>();

export default function TerminalTab({ id }: { id: string }) {
  const box = useRef<HTMLDivElement>(null);
  const [state, setState] = useState("connecting");
  const [round, setRound] = useState(0);
  const can = useCan();
  const allowed = can("sandboxes");
  useEffect(() => {
    if (!box.current || !allowed) return;
    const screen = new Terminal({
      fontFamily: getComputedStyle(box.current).getPropertyValue("--mono"),
      fontSize: 13,
      cursorBlink: true,
      scrollback: 10_000,
      screenReaderMode: false,
      theme: {
        background: "#0f1412",
        foreground: "#e2e8e4",
        cursor: "#6fd0a3",
        selectionBackground: "#2c4a3d",
      },
    });
    const fit = new FitAddon();
    screen.loadAddon(fit);
    screen.open(box.current);
    fit.fit();
    let connection: Connection | undefined;
    let left = false;
    const connect = async (): Promise<void> => {
      try {
        const sandbox = await api.sandboxes.get(id);
        if (left) return;
        const process = shells.get(id);
        connection = sandbox.terminal({
          rows: screen.rows,
          cols: screen.cols,
          ...(process === undefined ? {} : { process }),
          onData: (bytes) => screen.write(bytes),
          onState: (next, reason) => {
            setState(next === "closed" ? (reason ?? "closed") : next);
            if (connection?.process !== undefined) shells.set(id, connection.process);
          },
          onExit: (code) => {
            shells.delete(id);
            setState(`The shell exited with ${code ?? "no code"}`);
          },
        });
      } catch (error) {
        setState(reasonOf(error));
      }
    };
    void connect();
    const typed = screen.onData((text) => connection?.write(text));
    const resized = screen.onResize(({ rows, cols }) => connection?.resize({ rows, cols }));
    const watch = new ResizeObserver(() => fit.fit());
    watch.observe(box.current);
    screen.focus();
    return () => {
      left = true;
      watch.disconnect();
      typed.dispose();
      resized.dispose();
      connection?.close();
      screen.dispose();
    };
  }, [id, round, allowed]);
  if (!allowed)
    return (
      <Card>
        <Empty title="This key is read-only">
          Sign in with a key of scope <code>sandboxes</code> to open a terminal.
        </Empty>
      </Card>
    );
  const over = state !== "open" && state !== "connecting";
  return (
    <Card
      title={
        <span className="row">
          Shell{" "}
          <span className={`live ${state === "open" ? "" : "off"}`}>
            <i aria-hidden />
            {state === "open" ? "connected" : state}
          </span>
        </span>
      }
      flush
      actions={
        over && (
          <Button
            kind="s"
            onClick={() => {
              shells.delete(id);
              setState("connecting");
              setRound(round + 1);
            }}
          >
            New shell
          </Button>
        )
      }
    >
      <div className="screen" ref={box} data-state={state} />
    </Card>
  );
}
