-- What models cost and are told besides the conversation: usage, turn options, context providers, compaction.
--
-- Columns are added empty, so no row is written again, and what a writer of the release before leaves out means what
-- it always did. Errors: those of 0002_functions.sql.

alter table perdure.threads
    add column nano_usd bigint not null default 0,
    add column unpriced bigint not null default 0,
    add column model    text;

-- Neither changes, so a thread's row is still updated in place.
create index threads_root on perdure.threads (root_thread_id) where root_thread_id is not null;
create index threads_tenant on perdure.threads (tenant);

alter table perdure.messages
    add column options text,
    add column usage   text;

-- `accepted` is what was answered when the summary came; a deletion that voids it later does not change that. An old
-- row has the columns of one that has nothing more to say.
alter table perdure.summaries
    add column kind        text not null default 'summary',
    add column items       text,
    add column covered     int not null default 0,
    add column previous_id text,
    add column shape       bigint,
    add column usage       text,
    add column accepted    boolean not null default true;

create table perdure.turn_contexts (
    thread bigint not null references perdure.threads on delete cascade,
    turn   int not null,
    step   int not null,
    body   text not null,
    primary key (thread, turn, step)
);

create table perdure.provider_states (
    thread         bigint not null references perdure.threads on delete cascade,
    source         text not null,
    body           text not null,
    version        bigint not null,
    schema_version bigint not null,
    primary key (thread, source)
);

create table perdure.finished_hooks (
    thread bigint not null references perdure.threads on delete cascade,
    turn   int not null,
    source text not null,
    number bigint generated always as identity,
    primary key (thread, turn, source)
);

-- Logs of history providers. Rows that stand for a message of the conversation name it (`message_id`) and go with it;
-- others go with their turn.
create table perdure.logged_messages (
    thread     bigint not null references perdure.threads on delete cascade,
    source     text not null,
    id         text not null,
    message_id text,
    turn       int not null,
    body       text not null,
    number     bigint generated always as identity,
    primary key (thread, source, id)
);

-- Model calls that brought nothing and were counted.
create table perdure.spent_calls (
    thread  bigint not null references perdure.threads on delete cascade,
    turn    int not null,
    step    int not null,
    attempt int not null,
    primary key (thread, turn, step, attempt)
);

-- Money and tokens.

create function perdure.add_usage(p_usage text, p_more text) returns text language plpgsql immutable as $$
begin
    if p_usage is null then
        return p_more;
    end if;
    return (
        select jsonb_object_agg(key, number)::text
        from (
            select key, sum(value::bigint) as number
            from (select * from jsonb_each_text(p_usage::jsonb) union all select * from jsonb_each_text(p_more::jsonb)) usages
            group by key
        ) added
    );
end $$;

-- What is nothing is left out.
create function perdure.spend(t perdure.threads, p_usage jsonb) returns perdure.threads language plpgsql as $$
begin
    t.requests := t.requests + coalesce((p_usage ->> 'requests')::bigint, 0);
    t.input_tokens := t.input_tokens + coalesce((p_usage ->> 'input_tokens')::bigint, 0);
    t.output_tokens := t.output_tokens + coalesce((p_usage ->> 'output_tokens')::bigint, 0);
    t.cached_tokens := t.cached_tokens + coalesce((p_usage ->> 'cached_tokens')::bigint, 0);
    t.nano_usd := t.nano_usd + coalesce((p_usage ->> 'nano_usd')::bigint, 0);
    t.unpriced := t.unpriced + coalesce((p_usage ->> 'unpriced')::bigint, 0);
    return t;
end $$;

-- Found from the newest change on: the turn that is asked for is, or was just now, the one that runs.
create function perdure.message_of(p_thread bigint, p_turn int) returns text language sql stable as $$
    select m.id from perdure.messages m
    where m.thread = p_thread and m.role = 'assistant' and m.turn = p_turn order by m.changed desc limit 1
$$;

-- Readers are told of the message once more: nothing else may change in it any more.
create function perdure.count_call(p_thread_id text, p_turn int, p_step int, p_attempt int, p_usage text)
returns void language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    v_message text;
begin
    insert into perdure.spent_calls values (t.thread, p_turn, p_step, p_attempt) on conflict do nothing;
    if not found then
        return;
    end if;
    t := perdure.spend(t, p_usage::jsonb);
    v_message := perdure.message_of(t.thread, p_turn);
    if v_message is not null and p_usage <> '{}' then
        t.seq := t.seq + 1;
        update perdure.messages set usage = perdure.add_usage(usage, p_usage), changed = t.seq where id = v_message;
    end if;
    update perdure.threads
    set (requests, input_tokens, output_tokens, cached_tokens, nano_usd, unpriced) =
        (t.requests, t.input_tokens, t.output_tokens, t.cached_tokens, t.nano_usd, t.unpriced)
    where thread = t.thread;
    perform perdure.touch_thread(t);
end $$;

-- Context providers. Who writes what was said, or what is logged, holds the thread's lock: so nothing of a message
-- comes back that was deleted meanwhile.

-- A turn that is over, or gone, asks no model any more, and nothing would forget what is written to it.
create function perdure.put_turn_context(p_thread_id text, p_turn int, p_step int, p_body text) returns text
language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
begin
    insert into perdure.turn_contexts (thread, turn, step, body)
    select t.thread, p_turn, p_step, p_body
    where p_turn > t.turn or exists (
        select from perdure.messages m
        where m.thread = t.thread and m.state = 'running' and m.role = 'assistant' and m.turn = p_turn)
    on conflict do nothing;
    return coalesce((select c.body from perdure.turn_contexts c
                     where c.thread = t.thread and c.turn = p_turn and c.step = p_step), p_body);
end $$;

create function perdure.finish_hook(
    p_thread_id text, p_turn int, p_source text, p_body text, p_version bigint, p_schema_version bigint
) returns boolean language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
begin
    if exists (select from perdure.finished_hooks where thread = t.thread and turn = p_turn and source = p_source) then
        return true;
    end if;
    if p_body is not null then
        if p_version <> coalesce(
            (select s.version from perdure.provider_states s where s.thread = t.thread and s.source = p_source), 0
        ) then
            return false;
        end if;
        insert into perdure.provider_states (thread, source, body, version, schema_version)
        values (t.thread, p_source, p_body, p_version + 1, p_schema_version)
        on conflict (thread, source) do update
        set (body, version, schema_version) = (excluded.body, excluded.version, excluded.schema_version);
    end if;
    insert into perdure.finished_hooks (thread, turn, source) values (t.thread, p_turn, p_source);
    return true;
end $$;

create function perdure.append_log(p_thread_id text, p_source text, p_messages jsonb) returns void
language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
begin
    insert into perdure.logged_messages (thread, source, id, message_id, turn, body)
    select t.thread, p_source, m.id, m.message_id, m.turn, m.body
    from rows from (jsonb_to_recordset(p_messages) as (id text, message_id text, turn int, body text))
         with ordinality as m(id, message_id, turn, body, at)
    where case when m.message_id is null then perdure.message_of(t.thread, m.turn) is not null
          else exists (select from perdure.messages where messages.id = m.message_id) end
    order by m.at
    on conflict do nothing;
end $$;

-- Summaries.

-- The number of the path of a thread: it rises with each change in the middle of the thread or of one above it.
create function perdure.path_shape(t perdure.threads) returns bigint language sql stable as $$
    with recursive line as (
        select t.parent_thread_id, t.shape
      union all
        select p.parent_thread_id, p.shape from line l join perdure.threads p on p.thread_id = l.parent_thread_id
    )
    select sum(line.shape)::bigint from line
$$;

-- A summary holds if its point is there, and the path is as it was when the summary was made: no other one has come in,
-- for that raises the shape. The owner of the point is the thread itself or one above it, and is locked first, as
-- deletions do. A change of a thread further up that is not committed yet cannot be seen here; but before it voids what
-- hangs below it locks all threads there, and so waits for this one.
--
-- Readers are not sent for a new snapshot, nor told at all: a summary stands before the model, what people see stays.
create function perdure.add_summary(p_thread_id text, p_summary jsonb) returns boolean language plpgsql as $$
declare
    s perdure.summaries := jsonb_populate_record(null::perdure.summaries, p_summary);
    t perdure.threads;
    v_owner bigint := (select m.thread from perdure.messages m where m.id = s.message_id);
    v_known perdure.summaries;
begin
    perform from perdure.threads where thread = v_owner for no key update;
    t := perdure.lock_thread(p_thread_id);
    s.thread := t.thread;
    select * into v_known from perdure.summaries where id = s.id;
    if found then
        s.number := v_known.number;
        s.accepted := v_known.accepted;
        if v_known.message_id is not null and v_known is distinct from s then
            raise exception using errcode = 'unique_violation', message = 'a summary',
                detail = format('The summary %s is there with other content.', s.id);
        end if;
        return v_known.accepted;
    end if;
    -- Looked for once more: it may have gone while this waited for the lock.
    s.accepted := exists (select from perdure.messages where id = s.message_id)
        and (s.shape is null or s.shape = perdure.path_shape(t));
    if not s.accepted then
        s.message_id := null;
        s.body := '""';
        s.items := null;
    end if;
    insert into perdure.summaries (id, thread, message_id, parts, body, kind, items, covered, previous_id, shape, usage,
                                   accepted)
    values (s.id, s.thread, s.message_id, s.parts, s.body, s.kind, s.items, s.covered, s.previous_id, s.shape, s.usage,
            s.accepted);
    if s.usage is not null then
        t := perdure.spend(t, s.usage::jsonb);
        update perdure.threads
        set (requests, input_tokens, output_tokens, cached_tokens, nano_usd, unpriced) =
            (t.requests, t.input_tokens, t.output_tokens, t.cached_tokens, t.nano_usd, t.unpriced)
        where thread = t.thread;
    end if;
    if s.accepted then
        update perdure.threads set seq = seq + 1, shape = seq + 1 where thread = v_owner;
    end if;
    return s.accepted;
end $$;

-- Batches.

create or replace function perdure.apply_append_messages(t perdure.threads, op jsonb) returns perdure.threads
language plpgsql as $$
begin
    insert into perdure.messages (id, thread, seq, changed, role, parent_id, parent_parts, turn, state, reason,
                                  detail, input_id, metadata, source_id, place, options, usage)
    select m.id, t.thread, t.seq + m.at, t.seq + m.at, m.role,
           case when m.on_head then coalesce(t.head_id, t.spawn_message_id)
                when m.at_root then t.spawn_message_id else m.parent_id end,
           case when m.at_root or m.on_head and t.head_id is null then t.spawn_parts else m.parent_parts end,
           m.turn, m.state, m.reason, m.detail, m.input_id, m.metadata, m.source_id, m.place,
           m.options, m.usage
    from jsonb_to_recordset(op -> 'messages') as m(
        id text, at int, on_head boolean, at_root boolean, role text, parent_id text, parent_parts int, turn int,
        state text, reason text, detail text, input_id text, metadata text, source_id text, place bigint,
        options text, usage text);
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

create or replace function perdure.apply_import_messages(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
declare
    v_known text[] := array(
        select n.id from jsonb_to_recordset(op -> 'messages') as n(id text, known boolean) where n.known);
begin
    perform perdure.forget_content(t, v_known);
    t := perdure.end_turns(t, array(
        select m.turn
        from jsonb_to_recordset(op -> 'messages') as n(id text, known boolean, turn int)
        join perdure.messages m on m.id = n.id
        where n.known and n.turn <> 0));
    update perdure.messages m
    set changed = t.seq + n.at, state = n.state, reason = n.reason, detail = n.detail, metadata = n.metadata,
        source_id = n.source_id, options = n.options, turn = case when n.turn = 0 then m.turn else n.turn end, done_step = null
    from jsonb_to_recordset(op -> 'messages') as n(
        id text, known boolean, at int, turn int, state text, reason text, detail text, metadata text, source_id text,
        options text)
    where n.known and m.id = n.id;
    insert into perdure.messages (id, thread, seq, changed, role, parent_id, parent_parts, turn, state, reason, detail,
                                  metadata, source_id, place, given_id, created_at, options, usage)
    select m.id, t.thread, t.seq + m.at, t.seq + m.at, m.role, coalesce(m.parent_id, t.spawn_message_id),
           case when m.parent_id is null then t.spawn_parts end, m.turn, m.state, m.reason, m.detail, m.metadata,
           m.source_id, m.place, m.given_id, m.created_at, m.options, m.usage
    from jsonb_to_recordset(op -> 'messages') as m(
        id text, known boolean, at int, role text, parent_id text, turn int, state text, reason text, detail text,
        metadata text, source_id text, place bigint, given_id text, created_at timestamptz, options text, usage text)
    where not m.known;
    insert into perdure.parts (message_id, position, thread, seq, body, decision)
    select p.message_id, p.position, t.thread, t.seq + p.at, p.body, p.decision
    from jsonb_to_recordset(op -> 'parts') as p(message_id text, position int, at int, body text, decision text);
    insert into perdure.calls (thread, call_id, message_id, position, turn, step, index, result, interim, seq)
    select t.thread, c.call_id, c.message_id, c.position, c.turn, c.step, c.index, c.result, c.interim,
           coalesce(t.seq + c.at, 0)
    from jsonb_to_recordset(op -> 'calls') as c(
        call_id text, message_id text, position int, turn int, step int, index int, result text, interim text, at int);
    t.seq := t.seq + (op ->> 'count')::int;
    t.turn := greatest(t.turn, (op ->> 'turn')::int);
    t.spent_blob := op ->> 'blob';
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
    if op ? 'usage' then
        t := perdure.spend(t, (op ->> 'usage')::jsonb);
        if not op ? 'with_status' then
            update perdure.messages set usage = perdure.add_usage(usage, op ->> 'usage') where id = op ->> 'message_id';
        end if;
    else
        t := perdure.spend(t, op);  -- as a writer of the release before says it
    end if;
    -- Whatever is left of earlier steps can no longer be committed either: one turn of a thread works at a time.
    delete from perdure.steps where thread = t.thread and (turn, step) <= (v_turn, v_step);
    delete from perdure.chunks where thread = t.thread and (turn, step) <= (v_turn, v_step);
    return perdure.mark_done(t, v_turn, v_step);
end $$;

-- `usage` is that of the steps that were committed with it.
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
            usage = case when op ? 'usage' then perdure.add_usage(usage, op ->> 'usage') else usage end,
            done_step = case when op ->> 'state' = 'requires_action' and m.turn = t.done_turn
                        then greatest(m.done_step, t.done_step) else m.done_step end
        where id = m.id;
    elsif op ? 'usage' then
        update perdure.messages set usage = perdure.add_usage(usage, op ->> 'usage') where id = m.id;
    end if;
    return t;
end $$;

-- The content of messages goes: parts, open calls with the questions about them, arguments that subscriptions show, what
-- providers said in their turns and logged of them.
create or replace function perdure.forget_content(t perdure.threads, p_ids text[]) returns void language plpgsql as $$
declare
    v_turns int[];
begin
    update perdure.subscriptions s set arguments = '"{}"'
    where s.thread = t.thread and exists (
        select from perdure.parts p
        where p.message_id = any(p_ids) and strpos(p.body, '"kind":"tool_call"') > 0
          and strpos(p.body, '"call_id":' || to_json(s.call_id)) > 0);
    delete from perdure.calls where thread = t.thread and message_id = any(p_ids);
    delete from perdure.parts where message_id = any(p_ids);
    v_turns := array(select m.turn from perdure.messages m where m.id = any(p_ids) and m.turn <> 0);
    delete from perdure.turn_contexts where thread = t.thread and turn = any(v_turns);
    delete from perdure.logged_messages
    where thread = t.thread and (message_id = any(p_ids) or message_id is null and turn = any(v_turns));
end $$;

-- An input whose digest is gone was the one of a message that was deleted: to bring it again is no conflict.
create or replace function perdure.append_messages(
    p_thread_id text, p_number bigint, p_sync_id text, p_inputs jsonb, p_operations jsonb
) returns table (refused text, conflict boolean) language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    v_spent text := t.spent_blob;
    v_place bigint;
    op jsonb;
begin
    if t.version = p_number and t.sync_id = p_sync_id then
        return;
    elsif t.version <> p_number - 1 then
        raise exception using errcode = 'PD002', message = t.version::text;
    end if;
    if p_inputs <> '{}' then
        return query
            select i.input_id, coalesce(i.digest <> coalesce(p_inputs ->> i.input_id, ''), false)
            from perdure.inputs i
            where i.thread = t.thread and i.input_id = any(array(select jsonb_object_keys(p_inputs)));
        if found then
            return;
        end if;
        insert into perdure.inputs (thread, input_id, digest) select t.thread, key, value from jsonb_each_text(p_inputs);
    end if;
    t.spent_blob := null;
    for op, v_place in select * from jsonb_array_elements(p_operations) with ordinality loop
        case op ->> 'kind'
            when 'append_messages' then t := perdure.apply_append_messages(t, op);
            when 'append_parts' then t := perdure.apply_append_parts(t, op);
            when 'commit_step' then t := perdure.apply_commit_step(t, op);
            when 'stage_result' then t := perdure.apply_stage_result(t, op ->> 'call_id', op ->> 'result');
            when 'commit_results' then t := perdure.apply_commit_results(t, op);
            when 'set_status' then t := perdure.apply_set_status(t, op);
            when 'set_due' then t := perdure.apply_set_due(t, op);
            when 'close_thread' then t.closed_at := coalesce(t.closed_at, now());
            when 'track_subscription' then perform perdure.track_subscription(t, op);
            when 'remove_subscription' then
                delete from perdure.subscriptions where thread = t.thread and call_id = op ->> 'call_id';
            when 'decide' then t := perdure.apply_decide(t, op);
            when 'remember_decision' then perform perdure.remember_decision(t, op);
            when 'forget_decisions' then delete from perdure.decisions where thread = t.thread;
            when 'show_interim' then t := perdure.apply_show_interim(t, op);
            when 'store_late_result' then t := perdure.apply_store_late_result(t, op);
            when 'annotate_message' then t := perdure.apply_annotate_message(t, op);
            when 'import_messages' then t := perdure.apply_import_messages(t, op);
            when 'change_tree' then t := perdure.apply_change_tree(t, op);
            when 'forget_title' then t.title := null;
        end case;
        if op ? 'inputs' then
            update perdure.inputs set seq = t.seq + v_place / 1000000::numeric
            where thread = t.thread and input_id = any(array(select jsonb_array_elements_text(op -> 'inputs')));
        end if;
    end loop;
    if v_spent is not null then
        perform perdure.purge_blobs(t, array[v_spent]);
    end if;
    update perdure.threads
    set (head_id, version, sync_id, seq, turn, done_turn, done_step, requests, input_tokens, output_tokens,
         cached_tokens, nano_usd, unpriced, closed_at, title, remembered, tree_seq, shape, spent_blob) =
        (t.head_id, p_number, p_sync_id, t.seq, t.turn, t.done_turn, t.done_step, t.requests, t.input_tokens,
         t.output_tokens, t.cached_tokens, t.nano_usd, t.unpriced, t.closed_at, t.title, t.remembered, t.tree_seq, t.shape, t.spent_blob)
    where thread = t.thread;
    perform pg_notify('perdure', p_thread_id);
end $$;
