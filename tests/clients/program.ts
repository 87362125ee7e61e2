// What somebody writes who has types made by openapi-typescript: compiled with --strict beside api.ts.
import type { components, operations } from "./api";

type NewRecords = components["schemas"]["NewRecords"];
type Appended = components["schemas"]["Appended"];
type Problem = components["schemas"]["Problem"];
type Settings = components["schemas"]["TopicSettings"];
type Query = operations["readPartition"]["parameters"]["query"];

export const settings: Settings = { partitions: 2, replication_factor: "all", retention: { age: "7d" } };
export const query: Query = { offset: "earliest", limit: 10, wait: "5s", value: "json" };
export const records: NewRecords = { records: [{ key: "k", value: { item: 7 } }, { value: null }] };

export async function append(url: string): Promise<Appended> {
  const answer = await fetch(`${url}/v1/topics/made/records`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(records),
  });
  if (!answer.ok) {
    const problem = (await answer.json()) as Problem;
    if (problem.code === "unknown-topic" && problem.definite) throw new Error(problem.detail);
    throw new Error(problem.title);
  }
  const stored = (await answer.json()) as Appended;
  const offset: number = stored.appended[0]?.base_offset ?? 0;
  return { ...stored, count: offset };
}

// @ts-expect-error a number of partitions is a number
export const wrong: Settings = { partitions: "two" };
// @ts-expect-error there is no such code
export const unknown: Problem["code"] = "no-such-code";
