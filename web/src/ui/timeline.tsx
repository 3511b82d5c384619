/** Points and periods on a line of time. */

import { when } from "../format";

export interface Point {
  key: string;
  at: string;
  label: string;
}

const WIDTH = 1000;
const EDGE = 24;

export function Timeline({
  points,
  periods = [],
  picked,
  onPick,
  onTime,
}: {
  points: Point[];
  periods?: { from: string; to: string }[];
  picked?: string | undefined;
  onPick?: (key: string) => void;
  onTime?: (at: Date) => void;
}) {
  const times = [
    ...points.map(({ at }) => Date.parse(at)),
    ...periods.flatMap(({ from, to }) => [Date.parse(from), Date.parse(to)]),
  ].filter(Number.isFinite);
  if (!times.length) return null;
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const length = Math.max(last - first, 1);
  const x = (time: number): number => EDGE + ((time - first) / length) * (WIDTH - 2 * EDGE);
  const clicked = (event: React.MouseEvent<SVGSVGElement>): void => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    onTime?.(new Date(first + Math.min(Math.max((at - EDGE) / (WIDTH - 2 * EDGE), 0), 1) * length));
  };
  return (
    <div className="timeline">
      <svg
        viewBox={`0 0 ${WIDTH} 74`}
        preserveAspectRatio="none"
        onClick={clicked}
        style={{ cursor: onTime ? "crosshair" : "default" }}
        role="img"
        aria-label={`From ${when(new Date(first).toISOString())} to ${when(new Date(last).toISOString())}`}
      >
        <line x1={EDGE} x2={WIDTH - EDGE} y1={36} y2={36} stroke="var(--border-strong)" strokeWidth={2} />
        {periods.map(({ from, to }) => (
          <rect
            key={from}
            x={x(Date.parse(from))}
            y={31}
            width={Math.max(x(Date.parse(to)) - x(Date.parse(from)), 3)}
            height={10}
            rx={4}
            fill="var(--accent)"
            opacity={0.45}
          />
        ))}
        {points.map((point) => (
          <circle
            key={point.key}
            cx={x(Date.parse(point.at))}
            cy={36}
            r={7}
            fill="var(--accent)"
            stroke="var(--surface)"
            strokeWidth={2}
            style={{ cursor: onPick ? "pointer" : "default" }}
            onClick={(event) => {
              event.stopPropagation();
              onPick?.(point.key);
            }}
          >
            <title>{`${point.label} · ${when(point.at)}`}</title>
          </circle>
        ))}
        {picked && (
          <line
            x1={x(Date.parse(picked))}
            x2={x(Date.parse(picked))}
            y1={12}
            y2={60}
            stroke="var(--text)"
            strokeWidth={2}
            strokeDasharray="4 3"
          />
        )}
      </svg>
      <div className="row faint">
        <span className="grow">{when(new Date(first).toISOString())}</span>
        <span>{when(new Date(last).toISOString())}</span>
      </div>
    </div>
  );
}
