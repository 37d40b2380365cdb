-- What is conversation or state of a thread. Text that must come back exactly (words, JSON) is kept as the ASCII JSON
-- text of perdure.codec in `text` columns: jsonb would lose the order of keys and refuse NUL and lone surrogates.
--
-- Order comes from threads.seq alone. It is raised only under the thread's row lock, which is held until commit, so
-- whoever has read up to a number has read all below it: no earlier number can become visible later.

-- Rows refer to threads by a number of their own: ids are long, and they would stand in every row and every index.
create table perdure.threads (
    thread           bigint generated always as identity primary key,
    thread_id        text not null unique,
    tenant           text not null,
    agent            text not null,
    kind             text not null,
    title            text,
    parent_thread_id text references perdure.threads (thread_id),
    root_thread_id   text,
    spawn_message_id text,
    spawn_parts      int,
    head_id          text,
    version          bigint not null default 0,
    sync_id          text,
    seq              bigint not null default 0,
    turn             int not null default 0,
    -- The newest step that was committed, sealed or discarded: its late writers are refused although its row is gone.
    done_turn        int not null default -1,
    done_step        int not null default -1,
    requests         bigint not null default 0,
    input_tokens     bigint not null default 0,
    output_tokens    bigint not null default 0,
    cached_tokens    bigint not null default 0,
    created_at       timestamptz not null default now(),
    closed_at        timestamptz
) with (fillfactor = 50);  -- every write of a thread updates its row, in place (HOT), if the page has room and
                           -- no index holds a column that changes

-- `seq` is the number of the message, `changed` that of its newest change.
create table perdure.messages (
    id           text primary key,
    thread       bigint not null references perdure.threads on delete cascade,
    seq          bigint not null,
    changed      bigint not null,
    role         text not null,
    parent_id    text references perdure.messages,
    parent_parts int,
    turn         int not null,
    state        text not null,
    reason       text,
    detail       text,
    input_id     text,
    metadata     text
);
create index messages_changed on perdure.messages (thread, changed);

-- A path that begins at a message which is not there would be taken for an empty conversation.
alter table perdure.threads
    add foreign key (head_id) references perdure.messages,
    add foreign key (spawn_message_id) references perdure.messages;

-- Inputs that were accepted. They have a table of their own so that one index finds them: with two that begin with
-- the thread, a plan that was made while the tables were empty may take the wrong one, and keep it.
create table perdure.inputs (
    thread   bigint not null references perdure.threads on delete cascade,
    input_id text not null,
    digest   text,
    primary key (thread, input_id)
);

create table perdure.parts (
    message_id text not null references perdure.messages on delete cascade,
    position   int not null,
    thread     bigint not null,
    seq        bigint not null,
    body       text not null,
    primary key (message_id, position)
);
create index parts_seq on perdure.parts (thread, seq);

-- The turn buffer: a step that streams or is done but not committed, and its chunks. Done steps have an outcome; then
-- `parts` are their exact parts, the first `kept` of them without trailing reasoning, and `calls` says which are calls.
create table perdure.steps (
    thread    bigint not null references perdure.threads on delete cascade,
    turn      int not null,
    step      int not null,
    attempt   int not null,
    began     bigint not null,
    parts     text[],
    kept      int,
    calls     jsonb,
    outcome   text,
    primary key (thread, turn, step)
);

create table perdure.chunks (
    thread    bigint not null references perdure.threads on delete cascade,
    seq       bigint not null,
    turn      int not null,
    step      int not null,
    attempt   int not null,
    ordinal   int not null,
    body      text not null,
    primary key (thread, seq)
);

-- Open calls. What is called with which arguments stands in the part; `seq` is 0 until the call starts, `owner` is who
-- has started it last.
create table perdure.calls (
    thread     bigint not null references perdure.threads on delete cascade,
    call_id    text not null,
    message_id text not null,
    position   int not null,
    turn       int not null,
    step       int not null,
    index      int not null,
    started    int not null default 0,
    owner      text,
    result     text,
    seq        bigint not null default 0,
    primary key (thread, call_id),
    foreign key (message_id, position) references perdure.parts on delete cascade
);

-- `number` is the order in which these rows were made. Readers of changes do not see them, so it needs no thread's lock.

create table perdure.summaries (
    id         text primary key,
    thread     bigint not null references perdure.threads on delete cascade,
    message_id text not null references perdure.messages on delete cascade,
    parts      int not null,
    body       text not null,
    number     bigint generated always as identity
);
create index summaries_point on perdure.summaries (message_id, parts, number);

create table perdure.subscriptions (
    thread    bigint not null references perdure.threads on delete cascade,
    call_id   text not null,
    tool      text not null,
    number    bigint generated always as identity,
    primary key (thread, call_id)
);

create table perdure.choices (
    thread    bigint not null references perdure.threads on delete cascade,
    choice_id text not null,
    call_id   text not null,
    body      text not null,
    number    bigint generated always as identity,
    primary key (thread, choice_id)
);

create table perdure.metadata (
    thread    bigint primary key references perdure.threads on delete cascade,
    body      text not null
);

create table perdure.blobs (
    thread     bigint not null references perdure.threads on delete cascade,
    sha256     bytea not null,
    media_type text not null,
    data       bytea not null,
    primary key (thread, sha256)
);
