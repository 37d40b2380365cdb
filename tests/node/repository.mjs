// Carries operations out on the published MessageRepository and tells what it shows after each of them.
// Reads one JSON list of operations a line, each for a new repository, and writes one list of answers a line.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { MessageRepository } = await import(pathToFileURL(process.argv[2]).href);

// The published one lets the path to the head stay unselected after some operations. To go on comparing, it is told to
// select it, which an import of nothing does; `unselected` counts how often that was needed.
class Repository extends MessageRepository {
  unselected = 0;

  addOrUpdateMessage(parentId, message) {
    super.addOrUpdateMessage(parentId, message);
    this.selectHead();
  }

  deleteMessage(messageId, replacementId) {
    super.deleteMessage(messageId, replacementId);
    this.selectHead();
  }

  selectHead() {
    for (let node = this.head; node; node = node.prev) {
      if ((node.prev ?? this.root).next !== node) {
        this.unselected += 1;
        this.import({ headId: this.headId, messages: [] });
        return;
      }
    }
  }
}

const message = ({ id, content, optimistic }) => ({ id, content, metadata: { isOptimistic: optimistic ?? false } });

const operations = {
  Add: (tree, { parent, ...rest }) => tree.addOrUpdateMessage(parent, message(rest)),
  Switch: (tree, { id }) => tree.switchToBranch(id),
  Delete: (tree, { id, named, replacement }) => tree.deleteMessage(id, named ? replacement : undefined),
  Reset: (tree, { id }) => tree.resetHead(id),
  Import: (tree, { messages, head }) =>
    tree.import({
      headId: head,
      messages: messages.map((item) => ({ parentId: item.parent_id, message: message(item) })),
    }),
};

const shown = (tree) => {
  const { headId, messages } = tree.export();
  const ids = [...tree.messages.keys()];
  const ofNodes = (read) => Object.fromEntries(ids.map((id) => [id, read(tree.messages.get(id))]));
  const withRoot = (read) => ({ "": read(tree.root), ...ofNodes(read) });
  return {
    head: headId,
    path: tree.getMessages().map(({ id }) => id),
    messages: messages.map(({ message, parentId }) => [message.id, parentId, message.content]),
    levels: ofNodes((node) => tree.getMessage(node.current.id).index),
    children: withRoot((node) => node.children),
    branches: ofNodes((node) => tree.getBranches(node.current.id)),
    remembered: withRoot((node) => node.next?.current.id ?? null),
  };
};

// An import that is refused leaves what it had added before: put back what was there. `leftovers` says that it was so.
const carryOut = (tree, operation) => {
  const { messages, head, root } = structuredClone({ messages: tree.messages, head: tree.head, root: tree.root });
  const before = JSON.stringify(shown(tree));
  tree.unselected = 0;
  try {
    operations[operation.kind](tree, operation);
    return { refused: false, unselected: tree.unselected > 0, leftovers: false };
  } catch (error) {
    if (!/^MessageRepository\(/.test(error.message)) throw error;
    const leftovers = JSON.stringify(shown(tree)) !== before;
    if (leftovers) Object.assign(tree, { messages, head, root }), tree._messages.dirty();
    return { refused: true, unselected: false, leftovers };
  }
};

for await (const line of createInterface({ input: process.stdin })) {
  const tree = new Repository();
  const answers = JSON.parse(line).map((operation) => ({ ...carryOut(tree, operation), shown: shown(tree) }));
  process.stdout.write(JSON.stringify(answers) + "\n");
}
