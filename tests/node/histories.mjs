// Loads files of histories as the published local runtime does, and tells what it holds then.
// Reads one JSON file a line and writes one answer a line.
import { registerHooks } from "node:module";
import { createInterface } from "node:readline";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

// The runtime itself draws nothing, but one of its packages asks for React, which is not installed with it.
const names = ["useCallback", "useContext", "useEffect", "useInsertionEffect", "useLayoutEffect", "useMemo", "useReducer"];
const hooks = [...names, "use", "useRef", "useState", "createContext", "useSyncExternalStore", "useDebugValue"];
const react = `data:text/javascript,${hooks.map((hook) => `export const ${hook} = () => {};`).join("")}export default new Proxy({}, { get: () => () => ({}) });`;
registerHooks({
  resolve: (name, context, next) => (name === "react" ? { url: react, shortCircuit: true } : next(name, context)),
});

const dist = join(dirname(process.argv[2]), "..", "..");
const load = (...path) => import(pathToFileURL(join(dist, ...path)).href);
const { ExportedMessageRepository, withoutOrphanedMessages } = await load("runtime", "utils", "message-repository.js");
const { LocalThreadRuntimeCore } = await load("runtimes", "local", "local-thread-runtime-core.js");

const context = { getModelContext: () => ({}), subscribe: () => () => {} };
const adapters = { chatModel: { run: async () => ({ content: [] }) } };

// What a client does with the text of a file: times are times again.
const revived = ({ createdAt, ...message }) => ({ ...message, createdAt: new Date(createdAt ?? 0) });

const loaded = ({ headId, messages }) => {
  const items = messages.map(({ message, ...item }) => ({ ...item, message: revived(message) }));
  // It checks the shape of each message, and tells the status of one that has none.
  const checked = ExportedMessageRepository.fromBranchableArray(items, { headId });
  const exact = items.map((item, index) => ({
    ...item,
    message: { ...item.message, status: checked.messages[index].message.status },
  }));
  const { repository, droppedIds } = withoutOrphanedMessages({ headId, messages: exact });
  const thread = new LocalThreadRuntimeCore(context, { adapters });
  thread.import(repository);
  return { dropped: droppedIds, path: thread.messages.map(({ id }) => id), export: thread.export() };
};

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = loaded(JSON.parse(line));
  } catch (error) {
    answer = { error: String(error.stack) };
  }
  console.log(JSON.stringify(answer));
}
