/** Does something with each, so many at a time; results in their order. The first failure is thrown, once none is under way. */
export async function atOnce<Item, Result>(
  width: number,
  items: readonly Item[],
  work: (item: Item) => Promise<Result>,
): Promise<Result[]> {
  const results: Result[] = [];
  let next = 0;
  const worker = async (): Promise<void> => {
    for (let at = next++; at < items.length; at = next++) results[at] = await work(items[at] as Item);
  };
  const ended = await Promise.allSettled(Array.from({ length: width }, worker));
  const failed = ended.find((one) => one.status === "rejected");
  if (failed !== undefined) throw failed.reason;
  return results;
}
