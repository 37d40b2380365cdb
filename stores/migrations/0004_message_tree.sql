-- The message tree: places, remembered branches, deletion; decisions about calls, and results that come late.
--
-- Columns are added empty, so no row is written again, and what a writer of the release before leaves out means what
-- it always did. Errors: those of 0002_functions.sql.

-- `place` orders siblings; empty, until a message is moved, it is `seq`. `remembered` is the child to open below the
-- message; empty, it is the last one. `done_step` is the mark of a turn that was left to wait for people: when it goes on
-- threads.done_step may be that of a later one.
alter table perdure.messages
    add column place      bigint,
    add column remembered text,
    add column source_id  text,
    add column given_id   text,
    add column created_at timestamptz,
    add column done_step  int;
-- Not with the column: the messages that are there would all get the time of the migration.
alter table perdure.messages alter column created_at set default now();

-- What hangs below a message, in whichever thread; and what the foreign key looks for when one is deleted.
create index messages_parent on perdure.messages (parent_id);
-- With `seq`, by which it is asked for: else messages_changed would look as good to a plan made on empty tables.
create index messages_running on perdure.messages (thread, seq) where state = 'running';

-- `remembered` is that of the root. `tree_seq` is the number of the newest change that sends readers for a new
-- snapshot, `shape` that of the newest one in the middle of a path. `spent_blob` is the file of an import that the
-- next batch removes: until then this one may be sent again.
alter table perdure.threads
    add column remembered text,
    add column tree_seq   bigint not null default 0,
    add column shape      bigint not null default 0,
    add column spent_blob text;

-- With messages that can be deleted, each of these keys would read all threads, or all open calls, for each of them;
-- with an index on head_id no write of a thread would be in place any more. Deletion is one function, which moves
-- heads and removes calls itself, and whoever reads a path notices if it does not begin where it should.
alter table perdure.threads drop constraint threads_head_id_fkey;
alter table perdure.calls drop constraint calls_message_id_position_fkey;

create index threads_spawn on perdure.threads (spawn_message_id) where spawn_message_id is not null;
-- All children, the open ones among them: a second index that begins with the parent could be taken in its place.
drop index perdure.threads_children;
create index threads_children on perdure.threads (parent_thread_id, closed_at, thread) where parent_thread_id is not null;

-- The body of a call stays as the model wrote it. Once it is decided about it is told again, as `decided`.
alter table perdure.parts
    add column decision text,
    add column decided  bigint;
create index parts_decided on perdure.parts (thread, decided) where decided is not null;

-- Inputs that no message carries, such as a change of the tree, have the number that the thread had then; a fraction
-- orders those of one batch.
alter table perdure.inputs add column seq numeric;
create index inputs_apart on perdure.inputs (thread, seq) where seq is not null;

alter table perdure.calls add column interim text;

-- A summary that hangs on nothing is void: it has lost its text, and stays so that nobody adds it again.
alter table perdure.summaries alter column message_id drop not null;

-- Decisions for calls to come; empty `arguments` stand for any.
create table perdure.decisions (
    thread     bigint not null references perdure.threads on delete cascade,
    tool       text not null,
    arguments  text not null,
    approved   boolean not null,
    decided_by text,
    number     bigint generated always as identity,
    primary key (thread, tool, arguments)
);

-- A part as it is read.
create function perdure.part_body(p_body text, p_decision text) returns text language sql immutable as $$
    select case when p_decision is null then p_body
           else overlay(p_body placing '"decision":' || p_decision || ',' from 2 for 0) end
$$;

-- What goes on at the head. Its parent may remember another child, which would be opened instead of the new one.
create or replace function perdure.apply_append_messages(t perdure.threads, op jsonb) returns perdure.threads
language plpgsql as $$
begin
    insert into perdure.messages (id, thread, seq, changed, role, parent_id, parent_parts, turn, state, reason,
                                  detail, input_id, metadata, source_id, place)
    select m.id, t.thread, t.seq + m.at, t.seq + m.at, m.role,
           case when m.on_head then coalesce(t.head_id, t.spawn_message_id)
                when m.at_root then t.spawn_message_id else m.parent_id end,
           case when m.at_root or m.on_head and t.head_id is null then t.spawn_parts else m.parent_parts end,
           m.turn, m.state, m.reason, m.detail, m.input_id, m.metadata, m.source_id, m.place
    from jsonb_to_recordset(op -> 'messages') as m(
        id text, at int, on_head boolean, at_root boolean, role text, parent_id text, parent_parts int, turn int,
        state text, reason text, detail text, input_id text, metadata text, source_id text, place bigint);
    insert into perdure.parts (message_id, position, thread, seq, body)
    select p.message_id, p.position, t.thread, t.seq + p.at, p.body
    from jsonb_to_recordset(op -> 'parts') as p(message_id text, position int, at int, body text);
    if (op #>> '{messages,0,on_head}')::boolean and t.head_id is not null then
        update perdure.messages set remembered = null
        where id = t.head_id and thread is not distinct from t.thread and remembered is not null;
    end if;
    t.seq := t.seq + (op ->> 'count')::int;
    t.head_id := op ->> 'head_id';
    t.turn := greatest(t.turn, (op ->> 'turn')::int);
    return t;
end $$;

-- A step is over. The mark of the newest turn stands with the thread, whose row is written anyway; that of an older one
-- that still runs, or that the mark leaves, with its message.
create function perdure.mark_done(t perdure.threads, p_turn int, p_step int) returns perdure.threads
language plpgsql as $$
declare
    m perdure.messages;
begin
    if p_turn <> t.done_turn then
        select * into m from perdure.messages
        where thread = t.thread and state = 'running' order by seq desc limit 1;
        if m.turn = least(p_turn, t.done_turn) then
            update perdure.messages
            set done_step = greatest(done_step, case when p_turn < t.done_turn then p_step else t.done_step end)
            where id = m.id;
        end if;
    end if;
    if (p_turn, p_step) > (t.done_turn, t.done_step) then
        t.done_turn := p_turn;
        t.done_step := p_step;
    end if;
    return t;
end $$;

create or replace function perdure.apply_commit_step(t perdure.threads, op jsonb) returns perdure.threads
language plpgsql as $$
declare
    s perdure.steps;
    v_turn int := (op ->> 'turn')::int;
    v_step int := (op ->> 'step')::int;
    v_bodies text[] := '{}';
begin
    select * into s from perdure.steps where thread = t.thread and turn = v_turn and step = v_step;
    if op ? 'parts' then
        v_bodies := array(select jsonb_array_elements_text(op -> 'parts'));
    elsif s.turn is not null and not (op ->> 'discard')::boolean then
        if s.outcome is null then
            raise exception using errcode = 'PD006', message = 'the step still streams';
        end if;
        v_bodies := case when (op ->> 'trim_reasoning')::boolean then s.parts[:s.kept] else s.parts end;
    end if;
    t := perdure.add_parts(t, op ->> 'message_id', (op ->> 'start')::int, v_bodies);
    if not op ? 'parts' and s.calls <> '[]' then
        t := perdure.open_calls(t, op ->> 'message_id', (op ->> 'start')::int, cardinality(v_bodies), s.calls);
    end if;
    t.requests := t.requests + (op ->> 'requests')::bigint;
    t.input_tokens := t.input_tokens + (op ->> 'input_tokens')::bigint;
    t.output_tokens := t.output_tokens + (op ->> 'output_tokens')::bigint;
    t.cached_tokens := t.cached_tokens + (op ->> 'cached_tokens')::bigint;
    -- Whatever is left of earlier steps can no longer be committed either: one turn of a thread works at a time.
    delete from perdure.steps where thread = t.thread and (turn, step) <= (v_turn, v_step);
    delete from perdure.chunks where thread = t.thread and (turn, step) <= (v_turn, v_step);
    return perdure.mark_done(t, v_turn, v_step);
end $$;

create or replace function perdure.apply_set_status(t perdure.threads, op jsonb) returns perdure.threads
language plpgsql as $$
declare
    m perdure.messages;
begin
    select * into m from perdure.messages where id = op ->> 'message_id';
    if m.thread is distinct from t.thread then
        raise exception using errcode = 'PD005', message = format(
            'message %s, whose status was to be set, is not in thread %s', op ->> 'message_id', t.thread_id);
    elsif m.state in ('running', 'requires_action') then
        t.seq := t.seq + 1;
        update perdure.messages
        set state = op ->> 'state', reason = op ->> 'reason', detail = op ->> 'detail', changed = t.seq,
            done_step = case when op ->> 'state' = 'requires_action' and m.turn = t.done_turn
                        then greatest(m.done_step, t.done_step) else m.done_step end
        where id = m.id;
    end if;
    return t;
end $$;

-- Of turns before the newest only the one that works takes writers: it has waited for people meanwhile.
create or replace function perdure.claim_step(t perdure.threads, p_turn int, p_step int, p_attempt int)
returns perdure.steps language plpgsql as $$
declare
    s perdure.steps;
begin
    if (p_turn, p_step) <= (t.done_turn, t.done_step) and not exists (
        select from (
            select m.turn, m.done_step from perdure.messages m
            where m.thread = t.thread and m.state = 'running' order by m.seq desc limit 1
        ) m where p_turn < t.done_turn and m.turn = p_turn and coalesce(m.done_step, -1) < p_step
    ) then
        raise exception using errcode = 'PD003', message = 'was stopped or committed';
    end if;
    select * into s from perdure.steps where thread = t.thread and turn = p_turn and step = p_step;
    if s.outcome is not null or s.attempt = p_attempt then
        return s;
    elsif s.attempt > p_attempt then
        raise exception using errcode = 'PD003', message = format('was taken over by attempt %s', s.attempt);
    elsif s.attempt < p_attempt then
        delete from perdure.chunks where thread = t.thread and turn = p_turn and step = p_step;
    end if;
    return (t.thread, p_turn, p_step, p_attempt, t.seq + 1, null, null, null, null)::perdure.steps;
end $$;
