// Looks at the pages of a real head in Chromium: in both colour schemes, wide and narrow, with
// axe. Screenshots go into the folder that is named, for people.
//
//   node page.mjs TROUPE CHROMIUM FOLDER
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [troupe, browserPath, shots] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const home = mkdtempSync(join(tmpdir(), "troupe-page-"));
const env = {
  PATH: process.env.PATH, HOME: home, XDG_CONFIG_HOME: join(home, "config"), XDG_STATE_HOME: join(home, "state"),
};
const bad = [];

function run(...args) {
  return execFileSync(troupe, args, { env, cwd: home, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }).trim();
}

function file(name, text) {
  writeFileSync(join(home, name), text);
  return join(home, name);
}

function submit(name, gpus, more = "") {
  return run("submit", "-q", file(`${name}.yaml`, `name: ${name}\ncommand: [sleep, "1000"]\nresources: {gpus: ${gpus}, cpu: 0.01}\n${more}`));
}

// fill makes a cluster in which something of everything waits; the job that is looked at is
// returned.
function fill() {
  run("queue", "apply", file("queues.yaml", `queues:
- {name: nlp, tenant: true, guaranteed: {gpu: 3}, limit: {gpu: 3}, lend: {gpu: 1}}
- {name: night, parent: nlp, order: deadline, maxWait: 8h}
- {name: vision, tenant: true, guaranteed: {gpu: 1}, paused: moved to the new building}
`));
  run("topology", "apply", file("topology.yaml", "capacities: [{name: nfs, total: 400, overhead: 20, unit: MiB/s}]\n"));
  run("reservation", "create", "fans", "--maintenance", "new fans", "--count", "1", "--start", "30d", "--for", "2h");
  submit("runs", 3, "tenant: nlp\ntimeLimit: 2h\nuses: {nfs: 100}\n");
  const waits = submit("waits", 1, "queue: night\ntimeLimit: 30m\nuses: {nfs: 50}\nstrategy: STRICT_PACK\n");
  submit("paused", 1, "tenant: vision\n");
  submit("held", 1, "tenant: nlp\nhold: true\n");
  for (let i = 0; i < 12; i++) submit(`long-name-of-a-job-that-waits-behind-the-others-${i}`, 2, "tenant: nlp\ntimeLimit: 1h\n");
  return waits;
}

// look opens one page in every way, and gathers what is wrong with it; the address behind a
// link of it is returned.
async function look(context, name, url, words, link) {
  let href = "";
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [1440, 420]) {
      const page = await context.newPage();
      const at = `${name}, ${colorScheme}, ${width} px`;
      page.on("console", (m) => m.type() === "error" && bad.push(`${at}: the console says: ${m.text()}`));
      page.on("pageerror", (e) => bad.push(`${at}: ${e}`));
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      const answer = await page.goto(url);
      if (!answer.ok()) bad.push(`${at}: status ${answer.status()}`);
      const text = await page.evaluate(() => document.body.innerText);
      for (const word of words) if (!text.includes(word)) bad.push(`${at}: does not say ${JSON.stringify(word)}`);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      if (over > 0) bad.push(`${at}: ${over} px wider than the window`);
      await page.screenshot({ path: join(shots, `${name}-${colorScheme}-${width}.png`), fullPage: true });
      // The page forbids scripts; axe comes in as the debugger's.
      const found = await page.evaluate(`(() => { ${axe}; return axe.run({ resultTypes: ["violations"] }); })()`);
      for (const v of found.violations) bad.push(`${at}: ${v.id}: ${v.help}: ${v.nodes.map((n) => n.target.join(" ")).join("; ")}`);
      if (link) href = await page.getByRole("link", { name: link }).evaluate((a) => a.href, undefined, { timeout: 5000 }).catch(() => "");
      await page.close();
    }
  }
  if (link && href === "") bad.push(`${name}: no link ${JSON.stringify(link)}`);
  return href;
}

async function main() {
  mkdirSync(shots, { recursive: true });
  run("up", "-d", "-q", "--port", "0", "--gpus", "fake:4x80GiB");
  const job = fill();
  // Chromium refuses to run as root in its sandbox.
  const browser = await chromium.launch({ executablePath: browserPath, args: process.getuid() === 0 ? ["--no-sandbox"] : [] });
  try {
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(run("ui", "-q"));
    const base = page.url();
    await page.close();
    const here = (path) => new URL(path, base).href;
    await look(context, "queue", here("queue?refresh=off"), ["waits", "nlp", "night", "moved to the new building", "new fans", "nfs", "runs"]);
    await look(context, "queue-of-one", here("queue?in=night&refresh=off"), ["waits"]);
    const change = "Which single constraint, if dropped, would let it start?";
    const tried = await look(context, "job", here(`jobs/${job}?refresh=off`), ["Why it waits", "Position 1 in its queue"], change);
    if (tried) await look(context, "job-what-if", tried, ["What would change it", "without the limits of tenants and queues: it would start now"]);
    await look(context, "overview", here("?refresh=off"), ["Overview"]);
  } finally {
    await browser.close();
  }
}

try {
  await main();
} catch (e) {
  bad.push(String(e));
} finally {
  try {
    run("down", "--yes", "-q");
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
}
for (const b of bad) console.error(b);
console.log(bad.length === 0 ? `pages are as they are to be; screenshots in ${shots}` : `${bad.length} findings`);
process.exit(bad.length === 0 ? 0 : 1);
