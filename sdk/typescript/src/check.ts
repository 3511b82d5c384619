/**
 * Checks arguments against the signature of the method that they are given to.
 *
 * Invariants: a value of the wrong type is refused by the argument's name before anything is sent;
 * a value that the signature allows is passed on untouched. Values could be secrets, so messages name
 * only their types.
 */

import { ArgumentTypeError } from "./errors.js";
import { SIGNATURES } from "./signatures.js";

/** The values that a type allows. */
export type Shape =
  | keyof typeof PLAIN
  | { readonly list: Shape }
  | { readonly map: Shape }
  | { readonly anyOf: readonly Shape[] }
  | { readonly fields: Takes };

/** Shapes by name; a name that ends with `?` may be left out. */
export type Takes = Readonly<Record<string, Shape>>;

/** Arguments of a method, in order, and how it fails: a promise is rejected, everything else throws. */
export interface Signature {
  readonly isAsync: boolean;
  readonly takes: Takes;
}

/**
 * Location of an invalid value in an argument (`.PORT`), the expected kind, and the actual value.
 */
interface Fault {
  where: string;
  words: string;
  value: unknown;
}

const tagOf = (value: unknown): string => Object.prototype.toString.call(value).slice(8, -1);
const isObject = (value: unknown): boolean => {
  return typeof value === "object" && value !== null && !Array.isArray(value);
};
const isNumber = (value: unknown): boolean => typeof value === "number" && !Number.isNaN(value);
const isSignal = (value: unknown): boolean => isObject(value) && "aborted" in (value as object);

/** Types without parts. Recognized by their tags, since a value may come from another realm. */
const PLAIN = {
  any: { words: "anything", fits: (_: unknown) => true },
  string: { words: "a string", fits: (value: unknown) => typeof value === "string" },
  number: { words: "a number", fits: isNumber },
  boolean: { words: "a boolean", fits: (value: unknown) => typeof value === "boolean" },
  function: { words: "a function", fits: (value: unknown) => typeof value === "function" },
  object: { words: "an object", fits: isObject },
  Uint8Array: { words: "a Uint8Array", fits: (value: unknown) => tagOf(value) === "Uint8Array" },
  ArrayBuffer: { words: "an ArrayBuffer", fits: (value: unknown) => tagOf(value) === "ArrayBuffer" },
  Date: { words: "a Date", fits: (value: unknown) => tagOf(value) === "Date" },
  AbortSignal: { words: "an AbortSignal", fits: isSignal },
};

/** Make the public methods of classes check the types of their arguments. Called where they are defined. */
export function checked(classes: Readonly<Record<string, { readonly prototype: object }>>): void {
  for (const [name, cls] of Object.entries(classes)) checkMethods(name, cls);
}

function checkMethods(name: string, cls: { readonly prototype: object }): void {
  for (const [method, signature] of Object.entries(SIGNATURES[name] ?? {})) {
    const original = Reflect.get(cls.prototype, method) as (...args: unknown[]) => unknown;
    const value = function (this: unknown, ...args: unknown[]): unknown {
      const error = mistake(`${name}.${method}`, signature.takes, args);
      if (error === undefined) return original.apply(this, args);
      if (signature.isAsync) return Promise.reject(error);
      throw error;
    };
    Object.defineProperty(value, "name", { value: method });
    Object.defineProperty(cls.prototype, method, { value, writable: true, configurable: true });
  }
}

/** Check the arguments of a constructor. */
export function checkNew(name: string, ...args: unknown[]): void {
  const error = mistake(name, SIGNATURES.new?.[name]?.takes ?? {}, args);
  if (error) throw error;
}

function mistake(call: string, takes: Takes, args: readonly unknown[]): ArgumentTypeError | undefined {
  let index = 0;
  for (const key in takes) {
    const fault = faultOf(key, takes[key] as Shape, args[index++]);
    if (!fault) continue;
    const name = `${nameOf(key)}${fault.where}`;
    return new ArgumentTypeError(`${call}: ${name} must be ${fault.words}, not ${shown(fault.value)}`);
  }
  return undefined;
}

function nameOf(key: string): string {
  return key.endsWith("?") ? key.slice(0, -1) : key;
}

function shown(value: unknown): string {
  if (value === null || Number.isNaN(value)) return String(value);
  return Array.isArray(value) ? "an array" : typeof value;
}

/** The fault of an argument or a field, whose name says whether it may be left out. */
function faultOf(key: string, shape: Shape, value: unknown): Fault | undefined {
  return value === undefined && key.endsWith("?") ? undefined : fault(shape, value);
}

function fault(shape: Shape, value: unknown): Fault | undefined {
  const wrong = { where: "", words: wordsOf(shape), value };
  if (typeof shape === "string") return PLAIN[shape].fits(value) ? undefined : wrong;
  if ("anyOf" in shape) {
    const faults = shape.anyOf.map((each) => fault(each, value));
    // A fault inside is more precise than that the whole value fits none.
    return faults.includes(undefined) ? undefined : (faults.find((each) => each?.where) ?? wrong);
  }
  if ("list" in shape) {
    if (!Array.isArray(value)) return wrong;
    return first(value, (item, index) => inside(`[${index}]`, fault(shape.list, item)));
  }
  if (!isObject(value)) return wrong;
  const record = value as Record<string, unknown>;
  if ("map" in shape) {
    const names = Object.keys(record).filter((name) => record[name] !== undefined);
    return first(names, (name) => inside(`.${name}`, fault(shape.map, record[name])));
  }
  return first(Object.entries(shape.fields), ([key, field]) => {
    const name = nameOf(key);
    return inside(`.${name}`, faultOf(key, field, record[name]));
  });
}

function inside(where: string, found: Fault | undefined): Fault | undefined {
  return found && { ...found, where: where + found.where };
}

function first<T>(items: readonly T[], look: (item: T, at: number) => Fault | undefined): Fault | undefined {
  for (let index = 0; index < items.length; index++) {
    const found = look(items[index] as T, index);
    if (found) return found;
  }
  return undefined;
}

function wordsOf(shape: Shape): string {
  if (typeof shape === "string") return PLAIN[shape].words;
  if ("anyOf" in shape) return [...new Set(shape.anyOf.map(wordsOf))].join(" or ");
  if ("list" in shape) return shape.list === "any" ? "an array" : `an array of ${plural(shape.list)}`;
  const needed = "fields" in shape ? Object.keys(shape.fields).filter((key) => !key.endsWith("?")) : [];
  return needed.length ? `an object with ${needed.join(", ")}` : "an object";
}

function plural(shape: Shape): string {
  if (typeof shape === "string") return `${shape}s`;
  if ("anyOf" in shape) return shape.anyOf.map(plural).join(" or ");
  return wordsOf(shape).replace(/^an? (\w+)/, "$1s");
}
