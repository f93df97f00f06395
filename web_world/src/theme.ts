// Colours come from the style sheet, so that light, dark and forced colours are decided there alone.

const NAMES = [
  "sea", "sea-lit", "land", "coast", "grid", "night", "air", "air-thin", "air-none", "edge", "edge-none",
  "rim", "light", "light-core", "ring", "ultra", "pod", "busy", "star", "label", "label-soft", "halo",
] as const;

type Camel<Name extends string> = Name extends `${infer First}-${infer Rest}`
  ? `${First}${Capitalize<Camel<Rest>>}`
  : Name;
export type Theme = Record<Camel<(typeof NAMES)[number]>, string> & { font: string };

export function readTheme(element: HTMLElement): Theme {
  const style = getComputedStyle(element);
  const entries = NAMES.map((name) => [
    name.replace(/-(.)/g, (_match, letter: string) => letter.toUpperCase()),
    style.getPropertyValue(`--globe-${name}`).trim(),
  ]);
  return { ...Object.fromEntries(entries), font: style.fontFamily } as Theme;
}
