/** A tree of copies, drawn: forks of sandboxes, branches of databases. */

import { hierarchy, tree } from "d3-hierarchy";
import { useNavigate } from "react-router";

export interface TreeItem {
  id: string;
  parent?: string | undefined;
  label: string;
  note: string;
  href?: string | undefined;
  gone?: boolean;
}

interface Node extends TreeItem {
  children: Node[];
}

const WIDTH = 214;
const HEIGHT = 46;
const GAP_X = 54;
const GAP_Y = 14;

/** The tree that `current` belongs to. Deleted parents are drawn as such. */
export function familyOf(items: TreeItem[], current: string): TreeItem[] {
  const byId = new Map(items.map((item) => [item.id, item]));
  for (const { parent } of items) {
    if (parent && !byId.has(parent))
      byId.set(parent, { id: parent, label: parent.slice(0, 13), note: "deleted", gone: true });
  }
  let root = byId.get(current);
  while (root?.parent && byId.has(root.parent)) root = byId.get(root.parent);
  if (!root) return [];
  const family = [root];
  for (const member of family) family.push(...[...byId.values()].filter((item) => item.parent === member.id));
  return family;
}

export function Tree({ items, current }: { items: TreeItem[]; current: string }) {
  const navigate = useNavigate();
  const root = items[0];
  if (!root) return null;
  const nodeOf = (item: TreeItem): Node => ({
    ...item,
    children: items.filter((other) => other.parent === item.id).map(nodeOf),
  });
  const laid = tree<Node>().nodeSize([HEIGHT + GAP_Y, WIDTH + GAP_X])(hierarchy(nodeOf(root)));
  const nodes = laid.descendants();
  const top = Math.min(...nodes.map(({ x }) => x));
  const height = Math.max(...nodes.map(({ x }) => x)) - top + HEIGHT + 4;
  const width = Math.max(...nodes.map(({ y }) => y)) + WIDTH + 4;
  return (
    <div className="tree" tabIndex={0} role="group" aria-label="Fork tree">
      <svg
        width={width}
        height={height}
        viewBox={`-2 ${top - HEIGHT / 2 - 2} ${width} ${height}`}
        role="tree"
      >
        {laid.links().map(({ source, target }) => {
          const [from, to, middle] = [source.y + WIDTH, target.y, (source.y + WIDTH + target.y) / 2];
          return (
            <path
              key={target.data.id}
              className="edge"
              d={`M${from},${source.x} C${middle},${source.x} ${middle},${target.x} ${to},${target.x}`}
            />
          );
        })}
        {nodes.map(({ x, y, data }) => {
          const isCurrent = data.id === current;
          const open = (): void => void (data.href && navigate(data.href));
          return (
            <g
              key={data.id}
              className={`node ${isCurrent ? "current" : ""} ${data.gone ? "gone" : ""}`}
              transform={`translate(${y},${x - HEIGHT / 2})`}
              role="treeitem"
              aria-selected={isCurrent}
              tabIndex={data.href ? 0 : -1}
              style={{ cursor: data.href ? "pointer" : "default" }}
              onClick={open}
              onKeyDown={(event) => event.key === "Enter" && open()}
            >
              <rect width={WIDTH} height={HEIGHT} rx={9} />
              <text x={12} y={20}>
                {data.label}
              </text>
              <text x={12} y={36} className="sub">
                {data.note}
              </text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}
