/** Lines over time, drawn by uPlot. */

import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Series {
  label: string;
  colour: string;
  format: (value: number) => string;
}

const HEIGHT = 150;

export default function Chart({
  title,
  times,
  values,
  series,
}: {
  title: string;
  times: number[];
  values: (number | null)[][];
  series: Series[];
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  useEffect(() => {
    const parent = box.current;
    if (!parent) return;
    const draw = (): void => {
      plot.current?.destroy();
      const colour = (name: string): string => getComputedStyle(parent).getPropertyValue(name);
      const axis = {
        stroke: colour("--muted"),
        grid: { stroke: colour("--border"), width: 1 },
        ticks: { show: false },
        font: "11px sans-serif",
      };
      plot.current = new uPlot(
        {
          width: parent.clientWidth,
          height: HEIGHT,
          cursor: { y: false },
          scales: { y: { range: (_, __, max) => [0, Math.max(max * 1.15, 1e-9)] } },
          axes: [
            axis,
            { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => series[0]?.format(tick) ?? "") },
          ],
          series: [
            {},
            ...series.map(({ label, colour: name, format }) => ({
              label,
              stroke: colour(name),
              width: 1.5,
              fill: `${colour(name)}18`,
              points: { show: false },
              value: (_: uPlot, value: number | null) => (value === null ? "–" : format(value)),
            })),
          ],
        },
        [times, ...values] as uPlot.AlignedData,
        parent,
      );
    };
    draw();
    const watch = new ResizeObserver(() =>
      plot.current?.setSize({ width: parent.clientWidth, height: HEIGHT }),
    );
    watch.observe(parent);
    addEventListener("themechange", draw);
    return () => {
      watch.disconnect();
      removeEventListener("themechange", draw);
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [title]);
  useEffect(() => plot.current?.setData([times, ...values] as uPlot.AlignedData), [times, values]);
  return <div className="chart" ref={box} role="img" aria-label={title} />;
}
