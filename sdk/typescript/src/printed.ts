/** How objects print: handles with their id and state, records without their secrets. */

/** Symbol of the method with which `console.log` of Node and Bun prints an object. */
const INSPECT = Symbol.for("nodejs.util.inspect.custom");

/** Make the objects of a class print these of their fields. */
export function printed<T>(
  cls: { readonly prototype: T & object },
  name: string,
  fields: readonly (keyof T & string)[],
): void {
  const text = function (this: T): string {
    const known = fields.filter((field) => this[field] !== undefined);
    const pairs = known.map((field) => `${field}: ${JSON.stringify(this[field])}`);
    return `${name} { ${pairs.join(", ")} }`;
  };
  for (const key of ["toString", INSPECT]) {
    Object.defineProperty(cls.prototype, key, { value: text, writable: true, configurable: true });
  }
}

/**
 * Hide the named fields of a record when it is printed. They can still be read, copied and sent.
 */
export function withSecrets<T extends object>(record: T, names: readonly string[]): T {
  const value = (): object => {
    const hidden = names.filter((name) => (record as Record<string, unknown>)[name]);
    return { ...record, ...Object.fromEntries(hidden.map((name) => [name, "***"])) };
  };
  return Object.defineProperty(record, INSPECT, { value, enumerable: false });
}
