// Messages, numbers and names in the page's language. Digits are pinned by the language's tag.
import { FluentBundle, FluentNumber, FluentResource, type FluentVariable } from "@fluent/bundle";

export interface Config {
  language: string;
  etag: string;
  messages: string;
}

function readConfig(): Config {
  const element = document.getElementById("world-config");
  return JSON.parse(element?.textContent ?? "{}") as Config;
}

export const config = readConfig();
const bundle = new FluentBundle(config.language);
bundle.addResource(new FluentResource(config.messages));

export function text(key: string, values: Record<string, FluentVariable> = {}): string {
  const message = bundle.getMessage(key);
  // Grouped from the first thousand on, as the server does it.
  const grouped = Object.entries(values).map(([name, value]) => [
    name,
    typeof value === "number" ? new FluentNumber(value, { useGrouping: true }) : value,
  ]);
  return message?.value ? bundle.formatPattern(message.value, Object.fromEntries(grouped)) : key;
}

const whole = new Intl.NumberFormat(config.language, { maximumFractionDigits: 0, useGrouping: true });
const percent = new Intl.NumberFormat(config.language, { style: "percent" });
const regions = new Intl.DisplayNames(config.language, { type: "region", fallback: "code" });

export const number = (value: number): string => whole.format(value);
// With as many digits as the server gives.
export const short = (value: number): string =>
  new Intl.NumberFormat(config.language, {
    notation: "compact",
    maximumFractionDigits: value < 1_000 || (value >= 10_000 && value < 1_000_000) ? 0 : 1,
  }).format(value);
export const tenths = (value: number): string => percent.format(value / 10);
export const countryName = (code: string): string => regions.of(code) ?? code;

const measure = (value: number, unit: string): string =>
  text("measure", {
    value: new Intl.NumberFormat(config.language, { maximumFractionDigits: value < 100 ? 1 : 0, useGrouping: true }).format(value),
    unit,
  });

// As on the server: memory in binary steps, bandwidth in decimal ones.
export function memory(gib: number): string {
  let [value, unit] = [gib, "GB"];
  for (const larger of ["TB", "PB"]) {
    if (value < 1024) break;
    [value, unit] = [value / 1024, larger];
  }
  return measure(value, unit);
}

export function bandwidth(gigabytes: number): string {
  let [value, unit] = [gigabytes, "GB/s"];
  for (const larger of ["TB/s", "PB/s"]) {
    if (value < 1000) break;
    [value, unit] = [value / 1000, larger];
  }
  return measure(value, unit);
}
